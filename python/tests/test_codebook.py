"""Codebooks: calibrating, classes, files, and real KV caches."""

import copy
import gc
import json
import os
import pickle
import re
import subprocess
import weakref
from pathlib import Path

import numpy as np
import pytest
from conftest import values_like_kv

import strait
from strait import Class, Role

TREE = Path(__file__).resolve().parents[2]
COMMAND_NAMES = TREE / "tests" / "tools" / "test_input.c"
SLICE = TREE / "tests" / "data" / "kv-slice.safetensors"
needs_slice = pytest.mark.skipif(not SLICE.is_file(), reason="tests/data/kv-slice.safetensors is not there")


def exponents(values):
    return (values >> 7 & 0xFF).astype(np.uint8)


def ranking_of(values):
    counts = np.bincount(exponents(values), minlength=256)
    return np.lexsort((np.arange(256), -counts))


def test_one_array_gives_the_fallback_alone():
    values = values_like_kv(5000)
    book = strait.calibrate(values)
    assert len(book) == 1 and book.cls(0) == Class(Role.OTHER, None)
    assert (book.ranking(0) == ranking_of(values)).all()


def test_an_iterable_counts_like_the_whole():
    values = values_like_kv(9000)
    parts = (values[at : at + 1000].reshape(10, 100) for at in range(0, 9000, 1000))
    assert strait.calibrate(parts) == strait.calibrate(values) == strait.calibrate([values])


def test_classes_get_their_own_tables():
    arrays = {("v", 1): values_like_kv(900, 1), ("k", 1): values_like_kv(900, 2), ("K", 0): values_like_kv(900, 3, 8.0)}
    arrays["other", None] = values_like_kv(90, 4)
    arrays["k", None] = values_like_kv(80, 5)
    arrays["v", 7] = []
    book = strait.calibrate(arrays)
    assert [book.cls(table) for table in range(len(book))] == [
        (Role.OTHER, None),
        (Role.OTHER, None),
        (Role.K, None),
        (Role.K, 0),
        (Role.K, 1),
        (Role.V, 1),
        (Role.KV, 1),  # of both together
    ]
    assert (book.ranking(3) == ranking_of(arrays["K", 0])).all()
    assert (book.ranking(0) == ranking_of(np.concatenate([values for values in arrays.values() if len(values)]))).all()
    assert book.find("k", 1) == book.find(("k", 1)) == book.find("layers.1.k") == book.find(Role.K, 1) == 4
    assert book.find("k", 77) == 2 and book.find("v") == 0 and book.find("v", 1) == 5
    assert book.find("other", 1) == book.find("embedding") == 1


def test_keys_of_one_class_are_counted_together():
    a, b = values_like_kv(900, 1), values_like_kv(900, 2, 5.0)
    book = strait.calibrate({"layers.0.k": a, "model.layers.0.self_attn.key_cache": [b]})
    assert [book.cls(t) for t in range(len(book))] == [(Role.OTHER, None), (Role.K, 0)]
    assert (book.ranking(1) == ranking_of(np.concatenate([a, b]))).all()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("layers.3.k", (Role.K, 3)),
        ("model.layers.12.key_cache", (Role.K, 12)),
        ("v", (Role.V, None)),
        ("kv", (Role.OTHER, None)),
        ("h.5.mlp", (Role.OTHER, 5)),
        ("layers.5.k_proj.weight", (Role.OTHER, 5)),
        (".layers.3.k".rjust(4096, "."), (Role.K, 3)),
        (".layers.3.k".rjust(4097, "."), (Role.OTHER, None)),
        ("", (Role.OTHER, None)),
        (("other", None), (Role.OTHER, None)),
        ((Role.V, 2), (Role.V, 2)),
    ],
)
def test_class_names(name, expected):
    assert strait.class_of(name) == expected


