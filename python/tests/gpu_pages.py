"""Pools of torch tensors that two processes make alike."""

import torch

CLASSES = [(role, layer) for layer in range(4) for role in "kv"]
SHAPE = (16, 8, 128)  # tokens, heads, values: 32 KiB


def values_of(cls, pages, device="cuda"):
    generator = torch.Generator(device).manual_seed(10 * cls[1] + ord(cls[0]))
    return torch.randn(pages, *SHAPE, generator=generator, device=device).to(torch.bfloat16)


def make_pool(client, pages):
    """Tensors of torch's caching allocator, several in one allocation of the driver's."""
    tensors = {cls: torch.zeros(pages, *SHAPE, dtype=torch.bfloat16, device="cuda") for cls in CLASSES}
    return client.register(tensors), tensors
