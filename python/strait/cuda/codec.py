"""Pages in memory of a GPU to chunks and back, on a stream: calls queue their work, jobs tell the outcome."""

from __future__ import annotations

import ctypes
import itertools
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .. import _abi
from .._abi import BLOCK_MODES, lib
from .._views import check_writable
from ..chunk import Element
from ..codebook import Codebook, codebook_handle
from ..codec import Mode, Stats, choice
from ..errors import AgainError, DeviceError, Error, NoSpaceError, Status, make_error
from ..pages import TableLike, index_array
from . import _driver
from ._driver import call, give_block, take_block
from .array import (
    Array,
    StreamLike,
    device_of,
    flat_bytes,
    handle_of,
    order_after,
    reachable_view,
    stream_for,
    view,
)
from .pages import DeviceRequest, IdsToPlace, Pages, check_one_device

RESULT_BYTES = 64  # of struct strait_result
_ALIGNMENT = 64  # of scratch, and of what is put into one block
_CHUNK_ALIGNMENT = 16
_PER_THREAD = 2  # the default stream of a thread

#: Chunk page numbers: on the host, or a contiguous int32 or uint32 array in memory of the GPU.
SelectLike: TypeAlias = Iterable[int] | Any | None

# ---- Jobs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """Result of one chunk.

    bytes: encode: of the chunk, 0 when it failed; decode: of pages that passed.
    status: a Status: OK, what is wrong with the chunk as a whole, or the first failed page's.
    page_status: int32 [pages of the list], each a Status. values: values by what became of their block.
    """

    bytes: int
    status: int
    chunk_status: int
    page_status: NDArray[np.int32]
    values: dict[str, int]

    @property
    def failed_pages(self) -> list[int]:
        """Indices of the pages whose status is not OK."""
        return [int(page) for page in np.flatnonzero(self.page_status)]


def _error_of(outcome: Outcome, what: str) -> Error:
    """As the host's calls word it."""
    if outcome.chunk_status != Status.OK:
        return make_error(outcome.chunk_status, f"{what}: {_abi.status_text(outcome.chunk_status)}")
    failed, count = outcome.failed_pages, len(outcome.page_status)
    first = _abi.status_text(int(outcome.page_status[failed[0]]))
    message = f"{what}: {len(failed)} of {count} pages failed, first page {failed[0]}: {first}"
    return make_error(outcome.status, message, outcome.page_status)


class _Inflight:
    """A call that has been queued: keeps what its work uses until it has run, as the caller may drop the job."""

    def __init__(self, call_: _Call, workspace: _Workspace):
        self.event = _driver.event_create()
        weakref.finalize(self, call, "cuEventDestroy_v2", self.event).atexit = False
        self.blocks: list[_driver.Block] = []
        self._call: _Call | None = call_
        self._workspace: _Workspace | None = workspace
        self._outcomes: list[Outcome] | None = None
        self._lock = threading.Lock()

    def record(self, stream: int) -> None:
        """All is queued, be it for nothing: nothing of it may be used for something else before it has run."""
        call("cuEventRecord", self.event, stream)
        _inflight.append(self)

    def done(self) -> bool:
        return self._outcomes is not None or _driver.event_done(self.event)

    def finish(self) -> list[Outcome]:
        """After the work has run: reads the outcomes, and releases everything."""
        with self._lock:
            if self._outcomes is None:
                self._outcomes = self._call.read() if self._call is not None else []
                for block in self.blocks:
                    give_block(block)
                self.blocks, self._call, self._workspace = [], None, None
            return self._outcomes


_inflight: deque[_Inflight] = deque()
_AT_ONCE = 4  # more than one call adds


def reap() -> None:
    """Releases what calls that have run no longer need, a few at a time, so that a call costs the same however many
    are in flight."""
    for _ in range(_AT_ONCE):
        try:
            oldest = _inflight.popleft()
        except IndexError:
            return
        try:
            if oldest.done():
                oldest.finish()
                continue
        except DeviceError:  # the job reports it when asked
            continue
        _inflight.append(oldest)


