"""Arrays and tensors to a chunk and back, in threads too."""

import array
import copy
import mmap
import pickle
import sys
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import values_like_kv

import strait

SIZES = [1, 2, 3, 15, 16, 17, 31, 32, 33, 100, 8191, 16383, 16384, 16385, 32767, 32768, 32769, 65536, 100001]
MODES = ["auto", "raw", "top16", "tiered", "base", "split", "parts"]


def as_bytes(values):
    return np.asarray(values).reshape(-1).view(np.uint8)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", SIZES)
def test_bytes_of_any_number_return(size, mode, codebook):
    data = values_like_kv((size + 1) // 2).view(np.uint8)[:size].tobytes()
    for page_bytes in (32768, 16384, 4096, 2, 16 << 20):
        if size / page_bytes > 5000:
            continue
        stats = strait.Stats()
        chunk = strait.encode(data, codebook, mode=mode, page_bytes=page_bytes, stats=stats)
        assert len(chunk) <= strait.encode_bound(data, page_bytes=page_bytes)
        assert (stats.raw_bytes, stats.chunk_bytes) == (size, len(chunk))
        assert sum(stats.values.values()) == sum(min(page_bytes, size - at) // 2 for at in range(0, size, page_bytes))
        header = strait.info(chunk)
        assert (header.chunk_bytes, header.page_count) == (len(chunk), -(-size // page_bytes))
        assert (header.page_bytes, header.element) == (min(page_bytes, size), "bf16")
        assert header.codebook_id == codebook.id
        back = strait.decode(chunk, codebook)
        assert back.dtype == (np.uint16 if size % 2 == 0 else np.uint8)
        assert as_bytes(back).tobytes() == data
        strait.verify(chunk, codebook)


@pytest.mark.parametrize(
    ("dtype", "element", "decoded"),
    [
        (np.uint16, "bf16", np.uint16),
        (np.int16, "bf16", np.uint16),
        (np.uint8, "bf16", np.uint16),
        (np.float16, "fp16", np.float16),
        (np.uint16, "fp16", np.float16),
        (np.float32, "fp32", np.float32),
        (np.uint32, "fp32", np.float32),
        (np.uint8, "fp8_e4m3", np.uint8),
        (np.int8, "fp8_e5m2", np.uint8),
        (np.float64, "bytes", np.uint8),
        (np.bool_, "bytes", np.uint8),
    ],
)
def test_dtypes_and_elements(dtype, element, decoded, codebook, rng):
    values = rng.integers(0, 256, 65536 + 256, np.uint8).view(np.uint8)
    values = (values % 2).astype(np.bool_) if dtype is np.bool_ else values.view(dtype)
    chunk = strait.encode(values, codebook, element=element, page_bytes=4096)
    back = strait.decode(bytes(chunk), codebook)
    assert back.dtype == decoded and as_bytes(back).tobytes() == values.tobytes()
    assert strait.info(chunk).element == element
    back = strait.decode(chunk, codebook)
    assert back.dtype == values.dtype and back.tobytes() == values.tobytes()


@pytest.mark.parametrize("shape", [(60,), (3, 20), (2, 3, 5, 2), ()])
def test_any_shape_returns(shape, codebook):
    values = values_like_kv(60)[: int(np.prod(shape))].reshape(shape)
    chunk = strait.encode(values, codebook)
    assert (chunk.shape, chunk.dtype) == (shape, values.dtype)
    back = strait.decode(chunk, codebook)
    assert back.shape == shape and back.dtype == values.dtype and (back == values).all()
    assert (strait.decode(bytes(chunk), codebook) == values.reshape(-1)).all()
    assert (strait.decode(bytes(chunk), codebook, shape=shape) == values).all()


@pytest.mark.parametrize("rows", [60, 6000])
def test_a_chunk_is_bytes(rows, codebook):
    values = values_like_kv(rows * 100).reshape(rows, 100)
    chunk = strait.encode(values, codebook, page_bytes=4096)
    plain = bytes(chunk)
    assert type(plain) is bytes and plain == chunk and hash(plain) == hash(chunk) and {plain: 1}[chunk] == 1
    assert type(chunk) is strait.Chunk and isinstance(chunk, bytes) and len(chunk) == len(plain)
    for part in (chunk[:], chunk[1:], chunk + b"", chunk[:10] + plain[10:]):
        assert type(part) is bytes and plain.endswith(part)
    assert repr(chunk) == str(chunk) == f"{chunk}" == f"<strait.Chunk of {len(plain)} bytes, of uint16 [{rows}, 100]>"
    assert chunk._hash == hash(plain)  # kept: not computed of a copy each time
    for copied in (
        *(pickle.loads(pickle.dumps(chunk, protocol)) for protocol in range(6)),
        copy.copy(chunk),
        copy.deepcopy(chunk),
        strait.Chunk(plain, [rows, 100], "uint16"),
        strait.Chunk(plain, np.array([rows, 100]), "uint16"),
        strait.Chunk(bytearray(plain), (rows, 100), np.uint16),
    ):
        assert copied == chunk and hash(copied) == hash(plain)
        assert (copied.shape, copied.dtype) == ((rows, 100), np.uint16)
        assert (strait.decode(copied, codebook) == values).all()
    lists = strait.encode(strait.PageList(values), codebook)
    for unknown in (lists, strait.encode(values.tobytes(), codebook), strait.Chunk(plain)):
        assert unknown.shape is unknown.dtype is None and strait.decode(unknown, codebook).shape == (rows * 100,)
    types = sys.getrefcount(strait.Chunk)
    for _ in range(20):
        strait.encode(values, codebook)
    assert sys.getrefcount(strait.Chunk) < types + 10


def test_a_chunk_of_what_cannot_be():
    chunk = bytes(strait.encode(np.arange(5, dtype=np.float32)))
    one = strait.Chunk(chunk, np.int64(5), np.float32)
    assert one.shape == (5,) and type(one.shape[0]) is int and strait.decode(one).shape == (5,)
    for dtype in ("V0", "S0", np.dtype([])):
        with pytest.raises(TypeError, match="have no bytes"):
            strait.Chunk(chunk, None, dtype)
        with pytest.raises(TypeError, match="have no bytes"):
            strait.decode(chunk, select=[0], dtype=dtype)
    for shape in ("5", (5, "1"), 5.0, [None]):
        with pytest.raises(TypeError, match="a shape is one or more whole numbers, not "):
            strait.Chunk(chunk, shape, np.float32)
        with pytest.raises(TypeError, match="a shape is one or more whole numbers, not "):
            strait.decode(chunk, shape=shape)


@pytest.mark.parametrize(
    "element, of_torch, here",
    [
        ("bf16", "bfloat16", np.uint16),
        ("fp16", "float16", np.float16),
        ("fp8_e4m3", "float8_e4m3fn", np.uint8),
        ("bytes", "int64", np.int64),
        ("bf16", "uint8", np.uint8),
    ],
)
def test_a_chunk_of_a_tensor_without_torch(element, of_torch, here, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    values = np.arange(4096, dtype=np.uint16).view(here).reshape(-1, 64)
    chunk = strait.encode(values.view(np.uint8), element=element, page_bytes=1024)
    chunk = pickle.loads(pickle.dumps(strait.Chunk(chunk, values.shape, f"torch.{of_torch}")))
    assert chunk.dtype == f"torch.{of_torch}" and of_torch in str(chunk)
    back = strait.decode(chunk)
    assert back.dtype == here and back.shape == values.shape and back.tobytes() == values.tobytes()
    assert strait.decode(chunk, select=[1]).tobytes() == values.tobytes()[1024:2048]


def test_shape_and_dtype_of_plain_bytes(codebook, rng):
    values = rng.standard_normal((30, 500), np.float32)
    chunk = bytes(strait.encode(values, page_bytes=4000))
    for shape, dtype, expected in (
        ((30, 500), None, values),
        ((-1, 50), np.float32, values.reshape(-1, 50)),
        (15000, "float32", values.reshape(-1)),
        (None, np.uint32, values.view(np.uint32).reshape(-1)),
        ([60, 1000], "uint8", values.view(np.uint8).reshape(60, 1000)),
    ):
        back = strait.decode(chunk, shape=shape, dtype=dtype)
        assert back.shape == expected.shape and back.dtype == expected.dtype and (back == expected).all()
    assert (strait.decode(chunk, select=[3, 1], shape=(2, 1000)) == values.reshape(15, 1000)[[3, 1]]).all()
    for shape, dtype in (((30, 501), None), ((-1, 7), None), (None, np.float16), ((30, 500), "float64")):
        with pytest.raises(strait.InvalidError, match=r"shape|dtype"):
            strait.decode(chunk, shape=shape, dtype=dtype)
        with pytest.raises(strait.DataError):  # a damaged header says so first
            strait.decode(chunk[:20] + b"!" + chunk[21:], shape=shape, dtype=dtype)
    for dtype in ("float31", object, "torch.nothing"):
        with pytest.raises((TypeError, ImportError)):
            strait.decode(chunk, dtype=dtype)
    with pytest.raises(ValueError, match="out was given"):
        strait.decode(chunk, None, np.empty(15000, np.float32), shape=(30, 500))
    with pytest.raises(strait.InvalidError):
        strait.decode(strait.Chunk(chunk, (30, 501), np.float32))


def test_some_pages_of_a_chunk_have_its_dtype():
    values = np.arange(5000.0).reshape(50, 100)
    chunk = strait.encode(values, element="bytes", page_bytes=400)
    assert (strait.decode(chunk, select=[0, 1, 6, 7]) == values.reshape(-1, 50)[[0, 1, 6, 7]].reshape(-1)).all()
    chunk = strait.encode(values, element="bytes", page_bytes=4)
    assert strait.decode(chunk, select=[3]).dtype == np.uint8 and strait.decode(chunk).dtype == np.float64


def test_what_tensors_of_torch_were_returns():
    torch = pytest.importorskip("torch")
    wide = torch.randn(30, 70)
    for name in ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "uint8", "int16", "bool", "int64"):
        for tensor in (wide.to(getattr(torch, name)), wide[3, 4].to(getattr(torch, name))):
            element = "bytes" if name in ("bool", "int64") else None
            chunk = pickle.loads(pickle.dumps(strait.encode(tensor, element=element)))
            assert (chunk.shape, chunk.dtype) == (tuple(tensor.shape), tensor.dtype)
            for back in (
                strait.decode(chunk),
                strait.decode(bytes(chunk), shape=chunk.shape, dtype=chunk.dtype),
                strait.decode(bytes(chunk), shape=chunk.shape, dtype=f"torch.{name}"),
            ):
                assert back.dtype == tensor.dtype and back.shape == tensor.shape
                assert back.reshape(-1).view(torch.uint8).tolist() == tensor.reshape(-1).view(torch.uint8).tolist()
            assert isinstance(strait.decode(bytes(chunk)), np.ndarray)
    with pytest.raises(TypeError, match="no dtype nothing"):
        strait.decode(bytes(chunk), dtype="torch.nothing")
    some = strait.decode(strait.encode(wide, page_bytes=280), select=[2, 0])
    assert torch.equal(some, wide[[2, 0]].reshape(-1))


def test_bits_that_never_change_are_left_out_without_a_mode(rng):
    """FP16 that was BF16, FP32 that was FP16; other values are as small as by the other modes."""
    narrow = (values_like_kv(200_000).astype(np.uint32) << 16).view(np.float32).astype(np.float16)
    wide = rng.standard_normal(200_000, np.float32)
    for values, ratio in ((narrow, 1.4), (wide.astype(np.float16).astype(np.float32), 2.2), (wide, 1.15)):
        chunk = strait.encode(values)
        assert values.nbytes / len(chunk) > ratio and len(chunk) < 1.005 * len(strait.encode(values, mode="base"))
        assert (strait.decode(chunk) == values).all()
        counts = strait.Counts(strait.info(chunk).element)
        counts.add(values)
        book = counts.codebook()
        tabled = strait.encode(values, book)
        assert len(tabled) <= len(chunk) and len(tabled) < 1.005 * len(strait.encode(values, book, mode="split"))
        assert (strait.decode(tabled, book) == values).all()


def test_ml_dtypes(codebook):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.random.default_rng(1).standard_normal(20000).astype(ml_dtypes.bfloat16)
    assert strait.calibrate(values) == strait.calibrate(values.view(np.uint16))
    chunk = strait.encode(values, codebook)
    assert chunk == strait.encode(values.view(np.uint16), codebook)
    out = np.empty_like(values)
    assert strait.decode(chunk, codebook, out) is out and (out.view(np.uint16) == values.view(np.uint16)).all()
    eight = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)
    chunk = strait.encode(eight, None, element="fp8_e4m3", mode="raw")
    for back in (strait.decode(chunk), strait.decode(bytes(chunk), dtype="float8_e4m3fn")):
        assert back.dtype == eight.dtype and (back.view(np.uint8) == eight.view(np.uint8)).all()
    assert (strait.decode(bytes(chunk)) == eight.view(np.uint8)).all()
    assert strait.info(strait.encode(eight, codebook)).element == "fp8_e4m3"
    for dtype, element, ratio in (
        (ml_dtypes.float8_e4m3fn, "fp8_e4m3", 1.15),
        (ml_dtypes.float8_e5m2, "fp8_e5m2", 1.35),
    ):
        small = (20 * np.random.default_rng(2).standard_normal(40000)).astype(dtype)
        chunk = strait.encode(small, None, element=element, mode="base")
        assert len(chunk) * ratio < small.nbytes
        assert (strait.decode(chunk, None).view(np.uint8) == small.view(np.uint8)).all()
    with pytest.raises(TypeError):
        strait.encode(eight, codebook, element="bf16")


def test_foreign_objects_are_read_in_place(codebook):
    values = values_like_kv(3000)
    expected = strait.encode(values, codebook)

    class Interface:
        __array_interface__ = values.__array_interface__
        keep = values

    mapped = mmap.mmap(-1, values.nbytes)
    mapped[:] = values.tobytes()
    sources = [values.tobytes(), bytearray(values.tobytes()), memoryview(values), Interface(), mapped]
    sources.append(array.array("H", values.tolist()))
    for source in sources:
        assert strait.encode(source, codebook) == expected
    for wrap in (bytearray, memoryview, np.frombuffer):
        kind = {} if wrap is not np.frombuffer else {"dtype": np.uint8}
        assert (strait.decode(wrap(expected, **kind), codebook) == values).all()
    out = bytearray(values.nbytes)
    assert strait.decode(expected, codebook, out) is out and out == values.tobytes()


def test_out_receives_the_chunk(codebook):
    values = values_like_kv(30000)
    chunk, bound = strait.encode(values, codebook), strait.encode_bound(values)
    out = np.full(bound + 7, 0xAA, np.uint8)
    view = strait.encode(values, codebook, out=out)
    assert isinstance(view, memoryview) and view == chunk
    assert np.shares_memory(np.asarray(view), out) and (out[bound:] == 0xAA).all()
    assert strait.encode(values, codebook, out=bytearray(bound)) == chunk
    with pytest.raises(strait.NoSpaceError):
        strait.encode(values, codebook, out=bytearray(bound - 1))
    with pytest.raises(ValueError, match="read-only"):
        strait.encode(values, codebook, out=bytes(bound))
    with pytest.raises(ValueError, match="contiguous"):
        strait.encode(values, codebook, out=np.zeros(2 * bound, np.uint8)[::2])


def test_decode_into_arrays(codebook):
    values = values_like_kv(50001).reshape(3, 16667)
    chunk = strait.encode(values, codebook, page_bytes=4096)
    out = np.zeros((7, 16667), np.uint16)
    assert strait.decode(chunk, codebook, out[2:5]).base is out
    assert (out[2:5] == values).all() and not out[:2].any() and not out[5:].any()
    with pytest.raises(strait.InvalidError, match="the pages have 100002"):
        strait.decode(chunk, codebook, np.zeros(50000, np.uint16))
    with pytest.raises(ValueError, match="read-only"):
        out.flags.writeable = False
        strait.decode(chunk, codebook, out[2:5])
    with pytest.raises(ValueError, match="contiguous"):
        strait.decode(chunk, codebook, np.zeros((3, 16667), np.uint16, order="F"))
    with pytest.raises(strait.InvalidError, match="float32"):
        strait.decode(chunk, codebook, np.zeros(25000, np.float32))
    with pytest.raises(strait.InvalidError, match="float32"):
        strait.decode(chunk, codebook, strait.PageList(np.zeros((25, 1024), np.float32)))
    with pytest.raises(ValueError, match="read-only"):
        strait.decode(chunk, codebook, bytes(100002))


def test_select_returns_the_pages_asked_for(codebook, rng):
    values = values_like_kv(41000)
    chunk = strait.encode(values, codebook, page_bytes=4096)
    pages = np.split(values, range(2048, 41000, 2048))
    assert strait.info(chunk).page_count == len(pages) == 21
    for chosen in ([0], [20], [3, 1, 2], [5, 5, 20, 20], rng.permutation(21), range(21), np.array([7], np.int8)):
        back = strait.decode(chunk, codebook, select=chosen)
        assert (back == np.concatenate([pages[i] for i in chosen])).all()
    stats = strait.Stats()
    strait.decode(chunk, codebook, select=iter([4, 6]), stats=stats)
    assert stats.raw_bytes == 8192 and stats.page_status.tolist() == [0, 0]
    for bad in ([21], [-1], [], [[0]], [2**32]):
        with pytest.raises(ValueError):
            strait.decode(chunk, codebook, select=bad)
    with pytest.raises(TypeError):
        strait.decode(chunk, codebook, select=[0.5])


@pytest.mark.parametrize("nothing", [b"", np.zeros(0, np.uint16), np.zeros((0, 5), np.uint16), memoryview(b"")])
def test_nothing_to_encode(nothing, codebook):
    with pytest.raises(ValueError, match="nothing to encode"):
        strait.encode(nothing, codebook)
    with pytest.raises(ValueError, match="nothing to encode"):
        strait.encode_bound(nothing)


def test_bad_arguments_are_refused(codebook):
    values = values_like_kv(100)
    for key, bad in [("mode", "huffman"), ("element", "bf17"), ("codec", "avx99"), ("page_bytes", 0), ("table", -1)]:
        with pytest.raises(ValueError):
            strait.encode(values, codebook, **{key: bad})
    with pytest.raises(ValueError, match="codec variant"):
        strait.decode(strait.encode(values, codebook), codebook, codec="avx99")
    with pytest.raises(ValueError, match="page_bytes"):
        strait.encode(values, codebook, page_bytes=(16 << 20) + 2)
    with pytest.raises(ValueError, match="contiguous"):
        strait.encode(values[::2], codebook)
    with pytest.raises(ValueError, match="contiguous"):
        strait.encode(values.reshape(10, 10).T, codebook)
    with pytest.raises(strait.AlignmentError):
        strait.encode(values, codebook, page_bytes=33)
    with pytest.raises(strait.AlignmentError):
        strait.encode(np.zeros(101, np.uint8)[1:], codebook)
    with pytest.raises(strait.CodebookError, match=f"table is beyond the {len(codebook)} of the codebook"):
        strait.encode(values, codebook, table=len(codebook))
    with pytest.raises(ValueError, match="needs a codebook"):
        strait.encode(values, None, mode="auto")
    for big in (">f2", ">f4", ">u2"):
        with pytest.raises(TypeError, match="pages is big-endian"):
            strait.encode(values.astype(big), codebook)
    for bad in (values.astype(np.float64), values.astype(">u2"), values.tolist(), "text", None):
        with pytest.raises(TypeError):
            strait.encode(bad, codebook)
    with pytest.raises(TypeError):
        strait.encode(values, b"codebook")
    with pytest.raises(ValueError, match="1048576"):
        strait.encode(np.zeros(2 << 20, np.uint16), codebook, page_bytes=2)
    with pytest.raises(ValueError, match="check=False"):
        strait.decode(strait.encode(values, codebook), codebook, check=False)


@pytest.mark.parametrize("element, dtype", [("fp16", np.float16), ("fp32", np.float32), ("bf16", np.uint16)])
def test_the_dtype_says_the_element_and_what_is_smallest(codebook, rng, element, dtype):
    values = rng.standard_normal(20000, np.float32)
    array = (values.view(np.uint32) >> 16).astype(dtype) if element == "bf16" else values.astype(dtype)
    for book, mode in [(codebook, "split"), (None, "base")]:
        mode = mode if element == "bf16" else "parts"
        chunk = strait.encode(array, book)
        assert strait.info(chunk).element == element and len(chunk) < 0.96 * array.nbytes
        assert chunk == strait.encode(array, book, element=element, mode=mode)
        assert strait.decode(chunk, book).tobytes() == array.tobytes()


def test_torch_8_bit_floats_are_not_taken_for_bf16(codebook):
    torch = pytest.importorskip("torch")
    for dtype, element in [(torch.float8_e4m3fn, "fp8_e4m3"), (torch.float8_e5m2, "fp8_e5m2")]:
        tensor = torch.randn(4096).to(dtype)
        chunk = strait.encode(tensor, codebook)
        assert strait.info(chunk).element == element
        with pytest.raises(TypeError, match="float8"):
            strait.encode(tensor, codebook, element="bf16")
        out = torch.zeros_like(tensor)
        strait.decode(chunk, codebook, out)
        assert torch.equal(out.view(torch.uint8), tensor.view(torch.uint8))
        with pytest.raises(strait.InvalidError):
            strait.decode(chunk, codebook, out.view(torch.bfloat16))


def test_a_chunk_stays_below_4_gib():
    pages = np.lib.stride_tricks.as_strided(np.zeros(4096, np.uint16), (1 << 20, 4096), (0, 2))
    with pytest.raises(ValueError):
        strait.encode_bound(strait.PageList(np.zeros((2, 4096), np.uint16), np.zeros(1 << 20, np.uint32)))
    del pages


def test_tables_are_named_by_index_or_class(codebook):
    values = values_like_kv(10000)
    for table in ("layers.1.k", ("k", 1), codebook.find("k", 1), np.int64(codebook.find("k", 1))):
        chunk = strait.encode(values, codebook, table=table)
        assert (strait.chunk_pages(chunk)["table"] == codebook.find("k", 1)).all()


def test_without_a_codebook_chunks_are_raw():
    values = values_like_kv(10000)
    chunk = strait.encode(values, None, mode="raw")
    assert strait.info(chunk).codebook_id is None
    assert (strait.decode(chunk, None) == values).all()


def test_constant_pages_take_one_unit(codebook):
    stats = strait.Stats()
    chunk = strait.encode(np.zeros(8192 * 20, np.uint16), codebook, page_bytes=16384, stats=stats)
    assert stats.values == {"raw": 0, "const": 8192 * 20, "top16": 0, "top16_escapes": 0, "tiered": 0}
    assert len(chunk) == 48 + 20 * 16 + 20 * 16 and stats.ratio > 470


def test_chunk_pages_describes_them(codebook):
    values = values_like_kv(20480)
    values[8192 : 2 * 8192] = 7
    chunk = strait.encode(values, codebook, table=2, page_bytes=16384, mode="top16")
    pages = strait.chunk_pages(chunk)
    assert pages["page_bytes"].tolist() == [16384, 16384, 8192]
    assert pages["coded_bytes"].sum() + strait.info(chunk).metadata_bytes == len(chunk)
    assert pages["table"].tolist() == [2, 2, 2]
    assert pages["block_modes"][1] == 1 << 1 and pages["block_modes"][0] & (1 << 2 | 1 << 3)
    assert len(set(pages["sum"].tolist())) == 3


def test_stats_count_escapes_by_table(codebook):
    table, stats = codebook.find("v", 2), strait.Stats()
    odd = np.arange(0, 65536, 7, dtype=np.uint16)
    values = np.concatenate([values_like_kv(80000, scale=0.1), odd])
    chunk = strait.encode(values, codebook, table=table, stats=stats, page_bytes=16384)
    coded = sum(stats.values[mode] for mode in ("top16", "top16_escapes", "tiered"))
    assert stats.table_values[table] == coded > 70000 and stats.table_values.sum() == coded
    assert stats.table_escapes.sum() == stats.table_escapes[table] < coded
    encoded = (stats.values, stats.table_values, stats.table_escapes)
    other = strait.Stats()
    strait.decode(chunk, codebook, stats=other)
    assert (other.values, other.table_values.tolist()) == (encoded[0], encoded[1].tolist())
    assert other.table_escapes.tolist() == encoded[2].tolist()
    strait.verify(chunk, codebook, stats=other)
    assert (other.values, other.raw_bytes) == (encoded[0], values.nbytes)


def test_the_default_is_one_of_the_variants():
    assert "scalar" in strait.variants() and strait.default_variant() in strait.variants()


# ---- Tensors: the real ones where torch is installed, and a stand-in with the part of the interface that is used


def test_tensors(codebook):
    torch = pytest.importorskip("torch")
    tensor = torch.randn(64, 16, 4, 32).to(torch.bfloat16)
    bits = tensor.view(torch.int16).numpy().view(np.uint16)
    chunk = strait.encode(tensor, codebook)
    assert chunk == strait.encode(bits, codebook)
    out = torch.zeros_like(tensor)
    assert strait.decode(chunk, codebook, out) is out and torch.equal(out, tensor)
    pool = torch.zeros(70, 16, 4, 32, dtype=torch.bfloat16)
    pages = strait.encode(strait.PageList(tensor[:, :, 1]), codebook)
    strait.decode(pages, codebook, strait.PageList(pool[:, :, 2], range(3, 67)))
    assert torch.equal(pool[3:67, :, 2], tensor[:, :, 1])
    assert strait.decode(strait.encode(tensor.half(), codebook, element="fp16"), codebook).dtype == torch.float16
    assert len(strait.encode(torch.zeros(9, requires_grad=True), codebook, element="fp32")) > 0


class Tensor:
    """As much of torch.Tensor as the bridge uses."""

    int16, uint8 = np.int16, np.uint8

    def __init__(self, values, dtype="torch.bfloat16", device="cpu"):
        self.values, self.dtype = values, dtype
        self.device = types.SimpleNamespace(type=device)

    def element_size(self):  # .itemsize is there since torch 2.1
        return self.values.itemsize

    def detach(self):
        return self

    def is_floating_point(self):
        return "float" in self.dtype

    def view(self, dtype):
        return Tensor(self.values.view(dtype), dtype.__name__)

    def numpy(self):
        if self.dtype == "torch.bfloat16":
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.values


Tensor.__module__ = "torch._tensor"


def test_the_bridge_needs_no_copy(codebook, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(int16=np.int16, uint8=np.uint8))
    values = values_like_kv(4000)
    chunk = strait.encode(Tensor(values), codebook)
    assert chunk == strait.encode(values, codebook)
    out = Tensor(np.zeros_like(values))
    assert strait.decode(chunk, codebook, out) is out and (out.values == values).all()
    with pytest.raises(TypeError, match="CPU memory"):
        strait.encode(Tensor(values, device="cuda"), codebook)


# ---- Threads


def test_threads_share_a_codebook_a_chunk_and_a_pool(codebook):
    pool = values_like_kv(64 * 4096).reshape(64, 4096)
    expected = strait.encode(strait.PageList(pool), codebook)
    received = np.zeros_like(pool)

    def work(part):
        stats = strait.Stats()
        assert strait.encode(strait.PageList(pool), codebook, stats=stats) == expected
        mine = np.arange(part, 64, 8)
        strait.decode(expected, codebook, strait.PageList(received, mine), select=mine, stats=stats)
        strait.verify(expected, codebook)
        return stats.raw_bytes

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(work, range(8))) == [8 * 8192] * 8
    assert (received == pool).all()


def test_codebooks_come_and_go_in_threads():
    def work(seed):
        for _ in range(50):
            book = strait.calibrate(values_like_kv(200, seed))
            assert strait.Codebook.from_bytes(book.to_bytes()) == book
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(4)))


def test_python_runs_while_the_library_works(codebook):
    values = values_like_kv(1 << 20)
    values = np.tile(values, 48)
    ticks, done = [], threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    ticker = threading.Thread(target=tick)
    ticker.start()
    begin = time.perf_counter()
    chunk = strait.encode(values, codebook, codec="scalar", out=np.empty(strait.encode_bound(values), np.uint8))
    end = time.perf_counter()
    done.set()
    ticker.join()
    assert len(chunk) < values.nbytes
    assert sum(begin < at < end for at in ticks) >= min(5, (end - begin) * 50)


def test_arguments_that_are_slips(codebook):
    values = values_like_kv(1000)
    with pytest.raises(TypeError, match="masked array"):
        strait.encode(np.ma.masked_array(values, values > 3), codebook)
    with pytest.raises(TypeError, match=r"page_bytes must be a whole number, not 4096\.0"):
        strait.encode(values, codebook, page_bytes=4096.0)
    with pytest.raises(TypeError, match="an index or a class, not True"):
        strait.encode(values, codebook, table=True)
    assert strait.encode(values, codebook, page_bytes=np.int64(4096)) == strait.encode(
        values, codebook, page_bytes=4096
    )
