"""The C ABI of strait/codec.h: where the library is, its structs and its prototypes.

Calls through a CDLL release the GIL.
"""

from __future__ import annotations

from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_int,
    c_int32,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)  # fmt: skip

import numpy as np

from ._library import load
from .errors import make_error

PAGE_BYTES_MAX = 16 * 1024 * 1024
CHUNK_PAGES_MAX = 1024 * 1024
CHUNK_HEADER_BYTES = 48
CODEBOOK_ID_BYTES = 16
CODEBOOK_TABLES_MAX = 65535

ELEMENTS = {"bytes": 0, "bf16": 1, "fp16": 2, "fp32": 3, "fp8_e4m3": 4, "fp8_e5m2": 5}
MODES = {"auto": 0, "raw": 1, "top16": 2, "tiered": 3, "base": 4, "split": 5}
MODES_WITHOUT_TABLES = ("raw", "base")
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
    _fields_ = [("size", c_size_t), ("element", c_int), ("mode", c_int), ("codebook", c_void_p)]


class EncodeItem(Structure):
    _fields_ = [
        ("src", Pages),
        ("dst", c_void_p),
        ("dst_capacity", c_uint64),
        ("result", c_void_p),
        ("page_status", c_void_p),
        ("page_status_count", c_uint32),
        ("reserved", c_uint32),
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
        ("reserved", "u4", (2,)),
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
    "strait_codebook_destroy": (None, [c_void_p]),
    "strait_codebook_parse": (c_int, [c_void_p, c_size_t, POINTER(c_void_p)]),
    "strait_codebook_serialized_size": (c_size_t, [c_void_p]),
    "strait_codebook_serialize": (c_int, [c_void_p, c_void_p, c_size_t]),
    "strait_codebook_id": (c_void_p, [c_void_p]),
    "strait_codebook_count": (c_uint32, [c_void_p]),
    "strait_codebook_ranking": (c_void_p, [c_void_p, c_uint32]),
    "strait_codebook_class": (Class, [c_void_p, c_uint32]),
    "strait_codebook_find": (c_uint32, [c_void_p, Class]),
    "strait_codec_get": (c_void_p, [c_char_p]),
    "strait_codec_name": (c_char_p, [c_void_p]),
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
