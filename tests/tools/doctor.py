#!/usr/bin/env python3
"""doctor.py STRAIT STRAITD PULL: the good and the bad answer of each check of `strait doctor` that needs no root."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from daemons import PATIENCE, STRAIT, STRAITD, Folder, expect, finish, free_port, strait, wait_for

Finding = dict[str, str]


def findings(*arguments: object, status: int | None = None, **environment: str) -> list[Finding]:
    answer = strait("doctor", "--json", *arguments, **environment)
    document = json.loads(answer.stdout)
    expect(document["schema"] == "strait doctor" and document["schema_version"] == 1, document)
    found = document["findings"]
    for level in ("error", "warning"):
        expect(document[f"{level}s"] == sum(one["level"] == level for one in found), document)
    expect(all(set(one) == {"level", "check", "text", "change"} for one in found), found)
    expect(all(one["change"] for one in found if one["level"] in ("error", "warning")), f"no change is named: {found}")
    expect(answer.returncode == (document["errors"] > 0), answer.returncode)
    if status is not None:
        expect(
            answer.returncode == status,
            f"status {answer.returncode}: {[one for one in found if one['level'] == 'error']}",
        )
    return found


def has(found: list[Finding], level: str, check: str, text: str) -> None:
    if not any(one["level"] == level and one["check"] == check and text in one["text"] for one in found):
        expect(
            False,
            f"no {level} {check} {text!r}: {[one for one in found if one['check'] == check] or found}",
        )


def fresh(folder: Folder, **ports: int) -> list[object]:
    """Options of a daemon that does not run, in a file."""
    config = folder.path / f"fresh-{len(list(folder.path.iterdir()))}.conf"
    listen, metrics = ports.get("listen", free_port()), ports.get("metrics", free_port())
    config.write_text(
        f"socket = {folder.path}/none\nlisten = 127.0.0.1:{listen}\nmetrics = 127.0.0.1:{metrics}\narena-bytes = 16M\n"
    )
    return ["--config", config]


def secret(folder: Folder, name: str) -> Path:
    path = folder.path / name
    path.write_bytes(os.urandom(32))
    path.chmod(0o600)
    return path


def check_no_daemon(folder: Folder) -> None:
    found = findings(*fresh(folder), status=0)
    has(found, "warning", "daemon", "no such socket")
    has(found, "ok", "configuration", "would start with it")
    has(found, "warning", "codebook", "pages are coded without tables")
    for check in ("listen", "metrics"):
        has(found, "ok", check, "is free")
    for check in ("descriptors", "memfd", "pidfd"):
        has(found, "ok", check, "")
    has(findings(*fresh(folder), STRAIT_CODEC="scalar", status=0), "warning", "codec", "the scalar variant is chosen")
    for name in ("avx2", "avx512"):
        fast = altered(folder, {'"codec":"[^"]*"': f'"codec":"{name}"'})
        has(findings(*fresh(folder), **fast), "ok", "codec", name)
    text = strait("doctor", *fresh(folder))
    expect(text.returncode == 0 and text.stdout.splitlines()[-1].startswith("errors: 0, warnings: "), text)
    expect("  -> " in text.stdout, "changes are not told")


def check_sockets(folder: Folder) -> None:
    stale = folder.path / "stale"
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(stale))
    has(findings("--socket", stale, status=1), "error", "daemon", "nobody listens there")
    stopped = folder.daemon("stopped")
    stopped.process.send_signal(signal.SIGSTOP)
    has(findings("--socket", stopped.socket, status=1), "error", "daemon", "no answer within 2 seconds")
    stopped.process.send_signal(signal.SIGCONT)


def check_configuration(folder: Folder) -> None:
    bad = folder.path / "bad.conf"
    bad.write_text("clinets = 7\n")
    has(findings("--config", bad, status=1), "error", "configuration", "bad.conf:1: no option is called clinets")
    bad.write_text(
        f"socket = {folder.path}/s\nlisten = 127.0.0.1:0\nmetrics =\n"
        "codebook = /nowhere/set\ntenants-file = /nowhere/tenants\n"
    )
    found = findings("--config", bad, status=1)
    has(found, "error", "configuration", "codebook: /nowhere/set: No such file")
    has(found, "error", "configuration", "/nowhere/tenants")
    has(findings("--config", folder.path / "nowhere", status=1), "error", "configuration", "No such file")
    has(
        findings(*fresh(folder), STRAITD="/nowhere/straitd", status=1),
        "error",
        "straitd",
        "no straitd beside this program",
    )


def check_ports(folder: Folder) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        found = findings(*fresh(folder, listen=port), status=1)
        has(found, "error", "listen", f"127.0.0.1:{port} is held by ")
        has(found, "error", "listen", f"pid {os.getpid()}")
        has(found, "error", "configuration", "Address already in use")
        has(found, "ok", "metrics", "is free")
        has(findings(*fresh(folder, metrics=port), status=1), "error", "metrics", f"pid {os.getpid()}")


def limited(limits: dict[int, int], *arguments: object, **environment: str) -> list[Finding]:
    """The findings of a process with these limits."""

    def lower() -> None:
        for limit, value in limits.items():
            resource.setrlimit(limit, (value, value))

    command = [str(STRAIT), "doctor", "--json", *map(str, arguments)]
    answer = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, preexec_fn=lower, env={**os.environ, **environment}
    )
    return json.loads(answer.stdout)["findings"]


def altered(folder: Folder, changes: dict[str, str]) -> dict[str, str]:
    """A straitd that tells another host: --examine with these replacements."""
    path = folder.path / "altered"
    script = " ".join(f"-e 's|{old}|{new}|'" for old, new in changes.items())
    path.write_text(f'#!/bin/sh\n"{STRAITD}" "$@" | sed {script}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"STRAITD": str(path)}


def check_limits(folder: Folder) -> None:
    found = limited({resource.RLIMIT_NOFILE: 128}, *fresh(folder))
    has(found, "error", "descriptors", "may open 128 descriptors, and needs 320 for clients = 256")
    found = limited({resource.RLIMIT_MEMLOCK: 1 << 20}, *fresh(folder))
    has(found, "note", "locked memory", "may lock 1.0 MiB")
    rdma = altered(folder, {'"rdma_active":false': '"rdma_active":true'})
    found = limited({resource.RLIMIT_MEMLOCK: 1 << 20}, *fresh(folder), **rdma)
    has(found, "error", "locked memory", "may lock 1.0 MiB, and RDMA locks the arenas, 24.0 MiB")


def check_rdma(folder: Folder) -> None:
    devices = {'"rdma_devices":"[^"]*"': '"rdma_devices":"mlx5_0"'}
    active = {**devices, '"rdma_active":false': '"rdma_active":true'}
    none = {'"rdma_devices":"[^"]*"': '"rdma_devices":""'}
    ucx = '"ucx":{[^}]*}'
    cases: list[tuple[dict[str, str], str, str, str]] = [
        (none, "ok", "rdma", "no devices"),
        ({**devices, '"rdma_active":true': '"rdma_active":false'}, "warning", "rdma", "no port is active"),
        ({**active, ucx: '"ucx":null', '"ucx":null': '"ucx":null'}, "warning", "ucx", "this straitd has none"),
    ]
    parts = {"sound_over_tcp": True, "version": "1.17.0", "libibverbs": True, "components": "self,tcp,ib"}
    for change, level, text in (
        ({}, "ok", "UCX 1.17.0 with self,tcp,ib"),
        ({"libibverbs": False}, "warning", "libibverbs.so.1 is not installed"),
        ({"components": "self,tcp,rib"}, "warning", "none for RDMA"),
        ({"sound_over_tcp": False, "version": "1.13.1"}, "warning", "only where transports names it"),
    ):
        written = f'"ucx":{json.dumps({**parts, **change}, separators=(",", ":"))}'
        cases.append(({**active, ucx: written, '"ucx":null': written}, level, "ucx", text))
    for changes, level, check, text in cases:
        has(findings(*fresh(folder), **altered(folder, changes)), level, check, text)


@contextlib.contextmanager
def server(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    """Something that listens, and is no straitd."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = listening.accept()
                with connection:
                    talk(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


def say_http(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    connection.recv(4096)


def check_probes(folder: Folder) -> None:
    one, other = secret(folder, "one"), secret(folder, "other")
    open_peer, closed_peer = folder.daemon("open"), folder.daemon("closed", "--secret-file", str(one))
    sealed_peer = folder.daemon("sealed", "--secret-file", str(one), "--encrypt-pages")
    plain, same, different = fresh(folder), fresh(folder), fresh(folder)
    for options, path in ((same, one), (different, other)):
        with Path(str(options[1])).open("a") as config:
            config.write(f"secret-file = {path}\n")
    has(
        findings(*plain, "--peer", open_peer.address, status=0),
        "ok",
        "probe",
        f"{open_peer.address} lets this node in: straitd ",
    )
    found = findings(
        *same, "--peer", closed_peer.address, "--peer", sealed_peer.address, "--peer", open_peer.address, status=1
    )
    has(found, "ok", "probe", f"{closed_peer.address} lets this node in")
    has(
        found,
        "error",
        "probe",
        f"{sealed_peer.address} lets this node in, and the two do not fit: encrypt-pages is on there, and off here",
    )
    has(found, "error", "probe", f"{open_peer.address} is reached")
    has(findings(*different, "--peer", closed_peer.address, status=1), "error", "probe", "the secrets differ")
    has(
        findings(*plain, "--peer", closed_peer.address, status=1),
        "error",
        "probe",
        "it demands a secret or a certificate",
    )
    nobody = f"127.0.0.1:{free_port()}"
    found = findings(*plain, "--peer", nobody, "--peer", "nonsense", "--peer", "no-such-host.invalid:1", status=1)
    has(found, "error", "probe", f"{nobody} cannot be reached: Connection refused")
    has(found, "error", "probe", "nonsense cannot be reached: is not host:port")
    has(found, "error", "probe", "no-such-host.invalid:1 cannot be reached")
    with server(say_http) as address:
        has(findings(*plain, "--peer", address, status=1), "error", "probe", "or it is no straitd")
    with server(say_http) as address:
        has(findings(*same, "--peer", address, status=1), "error", "probe", f"{address} is reached")
    for peer in (open_peer, closed_peer):  # a probe harms nothing
        expect(peer.process.poll() is None and peer.metrics()["strait_peer_errors_total"] == 0, peer.log.read_text())


def check_daemon(folder: Folder) -> None:
    a, b = folder.daemon("a", "--transports", "tcp"), folder.daemon("b", "--transports", "tcp")
    folder.pull(a, b)
    found = findings("--socket", a.socket, status=0)
    has(found, "ok", "daemon", "answers")
    for check, port in (("listen", a.listen), ("metrics", a.metrics_port)):
        has(found, "ok", check, f"127.0.0.1:{port} is the daemon's")
    has(found, "ok", "descriptors", "the daemon may open")
    has(found, "ok", "peer", f"{b.address} is reached by tcp")
    expect(not any(one["check"] == "version" for one in found), "one version is installed, and runs")
    entry = next(one for one in json.loads(strait("status", "--json", "--socket", a.socket).stdout)["peers"])
    expect(entry["version"] == strait("--version").stdout.split()[1], entry)
    expect(abs(entry["clock_skew_us"]) < PATIENCE * 1e6, f"two daemons of one clock: {entry}")
    skewed = altered(
        folder,
        {'"clock_skew_us":[-0-9]*': '"clock_skew_us":-90000000', '"version":"[^"]*","cl': '"version":"0.0.9","cl'},
    )
    found = findings(*fresh(folder), "--peer", b.address, **skewed)
    has(found, "warning", "probe", f"the clock of {b.address} is 90.0 s slow")
    has(found, "note", "probe", f"{b.address} runs straitd 0.0.9")
    newer = altered(folder, {'"version":"[^"]*"': '"version":"99.0"'})
    has(findings("--socket", a.socket, **newer), "warning", "version", "99.0 is installed")
    a.process.kill()
    a.process.wait()
    wait_for(lambda: b.metrics()["strait_peers"] == 0, "b has lost a")
    wait_for(lambda: "is not connected" in strait("doctor", "--socket", b.socket).stdout, "b tells of a")
    has(findings("--socket", b.socket), "warning", "peer", f"{a.address} is not connected")
    has(findings("--socket", a.socket, status=1), "error", "daemon", "nobody listens there")


def check_usage() -> None:
    for arguments in (("operand",), ("--no-such",), ("--peer",)):
        answer = strait("doctor", *arguments)
        expect(answer.returncode == 2 and answer.stderr.startswith("strait doctor: "), answer)


def main() -> None:
    with Folder() as folder:
        check_usage()
        check_no_daemon(folder)
        check_sockets(folder)
        check_configuration(folder)
        check_ports(folder)
        check_limits(folder)
        check_rdma(folder)
        check_probes(folder)
        check_daemon(folder)
    finish()


main()
