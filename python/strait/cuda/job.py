"""Calls that run on a stream, and what became of them."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _abi
from .._abi import BLOCK_MODES
from ..errors import AgainError, DeviceError, Error, Status, make_error
from ..run import Stats
from . import _driver, _pinned
from .order import StreamLike, handle_of

RESULT_BYTES = 64  # of struct strait_result


@dataclass(frozen=True)
class Outcome:
    """What became of one chunk.

    bytes: encode: of the chunk, 0 when it failed; decode: of pages that passed.
    status: a Status: OK, what is wrong with the chunk as a whole, or the first failed page's.
    page_status: int32 [pages of the list], each a Status. values: values by what became of their block.
    """

    bytes: int
    status: int
    chunk_status: int
    page_status: NDArray[np.int32]
    values: dict[str, int]

    @property
    def failed_pages(self) -> list[int]:
        """Indices of the pages whose status is not OK."""
        return [int(page) for page in np.flatnonzero(self.page_status)]


def _error_of(outcome: Outcome, what: str) -> Error:
    """As the host's calls word it."""
    if outcome.chunk_status != Status.OK:
        return make_error(outcome.chunk_status, f"{what}: {_abi.status_text(outcome.chunk_status)}")
    failed, count = outcome.failed_pages, len(outcome.page_status)
    first = _abi.status_text(int(outcome.page_status[failed[0]]))
    message = f"{what}: {len(failed)} of {count} pages failed, first page {failed[0]}: {first}"
    return make_error(outcome.status, message, outcome.page_status)


class Flight:
    """What a call's work needs until it is over: kept here, not by those who may forget the job."""

    def __init__(self) -> None:
        self.event = _driver.event_create()
        weakref.finalize(self, _driver.call, "cuEventDestroy_v2", self.event).atexit = False
        self.blocks: list[_pinned.Block] = []
        self.kept: list[Any] = []
        self.report: Callable[[], list[Outcome]] = list  # reads what is in the blocks
        self._outcomes: list[Outcome] | None = None
        self._lock = threading.Lock()

    def launch(self, stream: int) -> None:
        """All is queued, be it for nothing: nothing of it may be used for something else before it has run."""
        _driver.call("cuEventRecord", self.event, stream)
        _flying.append(self)

    def done(self) -> bool:
        return self._outcomes is not None or _driver.event_done(self.event)

    def finish(self) -> list[Outcome]:
        """It is over: reads what became of it, and lets go of everything."""
        with self._lock:
            if self._outcomes is None:
                self._outcomes = self.report()
                for block in self.blocks:
                    _pinned.give(block)
                self.blocks, self.kept, self.report = [], [], list
            return self._outcomes


_flying: deque[Flight] = deque()
_AT_ONCE = 4  # more than one call adds


def reap() -> None:
    """Lets go of what is over, a few at a time, so that a call costs the same however many are under way."""
    for _ in range(_AT_ONCE):
        try:
            flight = _flying.popleft()
        except IndexError:
            return
        try:
            if flight.done():
                flight.finish()
                continue
        except DeviceError:  # the job reports it when asked
            continue
        _flying.append(flight)


class Job:
    """A call that has been queued: it runs when its stream comes to it.

    Work that is queued on the same stream behind it comes after it, without waiting: the host has to wait, in wait(),
    only to learn what became of it. What the call reads and writes is kept alive until it is over, also when the job is
    forgotten.
    """

    def __init__(self, flight: Flight, what: str, count: int):
        self._flight, self._what, self._count = flight, what, count

    def done(self) -> bool:
        """Whether it is over. DeviceError: the device has failed."""
        return self._flight.done()

    def wait(self, check: bool = True) -> list[Outcome]:
        """Waits, on the host, until it is over; returns what became of each chunk.

        The exceptions of strait.encode() and strait.decode(), for the first chunk that failed; with check=False none of
        them. DeviceError: the device has failed.
        """
        if not self._flight.done():
            _driver.call("cuEventSynchronize", self._flight.event)
        outcomes = self._flight.finish()
        for i, outcome in enumerate(outcomes):
            if check and outcome.status != Status.OK:
                raise _error_of(outcome, self._what if self._count == 1 else f"{self._what}, item {i}")
        return outcomes

    @property
    def outcomes(self) -> list[Outcome]:
        """What became of each chunk. AgainError: it is not over."""
        if not self.done():
            raise AgainError(f"{self._what}: not over yet", Status.ERR_AGAIN)
        return self._flight.finish()

    @property
    def bytes(self) -> int:
        """Of the chunk, of a call that encoded one; of pages that passed, of one that decoded one. AgainError."""
        if self._count != 1:
            raise ValueError(f"{self._count} chunks have {self._count} outcomes")
        return self.outcomes[0].bytes

    def hold(self, stream: StreamLike) -> None:
        """Lets work that is queued on another stream from now on wait for this. The host does not wait."""
        if stream is None:
            raise TypeError("which stream is to wait must be said")
        _driver.call("cuStreamWaitEvent", handle_of(stream), self._flight.event, 0)


class Report:
    """Where a call reports: results and statuses of pages in pinned memory, in the order of the chunks."""

    def __init__(self, block: _pinned.Block, pages: list[int]):
        self.block, self.pages = block, pages
        self.results = [block.address + i * RESULT_BYTES for i in range(len(pages))]
        at = block.address + len(pages) * RESULT_BYTES
        self.statuses = []
        for count in pages:
            self.statuses.append(at)
            at += 4 * count

    @staticmethod
    def size(pages: list[int]) -> int:
        return len(pages) * RESULT_BYTES + 4 * sum(pages)

    def read(self) -> list[Outcome]:
        """Copies all of it, when it is complete."""
        statuses = self.block.row(len(self.pages) * RESULT_BYTES, np.int32, sum(self.pages)).copy()
        outcomes, at = [], 0
        for address, count in zip(self.results, self.pages):
            result = _abi.Result.from_address(address)
            status = statuses[at : at + count]
            if result.chunk_status != Status.OK:
                status[:] = result.chunk_status
            values = dict(zip(BLOCK_MODES, result.values))
            outcomes.append(Outcome(result.bytes, result.status, result.chunk_status, status, values))
            at += count
        return outcomes


def tell(stats: Stats, outcomes: list[Outcome], classes: NDArray[Any]) -> None:
    """All but the bytes, which only the call knows on both sides."""
    stats.values = {name: sum(outcome.values[name] for outcome in outcomes) for name in BLOCK_MODES}
    stats.table_values, stats.table_escapes = classes["values"].copy(), classes["escapes"].copy()
    stats.page_status = np.concatenate([outcome.page_status for outcome in outcomes])
