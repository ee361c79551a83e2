"""Moving KV-cache pages between workers: libstrait, the client of the daemon of this node.

    memory = service.alloc(pages * page_bytes)                                on both sides
    k = numpy.frombuffer(memory, numpy.uint16).reshape(pages, 16, 8, 128)
    client = service.Client()
    pool = client.register({("k", 0): k})

    blob = pool.export(timeout=5)         source: hand this to the sink's side, once, through any channel
    offer = pool.offer(b"request", [3, 1, 4], lease=30, last=True)

    peer = client.import_peer(blob)       sink
    expectation = pool.expect(b"request", [7, 8, 9], deadline=10)
    expectation.start(peer)

    for event in client.wait(timeout=1):  both: the outcome is an event
        if event.transfer is expectation and event.state == State.DONE: ...

What is promised is in strait/strait.h. Calls never block, except Client.wait.

Threads: calls on one client, and on what was made from it, must not overlap; different clients are independent. The
GIL is released while a call runs. Client.fileno() may be polled anywhere, by asyncio's add_reader for example.

Ownership: a Client owns its pools, peers and transfers; closing it ends them all. A Transfer lives until release(),
which leaving its `with` block calls.
"""

from __future__ import annotations

import array
import ctypes
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from ctypes import byref, c_size_t, c_uint8, c_void_p, sizeof
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from . import _abi
from ._abi import ELEMENTS, check
from ._events import (
    Coding,
    Direction,
    Event,
    EventType,
    FailedPage,
    Layout,
    Mismatch,
    Pages,
    Progress,
    Reason,
    State,
    event_of,
    progress_of,
)
from ._memory import Memory, alloc, find_memory
from ._views import ArrayLike, array_view, check_dtype, dtype_name, element_of
from .codebook import ClassLike, class_of
from .cuda._driver import available, memory_handle, on_device
from .cuda.array import StreamLike, current_handle, device_of, event_for, view
from .errors import InvalidError, Status, make_error
from .pages import geometry_of

lib = _abi.load_client()

__all__ = [
    "Client",
    "Coding",
    "Direction",
    "Event",
    "EventType",
    "FailedPage",
    "Layout",
    "Memory",
    "Mismatch",
    "Pages",
    "Peer",
    "Pool",
    "Progress",
    "Reason",
    "Region",
    "State",
    "Transfer",
    "alloc",
    "check_trace",
]

_BATCH = 64

_fences = itertools.count(1)

# ---- Pages ----------------------------------------------------------------------------------------------------------


#: Ids of group 0, the first one with logical index 0; or any number of lists.
PagesLike: TypeAlias = Sequence[int] | NDArray[Any] | range | Pages | Sequence[Pages]


class Region(NamedTuple):
    """A region of a pool that needs more to be said of it than its class."""

    array: ArrayLike
    group: int = 0
    heads: int = 0
    element: str | None = None  # None: that of the pool, or of the array's type
    layout: Layout = Layout.NONE  # declared and compared, as are
    tokens: int = 0  # those in a page
    head_first: int = 0  # the model's KV head that is the first here: with tensor parallelism
    heads_total: int = 0  # of the model; 0: not declared, so that it fits only pages with as many heads


def _as_lists(pages: PagesLike) -> list[Pages]:
    if isinstance(pages, Pages):
        return [pages]
    if isinstance(pages, (range, np.ndarray)):
        return [Pages(pages)]
    several: list[Any] = pages if isinstance(pages, list) else list(pages)
    if several and isinstance(several[0], Pages):
        return several
    return [Pages(several)] if several else []


def _id_array(ids: Any) -> NDArray[np.uint32]:
    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise TypeError("page ids must be a row of integers")
    if array.size and not 0 <= int(array.min()) <= int(array.max()) < 2**32:
        raise InvalidError("a page id is out of range")
    return np.ascontiguousarray(array, np.uint32)


def _listed_ids(ids: Sequence[Any]) -> array.array[int]:
    try:
        return array.array("I", ids)
    except TypeError:
        raise TypeError("page ids must be a row of integers") from None
    except OverflowError:
        raise InvalidError("a page id is out of range") from None


