"""Calibration of many files by many processes: the set is that of one."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import values_like_kv

import strait

PYTHON = Path(__file__).parents[1]


def write_safetensors(path, tensors):
    header, at = {"__metadata__": {"made": "here"}}, 0
    for name, (dtype, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": [values.size], "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    parts = [len(head).to_bytes(8, "little"), head, *(values.tobytes() for _, values in tensors.values())]
    path.write_bytes(b"".join(parts))


@pytest.fixture
def folder(tmp_path):
    """Six files of different sizes, of layers that occur in several of them."""
    inside = tmp_path / "files"
    inside.mkdir()
    for number in range(6):
        tensors = {
            f"layers.{layer}.{role}": ("BF16", values_like_kv(1000 * (number + 1), seed=10 * number + layer))
            for layer in (number % 3, 3)
            for role in "kv"
        }
        tensors["layers.0.mlp.weight"] = ("F32", np.ones(100, np.float32))
        write_safetensors(inside / f"{number}.safetensors", tensors)
    return inside


def start(arguments, program=("-m", "strait.calibrate"), **environment):
    command = [sys.executable, *program, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(PYTHON), "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def start_ranks(arguments, ranks, here, program=("-m", "strait.calibrate"), missing=0):
    """`here` of them, by what they are told, are on each host."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = str(one.getsockname()[1])
    job = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(here), "MASTER_PORT": port}
    return [start(arguments, program, RANK=str(i), **job) for i in range(ranks - missing)]


@pytest.fixture(params=["one host", "several hosts"])
def here_of(request):
    """Ranks of a host, of how many."""
    if request.param == "several hosts":
        pytest.importorskip("torch", reason="torch is not installed")
        return lambda ranks: 1
    return lambda ranks: ranks


def ended(process, seconds=120):
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


def test_counts_of_parts_are_those_of_the_whole():
    values = [values_like_kv(900, seed) for seed in range(4)]
    whole, parts = strait.Counts(), [strait.Counts(), strait.Counts()]
    for number, array in enumerate(values):
        for counts in (whole, parts[number % 2]):
            counts.add(array, ("kv"[number % 2], 0))
    parts[0] += parts[1]
    assert parts[0].codebook() == whole.codebook() == strait.calibrate({("k", 0): values[::2], ("v", 0): values[1::2]})
    assert whole.values == 3600
    with pytest.raises(ValueError, match="cannot be added"):
        whole += strait.Counts("fp16")
    with pytest.raises(ValueError, match="no values"):
        strait.Counts().codebook()


def test_one_process_makes_what_the_command_makes(folder, tmp_path):
    code, out, err = ended(start([folder, folder / "3.safetensors", "-o", tmp_path / "set"]))
    assert (code, err) == (0, "") and "14 tables" in out and "of 6 files" in out
    if "STRAIT_COMMAND" in os.environ:
        files = sorted(folder.glob("*"))
        subprocess.run([os.environ["STRAIT_COMMAND"], "calibrate", *files, "-o", tmp_path / "same"], check=True)
        assert (tmp_path / "set").read_bytes() == (tmp_path / "same").read_bytes()


def training_state(path, layers, types=("BF16", "F16", "F32")):
    """Values of one role and layer that have little in common, and names that are not plain text."""
    tensors = {}
    for number, layer in enumerate(layers):
        floats = np.random.default_rng(layer).normal(size=20000).astype(np.float32)
        values = {"BF16": (floats.view(np.uint32) >> 16).astype(np.uint16), "F16": floats.astype(np.float16)}
        tensors[f"layers.{layer}.mlp.w\u00e9ight_{number}0"] = ("BF16", values["BF16"])
        tensors[f"layers.{layer}.mlp.half"] = ("F16", values["F16"])
        tensors[f"layers.{layer}.mlp.exp_avg"] = ("F32", floats * np.float32(2e-9))
        tensors[f"layers.{layer}.mlp.exp_avg_sq"] = ("F32", (floats * np.float32(2e-9)) ** 2)
        tensors[f"layers.{layer}.mlp.weight.v"] = ("F32", (floats * np.float32(2e-9)) ** 2)  # no cached value
        tensors["steps"] = ("I64", np.arange(10))
    write_safetensors(path, {name: tensor for name, tensor in tensors.items() if tensor[0] in (*types, "I64")})


@pytest.mark.parametrize("types", [("BF16", "F16", "F32"), ("F16", "F32"), ("F32",)])
@pytest.mark.parametrize("options", [(), ("--dtype", "fp32")])
def test_all_types_are_counted(tmp_path, types, options):
    files = [tmp_path / "0.safetensors", tmp_path / "1.safetensors"]
    training_state(files[0], (0, 1), types)
    training_state(files[1], (1, 2), types)
    code, _, err = ended(start([*files, "-o", tmp_path / "set", *options]))
    assert (code, err) == (0, "")
    book = strait.Codebook.load(tmp_path / "set")
    kinds = [table for table in range(len(book)) if (book.cls(table).layer or 0) >= 2**30]
    assert len(kinds) == (2 if options or len(types) == 1 else 3)  # values of BF16 and FP16 are alike
    for table in range(len(book)):
        counts, bits = book.counts(table), book.expected_bits(table)
        assert 1.5 < bits < (4.5 if table in kinds else 17)
        ranked = counts[book.ranking(table)]
        assert (ranked[:-1] >= ranked[1:]).all()
        tiers = 2 * ranked.sum() + 2 * ranked[3:].sum() + 4 * ranked[6:].sum() + 8 * ranked[21:].sum()
        assert bits == pytest.approx(int(tiers) / int(counts.sum()), abs=6e-4)
    if "STRAIT_COMMAND" in os.environ:
        command = [os.environ["STRAIT_COMMAND"], "calibrate", "-q", *files, "-o", tmp_path / "same", *options]
        subprocess.run(command, check=True)
        assert (tmp_path / "set").read_bytes() == (tmp_path / "same").read_bytes()


