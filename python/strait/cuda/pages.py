"""Page lists of pools in memory of a GPU."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _abi
from .._views import check_dtype, check_writable
from ..codebook import Codebook
from ..errors import InvalidError
from ..pages import AnyPageList, Request, TableLike, cut, table_index
from .array import Array, device_of, flat_bytes, view


class IdsToPlace:
    """Page ids of a call: on the host, until they are placed; or on the device already; or none."""

    def __init__(self, ids: NDArray[np.uint32] | Array | None):
        self.host = ids if isinstance(ids, np.ndarray) else None
        self.address = ids.pointer if isinstance(ids, Array) else None

    @property
    def nbytes(self) -> int:
        return 0 if self.host is None else self.host.nbytes


class DeviceRequest(Request):
    """struct strait_pages, whose ids get their address when they have been placed."""

    def __init__(self, regions: NDArray[np.void], ids: NDArray[np.uint32] | Array | None, id_count: int):
        super().__init__(regions, None, id_count)
        self.to_place = IdsToPlace(ids)

    def place(self, address: int | None) -> _abi.Pages:
        self.struct.ids = address
        return self.struct


class PageList(AnyPageList):
    """Pages of pools in memory of one GPU; otherwise what strait.PageList is.

    pools: as there; arrays have __dlpack__ (torch, cupy, jax, ...), or are strait.cuda.Array.
    ids: as there; or a contiguous int32 or uint32 array in memory of the same GPU, which is read when the call runs: it
        is not checked here whether an id comes twice, and one that is out of range fails its page.

    A call for other pages of the same pools, with_ids(), costs less than a new list.
    TypeError: memory of another kind, a dtype that is not known. InvalidError: of different GPUs.
    """

    __slots__ = ("_ids_source", "_known", "_sources", "_whole", "device")

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
        self.device = check_one_device([(array.device, f"pool {i}") for i, array in enumerate(self._arrays)])
        self._settle()

    def with_ids(self, ids: Iterable[int] | NDArray[np.integer[Any]] | Any | None) -> PageList:
        """The same pools with other page ids."""
        other = copy.copy(self)
        other._ids = self._number(ids)
        other._check_length()
        other._settle()
        return other

    def _view(self, pool: Any, what: str) -> Array:
        self._sources.append(pool)
        return view(pool, what)

    def _number(self, ids: Any) -> Any:
        on_device = device_of(ids) is not None
        self._ids_source = [ids] if on_device else []
        return _device_ids(ids) if on_device else super()._number(ids)

    def _settle(self) -> None:
        """When pools and ids are known."""
        on_device = isinstance(self._ids, Array)
        if on_device:
            check_one_device([(self.device, "a pool"), (self._ids.device, "ids")])
        self._whole = not on_device and bool((self._ids == np.arange(len(self._ids), dtype=np.uint32)).all())

    @property
    def sources(self) -> list[Any]:
        """Objects given as pools and ids: calls keep them, and wait for their work."""
        return self._sources + self._ids_source

    @property
    def ids(self) -> NDArray[np.uint32] | Array:
        """The page ids; read-only, or memory of the GPU."""
        ids: NDArray[np.uint32] | Array = self._ids
        return ids

    def locate(self, page: int) -> tuple[int, int]:
        if isinstance(self._ids, Array):
            raise TypeError("the ids are in memory of the GPU")
        return super().locate(page)

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
        return DeviceRequest(regions, None if self._whole else self._ids, len(self._ids))


def _device_ids(ids: Any) -> Array:
    array = view(ids, "ids")
    if array.dtype.name not in ("int32", "uint32") or array.ndim != 1 or not array.flags.c_contiguous:
        raise TypeError(f"ids on a GPU must be a contiguous row of int32 or uint32, not {array!r}")
    if array.size == 0:
        raise ValueError("ids must be a row of at least one number")
    return array


def check_one_device(devices: list[tuple[int | None, str]]) -> int:
    """The GPU that all are on; what is pinned is on every one. InvalidError."""
    first, name = next(((device, what) for device, what in devices if device is not None), (None, ""))
    for device, what in devices:
        if device not in (None, first):
            raise InvalidError(f"{what} is on GPU {device}, {name} on GPU {first}")
    assert first is not None
    return first


# ---- What calls take as pages ---------------------------------------------------------------------------------------


class Pages:
    """Pages of one call: of a page list, or of a contiguous array that is cut."""

    def __init__(self, pages: Any, page_bytes: int, what: str):
        self.given = pages if isinstance(pages, PageList) else None
        if self.given is not None:
            self.sources, self.device = self.given.sources, self.given.device
            return
        if isinstance(pages, AnyPageList):
            raise TypeError(f"{what} are in memory of the host: strait.cuda.PageList is for that of a GPU")
        array = view(pages, what)
        assert array.device is not None
        self._array, self._page_bytes, self._what = array, page_bytes, what
        self.sources, self.device = [pages], array.device

    def to_read(self, element: str, codebook: Codebook | None, table: TableLike) -> DeviceRequest:
        if self.given is not None:
            return self.given.to_read(element, codebook, table)
        return self._cut(element, table_index(table, codebook))

    def to_write(self, element: str) -> DeviceRequest:
        if self.given is not None:
            return self.given.to_write(element)
        check_writable(self._array, self._what)
        return self._cut(element, 0)

    def _cut(self, element: str, table: int) -> DeviceRequest:
        check_dtype(self._array.dtype, element, self._what)
        request = cut(flat_bytes(self._array, self._what), self._page_bytes, table)
        return DeviceRequest(request.regions, None, request.struct.id_count)