class Job:
    """A call that has been queued: it runs when its stream comes to it.

    Work that is queued on the same stream behind it comes after it, without waiting: the host has to wait, in wait(),
    only to learn what became of it. What the call reads and writes is kept alive until it is over, also when the job is
    forgotten.
    """

    def __init__(self, inflight: _Inflight, what: str, count: int):
        self._inflight, self._what, self._count = inflight, what, count

    def done(self) -> bool:
        """Whether it is over. DeviceError: the device has failed."""
        return self._inflight.done()

    def wait(self, check: bool = True) -> list[Outcome]:
        """Waits, on the host, until it is over; returns what became of each chunk.

        The exceptions of strait.encode() and strait.decode(), for the first chunk that failed; with check=False none of
        them. DeviceError: the device has failed.
        """
        if not self._inflight.done():
            call("cuEventSynchronize", self._inflight.event)
        outcomes = self._inflight.finish()
        for i, outcome in enumerate(outcomes):
            if check and outcome.status != Status.OK:
                raise _error_of(outcome, self._what if self._count == 1 else f"{self._what}, item {i}")
        return outcomes

    @property
    def outcomes(self) -> list[Outcome]:
        """Result of each chunk. AgainError: the call has not run yet."""
        if not self.done():
            raise AgainError(f"{self._what}: not over yet", Status.ERR_AGAIN)
        return self._inflight.finish()

    @property
    def bytes(self) -> int:
        """Of the chunk, of a call that encoded one; of pages that passed, of one that decoded one. AgainError."""
        if self._count != 1:
            raise ValueError(f"{self._count} chunks have {self._count} outcomes")
        return self.outcomes[0].bytes

    def hold(self, stream: StreamLike) -> None:
        """Lets work that is queued on another stream from now on wait for this. The host does not wait."""
        if stream is None:
            raise TypeError("which stream is to wait must be said")
        call("cuStreamWaitEvent", handle_of(stream), self._inflight.event, 0)


# ---- What calls of one codec share on the device --------------------------------------------------------------------


class _Workspace:
    """Tables, scratch and a staging area of one device, which is current during all calls; calls must not overlap.

    All of it is used by one call after another, kept apart by an event: what is allocated, freed or filled is so on
    the stream of the next call, behind the latest one, so that the host never waits.
    """

    def __init__(self, device: int, image: bytes, scratch: Array | None):
        self._image, self._given = image, scratch
        self._cleared = False  # scratch has been filled with zeros
        self._buffers = {"tables": (0, 0), "staging": (0, 0), "scratch": (0, 0)}  # address, bytes
        if scratch is not None:
            self._buffers["scratch"] = scratch.pointer, scratch.nbytes
        self._used = _driver.event_create()  # recorded after the latest call, on its stream
        weakref.finalize(self, _release, device, self._used, self._buffers, scratch is not None).atexit = False

    @property
    def tables(self) -> int | None:
        return self._buffers["tables"][0] or None

    @property
    def staging(self) -> int:
        return self._buffers["staging"][0]

    @property
    def scratch(self) -> tuple[int, int]:
        """Its address and all of its bytes: a call leaves it for the next as long as they are the same."""
        return self._buffers["scratch"]

    def prepare(self, stream: int, scratch: int, staging: int, blocks: list[_driver.Block]) -> None:
        """Lets the stream wait for the latest call, and sees to it that there is enough of all. What fails half-way is
        done again by the next call. Adds pinned memory to `blocks` that is read until the stream has come here."""
        if self._given is not None and scratch > self._given.nbytes:
            message = f"scratch has {self._given.nbytes} bytes, {scratch} are needed"
            raise NoSpaceError(message, Status.ERR_NO_SPACE)
        call("cuStreamWaitEvent", stream, self._used, 0)
        if self._image:
            blocks.append(take_block(len(self._image)))
            ctypes.memmove(blocks[-1].address, self._image, len(self._image))
            self._grow("tables", len(self._image), stream)
            call("cuMemcpyAsync", self.tables, blocks[-1].address, len(self._image), stream)
            self._image = b""
        if scratch > self.scratch[1]:
            self._cleared = False
            self._grow("scratch", _rounded(scratch), stream)
        if not self._cleared:
            call("cuMemsetD8Async", self.scratch[0], 0, self.scratch[1], stream)
            self._cleared = True
        if staging > self._buffers["staging"][1]:
            self._grow("staging", _rounded(staging), stream)

    def _grow(self, name: str, size: int, stream: int) -> None:
        """The content of the buffer is lost."""
        address, _ = self._buffers[name]
        self._buffers[name] = 0, 0
        if address:
            call("cuMemFreeAsync", address, stream)
        self._buffers[name] = _driver.mem_alloc_async(size, stream), size

    def used_by(self, stream: int) -> None:
        """All that a call has queued is queued."""
        call("cuEventRecord", self._used, stream)


