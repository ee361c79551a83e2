"""Memory of GPUs: arrays by DLPack or by address, streams and their order, and what other processes can open."""

from __future__ import annotations

import ctypes
import math
import sys
import weakref
from collections.abc import Iterable, Sequence
from ctypes import POINTER, Structure, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p, py_object
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided

from .._views import array_view
from ..errors import InvalidError
from . import _driver
from ._driver import IPC_BYTES, call

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
    """The tensor of a capsule, and whether it is read-only. A versioned one begins with 32 bytes of its own."""
    if not _is_valid(capsule, b"dltensor_versioned"):
        return _Tensor.from_address(_pointer_in(capsule, b"dltensor")), False
    address = _pointer_in(capsule, b"dltensor_versioned")
    if c_uint32.from_address(address).value != 1:
        raise TypeError(f"DLPack of version {c_uint32.from_address(address).value} is not known here")
    return _Tensor.from_address(address + 32), bool(c_uint64.from_address(address + 24).value & _READ_ONLY)


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

    __slots__ = ("__weakref__", "_layout", "device", "dtype", "owner", "pointer", "readonly")
    if TYPE_CHECKING:  # by __getattr__
        shape: tuple[int, ...]
        strides: tuple[int, ...]
        itemsize: int
        ndim: int
        size: int
        nbytes: int

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
        self.pointer, self.owner, self.readonly = int(pointer), owner, readonly
        self.dtype = DType(dtype, _ITEMSIZE[dtype])
        sizes = (int(shape),) if isinstance(shape, int) else tuple(int(size) for size in shape)
        if min(sizes, default=1) < 0:
            raise ValueError(f"shape {list(sizes)} has a negative size")
        if strides is None:
            strides = [self.dtype.itemsize * math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
        if len(strides) != len(sizes):
            raise ValueError(f"{len(sizes)} dimensions, but {len(strides)} strides")
        # numpy's shape and strides without the memory, which is the GPU's: no element is ever looked at
        self._layout = as_strided(np.empty(1, f"V{self.dtype.itemsize}"), sizes, [int(each) for each in strides])
        self.device = _reachable(self.pointer) if device == "ask" else device

    def __getattr__(self, name: str) -> Any:
        """As numpy.ndarray has them."""
        if name in ("shape", "strides", "itemsize", "ndim", "size", "nbytes"):
            return getattr(self._layout, name)
        raise AttributeError(name)

    @property
    def flags(self) -> SimpleNamespace:
        return SimpleNamespace(writeable=not self.readonly, c_contiguous=self._layout.flags.c_contiguous)

    @property
    def ctypes(self) -> SimpleNamespace:
        return SimpleNamespace(data=self.pointer)

    def __len__(self) -> int:
        return len(self._layout)

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


# ---- Streams --------------------------------------------------------------------------------------------------------


class HasCudaStream(Protocol):  # torch.cuda.Stream
    @property
    def cuda_stream(self) -> int: ...


class HasPointer(Protocol):  # cupy.cuda.Stream
    @property
    def ptr(self) -> int: ...


class HasProtocol(Protocol):  # cuda.core, and others by now
    def __cuda_stream__(self) -> tuple[int, int]: ...


#: A stream: torch's, cupy's, what has __cuda_stream__, or the address that the driver knows it by (0, 1: the legacy
#: default stream; 2: that of the thread). None: the current one of the library that the memory comes from (torch,
#: cupy), the legacy default stream where there is no such thing.
StreamLike: TypeAlias = int | HasCudaStream | HasPointer | HasProtocol | None

LEGACY = 1


def _current_stream(source: Any, device: int) -> int | None:
    """Where the library of the source queues its work now; None: it has no such thing."""
    library = sys.modules.get(library_of(source))
    if library_of(source) == "torch":
        return int(library.cuda.current_stream(device).cuda_stream)  # type: ignore[union-attr]
    if library_of(source) == "cupy":
        return int(library.cuda.get_current_stream(device).ptr)  # type: ignore[union-attr]
    return None


def handle_of(stream: Any) -> int:
    """The driver's name of a stream, never 0."""
    if isinstance(stream, int):
        handle = stream
    elif hasattr(stream, "cuda_stream"):
        handle = int(stream.cuda_stream)
    elif hasattr(stream, "__cuda_stream__"):
        handle = int(stream.__cuda_stream__()[1])
    elif hasattr(stream, "ptr"):
        handle = int(stream.ptr)
    else:
        raise TypeError(f"{type(stream).__name__} is no stream: one of torch or cupy, or an address, is")
    if handle < 0:
        raise InvalidError(f"{handle} is no stream")
    return handle or LEGACY


def current_handle(stream: StreamLike, device: int) -> int:
    """The driver's name of a stream; None: torch's current one, if torch is in use."""
    torch = sys.modules.get("torch") if stream is None else None
    if torch is not None and torch.cuda.is_available():
        stream = torch.cuda.current_stream(device)
    return handle_of(LEGACY if stream is None else stream)


def stream_for(stream: StreamLike, sources: Iterable[Any], device: int) -> int:
    """The stream of a call. InvalidError: it is another device's, or being captured."""
    found = [] if stream is not None else [_current_stream(source, device) for source in sources]
    current = next((each for each in found if each is not None), LEGACY)
    handle = handle_of(current if stream is None else stream)
    if _driver.stream_context(handle) != _driver.context_of(device):
        raise InvalidError(f"the stream is not of GPU {device}")
    if _driver.is_capturing(handle):
        raise InvalidError("the stream is being captured into a graph: memory of a call serves once")
    return handle


def order_after(sources: Iterable[Any], handle: int, device: int) -> None:
    """Lets what comes on the stream wait for what the sources' libraries have queued so far, by DLPack's protocol.

    Libraries with a current stream are asked once: all that they have queued there is waited for.
    """
    asked = set()
    for source in sources:
        if isinstance(source, Array) or device_of(source) is None:
            continue
        current = _current_stream(source, device)
        if current is not None:
            if (current or LEGACY) == handle or library_of(source) in asked:
                continue
            asked.add(library_of(source))
        export(source, device, handle)


# ---- Memory and events that other processes can open ----------------------------------------------------------------


class Memory(Array):
    """Memory of a GPU that a daemon can open, as a row of bytes.

        memory = cuda.alloc(pages * page_bytes)
        tensor = torch.as_tensor(memory, device="cuda").view(torch.bfloat16).view(pages, 16, 8, 128)

    What is made of it keeps it alive; it is freed when the last of that is gone.
    """

    __slots__ = ()

    def __init__(self, size: int, device: int):
        if size <= 0:
            raise ValueError(f"{size} bytes are no memory")
        with _driver.on_device(device):
            address = _driver.mem_alloc(size)
        super().__init__(address, size, device=device)
        weakref.finalize(self, call, "cuMemFree_v2", address).atexit = False

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "shape": self.shape, "typestr": "|u1", "data": (self.pointer, False), "strides": None}


