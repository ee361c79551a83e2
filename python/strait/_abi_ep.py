"""The C ABI of strait/ep.h: structs and prototypes of libstrait-ep."""

from __future__ import annotations

import ctypes
import functools
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_bool,
    c_char_p,
    c_int,
    c_int32,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)  # fmt: skip

from ._abi import load

EP_RANKS_MAX = 64
EP_TOPK_MAX = 32
EP_SCALE_VALUES = 128
EP_ALGORITHMS = {"low_latency": 0, "high_throughput": 1}
EP_LAYOUTS = {"expert_major": 1, "rank_major": 2, "flat": 3}
EP_MEMORY = {"host": 0, "cuda": 1}
EP_CODING = {"auto": 0, "raw": 1, "coded": 2}
EP_OVERFLOW = {"trap": 0, "drop": 1}
EP_FLAGS = {"send_only": 1, "global_ids": 2, "wide_ids": 4}

EpAllGather = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_size_t)


class EpConfig(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("all_gather", EpAllGather),
        ("context", c_void_p),
        ("rank", c_uint32),
        ("rank_count", c_uint32),
        ("algorithm", c_int),
        ("memory", c_int),
        ("experts", c_uint32),
        ("tokens_max", c_uint32),
        ("receive_max", c_uint32),
        ("row_bytes_max", c_uint32),
        ("scale_bytes_max", c_uint32),
        ("topk_max", c_uint32),
        ("sm_budget", c_uint32),
        ("overflow", c_int),
        ("coding", c_int),
        ("mask", c_bool),
        ("timeout_ns", c_uint64),
        ("heap_bytes", c_uint64),
    ]


class EpHandleConfig(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("layout", c_int),
        ("topk", c_uint32),
        ("expert_alignment", c_uint32),
    ]


class EpRouting(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("topk", c_void_p),
        ("tokens", c_uint32),
        ("topk_bytes", c_uint32),
        ("expert_counts", c_void_p),
        ("expert_offsets", c_void_p),
        ("rank_counts", c_void_p),
        ("total", c_void_p),
    ]


class EpTensor(Structure):
    _fields_ = [("data", c_void_p), ("row_bytes", c_uint32), ("type", c_int)]


class EpQuantization(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("rows", EpTensor),
        ("quantized", EpTensor),
        ("scales", c_void_p),
        ("count", c_uint32),
        ("powers_of_two", c_bool),
    ]


class EpDispatchIn(Structure):
    _fields_ = [("size", c_size_t), ("tokens", EpTensor), ("weights", c_void_p), ("scales", EpTensor)]


class EpDispatchOut(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("tokens", EpTensor),
        ("weights", c_void_p),
        ("scales", EpTensor),
        ("topk", c_void_p),
        ("expert_counts", c_void_p),
        ("rank_counts", c_void_p),
        ("rows", c_uint32),
        ("peers", POINTER(c_void_p)),
    ]


class EpCombineIn(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("tokens", EpTensor),
        ("weights", c_void_p),
        ("peers", POINTER(c_void_p)),
        ("rows", c_uint32),
    ]


class EpCombineOut(Structure):
    _fields_ = [("size", c_size_t), ("tokens", EpTensor), ("weights", c_void_p)]


class EpInfo(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("medium", c_char_p),
        ("coded", c_bool),
        ("arena_bytes", c_uint64),
        ("sent_bytes", c_uint64),
        ("raw_bytes", c_uint64),
        ("coded_calls", c_uint64),
    ]


_EP_PROTOTYPES = {
    "strait_status_string": (c_char_p, [c_int]),
    "strait_ep_group_create": (c_int, [POINTER(EpConfig), POINTER(c_void_p), c_char_p, c_size_t]),
    "strait_ep_group_destroy": (None, [c_void_p]),
    "strait_ep_alloc": (c_void_p, [c_void_p, c_size_t]),
    "strait_ep_free": (None, [c_void_p, c_void_p]),
    "strait_ep_handle_create": (c_int, [c_void_p, POINTER(EpHandleConfig), POINTER(c_void_p)]),
    "strait_ep_handle_destroy": (None, [c_void_p]),
    "strait_ep_update": (c_int, [c_void_p, POINTER(EpRouting), c_void_p]),
    "strait_ep_quantize": (c_int, [c_void_p, POINTER(EpQuantization), c_void_p]),
    "strait_ep_dispatch": (c_int, [c_void_p, POINTER(EpDispatchIn), POINTER(EpDispatchOut), c_uint32, c_void_p]),
    "strait_ep_combine": (c_int, [c_void_p, POINTER(EpCombineIn), POINTER(EpCombineOut), c_uint32, c_void_p]),
    "strait_ep_complete": (c_int, [c_void_p, c_void_p]),
    "strait_ep_async_error": (c_int, [c_void_p, POINTER(c_uint32)]),
    "strait_ep_error_clear": (None, [c_void_p]),
    "strait_ep_mask_get": (c_int, [c_void_p, POINTER(c_int32), c_void_p]),
    "strait_ep_mask_set": (c_int, [c_void_p, POINTER(c_int32), c_void_p]),
    "strait_ep_info": (None, [c_void_p, POINTER(EpInfo)]),
}


@functools.cache
def load_ep() -> ctypes.CDLL:
    """libstrait-ep.so. ImportError when there is none."""
    return load("libstrait-ep.so", "STRAIT_EP_LIBRARY", _EP_PROTOTYPES)
