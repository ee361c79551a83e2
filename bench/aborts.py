#!/usr/bin/env python3
"""Times from an abort in the middle of a transfer until both sides have drained, and looks for pages that were written
afterwards.

aborts.py STRAITD [--turns N] [--bytes MIB] [--transports LIST] [--coding LIST] [--json]

The libraries are those of STRAIT_LIBRARY and STRAIT_CLIENT_LIBRARY, the binding that of PYTHONPATH. Two daemons for
each transport, a pool of K and V in BF16 at each, of --bytes in pages of 16 KiB. A turn is a request for the whole
pool: when it is moving, and after a random part of the time that it takes to the end, one side gives it up. Measured
is, from the call of abort() on, when each side's client is told that its transfer has drained; both clients are in
this process, which sleeps between events. Then all pages of the sink are overwritten, and must be so at the end of the
turn. A request that had its verdict when it was given up does not count, and is replaced. Percentiles are nearest
ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import strait
from strait import service
from strait.service import Coding, Event, Reason, State

PAGE, LAYERS = 16384, 4  # bytes; layers of K and V
PAGES_A_MIB = 2**20 // PAGE
MARK = 0xFFFF  # a NaN: none of the values
SETTLE = 0.02  # seconds in which what still writes would show
LONGEST = 10.0  # seconds until an answer
SIDES = ("source", "sink")


def values_of(count: int) -> np.ndarray[Any, Any]:
    """BF16 of a bell curve."""
    values = np.random.default_rng(1).standard_normal(count, np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


class Side:
    """A client of one daemon, with its pool."""

    def __init__(self, socket: Path, mib: int):
        self.client = service.Client(socket)
        self.pages = mib * PAGES_A_MIB // (2 * LAYERS)
        self.array = np.frombuffer(service.alloc(mib << 20), np.uint16).reshape(2 * LAYERS, self.pages, -1)
        self.pool = self.client.register({("kv"[i % 2], i // 2): self.array[i] for i in range(2 * LAYERS)})


class Pair:
    """Two daemons that reach each other by one transport, and their clients."""

    def __init__(self, straitd: str, transport: str, mib: int):
        self.folder = tempfile.TemporaryDirectory()
        folder = Path(self.folder.name)
        strait.calibrate({("k", 0): values_of(1 << 16)}).save(folder / "set")
        common = ["--listen", "127.0.0.1:0", "--metrics", "", "--codebook", str(folder / "set")]
        common += ["--transports", transport]
        with (folder / "log").open("a") as log:
            self.running = [
                subprocess.Popen([straitd, "--socket", str(folder / side), *common], stderr=log) for side in SIDES
            ]
        self.source, self.sink = (Side(folder / side, mib) for side in SIDES)
        self.source.array.reshape(-1)[:] = values_of(self.source.array.size)
        self.peer = self.sink.client.import_peer(self.source.pool.export(timeout=30))
        self.sink.pool.wait(30)
        self.names = 0

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        for side in (self.source, self.sink):
            side.client.close()
        for process in self.running:
            process.terminate()
            process.wait()
        self.folder.cleanup()

    def events(self, seconds: float) -> list[Event]:
        clients = [self.source.client, self.sink.client]
        select.select(clients, [], [], max(seconds, 0))
        return [event for client in clients for event in client.poll()]

    def begin(self) -> tuple[service.Transfer, service.Transfer]:
        """An offer and an expectation of all pages, when the sink's daemon has said that they are moving."""
        self.names += 1
        key = f"request {self.names}"
        offer = self.source.pool.offer(key, range(self.source.pages), lease=60, last=True)
        expectation = self.sink.pool.expect(key, range(self.sink.pages), deadline=60)
        expectation.start(self.peer)
        end = time.monotonic() + LONGEST
        while expectation.progress.state == State.BOOTSTRAP or expectation.progress.state == State.READY:
            self.events(end - time.monotonic())
            if time.monotonic() > end:
                raise SystemExit(f"after {LONGEST} s nothing was moving")
        return offer, expectation

    def whole(self) -> float:
        """Seconds from there to DONE."""
        offer, expectation = self.begin()
        with offer, expectation:
            began = time.perf_counter()
            while expectation.progress.state != State.DONE:
                self.events(LONGEST)
                if expectation.progress.state == State.FAILED or time.perf_counter() - began > LONGEST:
                    raise SystemExit(f"a request that nobody gave up did not arrive: {expectation.progress}")
            return time.perf_counter() - began

    def abort(self, by: str, after: float) -> tuple[float, float] | None:
        """Seconds until the side that gave up, and the other one, had drained. None: it was too late."""
        offer, expectation = self.begin()
        with offer, expectation:
            time.sleep(after)
            self.events(0)
            mine, other = (offer, expectation) if by == "source" else (expectation, offer)
            if {mine.progress.state, other.progress.state} & {State.DONE, State.FAILED}:
                return None
            drained: dict[service.Transfer, float] = {}
            began = time.perf_counter()
            mine.abort()
            while len(drained) < 2:
                events = self.events(began + LONGEST - time.perf_counter())
                now = time.perf_counter() - began
                drained.update({event.transfer: now for event in events if event.drained and event.transfer})
                if now > LONGEST:
                    raise SystemExit(f"not drained after {now:.1f} s: {mine.progress}, {other.progress}")
            if mine.progress.state == State.DONE or other.progress.state == State.DONE:
                return None  # its end was on the way
            said = (mine.progress.reason, other.progress.reason)
            if said != (Reason.ABORTED, Reason.PEER_ABORT):
                raise SystemExit(f"the reasons are {said[0].name} and {said[1].name}")
            self.sink.array[:] = MARK
            time.sleep(SETTLE)
            if not (self.sink.array == MARK).all():
                raise SystemExit("a page was written after its transfer had drained")
            return drained[mine], drained[other]


