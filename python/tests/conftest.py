"""Finds the library in a build folder of the tree when nothing else says where it is."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

TREE = Path(__file__).resolve().parents[2]


def loads(path: Path) -> bool:
    """Not so for another processor's build. A sanitizer's ends the process that loads it, so another one tries."""
    command = [sys.executable, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", str(path)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def find_library(name: str, variable: str) -> None:
    """The newest one."""
    beside = TREE / "python" / "strait" / name
    if variable in os.environ or beside.exists():
        return
    built = sorted(TREE.glob(f"build*/**/{name}"), key=lambda path: path.stat().st_mtime, reverse=True)
    found = next((path for path in built if loads(path)), None)
    if found is not None:
        os.environ[variable] = str(found)


find_library("libstrait-codec.so", "STRAIT_LIBRARY")
find_library("libstrait.so", "STRAIT_CLIENT_LIBRARY")
find_library("libstrait-checkpoint.so", "STRAIT_CHECKPOINT_LIBRARY")
find_library("libstrait-ep.so", "STRAIT_EP_LIBRARY")

import strait  # noqa: E402


@pytest.fixture
def rng():
    seed = int(os.environ.get("STRAIT_TEST_SEED", "20240611"))
    print(f"STRAIT_TEST_SEED={seed}")
    return np.random.default_rng(seed)


@pytest.fixture(scope="module")
def gpu():
    """GPUs of the fake driver, with a stand-in for torch, or real ones. STRAIT_TEST_GPU=1: there must be some."""
    import gpus

    found, why = gpus.find()
    if found is None:
        assert os.environ.get("STRAIT_TEST_GPU") != "1", why
        pytest.skip(why)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", found.torch)
        yield found


@pytest.fixture
def control(gpu):
    """Of the fake driver."""
    if gpu.control is None:
        pytest.skip("needs the fake driver")
    yield gpu.control
    gpu.control.delay_us = gpu.control.mapped_only = gpu.control.capturing = gpu.control.fail = 0


@pytest.fixture(scope="session")
def codebook():
    return strait.calibrate(
        {("k", layer): values_like_kv(1 << 16, seed=layer, scale=1 + layer) for layer in range(3)}
        | {("v", layer): values_like_kv(1 << 16, seed=9 + layer, scale=0.1) for layer in range(3)}
    )


def values_like_kv(count, seed=0, scale=1.0):
    """BF16 values of a bell curve, as uint16 [count]."""
    values = np.random.default_rng(seed).standard_normal(count, np.float32) * np.float32(scale)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


# ---- Places of two workers ------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """Where a worker is."""

    client: Any
    gpu: Any = None
    device: int = 0


HOST_WAYS = ("one daemon", "shm", "tcp", "ucx")
WAYS = dict.fromkeys(HOST_WAYS, "") | {"one GPU": "gg", "two GPUs": "gg", "GPU to host": "gh", "host to GPU": "hg"}


def has_transport(name):
    """The daemon names those of its build where one is not known."""
    said = subprocess.run([os.environ["STRAITD"], "--transports", "?"], capture_output=True, text=True, check=False)
    return name in said.stderr.rpartition(":")[2].strip().split(",")


@pytest.fixture(scope="module", params=WAYS)
def places(request, tmp_path_factory, codebook):
    """Those of the source and of the sink."""
    from daemons import Daemon, connect

    from strait import service

    if request.param == "ucx" and not has_transport("ucx"):
        pytest.skip("the daemon was built without UCX")
    gpus = [None, None]
    if WAYS[request.param]:
        gpu = request.getfixturevalue("gpu")
        gpus = [gpu if kind == "g" else None for kind in WAYS[request.param]]
    folder = tmp_path_factory.mktemp("places")
    codebook.save(folder / "set")
    options = ["--codebook", str(folder / "set"), "--arena-bytes", "64M"]
    options += ["--transports", request.param, "--coding", "tiered"] if request.param in ("tcp", "ucx") else []
    options += ["--coding", "tiered"] if all(gpus) else []
    with contextlib.ExitStack() as stack:
        daemons = []
        for name in ("source", "sink")[: 1 if request.param in ("one daemon", "one GPU") else 2]:
            (folder / name).mkdir()
            daemons.append(Daemon(folder / name, *options))
            stack.callback(daemons[-1].stop)
            daemons[-1].start()
        source = stack.enter_context(service.Client(daemons[0].socket))
        sink = stack.enter_context(service.Client(daemons[-1].socket))
        connect(source, sink)
        other = gpus[1].devices - 1 if request.param == "two GPUs" else 0
        yield Place(source, gpus[0]), Place(sink, gpus[1], other)
