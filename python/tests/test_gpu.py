"""strait.cuda: the codec on GPUs (gpus.py), beside the host's."""

import contextlib
import gc
import importlib.util
import os
import sys
import weakref

import numpy as np
import pytest
from conftest import values_like_kv
from gpus import Interface, Tensor, until

import strait
from strait import cuda
from strait.cuda.codec import reap

MODES = ["auto", "raw", "top16", "tiered", "base", "split"]
SHAPE = (64, 16, 4, 32)  # pages, tokens, heads, values: 4 KiB


def kv(seed=0):
    return values_like_kv(int(np.prod(SHAPE)), seed=seed).reshape(SHAPE)


def pools(layers=3):
    """Values by class."""
    return {(role, layer): kv(2 * layer + i) for layer in range(layers) for i, role in enumerate("kv")}


@pytest.fixture(scope="module")
def codec(codebook, gpu):
    return cuda.Codec(codebook)


@pytest.fixture
def put(gpu):
    """Values to GPU 0."""

    def put(values, dtype="bfloat16"):
        if isinstance(values, dict):
            return {cls: gpu.tensor(each) for cls, each in values.items()}
        return gpu.tensor(values, dtype)

    return put


@pytest.fixture
def room(gpu):
    return lambda pages, **how: gpu.tensor(np.zeros(cuda.encode_bound(pages, **how), np.uint8), "uint8")


@pytest.fixture
def chunk_of(gpu):
    """The chunk that a job has made, when it is over."""

    def chunk_of(job):
        job.wait()
        return gpu.values(job.chunk).tobytes()

    return chunk_of


def reap_all():
    for _ in range(100):
        reap()


# ---- There and back -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_chunks_are_those_of_the_host(mode, gpu, codec, codebook, put, room):
    source = pools()
    sink = put({cls: np.zeros(SHAPE, np.uint16) for cls in source})
    pages = cuda.PageList(put(source), [5, 40, 7])
    out, stats, expected = room(pages), strait.Stats(), strait.Stats()
    job = codec.encode(pages, out, mode=mode, stats=stats)
    (outcome,) = job.wait()
    chunk = strait.encode(strait.PageList(source, [5, 40, 7]), codebook, mode=mode, stats=expected)
    assert gpu.values(job.chunk).tobytes() == chunk and job.outs == [out]
    assert outcome.status == strait.Status.OK and not outcome.failed_pages and outcome.values == expected.values
    assert (stats.raw_bytes, stats.chunk_bytes, stats.ratio) == (pages.nbytes, len(chunk), expected.ratio)
    assert (stats.table_values == expected.table_values).all() and (stats.table_escapes == expected.table_escapes).all()
    back = codec.decode(job.chunk, cuda.PageList(sink, [0, 1, 2]), stats=stats)
    assert back.wait()[0].bytes == pages.nbytes == stats.raw_bytes and stats.chunk_bytes == len(chunk)
    for cls in source:
        got = gpu.values(sink[cls])
        assert (got[:3] == source[cls][[5, 40, 7]]).all() and not got[3:].any()