def test_arrays_say_their_types():
    floats = np.random.default_rng(3).normal(size=5000).astype(np.float32)
    counts = strait.Counts(None)
    counts.add(floats, "layers.0.m")
    counts.add(floats.astype(np.float16), "layers.0.h")
    counts.add((floats.view(np.uint32) >> 16).astype(np.uint16), "layers.0.w")
    counts.add(floats.tobytes(), "layers.0.b", element="fp32")
    assert counts.values == 20000
    book = counts.codebook()
    assert book.counts(book.find(("other", 0))).sum() == 5000  # BF16 alone
    assert book.expected_bits(0) == pytest.approx(2.7, abs=0.2)
    with pytest.raises(ValueError, match="no tables"):
        counts.add(np.zeros(8, np.int64), "steps", element="bytes")
    plain = strait.Codebook.from_rankings(book.ranking(0)[None])
    assert plain.expected_bits(0) is None and plain.counts(0) is None
    for other in (strait.Codebook.from_bytes(book.to_bytes()), strait.calibrate({"layers.0.m": floats}, element=None)):
        assert other.expected_bits(0) == pytest.approx(book.expected_bits(0), abs=0.1)
    with pytest.raises(IndexError):
        book.expected_bits(len(book))
    with pytest.raises(IndexError):
        book.counts(-1)


@pytest.mark.parametrize(
    "spoil, text",
    [
        (lambda path: path.write_bytes(b""), "cannot mmap an empty file"),
        (lambda path: path.write_bytes(b"\xff" * 100), "its header's size makes no sense"),
        (lambda path: path.write_bytes((2).to_bytes(8, "little") + b"[]"), "its header is no object"),
        (lambda path: path.write_bytes((4).to_bytes(8, "little") + b"{..}"), "not a safetensors file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-500]), "lies outside of the file"),
        (lambda path: path.unlink(), "No such file"),
    ],
)
def test_a_bad_file_is_named(folder, tmp_path, spoil, text):
    files = sorted(folder.glob("*"))
    spoil(files[2])
    code, _, err = ended(start([*files, "-o", tmp_path / "set"]))
    assert code == 1 and str(files[2]) in err and text in err and "Traceback" not in err
    assert not (tmp_path / "set").exists()


def test_nothing_to_count_is_an_error(folder, tmp_path):
    code, _, err = ended(start([folder, "-o", tmp_path / "set", "--dtype", "fp16"]))
    assert code == 1 and "no tensor of fp16 in 6 files" in err


def test_ranks_make_the_set_of_one(folder, tmp_path, here_of):
    assert ended(start([folder, "-o", tmp_path / "one"]))[0] == 0
    results = [ended(process) for process in start_ranks([folder, "-o", tmp_path / "four"], 4, here_of(4))]
    assert [code for code, _, _ in results] == [0] * 4, results
    assert (tmp_path / "one").read_bytes() == (tmp_path / "four").read_bytes()
    assert [bool(out) for _, out, _ in results] == [True, False, False, False]


def test_a_bad_file_fails_all_ranks(folder, tmp_path, here_of):
    (folder / "3.safetensors").write_bytes(b"no")
    results = [ended(process) for process in start_ranks([folder, "-o", tmp_path / "set"], 3, here_of(3))]
    assert all(code == 1 and "3.safetensors" in err for code, _, err in results)
    assert not (tmp_path / "set").exists()


def test_a_set_that_cannot_be_written_fails_all_ranks(folder, tmp_path, here_of):
    results = [ended(process) for process in start_ranks([folder, "-o", tmp_path / "no/set"], 3, here_of(3))]
    assert [code for code, _, _ in results] == [1] * 3, results
    assert "No such file" in results[0][2]


COUNTS_FOR_EVER = """
import sys, time, strait.calibrate as calibrate
def count(files, element):
    print("counting", flush=True)
    time.sleep(600)
calibrate.count = count
sys.exit(calibrate.main())
"""


@pytest.mark.parametrize("number, victim", [(signal.SIGKILL, 0), (signal.SIGKILL, 2), (signal.SIGSTOP, 0)])
def test_a_rank_that_dies_ends_the_others(folder, tmp_path, number, victim, here_of):
    ranks = start_ranks([folder, "-o", tmp_path / "set"], 3, here_of(3), ("-c", COUNTS_FOR_EVER))
    try:
        for process in ranks:
            assert process.stdout.readline() == "counting\n"
        ranks[victim].send_signal(number)
        began = time.monotonic()
        results = [ended(process) for process in ranks if process is not ranks[victim]]
        assert time.monotonic() - began < 10
        assert all(code == 1 and ("died" in err or "not reached" in err) for code, _, err in results), results
        assert not (tmp_path / "set").exists()
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


def test_a_rank_that_never_comes_ends_the_others(folder, tmp_path, here_of):
    """The others wait for it; the watch does not."""
    program = ("-c", "import sys, strait._ranks as r, strait.calibrate as c; r._START = 12; sys.exit(c.main())")
    ranks = start_ranks([folder, "-o", tmp_path / "set"], 3, here_of(3), program, missing=1)
    try:
        results = [ended(process, 60) for process in ranks]
        assert all(code == 1 and ("died" in err or "not reached" in err) for code, _, err in results), results
        assert not (tmp_path / "set").exists()
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
