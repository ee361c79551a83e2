"""LMCache: a second tier (L2) of files that hold what Strait's codec makes of KV objects, and a serde.

LMCache loads an adapter by the path of its module; nothing of LMCache is patched:

    {"type": "plugin", "module_path": "strait.lmcache", "class_name": "FileAdapter",
     "adapter_params": {"folder": "/data/kv", "codebook": "/etc/strait/codebook", "capacity_gb": 500}}

| parameter | default | |
|---|---|---|
| folder | | where the files are; several processes may use it at once |
| codebook | none | a codebook set, for BF16. Without it floats are coded by `base`, which needs none |
| table | "kv" | the class of the set whose table is used; its first table if it has no such class |
| capacity_gb | 0 | beyond it the files that were used longest ago are removed, but none that is locked; 0: no limit |
| workers | 2 | threads that code and write |
| fsync | false | true: a stored object survives a power failure. Without it such an object may be lost, never wrong |

An object is written to a file of its own, which gets its name when it is complete. Its header names the key and the
sizes, and every page of a chunk has a checksum: a file that is torn, changed, or another's is a miss, is logged, and is
removed. Bits come back as they were stored. The codebook set is part of a file's name: processes with different sets
may share a folder, and do not find each other's files.

A lookup keeps the files that it has found open until they are unlocked, about a quarter of the descriptors that the
process may have: what another process removes meanwhile can still be loaded. Beyond that only this process keeps them.

The serde "strait" (register_serde) codes objects on their way to any adapter. LMCache 0.5.6 stores the shorter object,
and then refuses to load it, because its own adapters want the length that they have memory for: use it only where the
adapter accepts shorter objects, as the one above does with any serde, into memory of the size that they came from.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import resource
import secrets
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import numpy as np
from lmcache.lmcache_native import Bitmap
from lmcache.logging import init_logger
from lmcache.v1.distributed.api import KeyEntry, KeyListPage, MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.internal_api import L2AdapterListener, L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.distributed.serde.async_processor import AsyncSerdeProcessor
from lmcache.v1.distributed.serde.base import Deserializer, Serializer
from lmcache.v1.distributed.serde.factory import register_serde_factory
from lmcache.v1.platform import create_event_notifier
from numpy.typing import NDArray

from .chunk import info
from .codebook import Codebook
from .codec import decode, encode, encode_bound
from .errors import Error

logger = init_logger(__name__)

_MAGIC, _VERSION = b"STRAITKV", 1
_HEAD = struct.Struct("<8sIIQ")  # magic, version, bytes of the description, bytes of the object
_DIGEST = 16  # bytes of the sum of head and description, which follows them
_PART_BYTES = 128 << 20  # of an object in one chunk
_SUFFIX = ".strait"
_ELEMENTS = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32"}
_FULL_TO = 0.95  # of the capacity, to which files are removed
_NAME_BYTES = 200  # of a file's name: longer ones are replaced by their sum, and stand in the header

# ---- Coding ---------------------------------------------------------------------------------------------------------


class Coder:
    """Codes objects, each a row of bytes with parts of one type, and decodes them. Threads may share it."""

    def __init__(self, codebook: str | os.PathLike[str] | None = None, table: str = "kv"):
        self.codebook = None if codebook is None else Codebook.load(codebook)
        self._table: Any = table

    def _code(self, values: NDArray[np.uint8], element: str) -> bytes:
        if element == "bytes":
            return encode(values, None, mode="raw", element="bytes")
        if element == "bf16" and self.codebook is not None:
            return encode(values, self.codebook, mode="tiered", element="bf16", table=self._table)
        return encode(values, None, mode="base", element=element)  # type: ignore[call-overload]

    def encode(self, parts: Sequence[tuple[str, NDArray[np.uint8]]]) -> tuple[list[tuple[str, int, int]], list[bytes]]:
        """Chunks of the parts, in order; and of each chunk its element, its own length and that of its values."""
        described, chunks = [], []
        for element, values in parts:
            for begin in range(0, len(values), _PART_BYTES):
                piece = values[begin : begin + _PART_BYTES]
                chunks.append(self._code(piece, element))
                described.append((element, len(chunks[-1]), len(piece)))
        return described, chunks

    def decode(self, coded: NDArray[np.uint8], described: Sequence[Sequence[Any]], out: NDArray[np.uint8]) -> None:
        """Raises strait.Error or ValueError where the chunks are not those of `described`, or do not fill `out`."""
        at = to = 0
        for element, chunk_bytes, value_bytes in described:
            chunk, piece = coded[at : at + chunk_bytes], out[to : to + value_bytes]
            if len(chunk) != chunk_bytes or len(piece) != value_bytes or info(chunk).element != element:
                raise ValueError("the file is shorter than it says, or another's")
            decode(chunk, self.codebook, piece)
            at, to = at + chunk_bytes, to + value_bytes
        if at != len(coded) or to != len(out):
            raise ValueError("the file has more than it says, or less than the object")


def _groups_of(obj: Any) -> list[tuple[Any, Any]]:
    """Shapes and types of a memory object; none, where it has bytes without a type."""
    meta = getattr(obj, "metadata", None)  # get_shapes() raises where there are no groups
    if meta is None:
        return []
    if meta.shapes is not None and meta.dtypes is not None:
        return list(zip(meta.shapes, meta.dtypes))
    return [] if meta.dtype is None else [(meta.shape, meta.dtype)]


def _room_of(obj: Any) -> int:
    """The bytes that the shapes of a memory object say: a serde may have used less of them."""
    return sum(shape.numel() * dtype.itemsize for shape, dtype in _groups_of(obj))


def _parts_of(obj: Any) -> list[tuple[str, NDArray[np.uint8]]]:
    """The bytes of a memory object, by type; all of them, whatever its shapes say."""
    values = np.frombuffer(obj.byte_array, np.uint8)
    parts, at = [], 0
    for shape, dtype in _groups_of(obj):
        size = min(shape.numel() * dtype.itemsize, len(values) - at)
        if size % dtype.itemsize == 0:
            parts.append((_ELEMENTS.get(str(dtype), "bytes"), values[at : at + size]))
            at += size
    if at < len(values):
        parts.append(("bytes", values[at:]))
    return parts


# ---- Files ----------------------------------------------------------------------------------------------------------


class MismatchError(Exception):
    """The file is whole, but not for this caller."""


class Stored(NamedTuple):
    """A file of the folder."""

    path: Path
    size: int
    used: int  # when it was stored or loaded last, in ns


def _key_of(name: str) -> ObjectKey | None:
    """The key in a name of Files.name_of; None: it is none."""
    try:
        model, rank, group, chunk, salt, _ = [unquote(field) for field in name.split("@")]
        return ObjectKey(bytes.fromhex(chunk), model, int(rank, 16), int(group, 16), salt)
    except ValueError:
        return None


def _read(descriptor: int) -> NDArray[np.uint8]:
    """The bytes of the whole file, without the offset that duplicates of the descriptor share."""
    data = np.empty(os.fstat(descriptor).st_size, np.uint8)
    at = 0
    while at < len(data):
        count = os.preadv(descriptor, [data.data[at:]], at)
        if count == 0:
            break
        at += count
    return data[:at]


def _parse_header(data: NDArray[np.uint8]) -> tuple[dict[str, Any], int, int]:
    """The description, the bytes of the object, and where the chunks begin. ValueError."""
    if len(data) < _HEAD.size:
        raise ValueError("the file is shorter than its header")
    magic, version, text_bytes, object_bytes = _HEAD.unpack(data[: _HEAD.size].tobytes())
    end = _HEAD.size + text_bytes
    digest = hashlib.blake2b(data[:end].tobytes(), digest_size=_DIGEST).digest()
    if magic != _MAGIC or version != _VERSION or data[end : end + _DIGEST].tobytes() != digest:
        raise ValueError("the header is none, or was changed")
    return json.loads(data[_HEAD.size : end].tobytes()), object_bytes, end + _DIGEST


class Files:
    """Objects in files of one folder, in a subfolder for each first byte of their hashes."""

    def __init__(self, folder: Path, coder: Coder, sync: bool):
        self.folder, self.coder, self.sync = folder, coder, sync
        self._set = b"" if coder.codebook is None else coder.codebook.id
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob("*/.tmp-*"):  # of a process that has ended: others still write theirs
            try:
                if time.time() - left.stat().st_mtime > 3600:
                    left.unlink()
            except OSError:  # renamed or removed meanwhile, or not ours to remove
                continue

    def name_of(self, key: ObjectKey) -> str:
        """The key and the codebook set, as the header has them."""
        fields = (key.model_name, f"{key.kv_rank:x}", f"{key.object_group_id:x}", key.chunk_hash.hex(), key.cache_salt)
        return "@".join([*(quote(field, safe="") for field in fields), self._set.hex()])

    def path_of(self, key: ObjectKey) -> Path:
        name = self.name_of(key)
        if len(name) > _NAME_BYTES:
            name = "~" + hashlib.blake2b(name.encode(), digest_size=32).hexdigest()
        return self.folder / key.chunk_hash[:1].hex() / (name + _SUFFIX)

    def key_of(self, path: Path, own: bool = False) -> ObjectKey | None:
        """The key of an object's file, by its name or its header; None: it is none, or gone, or with `own` one of
        another codebook set."""
        name = path.name.removesuffix(_SUFFIX)
        if name.startswith("~"):
            try:
                with path.open("rb") as file:
                    head = file.read(_HEAD.size)
                    rest = file.read(_HEAD.unpack(head)[2] + _DIGEST)
                name = _parse_header(np.frombuffer(head + rest, np.uint8))[0]["key"]
            except (OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError, struct.error):
                return None
        return None if own and not name.endswith("@" + self._set.hex()) else _key_of(name)

    def store(self, key: ObjectKey, obj: Any, used: int) -> int:
        """Writes the object, used at that time (ns), and returns the file's length; 0: it was there. OSError."""
        path = self.path_of(key)
        if path.exists():
            return 0
        described, chunks = self.coder.encode(_parts_of(obj))
        object_bytes, room = len(obj.byte_array), _room_of(obj)
        shorter = {"room": room} if room > object_bytes else {}
        text = json.dumps({"key": self.name_of(key), "chunks": described, **shorter}).encode()
        head = _HEAD.pack(_MAGIC, _VERSION, len(text), object_bytes) + text
        path.parent.mkdir(exist_ok=True)
        temporary = path.parent / f".tmp-{os.getpid()}-{secrets.token_hex(8)}"
        file = temporary.open("xb")
        try:
            with file:
                file.writelines([head, hashlib.blake2b(head, digest_size=_DIGEST).digest(), *chunks])
                file.flush()
                _set_used(file.fileno(), used)
                if self.sync:
                    os.fsync(file.fileno())
                size = file.tell()
            temporary.replace(path)
            if self.sync:
                _sync_folder(path.parent)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        return size

    def load(self, key: ObjectKey, obj: Any, descriptor: int, used: int) -> None:
        """Fills the object from an open file, used at that time (ns). OSError; MismatchError; ValueError, strait.Error:
        the file is damaged."""
        data = _read(descriptor)
        out = np.frombuffer(obj.byte_array, np.uint8)
        described, object_bytes, begin = _parse_header(data)
        if described["key"] != self.name_of(key):
            raise ValueError(f"the file is of {described['key']}")
        shorter = object_bytes < len(out) == described.get("room")  # as it was when it was stored
        if object_bytes != len(out) and not shorter:
            raise MismatchError(f"the object has {object_bytes} bytes, and {len(out)} are asked for")
        self.coder.decode(data[begin:], described["chunks"], out[:object_bytes])
        if shorter:
            obj.set_used_size(object_bytes)
        _set_used(descriptor, used)

    def all(self) -> list[Stored]:
        """What is in the folder, whoever stored it; the one that was used longest ago first."""
        found = []
        for path in self.folder.glob(f"*/*{_SUFFIX}"):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            found.append(Stored(path, status.st_size, status.st_mtime_ns))
        return sorted(found, key=lambda stored: stored.used)

    def after(self, place: str) -> Iterator[tuple[str, Path]]:
        """The files behind a place in the order of their names, and the place of each."""
        first, _, last = place.partition("/")
        for folder in sorted(entry.name for entry in self.folder.iterdir() if len(entry.name) == 2):
            if folder < first:
                continue
            for path in sorted((self.folder / folder).glob("*" + _SUFFIX)):
                if (folder, path.name) > (first, last):
                    yield f"{folder}/{path.name}", path


