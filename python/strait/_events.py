"""Events of a client, and the enumerations of the service."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from . import _abi

if TYPE_CHECKING:
    from .service import Pool, Transfer

lib = _abi.load_client()


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
    DENIED = 12
    NOT_SERVED = 13

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
    NOTIFY_FAILED = 9
    FENCED = 10
    PAGES = 11


class Mismatch(enum.IntFlag):
    """Why two pools cannot exchange pages. With CODEBOOK or RESHAPED alone they can."""

    PAGE_SIZE = 1
    DTYPE = 2
    LAYOUT = 4
    LAYERS = 8
    CODEBOOK = 16
    VERSION = 32
    COMPAT = 64
    RESHAPED = 128
    FATAL = PAGE_SIZE | DTYPE | LAYOUT | LAYERS | VERSION | COMPAT


class Layout(enum.IntEnum):
    """Order of what is in a page: tokens (N), KV heads (H), values of a head (D)."""

    NONE = 0
    NHD = 1
    HND = 2


class Direction(enum.IntEnum):
    AUTO = 0
    PUSH = 1
    PULL = 2


class Coding(enum.IntEnum):
    AUTO = 0
    RAW = 1
    TOP16 = 2
    TIERED = 3
    BASE = 4
    SPLIT = 5
    PARTS = 6


class Pages(NamedTuple):
    """Pages of one group: the page with logical index first + i is ids[i]."""

    ids: Sequence[int] | NDArray[Any] | range
    group: int = 0
    first: int = 0


class FailedPage(NamedTuple):
    """A page, of the own pool, that did not land."""

    group: int
    id: int


class Progress(NamedTuple):
    state: State
    reason: Reason
    drained: bool
    layers_landed: int
    pages_landed: int  # that events PAGES have named


class Event(NamedTuple):
    """Event of a client; which fields are set depends on the type, see struct strait_event."""

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
    fence: int = 0  # FENCED: what Pool.fence() returned
    raw_bytes: int = 0  # of pages that have moved, with a verdict,
    wire_bytes: int = 0  # and as they travelled; 0: they were copied under one daemon
    peer: str = ""  # address of the other side's daemon
    landed: tuple[Pages, ...] = ()  # PAGES: of the own pool, in place


#: Members by value: quicker than a call of the enumeration, which counts where a transfer takes some ten microseconds.
_TYPES = {int(member): member for member in EventType}
_STATES = {int(member): member for member in State}
_REASONS = {int(member): member for member in Reason}


def progress_of(raw: _abi.ProgressInfo) -> Progress:
    return Progress(_STATES[raw.state], _REASONS[raw.reason], raw.drained, raw.layers_landed, raw.pages_landed)


def _pages_of(raw: _abi.PageList) -> Pages:
    if not raw.ids:
        return Pages(range(raw.first_id, raw.first_id + raw.count), raw.group, raw.first)
    return Pages(list((ctypes.c_uint32 * raw.count).from_address(raw.ids)), raw.group, raw.first)


def event_of(raw: _abi.RawEvent, transfer: Transfer | None, pool: Pool | None) -> Event:
    """A copy: what it points to goes with the next call."""
    text, data, key, failed = raw.text, raw.data, raw.key, raw.failed_count
    return Event(
        _TYPES[raw.type],
        transfer,
        pool,
        _STATES[raw.state],
        _REASONS[raw.reason],
        raw.drained,
        raw.connected,
        raw.layer,
        raw.status,
        text.decode(errors="replace") if text else "",
        tuple(FailedPage(raw.failed[i].group, raw.failed[i].id) for i in range(failed)) if failed else (),
        ctypes.string_at(data, raw.data_size) if data else b"",
        ctypes.string_at(key, raw.key_size) if key else b"",
        (raw.context or 0) if raw.type == EventType.FENCED else 0,
        raw.raw_bytes,
        raw.wire_bytes,
        raw.peer.decode(errors="replace") if raw.peer else "",
        tuple(_pages_of(raw.landed[i]) for i in range(raw.landed_count)) if raw.landed_count else (),
    )
