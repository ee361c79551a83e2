"""Streams: which one a call is for, and what has to be done on others before."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Protocol, TypeAlias

from ..errors import InvalidError
from . import _driver
from .array import Array, device_of, export, library_of


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
