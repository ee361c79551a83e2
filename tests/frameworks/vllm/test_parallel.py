"""Engines of other tensor parallelism and block sizes: the decode engine's tokens are those of one engine.

The model computes in FP32, where ranks that add up their parts in another order give the same tokens."""

import random
import time

import pytest

pytest.importorskip("vllm", reason="vllm is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")

from engine import Engine, Settings, strait_connector
from model import VOCABULARY, make_model
from test_vllm import Nodes

ENGINES = {  # daemon, ranks, tokens of a block
    "one rank, blocks of 32": (0, 1, 32),
    "one rank, blocks of 96": (1, 1, 96),
    "two ranks, blocks of 64": (1, 2, 64),
}
LENGTHS = (1, 31, 32, 33, 64, 97, 200, 300)
COUNT = 6


class Engines:
    def __init__(self, folder):
        make_model(folder / "model", layers=3)
        (folder / "nodes").mkdir()
        self.nodes, self.seed = Nodes(folder / "nodes"), 0
        self.engines = {}
        for name, (node, ranks, block) in ENGINES.items():
            connector = strait_connector(self.nodes.daemons[node].socket)
            settings = Settings(
                folder / "model", connector, blocks=2048 // block, block=block, tensor=ranks, dtype="float32"
            )
            self.engines[name] = Engine(settings).ready()

    def prompts(self, *lengths):
        self.seed += 1
        chance = random.Random(self.seed)
        return [[chance.randrange(3, VOCABULARY) for _ in range(length)] for length in lengths]

    def hand_over(self, prefill, prompts, **more):
        """kv_transfer_params for whichever decode engine."""
        asked = [(p, 1, {"do_remote_decode": True, **more}) for p in prompts]
        return [params for _, params, _ in self.engines[prefill].run(asked)]

    def alone(self, prompts):
        """The tokens of an engine that has no connector's help."""
        first = next(iter(self.engines.values()))
        return [tokens for tokens, _, _ in first.run([(prompt, COUNT, None) for prompt in prompts])]

    def decoded(self, decode, prompts, params):
        found = self.engines[decode].run([(prompt, COUNT, one) for prompt, one in zip(prompts, params)])
        return [tokens for tokens, _, _ in found]

    def loads(self, decode):
        """Loads that were DONE, and that failed, of all ranks."""
        metrics = self.engines[decode].metrics()
        return [metrics.get(f"vllm:strait_{name}", 0) for name in ("load_seconds", "failed_loads")]

    def left(self, *names, seconds=2.0):
        """Blocks that these engines still hold after so much time."""
        end = time.monotonic() + seconds
        while True:
            for name in names:
                self.engines[name].rest(0.05)
            left = [self.engines[name].held() for name in names]
            if not any(left) or time.monotonic() > end:
                return sum(left)

    def stop(self):
        for engine in self.engines.values():
            engine.stop()
        self.nodes.stop()


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    engines = Engines(tmp_path_factory.mktemp("engines"))
    yield engines
    engines.stop()


PAIRS = [(prefill, decode) for prefill in ENGINES for decode in ENGINES if prefill != decode]


@pytest.mark.parametrize("prefill, decode", PAIRS)
def test_blocks_arrive(engines, prefill, decode):
    prompts = engines.prompts(*LENGTHS)
    before = engines.loads(decode)
    params = engines.hand_over(prefill, prompts)
    assert engines.decoded(decode, prompts, params) == engines.alone(prompts)
    ranks = ENGINES[decode][1]
    assert engines.loads(decode) == [before[0] + ranks * len(prompts), before[1]]
    assert engines.left(prefill, decode) == 0


@pytest.mark.parametrize("prefill, decode", PAIRS)
def test_what_the_decode_engine_has_is_not_loaded(engines, prefill, decode):
    (start,) = engines.prompts(192)
    (tail,) = engines.prompts(75)
    for prompts in ([start], [start + tail]):
        params = engines.hand_over(prefill, prompts)
        before = engines.loads(decode)
        assert engines.decoded(decode, prompts, params) == engines.alone(prompts)
        assert engines.loads(decode) == [before[0] + ENGINES[decode][1], before[1]]
    assert engines.left(prefill, decode) == 0


@pytest.mark.parametrize("prefill, decode", PAIRS)
def test_both_halves_at_once(engines, prefill, decode):
    """Chunks of the prefill end inside blocks of the decode engine."""
    first, prompt = engines.prompts(40, 500)
    (params,) = engines.hand_over(prefill, [first])
    engines.decoded(decode, [first], [params])
    key, before = f"both-{time.time_ns()}", engines.loads(decode)
    engines.engines[decode].begin("run", [(prompt, COUNT, {**params, "remote_request_id": key})])
    engines.hand_over(prefill, [prompt], strait_key=key)
    ((tokens, _, _),) = engines.engines[decode].answer()
    assert [tokens] == engines.alone([prompt])
    assert engines.loads(decode) == [before[0] + ENGINES[decode][1], before[1]]
    assert engines.left(prefill, decode) == 0


def test_an_abort_at_the_decode_engine_frees_both(engines):
    prefill, decode = "two ranks, blocks of 64", "one rank, blocks of 32"
    prompts = engines.prompts(300, 200)
    params = engines.hand_over(prefill, prompts)
    engines.engines[decode].abort([(prompt, COUNT, one) for prompt, one in zip(prompts, params)], 1)
    assert engines.left(prefill, decode) == 0
