"""through_package.py LIBSTRAIT_COLL NCCL GPU: the Python package's calls of libstrait-coll, compressed on fake GPUs.

LIBSTRAIT_COLL has the fake plugin beside it. NCCL and GPU are the fakes whose ranks are threads and whose memory is the
host's. What arrives is compared with numpy's, and the report has to say that it was compressed."""

import ctypes
import os
import subprocess
import sys
import threading

import numpy as np

RANKS, COUNT = 2, 1 << 17

ours, fake_nccl, fake_gpu = sys.argv[1:4]
os.environ["STRAIT_COLLECTIVE_LIBRARY"] = ours
os.environ["STRAIT_COLL_NCCL"] = fake_nccl
os.environ["STRAIT_COLL"] = "compress"
from strait import CollectiveError, _nccl  # noqa: E402
from strait._nccl import Choice, Reduction, Type  # noqa: E402

gpu = ctypes.CDLL(fake_gpu)
gpu.fake_stream_make.restype = ctypes.c_void_p
gpu.fake_stream_wait.argtypes = gpu.fake_stream_end.argtypes = [ctypes.c_void_p]


def bf16(rank, turn, count):
    """Of a bell curve, as uint16."""
    values = np.random.default_rng([rank, turn]).standard_normal(count, np.float32) * np.float32(0.02)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def wide(values):
    return (values.astype(np.uint32) << 16).view(np.float32)


def rounded(values):
    """FP32 to BF16, ties to even."""
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def compressed(comm, operation, kind):
    rows = [line.split() for line in _nccl.report(comm).splitlines()]
    return next((int(row[7]) for row in rows if row[:2] == [operation, kind]), 0)


class Rank:
    def __init__(self, rank, unique_id):
        self.rank = rank
        gpu.fake_device_set(rank)
        self.stream = gpu.fake_stream_make()
        self.comm = ctypes.c_void_p()
        result = _nccl.library().ncclCommInitRank(ctypes.byref(self.comm), RANKS, unique_id, rank)
        _nccl.check(result, "ncclCommInitRank")

    def call(self, function, sent, received, count, *rest):
        arguments = [sent.ctypes.data, received.ctypes.data, count, *rest, self.comm, self.stream]
        _nccl.check(getattr(_nccl.library(), function)(*arguments), function, self.comm)
        gpu.fake_stream_wait(self.stream)

    def gather(self):
        for turn in range(3):
            whole = np.concatenate([bf16(rank, turn, COUNT) for rank in range(RANKS)])
            received = np.zeros_like(whole)
            part = received[self.rank * COUNT : (self.rank + 1) * COUNT]  # in place
            part[:] = bf16(self.rank, turn, COUNT)
            self.call("ncclAllGather", part, received, COUNT, Type.BF16)
            assert (received == whole).all()
        assert compressed(self.comm, "all_gather", "bf16") == 3

    def reduce(self):
        """FP32 that was BF16, as gradients are; with two ranks its order is of no matter."""
        sent = [wide(bf16(rank, 7, RANKS * COUNT)) for rank in range(RANKS)]
        mean = (sent[0] + sent[1]) * np.float32(0.5)
        received = np.zeros(COUNT, np.float32)
        self.call("ncclReduceScatter", sent[self.rank], received, COUNT, Type.FP32, Reduction.AVG)
        assert (received == mean[self.rank * COUNT : (self.rank + 1) * COUNT]).all()
        assert compressed(self.comm, "reduce_scatter", "fp32") == 1
        values = bf16(self.rank, 8, COUNT)
        total = rounded(wide(bf16(0, 8, COUNT)) + wide(bf16(1, 8, COUNT)))
        self.call("ncclAllReduce", values, values, COUNT, Type.BF16, Reduction.SUM)
        assert (values == total).all()
        assert compressed(self.comm, "all_reduce", "bf16") == 1

    def pin(self):
        meeting.wait()  # the choice is the same on all ranks, before the same call
        _nccl.pin(self.comm, Choice.RAW)
        values, received = bf16(self.rank, 9, COUNT), np.zeros(RANKS * COUNT, np.uint16)
        self.call("ncclAllGather", values, received, COUNT, Type.BF16)
        assert (received == np.concatenate([bf16(rank, 9, COUNT) for rank in range(RANKS)])).all()
        assert compressed(self.comm, "all_gather", "bf16") == 3

    def fail(self):
        try:
            _nccl.check(5, "ncclAllGather", self.comm)
        except CollectiveError as failure:
            assert str(failure).startswith("ncclAllGather: ") and failure.result == 5, failure
        else:
            raise AssertionError("not raised")

    def end(self):
        meeting.wait()
        _nccl.check(_nccl.library().ncclCommDestroy(self.comm), "ncclCommDestroy")
        gpu.fake_stream_end(self.stream)
        assert _nccl.library().strait_coll_report(self.comm, None, 0) == 0


def run(rank, unique_id):
    try:
        each = Rank(rank, unique_id)
        for part in (each.gather, each.reduce, each.pin, each.fail, each.end):
            part()
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)  # the other rank would wait


def outside(program, **variables):
    """In a process of its own, as the library is loaded once."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


def check_missing():
    text = outside("from strait import _nccl; _nccl.library()", STRAIT_COLLECTIVE_LIBRARY="/no/libstrait-coll.so.0")
    assert "no usable libstrait-coll.so (set STRAIT_COLLECTIVE_LIBRARY to its path)" in text, text
    assert "/no/libstrait-coll.so.0" in text, text
    text = outside("from strait import _nccl; _nccl.nccl()", STRAIT_COLL_NCCL="/no/libnccl.so.2")
    assert "CollectiveError: libstrait-coll finds no NCCL that it can use" in text, text
    text = outside("import strait.torch, sys; print('torch' in sys.modules, dir(strait.torch)); strait.torch.other")
    assert text.startswith("False") and "fsdp2" in text and "has no attribute 'other'" in text, text


check_missing()
assert _nccl.nccl() == (fake_nccl, 22809), _nccl.nccl()
assert _nccl.path() == os.path.realpath(ours), _nccl.path()
unique_id, meeting = _nccl.UniqueId(), threading.Barrier(RANKS, timeout=60)
_nccl.check(_nccl.library().ncclGetUniqueId(ctypes.byref(unique_id)), "ncclGetUniqueId")
ranks = [threading.Thread(target=run, args=(rank, unique_id)) for rank in range(RANKS)]
for each in ranks:
    each.start()
for each in ranks:
    each.join()
print("package: all passed")
