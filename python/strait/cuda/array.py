"""Memory of GPUs as arrays: what has __dlpack__ (torch, cupy, jax, ...), or an address."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p, py_object
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

from .._views import array_view
from . import _driver

# ---- Types of values ------------------------------------------------------------------------------------------------

#: What DLPack calls (code, bits), by numpy's and ml_dtypes' names.
_NAMES = {
    (0, 8): "int8", (0, 16): "int16", (0, 32): "int32", (0, 64): "int64",
    (1, 8): "uint8", (1, 16): "uint16", (1, 32): "uint32", (1, 64): "uint64",
    (2, 16): "float16", (2, 32): "float32", (2, 64): "float64",
    (4, 16): "bfloat16",
    (5, 64): "complex64", (5, 128): "complex128",
    (6, 8): "bool",
    (7, 8): "float8_e3m4", (8, 8): "float8_e4m3", (10, 8): "float8_e4m3fn", (11, 8): "float8_e4m3fnuz",
    (12, 8): "float8_e5m2", (13, 8): "float8_e5m2fnuz",
}  # fmt: skip
_ITEMSIZE = {name: bits // 8 for (_, bits), name in _NAMES.items()}


class DType(NamedTuple):
    """As much of numpy.dtype as is asked for here; numpy itself has no bfloat16."""

    name: str
    itemsize: int
    hasobject: bool = False
    isnative: bool = True

    def __str__(self) -> str:
        return self.name


# ---- DLPack ---------------------------------------------------------------------------------------------------------

_CUDA, _CUDA_MANAGED = 2, 13
_DEVICES = {_CUDA, _CUDA_MANAGED}
_READ_ONLY = 1  # of the flags of a versioned capsule
_UNORDERED = -1  # as a capsule's stream: no order is wanted
_LEGACY = 1  # the legacy default stream


class _Tensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _Managed(Structure):
    _fields_ = [("tensor", _Tensor), ("manager", c_void_p), ("deleter", c_void_p)]


class _Versioned(Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("manager", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", _Tensor),
    ]


_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [py_object, ctypes.c_char_p]
_pointer_in = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_in.restype, _pointer_in.argtypes = c_void_p, [py_object, ctypes.c_char_p]


def library_of(source: Any) -> str:
    return type(source).__module__.partition(".")[0]


def export(source: Any, device: int, stream: int) -> Any:
    """A capsule of the source's memory. The source sees to it that work on the stream comes after its own."""
    if library_of(source) == "torch":
        source = source.detach()
    with _driver.on_device(device):  # torch insists
        try:
            return source.__dlpack__(stream=stream, max_version=(1, 0))
        except TypeError:  # from before there were versions
            return source.__dlpack__(stream=stream)


def _export_unordered(source: Any, device: int) -> Any:
    """Jax takes any number for a stream that it lets wait: it gets one where that harms nobody."""
    return export(source, device, _UNORDERED if library_of(source) in ("torch", "cupy") else _LEGACY)


def _described(capsule: Any) -> tuple[_Tensor, bool]:
    """What a capsule says, and whether it may not be written."""
    if _is_valid(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_pointer_in(capsule, b"dltensor_versioned"))
        if versioned.major != 1:
            raise TypeError(f"DLPack {versioned.major}.{versioned.minor} is not known here")
        return versioned.tensor, bool(versioned.flags & _READ_ONLY)
    return _Managed.from_address(_pointer_in(capsule, b"dltensor")).tensor, False


def device_of(source: Any) -> int | None:
    """The GPU that a source says its memory is of; None: it says nothing of the kind."""
    if isinstance(source, Array):
        return source.device
    if not hasattr(source, "__dlpack_device__"):
        return None
    kind, number = source.__dlpack_device__()
    return int(number) if int(kind) in _DEVICES else None


# ---- Arrays ---------------------------------------------------------------------------------------------------------