def _set_used(descriptor: int, used: int) -> None:
    try:
        os.utime(descriptor, ns=(used, used))
    except OSError:  # of a folder that can be read only: what has been used is not known then
        pass


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- The adapter ----------------------------------------------------------------------------------------------------

_DEFAULTS: dict[str, Any] = {
    "folder": None,
    "codebook": None,
    "table": "kv",
    "capacity_gb": 0,
    "workers": 2,
    "fsync": False,
}


def _checked(params: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(params) - set(_DEFAULTS))
    if unknown:
        raise ValueError(f"strait.lmcache: no parameter {unknown[0]!r}: there are {', '.join(_DEFAULTS)}")
    found = {**_DEFAULTS, **params}
    if not isinstance(found["folder"], str) or not found["folder"]:
        raise ValueError("strait.lmcache: the parameter folder is needed")
    for name, low, high in (("capacity_gb", 0, 1 << 30), ("workers", 1, 256)):
        number = found[name]
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not low <= number <= high:
            raise ValueError(f"strait.lmcache: {name} is a number from {low} to {high}, not {number!r}")
    return found


class _Task:
    """A task of several keys: its answer is complete when all of them are."""

    def __init__(self, number: int, keys: list[ObjectKey]):
        self.number, self.keys, self.left = number, keys, len(keys)
        self.failed, self.bytes = False, 0
        self.bitmap = Bitmap(len(keys))
        self.stored: dict[int, int] = {}  # bytes of the files that it has written
        self.begun = time.time_ns()

    def used(self, i: int) -> int:
        """When its i-th file is said to be used: of a request's keys the later ones go first, as nothing finds them
        without the earlier ones."""
        return self.begun - 1000 * i


