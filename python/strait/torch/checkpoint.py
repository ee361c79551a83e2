"""Storage of torch.distributed.checkpoint: checkpoints of Strait, by the planners of DCP.

    import torch.distributed.checkpoint as dcp
    from strait.torch.checkpoint import Reader, Stager, Writer

    dcp.save(state, storage_writer=Writer("runs/step-100"))
    dcp.load(state, storage_reader=Reader("runs/latest"))        by any number of ranks, whatever their number was

    stager = Stager()                                            once, for all saves
    future = dcp.async_save(state, storage_writer=Writer("runs/step-200"), async_stager=stager)

A save that fails, on whichever rank, leaves the checkpoints that are there as they are; DCP raises on all ranks.
The coordinator's finish() makes the checkpoint, in one step. Reader also loads what other programs have saved.

    load_file("runs/latest", prefix="model.")                    a model's tensors, as safetensors.torch.load_file()
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import secrets
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import torch
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint._state_dict_stager import StateDictStager
from torch.distributed.checkpoint.filesystem import _StorageInfo, _StoragePrefix
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from .. import _abi, checkpoint
from ..checkpoint import Box, Checkpoint, Path, Save, Summary
from ..errors import CorruptError, Status
from ..files import _DTYPES

__all__ = ["Reader", "Stager", "Writer", "load_file"]

#: Name of the attachment that holds DCP's Metadata.
METADATA = "torch.distributed.checkpoint"
INDEX = "strait.index"

#: Types of values by their names in a checkpoint. Of others, such as complex128, the bytes are saved: U8, with one
#: dimension more.
_TORCH_DTYPES = {name: getattr(torch, dtype) for name, dtype in _DTYPES.items() if hasattr(torch, dtype)}
_HELD = set(_TORCH_DTYPES.values())

#: Bytes of memory of its own that a load uses at a time, for tensors of other types or places than those saved.
_BUFFER_BYTES = 1 << 30


# ---- Metadata -------------------------------------------------------------------------------------------------------

_CLASSES = {
    *((owner.__module__, owner.__qualname__) for owner in (_StorageInfo, _StoragePrefix)),
    *(("torch.distributed.checkpoint.metadata", name) for name in dcp_metadata.__all__),
    ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    *(("builtins", name) for name in ("frozenset", "set")),
    *((module, name) for module in ("pathlib", "pathlib._local") for name in ("Path", "PosixPath", "PurePosixPath")),
}


#: Opcodes that take memory of a size which the pickle names, or reach outside of it.
_REFUSED = (
    *(pickle.BYTEARRAY8 + pickle.NEXT_BUFFER + pickle.READONLY_BUFFER + pickle.PERSID + pickle.BINPERSID),
    *(pickle.INST + pickle.OBJ + pickle.EXT1 + pickle.EXT2 + pickle.EXT4),
)


class _MetadataUnpickler(pickle._Unpickler):  # the one in C does not survive all bytes
    """Makes objects of DCP's metadata, and none that run code; torch.serialization.add_safe_globals() adds some."""

    dispatch: ClassVar = {code: load for code, load in pickle._Unpickler.dispatch.items() if code not in _REFUSED}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _CLASSES:
            return super().find_class(module, name)
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        for added in torch.serialization.get_safe_globals():
            one, full = added if isinstance(added, tuple) else (added, f"{added.__module__}.{added.__qualname__}")
            if full == f"{module}.{name}":
                return one
        raise pickle.UnpicklingError(
            f"{module}.{name} is no class of DCP's metadata: torch.serialization.add_safe_globals"
        )


def _require(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"a {type(value).__name__} where it has a {kind.__name__}")
    return value


