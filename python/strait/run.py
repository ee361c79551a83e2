"""How a call runs, by which variant of the codec, and what it reports."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from . import _abi
from ._abi import BLOCK_MODES, lib
from .codebook import Codebook
from .errors import make_error


@dataclass
class Stats:
    """What a call did: give an empty one as `stats=`, every call overwrites it, also when pages fail. One per thread.

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

    def raise_page_failure(self, what: str) -> None:
        """For a result that is not OK because of single pages."""
        failed = np.flatnonzero(self.page_status)
        first = _abi.status_text(int(self.page_status[failed[0]]))
        message = f"{what}: {len(failed)} of {len(self.page_status)} pages failed, first page {failed[0]}: {first}"
        raise make_error(self.result.status, message, self.page_status)


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