def _release(device: int, used: int, buffers: dict[str, tuple[int, int]], given: bool) -> None:
    with _driver.on_device(device):
        call("cuStreamWaitEvent", _PER_THREAD, used, 0)
        for name, (address, _) in buffers.items():
            if address and not (given and name == "scratch"):
                call("cuMemFreeAsync", address, _PER_THREAD)
        call("cuEventDestroy_v2", used)


def _rounded(size: int) -> int:
    """With room to grow, so that growing is rare."""
    return max(1 << 16, 1 << (size - 1).bit_length())


# ---- One call -------------------------------------------------------------------------------------------------------


class _Chunk:
    """Memory that a chunk is written to or read from."""

    def __init__(self, source: Any, what: str):
        array = reachable_view(source, what)
        self.source, self.device = source, array.device
        self.memory = flat_bytes(array, what)
        self.address, self.size = self.memory.pointer, self.memory.nbytes
        if self.address % _CHUNK_ALIGNMENT:
            raise ValueError(f"{what} begins at {self.address:#x}, which is no multiple of {_CHUNK_ALIGNMENT} bytes")


class _Call:
    """The arguments, checked as far as one by one; `params` says that it encodes."""

    def __init__(self, params: _abi.EncodeParams | None, stats: Stats | None, results: Any):
        self.params, self.stats = params, stats
        self.what = "decode" if params is None else "encode"
        self.requests: list[DeviceRequest] = []
        self.chunks: list[_Chunk] = []
        self.selects: list[IdsToPlace] = []
        self.sources: list[Any] = []
        self.devices: list[tuple[int | None, str]] = []
        self.block: _driver.Block | None = None
        self.stats_at = self.tables = 0  # counters of tables in the block
        self.results = None if results is None else reachable_view(results, "results")
        if self.results is not None:
            self.sources.append(results)
            self.devices.append((self.results.device, "results"))

    def add(self, pages: Pages, name: str, chunk: _Chunk, chunk_name: str, request: DeviceRequest) -> None:
        self.requests.append(request)
        self.chunks.append(chunk)
        self.sources += [*pages.sources, chunk.source]
        self.devices += [(pages.device, name), (chunk.device, chunk_name)]

    def check(self, device: int) -> None:
        """Checks across arguments."""
        if not self.requests:
            raise ValueError(f"nothing to {self.what}: the batch is empty")
        check_one_device([(device, "the codec"), *self.devices])
        if self.params is not None:
            self._check_room()
        if self.results is None:
            return
        check_writable(self.results, "results")
        flat, needed = flat_bytes(self.results, "results"), len(self.requests) * RESULT_BYTES
        if flat.nbytes < needed or flat.pointer % 8:
            raise ValueError(f"results must be {needed} bytes, 8-byte aligned, not {flat.nbytes} at {flat.pointer:#x}")

    def _check_room(self) -> None:
        for request, chunk, (_, name) in zip(self.requests, self.chunks, self.devices[-2 * len(self.chunks) + 1 :: 2]):
            if chunk.size < request.bound():
                message = f"{name} has {chunk.size} bytes, these pages may need {request.bound()}"
                raise NoSpaceError(message, Status.ERR_NO_SPACE)
        places = sorted((chunk.address, chunk.size) for chunk in self.chunks)
        for (address, size), (following, _) in itertools.pairwise(places):
            if address + size > following:
                raise ValueError("two items have the same memory as out")

    def items(self) -> Any:
        """As C sees them, with the lists alone."""
        make = _encode_items if self.params is not None else _decode_items
        items = make(self.requests)
        if self.params is None:
            for item, chunk in zip(items, self.chunks):
                item.src_size = chunk.size
        return items

    def queue(self, codec: Codec, stream: int, inflight: _Inflight) -> None:
        """Queues the call on the stream, of the current device. Whatever is raised, `inflight` holds what has been
        queued so far.

        The call's pinned block has results, statuses, ids and counters of tables; the staging area ids and counters.
        """
        items, workspace, count = self.items(), codec._workspace, len(self.requests)
        pages = [request.count for request in self.requests]
        ids = [request.to_place for request in self.requests] + self.selects
        ids_bytes = sum(each.nbytes for each in ids)
        self.tables = 0 if codec._codebook is None or self.stats is None else len(codec._codebook)
        stats_bytes = self.tables * _abi.CLASS_STATS.itemsize
        ids_at = _aligned(count * RESULT_BYTES + 4 * sum(pages))
        self.stats_at = _aligned(ids_at + ids_bytes)
        counters_at = _aligned(ids_bytes)
        self.block = block = take_block(self.stats_at + stats_bytes)
        inflight.blocks.append(block)
        workspace.prepare(stream, codec._scratch_size(items), counters_at + stats_bytes, inflight.blocks)
        counters = workspace.staging + counters_at
        at = 0
        for each in ids:
            if each.host is not None:
                block.row(ids_at + at, np.uint32, len(each.host))[:] = each.host
                each.address = workspace.staging + at
                at += each.nbytes
        if at:
            call("cuMemcpyAsync", workspace.staging, block.address + ids_at, at, stream)
        if self.tables:
            call("cuMemsetD8Async", counters, 0, stats_bytes, stream)
        results = block.address if self.results is None else self.results.pointer
        statuses = block.address + count * RESULT_BYTES
        for i, (item, request, chunk) in enumerate(zip(items, self.requests, self.chunks)):
            placed = request.place(request.to_place.address)
            if self.params is not None:
                item.src, item.dst, item.dst_capacity = placed, chunk.address, chunk.size
            else:
                item.dst, item.src, item.select = placed, chunk.address, self.selects[i].address
            item.result = results + i * RESULT_BYTES
            item.page_status, item.page_status_count = statuses + 4 * sum(pages[:i]), request.count
        scratch, scratch_size = workspace.scratch
        run = _abi.Run(
            size=ctypes.sizeof(_abi.Run),
            scratch=scratch,
            scratch_size=scratch_size,
            stream=stream,
            class_stats=counters if self.tables else None,
            class_count=self.tables,
            sm_budget=codec._sm_budget,
            tables=workspace.tables,
        )
        if self.params is not None:
            status = lib.strait_encode_batch(codec._variant, self.params, items, count, run)
        else:
            status = lib.strait_decode_batch(codec._variant, codec._book, items, count, run)
        _abi.check(status, self.what)
        if self.results is not None:
            call("cuMemcpyAsync", block.address, results, count * RESULT_BYTES, stream)
        if self.tables:
            call("cuMemcpyAsync", block.address + self.stats_at, counters, stats_bytes, stream)

    def read(self) -> list[Outcome]:
        """Copies what the call reported, after it has run."""
        outcomes: list[Outcome] = []
        if self.block is None:  # it was never started
            return outcomes
        pages = [request.count for request in self.requests]
        statuses = self.block.row(len(pages) * RESULT_BYTES, np.int32, sum(pages)).copy()
        for i, status in enumerate(np.split(statuses, np.cumsum(pages)[:-1])):
            result = _abi.Result.from_address(self.block.address + i * RESULT_BYTES)
            if result.chunk_status != Status.OK:
                status[:] = result.chunk_status
            values = dict(zip(BLOCK_MODES, result.values))
            outcomes.append(Outcome(result.bytes, result.status, result.chunk_status, status, values))
        stats = self.stats
        if stats is not None:
            total = sum(outcome.bytes for outcome in outcomes)
            raw, chunks = sum(request.raw_bytes for request in self.requests), sum(each.size for each in self.chunks)
            stats.raw_bytes, stats.chunk_bytes = (raw, total) if self.params is not None else (total, chunks)
            stats.values = {name: sum(outcome.values[name] for outcome in outcomes) for name in BLOCK_MODES}
            classes = self.block.row(self.stats_at, _abi.CLASS_STATS, self.tables)
            stats.table_values, stats.table_escapes = classes["values"].copy(), classes["escapes"].copy()
            stats.page_status = np.concatenate([outcome.page_status for outcome in outcomes])
        return outcomes


