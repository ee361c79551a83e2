"""Pages where they lie: paged pools addressed by one id list, and arrays cut into pages."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from . import _abi
from ._abi import CHUNK_PAGES_MAX, PAGE_BYTES_MAX, REGION
from ._views import ArrayLike, array_view, check_dtype, check_writable
from .codebook import ClassLike, Codebook, Role, class_of

#: A table of a codebook: its index, or the class whose table Codebook.find() finds.
TableLike: TypeAlias = int | ClassLike


def table_index(table: TableLike, codebook: Codebook | None) -> int:
    """The index that `table` means. Without a codebook there is only table 0 to find."""
    if isinstance(table, (str, tuple, Role)):
        return 0 if codebook is None else codebook.find(table)
    if isinstance(table, bool):
        raise TypeError(f"table must be an index or a class, not {table}")
    index = operator.index(table)
    if not 0 <= index < 2**32:
        raise ValueError(f"table {table} is out of range")
    return index


class Geometry(NamedTuple):
    """Where the pages of a pool lie, in bytes; see struct strait_region."""

    page_count: int
    page_stride: int
    rows: int
    row_bytes: int
    row_stride: int

    @property
    def page_bytes(self) -> int:
        return self.rows * self.row_bytes

    @property
    def extent(self) -> int:
        """From the first byte of a page to the end of its last."""
        return (self.rows - 1) * self.row_stride + self.row_bytes

    def disjoint(self) -> bool:
        """Whether no two pages share a byte: one after another, or row by row in turn."""
        if self.page_count == 1 or self.page_stride >= self.extent:
            return True
        turn = (self.page_count - 1) * self.page_stride + self.row_bytes
        return self.row_bytes <= self.page_stride and turn <= self.row_stride


def geometry_of(array: NDArray[Any], what: str) -> Geometry:
    """Pages array[0], array[1], ... as rows at one distance. ValueError when they are not."""
    if array.ndim == 0 or array.size == 0:
        raise ValueError(f"{what} has no pages: its shape is {list(array.shape)}")
    dims = [(count, stride) for count, stride in zip(array.shape[1:], array.strides[1:]) if count > 1]
    row_bytes, dims = _merge(dims, array.itemsize, array.itemsize)
    rows, row_stride = 1, row_bytes
    if dims:
        row_stride = dims[-1][1]
        whole, dims = _merge(dims, row_stride, row_stride)
        rows = whole // row_stride if row_stride else 0
    page_stride = array.strides[0] if len(array) > 1 else -(-((rows - 1) * row_stride + row_bytes) // 16) * 16
    if dims or row_stride < row_bytes or page_stride <= 0:
        raise ValueError(
            f"a page of {what} is not rows at one distance (shape {list(array.shape)}, strides {list(array.strides)}): "
            "pages must be contiguous, or strided in their leading dimensions only; copy it (numpy.ascontiguousarray)"
        )
    if rows * row_bytes > PAGE_BYTES_MAX:
        raise ValueError(f"a page of {what} has {rows * row_bytes} bytes; the most is {PAGE_BYTES_MAX}")
    return Geometry(len(array), page_stride, rows, row_bytes, row_stride)


def region_of(array: NDArray[Any], geometry: Geometry) -> tuple[Any, ...]:
    """A record of REGION, of table 0."""
    count, page_stride, rows, row_bytes, row_stride = geometry
    return array.ctypes.data, page_stride, row_stride, count, rows, row_bytes, 0, 0, 0


def _merge(dims: list[tuple[int, int]], size: int, stride: int) -> tuple[int, list[tuple[int, int]]]:
    """Takes inner dimensions that continue what is there; returns the size with them and the dimensions left."""
    while dims and dims[-1][1] == stride and stride > 0:
        size = stride = size * dims[-1][0]
        dims = dims[:-1]
    return size, dims


class Request:
    """struct strait_pages and what it points to; one per call."""

    def __init__(self, regions: NDArray[np.void], ids: NDArray[np.uint32] | None, id_count: int):
        self.regions, self._ids = regions, ids
        self.count = len(regions) * id_count
        self.raw_bytes = id_count * int((regions["rows"].astype(np.uint64) * regions["row_bytes"]).sum())
        pointer = None if ids is None else ids.ctypes.data
        self.struct = _abi.Pages(regions.ctypes.data, pointer, len(regions), id_count)

    def overlaps(self, memory: NDArray[np.uint8]) -> bool:
        """Whether the pages and the memory, a row of bytes, share a byte."""
        begin = memory.ctypes.data
        return touches(self.regions, self._ids, self.count // len(self.regions), begin, begin + memory.nbytes)

    def metadata_bound(self) -> int:
        """Most bytes of metadata that a chunk of just these pages has (FORMAT.md, section 4)."""
        longest = int((self.regions["rows"].astype(np.uint64) * self.regions["row_bytes"]).max())
        blocks = -(-longest // _abi.BLOCK_BYTES)
        return -(-(_abi.CHUNK_HEADER_BYTES + self.count * (16 + 4 + 4 * (blocks - 1))) // 16) * 16

    def bound(self) -> int:
        """Largest chunk these pages can become, in bytes. ValueError when they are too much for one."""
        bound = int(_abi.lib.strait_encode_bound(ctypes.byref(self.struct)))
        if bound == 0:
            raise ValueError(
                f"{self.count} pages of together {self.raw_bytes} bytes do not fit into one chunk "
                f"(less than 4 GiB, at most {CHUNK_PAGES_MAX} pages): encode them in several"
            )
        return bound


def touches(regions: NDArray[np.void], ids: NDArray[np.uint32] | None, id_count: int, begin: int, end: int) -> bool:
    """Whether a row of the pages has a byte in begin..end. Ids out of range name no page."""
    last = np.maximum(regions["page_count"].astype(np.int64), 1 if ids is not None else id_count) - 1
    tails = (regions["rows"].astype(np.int64) - 1) * regions["row_stride"].astype(np.int64) + regions["row_bytes"]
    ends = regions["base"].astype(np.int64) + last * regions["page_stride"].astype(np.int64) + tails
    for region in regions[(regions["base"].astype(np.int64) < end) & (ends > begin)]:
        base, stride, rows = int(region["base"]), int(region["page_stride"]), int(region["rows"])
        row_stride, row_bytes = int(region["row_stride"]), int(region["row_bytes"])
        numbers = np.arange(id_count) if ids is None else ids[ids < region["page_count"]].astype(np.int64)
        pages = base + numbers * stride
        near = pages[(pages < end) & (pages + (rows - 1) * row_stride + row_bytes > begin)]
        starts = near[:, None] + np.arange(rows) * row_stride if len(near) else near
        if ((starts < end) & (starts + row_bytes > begin)).any():
            return True
    return False


class AnyPageList:
    """Base of page lists in memory of the host and of GPUs; `_ids` is None where the ids are in memory of a GPU."""

    __slots__ = ("_arrays", "_geometry", "_id_count", "_ids", "_regions", "_tables")

    def __init__(self, pools: Any, ids: Any = None, *, tables: TableLike | list[Any] | None = None):
        members, keys = _members(pools)
        if keys is not None and tables is not None:
            raise ValueError("the keys of the mapping say the tables: give no `tables`")
        self._arrays = tuple(self._view(pool, f"pool {i}") for i, pool in enumerate(members))
        self._geometry = tuple(geometry_of(array, f"pool {i}") for i, array in enumerate(self._arrays))
        self._tables: tuple[TableLike | None, ...] = keys or _per_pool(tables, len(self._arrays))
        self._regions = np.array(
            [region_of(array, geometry) for array, geometry in zip(self._arrays, self._geometry)], REGION
        )
        self._number(ids)

    def _view(self, pool: Any, what: str) -> NDArray[Any]:
        """The pool's memory; of an array in memory of a GPU nothing but its layout is looked at."""
        raise NotImplementedError

    def _number(self, ids: Any) -> None:
        """Takes the ids given."""
        found = _ids(ids, [geometry.page_count for geometry in self._geometry])
        self._set_ids(found, len(found))

    def _set_ids(self, ids: NDArray[np.uint32] | None, count: int) -> None:
        self._ids, self._id_count = ids, count
        if len(self) > CHUNK_PAGES_MAX:
            raise ValueError(f"{len(self)} pages are more than the {CHUNK_PAGES_MAX} of a chunk")

    def __len__(self) -> int:
        """Number of pages of the list: pools times ids."""
        return len(self._arrays) * self._id_count

    @property
    def nbytes(self) -> int:
        """Bytes of all pages of the list."""
        return self._id_count * sum(geometry.page_bytes for geometry in self._geometry)

    def locate(self, page: int) -> tuple[int, int]:
        """(index of the pool, page id) of a page of the list, such as those of Error.failed_pages. IndexError."""
        if not 0 <= page < len(self):
            raise IndexError(f"page {page} of a list of {len(self)}")
        if self._ids is None:
            raise TypeError("the ids are in memory of the GPU")
        pool, i = divmod(page, self._id_count)
        return pool, int(self._ids[i])

    def __repr__(self) -> str:
        name = f"{type(self).__module__.removesuffix('.pages')}.{type(self).__name__}"
        return f"<{name} of {len(self._arrays)} pools x {self._id_count} ids, {self.nbytes} bytes>"

    def _tables_to_read(self, element: str, codebook: Codebook | None, table: TableLike) -> tuple[int, ...]:
        """For encoding: the pools hold such elements; the index of each one's table."""
        for i, array in enumerate(self._arrays):
            check_dtype(array.dtype, element, f"pool {i}")
        return tuple(table_index(table if own is None else own, codebook) for own in self._tables)

    def _check_to_write(self) -> None:
        """For decoding: pools must be writable, and no byte may be written twice."""
        if self._ids is not None and len(np.unique(self._ids)) != len(self._ids):
            raise ValueError("a page id comes twice: a page can be decoded to once")
        if len(np.unique(self._regions["base"])) != len(self._arrays):
            raise ValueError("a pool comes twice")
        for i, (array, geometry) in enumerate(zip(self._arrays, self._geometry)):
            check_writable(array, f"pool {i}")
            if not geometry.disjoint():
                raise ValueError(f"pages of pool {i} overlap")

    def _regions_with(self, tables: Iterable[int]) -> NDArray[np.void]:
        regions = self._regions.copy()
        regions["table"] = list(tables)
        return regions


