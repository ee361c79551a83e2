#!/usr/bin/env python3
"""calibrate_node.py STRAIT STRAITD PULL: `strait calibrate --from-node` asks a daemon whose pools offer pages. The set
is that of a file with the same values, and codes better once the daemons have reloaded it. $OFFERER is the worker."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from daemons import PATIENCE, STRAIT, Daemon, Folder, expect, finish, strait, wait_for

SLICE = Path(__file__).resolve().parents[1] / "data/kv-slice.safetensors"
OFFSET = 8 + int.from_bytes(SLICE.read_bytes()[:8], "little")
ARRAYS, ARRAY_BYTES, PAGES = 6, 65536, 16
PAGE_BYTES = ARRAYS * ARRAY_BYTES // PAGES
NOBODY = 65534


class Worker:
    """Offers some pages of the cache, and (with a sink) has them fetched, until the end of the block."""

    def __init__(self, first: int, count: int, *daemons: Daemon, user: int | None = None):
        command = [os.environ["OFFERER"], SLICE, OFFSET, first, count, *(daemon.socket for daemon in daemons)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([*map(str, command)], stdin=pipe, stdout=pipe, text=True, user=user)
        for word in ("offered", "moved")[: len(daemons)]:
            line = self.process.stdout.readline() if self.process.stdout else ""
            expect(line == f"{word}\n", f"{command}: {line!r} instead of {word}")

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()
        expect(self.process.returncode == 0, f"the worker ends with {self.process.returncode}")


def from_node(daemon: Daemon, *options: object, seconds: float = 0.5) -> subprocess.CompletedProcess[str]:
    return strait("calibrate", "--from-node", "--socket", daemon.socket, "--seconds", seconds, *options)


def refused(answer: subprocess.CompletedProcess[str], status: int, text: str, output: Path | None = None) -> None:
    expect(answer.returncode == status, f"exit status {answer.returncode}, not {status}: {answer}")
    expect(re.search(text, answer.stderr) is not None, f"no '{text}': {answer.stderr}")
    expect(not answer.stdout, f"printed: {answer.stdout}")
    if output is not None:
        expect(not output.exists(), f"a set all the same: {answer}")


# ---- The set ---------------------------------------------------------------------------------------------------------


def check_set(folder: Folder, daemon: Daemon) -> None:
    """Two pools offer the whole cache between them: the set is that of the file, also by way of counts."""
    file, node, counts, merged = (folder.path / name for name in ("file.set", "node.set", "counts", "merged.set"))
    expect(strait("calibrate", "-q", SLICE, "-o", file).returncode == 0, "calibrate FILE")
    answer = from_node(daemon, "-o", node)
    expect(answer.returncode == 0 and not answer.stderr, answer)
    expect(file.read_bytes() == node.read_bytes(), "the set of the node is not that of the file")
    total = re.search(r"^total +(\d+) .*? (\d\.\d+) +\S+$", answer.stdout, re.M)
    expect(total is not None and int(total[1]) == ARRAYS * ARRAY_BYTES // 2, answer.stdout)
    expect("sampled 0.4 of 0.4 MiB that were ready, in 2 pools, within" in answer.stdout, answer.stdout)
    expect(from_node(daemon, "--partial", "-q", "-o", counts).returncode == 0, "--partial")
    expect(strait("calibrate", "-q", "--merge", counts, "-o", merged).returncode == 0, "--merge")
    expect(file.read_bytes() == merged.read_bytes(), "the set of counts of the node is not that of the file")


def check_json(folder: Folder, daemon: Daemon) -> None:
    answer = from_node(daemon, "--json", "--global", "-o", folder.path / "global.set")
    expect(answer.returncode == 0, answer)
    report = json.loads(answer.stdout)
    sample = report["sample"]
    expect(report["schema"] == "strait calibrate" and report["tables"] == 1, report)
    expect(sample["pools"] == 2 and sample["bytes"] == sample["ready_bytes"] == ARRAYS * ARRAY_BYTES, sample)
    expect(sample["device_bytes_skipped"] == sample["other_bytes_skipped"] == 0, sample)
    expect(0.5 <= sample["seconds"] < 60, sample)
    expect(report["total"]["tiered_ratio"] > 1.3, report["total"])


def check_budget(folder: Folder, daemon: Daemon) -> None:
    began = time.monotonic()
    answer = from_node(daemon, "--json", "--sample-bytes", "100K", "-o", folder.path / "small.set", seconds=60)
    sample = json.loads(answer.stdout)["sample"]
    expect(100 * 1024 - 4096 < sample["bytes"] <= 100 * 1024, sample)
    expect(time.monotonic() - began < 30, "the sample goes on when the budget is spent")


def check_users(folder: Folder, daemon: Daemon) -> None:
    """Another user's sample has its own pool only; that of root has all three."""
    if os.geteuid() != 0:
        print("not root: users are not tried")
        return
    folder.path.chmod(0o755)
    daemon.socket.chmod(0o666)
    script = [STRAIT, "calibrate", "--from-node", "--socket", daemon.socket, "--seconds", "0.5", "--json", "-o", "-"]

    def sample() -> tuple[int, str]:
        told = subprocess.run([*map(str, script)], capture_output=True, user=NOBODY, timeout=PATIENCE)
        return told.returncode, told.stderr.decode()

    code, text = sample()
    expect(code == 1 and "no pool of yours has offered or served pages" in text, f"{code}: {text}")
    with Worker(3, 2, daemon, user=NOBODY):
        code, text = sample()
        expect(code == 0, text)
        told = json.loads(text)["sample"]
        expect(told["pools"] == 1 and told["ready_bytes"] == told["bytes"] == 2 * PAGE_BYTES, told)
        answer = from_node(daemon, "--json", "-o", folder.path / "all.set")
        expect(json.loads(answer.stdout)["sample"]["pools"] == 3, answer)


