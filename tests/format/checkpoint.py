#!/usr/bin/env python3
"""libstrait-checkpoint against the model of section 8 (checkpoint_model.py): each reads what the other has written, and
both refuse the same. And golden checkpoints, which are frozen.

    python3 tests/format/checkpoint.py --lib LIBSTRAIT_CHECKPOINT [--seed N] [--rounds N]     exit code 0, or 1
    python3 tests/format/checkpoint.py --write-golden       writes tests/data/checkpoint
"""

import argparse
import ctypes as ct
import shutil
import sys
import tempfile
from pathlib import Path

import checkpoint_model as cm
import model as fm
import numpy as np

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "checkpoint"
STATUS = {0: None, -5: "truncated", -6: "corrupt", -7: "unsupported", -9: "integrity"}
failures = []


def expect(condition, *what):
    if not condition:
        failures.append(what)
        print("FAILED:", *what)
    return condition


# ---- The library (include/strait/checkpoint.h)

NUMBERS = ct.POINTER(ct.c_uint64)


class Tensor(ct.Structure):
    _fields_ = [
        ("size", ct.c_size_t),
        ("name", ct.c_char_p),
        ("dtype", ct.c_char_p),
        ("shape", NUMBERS),
        ("offsets", NUMBERS),
        ("sizes", NUMBERS),
        ("data", ct.c_void_p),
        ("dims", ct.c_uint32),
        ("memory", ct.c_int),
        ("rounded_from", ct.c_char_p),
    ]


class SaveOptions(ct.Structure):
    _fields_ = [
        ("size", ct.c_size_t),
        ("rank", ct.c_uint32),
        ("rank_count", ct.c_uint32),
        ("save_id", ct.c_uint8 * 16),
        ("threads", ct.c_uint32),
        ("flags", ct.c_uint32),
        ("buffer_bytes", ct.c_uint64),
        ("sm_budget", ct.c_uint32),
        ("reserved", ct.c_uint32),
    ]


class Attachment(ct.Structure):
    _fields_ = [("name", ct.c_char_p), ("data", ct.c_char_p), ("bytes", ct.c_uint64)]


class CommitOptions(ct.Structure):
    _fields_ = [
        ("size", ct.c_size_t),
        ("rank_count", ct.c_uint32),
        ("flags", ct.c_uint32),
        ("save_id", ct.c_uint8 * 16),
        ("attachments", ct.POINTER(Attachment)),
        ("attachment_count", ct.c_uint32),
        ("keep", ct.c_uint32),
    ]


class Info(ct.Structure):
    _fields_ = [
        ("name", ct.c_char_p),
        ("dtype", ct.c_char_p),
        ("shape", NUMBERS),
        ("dims", ct.c_uint32),
        ("shard_count", ct.c_uint32),
        ("bytes", ct.c_uint64),
    ]


class Box(ct.Structure):
    _fields_ = [
        ("tensor", ct.c_uint32),
        ("memory", ct.c_int),
        ("offsets", NUMBERS),
        ("sizes", NUMBERS),
        ("data", ct.c_void_p),
        ("strides", NUMBERS),
        ("status", ct.c_int32),
        ("reserved", ct.c_uint32),
    ]


def numbers(values):
    return (ct.c_uint64 * max(1, len(values)))(*values)


def address(array):
    return array.ctypes.data_as(ct.c_void_p)


