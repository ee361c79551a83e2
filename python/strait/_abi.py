"""The C ABI of strait/codec.h, strait.h and checkpoint.h: where the libraries are, their structs and prototypes.

Calls through a CDLL release the GIL.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Mapping
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_bool,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)  # fmt: skip
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from .errors import make_error

# ---- Libraries ------------------------------------------------------------------------------------------------------

#: Per function: what it returns, what it takes.
Prototypes: TypeAlias = Mapping[str, tuple[Any, Any]]


def _candidates(name: str, variable: str) -> list[str]:
    """Names to try, in order. What the variable names alone when it is set: who names a library wants no other."""
    named = os.environ.get(variable)
    if named:
        return [named]
    package = Path(__file__).resolve().parent
    packed = [
        package / name,
        package / "lib" / f"{name}.0",
    ]  # of a wheel that holds the libraries alone, or all of Strait
    return [str(path) for path in packed if path.exists()] + [f"{name}.0", name]


def load(name: str, variable: str, prototypes: Prototypes) -> ctypes.CDLL:
    """The library of that name with its prototypes set. ImportError, with what was tried, when there is none."""
    failures = []
    for candidate in _candidates(name, variable):
        try:
            library = ctypes.CDLL(candidate)
            for function, (result, arguments) in prototypes.items():
                entry = getattr(library, function)
                entry.restype, entry.argtypes = result, arguments
            return library
        except (OSError, AttributeError) as failure:  # absent or unusable; lacks a function
            failures.append(f"{candidate}: {failure}")
    raise ImportError(f"no usable {name} (set {variable} to its path):\n  " + "\n  ".join(failures))


# ---- strait/codec.h -------------------------------------------------------------------------------------------------

PAGE_BYTES_MAX = 16 * 1024 * 1024
CHUNK_PAGES_MAX = 1024 * 1024
CHUNK_HEADER_BYTES = 48
BLOCK_BYTES = 16384
CODEBOOK_ID_BYTES = 16
CODEBOOK_TABLES_MAX = 65535

ELEMENTS = {"bytes": 0, "bf16": 1, "fp16": 2, "fp32": 3, "fp8_e4m3": 4, "fp8_e5m2": 5}
MODES = {"auto": 0, "raw": 1, "top16": 2, "tiered": 3, "base": 4, "split": 5, "parts": 6}
MODES_WITHOUT_TABLES = ("raw", "base", "parts")
BLOCK_MODES = ("raw", "const", "top16", "top16_escapes", "tiered")


class Class(Structure):
    _fields_ = [("role", c_int), ("layer", c_int32)]


class Pages(Structure):
    _fields_ = [("regions", c_void_p), ("ids", c_void_p), ("region_count", c_uint32), ("id_count", c_uint32)]


class Result(Structure):
    _fields_ = [
        ("bytes", c_uint64),
        ("status", c_int32),
        ("chunk_status", c_int32),
        ("failed_pages", c_uint32),
        ("reserved", c_uint32),
        ("values", c_uint64 * len(BLOCK_MODES)),
    ]


class Run(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("scratch", c_void_p),
        ("scratch_size", c_size_t),
        ("stream", c_void_p),
        ("result", POINTER(Result)),
        ("page_status", c_void_p),
        ("page_status_count", c_uint32),
        ("class_count", c_uint32),
        ("class_stats", c_void_p),
        ("metadata", c_void_p),
        ("caching", c_uint32),
        ("sm_budget", c_uint32),
        ("tables", c_void_p),
    ]


class EncodeParams(Structure):
    _fields_ = [("size", c_size_t), ("element", c_int), ("mode", c_int), ("codebook", c_void_p), ("absent", c_void_p)]


class EncodeItem(Structure):
    _fields_ = [
        ("src", Pages),
        ("dst", c_void_p),
        ("dst_capacity", c_uint64),
        ("result", c_void_p),
        ("page_status", c_void_p),
        ("page_status_count", c_uint32),
        ("reserved", c_uint32),
        ("flag", c_void_p),
        ("flag_value", c_uint64),
    ]


class DecodeItem(Structure):
    _fields_ = [
        ("dst", Pages),
        ("select", c_void_p),
        ("src", c_void_p),
        ("src_size", c_uint64),
        ("metadata", c_void_p),
        ("result", c_void_p),
        ("page_status", c_void_p),
        ("page_status_count", c_uint32),
        ("flags", c_uint32),
        ("metadata_size", c_uint64),
    ]


class ChunkInfo(Structure):
    _fields_ = [
        ("chunk_bytes", c_uint64),
        ("metadata_bytes", c_uint64),
        ("page_count", c_uint32),
        ("page_bytes", c_uint32),
        ("element", c_int),
        ("version", c_uint8),
        ("codebook_id", c_uint8 * CODEBOOK_ID_BYTES),
    ]


# Structs that come in arrays are numpy records.
REGION = np.dtype(
    [
        ("base", "u8"),
        ("page_stride", "u8"),
        ("row_stride", "u8"),
        ("page_count", "u4"),
        ("rows", "u4"),
        ("row_bytes", "u4"),
        ("table", "u4"),
        ("columns", "u4"),
        ("column_stride", "u4"),
    ],
    align=True,
)
CLASS_STATS = np.dtype([("values", "u8"), ("escapes", "u8")], align=True)
PAGE_INFO = np.dtype(
    [("sum", "u8"), ("page_bytes", "u4"), ("coded_bytes", "u4"), ("table", "u4"), ("block_modes", "u4")], align=True
)

_PROTOTYPES = {
    "strait_status_string": (c_char_p, [c_int]),
    "strait_histogram_add": (None, [c_void_p, c_void_p, c_size_t]),
    "strait_histogram_add_values": (c_int, [c_void_p, c_int, c_void_p, c_size_t]),
    "strait_histogram_rank": (None, [c_void_p, c_void_p]),
    "strait_codebook_create": (c_int, [c_void_p, c_void_p, c_uint32, POINTER(c_void_p)]),
    "strait_codebook_create_counted": (c_int, [c_void_p, c_void_p, c_uint32, POINTER(c_void_p)]),
    "strait_histogram_group": (c_int, [c_void_p, c_uint32, c_uint32, c_void_p, POINTER(c_uint32)]),
    "strait_codebook_destroy": (None, [c_void_p]),
    "strait_codebook_parse": (c_int, [c_void_p, c_size_t, POINTER(c_void_p)]),
    "strait_codebook_serialized_size": (c_size_t, [c_void_p]),
    "strait_codebook_serialize": (c_int, [c_void_p, c_void_p, c_size_t]),
    "strait_codebook_id": (c_void_p, [c_void_p]),
    "strait_codebook_count": (c_uint32, [c_void_p]),
    "strait_codebook_ranking": (c_void_p, [c_void_p, c_uint32]),
    "strait_codebook_class": (Class, [c_void_p, c_uint32]),
    "strait_codebook_counts": (c_void_p, [c_void_p, c_uint32]),
    "strait_codebook_expected": (c_uint32, [c_void_p, c_uint32]),
    "strait_codebook_find": (c_uint32, [c_void_p, Class]),
    "strait_codec_get": (c_void_p, [c_char_p]),
    "strait_codec_name": (c_char_p, [c_void_p]),
    "strait_codec_describe": (c_uint32, [c_void_p, c_char_p, c_uint32]),
    "strait_codec_prepare": (c_int, [c_void_p]),
    "strait_codec_name_at": (c_char_p, [c_uint32]),
    "strait_version": (c_char_p, []),
    "strait_encode_bound": (c_uint64, [POINTER(Pages)]),
    "strait_scratch_size": (c_size_t, [c_void_p]),
    "strait_encode": (
        c_int,
        [c_void_p, POINTER(EncodeParams), c_void_p, c_uint64, POINTER(Pages), POINTER(Run)],
    ),
    "strait_decode": (
        c_int,
        [c_void_p, c_void_p, POINTER(Pages), c_void_p, c_void_p, c_uint64, POINTER(Run)],
    ),
    "strait_encode_batch": (c_int, [c_void_p, POINTER(EncodeParams), POINTER(EncodeItem), c_uint32, POINTER(Run)]),
    "strait_decode_batch": (c_int, [c_void_p, c_void_p, POINTER(DecodeItem), c_uint32, POINTER(Run)]),
    "strait_encode_scratch_size": (c_uint64, [c_void_p, POINTER(EncodeItem), c_uint32]),
    "strait_decode_scratch_size": (c_uint64, [c_void_p, POINTER(DecodeItem), c_uint32]),
    "strait_codebook_image_size": (c_size_t, [c_void_p]),
    "strait_codebook_image": (c_int, [c_void_p, c_void_p, c_size_t]),
    "strait_verify": (c_int, [c_void_p, c_void_p, c_void_p, c_uint64, POINTER(Run)]),
    "strait_chunk_info": (c_int, [c_void_p, c_uint64, POINTER(ChunkInfo)]),
    "strait_chunk_pages": (c_int, [c_void_p, c_uint64, c_uint32, c_void_p]),
}


lib = load("libstrait-codec.so", "STRAIT_LIBRARY", _PROTOTYPES)


def status_text(status: int) -> str:
    """The library's text for a status."""
    text: bytes = lib.strait_status_string(status)
    return text.decode()


