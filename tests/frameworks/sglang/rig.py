"""Ranks of SGLang without its engine: its own pools, metadata buffers, bootstrap server and queues, on the host's
memory, with the classes of the backend as SGLang's get_kv_class gives them."""

import ctypes
import os
import socket
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import NamedTuple
from unittest import mock

import numpy as np
import requests
import strait
import torch
from daemons import Daemon
from sglang.srt.disaggregation.base.conn import KVPoll, StateType
from sglang.srt.disaggregation.utils import (
    DisaggregationMode,
    KVClassType,
    MetadataBuffers,
    TransferBackend,
    append_state_component,
    get_kv_class,
    setup_state_kv_args,
)
from sglang.srt.distributed import init_distributed_environment, initialize_model_parallel
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.runtime_context import SpawnRanks, get_parallel, publish
from sglang.srt.server_args import ServerArgs
from strait.sglang import register
from strait.torch import host_pool

PAGE = 16  # tokens of a page
PAGES = 256
LAYERS, HEADS, SIZE = 4, 2, 64
TOTAL_HEADS = 4  # of the model, where ranks have some of them
ROWS = 64  # of the metadata buffers
STATES = 40  # pages of each buffer of a Divided
FAILED, BOOTSTRAPPING, WAITING, TRANSFERRING, SUCCESS = (
    KVPoll.Failed,
    KVPoll.Bootstrapping,
    KVPoll.WaitingForInput,
    KVPoll.Transferring,
    KVPoll.Success,
)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def publish_options(mode="prefill", **options):
    """SGLang's options, for this process; for both sides, where they are in one."""
    given = ServerArgs(
        model_path="dummy",
        disaggregation_mode=mode,
        disaggregation_transfer_backend="strait",
        host="127.0.0.1",
        device="cpu",
        **options,
    )
    publish(given, role="scheduler", ranks=SpawnRanks(world_rank=0, dp_rank=None))
    build_groups()
    return given


def build_groups():
    """SGLang's process groups, of this process alone."""
    if not torch.distributed.is_initialized():
        address = f"tcp://127.0.0.1:{free_port()}"
        init_distributed_environment(
            world_size=1, rank=0, distributed_init_method=address, local_rank=0, backend="gloo"
        )
        initialize_model_parallel()


register()
kv_class = {kind: get_kv_class(TransferBackend("strait"), kind) for kind in KVClassType}


def until(condition, seconds=60.0, what="it"):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"{what} did not come about in {seconds} s"
        time.sleep(0.001)
    return found


class Nodes:
    """The two daemons: [0] is the prefill node's, [1] the decode node's."""

    def __init__(self, folder):
        self.daemons, book = [], folder / "set.strait"
        values = np.random.default_rng(5).standard_normal(200000, np.float32)
        strait.calibrate((values.view(np.uint32) >> 16).astype(np.uint16)).save(book)
        for name in "pd":
            (folder / name).mkdir()
            options = ("--codebook", str(book), "--transports", "tcp")
            self.daemons.append(Daemon(folder / name, *options, listen=f"127.0.0.1:{free_port()}"))
        for daemon in self.daemons:
            daemon.start()

    def stop(self):
        for daemon in self.daemons:
            daemon.stop()


