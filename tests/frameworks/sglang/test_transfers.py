"""Requests between ranks of SGLang: whatever happens, a request that succeeds has the pages of its source byte for
byte, each other one fails on both sides with a reason, and nothing stays held.

STRAITD names the daemon, and the libraries are found as by python/tests."""

import os
import signal
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rig import (
    BOOTSTRAPPING,
    FAILED,
    SUCCESS,
    TRANSFERRING,
    WAITING,
    Bootstrap,
    Rank,
    Room,
    failure_of,
    until,
)
from sglang.srt.configs.mamba2 import Mamba2Config
from sglang.srt.mem_cache.memory_pool import MambaPool
from strait.sglang.conn import state_of
from strait.sglang.regions import regions_of
from transformers import LlamaConfig

STATE = (40, 4096)  # pages and bytes of the second kind of memory


@pytest.fixture(scope="module")
def bootstrap():
    bootstrap = Bootstrap()
    yield bootstrap
    bootstrap.stop()


@pytest.fixture(scope="module")
def ranks(nodes, bootstrap):
    source = Rank(nodes.daemons[0], bootstrap.address, "prefill", seed=1, state=STATE)
    sink = Rank(nodes.daemons[1], bootstrap.address, "decode", state=STATE)
    yield source, sink
    source.close()
    sink.close()


class Rooms:
    """Makes rooms that differ in all, and looks that nothing is left of them."""

    def __init__(self, source, sink):
        self.source, self.sink, self.chance, self.number = source, sink, np.random.default_rng(3), 0

    def __call__(self, **more):
        self.number += 1
        return Room(self.source, self.sink, self.number, self.chance, **more)

    def check(self):
        """A whole request works, and none is left."""
        room = self().paired()
        room.send(0, 24).ends(SUCCESS, SUCCESS)
        assert room.is_equal()
        room.clear()
        for rank in (self.source, self.sink):
            until(rank.is_empty, what="the end of all that is held")


@pytest.fixture(scope="module")
def all_rooms(ranks):
    return Rooms(*ranks)


@pytest.fixture(params=["held by SGLang", "held by Strait"])
def rooms(all_rooms, request):
    """Where pages of failed requests are waited for."""
    all_rooms.sink.manager.enable_deferred_decode_kv_release = request.param == "held by SGLang"
    yield all_rooms
    all_rooms.check()


def test_forty_rooms_in_three_chunks(all_rooms):
    for _ in range(40):
        room = all_rooms().both()
        assert room.polls() == (BOOTSTRAPPING, WAITING)
        room.tell(prefix=32)
        until(lambda room=room: room.sender.poll() == WAITING, what="the handshake")
        assert room.sender.pop_decode_prefix_len() == 32 and room.sender.pop_decode_prefix_len() == 0
        for first in (0, 8, 16):
            room.send(first, first + 8)
            assert room.sender.poll() in (TRANSFERRING, SUCCESS)
        room.ends(SUCCESS, SUCCESS)
        assert room.is_equal()
        metric = room.sender.get_transfer_metric()
        assert metric.transfer_total_bytes == room.source.pages(room.from_pages).size + 3 * STATE[1]
        assert 0 < metric.transfer_latency_s < 100 and 0 < metric.alloc_latency_s < 100
        room.clear()
    all_rooms.check()


def test_a_prompt_that_the_decode_rank_has(all_rooms):
    room = all_rooms(count=0).paired(prefix=512)
    room.send(0, 0).ends(SUCCESS, SUCCESS)
    assert room.is_equal()
    room.clear()
    all_rooms.check()


def test_a_room_is_used_again(all_rooms):
    number = 10**15
    for end in ("whole", "aborted", "whole", "forgotten", "whole"):
        room = all_rooms()
        room.number = number
        room.paired()
        if end == "whole":
            room.send(0, 24).ends(SUCCESS, SUCCESS)
            assert room.is_equal()
            room.clear()
        else:
            room.sender.abort()
            room.ends(FAILED, FAILED)
            failure_of(room.receiver)
            room.receiver.clear()
            room.sink.manager.clear_deferred_abort_state(number)
            if end == "aborted":  # SGLang does not clear a request that it aborts in its waiting queue
                failure_of(room.sender)
    all_rooms.check()


