"""Checkpoints of plain arrays: strait.checkpoint."""

import os
import subprocess
import sys

import numpy as np
import pytest

import strait

checkpoint = pytest.importorskip("strait.checkpoint", reason="libstrait-checkpoint.so", exc_type=ImportError)

DTYPES = "float16 float32 float64 bool complex64 int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()


def bits(values):
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).tobytes()


def rounded(values):
    """F32 values, rounded to BF16: what torch's .bfloat16() makes of them, as a dtype that says so."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    return values.astype(ml_dtypes.bfloat16)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "step-1"


@pytest.fixture
def tensors(rng):
    values = {dtype: rng.standard_normal((37, 129)).astype(dtype) for dtype in DTYPES}
    return values | {
        "large": rng.standard_normal((700, 1100)).astype(np.float32),
        "scalar": np.array(2.5, np.float32),
        "empty": np.zeros((0, 4), np.int64),
        "object": b"some bytes \x00 of a program",
        "no bytes": b"",
        "ünïcode / name": np.arange(5),
    }


def assert_same(found, tensors):
    assert list(found) == sorted(tensors, key=str.encode)
    for name, expected in tensors.items():
        if isinstance(expected, bytes):
            assert found[name] == expected, name
        else:
            assert found[name].dtype == expected.dtype and found[name].shape == expected.shape, name
            assert bits(found[name]) == bits(expected), name


@pytest.mark.parametrize("raw", [False, True])
def test_what_is_saved_is_loaded(path, tensors, raw):
    summary = checkpoint.save(path, tensors, attachments={"step": b"17", "none": b""}, raw=raw)
    assert summary.raw_bytes == sum(len(v) if isinstance(v, bytes) else v.nbytes for v in tensors.values())
    assert summary.shards == len(tensors) and summary.stored_bytes == (path / "00000.strait").stat().st_size
    assert_same(checkpoint.load(path), tensors)
    with checkpoint.open(path) as found:
        assert len(found) == len(tensors) and "large" in found and "none" not in found
        assert found.attachments == {"step": b"17", "none": b""}
        assert found.raw_bytes == summary.raw_bytes and found.files == 1 and len(found.save_id) == 16
        assert bits(found["large"]) == bits(tensors["large"]) and found["object"] == tensors["object"]
        assert found.info("large") == ("large", "F32", (700, 1100), 700 * 1100 * 4, 1)
        assert found.verify() == []


def test_it_is_smaller_than_what_it_holds(path, rng):
    summary = checkpoint.save(path, {"w": rng.standard_normal(1 << 20).astype(np.float32)})
    assert summary.stored_bytes < 0.9 * summary.raw_bytes


def test_bfloat16_and_float8_keep_their_dtypes(path, rng):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = rng.standard_normal((64, 65)).astype(np.float32)
    types = (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
    tensors = {np.dtype(dtype).name: values.astype(dtype) for dtype in types}
    checkpoint.save(path, tensors)
    assert_same(checkpoint.load(path), tensors)
    into = np.zeros((64, 65), np.uint16)
    with checkpoint.open(path) as found:
        found.load([checkpoint.Box("bfloat16", into)])  # integers of that size are taken, too
    assert bits(into) == bits(tensors["bfloat16"])


def test_boxes_are_loaded_into_memory_of_any_strides(path, tensors, rng):
    checkpoint.save(path, tensors)
    large = tensors["large"]
    with checkpoint.open(path) as found:
        whole = np.zeros((2 * 300, 3 * 500), np.float32)
        into = whole[::2, ::3]
        turned = np.zeros((500, 300), np.float32)
        done = []
        boxes = [checkpoint.Box("large", into, (11, 17)), checkpoint.Box("large", turned.T, (1, 600))]
        found.load(boxes, progress=lambda *numbers: done.append(numbers))
        assert (into == large[11:311, 17:517]).all() and (turned.T == large[1:301, 600:1100]).all()
        assert not whole[1::2].any() and not whole[:, 1::3].any()
        assert done and done[-1][0] == done[-1][1]
        scalar = np.zeros((), np.float32)
        found.load([checkpoint.Box("scalar", scalar)])
        assert scalar == 2.5


def test_boxes_that_do_not_fit_are_refused(path, tensors):
    checkpoint.save(path, tensors)
    with checkpoint.open(path) as found:
        into = np.full((2, 2), 7, np.float32)
        with pytest.raises(strait.InvalidError, match="outside"):
            found.load([checkpoint.Box("large", into, (699, 0))])
        assert (into == 7).all()
        with pytest.raises(KeyError):
            found.load([checkpoint.Box("huge", into)])
        with pytest.raises(TypeError, match="F32"):
            found.load([checkpoint.Box("large", np.zeros((2, 2), np.float64))])
        with pytest.raises(ValueError, match="no box"):
            found.load([checkpoint.Box("large", np.zeros(2, np.float32))])
        into.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            found.load([checkpoint.Box("large", into)])
        with pytest.raises(ValueError, match="strides"):
            found.load([checkpoint.Box("large", np.zeros((2, 2), np.float32)[::-1])])


def test_many_ranks_save_one_checkpoint(path, rng):
    values = rng.standard_normal((60, 33)).astype(np.float32)
    save_id = checkpoint.new_save_id()
    for rank in range(4):
        with checkpoint.Save(path, rank=rank, ranks=4, save_id=save_id) as save:
            save.add("w", values[15 * rank : 15 * rank + 15], shape=(60, 33), offsets=(15 * rank, 0))
            save.add("replica", values[:2].copy())
            save.end()
            assert not path.exists()
    checkpoint.commit(path, save_id, 4, attachments={"a": b"b"})
    with checkpoint.open(path) as found:
        assert (found["w"] == values).all() and (found["replica"] == values[:2]).all()
        assert [(shard.offsets, shard.sizes) for shard in found.shards("w")] == [
            ((15 * r, 0), (15, 33)) for r in range(4)
        ]
        assert len(found.shards("replica")) == 4 and found.files == 4
        assert [shard.file for shard in found.shards("w")] == [f"{rank:05}.strait" for rank in range(4)]


def test_a_part_that_is_missing_makes_no_checkpoint(path):
    save_id = checkpoint.new_save_id()
    with checkpoint.Save(path, rank=0, ranks=2, save_id=save_id) as save:
        save.add("w", np.ones(5, np.float32))
        save.end()
    with pytest.raises(strait.TruncatedError, match=r"00001\.strait"):
        checkpoint.commit(path, save_id, 2)
    assert not path.exists() and len(os.listdir(path.parent)) == 1
    checkpoint.abandon(path, save_id)
    assert os.listdir(path.parent) == []


def test_a_save_that_is_left_takes_its_file_along(path):
    save_id = checkpoint.new_save_id()
    with pytest.raises(RuntimeError, match="stop"), checkpoint.Save(path, save_id=save_id) as save:
        save.add("w", np.ones(5, np.float32))
        raise RuntimeError("stop")
    assert not [name for _, _, names in os.walk(path.parent) for name in names]
    with pytest.raises(ValueError, match="ended"):
        save.add("v", np.ones(5, np.float32))


def test_a_gap_makes_no_checkpoint(path):
    save_id = checkpoint.new_save_id()
    with checkpoint.Save(path, save_id=save_id) as save:
        save.add("w", np.ones((5, 2), np.float32), shape=(6, 2))
        save.end()
    with pytest.raises(strait.InvalidError, match="w"):
        checkpoint.commit(path, save_id)


def test_a_copy_of_rounded_values_costs_nothing(path, rng):
    master = rng.standard_normal((300, 400)).astype(np.float32)
    copy, other = rounded(master), rounded(master)
    other[299, 399] += 1
    given = {"copy": copy, "other": other, "master": master}
    summary = checkpoint.save(path, given, rounded_from={"copy": "master", "other": "master"})
    assert summary.rounded_shards == 1
    assert_same(checkpoint.load(path), given)
    with checkpoint.open(path) as found:
        (shard,) = found.shards("copy")
        assert shard.rounded_from == "master" and shard.stored_bytes == 0
        assert found.shards("other")[0].rounded_from is None


def test_arguments_that_make_no_sense(path):
    with pytest.raises(ValueError, match="id"):
        checkpoint.Save(path, save_id=b"short")
    with pytest.raises(strait.InvalidError):
        checkpoint.Save(path, rank=2, ranks=2, save_id=checkpoint.new_save_id())
    with pytest.raises(strait.FileError, match="none"):
        checkpoint.save(path.parent / "none" / "step", {"w": np.ones(2)})
    with checkpoint.Save(path, save_id=checkpoint.new_save_id()) as save:
        with pytest.raises(ValueError, match="zero byte"):
            save.add("a\0b", np.ones(2))
        with pytest.raises(TypeError, match="complex128"):
            save.add("c", np.ones(2, np.complex128))
        with pytest.raises(TypeError, match="dtype"):
            save.add("big", np.ones(2, ">f4"))
        with pytest.raises(ValueError, match="contiguous"):
            save.add("every second", np.ones(8)[::2])
        with pytest.raises(ValueError, match="dimensions"):
            save.add("w", np.ones(2), shape=(2, 2))
        with pytest.raises(strait.InvalidError, match="outside"):
            save.add("outside", np.ones(2), shape=(5,), offsets=(4,))
        save.add("w", np.ones(2))
        with pytest.raises(strait.InvalidError, match="w"):
            save.add("w", np.ones(2))


def test_a_checkpoint_of_that_name(path):
    checkpoint.save(path, {"w": np.zeros(3)})
    with pytest.raises(strait.InvalidError, match="step-1"):
        checkpoint.save(path, {"w": np.ones(3)})
    assert not checkpoint.load(path)["w"].any()
    assert sorted(os.listdir(path.parent)) == ["latest", "step-1"]
    checkpoint.save(path, {"w": np.ones(3)}, overwrite=True)
    assert checkpoint.load(path)["w"].all()
    assert sorted(os.listdir(path.parent)) == ["latest", "step-1"]


def test_latest_keep_and_newest(tmp_path):
    with pytest.raises(strait.InvalidError):
        checkpoint.newest(tmp_path)
    for step in range(1, 5):
        checkpoint.save(tmp_path / f"step-{step}", {"w": np.full(3, step)}, keep=2)
    assert sorted(os.listdir(tmp_path)) == ["latest", "step-3", "step-4"]
    assert checkpoint.load(tmp_path / "latest")["w"][0] == 4
    checkpoint.save(tmp_path / "aside", {"w": np.full(3, 5)}, latest=False)
    assert checkpoint.load(tmp_path / "latest")["w"][0] == 4
    assert checkpoint.newest(tmp_path) == str(tmp_path / "aside")
    (tmp_path / "aside" / "00000.strait").unlink()
    seen = []
    assert checkpoint.newest(tmp_path, seen.append) == str(tmp_path / "step-4")
    assert any(one.path.endswith("aside") and one.why for one in seen)


def damaged(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_damage_is_found_and_named(path, rng):
    values = rng.standard_normal((500, 400)).astype(np.float32)
    checkpoint.save(path, {"w": values, "v": values + 1})
    damaged(path / "00000.strait", (path / "00000.strait").stat().st_size * 3 // 4)
    with checkpoint.open(path) as found:
        found_damage = found.verify()
        assert found_damage and {one.tensor for one in found_damage} < {"w", "v"}
        (name,) = {one.tensor for one in found_damage}
        assert found_damage[0].file == "00000.strait" and not found_damage[0].replaced
        with pytest.raises(strait.DataError, match=name):
            found.load_all()
        other = "v" if name == "w" else "w"
        assert (found[other] == (values if other == "w" else values + 1)).all()


def test_a_replica_takes_the_place_of_what_is_damaged(path, rng):
    values = rng.standard_normal((500, 400)).astype(np.float32)
    save_id = checkpoint.new_save_id()
    for rank in range(2):
        with checkpoint.Save(path, rank=rank, ranks=2, save_id=save_id) as save:
            save.add("w", values)
            save.end()
    checkpoint.commit(path, save_id, 2)
    damaged(path / "00000.strait", 5000)
    with checkpoint.open(path) as found:
        assert (found["w"] == values).all()


@pytest.mark.parametrize("keep", [0, 100, -1])
def test_an_index_that_is_cut_is_refused(path, keep):
    checkpoint.save(path, {"w": np.ones(1000)})
    index = path / "strait.index"
    index.write_bytes(index.read_bytes()[:keep])
    with pytest.raises(strait.DataError, match=r"strait\.index"):
        checkpoint.open(path)


def test_a_folder_without_an_index_is_no_checkpoint(tmp_path):
    with pytest.raises(strait.FileError, match="No such file"):
        checkpoint.open(tmp_path / "none")
    with pytest.raises(strait.TruncatedError, match=r"strait\.index"):
        checkpoint.open(tmp_path)


def test_one_that_is_closed(path):
    checkpoint.save(path, {"w": np.ones(3)})
    found = checkpoint.open(path)
    found.close()
    found.close()
    with pytest.raises(ValueError, match="closed"):
        found["w"]


def test_framework_pt_gives_tensors(path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensors = {
        "w": torch.randn(30, 40).bfloat16(),
        "f8": torch.randn(30).to(torch.float8_e4m3fn),
        "flag": torch.tensor(True),
        "u16": torch.arange(5).to(torch.uint16),
    }
    checkpoint.save(path, tensors)
    found = checkpoint.load(path, framework="pt")
    assert {name: tensor.dtype for name, tensor in found.items()} == {name: t.dtype for name, t in tensors.items()}
    assert all(
        torch.equal(found[name].view(torch.uint8), t.view(torch.uint8)) for name, t in tensors.items() if t.dim()
    )
    into = torch.zeros(40, 12, dtype=torch.bfloat16)
    with checkpoint.open(path, "pt") as one:
        one.load([checkpoint.Box("w", into.t(), (3, 0))])
    assert torch.equal(into.t(), tensors["w"][3:15])
    with pytest.raises(ValueError, match="framework"):
        checkpoint.open(path, "jax")


def test_the_command_tells_what_it_lacks(tmp_path):
    command = [sys.executable, "-m", "strait.checkpoint", "from-dcp", str(tmp_path), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
    assert done.returncode == 1 and done.stderr.startswith("strait.checkpoint: ") and "Traceback" not in done.stderr