def check(status: int, what: str) -> None:
    """Raises the exception for a returned status other than OK."""
    if status != 0:
        raise make_error(status, f"{what}: {status_text(status)}")


# ---- strait/strait.h ------------------------------------------------------------------------------------------------

KEY_BYTES_MAX = 128
CONSUMERS_ASKED = 0xFFFFFFFF
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
        ("layout", c_uint32),
        ("tokens", c_uint32),
        ("head_first", c_uint32),
        ("heads_total", c_uint32),
        ("reserved", c_uint64 * 3),
    ]


class PoolParams(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("regions", POINTER(PoolRegion)),
        ("region_count", c_uint32),
        ("compat", c_char_p),
    ]


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
        ("traceparent", c_char_p),
        ("tokens", c_uint32),
        ("tell_pages", c_bool),
        ("begins_within", c_bool),
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
        ("traceparent", c_char_p),
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
        ("later", c_bool),
    ]


class StartParams(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("direction", c_int),
        ("peer_key", c_char_p),
        ("peer_key_size", c_size_t),
        ("consumers", c_uint32),
    ]


class FenceParams(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("lists", POINTER(PageList)),
        ("list_count", c_uint32),
        ("grace_ms", c_uint32),
        ("context", c_void_p),
    ]


class ReadParams(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("lists", POINTER(PageList)),
        ("list_count", c_uint32),
        ("peer_lists", POINTER(PageList)),
        ("peer_list_count", c_uint32),
        ("deadline_ms", c_uint32),
        ("context", c_void_p),
        ("traceparent", c_char_p),
        ("tell_pages", c_bool),
    ]


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
        ("raw_bytes", c_uint64),
        ("wire_bytes", c_uint64),
        ("peer", c_char_p),
        ("landed", POINTER(PageList)),
        ("landed_count", c_uint64),
        ("reserved", c_uint64 * 2),
    ]


