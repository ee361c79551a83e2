"""A vLLM worker's KV cache as regions of a pool."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from ..codebook import ClassLike
from ..service import Layout, Region

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec

_ELEMENTS = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float8_e4m3fn: "fp8_e4m3",
    torch.float8_e5m2: "fp8_e5m2",
}


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


def _attention(cache: torch.Tensor, blocks: int, group: int) -> Region:
    """A layer's cache, [kernel blocks, heads, tokens, K and V of a head], as pages of a block of the scheduler's."""
    ratio = cache.shape[0] // blocks
    heads, tokens = cache.shape[1], cache.shape[2] * ratio
    layout = Layout.HND if cache.stride(1) >= cache.stride(2) else Layout.NHD
    if layout == Layout.NHD:
        cache = cache.transpose(1, 2)  # as it lies in memory
    elif ratio > 1:
        layout = Layout.NONE  # heads of one kernel block after those of another: neither order
    if ratio > 1:
        cache = cache.view(blocks, ratio, *cache.shape[1:])
    element = _ELEMENTS.get(cache.dtype, "bytes")
    if element.startswith("fp8") or element == "bytes":
        cache = cache.view(torch.uint8)
    return Region(cache, group=group, heads=heads, element=element, layout=layout, tokens=tokens)


def _state(backing: torch.Tensor, config: KVCacheConfig, tensor: Any, place: int, size: int, group: int) -> Region:
    """A layer whose blocks have no common shape, such as a Mamba state: bytes."""
    start = backing.storage_offset() + tensor.offset + place * tensor.layer_stride
    blocks = config.num_blocks_of(tensor)
    view = torch.as_strided(backing.view(torch.uint8), (blocks, size), (tensor.block_stride, 1), start)
    return Region(view, group=group, element="bytes")


def regions_of(
    caches: dict[str, torch.Tensor], config: KVCacheConfig
) -> tuple[dict[ClassLike, Region], dict[str, int]]:
    """Regions by role and layer, and each layer's number. Groups keep their numbers; those that vLLM does not transfer
    have none, so they must be the last ones. ValueError: a cache that has no such form."""
    groups = {
        name: number
        for number in config.transfer_group_ids
        for name in config.kv_cache_groups[number].layer_names
        if name in caches
    }
    numbers = layer_numbers(list(groups))
    regions: dict[ClassLike, Region] = {}
    for tensor in config.kv_cache_tensors:
        for place, name in enumerate(tensor.layers):
            if name not in groups:
                continue
            spec, group = spec_of(config, groups[name], name), groups[name]
            if spec.has_layer_views:
                regions["kv", numbers[name]] = _attention(caches[name], config.num_blocks_of(tensor), group)
            else:
                region = _state(caches[name], config, tensor, place, spec.page_size_bytes, group)
                regions["other", numbers[name]] = region
    return regions, numbers
