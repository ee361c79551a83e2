#!/usr/bin/env python3
"""schemas.py STRAIT STRAITD PULL: each --json has the schema and the version that docs/operations.md says, and each
command with --json is in its table."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import coll_reports
from daemons import PATIENCE, STRAIT, STRAITD, Folder, expect, finish, strait

ROOT = Path(__file__).resolve().parents[2]
#: With GPUs only: their rows are looked for, and not run.
NEEDS_GPUS = {"strait bench collective --json"}


def table() -> dict[str, tuple[str, int]]:
    """Schema and version of each command in the documentation."""
    text = (ROOT / "docs/operations.md").read_text().split("## JSON documents")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \| (\d+) \|", text, re.M)
    return {command: (schema, int(version)) for command, schema, version in rows}


def with_json() -> set[str]:
    """Commands whose --help has --json."""
    commands = re.findall(r"^  (\w+) +\S", strait("--help").stdout, re.M)
    with_parts = ("bench", "codebook", "checkpoint", "collectives")
    lines = [[one] for one in commands if one not in with_parts]
    for parted in with_parts:
        lines += [[parted, part] for part in re.findall(r"^  ([\w-]+) +\S", strait(parted, "--help").stdout, re.M)]
    found = {"straitd --examine"}
    for line in lines:
        answer = strait(*line, "--help")
        if "--json" in answer.stdout or "without CUDA" in answer.stderr:
            found.add(f"strait {' '.join(line)} --json")
    return found


def hosts() -> subprocess.CompletedProcess[str]:
    """What a host prints that reads from another one."""
    command = [STRAIT, "bench", "hosts", "--serve", "--port", "0", "--pages", "8"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = server.stdout.readline().split()[-3]  # "serves ... at port N until interrupted"
            return strait(
                *("bench", "hosts", "--json", "--peer", "127.0.0.1", "--port", port, "--pages", "8", "--repeats", "1")
            )
        finally:
            server.send_signal(signal.SIGINT)


def documents(folder: Folder) -> dict[str, str]:
    sample, packed, codebook = ROOT / "tests/data/kv-slice.safetensors", folder.path / "packed", folder.path / "set"
    daemon, checkpoint = folder.daemon("a"), folder.path / "step"
    subprocess.run([os.environ["CHECKPOINT_SAMPLE"], checkpoint, "2", "0"], check=True, timeout=PATIENCE)
    coll_reports.write(folder.path, 0, coll_reports.process(coll_reports.communicator(0, 1)))
    printed = {
        "strait calibrate --json": strait("calibrate", "--json", sample, "-o", codebook),
        "strait encode --json": strait("encode", "--json", "--codebook", codebook, sample, packed),
        "strait decode --json": strait("decode", "--json", "--verify", packed),
        "strait inspect --json": strait("inspect", "--json", packed),
        "strait codebook diff --json": strait("codebook", "diff", "--json", codebook, codebook),
        "strait codebook expect --json": strait("codebook", "expect", "--json", codebook, sample),
        "strait checkpoint inspect --json": strait("checkpoint", "inspect", "--json", checkpoint),
        "strait checkpoint verify --json": strait("checkpoint", "verify", "--json", checkpoint),
        "strait checkpoint clean --json": strait("checkpoint", "clean", "--json", checkpoint.parent),
        "strait checkpoint diff --json": strait("checkpoint", "diff", "--json", checkpoint, checkpoint),
        "strait status --json": strait("status", "--json", "--socket", daemon.socket),
        "strait top --json": strait("top", "--json", "--socket", daemon.socket, "--interval", "0.1"),
        "strait doctor --json": strait("doctor", "--json", "--socket", daemon.socket),
        "strait bench codec --json": strait("bench", "codec", "--json", "--size", "1M", "--repeats", "1"),
        "strait bench transfer --json": strait(
            *("bench", "transfer", "--json", "--no-rivals", "--path", "local", "--pages", "8", "--repeats", "1")
        ),
        "strait bench hosts --json": hosts(),
        "strait bench checkpoint --json": strait(
            *("bench", "checkpoint", "--json", "--folder", folder.path, "--size", "1M", "--repeats", "1")
        ),
        "strait bench ep --json": strait(
            *("bench", "ep", "--json", "--tokens", "4", "--hidden", "64", "--experts", "4", "--topk", "2", "--repeats", "1")
        ),
        "strait demo --json": strait("demo", "--json"),
        "strait collectives report --json": strait("collectives", "report", "--json", folder.path),
        "straitd --examine": subprocess.run(
            [STRAITD, "--examine", "--socket", folder.path / "none"], capture_output=True, text=True, timeout=PATIENCE
        ),
    }
    for command, answer in printed.items():
        expect(answer.returncode == 0, f"{command}: {answer}")
    return {command: answer.stdout for command, answer in printed.items()}


def status_of_a_set(folder: Folder) -> None:
    """strait status tells what the set in force expects, as the set's file does."""
    codebook = folder.path / "set"
    tables = json.loads(strait("inspect", "--json", codebook).stdout)["tables"]
    daemon = folder.daemon("b", "--codebook", str(codebook))
    document = json.loads(strait("status", "--json", "--socket", daemon.socket).stdout)
    expect(document.get("codebook_tables") == len(tables), f"tables of {document}")
    bits = [table["expected_bits"] for table in tables]
    expected = document.get("codebook_expected_bits", 0)
    expect(all(bits) and min(bits) < expected < max(bits), f"{expected} bits are expected of {bits}")
    text = strait("status", "--socket", daemon.socket).stdout
    expect(f"of {len(tables)} tables, which expects {expected:.3f} bits" in text, text)


def main() -> None:
    documented = table()
    expect(set(documented) == with_json(), f"documented or there, and not both: {set(documented) ^ with_json()}")
    with Folder() as folder:
        printed = documents(folder)
        status_of_a_set(folder)
    expect(set(printed) | NEEDS_GPUS == set(documented), f"not run: {set(documented) - set(printed)}")
    for command, text in printed.items():
        document = json.loads(text)
        schema, version = documented[command]
        told = (document.get("schema"), document.get("schema_version"))
        expect(told == (schema, version), f"{command}: {told}, documented {schema, version}")
    finish()


main()
