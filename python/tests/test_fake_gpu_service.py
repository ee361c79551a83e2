"""Transfers between pools in memory of the fake driver's GPUs, through daemons with the fake plugin for them."""

import ctypes
import functools
import gc
import os
import time

import fake_gpu
import numpy as np
import pytest
from conftest import values_like_kv
from fake_gpu import Stream, Tensor

import strait

if fake_gpu.driver is None:
    pytest.skip("libcuda.so.1 is not the fake one", allow_module_level=True)
if "STRAITD" not in os.environ:
    pytest.skip("STRAITD does not name the daemon", allow_module_level=True)

from daemons import Daemon, connect, until, verdicts

from strait import cuda, service
from strait.service import EventType, Reason, Region, State

SHAPE = (32, 16, 4, 32)
CLASSES = [(role, layer) for layer in range(3) for role in "kv"]


@pytest.fixture(scope="module", params=["one daemon", "two daemons"])
def sockets(request, tmp_path_factory):
    """The daemons of all tests: each test has clients and pools of its own."""
    daemons = []
    for name in ("a", "b")[: 1 + (request.param == "two daemons")]:
        daemons.append(Daemon(tmp_path_factory.mktemp(name)))
        daemons[-1].start()
    yield daemons[0].socket, daemons[-1].socket
    for daemon in daemons:
        daemon.stop()


@pytest.fixture
def pair(sockets):
    with service.Client(sockets[0]) as source, service.Client(sockets[1]) as sink:
        connect(source, sink)
        yield source, sink


def tensors(fill=None, device=0):
    values = np.zeros if fill is None else lambda shape, _: values_like_kv(int(np.prod(shape)), fill).reshape(shape)
    return {cls: Tensor(values(SHAPE, np.uint16), device=device) for cls in CLASSES}


def zeros_like(tensor):
    return Tensor(np.zeros_like(tensor.values))


def copy(to, source, stream):
    """Queued on the stream, as a kernel would be that reads the pages."""
    places = [ctypes.c_void_p(tensor.values.ctypes.data) for tensor in (to, source)]
    fake_gpu.call("cuMemcpyAsync", *places, ctypes.c_size_t(to.values.nbytes), ctypes.c_void_p(stream.cuda_stream))


def move(source, sink, there, here, ids, *, start=None, key="r", **offer):
    """From pages `ids` to pages 0, 1, ...; what both sides said."""
    expectation = here.expect(key, range(len(ids)), deadline=60)
    offered = there.offer(key, ids, lease=60, **{"last": True, **offer})
    expectation.start(sink.import_peer(there.export()))
    if start is not None:
        start(offered)
    said = until((source, sink), lambda said: len(verdicts(said)) == 2)
    return verdicts(said)[expectation], verdicts(said)[offered], said


def test_pages_arrive(pair):
    have, got = tensors(1), tensors(device=1)
    there, here = pair[0].register(have), pair[1].register(got)
    landed, offered, _ = move(*pair, there, here, [5, 9, 2])
    assert landed.state == offered.state == State.DONE
    for cls in CLASSES:
        assert (got[cls].values[:3] == have[cls].values[[5, 9, 2]]).all() and not got[cls].values[3:].any()


def test_parts_of_one_allocation_are_found_in_it(pair):
    whole = Tensor(values_like_kv(2 * 3 * 8 * 512, 2).reshape(2, 3, 8, 512))
    have = {(role, layer): whole[r, layer] for r, role in enumerate("kv") for layer in range(3)}
    got = {cls: Tensor(np.zeros((8, 512), np.uint16)) for cls in have}
    there = pair[0].register({cls: Region(each, heads=2) for cls, each in have.items()})
    here = pair[1].register({cls: Region(each, heads=2) for cls, each in got.items()})
    landed, _, _ = move(*pair, there, here, [7, 1])
    assert landed.state == State.DONE
    assert all((got[cls].values[:2] == have[cls].values[[7, 1]]).all() for cls in have)