class _Lists:
    """Page lists as C sees them, and what they point to."""

    def __init__(self, pages: PagesLike):
        self.kept: list[Any]
        if isinstance(pages, list) and pages and isinstance(pages[0], int):  # the usual: quicker, as above
            listed = _listed_ids(pages)
            self.count, self.kept = 1, [listed]
            self.array = (_abi.PageList * 1)(_abi.PageList(0, 0, len(listed), 0, listed.buffer_info()[0]))
            return
        lists = _as_lists(pages)
        self.count = len(lists)
        self.array = (_abi.PageList * max(self.count, 1))()
        self.kept = [self._fill(entry, one) for entry, one in zip(self.array, lists)]

    @staticmethod
    def _fill(entry: _abi.PageList, pages: Pages) -> NDArray[np.uint32] | array.array[int] | None:
        for number in (pages.group, pages.first):
            if not 0 <= number < 2**32:
                raise InvalidError(f"{number} is out of range")
        entry.group, entry.first, entry.count = pages.group, pages.first, len(pages.ids)
        if isinstance(pages.ids, range) and pages.ids.step == 1:
            if pages.ids.start < 0 or pages.ids.stop > 2**32:
                raise InvalidError("a page id is out of range")
            entry.first_id = pages.ids.start if len(pages.ids) else 0
            return None
        if isinstance(pages.ids, (list, tuple)):  # quicker than by numpy, where they are few
            listed = _listed_ids(pages.ids)
            entry.ids = listed.buffer_info()[0] if listed else None
            return listed
        ids = _id_array(pages.ids)
        entry.ids = ids.ctypes.data if len(ids) else None
        return ids


