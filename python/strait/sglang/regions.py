"""An SGLang rank's buffers, given by address, as regions of a pool."""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..codebook import ClassLike
from ..cuda import _driver
from ..service import Layout, Region

if TYPE_CHECKING:
    from sglang.srt.disaggregation.base.conn import KVArgs

#: Element by SGLang's name of the cache's type. "auto" is the model's type, which is not told: a wrong element costs
#: compression, not a byte.
_ELEMENTS = {
    "auto": "bf16",
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "fp8_e4m3": "fp8_e4m3",
    "fp8_e5m2": "fp8_e5m2",
    "mxfp8": "fp8_e4m3",  # its scales are a state
}
_DTYPES: dict[str, np.dtype[Any]] = {
    "bf16": np.dtype(np.uint16),
    "fp16": np.dtype(np.uint16),
    "fp32": np.dtype(np.uint32),
}
#: State of the cache's own type.
_OF_CACHE = ("swa",)


class _OnDevice:
    """Memory of a GPU at an address. It belongs to SGLang, which frees it after the manager."""

    def __init__(self, address: int, shape: tuple[int, int], dtype: np.dtype[Any], stride: int):
        self.__cuda_array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": shape,
            "typestr": dtype.str,
            "strides": None if stride == shape[1] * dtype.itemsize else (stride, dtype.itemsize),
        }