def _encode_items(requests: Sequence[DeviceRequest]) -> Any:
    return (_abi.EncodeItem * len(requests))(*[_abi.EncodeItem(src=request.struct) for request in requests])


def _decode_items(requests: Sequence[DeviceRequest]) -> Any:
    return (_abi.DecodeItem * len(requests))(*[_abi.DecodeItem(dst=request.struct) for request in requests])


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


# ---- The codec ------------------------------------------------------------------------------------------------------


def encode_bound(pages: Any, *, page_bytes: int = 32768) -> int:
    """Largest chunk that these pages can become, in bytes: enough room for `out`."""
    return Pages(pages, page_bytes, "pages").to_read("bytes", None, 0).bound()


class Codec:
    """The codec of one GPU, with what it needs there: tables of the codebook, scratch, pinned memory.

    codebook: None: modes "raw" and "base" only. device: the GPU's number in this process. sm_budget: multiprocessors
        that a call may occupy; 0: all.
    scratch: memory of the GPU for calls to work in, 64-byte aligned (scratch_size() says how much); None: it is
        allocated.

    Calls queue work on a stream and return: see Job. They may come from any threads; those on different streams run one
    after another, so that each stream that is to run beside others wants a Codec of its own.
    DeviceError: no GPU of compute capability 9.0 or later, no driver, or no libstrait-cuda.so.0.
    """

    def __init__(self, codebook: Codebook | None, *, device: int = 0, sm_budget: int = 0, scratch: Any = None):
        self._codebook, self._book = codebook, codebook_handle(codebook)
        self.device, self._sm_budget = device, sm_budget
        self._lock = threading.Lock()
        _driver.load_plugin()
        given = None if scratch is None else flat_bytes(view(scratch, "scratch"), "scratch")
        if given is not None:
            if given.pointer % _ALIGNMENT:
                raise ValueError(f"scratch begins at {given.pointer:#x}, which is no multiple of {_ALIGNMENT}")
            check_one_device([(device, "the codec"), (given.device, "scratch")])
        with _driver.on_device(device):
            self._variant = lib.strait_codec_get(b"cuda")
            if self._variant is None:
                raise DeviceError(
                    f"the codec does not run on GPU {device}: it needs libstrait-cuda.so.0 and compute capability 9.0",
                    Status.ERR_DEVICE,
                )
            self._workspace = _Workspace(device, self._image(), given)

    def _image(self) -> bytes:
        if self._book is None:
            return b""
        image = ctypes.create_string_buffer(lib.strait_codebook_image_size(self._book))
        _abi.check(lib.strait_codebook_image(self._book, image, len(image)), "codebook")
        return image.raw

    # ---- Encoding

    def encode(
        self,
        pages: Any,
        out: Any,
        *,
        mode: Mode = "auto",
        element: Element = "bf16",
        table: TableLike = 0,
        page_bytes: int = 32768,
        stream: StreamLike = None,
        stats: Stats | None = None,
        results: Any = None,
    ) -> Job:
        """Queues encoding pages to one chunk: the bytes that strait.encode() makes of the same.

        pages: a PageList, or a contiguous array in memory of the GPU, cut into pages of `page_bytes`. An array whose
            last page is shorter is slower: its pages are described one by one.
        out: contiguous writable memory of at least encode_bound() bytes, of the GPU or pinned, 16-byte aligned. The
            chunk is its beginning; job.bytes tells how much.
        mode, element, table: as for strait.encode().
        stream: where it is queued; None: the current stream of torch or cupy when pages are theirs, else the legacy
            default stream. It waits for what those libraries have queued so far.
        stats: filled when the job has been waited for.
        results: memory of the GPU or pinned that receives the struct strait_result of each chunk (64 bytes), for work
            on the stream that has to know; None: only the host is told.

        ValueError, TypeError, InvalidError, CodebookError, NoSpaceError, AlignmentError: at once, nothing is queued.
        What is in the pages' ids is told by Job.wait(): PageIdError.
        """
        how: Any = {"mode": mode, "element": element, "table": table, "page_bytes": page_bytes}
        return self.encode_batch([(pages, out)], **how, stream=stream, stats=stats, results=results)

    def encode_batch(
        self,
        items: Iterable[tuple[Any, Any]],
        *,
        mode: Mode = "auto",
        element: Element = "bf16",
        table: TableLike = 0,
        page_bytes: int = 32768,
        stream: StreamLike = None,
        stats: Stats | None = None,
        results: Any = None,
    ) -> Job:
        """Queues encoding many chunks, as one launch: items are (pages, out), as for encode()."""
        params = _abi.EncodeParams(
            size=ctypes.sizeof(_abi.EncodeParams),
            element=choice(_abi.ELEMENTS, element, "element"),
            mode=choice(_abi.MODES, mode, "mode"),
            codebook=self._book,
        )
        if self._book is None and mode not in _abi.MODES_WITHOUT_TABLES:
            raise ValueError(f"mode {mode!r} needs a codebook; without one there are mode='raw' and mode='base'")
        batch = _Call(params, stats, results)
        for i, (given, out) in enumerate(items):
            name, out_name = (f"item {i}: {what}" for what in ("pages", "out"))
            pages, chunk = Pages(given, page_bytes, name), _Chunk(out, out_name)
            check_writable(chunk.memory, out_name)
            batch.add(pages, name, chunk, out_name, pages.to_read(element, self._codebook, table))
        return self._queue(batch, stream)

    # ---- Decoding

    def decode(
        self,
        chunk: Any,
        pages: Any,
        *,
        select: SelectLike = None,
        element: Element = "bf16",
        page_bytes: int = 32768,
        stream: StreamLike = None,
        stats: Stats | None = None,
        results: Any = None,
    ) -> Job:
        """Queues decoding a chunk, or some of its pages, each of them checked. The chunk may come from anywhere.

        chunk: exactly one chunk, in contiguous memory of the GPU or pinned, 16-byte aligned; its content must not
            change before the call has run.
        pages: a PageList, or a contiguous array in memory of the GPU that is cut into pages of `page_bytes`.
        select: page i of the list receives chunk page select[i]; None: as many as there are, in order.
        element: what the pages are to hold: their dtype is compared with that, as the chunk cannot be looked into here.
        stream, stats, results: as for encode().

        All that depends on the content of the chunk is told by Job.wait(), as strait.decode() raises it. Bytes of pages
        that failed are undefined; nothing but pages of the list is written.
        """
        how: Any = {"element": element, "page_bytes": page_bytes}
        return self.decode_batch([(chunk, pages, select)], **how, stream=stream, stats=stats, results=results)

    def decode_batch(
        self,
        items: Iterable[tuple[Any, Any] | tuple[Any, Any, SelectLike]],
        *,
        element: Element = "bf16",
        page_bytes: int = 32768,
        stream: StreamLike = None,
        stats: Stats | None = None,
        results: Any = None,
    ) -> Job:
        """Queues decoding many chunks, as one launch: items are (chunk, pages) or (chunk, pages, select), as for
        decode(). No two of them may write to the same memory."""
        choice(_abi.ELEMENTS, element, "element")
        batch = _Call(None, stats, results)
        for i, (source, given, *rest) in enumerate(items):
            name, chunk_name = (f"item {i}: {what}" for what in ("pages", "chunk"))
            pages, chunk = Pages(given, page_bytes, name), _Chunk(source, chunk_name)
            request = pages.to_write(element)
            batch.add(pages, name, chunk, chunk_name, request)
            batch.selects.append(self._select(rest[0] if rest else None, request, batch))
        return self._queue(batch, stream)

    def _select(self, select: SelectLike, request: DeviceRequest, batch: _Call) -> IdsToPlace:
        if select is None:
            return IdsToPlace(None)
        if device_of(select) is not None:
            chosen: Any = view(select, "select")
            if chosen.dtype.name not in ("int32", "uint32") or not chosen.flags.c_contiguous:
                raise TypeError(f"select on a GPU must be a contiguous row of int32 or uint32, not {chosen!r}")
            batch.sources.append(select)
            batch.devices.append((chosen.device, "select"))
        else:
            chosen = index_array(select if isinstance(select, np.ndarray) else list(select), "select")
        if len(chosen) != request.count:
            raise ValueError(f"select names {len(chosen)} pages, the list has {request.count}")
        return IdsToPlace(chosen)

    # ---- Both

    def scratch_size(self, batch: Sequence[Any], *, page_bytes: int = 32768) -> int:
        """Bytes of `scratch` that a batch of these pages needs at most, whichever way."""
        requests = [Pages(pages, page_bytes, "pages").to_read("bytes", None, 0) for pages in batch]
        return max(self._scratch_size(make(requests)) for make in (_encode_items, _decode_items))

    def _scratch_size(self, items: Any) -> int:
        encoding = items._type_ is _abi.EncodeItem
        size = lib.strait_encode_scratch_size if encoding else lib.strait_decode_scratch_size
        return int(size(self._variant, items, len(items)))

    def _queue(self, batch: _Call, stream: StreamLike) -> Job:
        batch.check(self.device)
        with self._lock, _driver.on_device(self.device):
            handle = stream_for(stream, batch.sources, self.device)
            reap()
            order_after(batch.sources, handle, self.device)
            inflight = _Inflight(batch, self._workspace)
            try:
                batch.queue(self, handle, inflight)
            finally:  # work queued before a failure uses all of it too
                self._workspace.used_by(handle)
                inflight.record(handle)
        return Job(inflight, batch.what, len(batch.requests))
