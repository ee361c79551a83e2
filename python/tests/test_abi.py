"""The Python mirror of the C ABI against the headers and the compiler."""

import ctypes
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import strait
from strait import _abi, _abi_ep
from strait.errors import CLASSES

INCLUDE = Path(__file__).resolve().parents[2] / "include"
pytestmark = pytest.mark.skipif(not (INCLUDE / "strait").is_dir(), reason="the C headers are not there")

# Structs are ctypes' or, where they come in arrays, records of numpy.
HEADERS = {
    "codec.h": (
        _abi._PROTOTYPES,
        {
            "class": _abi.Class,
            "pages": _abi.Pages,
            "result": _abi.Result,
            "run": _abi.Run,
            "encode_params": _abi.EncodeParams,
            "encode_item": _abi.EncodeItem,
            "decode_item": _abi.DecodeItem,
            "chunk_info": _abi.ChunkInfo,
            "region": _abi.REGION,
            "class_stats": _abi.CLASS_STATS,
            "page_info": _abi.PAGE_INFO,
        },
    ),
    "strait.h": (
        _abi._CLIENT_PROTOTYPES,
        {
            "client_config": _abi.ClientConfig,
            "memory": _abi.MemoryInfo,
            "pool_region": _abi.PoolRegion,
            "pool_params": _abi.PoolParams,
            "page_list": _abi.PageList,
            "expect_params": _abi.ExpectParams,
            "offer_params": _abi.OfferParams,
            "append_params": _abi.AppendParams,
            "start_params": _abi.StartParams,
            "fence_params": _abi.FenceParams,
            "read_params": _abi.ReadParams,
            "failed_page": _abi.FailedPage,
            "event": _abi.RawEvent,
            "progress": _abi.ProgressInfo,
        },
    ),
    "checkpoint.h": (
        _abi._CHECKPOINT_PROTOTYPES,
        {
            "checkpoint_tensor": _abi.CheckpointTensor,
            "checkpoint_save_options": _abi.CheckpointSaveOptions,
            "checkpoint_summary": _abi.CheckpointSummary,
            "checkpoint_attachment": _abi.CheckpointAttachment,
            "checkpoint_commit_options": _abi.CheckpointCommitOptions,
            "checkpoint_candidate": _abi.CheckpointCandidate,
            "checkpoint_tensor_info": _abi.CheckpointTensorInfo,
            "checkpoint_shard_info": _abi.CheckpointShardInfo,
            "checkpoint_info": _abi.CheckpointInfo,
            "checkpoint_box": _abi.CheckpointBox,
            "checkpoint_damage": _abi.CheckpointDamage,
            "checkpoint_load_options": _abi.CheckpointLoadOptions,
        },
    ),
    "ep.h": (
        _abi_ep._EP_PROTOTYPES,
        {
            "ep_config": _abi_ep.EpConfig,
            "ep_handle_config": _abi_ep.EpHandleConfig,
            "ep_routing": _abi_ep.EpRouting,
            "ep_tensor": _abi_ep.EpTensor,
            "ep_quantization": _abi_ep.EpQuantization,
            "ep_dispatch_in": _abi_ep.EpDispatchIn,
            "ep_dispatch_out": _abi_ep.EpDispatchOut,
            "ep_combine_in": _abi_ep.EpCombineIn,
            "ep_combine_out": _abi_ep.EpCombineOut,
            "ep_info": _abi_ep.EpInfo,
        },
    ),
}


def text_of(header):
    return (INCLUDE / "strait" / header).read_text()


def test_statuses_are_those_of_the_header():
    rows = re.findall(r"X\((\w+), (-?\d+), \"(.*?)\"\)", text_of("status.h"))
    assert {name: int(value) for name, value, _ in rows} == {s.name: s.value for s in strait.Status}
    assert {int(value): text for _, value, text in rows} == {int(s): _abi.status_text(s) for s in strait.Status}
    assert set(CLASSES) == set(strait.Status) - {strait.Status.OK}


def test_reasons_are_those_of_the_header():
    service = pytest.importorskip("strait.service", exc_type=ImportError)
    rows = re.findall(r"X\((\w+), (\d+), \"(.*?)\"\)", text_of("strait.h"))
    assert {name: (int(value), text) for name, value, text in rows} == {
        r.name: (int(r), r.text) for r in service.Reason
    }


