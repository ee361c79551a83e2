"""strait.torch.checkpoint under torch.distributed.checkpoint, FSDP2 and AdamW, with ranks that are processes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import small_state
import training
from ranks import run, try_run

from strait import checkpoint


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "runs" / "step-1")


def names_in(path):
    folder = os.path.dirname(path)
    return sorted(os.listdir(folder)) if os.path.exists(folder) else []


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_resumed_training_is_the_same_bit_for_bit(path, ranks):
    whole = run(ranks, training.train, 40)
    half = run(ranks, training.train, 20, None, path)
    resumed = run(ranks, training.train, 20, path, None, 9)
    assert resumed == whole and half != whole and len(set(whole)) == 1
    with checkpoint.open(path) as found:
        assert found.files == ranks
        assert any("exp_avg_sq" in name for name in found)


def test_eight_ranks_save_and_three_load(path):
    saved = run(8, training.save_sharded, path)
    assert run(3, training.load_sharded, path) == [saved[0][0]] * 3
    assert run(1, training.load_sharded, path) == [saved[0][0]]
    with checkpoint.open(path) as found:
        shards = {name: len(found.shards(name)) for name in found}
        assert sum(shards.values()) == sum(count for _, count in saved)
    assert all(shards[name] == 1 for name in ("same", "plain", "scalar", "object.text", "complex"))
    assert shards["rows"] == 8 and 2 <= shards["few"] <= 8


def test_megatrons_bf16_copies_cost_nothing(path):
    saved = run(2, training.save_megatron, path)
    assert [rounded for rounded, _ in saved] == [6, 6]
    assert run(1, training.load_megatron, path) == [saved[0][1]]


@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
def test_async_saves_hold_what_was_there_when_they_began(tmp_path, process):
    ((digests, sets), *others) = run(2, training.save_async, str(tmp_path), process)
    assert sets == 1 and len(set(digests)) == 3 and all(other == (digests, sets) for other in others)
    for number, digest in enumerate(digests):
        assert run(1, training.load_digest, f"{tmp_path}/step-{number}") == [digest]


def test_plans_that_the_planner_caches(tmp_path):
    for found in run(2, training.save_cached, str(tmp_path)):
        for number, (value, owners, values) in enumerate(found):
            assert value == number and values == {float(number)}
            assert owners == (["0", "1"] if number < 3 else ["0", "1", "more"])


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_in_the_middle_leaves_the_checkpoint_before(path, victim):
    saved = run(3, training.save_sharded, path)
    before = checkpoint.open(path).save_id
    outcomes = try_run(3, training.save_killed, path, victim)
    assert outcomes[victim].exit == -9 and all(outcome.error for outcome in outcomes)
    with checkpoint.open(path) as found:
        assert found.save_id == before and found.verify() == []
    assert checkpoint.newest(os.path.dirname(path)) == path
    assert run(2, training.load_sharded, path) == [saved[0][0]] * 2
    run(3, training.save_sharded, path)  # what the dead have left is in nobody's way
    assert checkpoint.open(path).save_id != before


@pytest.mark.parametrize("rank", [0, 2])
def test_an_error_of_one_rank_reaches_all_and_leaves_nothing(path, rank):
    saved = run(3, training.save_sharded, path)
    outcomes = try_run(3, training.save_faulty, path, rank, 2, False)
    assert all("CheckpointException" in outcome.error for outcome in outcomes)
    assert all("this rank has no more memory" in outcome.error for outcome in outcomes)
    assert names_in(path) == ["latest", "step-1"]
    assert run(1, training.load_sharded, path) == [saved[0][0]]


def test_a_model_that_is_another_is_refused_on_all_ranks(path):
    run(2, training.train, 1, None, path)
    for outcome in try_run(2, training.load_wrong_model, path):
        assert "Size mismatch" in outcome.error and "0.weight" in outcome.error
    for outcome in try_run(2, training.load_missing, path):
        assert "Missing key" in outcome.error and "head.weight" in outcome.error


def test_damage_is_told_on_all_ranks(path):
    run(2, training.save_sharded, path)
    with open(f"{path}/00001.strait", "r+b") as file:
        file.seek(4200)
        byte = file.read(1)
        file.seek(4200)
        file.write(bytes([byte[0] ^ 1]))
    for outcome in try_run(2, training.load_sharded, path):
        assert "CheckpointException" in outcome.error and "00001.strait" in outcome.error


def test_saves_that_are_refused(path):
    for outcome in try_run(2, training.save_without_collectives, path):
        assert "use_collectives" in outcome.error
    run(2, training.save_refusing, path)
    for outcome in try_run(2, training.save_refusing, path):
        assert "overwrite is False" in outcome.error


@pytest.mark.parametrize("extensions", [False, True], ids=["plain", "zstd"])
def test_checkpoints_of_torch_are_converted(path, tmp_path, extensions):
    theirs = str(tmp_path / "dcp")
    saved = run(4, training.save_with_torch, theirs, extensions)
    os.makedirs(os.path.dirname(path))
    assert checkpoint.main(["from-dcp", theirs, path, "--memory", "0"]) == 0
    assert run(3, training.load_sharded, path) == [saved[0]] * 3
    with checkpoint.open(path) as found:
        assert found.files > 4 and found.verify() == []
    assert checkpoint.main(["from-dcp", theirs, path]) == 1  # it is there
    assert checkpoint.main(["from-dcp", theirs, path, "--overwrite"]) == 0
    with checkpoint.open(path) as found:
        assert found.files == 1


EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "checkpoint_pytorch.py"


def run_example(ranks, *options):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    ran = subprocess.run(
        [*command, EXAMPLE, *map(str, options)], capture_output=True, text=True, timeout=240, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


def test_the_example_goes_on_where_it_was(tmp_path):
    whole = run_example(2, tmp_path / "whole", "--steps", 8, "--every", 2)
    first = run_example(2, tmp_path / "parts", "--steps", 4, "--every", 2)
    then = run_example(2, tmp_path / "parts", "--steps", 8, "--every", 2)
    losses = [re.findall(r"^step (\d+): loss (\S+)", text, re.MULTILINE) for text in (whole, first, then)]
    assert losses[0] == losses[1] + losses[2] and len(losses[0]) == 4
    assert "2 ranks begin after step 4" in then
    assert sorted(os.listdir(tmp_path / "parts")) == ["latest", "step-000006", "step-000008"]
    assert "3 ranks begin after step 8" in run_example(3, tmp_path / "parts", "--steps", 8)


def test_a_small_training_state_becomes_smaller(tmp_path, monkeypatch):
    monkeypatch.setattr(small_state, "TEXT_BYTES", 1_000_000)
    (state,) = (state for _, state in small_state.train(3))
    found = {name: raw / stored for name, (raw, stored) in small_state.ratios(state, tmp_path).items()}
    assert found.keys() == small_state.MIXES.keys() and min(found.values()) > 1.1
    copies = found["Megatron: BF16 copy, F32 weights, m, v"] / found["FSDP2: F32 weights, m, v"]
    assert 7 / 6 * 0.99 < copies < 7 / 6 * 1.01  # the BF16 copies cost nothing
