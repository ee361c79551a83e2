"""strait.cuda and strait.service with torch on a real GPU. What needs none is in test_fake_gpu.py."""

import functools
import importlib.util
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
MODES = ["auto", "raw", "top16", "tiered"]


def bits(tensor):
    """On the host, as numpy has BF16."""
    return tensor.detach().cpu().view(torch.int16).numpy().view(np.uint16)


@pytest.fixture(scope="module")
def kv():
    return {cls: values_of(cls, PAGES) for cls in CLASSES}


@pytest.fixture(scope="module")
def book(kv):
    return strait.calibrate({cls: bits(tensor) for cls, tensor in kv.items()})


@pytest.fixture(scope="module")
def codec(book):
    return cuda.Codec(book)


def room(pages, **how):
    return torch.empty(cuda.encode_bound(pages, **how), dtype=torch.uint8, device="cuda")


def chunk_of(out, job):
    return out[: job.bytes].cpu().numpy().tobytes()


# ---- The codec ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_chunks_are_those_of_the_host(mode, kv, book, codec):
    ids = [5, 40, 7, 63]
    pages, side, stats = cuda.PageList(kv, ids), torch.cuda.Stream(), strait.Stats()
    out = room(pages)
    with torch.cuda.stream(side):
        job = codec.encode(pages, out, mode=mode, stats=stats)
    job.wait()
    expected, host = strait.Stats(), strait.PageList({cls: bits(tensor) for cls, tensor in kv.items()}, ids)
    chunk = strait.encode(host, book, mode=mode, stats=expected)
    assert chunk_of(out, job) == chunk
    assert stats.values == expected.values and (stats.table_escapes == expected.table_escapes).all()
    back = {cls: torch.zeros_like(tensor) for cls, tensor in kv.items()}
    with torch.cuda.stream(side):
        codec.decode(out[: job.bytes], cuda.PageList(back, [3, 1, 2, 0])).wait()
    for cls in kv:
        assert torch.equal(back[cls][[3, 1, 2, 0]], kv[cls][ids]) and not back[cls][4:].any()


def test_arrays_of_any_length(book, codec):
    for count in (1, 17, 8192, 16384, 100_001):
        values = torch.randn(count, device="cuda").to(torch.bfloat16)
        out, back = room(values), torch.zeros_like(values)
        job = codec.encode(values, out)
        job.wait()
        assert chunk_of(out, job) == strait.encode(bits(values), book)
        codec.decode(out[: job.bytes], back).wait()
        assert torch.equal(back, values)


def test_a_batch_with_ids_on_the_gpu(kv, book, codec):
    pages = cuda.PageList(kv, [0])
    tables = torch.randperm(PAGES, device="cuda").to(torch.int32).view(8, 8)
    lists = [pages.with_ids(row) for row in tables]
    outs = [room(each) for each in lists]
    results = torch.zeros(8, 64, dtype=torch.uint8, device="cuda")
    job = codec.encode_batch(zip(lists, outs), results=results)
    sizes = [outcome.bytes for outcome in job.wait()]
    assert results.view(torch.int64)[:, 0].tolist() == sizes
    host = {cls: bits(tensor) for cls, tensor in kv.items()}
    for row, out, size in zip(tables.cpu().tolist(), outs, sizes):
        assert out[:size].cpu().numpy().tobytes() == strait.encode(strait.PageList(host, row), book)
    back = {cls: torch.zeros_like(tensor) for cls, tensor in kv.items()}
    into = cuda.PageList(back, [0])
    codec.decode_batch([(out[:size], into.with_ids(row)) for out, size, row in zip(outs, sizes, tables)]).wait()
    assert all(torch.equal(back[cls], kv[cls]) for cls in kv)


def test_the_host_does_not_wait(kv, codec, book):
    pages, side = cuda.PageList(kv), torch.cuda.Stream()
    out, back = room(pages), {cls: torch.zeros_like(tensor) for cls, tensor in kv.items()}
    size = len(strait.encode(strait.PageList({cls: bits(tensor) for cls, tensor in kv.items()}), book))
    into = cuda.PageList(back)
    codec.encode(pages, out, stream=side).wait()  # what is made once is made
    codec.decode(out[:size], into, stream=side).wait()
    torch.cuda.synchronize()
    out.zero_()
    for tensor in back.values():
        tensor.zero_()
    with torch.cuda.stream(side):
        torch.cuda._sleep(1_000_000_000)
        began = time.monotonic()
        jobs = [codec.encode(pages, out), codec.decode(out[:size], into)]
        copies = {cls: tensor.clone() for cls, tensor in back.items()}
        queued = time.monotonic() - began
        assert not any(job.done() for job in jobs)
    for job in jobs:
        job.wait()
    waited = time.monotonic() - began
    torch.cuda.synchronize()
    print(f"queued in {1e3 * queued:.2f} ms, over after {1e3 * waited:.0f} ms")
    assert queued < waited / 3
    assert all(torch.equal(copies[cls], kv[cls]) for cls in kv)