def _milliseconds(seconds: float) -> int:
    """Rounded up, so that little is not nothing."""
    if not 0 < seconds <= 86400:
        raise InvalidError(f"{seconds} s is not in (0, 24 h]")
    return -int(-seconds * 1000 // 1)


def _timeout_ms(seconds: float | None) -> int:
    """None: for ever."""
    return -1 if seconds is None else max(0, min(int(seconds * 1000 + 0.999), 2**31 - 1))


def _as_bytes(key: bytes | str) -> bytes:
    return key.encode() if isinstance(key, str) else bytes(key)


# ---- Traces ---------------------------------------------------------------------------------------------------------


def check_trace(trace: str) -> str:
    """What is wrong with a traceparent; "": nothing, or it is empty."""
    text = trace.encode(errors="replace")
    why: bytes | None = b"it has a NUL" if b"\0" in text else lib.strait_trace_check(text)
    return why.decode() if why else ""


def _traceparent(trace: str | None) -> bytes | None:
    if not trace:
        return None
    why = check_trace(trace)
    if why:
        raise InvalidError(f"the traceparent {trace!r}: {why}")
    return trace.encode()


# ---- Regions --------------------------------------------------------------------------------------------------------


def _place_on_host(address: int, extent: int, embedded: bool, what: str) -> dict[str, Any]:
    memory = find_memory(address, extent)
    if memory is not None:
        return {"handle": _abi.HANDLES["memfd"], "fd": memory.fd, "offset": address - memory.address}
    if embedded:
        return {"handle": _abi.HANDLES["pointer"], "pointer": address}
    raise ValueError(f"{what} is not in memory of strait.service.alloc(): a daemon cannot map it")


def _place_on_device(address: int, device: int, extent: int, embedded: bool, what: str) -> dict[str, Any]:
    if embedded:
        return {"handle": _abi.HANDLES["pointer"], "pointer": address}
    handle, offset = memory_handle(address, extent, device, what)
    ipc = (c_uint8 * len(handle)).from_buffer_copy(handle)
    return {"handle": _abi.HANDLES["cuda_ipc"], "ipc": ipc, "offset": offset}


def _told_by(dtype: np.dtype[Any], what: str) -> str:
    """TypeError: integers of one byte, which hold anything."""
    if dtype_name(dtype) in ("int8", "uint8"):
        raise TypeError(
            f"{what} has dtype {dtype_name(dtype)}, which does not say what it holds: name it with element=..., "
            "'bytes' for INT8 and FP4, which are moved raw"
        )
    return element_of(dtype)


def _describe(cls: ClassLike, region: Region, element: str | None, embedded: bool) -> _abi.PoolRegion:
    """A region, and how its memory is named to the daemon."""
    what = f"the pool of {cls}"
    device = device_of(region.array, what)
    array = array_view(region.array, what) if device is None else view(region.array, what).array
    element = region.element or element or _told_by(array.dtype, what)
    if element not in ELEMENTS:
        raise InvalidError(f"{element!r} is no element type: one of {', '.join(ELEMENTS)}")
    check_dtype(array.dtype, element, what)
    geometry = geometry_of(array, what)
    role, layer = class_of(cls)
    extent = (geometry.page_count - 1) * geometry.page_stride + geometry.extent
    address = int(array.ctypes.data)
    if device is None:
        place = _place_on_host(address, extent, embedded, what)
    else:
        place = _place_on_device(address, device, extent, embedded, what)
    return _abi.PoolRegion(
        device=-1 if device is None else device,
        page_stride=geometry.page_stride,
        row_stride=geometry.row_stride,
        page_count=geometry.page_count,
        rows=geometry.rows,
        row_bytes=geometry.row_bytes,
        element=ELEMENTS[element],
        role=role,
        layer=-1 if layer is None else layer,
        heads=region.heads,
        group=region.group,
        layout=region.layout,
        tokens=region.tokens,
        head_first=region.head_first,
        heads_total=region.heads_total,
        **place,
    )


# ---- What a client makes --------------------------------------------------------------------------------------------


class _Handle:
    """Something of the library's that ends."""

    def __init__(self, client: Client, handle: c_void_p):
        self._client = client
        self._at: int | None = handle.value

    @property
    def _handle(self) -> int:
        if self._at is None:
            raise ValueError(f"this {type(self).__name__} has ended")
        return self._at


class Peer(_Handle):
    """A pool of another worker."""

    def notify(self, key: bytes | str, data: bytes = b"") -> None:
        """Sends a small message about `key` to whoever registered the pool, in order; an event NOTIFY_FAILED tells
        what is not known to have arrived. Raises StraitError with Status.ERR_AGAIN while too many are under way."""
        name = _as_bytes(key)
        check(lib.strait_notify(self._handle, name, len(name), data, len(data)), "notify")

    def remove(self) -> None:
        """Forgets the peer; running transfers go on."""
        if self._at is not None:
            self._client._peers.discard(self)
            lib.strait_peer_remove(self._at)
            self._at = None


class Transfer(_Handle):
    """One offer or one expectation."""

    def __init__(self, client: Client, handle: c_void_p, pool: Pool):
        super().__init__(client, handle)
        self._pool = pool
        self._events: list[Any] = []  # the daemon waits for these

    def start(
        self,
        peer: Peer,
        peer_key: bytes | str | None = None,
        direction: Direction = Direction.AUTO,
        *,
        consumers: int = 0,
    ) -> None:
        """Pairs it with one of the peer's pool; either side may, or both. InvalidError, with the figures of both sides,
        if the pools do not match.

        consumers: of the peer's offer, if that was made without their number; 0: this one alone.
        """
        name = None if peer_key is None else _as_bytes(peer_key)
        params = _abi.StartParams(sizeof(_abi.StartParams), direction, name, len(name or b""), consumers)
        status = lib.strait_start(self._handle, peer._handle, byref(params))
        if status == Status.ERR_INVALID and self._pool._at is not None and self._pool.mismatch(peer) & Mismatch.FATAL:
            raise make_error(status, f"start: the pools do not match: {self._pool.explain(peer)}")
        check(status, "start")

    def append(
        self,
        pages: PagesLike = (),
        *,
        layers: range | None = None,
        ready: Any = None,
        later: bool = False,
        last: bool = False,
        aux: bytes = b"",
    ) -> None:
        """More of an offer is ready: these pages, which it has or which are new, or (none) all that were listed as
        `later`; of `layers`, or of all. With `later` the pages are new and not ready yet.

        ready: with pools on a GPU, an event that has been recorded behind the work that fills the pages: they are ready
            when it has completed. A torch.cuda.Event(interprocess=True), or an IPC handle of 64 bytes, whose event must
            live until the pages have arrived; for an embedded client any event of torch or cupy.
        """
        lists, (event, kept) = _Lists(pages), event_for(ready, self._client._embedded)
        if layers is not None and not isinstance(layers, range):
            raise TypeError(f"layers must be a range, not {type(layers).__name__}")
        if layers is not None and (layers.step != 1 or not layers):
            raise InvalidError("layers must be a range of at least one layer")
        params = _abi.AppendParams(
            size=sizeof(_abi.AppendParams),
            lists=lists.array,
            list_count=lists.count,
            layer_first=layers.start if layers is not None else 0,
            layer_count=len(layers) if layers is not None else 0,
            ready=event,
            last=last,
            aux=aux,
            aux_size=len(aux),
            later=later,
        )
        check(lib.strait_append(self._handle, byref(params)), "append")
        self._events.append(kept)

    def wait_stream(self, stream: StreamLike = None, layer: int | None = None, device: int = 0) -> None:
        """Sink, pools on a GPU: work that is queued on the stream from now on runs when all expected pages of the layer
        (None: all of them) are in place, or the transfer has failed: look which before using what it computed.

        stream: torch's, cupy's or the driver's; None: torch's current one if torch is in use, else the legacy default
            stream. `device` is whose, when the stream does not say so itself.
        The daemon lets the stream go on. Should it die, poll() and wait() do: a thread that waits on the host for such
        a stream, in torch.cuda.synchronize() say, must not be the only one that calls them; see strait/strait.h.
        InvalidError (an offer, no such layer, a stream that is being captured), UnsupportedError (a pool of the host's
        memory, an embedded client, no CUDA here), DeviceError, OutOfMemoryError: the stream does not wait then.
        """
        number = -1 if layer is None else layer
        with on_device(device) if available() else nullcontext():  # else the library says what is missing
            check(lib.strait_wait_stream(self._handle, number, current_handle(stream, device)), "wait_stream")

    def abort(self) -> None:
        """Ends it with FAILED, ABORTED unless it has its verdict."""
        lib.strait_abort(self._handle)

    def release(self) -> None:
        """Lets go of it: no more events. A live transfer is aborted."""
        if self._at is not None:
            self._client._transfers.pop(self._at, None)
            lib.strait_release(self._at)
            self._at, self._events = None, []

    @property
    def progress(self) -> Progress:
        """State as of the last poll."""
        return progress_of(lib.strait_transfer_progress(self._handle))

    def __enter__(self) -> Transfer:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Pool(_Handle):
    """A registered KV pool."""

    def __init__(self, client: Client, handle: c_void_p, memory: list[Any]):
        super().__init__(client, handle)
        self._memory = memory  # GPU memory: the daemon can use it only until it is freed here

    @property
    def id(self) -> bytes:
        return ctypes.string_at(lib.strait_pool_id(self._handle), _abi.POOL_ID_BYTES)

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the daemon has taken the pool; the event POOL comes as well. AgainError: it has not answered in
        `timeout` seconds (None: for ever), or is away. Otherwise the error for which it refused the pool."""
        why = ctypes.c_char_p()
        status = lib.strait_pool_wait(self._handle, _timeout_ms(timeout), byref(why))
        if status != Status.OK:
            raise make_error(status, (why.value or b"the daemon has not answered").decode(errors="replace"))

    def export(self, timeout: float = 0) -> bytes:
        """Description of the pool for another worker. With a timeout it waits so many seconds for the daemon to take
        the pool. AgainError until the daemon has answered once, as it contains its address."""
        if timeout > 0:
            self.wait(timeout)
        size = c_size_t()
        status = lib.strait_pool_export(self._handle, None, 0, byref(size))
        if status != Status.ERR_NO_SPACE:
            check(status, "export")
        blob = ctypes.create_string_buffer(size.value)
        check(lib.strait_pool_export(self._handle, blob, size, byref(size)), "export")
        return blob.raw[: size.value]

    def mismatch(self, peer: Peer) -> Mismatch:
        """Differences between the two pools; Mismatch(0): none."""
        return Mismatch(lib.strait_peer_check(self._handle, peer._handle))

    def explain(self, peer: Peer) -> str:
        """The same in words, with the figures of both sides; "" without a difference."""
        size = lib.strait_peer_explain(self._handle, peer._handle, None, 0) + 1
        text = ctypes.create_string_buffer(size)
        lib.strait_peer_explain(self._handle, peer._handle, text, size)
        return text.value.decode()

    def expect(
        self,
        key: bytes | str,
        pages: PagesLike = (),
        *,
        deadline: float,
        sources: int = 1,
        tokens: int = 0,
        tell_pages: bool = False,
        begins_within: bool = False,
        trace: str | None = None,
    ) -> Transfer:
        """Sink: these pages will receive this request, within `deadline` seconds.

        tokens: of the request, counted from logical index 0; 0: not said. Where pages are rearranged and the last one
            is not full, its layers are then complete when these tokens have come.
        tell_pages: events PAGES tell of pages that are in place: they may be read before the verdict.
        begins_within: where pages are rearranged, the first page of each group may lack the tokens before the sources'
            first page, as those of a sliding window: what it has in their place stays.
        trace: the header traceparent of W3C Trace Context, of a trace to which the request belongs: if it is sampled,
            the daemon logs a span when the request ends. InvalidError, with the reason, if it is malformed.
        """
        name, lists, handle = _as_bytes(key), _Lists(pages), c_void_p()
        params = _abi.ExpectParams(
            size=sizeof(_abi.ExpectParams),
            key=name,
            key_size=len(name),
            lists=lists.array,
            list_count=lists.count,
            sources=sources,
            deadline_ms=_milliseconds(deadline),
            traceparent=_traceparent(trace),
            tokens=tokens,
            tell_pages=tell_pages,
            begins_within=begins_within,
        )
        check(lib.strait_expect(self._handle, byref(params), byref(handle)), "expect")
        return self._client._add_transfer(handle, self)

    def offer(
        self,
        key: bytes | str,
        pages: PagesLike = (),
        *,
        lease: float,
        consumers: int | None = 1,
        later: bool = False,
        last: bool = False,
        ready: Any = None,
        aux: bytes = b"",
        trace: str | None = None,
    ) -> Transfer:
        """Source: these pages hold this request; they stay offered `lease` seconds while no consumer is alive.

        consumers: expectations that will take it; None: the first of them says how many. Only sinks start such an offer.
        ready: with pools on a GPU, the event after which the pages are ready, as for Transfer.append().
        trace: as for expect(); the peer is not told of it.
        """
        name, lists, handle = _as_bytes(key), _Lists(pages), c_void_p()
        event, kept = event_for(ready, self._client._embedded)
        params = _abi.OfferParams(
            size=sizeof(_abi.OfferParams),
            key=name,
            key_size=len(name),
            lists=lists.array,
            list_count=lists.count,
            consumers=_abi.CONSUMERS_ASKED if consumers is None else consumers,
            lease_ms=_milliseconds(lease),
            later=later,
            last=last,
            ready=event,
            aux=aux,
            aux_size=len(aux),
            traceparent=_traceparent(trace),
        )
        check(lib.strait_offer(self._handle, byref(params), byref(handle)), "offer")
        transfer = self._client._add_transfer(handle, self)
        transfer._events.append(kept)
        return transfer

    def serve(self, pages: PagesLike = ()) -> None:
        """Lets peers read these pages (none: all of the pool) without an action of this process, which must not change
        them before a fence has taken them back."""
        lists = _Lists(pages)
        check(lib.strait_pool_serve(self._handle, lists.array, lists.count), "serve")

    def fence(self, pages: PagesLike = (), *, grace: float = 0) -> int:
        """The pages (none: all of the pool) are served no longer. An event FENCED with the number that this returns
        follows when no read touches them any more: reads that are under way get `grace` seconds to end."""
        lists, number = _Lists(pages), next(_fences)
        params = _abi.FenceParams(
            sizeof(_abi.FenceParams), lists.array, lists.count, _milliseconds(grace) if grace else 0, number
        )
        check(lib.strait_pool_fence(self._handle, byref(params)), "fence")
        return number

    def read(
        self,
        peer: Peer,
        pages: PagesLike,
        peer_pages: PagesLike,
        *,
        deadline: float,
        tell_pages: bool = False,
        trace: str | None = None,
    ) -> Transfer:
        """Reads pages that the peer serves (with the same logical indexes) into these of this pool; the transfer is
        that of a sink, and started. InvalidError, with the figures of both sides, if the pools do not match.

        tell_pages, trace: as for expect().
        """
        lists, theirs, handle = _Lists(pages), _Lists(peer_pages), c_void_p()
        params = _abi.ReadParams(
            size=sizeof(_abi.ReadParams),
            lists=lists.array,
            list_count=lists.count,
            peer_lists=theirs.array,
            peer_list_count=theirs.count,
            deadline_ms=_milliseconds(deadline),
            traceparent=_traceparent(trace),
            tell_pages=tell_pages,
        )
        status = lib.strait_read(self._handle, peer._handle, byref(params), byref(handle))
        if status == Status.ERR_INVALID and self.mismatch(peer) & Mismatch.FATAL:
            raise make_error(status, f"read: the pools do not match: {self.explain(peer)}")
        if status == Status.ERR_INVALID and self.mismatch(peer) & Mismatch.RESHAPED:
            raise make_error(status, f"read: as many pages, of as many tokens, at both sides: {self.explain(peer)}")
        check(status, "read")
        return self._client._add_transfer(handle, self)

    def decline(self, peer: Peer, peer_key: bytes | str) -> None:
        """Sink: nothing of what is offered at the peer's pool under that key will be taken; its source is told."""
        name = _as_bytes(peer_key)
        check(lib.strait_decline(self._handle, peer._handle, name, len(name)), "decline")

    def set_policy(self, coding: Coding) -> None:
        """How its pages are coded on the way, from this side as the source."""
        check(lib.strait_set_policy(self._handle, coding), "set_policy")

    def remove(self) -> None:
        """Aborts its transfers and lets go of the memory; an event POOL_REMOVED ends it."""
        if self._at is not None:
            lib.strait_pool_remove(self._at)


# ---- The client -----------------------------------------------------------------------------------------------------


class Client:
    """A connection to the daemon of this node.

    socket: path of its socket; None: $STRAIT_SOCKET, else $XDG_RUNTIME_DIR/strait/straitd.sock if there is one of
        this user's, else /run/strait/straitd.sock. It may be away: the library connects, and connects again, from
        poll() and wait().
    embedded: options, one "name = value" per line: the daemon runs in a thread of this process, and any array may be
        registered.
    """

    def __init__(self, socket: str | os.PathLike[str] | None = None, *, embedded: str | None = None):
        path = None if socket is None else os.fsencode(socket)
        options = None if embedded is None else embedded.encode()
        config = _abi.ClientConfig(sizeof(_abi.ClientConfig), path, options)
        handle = c_void_p()
        self._at: int | None = None
        self._embedded = embedded is not None
        self._pools: dict[int, Pool] = {}
        self._peers: set[Peer] = set()
        self._transfers: dict[int, Transfer] = {}
        self._events = (_abi.RawEvent * _BATCH)()
        check(lib.strait_client_open(byref(config), byref(handle)), "open")
        self._at = handle.value

    @property
    def _handle(self) -> int:
        if self._at is None:
            raise ValueError("this Client is closed")
        return self._at

    def close(self) -> None:
        """Ends everything made from it. Pages of live transfers may be written to for a moment: poll() until all are
        drained first."""
        if self._at is None:
            return
        for thing in (*self._pools.values(), *self._peers, *self._transfers.values()):
            thing._at = None
        self._pools, self._peers, self._transfers = {}, set(), {}
        handle, self._at = self._at, None
        lib.strait_client_close(handle)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def fileno(self) -> int:
        """Readable when poll() has something to do; the same for the client's life."""
        fd: int = lib.strait_client_fd(self._handle)
        return fd

    @property
    def connected(self) -> bool:
        """True while the daemon has answered and is connected."""
        answer: bool = lib.strait_client_connected(self._handle)
        return answer

    @contextmanager
    def corked(self) -> Iterator[None]:
        """Offers, expectations, reads and appends that are made within it reach the daemon together, at its end, by one
        system call. poll() and wait() send in any case."""
        lib.strait_cork(self._handle)
        try:
            yield
        finally:
            lib.strait_uncork(self._handle)

    # ---- Making things

    def register(
        self, pools: Mapping[ClassLike, ArrayLike | Region], *, element: str | None = None, compat: str = ""
    ) -> Pool:
        """Registers a pool: arrays of shape [pages, ...] by class, such as ("k", 3), in memory of alloc(), or in memory
        of a GPU: torch's, cupy's, any other's, which are kept until the pool has been removed.

        element: what the values are: bf16, fp16, fp32, fp8_e4m3, fp8_e5m2, or bytes, which are moved raw, as INT8 and
            FP4 are. None: what the array's type says, and BF16 of integers of two bytes.
        compat: what else must be equal at both ends, such as "llama-8b@4f2 bf16": up to 64 printable ASCII characters.
        It may be used at once; whether the daemon could map it comes as an event POOL, or from Pool.wait(). A GPU has
        the number that it has in this process: the daemon must see the same ones in the same order
        (CUDA_VISIBLE_DEVICES).
        ValueError: memory that a daemon cannot map. TypeError: an array of another type than `element`; integers of
        one byte, and no element.
        """
        regions_by_class = [(cls, each if isinstance(each, Region) else Region(each)) for cls, each in pools.items()]
        described = [_describe(cls, region, element, self._embedded) for cls, region in regions_by_class]
        regions = (_abi.PoolRegion * max(len(described), 1))(*described)
        params = _abi.PoolParams(sizeof(_abi.PoolParams), regions, len(described), compat.encode())
        handle = c_void_p()
        check(lib.strait_pool_register(self._handle, byref(params), byref(handle)), "register")
        pool = Pool(self, handle, [region.array for _, region in regions_by_class])
        self._pools[pool._handle] = pool
        return pool

    def import_peer(self, blob: bytes) -> Peer:
        """Reads what another worker's Pool.export() returned."""
        handle = c_void_p()
        check(lib.strait_peer_import(self._handle, bytes(blob), len(blob), byref(handle)), "import")
        peer = Peer(self, handle)
        self._peers.add(peer)
        return peer

    def request_stats(self) -> None:
        """Asks for the daemon's statistics: an event STATS with JSON follows. AgainError while it is away."""
        check(lib.strait_stats(self._handle), "stats")

    def _add_transfer(self, handle: c_void_p, pool: Pool) -> Transfer:
        transfer = Transfer(self, handle, pool)
        self._transfers[transfer._handle] = transfer
        return transfer

    # ---- Events

    def poll(self) -> list[Event]:
        """Does what is due and returns the events that are there, oldest first."""
        events = batch = self._take(lib.strait_poll(self._handle, self._events, _BATCH))
        while len(batch) == _BATCH:
            batch = self._take(lib.strait_poll(self._handle, self._events, _BATCH))
            events += batch
        return events

    def wait(self, timeout: float | None = None) -> list[Event]:
        """Like poll(), but waits up to `timeout` seconds (None: for ever) for the first event."""
        return self._take(lib.strait_wait(self._handle, self._events, _BATCH, _timeout_ms(timeout)))

    def _take(self, count: int) -> list[Event]:
        events = [self._convert(self._events[i]) for i in range(count)]
        for event in events:
            if event.type == EventType.POOL_REMOVED and event.pool is not None:
                self._pools.pop(event.pool._handle)
                event.pool._at = None
        return events

    def _convert(self, raw: _abi.RawEvent) -> Event:
        transfer = self._transfers.get(raw.transfer) if raw.transfer else None
        pool = self._pools.get(raw.pool) if raw.pool else None
        return event_of(raw, transfer, pool)
