#!/usr/bin/env python3
"""Checkpoints beside others: what torch.distributed.checkpoint writes, plain and with its zstd extension, zipnn, and
Strait, raw and coded, through the same interface, of the same state, on the same file system, in turn.

    checkpoint.py [--state FILE] [--folder DIR] [--rounds 5] [--ways NAME,...] [--json FILE]

The state: F32 weights and moments of AdamW as tests/frameworks/torch/small_state.py leaves them, of 7.5 M parameters
after four different numbers of steps: 360 MB in one state. --state keeps it, or takes the one that is there: training
takes some five minutes. Needs torch, zstandard, and zipnn for its row.

Columns: times smaller; GB/s of a save until all is on the disk, and of a load of which no byte is in the page cache;
milliseconds for which async_save() holds the training up. Medians, and of each the smallest and the largest round. What
is loaded is compared, each time.
"""

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._extension import ZStandard

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "frameworks" / "torch")]

import small_state  # noqa: E402

from strait.torch.checkpoint import Reader, Stager, Writer  # noqa: E402

STEPS, MARKS = 600, (300, 400, 500)


def bench_state(file):
    """By name, with a part for each number of steps."""
    states = small_state.state_of(STEPS, file, MARKS)
    return {
        f"{kind}.{step}.{name}": values[kind]
        for step, state in states.items()
        for name, values in state.items()
        for kind in ("weight", "m", "v")
    }


def forget(folder):
    """Puts a folder's files on the disk and out of the page cache."""
    for path in (one for one in Path(folder).rglob("*") if one.is_file()):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def size_of(folder):
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


# ---- Ways -----------------------------------------------------------------------------------------------------------


class Dcp:
    """A pair of a storage writer and a reader, and a stager for async_save, or None for DCP's own."""

    def __init__(self, writer, reader, stager=None):
        self._writer, self._reader, self._stager = writer, reader, stager

    def save(self, state, folder):
        dcp.save(state, storage_writer=self._writer(folder))

    def load(self, state, folder):
        dcp.load(state, storage_reader=self._reader(folder))

    def save_async(self, state, folder):
        """What to wait for."""
        return dcp.async_save(state, storage_writer=self._writer(folder), async_stager=self._stager)


class Zipnn:
    """A file for each tensor, as zipnn has no storage of DCP's."""

    def __init__(self):
        self._zipnn = __import__("zipnn").ZipNN

    def save(self, state, folder):
        os.mkdir(folder)
        for number, tensor in enumerate(state.values()):
            packer = self._zipnn(input_format="byte", bytearray_dtype="float32", threads=os.cpu_count())
            data = ctypes.string_at(tensor.data_ptr(), tensor.nbytes)
            with open(f"{folder}/{number}", "wb") as file:
                file.write(packer.compress(data))
                os.fsync(file.fileno())

    def load(self, state, folder):
        for number, tensor in enumerate(state.values()):
            packer = self._zipnn(input_format="byte", bytearray_dtype="float32", threads=os.cpu_count())
            with open(f"{folder}/{number}", "rb") as file:
                data = packer.decompress(file.read())
            tensor.view(-1).copy_(torch.frombuffer(bytearray(data), dtype=torch.float32))

    save_async = None


class Plain:
    """One file of all bytes: what the file system does by itself."""

    def save(self, state, folder):
        os.mkdir(folder)
        with open(f"{folder}/all", "wb", buffering=0) as file:
            for tensor in state.values():
                file.write(memoryview(tensor.view(-1).numpy()).cast("B"))
            os.fsync(file.fileno())

    def load(self, state, folder):
        with open(f"{folder}/all", "rb", buffering=0) as file:
            for tensor in state.values():
                view = memoryview(tensor.view(-1).numpy()).cast("B")
                if file.readinto(view) != len(view):
                    raise SystemExit("plain: a short read")

    save_async = None


def ways():
    torch_writer = lambda **more: lambda folder: dcp.FileSystemWriter(folder, **more)  # noqa: E731
    found = {
        "plain write and read": Plain(),
        "DCP": Dcp(torch_writer(), dcp.FileSystemReader),
        "DCP with its cached stager": Dcp(torch_writer(), dcp.FileSystemReader, cached_stager()),
        "DCP with zstd": Dcp(torch_writer(_extensions=[ZStandard()]), dcp.FileSystemReader),
        "Strait raw": Dcp(lambda folder: Writer(folder, raw=True), Reader, Stager()),
        "Strait": Dcp(Writer, Reader, Stager()),
    }
    with contextlib.suppress(ImportError):
        found["zipnn"] = Zipnn()
    return found


def cached_stager():
    """DCP's DefaultStager, given to every save, so that it uses its memory again."""
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    return DefaultStager(StagingOptions(torch.cuda.is_available(), False, False, torch.cuda.is_available()))


# ---- Rounds ---------------------------------------------------------------------------------------------------------


def timed(call, *arguments):
    begin = time.perf_counter()
    result = call(*arguments)
    return time.perf_counter() - begin, result


def measure(way, state, folder):
    """Seconds of a save and of a load, bytes, and seconds that an asynchronous save holds up."""
    target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    path = f"{folder}/checkpoint"
    save, _ = timed(way.save, state, path)
    size = size_of(path)
    forget(path)
    load, _ = timed(way.load, target, path)
    if not all(torch.equal(tensor, state[name]) for name, tensor in target.items()):
        raise SystemExit("what was loaded is not what was saved")
    shutil.rmtree(path)
    blocked = None
    if way.save_async is not None:
        del target
        blocked, future = timed(way.save_async, state, path)
        getattr(future, "upload_completion", future).result()
        shutil.rmtree(path)
        time.sleep(0.2)  # the saving thread lets go of its copy
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{folder}/latest")
    os.sync()
    return {"save": save, "load": load, "bytes": size, "blocked": blocked}


def spread(values, digits):
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", metavar="FILE")
    parser.add_argument("--folder", metavar="DIR", default=".")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", metavar="NAME,...")
    parser.add_argument("--json", metavar="FILE")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    state = bench_state(given.state)
    raw = sum(tensor.nbytes for tensor in state.values())
    chosen = ways()
    if given.ways:
        chosen = {name: chosen[name] for name in given.ways.split(",")}
    about = f"torch {torch.__version__}, {os.cpu_count()} processors, {given.rounds} rounds"
    print(f"{raw} bytes in {len(state)} tensors, {about}")
    results = {name: [] for name in chosen}
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for number in range(given.rounds + 1):
            for name, way in chosen.items():
                result = measure(way, state, folder)
                if number:  # the first round warms up
                    results[name].append(result)
            print(f"round {number} of {given.rounds}", file=sys.stderr, flush=True)
    print(f"{'':28} {'ratio':>6} {'save, GB/s':>20} {'load, GB/s':>20} {'async_save, ms':>20}")
    for name, rounds in results.items():
        save, load = ([raw / 1e9 / one[field] for one in rounds] for field in ("save", "load"))
        blocked = [1e3 * one["blocked"] for one in rounds if one["blocked"] is not None]
        ratio = raw / statistics.median(one["bytes"] for one in rounds)
        waits = spread(blocked, 0) if blocked else ""
        print(f"{name:28} {ratio:6.3f} {spread(save, 2):>20} {spread(load, 2):>20} {waits:>20}")
    if given.json:
        Path(given.json).write_text(json.dumps({"raw_bytes": raw, "ways": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
