#!/usr/bin/env python3
"""top.py STRAIT STRAITD PULL: `strait top` of two daemons between which pages move, its keys and its ends."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import time

from daemons import PATIENCE, STRAIT, Daemon, Folder, expect, finish, strait, wait_for

#: Of each daemon, and of each of its peers, in the document.
DAEMON = {
    "socket",
    "address",
    "version",
    "codec",
    "uptime_seconds",
    "draining",
    "codebook",
    "interval_seconds",
    "clients",
    "pools",
}
DAEMON |= {"pool_bytes", "live", "parked", "receive_arena", "send_arena", "total", "rate", "transfer_us", "peers"}
PEER = {"address", "up", "link", "round_trip_us", "total", "rate"}


def document(*daemons: Daemon, options: tuple[str, ...] = ("--interval", "0.2")) -> dict:
    answer = strait("top", "--json", *options, *(part for daemon in daemons for part in ("--socket", daemon.socket)))
    expect(answer.returncode == 0 and not answer.stderr, f"--json: {answer}")
    return json.loads(answer.stdout)


def check_figures(a: Daemon, b: Daemon, moved: int) -> None:
    """What the document, the metrics and the other daemon say of the same bytes agrees."""
    top = document(a, b)
    expect(top["schema"] == "strait top" and top["schema_version"] == 1, top["schema_version"])
    one = {entry["address"]: entry for entry in top["daemons"]}
    source, sink = one[a.address], one[b.address]
    for entry in (source, sink):
        expect(set(entry) == DAEMON, f"fields: {sorted(DAEMON ^ set(entry))}")
        expect(all(set(peer) == PEER for peer in entry["peers"]), entry["peers"])
        expect(0 < entry["interval_seconds"] < PATIENCE, entry["interval_seconds"])
    expect([peer["address"] for peer in source["peers"]] == [b.address], source["peers"])
    expect(source["peers"][0]["link"] == "tcp" and source["peers"][0]["up"], source["peers"])
    expect(
        source["total"]["done"] == sink["total"]["done"] == moved, f"{moved} pulls: {source['total']}, {sink['total']}"
    )
    expect(source["total"]["out_bytes"] == sink["total"]["in_bytes"] > 0, f"{source['total']}, {sink['total']}")
    expect(source["peers"][0]["total"]["out_bytes"] == source["total"]["out_bytes"], source["peers"])
    expect(sink["peers"][0]["total"]["wire_in_bytes"] == sink["total"]["wire_in_bytes"], sink["peers"])
    expect(sink["transfer_us"]["p99_since_start"] >= sink["transfer_us"]["p50_since_start"] > 0, sink["transfer_us"])
    expect(sink["transfer_us"]["p50"] is None and sink["rate"]["done"] == 0, "nothing moves, and there are rates")
    metrics, peer = a.metrics(), f'peer="{b.address}"'
    sent = metrics['strait_chunk_raw_bytes_total{direction="sent"}']
    expect(
        metrics[f'strait_peer_raw_bytes_total{{{peer},direction="sent"}}'] == sent == source["total"]["out_bytes"], sent
    )
    expect(metrics[f'strait_peer_transport_connections{{{peer},transport="tcp"}}'] >= 1, metrics)
    expect(metrics['strait_peer_raw_bytes_total{peer="other",direction="sent"}'] == 0, metrics)
    expect(
        abs(metrics["process_start_time_seconds"] - time.time()) < 10 * PATIENCE, metrics["process_start_time_seconds"]
    )
    expect(0 < metrics["process_open_fds"] <= metrics["process_max_fds"], "descriptors")
    expect(metrics["strait_draining"] == 0, "it drains")


def check_rates(folder: Folder, a: Daemon, b: Daemon) -> None:
    """While pages move there are rates: until a look happens to fall between two pulls."""
    going = True

    def move() -> None:
        while going:
            folder.pull(a, b)

    mover = threading.Thread(target=move)
    mover.start()
    try:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            source, sink = document(a, b, options=("--interval", "0.5", "--sort", "name"))["daemons"]
            if source["address"] != a.address:
                source, sink = sink, source
            if sink["rate"]["done"] > 0 and source["peers"][0]["rate"]["out_bytes"] > 0 and sink["transfer_us"]["p50"]:
                return
        expect(False, f"no rates while pages move: {source}, {sink}")
    finally:
        going = False
        mover.join()


def check_table(a: Daemon, b: Daemon) -> None:
    answer = strait("top", "--interval", "0.1", "--socket", a.socket, "--socket", b.socket)  # no terminal: once
    lines = answer.stdout.splitlines()
    expect(answer.returncode == 0 and "\033" not in answer.stdout, answer)
    expect(sum(line.startswith("DAEMON ") for line in lines) == 1, answer.stdout)
    expect(sum(line.startswith("PEER ") for line in lines) == 2, answer.stdout)
    for daemon, peer in ((a, b), (b, a)):
        expect(f"of {daemon.address}" in lines, answer.stdout)
        expect(any(re.fullmatch(rf"{re.escape(peer.address)} .* tcp *", line) for line in lines), answer.stdout)
    titles = next(line for line in lines if line.startswith("DAEMON "))
    for title in (
        "IN GB/s",
        "OUT GB/s",
        "WIRE GB/s",
        "RATIO",
        "SAVED",
        "DONE/s",
        "P50 ms",
        "P99 ms",
        "ERRORS",
        "LIVE",
        "RECV",
        "SEND",
    ):
        expect(title in titles, f"no column {title}: {titles}")


def check_errors(folder: Folder, a: Daemon) -> None:
    nowhere = folder.path / "nowhere"
    for options in ((), ("--once",), ("--json",)):
        answer = strait("top", "--socket", nowhere, *options)
        expect(answer.returncode == 1 and "no such socket" in answer.stderr and str(nowhere) in answer.stderr, answer)
    answer = strait("top", "--json", "--interval", "0.1", "--socket", a.socket, "--socket", nowhere)
    entries = {entry["socket"]: entry for entry in json.loads(answer.stdout)["daemons"]}
    expect(answer.returncode == 1 and "no such socket" in entries[str(nowhere)]["error"], answer)
    expect("total" in entries[str(a.socket)], "one daemon that is away hides another")
    for options in (("--interval", "0"), ("--interval", "x"), ("--sort", "colour"), ("operand",), ("--no-such",)):
        answer = strait("top", *options)
        expect(answer.returncode == 2 and answer.stderr.startswith("strait top: "), f"{options}: {answer}")


class Screen:
    """`strait top` on a terminal of its own."""

    def __init__(self, *arguments: object):
        self.master, slave = pty.openpty()
        self.resize(30, 200)
        self.before, self.slave = termios.tcgetattr(slave), slave
        self.process = subprocess.Popen(
            [str(STRAIT), "top", *map(str, arguments)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=self._own,
        )
        self.text = ""

    def _own(self) -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def read(self) -> None:
        while select.select([self.master], [], [], 0)[0]:
            try:
                self.text += os.read(self.master, 65536).decode(errors="replace")
            except OSError:
                return

    def frame(self) -> str:
        """What was drawn last, completely."""
        self.read()
        frames = self.text.split("\033[H")
        whole = [frame for frame in frames[1:] if "\033[J" in frame]
        return re.sub("\r+\n", "\n", whole[-1].split("\033[J")[0].replace("\033[K", "")) if whole else ""

    def until(self, what: str) -> None:
        wait_for(lambda: re.search(what, self.frame()) is not None, f"{what!r} on the screen: {self.text[-2000:]!r}")

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def ended(self, status: int) -> None:
        wait_for(lambda: self.process.poll() is not None, "the end of strait top")
        self.read()
        expect(
            self.process.returncode == status, f"status {self.process.returncode}, not {status}: {self.text[-500:]!r}"
        )
        expect(termios.tcgetattr(self.slave) == self.before, "the terminal's mode is not restored")
        expect(
            "\033[?25h" in self.text and self.text.rindex("\033[?1049l") > self.text.rindex("\033[?1049h"),
            self.text[-100:],
        )
        os.close(self.master)
        os.close(self.slave)


def check_keys(a: Daemon, b: Daemon) -> None:
    screen = Screen("--interval", "0.2", "--socket", a.socket, "--socket", b.socket)
    screen.until(f"by bytes.*(?s:.*){re.escape(a.address)}")
    expect(not termios.tcgetattr(screen.slave)[3] & (termios.ECHO | termios.ICANON), "keys are echoed")
    screen.type("s")
    screen.until("by errors")
    screen.type("s")
    screen.until("by name")
    screen.type("+")
    screen.until("every 0.4 s")
    screen.type("---")
    screen.until("every 0.1 s")  # not less
    screen.type("p")
    screen.until("PAUSED")
    screen.type("p")
    screen.until(r"by name   q quit")
    screen.resize(6, 40)  # the kernel sends SIGWINCH
    wait_for(
        lambda: 0 < max(map(len, screen.frame().split("\n"))) <= 40 and screen.frame().count("\n") <= 5,
        "a smaller picture",
    )
    screen.type("\033[Axq")  # keys without a meaning, and q
    screen.ended(0)


def check_signals(a: Daemon) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        screen = Screen("--socket", a.socket)
        screen.until(re.escape(a.address))
        screen.process.send_signal(number)
        screen.ended(-number)
    screen = Screen("--socket", a.socket)
    screen.until(re.escape(a.address))
    screen.process.send_signal(signal.SIGTSTP)
    wait_for(
        lambda: os.waitid(os.P_PID, screen.process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None, "it stops"
    )
    screen.read()
    expect(termios.tcgetattr(screen.slave) == screen.before, "a stopped one leaves its mode")
    screen.text = ""
    screen.process.send_signal(signal.SIGCONT)
    screen.until(re.escape(a.address))
    screen.type("\003")  # Ctrl-C
    screen.ended(-signal.SIGINT)


def check_restart(folder: Folder, b: Daemon) -> None:
    """A daemon that goes away and comes back is shown as that, and its counters begin anew without negative rates."""
    c = folder.daemon("c", "--transports", "tcp")
    screen = Screen("--interval", "0.1", "--socket", b.socket, "--socket", c.socket)
    screen.until(re.escape(c.address))
    c.process.terminate()
    c.process.wait()
    screen.until(re.escape(str(c.socket)) + " .*(no such socket|no answer|connection was lost)")
    again = folder.daemon("c", "--transports", "tcp")
    screen.until(re.escape(again.address))
    screen.until(rf"{re.escape(again.address)} +0\.000")
    screen.type("q")
    screen.ended(0)


def main() -> None:
    with Folder() as folder:
        a, b = (folder.daemon(name, "--transports", "tcp") for name in "ab")
        for _ in range(3):
            folder.pull(a, b)
        check_figures(a, b, 3)
        check_rates(folder, a, b)
        check_table(a, b)
        check_errors(folder, a)
        check_keys(a, b)
        check_signals(a)
        check_restart(folder, b)
    finish()


main()
