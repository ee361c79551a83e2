"""A model of transformers from a checkpoint of a training of it."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import torch.distributed.checkpoint as dcp  # noqa: E402

from strait.torch.checkpoint import Writer, load_file  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_is_made_of_a_checkpoint(tmp_path, dtype):
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=100
    )
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(config).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters())
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 1}
    dcp.save(state, storage_writer=Writer(tmp_path / "step-1"), no_dist=True)
    found = load_file(tmp_path / "latest", prefix="model.")
    assert found.keys() == model.state_dict().keys()
    made, expected = (
        transformers.LlamaForCausalLM.from_pretrained(None, config=config, state_dict=values, dtype=dtype).eval()
        for values in (found, model.state_dict())
    )
    assert all(torch.equal(one, model.get_parameter(name)) for name, one in made.named_parameters())
    tokens = torch.arange(20)[None] % 100
    with torch.no_grad():
        assert torch.equal(made(tokens).logits, expected(tokens).logits)
