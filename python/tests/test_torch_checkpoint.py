"""strait.torch.checkpoint in one process; tests/frameworks/torch has ranks."""

import contextlib
import io
import os
import pickle
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
checkpoint = pytest.importorskip("strait.checkpoint", reason="libstrait-checkpoint.so", exc_type=ImportError)

import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.metadata import (  # noqa: E402
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

import strait  # noqa: E402
from strait.torch.checkpoint import METADATA, Reader, Stager, Writer, load_file, parse_metadata  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32),
    *(torch.complex64, torch.complex128, torch.float8_e4m3fnuz),  # the last two are saved as bytes
]


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "runs" / "step-1")


def save(state, path, **options):
    writer = Writer(path, **options)
    dcp.save(state, storage_writer=writer)
    return writer


def load(state, path):
    dcp.load(state, storage_reader=Reader(path))
    return state


def values(dtype, *shape):
    torch.manual_seed(7)
    made = torch.randn(*shape, dtype=torch.complex128 if dtype.is_complex else torch.float32) * 3
    return made.to(dtype)


def assert_equal(one, other):
    assert one.dtype == other.dtype and one.shape == other.shape
    as_bytes = [t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (one, other)]
    assert torch.equal(*as_bytes)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(path, dtype):
    state = {"whole": values(dtype, 50, 60), "scalar": values(dtype, 1)[0], "none": values(dtype, 0, 3)}
    save(state, path)
    found = load({name: torch.zeros_like(tensor) for name, tensor in state.items()}, path)
    for name, tensor in state.items():
        assert_equal(found[name], tensor)
    for name, tensor in load_file(path).items():
        assert_equal(tensor, state[name])


def test_views_and_what_they_are_loaded_into(path):
    base = values(torch.float32, 40, 50)
    state = {"turned": base.t(), "part": base[3:20, 5:45:2], "conjugate": values(torch.complex64, 5, 6).conj()}
    state["imaginary"] = state["conjugate"].imag  # a view with its negative bit set
    save(state, path)
    whole = torch.zeros(50, 60)
    into = {
        "turned": whole.t()[:50].t()[:, :40],
        "part": torch.zeros(20, 17).t()[:17],
        "conjugate": torch.zeros(5, 6, dtype=torch.complex64).conj(),
        "imaginary": torch.zeros(6, 5).t(),
    }
    for name, tensor in load(dict(into), path).items():
        assert torch.equal(tensor, state[name]), name
    assert not whole[:, 40:].any()


def test_other_dtypes_are_converted_as_dcp_does(path, tmp_path):
    state = {"w": values(torch.float32, 30, 40)}
    save(state, path)
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path / "theirs"))
    ours, theirs = ({"w": torch.zeros(30, 40, dtype=torch.bfloat16)} for _ in range(2))
    dcp.load(theirs, storage_reader=dcp.FileSystemReader(tmp_path / "theirs"))
    assert_equal(load(ours, path)["w"], theirs["w"])


def test_a_tensor_that_is_loaded_is_known_to_have_changed(path):
    weight = torch.ones(3, 3, requires_grad=True)
    save({"w": torch.zeros(3, 3)}, path)
    loss = (weight * weight).sum()
    load({"w": weight}, path)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_model_its_optimizer_and_objects(path):
    def make(seed):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.BatchNorm1d(30), torch.nn.Linear(30, 5))
        optimizer = torch.optim.AdamW(model.parameters(), lr=seed / 1000)
        model(torch.randn(8, 20)).sum().backward()
        optimizer.step()
        return {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "random": torch.get_rng_state(),
            "arguments": {"name": "a run", "sizes": (1, 2), "nothing": None},
        }

    state = make(1)
    save(state, path)
    found = load(make(2), path)
    assert found["arguments"] == state["arguments"] and torch.equal(found["random"], state["random"])
    assert all(torch.equal(found["model"][name], tensor) for name, tensor in state["model"].items())
    assert found["optimizer"]["param_groups"] == state["optimizer"]["param_groups"]
    for number, one in state["optimizer"]["state"].items():
        assert all(torch.equal(found["optimizer"]["state"][number][name], tensor) for name, tensor in one.items())


