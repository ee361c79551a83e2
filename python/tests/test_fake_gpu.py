"""strait.cuda with the fake driver in place of the real one: all but what only a GPU can tell (test_gpu.py)."""

import fake_gpu
import numpy as np
import pytest
from conftest import values_like_kv
from fake_gpu import Stream, Tensor, pinned, zeros

import strait

if fake_gpu.driver is None:
    pytest.skip("libcuda.so.1 is not the fake one", allow_module_level=True)

from fake_pools import SHAPE, kv, on_host, pools, room

from strait import cuda

MODES = ["auto", "raw", "top16", "tiered", "base", "split"]


@pytest.fixture(scope="module")
def codec(codebook):
    return cuda.Codec(codebook)


# ---- There and back -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_chunks_are_those_of_the_host(mode, codec, codebook):
    source, sink = pools(), pools(fill=False)
    pages = cuda.PageList(source, [5, 40, 7])
    out = room(pages)
    stats, expected = strait.Stats(), strait.Stats()
    job = codec.encode(pages, out, mode=mode, stats=stats)
    (outcome,) = job.wait()
    chunk = strait.encode(strait.PageList(on_host(source), [5, 40, 7]), codebook, mode=mode, stats=expected)
    assert out.values[: job.bytes].tobytes() == chunk
    assert outcome.status == strait.Status.OK and not outcome.failed_pages and outcome.values == expected.values
    assert (stats.raw_bytes, stats.chunk_bytes, stats.ratio) == (pages.nbytes, len(chunk), expected.ratio)
    assert (stats.table_values == expected.table_values).all() and (stats.table_escapes == expected.table_escapes).all()
    back = codec.decode(out[: job.bytes], cuda.PageList(sink, [0, 1, 2]), stats=stats)
    assert back.wait()[0].bytes == pages.nbytes == stats.raw_bytes and stats.chunk_bytes == len(chunk)
    for cls in source:
        assert (sink[cls].values[:3] == source[cls].values[[5, 40, 7]]).all()
        assert not sink[cls].values[3:].any()


