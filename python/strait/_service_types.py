"""What the service tells: strait.service hands these on."""

from __future__ import annotations

import ctypes
import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ._service_abi import RawEvent, lib

if TYPE_CHECKING:
    from .service import Pool, Transfer


class State(enum.IntEnum):
    """Ordered, so that ranks can agree by the minimum."""

    FAILED = 0
    BOOTSTRAP = 1
    READY = 2
    TRANSFERRING = 3
    DONE = 4


class Reason(enum.IntEnum):
    """Why a transfer failed."""

    NONE = 0
    TIMEOUT = 1
    LEASE_EXPIRED = 2
    PEER_DOWN = 3
    PEER_ABORT = 4
    ABORTED = 5
    GEOMETRY = 6
    CODEC = 7
    INTEGRITY = 8
    NO_MEMORY = 9
    LOCAL = 10
    BUSY = 11

    @property
    def text(self) -> str:
        text: bytes = lib.strait_reason_string(self)
        return text.decode()


class EventType(enum.IntEnum):
    STATE = 1
    DRAINED = 2
    LAYER = 3
    POOL = 4
    POOL_REMOVED = 5
    NOTE = 6
    STATS = 7
    CONNECTION = 8


class Mismatch(enum.IntFlag):
    """Why two pools cannot exchange pages. With CODEBOOK alone they can, uncompressed."""

    PAGE_SIZE = 1
    DTYPE = 2
    LAYOUT = 4
    LAYERS = 8
    CODEBOOK = 16
    VERSION = 32
    FATAL = PAGE_SIZE | DTYPE | LAYOUT | LAYERS | VERSION


class Direction(enum.IntEnum):
    AUTO = 0
    PUSH = 1
    PULL = 2


class Coding(enum.IntEnum):
    AUTO = 0
    RAW = 1
    TOP16 = 2
    TIERED = 3


class FailedPage(NamedTuple):
    """A page, of the own pool, that did not land."""

    group: int
    id: int


class Progress(NamedTuple):
    state: State
    reason: Reason
    drained: bool
    layers_landed: int


@dataclass(frozen=True)
class Event:
    """What happened; which fields mean something depends on the type, see struct strait_event."""

    type: EventType
    transfer: Transfer | None = None
    pool: Pool | None = None
    state: State = State.FAILED
    reason: Reason = Reason.NONE
    drained: bool = False
    connected: bool = False
    layer: int = 0
    status: int = 0
    text: str = ""
    failed: tuple[FailedPage, ...] = ()
    data: bytes = b""
    key: bytes = b""


# ---- As C tells it --------------------------------------------------------------------------------------------------


def raw_bytes(address: int | None, size: int) -> bytes:
    return ctypes.string_at(address, size) if address and size else b""


def event_of(raw: RawEvent, transfer: Transfer | None, pool: Pool | None) -> Event:
    """A copy: what it points to goes with the next call."""
    return Event(
        type=EventType(raw.type),
        transfer=transfer,
        pool=pool,
        state=State(raw.state),
        reason=Reason(raw.reason),
        drained=raw.drained,
        connected=raw.connected,
        layer=raw.layer,
        status=raw.status,
        text=(raw.text or b"").decode(errors="replace"),
        failed=tuple(FailedPage(raw.failed[i].group, raw.failed[i].id) for i in range(raw.failed_count)),
        data=raw_bytes(raw.data, raw.data_size),
        key=raw_bytes(raw.key, raw.key_size),
    )
