"""Memory that a daemon can map."""

from __future__ import annotations

import mmap
import os
import weakref
from ctypes import byref
from typing import Any

import numpy as np

from . import _abi
from ._abi import check

lib = _abi.load_client()

#: What arrays are looked up in: where each Memory that is alive begins.
_alive: weakref.WeakValueDictionary[int, Memory] = weakref.WeakValueDictionary()


class Memory(mmap.mmap):
    """A memfd, sealed against resizing and mapped here: zeroed, page-aligned bytes with the buffer protocol.

        memory = alloc(64 << 20)
        array = numpy.frombuffer(memory, numpy.uint16)         or numpy.asarray(memory), as bytes
        tensor = torch.frombuffer(memory, dtype=torch.bfloat16)

    Arrays keep it alive; it is unmapped and closed when the last of them is gone. Pools keep a mapping of their own.
    """

    fd: int
    address: int

    def __new__(cls, size: int) -> Memory:
        info = _abi.MemoryInfo()
        check(lib.strait_alloc(max(size, 0), byref(info)), "alloc")
        fd = os.dup(info.fd)
        size = info.size
        lib.strait_free(byref(info))
        try:
            self = super().__new__(cls, fd, size)
        except BaseException:
            os.close(fd)
            raise
        self.fd = fd
        self.address = int(np.frombuffer(self, np.uint8).ctypes.data)
        weakref.finalize(self, os.close, fd)
        _alive[self.address] = self
        return self

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "shape": (len(self),), "typestr": "|u1", "data": (self.address, False)}


def alloc(size: int) -> Memory:
    """At least `size` bytes that pools can be registered on; rounded up to whole memory pages."""
    return Memory(size)


def find_memory(address: int, size: int) -> Memory | None:
    """The Memory that holds these bytes."""
    for memory in list(_alive.values()):
        if not memory.closed and memory.address <= address and address + size <= memory.address + len(memory):
            return memory
    return None