class Library:
    def __init__(self, path):
        self.lib = ct.CDLL(path)
        self.text = ct.create_string_buffer(512)
        self.lib.strait_checkpoint_save_text.restype = ct.c_char_p
        self.lib.strait_checkpoint_tensor_at.restype = self.lib.strait_checkpoint_attachment_at.restype = ct.c_bool

    def told(self):
        return self.text, ct.c_size_t(len(self.text))

    def save(self, path, rng, tensors, roundings, ranks, attachments):
        """Saves tensors as so many ranks, each tensor cut along its first dimension or whole in one rank."""
        name, save_id = str(path).encode(), (ct.c_uint8 * 16)(*rng.integers(0, 256, 16).tolist())
        for rank in range(ranks):
            options = SaveOptions(ct.sizeof(SaveOptions), rank, ranks, save_id, 2, 0, 0, 0, 0)
            save = ct.c_void_p()
            status = self.lib.strait_checkpoint_save_begin(name, ct.byref(options), ct.byref(save), *self.told())
            expect(status == 0, "save_begin", status, self.text.value)
            for number, (tensor, (dtype, shape, values)) in enumerate(tensors.items()):
                rows = shape[0] if shape else 0
                first, end = rows * rank // ranks, rows * (rank + 1) // ranks
                cut = rows >= ranks and roundings.get(tensor, tensor) != "whole"
                if not cut and number % ranks != rank and tensor not in roundings and tensor not in roundings.values():
                    continue
                part = np.ascontiguousarray(values[first:end] if cut else values)
                at, size = [first] + [0] * (len(shape) - 1) if cut else [0] * len(shape), list(part.shape[:-1])
                one = Tensor(
                    ct.sizeof(Tensor),
                    tensor.encode(),
                    dtype.encode(),
                    numbers(shape),
                    numbers(at),
                    numbers(size),
                    address(part),
                    len(shape),
                    0,
                    roundings[tensor].encode() if tensor in roundings else None,
                )
                status = self.lib.strait_checkpoint_save_add(save, ct.byref(one))
                expect(status == 0, "save_add", tensor, status, self.lib.strait_checkpoint_save_text(save))
                self.kept = [*getattr(self, "kept", []), part]
            status = self.lib.strait_checkpoint_save_end(save, None)
            expect(status == 0, "save_end", status, self.lib.strait_checkpoint_save_text(save))
            self.lib.strait_checkpoint_save_free(save)
            self.kept = []
        rows = (Attachment * max(1, len(attachments)))(
            *[(key.encode(), data, len(data)) for key, data in attachments.items()]
        )
        commit = CommitOptions(ct.sizeof(CommitOptions), ranks, 0, save_id, rows, len(attachments), 0)
        status = self.lib.strait_checkpoint_commit(name, ct.byref(commit), *self.told())
        expect(status == 0, "commit", status, self.text.value)

    def open(self, path):
        reader = ct.c_void_p()
        status = self.lib.strait_checkpoint_open(str(path).encode(), ct.byref(reader), *self.told())
        return STATUS.get(status, status), reader

    def load(self, reader):
        """(status, tensors as the model has them) of all tensors whole."""
        tensors, boxes, info, place = {}, [], Info(), 0
        while self.lib.strait_checkpoint_tensor_at(reader, place, ct.byref(info)):
            shape, dtype = tuple(info.shape[d] for d in range(info.dims)), info.dtype.decode()
            values = np.full((*shape, cm.VALUE_BYTES[dtype]), 0xA5, np.uint8)
            tensors[info.name.decode()] = dtype, shape, values
            boxes.append(Box(tensor=place, data=address(values)))
            place += 1
        status = self.lib.strait_checkpoint_load(reader, (Box * len(boxes))(*boxes), len(boxes), None, *self.told())
        return STATUS.get(status, status), tensors

    def attachments(self, reader):
        found, one, place = {}, Attachment(), 0
        while self.lib.strait_checkpoint_attachment_at(reader, place, ct.byref(one)):
            found[one.name.decode()] = ct.string_at(one.data, one.bytes)
            place += 1
        return found

    def verify(self, path):
        """None, or why the folder is refused by an open and a verification."""
        status, reader = self.open(path)
        if status is None:
            code = self.lib.strait_checkpoint_verify(reader, None, *self.told())
            status = STATUS.get(code, code)
            self.lib.strait_checkpoint_close(reader)
        return status


# ---- Tensors


def values_of(rng, dtype, shape):
    count, value = int(np.prod(shape, dtype=np.int64)), cm.VALUE_BYTES[dtype]
    if dtype in ("BF16", "F32"):
        floats = (rng.standard_normal(count) * 0.02).astype("<f4")
        floats[rng.random(count) < 0.01] = rng.choice(np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-40], "<f4"))
        raw = floats.view(np.uint8) if dtype == "F32" else cm.rounded(floats.view(np.uint8))
    else:
        raw = rng.integers(0, 256 if dtype != "BOOL" else 2, count * value, np.uint8)
    return raw.reshape(*shape, value)


def random_tensors(rng):
    tensors, roundings = {}, {}
    for number, dtype in enumerate([*rng.permutation(list(cm.VALUE_BYTES))[:9].tolist(), "F32", "BF16"]):
        dims = int(rng.integers(0, 5))
        shape = tuple(int(rng.integers(1, (4000, 60, 16, 8)[dims - 1])) for _ in range(dims))
        tensors[f"layer.{number}.{dtype}"] = dtype, shape, values_of(rng, dtype, shape)
        if dtype == "F32":
            name = f"rounded.{number}"
            tensors[name] = "BF16", shape, cm.rounded(tensors[f"layer.{number}.F32"][2]).reshape(*shape, 2)
            roundings[name] = f"layer.{number}.F32"
    tensors["empty"] = "F16", (3, 0), np.zeros((3, 0, 2), np.uint8)
    return tensors, roundings


def same(a, b):
    return a.keys() == b.keys() and all(
        a[name][:2] == b[name][:2] and np.array_equal(a[name][2], b[name][2]) for name in a
    )


# ---- Rounds


