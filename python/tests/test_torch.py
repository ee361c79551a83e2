"""Tensors: the real ones where torch is installed, and a stand-in with the part of the interface that is used."""

import sys
import types

import numpy as np
import pytest
from conftest import values_like_kv

import strait


def test_tensors(codebook):
    torch = pytest.importorskip("torch")
    tensor = torch.randn(64, 16, 4, 32).to(torch.bfloat16)
    bits = tensor.view(torch.int16).numpy().view(np.uint16)
    chunk = strait.encode(tensor, codebook)
    assert chunk == strait.encode(bits, codebook)
    out = torch.zeros_like(tensor)
    assert strait.decode(chunk, codebook, out) is out and torch.equal(out, tensor)
    pool = torch.zeros(70, 16, 4, 32, dtype=torch.bfloat16)
    pages = strait.encode(strait.PageList(tensor[:, :, 1]), codebook)
    strait.decode(pages, codebook, strait.PageList(pool[:, :, 2], range(3, 67)))
    assert torch.equal(pool[3:67, :, 2], tensor[:, :, 1])
    assert strait.decode(strait.encode(tensor.half(), codebook, element="fp16"), codebook).dtype == np.float16
    assert len(strait.encode(torch.zeros(9, requires_grad=True), codebook, element="fp32")) > 0


class Tensor:
    """As much of torch.Tensor as the bridge uses."""

    int16, uint8 = np.int16, np.uint8

    def __init__(self, values, dtype="torch.bfloat16", device="cpu"):
        self.values, self.dtype = values, dtype
        self.device = types.SimpleNamespace(type=device)

    def element_size(self):  # .itemsize is there since torch 2.1
        return self.values.itemsize

    def detach(self):
        return self

    def is_floating_point(self):
        return "float" in self.dtype

    def view(self, dtype):
        return Tensor(self.values.view(dtype), dtype.__name__)

    def numpy(self):
        if self.dtype == "torch.bfloat16":
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.values


Tensor.__module__ = "torch._tensor"


def test_the_bridge_needs_no_copy(codebook, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(int16=np.int16, uint8=np.uint8))
    values = values_like_kv(4000)
    chunk = strait.encode(Tensor(values), codebook)
    assert chunk == strait.encode(values, codebook)
    out = Tensor(np.zeros_like(values))
    assert strait.decode(chunk, codebook, out) is out and (out.values == values).all()
    with pytest.raises(TypeError, match="CPU memory"):
        strait.encode(Tensor(values, device="cuda"), codebook)
