"""NIXL's back ends in one run: STRAIT beside UCX, READ and WRITE of host memory between two processes.

    eval "$(python -m strait.nixl)"; python bench/rivals/nixl_backends.py [--repeats N] [--ucx-tls LIST] [--json]

For each size and operation both back ends take turns; the figure is the median of all turns, from the post to the
completion that the initiator sees. UCX is limited to TCP unless told otherwise, as between hosts without RDMA; Strait's
embedded nodes use TCP between processes. Descriptors are of 64 KiB, or of the size if that is less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

BLOCK = 64 << 10
SIZES = (4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
BACKENDS = ("STRAIT", "UCX")


def make(backend, name, seed, page):
    import numpy as np
    from nixl._api import nixl_agent, nixl_agent_config

    agent = nixl_agent(name, nixl_agent_config(backends=[]))
    agent.create_backend(backend, {"listen": "127.0.0.1:0", "page": page} if backend == "STRAIT" else {})
    array = np.random.default_rng(seed).integers(0, 256, max(SIZES), dtype=np.uint8)
    agent.register_memory([(array.ctypes.data, array.nbytes, 0, "")], "DRAM", backends=[backend])
    return agent, array


def serve(backend, name, page):
    agent, array = make(backend, name, 1, page)
    print("\nTARGET", agent.get_agent_metadata().hex(), array.ctypes.data, flush=True)
    sys.stdin.read()


class Pair:
    """An agent here, and its target in a process of its own."""

    def __init__(self, backend, page):
        self.backend, self.name = backend, f"target-{backend}"
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", backend, self.name, page],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for line in self.process.stdout:
            if line.startswith("TARGET"):
                _, metadata, address = line.split()
                break
        self.target = int(address)
        self.agent, self.array = make(backend, f"initiator-{backend}", 2, page)
        self.agent.add_remote_agent(bytes.fromhex(metadata))
        self.handles = {}

    def handle(self, operation, size):
        if (operation, size) not in self.handles:
            block = min(BLOCK, size)
            lists = [
                self.agent.get_xfer_descs([(begin + at, block, 0) for at in range(0, size, block)], "DRAM")
                for begin in (self.array.ctypes.data, self.target)
            ]
            self.handles[operation, size] = self.agent.initialize_xfer(
                operation, *lists, self.name, b"", backends=[self.backend]
            )
        return self.handles[operation, size]

    def move(self, operation, size):
        handle = self.handle(operation, size)
        began = time.perf_counter()
        state = self.agent.transfer(handle)
        while state == "PROC":
            state = self.agent.check_xfer_state(handle)
        if state != "DONE":
            raise RuntimeError(f"{self.backend} {operation} of {size} bytes: {state}")
        return time.perf_counter() - began

    def end(self):
        self.process.kill()
        self.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--repeats", type=int, default=51, help="turns of each row (51)")
    parser.add_argument("--ucx-tls", default="tcp", help="UCX_TLS of the rival (tcp); all: its own choice")
    parser.add_argument("--page", default="4096", help="the plug-in's option page; smaller sizes are left out (4096)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(*arguments.serve)
    os.environ["UCX_TLS"] = arguments.ucx_tls
    pairs = [Pair(backend, arguments.page) for backend in BACKENDS]
    rows = []
    try:
        for operation in ("READ", "WRITE"):
            for size in filter(lambda size: size >= int(arguments.page), SIZES):
                times = {pair.backend: [] for pair in pairs}
                for turn in range(arguments.repeats + 2):
                    for pair in pairs if turn % 2 else reversed(pairs):
                        elapsed = pair.move(operation, size)
                        if turn >= 2:
                            times[pair.backend].append(elapsed)
                ours, theirs = (statistics.median(times[name]) for name in ("STRAIT", "UCX"))
                rows.append({"operation": operation, "bytes": size, "strait_us": ours * 1e6, "ucx_us": theirs * 1e6})
    finally:
        for pair in pairs:
            pair.end()
    if arguments.json:
        print(
            json.dumps(
                {
                    "schema": 1,
                    "ucx_tls": arguments.ucx_tls,
                    "page": arguments.page,
                    "repeats": arguments.repeats,
                    "rows": rows,
                }
            )
        )
        return None
    print(f"{'op':6}{'bytes':>10}{'STRAIT us':>12}{'UCX us':>12}{'UCX/STRAIT':>12}")
    for row in rows:
        print(
            f"{row['operation']:6}{row['bytes']:>10}{row['strait_us']:>12.0f}{row['ucx_us']:>12.0f}"
            f"{row['ucx_us'] / row['strait_us']:>12.2f}"
        )
    return None


if __name__ == "__main__":
    sys.exit(main())
