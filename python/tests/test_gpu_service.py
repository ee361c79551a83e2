"""strait.service with pools of torch on a real GPU. What needs none is in test_fake_gpu_service.py."""

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fake_gpu
import numpy as np
import pytest

import strait

torch = pytest.importorskip("torch", reason="torch is not installed")
if fake_gpu.driver is not None:
    pytest.skip("libcuda.so.1 is the fake one", allow_module_level=True)
if not torch.cuda.is_available():
    pytest.skip("torch sees no GPU", allow_module_level=True)
if torch.cuda.get_device_capability()[0] < 9:
    pytest.skip("the codec needs compute capability 9.0", allow_module_level=True)

from daemons import Daemon, connect, until, verdicts  # noqa: E402
from gpu_pages import CLASSES, SHAPE, make_pool, values_of  # noqa: E402

from strait import cuda, service  # noqa: E402
from strait.service import EventType, State  # noqa: E402

HERE = Path(__file__).resolve().parent
PAGES = 64


@pytest.fixture(scope="module")
def kv():
    return {cls: values_of(cls, PAGES) for cls in CLASSES}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    if "STRAITD" not in os.environ:
        pytest.skip("STRAITD does not name the daemon")
    daemon = Daemon(tmp_path_factory.mktemp("daemon"))
    daemon.start()
    yield daemon
    daemon.stop()