def _check_metadata(found: Any) -> None:
    described = _require(_require(found, Metadata).state_dict_metadata, dict)
    for name, one in described.items():
        _require(name, str)
        if isinstance(one, BytesStorageMetadata):
            continue
        _require(_require(one, TensorStorageMetadata).properties, TensorProperties)
        _require(one.properties.dtype, torch.dtype)
        dims = len(_require(one.size, torch.Size))
        for chunk in _require(one.chunks, list):
            _require(chunk, ChunkStorageMetadata)
            if not len(_require(chunk.offsets, torch.Size)) == len(_require(chunk.sizes, torch.Size)) == dims:
                raise ValueError(f"a chunk of {name} has other dimensions than the tensor")


def parse_metadata(data: bytes, where: str) -> Metadata:
    """DCP's metadata, which pickle had written, without running what may be in there. CorruptError."""
    try:
        found: Metadata = _MetadataUnpickler(io.BytesIO(data)).load()
        _check_metadata(found)
    except Exception as fault:
        raise CorruptError(f"{where}: not the metadata of a DCP checkpoint: {fault}", Status.ERR_CORRUPT) from None
    return found


def pickle_metadata(metadata: Metadata) -> bytes:
    return pickle.dumps(metadata, protocol=4)


def _made_metadata(found: Checkpoint) -> Metadata:
    """Of a checkpoint that something else than DCP has saved."""
    described: dict[str, Any] = {}
    for name in found:
        info = found.info(name)
        if info.dtype == "BYTES":
            described[name] = BytesStorageMetadata()
            continue
        boxes = dict.fromkeys((shard.offsets, shard.sizes) for shard in found.shards(name))  # without replicas
        described[name] = TensorStorageMetadata(
            properties=TensorProperties(dtype=_TORCH_DTYPES[info.dtype]),
            size=torch.Size(info.shape),
            chunks=[ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in boxes],
        )
    return Metadata(described)


