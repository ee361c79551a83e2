"""The connector's half in vLLM's scheduler: which blocks of which request are to be sent, loaded or given up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from vllm.logger import init_logger
from vllm.v1.request import RequestStatus

from .._parallel import Parallel, Rank, consumers_of, sources_of, spare_of
from .metadata import (
    NULL_BLOCK,
    Handshake,
    Load,
    Peer,
    Prefill,
    Run,
    Source,
    StraitMetadata,
    WorkerMetadata,
    key_of,
    pack_blob,
    params_of,
    rank_name,
    runs_of,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = init_logger(f"vllm.{__name__}")

_PLANS = 256  # pairs of engines whose ranks are remembered
_PREFILLED = (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED)


def _trace_of(request: Request) -> str:
    """vLLM keeps a request's trace headers where its own tracing is on."""
    headers = request.trace_headers or {}
    return headers.get("traceparent", "")


@dataclass
class _Offer:
    """A request whose blocks another engine will take."""

    request: Request
    name: str
    early: bool  # somebody may wait already, so blocks are offered as they become complete
    offered: int = 0  # tokens of which blocks were given to the workers
    begun: bool = False  # the workers have an offer
    complete: bool = False  # with all its blocks
    lives: int = 0  # how often it was preempted

    @property
    def key(self) -> str:
        """Another one in each life: who knows the old one has heard that it failed."""
        return f"{self.name}#{self.lives}" if self.lives else self.name


def _parallel_of(handshakes: dict[Rank, Handshake]) -> Parallel:
    stages = {rank.stage: handshake.layers for rank, handshake in handshakes.items()}
    heads = {handshake.heads for handshake in handshakes.values()}
    tensor = 1 + max((rank.tensor for rank in handshakes), default=0)
    return Parallel(heads.pop() if len(heads) == 1 else 0, tensor, tuple(stages[n] for n in sorted(stages)))


def _by_name(ranks: dict[Rank, list[Rank]]) -> dict[str, list[str]]:
    return {rank_name(rank): [rank_name(one) for one in others] for rank, others in ranks.items()}


class Plan(NamedTuple):
    """Which of another engine's ranks this one's take from: what a Source has of it."""

    ranks: dict[str, list[str]]
    consumers: dict[str, int]
    spare: dict[str, list[str]]
    why_not: str = ""  # they do not fit, with both descriptions

    def source(self, peer: Peer) -> Source:
        return Source(peer, self.ranks, self.consumers, self.spare)


def withheld_tokens(config: VllmConfig, cache: KVCacheConfig) -> int:
    """Tokens at the end of a prompt of which nothing may be in what a prefill engine hands over. A decode engine
    computes the last token once more, to sample from. KV of it may be written twice, but the state of a Mamba layer
    would have seen it twice; windows that are replayed, and drafters of several modules, begin at the first token that
    is computed there."""
    replayed = any(group.kv_cache_spec.prefix_replay_tokens > 0 for group in cache.kv_cache_groups)
    return max(int(cache.has_mamba_layers or replayed), config.num_prefill_lookahead_tokens - 1)