class ProgressInfo(Structure):
    _fields_ = [
        ("state", c_int),
        ("reason", c_int),
        ("drained", c_bool),
        ("layers_landed", c_uint32),
        ("pages_landed", c_uint32),
        ("reserved", c_uint32 * 3),
    ]


_CLIENT_PROTOTYPES = {
    "strait_status_string": (c_char_p, [c_int]),
    "strait_client_open": (c_int, [POINTER(ClientConfig), POINTER(c_void_p)]),
    "strait_client_close": (None, [c_void_p]),
    "strait_client_fd": (c_int, [c_void_p]),
    "strait_client_connected": (c_bool, [c_void_p]),
    "strait_cork": (None, [c_void_p]),
    "strait_uncork": (None, [c_void_p]),
    "strait_alloc": (c_int, [c_size_t, POINTER(MemoryInfo)]),
    "strait_free": (None, [POINTER(MemoryInfo)]),
    "strait_pool_register": (c_int, [c_void_p, POINTER(PoolParams), POINTER(c_void_p)]),
    "strait_pool_remove": (None, [c_void_p]),
    "strait_pool_wait": (c_int, [c_void_p, c_int, POINTER(c_char_p)]),
    "strait_decline": (c_int, [c_void_p, c_void_p, c_char_p, c_size_t]),
    "strait_pool_id": (POINTER(c_uint8), [c_void_p]),
    "strait_pool_export": (c_int, [c_void_p, c_void_p, c_size_t, POINTER(c_size_t)]),
    "strait_peer_import": (c_int, [c_void_p, c_char_p, c_size_t, POINTER(c_void_p)]),
    "strait_peer_remove": (None, [c_void_p]),
    "strait_peer_check": (c_uint32, [c_void_p, c_void_p]),
    "strait_peer_explain": (c_size_t, [c_void_p, c_void_p, c_char_p, c_size_t]),
    "strait_expect": (c_int, [c_void_p, POINTER(ExpectParams), POINTER(c_void_p)]),
    "strait_offer": (c_int, [c_void_p, POINTER(OfferParams), POINTER(c_void_p)]),
    "strait_append": (c_int, [c_void_p, POINTER(AppendParams)]),
    "strait_start": (c_int, [c_void_p, c_void_p, POINTER(StartParams)]),
    "strait_pool_serve": (c_int, [c_void_p, POINTER(PageList), c_uint32]),
    "strait_pool_fence": (c_int, [c_void_p, POINTER(FenceParams)]),
    "strait_read": (c_int, [c_void_p, c_void_p, POINTER(ReadParams), POINTER(c_void_p)]),
    "strait_abort": (None, [c_void_p]),
    "strait_release": (None, [c_void_p]),
    "strait_reason_string": (c_char_p, [c_int]),
    "strait_state_string": (c_char_p, [c_int]),
    "strait_trace_check": (c_char_p, [c_char_p]),
    "strait_poll": (c_uint32, [c_void_p, POINTER(RawEvent), c_uint32]),
    "strait_wait": (c_uint32, [c_void_p, POINTER(RawEvent), c_uint32, c_int]),
    "strait_transfer_progress": (ProgressInfo, [c_void_p]),
    "strait_wait_stream": (c_int, [c_void_p, c_int32, c_void_p]),
    "strait_notify": (c_int, [c_void_p, c_char_p, c_size_t, c_char_p, c_size_t]),
    "strait_stats": (c_int, [c_void_p]),
    "strait_set_policy": (c_int, [c_void_p, c_int]),
}


