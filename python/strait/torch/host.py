"""Tensors of torch in memory that a daemon can reach."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .. import service

__all__ = ["host_pool"]

_FACTORIES = (torch.empty, torch.zeros)


class host_pool(TorchFunctionMode):
    """Within it, large tensors that torch.empty and torch.zeros make on the CPU lie in memory of service.alloc(), which
    a pool can be registered on:

        with strait.torch.host_pool():
            kv = torch.zeros(layers, blocks, 2, heads, tokens, size, dtype=torch.bfloat16)

    least: bytes from which on a tensor is large. The memory lives as long as a tensor or a pool uses it. Only calls of
    this thread are concerned. OutOfMemoryError.
    """

    def __init__(self, least: int = 1 << 20):
        super().__init__()
        self._least = least

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _FACTORIES or kwargs.get("out") is not None or kwargs.get("pin_memory"):
            return func(*args, **kwargs)
        if torch.device(kwargs.get("device") or torch.get_default_device()).type != "cpu":
            return func(*args, **kwargs)
        shape = func(*args, **{**kwargs, "device": "meta"})
        if shape.nbytes < self._least or not shape.is_contiguous():
            return func(*args, **kwargs)
        memory = service.alloc(shape.nbytes)
        tensor = torch.frombuffer(memory, dtype=shape.dtype, count=shape.numel()).reshape(shape.shape)
        return tensor.requires_grad_(shape.requires_grad)
