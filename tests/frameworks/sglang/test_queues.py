"""SGLang's own queues over the backend: PrefillBootstrapQueue and the prefill scheduler's inflight queue at one side,
DecodePreallocQueue and DecodeTransferQueue at the other, with its requests, allocators and caches. What a model would
compute is random; the rest of the scheduler is not there."""

import os
from array import array
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from rig import HEADS, LAYERS, PAGE, PAGES, SIZE, Bootstrap, publish_options, until
from sglang.srt.disaggregation.decode import DecodePreallocQueue, DecodeReqToTokenPool, DecodeTransferQueue
from sglang.srt.disaggregation.prefill import PrefillBootstrapQueue, SchedulerDisaggregationPrefillMixin
from sglang.srt.disaggregation.utils import (
    DisaggregationMode,
    MetadataBuffers,
    ReqToMetadataIdxAllocator,
    TransferBackend,
)
from sglang.srt.managers.schedule_batch import FINISH_ABORT, Req
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixCache
from sglang.srt.runtime_context import get_parallel
from sglang.srt.sampling.sampling_params import SamplingParams
from strait.torch import host_pool

REQUESTS, ROWS, LENGTH = 16, 24, 512


class Side:
    """What both schedulers have; it stands for one as far as the queues look."""

    def __init__(self, daemon, port, mode):
        os.environ["STRAIT_SOCKET"] = str(daemon.socket)
        self.scheduler_stage_metrics = None
        self.server_args = publish_options(mode, disaggregation_bootstrap_port=port)
        with host_pool(1):
            self.pool = MHATokenToKVPool((PAGES - 1) * PAGE, PAGE, torch.bfloat16, HEADS, SIZE, LAYERS, "cpu", False)
        size = (PAGES - 1) * PAGE
        self.token_to_kv_pool_allocator = PagedTokenToKVPoolAllocator(
            size, PAGE, torch.bfloat16, "cpu", self.pool, False
        )
        kind, more = (ReqToTokenPool, ()) if mode == "prefill" else (DecodeReqToTokenPool, (REQUESTS,))
        self.req_to_token_pool = kind(REQUESTS, LENGTH, "cpu", False, *more)
        params = CacheInitParams(True, self.req_to_token_pool, self.token_to_kv_pool_allocator, PAGE)
        self.tree_cache = RadixCache(params)
        self.disagg_metadata_buffers = MetadataBuffers(ROWS, 64, torch.float32, 8)
        self.req_to_metadata_buffer_idx_allocator = ReqToMetadataIdxAllocator(ROWS)
        group = get_parallel().attn_tp_group.cpu_group
        self.attn_tp_cpu_group = self.attn_cp_cpu_group = group
        self.output_streamer, self.metrics_collector, self.batch_result_processor = Mock(), Mock(), Mock()
        self.metrics_reporter = Mock(enable_metrics=False, current_scheduler_metrics_enabled=False)
        self.model_config = Mock(num_hidden_layers=LAYERS)
        self.model_config.get_total_num_kv_heads.return_value = HEADS
        runner = Mock(
            kv_cache_dtype_str="bfloat16", effective_logical_max_total_num_tokens=size, max_token_pool_size=size
        )
        self.tp_worker = Mock(model_runner=runner, is_hybrid_swa=False)
        self.rust_server = self.spec_algorithm = self.last_batch = self.sliding_window_size = None
        self.spec_algorithm = Mock()
        self.spec_algorithm.is_none.return_value = True
        self.running_batch, self.waiting_queue = Mock(reqs=[]), []
        self.kv_shard_widening, self.random_seed, self.processed_tokens_counter = 1, 1, 0
        self.enable_overlap = self.enable_staging = self.enable_hisparse = self.enable_lora = False
        self.enable_decode_hicache = self.enable_priority_scheduling = False
        self.free = self.free_of()

    def free_of(self):
        """Tokens, rows of requests and rows of metadata that are free."""
        rows = self.req_to_token_pool.available_size()
        return (
            self.token_to_kv_pool_allocator.available_size(),
            rows,
            self.req_to_metadata_buffer_idx_allocator.available_size(),
        )

    def bytes_of(self, req, length):
        slots = self.req_to_token_pool.req_to_token[req.kv.req_pool_idx, :length].long()
        return torch.stack([buffer.view(torch.int16)[slots] for buffer in (*self.pool.k_buffer, *self.pool.v_buffer)])


