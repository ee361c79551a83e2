"""Pinned memory of the host for what calls bring along and report: blocks that are used again and never given back."""

from __future__ import annotations

import ctypes
import threading
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import _driver

_SMALLEST = 4096


class Block(NamedTuple):
    address: int
    size: int

    def row(self, offset: int, dtype: Any, count: int) -> NDArray[Any]:
        """A part of it, as an array."""
        kind = np.dtype(dtype)
        memory = (ctypes.c_uint8 * (count * kind.itemsize)).from_address(self.address + offset)
        return np.frombuffer(memory, kind)


_free: dict[int, list[Block]] = {}
_lock = threading.Lock()


def take(size: int) -> Block:
    """At least so many bytes, 4096-byte aligned. A device must be current: see on_device()."""
    whole = max(_SMALLEST, 1 << (size - 1).bit_length())
    with _lock:
        blocks = _free.get(whole)
        if blocks:
            return blocks.pop()
    return Block(_driver.host_alloc(whole), whole)


def give(block: Block) -> None:
    """Nothing reads or writes it any more."""
    with _lock:
        _free.setdefault(block.size, []).append(block)