def test_a_room_is_used_again_after_half_of_a_request(all_rooms):
    """What one side has given up before the other side came does not end the next request of that room."""
    number = 10**15 + 1
    for half in ("send_side", "receive_side"):
        room = all_rooms()
        room.number = number
        part = getattr(room, half)()
        for one in (part.sender, part.receiver):
            if one is not None:
                one.abort()
                failure_of(one)
        whole = all_rooms()
        whole.number = number
        if half == "send_side":
            whole.send_side().receive_side().tell()
        else:
            whole.receive_side().tell()  # a request that comes before this is taken for the one that was aborted
            until(lambda: number in all_rooms.source.manager._early, what="the news of the next request")
            whole.send_side()
        until(lambda room=whole: room.sender.poll() == WAITING, what="the handshake")
        whole.send(0, 24).ends(SUCCESS, SUCCESS)
        assert whole.is_equal()
        whole.clear()
    all_rooms.check()


class Slow(dict):
    """A table of states in which another thread looks between what one reads and what it writes."""

    def get(self, room, default=None):
        found = super().get(room, default)
        if threading.current_thread() is threading.main_thread():
            other = threading.Thread(target=self.meanwhile)
            self.others.append(other)
            other.start()
            other.join(0.3)  # with a lock it waits for the writer
        return found


@pytest.mark.parametrize("verdict", [SUCCESS, FAILED])
def test_a_verdict_is_not_overwritten(all_rooms, verdict, monkeypatch):
    """It comes in another thread than that which says that a chunk is under way."""
    manager, room = all_rooms.source.manager, 10**15 + 7
    table = Slow({room: WAITING})
    table.others, table.meanwhile = [], lambda: manager.update_status(room, verdict)
    monkeypatch.setattr(manager, "request_status", table)
    manager.update_status(room, TRANSFERRING)
    for other in table.others:
        other.join()
    assert table[room] == verdict


# ---- Aborts

STEPS = {
    "the sender has not come": lambda room: room.receive_side().tell(),
    "the receiver has not come": lambda room: room.send_side(),
    "no pages at the receiver": lambda room: room.both(),
    "paired": lambda room: room.paired(),
    "a chunk is sent": lambda room: room.paired().send(0, 8),
    "all is sent": lambda room: room.paired().send(0, 24),
}


def end_of(room, part, reason):
    """One side's failure, as SGLang takes it."""
    text = failure_of(part)
    peer = "decode rank" if part is room.sender else f"prefill {part.bootstrap_addr} rank"
    assert f"room {room.number}, rank 0.0, {peer} " in text, text
    assert reason in text, text


@pytest.mark.parametrize("step", STEPS)
def test_the_sender_aborts(rooms, step):
    room = STEPS[step](rooms(count=200))
    if room.sender is None:
        room.send_side()
    room.sender.abort()
    assert room.sender.link.transfer is None, "its pages may still be read"
    if room.receiver is None:
        room.receive_side()
    if room.receiver.link is None:
        room.tell()
    until(lambda: room.receiver.poll() in (FAILED, SUCCESS), what="the end at the receiver")
    assert room.sender.poll() == FAILED
    if room.receiver.poll() == SUCCESS:
        assert step == "all is sent" and room.is_equal()
        room.clear()
        return
    end_of(room, room.sender, "Aborted by AbortReq")
    end_of(room, room.receiver, "")
    release(room)


def release(room):
    """As SGLang's DecodeTransferQueue does with what it holds."""
    manager = room.sink.manager
    until(lambda: manager.is_abort_release_safe(room.number, 1), what="the end of what is written")
    assert room.receiver.link is None or room.receiver.link.drained
    manager.clear_deferred_abort_state(room.number)
    room.receiver.clear()


