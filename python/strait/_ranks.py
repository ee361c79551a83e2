"""Ranks of a job that one command has started: what each has found is gathered by all, and the end of one ends all.

Ranks of one host find each other by a Unix socket of rank 0, without torch, whose import takes two seconds of a
processor in each of them. Ranks of several hosts are a group of torch.distributed.
"""

from __future__ import annotations

import hashlib
import os
import queue
import socket
import struct
import sys
import threading
import time
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, Protocol

_SILENCE = 8.0  # seconds after which a rank counts as dead,
_START = 60.0  # unless it has not been heard of at all
_BEAT = 0.5  # seconds


class Failure(Exception):
    """Told without a traceback."""


class Place(NamedTuple):
    """Rank of this process, how many there are, and whether all are on this host."""

    rank: int
    ranks: int
    one_host: bool


_LAUNCHERS = (  # rank, ranks, ranks of this host
    ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),  # torchrun
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_NTASKS", ""),
)
_JOB = ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE", "PMI_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID")


def place() -> Place:
    """What the launcher says; where it does not say how many ranks a host has, a MASTER_ADDR that is not of this host
    means several hosts."""
    for rank, ranks, here in _LAUNCHERS:
        if rank in os.environ and ranks in os.environ:
            if here in os.environ:
                one_host = os.environ[here] == os.environ[ranks]
            else:
                one_host = os.environ.get("MASTER_ADDR", "localhost") in ("localhost", "127.0.0.1", "::1")
            return Place(int(os.environ[rank]), int(os.environ[ranks]), one_host)
    return Place(0, 1, True)


def _die(rank: int, why: str) -> None:
    print(f"strait.calibrate: rank {rank}: {why}", file=sys.stderr, flush=True)
    os._exit(1)


class Group(Protocol):
    """Context manager; who leaves it may end."""

    def gather(self, mine: Any) -> list[Any]:
        """What all ranks have brought, in their order. Failure: another rank has left."""

    def __enter__(self) -> Group: ...
    def __exit__(self, *failure: object) -> None: ...


def join() -> Group:
    """Joins the other ranks. Failure: they are not reached."""
    rank, ranks, one_host = place()
    if ranks == 1:
        return _Alone()
    return _Host(rank, ranks) if one_host else _Hosts(rank, ranks)


class _Alone:
    def gather(self, mine: Any) -> list[Any]:
        return [mine]

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *failure: object) -> None:
        pass


# ---- One host --------------------------------------------------------------------------------------------------------


class _Peer:
    """Rank at the other end of a connection; None: it has not said so yet."""

    def __init__(self, end: socket.socket, rank: int | None):
        patience = struct.pack("ll", int(_SILENCE), 0)  # a stopped peer leaves no thread in the middle of a message
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            end.setsockopt(socket.SOL_SOCKET, option, patience)
        self.connection = Connection(end.detach())
        self.rank, self.heard, self.gone = rank, time.monotonic(), False
        self._sending = threading.Lock()

    def send(self, message: Any) -> None:
        with self._sending:
            self.connection.send(message)