# ---- Tensors --------------------------------------------------------------------------------------------------------


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of values that a checkpoint has no type for, in a last dimension of their own."""
    return tensor.reshape(-1).view(torch.uint8).reshape(*tensor.shape, tensor.element_size())


class _Shard(NamedTuple):
    """What a checkpoint holds of a WriteItem."""

    name: str
    data: Any  # a contiguous tensor, or bytes
    shape: tuple[int, ...]
    offsets: tuple[int, ...]

    @property
    def box(self) -> Any:
        return self.shape, self.offsets, tuple(self.data.shape)


def shard_of(item: WriteItem, data: torch.Tensor | io.BytesIO) -> _Shard:
    """A tensor's shard, on the host or a GPU, contiguous; or an object's bytes."""
    name = item.index.fqn
    if item.type == WriteItemType.BYTE_IO:
        if not isinstance(data, io.BytesIO):
            raise TypeError(f"{name}: the planner gave a {type(data).__name__} where the plan has bytes")
        value = data.getvalue()
        return _Shard(name, value, (len(value),), (0,))
    if not isinstance(data, torch.Tensor) or item.tensor_data is None:
        raise TypeError(f"{name}: the planner gave a {type(data).__name__} where the plan has a tensor")
    tensor = (data.wait() if hasattr(data, "wait") else data).detach()  # of a collective that may be under way
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise TypeError(f"{name} has layout {tensor.layout}: only dense tensors are saved")
    if tensor.device.type not in ("cpu", "cuda"):
        tensor = tensor.cpu()
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    shape, offsets = tuple(item.tensor_data.size), tuple(item.tensor_data.chunk.offsets)
    if tuple(tensor.shape) != tuple(item.tensor_data.chunk.sizes):
        raise ValueError(
            f"{name}: a tensor of {tuple(tensor.shape)}, where the plan has {item.tensor_data.chunk.sizes}"
        )
    if tensor.dtype not in _HELD:
        return _Shard(name, _as_bytes(tensor), (*shape, tensor.element_size()), (*offsets, 0))
    return _Shard(name, tensor, shape, offsets)


# ---- Copies ---------------------------------------------------------------------------------------------------------

#: For BF16 tensors, the F32 tensors that they were rounded from.
RoundedFrom: TypeAlias = "Mapping[str, str] | Callable[[str], str | None] | Literal['auto'] | None"

_SAMPLE = 256


def _common_end(one: str, other: str) -> int:
    """Parts of two dotted names that are equal, from their ends."""
    ours, theirs = one.split(".")[::-1], other.split(".")[::-1]
    return next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))


def _looks_rounded(copy: torch.Tensor, master: torch.Tensor) -> bool:
    sample = master.view(-1)[:_SAMPLE].to(copy.device)
    return torch.equal(sample.to(torch.bfloat16), copy.view(-1)[:_SAMPLE])


def copies_of(shards: Iterable[_Shard], rule: RoundedFrom) -> dict[str, str]:
    """Names of BF16 tensors, by those of the F32 tensors with the same box that they may be the rounding of.

    "auto": the names end alike, and so do the first values round. A guess that is wrong costs a comparison.
    """
    tensors = [shard for shard in shards if isinstance(shard.data, torch.Tensor)]
    masters: dict[Any, dict[str, torch.Tensor]] = {}
    for shard in tensors:
        if shard.data.dtype == torch.float32:
            masters.setdefault(shard.box, {})[shard.name] = shard.data
    found: dict[str, str] = {}
    for shard in tensors if rule is not None else []:
        candidates = masters.get(shard.box, {})
        if shard.data.dtype != torch.bfloat16 or not candidates:
            continue
        if isinstance(rule, Mapping):
            named = rule.get(shard.name)
        elif callable(rule):
            named = rule(shard.name)
        else:
            alike = sorted(((_common_end(shard.name, name), name) for name in candidates), reverse=True)
            fitting = (name for end, name in alike if end > 0 and _looks_rounded(shard.data, candidates[name]))
            named = next(fitting, None)
        if named in candidates:
            found[shard.name] = named
    return found


# ---- Saving ---------------------------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """What the coordinator tells a rank in its plan: which save this is, and whose part."""

    session: bytes  # of the coordinator's process
    turn: int  # of its saves
    rank: int
    ranks: int


class _Turns:
    """Numbers of saves, from which their ids follow.

    A planner that caches plans hands a rank its plan of an earlier save again, with that save's number; it then counts
    on by itself, as the coordinator has done. The next plan that is new tells the number again. Saves of other numbers
    of ranks, such as those with no_dist, are counted apart.
    """

    def __init__(self) -> None:
        self._lock, self._process, self._session = threading.Lock(), 0, b""
        self._planned: dict[int, int] = {}
        self._written: dict[tuple[bytes, int], int] = {}

    def plan(self, ranks: int) -> list[_Part]:
        """On the coordinator: parts of the next save."""
        with self._lock:
            if self._process != os.getpid():  # forked processes are coordinators of their own
                self._process, self._session = os.getpid(), secrets.token_bytes(16)
            turn = self._planned[ranks] = self._planned.get(ranks, 0) + 1
            return [_Part(self._session, turn, rank, ranks) for rank in range(ranks)]

    def write(self, part: _Part) -> _Part:
        """On a rank, once for each save: the part that this one is."""
        key = part.session, part.ranks
        with self._lock:
            self._written[key] = max(part.turn, self._written.get(key, 0) + 1)
            return part._replace(turn=self._written[key])


_turns = _Turns()


def _save_id(part: _Part) -> bytes:
    numbers = part.turn.to_bytes(8, "little") + part.ranks.to_bytes(8, "little")
    return hashlib.blake2b(numbers, key=part.session, digest_size=_abi.CHECKPOINT_ID_BYTES).digest()


def _abandon(path: str, save_id: bytes, process: int) -> None:
    if process != os.getpid():  # the save is that of the process that this one was forked from
        return
    with contextlib.suppress(Exception):
        checkpoint.abandon(path, save_id)


class _Placed:
    """What Writer and Reader have in common: a checkpoint's path, their own or that of each call."""

    _path: str | None

    @property
    def checkpoint_id(self) -> str:
        if self._path is None:
            raise ValueError(f"a {type(self).__name__} needs a path, or each call a checkpoint_id")
        return self._path

    def reset(self, checkpoint_id: Path | None = None) -> None:
        if checkpoint_id:
            self._path = os.fspath(checkpoint_id)


