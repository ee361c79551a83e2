"""Pages and regions as callers name them, and as libstrait does."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_uint8
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from . import _service_abi as _abi
from ._abi import ELEMENTS
from ._views import ArrayLike, array_view, check_dtype
from .codebook import ClassLike, class_of
from .cuda.array import Array, device_of, view
from .cuda.ipc import memory_handle
from .errors import InvalidError
from .memory import find_memory
from .pages import geometry_of

# ---- Pages ----------------------------------------------------------------------------------------------------------


class Pages(NamedTuple):
    """Pages of one group: the page with logical index first + i is ids[i]."""

    ids: Sequence[int] | NDArray[Any] | range
    group: int = 0
    first: int = 0


#: Ids of group 0, the first one with logical index 0; or any number of lists.
PagesLike: TypeAlias = Sequence[int] | NDArray[Any] | range | Pages | Sequence[Pages]


class Region(NamedTuple):
    """A region of a pool that needs more to be said of it than its class."""

    array: ArrayLike
    group: int = 0
    heads: int = 0
    element: str | None = None  # None: that of the pool


def _as_lists(pages: PagesLike) -> list[Pages]:
    if isinstance(pages, Pages):
        return [pages]
    if isinstance(pages, (range, np.ndarray)):
        return [Pages(pages)]
    several: list[Any] = list(pages)
    if several and isinstance(several[0], Pages):
        return several
    return [Pages(several)] if several else []


def _id_array(ids: Any) -> NDArray[np.uint32]:
    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise TypeError("page ids must be a row of integers")
    if array.size and not 0 <= int(array.min()) <= int(array.max()) < 2**32:
        raise InvalidError("a page id is out of range")
    return np.ascontiguousarray(array, np.uint32)


class Lists:
    """Page lists as C sees them, and what they point to."""

    def __init__(self, pages: PagesLike):
        lists = _as_lists(pages)
        self.count = len(lists)
        self.array = (_abi.PageList * max(self.count, 1))()
        self.kept = [self._fill(entry, one) for entry, one in zip(self.array, lists)]

    @staticmethod
    def _fill(entry: _abi.PageList, pages: Pages) -> NDArray[np.uint32] | None:
        for number in (pages.group, pages.first):
            if not 0 <= number < 2**32:
                raise InvalidError(f"{number} is out of range")
        entry.group, entry.first, entry.count = pages.group, pages.first, len(pages.ids)
        if isinstance(pages.ids, range) and pages.ids.step == 1:
            if pages.ids.start < 0 or pages.ids.stop > 2**32:
                raise InvalidError("a page id is out of range")
            entry.first_id = pages.ids.start if len(pages.ids) else 0
            return None
        ids = _id_array(pages.ids)
        entry.ids = ids.ctypes.data if len(ids) else None
        return ids


def milliseconds(seconds: float) -> int:
    """Rounded up, so that little is not nothing."""
    if not 0 < seconds <= 86400:
        raise InvalidError(f"{seconds} s is not in (0, 24 h]")
    return -int(-seconds * 1000 // 1)


def as_bytes(key: bytes | str) -> bytes:
    return key.encode() if isinstance(key, str) else bytes(key)


# ---- Regions --------------------------------------------------------------------------------------------------------


def _place_on_host(address: int, extent: int, embedded: bool, what: str) -> dict[str, Any]:
    memory = find_memory(address, extent)
    if memory is not None:
        return {"handle": _abi.HANDLES["memfd"], "fd": memory.fd, "offset": address - memory.address}
    if embedded:
        return {"handle": _abi.HANDLES["pointer"], "pointer": address}
    raise ValueError(f"{what} is not in memory of strait.service.alloc(): a daemon cannot map it")


def _place_on_device(array: Array, extent: int, embedded: bool, what: str) -> dict[str, Any]:
    assert array.device is not None
    if embedded:
        return {"handle": _abi.HANDLES["pointer"], "pointer": array.pointer, "device": array.device}
    handle, offset = memory_handle(array.pointer, extent, array.device, what)
    ipc = (c_uint8 * len(handle)).from_buffer_copy(handle)
    return {"handle": _abi.HANDLES["cuda_ipc"], "ipc": ipc, "offset": offset, "device": array.device}


def describe(cls: ClassLike, region: Region, element: str, embedded: bool) -> _abi.PoolRegion:
    """A region, and how its memory is named to the daemon."""
    what = f"the pool of {cls}"
    element = region.element or element
    if element not in ELEMENTS:
        raise InvalidError(f"{element!r} is no element type: one of {', '.join(ELEMENTS)}")
    array = array_view(region.array, what) if device_of(region.array) is None else view(region.array, what)
    check_dtype(array.dtype, element, what)
    geometry = geometry_of(array, what)
    role, layer = class_of(cls)
    extent = (geometry.page_count - 1) * geometry.page_stride + geometry.extent
    if isinstance(array, Array):
        place = _place_on_device(array, extent, embedded, what)
    else:
        place = {"device": -1, **_place_on_host(int(array.ctypes.data), extent, embedded, what)}
    return _abi.PoolRegion(
        page_stride=geometry.page_stride,
        row_stride=geometry.row_stride,
        page_count=geometry.page_count,
        rows=geometry.rows,
        row_bytes=geometry.row_bytes,
        element=ELEMENTS[element],
        role=role,
        layer=-1 if layer is None else layer,
        heads=region.heads,
        group=region.group,
        **place,
    )