class Prefill(Side, SchedulerDisaggregationPrefillMixin):
    def __init__(self, daemon, port):
        super().__init__(daemon, port, "prefill")
        self.disagg_prefill_inflight_queue, self.disagg_prefill_pending_chunk_rids = [], set()
        self.disagg_prefill_bootstrap_queue = PrefillBootstrapQueue(
            token_to_kv_pool=self.pool,
            draft_token_to_kv_pool=None,
            req_to_metadata_buffer_idx_allocator=self.req_to_metadata_buffer_idx_allocator,
            metadata_buffers=self.disagg_metadata_buffers,
            gpu_id=0,
            bootstrap_port=port,
            max_total_num_tokens=0,
            scheduler=self,
            scheduler_stage_metrics=self.scheduler_stage_metrics,
            transfer_backend=TransferBackend("strait"),
        )
        self.manager = self.disagg_prefill_bootstrap_queue.kv_manager

    def _release_aborted_request(self, req):
        """The scheduler's; what is cached of it is not there."""

    def compute(self, req, first, last):
        """Tokens [first, last) of a prompt."""
        allocator, device = self.token_to_kv_pool_allocator, torch.int64
        if first == 0:
            self.req_to_token_pool.alloc([req])
        before, after = torch.tensor([first], dtype=device), torch.tensor([last], dtype=device)
        row = self.req_to_token_pool.req_to_token[req.kv.req_pool_idx]
        end = row[first - 1 : first].long() if first else torch.tensor([-1])
        slots = allocator.alloc_extend(before, before, after, after, end, last - first)
        self.req_to_token_pool.write((req.kv.req_pool_idx, slice(first, last)), slots.to(torch.int32))
        for buffer in (*self.pool.k_buffer, *self.pool.v_buffer):
            buffer[slots] = torch.randn(len(slots), HEADS, SIZE).to(torch.bfloat16)
        req.extend_end = req.kv.kv_allocated_len = req.kv.kv_committed_len = last
        req.full_untruncated_fill_ids = req.origin_input_ids + req.output_ids

    def run(self, req):
        """A prefill in chunks, as process_prefill_chunk() and process_batch_result_disagg_prefill() do it."""
        length = len(req.origin_input_ids)
        for first in range(0, length, 100):
            self.compute(req, first, min(first + 100, length))
            if first + 100 < length:
                self.send_kv_chunk(req)
        req.output_ids.append(int(req.rid) + 1000)
        self.disagg_prefill_inflight_queue.append(req)
        self.send_kv_chunk(req, last_chunk=True)


class Decode(Side):
    def __init__(self, daemon, port):
        super().__init__(daemon, port, "decode")
        self.disagg_decode_prealloc_queue = None
        allocators = (self.req_to_metadata_buffer_idx_allocator, self.disagg_metadata_buffers)
        self.disagg_decode_transfer_queue = DecodeTransferQueue(*allocators, self, self.tree_cache)
        self.disagg_decode_prealloc_queue = DecodePreallocQueue(
            req_to_token_pool=self.req_to_token_pool,
            token_to_kv_pool_allocator=self.token_to_kv_pool_allocator,
            draft_token_to_kv_pool=None,
            req_to_metadata_buffer_idx_allocator=self.req_to_metadata_buffer_idx_allocator,
            metadata_buffers=self.disagg_metadata_buffers,
            scheduler=self,
            transfer_queue=self.disagg_decode_transfer_queue,
            tree_cache=self.tree_cache,
            gpu_id=0,
            bootstrap_port=port,
            max_total_num_tokens=(PAGES - 1) * PAGE,
            num_reserved_decode_tokens=16,
            transfer_backend=TransferBackend("strait"),
        )
        self.manager = self.disagg_decode_prealloc_queue.kv_manager

    def step(self):
        """As process_decode_queue() does it; returns requests whose pages have come."""
        queue = self.disagg_decode_transfer_queue
        queue.resolve_deferred_releases()
        queue.extend(self.disagg_decode_prealloc_queue.pop_preallocated()[0])
        return queue.pop_transferred()


