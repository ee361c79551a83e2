"""The connector's half in each of vLLM's workers: offers, expectations, and what has come of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.logger import init_logger

from .. import service
from .._views import ArrayLike
from ..codebook import ClassLike
from ..errors import Error
from ..service import Coding, Event, EventType, Mismatch, Pages, Region, State, Transfer
from .metadata import Handshake, Load, Peer, Prefill, Source, StraitMetadata, WorkerMetadata, key_of, unpack_blob
from .regions import Cache
from .stats import StraitStats

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = init_logger(f"vllm.{__name__}")

_IDLE_WAIT = 0.002  # seconds that an engine without work waits for a transfer before it steps again
_DRAIN_WAIT = 5.0  # seconds after which blocks that are still in use are a fault
_SLOW_DRAIN = 0.05
_RECONNECT_WAIT = 0.1
_QUIET = 10.0  # seconds between two lines about failures
_PEERS = 256  # pools of other engines' ranks that are kept


@dataclass
class _Send:
    request: str
    transfer: Transfer
    complete: bool = False  # it has all its blocks
    ended: bool = False  # given up by this engine


@dataclass
class _Receive:
    request: str
    transfer: Transfer
    load: Load
    began: float
    blocks: int


@dataclass
class _Step:
    """Blocks of the current step that become ready layer by layer."""

    prefill: Prefill
    transfer: Transfer
    layers: set[int] = field(default_factory=set)


def _usable(trace: str) -> str:
    """The trace that a request's client named, which may be anything: no request fails for it."""
    return "" if service.check_trace(trace) else trace


@dataclass(frozen=True)
class Options:
    """See the package's text."""

    socket: str | None
    coding: Coding
    deadline: float
    lease: float
    connect_timeout: float
    layerwise: bool


