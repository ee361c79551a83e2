"""Files of `strait encode`: tensors to a file and back, by name (kernels/FORMAT.md, section 7).

A file written here holds a safetensors file, compressed: `strait decode` restores that, and what `strait encode` made
of a safetensors file is read here. Both need the package xxhash: pip install strait[files].
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
import struct
import tempfile
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ._views import ArrayLike, array_view, byte_view, dtype_name
from .chunk import Element, chunk_pages
from .codebook import Codebook, Counts
from .codec import Mode, decode, encode
from .errors import DataError, Status, make_error

_HEADER, _TAIL = struct.Struct("<4sB3sQII16s"), struct.Struct("<QQ16s")
_ENTRY = struct.Struct("<QQII")
_HEADER_BYTES, _FOOTER_HEAD, _TAIL_BYTES, _TABLE_BYTES = 48, 16, 48, 256
_PREAMBLE_MAX = 1 << 30
_PAGE_BYTES, _CHUNK_BYTES = 32768, 4 << 20
_APART_BYTES, _TABLES_MAX = 32768, 65535
_TRIED_BYTES = 16 * _APART_BYTES  # of so many bytes a part pays for its table, in any case that matters

#: Names of dtypes in a safetensors file, by those of numpy, ml_dtypes and torch.
_NAMES = {
    "bfloat16": "BF16",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "complex64": "C64",
    "bool": "BOOL",
    **{f"{kind}int{size}": f"{kind.upper() or 'I'}{size}" for kind in ("", "u") for size in (8, 16, 32, 64)},
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_ELEMENTS: dict[str, Element] = {
    "BF16": "bf16",
    "F16": "fp16",
    "F32": "fp32",
    "F8_E4M3": "fp8_e4m3",
    "F8_E5M2": "fp8_e5m2",
}
_WITH_TABLES = ("bf16", "fp16", "fp32")


def _xxhash() -> Any:
    try:
        return __import__("xxhash")
    except ImportError:
        raise ImportError("files need the package xxhash: pip install strait[files]") from None


def _fail(status: Status, text: str) -> DataError:
    return cast(DataError, make_error(status, text))


# ---- Writing --------------------------------------------------------------------------------------------------------


class _Tensor(NamedTuple):
    name: str
    dtype: str  # as the file names it
    shape: list[int]
    data: NDArray[np.uint8]


def _tensor_of(name: str, array: ArrayLike) -> _Tensor:
    view = array_view(array, name)
    named = dtype_name(view.dtype)
    if named not in _NAMES or view.dtype.byteorder == ">":
        raise TypeError(f"{name} has dtype {named}, which a safetensors file does not have")
    return _Tensor(name, _NAMES[named], list(view.shape), byte_view(array, name))


def _header_of(tensors: list[_Tensor], metadata: Mapping[str, str] | None) -> bytes:
    entries: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    at = 0
    for tensor in tensors:
        end = at + tensor.data.nbytes
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if 8 + len(text) > _PREAMBLE_MAX:
        raise ValueError("the names and shapes of the tensors take more than 1 GiB")
    return struct.pack("<Q", len(text)) + text


class _Part(NamedTuple):
    """What becomes chunks together: a tensor, or small ones of one element type one after another."""

    element: Element
    data: list[NDArray[np.uint8]]

    @property
    def nbytes(self) -> int:
        return sum(data.nbytes for data in self.data)


def _element_of(tensor: _Tensor) -> Element:
    return _ELEMENTS.get(tensor.dtype, "bytes")


def _in_order(tensors: list[_Tensor]) -> list[_Tensor]:
    """In the order of the file: by sizes of values, so that all are aligned, and small tensors beside their like: each
    change of the type begins a chunk, which for tensors of 200 bytes is a third of them."""

    def key(tensor: _Tensor) -> tuple[int, str, bool]:
        size = np.dtype(_numpy_dtype(tensor.dtype)).itemsize
        return -size, _element_of(tensor), tensor.data.nbytes >= _APART_BYTES

    return sorted(tensors, key=key)


def _parts(tensors: list[_Tensor]) -> Iterator[_Part]:
    small = _Part("bytes", [])
    for tensor in tensors:
        element, is_large = _element_of(tensor), tensor.data.nbytes >= _APART_BYTES
        if small.data and (element != small.element or is_large):
            yield small
            small = _Part(element, [])
        if is_large:
            yield _Part(element, [tensor.data])
        elif tensor.data.nbytes > 0:
            if not small.data:
                small = _Part(element, [])
            small.data.append(tensor.data)
    if small.data:
        yield small


def _saves(part: _Part, codebook: Codebook) -> bool:
    """Whether a table makes a part smaller by more than it takes."""
    with_it, without = (sum(len(chunk) for chunk, _ in _chunks(part, book, 0)) for book in (codebook, None))
    return with_it + _TABLE_BYTES < without


def _codebook_for(parts: list[_Part]) -> tuple[Codebook | None, list[int | None]]:
    """Tables for the parts of tensors that are large enough; the table of each part."""
    rankings: list[NDArray[np.uint8]] = []
    tables: list[int | None] = []
    for part in parts:
        tables.append(None)
        if part.element in _WITH_TABLES and part.nbytes >= _APART_BYTES and len(rankings) < _TABLES_MAX:
            counts = Counts(part.element)
            for data in part.data:
                counts.add(data)
            own = counts.codebook()
            if part.nbytes >= _TRIED_BYTES or _saves(part, own):
                tables[-1] = len(rankings)
                rankings.append(own.ranking(0))
    return (Codebook.from_rankings(np.stack(rankings)) if rankings else None), tables


def _chunks(part: _Part, codebook: Codebook | None, table: int | None) -> Iterator[tuple[bytes, int]]:
    """Each with the bytes that it holds: by the part's table, in mode base or in mode parts, whichever is smallest."""
    data = part.data[0] if len(part.data) == 1 else np.concatenate(part.data)
    for at in range(0, data.nbytes, _CHUNK_BYTES):
        piece = data[at : at + _CHUNK_BYTES]
        if piece.ctypes.data % 4:
            piece = piece.copy()
        own = codebook if table is not None else None
        modes: list[tuple[Codebook | None, Mode]] = [(None, "base")]
        if own is not None:
            modes.append((own, "split"))
        if part.element in _WITH_TABLES:
            modes.append((own, "parts"))
        chunks = [
            encode(
                piece,
                book,
                element=part.element,
                mode=mode,
                table=0 if book is None or table is None else table,
                page_bytes=_PAGE_BYTES,
            )
            for book, mode in modes
        ]
        yield min(chunks, key=len), piece.nbytes