@pytest.mark.parametrize("step", STEPS)
def test_the_receiver_aborts(rooms, step):
    room = STEPS[step](rooms(count=200))
    if room.receiver is None:
        room.receive_side()
    room.receiver.abort()
    if room.sender is None:
        time.sleep(0.05)  # the sender comes after the news
        room.send_side()
    until(lambda: room.receiver.poll() == FAILED, what="the end at the receiver")
    until(lambda: room.sender.poll() in (FAILED, SUCCESS), what="the end at the sender")
    if room.sender.poll() == SUCCESS:
        assert step == "all is sent"
        room.sender.clear()
    else:
        end_of(room, room.sender, "")
    end_of(room, room.receiver, "Aborted by AbortReq")
    release(room)


# ---- What does not fit


def check_refused(room, *words):
    """At the decode rank the daemons' word, that the peer gave up, may be quicker than the reason."""
    room.ends(FAILED, FAILED)
    texts = [failure_of(part) for part in (room.sender, room.receiver)]
    assert all(word in texts[0] for word in words), texts
    assert all(word in texts[1] for word in words) or "peer gave up the request" in texts[1], texts
    release(room)


def test_page_counts_differ(rooms):
    room = rooms().paired()
    room.sender.init(25, room.from_row)
    check_refused(room, "25 pages here, 24 at the decode rank")


def test_states_differ(rooms):
    room = rooms().paired()
    room.states[0] = [room.states[0][0][:2]]
    room.send(0, 24)
    check_refused(room, "pages of state, [2] here and [3] at the decode rank")


def test_a_page_that_does_not_exist(rooms):
    room = rooms()
    room.from_pages[5] = 100000
    room.paired().send(0, 24)
    room.ends(FAILED, FAILED)
    end_of(room, room.sender, "its pages cannot be sent")
    end_of(room, room.receiver, "")
    release(room)


def test_pages_of_another_request(rooms):
    """Of two requests that are to fill the same page the second one fails."""
    one, two = rooms().paired(), rooms().both()
    two.to_pages[0] = one.to_pages[0]
    two.tell()
    two.ends(FAILED, FAILED)
    end_of(two, two.receiver, "in use")
    end_of(two, two.sender, "")
    release(two)
    one.send(0, 24).ends(SUCCESS, SUCCESS)
    assert one.is_equal()
    one.clear()


@pytest.mark.parametrize("pool", [{"kind": "mla"}, {"kind": "swa"}, {"draft": True}], ids=["MLA", "SWA", "draft model"])
def test_other_pools(nodes, pool):
    """Latents of MLA; layers of sliding windows, whose pages are numbered apart; a draft model's layers."""
    bootstrap = Bootstrap()
    source = Rank(nodes.daemons[0], bootstrap.address, "prefill", seed=7, **pool)
    sink = Rank(nodes.daemons[1], bootstrap.address, "decode", **pool)
    assert len(source.manager.groups) == (pool.get("kind") == "swa")
    rooms = Rooms(source, sink)
    for _ in range(5):
        rooms.check()
    source.close()
    sink.close()
    bootstrap.stop()


