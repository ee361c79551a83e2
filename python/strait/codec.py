"""Pages to a chunk and back: encode, decode, verify, and what a call reports."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from . import _abi
from ._abi import BLOCK_MODES, lib
from ._views import (
    ArrayLike,
    alignment_of,
    array_view,
    byte_view,
    can_hold,
    check_dtype,
    check_writable,
    decoded_dtype,
    described,
    dtype_here,
    dtype_name,
    dtype_of,
    element_of,
    shape_of,
)
from .chunk import Chunk, Element, chunk_of, metadata_of, pages_of
from .codebook import Codebook, codebook_handle
from .errors import Error, Status, make_error
from .pages import (
    PageList,
    Request,
    TableLike,
    check_of_host,
    cut,
    cut_unevenly,
    index_array,
    page_offsets,
    table_index,
)

# ---- Runs -----------------------------------------------------------------------------------------------------------


@dataclass
class Stats:
    """Figures of a call: give an empty one as `stats=`, every call overwrites it, also when pages fail. One per thread.

    raw_bytes: bytes of pages; of decode and verify: of the pages that passed.
    chunk_bytes: bytes of the chunk; 0 when encode failed.
    values: values by what became of their block (raw, const, top16, top16_escapes, tiered), of pages that are good.
    table_values, table_escapes: uint64 [tables of the codebook]: values in coded blocks, and how many of them were too
        rare for the short codes. A rising share says that the codebook no longer fits the data.
    page_status: int32 [pages of the list], each a Status; for verify, of the chunk.
    """

    raw_bytes: int = 0
    chunk_bytes: int = 0
    values: dict[str, int] = field(default_factory=dict)
    table_values: NDArray[np.uint64] = field(repr=False, default_factory=lambda: np.zeros(0, np.uint64))
    table_escapes: NDArray[np.uint64] = field(repr=False, default_factory=lambda: np.zeros(0, np.uint64))
    page_status: NDArray[np.int32] = field(repr=False, default_factory=lambda: np.zeros(0, np.int32))

    @property
    def ratio(self) -> float:
        """raw_bytes / chunk_bytes; 0 when there is no chunk."""
        return self.raw_bytes / self.chunk_bytes if self.chunk_bytes else 0.0

    @property
    def failed_pages(self) -> list[int]:
        """Indices of the pages whose status is not OK."""
        return [int(page) for page in np.flatnonzero(self.page_status)]


class Run:
    """struct strait_run and where it reports; one per call."""

    def __init__(self, pages: int, codebook: Codebook | None):
        self.result = _abi.Result()
        self.page_status = np.zeros(pages, np.int32)
        self._tables = np.zeros(0 if codebook is None else len(codebook), _abi.CLASS_STATS)
        self.struct = _abi.Run(
            size=ctypes.sizeof(_abi.Run),
            result=ctypes.pointer(self.result),
            page_status=self.page_status.ctypes.data if pages else None,
            page_status_count=pages,
            class_stats=self._tables.ctypes.data if len(self._tables) else None,
            class_count=len(self._tables),
        )

    def tell(self, stats: Stats | None, raw_bytes: int, chunk_bytes: int) -> None:
        if stats is None:
            return
        stats.raw_bytes, stats.chunk_bytes = raw_bytes, chunk_bytes
        stats.values = dict(zip(BLOCK_MODES, self.result.values))
        stats.table_values = self._tables["values"].copy()
        stats.table_escapes = self._tables["escapes"].copy()
        stats.page_status = self.page_status


def page_failure(what: str, status: int, page_status: NDArray[np.int32]) -> Error:
    """For a result that is not OK because of single pages."""
    failed = np.flatnonzero(page_status)
    first = _abi.status_text(int(page_status[failed[0]]))
    message = f"{what}: {len(failed)} of {len(page_status)} pages failed, first page {failed[0]}: {first}"
    return make_error(status, message, page_status)


def variants() -> list[str]:
    """Names of the codec variants that run here, for codec=...; all write the same bytes."""
    names: list[bytes] = []
    while name := lib.strait_codec_name_at(len(names)):
        names.append(name)
    return [name.decode() for name in names if lib.strait_codec_get(name)]


def default_variant() -> str:
    """The variant that codec=None means: the environment's STRAIT_CODEC if it runs here, else the fastest."""
    name: bytes = lib.strait_codec_name(lib.strait_codec_get(None))
    return name.decode()


