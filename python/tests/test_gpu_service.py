"""strait.service with pools in memory of GPUs (gpus.py): transfers through daemons, events, streams that wait."""

import contextlib
import functools
import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import values_like_kv
from daemons import Daemon, connect, until, verdicts
from gpus import Interface
from gpus import until as until_so

if "STRAITD" not in os.environ:
    pytest.skip("STRAITD does not name the daemon", allow_module_level=True)

import strait
from strait import cuda, service
from strait.service import EventType, Reason, Region, State

HERE = Path(__file__).resolve().parent
SHAPE = (32, 16, 4, 32)  # pages, tokens, heads, values: 4 KiB
LAYERS = 3
CLASSES = [(role, layer) for layer in range(LAYERS) for role in "kv"]


@functools.cache
def values_of(cls):
    return values_like_kv(int(np.prod(SHAPE)), seed=10 * cls[1] + ord(cls[0])).reshape(SHAPE)


def make_pool(gpu, client, fill=False, device=0):
    tensors = {cls: gpu.tensor(values_of(cls) * np.uint16(fill), device=device) for cls in CLASSES}
    return client.register(tensors), tensors


@pytest.fixture(scope="module", params=["one daemon", "two daemons"])
def sockets(request, gpu, tmp_path_factory):
    """The daemons of all tests: each test has clients and pools of its own."""
    with contextlib.ExitStack() as stack:
        daemons = [Daemon(tmp_path_factory.mktemp(name)) for name in ("a", "b")[: 1 + (request.param == "two daemons")]]
        for daemon in daemons:
            daemon.start()
            stack.callback(daemon.stop)
        yield daemons[0].socket, daemons[-1].socket


@pytest.fixture
def pair(sockets):
    with service.Client(sockets[0]) as source, service.Client(sockets[1]) as sink:
        connect(source, sink)
        yield source, sink


@pytest.fixture
def zeros(gpu):
    return lambda shape=SHAPE, device=0: gpu.tensor(np.zeros(shape, np.uint16), device=device)


@pytest.fixture
def landed(gpu):
    """Whether pages of the pool are those that were sent, by class."""

    def landed(got, ids):
        return all((gpu.values(got[cls])[: len(ids)] == values_of(cls)[ids]).all() for cls in CLASSES)

    return landed


def on_host():
    return np.frombuffer(service.alloc(8 * 512 * 2), np.uint16).reshape(8, 512)


def move(source, sink, there, here, ids, *, start=None, key="r", **offer):
    """From pages `ids` to pages 0, 1, ...; what the sides say in the end, and all that they said."""
    expectation = here.expect(key, range(len(ids)), deadline=60)
    offered = there.offer(key, ids, lease=60, **{"last": True, **offer})
    expectation.start(sink.import_peer(there.export()))
    if start is not None:
        start(offered)
    said = until((source, sink), lambda said: len(verdicts(said)) == 2, 30)
    ends = verdicts(said)
    assert ends[expectation].state == ends[offered].state == State.DONE, ends
    return said


# ---- Pools ----------------------------------------------------------------------------------------------------------


def test_pages_arrive(pair, gpu, landed):
    there, _ = make_pool(gpu, pair[0], fill=True)
    here, got = make_pool(gpu, pair[1], device=gpu.devices - 1)
    move(*pair, there, here, [5, 9, 2])
    assert landed(got, [5, 9, 2])
    assert not any(gpu.values(tensor)[3:].any() for tensor in got.values())


def test_pages_of_another_process_arrive_layer_by_layer(pair, sockets, gpu, landed):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    here, got = make_pool(gpu, pair[1])
    with subprocess.Popen([sys.executable, str(HERE / "gpu_source.py"), str(sockets[0])], **pipes) as source:
        blob = bytes.fromhex(source.stdout.readline())
        expectation = here.expect("r", [0, 1], deadline=60)
        print("r", 7, 8, file=source.stdin, flush=True)
        assert source.stdout.readline() == "offered\n"
        expectation.start(pair[1].import_peer(blob))
        said = until(pair, lambda said: expectation in verdicts(said), 30)
        assert verdicts(said)[expectation].state == State.DONE and source.stdout.readline() == "DONE\n"
        assert [event.layer for event in said if event.type == EventType.LAYER] == [0, 1, 2]
        assert landed(got, [7, 8])
        source.stdin.close()


def test_parts_of_one_allocation_are_found_in_it(pair, gpu, zeros):
    values = values_like_kv(2 * 3 * 8 * 512, 2).reshape(2, 3, 8, 512)
    whole = gpu.tensor(values)
    places = {(role, layer): (r, layer) for r, role in enumerate("kv") for layer in range(3)}
    got = {cls: zeros((8, 512)) for cls in places}
    there = pair[0].register({cls: Region(whole[at], heads=2) for cls, at in places.items()})
    here = pair[1].register({cls: Region(each, heads=2) for cls, each in got.items()})
    move(*pair, there, here, [7, 1])
    assert all((gpu.values(got[cls])[:2] == values[at][[7, 1]]).all() for cls, at in places.items())


