"""Memory of GPUs by DLPack or __cuda_array_interface__, streams, and the order of work on them."""

from __future__ import annotations

import ctypes
import importlib
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from ctypes import c_int64, c_uint32, c_uint64, c_void_p, py_object
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .._views import array_view, byte_view
from ..errors import InvalidError
from . import _driver
from ._driver import IPC_BYTES, LEGACY, NO_TIMING, call, made

_LIBRARIES = ("torch", "cupy")  # have a current stream, and can allocate


def _library_of(source: Any) -> str:
    return type(source).__module__.partition(".")[0]


# ---- Arrays ---------------------------------------------------------------------------------------------------------


class View(NamedTuple):
    """Memory that a GPU can reach, never copied: as a numpy array at its address, whose elements must not be looked at.
    device: None: pinned memory of the host, which is on every one."""

    array: NDArray[Any]
    device: int | None

    def numbers(self, what: str) -> int:
        """Address of page numbers, such as ids. TypeError: no contiguous row of int32 or uint32."""
        array = self.array
        if array.dtype.name not in ("int32", "uint32") or array.ndim != 1 or not array.flags.c_contiguous:
            shape = list(array.shape)
            raise TypeError(f"{what} on a GPU must be a contiguous row of int32 or uint32, not {array.dtype} {shape}")
        return array.ctypes.data


class _Interface:
    """What numpy makes an array of without a look at the memory."""

    def __init__(self, owner: Any, data: tuple[int, bool], shape: Any, typestr: str, strides: Any):
        self.owner = owner
        self.__array_interface__ = {"version": 3, "data": data, "shape": shape, "typestr": typestr, "strides": strides}


def device_of(source: Any, what: str = "it") -> int | None:
    """The GPU that a source says its memory is of; None: it says nothing of the kind. TypeError: it is not so."""
    if hasattr(source, "__dlpack_device__"):
        kind, number = source.__dlpack_device__()
        return int(number) if int(kind) in _DEVICES else None
    interface = getattr(source, "__cuda_array_interface__", None)
    if interface is None:
        return None
    device = _driver.device_at(interface["data"][0])
    if device is None:
        raise TypeError(f"{what} is at {interface['data'][0]:#x}, where there is no memory of a GPU, or no longer")
    return device


def view(source: Any, what: str) -> View:
    """Memory of a GPU. No order with the source's own work is made: see follow().

    TypeError: it is another kind of memory, or of a dtype that is not known.
    """
    device = device_of(source, what)
    if device is None:
        raise TypeError(
            f"{what} is not in memory of a GPU: it must have __dlpack__ or __cuda_array_interface__ and be there, "
            f"not {type(source).__name__}; strait.encode() and strait.decode() are for the host's"
        )
    if hasattr(source, "__dlpack__"):
        return View(np.asarray(_read_capsule(source, device, what)), device)
    given = source.__cuda_array_interface__
    typestr = given["typestr"].replace("V", "u")  # numpy writes ml_dtypes' types so
    return View(np.asarray(_Interface(source, given["data"], given["shape"], typestr, given.get("strides"))), device)


def flat_view(source: Any, what: str) -> View:
    """Memory of a GPU or pinned memory of the host, as one row of bytes. ValueError: it is not contiguous."""
    if device_of(source, what) is not None:
        array, device = view(source, what)
        return View(byte_view(array, what), device)
    row = byte_view(array_view(source, what), what)
    if not _driver.is_pinned(row.ctypes.data):
        raise TypeError(f"{what} is in pageable memory of the host, which a GPU cannot reach: pin it, or use the GPU's")
    return View(row, None)


def new_bytes(size: int, device: int, sources: Iterable[Any]) -> Any:
    """A new row of bytes of the sources' library, else of torch, else of cupy. TypeError: none of them is here."""
    own = [name for name in map(_library_of, sources) if name in _LIBRARIES]
    for name in [*own[:1], *_LIBRARIES]:
        with suppress(ImportError):
            library = importlib.import_module(name)
            if name == "torch" and library.cuda.is_available():
                return library.empty(size, dtype=library.uint8, device=f"cuda:{device}")
            if name == "cupy":
                with library.cuda.Device(device):
                    return library.empty(size, dtype=library.uint8)
    raise TypeError("out must be given: neither torch nor cupy is here to allocate it on a GPU")


# ---- DLPack ---------------------------------------------------------------------------------------------------------

_DEVICES = {2, 13}  # CUDA, and its managed memory
_READ_ONLY = 1  # of the flags of a versioned capsule
_UNORDERED = -1  # as a capsule's stream: no order is wanted
_TENSOR = "QiiiBBHQQQ"  # data, type and number of the device, ndim, code, bits, lanes, shape, strides, byte_offset
_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}  # numpy's letters of type codes
_WITHOUT_NUMPY = {(4, 16), *((code, 8) for code in range(7, 15))}  # bfloat16, floats of 8 bits: integers of their size


_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [py_object, ctypes.c_char_p]
_pointer_in = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_in.restype, _pointer_in.argtypes = c_void_p, [py_object, ctypes.c_char_p]


def _export(source: Any, device: int, stream: int) -> Any:
    """A capsule of the source's memory. The source sees to it that work on the stream comes after its own."""
    device_in_use = _driver.on_device(device)
    if _library_of(source) == "torch":
        source = source.detach()
        device_in_use = sys.modules["torch"].cuda.device(device)  # it insists, and remembers its own
    with device_in_use:
        try:
            return source.__dlpack__(stream=stream, max_version=(1, 0))
        except TypeError:  # from before there were versions
            return source.__dlpack__(stream=stream)


