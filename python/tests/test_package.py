"""Types, the README's example and the wheel."""

import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import strait

HERE = Path(__file__).resolve().parents[1]
USER = """
import numpy as np
import strait

book: strait.Codebook = strait.calibrate({("k", 0): np.zeros(8, np.uint16), "layers.0.v": [b"1234"]})
pool = np.zeros((4, 16), np.uint16)
pages = strait.PageList({("k", 0): pool}, ids=[0, 2])
pages = strait.PageList([pool], np.arange(3), tables=[("k", 0)])
chunk: bytes = strait.encode(pages, book, mode="top16", table="layers.0.k")
view: memoryview = strait.encode(b"1234", book, out=bytearray(strait.encode_bound(b"1234")))
same: strait.PageList = strait.decode(chunk, book, pages, select=[0])
buffer: bytearray = strait.decode(chunk, None, bytearray(7))
array = strait.decode(memoryview(chunk), book).reshape(-1)
try:
    strait.verify(chunk, book)
except strait.DataError as error:
    failed: list[int] = error.failed_pages
"""


def test_types_hold(tmp_path):
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    user = tmp_path / "user.py"
    user.write_text(USER)
    package = Path(strait.__file__).parent
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), str(package), str(user)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=package.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    user.write_text(USER + 'strait.encode(pool, book, mode="zip")\n')
    done = subprocess.run(command, capture_output=True, text=True, cwd=package.parent)
    assert "arg-type" in done.stdout or "call-overload" in done.stdout


def test_the_readme_example_runs(tmp_path):
    examples = re.findall(r"```python\n(.*?)```", (HERE / "README.md").read_text(), re.DOTALL)
    assert examples
    environment = {**os.environ, "PYTHONPATH": str(Path(strait.__file__).parents[1])}
    for example in examples:
        subprocess.run([sys.executable, "-c", example], check=True, cwd=tmp_path, env=environment)


def test_public_names_are_documented():
    for name in strait.__all__:
        assert getattr(strait, name).__doc__, name


@pytest.mark.skipif("STRAIT_TEST_WHEEL" not in os.environ, reason="builds the library: set STRAIT_TEST_WHEEL=1")
def test_the_wheel_brings_the_library(tmp_path):
    named = {"STRAIT_LIBRARY", "STRAIT_CLIENT_LIBRARY", "STRAIT_CHECKPOINT_LIBRARY"}
    environment = {name: value for name, value in os.environ.items() if name not in named}
    pip = [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(tmp_path), str(HERE)], check=True, env=environment)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"strait-{strait.__version__}-py3-none-linux_{os.uname().machine}.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert {
        f"strait/{name}"
        for name in ("libstrait-codec.so", "libstrait.so", "libstrait-checkpoint.so", "libstrait-ep.so", "py.typed")
    } <= set(names)
    site = tmp_path / "site"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), str(wheel)], check=True)
    code = "import strait, strait.service, strait.checkpoint, strait.ep; print(strait.__file__, strait.variants())"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**environment, "PYTHONPATH": str(site)}, cwd=tmp_path, stdout=-1, text=True
    )
    assert done.returncode == 0 and str(site) in done.stdout


@pytest.mark.skipif("STRAIT_TEST_WHEEL" not in os.environ, reason="builds the library: set STRAIT_TEST_WHEEL=1")
def test_the_sdist_builds_alone(tmp_path):
    named = {"STRAIT_LIBRARY", "STRAIT_CLIENT_LIBRARY", "STRAIT_CHECKPOINT_LIBRARY"}
    environment = {name: value for name, value in os.environ.items() if name not in named}
    call = "import setuptools.build_meta as backend, sys; print(backend.build_sdist(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", call, str(tmp_path)], check=True, cwd=HERE, env=environment)
    (sdist,) = tmp_path.glob("*.tar.gz")
    site = tmp_path / "site"
    install = ["-m", "pip", "install", "--no-deps", "--no-build-isolation", "--target", str(site), str(sdist)]
    subprocess.run([sys.executable, *install], check=True, cwd=tmp_path, env=environment)
    assert {path.name for path in site.glob("strait-*.dist-info/licenses/*")} == {"LICENSE", "NOTICE"}
    code = "import strait; print(strait.__file__, strait.decode(strait.encode(bytes(100), None), None))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**environment, "PYTHONPATH": str(site)}, cwd=tmp_path, stdout=-1, text=True
    )
    assert done.returncode == 0 and str(site) in done.stdout
