"""Pages to a chunk and back."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any, Literal, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from . import _abi
from ._abi import lib
from ._views import ArrayLike, array_view, byte_view, check_dtype, check_writable
from .chunk import Element
from .codebook import Codebook, codebook_handle
from .decoder import Decoder
from .errors import Status, make_error
from .pages import PageList, Request, TableLike, check_of_host, cut, table_index
from .run import Run, Stats, codec_handle

#: How to encode: auto picks by element type (tiered for BF16). Blocks that would not shrink are always kept raw.
Mode = Literal["auto", "raw", "top16", "tiered", "base", "split"]

Out = TypeVar("Out")


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


@overload
def encode(
    pages: ArrayLike | PageList,
    codebook: Codebook | None,
    *,
    mode: Mode = "auto",
    element: Element = "bf16",
    table: TableLike = 0,
    page_bytes: int = 32768,
    codec: str | None = None,
    out: None = None,
    stats: Stats | None = None,
) -> bytes: ...


@overload
def encode(
    pages: ArrayLike | PageList,
    codebook: Codebook | None,
    *,
    mode: Mode = "auto",
    element: Element = "bf16",
    table: TableLike = 0,
    page_bytes: int = 32768,
    codec: str | None = None,
    out: ArrayLike,
    stats: Stats | None = None,
) -> memoryview: ...


def encode(
    pages: ArrayLike | PageList,
    codebook: Codebook | None,
    *,
    mode: Mode = "auto",
    element: Element = "bf16",
    table: TableLike = 0,
    page_bytes: int = 32768,
    codec: str | None = None,
    out: ArrayLike | None = None,
    stats: Stats | None = None,
) -> bytes | memoryview:
    """Encodes pages to one chunk. The same pages, tables and mode always give the same bytes.

    pages: a contiguous array of any shape, cut into pages of `page_bytes` bytes (the last may be shorter; at most
        16 MiB; a multiple of the element's size); or a PageList, read in place.
    codebook: its tables say which exponents are frequent. None: modes "raw" and "base" only.
    mode: "top16" and "tiered" code BF16; "split" is "tiered" for BF16, FP16 and FP32; "base" codes these three without
        a codebook. "auto" is "tiered" today. Values of other types are carried as they are.
    element: what the values are. Arrays must have a matching dtype (BF16: uint16, int16, ml_dtypes.bfloat16,
        torch.bfloat16) or be bytes.
    table: index of the codebook's table, or the class to find one for, where a PageList does not say.
    codec: a name from variants(); None: the fastest.
    out: a writable contiguous buffer of at least encode_bound() bytes to encode into, best 16-byte aligned.
    stats: filled when given.

    Returns the chunk: bytes, or with `out` a memoryview of its used part.
    Releases the GIL; any number of threads may encode at once, also from the same pages and with the same codebook.
    The values must not change meanwhile.
    ValueError (nothing to encode, does not fit one chunk, not contiguous, unknown name, a mode that needs
    a codebook without one), TypeError (dtype), CodebookError (no such table), AlignmentError, NoSpaceError
    (out too small), PageIdError (.failed_pages lists the pages whose ids are out of range).
    """
    handle = codebook_handle(codebook)
    params = _abi.EncodeParams(
        size=ctypes.sizeof(_abi.EncodeParams),
        element=choice(_abi.ELEMENTS, element, "element"),
        mode=choice(_abi.MODES, mode, "mode"),
        codebook=handle,
    )
    if handle is None and mode not in _abi.MODES_WITHOUT_TABLES:
        raise ValueError(f"mode {mode!r} needs a codebook; without one there are mode='raw' and mode='base'")
    variant = codec_handle(codec)
    request, _alive = _request_to_read(pages, element, codebook, table, page_bytes)
    bound = request.bound()
    buffer = np.empty(bound, np.uint8) if out is None else byte_view(out, "out")
    check_writable(buffer, "out")
    run = Run(request.count, codebook)
    status = lib.strait_encode(variant, params, buffer.ctypes.data, buffer.nbytes, request.struct, run.struct)
    if status == Status.ERR_CODEBOOK:
        tables = 0 if codebook is None else len(codebook)
        raise make_error(status, f"encode: a page's table is beyond the {tables} of the codebook")
    _abi.check(status, "encode")
    run.tell(stats, request.raw_bytes, run.result.bytes)
    if run.result.status != Status.OK:
        run.raise_page_failure("encode")
    chunk = buffer[: run.result.bytes]
    return chunk.tobytes() if out is None else chunk.data


@overload
def decode(
    chunk: ArrayLike,
    codebook: Codebook | None,
    out: None = None,
    *,
    select: Iterable[int] | NDArray[np.integer[Any]] | None = None,
    codec: str | None = None,
    check: bool = True,
    stats: Stats | None = None,
) -> NDArray[Any]: ...


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
    codebook: Codebook | None,
    out: Any = None,
    *,
    select: Iterable[int] | NDArray[np.integer[Any]] | None = None,
    codec: str | None = None,
    check: bool = True,
    stats: Stats | None = None,
) -> Any:
    """Decodes a chunk, or some of its pages, and checks every page. The chunk may come from anywhere.

    chunk: exactly one chunk, any contiguous buffer (info().chunk_bytes tells where to cut a stream of them).
    codebook: the one it was encoded with; None when the chunk needs none.
    out: None: a new array [values] of uint16 for BF16, float16, float32 or else uint8, the pages one after another
            (uint8 too when they are no whole number of values). It has as many bytes as the chunk says, up to 1024
            times its size: look at info() first when that could hurt.
        a PageList: straight into its pages; pages of pools must have the chunk's page sizes.
        a writable contiguous array with exactly the bytes that there are.
    select: indices of chunk pages, in any order: page i of the output receives page select[i]. None: all.
    codec: a name from variants(); None: the fastest.
    check: False: pages that fail do not raise; look at stats.page_status, which must be given. In a new array they are
        zero. A chunk that is bad as a whole always raises.
    stats: filled when given.

    Returns `out`, or the new array.
    When pages fail, the exception's .failed_pages and .page_status tell which; the others are decoded. Bytes of failed
    pages are undefined; nothing but the pages of the list is ever written.
    Releases the GIL; any number of threads may decode at once, also the same chunk, to different pages.
    All that depends on what is in the chunk is a strait.Error: TruncatedError, CorruptError, UnsupportedError,
    IntegrityError (chunk or pages), CodebookError (another codebook), InvalidError (the list, the array, a page or its
    dtype does not fit the chunk, select names a page that it lacks), AlignmentError, PageIdError (id out of range).
    ValueError, TypeError: arguments wrong with any chunk, such as read-only or overlapping pages or a page id twice.
    """
    decoder = Decoder(chunk, codebook, codec, check, stats)
    chosen = None if select is None else decoder.select(select)
    if isinstance(out, PageList):
        decoder.to_pages(out, chosen)
        return out
    check_of_host(out)
    return decoder.to_array(out, chosen)


def verify(
    chunk: ArrayLike,
    codebook: Codebook | None,
    *,
    codec: str | None = None,
    check: bool = True,
    stats: Stats | None = None,
) -> None:
    """Does all that decode() does except to write: returns when the whole chunk is good, else raises the same errors.

    chunk, codebook, codec, check, stats: as for decode(); pages are those of the chunk.
    Releases the GIL; any number of threads may verify at once.
    """
    Decoder(chunk, codebook, codec, check, stats).verify()
