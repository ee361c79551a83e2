"""What calls of one codec share on the device: tables, scratch and a staging area.

All of it is used by one call after another. Calls on different streams are kept apart by events, so that the host
never waits: what is allocated, freed or filled is so on a stream of the workspace's own, behind the latest call and
before the next.
"""

from __future__ import annotations

import ctypes
import weakref

from ..errors import NoSpaceError, Status
from . import _driver, _pinned
from ._driver import call
from .array import Array

_SCRATCH_ALIGNMENT = 64
_SMALLEST = 1 << 16


class _Buffer:
    """Device memory that grows; what it held is lost then."""

    def __init__(self) -> None:
        self.address, self.size = 0, 0

    def grow(self, size: int, stream: int) -> None:
        self.free(stream)
        self.address = _driver.mem_alloc_async(size, stream)
        self.size = size

    def free(self, stream: int) -> None:
        if self.address:
            call("cuMemFreeAsync", self.address, stream)
        self.address, self.size = 0, 0


class _Held:
    """What has to be given back when the workspace goes, in its order on the stream."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.stream = _driver.stream_create()
        self.prepared = _driver.event_create()  # on the own stream
        self.used = _driver.event_create()  # recorded after the latest call, on its stream
        self.buffers: list[_Buffer] = []

    def release(self) -> None:
        with _driver.on_device(self.device):
            call("cuStreamWaitEvent", self.stream, self.used, 0)
            for buffer in self.buffers:
                buffer.free(self.stream)
            call("cuEventDestroy_v2", self.used)
            call("cuEventDestroy_v2", self.prepared)
            call("cuStreamDestroy_v2", self.stream)


class Workspace:
    """Of one device, which is the current one during all calls; they must not overlap."""

    def __init__(self, device: int, image: bytes, scratch: Array | None):
        self._given = scratch
        self._image = image
        self._held = _Held(device)
        self._tables, self._scratch, self._staging = _Buffer(), _Buffer(), _Buffer()
        self._held.buffers = [self._tables, self._scratch, self._staging]
        self._uploaded = not image
        self._cleared = False  # scratch has been filled with zeros
        weakref.finalize(self, self._held.release).atexit = False

    @property
    def tables(self) -> int | None:
        return self._tables.address or None

    @property
    def staging(self) -> int:
        return self._staging.address

    @property
    def scratch(self) -> tuple[int, int]:
        """Its address and all of its bytes: a call leaves it for the next as long as they are the same."""
        if self._given is not None:
            return self._given.pointer, self._given.nbytes
        return self._scratch.address, self._scratch.size

    def prepare(self, stream: int, scratch: int, staging: int, blocks: list[_pinned.Block]) -> None:
        """Sees to it that there is enough of all, and lets the stream wait for whoever used it before.

        Adds pinned memory to `blocks` that is read until the stream has come here.
        """
        if self._given is not None and scratch > self._given.nbytes:
            message = f"scratch has {self._given.nbytes} bytes, {scratch} are needed"
            raise NoSpaceError(message, Status.ERR_NO_SPACE)
        if not self._is_ready(scratch, staging):
            call("cuStreamWaitEvent", self._held.stream, self._held.used, 0)
            self._make_ready(scratch, staging, blocks)
            call("cuEventRecord", self._held.prepared, self._held.stream)
        call("cuStreamWaitEvent", stream, self._held.prepared, 0)
        call("cuStreamWaitEvent", stream, self._held.used, 0)

    def _is_ready(self, scratch: int, staging: int) -> bool:
        return self._uploaded and self._cleared and scratch <= self.scratch[1] and staging <= self._staging.size

    def _make_ready(self, scratch: int, staging: int, blocks: list[_pinned.Block]) -> None:
        """What fails half-way is done again by the next call."""
        own = self._held.stream
        if not self._uploaded:
            blocks.append(_pinned.take(len(self._image)))
            ctypes.memmove(blocks[-1].address, self._image, len(self._image))
            self._tables.grow(len(self._image), own)
            call("cuMemcpyAsync", self._tables.address, blocks[-1].address, len(self._image), own)
            self._uploaded = True
        if scratch > self.scratch[1]:
            self._cleared = False
            self._scratch.grow(_rounded(scratch), own)
        if not self._cleared:
            address, size = self.scratch
            call("cuMemsetD8Async", address, 0, size, own)
            self._cleared = True
        if staging > self._staging.size:
            self._staging.grow(_rounded(staging), own)

    def used_by(self, stream: int) -> None:
        """All that a call has queued is queued."""
        call("cuEventRecord", self._held.used, stream)


def _rounded(size: int) -> int:
    """With room to grow, so that this is rare."""
    return max(_SMALLEST, 1 << (size - 1).bit_length())


def check_scratch(scratch: Array) -> None:
    if scratch.pointer % _SCRATCH_ALIGNMENT:
        raise ValueError(f"scratch begins at {scratch.pointer:#x}, which is no multiple of {_SCRATCH_ALIGNMENT}")