def library_reads_model(library, rng, folder):
    tensors, roundings = random_tensors(rng)
    attachments = {"step": b"7", "leer": b""}
    cm.write_folder(folder, rng, tensors, 1 + int(rng.integers(4)), roundings=roundings, attachments=attachments)
    expect(same(cm.read_folder(folder)[0], tensors), "the model does not read its own", folder)
    status, reader = library.open(folder)
    if expect(status is None, "open", status, library.text.value):
        status, found = library.load(reader)
        expect(status is None and same(found, tensors), "the library reads other values", status, library.text.value)
        expect(library.attachments(reader) == attachments, "attachments")
        library.lib.strait_checkpoint_close(reader)
    expect(library.verify(folder) is None, "verify", library.text.value)


def model_reads_library(library, rng, folder):
    tensors, roundings = random_tensors(rng)
    library.save(folder, rng, tensors, roundings, 1 + int(rng.integers(4)), {"planner": b"\0\1"})
    try:
        found, attachments, _ = cm.read_folder(folder)
    except fm.FormatError as error:
        expect(False, "the model refuses what the library saved", error)
        return
    expect(same(found, tensors), "the model reads other values")
    expect(attachments == {"planner": b"\0\1"}, attachments)


def both_refuse(library, rng, folder):
    """Bytes are changed and files cut: library and model refuse the same, and of an index for the same reason."""
    names = sorted(path.name for path in folder.iterdir())
    refused = 0
    for round_number in range(24):
        path = folder / str(rng.choice(names))
        kept = path.read_bytes()
        data = bytearray(kept)
        at = int(rng.choice([rng.integers(len(data)), rng.integers(40), len(data) - 1 - rng.integers(48)]))
        if round_number % 8 == 7:
            del data[at:]
        else:
            data[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        try:
            cm.read_folder(folder)
            why = None
        except fm.FormatError as error:
            why = error.name
        told = library.verify(folder)
        expect((told is None) == (why is None), f"byte {at} of {path.name}: model {why}, library {told}")
        if path.name == "strait.index":
            expect(told == why, f"byte {at} of the index: model {why}, library {told}")
        refused += why is not None
        path.write_bytes(kept)
    expect(refused > 8, "hardly anything was refused")
    expect(library.verify(folder) is None, "what was put back is refused", library.text.value)


# ---- Golden checkpoints


def golden_tensors():
    """Values that follow from formulas."""
    at = np.arange(240, dtype=np.uint64)
    bits = ((118 + at % 7) << 23 | (at * 2654435761 & 0x807FFFFF)).astype("<u4")
    master = bits.view(np.uint8).reshape(12, 20, 4)
    return {
        "bias": ("BF16", (40,), ((0x3C00 + at[:40] * 37 % 512).astype("<u2")).view(np.uint8).reshape(40, 2)),
        "empty": ("F32", (0, 4), np.zeros((0, 4, 4), np.uint8)),
        "master": ("F32", (12, 20), master),
        "step": ("I64", (), np.array([1234], "<i8").view(np.uint8)),
        "text": ("BYTES", (11,), np.frombuffer(b"hello world", np.uint8).reshape(11, 1)),
        "weight": ("BF16", (12, 20), cm.rounded(master).reshape(12, 20, 2)),
    }


def golden_write(folder):
    cm.write_folder(
        folder,
        np.random.default_rng(2),
        golden_tensors(),
        2,
        roundings={"weight": "master"},
        attachments={"planner": b"{}"},
        committed_ns=1700000000000000000,
    )


def golden(library):
    found, attachments, index = cm.read_folder(GOLDEN)
    expect(same(found, golden_tensors()) and attachments == {"planner": b"{}"}, "the model reads other golden values")
    expect(index["committed_ns"] == 1700000000000000000, "the golden time")
    status, reader = library.open(GOLDEN)
    if expect(status is None, "golden", status, library.text.value):
        status, found = library.load(reader)
        expect(status is None and same(found, golden_tensors()), "the library reads other golden values", status)
        library.lib.strait_checkpoint_close(reader)
    expect(library.verify(GOLDEN) is None, "the golden checkpoint is refused", library.text.value)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lib")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--write-golden", action="store_true")
    options = parser.parse_args()
    if options.write_golden:
        golden_write(GOLDEN)
        return 0
    library, rng = Library(options.lib), np.random.default_rng(options.seed)
    golden(library)
    scratch = Path(tempfile.mkdtemp(prefix="strait-checkpoint-"))
    try:
        for number in range(options.rounds):
            library_reads_model(library, rng, scratch / f"model-{number}")
            both_refuse(library, rng, scratch / f"model-{number}")
            model_reads_library(library, rng, scratch / f"library-{number}")
            shutil.rmtree(scratch / f"model-{number}")
    finally:
        shutil.rmtree(scratch)
    print(f"checkpoints: {len(failures)} differences in {options.rounds} rounds of each kind")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