class _Lock:
    """A file that was found and is not to go; open, unless too many are."""

    def __init__(self) -> None:
        self.count = 0
        self.descriptor: int | None = None

    def add(self, descriptor: int | None) -> None:
        self.count += 1
        if self.descriptor is None:
            self.descriptor = descriptor
        elif descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)


class FileAdapter(L2AdapterInterface):
    """Objects in files, coded; see this module. Thread-safe, as LMCache asks for."""

    def __init__(self, params: dict[str, Any], **_: Any):
        found = _checked(params)
        self._capacity = int(found["capacity_gb"] * (1 << 30))
        super().__init__(self._capacity)
        self._files = Files(Path(found["folder"]), Coder(found["codebook"], found["table"]), bool(found["fsync"]))
        self._lock = threading.Lock()
        self._locks: dict[Path, _Lock] = {}
        self._open_at_most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4
        self._counted: dict[Path, tuple[ObjectKey, int]] = {}  # what LMCache was told to be stored
        self._numbers = itertools.count(1)
        self._stores: dict[int, L2StoreResult] = {}
        self._lookups: dict[int, Bitmap] = {}
        self._loads: dict[int, Bitmap] = {}
        self._evicting = threading.Lock()
        self._told: set[str] = set()  # kinds of failures that were logged
        self._efds = [create_event_notifier() for _ in range(3)]
        self._workers = ThreadPoolExecutor(int(found["workers"]), thread_name_prefix="strait-lmcache")
        self._count_all()
        self._evict()

    # ---- Event descriptors

    def get_store_event_fd(self) -> int:
        return self._efds[0].fileno()

    def get_lookup_and_lock_event_fd(self) -> int:
        return self._efds[1].fileno()

    def get_load_event_fd(self) -> int:
        return self._efds[2].fileno()

    # ---- Tasks

    def _submit(
        self,
        keys: list[ObjectKey],
        work: Callable[[_Task, int], None],
        keep: Callable[[_Task], None],
        which: int,
        end: Callable[[_Task], None] | None = None,
    ) -> int:
        """Works on each key, in any order and at once; after the last one comes `end`. Whatever fails, the answer is
        kept, by `keep` under the lock, and told."""
        task = _Task(next(self._numbers), list(keys))

        def one(i: int) -> None:
            try:
                work(task, i)
            except Exception:
                logger.exception("strait.lmcache: a task failed")
                task.failed = True
            finish()

        def finish() -> None:
            with self._lock:
                task.left -= 1
                if task.left > 0:
                    return
            try:
                if end is not None:
                    end(task)
            except Exception:
                logger.exception("strait.lmcache: the end of a task failed")
            with self._lock:
                keep(task)
            self._efds[which].notify()

        if not keys:
            task.left = 1
            finish()
        for i in range(len(keys)):
            self._workers.submit(one, i)
        return task.number

    def _complain(self, what: str, path: Path, failure: BaseException) -> None:
        """Once for each kind: a full disk would fill the log as well."""
        kind = f"{what} {type(failure).__name__} {getattr(failure, 'errno', '')}"
        with self._lock:
            known = kind in self._told
            self._told.add(kind)
        logger.log(10 if known else 30, "strait.lmcache: %s %s: %s", what, path, failure)

    # ---- Store

    def submit_store_task(self, keys: list[ObjectKey], objects: list[Any]) -> int:
        def work(task: _Task, i: int) -> None:
            try:
                size = self._files.store(keys[i], objects[i], task.used(i))
            except (OSError, ValueError, Error) as failure:
                self._complain("cannot store", self._files.path_of(keys[i]), failure)
                task.failed = True
                return
            if size:
                with self._lock:
                    task.bytes += size
                    task.stored[i] = size

        def end(task: _Task) -> None:
            if task.stored:
                last_first = sorted(task.stored.items(), reverse=True)
                new = [(self._files.path_of(keys[i]), keys[i], size) for i, size in last_first]
                self._count([stored for stored in new if stored[0].exists()])
                self._evict()

        def keep(task: _Task) -> None:
            self._stores[task.number] = L2StoreResult(not task.failed, task.bytes)

        return self._submit(keys, work, keep, 0, end)

    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]:
        with self._lock:
            done, self._stores = self._stores, {}
        return done

    # ---- Lookup and lock

    def submit_lookup_and_lock_task(
        self, keys: list[ObjectKey], group_layout_descs: dict[int, MemoryLayoutDesc]
    ) -> int:
        def work(task: _Task, i: int) -> None:
            path = self._files.path_of(keys[i])
            try:
                descriptor = self._open_to_keep(path)
            except FileNotFoundError:
                self._uncount([path])
                return
            except OSError as failure:
                self._complain("cannot open", path, failure)
                return
            with self._lock:
                self._locks.setdefault(path, _Lock()).add(descriptor)
                task.bitmap.set(i)

        def keep(task: _Task) -> None:
            self._lookups[task.number] = task.bitmap

        return self._submit(keys, work, keep, 1)

    def query_lookup_and_lock_result(self, task_id: int) -> Bitmap | None:
        with self._lock:
            return self._lookups.pop(task_id, None)

    def _open_to_keep(self, path: Path) -> int | None:
        """A descriptor; None: the file is there, but too many are open. OSError."""
        if len(self._locks) < self._open_at_most:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        path.stat()
        return None

    def submit_unlock(self, keys: list[ObjectKey]) -> None:
        for key in keys:
            path = self._files.path_of(key)
            with self._lock:
                lock = self._locks.get(path)
                if lock is None:
                    continue
                lock.count -= 1
                if lock.count == 0:
                    del self._locks[path]
                    lock.close()

    # ---- Load

    def submit_load_task(self, keys: list[ObjectKey], objects: list[Any]) -> int:
        def work(task: _Task, i: int) -> None:
            path = self._files.path_of(keys[i])
            try:
                descriptor = self._open_to_load(path)
            except OSError as failure:
                if isinstance(failure, FileNotFoundError):
                    self._uncount([path])
                else:
                    self._complain("cannot open", path, failure)
                return
            try:
                self._files.load(keys[i], objects[i], descriptor, task.used(i))
            except (OSError, MismatchError) as failure:
                self._complain("cannot load", path, failure)
                return
            except (ValueError, KeyError, TypeError, Error) as failure:
                self._complain("removes", path, failure)
                if self._remove(path, os.fstat(descriptor)):
                    self._uncount([path])
                return
            finally:
                os.close(descriptor)
            with self._lock:
                task.bitmap.set(i)

        def end(task: _Task) -> None:
            loaded = [keys[i] for i in task.bitmap.get_indices_list()]
            if loaded:
                self._tell(self._notify_keys_accessed, loaded)

        def keep(task: _Task) -> None:
            self._loads[task.number] = task.bitmap

        return self._submit(keys, work, keep, 2, end)

    def query_load_result(self, task_id: int) -> Bitmap | None:
        with self._lock:
            return self._loads.pop(task_id, None)

    def _open_to_load(self, path: Path) -> int:
        with self._lock:
            lock = self._locks.get(path)
            if lock is not None and lock.descriptor is not None:
                return os.dup(lock.descriptor)
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    # ---- What is there

    def register_listener(self, listener: L2AdapterListener) -> None:
        """A listener hears of the files that were there before it, too: what evicts knows only what it was told. One
        by one, that of the longest ago first: policies have orders of their own within a batch."""
        super().register_listener(listener)
        with self._lock:
            known = list(self._counted.values())
        for key, size in known:
            self._tell(listener.on_l2_keys_stored, [key], [size])

    def _tell(self, notify: Callable[..., None], *what: Any) -> None:
        """A listener that fails costs no task its answer."""
        try:
            notify(*what)
        except Exception:
            logger.exception("strait.lmcache: a listener failed")

    def _count(self, found: list[tuple[Path, ObjectKey, int]]) -> None:
        """Tells LMCache of files that it has not been told of; that of the longest ago first. Its policies read what
        they are told at once from the end."""
        with self._lock:
            new = [(path, key, size) for path, key, size in found if path not in self._counted]
            self._counted.update((path, (key, size)) for path, key, size in new)
        if new:
            new.reverse()
            self._tell(self._notify_keys_stored, [key for _, key, _ in new], [size for _, _, size in new])

    def _uncount(self, paths: list[Path]) -> None:
        """Tells LMCache that files are gone, whoever has removed them."""
        with self._lock:
            gone = [self._counted.pop(path) for path in paths if path in self._counted]
        if gone:
            self._tell(self._notify_keys_deleted, [key for key, _ in gone], [size for _, size in gone])

    def _count_all(self) -> list[Stored]:
        """All files of the folder, after which LMCache knows them: other processes store and remove, too."""
        files = self._files.all()
        new = [stored for stored in files if stored.path not in self._counted]
        keys = [(stored, self._files.key_of(stored.path)) for stored in new]
        self._count([(stored.path, key, stored.size) for stored, key in keys if key is not None])
        with self._lock:
            missing = self._counted.keys() - {stored.path for stored in files}
        self._uncount([path for path in missing if not path.exists()])
        return files

    def _remove(self, path: Path, only: os.stat_result | None = None) -> bool:
        """Removes a file; with `only` no other that has come in its place. False: it is still there."""
        try:
            if only is not None and not os.path.samestat(path.stat(), only):
                return False
            path.unlink()
        except FileNotFoundError:
            pass
        except OSError as failure:
            self._complain("cannot remove", path, failure)
            return False
        return True

    def _is_locked(self, path: Path) -> bool:
        with self._lock:
            return path in self._locks

    def _evict(self) -> None:
        """Removes what was used longest ago, of all that is in the folder, while there is too much."""
        if not self._capacity or not self._evicting.acquire(blocking=False):
            return
        try:
            if self.get_usage().total_bytes_used <= self._capacity and not self._stale():
                return
            files = self._count_all()
            left = sum(stored.size for stored in files)
            if left <= self._capacity:
                return
            gone = []
            for stored in files:
                if left <= self._capacity * _FULL_TO:
                    break
                if not self._is_locked(stored.path) and self._remove(stored.path):
                    left -= stored.size
                    gone.append(stored.path)
            self._uncount(gone)
        finally:
            self._evicting.release()

    _looked = 0.0

    def _stale(self) -> bool:
        """Whether the folder was not looked at for a while: other processes store there, too."""
        now = time.monotonic()
        if now - self._looked < 10:
            return False
        self._looked = now
        return True

    def delete(self, keys: list[ObjectKey]) -> None:
        paths = [self._files.path_of(key) for key in keys]
        self._uncount([path for path in paths if not self._is_locked(path) and self._remove(path)])

    def list_l2_keys(
        self, model_name: str | None = None, page_size: int = 500, cursor: str | None = None
    ) -> KeyListPage:
        """What this process would find in the folder, whoever stored it, with the bytes of the files; at most 1000
        keys at once. The cursor is the place of the last file of the page before."""
        if page_size <= 0:
            raise ValueError(f"page_size is positive, not {page_size}")
        if cursor is not None and "/" not in cursor:
            raise ValueError(f"{cursor!r} is no cursor")
        entries: list[KeyEntry] = []
        place = cursor or ""
        for at, path in self._files.after(place):
            key = self._files.key_of(path, own=True)
            if key is None or model_name not in (None, key.model_name):
                continue
            if len(entries) == min(page_size, 1000):
                return KeyListPage(tuple(entries), place)
            try:
                entries.append(KeyEntry(key.to_encoded_object_key(), path.stat().st_size))
            except FileNotFoundError:
                continue
            place = at
        return KeyListPage(tuple(entries), None)

    # ---- The rest

    def report_status(self) -> dict[str, Any]:
        usage = self.get_usage()
        return {
            "is_healthy": not self._workers._shutdown,
            "type": "strait.lmcache.FileAdapter",
            "folder": str(self._files.folder),
            "stored_object_count": len(self._counted),
            "locked_key_count": len(self._locks),
            "current_size_bytes": usage.total_bytes_used,
            "max_capacity_bytes": self._capacity,
        }

    def close(self) -> None:
        self._workers.shutdown(wait=True)
        with self._lock:
            for lock in self._locks.values():
                lock.close()
            self._locks.clear()
        for notifier in self._efds:
            notifier.close()