class Worker:
    """rank: of rank_name()."""

    def __init__(self, options: Options, config: KVCacheConfig, rank: str, compat: str):
        self._options, self._config, self._rank, self._compat = options, config, rank, compat
        self._client = service.Client(options.socket)
        self._pool: service.Pool
        self._blob = b""
        self._cache: Cache
        self._block_bytes: dict[int, int] = {}
        self._layers: dict[str, int] = {}
        self._on_gpu = False
        self._peers: dict[str, service.Peer] = {}  # by blob as it comes, the last one used last
        self._sends: dict[Transfer, _Send] = {}
        self._receives: dict[Transfer, _Receive] = {}
        self._spare: set[Transfer] = set()  # of no blocks
        self._by_request: dict[str, Transfer] = {}
        self._held: list[tuple[Any, dict[str, Load]]] = []  # loads behind an event of the GPU
        self._steps: list[_Step] = []
        self._sent: set[str] = set()  # requests whose offers have ended
        self._finished: set[str] = set()  # requests that have, of those
        self._bad_blocks: set[int] = set()
        self._results = KVConnectorTransferResults()
        self._stats = StraitStats()
        self._told = self._waited = 0.0

    # ---- The pool

    def register(self, cache: Cache, on_gpu: bool) -> None:
        """RuntimeError, with the reason, if the daemon does not take the cache: the engine cannot start like this."""
        self._cache, self._layers, self._on_gpu = cache, cache.layers, on_gpu
        self._block_bytes = cache.block_bytes()
        pools: dict[ClassLike, ArrayLike | Region] = {**cache.regions}
        try:
            self._pool = self._client.register(pools, compat=self._compat)
            self._blob = self._pool.export(timeout=self._options.connect_timeout)
        except (Error, ValueError) as failure:
            raise RuntimeError(f"strait: the KV cache could not be registered: {failure}") from failure
        self._pool.set_policy(self._options.coding)

    def handshake(self) -> Handshake:
        numbers = self._layers.values()
        return Handshake(self._blob, self._cache.heads, (min(numbers, default=0), max(numbers, default=-1) + 1))

    def _peer_of(self, peer: Peer, rank: str) -> service.Peer:
        """ValueError: there is no such rank there."""
        packed = peer.pools.get(rank)
        if not isinstance(packed, str):
            raise ValueError(f"engine {peer.engine} has no rank {rank}, only {', '.join(peer.pools) or 'none'}")
        known = self._peers.pop(packed, None) or self._client.import_peer(unpack_blob(packed))
        self._peers[packed] = known
        return known

    def _forget_peers(self) -> None:
        """Those that were used longest ago. Not while any are in hand; what was started with them goes on."""
        while len(self._peers) > _PEERS:
            self._peers.pop(next(iter(self._peers))).remove()

    def _sources_of(self, source: Source) -> dict[str, service.Peer]:
        """The other engine's ranks that have what this one wants. ValueError: one of them does not fit."""
        peers = {rank: self._peer_of(source.peer, rank) for rank in source.ranks.get(self._rank, ())}
        for peer in peers.values():
            if self._pool.mismatch(peer) & Mismatch.FATAL:
                raise ValueError(f"engine {source.peer.engine} does not fit: {self._pool.explain(peer)}")
        return peers

    # ---- A step

    def begin(self, meta: StraitMetadata) -> None:
        """Before the model runs, so that loads are under way meanwhile. On a GPU they begin behind an event, as the
        step clears blocks first, of those that are loaded into too."""
        for request in meta.ended:
            self._give_up(request)
        if meta.loads and self._on_gpu:
            self._held.append((self._event(), meta.loads))
        else:
            self._expect(meta.loads)
        for request, prefill in meta.prefills.items():
            if prefill.by_layer:
                transfer = self._offer(request, prefill)
                if transfer is not None:
                    self._steps.append(_Step(prefill, transfer))

    def preempt(self, requests: set[str]) -> None:
        """Nothing reads the blocks of these any more when it returns. RuntimeError: something still does."""
        transfers = [self._by_request[name] for name in requests if name in self._by_request]
        began = time.monotonic()
        for transfer in transfers:
            transfer.abort()
        while any(transfer in self._sends for transfer in transfers):
            self._take(self._client.wait(0.01))
            if time.monotonic() - began > _DRAIN_WAIT:
                raise RuntimeError("strait: blocks of a preempted request are still read; the daemon hangs")
        spent = time.monotonic() - began
        if spent > _SLOW_DRAIN:
            logger.warning("preempted blocks were free after %.0f ms", 1e3 * spent)
        self._sent -= requests  # they will begin again

    def layer_ready(self, layer: str) -> None:
        number = self._layers.get(layer)
        if number is None:
            return
        for step in self._steps:
            if step.prefill.runs and number not in step.layers:
                ready = self._event()
                self._try(step.transfer, self._cache.pages_of(step.prefill.runs), range(number, number + 1), ready)
                step.layers.add(number)

    def end(self, meta: StraitMetadata) -> None:
        """After the model has run: what it computed is ready, behind an event on a GPU."""
        with self._client.corked():
            self._append_rest(meta)

    def _append_rest(self, meta: StraitMetadata) -> None:
        ready = self._event() if meta.prefills else None
        for step in self._steps:
            if step.prefill.runs:
                for number in sorted(set(self._layers.values()) - step.layers):
                    self._try(step.transfer, self._cache.pages_of(step.prefill.runs), range(number, number + 1), ready)
            if step.prefill.final:
                self._try(step.transfer, [], None, None, last=True)
        self._steps = []
        for request, prefill in meta.prefills.items():
            if prefill.by_layer:
                continue
            transfer = self._offer(request, prefill)
            if transfer is not None:
                self._try(transfer, self._cache.pages_of(prefill.runs), None, ready, last=prefill.final)

    def load(self, meta: StraitMetadata) -> None:
        """Begins what the scheduler wants besides."""
        for source in meta.declined:
            if self._decline(source):
                self._stats.count("declined")
        for key in meta.refused:
            self._refuse(key)
        self._begin_held()

    def _refuse(self, key: str) -> None:
        try:
            refused = self._pool.offer(key, lease=self._options.lease)
            refused.abort()
            refused.release()
        except (Error, ValueError) as failure:  # the other engine's deadline will end it
            self._complain("a request could not be refused: %s", failure)

    def _begin_held(self) -> None:
        while self._held and self._held[0][0].query():
            self._expect(self._held.pop(0)[1])

    def _event(self) -> Any:
        if not self._on_gpu:
            return None
        event: Any = cast(Any, torch.cuda.Event)(interprocess=True)
        event.record()
        return event

    def _offer(self, request: str, prefill: Prefill) -> Transfer | None:
        """The request's offer, which is made with its first blocks; None: it has ended. The decode engine knows how
        many of its ranks take it."""
        if prefill.first:
            try:
                transfer = self._pool.offer(
                    prefill.key, lease=self._options.lease, consumers=None, trace=_usable(prefill.trace)
                )
            except (Error, ValueError) as failure:
                self._complain("%s: its blocks cannot be offered: %s", request, failure)
                self._sent.add(request)
                return None
            self._sends[transfer] = _Send(request, transfer)
            self._by_request[request] = transfer
        return self._by_request.get(request)

    def _try(
        self, transfer: Transfer, pages: list[Pages], layers: range | None, ready: Any, last: bool = False
    ) -> None:
        """An offer that has failed meanwhile says so in an event."""
        if transfer not in self._sends:
            return
        try:
            transfer.append(pages, layers=layers, ready=ready, last=last)
            self._sends[transfer].complete |= last
        except (Error, ValueError) as failure:
            self._complain("an offer cannot go on: %s", failure)
            transfer.abort()

    def _expect(self, loads: dict[str, Load]) -> None:
        if not loads:
            return
        connected = self._is_connected()
        with self._client.corked():
            for request, load in loads.items():
                self._expect_one(request, load, connected)

    def _expect_one(self, request: str, load: Load, connected: bool) -> None:
        blocks = sum(len(ids) for _, _, ids in load.runs)
        try:
            peers = self._sources_of(load.source)
            if not connected:
                raise ValueError("the daemon of this node is away")
            transfer = self._pool.expect(
                key_of(request),
                self._cache.pages_of(load.runs),
                deadline=self._options.deadline,
                sources=len(peers),
                tokens=load.tokens,
                trace=_usable(load.trace),
            )
        except (Error, ValueError) as failure:
            self._failed(request, load, str(failure))
            if connected:
                self._decline(load.source)
            return
        self._receives[transfer] = _Receive(request, transfer, load, time.perf_counter(), blocks)
        self._by_request[request] = transfer
        try:
            for rank, peer in peers.items():
                transfer.start(peer, load.source.peer.key, consumers=load.source.consumers.get(rank, 1))
        except (Error, ValueError) as failure:
            self._complain("blocks of engine %s cannot be loaded: %s", load.source.peer.engine, failure)
            transfer.abort()
            self._decline(load.source)
            return
        self._let_go(request, load.source)

    def _let_go(self, request: str, source: Source) -> None:
        """Ranks of the other engine whose heads others of its ranks have: who takes nothing ends their offers, too."""
        for rank in source.spare.get(self._rank, ()):
            try:
                taken = self._pool.expect(key_of(f"{request} {rank}"), deadline=self._options.deadline)
                self._spare.add(taken)
                taken.start(self._peer_of(source.peer, rank), source.peer.key, consumers=1)
            except (Error, ValueError) as failure:  # its lease will end it
                self._complain("blocks of engine %s are not let go: %s", source.peer.engine, failure)

    def _is_connected(self) -> bool:
        """A daemon that is being restarted is given a moment, once a second."""
        self._take(self._client.poll())
        now = time.monotonic()
        if self._client.connected or now - self._waited < 1:
            return self._client.connected
        while not self._client.connected and time.monotonic() - now < _RECONNECT_WAIT:
            self._take(self._client.wait(0.01))
        self._waited = time.monotonic()
        return self._client.connected

    def _decline(self, source: Source) -> bool:
        """At each of the other engine's ranks of which this one knows. False: one could not be told."""
        told = True
        for rank in (*source.ranks.get(self._rank, ()), *source.spare.get(self._rank, ())):
            try:
                self._pool.decline(self._peer_of(source.peer, rank), source.peer.key)
            except (Error, ValueError) as failure:  # the other engine's lease will end it
                self._complain("a request could not be declined: %s", failure)
                told = False
        return told

    def _give_up(self, request: str) -> None:
        for number, (event, loads) in enumerate(self._held):
            if request in loads:
                self._decline(loads[request].source)
                self._held[number] = (event, {name: load for name, load in loads.items() if name != request})
                self._results.finished_recving.add(request)
        transfer = self._by_request.get(request)
        if transfer is None:
            return
        if transfer in self._sends:
            self._sends[transfer].ended = True
        transfer.abort()

    # ---- What has come of it

    def results(self, meta: StraitMetadata, finished: set[str]) -> KVConnectorTransferResults:
        """finished: requests that have ended since the last call. One whose offer ended earlier is reported then."""
        self._finished |= {name for name in finished if name in self._sent or self._by_request.get(name) in self._sends}
        self._begin_held()
        self._forget_peers()
        self._take(self._client.poll())
        if meta.idle:
            self._wait_for_an_end()
        results, self._results = self._results, KVConnectorTransferResults()
        results.finished_sending = self._sent & self._finished
        self._sent -= results.finished_sending
        self._finished -= results.finished_sending
        return results

    def _wait_for_an_end(self) -> None:
        """Of a transfer: another step of an engine without work costs more than its end is away. What else happens to
        transfers is no reason for one."""
        transfers, end = len(self._sends) + len(self._receives), time.monotonic() + _IDLE_WAIT
        while 0 < transfers <= len(self._sends) + len(self._receives):
            left = end - time.monotonic()
            if left <= 0:
                return
            self._take(self._client.wait(left))

    def _take(self, events: list[Event]) -> None:
        for event in events:
            if event.type == EventType.CONNECTION and not event.connected:
                self._complain("the daemon is away: %s", event.text or "the connection ended")
            if event.type in (EventType.STATE, EventType.DRAINED) and event.transfer is not None:
                self._ended(event.transfer, event)

    def _ended(self, transfer: Transfer, event: Event) -> None:
        state = event.state
        if state == State.FAILED and event.type == EventType.STATE and transfer in self._receives:
            request = self._receives[transfer].request
            self._complain("%s: its blocks were not loaded: %s %s", request, event.reason.text, event.text)
        if event.type == EventType.STATE and not (state in (State.DONE, State.FAILED) and event.drained):
            return
        if transfer in self._sends:
            send = self._sends.pop(transfer)
            self._forget(send.request, transfer)
            self._sent.add(send.request)
            if not send.ended:
                self._stats.count("sends" if state == State.DONE else "failed_sends")
        elif transfer in self._receives:
            receive = self._receives.pop(transfer)
            self._forget(receive.request, transfer)
            if state == State.DONE:
                self._results.finished_recving.add(receive.request)
                size = sum(len(ids) * self._block_bytes.get(group, 0) for group, _, ids in receive.load.runs)
                self._stats.loaded(time.perf_counter() - receive.began, size, receive.blocks)
            else:
                self._failed(receive.request, receive.load, "")
        self._spare.discard(transfer)
        transfer.release()

    def _forget(self, request: str, transfer: Transfer) -> None:
        if self._by_request.get(request) is transfer:
            del self._by_request[request]

    def _failed(self, request: str, load: Load, why: str) -> None:
        """The request's tokens are computed here instead."""
        self._results.finished_recving.add(request)
        self._stats.count("failed_loads")
        if why:
            self._complain("%s: its blocks were not loaded: %s", request, why)
        if len(self._config.kv_cache_groups) == 1:
            self._bad_blocks |= {block for _, _, ids in load.runs for block in ids}
        else:
            self._results.failed_recving.add(request)

    def bad_blocks(self) -> set[int]:
        bad, self._bad_blocks = self._bad_blocks, set()
        return bad

    def stats(self) -> StraitStats | None:
        return None if self._stats.is_empty() else self._stats.take()

    def metadata(self) -> WorkerMetadata:
        """A prefill that is not complete frees nothing: it may itself wait for blocks."""
        complete = [send.transfer for send in self._sends.values() if send.complete]
        return WorkerMetadata(sum(transfer.progress.state == State.TRANSFERRING for transfer in complete))

    def _complain(self, text: str, *arguments: Any) -> None:
        now = time.monotonic()
        if now - self._told >= _QUIET:
            self._told = now
            logger.warning("strait: " + text, *arguments)
        else:
            logger.debug("strait: " + text, *arguments)

    def close(self) -> None:
        """Ends all transfers, and waits until nothing touches the cache any more, or the daemon is gone."""
        end = time.monotonic() + _DRAIN_WAIT
        for transfer in (*self._sends, *self._receives, *self._spare):
            transfer.abort()
        while (self._sends or self._receives or self._spare) and time.monotonic() < end:
            self._take(self._client.wait(0.05))
        self._client.close()
