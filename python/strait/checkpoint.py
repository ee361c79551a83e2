"""Checkpoints: training states in files, compressed losslessly (strait/checkpoint.h, kernels/FORMAT.md section 8).

    strait.checkpoint.save("runs/step-100", {"w": w, "m": m}, attachments={"step": b"100"})
    strait.checkpoint.load("runs/latest")["w"]                            arrays; framework="pt": tensors of torch
    with strait.checkpoint.open("runs/latest") as found:
        found["w"], found.attachments["step"]                             one tensor is read, and nothing else
        found.load([strait.checkpoint.Box("w", into=rows, offsets=(5, 0))])   a part of one, into memory of your own

Many ranks save one checkpoint together with Save and commit(): each its shards, in a file of its own. For programs that
use torch.distributed.checkpoint that is done already: strait.torch.checkpoint.

    python -m strait.checkpoint from-dcp FOLDER OUT       makes one of a checkpoint of torch.distributed.checkpoint

Threads: a Checkpoint may be used by any threads at once until it is closed; a Save by one at a time. Calls release the
GIL while they work. Needs libstrait-checkpoint.so.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import byref
from typing import Any, Literal, NamedTuple, Union

import numpy as np

from . import _abi
from ._views import array_view, dtype_name
from .errors import Error, Status, UnsupportedError, make_error
from .files import _DTYPES, _NAMES, _numpy_dtype

__all__ = [
    "Box",
    "Candidate",
    "Checkpoint",
    "Damage",
    "Save",
    "Shard",
    "Summary",
    "TensorInfo",
    "abandon",
    "commit",
    "load",
    "newest",
    "open",
    "save",
]

lib = _abi.load_checkpoint()

Path = Union[str, "os.PathLike[str]"]
Framework = Literal["np", "pt"]

_TEXT_BYTES = 4096
_NO_STORED_BYTES = 2**64 - 1
_BUFFER_BYTES = 1 << 30  # of host memory at a time, for boxes on GPUs


def _check(status: int, text: bytes | None, what: str) -> None:
    if status != Status.OK:
        said = (text or b"").decode(errors="replace") or _abi.status_text(status)
        raise make_error(status, f"{what}: {said}")


def _name_bytes(name: str) -> bytes:
    if "\0" in name:
        raise ValueError(f"the name {name!r} has a zero byte")
    return name.encode()


def _numbers(values: Sequence[int]) -> Any:
    return (ctypes.c_uint64 * max(len(values), 1))(*values)


def _read_numbers(values: Any, count: int) -> tuple[int, ...]:
    return tuple(values[i] for i in range(count))


def _threads_of(threads: int) -> int:
    """As asked; else this process's share of the processors where torchrun has started several."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    if threads or local <= 1:
        return threads
    return max(1, min(16, len(os.sched_getaffinity(0)) // local))


# ---- Memory of arrays -----------------------------------------------------------------------------------------------


class _Memory(NamedTuple):
    """Where an array lies, and as what a checkpoint knows its values."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in bytes
    address: int
    device: int | None  # of CUDA
    owner: Any


def _memory_of(source: Any, what: str) -> _Memory:
    if type(source).__module__.partition(".")[0] == "torch":
        return _torch_memory_of(source, what)
    array = array_view(source, what)
    named = dtype_name(array.dtype)
    if named not in _NAMES or array.dtype.byteorder == ">":
        raise TypeError(f"{what} has dtype {named}, which a checkpoint does not have")
    return _Memory(_NAMES[named], array.shape, array.strides, array.ctypes.data, None, array)


def _torch_memory_of(tensor: Any, what: str) -> _Memory:
    named = str(tensor.dtype).removeprefix("torch.")
    if named not in _NAMES:
        raise TypeError(f"{what} has dtype {named}, which a checkpoint does not have")
    kind = tensor.device.type
    if kind not in ("cpu", "cuda") or str(tensor.layout) != "torch.strided":
        raise TypeError(f"{what} is a tensor on {tensor.device} with layout {tensor.layout}: copy it to the host first")
    size = tensor.element_size()
    device = tensor.device.index if kind == "cuda" else None
    strides = tuple(size * stride for stride in tensor.stride())
    return _Memory(_NAMES[named], tuple(tensor.shape), strides, tensor.data_ptr(), device, tensor)


def _is_contiguous(memory: _Memory) -> bool:
    expected = lib.strait_checkpoint_dtype_bytes(memory.dtype.encode())
    for size, stride in zip(reversed(memory.shape), reversed(memory.strides)):
        if size != 1 and stride != expected:
            return 0 in memory.shape
        expected *= size
    return True


@contextlib.contextmanager
def _current_device(device: int | None) -> Iterator[None]:
    """The GPU of that number is the current one, and what was queued on it has been done."""
    if device is None:
        yield
        return
    cuda = __import__("torch").cuda
    with cuda.device(device):
        cuda.synchronize()
        yield


# ---- Saving ---------------------------------------------------------------------------------------------------------


class Summary(NamedTuple):
    """What one rank has saved. Seconds of encoding are those of all threads together."""

    raw_bytes: int
    stored_bytes: int
    shards: int
    rounded_shards: int
    encode_seconds: float
    write_seconds: float
    seconds: float


def new_save_id() -> bytes:
    """16 random bytes, which all ranks of a save share."""
    return secrets.token_bytes(_abi.CHECKPOINT_ID_BYTES)


def _id_of(save_id: bytes) -> Any:
    if len(save_id) != _abi.CHECKPOINT_ID_BYTES:
        raise ValueError(f"a save's id has {_abi.CHECKPOINT_ID_BYTES} bytes, not {len(save_id)}")
    return _abi.CheckpointId(*save_id)


class Save:
    """One rank's part of a save: its file, beside the checkpoint until commit().

        save = Save("runs/step-100", rank=rank, ranks=ranks, save_id=save_id)
        with save:
            save.add("w", shard, shape=(4096, 1024), offsets=(1024 * rank, 0))
            summary = save.end()

    rank, ranks, save_id: who saves, of how many; the id is the same on all ranks, and another for each save
        (new_save_id()). threads: 0 is one for each processor, at most 16, shared with the other ranks of torchrun.
    cached: files go through the page cache. raw: nothing is compressed. buffer_bytes: of chunks on their way to the
        disk, 0 is 256 MiB.
    What was added may not change until end() has returned. Leaving `with` before that removes the file. FileError.
    """

    def __init__(
        self,
        path: Path,
        *,
        rank: int = 0,
        ranks: int = 1,
        save_id: bytes,
        threads: int = 0,
        cached: bool = False,
        raw: bool = False,
        buffer_bytes: int = 0,
    ):
        self._path, self._owners, self._save = os.fspath(path), list[Any](), ctypes.c_void_p()
        flags = _abi.CHECKPOINT_SAVE_FLAGS
        options = _abi.CheckpointSaveOptions(
            size=ctypes.sizeof(_abi.CheckpointSaveOptions),
            rank=rank,
            rank_count=ranks,
            save_id=_id_of(save_id),
            threads=_threads_of(threads),
            flags=(flags["cached"] if cached else 0) | (flags["raw"] if raw else 0),
            buffer_bytes=buffer_bytes,
        )
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        status = lib.strait_checkpoint_save_begin(
            os.fsencode(path), byref(options), byref(self._save), text, _TEXT_BYTES
        )
        _check(status, text.value, f"saving {self._path}")

    def _text(self) -> bytes:
        text: bytes = lib.strait_checkpoint_save_text(self._save)
        return text

    def _alive(self) -> ctypes.c_void_p:
        if not self._save:
            raise ValueError(f"the save of {self._path} has ended")
        return self._save

    def add(
        self,
        name: str,
        array: Any,
        *,
        shape: Sequence[int] | None = None,
        offsets: Sequence[int] | None = None,
        rounded_from: str | None = None,
    ) -> None:
        """Adds a shard: the box of the tensor that begins at offsets and has the array's shape.

        array: contiguous, of numpy or torch, on the host or, of torch, on a GPU; or bytes. shape: of the whole tensor,
            the array's own if none is given. rounded_from: the name of an F32 tensor that was added before with the
            same box: where this BF16 shard is its rounding, which is compared, nothing of it is stored.
        """
        save = self._alive()
        if isinstance(array, (bytes, bytearray, memoryview)):
            memory = _memory_of(np.frombuffer(array, np.uint8), name)._replace(dtype="BYTES")
        else:
            memory = _memory_of(array, name)
        if not _is_contiguous(memory):
            raise ValueError(f"{name} is not contiguous: copy it")
        whole = memory.shape if shape is None else tuple(shape)
        starts = (0,) * len(whole) if offsets is None else tuple(offsets)
        if not len(whole) == len(starts) == len(memory.shape):
            raise ValueError(f"{name}: {len(memory.shape)} dimensions, but the shape {whole} and offsets {starts}")
        tensor = _abi.CheckpointTensor(
            size=ctypes.sizeof(_abi.CheckpointTensor),
            name=_name_bytes(name),
            dtype=memory.dtype.encode(),
            shape=_numbers(whole),
            offsets=_numbers(starts),
            sizes=_numbers(memory.shape),
            data=memory.address or None,
            dims=len(whole),
            memory=_abi.CHECKPOINT_MEMORY["host" if memory.device is None else "cuda"],
            rounded_from=None if rounded_from is None else _name_bytes(rounded_from),
        )
        self._owners.append(memory.owner)
        with _current_device(memory.device):
            status = lib.strait_checkpoint_save_add(save, byref(tensor))
        if status == Status.ERR_UNSUPPORTED and memory.device is not None:  # by way of the host
            self._owners[-1] = host = memory.owner.cpu()
            tensor.data, tensor.memory = host.data_ptr(), _abi.CHECKPOINT_MEMORY["host"]
            status = lib.strait_checkpoint_save_add(save, byref(tensor))
        if status != Status.OK:
            _check(status, self._text(), f"saving {name} of {self._path}")

    def end(self) -> Summary:
        """Waits until the file of this rank is on the disk."""
        summary = _abi.CheckpointSummary()
        status = lib.strait_checkpoint_save_end(self._alive(), byref(summary))
        if status != Status.OK:
            _check(status, self._text(), f"saving {self._path}")
        self.close()
        return Summary(*(getattr(summary, field) for field in Summary._fields))

    def close(self) -> None:
        save, self._save = self._save, ctypes.c_void_p()
        if save:
            lib.strait_checkpoint_save_free(save)
        self._owners.clear()

    def __enter__(self) -> Save:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_save", None):
            self.close()


def commit(
    path: Path,
    save_id: bytes,
    ranks: int = 1,
    *,
    attachments: Mapping[str, bytes] | None = None,
    overwrite: bool = False,
    keep: int = 0,
    latest: bool = True,
) -> None:
    """Makes what all ranks have saved the checkpoint `path`, in one step. By one process, after every rank's end().

    attachments: small data of the program's own. overwrite: one of that name is exchanged. keep: the newest so many
        beside it stay, 0 all. latest: the symbolic link "latest" beside it names it.
    When it fails nothing has changed, and what the ranks have written is there until abandon().
    """
    given = [(_name_bytes(name), bytes(data)) for name, data in (attachments or {}).items()]
    rows = (_abi.CheckpointAttachment * max(len(given), 1))()
    for row, (name, data) in zip(rows, given):
        row.name, row.bytes = name, len(data)
        row.data = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p)
    flags = _abi.CHECKPOINT_COMMIT_FLAGS
    options = _abi.CheckpointCommitOptions(
        size=ctypes.sizeof(_abi.CheckpointCommitOptions),
        rank_count=ranks,
        flags=(flags["replace"] if overwrite else 0) | (0 if latest else flags["no_latest"]),
        save_id=_id_of(save_id),
        attachments=rows,
        attachment_count=len(given),
        keep=keep,
    )
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    status = lib.strait_checkpoint_commit(os.fsencode(path), byref(options), text, _TEXT_BYTES)
    _check(status, text.value, f"committing {os.fspath(path)}")
    if text.value:  # it is committed, but an old one could not be removed
        warnings.warn(text.value.decode(errors="replace"), stacklevel=2)


def abandon(path: Path, save_id: bytes) -> None:
    """Removes what the ranks of a save have written that will not be committed."""
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    status = lib.strait_checkpoint_abandon(os.fsencode(path), _id_of(save_id), text, _TEXT_BYTES)
    _check(status, text.value, f"abandoning the save of {os.fspath(path)}")


def save(
    path: Path,
    tensors: Mapping[str, Any],
    *,
    attachments: Mapping[str, bytes] | None = None,
    rounded_from: Mapping[str, str] | None = None,
    overwrite: bool = False,
    keep: int = 0,
    latest: bool = True,
    threads: int = 0,
    raw: bool = False,
) -> Summary:
    """Saves whole tensors of this process as the checkpoint `path`, whose parent exists.

    tensors: contiguous arrays of numpy, tensors of torch on the host or a GPU, or bytes, by name. rounded_from: for
        BF16 copies the names of the F32 tensors that they were rounded from: see Save.add(). The others: see commit().
    """
    copies = rounded_from or {}
    save_id = new_save_id()
    try:
        with Save(path, save_id=save_id, threads=threads, raw=raw) as one:
            for name in sorted(tensors, key=lambda name: name in copies):  # what copies are made from comes first
                one.add(name, tensors[name], rounded_from=copies.get(name))
            summary = one.end()
        commit(path, save_id, attachments=attachments, overwrite=overwrite, keep=keep, latest=latest)
    except BaseException:
        with contextlib.suppress(Exception):
            abandon(path, save_id)
        raise
    return summary


# ---- Loading --------------------------------------------------------------------------------------------------------


class Shard(NamedTuple):
    """A box of a tensor, as one rank saved it. stored_bytes: None where its file can't be read."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    rounded_from: str | None
    bytes: int
    stored_bytes: int | None


class TensorInfo(NamedTuple):
    """dtype: as safetensors files name it, or "BYTES"."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    shard_count: int


class Box(NamedTuple):
    """What to load where: the box of tensor `name` that begins at offsets (None: zeroes) and has the shape of `into`.

    into: a writable array of numpy, or a tensor of torch on the host or a GPU, with any strides, of the tensor's dtype.
    """

    name: str
    into: Any
    offsets: Sequence[int] | None = None


class Damage(NamedTuple):
    """Values that do not verify: value_count of the shard at offsets, from first_value on; tensor None: a whole file.

    replaced: another rank had saved the same values, which were loaded instead.
    """

    tensor: str | None
    file: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    first_value: int
    value_count: int
    file_offset: int
    status: int
    replaced: bool


class Candidate(NamedTuple):
    """A folder that newest() has looked at; why: what makes it no whole checkpoint, or ""."""

    path: str
    why: str
    committed_ns: int


def _check_into(memory: _Memory, info: TensorInfo) -> None:
    held = "U8" if info.dtype == "BYTES" else info.dtype
    unsigned = f"U{8 * lib.strait_checkpoint_dtype_bytes(held.encode())}"  # what numpy has for types that it lacks
    if memory.dtype not in (held, unsigned):
        raise TypeError(f"{info.name} has dtype {info.dtype}, and is not loaded into one of {memory.dtype}")
    if isinstance(memory.owner, np.ndarray) and not memory.owner.flags.writeable:
        raise ValueError(f"the destination of {info.name} is read-only")
    steps = zip(memory.shape, memory.strides) if 0 not in memory.shape else ()
    if any(size > 1 and stride <= 0 for size, stride in steps):
        raise ValueError(f"the destination of {info.name} has strides {memory.strides}, which no box is loaded into")


class Checkpoint(Mapping[str, Any]):
    """A checkpoint, open: `checkpoint["name"]` reads one tensor, and checks it; `b"..."` for what was saved as bytes.

    A mapping of names, in the order of their bytes, to arrays or, with framework "pt", tensors on the host; each access
    reads anew. attachments: small data that the program had given, by name. save_id, committed_ns (since 1970), files,
    raw_bytes (of all tensors) and stored_bytes (of all files) describe it. close(), or `with`.
    """

    def __init__(self, path: Path, framework: Framework = "np", threads: int = 0, cached: bool = False):
        if framework not in ("np", "pt"):
            raise ValueError(f"framework {framework!r} is neither 'np' nor 'pt'")
        self.path, self._framework, self._reader = os.fspath(path), framework, ctypes.c_void_p()
        self._threads, self._cached = _threads_of(threads), cached
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        status = lib.strait_checkpoint_open(os.fsencode(path), byref(self._reader), text, _TEXT_BYTES)
        _check(status, text.value, f"opening {self.path}")
        info = _abi.CheckpointInfo()
        lib.strait_checkpoint_describe(self._reader, byref(info))
        self.save_id = bytes(_read_numbers(info.save_id, _abi.CHECKPOINT_ID_BYTES))
        self.committed_ns, self.files = info.committed_ns, info.file_count
        self.raw_bytes, self.stored_bytes = info.raw_bytes, info.stored_bytes
        self._infos = {one.name: (i, one) for i, one in enumerate(map(self._info_at, range(info.tensor_count)))}
        self.attachments = dict(map(self._attachment_at, range(info.attachment_count)))

    def _info_at(self, index: int) -> TensorInfo:
        row = _abi.CheckpointTensorInfo()
        lib.strait_checkpoint_tensor_at(self._reader, index, byref(row))
        shape = _read_numbers(row.shape, row.dims)
        return TensorInfo(row.name.decode(), row.dtype.decode(), shape, row.bytes, row.shard_count)

    def _attachment_at(self, index: int) -> tuple[str, bytes]:
        row = _abi.CheckpointAttachment()
        lib.strait_checkpoint_attachment_at(self._reader, index, byref(row))
        return row.name.decode(), ctypes.string_at(row.data, row.bytes) if row.bytes else b""

    def _alive(self) -> ctypes.c_void_p:
        if not self._reader:
            raise ValueError(f"{self.path} is closed")
        return self._reader

    # -- What there is --

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)

    def __contains__(self, name: object) -> bool:
        return name in self._infos

    def info(self, name: str) -> TensorInfo:
        return self._infos[name][1]

    def shards(self, name: str) -> list[Shard]:
        """As they were saved, replicas too."""
        index, info = self._infos[name]
        row, found = _abi.CheckpointShardInfo(), []
        for shard in range(info.shard_count):
            lib.strait_checkpoint_shard_at(self._alive(), index, shard, byref(row))
            offsets, sizes = (_read_numbers(values, len(info.shape)) for values in (row.offsets, row.sizes))
            rounded_from = None if row.rounded_from is None else row.rounded_from.decode()
            stored = None if row.stored_bytes == _NO_STORED_BYTES else row.stored_bytes
            found.append(Shard(offsets, sizes, row.file.decode(), rounded_from, row.bytes, stored))
        return found

    # -- Values --

    def empty(self, name: str) -> Any:
        """An array, or tensor, for the whole tensor, not yet loaded; of bytes where it was saved as such."""
        info = self.info(name)
        dtype = "U8" if info.dtype == "BYTES" else info.dtype
        if self._framework == "np":
            return np.empty(info.shape, _numpy_dtype(dtype))
        torch = __import__("torch")
        return torch.empty(info.shape, dtype=getattr(torch, _DTYPES[dtype]))

    def __getitem__(self, name: str) -> Any:
        return self.load_all([name])[name]

    def load_all(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """These tensors, or all: faster than one after another."""
        chosen = list(self) if names is None else list(names)
        found = {name: self.empty(name) for name in chosen}
        self.load([Box(name, into) for name, into in found.items()])
        return {
            name: np.asarray(value).tobytes() if self.info(name).dtype == "BYTES" else value
            for name, value in found.items()
        }

    def load(self, boxes: Sequence[Box], progress: Callable[[int, int], None] | None = None) -> None:
        """Loads boxes into memory of the caller's, checked. progress: is told bytes done, and all of them.

        Raises the first box's error; all others have been loaded all the same. Destinations must not overlap.
        """
        placed = [(box, _memory_of(box.into, box.name)) for box in boxes]
        for box, memory in placed:
            _check_into(memory, self.info(box.name))
        failed: Exception | None = None
        for device in sorted(
            {memory.device for _, memory in placed}, key=lambda device: -1 if device is None else device
        ):
            there = [(box, memory) for box, memory in placed if memory.device == device]
            try:
                with _current_device(device):
                    self._load(there, progress)
            except UnsupportedError as failure:
                if device is None:
                    failed = failed or failure
                else:
                    self._load_by_host(there, progress)
            except Error as failure:
                failed = failed or failure
        if failed is not None:
            raise failed

    def _load(self, placed: list[tuple[Box, _Memory]], progress: Callable[[int, int], None] | None) -> None:
        rows = (_abi.CheckpointBox * max(len(placed), 1))()
        for row, (box, memory) in zip(rows, placed):
            row.tensor, info = self._infos[box.name]
            starts = (0,) * len(info.shape) if box.offsets is None else tuple(box.offsets)
            if not len(starts) == len(memory.shape) == len(info.shape) or any(start < 0 for start in starts):
                raise ValueError(f"{box.name} has shape {info.shape}: no box of {memory.shape} is at {starts} in it")
            row.memory = _abi.CHECKPOINT_MEMORY["host" if memory.device is None else "cuda"]
            row.offsets, row.sizes = _numbers(starts), _numbers(memory.shape)
            row.data, row.strides = memory.address or None, _numbers(memory.strides)
        options = self._options(progress=progress)
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        status = lib.strait_checkpoint_load(self._alive(), rows, len(placed), byref(options), text, _TEXT_BYTES)
        _check(status, text.value, f"loading {self.path}")

    def _load_by_host(self, placed: list[tuple[Box, _Memory]], progress: Callable[[int, int], None] | None) -> None:
        """For GPUs, in pieces."""
        torch = __import__("torch")
        while placed:
            size, count = 0, 0
            while count < len(placed) and (count == 0 or size < _BUFFER_BYTES):
                size, count = size + placed[count][0].into.nbytes, count + 1
            piece, placed = placed[:count], placed[count:]
            hosts = [torch.empty(box.into.shape, dtype=box.into.dtype) for box, _ in piece]
            boxes = [box._replace(into=host) for (box, _), host in zip(piece, hosts)]
            self._load([(box, _memory_of(box.into, box.name)) for box in boxes], progress)
            for (box, _), host in zip(piece, hosts):
                box.into.copy_(host)

    def _options(
        self,
        damage: Callable[[Damage], None] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> _abi.CheckpointLoadOptions:
        def told(_: Any, row: Any) -> None:
            if damage is not None:
                damage(self._damage_of(row.contents))

        def counted(_: Any, done: int, all_bytes: int) -> None:
            if progress is not None:
                progress(done, all_bytes)

        return _abi.CheckpointLoadOptions(
            size=ctypes.sizeof(_abi.CheckpointLoadOptions),
            threads=self._threads,
            flags=_abi.CHECKPOINT_SAVE_FLAGS["cached"] if self._cached else 0,
            damage=_abi.ReportDamage(told) if damage else _abi.ReportDamage(),
            progress=_abi.ReportProgress(counted) if progress else _abi.ReportProgress(),
        )

    def _damage_of(self, row: Any) -> Damage:
        name = None if row.tensor is None else row.tensor.decode()
        dims = 0 if name is None else len(self.info(name).shape)
        offsets, sizes = (_read_numbers(values, dims) for values in (row.offsets, row.sizes))
        place = (row.first_value, row.value_count, row.file_offset, row.status, bool(row.replaced))
        return Damage(name, row.file.decode(), offsets, sizes, *place)

    def verify(self, progress: Callable[[int, int], None] | None = None) -> list[Damage]:
        """Reads and checks every byte; what does not verify. An error of another kind is raised."""
        found: list[Damage] = []
        options = self._options(found.append, progress)
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        status = lib.strait_checkpoint_verify(self._alive(), byref(options), text, _TEXT_BYTES)
        if not found:
            _check(status, text.value, f"verifying {self.path}")
        return found

    def close(self) -> None:
        reader, self._reader = self._reader, ctypes.c_void_p()
        if reader:
            lib.strait_checkpoint_close(reader)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_reader", None):
            self.close()


def open(path: Path, framework: Framework = "np", *, threads: int = 0, cached: bool = False) -> Checkpoint:
    """Opens a checkpoint's folder, or the link "latest" beside it. cached: files are read through the page cache."""
    return Checkpoint(path, framework, threads, cached)


def load(path: Path, names: Sequence[str] | None = None, framework: Framework = "np") -> dict[str, Any]:
    """The tensors of a checkpoint, all or those named, checked: arrays, or with "pt" tensors, on the host."""
    with Checkpoint(path, framework) as checkpoint:
        return checkpoint.load_all(names)


def newest(folder: Path, report: Callable[[Candidate], None] | None = None) -> str:
    """The path of the newest whole checkpoint in a folder of checkpoints. InvalidError: there is none.

    report: is told of every folder in there, newest first.
    """

    def told(_: Any, row: Any) -> None:
        if report is not None:
            one = row.contents
            report(Candidate(os.fsdecode(one.path), one.why.decode(errors="replace"), one.committed_ns))

    path = ctypes.create_string_buffer(_TEXT_BYTES)
    reported = _abi.ReportCandidate(told) if report else _abi.ReportCandidate()
    status = lib.strait_checkpoint_newest(os.fsencode(folder), reported, None, path, _TEXT_BYTES)
    _check(status, None, f"looking for a checkpoint in {os.fspath(folder)}")
    return os.fsdecode(path.value)


# ---- Command --------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    import argparse

    parser = argparse.ArgumentParser(prog="python -m strait.checkpoint", description="Makes checkpoints of others'.")
    commands = parser.add_subparsers(dest="command", required=True)
    convert = commands.add_parser("from-dcp", help="of one of torch.distributed.checkpoint; needs torch")
    convert.add_argument("folder", help="the folder with the file .metadata")
    convert.add_argument("out", help="the checkpoint that is made")
    convert.add_argument("--overwrite", action="store_true", help="exchange a checkpoint that is there")
    convert.add_argument("--memory", type=int, default=1024, metavar="MIB", help="of tensors at a time (%(default)s)")
    given = parser.parse_args(arguments)
    try:
        from .torch.from_dcp import from_dcp

        raw, stored = from_dcp(given.folder, given.out, overwrite=given.overwrite, memory=given.memory << 20)
    except (Error, ImportError, OSError, ValueError) as failure:
        print(f"strait.checkpoint: {failure}", file=sys.stderr)
        return 1
    print(f"{given.out}: {stored} bytes of {raw}, {raw / max(stored, 1):.2f} times smaller")
    return 0


if __name__ == "__main__":
    sys.exit(main())