class _Host:
    """Ranks of one host and user, each with a connection to rank 0, and a thread that hears what they send: ("rank", of
    the peer), ("alive", None), ("part", what it has brought), ("over", None)."""

    def __init__(self, rank: int, ranks: int):
        self._rank, self._ranks = rank, ranks
        self._deadline = time.monotonic() + _START
        self._parts: queue.SimpleQueue[tuple[int, str, Any]] = queue.SimpleQueue()
        self._listener: socket.socket | None = None
        self._peers: list[_Peer] = []
        job = "/".join(os.environ.get(name, "") for name in _JOB)
        address = f"\0strait.calibrate/{os.getuid()}/{hashlib.sha256(job.encode()).hexdigest()[:32]}"
        if rank == 0:
            self._listen(address)
        else:
            self._peers.append(_Peer(self._connect(address), 0))
            self._peers[0].send(("rank", rank))
        threading.Thread(target=self._run, daemon=True).start()

    def _listen(self, address: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._listener.bind(address)
            self._listener.listen(self._ranks)
        except OSError as failure:
            raise Failure(f"rank 0 of another job has this MASTER_PORT: {failure}") from None

    def _connect(self, address: str) -> socket.socket:
        while True:
            end = socket.socket(socket.AF_UNIX)
            try:
                end.connect(address)
                return self._of_this_user(end)
            except OSError as failure:
                end.close()
                if time.monotonic() > self._deadline:
                    several = "if it is on another host, set MASTER_ADDR"
                    raise Failure(f"rank {self._rank}: rank 0 is not reached: {failure}; {several}") from None
                time.sleep(0.05)

    @staticmethod
    def _of_this_user(end: socket.socket) -> socket.socket:
        """The same. PermissionError: the process at the other end, whose objects would be unpickled, is another
        user's."""
        user = struct.unpack("iII", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        if user != os.getuid():
            raise PermissionError(f"it is of user {user}")
        return end

    def _run(self) -> None:
        try:
            beat = time.monotonic()
            while True:
                self._hear()
                if time.monotonic() >= beat:
                    beat = time.monotonic() + _BEAT
                    self._watch()
        except Exception as failure:
            _die(self._rank, f"the other ranks are not reached any more: {failure}")

    def _hear(self) -> None:
        ends: list[Any] = [peer.connection for peer in self._peers if not peer.gone]
        ready = wait([*ends, *([self._listener] if self._listener else [])], _BEAT)
        if self._listener in ready:
            assert self._listener is not None
            end = self._listener.accept()[0]
            try:
                self._peers.append(_Peer(self._of_this_user(end), None))
            except PermissionError:
                end.close()
        for peer in self._peers:
            if peer.connection in ready:
                self._take(peer)

    def _take(self, peer: _Peer) -> None:
        try:
            kind, value = peer.connection.recv()
        except (EOFError, OSError):
            _die(self._rank, f"rank {peer.rank} has died")
            return
        peer.heard = time.monotonic()
        if kind == "rank":
            peer.rank = int(value)
        elif kind in ("part", "over"):
            peer.gone = kind == "over"
            self._parts.put((int(peer.rank or 0), kind, value))

    def _watch(self) -> None:
        now = time.monotonic()
        for peer in self._peers:
            if peer.gone:
                continue
            if now - peer.heard > _SILENCE:
                _die(self._rank, f"rank {peer.rank} has died, or was stopped")
            try:
                peer.send(("alive", None))
            except OSError:  # it has ended: what it said last is yet to be heard
                pass
        if self._rank == 0 and len(self._peers) < self._ranks - 1 and now > self._deadline:
            _die(self._rank, f"{self._ranks - 1 - len(self._peers)} ranks have not come, and may have died")

    def gather(self, mine: Any) -> list[Any]:
        if self._rank != 0:
            self._tell(self._peers[0], ("part", mine))
            parts: list[Any] = self._next()[1]
            return parts
        parts = [mine, *[None] * (self._ranks - 1)]
        for _ in range(self._ranks - 1):
            rank, part = self._next()
            parts[rank] = part
        for peer in self._peers:
            self._tell(peer, ("part", parts))
        return parts

    def _next(self) -> tuple[int, Any]:
        rank, kind, part = self._parts.get()
        if kind == "over":
            raise Failure(f"rank {self._rank}: rank {rank} has failed")
        return rank, part

    def _tell(self, peer: _Peer, message: Any) -> None:
        try:
            peer.send(message)
        except OSError:
            raise Failure(f"rank {self._rank}: rank {peer.rank} has died") from None

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *failure: object) -> None:
        for peer in self._peers:
            try:
                peer.send(("over", None))
            except OSError:  # it has left
                pass


# ---- Several hosts ---------------------------------------------------------------------------------------------------


class _Hosts:
    """Ranks of several hosts, by gloo, and a thread that ends this one when another is not heard of."""

    def __init__(self, rank: int, ranks: int):
        import torch.distributed

        dist: Any = torch.distributed
        self._dist, self._rank, self._ranks = dist, rank, ranks
        host, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29577"))
        shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        patience = timedelta(minutes=2)
        try:
            store = dist.TCPStore(host, port, ranks, rank == 0 and not shared, patience, wait_for_workers=False)
            mine = dist.TCPStore(host, port, None, False, patience)
        except Exception as failure:
            raise Failure(f"rank {rank} does not reach the others at {host}:{port}: {failure}") from None
        self._store, self._over, self._turned = store, False, time.monotonic()
        # Before the group, which waits for its ranks, whether they live or not.
        threading.Thread(target=self._watch, args=(dist.PrefixStore("strait-alive", mine),), daemon=True).start()
        threading.Thread(target=self._watch_store, daemon=True).start()
        prefixed, day = dist.PrefixStore("strait", store), timedelta(hours=24)
        try:
            dist.init_process_group("gloo", store=prefixed, rank=rank, world_size=ranks, timeout=day)
        except Exception as failure:
            _die(rank, f"another rank has died: {failure}")  # gloo's threads do not end in order

    def _watch(self, store: Any) -> None:
        begin = time.monotonic() + _START - _SILENCE
        heard = {other: (b"", begin) for other in range(self._ranks) if other != self._rank}
        try:
            store.set(str(self._rank), "0")
            while not self._over:
                store.set(str(self._rank), str(time.time()))
                for other, (before, since) in heard.items():
                    now = store.get(str(other)) if store.check([str(other)]) else b""
                    heard[other] = (now, time.monotonic()) if now != before else (before, since)
                    if now != b"over" and time.monotonic() - heard[other][1] > _SILENCE:
                        _die(self._rank, f"rank {other} has died")
                self._turned = time.monotonic()
                time.sleep(_BEAT)
            store.set(str(self._rank), "over")
        except Exception as failure:
            if not self._over:
                _die(self._rank, f"the other ranks are not reached any more: {failure}")

    def _watch_store(self) -> None:
        """The store of a process that is stopped does not answer, and calls of it wait without a limit."""
        while not self._over:
            if time.monotonic() - self._turned > _SILENCE:
                _die(self._rank, "the other ranks are not reached any more: their store does not answer")
            time.sleep(_BEAT)

    def gather(self, mine: Any) -> list[Any]:
        found: list[Any] = [None] * self._ranks
        try:
            self._dist.all_gather_object(found, mine)
        except RuntimeError as failure:
            raise Failure(f"rank {self._rank}: another rank has died: {failure}") from None
        return found

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *failure: object) -> None:
        self._over = True
        if failure[0] is None:
            self._dist.destroy_process_group()