@pytest.mark.parametrize("size", [1, 2, 17, 16384, 16385, 100001])
def test_arrays_are_cut_into_pages(size, codec, codebook):
    values = values_like_kv((size + 1) // 2).view(np.uint8)[:size].copy()
    tensor, back = Tensor(values, "uint8"), zeros(size, "uint8")
    for page_bytes in (32768, 4096):
        out = room(tensor, page_bytes=page_bytes)
        job = codec.encode(tensor, out, page_bytes=page_bytes)
        job.wait()
        assert out.values[: job.bytes].tobytes() == strait.encode(values, codebook, page_bytes=page_bytes)
        codec.decode(out[: job.bytes], back, page_bytes=page_bytes).wait()
        assert (back.values == values).all()


def test_strided_pages_and_elements(codec, codebook):
    source, sink = Tensor(kv()), zeros(SHAPE)
    part = cuda.PageList(source[:, :, 1], [9, 3])
    out = room(part)
    job = codec.encode(part, out)
    job.wait()
    assert out.values[: job.bytes].tobytes() == strait.encode(strait.PageList(source.values[:, :, 1], [9, 3]), codebook)
    codec.decode(out[: job.bytes], cuda.PageList(sink[:, :, 2], [60, 61])).wait()
    assert (sink.values[60:62, :, 2] == source.values[[9, 3], :, 1]).all()
    half = Tensor(np.arange(4096, dtype=np.float16), "float16")
    out = room(half)
    job = codec.encode(half, out, element="fp16")
    job.wait()
    assert strait.info(out.values[: job.bytes]).element == "fp16"


def test_a_batch_is_one_launch(codec, codebook, control):
    source, sink = pools(1), pools(1, fill=False)
    pages = cuda.PageList(source)
    lists = [pages.with_ids([i, 2 * i + 20]) for i in range(10)]
    outs = [room(each) for each in lists]
    launches = control.launches
    job = codec.encode_batch(zip(lists, outs))
    outcomes = job.wait()
    assert control.launches == launches + 1
    chunks = [out[: outcome.bytes] for out, outcome in zip(outs, outcomes)]
    for i, chunk in enumerate(chunks):
        expected = strait.encode(strait.PageList(on_host(source), [i, 2 * i + 20]), codebook)
        assert chunk.values.tobytes() == expected
    into = cuda.PageList(sink)
    codec.decode_batch([(chunk, into.with_ids([2 * i, 2 * i + 1])) for i, chunk in enumerate(chunks)]).wait()
    assert control.launches == launches + 2
    for i in range(10):
        assert (sink["k", 0].values[2 * i : 2 * i + 2] == source["k", 0].values[[i, 2 * i + 20]]).all()
    with pytest.raises(ValueError, match="have 10 outcomes"):
        _ = job.bytes


def test_ids_and_select_may_be_on_the_device(codec, codebook):
    source, sink = Tensor(kv()), zeros(SHAPE)
    ids = Tensor(np.array([4, 60, 8], np.int32), "int32")
    pages = cuda.PageList(source, ids)
    out = room(pages)
    job = codec.encode(pages, out)
    job.wait()
    assert out.values[: job.bytes].tobytes() == strait.encode(strait.PageList(source.values, [4, 60, 8]), codebook)
    into = cuda.PageList(sink, [1, 2])
    codec.decode(out[: job.bytes], into, select=Tensor(np.array([2, 0], np.uint32), "uint32")).wait()
    assert (sink.values[[1, 2]] == source.values[[8, 4]]).all()
    codec.decode(out[: job.bytes], into, select=[1, 1]).wait()
    assert (sink.values[[1, 2]] == source.values[[60, 60]]).all()
    with pytest.raises(TypeError, match="memory of the GPU"):
        pages.locate(0)


def test_chunks_and_results_may_be_pinned(codec, codebook):
    source = Tensor(kv())
    bound = cuda.encode_bound(source)
    out, results = pinned(bound), zeros(64, "uint8")
    job = codec.encode(source, out, results=results)
    (outcome,) = job.wait()
    assert out[: job.bytes].tobytes() == strait.encode(source.values, codebook)
    assert results.values[:8].view(np.uint64)[0] == job.bytes == outcome.bytes
    back = zeros(SHAPE)
    codec.decode(out[: job.bytes], back).wait()
    assert (back.values == source.values).all()


def test_older_capsules_and_addresses(codec, codebook):
    old = Tensor(kv())
    old.versioned = False
    out = room(old)
    job = codec.encode(old, out)
    job.wait()
    expected = strait.encode(old.values, codebook)
    assert out.values[: job.bytes].tobytes() == expected
    address = cuda.Array(old.values.ctypes.data, SHAPE, dtype="bfloat16", owner=old)
    assert address.device == 0 and repr(address) == f"<strait.cuda.Array bfloat16 {list(SHAPE)} on GPU 0>"
    job = codec.encode(address, cuda.Array(out.values.ctypes.data, out.values.nbytes))
    job.wait()
    assert out.values[: job.bytes].tobytes() == expected


@pytest.mark.parametrize("mode", ["raw", "base"])
def test_a_codec_without_codebook(mode):
    codec, source = cuda.Codec(None), Tensor(kv())
    out = room(source)
    job = codec.encode(source, out, mode=mode)
    job.wait()
    assert out.values[: job.bytes].tobytes() == strait.encode(source.values, None, mode=mode)
    assert (job.bytes < source.values.nbytes) == (mode == "base")
    with pytest.raises(ValueError, match="needs a codebook"):
        codec.encode(source, out)
    job = codec.encode(source, out, mode=mode)
    back = zeros(SHAPE)
    codec.decode(out[: job.wait()[0].bytes], back).wait()
    assert (back.values == source.values).all()


# ---- What goes wrong ------------------------------------------------------------------------------------------------


def test_damaged_chunks_are_told_as_on_the_host(codec, codebook):
    values, back = values_like_kv(80000), zeros(80000)
    chunk = bytearray(strait.encode(values, codebook, page_bytes=4096))
    good = bytes(chunk)
    chunk[-1] ^= 1
    for bytes_, error in [
        (bytes(chunk), strait.DataError),
        (good[:-1], strait.TruncatedError),
        (b"no chunk" * 100, strait.CorruptError),
        (strait.encode(values, strait.calibrate(values), page_bytes=4096), strait.CodebookError),
    ]:
        with pytest.raises(error) as expected:
            strait.decode(bytes_, codebook, np.zeros(80000, np.uint16))
        job = codec.decode(Tensor(np.frombuffer(bytes_, np.uint8), "uint8"), back, page_bytes=4096)
        with pytest.raises(error) as raised:
            job.wait()
        assert type(raised.value) is type(expected.value) and raised.value.status == expected.value.status
        assert raised.value.failed_pages == expected.value.failed_pages
        assert job.wait(check=False)[0].status == raised.value.status
    outcomes = codec.decode_batch(
        [(Tensor(np.frombuffer(each, np.uint8), "uint8"), zeros(80000)) for each in (good, bytes(chunk), good)],
        page_bytes=4096,
    ).wait(check=False)
    assert [outcome.status == 0 for outcome in outcomes] == [True, False, True]
    assert outcomes[1].failed_pages == [39] and outcomes[1].bytes == 39 * 4096
    with pytest.raises(strait.DataError, match="item 1"):
        codec.decode_batch(
            [(Tensor(np.frombuffer(each, np.uint8), "uint8"), zeros(80000)) for each in (good, bytes(chunk))],
            page_bytes=4096,
        ).wait()


def test_ids_that_are_out_of_range_fail(codec):
    source = Tensor(kv())
    pages = cuda.PageList(source, [1, 64, 2])
    job = codec.encode(pages, room(source))
    with pytest.raises(strait.PageIdError) as raised:
        job.wait()
    assert raised.value.failed_pages == [1]


def test_arguments_are_checked_before_anything_is_queued(codec, codebook, control):
    source, out = Tensor(kv()), zeros(1 << 20, "uint8")
    readonly = Tensor(kv())
    readonly.readonly = True
    unknown = Tensor(np.zeros(64, np.uint16), (4, 8))
    launches = control.launches
    for wrong, error, match in [
        (lambda: codec.encode(kv(), out), TypeError, "not in memory of a GPU"),
        (lambda: codec.encode(strait.PageList(kv()), out), TypeError, "memory of the host"),
        (lambda: codec.encode(source, np.zeros(1 << 20, np.uint8)), TypeError, "pageable"),
        (lambda: codec.encode(source, out[8:]), ValueError, "no multiple of 16"),
        (lambda: codec.encode(source, out[:1000]), strait.NoSpaceError, "out has 1000 bytes"),
        (lambda: codec.encode(source, out[::2]), ValueError, "not contiguous"),
        (lambda: codec.encode(source[:, ::2], out), ValueError, "not contiguous"),
        (lambda: codec.encode(source, readonly), ValueError, "read-only"),
        (lambda: codec.encode(source, out, element="fp32"), TypeError, "does not hold fp32"),
        (lambda: codec.encode(unknown, out), TypeError, "DLPack type 4, 8 bits"),
        (lambda: codec.encode(source, out, mode="zip"), ValueError, "zip"),
        (lambda: codec.encode(source, out, table=99), strait.CodebookError, None),
        (lambda: codec.encode(source, out, stream="s"), TypeError, "no stream"),
        (lambda: codec.encode(source, out, stream=-3), strait.InvalidError, "no stream"),
        (lambda: codec.encode(source, out, results=out[4:]), ValueError, "8-byte aligned"),
        (lambda: codec.encode_batch([]), ValueError, "empty"),
        (lambda: codec.encode_batch([(source, out), (source, out)]), ValueError, "same memory"),
        (lambda: codec.decode(out, cuda.PageList(readonly)), ValueError, "read-only"),
        (lambda: codec.decode(out, cuda.PageList(source, [1, 1])), ValueError, "twice"),
        (lambda: codec.decode(out, source, element="fp32"), TypeError, "fp32"),
        (lambda: codec.decode(out, cuda.PageList(source, [1]), select=[1, 2]), ValueError, "names 2 pages"),
        (lambda: strait.encode(cuda.PageList(source), codebook), TypeError, r"strait\.cuda"),
        (lambda: strait.decode(b"", codebook, cuda.PageList(source)), strait.DataError, None),
        (lambda: cuda.Array(kv().ctypes.data, 16), TypeError, "neither in memory of a GPU"),
        (lambda: cuda.Array(source.values.ctypes.data, 16, dtype="bf16"), TypeError, "bfloat16"),
    ]:
        with pytest.raises(error, match=match):
            wrong()
    assert control.launches == launches


def test_devices_must_be_the_same(codec, codebook):
    here, there = Tensor(kv()), Tensor(kv(), device=1)
    out = room(here)
    with pytest.raises(strait.InvalidError, match="item 0: pages is on GPU 1, the codec on GPU 0"):
        codec.encode(there, out)
    with pytest.raises(strait.InvalidError, match="item 0: out is on GPU 1"):
        codec.encode(here, zeros(1 << 20, "uint8", device=1))
    with pytest.raises(strait.InvalidError, match="pool 1 is on GPU 1, pool 0 on GPU 0"):
        cuda.PageList([here, there])
    with pytest.raises(strait.InvalidError, match="not of GPU 0"):
        codec.encode(here, out, stream=Stream(1))
    with pytest.raises(strait.DeviceError, match="no GPU 2"):
        cuda.Codec(codebook, device=2)
    other = cuda.Codec(codebook, device=1)
    far = zeros(1 << 20, "uint8", device=1)
    job = other.encode(there, far)
    job.wait()
    assert far.values[: job.bytes].tobytes() == strait.encode(there.values, codebook)


def test_a_stream_that_is_captured_is_refused(codec, control):
    source = Tensor(kv())
    control.capturing = 1
    with pytest.raises(strait.InvalidError, match="graph"):
        codec.encode(source, room(source))


def test_a_launch_that_fails_is_told_and_harms_nothing(codebook, control):
    codec, source = cuda.Codec(codebook), Tensor(kv())
    pages = cuda.PageList(source, [3, 1])  # ids that are to be placed: the first call that fails
    out = room(pages)
    for _ in range(2):
        control.fail = 1
        with pytest.raises(strait.DeviceError):
            codec.encode(pages, out)
        job = codec.encode(pages, out)
        job.wait()
        assert out.values[: job.bytes].tobytes() == strait.encode(strait.PageList(source.values, [3, 1]), codebook)
    control.fail = 1
    with pytest.raises(strait.DeviceError):
        codec.encode(source, room(source))
    codec.encode(source, room(source)).wait()


def test_availability():
    assert cuda.available() and cuda.device_count() == 2
    for name in cuda.__all__:
        assert getattr(cuda, name).__doc__, name