# ---- The serde ------------------------------------------------------------------------------------------------------

_SIZES = struct.Struct("<I")


class _Serializer(Serializer):
    def __init__(self, coder: Coder):
        self._coder = coder

    def serialize(self, src: Any, dst: Any, key: ObjectKey) -> int:
        described, chunks = self._coder.encode(_parts_of(src))
        text = json.dumps(described).encode()
        whole = b"".join([_SIZES.pack(len(text)), text, *chunks])
        np.frombuffer(dst.byte_array, np.uint8)[: len(whole)] = np.frombuffer(whole, np.uint8)
        return len(whole)

    def estimate_serialized_size(self, layout_desc: MemoryLayoutDesc) -> int:
        sizes = [s.numel() * d.itemsize for s, d in zip(layout_desc.shapes, layout_desc.dtypes)]
        pieces = [min(_PART_BYTES, size - at) for size in sizes for at in range(0, size, _PART_BYTES)]
        return 4096 + sum(encode_bound(np.empty(piece, np.uint8)) + 64 for piece in pieces)


class _Deserializer(Deserializer):
    def __init__(self, coder: Coder):
        self._coder = coder

    def deserialize(self, src: Any, dst: Any, key: ObjectKey) -> None:
        data = np.frombuffer(src.byte_array, np.uint8)
        (text_bytes,) = _SIZES.unpack(data[: _SIZES.size].tobytes())
        described = json.loads(data[_SIZES.size : _SIZES.size + text_bytes].tobytes())
        begin = _SIZES.size + text_bytes
        end = begin + sum(chunk_bytes for _, chunk_bytes, _ in described)
        self._coder.decode(data[begin:end], described, np.frombuffer(dst.byte_array, np.uint8))


def register_serde(name: str = "strait") -> None:
    """Lets LMCache make the serde by its name; its arguments are `codebook`, `table` and `workers`, as above."""

    def make(arguments: dict[str, Any]) -> AsyncSerdeProcessor:
        coder = Coder(arguments.get("codebook"), arguments.get("table", "kv"))
        return AsyncSerdeProcessor(
            _Serializer(coder), _Deserializer(coder), max_workers=int(arguments.get("workers", 2))
        )

    register_serde_factory(name, make)
