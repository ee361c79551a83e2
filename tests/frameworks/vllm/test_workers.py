"""The connector's halves without an engine, over caches as vLLM's attention lays them out on GPUs: engines of any
ranks, stages, block sizes and orders; each decode rank has the tokens of its heads and layers, byte for byte."""

import base64
import dataclasses
import json
import signal
import time
import zlib
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="vllm is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")

from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE
from vllm.v1.kv_cache_interface import MambaSpec, get_kv_quant_mode

from strait._parallel import Rank
from strait.errors import AgainError, OutOfMemoryError
from strait.service import Coding, Pool, State, Transfer
from strait.torch import host_pool
from strait.vllm import StraitConnector
from strait.vllm.metadata import Load, Peer, Prefill, StraitMetadata, key_of, rank_name, unpack_blob
from strait.vllm.regions import Share, _as_its_values, _element_of, cache_of
from strait.vllm.scheduler import Scheduler
from strait.vllm.worker import Options, Worker
from test_vllm import Nodes

LAYERS, HEADS, SIZE = 4, 4, 32  # K and V of a head have SIZE values each
TOKENS = 150
SPARE = 0x55  # what is in blocks of no request


class Engine:
    """The workers and the scheduler's half of one engine. kernel: tokens of a kernel block; 0: those of a block. cache:
    vLLM's name of the cache's type."""

    def __init__(self, socket, tensor=1, stages=1, block=32, order="HND", kernel=0, compat="test", cache="bfloat16"):
        self.tensor, self.block, self.order, self.cache = tensor, block, order, cache
        self.kernel = kernel or block
        self.layers, self.heads = LAYERS // stages, max(1, HEADS // tensor)
        self.count = -(-TOKENS // block) + 3
        self.ids = torch.randperm(self.count - 1)[: -(-TOKENS // block)].add(1).tolist()
        self.ranks = [Rank(stage, rank) for stage in range(stages) for rank in range(tensor)]
        self.caches, self.workers = {}, {}
        for rank in self.ranks:
            self.caches[rank] = self.make_caches(rank.stage)
            config = self.config_of(self.caches[rank])
            options = Options(str(socket), Coding.TIERED, 20.0, 20.0, 10.0, False)
            worker = self.workers[rank] = Worker(options, config, rank_name(rank), compat)
            types = dict.fromkeys(self.caches[rank], cache)
            described = cache_of(self.caches[rank], config, Share(HEADS, tensor, rank.tensor), types=types)
            self.elements = {region.element for region in described.regions.values()}
            worker.register(described, False)
        handshakes = {rank: worker.handshake() for rank, worker in self.workers.items()}
        self.scheduler = Scheduler("engine", config, False)
        self.scheduler.set_workers(handshakes)

    def make_caches(self, stage):
        """By layer: [kernel blocks, heads, tokens, K and V of a head]."""
        shape = [self.count * (self.block // self.kernel), self.heads, self.kernel, 2 * SIZE]
        if self.order == "NHD":
            shape[1], shape[2] = shape[2], shape[1]
        caches = {}
        for layer in range(stage * self.layers, (stage + 1) * self.layers):
            with host_pool(1):
                cache = torch.zeros(shape, dtype=STR_DTYPE_TO_TORCH_DTYPE[self.cache])
            cache.view(torch.uint8).fill_(SPARE)
            caches[f"model.layers.{layer}.self_attn"] = cache.transpose(1, 2) if self.order == "NHD" else cache
        return caches

    def config_of(self, caches):
        mode = get_kv_quant_mode(self.cache)
        spec = SimpleNamespace(block_size=self.block, has_layer_views=True, kv_quant_mode=mode)
        group = SimpleNamespace(layer_names=list(caches), kv_cache_spec=spec)
        return SimpleNamespace(
            transfer_group_ids=(0,),
            kv_cache_groups=[group],
            kv_cache_tensors=[SimpleNamespace(layers=[name]) for name in caches],
            num_blocks_of=lambda _: self.count,
        )

    def heads_of(self, rank):
        first = rank.tensor * HEADS // self.tensor
        return slice(first, first + self.heads)

    def tokens_of(self, cache):
        """[token, head, values] of the request's blocks, a copy."""
        ratio = self.block // self.kernel
        kernels = [block * ratio + i for block in self.ids for i in range(ratio)]
        return cache[kernels].transpose(1, 2).reshape(-1, self.heads, 2 * SIZE)

    def fill(self, model):
        ratio = self.block // self.kernel
        for rank in self.ranks:
            for layer, cache in enumerate(self.caches[rank].values(), rank.stage * self.layers):
                values = model[layer, :, self.heads_of(rank)]
                for token in range(TOKENS):
                    block, rest = self.ids[token // self.block], token % self.block
                    cache[block * ratio + rest // self.kernel, :, rest % self.kernel] = values[token]

    def check(self, model, brought):
        """The tokens are there; blocks of no request are as they were, and what lies behind all that was sent."""
        for rank in self.ranks:
            for layer, cache in enumerate(self.caches[rank].values(), rank.stage * self.layers):
                found = self.tokens_of(cache)
                assert torch.equal(found[:TOKENS], model[layer, :, self.heads_of(rank)]), (rank, layer)
                assert (found[brought:].contiguous().view(torch.uint8) == SPARE).all(), (rank, layer)
                ratio = self.block // self.kernel
                spare = [n for n in range(cache.shape[0]) if n // ratio not in self.ids]
                assert (cache[spare].contiguous().view(torch.uint8) == SPARE).all(), (rank, layer)

    def close(self):
        for worker in self.workers.values():
            worker.close()


def hand_over(prefill, decode, name, request=None):
    """One request, which the decode engine calls `request`. Returns what each half reported: requests sent by each
    prefill rank, loads by each decode rank, and blocks that were not loaded."""
    sends = StraitMetadata(prefills={name: Prefill(name, [(0, 0, prefill.ids)], True, True)})
    peer = Peer.of(json.loads(json.dumps(Peer("engine", name, prefill.pools, prefill.parallel).params())))
    plan = decode.plan(peer)
    assert not plan.why_not, plan
    loads = StraitMetadata(loads={request or f"to {name}": Load([(0, 0, decode.ids)], plan.source(peer))})
    for worker in prefill.workers:
        worker.end(sends)
    for worker in decode.workers:
        worker.begin(loads)
    sent, loaded, bad = set(), set(), set()
    end = time.monotonic() + 20
    while len(sent) < len(prefill.workers) or len(loaded) < len(decode.workers):
        assert time.monotonic() < end, (sent, loaded)
        for number, worker in enumerate(prefill.workers):
            sent |= {number for _ in worker.results(StraitMetadata(), {name}).finished_sending or ()}
        for number, worker in enumerate(decode.workers):
            loaded |= {number for _ in worker.results(StraitMetadata(), set()).finished_recving or ()}
            bad |= worker.bad_blocks()
    return bad


def view_of(engine):
    """What hand_over() takes of an engine."""
    scheduler = engine.scheduler
    return SimpleNamespace(
        ids=engine.ids,
        workers=list(engine.workers.values()),
        pools=scheduler._pools,
        parallel=scheduler._parallel,
        plan=scheduler._plan,
    )


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    nodes = Nodes(tmp_path_factory.mktemp("nodes"))
    yield nodes
    nodes.stop()


CASES = {
    "alike": ({}, {}),
    "NHD to HND": ({"order": "NHD"}, {}),
    "HND to NHD": ({}, {"order": "NHD"}),
    "blocks of 16 to 64": ({"block": 16}, {"block": 64}),
    "blocks of 64 to 16": ({"block": 64, "order": "NHD"}, {"block": 16, "order": "NHD"}),
    "blocks of 16 to 48": ({"block": 16, "order": "NHD"}, {"block": 48}),
    "kernel blocks of 16 in 64, HND": ({"block": 64, "kernel": 16}, {"block": 32}),
    "kernel blocks of 16 in 64, NHD": ({"block": 32}, {"block": 64, "kernel": 16, "order": "NHD"}),
    "1 rank to 2": ({}, {"tensor": 2}),
    "1 rank to 4, NHD": ({"order": "NHD"}, {"tensor": 4, "order": "NHD"}),
    "4 ranks to 1": ({"tensor": 4}, {}),
    "4 ranks to 2, NHD, other blocks": ({"tensor": 4, "order": "NHD"}, {"tensor": 2, "order": "NHD", "block": 16}),
    "8 ranks, two of each head, to 2": ({"tensor": 8}, {"tensor": 2, "block": 64}),
    "2 ranks to 8, two of each head": ({"tensor": 2}, {"tensor": 8, "order": "NHD"}),
    "2 stages to 1": ({"stages": 2}, {}),
    "1 stage to 4": ({"order": "NHD"}, {"stages": 4}),
    "2 stages of 2 ranks to 4 stages": ({"stages": 2, "tensor": 2}, {"stages": 4, "block": 64}),
    "4 stages to 4 ranks": ({"stages": 4, "block": 16}, {"tensor": 4, "order": "NHD"}),
}


@pytest.mark.parametrize("case", CASES)
def test_blocks_arrive(nodes, case):
    torch.manual_seed(3)
    of_prefill, of_decode = CASES[case]
    prefill = Engine(nodes.daemons[0].socket, **of_prefill)
    decode = Engine(nodes.daemons[1].socket, **of_decode)
    try:
        model = torch.randn(LAYERS, TOKENS, HEADS, 2 * SIZE).to(torch.bfloat16)
        prefill.fill(model)
        assert hand_over(view_of(prefill), view_of(decode), f"{case} 1") == set()
        assert all(worker.stats().data.get("failed_sends", 0) == 0 for worker in prefill.workers.values())
        decode.check(model, brought=len(prefill.ids) * prefill.block)
    finally:
        prefill.close()
        decode.close()


@pytest.mark.parametrize(
    "name, element",
    [
        ("fp8", "fp8_e4m3"),
        ("fp8_e4m3", "fp8_e4m3"),
        ("fp8_e5m2", "fp8_e5m2"),
        ("fp8_per_token_head", "bytes"),
        ("fp8_ds_mla", "bytes"),
        ("int8_per_token_head", "bytes"),
    ],
)
def test_caches_that_vllm_has_as_bytes(nodes, name, element):
    """vLLM's tensors of them are uint8, or int8: their element is in the name of their type alone."""
    prefill = Engine(nodes.daemons[0].socket, cache=name, order="NHD")
    decode = Engine(nodes.daemons[1].socket, cache=name, block=64)
    try:
        assert prefill.elements == decode.elements == {element}
        model = torch.randn(LAYERS, TOKENS, HEADS, 2 * SIZE)
        stored = STR_DTYPE_TO_TORCH_DTYPE[name]
        model = model.to(torch.float8_e5m2 if name == "fp8_e5m2" else torch.float8_e4m3fn).view(stored)
        prefill.fill(model)
        assert hand_over(view_of(prefill), view_of(decode), name) == set()
        decode.check(model, brought=len(prefill.ids) * prefill.block)
    finally:
        prefill.close()
        decode.close()


def test_a_cache_of_fp8_does_not_meet_one_of_bf16(nodes):
    """Also where their engines have one `compat`."""
    prefill, decode = Engine(nodes.daemons[0].socket, cache="fp8"), Engine(nodes.daemons[1].socket)
    try:
        theirs, (worker,) = view_of(prefill), decode.workers.values()
        peer = Peer("engine", "r", theirs.pools, theirs.parallel)
        offer(prefill, "r")
        worker.begin(StraitMetadata(loads={"r": Load([(0, 0, decode.ids)], decode.scheduler._plan(peer).source(peer))}))
        assert worker.bad_blocks() == set(decode.ids)
        wait_until_free(prefill, decode)
    finally:
        prefill.close()
        decode.close()


def test_the_type_of_a_layer_is_its_own(nodes, monkeypatch):
    """Where some are not quantised, or a draft model has another type."""
    monkeypatch.setattr("strait.vllm.connector._order_of", lambda _: "")
    engine = Engine(nodes.daemons[0].socket, cache="fp8")
    (caches,) = engine.caches.values()
    names = list(caches)
    caches[names[1]] = caches[names[1]].view(torch.bfloat16)
    of_layers = dict(zip(names, ["fp8", "auto", "fp8_e5m2"]))
    layers = {name: SimpleNamespace(kv_cache_dtype=one) for name, one in of_layers.items()}
    config = SimpleNamespace(
        compilation_config=SimpleNamespace(static_forward_context={**layers, names[3]: SimpleNamespace()}),
        cache_config=SimpleNamespace(cache_dtype="fp8"),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1, prefill_context_parallel_size=1),
    )
    found = []
    connector = SimpleNamespace(
        _vllm_config=config,
        _kv_cache_config=engine.config_of(caches),
        _share=Share(HEADS, 1, 0),
        worker=SimpleNamespace(register=lambda cache, on_gpu: found.append(cache)),
    )
    try:
        StraitConnector.register_kv_caches(connector, caches)
        elements = [found[0].regions["kv", layer].element for layer in range(LAYERS)]
        assert elements == ["fp8_e4m3", "bf16", "fp8_e5m2", "fp8_e4m3"]
        (worker,) = engine.workers.values()
        worker.register(found[0], False)  # groups of the pool are of one type
    finally:
        engine.close()


def test_what_an_indexer_keeps_is_bytes():
    """Values and their scales, which vLLM calls neither quantised nor by the name of the engine's type."""
    spec = SimpleNamespace(kv_quant_mode=get_kv_quant_mode("auto"))
    assert _element_of(torch.zeros(1, dtype=torch.uint8), spec, "fp8") == "bytes"


def test_states_of_another_form_are_left_as_they_are():
    spec = MambaSpec(block_size=32, shapes=((8,),), dtypes=(torch.float32,))
    for shape in ((4, 32), (4, 1, 32), (4, 1, 2, 16)):
        cache = torch.zeros(shape, dtype=torch.int8)
        assert _as_its_values(cache, spec) is cache
    assert _as_its_values(torch.zeros((4, 1, 1, 32), dtype=torch.int8), spec).dtype == torch.float32


class OfStates(Engine):
    """An engine whose blocks are states of layers, as vLLM packs them into one allocation: [block, 1, 1, bytes]."""

    def __init__(self, socket, dtypes):
        shapes = ((256,), (8, 16, 16))[-len(dtypes) :]  # a convolution's and an SSM's
        self.spec = MambaSpec(block_size=32, shapes=shapes, dtypes=dtypes)
        super().__init__(socket)

    def make_caches(self, stage):
        with host_pool(1):
            self.blocks = torch.zeros((self.count, LAYERS, 1, 1, self.spec.page_size_bytes), dtype=torch.int8)
        self.blocks.fill_(SPARE)
        return {f"model.layers.{layer}.mixer": self.blocks[:, layer] for layer in range(LAYERS)}

    def config_of(self, caches):
        config = super().config_of(caches)
        config.kv_cache_groups[0].kv_cache_spec = self.spec
        return config


@pytest.mark.parametrize(
    "dtypes, element",
    [
        ([torch.float32], "fp32"),
        ([torch.bfloat16, torch.bfloat16], "bf16"),
        ([torch.float16, torch.float32], "fp32"),
        ([torch.bfloat16, torch.int8], "bytes"),
        ([torch.bfloat16, torch.float8_e4m3fn], "fp8_e4m3"),
    ],
    ids=str,
)
def test_states_arrive(nodes, dtypes, element):
    """As what most of a block's bytes are."""
    prefill, decode = (OfStates(daemon.socket, tuple(dtypes)) for daemon in nodes.daemons)
    try:
        assert prefill.elements == {element}
        prefill.blocks.copy_(torch.randint(-128, 128, prefill.blocks.shape, dtype=torch.int8))
        assert hand_over(view_of(prefill), view_of(decode), f"states {dtypes}") == set()
        spare = [block for block in range(decode.count) if block not in decode.ids]
        assert torch.equal(decode.blocks[decode.ids], prefill.blocks[prefill.ids])
        assert (decode.blocks[spare] == SPARE).all()
    finally:
        prefill.close()
        decode.close()


def wait_for(workers, is_there, seconds=20):
    """Polls until it is."""
    end = time.monotonic() + seconds
    while not is_there():
        assert time.monotonic() < end
        for worker in workers:
            worker.results(StraitMetadata(), set())


def test_layers_do_not_wait_for_the_end_of_the_prefill(nodes):
    """The last block of 64 tokens is half of what a block of 32 ends in: its scheduler's half says how many tokens the
    prompt has, and the layers are complete before the prefill engine says that there is no more."""
    prefill, decode = Engine(nodes.daemons[0].socket, block=32), Engine(nodes.daemons[1].socket, block=64)
    (source,), (sink,) = prefill.workers.values(), decode.workers.values()
    try:
        model = torch.randn(LAYERS, TOKENS, HEADS, 2 * SIZE).to(torch.bfloat16)
        prefill.fill(model)
        theirs = view_of(prefill)
        peer = Peer("engine", "r", theirs.pools, theirs.parallel)
        new = [SimpleNamespace(is_null=False, block_hash=None, block_id=block) for block in decode.ids]
        request = SimpleNamespace(
            request_id="r", prompt_token_ids=[3] * TOKENS, trace_headers=None, kv_transfer_params=peer.params()
        )
        decode.scheduler.allocated(request, SimpleNamespace(blocks=[new]), TOKENS)
        sink.begin(decode.scheduler._meta)
        (transfer,) = sink._receives
        source.end(StraitMetadata(prefills={"r": Prefill("r", [(0, 0, prefill.ids)], True, False)}))
        wait_for([source, sink], lambda: transfer.progress.layers_landed == LAYERS)
        assert transfer in sink._receives
        (send,) = source._sends
        assert send.progress.state == State.TRANSFERRING
        assert source.metadata().moving == 0, "its scheduler would wait for blocks that are not about to be free"
        source.end(StraitMetadata(prefills={"r": Prefill("r", [], False, True)}))
        wait_for([source, sink], lambda: not sink._receives and not source._sends)
        assert not sink.bad_blocks()
        decode.check(model, brought=len(prefill.ids) * prefill.block)
    finally:
        prefill.close()
        decode.close()


class Cleared:
    """Stands for an event of a GPU: what came before it in the step has run, or has not."""

    def __init__(self):
        self.over = False

    def query(self):
        return self.over


def test_on_a_gpu_loads_begin_when_the_step_has_cleared_its_blocks(nodes):
    """Before the model has run, and without another step."""
    prefill, decode = Engine(nodes.daemons[0].socket), Engine(nodes.daemons[1].socket)
    (source,), (sink,) = prefill.workers.values(), decode.workers.values()
    try:
        model = torch.randn(LAYERS, TOKENS, HEADS, 2 * SIZE).to(torch.bfloat16)
        prefill.fill(model)
        theirs, cleared = view_of(prefill), [Cleared(), Cleared()]
        sink._on_gpu, events = True, iter(cleared)
        sink._event = lambda: next(events)
        for key in "ab":
            source.end(StraitMetadata(prefills={key: Prefill(key, [(0, 0, prefill.ids)], True, True)}))
            plan = decode.scheduler._plan(peer := Peer("engine", key, theirs.pools, theirs.parallel))
            sink.begin(StraitMetadata(loads={key: Load([(0, 0, decode.ids)], plan.source(peer))}))
        cleared[1].over = True  # events of a stream come in their order
        assert not sink.results(StraitMetadata(), set()).finished_recving and not sink._receives
        cleared[0].over = True
        sink.begin(StraitMetadata(ended={"b"}))
        wait_for([source], lambda: len(source._sends) == 1, 10)  # long before the lease
        sink.load(StraitMetadata())
        assert [receive.request for receive in sink._receives.values()] == ["a"]
        found = set()
        end = time.monotonic() + 20
        while len(found) < 2 and time.monotonic() < end:
            source.results(StraitMetadata(), set())
            found |= sink.results(StraitMetadata(), set()).finished_recving or set()
        assert found == {"a", "b"} and not sink.bad_blocks()
        decode.check(model, brought=len(prefill.ids) * prefill.block)
    finally:
        prefill.close()
        decode.close()


@pytest.mark.parametrize("case", ["4 ranks to 2, NHD, other blocks", "8 ranks, two of each head, to 2"])
def test_what_is_declined_is_free_at_all_ranks(nodes, case):
    """Also at those from which nobody would take; long before the lease."""
    of_prefill, of_decode = CASES[case]
    prefill, decode = Engine(nodes.daemons[0].socket, **of_prefill), Engine(nodes.daemons[1].socket, **of_decode)
    try:
        theirs, workers = view_of(prefill), list(prefill.workers.values())
        key = f"{case}, declined"
        sends = StraitMetadata(prefills={key: Prefill(key, [(0, 0, prefill.ids)], True, True)})
        for worker in workers:
            worker.end(sends)
        decode.scheduler._decline(Peer("engine", key, theirs.pools, theirs.parallel))
        for worker in decode.workers.values():
            worker.load(decode.scheduler._meta)
        wait_for([*workers, *decode.workers.values()], lambda: not any(worker._sends for worker in workers), 10)
    finally:
        prefill.close()
        decode.close()


def test_a_cache_of_another_model_is_refused_by_name(nodes):
    """Both descriptions are in the text, and the blocks are to be computed."""
    prefill, decode = Engine(nodes.daemons[0].socket), Engine(nodes.daemons[1].socket, compat="other")
    try:
        theirs, (worker,) = view_of(prefill), decode.workers.values()
        peer = Peer("engine", "r", theirs.pools, theirs.parallel)
        source = decode.scheduler._plan(peer).source(peer)
        offer(prefill, "r")
        worker.begin(StraitMetadata(loads={"r": Load([(0, 0, decode.ids)], source)}))
        assert worker.results(StraitMetadata(), set()).finished_recving == {"r"}
        assert worker.bad_blocks() == set(decode.ids)
        with pytest.raises(ValueError, match="does not fit: .*test.*other|does not fit: .*other.*test"):
            worker._sources_of(source)
        wait_until_free(prefill, decode)
    finally:
        prefill.close()
        decode.close()


def offer(prefill, key):
    for worker in prefill.workers.values():
        worker.end(StraitMetadata(prefills={key: Prefill(key, [(0, 0, prefill.ids)], True, True)}))


def wait_until_free(prefill, decode):
    """What was offered; long before the lease."""
    workers = list(prefill.workers.values())
    wait_for([*workers, *decode.workers.values()], lambda: not any(worker._sends for worker in workers), 10)


@pytest.mark.parametrize("blob", [None, "no blob", "eJwDAAAAAAE="])
def test_a_rank_that_cannot_be_named_does_not_keep_the_others(nodes, blob):
    """The load fails, and the ranks that can be named are free."""
    prefill, decode = Engine(nodes.daemons[0].socket, tensor=8), Engine(nodes.daemons[1].socket, tensor=2)
    try:
        theirs = view_of(prefill)
        offer(prefill, "unnamed")
        pools = {name: pool for name, pool in theirs.pools.items() if name != "0.0"}
        peer = Peer("engine", "unnamed", pools if blob is None else {**pools, "0.0": blob}, theirs.parallel)
        load = Load([(0, 0, decode.ids)], decode.scheduler._plan(peer).source(peer))
        for worker in decode.workers.values():
            worker.begin(StraitMetadata(loads={"unnamed": load}))
        first, *others = prefill.workers.values()
        everyone = [first, *others, *decode.workers.values()]
        wait_for(everyone, lambda: not any(worker._sends for worker in others), 10)
        assert first._sends
        assert decode.workers[Rank(0, 0)].bad_blocks() == set(decode.ids)
    finally:
        prefill.close()
        decode.close()


@pytest.mark.parametrize("error", [AgainError("too many wait"), OutOfMemoryError("none left")], ids=["again", "memory"])
@pytest.mark.parametrize("call", ["start", "expect"])
def test_a_load_that_cannot_begin_is_computed(nodes, monkeypatch, call, error):
    prefill, decode = Engine(nodes.daemons[0].socket), Engine(nodes.daemons[1].socket)
    try:
        theirs, (worker,) = view_of(prefill), decode.workers.values()
        key = f"{call} {error}"
        offer(prefill, key)
        peer = Peer("engine", key, theirs.pools, theirs.parallel)
        load = Load([(0, 0, decode.ids)], decode.scheduler._plan(peer).source(peer))
        with monkeypatch.context() as patched:
            patched.setattr(Transfer if call == "start" else Pool, call, raising(error))
            worker.begin(StraitMetadata(loads={"r": load}))
        wait_for([worker], lambda: not worker._receives)
        assert worker.bad_blocks() == set(decode.ids)
        wait_until_free(prefill, decode)
        assert hand_over(theirs, view_of(decode), f"{key} 2") == set()
    finally:
        prefill.close()
        decode.close()


def raising(error):
    def call(*_, **__):
        raise error

    return call


@pytest.mark.parametrize("error", [AgainError("too many wait"), ValueError("closed")], ids=["again", "value"])
def test_an_offer_that_cannot_begin_is_computed(nodes, monkeypatch, error):
    """Neither a prefill that is done nor one that never was ends the worker."""
    prefill = Engine(nodes.daemons[0].socket)
    (worker,) = prefill.workers.values()
    try:
        monkeypatch.setattr(Pool, "offer", raising(error))
        worker.load(StraitMetadata(refused=["r"]))
        offer(prefill, "r")
        assert worker.results(StraitMetadata(), {"r"}).finished_sending == {"r"}
    finally:
        prefill.close()


@pytest.mark.parametrize("case", ["alike", "8 ranks, two of each head, to 2"])
@pytest.mark.parametrize("request_name", ["r" * 200, "\N{LATIN SMALL LETTER A WITH DIAERESIS}" * 70])
def test_a_request_may_have_a_long_name(nodes, case, request_name):
    of_prefill, of_decode = CASES[case]
    prefill, decode = Engine(nodes.daemons[0].socket, **of_prefill), Engine(nodes.daemons[1].socket, **of_decode)
    try:
        name = key_of(f"{case} {request_name}")
        assert hand_over(view_of(prefill), view_of(decode), name, request_name) == set()
    finally:
        prefill.close()
        decode.close()


def test_pools_that_were_used_long_ago_are_forgotten(nodes, monkeypatch):
    """But none of those from which one load takes."""
    monkeypatch.setattr("strait.vllm.worker._PEERS", 3)
    prefill, decode = Engine(nodes.daemons[0].socket, tensor=4), Engine(nodes.daemons[1].socket)
    try:
        (worker,) = decode.workers.values()
        assert hand_over(view_of(prefill), view_of(decode), "four pools") == set()
        theirs = view_of(prefill)
        blob = unpack_blob(theirs.pools["0.0"])
        for number in range(5):
            same = base64.b64encode(zlib.compress(blob, number)).decode()
            worker._peer_of(Peer("engine", "k", {"0.0": same}, theirs.parallel), "0.0")
        worker.results(StraitMetadata(), set())
        assert len(worker._peers) == len(worker._client._peers) == 3
        assert hand_over(view_of(prefill), view_of(decode), "four pools again") == set()
    finally:
        prefill.close()
        decode.close()


def test_a_daemon_that_hangs_is_waited_for(nodes, monkeypatch):
    """Blocks that it may still write or read are not used again, whatever the deadline and the lease are."""
    monkeypatch.setattr("strait.vllm.worker._DRAIN_WAIT", 0.3)
    engine = Engine(nodes.daemons[0].socket)
    (worker,) = engine.workers.values()
    worker._options = dataclasses.replace(worker._options, deadline=1.0, lease=1.0)
    daemon = nodes.daemons[0].process
    try:
        theirs = view_of(engine)
        offer(engine, "offered")
        peer = Peer("engine", "nobody's", theirs.pools, theirs.parallel)
        load = Load([(0, 0, [block for block in range(1, engine.count) if block not in engine.ids])], None)
        load.source = engine.scheduler._plan(peer).source(peer)
        worker.begin(StraitMetadata(loads={"r": load}))
        assert worker._receives and worker._sends
        time.sleep(0.1)  # the daemon has taken them
        daemon.send_signal(signal.SIGSTOP)
        end = time.monotonic() + 3
        while time.monotonic() < end:
            results = worker.results(StraitMetadata(), {"offered"})
            assert not results.finished_recving and not results.finished_sending
        with pytest.raises(RuntimeError, match="the daemon hangs"):
            worker.preempt({"offered"})
        daemon.send_signal(signal.SIGCONT)
        wait_for([worker], lambda: not worker._receives and not worker._sends)
        assert worker.bad_blocks()
    finally:
        daemon.send_signal(signal.SIGCONT)
        engine.close()


# ---- What clients send


@pytest.mark.parametrize("params", ["text", 7, True, [1], {"do_remote_prefill": True}, {"do_remote_decode": 1}])
def test_params_may_be_anything(params):
    config = SimpleNamespace(kv_cache_groups=[], transfer_group_ids=())
    scheduler = Scheduler("engine", config, False)
    request = SimpleNamespace(request_id="r", prompt_token_ids=[3] * 40, trace_headers=None, kv_transfer_params=params)
    scheduler.new_request(request)
    assert scheduler.matched_tokens(request, 0) == (0, False)
    scheduler.allocated(request, None, 0)
    request.status = None
    assert scheduler.finished(request, ()) == (False, None)


@pytest.mark.parametrize("stages", [[float("inf"), 1, []], [1, 1, [[0, float("inf")]]], [10**400, 1, [[0, 4]]]])
def test_a_peer_of_other_params_is_none(stages):
    params = Peer(
        "engine",
        "k",
        {"0.0": "x"},
        Scheduler("e", SimpleNamespace(kv_cache_groups=[], transfer_group_ids=()), False)._parallel,
    ).params()
    assert Peer.of(params) is not None
    assert Peer.of({**params, "strait_parallel": stages}) is None
    assert Peer.of({**params, "strait_pools": {7: "x"}}) is None


def test_a_key_without_utf_8_is_hashed():
    """JSON may have half of a surrogate pair."""
    name = json.loads('"\\ud800"')
    assert len(key_of(name)) == 64 and key_of(name) != key_of("?") == "?"