def _read_capsule(source: Any, device: int, what: str) -> _Interface:
    """Jax takes any number for a stream that it lets wait: it gets one where that harms nobody. A versioned capsule
    begins with 32 bytes of its own."""
    capsule = _export(source, device, _UNORDERED if _library_of(source) in _LIBRARIES else LEGACY)
    readonly = False
    if _is_valid(capsule, b"dltensor_versioned"):
        address = _pointer_in(capsule, b"dltensor_versioned") + 32
        if c_uint32.from_address(address - 32).value != 1:
            raise TypeError(f"{what} is DLPack of version {c_uint32.from_address(address - 32).value}, not known here")
        readonly = bool(c_uint64.from_address(address - 8).value & _READ_ONLY)
    else:
        address = _pointer_in(capsule, b"dltensor")
    tensor = struct.unpack(_TENSOR, ctypes.string_at(address, struct.calcsize(_TENSOR)))
    data, _, _, ndim, code, bits, lanes, shape, strides, offset = tensor
    kind = "u" if (code, bits) in _WITHOUT_NUMPY else _KINDS.get(code)
    if kind is None or lanes != 1 or bits not in (8, 16, 32, 64, 128):
        raise TypeError(f"{what} holds values that are not known here: DLPack type {code}, {bits} bits")
    row = c_int64 * ndim
    steps = tuple(step * bits // 8 for step in row.from_address(strides)) if strides else None
    sizes = tuple(row.from_address(shape)) if ndim else ()
    return _Interface((source, capsule), (data + offset, readonly), sizes, f"<{kind}{bits // 8}", steps)


# ---- Streams --------------------------------------------------------------------------------------------------------

#: A stream: torch's (cuda_stream), cupy's (ptr), what has __cuda_stream__(), or the address that the driver knows it by
#: (0, 1: the legacy default stream; 2: that of the thread). None: the current one of the library that the memory comes
#: from (torch, cupy), the legacy default stream where there is no such thing.
StreamLike: TypeAlias = Any


def handle_of(stream: StreamLike) -> int:
    """The driver's name of a stream, never 0."""
    if hasattr(stream, "__cuda_stream__"):
        stream = stream.__cuda_stream__()[1]
    handle = next((getattr(stream, name) for name in ("cuda_stream", "ptr") if hasattr(stream, name)), stream)
    if not isinstance(handle, int):
        raise TypeError(f"{type(stream).__name__} is no stream: one of torch or cupy, or an address, is")
    if handle < 0:
        raise InvalidError(f"{handle} is no stream")
    return handle or LEGACY


def _current(library: str, device: int) -> int:
    """Where torch or cupy queues its work now."""
    cuda = sys.modules[library].cuda
    return handle_of(cuda.current_stream(device) if library == "torch" else cuda.get_current_stream(device))


def current_handle(stream: StreamLike, device: int) -> int:
    """The driver's name of a stream; None: torch's current one, if torch is in use."""
    torch = sys.modules.get("torch") if stream is None else None
    if torch is not None and torch.cuda.is_available():
        return _current("torch", device)
    return handle_of(LEGACY if stream is None else stream)


def stream_for(stream: StreamLike, sources: Iterable[Any], device: int) -> int:
    """The stream of a call. InvalidError: it is another device's, or being captured."""
    if stream is None:
        library = next((name for name in map(_library_of, sources) if name in _LIBRARIES), None)
        stream = LEGACY if library is None else _current(library, device)
    handle = handle_of(stream)
    if not _driver.is_of_device(handle, device):
        raise InvalidError(f"the stream is not of GPU {device}")
    if _driver.is_capturing(handle):
        raise InvalidError("the stream is being captured into a graph: memory of a call serves once")
    return handle


def follow(sources: Iterable[Any], handle: int, device: int) -> None:
    """Lets what comes on the stream wait for what the sources' libraries have queued so far: on the current stream of
    torch or cupy, on the one that __cuda_array_interface__ names, or as DLPack's protocol has it."""
    libraries, streams = set(), set()
    for source in sources:
        library = _library_of(source)
        if library in _LIBRARIES:
            libraries.add(library)
        elif not hasattr(source, "__dlpack__"):
            streams.add(getattr(source, "__cuda_array_interface__", {}).get("stream"))
        elif device_of(source) is not None:
            _export(source, device, handle)
    streams.update(_current(library, device) for library in libraries)
    for stream in streams - {None, handle}:
        event = made("cuEventCreate", NO_TIMING)
        call("cuEventRecord", event, stream)
        call("cuStreamWaitEvent", handle, event, 0)
        call("cuEventDestroy_v2", event)


# ---- Events of offers -----------------------------------------------------------------------------------------------


def event_for(event: Any, embedded: bool) -> tuple[int | None, Any]:
    """Where a daemon reads which event it is: the address of an IPC handle, or of the event itself for one in this
    process; and what keeps it. TypeError; ValueError: other processes cannot open it."""
    if event is None:
        return None, None
    if embedded:
        address = next((getattr(event, name) for name in ("cuda_event", "ptr") if hasattr(event, name)), None)
        if not isinstance(address, int):
            raise TypeError(f"ready must be an event of torch or cupy that is recorded, not {type(event).__name__}")
        return address, event
    if not isinstance(event, bytes) and not hasattr(event, "ipc_handle"):
        raise TypeError(f"ready must be a torch.cuda.Event or an IPC handle of 64 bytes, not {type(event).__name__}")
    try:
        handle = event if isinstance(event, bytes) else bytes(event.ipc_handle())
    except RuntimeError as failure:
        raise ValueError(f"ready has no handle for other processes (interprocess=True gives one): {failure}") from None
    if len(handle) != IPC_BYTES:
        raise ValueError(f"an event's handle has {IPC_BYTES} bytes, not {len(handle)}")
    buffer = ctypes.create_string_buffer(handle, IPC_BYTES)
    return ctypes.addressof(buffer), (event, buffer)
