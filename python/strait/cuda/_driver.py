"""The CUDA driver, libcuda.so.1: loaded when it is first needed, and only what is used of it. Pinned memory."""

from __future__ import annotations

import ctypes
import functools
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._abi import lib
from ..errors import DeviceError, Error, OutOfMemoryError, Status

IPC_BYTES = 64  # of a handle to memory, and of one to an event
LEGACY, PER_THREAD = 1, 2  # default streams
NO_TIMING = 2  # flag of events

_OUT_OF_MEMORY, _NOT_READY = 2, 600
_MEMORY_TYPE, _DEVICE_ORDINAL, _LEGACY_IPC_CAPABLE = 2, 9, 10
_TYPE_HOST, _TYPE_DEVICE = 1, 2
_HOST_ALLOC = 3  # portable, mapped


@functools.cache
def _driver() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as failure:
        raise DeviceError(f"no usable CUDA driver: {failure}", Status.ERR_DEVICE) from None
    result = library.cuInit(0)
    if result != 0:
        raise DeviceError(f"the CUDA driver does not start: error {result}", Status.ERR_DEVICE)
    return library


def _result(name: str, *arguments: Any) -> int:
    """Calls a function. All arguments of those used here fit into registers, which c_void_p fills."""
    entry = getattr(_driver(), name)
    entry.argtypes = [c_void_p] * len(arguments)
    return int(entry(*arguments))


def _failure(name: str, result: int) -> Error:
    text = c_char_p()
    _result("cuGetErrorString", result, byref(text))
    message = f"{name}: {(text.value or b'').decode() or f'error {result}'}"
    if result == _OUT_OF_MEMORY:
        return OutOfMemoryError(message, Status.ERR_NO_MEMORY)
    return DeviceError(message, Status.ERR_DEVICE)


def call(name: str, *arguments: Any) -> None:
    """DeviceError, OutOfMemoryError."""
    result = _result(name, *arguments)
    if result != 0:
        raise _failure(name, result)


def made(name: str, *arguments: Any) -> int:
    """Calls a function that writes a pointer to its first argument, and returns that: memory, events, contexts."""
    place = c_void_p()
    call(name, byref(place), *arguments)
    return place.value or 0


# ---- Devices --------------------------------------------------------------------------------------------------------


@functools.cache
def device_count() -> int:
    """How many GPUs this process sees. DeviceError: there is no driver."""
    count = c_int()
    call("cuDeviceGetCount", byref(count))
    return count.value


def available() -> bool:
    """Whether there is a driver and a GPU. The codec asks more of both: see Codec."""
    try:
        return device_count() > 0
    except DeviceError:
        return False


@functools.cache
def _context_of(device: int) -> int:
    """The device's primary context, the one that frameworks use; it is kept for the life of the process."""
    if not 0 <= device < device_count():
        raise DeviceError(f"there is no GPU {device}: {device_count()} are here", Status.ERR_DEVICE)
    number = c_int()
    call("cuDeviceGet", byref(number), device)
    return made("cuDevicePrimaryCtxRetain", number.value)


@contextmanager
def on_device(device: int) -> Iterator[None]:
    """Makes the device the current one, of this thread."""
    call("cuCtxPushCurrent_v2", _context_of(device))
    try:
        yield
    finally:
        made("cuCtxPopCurrent_v2")


# ---- Memory of GPUs -------------------------------------------------------------------------------------------------


def _attribute(address: int, attribute: int) -> int | None:
    value = c_int(-1)
    return value.value if _result("cuPointerGetAttribute", byref(value), attribute, address) == 0 else None


def device_at(address: int) -> int | None:
    """The GPU whose memory an address is of; None: of none."""
    return _attribute(address, _DEVICE_ORDINAL) if _attribute(address, _MEMORY_TYPE) == _TYPE_DEVICE else None


def is_pinned(address: int) -> bool:
    """Whether it is host memory that GPUs can reach."""
    return _attribute(address, _MEMORY_TYPE) == _TYPE_HOST


