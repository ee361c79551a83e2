"""Small models with random weights, made here: enough for an engine to run, and for tokens to depend on every block."""

from pathlib import Path

import torch
from transformers import Lfm2Config, Lfm2ForCausalLM, LlamaConfig, LlamaForCausalLM

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


def make_hybrid_model(folder: Path) -> None:
    """Layers of attention and of short convolutions in turn: the last inputs of a convolution are the state of a
    request. The arguments of the second line are those that vLLM reads besides those of transformers."""
    torch.manual_seed(7)
    config = Lfm2Config(
        **{"conv_dim": 256, "block_dim": 256, "block_multiple_of": 64, "block_ffn_dim_multiplier": 1.0},
        block_auto_adjust_ff_dim=False,
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        layer_types=["conv", "full_attention"] * 2,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = Lfm2ForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, parameter.shape[1] ** -0.5)
    model.save_pretrained(folder)
