"""Memory and events of a GPU that other processes can open: the daemon's."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

from . import _driver
from ._driver import IPC_BYTES, call
from .array import Array
from .order import StreamLike, handle_of

# ---- Memory ---------------------------------------------------------------------------------------------------------


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


# ---- Events ---------------------------------------------------------------------------------------------------------


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