def test_groups_may_be_on_the_host_and_on_gpus(pair):
    def pools(fill):
        host = np.frombuffer(service.alloc(8 * 512 * 2), np.uint16).reshape(8, 512)
        host[:] = values_like_kv(host.size, fill).reshape(8, 512)
        return {("k", 0): Tensor(host + 1), ("v", 0): Tensor(host + 2), ("other", 0): Region(host, group=1)}

    have, got = pools(3), pools(4)
    there, here = pair[0].register(have), pair[1].register(got)
    expectation = here.expect("r", [service.Pages([0]), service.Pages([3], group=1)], deadline=60)
    there.offer("r", [service.Pages([6]), service.Pages([2], group=1)], lease=60, last=True)
    expectation.start(pair[1].import_peer(there.export()))
    said = until(pair, lambda said: expectation in verdicts(said))
    assert verdicts(said)[expectation].state == State.DONE
    assert (got["k", 0].values[0] == have["k", 0].values[6]).all()
    assert (got["other", 0].array[3] == have["other", 0].array[2]).all()


@pytest.mark.parametrize("kind", ["event", "handle"])
def test_layers_are_ready_after_their_events(pair, control, kind):
    have, got, stream = tensors(5), tensors(), Stream()
    there, here = pair[0].register(have), pair[1].register(got)
    events = []

    def append(offer):
        control.delay_us = 50000
        for layer in range(3):
            events.append(cuda.Event(stream))
            ready = events[-1] if kind == "event" else events[-1].ipc_handle()
            offer.append(layers=range(layer, layer + 1), ready=ready, last=layer == 2)
            if kind == "event":
                events.clear()  # the offer keeps it
        assert kind == "event" or not events[-1].done()

    landed, _, said = move(*pair, there, here, [4, 3], later=True, last=False, start=append)
    assert landed.state == State.DONE
    assert [event.layer for event in said if event.type == EventType.LAYER] == [0, 1, 2]
    assert all((got[cls].values[:2] == have[cls].values[[4, 3]]).all() for cls in CLASSES)


def test_offered_pages_are_ready_after_their_event(pair, control):
    have, got, stream = tensors(7), tensors(), Stream()
    there, here = pair[0].register(have), pair[1].register(got)
    control.delay_us = 200000
    event = cuda.Event(stream)
    began = time.monotonic()
    landed, _, _ = move(*pair, there, here, [4, 3], ready=event)
    assert landed.state == State.DONE and event.done() and time.monotonic() - began > 0.1
    assert all((got[cls].values[:2] == have[cls].values[[4, 3]]).all() for cls in CLASSES)


def test_a_stream_waits_for_the_pages(pair, control):
    have, got = tensors(8), tensors()
    there, here = pair[0].register(have), pair[1].register(got)
    expectation = here.expect("r", [0, 1], deadline=60)
    offer = there.offer("r", [4, 3], lease=60, later=True)
    expectation.start(pair[1].import_peer(there.export()))
    copies, streams = {}, {}
    for layer in range(3):
        streams[layer] = Stream()
        expectation.wait_stream(streams[layer], layer)
        copies[layer] = zeros_like(got["k", layer])
        copy(copies[layer], got["k", layer], streams[layer])
    all_of_it = Stream()
    expectation.wait_stream(all_of_it.cuda_stream)
    until(pair, lambda said: expectation.progress.state >= State.READY)
    for layer in (1, 2, 0):
        assert not fake_gpu.is_idle(streams[layer])
        offer.append(layers=range(layer, layer + 1), last=layer == 0)
        fake_gpu.until(functools.partial(fake_gpu.is_idle, streams[layer]))  # the clients are not polled
        assert (copies[layer].values[:2] == have["k", layer].values[[4, 3]]).all()
    fake_gpu.until(lambda: fake_gpu.is_idle(all_of_it))
    said = until(pair, lambda said: len(verdicts(said)) == 2)
    assert verdicts(said)[expectation].state == State.DONE
    expectation.wait_stream(all_of_it, 1)
    assert fake_gpu.is_idle(all_of_it)


