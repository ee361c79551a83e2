"""Lossless compression of KV-cache pages: the codec of Strait, through its C ABI.

    codebook = strait.calibrate({("k", 0): k0, ("v", 0): v0})    once, offline
    chunk = strait.encode(array, codebook)                       bytes, that know shape and dtype
    back = strait.decode(chunk, codebook)                        the array, checked
    strait.save_file(tensors, path); strait.load_file(path)      files of `strait encode`, by tensors' names

Paged pools are read and written in place, see PageList. Moving pages between workers is strait.service, which is
imported on its own.

Threads: every function may be called from any number of threads at once, on shared codebooks, page lists and chunks.
encode, decode, verify and calibrate release the GIL while they work. Threads must not decode to the same pages, and
each needs a Stats of its own.
"""

from .chunk import Chunk, ChunkInfo, chunk_pages, info
from .codebook import Class, Codebook, Counts, Role, calibrate, class_of
from .codec import Stats, decode, default_variant, encode, encode_bound, variants, verify
from .errors import (
    AgainError,
    AlignmentError,
    CodebookError,
    CollectiveError,
    CorruptError,
    DataError,
    DeviceError,
    Error,
    FileError,
    IntegrityError,
    InvalidError,
    NoSpaceError,
    OutOfMemoryError,
    PageIdError,
    Status,
    TimedOutError,
    TruncatedError,
    UnsupportedError,
)
from .files import File, load_file, save_file
from .pages import PageList

__version__ = "0.1.0"

__all__ = [
    "AgainError",
    "AlignmentError",
    "Chunk",
    "ChunkInfo",
    "Class",
    "Codebook",
    "CodebookError",
    "CollectiveError",
    "CorruptError",
    "Counts",
    "DataError",
    "DeviceError",
    "Error",
    "File",
    "FileError",
    "IntegrityError",
    "InvalidError",
    "NoSpaceError",
    "OutOfMemoryError",
    "PageIdError",
    "PageList",
    "Role",
    "Stats",
    "Status",
    "TimedOutError",
    "TruncatedError",
    "UnsupportedError",
    "calibrate",
    "chunk_pages",
    "class_of",
    "decode",
    "default_variant",
    "encode",
    "encode_bound",
    "info",
    "load_file",
    "save_file",
    "variants",
    "verify",
]