class Source:
    """gpu_source.py, in a process of its own."""

    def __init__(self, socket):
        command = [sys.executable, str(HERE / "gpu_source.py"), str(socket), str(PAGES)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @functools.cached_property
    def blob(self):
        return bytes.fromhex(self.process.stdout.readline())

    def tell(self, what, key, ids):
        assert self.blob
        print(what, key, *ids, file=self.process.stdin, flush=True)
        assert self.process.stdout.readline() == "offered\n"

    def verdict(self):
        return self.process.stdout.readline().strip()

    def end(self):
        self.process.stdin.close()
        self.process.wait(30)


@pytest.fixture(scope="module", autouse=True)
def source(request):
    """Begins with the first test, as it takes a while."""
    if "STRAITD" not in os.environ:
        yield None
        return
    source = Source(request.getfixturevalue("daemon").socket)
    yield source
    source.end()


@pytest.fixture
def sink(daemon):
    with service.Client(daemon.socket) as client:
        connect(client)
        yield client


def land(client, pool, source, key, ids, *, how="offer"):
    """Expects pages 0, 1, ... of the other process's pages `ids`; returns what was said."""
    expectation = pool.expect(key, range(len(ids)), deadline=20)
    source.tell(how, key, ids)
    expectation.start(client.import_peer(source.blob))
    said = until([client], lambda said: expectation in verdicts(said), 30)
    event = verdicts(said)[expectation]
    assert (event.state, event.text) == (State.DONE, "")
    assert source.verdict() == "DONE"
    return said


def test_pages_of_another_process_arrive(source, sink):
    pool, got = make_pool(sink, PAGES)
    land(sink, pool, source, "r", [9, 60, 3])
    for cls in CLASSES:
        assert torch.equal(got[cls][:3], values_of(cls, PAGES)[[9, 60, 3]]) and not got[cls][3:].any()


def test_layers_come_behind_their_events(source, sink):
    pool, got = make_pool(sink, PAGES)
    said = land(sink, pool, source, "later", [7, 8], how="later")
    assert sorted(event.layer for event in said if event.type == EventType.LAYER) == [0, 1, 2, 3]
    assert all(torch.equal(got[cls][:2], values_of(cls, PAGES)[[7, 8]]) for cls in CLASSES)


def test_offered_pages_come_behind_their_event(source, sink):
    pool, got = make_pool(sink, PAGES)
    land(sink, pool, source, "ready", [9, 8], how="ready")
    assert all(torch.equal(got[cls][:2], values_of(cls, PAGES)[[9, 8]]) for cls in CLASSES)


def wait_idle(stream, seconds=20):
    """Without polling the client; returns how long it took."""
    began = time.monotonic()
    while not stream.query():
        assert time.monotonic() - began < seconds
        time.sleep(0.0005)
    return time.monotonic() - began


def test_streams_wait_for_the_pages(source, sink):
    pool, got = make_pool(sink, PAGES)
    torch.cuda.synchronize()
    expectation, copies = pool.expect("streams", [0, 1], deadline=20), {}
    streams = {layer: torch.cuda.Stream() for layer in (*range(4), None)}
    for layer, stream in streams.items():
        expectation.wait_stream(stream, layer)
        with torch.cuda.stream(stream):
            copies.update({cls: got[cls][:2].clone() for cls in CLASSES if layer in (cls[1], None)})
    assert not any(stream.query() for stream in streams.values())
    source.tell("later", "streams", [5, 6])
    expectation.start(sink.import_peer(source.blob))
    for layer in (3, 2, 1, 0, None):  # events come in the other order
        wait_idle(streams[layer])
    assert expectation.progress.state < State.DONE  # the library was never asked
    assert all(torch.equal(copies[cls], values_of(cls, PAGES)[[5, 6]]) for cls in CLASSES)
    said = until([sink], lambda said: expectation in verdicts(said))
    assert verdicts(said)[expectation].state == State.DONE and source.verdict() == "DONE"
    expectation.wait_stream(streams[0], 2)
    assert wait_idle(streams[0]) < 1


def test_the_current_stream_of_torch_waits_until_the_deadline(source, sink):
    pool, _ = make_pool(sink, PAGES)
    expectation, side = pool.expect("nothing", [0], deadline=0.5), torch.cuda.Stream()
    with torch.cuda.stream(side):
        expectation.wait_stream()
    source.tell("idle", "nothing", [1])
    expectation.start(sink.import_peer(source.blob))
    until([sink], lambda said: expectation.progress.state >= State.READY, 5)
    waited = wait_idle(side)
    said = until([sink], lambda said: expectation in verdicts(said))
    assert verdicts(said)[expectation].reason == service.Reason.TIMEOUT
    assert 0.2 < waited < 2


def test_a_daemon_that_is_killed_lets_streams_go_on(tmp_path):
    if "STRAITD" not in os.environ:
        pytest.skip("STRAITD does not name the daemon")
    daemon, side = Daemon(tmp_path), torch.cuda.Stream()
    daemon.start()
    with service.Client(daemon.socket) as client:
        connect(client)
        pool, _ = make_pool(client, PAGES)
        expectation = pool.expect("killed", [0], deadline=60)
        expectation.wait_stream(side)
        until([client], lambda said: any(event.type == EventType.POOL for event in said), 30)
        daemon.stop(signal.SIGKILL)
        time.sleep(0.3)
        assert not side.query()
        until([client], lambda said: expectation in verdicts(said))
        assert wait_idle(side) < 1


def test_memory_of_our_own_in_torch(source, sink):
    classes = {cls: cuda.alloc(PAGES * 2 * int(np.prod(SHAPE))) for cls in CLASSES}
    got = {
        cls: torch.as_tensor(memory, device="cuda").view(torch.bfloat16).view(PAGES, *SHAPE)
        for cls, memory in classes.items()
    }
    assert all(tensor.data_ptr() == classes[cls].pointer for cls, tensor in got.items())
    land(sink, sink.register(got), source, "own", [1])
    assert all(torch.equal(got[cls][0], values_of(cls, PAGES)[1]) for cls in CLASSES)


EXPANDABLE = """
import torch
from strait import service
from gpu_pages import make_pool
try:
    make_pool(service.Client("/nowhere"), 4)
except ValueError as error:
    print(error)
"""


@pytest.fixture(scope="module", autouse=True)
def expandable():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen([sys.executable, "-c", EXPANDABLE], env=environment, **pipes) as process:
        yield process


def test_expandable_segments_are_refused_with_the_remedy(expandable):
    said = expandable.communicate()[0]
    assert "expandable_segments:False" in said, said


def test_an_embedded_daemon(kv):
    try:
        client = service.Client(embedded="arena-bytes = 64M\n")
    except strait.UnsupportedError:
        pytest.skip("libstrait-node.so.0 is not where the loader looks")
    with client:
        connect(client)
        there, (here, got) = client.register(kv), make_pool(client, PAGES)
        event = torch.cuda.Event()
        torch.cuda._sleep(100_000_000)
        event.record()
        offer = there.offer("r", [3, 5], lease=20, later=True)
        offer.append(ready=event, last=True)
        expectation = here.expect("r", [0, 1], deadline=20)
        expectation.start(client.import_peer(there.export()))
        said = until([client], lambda said: len(verdicts(said)) == 2, 30)
        assert verdicts(said)[expectation].state == State.DONE, verdicts(said)[expectation]
        assert all(torch.equal(got[cls][:2], kv[cls][[3, 5]]) for cls in CLASSES)
