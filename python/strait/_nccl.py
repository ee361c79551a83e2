"""The C ABI of libstrait-coll: NCCL's functions, which the library exports itself, and those of strait/collective.h.

Calls release the GIL. Needs no torch.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import os
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_size_t, c_uint8, c_void_p

from ._abi import load
from .errors import CollectiveError

VARIABLE = "STRAIT_COLLECTIVE_LIBRARY"  # not STRAIT_COLL_...: those are settings of the library

UNIQUE_ID_BYTES = 128
IN_PROGRESS = 7


class UniqueId(Structure):
    _fields_ = [("internal", c_uint8 * UNIQUE_ID_BYTES)]


class Type(enum.IntEnum):
    INT8 = 0
    UINT8 = 1
    FP16 = 6
    FP32 = 7
    BF16 = 9


class Reduction(enum.IntEnum):
    SUM = 0
    AVG = 4


class Choice(enum.IntEnum):
    """enum strait_coll_choice."""

    AUTO = 0
    RAW = 1


class _DlInfo(Structure):
    _fields_ = [("fname", c_char_p), ("fbase", c_void_p), ("sname", c_char_p), ("saddr", c_void_p)]


_BUFFERS = [c_void_p, c_void_p, c_size_t, c_int]  # send, receive, count, type
_PROTOTYPES = {
    "ncclGetUniqueId": (c_int, [POINTER(UniqueId)]),
    "ncclCommInitRank": (c_int, [POINTER(c_void_p), c_int, UniqueId, c_int]),
    "ncclCommDestroy": (c_int, [c_void_p]),
    "ncclCommAbort": (c_int, [c_void_p]),
    "ncclCommGetAsyncError": (c_int, [c_void_p, POINTER(c_int)]),
    "ncclCommRegister": (c_int, [c_void_p, c_void_p, c_size_t, POINTER(c_void_p)]),
    "ncclCommDeregister": (c_int, [c_void_p, c_void_p]),
    "ncclAllGather": (c_int, [*_BUFFERS, c_void_p, c_void_p]),
    "ncclReduceScatter": (c_int, [*_BUFFERS, c_int, c_void_p, c_void_p]),
    "ncclAllReduce": (c_int, [*_BUFFERS, c_int, c_void_p, c_void_p]),
    "ncclGetErrorString": (c_char_p, [c_int]),
    "ncclGetLastError": (c_char_p, [c_void_p]),
    "strait_coll_version": (c_char_p, []),
    "strait_coll_nccl": (c_int, [POINTER(c_char_p), POINTER(c_int)]),
    "strait_coll_pin": (c_int, [c_void_p, c_int]),
    "strait_coll_report": (c_size_t, [c_void_p, c_char_p, c_size_t]),
}


@functools.cache
def library() -> ctypes.CDLL:
    """libstrait-coll. ImportError, with what was tried: there is none."""
    return load("libstrait-coll.so", VARIABLE, _PROTOTYPES)


def path() -> str:
    """Path of libstrait-coll, as a preload wants it."""
    entry = ctypes.cast(library().strait_coll_version, c_void_p)
    info = _DlInfo()
    if ctypes.CDLL(None).dladdr(entry, byref(info)) == 0:
        raise CollectiveError("dladdr does not know libstrait-coll")
    return os.path.realpath((info.fname or b"").decode())


def nccl() -> tuple[str, int]:
    """Path and version (22809 is 2.28.9) of the NCCL that calls are passed on to. CollectiveError: there is none."""
    path, version = c_char_p(), c_int()
    if library().strait_coll_nccl(byref(path), byref(version)) != 0:
        raise CollectiveError(
            "libstrait-coll finds no NCCL that it can use: neither libnccl.so.2, in this process or where the loader"
            " looks, nor what STRAIT_COLL_NCCL names"
        )
    return (path.value or b"").decode(), version.value


def check(result: int, what: str, comm: c_void_p | None = None) -> None:
    """Raises CollectiveError for a result of NCCL other than ncclSuccess."""
    if result == 0:
        return
    text = (library().ncclGetErrorString(result) or b"").decode()
    last = (library().ncclGetLastError(comm) or b"").decode().strip()
    raise CollectiveError(f"{what}: {text}" + (f" ({last})" if last else ""), result)


def report(comm: c_void_p | None) -> str:
    """strait_coll_report of a communicator, or of the process (None)."""
    size = library().strait_coll_report(comm, None, 0)
    text = ctypes.create_string_buffer(size + 4096)  # counts may grow meanwhile
    library().strait_coll_report(comm, text, len(text))
    return text.value.decode()


def pin(comm: c_void_p | None, choice: Choice) -> None:
    """strait_coll_pin of a communicator, or of all (None)."""
    if library().strait_coll_pin(comm, choice) != 0:
        raise CollectiveError("strait_coll_pin: no such communicator")