class Array:
    """Memory that GPUs can reach, by its address: for what has no __dlpack__.

    pointer: where it begins. shape: in elements; a number means a row of so many.
    dtype: numpy's or ml_dtypes' name of what it holds. strides: in bytes, as numpy has them; None: contiguous.
    device: whose memory it is; None: pinned memory of the host; left out: the driver is asked.
    owner: kept alive as long as the array is; nothing else keeps the memory.

    TypeError: memory that GPUs cannot reach, a dtype that is not known. DeviceError: there is no driver to ask.
    """

    __slots__ = ("__weakref__", "_strides", "device", "dtype", "owner", "pointer", "readonly", "shape")

    def __init__(
        self,
        pointer: int,
        shape: int | Sequence[int],
        *,
        dtype: str = "uint8",
        strides: Sequence[int] | None = None,
        device: int | Literal["ask"] | None = "ask",
        owner: Any = None,
        readonly: bool = False,
    ):
        if dtype not in _ITEMSIZE:
            raise TypeError(f"dtype {dtype!r} is none of {', '.join(_ITEMSIZE)}")
        self.pointer = int(pointer)
        self.shape = (int(shape),) if isinstance(shape, int) else tuple(int(size) for size in shape)
        self.dtype = DType(dtype, _ITEMSIZE[dtype])
        self._strides = None if strides is None else tuple(int(stride) for stride in strides)
        self.device = _reachable(self.pointer) if device == "ask" else device
        self.owner = owner
        self.readonly = readonly
        if self._strides is not None and len(self._strides) != len(self.shape):
            raise ValueError(f"{len(self.shape)} dimensions, but {len(self._strides)} strides")
        if min(self.shape, default=1) < 0:
            raise ValueError(f"shape {list(self.shape)} has a negative size")

    # What follows is numpy.ndarray's.

    @property
    def strides(self) -> tuple[int, ...]:
        if self._strides is not None:
            return self._strides
        strides, step = [], self.itemsize
        for size in reversed(self.shape):
            strides.append(step)
            step *= size
        return tuple(reversed(strides))

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        size = 1
        for count in self.shape:
            size *= count
        return size

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    @property
    def flags(self) -> SimpleNamespace:
        step, contiguous = self.itemsize, True
        for size, stride in zip(reversed(self.shape), reversed(self.strides)):
            contiguous &= size == 1 or stride == step
            step *= size
        return SimpleNamespace(writeable=not self.readonly, c_contiguous=contiguous or self.size == 0)

    @property
    def ctypes(self) -> SimpleNamespace:
        return SimpleNamespace(data=self.pointer)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        where = "pinned memory" if self.device is None else f"GPU {self.device}"
        return f"<strait.cuda.Array {self.dtype} {list(self.shape)} on {where}>"


def _reachable(pointer: int) -> int | None:
    """The GPU whose memory it is, None for pinned memory of the host. TypeError."""
    device = _driver.device_of(pointer)
    if device is None and not _driver.is_pinned(pointer):
        raise TypeError(f"address {pointer:#x} is neither in memory of a GPU nor in pinned memory of the host")
    return device


def _of_capsule(capsule: Any, owner: Any, what: str) -> Array:
    tensor, readonly = _described(capsule)
    if tensor.lanes != 1 or (tensor.code, tensor.bits) not in _NAMES:
        raise TypeError(f"{what} holds values that are not known here: DLPack type {tensor.code}, {tensor.bits} bits")
    dtype = _NAMES[tensor.code, tensor.bits]
    itemsize = _ITEMSIZE[dtype]
    strides = [tensor.strides[i] * itemsize for i in range(tensor.ndim)] if tensor.strides else None
    return Array(
        (tensor.data or 0) + tensor.byte_offset,
        [tensor.shape[i] for i in range(tensor.ndim)],
        dtype=dtype,
        strides=strides,
        device=tensor.device_id,
        owner=(owner, capsule),
        readonly=readonly,
    )


def view(source: Any, what: str) -> Array:
    """Memory of a GPU as an array of the same shape, never copied. TypeError: it is another kind of memory.

    No order with the source's own work is made: that is a call's business, see order.py.
    """
    device = device_of(source)
    if device is None:
        raise TypeError(
            f"{what} is not in memory of a GPU: it must have __dlpack__ and be there, or be a strait.cuda.Array of it, "
            f"not {type(source).__name__}; strait.encode() and strait.decode() are for the host's"
        )
    if isinstance(source, Array):
        return source
    return _of_capsule(_export_unordered(source, device), source, what)


def reachable_view(source: Any, what: str) -> Array:
    """The same, or pinned memory of the host."""
    if isinstance(source, Array):
        return source
    if device_of(source) is not None:
        return view(source, what)
    array = array_view(source, what)
    if not _driver.is_pinned(int(array.ctypes.data)):
        raise TypeError(f"{what} is in pageable memory of the host, which a GPU cannot reach: pin it, or use the GPU's")
    return Array(
        int(array.ctypes.data),
        array.shape,
        dtype=array.dtype.name,
        strides=array.strides,
        device=None,
        owner=source,
        readonly=not array.flags.writeable,
    )


def flat_bytes(array: Array, what: str) -> Array:
    """The same memory as one row of bytes. ValueError: it is not contiguous."""
    if not array.flags.c_contiguous:
        raise ValueError(f"{what} is not contiguous: copy it (.contiguous()), or describe it by a PageList")
    return Array(array.pointer, array.nbytes, device=array.device, owner=array, readonly=array.readonly)
