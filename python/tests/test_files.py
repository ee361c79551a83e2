"""Files: save_file, load_file, and the command's."""

import errno
import json
import os
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from conftest import TREE, values_like_kv

import strait

pytest.importorskip("xxhash", reason="xxhash is not installed")


def command():
    if "STRAIT_COMMAND" in os.environ:
        return Path(os.environ["STRAIT_COMMAND"])
    found = next((path for path in TREE.glob("build*/**/tools/strait") if os.access(path, os.X_OK)), None)
    if found is None:
        pytest.skip("no build of the strait command")
    return found


@pytest.fixture
def tensors(rng):
    wide = rng.standard_normal((300, 257), np.float32)
    return {
        "model.layers.0.k": values_like_kv(200_000).view(np.uint16).reshape(100, 2000),
        "w": wide,
        "w.half": wide.astype(np.float16),
        "größe": wide.astype(np.float64),
        "empty": np.zeros((0, 3), np.float32),
        "scalar": np.float32(3),
        "flags": rng.integers(0, 2, 33).astype(bool),
        "steps": np.arange(7),
        **{f"small.{i}": rng.standard_normal(50 + i).astype(np.float32) for i in range(40)},
        "long": rng.standard_normal(3_000_000).astype(np.float32),
    }


def test_what_is_saved_is_loaded(tensors, tmp_path):
    path = tmp_path / "model.strait"
    strait.save_file(tensors, path, metadata={"format": "np"})
    raw = sum(np.asarray(tensor).nbytes for tensor in tensors.values())
    assert path.stat().st_size < 0.9 * raw
    with strait.load_file(path) as file:
        assert set(file) == set(tensors) and len(file) == len(tensors) and file.metadata == {"format": "np"}
        for name, tensor in tensors.items():
            found = file[name]
            assert found.dtype == np.asarray(tensor).dtype and found.shape == np.asarray(tensor).shape, name
            assert found.tobytes() == np.asarray(tensor).tobytes(), name
        with pytest.raises(KeyError):
            file["none"]
    assert list(tmp_path.iterdir()) == [path]


def test_bits_that_never_change_are_left_out(rng, tmp_path):
    """FP16 that was BF16, FP32 that was FP16, and squares, beside what their exponents alone would save."""
    narrow = (values_like_kv(200_000).astype(np.uint32) << 16).view(np.float32).astype(np.float16)
    wide = rng.standard_normal(200_000, np.float32)
    for tensor, ratio in (narrow, 1.3), (wide.astype(np.float16).astype(np.float32), 2), (wide * wide, 1.17):
        strait.save_file({"w": tensor}, tmp_path / "file")
        assert tensor.nbytes / (tmp_path / "file").stat().st_size > ratio
        assert strait.load_file(tmp_path / "file")["w"].tobytes() == tensor.tobytes()


