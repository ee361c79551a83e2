"""Pages in memory of a GPU to chunks and back, on a stream: calls queue their work, jobs tell the outcome."""

from __future__ import annotations

import ctypes
import itertools
import threading
import weakref
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .. import _abi
from .._abi import BLOCK_MODES, CLASS_STATS, lib
from .._views import check_writable
from ..chunk import Element
from ..codebook import Codebook, codebook_handle
from ..codec import Mode, Stats, choice, default_mode, page_failure
from ..errors import AgainError, DeviceError, InvalidError, NoSpaceError, Status
from ..pages import TableLike, index_array
from . import _driver
from ._driver import LEGACY, NO_TIMING, PER_THREAD, Block, call, give_block, made, take_block
from .array import StreamLike, device_of, flat_view, follow, handle_of, new_bytes, stream_for, view
from .pages import DeviceRequest, Numbers, request_for

_RESULT_BYTES = ctypes.sizeof(_abi.Result)
_ALIGNMENT = 64  # of scratch, and of what is put into one block
_CHUNK_ALIGNMENT, _RESULT_ALIGNMENT = 16, 8

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


class _Item(NamedTuple):
    """One chunk of a call, and its pages."""

    request: DeviceRequest
    chunk: NDArray[np.uint8]
    select: Numbers


class Job:
    """A call that has been queued: it runs when its stream comes to it.

    Work that is queued on the same stream behind it comes after it, without waiting: the host has to wait, in wait(),
    only to learn what became of it. What the call reads and writes is kept alive until it is over, also when the job is
    forgotten. outs: the arrays that chunks are encoded to.
    """

    def __init__(self, what: str, items: list[_Item], stats: Stats | None, outs: list[Any], kept: Any):
        self.outs = outs
        self._what, self._items, self._stats, self._kept = what, items, stats, kept
        self._event = made("cuEventCreate", NO_TIMING)
        weakref.finalize(self, call, "cuEventDestroy_v2", self._event).atexit = False
        self._block: Block | None = None  # pinned: results, statuses, ids, and at _stats_at counters of tables
        self._stats_at = self._tables = 0
        self._outcomes: list[Outcome] | None = None
        self._lock = threading.Lock()

    def done(self) -> bool:
        """Whether it is over. DeviceError: the device has failed."""
        return self._outcomes is not None or _driver.event_done(self._event)

    def wait(self, check: bool = True) -> list[Outcome]:
        """Waits, on the host, until it is over; returns what became of each chunk.

        The exceptions of strait.encode() and strait.decode(), for the first chunk that failed; with check=False none of
        them. DeviceError: the device has failed.
        """
        if not self.done():
            call("cuEventSynchronize", self._event)
        outcomes = self._finish()
        for i, outcome in enumerate(outcomes):
            if check and outcome.status != Status.OK:
                what = self._what if len(outcomes) == 1 else f"{self._what}, item {i}"
                _abi.check(outcome.chunk_status, what)
                raise page_failure(what, outcome.status, outcome.page_status)
        return outcomes

    @property
    def outcomes(self) -> list[Outcome]:
        """Result of each chunk. AgainError: the call has not run yet."""
        if not self.done():
            raise AgainError(f"{self._what}: not over yet", Status.ERR_AGAIN)
        return self._finish()

    @property
    def bytes(self) -> int:
        """Of the chunk, of a call that encoded one; of pages that passed, of one that decoded one. AgainError."""
        outcomes = self.outcomes
        if len(outcomes) != 1:
            raise ValueError(f"{len(outcomes)} chunks have {len(outcomes)} outcomes")
        return outcomes[0].bytes

    @property
    def chunk(self) -> Any:
        """The chunk, of a call that encoded one: the beginning of its `out`. AgainError."""
        return self.outs[0][: self.bytes]

    def hold(self, stream: StreamLike) -> None:
        """Lets work that is queued on another stream from now on wait for this. The host does not wait."""
        if stream is None:
            raise TypeError("which stream is to wait must be said")
        call("cuStreamWaitEvent", handle_of(stream), self._event, 0)

    def _finish(self) -> list[Outcome]:
        """After the work has run: reads the outcomes, and releases everything."""
        with self._lock:
            if self._outcomes is None:
                self._outcomes = []
                if self._block is not None:
                    self._outcomes = self._read(self._block)
                    give_block(self._block)
                self._block, self._items, self._kept = None, [], None
            return self._outcomes

    def _read(self, block: Block) -> list[Outcome]:
        """Copies what the call reported."""
        outcomes: list[Outcome] = []
        pages = [item.request.count for item in self._items]
        statuses = block.row(len(pages) * _RESULT_BYTES, np.int32, sum(pages)).copy()
        for i, status in enumerate(np.split(statuses, np.cumsum(pages)[:-1])):
            result = _abi.Result.from_address(block.address + i * _RESULT_BYTES)
            if result.chunk_status != Status.OK:
                status[:] = result.chunk_status
            values = dict(zip(BLOCK_MODES, result.values))
            outcomes.append(Outcome(result.bytes, result.status, result.chunk_status, status, values))
        stats = self._stats
        if stats is not None:
            total = sum(outcome.bytes for outcome in outcomes)
            raw = sum(item.request.raw_bytes for item in self._items)
            chunks = sum(item.chunk.nbytes for item in self._items)
            stats.raw_bytes, stats.chunk_bytes = (raw, total) if self._what == "encode" else (total, chunks)
            stats.values = {name: sum(outcome.values[name] for outcome in outcomes) for name in BLOCK_MODES}
            classes = block.row(self._stats_at, CLASS_STATS, self._tables)
            stats.table_values, stats.table_escapes = classes["values"].copy(), classes["escapes"].copy()
            stats.page_status = statuses
        return outcomes


