"""A vLLM worker's KV cache as regions of a pool."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import KVQuantMode, MambaSpec, MLAAttentionSpec

from ..codebook import ClassLike
from ..service import Layout, Pages, Region
from .metadata import Run

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec

_ELEMENTS = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float8_e4m3fn: "fp8_e4m3",
    torch.float8_e5m2: "fp8_e5m2",
}
#: Elements of caches that vLLM has as bytes, by its name of their type. Others that begin with fp8 have scales within.
_FP8 = {"fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}


def layer_numbers(names: list[str]) -> dict[str, int]:
    """A number of its own for each layer: that in its name, if they differ, else its place."""
    found = [re.search(r"(?:^|\.)(?:layers|h|blocks)\.([0-9]+)\.", name) for name in names]
    numbers = [int(match.group(1)) for match in found if match]
    if len(numbers) == len(names) == len(set(numbers)):
        return dict(zip(names, numbers))
    return {name: place for place, name in enumerate(sorted(names))}


def spec_of(config: KVCacheConfig, group: int, layer: str) -> KVCacheSpec:
    spec = config.kv_cache_groups[group].kv_cache_spec
    by_layer = getattr(spec, "kv_cache_specs", None)  # UniformTypeKVCacheSpecs
    return by_layer[layer] if by_layer else spec


def types_of(config: VllmConfig, layers: Iterable[str]) -> dict[str, str]:
    """vLLM's name of the type of each layer's cache. A layer may have another than the engine: one that is not
    quantised, or a draft model's."""
    known = config.compilation_config.static_forward_context
    of_engine = config.cache_config.cache_dtype
    return {layer: str(getattr(known.get(layer), "kv_cache_dtype", of_engine)) for layer in layers}


def _element_of(cache: torch.Tensor, spec: KVCacheSpec, name: str) -> str:
    """name: vLLM's of the type. An indexer's cache, which has bytes too, is not FP8_PER_TENSOR."""
    if cache.dtype == torch.uint8 and getattr(spec, "kv_quant_mode", None) == KVQuantMode.FP8_PER_TENSOR:
        return _FP8.get(name, "bytes")
    return _ELEMENTS.get(cache.dtype, "bytes")


def _as_its_values(cache: torch.Tensor, spec: MambaSpec) -> torch.Tensor:
    """The bytes of states, [blocks, 1, 1, bytes], as values of the type that most of them have: another costs
    compression, not a byte."""
    if cache.dim() != 4 or cache.shape[1:3] != (1, 1):
        return cache
    held: Counter[torch.dtype] = Counter()
    for shape, dtype in zip(spec.shapes, spec.dtypes):
        held[dtype] += math.prod(shape) * dtype.itemsize
    dtype = max(held, key=held.__getitem__)
    sizes = (cache.storage_offset() * cache.itemsize, cache.stride(0) * cache.itemsize, cache.shape[3] * cache.itemsize)
    if dtype not in _ELEMENTS or any(size % dtype.itemsize for size in sizes):
        return cache
    return cache.view(torch.uint8)[:, 0, 0].view(dtype)[:, None, None]


