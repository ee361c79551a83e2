"""Page lists of pools in memory of a GPU."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .._views import byte_view, check_dtype, check_writable
from ..codebook import Codebook
from ..errors import InvalidError
from ..pages import AnyPageList, Request, TableLike, cut, table_index, touches
from .array import device_of, view

#: Page numbers of a call: on the host, to be placed; or the address where they are on the device; None: 0, 1, ...
Numbers: TypeAlias = NDArray[np.uint32] | int | None


class DeviceRequest(Request):
    """struct strait_pages without its ids, which get their address when they have been placed; and what it keeps alive:
    the objects given as pools and ids, whose work calls wait for."""

    def __init__(self, regions: NDArray[np.void], ids: Numbers, id_count: int, sources: list[Any], device: int):
        super().__init__(regions, None, id_count)
        self.ids, self.sources, self.device = ids, sources, device

    def overlaps(self, memory: NDArray[np.uint8]) -> bool:
        """Whether pages and memory share a byte. Ids in memory of the GPU may be those of any page."""
        begin = memory.ctypes.data
        if isinstance(self.ids, int):
            numbers: NDArray[np.uint32] | None = np.arange(int(self.regions["page_count"].max()), dtype=np.uint32)
        else:
            numbers = self.ids
        return touches(self.regions, numbers, self.struct.id_count, begin, begin + memory.nbytes)


class PageList(AnyPageList):
    """Pages of pools in memory of one GPU; otherwise what strait.PageList is.

    pools: as there; arrays have __dlpack__ or __cuda_array_interface__ (torch, cupy, jax, ...).
    ids: as there; or a contiguous int32 or uint32 array in memory of the same GPU, which is read when the call runs: it
        is not checked here whether an id comes twice, and one that is out of range fails its page.

    A call for other pages of the same pools, with_ids(), costs less than a new list.
    TypeError: memory of another kind, a dtype that is not known. InvalidError: of different GPUs.
    """

    __slots__ = ("_ids_on_device", "_known", "_sources", "_whole", "device")
    device: int

    def __init__(
        self,
        pools: Any | Sequence[Any] | Mapping[Any, Any],
        ids: Iterable[int] | NDArray[np.integer[Any]] | Any | None = None,
        *,
        tables: TableLike | list[Any] | None = None,
    ):
        self._sources: list[Any] = []
        self._known: dict[tuple[int, ...], NDArray[np.void]] = {}  # regions by their tables
        super().__init__(pools, ids, tables=tables)

    def with_ids(self, ids: Iterable[int] | NDArray[np.integer[Any]] | Any | None) -> PageList:
        """The same pools with other page ids."""
        other = copy.copy(self)
        other._number(ids)
        return other

    def _view(self, pool: Any, what: str) -> NDArray[Any]:
        array, device = view(pool, what)
        assert device is not None
        if self._sources and device != self.device:
            raise InvalidError(f"{what} is on GPU {device}, pool 0 on GPU {self.device}")
        self.device = device
        self._sources.append(pool)
        return array

    def _number(self, ids: Any) -> None:
        device = device_of(ids, "ids")
        self._ids_on_device: tuple[Any, int] | None = None  # what was given, and its address
        if device is None:
            super()._number(ids)
            self._whole = bool((self.ids == np.arange(self._id_count)).all())
            return
        if device != self.device:
            raise InvalidError(f"ids is on GPU {device}, a pool on GPU {self.device}")
        found = view(ids, "ids")
        self._ids_on_device = ids, found.numbers("ids")
        self._set_ids(None, len(found.array))

    @property
    def ids(self) -> NDArray[np.uint32] | Any:
        """The page ids; read-only, or what was given in memory of the GPU."""
        return self._ids if self._ids_on_device is None else self._ids_on_device[0]

    def to_read(self, element: str, codebook: Codebook | None, table: TableLike) -> DeviceRequest:
        """For encoding."""
        return self._request(self._tables_to_read(element, codebook, table))

    def to_write(self, element: str) -> DeviceRequest:
        """For decoding."""
        self._check_to_write()
        for i, array in enumerate(self._arrays):
            check_dtype(array.dtype, element, f"pool {i}")
        return self._request((0,) * len(self._arrays))

    def _request(self, tables: tuple[int, ...]) -> DeviceRequest:
        regions = self._known.get(tables)
        if regions is None:
            regions = self._known[tables] = self._regions_with(tables)
        if self._ids_on_device is not None:
            source, address = self._ids_on_device
            return DeviceRequest(regions, address, self._id_count, [*self._sources, source], self.device)
        return DeviceRequest(regions, None if self._whole else self._ids, self._id_count, self._sources, self.device)


def request_for(
    pages: Any,
    what: str,
    element: str,
    page_bytes: int,
    codebook: Codebook | None = None,
    table: TableLike = 0,
    write: bool = False,
) -> DeviceRequest:
    """Pages to encode, or to decode to: of a page list, or of a contiguous array that is cut."""
    if isinstance(pages, PageList):
        return pages.to_write(element) if write else pages.to_read(element, codebook, table)
    if isinstance(pages, AnyPageList):
        raise TypeError(f"{what} are in memory of the host: strait.cuda.PageList is for that of a GPU")
    array, device = view(pages, what)
    assert device is not None
    if write:
        check_writable(array, what)
    check_dtype(array.dtype, element, what)
    request = cut(byte_view(array, what), page_bytes, table_index(table, codebook))
    return DeviceRequest(request.regions, None, request.struct.id_count, [pages], device)
