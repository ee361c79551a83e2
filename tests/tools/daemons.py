"""Daemons of their own for the tests of commands that look at them, and real transfers between two."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

#: What the test was told, as `name.py STRAIT STRAITD PULL`.
STRAIT, STRAITD, PULL = (Path(path).resolve() for path in sys.argv[1:4])
#: A test waits for something this long before it fails: the machine may be loaded.
PATIENCE = 60.0

failures: list[str] = []


def expect(condition: bool, what: object) -> None:
    if not condition:
        failures.append(str(what))
        print(f"FAIL: {what}", flush=True)


def finish() -> None:
    sys.exit(bool(failures))


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def wait_for(ready, what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not ready():
        if time.monotonic() > end:
            sys.exit(f"FAIL: waited in vain: {what}")
        time.sleep(0.05)


class Folder:
    """A folder with a short path, as sockets need, and the daemons in it; all are gone at the end of the block."""

    def __enter__(self) -> Folder:
        self.path = Path(tempfile.mkdtemp(prefix="strait-test-", dir="/tmp"))
        self.processes: list[subprocess.Popen[bytes]] = []
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        shutil.rmtree(self.path)

    def daemon(self, name: str, *options: str) -> Daemon:
        return Daemon(self, name, options)

    def pull(self, source: Daemon, sink: Daemon) -> None:
        """Moves the pages of the example from one daemon to the other; every value is checked."""
        blob = self.path / "blob"
        serving = subprocess.Popen(
            [PULL, "source", blob, source.socket], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.processes.append(serving)
        fetched = subprocess.run([PULL, "sink", blob, sink.socket], capture_output=True, text=True, timeout=PATIENCE)
        output, _ = serving.communicate(timeout=PATIENCE)
        expect(fetched.returncode == 0, f"the sink ends with {fetched.returncode}: {fetched.stdout}{fetched.stderr}")
        expect(serving.returncode == 0, f"the source ends with {serving.returncode}: {output!r}")


class Daemon:
    def __init__(self, folder: Folder, name: str, options: tuple[str, ...]):
        self.socket, self.log = folder.path / name, folder.path / f"{name}.log"
        self.listen, self.metrics_port = free_port(), free_port()
        self.options = [
            *("--socket", str(self.socket), "--listen", f"127.0.0.1:{self.listen}"),
            *("--metrics", f"127.0.0.1:{self.metrics_port}", "--arena-bytes", "16M", "--chunk-bytes", "4M"),
            *options,
        ]
        with self.log.open("w") as log:
            self.process = subprocess.Popen([STRAITD, *self.options], stderr=log)
        folder.processes.append(self.process)
        wait_for(lambda: "msg=ready" in self.log.read_text() or self.process.poll() is not None, f"{name} is ready")
        if self.process.poll() is not None:
            sys.exit(f"FAIL: {name} does not start: {self.log.read_text()}")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.listen}"

    def metrics(self) -> dict[str, float]:
        """Each series with its labels."""
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=PATIENCE).read().decode()
        lines = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {series: float(value) for series, value in lines}


def strait(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(STRAIT), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
    )