class Writer(_Placed, StorageWriter):
    """Saves checkpoints: the storage_writer of dcp.save() and dcp.async_save().

    path: of the checkpoint, or by checkpoint_id of each save. Folders above it are made.
    keep: the newest so many checkpoints beside it stay, 0 all. latest: the link "latest" beside it names it.
    overwrite: one of that name is exchanged in one step; else it is an error.
    rounded_from: BF16 tensors that are the rounding of F32 tensors which the same rank saves cost nothing. "auto" finds
        them by their names' ends and their values; or a mapping of names, or a function that returns a name or None.
        Every value is compared: what differs is stored.
    threads: that encode; 0: one for each processor, at most 16, shared with the other ranks of torchrun. raw: nothing
        is compressed. cached: files go through the page cache.
    summary: what this rank has saved last.

    One Writer serves one save after another. Tensors on GPUs are copied to the host where the library does not encode
    them there. use_collectives=False is refused: ranks
    that know nothing of one another do not make one checkpoint.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        keep: int = 0,
        latest: bool = True,
        overwrite: bool = True,
        rounded_from: RoundedFrom = "auto",
        threads: int = 0,
        raw: bool = False,
        cached: bool = False,
    ):
        super().__init__()
        self._path = None if path is None else os.fspath(path)
        self._keep, self._latest, self._overwrite = keep, latest, overwrite
        self._rounded_from, self._threads, self._raw, self._cached = rounded_from, threads, raw, cached
        self.summary: Summary | None = None
        self._begun: Any = None  # a weakref.finalize that abandons the save, on the coordinator
        self._save_id, self._ranks = b"", 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_begun": None}

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Path) -> bool:
        """A path of a local file system, under a folder that can be written to."""
        path = os.fspath(checkpoint_id)
        if "://" in path:
            return False
        above = os.path.dirname(os.path.abspath(path))
        while not os.path.exists(above):
            above = os.path.dirname(above)
        return os.path.isdir(above) and os.access(above, os.W_OK)

    def storage_meta(self) -> StorageMeta | None:
        return StorageMeta(checkpoint_id=self.checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise ValueError("use_collectives=False: ranks that do not coordinate make no checkpoint")
        self.summary = None
        if is_coordinator:
            path = self.checkpoint_id
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
            if not self._overwrite and os.path.lexists(path):
                raise FileExistsError(f"{path} is there, and overwrite is False")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        if self._begun is not None:
            self._begun()  # a save before this one that has failed
        parts = _turns.plan(len(plans))
        self._save_id, self._ranks = _save_id(parts[0]), len(plans)
        self._begun = weakref.finalize(self, _abandon, self.checkpoint_id, self._save_id, os.getpid())
        return [_with_storage(plan, part) for plan, part in zip(plans, parts)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        part = _turns.write(plan.storage_data)
        shards = [shard_of(item, planner.resolve_data(item)) for item in plan.items]
        copies = copies_of(shards, self._rounded_from)
        results: list[WriteResult] = []
        with Save(
            self.checkpoint_id,
            rank=part.rank,
            ranks=part.ranks,
            save_id=_save_id(part),
            threads=self._threads,
            cached=self._cached,
            raw=self._raw,
        ) as save:
            order = sorted(range(len(shards)), key=lambda i: shards[i].name in copies)  # masters before their copies
            for item, shard in ((plan.items[i], shards[i]) for i in order):
                master = copies.get(shard.name)
                save.add(shard.name, shard.data, shape=shard.shape, offsets=shard.offsets, rounded_from=master)
                size = len(shard.data) if isinstance(shard.data, bytes) else shard.data.nbytes
                results.append(WriteResult(index=item.index, size_in_bytes=size, storage_data=None))
            self.summary = save.end()
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        metadata.storage_meta = self.storage_meta()
        checkpoint.commit(
            self.checkpoint_id,
            self._save_id,
            self._ranks,
            attachments={METADATA: pickle_metadata(metadata)},
            overwrite=self._overwrite,
            keep=self._keep,
            latest=self._latest,
        )
        self._begun.detach()
        self._begun = None


def _with_storage(plan: SavePlan, part: _Part) -> SavePlan:
    return SavePlan(plan.items, storage_data=part, planner_data=plan.planner_data, usable=plan.usable)


class Stager(AsyncStager):
    """Copies states to the host for dcp.async_save(), into memory that it uses again: give it to every save.

    close() it after the last; some versions of torch do so after each, which costs the next one new memory.

    That memory is pinned where there is a GPU. shared: other processes reach it, for AsyncCheckpointerType.PROCESS. A
    save that is still under way keeps its copy: the next one is made into other memory.
    """

    _synchronize_after_execute = False

    def __init__(self, *, shared: bool = False):
        self._pinned, self._shared = torch.cuda.is_available(), shared
        self._lock = threading.Lock()  # the thread of a save may close it while the next one is staged
        self._sets: list[tuple[StateDictStager, list[weakref.ref[torch.Tensor]]]] = []

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            idle = next((i for i, (_, found) in enumerate(self._sets) if all(one() is None for one in found)), None)
            # not DefaultStager: that of torch 2.11 and 2.12 closes its memory with each state and fails with the next
            stager = (
                StateDictStager(pin_memory=self._pinned, share_memory=self._shared)
                if idle is None
                else self._sets.pop(idle)[0]
            )
        staged = stager.stage(state_dict, non_blocking=self._pinned)
        if self._pinned:
            torch.accelerator.synchronize()
        assert isinstance(staged, dict)
        tensors: list[weakref.ref[torch.Tensor]] = []
        _note_tensors(staged, tensors)
        with self._lock:
            self._sets.append((stager, tensors))
        return staged

    def synchronize_staging(self) -> None:
        """Returns at once: stage() has copied everything."""

    def close(self) -> None:
        with self._lock:
            sets, self._sets = self._sets, []
        for stager, _ in sets:
            stager.close()


def _note_tensors(value: Any, found: list[weakref.ref[torch.Tensor]]) -> None:
    if isinstance(value, torch.Tensor):
        found.append(weakref.ref(value))
    elif isinstance(value, Mapping):
        for one in value.values():
            _note_tensors(one, found)
    elif isinstance(value, (list, tuple)):
        for one in value:
            _note_tensors(one, found)


# ---- Loading --------------------------------------------------------------------------------------------------------


class _Read(NamedTuple):
    """A box on its way: `into` is the planner's tensor itself, or memory that is copied to it afterwards."""

    item: ReadItem
    target: torch.Tensor | None  # None: bytes
    into: Any
    box: Box