def _pages_at(address: int, size: int, item: int, element: str, what: str, part: range | None = None) -> Any:
    """[pages, elements of a page], at that address; with part, those bytes of each page. ValueError: the sizes do not
    make pages."""
    dtype: np.dtype[Any] = _DTYPES.get(element, np.dtype(np.uint8))
    if address <= 0 or item <= 0 or size < item or item % dtype.itemsize:
        raise ValueError(f"{what}: {size} bytes at {address:#x} are no pages of {item} bytes of {element}")
    count, part = size // item, part or range(item)
    if part.start % dtype.itemsize or part.stop % dtype.itemsize:
        raise ValueError(f"{what}: bytes {part.start} to {part.stop} of a page are no whole {element}")
    if _driver.available() and _driver.device_at(address) is not None:
        return _OnDevice(address + part.start, (count, len(part) // dtype.itemsize), dtype, item)
    memory = (ctypes.c_uint8 * (count * item)).from_address(address)
    pages = np.frombuffer(memoryview(memory), dtype).reshape(count, item // dtype.itemsize)
    return pages[:, part.start // dtype.itemsize : part.stop // dtype.itemsize]


class Share(NamedTuple):
    """What a rank has of the model."""

    heads: int  # KV heads of the model; 0: not known
    tensor: int  # ranks among which they are divided
    rank: int
    first_layer: int  # of its pipeline stage, where that is known

    def of_page(self, size: int, tokens: int) -> dict[str, int]:
        """The heads of a page of so many bytes; none: they are not known, or do not divide it."""
        count = max(1, self.heads // self.tensor)
        if self.heads == 0 or size % (tokens * count):
            return {}
        return {"heads": count, "head_first": self.rank * self.heads // self.tensor, "heads_total": self.heads}


class StatePart(NamedTuple):
    """Bytes of a page of state that TP ranks divide, or all of it, and what a region declares of them."""

    within: range
    declared: dict[str, int]


def parts_of(args: KVArgs, component: int, buffer: int, share: Share, is_mla: bool) -> list[StatePart]:
    """How TP ranks divide the pages of a buffer of state; empty: that is not told, or not all ranks have a part of their
    own. Windows are divided as the cache is; the state of Mamba and its like along an axis that SGLang tells, in each row
    before that axis, or in several parts of the axis (a convolution over q, k and v)."""
    kind, item = args.state_types[component].value, args.state_item_lens[component][buffer]
    if is_mla or share.heads == 0:
        return []
    if kind == "swa" and args.swa_kv_cache_layout == "nhd":
        heads = share.of_page(item, args.page_size)
        return [StatePart(range(item), {"tokens": args.page_size, **heads})] if heads else []
    dims = args.state_dim_per_tensor[component]
    if kind != "mamba" or buffer >= len(dims) or dims[buffer] <= 0 or share.heads % share.tensor:
        return []
    whole = dims[buffer] * share.tensor
    outer = (args.state_slice_outer_counts[component] or [1] * len(dims))[buffer]
    groups = (args.state_conv_shard_groups[component] or [None] * len(dims))[buffer] or [whole]
    if sum(groups) != whole or any(group % share.tensor for group in groups) or item % (outer * dims[buffer]):
        return []
    size, at, parts = item // (outer * dims[buffer]), 0, []
    for group in groups * outer:
        heads = group // share.tensor
        declared = {"tokens": 1, "heads": heads, "head_first": share.rank * heads, "heads_total": group}
        parts.append(StatePart(range(at, at + heads * size), declared))
        at += heads * size
    return parts


def _classes(args: KVArgs, is_mla: bool, first_layer: int) -> list[ClassLike]:
    """Role and layer of each buffer: SGLang lists all K, then all V, of the model and then of a draft model; or one
    buffer for each layer (MLA). Layers are counted from the first unless it names them; a draft model's follow."""
    layers = list(args.kv_layer_ids or [])
    if not layers:
        draft = args.num_draft_entries
        for count in (len(args.kv_data_ptrs) - draft, draft):
            first, halves = max(layers, default=first_layer - 1) + 1, 1 if is_mla or count % 2 else 2
            layers += [*range(first, first + count // halves)] * halves
    roles, seen, classes = ("kv",) if is_mla else ("k", "v"), Counter[int](), []
    for layer in layers:
        if seen[layer] >= len(roles):
            raise ValueError(f"layer {layer} has more than {len(roles)} buffers")
        classes.append((roles[seen[layer]], layer))
        seen[layer] += 1
    return list(classes)


def types_of_state(params: Any) -> dict[int, str]:
    """Elements of the state of Mamba and its like, by the bytes that a request has in a buffer: SGLang gives addresses
    and sizes alone. params: SGLang's description of this rank's state in the model's configuration."""
    dtypes = [(shape, params.dtype.conv) for shape in params.shape.conv]
    found: dict[int, set[str]] = {}
    for shape, dtype in [*dtypes, (params.shape.temporal, params.dtype.temporal)]:
        element = _ELEMENTS.get(str(dtype).removeprefix("torch."), "bytes")
        found.setdefault(math.prod(shape) * dtype.itemsize, set()).add(element)
    return {size: elements.pop() for size, elements in found.items() if len(elements) == 1}


def _elements_of(args: KVArgs, component: int, types: Mapping[int, str]) -> list[str]:
    """Of the buffers of a state component."""
    kind, items = args.state_types[component].value, args.state_item_lens[component]
    if kind in _OF_CACHE:
        return [_ELEMENTS.get(args.kv_cache_dtype_str, "bytes")] * len(items)
    return [types.get(int(item), "bytes") if kind == "mamba" else "bytes" for item in items]


def groups_of(args: KVArgs, types: Mapping[int, str]) -> list[dict[str, int]]:
    """The pool's groups of each state component, by element; none: it has no buffers. Group 0 is the KV cache.
    types: of types_of_state()."""
    groups: list[dict[str, int]] = []
    for component in range(len(args.state_data_ptrs)):
        first = 1 + sum(map(len, groups))
        elements = dict.fromkeys(_elements_of(args, component, types))
        groups.append({element: first + number for number, element in enumerate(elements)})
    return groups


def regions_of(args: KVArgs, is_mla: bool, share: Share, types: Mapping[int, str]) -> dict[ClassLike, Region]:
    """All of a rank's buffers. types: of types_of_state(). ValueError: something has no form that a pool can have."""
    element = _ELEMENTS.get(args.kv_cache_dtype_str, "bytes")
    classes = _classes(args, is_mla, share.first_layer)
    if not classes or len(classes) != len(args.kv_data_ptrs):
        raise ValueError(f"{len(args.kv_data_ptrs)} buffers of KV, but {len(classes)} layers are named")
    heads = share.of_page(args.kv_item_lens[0], args.page_size) if len(set(args.kv_item_lens)) == 1 else {}
    regions: dict[ClassLike, Region] = {}
    for cls, address, size, item in zip(classes, args.kv_data_ptrs, args.kv_data_lens, args.kv_item_lens):
        pages = _pages_at(address, size, item, element, f"the pool of {cls}")
        regions[cls] = Region(pages, element=element, layout=Layout.NHD, tokens=args.page_size, **heads)
    number = 0
    for component, groups in enumerate(groups_of(args, types)):
        kind, elements = args.state_types[component].value, _elements_of(args, component, types)
        sizes = zip(args.state_data_ptrs[component], args.state_data_lens[component], args.state_item_lens[component])
        for buffer, ((address, size, item), of_buffer) in enumerate(zip(sizes, elements)):
            for part in parts_of(args, component, buffer, share, is_mla) or [StatePart(range(item), {})]:
                pages = _pages_at(address, size, item, of_buffer, f"state {kind}", part.within)
                layout, group = Layout.NHD if part.declared else Layout.NONE, groups[of_buffer]
                regions["other", number] = Region(pages, group=group, element=of_buffer, layout=layout, **part.declared)
                number += 1
    return regions


class AuxBuffers:
    """Metadata buffers: rows of host memory, of which a request has one in each; they travel with the verdict."""

    def __init__(self, addresses: list[int], sizes: list[int], items: list[int]):
        for address, size, item in zip(addresses, sizes, items):
            if size < item or (_driver.available() and _driver.device_at(address) is not None):
                raise ValueError(
                    f"a metadata buffer at {address:#x}, of {size} bytes, has no rows of the host's memory"
                )
        self.items = [int(item) for item in items]
        self._addresses, self._rows = addresses, min((size // item for size, item in zip(sizes, items)), default=0)

    @property
    def row_bytes(self) -> int:
        return sum(self.items)

    def _places(self, row: int) -> list[tuple[int, int]]:
        if not 0 <= row < self._rows:
            raise ValueError(f"metadata row {row} is none of {self._rows}")
        return [(address + int(row) * item, item) for address, item in zip(self._addresses, self.items)]

    def read(self, row: int) -> bytes:
        return b"".join(ctypes.string_at(address, item) for address, item in self._places(row))

    def write(self, row: int, data: bytes) -> None:
        """ValueError: the data are not a row of such buffers; nothing is written."""
        if len(data) != self.row_bytes:
            raise ValueError(f"metadata of {len(data)} bytes, where a row has {self.row_bytes}")
        for address, item in self._places(row):
            ctypes.memmove(address, data[:item], item)
            data = data[item:]
