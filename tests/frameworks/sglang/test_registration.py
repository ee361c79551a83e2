"""How SGLang comes to know of the backend: by its plug-ins, and by the patch of deploy/sglang."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import sglang
from rig import kv_class
from sglang.srt.disaggregation.common.conn import (
    CommonKVBootstrapServer,
    CommonKVManager,
    CommonKVReceiver,
    CommonKVSender,
)
from sglang.srt.disaggregation.utils import KVClassType, TransferBackend, get_kv_class

ROOT = Path(__file__).resolve().parents[3]
PATCH = ROOT / "deploy" / "sglang" / "strait-backend.patch"
#: What a launcher of SGLang does before its engine starts.
LAUNCH = """
import sys
from sglang.srt.plugins import load_plugins
{before}
from sglang.srt.server_args import prepare_server_args
args = prepare_server_args(["--model-path", "dummy", "--disaggregation-mode", "decode",
                            "--disaggregation-transfer-backend", "strait", "--device", "cpu"])
from sglang.srt.disaggregation import decode, prefill
from sglang.srt.disaggregation.utils import KVClassType, TransferBackend
backend = TransferBackend(args.disaggregation_transfer_backend)
for module in (prefill, decode):
    found = [module.get_kv_class(backend, kind).__name__.removeprefix("StraitKV") for kind in KVClassType]
    assert found == ["KVArgs", "Manager", "Sender", "Receiver", "BootstrapServer"], found
    assert module.get_kv_class(TransferBackend.FAKE, KVClassType.SENDER).__name__ == "FakeKVSender"
print("strait", backend.name, list(TransferBackend.__members__)[-1], TransferBackend.STRAIT is backend)
"""


def launch(before="", *folders, **more):
    path = os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, **more}
    return subprocess.run(
        [sys.executable, "-c", LAUNCH.format(before=before)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_classes_have_the_bases_that_sglang_wants():
    bases = {
        KVClassType.MANAGER: CommonKVManager,
        KVClassType.SENDER: CommonKVSender,
        KVClassType.RECEIVER: CommonKVReceiver,
        KVClassType.BOOTSTRAP_SERVER: CommonKVBootstrapServer,
    }
    for kind, base in bases.items():
        assert get_kv_class(TransferBackend.STRAIT, kind) is kv_class[kind] and issubclass(kv_class[kind], base)
        assert not issubclass(get_kv_class(TransferBackend.FAKE, kind) or type, kv_class[kind])
    with pytest.raises(ValueError):
        TransferBackend("another")


def test_the_plugin_of_the_wheel_is_found(tmp_path):
    command = [sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", str(tmp_path)]
    subprocess.run(command, cwd=ROOT / "python", check=True, capture_output=True, timeout=120)
    assert "sglang.srt.plugins" in (tmp_path / "strait.egg-info" / "entry_points.txt").read_text()
    done = launch("load_plugins()", tmp_path)
    assert done.stdout == "strait STRAIT STRAIT True\n", done.stdout + done.stderr
    done = launch("load_plugins()", tmp_path, SGLANG_PLUGINS="another")  # an operator may leave it out
    assert done.returncode != 0 and "invalid choice: 'strait'" in done.stderr


def test_register(tmp_path):
    done = launch("from strait.sglang import register; register(); register(); load_plugins()")
    assert done.stdout == "strait STRAIT STRAIT True\n", done.stdout + done.stderr


def test_sglang_alone_does_not_know_it():
    done = launch()
    assert done.returncode != 0 and "invalid choice: 'strait'" in done.stderr


def test_the_patch(tmp_path):
    """It applies to the package as released, which then has the backend, with or without the plug-in."""
    package = Path(sglang.__file__).parent
    shutil.copytree(
        package, tmp_path / "sglang", copy_function=os.symlink, ignore=shutil.ignore_patterns("__pycache__")
    )
    for line in PATCH.read_text().splitlines():
        if line.startswith("+++ b/python/"):
            name = line.removeprefix("+++ b/python/")
            (tmp_path / name).unlink()
            shutil.copyfile(package.parent / name, tmp_path / name)
    command = ["patch", "--strip", "2", "--fuzz", "0", "--input", str(PATCH)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for before in ("", "from strait.sglang import register; register()"):
        done = launch(before, tmp_path)
        assert done.stdout == "strait STRAIT STRAIT True\n", done.stdout + done.stderr
