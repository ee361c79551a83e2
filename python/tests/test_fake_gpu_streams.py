"""Order of work on the fake driver's streams, and how long its memory is kept."""

import gc
import sys
import types
import weakref

import fake_gpu
import numpy as np
import pytest
from fake_gpu import Stream, Tensor, until, zeros

import strait

if fake_gpu.driver is None:
    pytest.skip("libcuda.so.1 is not the fake one", allow_module_level=True)

from fake_pools import SHAPE, kv, on_host, pools, room

from strait import cuda
from strait.cuda.codec import reap


def reap_all():
    for _ in range(100):
        reap()


@pytest.fixture(scope="module")
def codec(codebook):
    return cuda.Codec(codebook)


# ---- Streams --------------------------------------------------------------------------------------------------------


def test_nothing_waits_on_the_host(codebook, control):
    codec, stream = cuda.Codec(codebook), Stream()
    source, sink = pools(), pools(fill=False)
    reap_all()  # earlier tests' tensors: to free memory is to wait, with this driver
    gc.collect()
    control.delay_us = 20000
    waited = control.synchronised
    pages = cuda.PageList(source, [3])
    out = room(pages)
    size = len(strait.encode(strait.PageList(on_host(source), [3]), codebook))
    jobs = [codec.encode(pages, out, stream=stream), codec.decode(out[:size], cuda.PageList(sink, [9]), stream=stream)]
    assert not any(job.done() for job in jobs) and control.synchronised == waited
    with pytest.raises(strait.AgainError, match="not over"):
        _ = jobs[0].bytes
    stream.finish()
    assert all(job.done() for job in jobs) and jobs[0].bytes == size
    assert (sink["v", 2].values[9] == source["v", 2].values[3]).all()


def test_calls_on_several_streams_share_scratch_in_turn(codebook, control):
    codec, streams = cuda.Codec(codebook), [Stream() for _ in range(4)]
    source = Tensor(kv())
    pages = cuda.PageList(source)
    control.delay_us = 500
    jobs, outs = [], []
    for i in range(24):
        some = pages.with_ids(range(1 + i % 5, 8 + i))  # larger and larger: scratch grows on the way
        outs.append((some, room(some)))
        jobs.append(codec.encode(*outs[-1], stream=streams[i % 4].cuda_stream))
    for job, (some, out) in zip(jobs, outs):
        job.wait()
        expected = strait.encode(strait.PageList(source.values, some.ids), codebook)
        assert out.values[: job.bytes].tobytes() == expected


def test_another_stream_can_be_made_to_wait(codec, codebook, control):
    source, back = Tensor(kv()), zeros(SHAPE)
    first, second = Stream(), Stream()
    out, size = room(source), len(strait.encode(source.values, codebook))
    control.delay_us = 5000
    codec.encode(source, out, stream=first).hold(second)
    cuda.Codec(codebook).decode(out[:size], back, stream=second).wait()
    assert (back.values == source.values).all()


def test_sources_are_asked_to_order_their_work(codec):
    stream, source = Stream(), Tensor(kv())
    pages = cuda.PageList(source, [1, 2])
    assert source.asked == [1]  # harmless: not all take -1 for what it means
    out = room(pages)
    codec.encode(pages, out, stream=stream).wait()
    assert source.asked == [1, stream.cuda_stream] and out.asked == [1, stream.cuda_stream]
    codec.encode(pages, out).wait()
    assert source.asked[-1] == 1  # the legacy default stream: these tensors have no current one


def test_the_current_stream_of_a_library_is_used(codec, monkeypatch):
    current = Stream()
    library = types.SimpleNamespace(cuda=types.SimpleNamespace(current_stream=lambda device: current))
    monkeypatch.setitem(sys.modules, "torch", library)
    torchlike = type("Tensor", (Tensor,), {"detach": lambda self: self})
    torchlike.__module__ = "torch._tensor"
    source, out = torchlike(kv()), torchlike(np.zeros(1 << 20, np.uint8), "uint8")
    first, other = codec.encode(source, out), Stream()
    assert source.asked == [-1]  # it runs where theirs does
    first.wait()
    codec.encode(source, out, stream=other).wait()
    assert source.asked.count(other.cuda_stream) + out.asked.count(other.cuda_stream) == 1  # once for the library


# ---- Memory ---------------------------------------------------------------------------------------------------------


def test_memory_is_kept_until_the_call_is_over(codebook, control):
    codec, stream = cuda.Codec(codebook), Stream()
    source = Tensor(kv())
    expected = strait.encode(source.values, codebook)
    out, gone = room(source), weakref.ref(source)
    control.delay_us = 100000
    codec.encode(source, out, stream=stream)
    del source, codec
    gc.collect()
    assert gone() is not None
    stream.finish()
    assert out.values[: len(expected)].tobytes() == expected
    control.delay_us = 0
    reap_all()  # as the next calls do
    gc.collect()
    assert gone() is None


def test_what_codecs_take_they_give_back(codebook, control):
    gc.collect()
    before = (control.device_bytes, control.events, control.streams)
    for _ in range(3):
        codec, source = cuda.Codec(codebook), Tensor(kv())
        codec.encode(source, room(source)).wait()
    pinned_bytes = control.pinned_bytes
    for _ in range(20):
        codec.encode(source, room(source)).wait()
    assert control.pinned_bytes == pinned_bytes  # blocks are used again
    del codec, source
    reap_all()
    gc.collect()
    until(lambda: (control.device_bytes, control.events, control.streams) <= before)


def test_scratch_may_be_the_callers(codebook, control):
    source = Tensor(kv())
    pages = cuda.PageList(source, range(8))
    size = cuda.Codec(codebook).scratch_size([pages])
    scratch = Tensor(np.full(size, 7, np.uint8), "uint8")
    codec = cuda.Codec(codebook, scratch=scratch)
    out = room(source)
    for _ in range(2):
        job = codec.encode(pages, out)
        job.wait()
        assert out.values[: job.bytes].tobytes() == strait.encode(strait.PageList(source.values, range(8)), codebook)
    with pytest.raises(strait.NoSpaceError, match="are needed"):
        codec.encode(cuda.PageList(source), zeros(1 << 20, "uint8"))
    with pytest.raises(ValueError, match="multiple of 64"):
        cuda.Codec(codebook, scratch=scratch[32:])