def alloc(size: int, device: int = 0) -> Memory:
    """Memory for pools that is sure to have an IPC handle, whatever the framework's own allocator does."""
    return Memory(size, device)


def memory_handle(address: int, extent: int, device: int, what: str) -> tuple[bytes, int]:
    """The IPC handle of the allocation that holds these bytes, and where they begin in it. ValueError: it has none."""
    with _driver.on_device(device):
        if not _driver.has_ipc_handle(address):
            raise ValueError(
                f"{what} is in memory that was mapped piece by piece (expandable segments of torch, cudaMallocAsync), "
                "which has no handle for other processes: allocate it with strait.cuda.alloc(), or have torch run with "
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False, or use an embedded client"
            )
        base, size = _driver.allocation_of(address)
        if address + extent > base + size:
            raise ValueError(f"{what} ends at byte {address - base + extent} of an allocation of {size}")
        return _driver.ipc_handle("cuIpcGetMemHandle", base), address - base


class Event:
    """The point that a stream has reached when all that is queued on it now has run: for `ready=` of offers.

    stream: as for Codec.encode(); None: the legacy default stream. device: the stream's.
    It lives as long as something refers to it; a Transfer that was given it does.
    """

    __slots__ = ("__weakref__", "device", "handle")

    def __init__(self, stream: StreamLike = None, device: int = 0):
        self.device = device
        with _driver.on_device(device):
            self.handle = _driver.event_create(interprocess=True)
            weakref.finalize(self, call, "cuEventDestroy_v2", self.handle).atexit = False
            call("cuEventRecord", self.handle, handle_of(0 if stream is None else stream))

    def ipc_handle(self) -> bytes:
        """64 bytes that other processes of this host can open."""
        with _driver.on_device(self.device):
            return _driver.ipc_handle("cuIpcGetEventHandle", self.handle)

    def done(self) -> bool:
        """Whether the stream has come there. DeviceError: the device has failed."""
        return _driver.event_done(self.handle)


class Ready:
    """An event as a daemon is told of it: `address` is of 64 bytes; or, for one in this process, what it is.

    TypeError, ValueError (an event that other processes cannot open).
    """

    def __init__(self, event: Any, embedded: bool):
        self.event = event
        if event is None:
            self.address: int | None = None
        elif embedded:
            self.address = _address_of(event)
        else:
            self._handle = ctypes.create_string_buffer(_handle_of(event), IPC_BYTES)
            self.address = ctypes.addressof(self._handle)


def _address_of(event: Any) -> int:
    address = getattr(event, "handle", None) or getattr(event, "cuda_event", None)
    if not isinstance(address, int):
        raise TypeError(f"ready must be a recorded strait.cuda.Event or torch.cuda.Event, not {type(event).__name__}")
    return address


def _handle_of(event: Any) -> bytes:
    if not isinstance(event, bytes) and not hasattr(event, "ipc_handle"):
        raise TypeError(f"ready must be a strait.cuda.Event, torch.cuda.Event or 64 bytes, not {type(event).__name__}")
    try:
        handle = event if isinstance(event, bytes) else bytes(event.ipc_handle())
    except RuntimeError as failure:
        raise ValueError(f"ready has no handle for other processes (interprocess=True gives one): {failure}") from None
    if len(handle) != IPC_BYTES:
        raise ValueError(f"an event's handle has {IPC_BYTES} bytes, not {len(handle)}")
    return handle