class PageList(AnyPageList):
    """Pages of one or more pools: the K and V of all layers, say, addressed by one list of page ids.

    pools: one array, a sequence of arrays, or a mapping of class (see class_of()) to array. Each has the shape
        [page count, ...]; array[i] is page i. Pools may differ in page count and page size; to decode, they must not
        overlap. Their memory is used in place and kept alive. A page must be contiguous, or strided in its leading
        dimensions (rows at one distance).
    ids: page ids, in 0..2**32-1; None: every page, if all pools have the same number of them. Copied.
    tables: for encoding, the codebook's table or the class to find one for: one for all pools, or a list with one per
        pool. The keys of a mapping say it already. When nothing does, the `table` argument of encode() counts.

    The list is ordered by pool, then id: page `pool * len(ids) + i` is page ids[i] of that pool. A chunk does not hold
    ids: to decode it, make a list of the same pools in the same order with as many ids, which may be other ones.
    ValueError: no pools or pages, strides that cannot be expressed, a page above 16 MiB, over 1048576 pages.
    Immutable; may be used by several threads. For pools in memory of a GPU: strait.cuda.PageList.
    """

    __slots__ = ()

    def __init__(
        self,
        pools: ArrayLike | Sequence[ArrayLike] | Mapping[Any, ArrayLike],
        ids: Iterable[int] | NDArray[np.integer[Any]] | None = None,
        *,
        tables: TableLike | list[Any] | None = None,
    ):
        super().__init__(pools, ids, tables=tables)

    def _view(self, pool: Any, what: str) -> NDArray[Any]:
        return array_view(pool, what)

    @property
    def pools(self) -> tuple[NDArray[Any], ...]:
        """The pools as arrays, sharing memory with what was given."""
        return self._arrays

    @property
    def ids(self) -> NDArray[np.uint32]:
        """The page ids; read-only."""
        assert self._ids is not None
        return self._ids

    def to_read(self, element: str, codebook: Codebook | None, table: TableLike) -> Request:
        """For encode()."""
        return self._request(self._tables_to_read(element, codebook, table))

    def to_write(self) -> Request:
        """For decode()."""
        self._check_to_write()
        return self._request([0] * len(self._arrays))

    def _request(self, tables: Iterable[int]) -> Request:
        return Request(self._regions_with(tables), self._ids, self._id_count)


