"""Tensors of torch in memory of service.alloc()."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
host_pool = pytest.importorskip("strait.torch.host", reason="libstrait.so").host_pool

from strait._memory import find_memory


def is_placed(tensor):
    return find_memory(tensor.data_ptr(), tensor.nbytes) is not None


def test_large_tensors_are_placed_and_others_are_as_ever():
    with host_pool(least=4096):
        placed = [
            torch.zeros(4096, dtype=torch.int8),
            torch.empty(2, 3, 4096, dtype=torch.bfloat16, device="cpu"),
            torch.zeros((64, 64), requires_grad=True),
        ]
        others = [torch.zeros(16), torch.zeros(4096, device="meta"), torch.ones(4096), torch.rand(4096)]
    outside = torch.zeros(4096)
    assert all(is_placed(tensor) for tensor in placed)
    assert not any(is_placed(tensor) for tensor in [*others[:1], *others[2:], outside])
    assert not placed[0].any() and placed[1].shape == (2, 3, 4096) and placed[2].requires_grad
    placed[1].fill_(2)
    assert (placed[1] == 2).all()


def test_memory_lives_as_long_as_its_tensor():
    with host_pool(least=4096):
        view = torch.zeros(8192, dtype=torch.uint8)[4096:]
    view += 7
    assert is_placed(view) and view.sum() == 7 * 4096