def test_what_does_not_fit_is_refused(path):
    save({"w": torch.zeros(3, 4)}, path)
    with pytest.raises(BaseException, match="Size mismatch"):
        load({"w": torch.zeros(4, 3)}, path)
    with pytest.raises(BaseException, match="Missing key"):
        load({"v": torch.zeros(3, 4)}, path)
    with pytest.raises(BaseException, match=r"strait\.index"):
        load({"w": torch.zeros(3, 4)}, os.path.dirname(path))
    with pytest.raises(KeyError, match="optimizer"):
        load_file(path, prefix="optimizer.")
    with pytest.raises(BaseException, match="only dense tensors"):
        save({"w": torch.eye(3).to_sparse()}, path)
    assert load_file(path)["w"].shape == (3, 4)


def test_a_name_that_is_there(path):
    save({"w": torch.zeros(3)}, path)
    with pytest.raises(BaseException, match="overwrite is False"):
        save({"w": torch.ones(3)}, path, overwrite=False)
    assert not load_file(path)["w"].any()
    save({"w": torch.ones(3)}, path)
    assert load_file(path)["w"].all()


def test_a_checkpoint_id_names_the_checkpoint(path):
    dcp.save({"w": torch.ones(3)}, checkpoint_id=path, storage_writer=Writer())
    found = {"w": torch.zeros(3)}
    dcp.load(found, checkpoint_id=path, storage_reader=Reader())
    assert found["w"].all()
    with pytest.raises(ValueError, match="path"):
        dcp.save(found, storage_writer=Writer())
    assert Writer.validate_checkpoint_id(path) and not Writer.validate_checkpoint_id("s3://bucket/name")
    assert Reader.validate_checkpoint_id(path) and not Reader.validate_checkpoint_id(os.path.dirname(path))


def test_keep_and_latest(path):
    for number in range(4):
        save({"w": torch.full((3,), number)}, f"{path}-{number}", keep=2)
    save({"w": torch.full((3,), 9)}, f"{path}-9", latest=False)
    folder = os.path.dirname(path)
    assert sorted(os.listdir(folder)) == ["latest", "step-1-2", "step-1-3", "step-1-9"]
    assert load_file(f"{folder}/latest")["w"][0] == 3


def test_a_save_that_fails_leaves_nothing(path):
    save({"w": torch.zeros(3)}, path)
    writer = Writer(path)
    state = {"w": torch.ones(3), "object": lambda: None}  # which pickle refuses
    with pytest.raises(BaseException, match="pickle"):
        dcp.save(state, storage_writer=writer)
    dcp.save({"w": torch.full((3,), 2)}, storage_writer=writer)  # the same Writer, again
    assert sorted(os.listdir(os.path.dirname(path))) == ["latest", "step-1"]
    assert load_file(path)["w"][0] == 2


def test_checkpoints_that_dcp_has_not_saved(path):
    state = {"w": values(torch.float32, 60, 7), "half": values(torch.bfloat16, 9)}
    save_id = checkpoint.new_save_id()
    os.makedirs(os.path.dirname(path))
    for rank in range(3):
        with checkpoint.Save(path, rank=rank, ranks=3, save_id=save_id) as one:
            one.add("w", state["w"][20 * rank : 20 * rank + 20], shape=(60, 7), offsets=(20 * rank, 0))
            one.add("half", state["half"])  # replicas
            one.end()
    checkpoint.commit(path, save_id, 3)
    for found in (load({name: torch.zeros_like(tensor) for name, tensor in state.items()}, path), load_file(path)):
        assert all(torch.equal(found[name], tensor) for name, tensor in state.items())


def test_gpus_are_served_by_way_of_the_host_where_the_library_does_not(path, monkeypatch):
    """Tensors that say that they are on a GPU, which the library refuses."""
    real = checkpoint._torch_memory_of

    def on_a_gpu(tensor, what):
        memory = real(tensor, what)
        return memory if what.startswith("host") else memory._replace(device=0)

    asked = []
    monkeypatch.setattr(checkpoint, "_torch_memory_of", on_a_gpu)
    monkeypatch.setattr(checkpoint, "_current_device", lambda device: contextlib.nullcontext(asked.append(device)))
    monkeypatch.setattr(checkpoint, "_BUFFER_BYTES", 1000)
    monkeypatch.setattr(
        checkpoint.Checkpoint, "_load_by_host", by_host(checkpoint.Checkpoint._load_by_host, monkeypatch, real)
    )
    state = {name: values(torch.float32, 10, 20) for name in ("host", "a", "b", "c")}
    save(state, path)
    found = load({name: torch.zeros(10, 20) for name in state}, path)
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())
    assert 0 in asked and None in asked


