"""The CUDA driver, libcuda.so.1: loaded when it is first needed, and only what is used of it. Pinned memory."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import (
    POINTER,
    byref,
    c_char_p,
    c_int,
    c_size_t,
    c_ubyte,
    c_uint,
    c_void_p,
)  # fmt: skip
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._abi import lib
from ..errors import DeviceError, Error, OutOfMemoryError, Status

_PROTOTYPES: dict[str, list[Any]] = {
    "cuInit": [c_uint],
    "cuDeviceGetCount": [POINTER(c_int)],
    "cuDeviceGet": [POINTER(c_int), c_int],
    "cuDevicePrimaryCtxRetain": [POINTER(c_void_p), c_int],
    "cuCtxPushCurrent_v2": [c_void_p],
    "cuCtxPopCurrent_v2": [POINTER(c_void_p)],
    "cuGetErrorString": [c_int, POINTER(c_char_p)],
    "cuMemAlloc_v2": [POINTER(c_void_p), c_size_t],
    "cuMemFree_v2": [c_void_p],
    "cuMemAllocAsync": [POINTER(c_void_p), c_size_t, c_void_p],
    "cuMemFreeAsync": [c_void_p, c_void_p],
    "cuMemHostAlloc": [POINTER(c_void_p), c_size_t, c_uint],
    "cuMemcpyAsync": [c_void_p, c_void_p, c_size_t, c_void_p],
    "cuMemsetD8Async": [c_void_p, c_ubyte, c_size_t, c_void_p],
    "cuPointerGetAttribute": [c_void_p, c_int, c_void_p],
    "cuMemGetAddressRange_v2": [POINTER(c_void_p), POINTER(c_size_t), c_void_p],
    "cuIpcGetMemHandle": [c_void_p, c_void_p],
    "cuIpcGetEventHandle": [c_void_p, c_void_p],
    "cuStreamGetCtx": [c_void_p, POINTER(c_void_p)],
    "cuStreamIsCapturing": [c_void_p, POINTER(c_int)],
    "cuStreamWaitEvent": [c_void_p, c_void_p, c_uint],
    "cuEventCreate": [POINTER(c_void_p), c_uint],
    "cuEventDestroy_v2": [c_void_p],
    "cuEventRecord": [c_void_p, c_void_p],
    "cuEventQuery": [c_void_p],
    "cuEventSynchronize": [c_void_p],
}

IPC_BYTES = 64  # of a handle to memory, and of one to an event

_OUT_OF_MEMORY, _NOT_READY = 2, 600
_MEMORY_TYPE, _DEVICE_ORDINAL, _LEGACY_IPC_CAPABLE = 2, 9, 10
_TYPE_HOST, _TYPE_DEVICE = 1, 2
_HOST_ALLOC = 3  # portable, mapped
_NO_TIMING, _INTERPROCESS = 2, 4


@functools.cache
def _driver() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libcuda.so.1")
        for name, arguments in _PROTOTYPES.items():
            entry = getattr(library, name)
            entry.restype, entry.argtypes = c_int, arguments
    except (OSError, AttributeError) as failure:  # absent; too old
        raise DeviceError(f"no usable CUDA driver: {failure}", Status.ERR_DEVICE) from None
    result = library.cuInit(0)
    if result != 0:
        raise DeviceError(f"the CUDA driver does not start: {_text(library, result)}", Status.ERR_DEVICE)
    return library


def _text(library: ctypes.CDLL, result: int) -> str:
    text = c_char_p()
    known = library.cuGetErrorString(result, byref(text)) == 0 and text.value is not None
    return (text.value or b"").decode() if known else f"error {result}"


def failure(name: str, result: int) -> Error:
    message = f"{name}: {_text(_driver(), result)}"
    if result == _OUT_OF_MEMORY:
        return OutOfMemoryError(message, Status.ERR_NO_MEMORY)
    return DeviceError(message, Status.ERR_DEVICE)


def call(name: str, *arguments: Any) -> None:
    """DeviceError, OutOfMemoryError."""
    result = getattr(_driver(), name)(*arguments)
    if result != 0:
        raise failure(name, result)


def _pointer(name: str, *arguments: Any) -> int:
    """Calls a function that writes a pointer to its first argument; returns it. 0 only for handles that can be NULL."""
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
def context_of(device: int) -> int:
    """The device's primary context, the one that frameworks use; it is kept for the life of the process."""
    if not 0 <= device < device_count():
        raise DeviceError(f"there is no GPU {device}: {device_count()} are here", Status.ERR_DEVICE)
    number = c_int()
    call("cuDeviceGet", byref(number), device)
    return _pointer("cuDevicePrimaryCtxRetain", number)