class Share(NamedTuple):
    """A worker's KV heads."""

    total: int  # of the model; 0: what ranks have of it cannot be told
    tensor: int  # ranks among which they are divided
    rank: int

    def first_of(self, heads: int) -> int | None:
        """The model's head that is the first of so many here; None: a rank does not have so many."""
        if self.total == 0 or heads != max(1, self.total // self.tensor):
            return None
        return self.rank * self.total // self.tensor


class Group(NamedTuple):
    """A group of the pool, which has pages of a group of vLLM's."""

    number: int
    pages: int  # of it, one after another, that make a block


class Cache(NamedTuple):
    """A worker's cache as a pool."""

    regions: dict[ClassLike, Region]
    layers: dict[str, int]  # each one's number
    groups: dict[int, list[Group]]  # of the pool, by vLLM's
    heads: int  # of the model; 0: not declared in all layers

    def pages_of(self, runs: Iterable[Run]) -> list[Pages]:
        """The pool's pages of these blocks."""
        return [
            Pages(
                ids if pages == 1 else [id * pages + i for id in ids for i in range(pages)],
                group=number,
                first=first * pages,
            )
            for group, first, ids in runs
            for number, pages in self.groups.get(group, ())
        ]

    def block_bytes(self) -> dict[int, int]:
        """By vLLM's group."""
        sizes: dict[int, int] = {}
        for region in self.regions.values():
            first: Any = region.array
            sizes[region.group] = sizes.get(region.group, 0) + first[0].nbytes
        return {group: sum(sizes[number] * pages for number, pages in parts) for group, parts in self.groups.items()}


class _Piece(NamedTuple):
    """What is to be a region."""

    role: str
    pages: int  # of a block
    region: Region  # of no group yet
    nth: int = 0  # pieces of one group that cannot share a group of the pool differ in it

    @property
    def place(self) -> tuple[int, int, str]:
        """Of those of a group of vLLM's: what is alike in a group of the pool."""
        return self.nth, self.pages, str(self.region.element)


def order_of_cpu(dtype: torch.dtype, block: int, head_size: int) -> str:
    """How vLLM's attention on CPUs orders what is in a block; "": not on a CPU."""
    if not current_platform.is_cpu():
        return ""
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    isa = _get_attn_isa(dtype, block, head_size)
    return "vec" if isa in ("vec", "vec16") else isa


def _on_cpu(cache: torch.Tensor, order: str, ratio: int, element: str, heads: dict[str, int]) -> list[_Piece]:
    """On CPUs a head has all of a block's K, value by value of a token's, and then all of its V, token by token; so its
    K lies as if each value were a head. Where it is ordered for some instructions, a block is as one token."""
    blocks, count, tokens, size = cache.shape
    if order != "vec":
        opaque = Region(_plain(cache, element), element=element, layout=Layout.HND, tokens=1, **heads)
        return [_Piece("kv", ratio, opaque)]
    halves = _plain(cache, element).view(blocks, count, 2, -1)
    values = {name: number * size // 2 for name, number in heads.items()}
    k = Region(halves[:, :, 0], element=element, layout=Layout.HND, tokens=tokens, **values)
    v = Region(halves[:, :, 1], element=element, layout=Layout.HND, tokens=tokens, **heads)
    return [_Piece("k", ratio, k), _Piece("v", ratio, v, nth=1)]


def _plain(cache: torch.Tensor, element: str) -> torch.Tensor:
    return cache.view(torch.uint8) if element.startswith("fp8") or element == "bytes" else cache


def _attention(
    cache: torch.Tensor, element: str, blocks: int, order: str, first: int | None, total: int
) -> list[_Piece]:
    """A layer's cache, [kernel blocks, heads, tokens, K and V of a head]. A page is a block of the scheduler's, or a
    kernel block where a block has the heads of one after those of another."""
    ratio = cache.shape[0] // blocks
    count, tokens = cache.shape[1], cache.shape[2]
    heads = {"heads": count, "head_first": first or 0, "heads_total": 0 if first is None else total}
    if order:
        return _on_cpu(cache, order, ratio, element, heads)
    if cache.stride(1) >= cache.stride(2):
        pages = Region(_plain(cache, element), element=element, layout=Layout.HND, tokens=tokens, **heads)
        return [_Piece("kv", ratio, pages)]
    cache = _plain(cache.transpose(1, 2), element)  # as it lies in memory
    if ratio > 1:
        cache = cache.view(blocks, ratio, *cache.shape[1:])
    return [_Piece("kv", 1, Region(cache, element=element, layout=Layout.NHD, tokens=tokens * ratio, **heads))]


def _state(backing: torch.Tensor, config: KVCacheConfig, tensor: Any, place: int, size: int) -> _Piece:
    """A layer whose blocks have no common shape: bytes."""
    start = backing.storage_offset() + tensor.offset + place * tensor.layer_stride
    blocks = config.num_blocks_of(tensor)
    view = torch.as_strided(backing.view(torch.uint8), (blocks, size), (tensor.block_stride, 1), start)
    return _Piece("other", 1, Region(view, element="bytes"))


def _undeclared(piece: _Piece) -> _Piece:
    return piece._replace(region=piece.region._replace(layout=Layout.NONE, tokens=0))


def cache_of(
    caches: dict[str, torch.Tensor],
    config: KVCacheConfig,
    share: Share,
    order: str = "",
    whole_tokens: bool = True,
    types: Mapping[str, str] | None = None,
) -> Cache:
    """order: of order_of_cpu(). whole_tokens: a block has all of its tokens, none of which are on other ranks.
    types: of types_of(). Groups that vLLM does not transfer have no regions. ValueError: a cache has no such form."""
    groups = {
        name: number
        for number in config.transfer_group_ids
        for name in config.kv_cache_groups[number].layer_names
        if name in caches
    }
    numbers = layer_numbers(list(groups))
    found: list[tuple[int, int, _Piece]] = []
    heads = share.total if whole_tokens else 0
    for tensor in config.kv_cache_tensors:
        for place, name in enumerate(tensor.layers):
            if name not in groups:
                continue
            spec, group = spec_of(config, groups[name], name), groups[name]
            if not spec.has_layer_views:
                found.append((group, numbers[name], _state(caches[name], config, tensor, place, spec.page_size_bytes)))
                continue
            is_state = isinstance(spec, MambaSpec)
            cache = _as_its_values(caches[name], spec) if is_state else caches[name]
            first = share.first_of(cache.shape[1]) if whole_tokens else None
            heads = 0 if first is None else heads
            own_order = "" if is_state or isinstance(spec, MLAAttentionSpec) else order
            element = _element_of(cache, spec, (types or {}).get(name, ""))
            pieces = _attention(cache, element, config.num_blocks_of(tensor), own_order, first, share.total)
            found += [(group, numbers[name], piece if whole_tokens else _undeclared(piece)) for piece in pieces]
    places = sorted({(group, *piece.place) for group, _, piece in found})
    regions: dict[ClassLike, Region] = {
        (piece.role, number): piece.region._replace(group=places.index((group, *piece.place)))
        for group, number, piece in found
    }
    by_group: dict[int, list[Group]] = {}
    for number, (group, _, pages, _) in enumerate(places):
        by_group.setdefault(group, []).append(Group(number, pages))
    return Cache(regions, numbers, by_group, heads)