def by_host(function, monkeypatch, real):
    def with_true_places(self, *arguments):
        with monkeypatch.context() as inner:
            inner.setattr(checkpoint, "_torch_memory_of", real)
            function(self, *arguments)

    return with_true_places


# ---- Copies ---------------------------------------------------------------------------------------------------------


def megatron(seed=0):
    torch.manual_seed(seed)
    masters = {f"layers.{i}.w": torch.randn(40, 50) for i in range(3)}
    return {
        "model": {name: master.bfloat16() for name, master in masters.items()},
        "optimizer": {
            "exp_avg": {name: torch.randn(40, 50) for name in masters},
            "fp32_param": masters,
        },
    }


@pytest.mark.parametrize(
    "rule, rounded",
    [
        ("auto", 3),
        (None, 0),
        (
            {"model.layers.1.w": "optimizer.fp32_param.layers.1.w", "model.layers.0.w": "optimizer.exp_avg.layers.0.w"},
            1,
        ),
        (lambda name: name.replace("model", "optimizer.fp32_param") if "layers.2" not in name else None, 2),
        ({"model.layers.0.w": "nobody"}, 0),
    ],
)
def test_copies_by_names_and_values(path, rule, rounded):
    state = megatron()
    assert save(state, path, rounded_from=rule).summary.rounded_shards == rounded
    found = load_file(path)
    assert all(torch.equal(found[f"model.{name}"], tensor) for name, tensor in state["model"].items())


def test_a_copy_that_differs_in_one_value_is_saved(path):
    state = megatron()
    state["model"]["layers.1.w"][39, 49] += 1
    assert save(state, path).summary.rounded_shards == 2
    assert torch.equal(load_file(path)["model.layers.1.w"], state["model"]["layers.1.w"])


# ---- Stager ---------------------------------------------------------------------------------------------------------


def test_a_stager_uses_its_memory_again_when_nobody_does():
    stager = Stager()
    state = {"w": torch.ones(1000), "list": [torch.zeros(5)], "step": 3}
    first = stager.stage(state)
    place = first["w"].data_ptr()
    assert place != state["w"].data_ptr() and first["step"] == 3
    state["w"].fill_(2)
    second = stager.stage(state)  # the first is still in use
    assert (first["w"] == 1).all() and (second["w"] == 2).all() and first["list"][0].data_ptr() != 0
    del first
    third = stager.stage(state)
    assert third["w"].data_ptr() == place and (third["w"] == 2).all()
    stager.close()


def test_an_asynchronous_save_holds_what_was_there(path):
    stager, state = Stager(), {"w": torch.arange(100000).float()}
    for number in range(3):
        future = dcp.async_save(state, storage_writer=Writer(f"{path}-{number}"), async_stager=stager)
        state["w"].add_(1)
        future.result()
    for number in range(3):
        assert load_file(f"{path}-{number}")["w"][0] == number
    stager.close()


# ---- Foreign bytes --------------------------------------------------------------------------------------------------


def metadata():
    tensor = TensorStorageMetadata(
        TensorProperties(torch.bfloat16),
        torch.Size([4, 6]),
        [ChunkStorageMetadata(torch.Size([0, 0]), torch.Size([4, 6]))],
    )
    return Metadata({"w": tensor, "o": BytesStorageMetadata()}, planner_data={"w": ("w",), "o": ("a", 1)})


class Hostile:
    def __reduce__(self):
        return os.system, ("touch /nowhere/at/all",)


class Own:
    """What a planner of one's own might keep."""


def test_metadata_is_read_and_what_runs_code_is_refused():
    assert parse_metadata(pickle.dumps(metadata()), "here") == metadata()
    for bad in (Hostile(), Metadata({"w": Hostile()}), Metadata({}, planner_data=torch.load), Metadata({}, Own())):
        with pytest.raises(strait.CorruptError, match="here"):
            parse_metadata(pickle.dumps(bad), "here")
    for bad in (Metadata({"w": 5}), Metadata([]), 7, Metadata({1: BytesStorageMetadata()})):
        with pytest.raises(strait.CorruptError, match="where it has"):
            parse_metadata(pickle.dumps(bad), "here")
    with torch.serialization.safe_globals([Own]):
        found = parse_metadata(pickle.dumps(Metadata({}, planner_data=Own())), "here")
    assert isinstance(found.planner_data, Own)