def make_pool(kind="mha", heads=HEADS, layers=LAYERS, draft=False, page=PAGE, cache="bfloat16"):
    """A pool of SGLang's, of as many tokens whatever its pages are."""
    common = {"device": "cpu", "enable_memory_saver": False}
    size = (PAGES - 1) * PAGE // page * page
    dtype = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}.get(cache, torch.bfloat16)
    if kind == "mla":
        return MLATokenToKVPool(size, page, dtype, 64, 16, layers, **common)
    if kind == "swa":
        ids = list(range(layers))
        return SWAKVPool(size, size // 4 // PAGE * PAGE, PAGE, dtype, heads, SIZE, ids[::2], ids[1::2], **common)
    return MHATokenToKVPool(size, page, dtype, heads, SIZE, layers, **common)


def bytes_at(address, size):
    return np.frombuffer(memoryview((ctypes.c_uint8 * size).from_address(address)), np.uint8)


class Bootstrap:
    """SGLang's bootstrap server of a prefill engine."""

    def __init__(self):
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.server = kv_class[KVClassType.BOOTSTRAP_SERVER]("127.0.0.1", self.port)
        until(self.is_up, what="the bootstrap server")

    def is_up(self):
        try:
            return requests.get(f"http://{self.address}/health", timeout=1).status_code == 200
        except requests.ConnectionError:
            return False

    def stop(self):
        self.server.close()


class StageGroup:
    """SGLang's group of the pipeline stages of one tensor rank, which are made one after another in one process."""

    told = {}  # noqa: RUF012 -- by tensor rank: what its first stage said last

    def __init__(self, rank, stage, stages):
        self.rank, self.rank_in_group, self.world_size = rank, stage, stages
        self.is_last_rank = stage == stages - 1

    def broadcast_object(self, said, src):
        assert src == 0
        if self.rank_in_group == 0:
            self.told[self.rank] = said
        return self.told[self.rank]


class Divided(NamedTuple):
    """A page of state of the whole model, [outer, all groups, size] bytes; ranks have a part of each group."""

    outer: int
    groups: tuple[int, ...]
    size: int

    def of_rank(self, values, rank, ranks):
        """The pages of a rank: [pages, bytes]."""
        starts = np.cumsum([0, *self.groups])
        parts = [start + np.arange(group // ranks) + rank * group // ranks for start, group in zip(starts, self.groups)]
        return values[:, :, np.concatenate(parts)].reshape(len(values), -1)


class Rank:
    """One rank of one side.

    heads, layers: those of this rank and stage.
    state: pages and bytes of a page of a second kind of memory, such as a Mamba state; or a list of Divided, of which
        the rank has its part; None: there is none.
    elements: of each Divided, as the model's configuration tells them.
    """

    def __init__(
        self,
        daemon,
        bootstrap,
        mode,
        rank=0,
        ranks=1,
        seed=None,
        state=None,
        hidden=64,
        stage=0,
        stages=1,
        page=PAGE,
        elements=(),
        **pool,
    ):
        pool["page"] = page
        self.options = publish_options(mode, disaggregation_bootstrap_port=int(bootstrap.rpartition(":")[2]))
        self.bootstrap = bootstrap
        with host_pool(1):
            self.pool, self.draft = make_pool(**pool), make_pool(layers=1) if pool.get("draft") else None
            self.state = torch.zeros(state, dtype=torch.uint8) if isinstance(state, tuple) else None
            self.divided = [
                torch.zeros(STATES, one.outer, sum(one.groups) // ranks, one.size, dtype=torch.uint8)
                for one in (state if isinstance(state, list) else [])
            ]
        self.aux = MetadataBuffers(ROWS, hidden, torch.float32, 8)
        args = kv_class[KVClassType.KVARGS]()
        args.engine_rank, args.pp_rank, args.system_dp_rank, args.rust_http_port = rank, stage, None, None
        args.kv_cache_dtype_str, args.kv_layout = pool.get("cache", "bfloat16"), None
        args.kv_data_ptrs, args.kv_data_lens, args.kv_item_lens = self.pool.get_contiguous_buf_infos()
        args.kv_layer_ids, args.page_size, args.num_draft_entries = [], page, 0
        if self.draft is not None:
            more = self.draft.get_contiguous_buf_infos()
            args.num_draft_entries = len(more[0])
            args.kv_data_ptrs, args.kv_data_lens, args.kv_item_lens = (
                [*one, *another] for one, another in zip(self.pool.get_contiguous_buf_infos(), more)
            )
        args.aux_data_ptrs, args.aux_data_lens, args.aux_item_lens = self.aux.get_buf_infos()
        args.ib_device, args.gpu_id = None, 0
        setup_state_kv_args(args, self.pool)
        if self.state is not None:
            size = self.state.nbytes
            append_state_component(args, StateType.MAMBA, [self.state.data_ptr()], [size], [self.state[0].nbytes])
        if self.divided:
            self.append_divided(args, state)
        if seed is not None:
            chance = np.random.default_rng(seed)
            for buffer in (*self.of_kv(args), *self.of_state(args)):
                values = chance.standard_normal(buffer.size // 2, np.float32)
                buffer.reshape(-1)[:] = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        os.environ["STRAIT_SOCKET"] = str(daemon.socket)
        is_mla = isinstance(self.pool, MLATokenToKVPool)
        group = SimpleNamespace(world_size=ranks, rank_in_group=rank)
        wide = [
            {f"{kind}_size": ranks, f"{kind}_rank": rank, f"{kind}_group": group}
            for kind in ("tp", "attn_tp", "moe_tp")
        ]
        deep = {"pp_size": stages, "pp_rank": stage, "pp_group": StageGroup(rank, stage, stages)}
        many = ranks > 1 or stages > 1
        model = SimpleNamespace(
            get_total_num_kv_heads=lambda: TOTAL_HEADS if ranks > 1 or "heads" in pool else HEADS,
            num_hidden_layers=stages * pool.get("layers", LAYERS),
        )
        told = {one[0].nbytes: element for one, element in zip(self.divided, elements)}
        with (
            mock.patch("strait.sglang.conn.model_of", lambda _: model),
            mock.patch("strait.sglang.conn.state_of", lambda _: told),
            get_parallel().override(**wide[0], **wide[1], **wide[2], **deep) if many else nullcontext(),
        ):
            self.manager = kv_class[KVClassType.MANAGER](args, DisaggregationMode(mode), self.options, is_mla)

    def append_divided(self, args, described):
        """As SGLang's HybridLinearKVPool describes its state."""
        append_state_component(
            args,
            StateType.MAMBA,
            [one.data_ptr() for one in self.divided],
            [one.nbytes for one in self.divided],
            [one[0].nbytes for one in self.divided],
            [one.shape[2] for one in self.divided],
            [list(one.groups) if len(one.groups) > 1 else None for one in described],
            [one.outer for one in described],
        )

    @staticmethod
    def of_kv(args):
        """[pages, bytes] of each buffer of KV."""
        sizes = zip(args.kv_data_ptrs, args.kv_data_lens, args.kv_item_lens)
        return [bytes_at(address, size).reshape(-1, item) for address, size, item in sizes]

    @staticmethod
    def of_state(args):
        """The same of the first kind of state."""
        if not args.state_types:
            return []
        sizes = zip(args.state_data_ptrs[0], args.state_data_lens[0], args.state_item_lens[0])
        return [bytes_at(address, size).reshape(-1, item) for address, size, item in sizes]

    def pages(self, ids):
        return np.concatenate([buffer[ids] for buffer in self.of_kv(self.manager.kv_args)], axis=1)

    def states(self, ids):
        return np.concatenate([buffer[ids] for buffer in self.of_state(self.manager.kv_args)], axis=1)

    @staticmethod
    def chunk(count):
        return np.arange(1, 1 + count, dtype=np.int32)

    def fill_aux(self, row, room):
        for buffer in self.buffers():
            place = buffer[row].view(torch.uint8)
            place.copy_(torch.randint(0, 256, place.shape))
        self.aux.bootstrap_room[row, 0] = room

    def buffers(self):
        """The metadata buffers that travel, as SGLang lists them."""
        addresses = self.aux.get_buf_infos()[0]
        tensors = [one for one in vars(self.aux).values() if isinstance(one, torch.Tensor)]
        return [next(one for one in tensors if one.data_ptr() == address) for address in addresses]

    def aux_row(self, row):
        return b"".join(buffer[row].view(torch.uint8).numpy().tobytes() for buffer in self.buffers())

    def sender(self, room):
        return kv_class[KVClassType.SENDER](self.manager, self.bootstrap, room)

    def receiver(self, room):
        receiver = kv_class[KVClassType.RECEIVER](self.manager, self.bootstrap, room)
        until(lambda: self.manager.try_ensure_parallel_info(self.bootstrap), what="the prefill's description")
        receiver.init(0)
        return receiver

    def is_empty(self):
        """Nothing of a request is left."""
        manager = self.manager
        held = (
            manager.strait._links,
            manager.strait._client._transfers,
            manager.links,
            manager._senders,
            manager._early,
        )
        status = manager.request_status
        return not any((*held, getattr(status, "_local_map", status), manager.failure_records))

    def close(self):
        self.manager.close()


class Room:
    """A request between two ranks, that is led from state to state as SGLang's scheduler does."""

    def __init__(self, source, sink, number, chance, count=24, state=3):
        self.source, self.sink, self.number = source, sink, number
        self.from_pages, self.to_pages = (
            chance.permutation(np.arange(1, PAGES))[:count].astype(np.int32) for _ in "sd"
        )
        self.from_row, self.to_row = (int(row) for row in chance.permutation(ROWS)[:2])
        kinds = [one.of_state(one.manager.kv_args) for one in (source, sink)]
        self.states = [[chance.permutation(len(one[0]))[:state]] if one else [] for one in kinds]
        self.sender = self.receiver = None

    def send_side(self):
        self.source.fill_aux(self.from_row, self.number)
        self.sender = self.source.sender(self.number)
        return self

    def receive_side(self):
        self.receiver = self.sink.receiver(self.number)
        return self

    def both(self):
        return self.receive_side().send_side()

    def tell(self, prefix=0):
        self.receiver.send_metadata(self.to_pages, self.to_row, self.states[1], decode_prefix_len=prefix)
        return self

    def paired(self, prefix=0):
        self.both().tell(prefix)
        until(lambda: self.sender.poll() == WAITING, what="the handshake")
        return self

    def send(self, first, last, of=None):
        """Pages [first, last) of the request."""
        count = len(self.from_pages) if of is None else of
        if not first:
            self.sender.init(count, self.from_row)
        self.sender.send(self.from_pages[first:last], self.states[0] if last == count else None)
        return self

    def polls(self):
        return tuple(part.poll() for part in (self.sender, self.receiver) if part is not None)

    def ends(self, *wanted, seconds=60.0):
        end = time.monotonic() + seconds
        while self.polls() != wanted:
            assert time.monotonic() < end, f"the states are {self.polls()}, not {wanted}, after {seconds} s"
            time.sleep(0.001)
        return self

    def is_equal(self):
        same = np.array_equal(self.sink.pages(self.to_pages), self.source.pages(self.from_pages))
        if self.states[0]:
            same &= np.array_equal(self.sink.states(self.states[1][0]), self.source.states(self.states[0][0]))
        return same and self.sink.aux_row(self.to_row) == self.source.aux_row(self.from_row)

    def clear(self):
        for part in (self.sender, self.receiver):
            if part is not None:
                part.clear()


def failure_of(part):
    """The text with which a request failed."""
    try:
        part.failure_exception()
    except Exception as failure:
        assert type(failure).__name__ == "KVTransferError", failure
        return str(failure)
    raise AssertionError("no failure")