@pytest.mark.parametrize("cache", ["fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize("kind", ["mha", "mla", "swa"])
def test_caches_of_fp8(nodes, kind, cache):
    """SGLang's tensors of them are uint8: their element is in the name of their type."""
    bootstrap = Bootstrap()
    source, sink = (
        Rank(node, bootstrap.address, mode, seed=seed, kind=kind, cache=cache)
        for node, mode, seed in zip(nodes.daemons, ("prefill", "decode"), (7, None))
    )
    assert kind == "swa" or source.pool.store_dtype == torch.uint8
    for rank in (source, sink):
        manager = rank.manager
        regions = regions_of(manager.kv_args, kind == "mla", manager.share, {})
        assert {region.element for region in regions.values()} == {cache}
    rooms = Rooms(source, sink)
    rooms.check()
    source.close()
    sink.close()
    bootstrap.stop()


@pytest.mark.parametrize("ssm, element", [("float32", "fp32"), ("bfloat16", "bf16")])
def test_the_type_of_a_state_is_told_by_the_model(monkeypatch, ssm, element):
    """By its configuration: SGLang's own pool of such states has the sizes that go with it."""
    monkeypatch.setenv("SGLANG_MAMBA_SSM_DTYPE", ssm)
    config = Mamba2Config(hidden_size=64, num_heads=8, head_dim=16, state_size=16, n_groups=1, num_hidden_layers=2)
    config.intermediate_size = 128
    types = state_of(SimpleNamespace(hf_config=config, is_draft_model=False))
    params = config.mamba2_cache_params
    pool = MambaPool(size=4, spec_state_size=0, cache_params=params, mamba_layer_ids=[0, 1], device="cpu")
    assert [types.get(item) for item in pool.get_contiguous_buf_infos()[2]] == ["bf16", "bf16", element, element]


def test_the_type_of_a_state_is_not_told(monkeypatch, caplog):
    plain = SimpleNamespace(hf_config=LlamaConfig(), is_draft_model=False, linear_attn_registry_result=None)
    assert state_of(plain) == {} and not caplog.records
    assert state_of(None) == {} and "its types cannot be read" in caplog.text
    caplog.clear()
    monkeypatch.setitem(sys.modules, "sglang.srt.configs.hybrid_arch", None)  # as of another release
    assert state_of(plain) == {} and "its types cannot be read" in caplog.text


def test_pools_that_differ(nodes, ranks, bootstrap):
    """Another number of heads, and metadata of another size."""
    source, _ = ranks
    for more, words in (
        ({"heads": 1}, ("pages of 4096 bytes here, 2048 there",)),
        ({"hidden": 128}, ("metadata buffers",)),
    ):
        sink = Rank(nodes.daemons[1], bootstrap.address, "decode", state=STATE, **more)
        rooms = Rooms(source, sink)
        rooms.number = 5000
        room = rooms().both().tell()
        check_refused(room, *words)
        until(sink.is_empty, what="the end of all that is held")
        sink.close()


def test_malformed_messages(rooms):
    """What else comes to the control socket of a prefill rank is dropped."""
    from sglang.srt.disaggregation.common.conn import CommonKVReceiver

    manager = rooms.source.manager
    sock, lock = CommonKVReceiver._connect(f"tcp://{manager.local_ip}:{manager.rank_port}")
    for message in (
        [b"STRAIT_HELLO"],
        [b"STRAIT_HELLO", b"{}", b""],
        [b"ABORT", b"x"],
        [b"?"],
        [b"STRAIT_HELLO", b"[1]", b"y"],
    ):
        with lock:
            sock.send_multipart(message)
    room = rooms().both()
    hello = room.sink.manager.strait.blob
    room.sink.manager.strait.blob = hello[:-1]
    room.tell()
    room.sink.manager.strait.blob = hello
    check_refused(room, "description of its pool cannot be read")


# ---- Load


def held(*daemons):
    """Descriptors and resident bytes of this process and of the daemons."""
    found = []
    for pid in ("self", *(daemon.process.pid for daemon in daemons)):
        with open(f"/proc/{pid}/statm") as statm:
            resident = int(statm.read().split()[1]) * 4096
        found.append((len(os.listdir(f"/proc/{pid}/fd")), resident))
    return found


def test_thousand_rooms(nodes, all_rooms):
    """Sixteen at a time, one in ten of which is aborted, by turns on either side."""
    free, live, done, before = set(range(16)), {}, 0, None
    ids = np.arange(1, 1 + 16 * 12, dtype=np.int32).reshape(16, 12)  # a share of the pages for each of the sixteen
    while done < 1000:
        while free and done + len(live) < 1000:
            share, room = free.pop(), all_rooms(count=12, state=2)
            room.from_pages, room.to_pages = ids[share], np.roll(ids, 5, 0)[share][::-1].copy()
            room.from_row, room.to_row = share, 20 + share
            room.states = [[np.array([2 * share, 2 * share + 1])], [np.array([2 * share + 1, 2 * share])]]
            live[share] = (room.both().tell(), [])
        for share, (room, said) in list(live.items()):
            if room.sender.poll() == WAITING and not said:
                said.append("sent")
                room.send(0, 6)
                if room.number % 10 == 0:
                    (room.sender if room.number % 20 else room.receiver).abort()
                else:
                    room.send(6, 12)
            polls = room.polls()
            if polls == (SUCCESS, SUCCESS):
                assert room.is_equal()
                room.clear()
            elif polls == (FAILED, FAILED) and room.sink.manager.is_abort_release_safe(room.number, 1):
                assert room.number % 10 == 0, [failure_of(room.sender), failure_of(room.receiver)]
                failure_of(room.sender), failure_of(room.receiver)
                release(room)
            else:
                continue
            del live[share]
            free.add(share)
            done += 1
            if done == 300:
                before = held(*nodes.daemons)
    all_rooms.check()
    after = held(*nodes.daemons)
    for (files, resident), (files_after, resident_after) in zip(before, after):
        assert files_after <= files + 4
        assert resident_after <= resident + (8 << 20), (before, after)


# ---- Deaths


@pytest.mark.parametrize("side", [0, 1], ids=["prefill", "decode"])
@pytest.mark.parametrize("step", ["no pages at the receiver", "paired", "a chunk is sent"])
def test_a_daemon_dies(nodes, all_rooms, side, step):
    room = STEPS[step](all_rooms(count=200))
    nodes.daemons[side].stop(signal.SIGKILL)
    if step == "no pages at the receiver":
        room.tell()
    room.ends(FAILED, FAILED, seconds=60)
    texts = [failure_of(room.sender), failure_of(room.receiver)]
    assert all(any(word in text for word in ("daemon", "peer", "its decode rank")) for text in texts), texts
    release(room)
    nodes.daemons[side].start()
    until(lambda: is_whole(all_rooms), 60, "a request after the daemon's return")
    all_rooms.check()


def is_whole(rooms):
    room = rooms().both().tell()
    until(
        lambda: room.sender.poll() in (WAITING, FAILED) and room.receiver.poll() in (WAITING, FAILED),
        what="the handshake",
    )
    if FAILED not in room.polls():
        room.send(0, 24)
    until(lambda: room.polls() in ((SUCCESS, SUCCESS), (FAILED, FAILED)), 60, "its end")
    if room.polls() == (SUCCESS, SUCCESS):
        room.clear()
        return True
    failure_of(room.sender), failure_of(room.receiver)
    release(room)
    return False


def test_a_daemon_hangs(nodes, rooms):
    """Pages at the decode rank are held until its daemon speaks again."""
    room = rooms(count=200).paired().send(0, 8)
    daemon = nodes.daemons[1].process
    daemon.send_signal(signal.SIGSTOP)
    try:
        room.receiver.abort()
        time.sleep(0.2)
        assert room.receiver.poll() == (FAILED if room.sink.manager.enable_deferred_decode_kv_release else TRANSFERRING)
        assert not room.sink.manager.is_abort_release_safe(room.number, 1) and not room.receiver.is_abort_release_safe()
    finally:
        daemon.send_signal(signal.SIGCONT)
    room.ends(FAILED, FAILED)
    end_of(room, room.sender, "")
    end_of(room, room.receiver, "Aborted by AbortReq")
    release(room)


def test_the_daemon_of_the_prefill_node_hangs(nodes, rooms, monkeypatch):
    """An abort says so, as the pages may still be read."""
    monkeypatch.setattr("strait.sglang.endpoint.DRAIN_WAIT", 0.3)
    room = rooms(count=200).paired().send(0, 8)
    daemon = nodes.daemons[0].process
    daemon.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(RuntimeError, match="the daemon hangs"):
            room.sender.abort()
        assert room.sender.poll() == FAILED
    finally:
        daemon.send_signal(signal.SIGCONT)
    room.ends(FAILED, FAILED)
    until(lambda: room.sender.link.drained, what="the end of what is read")
    end_of(room, room.sender, "Aborted by AbortReq")
    end_of(room, room.receiver, "")
    release(room)
