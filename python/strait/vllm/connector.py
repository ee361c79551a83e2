"""The class that vLLM makes in its scheduler and in each of its workers."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import AttentionSpec, UniformTypeKVCacheSpecs

from .._compat import compat_token
from .._parallel import Rank
from ..service import Coding
from ..torch import host_pool
from .metadata import Handshake, StraitMetadata, rank_name
from .regions import Share, cache_of, layer_numbers, order_of_cpu, types_of
from .scheduler import Scheduler, withheld_tokens
from .stats import StraitPromMetrics, StraitStats
from .worker import Options, Worker

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = init_logger(f"vllm.{__name__}")

_DEFAULTS: dict[str, Any] = {
    "socket": None,
    "coding": "auto",
    "deadline": 30.0,
    "lease": 30.0,
    "connect_timeout": 30.0,
    "layerwise": False,
    "compat": "",
}


def options_of(extra: dict[str, Any]) -> tuple[Options, str]:
    """ValueError: an option that does not exist, or a value that it cannot have."""
    unknown = sorted(set(extra) - set(_DEFAULTS))
    if unknown:
        raise ValueError(f"strait: unknown option {', '.join(unknown)}; there are {', '.join(_DEFAULTS)}")
    values = {**_DEFAULTS, **extra}
    codings = [coding.name.lower() for coding in Coding]
    if values["coding"] not in codings:
        raise ValueError(f"strait: coding {values['coding']!r} is none of {', '.join(codings)}")
    for name in ("deadline", "lease", "connect_timeout"):
        values[name] = float(values[name])
        if not 0 < values[name] <= 86400:
            raise ValueError(f"strait: {name} must be above 0 and at most 86400 seconds")
    compat = values.pop("compat")
    coding = Coding[values.pop("coding").upper()]
    return Options(coding=coding, **values), compat


def _order_of(config: VllmConfig) -> str:
    model = config.model_config
    return order_of_cpu(model.dtype, config.cache_config.block_size, model.get_head_size())


def compat_of(config: VllmConfig, cache: KVCacheConfig) -> str:
    """What must be equal at both ends besides the geometry of the pool: the model's name and configuration, the cache's
    type, what else is in a block and in which order, the release of vLLM, which decides that, and how many tokens are
    not handed over. Layers are named only where their numbers do not say which they are."""
    model, parallel = config.model_config, config.parallel_config
    names = [name for group in cache.kv_cache_groups for name in group.layer_names]
    is_numbered = all(f".{number}." in name for name, number in layer_numbers(names).items())
    groups = [group.kv_cache_spec for group in cache.kv_cache_groups]
    withheld = withheld_tokens(config, cache)
    described = [
        model.hf_config.to_json_string(),
        str(model.revision),
        str(config.cache_config.cache_dtype),
        [] if is_numbered else [group.layer_names for group in cache.kv_cache_groups],
        [type(spec).__name__ for spec in groups],
        [spec.block_size for spec in groups if not isinstance(spec, (AttentionSpec, UniformTypeKVCacheSpecs))],
        _order_of(config),
        [
            parallel.decode_context_parallel_size,
            parallel.prefill_context_parallel_size,
            parallel.cp_kv_cache_interleave_size,
        ],
        vllm.__version__.split(".")[:2],
        *([withheld] if withheld else []),
    ]
    return compat_token(str(model.model), described)


def _share_of(config: VllmConfig, rank: Rank) -> Share:
    model = config.model_config
    total = 1 if model.use_mla else model.get_total_num_kv_heads()
    return Share(total, config.parallel_config.tensor_parallel_size, rank.tensor)


class StraitConnector(KVConnectorBase_V1, SupportsHMA):
    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig):
        super().__init__(vllm_config, role, kv_cache_config)
        transfer, parallel = self._kv_transfer_config, vllm_config.parallel_config
        options, compat = options_of(transfer.kv_connector_extra_config)
        self._scheduler: Scheduler | None = None
        self._worker: Worker | None = None
        if role == KVConnectorRole.SCHEDULER:
            if transfer.kv_load_failure_policy != "recompute":
                logger.warning("kv_load_failure_policy is not 'recompute': a load that fails will fail its request")
            withheld = withheld_tokens(vllm_config, kv_cache_config)
            self._scheduler = Scheduler(str(transfer.engine_id), kv_cache_config, options.layerwise, withheld)
        else:
            tensor = parallel.tensor_parallel_size
            rank = Rank(parallel.rank // tensor % parallel.pipeline_parallel_size, parallel.rank % tensor)
            self._share = _share_of(vllm_config, rank)
            compat = compat or compat_of(vllm_config, kv_cache_config)
            self._worker = Worker(options, kv_cache_config, rank_name(rank), compat)

    @property
    def _meta(self) -> StraitMetadata:
        meta = self._get_connector_metadata()
        assert isinstance(meta, StraitMetadata)
        return meta

    @property
    def scheduler(self) -> Scheduler:
        assert self._scheduler is not None
        return self._scheduler

    @property
    def worker(self) -> Worker:
        assert self._worker is not None
        return self._worker

    # ---- Workers

    def get_mem_pool_context(self) -> AbstractContextManager[Any] | None:
        return None if torch.cuda.is_available() else host_pool()

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        parallel = self._vllm_config.parallel_config
        whole = parallel.decode_context_parallel_size == parallel.prefill_context_parallel_size == 1
        order = _order_of(self._vllm_config)
        try:
            types = types_of(self._vllm_config, kv_caches)
            cache = cache_of(kv_caches, self._kv_cache_config, self._share, order, whole, types)
        except ValueError as failure:
            raise RuntimeError(f"strait: the KV cache cannot be described: {failure}") from failure
        self.worker.register(cache, any(one.is_cuda for one in kv_caches.values()))

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        return self.worker.handshake()

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        self.worker.begin(self._meta)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        assert isinstance(kv_connector_metadata, StraitMetadata)
        if kv_connector_metadata.preempted:
            self.worker.preempt(kv_connector_metadata.preempted)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self.worker.load(self._meta)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are done before their requests are scheduled."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        self.worker.layer_ready(layer_name)

    def wait_for_save(self) -> None:
        self.worker.end(self._meta)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        return self.worker.results(self._meta, finished_req_ids)

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self.worker.bad_blocks()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        return self.worker.metadata()

    def get_kv_connector_stats(self) -> StraitStats | None:
        return None if self._worker is None else self._worker.stats()

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.close()

    # ---- Scheduler

    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        self.scheduler.bind(kv_cache_manager)

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        handshakes: dict[Rank, Handshake] = {}
        for (pp_rank, tp_rank), handshake in metadata.items():
            assert isinstance(handshake, Handshake)
            handshakes[Rank(pp_rank, tp_rank)] = handshake
        self.scheduler.set_workers(handshakes)

    def get_loaded_kv_cache_group_ids(self, request: Request) -> tuple[int, ...]:
        return self._kv_cache_config.transfer_group_ids

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int, bool]:
        return self.scheduler.matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        self.scheduler.allocated(request, blocks, num_external_tokens)

    def on_new_request(self, request: Request) -> None:
        self.scheduler.new_request(request)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        return self.scheduler.build(scheduler_output)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        self.scheduler.update(connector_output)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.scheduler.finished(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.scheduler.finished(request, block_ids)

    def has_pending_push_work(self) -> bool:
        return self.scheduler.has_work()

    def has_pending_block_frees(self) -> bool:
        return self.scheduler.blocks_will_be_free()

    def reset_cache(self) -> bool:
        """Nothing is kept beyond requests."""
        return True

    # ---- The class

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        return bool(extra_config.get("layerwise", False))

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> StraitStats:
        return StraitStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any
    ) -> StraitPromMetrics:
        return StraitPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)