def test_work_of_other_streams_comes_first(kv, book, codec):
    """An explicit stream waits for what torch has queued on its current one."""
    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    source, out = torch.zeros_like(kv["k", 0]), room(kv["k", 0])
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        source.copy_(kv["k", 0])
        job = codec.encode(source, out, stream=other)
    job.wait()
    assert chunk_of(out, job) == strait.encode(bits(kv["k", 0]), book)
    job = codec.encode(source, out, stream=other.cuda_stream)
    job.hold(side)
    with torch.cuda.stream(side):
        copied = out.clone()
    torch.cuda.synchronize()
    assert copied[: job.bytes].cpu().numpy().tobytes() == strait.encode(bits(source), book)


def test_pinned_memory_and_damage(kv, book, codec):
    values = kv["v", 1]
    out = torch.empty(cuda.encode_bound(values), dtype=torch.uint8, pin_memory=True)
    job = codec.encode(values, out)
    job.wait()
    assert out[: job.bytes].numpy().tobytes() == strait.encode(bits(values), book)
    back = torch.zeros_like(values)
    codec.decode(out[: job.bytes], back).wait()
    assert torch.equal(back, values)
    for damage, error in [(lambda b: b[:-1], strait.TruncatedError), (lambda b: b"x" + b[1:], strait.CorruptError)]:
        bad = torch.frombuffer(bytearray(damage(chunk_of(out, job))), dtype=torch.uint8).cuda()
        with pytest.raises(error):
            codec.decode(bad, back).wait()
    bad = out[: job.bytes].cuda()
    bad[-1] ^= 1
    with pytest.raises(strait.DataError) as raised:
        codec.decode(bad, back).wait()
    assert raised.value.failed_pages == [PAGES - 1]
    with pytest.raises(strait.CodebookError):
        codec.decode(torch.frombuffer(bytearray(strait.encode(bits(values), strait.calibrate(bits(values)))),
                                      dtype=torch.uint8).cuda(), back).wait()  # fmt: skip


def test_errors(kv, book, codec):
    values = kv["k", 1]
    out = room(values)
    for wrong, error in [
        (lambda: codec.encode(values.cpu(), out), TypeError),
        (lambda: codec.encode(values, out.cpu()), TypeError),
        (lambda: codec.encode(values.float(), out), TypeError),
        (lambda: codec.encode(values, out[2:]), ValueError),
        (lambda: codec.encode(values.transpose(1, 2), out), ValueError),
        (lambda: codec.encode(cuda.PageList(values.transpose(2, 3)), out), ValueError),
        (lambda: codec.encode(values, out[:100]), strait.NoSpaceError),
        (lambda: strait.encode(values, book), TypeError),
    ]:
        with pytest.raises(error):
            wrong()
    with pytest.raises(strait.PageIdError) as raised:
        codec.encode(cuda.PageList(values, [1, PAGES]), out).wait()
    assert raised.value.failed_pages == [1]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), pytest.raises(strait.InvalidError, match="graph"):
        codec.encode(values, out)
    if torch.cuda.device_count() > 1:
        with pytest.raises(strait.InvalidError, match="GPU 1"):
            codec.encode(values.to("cuda:1"), out)


def test_another_gpu(kv, book):
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    codec, values = cuda.Codec(book, device=1), kv["k", 2].to("cuda:1")
    out = torch.empty(cuda.encode_bound(values), dtype=torch.uint8, device="cuda:1")
    job = codec.encode(values, out)  # the current device is 0
    job.wait()
    assert chunk_of(out, job) == strait.encode(bits(values), book)
    assert torch.cuda.current_device() == 0


@pytest.mark.parametrize("name", ["cupy", "jax"])
def test_other_libraries(name, book, codec):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    values = np.random.default_rng(1).standard_normal((40, 4096), np.float32)
    if name == "cupy":
        import cupy

        array = cupy.asarray(values)
    else:
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        import jax

        array = jax.device_put(values)
    out = torch.empty(strait.encode_bound(values, page_bytes=4096), dtype=torch.uint8, device="cuda")
    job = codec.encode(array, out, element="fp32", page_bytes=4096)
    job.wait()
    assert chunk_of(out, job) == strait.encode(values, book, element="fp32", page_bytes=4096)


# ---- Transfers ------------------------------------------------------------------------------------------------------


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
        client = service.Client(embedded="arena-bytes = 64M\nsend-bytes = 32M\n")
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