def begin_sample(daemon: Daemon, output: Path) -> subprocess.Popen[str]:
    """A program whose sample is being taken: another one is refused. It is started again if it met the other one."""
    command = [STRAIT, "calibrate", "--from-node", "--socket", daemon.socket, "--seconds", "600", "-fo", output]
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        program = subprocess.Popen([*map(str, command)], stderr=subprocess.PIPE, text=True)
        while program.poll() is None and time.monotonic() < end:
            if "another sample is being taken" in from_node(daemon, "-fqo", f"{output}.other", seconds=0.1).stderr:
                return program
        program.communicate()
    sys.exit("FAIL: no sample begins")


def check_one_at_a_time(folder: Folder, daemon: Daemon) -> None:
    """A second sample is refused; when the first one's program is killed, the next is taken."""
    output = folder.path / "second.set"
    first = begin_sample(daemon, folder.path / "first.set")
    refused(from_node(daemon, "-o", output), 1, f"{daemon.socket}: straitd takes no sample: another sample is", output)
    first.kill()
    first.communicate()
    wait_for(lambda: from_node(daemon, "-qfo", output).returncode == 0, "a sample after one whose program was killed")


# ---- What goes wrong -------------------------------------------------------------------------------------------------


def check_usage(folder: Folder, daemon: Daemon) -> None:
    no = folder.path / "no.set"
    for options, text in (
        ((SLICE,), "reads no files"),
        (("--merge",), "no --merge, no --raw, no --class"),
        (("--raw",), "no --merge, no --raw, no --class"),
        (("--class", "x=k"), "no --merge, no --raw, no --class"),
        (("--sample-bytes", "4095"), "--sample-bytes"),
        (("--sample-bytes", "65G"), "--sample-bytes"),
        (("--seconds", "0"), "--seconds takes 0.1 to 600, not '0'"),
        (("--seconds", "nan"), "--seconds takes"),
        (("--seconds", "601"), "--seconds takes"),
        (("--seconds", "1s"), "--seconds takes"),
    ):
        refused(from_node(daemon, "-o", no, *options), 2, text, no)
    refused(from_node(daemon), 2, "no output", no)
    for option in (("--socket", daemon.socket), ("--seconds", 1), ("--sample-bytes", "1M")):
        refused(strait("calibrate", SLICE, "-o", no, *option), 2, "are for --from-node", no)
    no.write_text("kept")
    refused(from_node(daemon, "-o", no), 1, "exists")
    expect(no.read_text() == "kept", "overwritten")
    no.unlink()
    refused(strait("calibrate", "--from-node", "--socket", folder.path / "none", "-o", no), 1, "no such socket", no)


def answer_as_old(listener: socket.socket, answers: list[bytes]) -> None:
    """A daemon that answers a hello with these bytes, and then ends the connection."""
    for answer in answers:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            connection.sendall(answer)


