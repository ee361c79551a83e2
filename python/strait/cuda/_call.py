"""What one call of the codec is about, and putting it on a stream."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import _abi
from .._abi import lib
from .._views import check_writable
from ..codebook import Codebook
from ..errors import NoSpaceError, Status
from ..run import Stats
from . import _driver, _pinned
from ._workspace import Workspace
from .array import flat_bytes, reachable_view
from .job import RESULT_BYTES, Flight, Outcome, Report, tell
from .pages import DeviceRequest, IdsToPlace, Pages, check_one_device

_CHUNK_ALIGNMENT = 16
_ALIGNMENT = 64  # of what is put into one block


class Chunk:
    """Memory that a chunk is written to or read from."""

    def __init__(self, source: Any, what: str):
        array = reachable_view(source, what)
        self.source, self.device = source, array.device
        self.memory = flat_bytes(array, what)
        self.address, self.size = self.memory.pointer, self.memory.nbytes
        if self.address % _CHUNK_ALIGNMENT:
            raise ValueError(f"{what} begins at {self.address:#x}, which is no multiple of {_CHUNK_ALIGNMENT} bytes")


class Call:
    """The arguments, checked as far as one by one; `params` says that it encodes."""

    def __init__(self, params: _abi.EncodeParams | None, stats: Stats | None, results: Any):
        self.params, self.stats = params, stats
        self.what = "decode" if params is None else "encode"
        self.requests: list[DeviceRequest] = []
        self.chunks: list[Chunk] = []
        self.selects: list[IdsToPlace] = []
        self.sources: list[Any] = []
        self.devices: list[tuple[int | None, str]] = []
        self.results = None if results is None else reachable_view(results, "results")
        if self.results is not None:
            self.sources.append(results)
            self.devices.append((self.results.device, "results"))

    def add(self, pages: Pages, name: str, chunk: Chunk, chunk_name: str, request: DeviceRequest) -> None:
        self.requests.append(request)
        self.chunks.append(chunk)
        self.sources += [*pages.sources, chunk.source]
        self.devices += [(pages.device, name), (chunk.device, chunk_name)]

    @property
    def to_place(self) -> list[IdsToPlace]:
        return [request.to_place for request in self.requests] + self.selects

    @property
    def page_counts(self) -> list[int]:
        return [request.count for request in self.requests]

    def check(self, device: int) -> None:
        """What concerns several arguments."""
        if not self.requests:
            raise ValueError(f"nothing to {self.what}: the batch is empty")
        check_one_device([(device, "the codec"), *self.devices])
        if self.params is not None:
            self._check_room()
        if self.results is None:
            return
        check_writable(self.results, "results")
        flat, needed = flat_bytes(self.results, "results"), len(self.requests) * RESULT_BYTES
        if flat.nbytes < needed or flat.pointer % 8:
            raise ValueError(f"results must be {needed} bytes, 8-byte aligned, not {flat.nbytes} at {flat.pointer:#x}")

    def _check_room(self) -> None:
        for request, chunk, (_, name) in zip(self.requests, self.chunks, self.devices[-2 * len(self.chunks) + 1 :: 2]):
            if chunk.size < request.bound():
                message = f"{name} has {chunk.size} bytes, these pages may need {request.bound()}"
                raise NoSpaceError(message, Status.ERR_NO_SPACE)
        places = sorted((chunk.address, chunk.size) for chunk in self.chunks)
        for (address, size), (following, _) in itertools.pairwise(places):
            if address + size > following:
                raise ValueError("two items have the same memory as out")

    def items(self) -> Any:
        """As C sees them, with the lists alone."""
        if self.params is not None:
            return encode_items(self.requests)
        items = decode_items(self.requests)
        for item, chunk in zip(items, self.chunks):
            item.src_size = chunk.size
        return items


def encode_items(requests: Sequence[DeviceRequest]) -> Any:
    return (_abi.EncodeItem * len(requests))(*[_abi.EncodeItem(src=request.struct) for request in requests])


def decode_items(requests: Sequence[DeviceRequest]) -> Any:
    return (_abi.DecodeItem * len(requests))(*[_abi.DecodeItem(dst=request.struct) for request in requests])


class Layout:
    """Where things lie in a call's pinned block (results, statuses, ids, counters) and in the staging area (ids,
    counters)."""

    def __init__(self, call: Call, tables: int):
        self.tables = tables
        self.counter_bytes = tables * _abi.CLASS_STATS.itemsize
        ids_bytes = sum(ids.nbytes for ids in call.to_place)
        self.ids_at = _aligned(Report.size(call.page_counts))
        self.stats_at = _aligned(self.ids_at + ids_bytes)
        self.block_bytes = self.stats_at + self.counter_bytes
        self.counters_at = _aligned(ids_bytes)
        self.staging_bytes = self.counters_at + self.counter_bytes


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


class Means(NamedTuple):
    """What calls of one codec run with."""

    variant: int
    codebook: Codebook | None
    book: int | None  # the same, as the library's handle
    workspace: Workspace
    sm_budget: int

    def scratch_size(self, items: Any) -> int:
        encoding = items._type_ is _abi.EncodeItem
        size = lib.strait_encode_scratch_size if encoding else lib.strait_decode_scratch_size
        return int(size(self.variant, items, len(items)))


class Launch:
    """One call on its way to its stream. The device is the current one."""

    def __init__(self, call: Call, means: Means, stream: int, flight: Flight):
        self._call, self._means, self._stream, self._flight = call, means, stream, flight
        tables = 0 if means.codebook is None or call.stats is None else len(means.codebook)
        self._layout = Layout(call, tables)

    def start(self) -> None:
        """Queues it. Whatever is raised, the flight holds what has been queued so far."""
        layout, items = self._layout, self._call.items()
        self._block = _pinned.take(layout.block_bytes)
        self._flight.blocks.append(self._block)
        scratch = self._means.scratch_size(items)
        self._means.workspace.prepare(self._stream, scratch, layout.staging_bytes, self._flight.blocks)
        self._report = Report(self._block, self._call.page_counts)
        self._place()
        self._fill(items)
        self._start(items)
        self._collect()
        self._flight.report = self._read

    def _place(self) -> None:
        """Ids to the device; counters of tables to zero."""
        layout, staging, at = self._layout, self._means.workspace.staging, 0
        for ids in self._call.to_place:
            if ids.host is not None:
                self._block.row(layout.ids_at + at, np.uint32, len(ids.host))[:] = ids.host
                ids.address = staging + at
                at += ids.nbytes
        if at:
            _driver.call("cuMemcpyAsync", staging, self._block.address + layout.ids_at, at, self._stream)
        if layout.tables:
            counters = staging + layout.counters_at
            _driver.call("cuMemsetD8Async", counters, 0, layout.counter_bytes, self._stream)

    def _fill(self, items: Any) -> None:
        call, report = self._call, self._report
        for i, (item, request, chunk) in enumerate(zip(items, call.requests, call.chunks)):
            placed = request.place(request.to_place.address)
            if call.params is not None:
                item.src, item.dst, item.dst_capacity = placed, chunk.address, chunk.size
            else:
                item.dst, item.src = placed, chunk.address
                item.select = call.selects[i].address
            item.result = report.results[i] if call.results is None else call.results.pointer + i * RESULT_BYTES
            item.page_status, item.page_status_count = report.statuses[i], request.count

    def _run(self) -> _abi.Run:
        workspace, layout = self._means.workspace, self._layout
        scratch, size = workspace.scratch
        return _abi.Run(
            size=ctypes.sizeof(_abi.Run),
            scratch=scratch,
            scratch_size=size,
            stream=self._stream,
            class_stats=workspace.staging + layout.counters_at if layout.tables else None,
            class_count=layout.tables,
            sm_budget=self._means.sm_budget,
            tables=workspace.tables,
        )

    def _start(self, items: Any) -> None:
        variant, book, params, run = self._means.variant, self._means.book, self._call.params, self._run()
        if params is not None:
            status = lib.strait_encode_batch(variant, params, items, len(items), run)
        else:
            status = lib.strait_decode_batch(variant, book, items, len(items), run)
        _abi.check(status, self._call.what)

    def _collect(self) -> None:
        """What does not come to pinned memory by itself."""
        call, layout = self._call, self._layout
        if call.results is not None:
            size = len(call.requests) * RESULT_BYTES
            _driver.call("cuMemcpyAsync", self._report.results[0], call.results.pointer, size, self._stream)
        if layout.tables:
            counters = self._means.workspace.staging + layout.counters_at
            at = self._block.address + layout.stats_at
            _driver.call("cuMemcpyAsync", at, counters, layout.counter_bytes, self._stream)

    def _read(self) -> list[Outcome]:
        """When it is over."""
        call, layout, outcomes = self._call, self._layout, self._report.read()
        if call.stats is not None:
            told = sum(outcome.bytes for outcome in outcomes)
            raw, chunks = sum(request.raw_bytes for request in call.requests), sum(chunk.size for chunk in call.chunks)
            call.stats.raw_bytes, call.stats.chunk_bytes = (raw, told) if call.params is not None else (told, chunks)
            tell(call.stats, outcomes, self._block.row(layout.stats_at, _abi.CLASS_STATS, layout.tables))
        return outcomes
