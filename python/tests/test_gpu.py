"""strait.cuda with torch on a real GPU. What needs none is in test_fake_gpu.py."""

import importlib.util
import os
import time

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

from gpu_pages import CLASSES, values_of  # noqa: E402

from strait import cuda  # noqa: E402

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
