"""Checkpoints of torch.distributed.checkpoint's file system, made checkpoints of Strait, with bounded memory.

python -m strait.checkpoint from-dcp FOLDER OUT
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from .. import checkpoint
from ..checkpoint import Path, Save
from ..errors import CorruptError, Status
from .checkpoint import METADATA, copies_of, parse_metadata, pickle_metadata, shard_of

_METADATA_FILE = ".metadata"


class _Item(NamedTuple):
    """A tensor's shard, or an object, of a DCP checkpoint. bytes: of the values, an object's as they are stored."""

    read: ReadItem
    write: WriteItem
    file: str
    offset: int
    bytes: int


class _Fetch(LoadPlanner):
    """Gives the storage reader memory for what it reads, and keeps it."""

    def __init__(self, metadata: Metadata):
        self._metadata = metadata
        self.found: dict[MetadataIndex, Any] = {}

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self.found[read_item.storage_index] = value

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        described: Any = self._metadata.state_dict_metadata[read_item.storage_index.fqn]
        return torch.empty(read_item.lengths, dtype=described.properties.dtype)

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        self.found[read_item.storage_index] = tensor

    def set_up_planner(self, *_: Any, **__: Any) -> None: ...

    def create_local_plan(self) -> LoadPlan:
        return LoadPlan([])

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        return central_plan


def _tensor_item(name: str, one: TensorStorageMetadata, chunk: ChunkStorageMetadata, stored: Any) -> _Item:
    index = MetadataIndex(name, chunk.offsets)
    info = stored[index]
    zeroes = torch.Size([0] * len(one.size))
    read = ReadItem(LoadItemType.TENSOR, index, zeroes, index, zeroes, chunk.sizes)
    data = TensorWriteData(chunk=chunk, properties=one.properties, size=one.size)
    write = WriteItem(index, WriteItemType.SHARD, tensor_data=data)
    values = chunk.sizes.numel() * one.properties.dtype.itemsize
    return _Item(read, write, info.relative_path, info.offset, values)


def _object_item(name: str, stored: Any) -> _Item:
    index = MetadataIndex(name)
    info = stored[index]
    none = torch.Size([0])
    read = ReadItem(LoadItemType.BYTE_IO, index, none, index, none, none)
    return _Item(read, WriteItem(index, WriteItemType.BYTE_IO), info.relative_path, info.offset, info.length)


def _items_of(metadata: Metadata, where: str) -> list[_Item]:
    """In the order in which they are stored."""
    items: list[_Item] = []
    try:
        for name, one in metadata.state_dict_metadata.items():
            if isinstance(one, BytesStorageMetadata):
                items.append(_object_item(name, metadata.storage_data))
            else:
                items += [_tensor_item(name, one, chunk, metadata.storage_data) for chunk in one.chunks]
        items.sort(key=lambda item: (item.file, item.offset))
    except (AttributeError, KeyError, TypeError) as fault:
        text = f"{where}: it does not tell where everything is stored: {fault!r}"
        raise CorruptError(text, Status.ERR_CORRUPT) from None
    return items


def _batches(items: list[_Item], memory: int) -> Iterator[list[_Item]]:
    """Of about so many bytes: BF16 tensors that may be copies of F32 tensors are with these."""
    boxes: dict[Any, list[_Item]] = {}
    for item in items:
        tensor = item.write.tensor_data
        box = item.write.index if tensor is None else (tensor.size, tensor.chunk.offsets, tensor.chunk.sizes)
        ends = "" if tensor is None else item.write.index.fqn.rsplit(".", 1)[-1]
        boxes.setdefault((box, ends), []).append(item)
    batch: list[_Item] = []
    size = 0
    for group in boxes.values():
        more = sum(item.bytes for item in group)
        if batch and size + more > memory:
            yield batch
            batch, size = [], 0
        batch, size = batch + group, size + more
    if batch or not items:
        yield batch


def _save_batch(save: Save, batch: list[_Item], reader: FileSystemReader, metadata: Metadata) -> None:
    fetch = _Fetch(metadata)
    try:
        reader.read_data(LoadPlan([item.read for item in batch]), fetch).wait()
    except (OSError, MemoryError):
        raise
    except Exception as fault:  # whatever torch meets in a file that is none of its own
        files = ", ".join(sorted({item.file for item in batch}))
        raise CorruptError(f"{reader.checkpoint_id}: {files}: {fault}", Status.ERR_CORRUPT) from None
    shards = [shard_of(item.write, fetch.found[item.read.storage_index]) for item in batch]
    copies = copies_of(shards, "auto")
    for shard in sorted(shards, key=lambda shard: shard.name in copies):
        master = copies.get(shard.name)
        save.add(shard.name, shard.data, shape=shard.shape, offsets=shard.offsets, rounded_from=master)


def from_dcp(folder: Path, out: Path, *, overwrite: bool = False, memory: int = 1 << 30) -> tuple[int, int]:
    """Makes the checkpoint `out` of a folder that torch's FileSystemWriter has written; bytes of tensors, and of files.

    memory: bytes of tensors at a time, or the largest shard where that is more; each such batch becomes a file.
    What a pickle in .metadata could run is refused. CorruptError, OSError.
    """
    where = os.path.join(os.fspath(folder), _METADATA_FILE)
    with open(where, "rb") as file:
        metadata = parse_metadata(file.read(), where)
    batches = list(_batches(_items_of(metadata, where), memory))
    reader = FileSystemReader(os.fspath(folder))
    reader.set_up_storage_reader(metadata, True)
    save_id = checkpoint.new_save_id()
    raw = stored = 0
    try:
        for rank, batch in enumerate(batches):
            with Save(out, rank=rank, ranks=len(batches), save_id=save_id) as save:
                _save_batch(save, batch, reader, metadata)
                summary = save.end()
            raw, stored = raw + summary.raw_bytes, stored + summary.stored_bytes
        metadata.storage_data = metadata.storage_meta = None
        attachments = {METADATA: pickle_metadata(metadata)}
        checkpoint.commit(out, save_id, len(batches), attachments=attachments, overwrite=overwrite, latest=False)
    except BaseException:
        with contextlib.suppress(Exception):
            checkpoint.abandon(out, save_id)
        raise
    return raw, stored