def memory_handle(address: int, extent: int, device: int, what: str) -> tuple[bytes, int]:
    """The IPC handle of the allocation that holds these bytes, and where they begin in it. ValueError: it has none."""
    with on_device(device):
        if _attribute(address, _LEGACY_IPC_CAPABLE) != 1:
            raise ValueError(
                f"{what} is in memory that was mapped piece by piece (expandable segments of torch, cudaMallocAsync), "
                "which has no handle for other processes: allocate it with strait.cuda.alloc(), or have torch run with "
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False, or use an embedded client"
            )
        base, size = c_void_p(), c_size_t()
        call("cuMemGetAddressRange_v2", byref(base), byref(size), address)
        offset = address - (base.value or 0)
        if offset + extent > size.value:
            raise ValueError(f"{what} ends at byte {offset + extent} of an allocation of {size.value}")
        handle = ctypes.create_string_buffer(IPC_BYTES)
        call("cuIpcGetMemHandle", handle, base)
        return handle.raw, offset


class Memory:
    """Memory of a GPU as a row of bytes, which is freed when nothing refers to it: for pools, see alloc()."""

    def __init__(self, size: int, device: int):
        if size <= 0:
            raise ValueError(f"{size} bytes are no memory")
        with on_device(device):
            address = made("cuMemAlloc_v2", size)
        weakref.finalize(self, call, "cuMemFree_v2", address).atexit = False
        self.__cuda_array_interface__ = {"version": 3, "shape": (size,), "typestr": "|u1", "data": (address, False)}


def alloc(size: int, device: int = 0) -> Memory:
    """Memory that a daemon can open whatever torch's own allocator does, with __cuda_array_interface__:

    tensor = torch.as_tensor(cuda.alloc(size), device="cuda").view(torch.bfloat16).view(pages, 16, 8, 128)
    """
    return Memory(size, device)


# ---- Pinned memory --------------------------------------------------------------------------------------------------


class Block(NamedTuple):
    """Pinned memory of the host, at least 4096-byte aligned."""

    address: int
    size: int

    def row(self, offset: int, dtype: Any, count: int) -> NDArray[Any]:
        """A part of it, as an array."""
        memory = (ctypes.c_uint8 * (count * np.dtype(dtype).itemsize)).from_address(self.address + offset)
        return np.frombuffer(memory, dtype)


_free_blocks: dict[int, list[Block]] = {}
_lock = threading.Lock()


def take_block(size: int) -> Block:
    """At least so many bytes: a block that was given back, as pinning is slow. A device must be current."""
    whole = max(4096, 1 << (size - 1).bit_length())
    with _lock:
        blocks = _free_blocks.get(whole)
        if blocks:
            return blocks.pop()
    return Block(made("cuMemHostAlloc", whole, _HOST_ALLOC), whole)


def give_block(block: Block) -> None:
    """Nothing reads or writes it any more."""
    with _lock:
        _free_blocks.setdefault(block.size, []).append(block)


# ---- Streams and events ---------------------------------------------------------------------------------------------


def is_of_device(stream: int, device: int) -> bool:
    context = c_void_p()
    call("cuStreamGetCtx", stream, byref(context))
    return context.value == _context_of(device)


def is_capturing(stream: int) -> bool:
    status = c_int()
    call("cuStreamIsCapturing", stream, byref(status))
    return status.value != 0


def event_done(event: int) -> bool:
    """DeviceError: what it was recorded behind has failed."""
    result = _result("cuEventQuery", event)
    if result in (0, _NOT_READY):
        return result == 0
    raise _failure("cuEventQuery", result)


# ---- The codec's plugin ---------------------------------------------------------------------------------------------


@functools.cache
def load_plugin() -> None:
    """The codec looks for its plugin by name alone: that finds what is where libraries are, or is loaded already."""
    name = "libstrait-cuda.so.0"
    for candidate in (name, str(Path(lib._name).resolve().parent / name)):
        with suppress(OSError):  # whoever asks for the variant reports that it is missing
            ctypes.CDLL(candidate)
            return
