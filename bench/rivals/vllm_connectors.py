#!/usr/bin/env python3
"""Strait's connector of vLLM beside vLLM's own NixlConnector, on CPUs, with the same engines' settings in one run:

    tests/frameworks/run.sh's environment, with the package nixl:
    vllm_connectors.py [--repeat N] [--kinds KIND,...] [--json]

For each connector a prefill and a decode engine, in turn: prompts that are new (fresh), that begin as others did (warm:
only what the decode engine lacks is moved) and that came before (again). Printed are the medians of what the decode
engine takes for each: from the request to its first token. Each is compared with the prefill engine's own. Beside them
stands what is vLLM's alone: connectors that load nothing (vllm_nothing.py), in a step of their own and within that of the
token."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / part) for part in ("tests/frameworks/vllm", "python/tests", "bench/rivals")]

from engine import BLOCK, Engine, Settings, strait_connector
from model import VOCABULARY, make_model
from test_vllm import Nodes, free_port

SHAPES = ("fresh", "warm", "again")


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
    return {"fresh": fresh, "warm": warm, "again": fresh}


def measure(pair: tuple[Engine, Engine], prompt: list[int]) -> tuple[float, bool]:
    prefill, decode = pair
    ((_, params, _),) = prefill.run([(prompt, 1, {"do_remote_decode": True})])
    ((tokens, _, seconds),) = decode.run([(prompt, 1, params)])
    ((expected, _, _),) = prefill.run([(prompt, 1, None)])
    return seconds, tokens == expected


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
            for pair in engines.values():
                for engine in pair:
                    engine.ready()
            times = {kind: {shape: [] for shape in SHAPES} for kind in kinds}
            wrong = 0
            for number in range(options.repeat + 1):
                for kind, pair in engines.items():
                    for shape, prompt in prompts_of(random.Random(f"{number} {kind}"), options.tokens).items():
                        seconds, right = measure(pair, prompt)
                        wrong += not right and not kind.startswith("nothing")
                        if number > 0:  # the first one connects
                            times[kind][shape].append(seconds)
        finally:
            for pair in engines.values():
                for engine in pair:
                    engine.stop()
            nodes.stop()
    medians = {kind: {s: statistics.median(found[s]) for s in SHAPES} for kind, found in times.items()}
    if options.json:
        print(json.dumps({"wrong": wrong, "seconds": medians}, indent="\t"))
    else:
        print(f"{options.tokens} tokens, decode engine, ms, medians of {options.repeat}")
        print(f"{'':16}", *(f"{shape:>8}" for shape in SHAPES))
        for kind, found in medians.items():
            print(f"{kind:16}", *(f"{1e3 * found[shape]:8.1f}" for shape in SHAPES))
        print(f"wrong: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