def test_groups_may_be_on_the_host_and_on_gpus(pair, gpu):
    def pools(fill):
        host = on_host()
        host[:] = values_like_kv(host.size, fill).reshape(host.shape)
        return {("k", 0): gpu.tensor(host + 1), ("v", 0): gpu.tensor(host + 2), ("other", 0): Region(host, group=1)}

    have, got = pools(3), pools(4)
    there, here = pair[0].register(have), pair[1].register(got)
    expectation = here.expect("r", [service.Pages([0]), service.Pages([3], group=1)], deadline=60)
    there.offer("r", [service.Pages([6]), service.Pages([2], group=1)], lease=60, last=True)
    expectation.start(pair[1].import_peer(there.export()))
    said = until(pair, lambda said: expectation in verdicts(said))
    assert verdicts(said)[expectation].state == State.DONE
    assert (gpu.values(got["k", 0])[0] == gpu.values(have["k", 0])[6]).all()
    assert (got["other", 0].array[3] == have["other", 0].array[2]).all()


def test_memory_of_alloc_by_its_address_is_a_pool(pair, gpu):
    memory = cuda.alloc(4 * 128)
    address = memory.__cuda_array_interface__["data"][0]
    pool = pair[0].register({("k", 0): Interface(memory, address, (4, 64))})
    told = until(pair, lambda said: any(event.type == EventType.POOL for event in said))
    assert [event.status for event in told if event.pool is pool] == [0]
    with pytest.raises(ValueError, match="ends at byte"):
        pair[0].register({("k", 0): Interface(memory, address, (1 << 20, 64))})


def test_memory_that_cannot_be_a_pool_is_refused(pair, gpu, zeros):
    for wrong, error, match in [
        (zeros()[0, 0, 0, 0:0], ValueError, "has no pages"),
        (Interface(None, np.zeros(64, np.uint16).ctypes.data, (4, 16)), TypeError, "the pool of .* no memory of a GPU"),
        (gpu.tensor(np.zeros(64, np.uint8), "uint8"), TypeError, "'bytes' for INT8"),
    ]:
        with pytest.raises(error, match=match):
            pair[0].register({("k", 0): wrong})


def test_memory_without_a_handle_is_refused_with_the_remedy(pair, gpu, zeros):
    if gpu.control is not None:
        gpu.control.mapped_only = 1
        tensor, gpu.control.mapped_only = zeros((4, 64)), 0
        with pytest.raises(ValueError, match="expandable_segments:False"):
            pair[0].register({("k", 0): tensor})
        return
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    code = "import torch; from strait import service; pool = torch.zeros(4, 64, dtype=torch.bfloat16, device='cuda'); "
    code += "service.Client('/nowhere').register({('k', 0): pool})"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert "expandable_segments:False" in done.stderr, done.stderr


def test_pools_keep_their_memory(pair, gpu, control):
    gc.collect()
    before = control.device_bytes
    pool, _ = make_pool(gpu, pair[0])
    del _
    gc.collect()
    assert control.device_bytes > before
    pool.remove()
    until(pair, lambda said: any(event.type == EventType.POOL_REMOVED for event in said))
    del pool
    gc.collect()
    assert control.device_bytes == before


# ---- Events ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["event", "handle"])
def test_layers_are_ready_after_their_events(kind, pair, gpu, landed):
    (there, have), (here, got), stream = make_pool(gpu, pair[0]), make_pool(gpu, pair[1]), gpu.stream()
    final = {cls: gpu.tensor(values_of(cls)) for cls in CLASSES}
    events = []

    def append(offer):
        for layer in range(LAYERS):
            gpu.slow(stream, 0.05)
            for role in "kv":
                gpu.copy(have[role, layer], final[role, layer], stream)
            events.append(gpu.event(stream))
            ready = events[-1] if kind == "event" else bytes(events[-1].ipc_handle())
            offer.append(layers=range(layer, layer + 1), ready=ready, last=layer == LAYERS - 1)
            if kind == "event":
                events.clear()  # the offer keeps it
        assert kind == "event" or not events[-1].query()

    said = move(*pair, there, here, [4, 3], later=True, last=False, start=append)
    assert [event.layer for event in said if event.type == EventType.LAYER] == [0, 1, 2]
    assert landed(got, [4, 3])


def test_offered_pages_are_ready_after_their_event(pair, gpu, landed):
    (there, have), (here, got), stream = make_pool(gpu, pair[0]), make_pool(gpu, pair[1]), gpu.stream()
    final = {cls: gpu.tensor(values_of(cls)) for cls in CLASSES}
    gpu.slow(stream, 0.2)
    for cls in CLASSES:
        gpu.copy(have[cls], final[cls], stream)
    event = gpu.event(stream)
    assert not event.query()
    move(*pair, there, here, [4, 3], ready=event)
    assert event.query() and landed(got, [4, 3])