@pytest.mark.parametrize("size", [1, 2, 17, 16384, 16385, 100001])
def test_arrays_are_cut_into_pages(size, gpu, codec, codebook, put, room, chunk_of):
    values = values_like_kv((size + 1) // 2).view(np.uint8)[:size].copy()
    tensor, back = put(values, "uint8"), put(np.zeros(size, np.uint8), "uint8")
    for page_bytes in (32768, 4096):
        job = codec.encode(tensor, room(tensor, page_bytes=page_bytes), page_bytes=page_bytes)
        assert chunk_of(job) == strait.encode(values, codebook, page_bytes=page_bytes)
        codec.decode(job.chunk, back, page_bytes=page_bytes).wait()
        assert (gpu.values(back) == values).all()


def test_strided_pages_and_elements(gpu, codec, codebook, put, chunk_of):
    source, sink = put(kv()), put(np.zeros(SHAPE, np.uint16))
    job = codec.encode(cuda.PageList(source[:, :, 1], [9, 3]))
    assert chunk_of(job) == strait.encode(strait.PageList(kv()[:, :, 1], [9, 3]), codebook)
    codec.decode(job.chunk, cuda.PageList(sink[:, :, 2], [60, 61])).wait()
    assert (gpu.values(sink)[60:62, :, 2] == kv()[[9, 3], :, 1]).all()
    half = np.arange(4096, dtype=np.float16)
    assert chunk_of(codec.encode(put(half, "float16"), element="fp16")) == strait.encode(half, codebook, element="fp16")


def test_a_batch_is_one_launch(gpu, codec, codebook, put, room):
    source = pools(1)
    sink = put({cls: np.zeros(SHAPE, np.uint16) for cls in source})
    pages, into = cuda.PageList(put(source)), cuda.PageList(sink)
    lists = [pages.with_ids([i, 2 * i + 20]) for i in range(10)]
    launches = gpu.control and gpu.control.launches
    job = codec.encode_batch([(each, room(each) if i else None) for i, each in enumerate(lists)])
    chunks = [out[: outcome.bytes] for out, outcome in zip(job.outs, job.wait())]
    for i, chunk in enumerate(chunks):
        expected = strait.encode(strait.PageList(source, [i, 2 * i + 20]), codebook)
        assert gpu.values(chunk).tobytes() == expected
    codec.decode_batch([(chunk, into.with_ids([2 * i, 2 * i + 1])) for i, chunk in enumerate(chunks)]).wait()
    assert gpu.control is None or gpu.control.launches == launches + 2
    for i in range(10):
        assert (gpu.values(sink["k", 0])[2 * i : 2 * i + 2] == source["k", 0][[i, 2 * i + 20]]).all()
    with pytest.raises(ValueError, match="have 10 outcomes"):
        _ = job.bytes


def test_ids_and_select_may_be_on_the_device(gpu, codec, codebook, put, chunk_of):
    ids, sink = put(np.array([4, 60, 8], np.int32), "int32"), put(np.zeros(SHAPE, np.uint16))
    pages = cuda.PageList(put(kv()), ids)
    assert pages.ids is ids and len(pages) == 3
    job = codec.encode(pages)
    assert chunk_of(job) == strait.encode(strait.PageList(kv(), [4, 60, 8]), codebook)
    into = cuda.PageList(sink, [1, 2])
    codec.decode(job.chunk, into, select=put(np.array([2, 0], np.int32), "int32")).wait()
    assert (gpu.values(sink)[[1, 2]] == kv()[[8, 4]]).all()
    codec.decode(job.chunk, into, select=[1, 1]).wait()
    assert (gpu.values(sink)[[1, 2]] == kv()[[60, 60]]).all()
    with pytest.raises(TypeError, match="memory of the GPU"):
        pages.locate(0)


def test_chunks_and_results_may_be_pinned(gpu, codec, codebook, put):
    source, back, results = put(kv()), put(np.zeros(SHAPE, np.uint16)), put(np.zeros(64, np.uint8), "uint8")
    out = gpu.pinned(cuda.encode_bound(source))
    job = codec.encode(source, out, results=results)
    (outcome,) = job.wait()
    assert out[: job.bytes].tobytes() == strait.encode(kv(), codebook)
    assert gpu.values(results)[:8].view(np.uint64)[0] == job.bytes == outcome.bytes
    codec.decode(out[: job.bytes], back).wait()
    assert (gpu.values(back) == kv()).all()


@pytest.mark.parametrize("typestr", ["<u2", "<V2"])  # torch and ml_dtypes name bfloat16 by the latter
def test_memory_by_its_address(typestr, gpu, codec, codebook, put, chunk_of):
    source, own = put(kv()), cuda.alloc(1 << 20)
    array = Interface(source, source.data_ptr(), SHAPE, typestr, strides=None)
    assert chunk_of(codec.encode(array)) == strait.encode(kv(), codebook)
    strided = Interface(source, source.data_ptr(), (64, 32), typestr, strides=(4096, 2))
    job = codec.encode(cuda.PageList(strided), own)
    job.wait()
    back = put(np.zeros((64, 32), np.uint16))
    part = Interface(own, own.__cuda_array_interface__["data"][0], (job.bytes,), "|u1")
    codec.decode(part, cuda.PageList(back)).wait()
    assert (gpu.values(back) == kv()[:, 0, 0]).all()


def test_older_capsules_are_read(codec, codebook, control):
    old = Tensor(kv())
    old.versioned = False
    job = codec.encode(old, Tensor(np.zeros(1 << 20, np.uint8), "uint8"))
    job.wait()
    assert job.chunk.values.tobytes() == strait.encode(kv(), codebook)


@pytest.mark.parametrize("mode", ["raw", "base"])
def test_a_codec_without_codebook(mode, gpu, put, chunk_of):
    codec, source, back = cuda.Codec(None), put(kv()), put(np.zeros(SHAPE, np.uint16))
    job = codec.encode(source, mode=mode)
    assert chunk_of(job) == strait.encode(kv(), None, mode=mode)
    assert (job.bytes < kv().nbytes) == (mode == "base")
    with pytest.raises(ValueError, match="needs a codebook"):
        codec.encode(source, mode="tiered")
    codec.decode(job.chunk, back).wait()
    assert (gpu.values(back) == kv()).all()


def test_without_a_library_out_has_to_be_given(codec, monkeypatch, control):
    source = Tensor(kv())
    for name in ("torch", "cupy"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(TypeError, match="neither torch nor cupy"):
        codec.encode(source)
    codec.encode(source, Tensor(np.zeros(1 << 20, np.uint8), "uint8")).wait()


@pytest.mark.parametrize("name", ["cupy", "jax"])
def test_other_libraries(name, gpu, codebook, codec, chunk_of):
    if gpu.control is not None or importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed, or the GPU is none")
    values = np.random.default_rng(1).standard_normal((40, 4096), np.float32)
    if name == "cupy":
        import cupy

        array = cupy.asarray(values)
    else:
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        import jax

        array = jax.device_put(values)
    out = gpu.tensor(np.zeros(strait.encode_bound(values, page_bytes=4096), np.uint8), "uint8")
    job = codec.encode(array, out, element="fp32", page_bytes=4096)
    assert chunk_of(job) == strait.encode(values, codebook, element="fp32", page_bytes=4096)


# ---- What goes wrong ------------------------------------------------------------------------------------------------


def test_damaged_chunks_are_told_as_on_the_host(codec, codebook, put):
    values, back = values_like_kv(80000), put(np.zeros(80000, np.uint16))
    chunk = bytearray(strait.encode(values, codebook, page_bytes=4096))
    good = bytes(chunk)
    chunk[-1] ^= 1

    def on_gpu(content):
        return put(np.frombuffer(content, np.uint8), "uint8")

    for content, error in [
        (bytes(chunk), strait.DataError),
        (good[:-1], strait.TruncatedError),
        (b"no chunk" * 100, strait.CorruptError),
        (strait.encode(values, strait.calibrate(values), page_bytes=4096), strait.CodebookError),
    ]:
        with pytest.raises(error) as expected:
            strait.decode(content, codebook, np.zeros(80000, np.uint16))
        job = codec.decode(on_gpu(content), back, page_bytes=4096)
        with pytest.raises(error) as raised:
            job.wait()
        assert type(raised.value) is type(expected.value) and raised.value.status == expected.value.status
        assert raised.value.failed_pages == expected.value.failed_pages
        assert job.wait(check=False)[0].status == raised.value.status
    items = [(on_gpu(each), put(np.zeros(80000, np.uint16))) for each in (good, bytes(chunk), good)]
    job = codec.decode_batch(items, page_bytes=4096)
    outcomes = job.wait(check=False)
    assert [outcome.status == 0 for outcome in outcomes] == [True, False, True]
    assert outcomes[1].failed_pages == [39] and outcomes[1].bytes == 39 * 4096
    with pytest.raises(strait.DataError, match="item 1"):
        job.wait()


# ---- Chunks that others write to ------------------------------------------------------------------------------------


class Between:
    """The library, which lets others at the chunk between the copy of its metadata and the kernels."""

    def __init__(self, library, stream_of, action):
        self._library, self._stream_of, self._action, self.items = library, stream_of, action, []

    def __getattr__(self, name):
        return getattr(self._library, name)

    def strait_decode_batch(self, variant, book, items, count, run):
        self._stream_of(run)
        self.items = [(item.metadata, item.metadata_size, item.src) for item in items]
        self._action()
        return self._library.strait_decode_batch(variant, book, items, count, run)


@pytest.fixture
def between(gpu, monkeypatch):
    from strait.cuda import _driver
    from strait.cuda import codec as module

    def between(action):
        library = Between(module.lib, lambda run: _driver.call("cuStreamSynchronize", run.stream), action)
        monkeypatch.setattr(module, "lib", library)
        return library

    return between


@pytest.mark.parametrize("page_bytes", [16, 4096, 40000])
@pytest.mark.parametrize("pinned", [False, True])
def test_metadata_that_changes_is_not_looked_at(page_bytes, pinned, gpu, codec, codebook, put, between):
    values = values_like_kv(30000)
    chunk = np.frombuffer(strait.encode(values, codebook, page_bytes=page_bytes), np.uint8)
    size = strait.info(chunk).metadata_bytes
    if pinned:
        there = gpu.pinned(len(chunk))
        there[:] = chunk
    else:
        there = put(chunk, "uint8")
    noise = np.random.default_rng(page_bytes).integers(0, 256, size, np.uint8)

    def spoil():
        if pinned:
            there[:size] = noise
        else:
            gpu.fill(there[:size], noise)

    library = between(spoil)
    back = put(np.zeros(30000, np.uint16))
    job = codec.decode(there, back, page_bytes=page_bytes)
    assert job.wait()[0].bytes == 60000 and (gpu.values(back) == values).all()
    ((copy, copied, source),) = library.items
    assert copied >= size and copied % 16 == 0 and not source <= copy < source + len(chunk)


def test_metadata_of_selected_pages_is_copied(gpu, codec, codebook, put, between):
    values = values_like_kv(1 << 18)
    chunk = np.frombuffer(strait.encode(values, codebook, page_bytes=4096), np.uint8)
    size, there = strait.info(chunk).metadata_bytes, put(chunk, "uint8")
    library = between(lambda: gpu.fill(there[:size], np.full(size, 255, np.uint8)))
    back = put(np.zeros((2, 2048), np.uint16))
    codec.decode(there, cuda.PageList(back), select=[100, 3]).wait()
    assert (gpu.values(back) == values.reshape(-1, 2048)[[100, 3]]).all() and library.items[0][1] >= size


def test_a_copy_that_is_too_short_is_passed_over(gpu, codec, codebook, put, between):
    """Metadata that takes more of the chunk than is copied, of many pages of 16 bytes, or of more pages than listed."""
    values = values_like_kv(1 << 16)
    chunk = strait.encode(values, codebook, page_bytes=16)
    library = between(lambda: None)
    back = put(np.zeros((2, 8), np.uint16))
    codec.decode(put(np.frombuffer(chunk, np.uint8), "uint8"), cuda.PageList(back), select=[7000, 3]).wait()
    assert (gpu.values(back) == values.reshape(-1, 8)[[7000, 3]]).all()
    assert 0 < library.items[0][1] < strait.info(chunk).metadata_bytes
    job = codec.decode(put(np.frombuffer(chunk, np.uint8), "uint8"), cuda.PageList(back))
    with pytest.raises(strait.InvalidError):
        job.wait()


@pytest.mark.usefixtures("nothing_queued")
def test_memory_of_chunk_and_pages_must_not_overlap(gpu, codec, codebook, put):
    chunk = np.frombuffer(strait.encode(values_like_kv(1 << 14), codebook, page_bytes=4096), np.uint8)
    length = len(chunk) // 16 * 16
    memory = put(np.zeros(1 << 18, np.uint8), "uint8")
    there, pages = memory[1 << 16 : (1 << 16) + length], memory[1 << 16 : (1 << 16) + (1 << 15)]
    rows = put(np.zeros((64, 4096), np.uint8), "uint8")
    ids = put(np.array([1, 2], np.int32), "int32")
    for wrong in [
        lambda: codec.decode(there, pages),
        lambda: codec.decode(there, memory[(1 << 16) - (1 << 15) + 16 : (1 << 16) + 16]),
        lambda: codec.decode(there, memory[(1 << 16) + length - 16 : (1 << 16) + length - 16 + (1 << 15)]),
        lambda: codec.decode(rows[3], cuda.PageList(rows, [5, 3])),
        lambda: codec.decode(rows[3], cuda.PageList(rows, ids)),
    ]:
        with pytest.raises(ValueError, match="overlap"):
            wrong()
    with pytest.raises(ValueError, match="overlap"):
        codec.encode(memory[: 1 << 14], memory[(1 << 14) - 16 : 1 << 16])


def test_a_chunk_between_the_pages_of_a_pool_is_decoded(gpu, codec, codebook, put):
    values = values_like_kv(2 * 2048)
    chunk = np.frombuffer(strait.encode(values, codebook, page_bytes=4096), np.uint8)
    rows = np.zeros((8, 8192), np.uint8)
    rows[2, : len(chunk)] = chunk
    rows = put(rows, "uint8")
    codec.decode(rows[2][: len(chunk)], cuda.PageList(rows[:, :4096], [7, 0])).wait()
    got = gpu.values(rows)[:, :4096]
    assert (np.concatenate([got[7], got[0]]).view(np.uint16) == values).all()


def test_ids_that_are_out_of_range_fail(codec, put, room):
    job = codec.encode(cuda.PageList(put(kv()), [1, 64, 2]))
    with pytest.raises(strait.PageIdError) as raised:
        job.wait()
    assert raised.value.failed_pages == [1]


@pytest.fixture
def nothing_queued(gpu):
    launches = gpu.control and gpu.control.launches
    yield
    assert gpu.control is None or gpu.control.launches == launches


@pytest.mark.usefixtures("nothing_queued")
def test_arguments_are_checked_before_anything_is_queued(gpu, codec, codebook, put):
    source, out = put(kv()), put(np.zeros(1 << 20, np.uint8), "uint8")
    wide = put(np.zeros(64, np.float32), "float32")
    for wrong, error, match in [
        (lambda: codec.encode(kv(), out), TypeError, "not in memory of a GPU"),
        (lambda: codec.encode([1, 2], out), TypeError, "not in memory of a GPU"),
        (lambda: codec.encode(strait.PageList(kv()), out), TypeError, "memory of the host"),
        (lambda: codec.encode(source, np.zeros(1 << 20, np.uint8)), TypeError, "pageable"),
        (lambda: codec.encode(Interface(kv, kv().ctypes.data, SHAPE), out), TypeError, "no memory of a GPU"),
        (lambda: codec.encode(source, out[8:]), ValueError, "no multiple of 16"),
        (lambda: codec.encode(source, out[:1000]), strait.NoSpaceError, "out has 1000 bytes"),
        (lambda: codec.encode(source, out[::2]), ValueError, "not contiguous"),
        (lambda: codec.encode(source[:, ::2], out), ValueError, "not contiguous"),
        (lambda: codec.encode(source, out, element="fp32"), TypeError, "does not hold fp32"),
        (lambda: codec.encode(wide, out), TypeError, "float32, which does not hold bf16"),
        (lambda: codec.encode(source, out, mode="zip"), ValueError, "zip"),
        (lambda: codec.encode(source, out, table=99), strait.CodebookError, None),
        (lambda: codec.encode(source, out, stream="s"), TypeError, "no stream"),
        (lambda: codec.encode(source, out, stream=-3), strait.InvalidError, "no stream"),
        (lambda: codec.encode(source, out, results=out[4:]), ValueError, "no multiple of 8"),
        (lambda: codec.encode(source, out, results=out[:56]), strait.NoSpaceError, "results has 56 bytes"),
        (lambda: codec.encode_batch([]), ValueError, "empty"),
        (lambda: codec.encode_batch([(source, out), (source, out)]), ValueError, "same memory"),
        (lambda: codec.decode(out, cuda.PageList(source, [1, 1])), ValueError, "twice"),
        (lambda: codec.decode(out, source, element="fp32"), TypeError, "fp32"),
        (lambda: codec.decode(out, cuda.PageList(source, [1]), select=[1, 2]), ValueError, "names 2 pages"),
        (lambda: codec.decode(out, cuda.PageList(source, [1]), select=wide[:1]), TypeError, "int32 or uint32"),
        (lambda: cuda.PageList(source, wide), TypeError, "int32 or uint32"),
        (lambda: strait.encode(cuda.PageList(source), codebook), TypeError, r"strait\.cuda"),
        (lambda: strait.encode(source, codebook), TypeError, r"strait\.cuda"),
        (lambda: strait.decode(b"", codebook, cuda.PageList(source)), strait.DataError, None),
        (lambda: cuda.alloc(0), ValueError, "no memory"),
    ]:
        with pytest.raises(error, match=match):
            wrong()


@pytest.mark.usefixtures("nothing_queued")
def test_what_an_export_says_is_checked(codec, control):
    source, out = Tensor(kv()), Tensor(np.zeros(1 << 20, np.uint8), "uint8")
    readonly, unknown = Tensor(kv()), Tensor(np.zeros(64, np.uint16), (4, 8))
    readonly.readonly = True
    gone = Interface(None, source.data_ptr(), SHAPE)
    for wrong, error, match in [
        (lambda: codec.encode(source, readonly), ValueError, "read-only"),
        (lambda: codec.decode(out, readonly), ValueError, "read-only"),
        (lambda: codec.decode(out, cuda.PageList(readonly)), ValueError, "read-only"),
        (lambda: codec.encode(unknown, out), TypeError, "DLPack type 4, 8 bits"),
        (lambda: source.free() or codec.encode(gone, out), TypeError, "no memory of a GPU, or no longer"),
    ]:
        with pytest.raises(error, match=match):
            wrong()


def test_devices_must_be_the_same(gpu, codec, codebook, put, chunk_of):
    if gpu.devices < 2:
        pytest.skip("there is one GPU")
    here, there, out = put(kv()), gpu.tensor(kv(1), device=1), put(np.zeros(1 << 20, np.uint8), "uint8")
    far = gpu.tensor(np.zeros(1 << 20, np.uint8), "uint8", 1)
    with pytest.raises(strait.InvalidError, match="item 0: pages is on GPU 1, the codec on GPU 0"):
        codec.encode(there, out)
    with pytest.raises(strait.InvalidError, match="item 0: out is on GPU 1"):
        codec.encode(here, far)
    with pytest.raises(strait.InvalidError, match="pool 1 is on GPU 1, pool 0 on GPU 0"):
        cuda.PageList([here, there])
    with pytest.raises(strait.InvalidError, match="ids is on GPU 1"):
        cuda.PageList(here, gpu.tensor(np.array([1], np.int32), "int32", 1))
    with pytest.raises(strait.InvalidError, match="not of GPU 0"):
        codec.encode(here, out, stream=gpu.stream(1))
    with pytest.raises(strait.DeviceError, match=f"no GPU {gpu.devices}"):
        cuda.Codec(codebook, device=gpu.devices)
    other = cuda.Codec(codebook, device=1)
    for given in (far, None):
        assert chunk_of(other.encode(there, given)) == strait.encode(kv(1), codebook)


def test_a_stream_that_is_captured_is_refused(gpu, codec, put, room):
    source = put(kv())
    out = room(source)
    codec.encode(source, out).wait()
    with gpu.capture(), pytest.raises(strait.InvalidError, match="graph"):
        codec.encode(source, out)


def test_a_launch_that_fails_is_told_and_harms_nothing(codebook, control, put, room, chunk_of):
    codec, source = cuda.Codec(codebook), put(kv())
    pages = cuda.PageList(source, [3, 1])  # ids that are to be placed: the first call that fails
    out = room(pages)
    for _ in range(2):
        control.fail = 1
        with pytest.raises(strait.DeviceError):
            codec.encode(pages, out)
        assert chunk_of(codec.encode(pages, out)) == strait.encode(strait.PageList(kv(), [3, 1]), codebook)
    control.fail = 1
    with pytest.raises(strait.DeviceError):
        codec.encode(source)
    codec.encode(source).wait()


def test_availability(gpu):
    assert cuda.available() and cuda.device_count() == gpu.devices
    for name in cuda.__all__:
        assert getattr(cuda, name).__doc__, name


# ---- Streams --------------------------------------------------------------------------------------------------------


def test_the_host_does_not_wait(gpu, codebook, put, room):
    codec, stream, source = cuda.Codec(codebook), gpu.stream(), pools()
    sink = put({cls: np.zeros(SHAPE, np.uint16) for cls in source})
    pages, into = cuda.PageList(put(source), [3]), cuda.PageList(sink, [9])
    out = room(pages)
    codec.decode(codec.encode(pages, out, stream=stream).outs[0], into, stream=stream).wait(check=False)  # made once
    size = len(strait.encode(strait.PageList(source, [3]), codebook))
    reap_all()  # to free memory is to wait, with the fake driver
    gc.collect()
    waited = gpu.control and gpu.control.synchronised
    gpu.slow(stream, 0.3)
    jobs = [codec.encode(pages, out, stream=stream), codec.decode(out[:size], into, stream=stream)]
    assert not any(job.done() for job in jobs)
    assert gpu.control is None or gpu.control.synchronised == waited
    with pytest.raises(strait.AgainError, match="not over"):
        _ = jobs[0].bytes
    gpu.finish(stream)
    assert all(job.done() for job in jobs) and jobs[0].bytes == size and jobs[1].wait()
    assert (gpu.values(sink["v", 2])[9] == source["v", 2][3]).all()


def test_calls_on_several_streams_share_scratch_in_turn(gpu, codebook, put, room, chunk_of):
    codec, streams = cuda.Codec(codebook), [gpu.stream() for _ in range(4)]
    pages = cuda.PageList(put(kv()))
    lists = [pages.with_ids(range(1 + i % 5, 8 + i)) for i in range(24)]
    outs = [room(each) for each in lists]
    for stream in streams:
        gpu.slow(stream, 0.01)
    jobs = [codec.encode(*each, stream=streams[i % 4].cuda_stream) for i, each in enumerate(zip(lists, outs))]
    more = codec.encode(put(kv()), page_bytes=128, stream=streams[1])  # so many pages that scratch grows
    for job, some in zip(jobs, lists):
        assert chunk_of(job) == strait.encode(strait.PageList(kv(), some.ids), codebook)
    assert chunk_of(more) == strait.encode(kv(), codebook, page_bytes=128)


def test_another_stream_can_be_made_to_wait(gpu, codec, codebook, put, room):
    source, back = put(kv()), put(np.zeros(SHAPE, np.uint16))
    first, second = gpu.stream(), gpu.stream()
    out, size = room(source), len(strait.encode(kv(), codebook))
    gpu.slow(first, 0.05)
    codec.encode(source, out, stream=first).hold(second)
    cuda.Codec(codebook).decode(out[:size], back, stream=second).wait()
    assert (gpu.values(back) == kv()).all()
    with pytest.raises(TypeError, match="must be said"):
        codec.encode(source, out).hold(None)


@pytest.mark.parametrize("explicit", [False, True])
def test_work_of_the_sources_library_comes_first(explicit, gpu, codec, codebook, put, room, chunk_of):
    """On the current stream of torch, or on one that waits for it."""
    side, final, source = gpu.stream(), put(kv()), put(np.zeros(SHAPE, np.uint16))
    out = room(source)
    gpu.slow(side)
    gpu.copy(source, final, side)
    with gpu.current(side):
        job = codec.encode(source, out, **({"stream": gpu.stream()} if explicit else {}))
    assert not gpu.is_idle(side) and chunk_of(job) == strait.encode(kv(), codebook)


def test_the_stream_of_an_interface_is_waited_for(gpu, codec, codebook, put):
    side, final, source = gpu.stream(), put(kv()), put(np.zeros(SHAPE, np.uint16))
    gpu.slow(side)
    gpu.copy(source, final, side)
    array = Interface(source, source.data_ptr(), SHAPE, stream=side.cuda_stream)
    job = codec.encode(array, cuda.alloc(1 << 20), stream=gpu.stream())
    assert not gpu.is_idle(side) and job.wait()[0].bytes == len(strait.encode(kv(), codebook))


def test_sources_are_asked_to_order_their_work(gpu, codec, control):
    stream, source, out = gpu.stream(), Tensor(kv()), Tensor(np.zeros(1 << 20, np.uint8), "uint8")
    pages = cuda.PageList(source, [1, 2])
    assert source.asked == [1]  # harmless: not all take -1 for what it means
    codec.encode(pages, out, stream=stream).wait()
    assert source.asked == [1, stream.cuda_stream] and out.asked == [1, stream.cuda_stream]
    codec.encode(pages, out).wait()
    assert source.asked[-1] == 1  # the legacy default stream: these tensors have no current one


# ---- Memory ---------------------------------------------------------------------------------------------------------


def test_memory_is_kept_until_the_call_is_over(gpu, codebook, put, room):
    codec, stream, source = cuda.Codec(codebook), gpu.stream(), put(kv())
    expected = strait.encode(kv(), codebook)
    out, gone = room(source), weakref.ref(source)
    gpu.slow(stream)
    codec.encode(source, out, stream=stream)
    del source, codec
    gc.collect()
    assert gone() is not None
    gpu.finish(stream)
    assert gpu.values(out[: len(expected)]).tobytes() == expected
    reap_all()  # as the next calls do
    gc.collect()
    assert gone() is None


def test_what_codecs_take_they_give_back(codebook, control, put):
    reap_all()
    gc.collect()
    before = (control.device_bytes, control.events, control.streams)
    for _ in range(3):
        codec, source = cuda.Codec(codebook), put(kv())
        codec.encode(source).wait()
    pinned_bytes = control.pinned_bytes
    for _ in range(20):
        codec.encode(source).wait()
    assert control.pinned_bytes == pinned_bytes  # blocks are used again
    del codec, source
    reap_all()
    gc.collect()
    until(lambda: (control.device_bytes, control.events, control.streams) <= before)


def test_a_missing_driver_is_told(monkeypatch):
    from strait.cuda import _driver

    with contextlib.ExitStack() as stack:
        for cached in (_driver._driver, _driver.device_count):
            cached.cache_clear()
            stack.callback(cached.cache_clear)
        monkeypatch.setattr(_driver.ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError(f"no {name}")))
        assert not cuda.available()
        with pytest.raises(strait.DeviceError, match="no usable CUDA driver: no libcuda"):
            cuda.device_count()
