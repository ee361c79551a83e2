"""Several ranks, unlike engines, and engines that die."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rig import FAILED, SUCCESS, WAITING, Bootstrap, Rank, Room, failure_of, kv_class, until
from sglang.srt.disaggregation.utils import KVClassType
from sglang.srt.environ import envs

HERE = Path(__file__).resolve().parent
CHANCE = np.random.default_rng(11)


@pytest.fixture
def bootstrap():
    bootstrap = Bootstrap()
    yield bootstrap
    bootstrap.stop()


def test_two_ranks_on_each_side(nodes, bootstrap):
    """Each rank's pages go to its like, and the engine is ready when all of its ranks are."""
    sources = [Rank(nodes.daemons[0], bootstrap.address, "prefill", rank=0, ranks=2, seed=21)]
    sinks = [Rank(nodes.daemons[1], bootstrap.address, "decode", rank=rank, ranks=2) for rank in range(2)]
    assert not sinks[0].manager.try_ensure_parallel_info(bootstrap.address)  # the second rank is not there yet
    sources.append(Rank(nodes.daemons[0], bootstrap.address, "prefill", rank=1, ranks=2, seed=22))
    assert sources[0].manager.rank == "0.0" and sinks[1].manager.rank == "0.1"
    for number in range(100, 110):
        pairs = [Room(source, sink, number, CHANCE) for source, sink in zip(sources, sinks)]
        for room in pairs:
            room.paired()
        for room in reversed(pairs):
            room.send(0, 8).send(8, 24)
        for room in pairs:
            room.ends(SUCCESS, SUCCESS)
            assert room.is_equal()
            room.clear()
    one, two = (Room(source, sink, 200, CHANCE).paired() for source, sink in zip(sources, sinks))
    one.sender.abort()  # on one rank; SGLang ends the others by agreement
    one.ends(FAILED, FAILED)
    two.send(0, 24)
    until(lambda: two.polls() == (SUCCESS, SUCCESS), what="the other rank's pages")
    two.clear()
    for part in (one.sender, one.receiver):
        failure_of(part)
    sinks[0].manager.clear_deferred_abort_state(200)
    for rank in (*sources, *sinks):
        until(rank.is_empty, what="the end of all that is held")
        rank.close()


def test_the_bootstrap_server_is_down(nodes, bootstrap):
    """Before anything is known of a prefill engine, and afterwards, with a request under way."""
    with (
        envs.SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL.override(2.0),
        envs.SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE.override(1),
    ):
        source = Rank(nodes.daemons[0], bootstrap.address, "prefill", seed=1)
        sink = Rank(nodes.daemons[1], bootstrap.address, "decode")
    assert not sink.manager.try_ensure_parallel_info("127.0.0.1:1")
    receiver = kv_class[KVClassType.RECEIVER](sink.manager, "127.0.0.1:1", 400)
    receiver.init(0)
    assert receiver.poll() == FAILED and "127.0.0.1:1" in failure_of(receiver)
    room = Room(source, sink, 401, CHANCE).paired().send(0, 8)
    known = Room(source, sink, 402, CHANCE).both()
    bootstrap.stop()
    for part in (room.receiver, known.receiver):
        until(lambda part=part: part.poll() == FAILED, 60, "the end at the receiver")
        assert "Lost connection with prefill instance" in failure_of(part)
        part.ensure_abort_notified(force_arm=True)
        until(lambda: sink.manager.is_abort_release_safe(part.bootstrap_room, 1), what="the end of what is written")  # noqa: B023
        sink.manager.clear_deferred_abort_state(part.bootstrap_room)
        part.clear()
    for one in (room, known):
        until(lambda one=one: one.sender.poll() == FAILED, 60, "the end at the sender")
        failure_of(one.sender)
    for rank in (source, sink):
        until(rank.is_empty, what="the end of all that is held")
        rank.close()


@pytest.mark.parametrize("number", [9, 15], ids=["SIGKILL", "SIGTERM"])
def test_the_prefill_process_dies(nodes, bootstrap, number):
    sink = Rank(nodes.daemons[1], bootstrap.address, "decode")
    rooms = [str(500 + place) for place in range(3)]
    command = [
        sys.executable,
        str(HERE / "prefill_process.py"),
        str(nodes.daemons[0].socket),
        bootstrap.address,
        *rooms,
    ]
    path = os.pathsep.join([*sys.path[:2], os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    try:
        assert process.stdout.readline() == "ready\n"
        receivers = [sink.receiver(int(room)) for room in rooms]
        for place, receiver in enumerate(receivers):
            receiver.send_metadata(np.arange(1 + 24 * place, 25 + 24 * place, dtype=np.int32), place, [])
        assert process.stdout.readline() == "sent\n"
        assert all(receiver.poll() >= WAITING for receiver in receivers)
    finally:
        process.send_signal(number)
        process.communicate()
    for receiver in receivers:
        until(lambda receiver=receiver: receiver.poll() == FAILED, what="the end at the receiver")
        assert "peer" in failure_of(receiver)
        until(lambda room=receiver.bootstrap_room: sink.manager.is_abort_release_safe(room, 1), what="its pages")
        sink.manager.clear_deferred_abort_state(receiver.bootstrap_room)
        receiver.clear()
    until(sink.is_empty, what="the end of all that is held")
    sink.close()


def test_no_daemon_at_the_start(tmp_path, bootstrap, monkeypatch):
    from types import SimpleNamespace

    monkeypatch.setattr("strait.sglang.endpoint._CONNECT_WAIT", 0.2)
    with pytest.raises(RuntimeError, match="could not be registered"):
        Rank(SimpleNamespace(socket=tmp_path / "none"), bootstrap.address, "prefill")


def test_memory_that_a_daemon_cannot_map(nodes, bootstrap, monkeypatch):
    from contextlib import nullcontext

    monkeypatch.setattr("rig.host_pool", lambda _: nullcontext())
    with pytest.raises(RuntimeError, match=r"is not in memory of strait\.service\.alloc"):
        Rank(nodes.daemons[0], bootstrap.address, "prefill")