def check_of_host(pages: Any) -> None:
    """TypeError for a list of pages that are not."""
    if isinstance(pages, AnyPageList) and not isinstance(pages, PageList):
        raise TypeError("these pages are in memory of a GPU: strait.cuda.Codec is for them")


def _members(pools: Any) -> tuple[list[Any], tuple[TableLike | None, ...] | None]:
    if isinstance(pools, Mapping):
        members, keys = list(pools.values()), tuple(class_of(key) for key in pools)
    else:
        members, keys = list(pools) if isinstance(pools, (list, tuple)) else [pools], None
    if not members:
        raise ValueError("no pools")
    return members, keys


def _per_pool(tables: Any, count: int) -> tuple[TableLike | None, ...]:
    if not isinstance(tables, list):
        return (tables,) * count
    if len(tables) != count:
        raise ValueError(f"{count} pools, but {len(tables)} tables")
    return tuple(tables)


def _ids(ids: Any, page_counts: list[int]) -> NDArray[np.uint32]:
    if ids is None:
        if len(set(page_counts)) > 1:
            raise ValueError(f"pools of {sorted(set(page_counts))} pages: say which with ids")
        ids = range(page_counts[0])
    given = np.asarray(ids if isinstance(ids, (np.ndarray, Sequence)) else list(ids))
    checked = index_array(given, "ids")
    checked.flags.writeable = False
    return checked