class Engines:
    def __init__(self, nodes):
        self.bootstrap = Bootstrap()
        self.prefill = Prefill(nodes.daemons[0], self.bootstrap.port)
        self.decode = Decode(nodes.daemons[1], self.bootstrap.port)
        self.number = 0

    def requests(self, length):
        self.number += 1
        pair = []
        for mode in (DisaggregationMode.PREFILL, DisaggregationMode.DECODE):
            req = Req(
                str(self.number),
                "",
                array("q", range(length)),
                SamplingParams(max_new_tokens=8),
                bootstrap_host="127.0.0.1",
                bootstrap_port=self.bootstrap.port,
                bootstrap_room=self.number + 10**12,
                disagg_mode=mode,
                vocab_size=10000,
            )
            pair.append(req)
        return pair

    def all_free(self):
        self.decode.step()
        self.prefill.process_disagg_prefill_inflight_queue()
        return all(
            side.free_of() == side.free and not side.manager.strait._links and not side.manager.request_status
            for side in (self.prefill, self.decode)
        )

    def close(self):
        self.prefill.manager.close()
        self.decode.manager.close()
        self.bootstrap.stop()


@pytest.fixture(scope="module")
def engines(nodes):
    engines = Engines(nodes)
    yield engines
    engines.close()


def ready(engines, *sources):
    """Leads requests through both queues until the prefill engine may compute them."""
    waiting = {req.rid for req in sources}

    def bootstrapped():
        engines.decode.step()
        waiting.difference_update(req.rid for req in engines.prefill.disagg_prefill_bootstrap_queue.pop_bootstrapped())
        return not waiting

    until(bootstrapped, what="the bootstrap of all requests")


def test_requests_go_through_the_queues(engines):
    lengths = [int(length) for length in np.random.default_rng(2).integers(1, 500, 40)]
    for start in range(0, 40, 8):
        pairs = [engines.requests(length) for length in lengths[start : start + 8]]
        for source, sink in pairs:
            engines.prefill.disagg_prefill_bootstrap_queue.add(source, HEADS)
            engines.decode.disagg_decode_prealloc_queue.add(sink)
        ready(engines, *(source for source, _ in pairs))
        expected = {}
        for source, _ in pairs:
            engines.prefill.run(source)
            expected[source.rid] = engines.prefill.bytes_of(source, len(source.origin_input_ids))
        done, sent = [], []

        def ended(done=done, sent=sent):
            sent.extend(engines.prefill.process_disagg_prefill_inflight_queue())
            done.extend(engines.decode.step())
            return len(done) == len(sent) == 8

        until(ended, what="the end of all requests")
        for sink in done:
            assert list(sink.output_ids) == [int(sink.rid) + 1000]
            assert torch.equal(engines.decode.bytes_of(sink, len(sink.origin_input_ids)), expected[sink.rid])
            release(engines.decode, sink)
        assert all(not isinstance(source.finished_reason, FINISH_ABORT) for source in sent)
    until(engines.all_free, what="the release of all that is held")


def release(side, req):
    from sglang.srt.mem_cache.common import release_kv_cache

    release_kv_cache(req, side.tree_cache, checkpoint=False)


@pytest.mark.parametrize("who", ["prefill", "decode"])
@pytest.mark.parametrize("when", ["bootstrapping", "waiting", "in flight"])
def test_a_request_is_aborted(engines, who, when):
    source, sink = engines.requests(480)
    prefill, decode = engines.prefill, engines.decode
    prefill.disagg_prefill_bootstrap_queue.add(source, HEADS)
    decode.disagg_decode_prealloc_queue.add(sink)
    if when != "bootstrapping":
        ready(engines, source)
    if when == "in flight":
        prefill.compute(source, 0, 200)
        prefill.send_kv_chunk(source)
    if who == "decode":
        queues = (*decode.disagg_decode_prealloc_queue.queue, *decode.disagg_decode_transfer_queue.queue)
        next(one for one in queues if one.req is sink).kv_receiver.abort()
    elif when == "bootstrapping":
        source.disagg_kv_sender.abort()
    else:
        prefill.release_aborted_prefill_waiting_req(source)  # frees its pages at once

    def both_failed():
        decode.step()
        if when == "bootstrapping":
            prefill.disagg_prefill_bootstrap_queue.pop_bootstrapped()
        elif who == "decode" and source.disagg_kv_sender.poll() == 0:
            prefill.handle_bootstrap_failure(source)
        is_released = who == "prefill" and when != "bootstrapping"  # at the prefill engine
        return isinstance(sink.finished_reason, FINISH_ABORT) and (
            is_released or isinstance(source.finished_reason, FINISH_ABORT)
        )

    until(both_failed, what="the end on both sides")
    message = sink.finished_reason.message
    assert "aborted" in message.lower() or "gave up" in message, message
    until(engines.all_free, what="the release of all that is held")