def test_small_tensors_that_do_not_shrink_hardly_grow(rng, tmp_path):
    """Whatever their size, and whichever types take turns."""
    types = (np.uint16, np.float16, np.float32, np.int64, np.uint8)
    for size in (64, 200, 256, 504, 600, 1024, 1100, 2048, 4096, 8192, 12000, 16384, 32768, 40000):
        for kinds in (2, 5):
            data = [rng.integers(0, 256, size // 8 * 8, np.uint8) for _ in range(max(12, 400_000 // size))]
            saved = {f"t{i}": values.view(types[i % kinds]) for i, values in enumerate(data)}
            strait.save_file(saved, tmp_path / "file")
            written = (tmp_path / "file").read_bytes()
            raw = sum(values.nbytes for values in data) + struct.unpack_from("<Q", written, 8)[0]
            assert len(written) <= 1.005 * raw + 1000, (size, kinds)
            with strait.load_file(tmp_path / "file") as file:
                for i in (0, 1, len(data) // 2, len(data) - 1):
                    assert file[f"t{i}"].tobytes() == data[i].tobytes() and file[f"t{i}"].dtype == types[i % kinds]


def test_fp8_shrinks(rng, tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = rng.standard_normal(100_000)
    for dtype, ratio in (ml_dtypes.float8_e4m3fn, 1.15), (ml_dtypes.float8_e5m2, 1.35):
        tensor = values.astype(dtype)
        strait.save_file({"w": tensor, "small": tensor[:500]}, tmp_path / "file")
        assert tensor.nbytes > ratio * (tmp_path / "file").stat().st_size
        assert strait.load_file(tmp_path / "file")["w"].tobytes() == tensor.tobytes()


def test_the_command_reads_what_is_saved_and_the_other_way(tensors, tmp_path):
    strait_command, path = command(), tmp_path / "model.strait"
    strait.save_file(tensors, path)
    subprocess.run([strait_command, "decode", "-q", "--verify", path], check=True)
    subprocess.run([strait_command, "decode", "-q", path, tmp_path / "model.safetensors"], check=True)
    subprocess.run([strait_command, "encode", "-qf", tmp_path / "model.safetensors", "-o", path], check=True)
    data = (tmp_path / "model.safetensors").read_bytes()
    entries = json.loads(data[8 : 8 + struct.unpack_from("<Q", data)[0]])
    with strait.load_file(path) as file:
        assert set(file) == set(entries) == set(tensors)
        for name, tensor in tensors.items():
            assert file[name].tobytes() == np.asarray(tensor).tobytes(), name


def test_tensors_of_torch(tmp_path):
    torch = pytest.importorskip("torch")
    saved = {
        "a": torch.randn(64, 1000).bfloat16(),
        "b": torch.randn(1000).to(torch.float8_e4m3fn),
        "c": torch.randn(3, 5),
        "d": torch.tensor(2.5, dtype=torch.float16),
        "e": torch.zeros(0, 4),
    }
    strait.save_file(saved, tmp_path / "file")
    loaded = dict(strait.load_file(tmp_path / "file", framework="pt"))
    for name, tensor in saved.items():
        assert loaded[name].dtype == tensor.dtype and loaded[name].shape == tensor.shape
        assert torch.equal(loaded[name].float(), tensor.float())


def test_damage_is_found(tmp_path, rng):
    path, tensor = tmp_path / "file", values_like_kv(60_000)
    strait.save_file({"k": tensor, "w": rng.standard_normal(20_000).astype(np.float32)}, path)
    good = path.read_bytes()
    for case in range(300):
        bad = bytearray(good)
        place = int(rng.integers(len(bad))) if case % 3 else int(rng.integers(len(bad) - 300, len(bad)))
        bad[place] ^= int(rng.integers(1, 256))
        path.write_bytes(bad if case % 5 else bad[:place])
        try:
            with strait.load_file(path) as file:
                found = {name: file[name] for name in file}
        except strait.DataError:
            continue
        preamble = 48 + 8 + struct.unpack_from("<Q", good, 48)[0]
        in_names, in_hash = 48 <= place < preamble, len(good) - 32 <= place < len(good) - 16
        assert in_names or in_hash or preamble <= place < -(-preamble // 16) * 16 or "k" not in found, place


def test_what_cannot_be_saved_is_refused_and_leaves_nothing(tmp_path):
    for bad in (np.zeros(3, object), np.zeros(3, ">f4"), np.zeros((4, 4), np.float32).T[1:], [1, 2]):
        with pytest.raises((TypeError, ValueError)):
            strait.save_file({"bad": bad}, tmp_path / "file")
    with pytest.raises(strait.DataError, match="not a Strait file"):
        (tmp_path / "other").write_bytes(bytes(1000))
        strait.load_file(tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_names_and_metadata_that_a_file_cannot_have_are_refused(tmp_path):
    values = np.zeros(3, np.float32)
    for saved, metadata, error in (
        ({"__metadata__": values, "x": values}, None, ValueError),
        ({1: values, "1": values}, None, TypeError),
        ({b"x": values}, None, TypeError),
        ({"x": values}, {"k": 1}, TypeError),
        ({"x": values}, {1: "k"}, TypeError),
    ):
        with pytest.raises(error):
            strait.save_file(saved, tmp_path / "file", metadata=metadata)
    assert not list(tmp_path.iterdir())


def unfinished(path, tensors):
    """What is beside the path when a process is killed that writes to it."""
    child = os.fork()
    if child == 0:
        import strait.files

        write = strait.files._write
        strait.files._write = lambda file, *rest: (write(file, *rest), file.flush(), os.kill(os.getpid(), 9))
        strait.save_file(tensors, path)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == 9
    return sorted(entry.name for entry in path.parent.iterdir() if entry != path)


@pytest.mark.parametrize("unnamed", [True, False])
def test_a_file_keeps_what_it_replaces(unnamed, tmp_path, monkeypatch):
    import strait.files

    if not unnamed:
        monkeypatch.setattr(strait.files, "_open_unnamed", lambda folder: -1)
    path, link, tensors = tmp_path / "file", tmp_path / "link", {"x": np.arange(9, dtype=np.float32)}
    previous = os.umask(0o027)
    try:
        strait.save_file({}, path)
        assert path.stat().st_mode & 0o7777 == 0o640
        for mode in (0o600, 0o444, 0o666):
            path.chmod(mode)
            strait.save_file({}, path)
            assert path.stat().st_mode & 0o7777 == mode
    finally:
        os.umask(previous)
    link.symlink_to("file")
    strait.save_file(tensors, os.fsencode(link))
    assert link.is_symlink() and (strait.load_file(path)["x"] == tensors["x"]).all()
    path.unlink()
    strait.save_file(tensors, link)  # to what is not there
    assert link.is_symlink() and (strait.load_file(path)["x"] == tensors["x"]).all()
    link.unlink()
    link.symlink_to("link")
    with pytest.raises(OSError, match="symbolic links"):
        strait.save_file(tensors, link)
    assert link.is_symlink()
    link.unlink()
    os.mkfifo(link)
    reader = os.open(link, os.O_RDWR | os.O_NONBLOCK)
    strait.save_file(tensors, link)
    assert os.read(reader, 1 << 16) == path.read_bytes() and link.is_fifo()
    os.close(reader)
    link.unlink()
    with pytest.raises(IsADirectoryError):
        strait.save_file(tensors, tmp_path)
    with pytest.raises(FileNotFoundError):
        strait.save_file(tensors, tmp_path / "none" / "file")
    monkeypatch.chdir(tmp_path)
    strait.save_file(tensors, "file")
    assert os.listdir() == ["file"]
    fd = strait.files._open_unnamed(".")
    if fd >= 0:
        os.close(fd)
        assert unfinished(path, tensors) == []
        assert (strait.load_file(path)["x"] == tensors["x"]).all()


def test_a_file_that_cannot_be_named_is_copied(tmp_path, monkeypatch):
    """As where the file system, or what confines the process, refuses links of /proc."""
    import strait.files

    path, tensors = tmp_path / "file", {"x": np.arange(9, dtype=np.float32)}
    strait.save_file(tensors, path)
    expected = path.read_bytes()
    strait.save_file({}, path)
    path.chmod(0o640)

    def refuse(number):
        def link(*_, **__):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "link", link)

    refuse(errno.EPERM)
    strait.save_file(tensors, path)
    assert path.read_bytes() == expected and path.stat().st_mode & 0o7777 == 0o640 and os.listdir(tmp_path) == ["file"]
    fd = strait.files._open_unnamed(str(tmp_path))
    if fd >= 0:
        os.close(fd)
        refuse(errno.ENOSPC)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            strait.save_file({}, path)
        assert path.read_bytes() == expected and os.listdir(tmp_path) == ["file"]