def index_array(given: Any, what: str) -> NDArray[np.uint32]:
    """A fresh uint32 row of page numbers. ValueError when there are none or one does not fit; TypeError."""
    array = np.asarray(given)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{what} must be a row of at least one number")
    if array.dtype.kind not in "iu":
        raise TypeError(f"{what} must be integers, not {array.dtype}")
    if int(array.min()) < 0 or int(array.max()) >= 2**32:
        raise ValueError(f"{what} must be in 0..4294967295")
    return array.astype(np.uint32)


def cut(data: NDArray[Any], page_bytes: int, table: int) -> Request:
    """A row of bytes as pages of one size; the last may be shorter."""
    try:
        page_bytes = operator.index(page_bytes)
    except TypeError:
        raise TypeError(f"page_bytes must be a whole number, not {page_bytes!r}") from None
    if not 1 <= page_bytes <= PAGE_BYTES_MAX:
        raise ValueError(f"page_bytes {page_bytes} is not in 1..{PAGE_BYTES_MAX}")
    if data.nbytes == 0:
        raise ValueError("nothing to encode: the array is empty")
    whole, rest = divmod(data.nbytes, page_bytes)
    if rest == 0:
        return _one_region(data, whole, page_bytes, table)
    return cut_unevenly(data, np.array([page_bytes] * whole + [rest], np.uint32), table=table)


def cut_unevenly(data: NDArray[Any], lengths: NDArray[np.uint32], *, table: int = 0, align: int = 1) -> Request:
    """A row of bytes as pages of these lengths, each beginning at a multiple of `align`: a region of one page each."""
    if len(lengths) > CHUNK_PAGES_MAX:
        raise ValueError(f"{len(lengths)} pages are more than the {CHUNK_PAGES_MAX} of a chunk")
    if (lengths == lengths[0]).all() and lengths[0] % align == 0:
        return _one_region(data, len(lengths), int(lengths[0]), table)
    regions = np.zeros(len(lengths), REGION)
    regions["base"] = data.ctypes.data + page_offsets(lengths, align)
    regions["page_count"] = regions["rows"] = 1
    regions["row_bytes"] = lengths
    regions["table"] = table
    return Request(regions, None, 1)


def page_offsets(lengths: NDArray[np.uint32], align: int) -> NDArray[np.uint64]:
    """Where pages of these lengths begin when laid one after another at multiples of `align`."""
    ends = np.cumsum(-(-lengths.astype(np.int64) // align) * align)
    return np.concatenate(([0], ends[:-1])).astype(np.uint64)


def _one_region(data: NDArray[Any], count: int, page_bytes: int, table: int) -> Request:
    if count > CHUNK_PAGES_MAX:
        raise ValueError(f"{count} pages are more than the {CHUNK_PAGES_MAX} of a chunk; use larger pages")
    regions = np.zeros(1, REGION)
    regions[0] = (data.ctypes.data, page_bytes, page_bytes, count, 1, page_bytes, table, 0, 0)
    return Request(regions, None, count)