_inflight: deque[Job] = deque()
_AT_ONCE = 4  # more than one call adds


def reap() -> None:
    """Releases what jobs that are over no longer need, a few at a time, so that a call costs the same however many are
    in flight."""
    for _ in range(_AT_ONCE):
        try:
            oldest = _inflight.popleft()
        except IndexError:
            return
        try:
            if oldest.done():
                oldest._finish()
            else:
                _inflight.append(oldest)
        except DeviceError:  # the job reports it when asked
            continue


# ---- What calls of one codec share on the device --------------------------------------------------------------------


class _Workspace:
    """Tables, scratch and a staging area of one device, which is current during all calls; calls must not overlap.

    All of it is used by one call after another, kept apart by an event: what grows does so on the stream of the next
    call, behind the latest one, so that the host never waits.
    """

    def __init__(self, device: int, image: bytes):
        self._cleared = False  # scratch has been filled with zeros
        self._buffers = {"tables": (0, 0), "staging": (0, 0), "scratch": (0, 0)}  # address, bytes
        self.used = made("cuEventCreate", NO_TIMING)  # recorded after the latest call, on its stream
        weakref.finalize(self, _release, device, self.used, self._buffers).atexit = False
        if image:
            block = take_block(len(image))
            ctypes.memmove(block.address, image, len(image))
            call("cuMemcpyAsync", self.room("tables", len(image), LEGACY), block.address, len(image), LEGACY)
            call("cuStreamSynchronize", LEGACY)
            give_block(block)

    def room(self, name: str, size: int, stream: int) -> int:
        """Address of a buffer of so many bytes or more. When it has to grow, its content is lost."""
        address, room = self._buffers[name]
        if size <= room:
            return address
        self._buffers[name] = 0, 0
        if address:
            call("cuMemFreeAsync", address, stream)
        whole = max(1 << 16, 1 << (size - 1).bit_length())  # so that growing is rare
        self._buffers[name] = made("cuMemAllocAsync", whole, stream), whole
        return self._buffers[name][0]

    def scratch(self, size: int, stream: int) -> tuple[int, int]:
        """Its address and all of its bytes: a call leaves it for the next as long as they are the same. What fails
        half-way is done again by the next call."""
        self._cleared &= size <= self._buffers["scratch"][1]
        address, whole = self.room("scratch", size, stream), self._buffers["scratch"][1]
        if not self._cleared:
            call("cuMemsetD8Async", address, 0, whole, stream)
            self._cleared = True
        return address, whole


def _release(device: int, used: int, buffers: dict[str, tuple[int, int]]) -> None:
    with _driver.on_device(device):
        call("cuStreamWaitEvent", PER_THREAD, used, 0)
        for address, _ in buffers.values():
            if address:
                call("cuMemFreeAsync", address, PER_THREAD)
        call("cuEventDestroy_v2", used)


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


_SELECT_SHARE = 32  # of a chunk of more pages than are listed, as far as its metadata is copied


