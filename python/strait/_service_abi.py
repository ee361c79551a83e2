"""The C ABI of strait/strait.h: its structs and its prototypes. Importing it needs libstrait.so."""

from __future__ import annotations

from ctypes import (
    POINTER,
    Structure,
    c_bool,
    c_char_p,
    c_int,
    c_int32,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)  # fmt: skip

from ._library import load
from .errors import make_error

KEY_BYTES_MAX = 128
POOL_ID_BYTES = 16

HANDLES = {"memfd": 1, "pointer": 2, "cuda_ipc": 3, "cuda_vmm": 4}


class ClientConfig(Structure):
    _fields_ = [("size", c_size_t), ("socket", c_char_p), ("embedded", c_char_p)]


class MemoryInfo(Structure):
    _fields_ = [("fd", c_int), ("base", c_void_p), ("size", c_size_t)]


class PoolRegion(Structure):
    _fields_ = [
        ("handle", c_int),
        ("device", c_int32),
        ("fd", c_int),
        ("pointer", c_void_p),
        ("ipc", c_uint8 * 64),
        ("offset", c_uint64),
        ("page_stride", c_uint64),
        ("row_stride", c_uint64),
        ("page_count", c_uint32),
        ("rows", c_uint32),
        ("row_bytes", c_uint32),
        ("element", c_uint32),
        ("role", c_uint32),
        ("layer", c_int32),
        ("heads", c_uint32),
        ("group", c_uint32),
    ]


class PoolParams(Structure):
    _fields_ = [("size", c_size_t), ("regions", POINTER(PoolRegion)), ("region_count", c_uint32)]


class PageList(Structure):
    _fields_ = [
        ("group", c_uint32),
        ("first", c_uint32),
        ("count", c_uint32),
        ("first_id", c_uint32),
        ("ids", c_void_p),
    ]


class ExpectParams(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("key", c_char_p),
        ("key_size", c_size_t),
        ("lists", POINTER(PageList)),
        ("list_count", c_uint32),
        ("sources", c_uint32),
        ("deadline_ms", c_uint32),
        ("context", c_void_p),
    ]


class OfferParams(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("key", c_char_p),
        ("key_size", c_size_t),
        ("lists", POINTER(PageList)),
        ("list_count", c_uint32),
        ("consumers", c_uint32),
        ("lease_ms", c_uint32),
        ("later", c_bool),
        ("last", c_bool),
        ("ready", c_void_p),
        ("aux", c_char_p),
        ("aux_size", c_size_t),
        ("context", c_void_p),
    ]


class AppendParams(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("lists", POINTER(PageList)),
        ("list_count", c_uint32),
        ("layer_first", c_int32),
        ("layer_count", c_uint32),
        ("ready", c_void_p),
        ("last", c_bool),
        ("aux", c_char_p),
        ("aux_size", c_size_t),
    ]


class StartParams(Structure):
    _fields_ = [("size", c_size_t), ("direction", c_int), ("peer_key", c_char_p), ("peer_key_size", c_size_t)]


class FailedPage(Structure):
    _fields_ = [("group", c_uint32), ("id", c_uint32)]


class RawEvent(Structure):
    _fields_ = [
        ("type", c_int),
        ("transfer", c_void_p),
        ("pool", c_void_p),
        ("context", c_void_p),
        ("state", c_int),
        ("reason", c_int),
        ("drained", c_bool),
        ("connected", c_bool),
        ("layer", c_int32),
        ("status", c_int32),
        ("text", c_char_p),
        ("failed", POINTER(FailedPage)),
        ("failed_count", c_uint32),
        ("data", c_void_p),
        ("data_size", c_size_t),
        ("key", c_void_p),
        ("key_size", c_size_t),
    ]


class ProgressInfo(Structure):
    _fields_ = [("state", c_int), ("reason", c_int), ("drained", c_bool), ("layers_landed", c_uint32)]


PROTOTYPES = {
    "strait_status_string": (c_char_p, [c_int]),
    "strait_client_open": (c_int, [POINTER(ClientConfig), POINTER(c_void_p)]),
    "strait_client_close": (None, [c_void_p]),
    "strait_client_fd": (c_int, [c_void_p]),
    "strait_client_connected": (c_bool, [c_void_p]),
    "strait_alloc": (c_int, [c_size_t, POINTER(MemoryInfo)]),
    "strait_free": (None, [POINTER(MemoryInfo)]),
    "strait_pool_register": (c_int, [c_void_p, POINTER(PoolParams), POINTER(c_void_p)]),
    "strait_pool_remove": (None, [c_void_p]),
    "strait_pool_id": (POINTER(c_uint8), [c_void_p]),
    "strait_pool_export": (c_int, [c_void_p, c_void_p, c_size_t, POINTER(c_size_t)]),
    "strait_peer_import": (c_int, [c_void_p, c_char_p, c_size_t, POINTER(c_void_p)]),
    "strait_peer_remove": (None, [c_void_p]),
    "strait_peer_check": (c_uint32, [c_void_p, c_void_p]),
    "strait_expect": (c_int, [c_void_p, POINTER(ExpectParams), POINTER(c_void_p)]),
    "strait_offer": (c_int, [c_void_p, POINTER(OfferParams), POINTER(c_void_p)]),
    "strait_append": (c_int, [c_void_p, POINTER(AppendParams)]),
    "strait_start": (c_int, [c_void_p, c_void_p, POINTER(StartParams)]),
    "strait_abort": (None, [c_void_p]),
    "strait_release": (None, [c_void_p]),
    "strait_reason_string": (c_char_p, [c_int]),
    "strait_state_string": (c_char_p, [c_int]),
    "strait_poll": (c_uint32, [c_void_p, POINTER(RawEvent), c_uint32]),
    "strait_wait": (c_uint32, [c_void_p, POINTER(RawEvent), c_uint32, c_int]),
    "strait_transfer_progress": (ProgressInfo, [c_void_p]),
    "strait_wait_stream": (c_int, [c_void_p, c_int32, c_void_p]),
    "strait_notify": (c_int, [c_void_p, c_char_p, c_size_t, c_char_p, c_size_t]),
    "strait_stats": (c_int, [c_void_p]),
    "strait_set_policy": (c_int, [c_void_p, c_int]),
}

lib = load("libstrait.so", "STRAIT_CLIENT_LIBRARY", PROTOTYPES)


def check(status: int, what: str) -> None:
    """Raises the exception for a returned status other than OK."""
    if status != 0:
        raise make_error(status, f"{what}: {lib.strait_status_string(status).decode()}")