def percentile(values: list[float], percent: int) -> float:
    return sorted(values)[-(-len(values) * percent // 100) - 1]


def measure(pair: Pair, turns: int) -> tuple[dict[str, list[tuple[float, float]]], float, int]:
    """Times by who gave up, in turn; seconds of a whole request; how many were given up too late."""
    whole = statistics.median([pair.whole() for _ in range(5)])
    chance, late = random.Random(9), 0
    times: dict[str, list[tuple[float, float]]] = {by: [] for by in SIDES}
    while any(len(found) < turns for found in times.values()):
        for by in SIDES:
            found = pair.abort(by, chance.uniform(0.05, 0.75) * whole)
            if found is not None:
                times[by].append(found)
            else:
                late += 1
                if late > 4 * turns:
                    raise SystemExit("most requests had ended before they were given up: more --bytes")
    return times, whole, late


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("straitd")
    parser.add_argument("--turns", type=int, default=100, help="for each side that gives up")
    parser.add_argument("--bytes", type=int, default=128, metavar="MIB", help="of a request, a multiple of 8")
    parser.add_argument("--transports", default="tcp,shm")
    parser.add_argument("--coding", default="raw,tiered")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for transport in options.transports.split(","):
        with Pair(options.straitd, transport, options.bytes) as pair:
            for coding in options.coding.split(","):
                for side in (pair.source, pair.sink):
                    side.pool.set_policy(Coding[coding.upper()])
                times, whole, late = measure(pair, options.turns)
                for by, found in times.items():
                    row = {"transport": transport, "coding": coding, "by": by, "whole_ms": 1e3 * whole, "late": late}
                    for whose, seconds in zip(("own", "other"), zip(*found)):
                        for name, value in (("p50", 50), ("p99", 99), ("max", 100)):
                            row[f"{whose}_{name}_ms"] = 1e3 * percentile(list(seconds), value)
                    rows.append(row)
    if options.json:
        print(json.dumps({"mib": options.bytes, "turns": options.turns, "rows": rows}, indent="\t"))
        return
    print(
        f"{options.bytes} MiB under way, {options.turns} aborts each, load {os.getloadavg()[0]:.1f}; ms until drained"
    )
    print("transport coding    whole  given up by  own side: p50     p99     max  other side: p50     p99     max")
    for row in rows:
        print(
            f"{row['transport']:9} {row['coding']:7}{row['whole_ms']:8.1f}  {row['by']:11}"
            f"{row['own_p50_ms']:15.2f}{row['own_p99_ms']:8.2f}{row['own_max_ms']:8.2f}"
            f"{row['other_p50_ms']:17.2f}{row['other_p99_ms']:8.2f}{row['other_max_ms']:8.2f}"
        )


if __name__ == "__main__":
    main()
