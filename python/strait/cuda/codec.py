"""Pages in memory of a GPU to chunks and back, on a stream."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from .. import _abi
from .._abi import lib
from .._views import check_writable
from ..chunk import Element
from ..codebook import Codebook, codebook_handle
from ..codec import Mode, choice
from ..errors import DeviceError, Status
from ..pages import TableLike, index_array
from ..run import Stats
from . import _driver
from ._call import Call, Chunk, Launch, Means, decode_items, encode_items
from ._plugin import load_plugin
from ._workspace import Workspace, check_scratch
from .array import device_of, flat_bytes, view
from .job import Flight, Job, reap
from .order import StreamLike, order_after, stream_for
from .pages import DeviceRequest, IdsToPlace, Pages, check_one_device

#: Chunk page numbers: on the host, or a contiguous int32 or uint32 array in memory of the GPU.
SelectLike: TypeAlias = Iterable[int] | Any | None


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
        self.device = device
        self._lock = threading.Lock()
        load_plugin()
        given = None if scratch is None else flat_bytes(view(scratch, "scratch"), "scratch")
        if given is not None:
            check_scratch(given)
            check_one_device([(device, "the codec"), (given.device, "scratch")])
        with _driver.on_device(device):
            variant = lib.strait_codec_get(b"cuda")
            if variant is None:
                raise DeviceError(
                    f"the codec does not run on GPU {device}: it needs libstrait-cuda.so.0 and compute capability 9.0",
                    Status.ERR_DEVICE,
                )
            workspace = Workspace(device, self._image(), given)
            self._means = Means(variant, codebook, self._book, workspace, sm_budget)

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
        call = Call(params, stats, results)
        for i, (given, out) in enumerate(items):
            name, out_name = (f"item {i}: {what}" for what in ("pages", "out"))
            pages, chunk = Pages(given, page_bytes, name), Chunk(out, out_name)
            check_writable(chunk.memory, out_name)
            call.add(pages, name, chunk, out_name, pages.to_read(element, self._codebook, table))
        return self._queue(call, stream)

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
        call = Call(None, stats, results)
        for i, (source, given, *rest) in enumerate(items):
            name, chunk_name = (f"item {i}: {what}" for what in ("pages", "chunk"))
            pages, chunk = Pages(given, page_bytes, name), Chunk(source, chunk_name)
            request = pages.to_write(element)
            call.add(pages, name, chunk, chunk_name, request)
            call.selects.append(self._select(rest[0] if rest else None, request, call))
        return self._queue(call, stream)

    def _select(self, select: SelectLike, request: DeviceRequest, call: Call) -> IdsToPlace:
        if select is None:
            return IdsToPlace(None)
        if device_of(select) is not None:
            chosen: Any = view(select, "select")
            if chosen.dtype.name not in ("int32", "uint32") or not chosen.flags.c_contiguous:
                raise TypeError(f"select on a GPU must be a contiguous row of int32 or uint32, not {chosen!r}")
            call.sources.append(select)
            call.devices.append((chosen.device, "select"))
        else:
            chosen = index_array(select if isinstance(select, np.ndarray) else list(select), "select")
        if len(chosen) != request.count:
            raise ValueError(f"select names {len(chosen)} pages, the list has {request.count}")
        return IdsToPlace(chosen)

    # ---- Both

    def scratch_size(self, batch: Sequence[Any], *, page_bytes: int = 32768) -> int:
        """Bytes of `scratch` that a batch of these pages needs at most, whichever way."""
        requests = [Pages(pages, page_bytes, "pages").to_read("bytes", None, 0) for pages in batch]
        return max(self._means.scratch_size(items(requests)) for items in (encode_items, decode_items))

    def _queue(self, call: Call, stream: StreamLike) -> Job:
        call.check(self.device)
        with self._lock, _driver.on_device(self.device):
            handle = stream_for(stream, call.sources, self.device)
            reap()
            order_after(call.sources, handle, self.device)
            flight = Flight()
            flight.kept = [self._means, call]
            try:
                Launch(call, self._means, handle, flight).start()
            finally:  # work queued before a failure uses all of it too
                self._means.workspace.used_by(handle)
                flight.launch(handle)
        return Job(flight, call.what, len(call.requests))
