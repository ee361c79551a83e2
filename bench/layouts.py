#!/usr/bin/env python3
"""Times transfers between pools of other layouts beside the same bytes between pools of one layout, and compares all
that has landed with a rearrangement by numpy or torch.

layouts.py STRAITD [--gpu] [--tokens N] [--layers N] [--repeats N] [--coding LIST] [--transports LIST]

The libraries are those of STRAIT_LIBRARY and STRAIT_CLIENT_LIBRARY, the binding that of PYTHONPATH. Two daemons, pools
of K and V in BF16, 8 KV heads of 128 values; with --gpu on the first and the last GPU, by torch. The repeats take the
pairs in turn. Medians: GB/s of the bytes that land; x of pages of 16 tokens that are alike, with as many heads, in the
same turn; the same of the bytes for each second of the daemons' processors, which others that use the machine disturb
less.
"""

from __future__ import annotations

import argparse
import select
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import strait
from strait import service
from strait.service import Layout, Region, State

HEADS, SIZE = 8, 128
NHD, HND = Layout.NHD, Layout.HND


class Side(NamedTuple):
    tokens: int
    order: Layout = NHD
    heads: range = range(HEADS)


class Rates(NamedTuple):
    """Bytes a second, of the clock and of the daemons' processors."""

    clock: float
    processor: float


PAIRS = {
    "alike, 16 tokens": (Side(16), Side(16)),
    "alike, 64 tokens": (Side(64), Side(64)),
    "alike, half of the heads": (Side(16, NHD, range(4)), Side(16, NHD, range(4))),
    "16 to 64 tokens": (Side(16), Side(64)),
    "64 to 16 tokens": (Side(64), Side(16)),
    "16 to 64 tokens, HND": (Side(16, HND), Side(64, HND)),
    "NHD to HND, 16": (Side(16), Side(16, HND)),
    "HND to NHD, 16": (Side(16, HND), Side(16)),
    "NHD to HND, 64": (Side(64), Side(64, HND)),
    "NHD of 16 to HND of 64": (Side(16), Side(64, HND)),
    "one rank to two, NHD": (Side(16), Side(16, NHD, range(4))),
    "one rank to two, HND": (Side(16, HND), Side(16, HND, range(4, 8))),
}


def values_of(count: int) -> np.ndarray[Any, Any]:
    """BF16 of a bell curve."""
    values = np.random.default_rng(1).standard_normal(count, np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


class Pool:
    def __init__(self, client: service.Client, side: Side, options: argparse.Namespace, device: int, fill: bool):
        self.side, self.pages = side, options.tokens // side.tokens
        page = (side.tokens, len(side.heads)) if side.order == NHD else (len(side.heads), side.tokens)
        kinds = [(role, layer) for layer in range(options.layers) for role in "kv"]
        shape = (len(kinds), self.pages, *page, SIZE)
        count = int(np.prod(shape))
        values = values_of(count) if fill else np.zeros(count, np.uint16)
        self.array: Any
        if options.gpu:
            import torch

            self.array = (
                torch.from_numpy(values.view(np.int16)).to(f"cuda:{device}").view(torch.bfloat16).reshape(shape)
            )
        else:
            self.array = np.frombuffer(service.alloc(2 * count), np.uint16).reshape(shape)
            self.array.reshape(-1)[:] = values
        self.bytes = 2 * count
        self.pool = client.register(
            {
                kind: Region(
                    self.array[i],
                    heads=len(side.heads),
                    layout=side.order,
                    tokens=side.tokens,
                    head_first=side.heads.start,
                    heads_total=HEADS,
                )
                for i, kind in enumerate(kinds)
            }
        )

    def by_token(self) -> np.ndarray[Any, Any]:
        """[layer and role, token, head, value]."""
        array = self.array
        if not isinstance(array, np.ndarray):
            import torch

            array = array.view(torch.int16).cpu().numpy().view(np.uint16)
        array = array if self.side.order == NHD else array.swapaxes(2, 3)
        return array.reshape(array.shape[0], -1, len(self.side.heads), SIZE)


class Daemons:
    def __init__(self, straitd: str, options: list[str]):
        self.folder = tempfile.TemporaryDirectory()
        folder = Path(self.folder.name)
        book = strait.calibrate({("k", 0): values_of(1 << 16)})
        book.save(folder / "set")
        self.sockets = [folder / name for name in ("source", "sink")]
        common = ["--listen", "127.0.0.1:0", "--metrics", "", "--codebook", str(folder / "set"), *options]
        with (folder / "log").open("a") as log:
            self.running = [
                subprocess.Popen([straitd, "--socket", str(socket), *common], stderr=log) for socket in self.sockets
            ]

    def processor_seconds(self) -> float:
        """Of both daemons so far."""
        tasks = [task for process in self.running for task in Path(f"/proc/{process.pid}/task").iterdir()]
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) * 1e-9

    def __enter__(self) -> Daemons:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running:
            process.terminate()
            process.wait()
        self.folder.cleanup()


