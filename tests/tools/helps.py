"""What --help of strait and straitd names, for the tests that hold other texts to it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

#: What the test was told, as `name.py STRAIT STRAITD`.
STRAIT, STRAITD = (str(Path(path).resolve()) for path in sys.argv[1:3])
failures: list[str] = []


def fail(text: object) -> None:
    failures.append(str(text))
    print(f"FAIL: {text}")


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode != 0 or done.stderr:
        fail(f"{command} ends with {done.returncode}: {done.stderr}")
    return done.stdout


def options_of(help_text: str) -> set[str]:
    """The options of a --help: those that begin a line, after spaces."""
    found = re.findall(r"^ +(?:(-\w), )?(--[\w-]+)", help_text, re.M)
    return {option for pair in found for option in pair if option}


def wanted() -> dict[tuple[str, ...], set[str]]:
    """For each beginning of a command line the options that its --help names."""
    commands = re.findall(r"^  (\w+) +\S", run(STRAIT, "--help"), re.M)
    parted = ("codebook", "checkpoint", "collectives")
    lines = {(STRAIT, one): run(STRAIT, one, "--help") for one in commands if one not in ("bench", *parted)}
    for one in parted:
        for part in re.findall(r"^  ([\w-]+) +\S", run(STRAIT, one, "--help"), re.M):
            lines[(STRAIT, one, part)] = run(STRAIT, one, part, "--help")
    benches = re.findall(r"^  (\w+) +\S", run(STRAIT, "bench", "--help"), re.M)
    for bench in benches:
        for device in ((), ("--device",)):
            done = subprocess.run(
                [STRAIT, "bench", bench, *device, "--help"], capture_output=True, text=True, timeout=60
            )
            if "without CUDA" not in done.stderr:
                lines[(STRAIT, "bench", bench)] = lines.get((STRAIT, "bench", bench), "") + done.stdout
    lines[(STRAITD,)] = run(STRAITD, "--help")
    if len(commands) < 9 or len(benches) < 3 or len(options_of(lines[(STRAITD,)])) < 30:
        fail(f"--help is not understood: {commands}, {benches}")
    return {beginning: options_of(text) for beginning, text in lines.items()}