class Scheduler:
    """Decisions alone: nothing of the library's lives here.

    withheld: tokens at the end of a prompt that prefill engines do not compute, because decode engines do in any case
        (withheld_tokens()).
    """

    def __init__(self, engine: str, config: KVCacheConfig, layerwise: bool, withheld: int = 0):
        self._engine, self._config, self._layerwise, self._withheld = engine, config, layerwise, withheld
        self._parallel = Parallel(0, 1, ((0, 0),))
        self._plans: dict[Parallel, Plan] = {}
        self._block_sizes = [group.kv_cache_spec.block_size for group in config.kv_cache_groups]
        self._groups = config.transfer_group_ids
        self._manager: KVCacheManager | None = None
        self._meta = StraitMetadata()
        self._pools: dict[str, str] = {}
        self._sources: dict[str, _Offer] = {}
        self._loading: set[str] = set()
        self._moving = 0

    def bind(self, manager: KVCacheManager) -> None:
        self._manager = manager

    def set_workers(self, handshakes: dict[Rank, Handshake]) -> None:
        self._pools = {rank_name(rank): pack_blob(handshake.blob) for rank, handshake in handshakes.items()}
        self._parallel = _parallel_of(handshakes)

    def _plan(self, peer: Peer) -> Plan:
        known = self._plans.get(peer.parallel)
        if known is None:
            known = self._plans[peer.parallel] = self._find_plan(peer.parallel)
            if len(self._plans) > _PLANS:
                self._plans.pop(next(iter(self._plans)))
            if known.why_not:
                logger.warning("strait: engine %s: %s: prompts are computed here", peer.engine, known.why_not)
        return known

    def _find_plan(self, prefill: Parallel) -> Plan:
        own = self._parallel
        try:
            consumers, spare = consumers_of(prefill, own), spare_of(prefill, own)
            ranks = {rank: sources_of(prefill, own, rank) for rank in own.ranks()}
        except ValueError as failure:
            return Plan({}, {}, {}, str(failure))
        named = {rank_name(rank): count for rank, count in consumers.items()}
        return Plan(_by_name(ranks), named, _by_name(spare))

    def _decline(self, peer: Peer) -> None:
        """By workers that could have taken from them: an offer ends with the first that declines it, if nobody has
        asked for it before."""
        plan = self._plan(peer)
        ranks = {rank: [*sources, *plan.spare.get(rank, ())] for rank, sources in plan.ranks.items()}
        if plan.why_not:
            ranks = {rank_name(Rank(0, 0)): [rank_name(rank) for rank in peer.parallel.ranks()]}
        self._meta.declined.append(Source(peer, ranks))

    # ---- The sink's requests

    def matched_tokens(self, request: Request, computed: int) -> tuple[int, bool]:
        params = params_of(request)
        peer = Peer.of(params) if params.get("do_remote_prefill") else None
        if peer is None or self._plan(peer).why_not:
            return 0, False
        count = self._handed_over(request) - computed
        return (count, True) if count > 0 else (0, False)

    def allocated(self, request: Request, blocks: KVCacheBlocks, external_tokens: int) -> None:
        params = params_of(request)
        if not params.get("do_remote_prefill"):
            return
        params["do_remote_prefill"] = False  # one transfer for a request
        peer = Peer.of(params)
        if peer is None:
            logger.warning("%s: kv_transfer_params are not Strait's, its prompt is computed here", request.request_id)
            return
        plan = self._plan(peer)
        if external_tokens > 0 and not plan.why_not:
            self._meta.loads[request.request_id] = Load(
                self._wanted(request, blocks), plan.source(peer), _trace_of(request), self._handed_over(request)
            )
            self._loading.add(request.request_id)
        else:
            self._decline(peer)

    def _wanted(self, request: Request, blocks: KVCacheBlocks) -> list[Run]:
        """Blocks of the prompt that hold nothing yet: others were found in the cache of this engine."""
        runs: list[Run] = []
        for group in self._groups:
            ids = [
                NULL_BLOCK if block.is_null or block.block_hash is not None else block.block_id
                for block in blocks.blocks[group]
            ]
            runs += runs_of(group, ids, 0, self._blocks_of(group, self._handed_over(request)))
        return runs

    def _handed_over(self, request: Request) -> int:
        """Tokens of the prompt that another engine has computed."""
        return max(len(request.prompt_token_ids or ()) - self._withheld, 0)

    def _blocks_of(self, group: int, tokens: int) -> int:
        return -(-tokens // self._block_sizes[group])

    # ---- The source's requests

    def new_request(self, request: Request) -> None:
        params = params_of(request)
        if not params.get("do_remote_decode"):
            return
        key = params.get("strait_key")
        known = key if isinstance(key, str) and key else None
        self._withhold(request)
        self._sources[request.request_id] = _Offer(request, key_of(known or request.request_id), known is not None)

    def _withhold(self, request: Request) -> None:
        """Takes the last tokens away, as vLLM's own connectors do: what is computed beyond a prompt is then no
        continuation of it, so it ends with one token. Prompts of no more tokens, and those of which a decode engine
        loads nothing, stay as they are."""
        count, ids = self._withheld, request.prompt_token_ids
        if count == 0 or request.num_prompt_tokens <= count or request.get_skip_reading_prefix_cache():
            return
        if ids is not None:
            del ids[-count:]
        elif request.prompt_embeds is not None:
            request.prompt_embeds = request.prompt_embeds[:-count]
        del request._all_token_ids[-count:]
        request.num_prompt_tokens -= count
        request.max_tokens = 1

    def _scheduled(self, output: SchedulerOutput) -> Iterable[tuple[str, int, Sequence[Sequence[int]]]]:
        """Requests that compute tokens in this step, how many they have after it, and their blocks."""
        for new in output.scheduled_new_reqs:
            yield new.req_id, new.num_computed_tokens + output.num_scheduled_tokens[new.req_id], new.block_ids
        cached = output.scheduled_cached_reqs
        for number, request in enumerate(cached.req_ids):
            if request in self._sources:
                assert self._manager is not None
                computed = cached.num_computed_tokens[number] + output.num_scheduled_tokens[request]
                yield request, computed, self._manager.get_block_ids(request)

    def _advance(self, name: str, computed: int, ids: Sequence[Sequence[int]]) -> None:
        source = self._sources[name]
        prompt = source.request.num_prompt_tokens
        final = computed >= prompt
        if source.complete or not (final or self._may_begin_early(source)):
            return
        runs: list[Run] = []
        for group in self._groups:
            size = self._block_sizes[group]
            end = self._blocks_of(group, prompt) if final else computed // size
            runs += runs_of(group, ids[group], source.offered // size, end)
        if not runs and not final:
            return
        if final and not runs and not source.begun:
            return  # a prompt without a block: there is nothing to hand over
        by_layer = self._layerwise and self._may_begin_early(source)
        trace = _trace_of(source.request)
        self._meta.prefills[name] = Prefill(source.key, runs, not source.begun, final, by_layer, trace)
        source.offered, source.begun, source.complete = computed, True, final

    def _may_begin_early(self, source: _Offer) -> bool:
        """Blocks of groups that forget their older ones may be given away while the prefill runs."""
        return source.early and len(self._config.kv_cache_groups) == 1

    def build(self, output: SchedulerOutput) -> StraitMetadata:
        for name in output.preempted_req_ids or ():
            source = self._sources.get(name)
            if source is None:
                continue
            if source.begun:
                self._meta.preempted.add(name)
                self._meta.prefills.pop(name, None)
            source.lives += 1
            source.offered, source.begun, source.complete = 0, False, False
        for name, computed, ids in self._scheduled(output):
            if name in self._sources:
                self._advance(name, computed, ids)
        meta, self._meta = self._meta, StraitMetadata()
        meta.idle = output.total_num_scheduled_tokens == 0
        return meta

    def finished(self, request: Request, block_ids: tuple[list[int], ...]) -> tuple[bool, dict[str, Any] | None]:
        """Whether the blocks must be kept for now, and what is to be told to the decode engine."""
        name = request.request_id
        params = params_of(request)
        if params.get("do_remote_prefill"):  # it ended before it was scheduled
            params["do_remote_prefill"] = False
            peer = Peer.of(params)
            if peer is not None:
                self._decline(peer)
        if name in self._loading:
            self._meta.ended.add(name)  # vLLM keeps the blocks until the workers report it
        source = self._sources.pop(name, None)
        if source is None:
            return False, None
        if request.status in _PREFILLED and any(block_ids):
            if not source.complete:  # its last step was not seen here
                runs = [run for group in self._groups for run in self._left(source, group, block_ids[group])]
                self._meta.prefills[name] = Prefill(source.key, runs, not source.begun, True, trace=_trace_of(request))
            return True, Peer(self._engine, source.key, self._pools, self._parallel).params()
        if source.begun:
            self._meta.ended.add(name)
        elif source.early:
            self._meta.refused.append(source.key)
        return source.begun, None

    def _left(self, source: _Offer, group: int, ids: Sequence[int]) -> list[Run]:
        """Blocks of the prompt that were not given to the workers."""
        begin = source.offered // self._block_sizes[group]
        return runs_of(group, ids, begin, self._blocks_of(group, source.request.num_prompt_tokens))

    # ---- What the workers say

    def update(self, output: KVConnectorOutput) -> None:
        self._loading -= output.finished_recving or set()
        if isinstance(output.kv_connector_worker_meta, WorkerMetadata):
            self._moving = output.kv_connector_worker_meta.moving

    def has_work(self) -> bool:
        """The workers are to hear something, even if there is nothing to compute."""
        return bool(self._meta)

    def blocks_will_be_free(self) -> bool:
        return self._moving > 0
