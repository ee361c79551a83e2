"""Daemons of tests, and what their clients say."""

import os
import select
import signal
import subprocess
import time
from pathlib import Path

from strait.service import EventType, State


class Daemon:
    def __init__(self, folder: Path, *options: str, listen: str = "127.0.0.1:0"):
        self.program, self.socket, self.folder = os.environ["STRAITD"], folder / "socket", folder
        self.options = ["--socket", str(self.socket), "--listen", listen, "--metrics", "", *options]
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        """Returns when there is a socket, which takes seconds on a busy machine. AssertionError, with the daemon's log:
        not within a minute, or the daemon has ended."""
        self.socket.unlink(missing_ok=True)  # of one that was killed
        self.process = subprocess.Popen([self.program, *self.options], stderr=(self.folder / "log").open("a"))
        end = time.monotonic() + 60
        while not self.socket.exists():
            assert self.process.poll() is None and time.monotonic() < end, (self.folder / "log").read_text()
            time.sleep(0.005)

    def stop(self, number: int = signal.SIGTERM) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def until(clients, condition, seconds=10.0):
    """Polls all clients until what they said so far meets the condition; returns that."""
    said = []
    end = time.monotonic() + seconds
    while not condition(said):
        assert time.monotonic() < end, said
        select.select(clients, [], [], 0.05)
        for client in clients:
            said += client.poll()
    return said


def verdicts(said):
    """Those of transfers. What comes after one, DRAINED, has its state and reason as well."""
    found = [event for event in said if event.type == EventType.STATE and event.state in (State.DONE, State.FAILED)]
    return {event.transfer: event for event in found if event.transfer}


def connect(*clients):
    until(clients, lambda _: all(client.connected for client in clients), 60)  # daemons that start on a busy machine


def move(clients, expectations, offers):
    """Until all of them are DONE; returns what was said."""
    wanted = {*expectations, *offers}
    said = until(clients, lambda said: wanted <= verdicts(said).keys())
    found = verdicts(said)
    for transfer in wanted:
        event = found[transfer]
        assert event.state == State.DONE, (event.reason, event.text)
    return said


def export(worker):
    return worker.pool.export(timeout=10)