def codec_handle(name: str | None) -> int | None:
    """Handle of a variant; None, the default, for None."""
    if name is None:
        return None
    codec: int | None = None if name == "cuda" else lib.strait_codec_get(name.encode())  # arrays are host memory
    if codec is None:
        raise ValueError(f"no codec variant {name!r} here; there are {', '.join(variants())}")
    return codec


# ---- Encoding -------------------------------------------------------------------------------------------------------


#: How to encode: auto picks by element type (tiered for BF16). Blocks that would not shrink are always kept raw.
Mode = Literal["auto", "raw", "top16", "tiered", "base", "split", "parts"]

Out = TypeVar("Out")


def default_mode(element: str, has_codebook: bool) -> Mode:
    """For mode=None. `parts` is at most 0.3 % larger than the others, and much smaller where bits never change."""
    if element in ("fp16", "fp32"):
        return "parts"
    return "split" if has_codebook else "base"


def choice(names: dict[str, int], name: str, what: str) -> int:
    if name not in names:
        raise ValueError(f"{what} {name!r} is none of {', '.join(names)}")
    return names[name]


def _request_to_read(
    pages: ArrayLike | PageList, element: str, codebook: Codebook | None, table: TableLike, page_bytes: int
) -> tuple[Request, Any]:
    """The request, and what must stay alive during the call."""
    if isinstance(pages, PageList):
        return pages.to_read(element, codebook, table), pages
    check_of_host(pages)
    array = array_view(pages, "pages")
    check_dtype(array.dtype, element, "pages")
    data = byte_view(array, "pages")
    return cut(data, page_bytes, table_index(table, codebook)), data


def encode_bound(pages: ArrayLike | PageList, *, page_bytes: int = 32768) -> int:
    """Largest chunk that encode() can make of these pages, in bytes: enough room for its `out`.

    ValueError: no pages, or too many for one chunk.
    """
    request, _alive = _request_to_read(pages, "bytes", None, 0, page_bytes)
    return request.bound()


def _element_of(pages: ArrayLike | PageList) -> Element:
    """What the dtypes say; pools must agree."""
    check_of_host(pages)
    arrays = pages.pools if isinstance(pages, PageList) else (array_view(pages, "pages"),)
    said = {element_of(array.dtype) for array in arrays}
    if len(said) > 1:
        raise TypeError(f"the pools hold {' and '.join(sorted(said))} values: one chunk holds one type")
    return cast(Element, said.pop())


@overload
def encode(
    pages: ArrayLike | PageList,
    codebook: Codebook | None = None,
    *,
    mode: Mode | None = None,
    element: Element | None = None,
    table: TableLike = 0,
    page_bytes: int = 32768,
    codec: str | None = None,
    out: None = None,
    stats: Stats | None = None,
) -> Chunk: ...


@overload
def encode(
    pages: ArrayLike | PageList,
    codebook: Codebook | None = None,
    *,
    mode: Mode | None = None,
    element: Element | None = None,
    table: TableLike = 0,
    page_bytes: int = 32768,
    codec: str | None = None,
    out: ArrayLike,
    stats: Stats | None = None,
) -> memoryview: ...