def test_metadata_that_is_damaged_is_refused_or_is_metadata(rng):
    good = pickle.dumps(metadata(), protocol=4)
    refused = 0
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(int(rng.integers(1, 4))):
            data[int(rng.integers(len(data)))] = int(rng.integers(256))
        if rng.random() < 0.1:
            data = data[: int(rng.integers(len(data)))]
        try:
            assert isinstance(parse_metadata(bytes(data), "here"), Metadata)
        except strait.CorruptError:
            refused += 1
    assert refused > 1500


def test_a_checkpoint_whose_metadata_is_hostile(path):
    os.makedirs(os.path.dirname(path))
    checkpoint.save(path, {"w": torch.zeros(3)}, attachments={METADATA: pickle.dumps(Hostile())})
    with pytest.raises(BaseException, match="no class of DCP's metadata"):
        load({"w": torch.zeros(3)}, path)


# ---- From DCP -------------------------------------------------------------------------------------------------------


def test_checkpoints_of_torch_are_converted(path, tmp_path, capsys):
    state = megatron() | {"complex": values(torch.complex128, 4), "object": {"a": [1, None]}, "scalar": torch.tensor(2)}
    theirs = str(tmp_path / "theirs")
    dcp.save(state, storage_writer=dcp.FileSystemWriter(theirs))
    os.makedirs(os.path.dirname(path))
    assert checkpoint.main(["from-dcp", theirs, path]) == 0
    assert "times smaller" in capsys.readouterr().out
    found = load_file(path)
    for name, tensor in load_theirs(theirs).items():
        assert_equal(found[name], tensor)
    with checkpoint.open(path) as one:
        copies = [shard.rounded_from for name in one if name.startswith("model.") for shard in one.shards(name)]
        assert copies == [f"optimizer.fp32_param.layers.{i}.w" for i in range(3)]
    back = load({"object": {"a": []}, "scalar": torch.tensor(0)}, path)
    assert back["object"] == {"a": [1, None]} and back["scalar"] == 2


def load_theirs(folder):
    described = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    tensors = {n: torch.zeros(m.size, dtype=m.properties.dtype) for n, m in described.items() if hasattr(m, "size")}
    dcp.load(tensors, storage_reader=dcp.FileSystemReader(folder))
    return tensors


@pytest.mark.parametrize(
    "data",
    [b"", b"not a pickle", pickle.dumps(Hostile()), pickle.dumps(metadata())],
    ids=["empty", "text", "hostile", "without places"],
)
def test_metadata_of_torch_that_is_not_good(path, tmp_path, capsys, data):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / ".metadata").write_bytes(data)
    os.makedirs(os.path.dirname(path))
    assert checkpoint.main(["from-dcp", str(theirs), path]) == 1
    told = capsys.readouterr().err
    assert told.startswith("strait.checkpoint: ") and ".metadata" in told and told.count("\n") == 1
    assert os.listdir(os.path.dirname(path)) == []


@pytest.mark.parametrize("data", [None, b"", b"something else" * 1000], ids=["gone", "empty", "other"])
def test_a_file_of_torch_that_is_not_good_leaves_nothing(path, tmp_path, capsys, data):
    theirs = tmp_path / "theirs"
    dcp.save({"w": torch.zeros(3)}, storage_writer=dcp.FileSystemWriter(theirs))
    (theirs / "__0_0.distcp").unlink()
    if data is not None:
        (theirs / "__0_0.distcp").write_bytes(data)
    os.makedirs(os.path.dirname(path))
    assert checkpoint.main(["from-dcp", str(theirs), path]) == 1
    assert "__0_0.distcp" in capsys.readouterr().err and os.listdir(os.path.dirname(path)) == []


def test_importing_strait_torch_imports_no_torch():
    code = "import sys, strait.torch; assert 'torch' not in sys.modules; strait.torch.checkpoint.Writer"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    code = "import strait.torch; strait.torch.nothing"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert "AttributeError" in done.stderr and "nothing" in done.stderr


def environment():
    return {**os.environ, "PYTHONPATH": ":".join(sys.path)}


def test_bytes_that_a_planner_gives_are_taken_whole(path):
    class Planner(dcp.DefaultSavePlanner):
        def transform_object(self, write_item, object):
            found = super().transform_object(write_item, object)
            if isinstance(found, io.BytesIO):
                found.seek(3)  # where the stream stands does not matter
            return found

    dcp.save({"object": {"x": "y"}}, storage_writer=Writer(path), planner=Planner())
    assert load({"object": {"x": ""}}, path)["object"]["x"] == "y"
