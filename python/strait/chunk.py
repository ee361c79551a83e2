"""Headers and tables of chunks."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from . import _abi
from ._abi import lib
from ._views import ArrayLike, byte_view, dtype_of, has_torch, shape_of
from .errors import Status, make_error

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: What the values are: all but "bytes" are compressed.
Element = Literal["bytes", "bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e5m2"]


class Chunk(bytes):
    """What encode() returns: bytes, that know which array they were made of, for decode() to restore it.

    shape, dtype: of the array (numpy) or tensor (torch); None where that is not known, as of a PageList.
    The bytes of a chunk say neither. Chunk(data, shape, dtype) adds them to bytes that have come some other way; dtype
    is anything that decode() takes. Slices and sums are plain bytes, and bytes(chunk) is; a pickled Chunk is one again,
    and does not need torch to be read: where torch is not installed, dtype is its name ("torch.bfloat16"), and decode()
    makes an array of numpy of the tensor's shape.
    """

    shape: tuple[int, ...] | None
    stored_dtype: np.dtype[Any] | str | None  # torch's by its name, so that it can be pickled without torch
    _hash: int | None = None

    def __new__(cls, data: Buffer = b"", shape: Any = None, dtype: Any = None) -> Chunk:
        chunk = super().__new__(cls, data)
        chunk.shape = None if shape is None else shape_of(shape)
        name = str(dtype)
        chunk.stored_dtype = dtype if dtype is None else name if name.startswith("torch.") else dtype_of(dtype)[0]
        return chunk

    @property
    def dtype(self) -> Any:
        """A numpy.dtype, or a torch.dtype (its name where torch is not installed), or None."""
        if isinstance(self.stored_dtype, str) and has_torch():
            return dtype_of(self.stored_dtype)[1]
        return self.stored_dtype

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self[:])  # bytes keep theirs in the object, which chunk_of() does not fill
        return self._hash

    def __repr__(self) -> str:
        what = "" if self.shape is None else f", of {self.stored_dtype} {list(self.shape)}"
        return f"<strait.Chunk of {len(self)} bytes{what}>"

    __str__ = __repr__  # that of bytes has all of them

    def __reduce__(self) -> tuple[Any, ...]:
        return Chunk, (self[:], self.shape, self.stored_dtype)


_SMALL = 65536  # bytes that are copied twice sooner than allocated apart
_allocate = getattr(getattr(ctypes, "pythonapi", None), "PyType_GenericAlloc", None)
if _allocate is not None:
    _allocate.argtypes, _allocate.restype = [ctypes.py_object, ctypes.c_ssize_t], ctypes.py_object


def chunk_of(data: NDArray[np.uint8], shape: tuple[int, ...] | None, dtype: np.dtype[Any] | str | None) -> Chunk:
    """A Chunk of these bytes, copied once: bytes.__new__ of a subclass copies twice, and that takes as long as encoding
    them."""
    if _allocate is None or data.nbytes <= _SMALL:
        chunk = bytes.__new__(Chunk, data.data)
    else:
        chunk = _allocate(Chunk, data.nbytes)
        ctypes.memmove(np.frombuffer(chunk, np.uint8).ctypes.data, data.ctypes.data, data.nbytes)
    chunk.shape, chunk.stored_dtype = shape, dtype
    return chunk


@dataclass(frozen=True)
class ChunkInfo:
    """Header of a chunk.

    chunk_bytes: the whole chunk; metadata_bytes: header and tables, the blocks follow.
    page_count: pages; page_bytes: bytes of the longest one; element, version: see Element and the format.
    codebook_id: 16 bytes, the id of the codebook that decodes it; None: it needs none.
    """

    chunk_bytes: int
    metadata_bytes: int
    page_count: int
    page_bytes: int
    element: Element
    version: int
    codebook_id: bytes | None


def info(chunk: ArrayLike) -> ChunkInfo:
    """Reads a chunk's header; its first 48 bytes are enough. Nothing behind them is looked at.

    TruncatedError (less than 48 bytes), CorruptError (no chunk), UnsupportedError (newer version).
    """
    source = byte_view(chunk, "chunk")
    found = _abi.ChunkInfo()
    _abi.check(lib.strait_chunk_info(source.ctypes.data, source.nbytes, found), "chunk")
    names: dict[int, Any] = {number: name for name, number in _abi.ELEMENTS.items()}
    codebook_id = bytes(found.codebook_id)
    return ChunkInfo(
        chunk_bytes=found.chunk_bytes,
        metadata_bytes=found.metadata_bytes,
        page_count=found.page_count,
        page_bytes=found.page_bytes,
        element=names[found.element],
        version=found.version,
        codebook_id=codebook_id if any(codebook_id) else None,
    )


def chunk_pages(chunk: ArrayLike) -> NDArray[np.void]:
    """Describes the pages of a chunk, after all checks of its header and tables (not of its values).

    Returns records [pages] with the fields sum (of the raw bytes), page_bytes (raw), coded_bytes (in the chunk, without
    its tables), table, block_modes (bit m set: some block became the m-th of raw, const, top16, top16_escapes, tiered,
    none, base, split, fp32z, none, fp8, parts).
    TruncatedError, CorruptError, UnsupportedError, IntegrityError.
    """
    source = byte_view(chunk, "chunk")
    metadata, header = metadata_of(source)
    return pages_of(metadata, header, source.nbytes)


def metadata_of(source: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], ChunkInfo]:
    """A copy of the chunk's metadata, which stays as it is whoever writes to the chunk, and its header."""
    head = source[: _abi.CHUNK_HEADER_BYTES].copy()
    header = info(head)
    metadata = np.zeros(header.metadata_bytes, np.uint8)
    held = min(source.nbytes, header.metadata_bytes)
    metadata[: len(head)] = head
    metadata[len(head) : held] = source[len(head) : held]
    return metadata, header


def pages_of(metadata: NDArray[np.uint8], header: ChunkInfo, source_bytes: int) -> NDArray[np.void]:
    """chunk_pages() of the copy; source_bytes: of the chunk, which is not looked at."""
    if source_bytes < header.chunk_bytes:  # how many pages a cut-off chunk has is not worth memory
        raise make_error(Status.ERR_TRUNCATED, f"chunk: {_abi.status_text(Status.ERR_TRUNCATED)}")
    records = np.zeros(header.page_count, _abi.PAGE_INFO)
    status = lib.strait_chunk_pages(metadata.ctypes.data, source_bytes, len(records), records.ctypes.data)
    _abi.check(status, "chunk")
    return records