@functools.cache
def load_client() -> ctypes.CDLL:
    """libstrait.so. ImportError when there is none."""
    return load("libstrait.so", "STRAIT_CLIENT_LIBRARY", _CLIENT_PROTOTYPES)


# ---- strait/checkpoint.h --------------------------------------------------------------------------------------------

CHECKPOINT_DIMS_MAX = 16
CHECKPOINT_ID_BYTES = 16
CHECKPOINT_MEMORY = {"host": 0, "cuda": 1}
CHECKPOINT_SAVE_FLAGS = {"cached": 1, "raw": 2}
CHECKPOINT_COMMIT_FLAGS = {"replace": 1, "no_latest": 2}
NONE_FOUND = 0xFFFFFFFF  # strait_checkpoint_find

CheckpointId: Any = c_uint8 * CHECKPOINT_ID_BYTES


class CheckpointTensor(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("dtype", c_char_p),
        ("shape", POINTER(c_uint64)),
        ("offsets", POINTER(c_uint64)),
        ("sizes", POINTER(c_uint64)),
        ("data", c_void_p),
        ("dims", c_uint32),
        ("memory", c_int),
        ("rounded_from", c_char_p),
    ]


class CheckpointSaveOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("rank", c_uint32),
        ("rank_count", c_uint32),
        ("save_id", CheckpointId),
        ("threads", c_uint32),
        ("flags", c_uint32),
        ("buffer_bytes", c_uint64),
        ("sm_budget", c_uint32),
        ("reserved", c_uint32),
    ]


class CheckpointSummary(Structure):
    _fields_ = [
        ("raw_bytes", c_uint64),
        ("stored_bytes", c_uint64),
        ("shards", c_uint64),
        ("rounded_shards", c_uint64),
        ("encode_seconds", c_double),
        ("write_seconds", c_double),
        ("seconds", c_double),
    ]


class CheckpointAttachment(Structure):
    _fields_ = [("name", c_char_p), ("data", c_void_p), ("bytes", c_uint64)]


class CheckpointCommitOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("rank_count", c_uint32),
        ("flags", c_uint32),
        ("save_id", CheckpointId),
        ("attachments", POINTER(CheckpointAttachment)),
        ("attachment_count", c_uint32),
        ("keep", c_uint32),
    ]


class CheckpointCandidate(Structure):
    _fields_ = [("path", c_char_p), ("why", c_char_p), ("committed_ns", c_uint64)]


class CheckpointTensorInfo(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("dtype", c_char_p),
        ("shape", POINTER(c_uint64)),
        ("dims", c_uint32),
        ("shard_count", c_uint32),
        ("bytes", c_uint64),
    ]


class CheckpointShardInfo(Structure):
    _fields_ = [
        ("offsets", POINTER(c_uint64)),
        ("sizes", POINTER(c_uint64)),
        ("file", c_char_p),
        ("rounded_from", c_char_p),
        ("bytes", c_uint64),
        ("stored_bytes", c_uint64),
    ]


