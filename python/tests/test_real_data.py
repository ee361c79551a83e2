"""Calibration on real KV caches."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import strait

TREE = Path(__file__).resolve().parents[2]
SLICE = TREE / "tests" / "data" / "kv-slice.safetensors"
needs_slice = pytest.mark.skipif(not SLICE.is_file(), reason="tests/data/kv-slice.safetensors is not there")


def read_safetensors(path):
    """Name to array, BF16 as uint16."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        if name == "__metadata__" or entry["dtype"] != "BF16":
            continue
        begin, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(data, np.uint16, (end - begin) // 2, start + begin).reshape(entry["shape"])
    return tensors


@needs_slice
def test_real_kv_shrinks_as_promised():
    tensors = read_safetensors(SLICE)
    assert tensors
    half = {name: tensor[: len(tensor) // 2] for name, tensor in tensors.items()}
    rest = {name: np.ascontiguousarray(tensor[len(tensor) // 2 :]) for name, tensor in tensors.items()}
    codebook = strait.calibrate(half)
    raw = coded = coded16 = 0
    for name, tensor in rest.items():
        chunk = strait.encode(tensor, codebook, table=name)
        assert (strait.decode(chunk, codebook) == tensor.reshape(-1)).all()
        raw += tensor.nbytes
        coded += len(chunk)
        coded16 += len(strait.encode(tensor, codebook, table=name, mode="top16"))
    print(f"tiered {raw / coded:.3f}, top16 {raw / coded16:.3f} on {raw} bytes")
    assert raw / coded > 1.44 and raw / coded16 > 1.30


@needs_slice
def test_the_command_calibrates_the_same(tmp_path):
    built = sorted(TREE.glob("build*/tools/strait"), key=lambda path: path.stat().st_mtime)
    command = os.environ.get("STRAIT_COMMAND") or (str(built[-1]) if built else None)
    if command is None:
        pytest.skip("the strait command is not built: set STRAIT_COMMAND to its path")
    path = tmp_path / "set"
    subprocess.run([command, "calibrate", "-q", str(SLICE), "-o", str(path)], check=True)
    theirs, ours = strait.Codebook.load(path), strait.calibrate(read_safetensors(SLICE))
    assert theirs == ours
    assert [theirs.cls(table) for table in range(len(theirs))] == [ours.cls(table) for table in range(len(ours))]