def check_other_daemons(folder: Folder) -> None:
    """One of an earlier release, one that refuses, something else, and one that hangs up."""
    path, no = folder.path / "old", folder.path / "no.set"
    frames = dict(line.split() for line in (SLICE.parent / "messages.hex").read_text().splitlines())
    welcome, new = (
        bytes.fromhex(frames[name]).replace(b"\x08\x01\x11", b"\x08\x03\x11", 1)  # of the protocol's version now
        for name in ("welcome", "welcome-samples")
    )
    cases = [
        (bytes.fromhex(frames["welcome-samples"]), "does not take samples: it is older than this program"),
        (welcome, "does not take samples: it is older than this program"),
        (bytes.fromhex(frames["refused"]), "straitd refuses: "),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not a straitd"),
        (b"", "straitd has closed the connection"),
        (new, "straitd has closed the connection"),
        (new + bytes.fromhex(frames["sampled"]), "the counts in the answer are damaged"),
        (new + bytes.fromhex(frames["sampled-not"]), "takes no sample: the daemon is stopping"),
    ]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(4)
        thread = threading.Thread(target=answer_as_old, args=(listener, [answer for answer, _ in cases]))
        thread.start()
        for _, text in cases:
            refused(strait("calibrate", "--from-node", "--socket", path, "-o", no), 1, text, no)
        thread.join()


def check_end_of_daemon(folder: Folder) -> None:
    no = folder.path / "no.set"
    for how in (signal.SIGTERM, signal.SIGKILL):
        daemon = folder.daemon(f"short{how}")
        refused(from_node(daemon, "-o", no, seconds=0.1), 1, "no pool of (the node|yours) has offered", no)
        program = begin_sample(daemon, no)
        daemon.process.send_signal(how)
        _, told = program.communicate(timeout=PATIENCE)
        expect(program.returncode == 1, f"{how}: {program.returncode}")
        expect(re.search("the daemon is stopping|straitd has closed the connection", told) is not None, told)
        daemon.process.wait()
    expect(not no.exists(), "a set of a daemon that ended")


# ---- Reload ----------------------------------------------------------------------------------------------------------


def ratio_of(source: Daemon, sink: Daemon) -> float:
    """Moves the cache, and says what the codec made of it."""

    def figures() -> tuple[float, float]:
        counters = json.loads(strait("status", "--json", "--socket", source.socket).stdout)["counters"]
        return counters["raw_bytes_sent"], counters["wire_bytes_sent"]

    raw, wire = figures()
    with Worker(0, PAGES, source, sink):
        wait_for(lambda: figures()[0] - raw == ARRAYS * ARRAY_BYTES, "the chunks are counted")
    return (figures()[0] - raw) / (figures()[1] - wire)


def check_reload(folder: Folder) -> None:
    """Calibrate on what runs, replace the set, SIGHUP: the set that did not fit coded nothing, this one does."""
    noise, sets = folder.path / "noise", folder.path / "kv.set"
    noise.write_bytes(bytes(range(256)) * 64)
    expect(strait("calibrate", "-q", "--raw", noise, "-o", sets).returncode == 0, "calibrate --raw")
    options = ("--codebook", str(sets), "--coding", "tiered", "--transports", "tcp")
    source, sink = folder.daemon("source", *options), folder.daemon("sink", *options)
    before = ratio_of(source, sink)
    with Worker(0, PAGES, source):
        answer = from_node(source, "-qf", "-o", sets)
        expect(answer.returncode == 0, answer)
    for daemon in (source, sink):
        daemon.process.send_signal(signal.SIGHUP)
        wait_for(lambda log=daemon.log: "codebook=new" in log.read_text(), "the set is reloaded")
    after = ratio_of(source, sink)
    expect(before < 1.1 and after > 1.35, f"ratio {before:.3f} before, {after:.3f} after")


def main() -> None:
    with Folder() as folder:
        daemon = folder.daemon("a")
        with Worker(0, 10, daemon), Worker(10, 6, daemon):
            check_set(folder, daemon)
            check_json(folder, daemon)
            check_budget(folder, daemon)
            check_users(folder, daemon)
            check_one_at_a_time(folder, daemon)
            check_usage(folder, daemon)
        check_other_daemons(folder)
        check_end_of_daemon(folder)
        check_reload(folder)
    finish()


main()