def _write(file: Any, preamble: bytes, tensors: list[_Tensor]) -> None:
    xxhash = _xxhash()
    parts = list(_parts(tensors))
    codebook, tables = _codebook_for(parts)
    count = 0 if codebook is None else len(codebook)
    head = _HEADER.pack(b"STRF", 1, bytes(3), len(preamble), count, 0, bytes(16) if codebook is None else codebook.id)
    head += struct.pack("<Q", xxhash.xxh3_64_intdigest(head)) + preamble
    head += bytes(-len(head) % 16)
    if codebook is not None:
        head += b"".join(np.asarray(codebook.ranking(t)).tobytes() for t in range(count))
    file.write(head)
    whole = xxhash.xxh3_128(preamble)
    at, offset, entries = len(head), 0, []
    for part, table in zip(parts, tables):
        for data in part.data:
            whole.update(data)
        for chunk, size in _chunks(part, codebook, table):
            pages = struct.unpack_from("<I", chunk, 8)[0]
            entries.append(_ENTRY.pack(at, offset, len(chunk), pages))
            file.write(chunk)
            at, offset = at + len(chunk), offset + size
    digest = whole.intdigest()
    stored = struct.pack("<QQ", digest & (2**64 - 1), digest >> 64)
    footer = b"STRI" + struct.pack("<IQ", len(entries), 0) + b"".join(entries)
    footer += _TAIL.pack(at, len(preamble) + offset, stored)
    file.write(footer + struct.pack("<Q", xxhash.xxh3_64_intdigest(footer)) + b"STRFEND0")