def _takes_values(target: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether values are decoded straight into the tensor."""
    plain = target.device.type in ("cpu", "cuda") and not target.is_conj() and not target.is_neg()
    return plain and target.dtype == dtype and all(s <= 1 or t > 0 for s, t in zip(target.shape, target.stride()))


class Reader(_Placed, StorageReader):
    """Loads checkpoints of Strait: the storage_reader of dcp.load(). path: a checkpoint's folder, or the link "latest".

    Tensors are decoded where they are to be, on the host or a GPU; those of another dtype are converted, as DCP does.
    Every byte is checked. threads: as Writer's. cached: files are read through the page cache.
    """

    def __init__(self, path: Path | None = None, *, threads: int = 0, cached: bool = False):
        super().__init__()
        self._path = None if path is None else os.fspath(path)
        self._threads, self._cached = threads, cached
        self._metadata: Metadata | None = None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Path) -> bool:
        """A folder with an index."""
        return os.path.isfile(os.path.join(os.fspath(checkpoint_id), INDEX))

    def _open(self) -> Checkpoint:
        return checkpoint.open(self.checkpoint_id, "pt", threads=self._threads, cached=self._cached)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with self._open() as found:
            data = found.attachments.get(METADATA)
            metadata = _made_metadata(found) if data is None else parse_metadata(data, self.checkpoint_id)
        metadata.storage_meta = StorageMeta(checkpoint_id=self.checkpoint_id)
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._metadata = metadata

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        with self._open() as found:
            reads: list[_Read] = []
            buffered = 0
            for item in plan.items:
                read = self._read_of(found, item, planner)
                reads.append(read)
                buffered += 0 if read.into is read.target else read.into.nbytes
                if buffered >= _BUFFER_BYTES:
                    _carry_out(found, reads, planner)
                    reads, buffered = [], 0
            _carry_out(found, reads, planner)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _read_of(self, found: Checkpoint, item: ReadItem, planner: LoadPlanner) -> _Read:
        name = item.storage_index.fqn
        if item.type == LoadItemType.BYTE_IO:
            into = found.empty(name)
            return _Read(item, None, into, Box(name, into))
        assert self._metadata is not None
        described: Any = self._metadata.state_dict_metadata[name]
        dtype = described.properties.dtype
        target = planner.resolve_tensor(item).detach()
        if target.size() != item.lengths:
            raise ValueError(f"{name}: the planner gave a tensor of {target.size()} for one of {item.lengths}")
        into = target if _takes_values(target, dtype) else torch.empty(item.lengths, dtype=dtype)
        chunk = item.storage_index.offset or (0,) * len(item.lengths)
        offsets = [begin + offset for begin, offset in zip(chunk, item.storage_offsets)]
        if dtype in _HELD:
            return _Read(item, target, into, Box(name, into, offsets))
        if not into.is_contiguous():
            into = torch.empty(item.lengths, dtype=dtype)
        return _Read(item, target, into, Box(name, _as_bytes(into), [*offsets, 0]))


def _carry_out(found: Checkpoint, reads: Sequence[_Read], planner: LoadPlanner) -> None:
    found.load([read.box for read in reads])
    for read in reads:
        if read.target is None:
            planner.load_bytes(read.item, io.BytesIO(memoryview(read.into.numpy())))
            continue
        if read.into is read.target:
            torch.autograd.graph.increment_version(read.target)  # written to behind torch's back
        else:
            read.target.copy_(read.into)
        planner.commit_tensor(read.item, read.target)


def load_file(path: Path, *, prefix: str = "", device: Any = "cpu") -> dict[str, torch.Tensor]:
    """Tensors of a checkpoint by name, as safetensors.torch.load_file() returns those of a file.

    prefix: only those whose names begin with it, which is left out: "model." of a state {"model": ..., ...}.
    The result is a state dict: model.load_state_dict(found), or, of transformers,
    Model.from_pretrained(None, config=config, state_dict=found). Objects that are no tensors are left out.
    """
    with checkpoint.open(path, "pt") as found:
        data = found.attachments.get(METADATA)
        metadata = _made_metadata(found) if data is None else parse_metadata(data, os.fspath(path))
        described = {
            name: one
            for name, one in metadata.state_dict_metadata.items()
            if name.startswith(prefix) and isinstance(one, TensorStorageMetadata)
        }
        if not described:
            raise KeyError(f"{os.fspath(path)} has no tensors whose names begin with {prefix!r}")
        tensors = {
            name: torch.empty(one.size, dtype=one.properties.dtype, device=device) for name, one in described.items()
        }
        held = {name: tensor if tensor.dtype in _HELD else _as_bytes(tensor) for name, tensor in tensors.items()}
        found.load([Box(name, tensor) for name, tensor in held.items()])
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