def test_enums_are_those_of_the_header():
    def members(prefix):
        rows = re.findall(rf"STRAIT_{prefix}_(\w+) = (\d+)", text_of("codec.h"))
        return {name.lower(): int(value) for name, value in rows if not name.startswith("MODES")}

    assert members("ELEMENT") == _abi.ELEMENTS
    assert members("MODE") == _abi.MODES
    counted = {name: i for i, name in enumerate(_abi.BLOCK_MODES)}
    assert members("BLOCK") == counted | {"base": 6, "split": 7, "fp32z": 8, "fp8": 10, "parts": 11}
    assert members("ROLE") == {role.name.lower(): role.value for role in strait.Role}


@pytest.mark.parametrize(
    "head, prefix, kind",
    [
        ("strait_state", "", "State"),
        ("strait_event_type", "EVENT_", "EventType"),
        ("strait_mismatch", "MISMATCH_", "Mismatch"),
        ("strait_direction", "", "Direction"),
        ("strait_coding", "CODING_", "Coding"),
    ],
)
def test_enums_of_the_service_are_those_of_the_header(head, prefix, kind):
    kind = getattr(pytest.importorskip("strait.service", exc_type=ImportError), kind)
    body = re.search(rf"enum {head} \{{(.*?)\n\}};", text_of("strait.h"), re.DOTALL).group(1)
    theirs = {name: int(value) for name, value in re.findall(r"STRAIT_(\w+) = (\d+)", body)}
    assert theirs == {prefix + name: int(kind[name]) for name in kind.__members__ if name != "FATAL"}


def test_enums_of_checkpoints_are_those_of_the_header():
    rows = re.findall(r"    STRAIT_CHECKPOINT_(\w+) = (\d+)", text_of("checkpoint.h"))
    ours = _abi.CHECKPOINT_MEMORY | _abi.CHECKPOINT_SAVE_FLAGS | _abi.CHECKPOINT_COMMIT_FLAGS
    assert {name.lower(): int(value) for name, value in rows} == ours


def test_enums_of_expert_parallelism_are_those_of_the_header():
    rows = re.findall(r"STRAIT_EP_(\w+) = (\d+)", text_of("ep.h"))
    ours = (
        _abi_ep.EP_ALGORITHMS
        | _abi_ep.EP_LAYOUTS
        | _abi_ep.EP_MEMORY
        | _abi_ep.EP_CODING
        | _abi_ep.EP_OVERFLOW
        | _abi_ep.EP_FLAGS
    )
    assert {name.lower(): int(value) for name, value in rows} == ours
    sizes = dict(re.findall(r"#define STRAIT_EP_(\w+) +(\d+)u", text_of("ep.h")))
    for name in ("RANKS_MAX", "TOPK_MAX", "SCALE_VALUES"):
        assert int(sizes[name]) == getattr(_abi_ep, f"EP_{name}")


@pytest.mark.parametrize("header", HEADERS)
def test_every_function_of_the_header_has_a_prototype(header):
    declared = re.findall(r"STRAIT_API[^;]*?\b(strait_\w+)\(", text_of(header))
    assert set(declared) | {"strait_status_string"} == set(HEADERS[header][0])


@pytest.mark.parametrize("header", HEADERS)
def test_structs_lie_in_memory_as_the_compiler_lays_them(header, tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    lines = [f"#include <strait/{header}>", "#include <stddef.h>"]
    for name, struct in HEADERS[header][1].items():
        if isinstance(struct, type):
            size, fields = (
                ctypes.sizeof(struct),
                {field[0]: getattr(struct, field[0]).offset for field in struct._fields_},
            )
        else:
            size, fields = struct.itemsize, {field: struct.fields[field][1] for field in struct.names}
        lines.append(f'_Static_assert(sizeof(struct strait_{name}) == {size}, "{name}");')
        lines += [
            f'_Static_assert(offsetof(struct strait_{name}, {f}) == {at}, "{name}.{f}");' for f, at in fields.items()
        ]
    source = tmp_path / "layout.c"
    source.write_text("\n".join(lines) + "\n")
    subprocess.run([compiler, "-fsyntax-only", f"-I{INCLUDE}", str(source)], check=True)


def test_a_missing_library_is_an_import_error(tmp_path):
    code = "import strait"
    environment = {"STRAIT_LIBRARY": str(tmp_path / "none.so"), "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode != 0
    assert "ImportError" in done.stderr and "none.so" in done.stderr and "STRAIT_LIBRARY" in done.stderr


def test_the_version_is_that_of_the_project():
    cmake = (INCLUDE.parent / "CMakeLists.txt").read_text()
    assert re.search(r"project\(strait VERSION ([\d.]+)", cmake).group(1) == strait.__version__