class CheckpointInfo(Structure):
    _fields_ = [
        ("save_id", POINTER(c_uint8)),
        ("committed_ns", c_uint64),
        ("tensor_count", c_uint32),
        ("file_count", c_uint32),
        ("attachment_count", c_uint32),
        ("reserved", c_uint32),
        ("raw_bytes", c_uint64),
        ("stored_bytes", c_uint64),
    ]


class CheckpointBox(Structure):
    _fields_ = [
        ("tensor", c_uint32),
        ("memory", c_int),
        ("offsets", POINTER(c_uint64)),
        ("sizes", POINTER(c_uint64)),
        ("data", c_void_p),
        ("strides", POINTER(c_uint64)),
        ("status", c_int32),
        ("reserved", c_uint32),
    ]


class CheckpointDamage(Structure):
    _fields_ = [
        ("tensor", c_char_p),
        ("file", c_char_p),
        ("offsets", POINTER(c_uint64)),
        ("sizes", POINTER(c_uint64)),
        ("first_value", c_uint64),
        ("value_count", c_uint64),
        ("file_offset", c_uint64),
        ("status", c_int32),
        ("replaced", c_uint32),
    ]


ReportCandidate = CFUNCTYPE(None, c_void_p, POINTER(CheckpointCandidate))
ReportDamage = CFUNCTYPE(None, c_void_p, POINTER(CheckpointDamage))
ReportProgress = CFUNCTYPE(None, c_void_p, c_uint64, c_uint64)


class CheckpointLoadOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("threads", c_uint32),
        ("flags", c_uint32),
        ("damage", ReportDamage),
        ("progress", ReportProgress),
        ("context", c_void_p),
    ]


_CHECKPOINT_PROTOTYPES = {
    "strait_status_string": (c_char_p, [c_int]),
    "strait_checkpoint_dtype_bytes": (c_uint32, [c_char_p]),
    "strait_checkpoint_save_begin": (
        c_int,
        [c_char_p, POINTER(CheckpointSaveOptions), POINTER(c_void_p), c_char_p, c_size_t],
    ),
    "strait_checkpoint_save_add": (c_int, [c_void_p, POINTER(CheckpointTensor)]),
    "strait_checkpoint_save_end": (c_int, [c_void_p, POINTER(CheckpointSummary)]),
    "strait_checkpoint_save_text": (c_char_p, [c_void_p]),
    "strait_checkpoint_save_free": (None, [c_void_p]),
    "strait_checkpoint_commit": (c_int, [c_char_p, POINTER(CheckpointCommitOptions), c_char_p, c_size_t]),
    "strait_checkpoint_abandon": (c_int, [c_char_p, POINTER(c_uint8), c_char_p, c_size_t]),
    "strait_checkpoint_open": (c_int, [c_char_p, POINTER(c_void_p), c_char_p, c_size_t]),
    "strait_checkpoint_close": (None, [c_void_p]),
    "strait_checkpoint_newest": (c_int, [c_char_p, ReportCandidate, c_void_p, c_char_p, c_size_t]),
    "strait_checkpoint_describe": (None, [c_void_p, POINTER(CheckpointInfo)]),
    "strait_checkpoint_tensor_at": (c_bool, [c_void_p, c_uint32, POINTER(CheckpointTensorInfo)]),
    "strait_checkpoint_shard_at": (c_bool, [c_void_p, c_uint32, c_uint32, POINTER(CheckpointShardInfo)]),
    "strait_checkpoint_attachment_at": (c_bool, [c_void_p, c_uint32, POINTER(CheckpointAttachment)]),
    "strait_checkpoint_find": (c_uint32, [c_void_p, c_char_p]),
    "strait_checkpoint_load": (
        c_int,
        [c_void_p, POINTER(CheckpointBox), c_uint32, POINTER(CheckpointLoadOptions), c_char_p, c_size_t],
    ),
    "strait_checkpoint_verify": (c_int, [c_void_p, POINTER(CheckpointLoadOptions), c_char_p, c_size_t]),
}


@functools.cache
def load_checkpoint() -> ctypes.CDLL:
    """libstrait-checkpoint.so. ImportError when there is none."""
    return load("libstrait-checkpoint.so", "STRAIT_CHECKPOINT_LIBRARY", _CHECKPOINT_PROTOTYPES)
