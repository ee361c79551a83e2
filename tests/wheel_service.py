"""Two daemons of the installed wheel move pages over a transport: wheel_service.py TRANSPORT. And one that is embedded."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import strait
from strait import service

PAGES, SHAPE = 256, (4, 1024)


def daemon(folder: Path, name: str, transport: str) -> tuple[subprocess.Popen, str]:
    options = {"socket": folder / name, "listen": "127.0.0.1:0", "metrics": "", "transports": transport, "arena-bytes": "64M"}
    arguments = [argument for option, value in options.items() for argument in (f"--{option}", str(value))]
    command = [str(Path(sys.executable).parent / "straitd"), *arguments]
    process = subprocess.Popen(command, stderr=(folder / f"{name}.log").open("w"))
    for _ in range(100):
        if "msg=ready" in (folder / f"{name}.log").read_text():
            return process, str(folder / name)
        time.sleep(0.1)
    raise SystemExit((folder / f"{name}.log").read_text())


def pool_of(client: service.Client) -> tuple[service.Pool, np.ndarray]:
    memory = service.alloc(PAGES * int(np.prod(SHAPE)) * 2)
    pages = np.frombuffer(memory, np.uint16).reshape(PAGES, *SHAPE)
    pages[:] = 0
    end = time.monotonic() + 10
    while not client.connected and time.monotonic() < end:
        client.wait(timeout=0.1)
    pool = client.register({("k", 0): pages})
    return pool, pages


def export(pool: service.Pool, client: service.Client) -> bytes:
    end = time.monotonic() + 10
    while True:
        try:
            return pool.export()
        except strait.Error:
            if time.monotonic() > end:
                raise
            client.wait(timeout=0.1)


def move(source: service.Client, sink: service.Client) -> None:
    held, sent = pool_of(source)
    wanted, landed = pool_of(sink)
    sent[:] = np.random.default_rng(1).integers(1, 1 << 16, sent.shape, np.uint16)
    peer = sink.import_peer(export(held, source))
    offer = held.offer(b"request", range(PAGES), lease=30, last=True)
    expectation = wanted.expect(b"request", range(PAGES - 1, -1, -1), deadline=20)
    expectation.start(peer)
    while expectation.progress.state not in (service.State.DONE, service.State.FAILED):
        sink.wait(timeout=0.1)
        source.poll()
    assert expectation.progress.state is service.State.DONE, expectation.progress
    assert (landed == sent[::-1]).all()
    del offer


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    daemons = [daemon(folder, side, sys.argv[1]) for side in ("source", "sink")]
    try:
        move(*(service.Client(socket) for _, socket in daemons))
        if sys.argv[1] == "ucx":  # the wheel's own
            maps = "".join(Path(f"/proc/{process.pid}/maps").read_text() for process, _ in daemons)
            assert "strait.libs/libstrait-ucp.so.0" in maps and "/libucp.so" not in maps
        log = (folder / "source.log").read_text()
        flags = Path("/proc/cpuinfo").read_text().split()
        assert "avx2" not in flags or "codec=scalar" not in log, log
    finally:
        for process, _ in daemons:
            process.terminate()
            assert process.wait(20) == 0
    client = service.Client(embedded="listen =\nmetrics =\nsocket =\narena-bytes = 8M\n")
    pool_of(client)
    print(f"{PAGES} pages over {sys.argv[1]}; libraries of {Path(strait.__file__).parent}")
