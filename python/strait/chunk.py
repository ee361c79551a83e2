"""Headers and tables of chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from . import _abi
from ._abi import lib
from ._views import ArrayLike, byte_view

#: What the values are. Only BF16 is compressed so far, the others are carried as they are.
Element = Literal["bytes", "bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e5m2"]


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
    none, base, split, fp32z, none, fp8).
    TruncatedError, CorruptError, UnsupportedError, IntegrityError.
    """
    source = byte_view(chunk, "chunk")
    records = np.zeros(info(source).page_count, _abi.PAGE_INFO)
    _abi.check(lib.strait_chunk_pages(source.ctypes.data, source.nbytes, len(records), records.ctypes.data), "chunk")
    return records