def test_events_are_checked(pair, gpu):
    pool, _ = make_pool(gpu, pair[0])
    event, offer = gpu.event(gpu.stream()), pool.offer("r", [1], lease=5, later=True)
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
        pool.offer("s", [1], lease=5, ready=event, later=True)
    other = pair[0].register({("k", 0): on_host()}).offer("h", [1], lease=5, later=True)
    with pytest.raises(strait.UnsupportedError):
        other.append(ready=event)


# ---- Streams that wait ----------------------------------------------------------------------------------------------


def test_a_stream_waits_for_the_pages(pair, gpu, zeros):
    (there, _), (here, got) = make_pool(gpu, pair[0], fill=True), make_pool(gpu, pair[1])
    expectation = here.expect("r", [0, 1], deadline=60)
    offer = there.offer("r", [4, 3], lease=60, later=True)
    expectation.start(pair[1].import_peer(there.export()))
    copies, streams = (
        {layer: zeros() for layer in range(LAYERS)},
        {layer: gpu.stream() for layer in (*range(LAYERS), None)},
    )
    for layer, stream in streams.items():
        expectation.wait_stream(stream if layer is not None else stream.cuda_stream, layer)
        if layer is not None:
            gpu.copy(copies[layer], got["k", layer], stream)
    until(pair, lambda said: expectation.progress.state >= State.READY)
    for layer in (1, 2, 0):
        assert not gpu.is_idle(streams[layer]) and not gpu.is_idle(streams[None])
        offer.append(layers=range(layer, layer + 1), last=layer == 0)
        until_so(functools.partial(gpu.is_idle, streams[layer]))  # the clients are not polled
    until_so(lambda: gpu.is_idle(streams[None]))
    for layer in range(LAYERS):  # not before: a GPU may run other streams behind one that waits
        assert (gpu.values(copies[layer])[:2] == values_of(("k", layer))[[4, 3]]).all()
    said = until(pair, lambda said: len(verdicts(said)) == 2)
    assert verdicts(said)[expectation].state == State.DONE
    expectation.wait_stream(streams[None], 1)
    until_so(lambda: gpu.is_idle(streams[None]))


def test_a_stream_goes_on_when_the_transfer_fails(pair, gpu):
    (here, _), stream = make_pool(gpu, pair[1]), gpu.stream()
    expectation = here.expect("r", [0], deadline=0.4)
    with gpu.current(stream):
        expectation.wait_stream()
    assert not gpu.is_idle(stream)
    until_so(lambda: gpu.is_idle(stream))
    said = until(pair, lambda said: len(verdicts(said)) == 1)
    assert verdicts(said)[expectation].reason == Reason.TIMEOUT
    for transfer, layer, error in [
        (here.offer("o", [1], lease=5), None, strait.InvalidError),
        (here.expect("e", [2], deadline=5), 7, strait.InvalidError),
        (pair[1].register({("k", 0): on_host()}).expect("h", [2], deadline=5), None, strait.UnsupportedError),
    ]:
        with pytest.raises(error):
            transfer.wait_stream(stream, layer)
    with pytest.raises(TypeError, match="no stream"):
        expectation.wait_stream("s")


def test_a_daemon_that_is_killed_lets_streams_go_on(gpu, tmp_path):
    daemon, side = Daemon(tmp_path), gpu.stream()
    daemon.start()
    with service.Client(daemon.socket) as client:
        connect(client)
        pool, _ = make_pool(gpu, client)
        expectation = pool.expect("killed", [0], deadline=60)
        expectation.wait_stream(side)
        until([client], lambda said: any(event.type == EventType.POOL for event in said), 30)
        daemon.stop(signal.SIGKILL)
        assert not gpu.is_idle(side)
        until([client], lambda said: expectation in verdicts(said))
        until_so(lambda: gpu.is_idle(side))


# ---- The daemon in this process -------------------------------------------------------------------------------------


def test_an_embedded_daemon_takes_pointers_and_events(gpu, landed):
    try:
        client = service.Client(embedded="arena-bytes = 64M\n")
    except strait.UnsupportedError:
        pytest.skip("libstrait-node.so.0 is not where the loader looks")
    with client:
        connect(client)
        (there, _), (here, got) = make_pool(gpu, client, fill=True), make_pool(gpu, client)
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
        stream = gpu.stream()
        gpu.slow(stream)
        began = time.monotonic()
        move(client, client, there, here, [3, 8], key="again", ready=gpu.event(stream))
        assert 0.05 < time.monotonic() - began
        assert landed(got, [3, 8])
