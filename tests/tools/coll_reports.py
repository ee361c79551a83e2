"""Reports as libstrait-coll writes them, for the tests of the command that reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Document = dict[str, Any]


def operation(name: str, kind: str = "bf16", **fields: object) -> Document:
    """100 calls of 64 MiB each, 90 of them compressed."""
    size = 64 << 20
    row: Document = {"operation": name, "type": kind, "calls": 100, "bytes": 100 * size, "grouped": 0, "captured": 0}
    row |= {"failed": 0, "compressed": 90, "plain_bytes": 90 * size, "wire_bytes": 60 * size, "probes": 4}
    row |= {
        "overflows": 2,
        "nccl_seconds": 1.5,
        "coded_seconds": 0.9,
        "overflow_seconds": 0.1,
        "compared": 0,
        "x": None,
    }
    row |= {"raw": [{"why": "timed, to compare", "calls": 10, "bytes": 10 * size}]}
    return row | fields


def communicator(rank: int, ranks: int, *operations: Document, **fields: object) -> Document:
    made: Document = {"number": 1, "id": "0123456789ab", "rank": rank, "ranks": ranks, "ended": False, "pinned": False}
    made |= {"state": "joined", "why": "measured", "hosts": 2, "table": "all_gather=16M"}
    made |= {"links": {"start_us": 20.5, "all_gather": 11.25, "all_to_all": 10.5, "reduce_scatter": None}}
    made["links"] |= {"overflow": 2.8, "encode": 990.0, "decode": 1100.0}
    made |= {"memory": {"messages": 268435456, "persistent": 1048576, "host": 134217728, "host_messages": 0}}
    return made | {"operations": list(operations)} | fields


def process(*communicators: Document, **fields: object) -> Document:
    made: Document = {"schema": "strait-coll report", "schema_version": 1, "library": "0.1.0", "nccl": 22809}
    made |= {"nccl_path": "/usr/lib/libnccl.so.2", "host": "node-a", "process": 1000, "started": 1000.5}
    made |= {"written": 2000.25, "exited": False, "mode": "auto", "encrypted": False, "dropped": 0}
    return made | {"communicators": list(communicators)} | fields


def write(folder: Path, number: int, document: object) -> Path:
    path = folder / f"strait-coll-node-{number}-1.json"
    path.write_text(json.dumps(document))
    return path
