#!/usr/bin/env python3
"""Strait's connector of vLLM beside vLLM's own NixlConnector, on CPUs, with the same engines' settings in one run:

    tests/frameworks/run.sh's environment, with the package nixl:
    vllm_connectors.py [--repeat N] [--kinds KIND,...] [--json]

For each connector a prefill and a decode engine, in turn: prompts that are new (fresh), that begin as others did (warm:
only what the decode engine lacks is moved), that came before (again), and new ones that come with another one, of 64
tokens, which the decode engine computes and goes on with (beside). Printed is what the decode engine takes for each,
from the request to its first token: the quickest, the first quartile and the median. Each is compared with the prefill
engine's own. Engines whose turn it is not are stopped (SIGSTOP): NixlConnector's use a processor each, with or without
requests, as the last column says. Beside them stands what is vLLM's alone: connectors that load nothing
(vllm_nothing.py), in a step of their own and within that of the token."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / part) for part in ("tests/frameworks/vllm", "python/tests", "bench/rivals")]

import psutil
from engine import BLOCK, Engine, Settings, strait_connector
from model import VOCABULARY, make_model
from test_vllm import Nodes, free_port

SHAPES = ("fresh", "warm", "again", "beside")


def nixl(host_port: int) -> dict:
    connector = {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
        "kv_buffer_device": "cpu",
        "kv_load_failure_policy": "recompute",
    }
    environment = {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(host_port),
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": "lo",
    }
    return {"connector": connector, "environment": environment}


def nothing(asynchronous: bool) -> dict:
    connector = {
        "kv_connector": "NothingConnector",
        "kv_connector_module_path": "vllm_nothing",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"asynchronous": asynchronous},
    }
    return {"connector": connector}


def prompts_of(chance: random.Random, tokens: int) -> dict[str, list[int]]:
    fresh = [chance.randrange(3, VOCABULARY) for _ in range(tokens)]
    warm = fresh[: tokens // 2 // BLOCK * BLOCK] + [chance.randrange(3, VOCABULARY) for _ in range(tokens // 2)]
    return {"fresh": fresh, "warm": warm, "again": fresh, "beside": [chance.randrange(3, VOCABULARY) for _ in fresh]}


@contextmanager
def its_turn(pair: tuple[Engine, Engine]) -> Iterator[None]:
    for engine in pair:
        os.kill(engine.process.pid, signal.SIGCONT)
    try:
        yield
    finally:
        for engine in pair:
            os.kill(engine.process.pid, signal.SIGSTOP)


def idle_use(pair: tuple[Engine, Engine], seconds: float = 2) -> float:
    """Processors that the two engines use without a request."""

    def used() -> float:
        return sum(sum(psutil.Process(engine.process.pid).cpu_times()[:2]) for engine in pair)

    before = used()
    time.sleep(seconds)
    return (used() - before) / seconds


def measure(pair: tuple[Engine, Engine], prompt: list[int], beside: bool) -> tuple[float, bool]:
    prefill, decode = pair
    ((_, params, _),) = prefill.run([(prompt, 1, {"do_remote_decode": True})])
    others = [(prompt[:-65:-1], 16, None)] if beside else []
    *_, (tokens, _, seconds) = decode.run([*others, (prompt, 1, params)])
    ((expected, _, _),) = prefill.run([(prompt, 1, None)])
    return seconds, tokens == expected


def figures(times: list[float]) -> dict[str, float]:
    return {
        "quickest": min(times),
        "quartile": statistics.quantiles(times, n=4, method="inclusive")[0],
        "median": statistics.median(times),
    }


def show(options: argparse.Namespace, found: dict[str, dict], idle: dict[str, float]) -> None:
    print(f"{options.tokens} tokens, decode engine, ms: quickest / first quartile / median of {options.repeat}")
    print(f"{'':16}", *(f"{shape:>20}" for shape in SHAPES), f"{'idle, processors':>18}")
    for kind, by_shape in found.items():
        cells = (" / ".join(f"{1e3 * value:.1f}" for value in by_shape[shape].values()) for shape in SHAPES)
        print(f"{kind:16}", *(f"{cell:>20}" for cell in cells), f"{idle[kind]:18.2f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--kinds", help="of the connectors; default: all")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model")
        nodes = Nodes(folder)
        sockets = [daemon.socket for daemon in nodes.daemons]
        kinds = {
            "strait raw": [{"connector": strait_connector(socket, coding="raw")} for socket in sockets],
            "strait tiered": [{"connector": strait_connector(socket, coding="tiered")} for socket in sockets],
            "nixl": [nixl(free_port()) for _ in range(2)],
            "nothing": [nothing(True)] * 2,
            "nothing, at once": [nothing(False)] * 2,
        }
        kinds = {kind: kinds[kind] for kind in options.kinds.split(",")} if options.kinds else kinds
        engines = {
            kind: tuple(Engine(Settings(folder / "model", **settings)) for settings in pair)
            for kind, pair in kinds.items()
        }
        try:
            idle = {}
            for kind, pair in engines.items():
                for engine in pair:
                    engine.ready()
                with its_turn(pair):
                    idle[kind] = idle_use(pair)
            times = {kind: {shape: [] for shape in SHAPES} for kind in kinds}
            wrong = 0
            for number in range(options.repeat + 1):
                for kind, pair in engines.items():
                    with its_turn(pair):
                        for shape, prompt in prompts_of(random.Random(f"{number} {kind}"), options.tokens).items():
                            seconds, right = measure(pair, prompt, shape == "beside")
                            wrong += not right and not kind.startswith("nothing")
                            if number > 0:  # the first one connects
                                times[kind][shape].append(seconds)
        finally:
            for pair in engines.values():
                for engine in pair:
                    os.kill(engine.process.pid, signal.SIGCONT)
                    engine.stop()
            nodes.stop()
    found = {kind: {shape: figures(times[kind][shape]) for shape in SHAPES} for kind in kinds}
    if options.json:
        print(json.dumps({"wrong": wrong, "seconds": found, "idle": idle}, indent="\t"))
    else:
        show(options, found, idle)
        print(f"wrong: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