@pytest.mark.skipif(not (TREE / "tests").is_dir(), reason="the tests of the command are not there")
def test_names_are_read_as_the_command_reads_them():
    table = COMMAND_NAMES.read_text().partition("} names[] = {")[2].partition("};")[0]
    rows = re.findall(r'^ *\{"(.*)", (K|V|OTHER), (-1|\d+|INT32_MAX)\},$', table, re.MULTILINE)
    assert len(rows) > 40
    for name, role, layer in rows:
        number = {"-1": None, "INT32_MAX": str(2**31 - 1)}.get(layer, layer)
        expected = Class(Role[role], None if number is None else int(number))
        assert strait.class_of(name.encode().decode("unicode_escape")) == expected, name


@pytest.mark.parametrize("bad", [("q", 1), ("k", -1), ("k", 2**31)])
def test_bad_classes_are_refused(bad):
    with pytest.raises(ValueError):
        strait.class_of(bad)


@pytest.mark.parametrize("nothing", [[], {}, np.zeros(0, np.uint16), {("k", 0): np.zeros(0, np.uint16)}])
def test_nothing_to_calibrate_with(nothing):
    with pytest.raises(ValueError, match="no values"):
        strait.calibrate(nothing)


@pytest.mark.parametrize("bad", [np.zeros(4, np.float32), np.zeros(4, ">u2"), [1, 2, 3], "text", 5])
def test_what_is_not_bf16_is_refused(bad):
    with pytest.raises(TypeError):
        strait.calibrate(bad)


def test_calibrating_strided_arrays():
    values = values_like_kv(6000).reshape(20, 300)
    assert strait.calibrate(values[::2, 5:]) == strait.calibrate(values[::2, 5:].copy())
    assert strait.calibrate(values.T) == strait.calibrate(values)