def encode(
    pages: ArrayLike | PageList,
    codebook: Codebook | None = None,
    *,
    mode: Mode | None = None,
    element: Element | None = None,
    table: TableLike = 0,
    page_bytes: int = 32768,
    codec: str | None = None,
    out: ArrayLike | None = None,
    stats: Stats | None = None,
) -> Chunk | memoryview:
    """Encodes pages to one chunk. The same pages, tables and mode always give the same bytes.

    pages: a contiguous array of any shape, cut into pages of `page_bytes` bytes (the last may be shorter; at most
        16 MiB; a multiple of the element's size); or a PageList, read in place.
    codebook: its tables say which exponents are frequent. None: modes "raw", "base" and "parts" only.
    mode: "top16" and "tiered" code BF16; "split" is "tiered" for BF16, FP16 and FP32; "base" codes these three without
        a codebook; "parts" codes them with or without, and leaves out bits that never change; "auto" is "tiered". FP8
        is coded by the last three alike. None: "parts" for FP16 and FP32, else "split" with a codebook and "base"
        without: with FP16 and FP32 the smallest but for 0.3 %, by one pass. Values of other types are carried as they
        are.
    element: what the values are. Arrays must have a matching dtype (BF16: uint16, int16, ml_dtypes.bfloat16,
        torch.bfloat16) or be bytes. None: what the dtype says, and BF16 where it says nothing.
    table: index of the codebook's table, or the class to find one for, where a PageList does not say.
    codec: a name from variants(); None: the fastest.
    out: a writable contiguous buffer of at least encode_bound() bytes to encode into, best 16-byte aligned. The first
        encode_bound() bytes of it must not overlap the pages.
    stats: filled when given.

    Returns the chunk: a Chunk, which is bytes that know shape and dtype of the array, or with `out` a memoryview of its
    used part.
    Releases the GIL; any number of threads may encode at once, also from the same pages and with the same codebook.
    The values must not change meanwhile.
    ValueError (nothing to encode, does not fit one chunk, not contiguous, unknown name, a mode that needs
    a codebook without one, out overlaps the pages), TypeError (dtype), CodebookError (no such table), AlignmentError,
    NoSpaceError (out too small), PageIdError (.failed_pages lists the pages whose ids are out of range).
    """
    handle = codebook_handle(codebook)
    element = _element_of(pages) if element is None else element
    mode = default_mode(element, handle is not None) if mode is None else mode
    params = _abi.EncodeParams(
        size=ctypes.sizeof(_abi.EncodeParams),
        element=choice(_abi.ELEMENTS, element, "element"),
        mode=choice(_abi.MODES, mode, "mode"),
        codebook=handle,
    )
    if handle is None and mode not in _abi.MODES_WITHOUT_TABLES:
        raise ValueError(f"mode {mode!r} needs a codebook; without one there are 'raw', 'base' and 'parts'")
    variant = codec_handle(codec)
    request, _alive = _request_to_read(pages, element, codebook, table, page_bytes)
    bound = request.bound()
    buffer = np.empty(bound, np.uint8) if out is None else byte_view(out, "out")
    check_writable(buffer, "out")
    if out is not None and request.overlaps(buffer[:bound]):
        raise ValueError("encode: out and the pages overlap")
    run = Run(request.count, codebook)
    status = lib.strait_encode(variant, params, buffer.ctypes.data, buffer.nbytes, request.struct, run.struct)
    if status == Status.ERR_CODEBOOK:
        tables = 0 if codebook is None else len(codebook)
        raise make_error(status, f"encode: a page's table is beyond the {tables} of the codebook")
    _abi.check(status, "encode")
    run.tell(stats, request.raw_bytes, run.result.bytes)
    if run.result.status != Status.OK:
        raise page_failure("encode", run.result.status, run.page_status)
    chunk = buffer[: run.result.bytes]
    if out is not None:
        return chunk.data
    shape, dtype = (None, None) if isinstance(pages, PageList) else described(pages, array_view(pages, "pages"))
    return chunk_of(chunk, shape, dtype)


# ---- Decoding -------------------------------------------------------------------------------------------------------


Chosen = NDArray[np.uint32] | None


