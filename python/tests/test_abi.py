"""The Python mirror of the C ABI against the headers and the compiler."""

import ctypes
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import strait
from strait import _abi
from strait.errors import CLASSES

INCLUDE = Path(__file__).resolve().parents[2] / "include"
CODEC_H = INCLUDE / "strait" / "codec.h"
needs_headers = pytest.mark.skipif(not CODEC_H.is_file(), reason="the C headers are not there")

STRUCTS = {
    "strait_class": _abi.Class,
    "strait_pages": _abi.Pages,
    "strait_result": _abi.Result,
    "strait_run": _abi.Run,
    "strait_encode_params": _abi.EncodeParams,
    "strait_encode_item": _abi.EncodeItem,
    "strait_decode_item": _abi.DecodeItem,
    "strait_chunk_info": _abi.ChunkInfo,
}
RECORDS = {
    "strait_region": _abi.REGION,
    "strait_class_stats": _abi.CLASS_STATS,
    "strait_page_info": _abi.PAGE_INFO,
}


@needs_headers
def test_statuses_are_those_of_the_header():
    text = (INCLUDE / "strait" / "status.h").read_text()
    rows = re.findall(r"X\((\w+), (-?\d+), \"(.*?)\"\)", text)
    assert {name: int(value) for name, value, _ in rows} == {s.name: s.value for s in strait.Status}
    assert {int(value): text for _, value, text in rows} == {int(s): _abi.status_text(s) for s in strait.Status}
    assert set(CLASSES) == set(strait.Status) - {strait.Status.OK}


@needs_headers
def test_enums_are_those_of_the_header():
    text = CODEC_H.read_text()

    def members(prefix):
        return {n.lower(): int(v) for n, v in re.findall(rf"STRAIT_{prefix}_(\w+) = (\d+)", text) if not n.startswith("MODES")}

    assert members("ELEMENT") == _abi.ELEMENTS
    assert members("MODE") == _abi.MODES
    counted = {name: i for i, name in enumerate(_abi.BLOCK_MODES)}
    assert members("BLOCK") == counted | {"base": 6, "split": 7, "fp32z": 8}
    assert members("ROLE") == {role.name.lower(): role.value for role in strait.Role}


@needs_headers
def test_every_function_of_the_header_has_a_prototype():
    declared = re.findall(r"STRAIT_API[^;]*?\b(strait_\w+)\(", CODEC_H.read_text())
    assert set(declared) | {"strait_status_string"} == set(_abi._PROTOTYPES)


@needs_headers
def test_structs_lie_in_memory_as_the_compiler_lays_them(tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    layout = {}
    for name, struct in STRUCTS.items():
        layout[name] = (ctypes.sizeof(struct), {f[0]: getattr(struct, f[0]).offset for f in struct._fields_})
    for name, record in RECORDS.items():
        layout[name] = (record.itemsize, {f: record.fields[f][1] for f in record.names})
    lines = ["#include <strait/codec.h>", "#include <stddef.h>"]
    for name, (size, fields) in layout.items():
        lines.append(f'_Static_assert(sizeof(struct {name}) == {size}, "{name}");')
        lines += [f'_Static_assert(offsetof(struct {name}, {f}) == {at}, "{name}.{f}");' for f, at in fields.items()]
    source = tmp_path / "layout.c"
    source.write_text("\n".join(lines) + "\n")
    subprocess.run([compiler, "-fsyntax-only", f"-I{INCLUDE}", str(source)], check=True)


def test_a_missing_library_is_an_import_error(tmp_path):
    code = "import strait"
    environment = {"STRAIT_LIBRARY": str(tmp_path / "none.so"), "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode != 0
    assert "ImportError" in done.stderr and "none.so" in done.stderr and "STRAIT_LIBRARY" in done.stderr


@needs_headers
def test_the_version_is_that_of_the_project():
    cmake = (INCLUDE.parent / "CMakeLists.txt").read_text()
    assert re.search(r"project\(strait VERSION ([\d.]+)", cmake).group(1) == strait.__version__