def _metadata_bytes(item: _Item) -> int:
    """How much of the chunk is copied before it is decoded: all of the metadata of one that holds just these pages."""
    size = item.request.metadata_bound()
    if item.select is not None:
        size = max(size, item.chunk.nbytes // _SELECT_SHARE + 4096)
    size = min(size, item.chunk.nbytes) // _CHUNK_ALIGNMENT * _CHUNK_ALIGNMENT
    return size if size >= _abi.CHUNK_HEADER_BYTES else 0


# ---- The codec ------------------------------------------------------------------------------------------------------


def encode_bound(pages: Any, *, page_bytes: int = 32768) -> int:
    """Largest chunk that these pages can become, in bytes: enough room for `out`."""
    return request_for(pages, "pages", "bytes", page_bytes).bound()


class _Batch:
    """The items of one call, checked one by one; what it keeps alive, and whose work it waits for."""

    def __init__(self, device: int):
        self._device = device
        self.items: list[_Item] = []
        self.sources: list[Any] = []
        self.outs: list[Any] = []

    def keep(self, sources: list[Any], device: int | None, what: str) -> None:
        if device not in (None, self._device):
            raise InvalidError(f"{what} is on GPU {device}, the codec on GPU {self._device}")
        self.sources += sources

    def flat(self, source: Any, what: str, alignment: int, needed: int | None = None) -> NDArray[np.uint8]:
        """Memory that the call uses, as a row of bytes; `needed` says that it writes so many."""
        array, device = flat_view(source, what)
        self.keep([source], device, what)
        if array.ctypes.data % alignment:
            raise ValueError(f"{what} begins at {array.ctypes.data:#x}, which is no multiple of {alignment} bytes")
        if needed is not None:
            check_writable(array, what)
            if array.nbytes < needed:
                message = f"{what} has {array.nbytes} bytes, {needed} may be needed"
                raise NoSpaceError(message, Status.ERR_NO_SPACE)
        return array

    def select(self, select: SelectLike, count: int) -> Numbers:
        device = device_of(select, "select")
        if select is None:
            return None
        if device is None:
            chosen = index_array(select if isinstance(select, np.ndarray) else list(select), "select")
            numbers: Numbers = chosen
        else:
            self.keep([select], device, "select")
            found = view(select, "select")
            chosen, numbers = found.array, found.numbers("select")
        if len(chosen) != count:
            raise ValueError(f"select names {len(chosen)} pages, the list has {count}")
        return numbers


class Codec:
    """The codec of one GPU, with what it needs there: tables of the codebook, scratch, pinned memory.

    codebook: None: modes "raw", "base" and "parts" only. device: the GPU's number in this process. sm_budget:
        multiprocessors that a call may occupy; 0: all.

    Calls queue work on a stream and return: see Job. They may come from any threads; those on different streams run one
    after another, so that each stream that is to run beside others wants a Codec of its own.
    DeviceError: no GPU of compute capability 8.0 or later, no driver, or no libstrait-cuda.so.0.
    """

    def __init__(self, codebook: Codebook | None, *, device: int = 0, sm_budget: int = 0):
        self._codebook, self._book = codebook, codebook_handle(codebook)
        self.device, self._sm_budget = device, sm_budget
        self._lock = threading.Lock()
        _driver.load_plugin()
        with _driver.on_device(device):
            self._variant = lib.strait_codec_get(b"cuda")
            if self._variant is None:
                raise DeviceError(
                    f"the codec does not run on GPU {device}: it needs libstrait-cuda.so.0 and compute capability 8.0",
                    Status.ERR_DEVICE,
                )
            image = ctypes.create_string_buffer(0 if self._book is None else lib.strait_codebook_image_size(self._book))
            if self._book is not None:
                _abi.check(lib.strait_codebook_image(self._book, image, len(image)), "codebook")
            self._workspace = _Workspace(device, image.raw)

    # ---- Encoding

    def encode(self, pages: Any, out: Any = None, **how: Any) -> Job:
        """Queues encoding pages to one chunk: the bytes that strait.encode() makes of the same.

        pages: a PageList, or a contiguous array in memory of the GPU, cut into pages of `page_bytes`. An array whose
            last page is shorter is slower: its pages are described one by one.
        out: contiguous writable memory of at least encode_bound() bytes, of the GPU or pinned, 16-byte aligned; None: a
            new array of torch or cupy. The chunk is its beginning: job.chunk, once that is known.
        how: what encode_batch() takes.

        ValueError, TypeError, InvalidError, CodebookError, NoSpaceError, AlignmentError: at once, nothing is queued.
        What is in the pages' ids is told by Job.wait(): PageIdError. ValueError also where out and pages overlap.
        """
        return self.encode_batch([(pages, out)], **how)

    def encode_batch(
        self,
        items: Iterable[tuple[Any, Any]],
        *,
        mode: Mode | None = None,
        element: Element = "bf16",
        table: TableLike = 0,
        page_bytes: int = 32768,
        stream: StreamLike = None,
        stats: Stats | None = None,
        results: Any = None,
    ) -> Job:
        """Queues encoding many chunks, as one launch: items are (pages, out), as for encode().

        mode, table: as for strait.encode(). element: what the values are.
        stream: where it is queued; None: the current stream of torch or cupy when pages are theirs, else the legacy
            default stream. It waits for what those libraries have queued so far.
        stats: filled when the job has been waited for.
        results: memory of the GPU or pinned that receives the struct strait_result of each chunk (64 bytes), for work
            on the stream that has to know; None: only the host is told.
        """
        mode = default_mode(element, self._book is not None) if mode is None else mode
        params = _abi.EncodeParams(
            size=ctypes.sizeof(_abi.EncodeParams),
            element=choice(_abi.ELEMENTS, element, "element"),
            mode=choice(_abi.MODES, mode, "mode"),
            codebook=self._book,
        )
        if self._book is None and mode not in _abi.MODES_WITHOUT_TABLES:
            raise ValueError(f"mode {mode!r} needs a codebook; without one there are 'raw', 'base' and 'parts'")
        batch = _Batch(self.device)
        for i, (pages, out) in enumerate(items):
            request = request_for(pages, f"item {i}: pages", element, page_bytes, self._codebook, table)
            batch.keep(request.sources, request.device, f"item {i}: pages")
            out = new_bytes(request.bound(), self.device, request.sources) if out is None else out
            chunk = batch.flat(out, f"item {i}: out", _CHUNK_ALIGNMENT, request.bound())
            if request.overlaps(chunk):
                raise ValueError(f"item {i}: out and the pages overlap")
            batch.items.append(_Item(request, chunk, None))
            batch.outs.append(out)
        places = sorted((item.chunk.ctypes.data, item.chunk.nbytes) for item in batch.items)
        for (address, size), (following, _) in itertools.pairwise(places):
            if address + size > following:
                raise ValueError("two items have the same memory as out")
        return self._queue(batch, params, stream, stats, results)

    # ---- Decoding

    def decode(self, chunk: Any, pages: Any, *, select: SelectLike = None, **how: Any) -> Job:
        """Queues decoding a chunk, or some of its pages, each of them checked. The chunk may come from anywhere.

        chunk: exactly one chunk, in contiguous memory of the GPU or pinned, 16-byte aligned. Others may even write to
            it while the call runs: its metadata is copied first, on the stream, and the pages then fail, or hold what
            passed the checks. With `select` the copy has room for a 32nd of the chunk; longer metadata, of pages below
            2 KiB or so, is read in place, by kernels that read nothing outside of the chunk either way.
        pages: a PageList, or a contiguous array in memory of the GPU that is cut into pages of `page_bytes`.
        select: page i of the list receives chunk page select[i]; None: as many as there are, in order.
        how: what decode_batch() takes.

        All that depends on the content of the chunk is told by Job.wait(), as strait.decode() raises it. Bytes of pages
        that failed are undefined; nothing but pages of the list is written. ValueError: the pages and the chunk
        overlap; ids in memory of the GPU may be those of any page.
        """
        return self.decode_batch([(chunk, pages, select)], **how)

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
        decode(). No two of them may write to the same memory.

        element: what the pages are to hold: their dtype is compared with that, as the chunk cannot be looked into here.
        stream, stats, results: as for encode_batch().
        """
        choice(_abi.ELEMENTS, element, "element")
        batch = _Batch(self.device)
        for i, (source, pages, *rest) in enumerate(items):
            request = request_for(pages, f"item {i}: pages", element, page_bytes, write=True)
            batch.keep(request.sources, request.device, f"item {i}: pages")
            chunk = batch.flat(source, f"item {i}: chunk", _CHUNK_ALIGNMENT)
            if request.overlaps(chunk):
                raise ValueError(f"item {i}: the pages and the chunk overlap")
            batch.items.append(_Item(request, chunk, batch.select(rest[0] if rest else None, request.count)))
        return self._queue(batch, None, stream, stats, results)

    # ---- Both

    def _queue(
        self, batch: _Batch, params: _abi.EncodeParams | None, stream: StreamLike, stats: Stats | None, results: Any
    ) -> Job:
        """Queues the call on the stream; `params` says that it encodes."""
        what = "decode" if params is None else "encode"
        if not batch.items:
            raise ValueError(f"nothing to {what}: the batch is empty")
        needed = len(batch.items) * _RESULT_BYTES
        told = None if results is None else batch.flat(results, "results", _RESULT_ALIGNMENT, needed)
        with self._lock, _driver.on_device(self.device):
            handle = stream_for(stream, batch.sources, self.device)
            reap()
            follow(batch.sources, handle, self.device)
            job = Job(what, batch.items, stats, batch.outs, (batch.sources, self._workspace))
            try:
                self._launch(job, params, handle, told)
            except Exception:
                job._stats = None  # nothing is told of it
                raise
            finally:  # work queued before a failure uses all of it too
                for event in (self._workspace.used, job._event):
                    call("cuEventRecord", event, handle)
                _inflight.append(job)
        return job

    def _launch(self, job: Job, params: _abi.EncodeParams | None, stream: int, told: NDArray[np.uint8] | None) -> None:
        """Whatever is raised, `job` holds what has been queued so far. The staging area has ids, counters, and the
        chunks' metadata."""
        count, workspace = len(job._items), self._workspace
        items: Any = ((_abi.DecodeItem if params is None else _abi.EncodeItem) * count)()
        numbers = [ids for item in job._items for ids in (item.request.ids, item.select) if isinstance(ids, np.ndarray)]
        ids_bytes = _aligned(sum(ids.nbytes for ids in numbers))
        job._tables = 0 if self._codebook is None or job._stats is None else len(self._codebook)
        stats_bytes = job._tables * CLASS_STATS.itemsize
        status_at = count * _RESULT_BYTES
        ids_at = _aligned(status_at + 4 * sum(item.request.count for item in job._items))
        job._stats_at = ids_at + ids_bytes
        job._block = block = take_block(job._stats_at + stats_bytes)
        call("cuStreamWaitEvent", stream, workspace.used, 0)
        sizes = [0 if params is not None else _metadata_bytes(item) for item in job._items]
        copies_at = _aligned(ids_bytes + stats_bytes)
        staging = workspace.room("staging", copies_at + sum(map(_aligned, sizes)), stream)
        counters, at, copy = staging + ids_bytes, 0, staging + copies_at

        def placed(ids: Numbers) -> int | None:
            nonlocal at
            if not isinstance(ids, np.ndarray):
                return ids
            block.row(ids_at + at, np.uint32, len(ids))[:] = ids
            at += ids.nbytes
            return staging + at - ids.nbytes

        results = block.address if told is None else told.ctypes.data
        for i, (item, (request, chunk, select)) in enumerate(zip(items, job._items)):
            pages, address = request.struct, chunk.ctypes.data
            pages.ids = placed(request.ids)
            if params is None:
                item.dst, item.src, item.src_size, item.select = pages, address, chunk.nbytes, placed(select)
                if sizes[i]:
                    call("cuMemcpyAsync", copy, address, sizes[i], stream)
                    item.metadata, item.metadata_size = copy, sizes[i]
                    copy += _aligned(sizes[i])
            else:
                item.src, item.dst, item.dst_capacity = pages, address, chunk.nbytes
            item.result = results + i * _RESULT_BYTES
            item.page_status, item.page_status_count = block.address + status_at, request.count
            status_at += 4 * request.count
        if at:
            call("cuMemcpyAsync", staging, block.address + ids_at, at, stream)
        if job._tables:
            call("cuMemsetD8Async", counters, 0, stats_bytes, stream)
        size_of = lib.strait_decode_scratch_size if params is None else lib.strait_encode_scratch_size
        scratch, scratch_size = workspace.scratch(size_of(self._variant, items, count), stream)
        run = _abi.Run(
            size=ctypes.sizeof(_abi.Run),
            scratch=scratch,
            scratch_size=scratch_size,
            stream=stream,
            class_stats=counters if job._tables else None,
            class_count=job._tables,
            sm_budget=self._sm_budget,
            tables=None if self._codebook is None else workspace.room("tables", 0, stream),
        )
        if params is not None:
            _abi.check(lib.strait_encode_batch(self._variant, params, items, count, run), "encode")
        else:
            _abi.check(lib.strait_decode_batch(self._variant, self._book, items, count, run), "decode")
        if told is not None:
            call("cuMemcpyAsync", block.address, results, count * _RESULT_BYTES, stream)
        if job._tables:
            call("cuMemcpyAsync", block.address + job._stats_at, counters, stats_bytes, stream)