def save_file(
    tensors: Mapping[str, ArrayLike], path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes tensors to a compressed file, as `strait encode` does for a safetensors file of them: at most 1 %, and
    1 KiB, larger than that file, whatever the tensors hold.

    tensors: contiguous arrays of numpy or CPU tensors of torch, by name; BF16 as ml_dtypes or torch have it, as uint16
        are integers. metadata: as in a safetensors file.
    The file appears, or replaces another, when it is complete; until then it has no name, where the file system has
    such files. One that is replaced leaves it owner and permissions, and a symbolic link stays one.
    TypeError (dtype; a name, or metadata, that is no str), ValueError (not contiguous, a tensor named __metadata__),
    OSError, ImportError (no xxhash).
    """
    for text in (*tensors, *(() if metadata is None else (part for item in metadata.items() for part in item))):
        if not isinstance(text, str):
            raise TypeError(f"names of tensors, and metadata, are strings, not {text!r}")
    if "__metadata__" in tensors:
        raise ValueError("a safetensors file has its metadata under the name __metadata__")
    listed = _in_order([_tensor_of(name, array) for name, array in tensors.items()])
    with _complete(os.fsdecode(path)) as file:
        _write(file, _header_of(listed, metadata), listed)


@contextlib.contextmanager
def _complete(path: str) -> Iterator[Any]:
    """A file to write that gets its name, or replaces another, when the block ends without an exception. Until then it
    has no name, where the file system has such files, and is gone however the process ends. What it replaces leaves it
    owner and permissions; a symbolic link stays one; a device or a pipe is written in place."""
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as file:
            yield file
        return
    path = os.path.realpath(path) if os.path.islink(path) else path  # also of what is not there yet
    if os.path.islink(path):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    folder = os.path.dirname(path) or "."
    fd, temp = _open_unnamed(folder), ""
    if fd < 0:
        fd, temp = tempfile.mkstemp(prefix=".strait-", dir=folder)
    try:
        with open(fd, "wb") as file:
            _keep_attributes(fd, path, bool(temp))
            yield file
            file.flush()
            os.fsync(fd)
            temp = temp or _name(fd, path, folder)
            os.replace(temp, path)
    except BaseException:
        if temp:
            with contextlib.suppress(OSError):
                os.unlink(temp)
        raise
    with contextlib.suppress(OSError):
        _sync(folder)


def _open_unnamed(folder: str) -> int:
    """A file without a name; -1: the file system has none, or /proc is not there to name it."""
    try:
        fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666)
    except OSError:
        return -1
    if os.path.exists(f"/proc/self/fd/{fd}"):
        return fd
    os.close(fd)
    return -1


def _keep_attributes(fd: int, path: str, is_private: bool) -> None:
    """Those of the file that is replaced, as far as this user may give them, or of a new one."""
    try:
        old = os.stat(path)
    except OSError:
        if is_private:
            mask = os.umask(0)
            os.umask(mask)
            os.fchmod(fd, 0o666 & ~mask)
        return
    with contextlib.suppress(OSError):
        os.fchown(fd, old.st_uid, old.st_gid)
    os.fchmod(fd, stat.S_IMODE(old.st_mode) & 0o777)


def _name(fd: int, path: str, folder: str) -> str:
    """Names a complete file that is to replace `path`, for as long as renaming takes; a copy of it where it can have no
    name, as file systems and what confines a process may have it."""
    number = 0
    while True:
        temp = os.path.join(folder, f".strait-{os.getpid()}-{threading.get_ident()}-{number}")
        try:
            os.link(f"/proc/self/fd/{fd}", temp, src_dir_fd=fd)  # with a folder, or else the link itself gets the name
            return temp
        except FileExistsError:
            number += 1
        except OSError as failure:
            if failure.errno == errno.ENOSPC:
                raise
            return _copied(fd, path, folder)


def _copied(fd: int, path: str, folder: str) -> str:
    copy, temp = tempfile.mkstemp(prefix=".strait-", dir=folder)
    try:
        with open(copy, "wb") as target, open(fd, "rb", closefd=False) as source:
            _keep_attributes(copy, path, True)
            source.seek(0)
            shutil.copyfileobj(source, target, 1 << 20)
            target.flush()
            os.fsync(copy)
    except BaseException:
        os.unlink(temp)
        raise
    return temp


def _sync(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# ---- Reading --------------------------------------------------------------------------------------------------------


def _numpy_dtype(name: str) -> str | np.dtype[Any]:
    """dtype of arrays that are returned: unsigned integers of the size where there is none of that type."""
    dtype = _DTYPES.get(name, "uint8")
    if dtype == "bfloat16" or dtype.startswith("float8"):
        try:
            found: np.dtype[Any] = np.dtype(getattr(__import__("ml_dtypes"), dtype))
            return found
        except (ImportError, AttributeError):
            return "uint16" if dtype == "bfloat16" else "uint8"
    return dtype


class _Chunk(NamedTuple):
    offset: int
    begin: int  # of its bytes, in the data
    bytes: int
    pages: int


class File(Mapping[str, Any]):
    """A compressed file of tensors, open: `file["name"]` reads and decodes one tensor, and nothing else.

    A mapping of names to arrays, or tensors; each access decodes anew. metadata: of the safetensors header. close(), or
    `with`. Any thread. Pages are checked by their sums; the header of names by none, which `strait decode` checks.
    """

    def __init__(self, path: str | os.PathLike[str], framework: Literal["np", "pt"] = "np"):
        if framework not in ("np", "pt"):
            raise ValueError(f"framework {framework!r} is neither 'np' nor 'pt'")
        self._xxhash, self._framework, self._path = _xxhash(), framework, os.fspath(path)
        self._file = open(path, "rb")
        try:
            self._open()
        except BaseException:
            self._file.close()
            raise

    def _error(self, status: Status, text: str) -> DataError:
        return _fail(status, f"{self._path}: {text}")

    def _get(self, offset: int, size: int) -> bytes:
        data = os.pread(self._file.fileno(), size, offset)
        while len(data) < size:
            more = os.pread(self._file.fileno(), size - len(data), offset + len(data))
            if not more:
                raise self._error(Status.ERR_TRUNCATED, "the file ends early")
            data += more
        return data

    def _open(self) -> None:
        size = os.fstat(self._file.fileno()).st_size
        if size < _HEADER_BYTES + _FOOTER_HEAD + _TAIL_BYTES:
            raise self._error(Status.ERR_TRUNCATED, "too short to be a Strait file")
        head = self._get(0, _HEADER_BYTES)
        magic, version, zero, preamble, tables, zero2, book = _HEADER.unpack_from(head)
        if magic != b"STRF":
            raise self._error(Status.ERR_CORRUPT, "not a Strait file")
        if version != 1:
            raise self._error(Status.ERR_UNSUPPORTED, f"version {version}")
        if struct.unpack_from("<Q", head, 40)[0] != self._xxhash.xxh3_64_intdigest(head[:40]):
            raise self._error(Status.ERR_INTEGRITY, "the header has another sum")
        if zero.strip(b"\0") or zero2 or preamble > _PREAMBLE_MAX or tables > _TABLES_MAX:
            raise self._error(Status.ERR_CORRUPT, "header")
        tables_at = -(-(_HEADER_BYTES + preamble) // 16) * 16
        self._read_footer(size, tables_at + tables * _TABLE_BYTES, preamble)
        self._book: Codebook | None = None
        if tables:
            rankings = np.frombuffer(self._get(tables_at, tables * _TABLE_BYTES), np.uint8)
            if hashlib.sha256(b"STRAITCB" + struct.pack("<I", tables) + rankings.tobytes()).digest()[:16] != book:
                raise self._error(Status.ERR_INTEGRITY, "the tables have another id")
            self._book = Codebook.from_rankings(rankings.reshape(-1, _TABLE_BYTES))
        self._read_names(self._get(_HEADER_BYTES, preamble))

    def _read_footer(self, size: int, chunks_at: int, preamble: int) -> None:
        tail = self._get(size - _TAIL_BYTES, _TAIL_BYTES)
        if tail[-8:] != b"STRFEND0":
            raise self._error(Status.ERR_TRUNCATED, "it does not end as a file does")
        at, original, _ = _TAIL.unpack_from(tail)
        if not chunks_at <= at <= size - _FOOTER_HEAD - _TAIL_BYTES or original < preamble:
            raise self._error(Status.ERR_CORRUPT, "footer")
        footer = self._get(at, size - at)
        if struct.unpack_from("<Q", footer, len(footer) - 16)[0] != self._xxhash.xxh3_64_intdigest(footer[:-16]):
            raise self._error(Status.ERR_INTEGRITY, "the footer has another sum")
        count = struct.unpack_from("<I", footer, 4)[0]
        if footer[:4] != b"STRI" or len(footer) != _FOOTER_HEAD + count * _ENTRY.size + _TAIL_BYTES:
            raise self._error(Status.ERR_CORRUPT, "footer")
        self._chunks = [_Chunk(*_ENTRY.unpack_from(footer, _FOOTER_HEAD + i * _ENTRY.size)) for i in range(count)]
        self._data_bytes = original - preamble
        ends = [(chunk.offset + chunk.bytes, chunk.begin) for chunk in self._chunks]
        begins = [(chunk.offset, chunk.begin) for chunk in self._chunks]
        starts = [begin for _, begin in begins]
        offsets = [chunks_at, *(end for end, _ in ends)]
        if offsets != [*(offset for offset, _ in begins), at] or sorted(set(starts)) != starts:
            raise self._error(Status.ERR_CORRUPT, "footer: chunks do not lie one after another")
        if begins and (begins[0][1] != 0 or begins[-1][1] >= self._data_bytes):
            raise self._error(Status.ERR_CORRUPT, "footer: chunks do not hold the data")

    def _read_names(self, preamble: bytes) -> None:
        try:
            if len(preamble) < 8 or struct.unpack_from("<Q", preamble)[0] != len(preamble) - 8:
                raise ValueError("it has no header of one")
            entries = json.loads(preamble[8:].decode())
            self.metadata: dict[str, str] = dict(entries.pop("__metadata__", {}))
            self._entries = {name: self._checked(entry) for name, entry in entries.items()}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as fault:
            raise self._error(Status.ERR_CORRUPT, f"not made of a safetensors file: {fault}") from None

    def _checked(self, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
        dtype, shape, (begin, end) = str(entry["dtype"]), tuple(entry["shape"]), entry["data_offsets"]
        if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)) or not begin <= end <= self._data_bytes:
            raise ValueError("shape or offsets")
        values = 1
        for n in shape:
            values *= n
        if dtype in _DTYPES and values * np.dtype(_numpy_dtype(dtype)).itemsize != end - begin:
            raise ValueError("offsets that do not match shape and dtype")
        return dtype, shape, begin, end

    def _decoded(self, begin: int, end: int) -> NDArray[np.uint8]:
        """Bytes of the data, of the pages that hold them."""
        out = np.empty(end - begin, np.uint8)
        ends = [*(chunk.begin for chunk in self._chunks[1:]), self._data_bytes]
        for chunk, chunk_end in zip(self._chunks, ends):
            if begin < end and chunk_end > begin and chunk.begin < end:
                self._take(out, begin, chunk, chunk_end)
        return out

    def _take(self, out: NDArray[np.uint8], begin: int, chunk: _Chunk, chunk_end: int) -> None:
        data = np.frombuffer(self._get(chunk.offset, chunk.bytes), np.uint8)
        lengths = chunk_pages(data)["page_bytes"].astype(np.int64)
        page_ends = chunk.begin + np.cumsum(lengths)
        if len(lengths) != chunk.pages or page_ends[-1] != chunk_end:
            raise self._error(Status.ERR_CORRUPT, "the footer does not describe a chunk")
        pages = np.flatnonzero((page_ends > begin) & (page_ends - lengths < begin + out.nbytes))
        at = int(page_ends[pages[0]] - lengths[pages[0]])
        values = decode(data, self._book, select=pages.astype(np.uint32)).view(np.uint8)
        low, high = max(at, begin), min(at + values.nbytes, begin + out.nbytes)
        out[low - begin : high - begin] = values[low - at : high - at]

    def __getitem__(self, name: str) -> Any:
        dtype, shape, begin, end = self._entries[name]
        data = self._decoded(begin, end)
        if dtype not in _DTYPES:
            return data
        if self._framework == "np":
            return data.view(_numpy_dtype(dtype)).reshape(shape)
        torch = __import__("torch")
        tensor = torch.from_numpy(data) if data.nbytes else torch.empty(0, dtype=torch.uint8)
        return tensor.view(getattr(torch, _DTYPES[dtype])).reshape(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> File:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def load_file(path: str | os.PathLike[str], framework: Literal["np", "pt"] = "np") -> File:
    """Opens what save_file() or `strait encode` made of tensors: a mapping of names that decodes a tensor when it is
    asked for. dict(load_file(path)) has them all.

    framework: "np": arrays of numpy, BF16 and FP8 as ml_dtypes has them or else as unsigned integers; "pt": tensors
        of torch.
    OSError; TruncatedError, CorruptError, UnsupportedError, IntegrityError, here or when a tensor is read; ImportError
    (no xxhash).
    """
    return File(path, framework)