def await_verdict(clients: list[service.Client], transfer: service.Transfer) -> None:
    while True:
        select.select(clients, [], [], 1)
        for event in [event for client in clients for event in client.poll()]:
            if event.transfer is transfer and event.state in (State.DONE, State.FAILED):
                if event.state == State.FAILED:
                    raise SystemExit(f"failed: {event.reason.name} {event.text}")
                return


def move(clients: list[service.Client], key: str, source: Pool, sink: Pool, peer: service.Peer) -> float:
    """Seconds from the start to DONE."""
    with (
        source.pool.offer(key, range(source.pages), lease=60, last=True),
        sink.pool.expect(key, range(sink.pages), deadline=60) as expectation,
    ):
        began = time.perf_counter()
        expectation.start(peer)
        await_verdict(clients, expectation)
        return time.perf_counter() - began


def measure(options: argparse.Namespace, coding: str, transports: str) -> None:
    devices = 0
    if options.gpu:
        import torch

        devices = torch.cuda.device_count()
    with Daemons(options.straitd, ["--coding", coding, "--transports", transports]) as daemons:
        clients = [service.Client(socket) for socket in daemons.sockets]
        pools = {}
        for name, (a, b) in PAIRS.items():
            source = Pool(clients[0], a, options, 0, fill=True)
            sink = Pool(clients[1], b, options, max(devices - 1, 0), fill=False)
            pools[name] = source, sink, clients[1].import_peer(source.pool.export(timeout=60))
            sink.pool.wait(60)
        rates: dict[str, list[Rates]] = {name: [] for name in pools}
        for turn in range(options.repeats + 2):  # the first two are not counted
            for name, (source, sink, peer) in pools.items():
                before = daemons.processor_seconds()
                seconds = move(clients, f"{name} {turn}", source, sink, peer)
                used = max(daemons.processor_seconds() - before, 1e-9)
                rates[name] += [Rates(sink.bytes / seconds, sink.bytes / used)] if turn > 1 else []
        for name, (source, sink, _) in pools.items():
            heads = sink.side.heads
            sent = source.by_token()[:, :, heads.start - source.side.heads.start :][:, :, : len(heads)]
            good = (sent == sink.by_token()).all()
            alike = rates["alike, 16 tokens" if len(heads) == HEADS else "alike, half of the heads"]
            rate = statistics.median(own.clock for own in rates[name]) * 1e-9
            by_clock = statistics.median(own.clock / base.clock for own, base in zip(rates[name], alike))
            by_processor = statistics.median(own.processor / base.processor for own, base in zip(rates[name], alike))
            print(f"{transports:8} {coding:7} {name:26} {sink.bytes >> 20:5} MiB {rate:7.2f} {by_clock:6.2f}",
                  f"{by_processor:6.2f}", "ok" if good else "WRONG", flush=True)  # fmt: skip
            if not good:
                raise SystemExit(1)
        for client in clients:
            client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("straitd")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--tokens", type=int, default=4096, help="of a request, a multiple of 64")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--coding", default="raw,tiered")
    parser.add_argument("--transports", default="shm,tcp")
    options = parser.parse_args()
    for transports in options.transports.split(",") if not options.gpu else ["shm"]:
        for coding in options.coding.split(","):
            measure(options, coding, transports)


if __name__ == "__main__":
    main()