@contextmanager
def on_device(device: int) -> Iterator[None]:
    """Makes the device the current one, of this thread."""
    call("cuCtxPushCurrent_v2", context_of(device))
    try:
        yield
    finally:
        _pointer("cuCtxPopCurrent_v2")


@contextmanager
def on_device_if_any(device: int) -> Iterator[None]:
    """The same; without a driver or a GPU nothing is done: whoever needs them says so."""
    if not available():
        yield
        return
    with on_device(device):
        yield


# ---- Memory ---------------------------------------------------------------------------------------------------------


def _attribute(address: int, attribute: int) -> int | None:
    value = c_int(-1)
    result = _driver().cuPointerGetAttribute(byref(value), attribute, address)
    return value.value if result == 0 else None


def device_of(address: int) -> int | None:
    """The GPU whose memory an address is of; None: of none."""
    if _attribute(address, _MEMORY_TYPE) != _TYPE_DEVICE:
        return None
    return _attribute(address, _DEVICE_ORDINAL)


def is_pinned(address: int) -> bool:
    """Whether it is host memory that GPUs can reach."""
    return _attribute(address, _MEMORY_TYPE) == _TYPE_HOST


def has_ipc_handle(address: int) -> bool:
    """Whether the allocation that holds it is of the kind that other processes can open."""
    return _attribute(address, _LEGACY_IPC_CAPABLE) == 1


def allocation_of(address: int) -> tuple[int, int]:
    """Where the allocation that holds it begins, and its bytes."""
    base, size = c_void_p(), c_size_t()
    call("cuMemGetAddressRange_v2", byref(base), byref(size), address)
    return base.value or 0, size.value


def ipc_handle(name: str, thing: int) -> bytes:
    """By cuIpcGetMemHandle or cuIpcGetEventHandle."""
    handle = ctypes.create_string_buffer(IPC_BYTES)
    call(name, handle, thing)
    return handle.raw


def mem_alloc(size: int) -> int:
    return _pointer("cuMemAlloc_v2", size)


def mem_alloc_async(size: int, stream: int) -> int:
    return _pointer("cuMemAllocAsync", size, stream)


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
    return Block(_pointer("cuMemHostAlloc", whole, _HOST_ALLOC), whole)


def give_block(block: Block) -> None:
    """Nothing reads or writes it any more."""
    with _lock:
        _free_blocks.setdefault(block.size, []).append(block)


# ---- Streams and events ---------------------------------------------------------------------------------------------


def stream_context(stream: int) -> int:
    context = c_void_p()
    call("cuStreamGetCtx", stream, byref(context))
    return context.value or 0


def is_capturing(stream: int) -> bool:
    status = c_int()
    call("cuStreamIsCapturing", stream, byref(status))
    return status.value != 0


def event_create(interprocess: bool = False) -> int:
    return _pointer("cuEventCreate", _NO_TIMING | (_INTERPROCESS if interprocess else 0))


def event_done(event: int) -> bool:
    """DeviceError: what it was recorded behind has failed."""
    result = _driver().cuEventQuery(event)
    if result in (0, _NOT_READY):
        return bool(result == 0)
    raise failure("cuEventQuery", result)


# ---- The codec's plugin ---------------------------------------------------------------------------------------------


@functools.cache
def load_plugin() -> None:
    """The codec looks for its plugin by name alone: that finds what is where libraries are, or is loaded already."""
    name = "libstrait-cuda.so.0"
    for candidate in (name, str(Path(lib._name).resolve().parent / name)):
        try:
            ctypes.CDLL(candidate)
            return
        except OSError:  # whoever asks for the variant reports that it is missing
            continue
