"""A small Llama with random weights, made here: enough for an engine to run, and for tokens to depend on every block."""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 512


def make_model(folder: Path, layers: int = 4) -> None:
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, parameter.shape[1] ** -0.5)
    model.save_pretrained(folder)
