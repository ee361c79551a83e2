"""strait.torch.ep over process groups of gloo, and the example of a layer of experts that trains."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TREE

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("strait.ep", reason="libstrait-ep.so", exc_type=ImportError)

RANKS = Path(__file__).with_name("ep_ranks.py")
TRAIN = TREE / "examples" / "moe" / "train.py"


def run_ranks(count, command, environment_of):
    """What the ranks have printed."""
    path = os.pathsep.join([str(TREE / "python"), str(RANKS.parent)])
    common = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, *command(rank)], env=common | environment_of(rank),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(count)
    ]  # fmt: skip
    try:
        outputs = [rank.communicate(timeout=170)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * count, "\n".join(outputs)
    return outputs


def test_steps_and_gradients_are_those_of_one_process(tmp_path):
    outputs = run_ranks(4, lambda rank: [str(RANKS), str(tmp_path / "store"), str(rank), "4"], lambda rank: {})
    assert all(output.split() == outputs[0].split() and len(output.split()) == 7 for output in outputs)


@pytest.mark.skipif(not TRAIN.exists(), reason="the examples are not there")
@pytest.mark.parametrize(
    ("arguments", "hosts"),
    [(["--dtype", "float32"], 1), (["--dtype", "bfloat16", "--coding", "coded"], 1), (["--dtype", "float32"], 2)],
)
def test_the_example_trains_as_one_process_does(arguments, hosts):
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    environment = {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NCCL_SOCKET_IFNAME": "=lo"}
    outputs = run_ranks(
        4,
        lambda rank: [str(TRAIN), "--steps", "6", *arguments],
        lambda rank: (
            environment | {"RANK": str(rank), "LOCAL_RANK": str(rank), "NCCL_HOSTID": f"host-{rank * hosts // 4}"}
        ),
    )
    medium = "4 ranks, shared memory and TCP:" if hosts > 1 else "4 ranks, shared memory:"
    assert "bit for bit" in outputs[0] and medium in outputs[0], outputs[0]