def test_a_stream_goes_on_when_the_transfer_fails(pair):
    here, stream = pair[1].register(tensors()), Stream()
    host = np.frombuffer(service.alloc(4096), np.uint16).reshape(8, -1)
    expectation = here.expect("r", [0], deadline=0.4)
    expectation.wait_stream(stream)
    assert not fake_gpu.is_idle(stream)
    fake_gpu.until(lambda: fake_gpu.is_idle(stream))
    said = until(pair, lambda said: len(verdicts(said)) == 1)
    assert verdicts(said)[expectation].reason == Reason.TIMEOUT
    for transfer, layer, error in [
        (here.offer("o", [1], lease=5), None, strait.InvalidError),
        (here.expect("e", [2], deadline=5), 7, strait.InvalidError),
        (pair[1].register({("k", 0): host}).expect("h", [2], deadline=5), None, strait.UnsupportedError),
    ]:
        with pytest.raises(error):
            transfer.wait_stream(stream, layer)
    with pytest.raises(TypeError, match="no stream"):
        expectation.wait_stream("s")


def test_events_are_checked(pair):
    pool = pair[0].register(tensors())
    offer = pool.offer("r", [1], lease=5, later=True)
    not_shared = type("Event", (), {"ipc_handle": lambda self: (_ for _ in ()).throw(RuntimeError("invalid argument"))})
    for ready, error, match in [
        ("now", TypeError, "64 bytes, not str"),
        (b"short", ValueError, "not 5"),
        (not_shared(), ValueError, "interprocess=True"),
    ]:
        with pytest.raises(error, match=match):
            offer.append(ready=ready)
        with pytest.raises(error, match=match):
            pool.offer("s", [1], lease=5, ready=ready)
    with pytest.raises(strait.InvalidError):
        pool.offer("s", [1], lease=5, ready=cuda.Event(), later=True)
    host = np.frombuffer(service.alloc(4096), np.uint16).reshape(8, -1)
    other = pair[0].register({("k", 0): host}).offer("h", [1], lease=5, later=True)
    with pytest.raises(strait.UnsupportedError):
        other.append(ready=cuda.Event())


def test_memory_without_a_handle_is_refused_with_the_remedy(pair, control):
    control.mapped_only = 1
    with pytest.raises(ValueError, match="expandable_segments:False"):
        pair[0].register({("k", 0): Tensor(np.zeros((4, 64), np.uint16))})
    control.mapped_only = 0
    memory = cuda.alloc(4 * 128)
    assert memory.__cuda_array_interface__["data"] == (memory.pointer, False) and memory.device == 0
    pool = pair[0].register({("k", 0): cuda.Array(memory.pointer, (4, 64), dtype="bfloat16", owner=memory)})
    told = until(pair, lambda said: any(event.type == EventType.POOL for event in said))
    assert [event.status for event in told if event.pool is pool] == [0]
    with pytest.raises(ValueError, match="ends at byte"):
        pair[0].register({("k", 0): cuda.Array(memory.pointer, (400, 64), dtype="bfloat16")})


def test_pools_keep_their_memory(pair, control):
    gc.collect()
    before = control.device_bytes
    pool = pair[0].register(tensors())
    gc.collect()
    assert control.device_bytes > before
    pool.remove()
    until(pair, lambda said: any(event.type == EventType.POOL_REMOVED for event in said))
    del pool
    gc.collect()
    assert control.device_bytes == before


def test_an_embedded_daemon_takes_pointers_and_events(control):
    try:
        client = service.Client(embedded="arena-bytes = 8M\n")
    except strait.UnsupportedError:
        pytest.skip("libstrait-node.so.0 is not where the loader looks")
    with client:
        connect(client)
        have, got = tensors(6), tensors()
        there, here = client.register(have), client.register(got)
        offer = there.offer("r", [1, 2], lease=60, later=True)
        expectation = here.expect("r", [6, 7], deadline=60)
        expectation.start(client.import_peer(there.export()))
        with pytest.raises(TypeError, match="not bytes"):
            offer.append(ready=bytes(64))
        offer.abort()
        said = until((client,), lambda said: len(verdicts(said)) == 2)
        assert verdicts(said)[expectation].reason == Reason.PEER_ABORT
        with here.expect("s", [0], deadline=1) as other, pytest.raises(strait.UnsupportedError):
            other.wait_stream()
        stream, control.delay_us = Stream(), 100000
        began = time.monotonic()
        landed, _, _ = move(client, client, there, here, [3, 8], key="again", ready=cuda.Event(stream))
        assert landed.state == State.DONE and 0.1 < time.monotonic() - began < 5
        assert all((got[cls].values[:2] == have[cls].values[[3, 8]]).all() for cls in CLASSES)
