"""What decode() and verify() share: one chunk, checked, into pages."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from . import _abi
from ._abi import lib
from ._views import ArrayLike, alignment_of, array_view, byte_view, can_hold, check_writable, decoded_dtype
from .chunk import chunk_pages, info
from .codebook import Codebook, codebook_handle
from .errors import Error, Status, make_error
from .pages import PageList, Request, cut_unevenly, index_array, page_offsets
from .run import Run, Stats, codec_handle

Chosen = NDArray[np.uint32] | None


class Decoder:
    """One call: the arguments that every way to decode takes, and the chunk's header."""

    def __init__(
        self, chunk: ArrayLike, codebook: Codebook | None, codec: str | None, check: bool, stats: Stats | None
    ):
        if not check and stats is None:
            raise ValueError("check=False needs stats to report to")
        self._codebook, self._book = codebook, codebook_handle(codebook)
        self._codec = codec_handle(codec)
        self._check, self._stats = check, stats
        self._source = byte_view(chunk, "chunk")
        self._header = info(self._source)

    def select(self, select: Any) -> NDArray[np.uint32]:
        """Indices of chunk pages, checked."""
        chosen = index_array(select if isinstance(select, np.ndarray) else list(select), "select")
        if int(chosen.max()) >= self._header.page_count:
            self._mismatch(f"select names page {int(chosen.max())} of a chunk of {self._header.page_count}")
        return chosen

    def to_pages(self, pages: PageList, chosen: Chosen) -> None:
        request = pages.to_write()
        expected = self._header.page_count if chosen is None else len(chosen)
        if request.count != expected:
            self._mismatch(f"the list has {request.count} pages, there are {expected} to decode")
        for i, pool in enumerate(pages.pools):
            self._check_dtype(pool.dtype, f"pool {i}")
        self._decode(request, chosen)

    def to_array(self, out: Any, chosen: Chosen) -> Any:
        """Into `out`, or into a new array when it is None, page after page. Returns which."""
        lengths = chunk_pages(self._source)["page_bytes"]
        if chosen is not None:
            lengths = lengths[chosen]
        if out is None:
            array = self._new_array(lengths)
            status = self._flat(array.view(np.uint8), lengths, chosen)
            for page in np.flatnonzero(status):
                start = int(page_offsets(lengths, 1)[page])
                array.view(np.uint8)[start : start + int(lengths[page])] = 0
            return array
        target = byte_view(out, "out")
        check_writable(target, "out")
        self._check_dtype(array_view(out, "out").dtype, "out")
        self._flat(target, lengths, chosen)
        return out

    def verify(self) -> None:
        run = Run(self._header.page_count, self._codebook)
        source = self._source
        _abi.check(lib.strait_verify(self._codec, self._book, source.ctypes.data, source.nbytes, run.struct), "verify")
        self._finish(run, "verify")

    def _new_array(self, lengths: NDArray[np.uint32]) -> NDArray[Any]:
        size, dtype = int(lengths.sum(dtype=np.uint64)), decoded_dtype(self._header.element)
        return np.empty(size // dtype.itemsize, dtype) if size % dtype.itemsize == 0 else np.empty(size, np.uint8)

    def _flat(self, target: NDArray[np.uint8], lengths: NDArray[np.uint32], chosen: Chosen) -> NDArray[np.int32]:
        total = int(lengths.sum(dtype=np.uint64))
        if target.nbytes != total:
            self._mismatch(f"out has {target.nbytes} bytes, the pages have {total}")
        align = alignment_of(self._header.element)
        if not (lengths[:-1] % align).any():
            return self._decode(cut_unevenly(target, lengths), chosen)
        starts = page_offsets(lengths, align)  # another page follows one of odd length: decode apart, then join
        stage = np.empty(int(starts[-1]) + int(lengths[-1]), np.uint8)
        status = self._decode(cut_unevenly(stage, lengths, align=align), chosen)
        for start, end, length in zip(starts.tolist(), page_offsets(lengths, 1).tolist(), lengths.tolist()):
            target[end : end + length] = stage[start : start + length]
        return status

    def _decode(self, request: Request, chosen: Chosen) -> NDArray[np.int32]:
        run = Run(request.count, self._codebook)
        select = None if chosen is None else chosen.ctypes.data
        source = self._source
        status = lib.strait_decode(
            self._codec, self._book, request.struct, select, source.ctypes.data, source.nbytes, run.struct
        )
        _abi.check(status, "decode")
        self._finish(run, "decode")
        return run.page_status

    def _finish(self, run: Run, what: str) -> None:
        """Raises what is wrong with the chunk, then, unless told not to, with its pages."""
        failure = self._chunk_failure(run.result.chunk_status, what)
        if failure is not None:
            run.page_status[:] = failure.status
        run.tell(self._stats, run.result.bytes, self._header.chunk_bytes)
        if failure is not None:
            raise failure
        if run.result.status != Status.OK and self._check:
            run.raise_page_failure(what)

    def _chunk_failure(self, status: int, what: str) -> Error | None:
        """The exception for a chunk that is bad as a whole."""
        if status == Status.OK:
            return None
        if status == Status.ERR_CODEBOOK:
            if self._codebook is not None and self._codebook.id == self._header.codebook_id:
                count = len(self._codebook)
                return make_error(status, f"{what}: the chunk names a table beyond the {count} of its codebook")
            needed = (self._header.codebook_id or b"").hex()
            given = "none was given" if self._codebook is None else f"{self._codebook.id.hex()} was given"
            return make_error(status, f"{what}: the chunk needs codebook {needed}, {given}")
        return make_error(status, f"{what}: {_abi.status_text(status)}")

    def _verdict(self) -> int:
        """Checks 1 to 10 of the format: the header and the tables."""
        return int(lib.strait_chunk_pages(self._source.ctypes.data, self._source.nbytes, 0, None))

    def _check_dtype(self, dtype: np.dtype[Any], what: str) -> None:
        if not can_hold(dtype, self._header.element):
            self._mismatch(f"{what} has dtype {dtype}, the chunk holds {self._header.element} values")

    def _mismatch(self, message: str) -> NoReturn:
        """The output does not fit what the header says; but a header that is damaged says so first."""
        _abi.check(self._verdict(), "decode")
        raise make_error(Status.ERR_INVALID, f"decode: {message}")