def test_save_load_bytes_and_pickle_keep_everything(codebook, tmp_path):
    path = tmp_path / "kv.codebook"
    codebook.save(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["kv.codebook"]
    copies = [
        strait.Codebook.load(path),
        strait.Codebook.load(str(path)),
        strait.Codebook.from_bytes(codebook.to_bytes()),
        strait.Codebook.from_bytes(bytearray(codebook.to_bytes())),
        pickle.loads(pickle.dumps(codebook)),
        copy.deepcopy(codebook),
    ]
    for other in copies:
        assert other == codebook and hash(other) == hash(codebook) and other.id == codebook.id
        assert len(other) == len(codebook)
        for table in range(len(codebook)):
            assert other.cls(table) == codebook.cls(table)
            assert (other.ranking(table) == codebook.ranking(table)).all()


def test_equality_is_by_tables(codebook):
    assert codebook != strait.calibrate(values_like_kv(100))
    assert codebook != "codebook"
    assert codebook.id.hex() in repr(codebook)


def test_explicit_rankings():
    rankings = np.stack([np.arange(256), np.arange(256)[::-1]]).astype(np.uint8)
    book = strait.Codebook.from_rankings(rankings, ["other", ("v", None)])
    assert book.find("v", 3) == 1 and (book.ranking(1) == rankings[1]).all()
    assert strait.Codebook.from_rankings(rankings).find("v") == 0
    with pytest.raises(strait.InvalidError):
        strait.Codebook.from_rankings(np.zeros((1, 256), np.uint8))
    with pytest.raises(strait.InvalidError):
        strait.Codebook.from_rankings(rankings[[0, 1, 1]], ["other", "v", "v"])
    with pytest.raises(strait.InvalidError):
        strait.Codebook.from_rankings(rankings[:0])
    with pytest.raises(ValueError, match="uint8"):
        strait.Codebook.from_rankings(rankings[:, :255])
    with pytest.raises(ValueError, match="classes"):
        strait.Codebook.from_rankings(rankings, ["k"])


def test_tables_out_of_range(codebook):
    for table in (-1, len(codebook)):
        with pytest.raises(IndexError):
            codebook.ranking(table)
        with pytest.raises(IndexError):
            codebook.cls(table)


def test_rankings_outlive_the_codebook():
    book = strait.calibrate(values_like_kv(1000))
    ranking, expected = book.ranking(0), book.ranking(0).copy()
    gone = weakref.ref(book)
    del book
    gc.collect()
    assert gone() is None and (ranking == expected).all()
    with pytest.raises(ValueError):
        ranking[0] = 1


def test_no_empty_codebook_can_be_made():
    with pytest.raises(TypeError):
        strait.Codebook()


@pytest.mark.parametrize("bad", [b"", b"STCB", bytes(100), b"\x0dSTCB"])
def test_foreign_bytes_are_refused(bad):
    with pytest.raises(strait.Error):
        strait.Codebook.from_bytes(bad)


def test_damaged_files_are_refused_or_equal(codebook, rng):
    good = codebook.to_bytes()
    for _ in range(300):
        bad = bytearray(good)
        bad[rng.integers(len(bad))] ^= 1 << rng.integers(8)
        try:
            strait.Codebook.from_bytes(bad)
        except strait.Error as error:
            assert isinstance(error, strait.DataError | strait.InvalidError)
    for size in range(0, len(good), 37):
        with pytest.raises(strait.Error):
            strait.Codebook.from_bytes(good[:size])


def test_a_missing_file_is_an_oserror(tmp_path):
    with pytest.raises(FileNotFoundError):
        strait.Codebook.load(tmp_path / "none")


@pytest.mark.parametrize(("element", "dtype"), [("fp16", np.float16), ("fp32", np.float32)])
def test_other_elements_share_the_exponents_of_bf16(element, dtype, rng):
    values = rng.normal(0, 1, 20000)
    wide = values.astype(np.float32)
    book = strait.calibrate(values.astype(dtype), element=element)
    bf16 = strait.calibrate((wide.view(np.uint32) >> 16).astype(np.uint16))
    assert set(book.ranking(0)[:3]) == set(bf16.ranking(0)[:3])
    page = values.astype(dtype)
    for mode, tables in (("split", book), ("split", bf16), ("base", None)):
        chunk = strait.encode(page, tables, mode=mode, element=element)
        assert len(chunk) < 0.95 * page.nbytes
        assert (strait.decode(chunk, tables).view(np.uint8) == page.view(np.uint8)).all()
    with pytest.raises(TypeError):
        strait.calibrate(values.astype(dtype))
    with pytest.raises(ValueError):
        strait.calibrate(page, element="fp8_e4m3")
    with pytest.raises(ValueError, match="needs a codebook"):
        strait.encode(page, None, mode="split", element=element)


# ---- Real KV caches


def read_safetensors(path):
    """Name to array, BF16 as uint16."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        if name == "__metadata__" or entry["dtype"] != "BF16":
            continue
        begin, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(data, np.uint16, (end - begin) // 2, start + begin).reshape(entry["shape"])
    return tensors


@needs_slice
def test_real_kv_shrinks_as_promised():
    tensors = read_safetensors(SLICE)
    assert tensors
    half = {name: tensor[: len(tensor) // 2] for name, tensor in tensors.items()}
    rest = {name: np.ascontiguousarray(tensor[len(tensor) // 2 :]) for name, tensor in tensors.items()}
    codebook = strait.calibrate(half)
    raw = coded = coded16 = 0
    for name, tensor in rest.items():
        chunk = strait.encode(tensor, codebook, table=name)
        assert (strait.decode(chunk, codebook) == tensor).all()
        raw += tensor.nbytes
        coded += len(chunk)
        coded16 += len(strait.encode(tensor, codebook, table=name, mode="top16"))
    print(f"tiered {raw / coded:.3f}, top16 {raw / coded16:.3f} on {raw} bytes")
    assert raw / coded > 1.44 and raw / coded16 > 1.30


@needs_slice
def test_the_command_calibrates_the_same(tmp_path):
    command = os.environ.get("STRAIT_COMMAND")
    if command is None:
        pytest.skip("STRAIT_COMMAND does not name the strait command")
    path = tmp_path / "set"
    subprocess.run([command, "calibrate", "-q", str(SLICE), "-o", str(path)], check=True)
    theirs, ours = strait.Codebook.load(path), strait.calibrate(read_safetensors(SLICE))
    assert theirs == ours
    assert [theirs.cls(table) for table in range(len(theirs))] == [ours.cls(table) for table in range(len(ours))]