class _Decoder:
    """One call of decode() or verify(): their common arguments, and the chunk's header."""

    def __init__(
        self, chunk: ArrayLike, codebook: Codebook | None, codec: str | None, check: bool, stats: Stats | None
    ):
        if not check and stats is None:
            raise ValueError("check=False needs stats to report to")
        self._codebook, self._book = codebook, codebook_handle(codebook)
        self._codec = codec_handle(codec)
        self._check, self._stats = check, stats
        self._source = byte_view(chunk, "chunk")
        self._metadata, self._header = metadata_of(self._source)  # others may write to the chunk meanwhile

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

    def _lengths(self, chosen: Chosen) -> NDArray[np.uint32]:
        lengths: NDArray[np.uint32] = pages_of(self._metadata, self._header, self._source.nbytes)["page_bytes"]
        return lengths if chosen is None else lengths[chosen]

    def holds_whole(self, dtype: Any, chosen: Chosen) -> bool:
        """Whether the pages are a whole number of such values."""
        return dtype is not None and int(self._lengths(chosen).sum(dtype=np.uint64)) % dtype_of(dtype)[0].itemsize == 0

    def to_new(self, shape: Any, dtype: Any, chosen: Chosen) -> Any:
        """Into a new array or tensor, page after page; its dtype, if None, is that of the chunk's element type."""
        numpys, torchs = (None, None) if dtype is None else dtype_of(dtype)
        lengths = self._lengths(chosen)
        size = int(lengths.sum(dtype=np.uint64))
        data, array = self._new_array(size, numpys, (-1,) if shape is None else shape_of(shape))
        status = self._flat(data, lengths, chosen)
        for page in np.flatnonzero(status):
            start = int(page_offsets(lengths, 1)[page])
            data[start : start + int(lengths[page])] = 0
        if torchs is None:
            return array
        return __import__("torch").from_numpy(data).view(torchs).reshape(array.shape)

    def to_array(self, out: Any, chosen: Chosen) -> Any:
        """Into `out`, page after page. Returns it."""
        lengths = self._lengths(chosen)
        target = byte_view(out, "out")
        check_writable(target, "out")
        self._check_dtype(array_view(out, "out").dtype, "out")
        self._flat(target, lengths, chosen)
        return out

    def verify(self) -> None:
        run = Run(self._header.page_count, self._codebook)
        source = self._source
        run.struct.metadata = self._metadata.ctypes.data
        _abi.check(lib.strait_verify(self._codec, self._book, source.ctypes.data, source.nbytes, run.struct), "verify")
        self._finish(run, "verify")

    def _new_array(self, size: int, dtype: np.dtype[Any] | None, shape: Any) -> tuple[NDArray[np.uint8], NDArray[Any]]:
        """A row of bytes, and as an array of that dtype and shape."""
        if dtype is None:
            dtype = decoded_dtype(self._header.element)
            dtype = dtype if size % dtype.itemsize == 0 else np.dtype(np.uint8)
        else:
            self._check_dtype(dtype, "the new array")
        data = np.empty(size, np.uint8)
        try:
            return data, data.view(dtype).reshape(shape)
        except ValueError:
            self._mismatch(f"shape {shape} of dtype {dtype_name(dtype)} does not fit the {size} bytes of the pages")

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
        if request.overlaps(source):
            raise ValueError("decode: the output and the chunk overlap")
        run.struct.metadata = self._metadata.ctypes.data
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
            raise page_failure(what, run.result.status, run.page_status)

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
        return int(lib.strait_chunk_pages(self._metadata.ctypes.data, self._source.nbytes, 0, None))

    def _check_dtype(self, dtype: np.dtype[Any], what: str) -> None:
        if not can_hold(dtype, self._header.element):
            self._mismatch(f"{what} has dtype {dtype}, the chunk holds {self._header.element} values")

    def _mismatch(self, message: str) -> NoReturn:
        """The output does not fit what the header says; but a header that is damaged says so first."""
        _abi.check(self._verdict(), "decode")
        raise make_error(Status.ERR_INVALID, f"decode: {message}")


@overload
def decode(
    chunk: ArrayLike,
    codebook: Codebook | None = None,
    out: None = None,
    *,
    select: Iterable[int] | NDArray[np.integer[Any]] | None = None,
    codec: str | None = None,
    check: bool = True,
    stats: Stats | None = None,
    shape: int | Sequence[int] | None = None,
    dtype: Any = None,
) -> Any: ...


@overload
def decode(
    chunk: ArrayLike,
    codebook: Codebook | None,
    out: Out,
    *,
    select: Iterable[int] | NDArray[np.integer[Any]] | None = None,
    codec: str | None = None,
    check: bool = True,
    stats: Stats | None = None,
) -> Out: ...


def decode(
    chunk: ArrayLike,
    codebook: Codebook | None = None,
    out: Any = None,
    *,
    select: Iterable[int] | NDArray[np.integer[Any]] | None = None,
    codec: str | None = None,
    check: bool = True,
    stats: Stats | None = None,
    shape: int | Sequence[int] | None = None,
    dtype: Any = None,
) -> Any:
    """Decodes a chunk, or some of its pages, and checks every page. The chunk may come from anywhere.

    chunk: exactly one chunk, any contiguous buffer (info().chunk_bytes tells where to cut a stream of them).
    codebook: the one it was encoded with; None when the chunk needs none.
    out: None: a new array, or tensor, of the shape and dtype that `shape` and `dtype` say or that a Chunk knows. Else
            an array [values] of uint16 for BF16, float16, float32 or else uint8, the pages one after another (uint8 too
            when they are no whole number of values). It has as many bytes as the chunk says, up to 1024 times its
            size: look at info() first when that could hurt.
        a PageList: straight into its pages; pages of pools must have the chunk's page sizes.
        a writable contiguous array with exactly the bytes that there are.
    select: indices of chunk pages, in any order: page i of the output receives page select[i]. None: all.
    codec: a name from variants(); None: the fastest.
    check: False: pages that fail do not raise; look at stats.page_status, which must be given. In a new array they are
        zero. A chunk that is bad as a whole always raises.
    stats: filled when given.
    shape, dtype: of the new array, for chunks that have come as plain bytes; each may be left out. dtype is one of
        numpy or its name ("bfloat16" and others of ml_dtypes where that is installed), or one of torch or its name
        ("torch.bfloat16") for a tensor. One number of the shape may be -1. Where either is given, what a Chunk knows
        does not count, and with `select` its shape does not. Of a Chunk of a tensor, where torch is not installed: the
        dtype that numpy has of that name, or else that of the chunk's elements, as above.

    Returns `out`, or the new array.
    When pages fail, the exception's .failed_pages and .page_status tell which; the others are decoded. Bytes of failed
    pages are undefined; nothing but the pages of the list is ever written.
    Releases the GIL; any number of threads may decode at once, also the same chunk, to different pages.
    All that depends on what is in the chunk is a strait.Error: TruncatedError, CorruptError, UnsupportedError,
    IntegrityError (chunk or pages), CodebookError (another codebook), InvalidError (the list, the array, a page, its
    dtype or shape does not fit the chunk, select names a page that it lacks), AlignmentError, PageIdError (id out of
    range).
    Others may write to the chunk meanwhile: its metadata are copied first, and pages whose values change fail.
    ValueError, TypeError: arguments wrong with any chunk, such as read-only pages, pages that overlap one another or
    the chunk, or a page id twice, a dtype that does not exist, or a shape beside `out`.
    """
    if out is not None and not (shape is None and dtype is None):
        raise ValueError("shape and dtype are for a new array, and out was given")
    decoder = _Decoder(chunk, codebook, codec, check, stats)
    chosen = None if select is None else decoder.select(select)
    if isinstance(out, PageList):
        decoder.to_pages(out, chosen)
        return out
    check_of_host(out)
    if out is not None:
        return decoder.to_array(out, chosen)
    if isinstance(chunk, Chunk) and shape is None and dtype is None:
        if select is None:
            shape = chunk.shape
        known = dtype_here(chunk.stored_dtype)
        if select is None or decoder.holds_whole(known, chosen):
            dtype = known
    return decoder.to_new(shape, dtype, chosen)


def verify(
    chunk: ArrayLike,
    codebook: Codebook | None = None,
    *,
    codec: str | None = None,
    check: bool = True,
    stats: Stats | None = None,
) -> None:
    """Does all that decode() does except to write: returns when the whole chunk is good, else raises the same errors.

    chunk, codebook, codec, check, stats: as for decode(); pages are those of the chunk.
    Releases the GIL; any number of threads may verify at once.
    """
    _Decoder(chunk, codebook, codec, check, stats).verify()
