"""Bytes from anywhere: the right exception, and nothing but the listed pages is written."""

import contextlib
import hashlib
import json
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from conftest import values_like_kv

import strait

TESTS = Path(__file__).resolve().parents[2] / "tests"
GOLDEN = TESTS / "data" / "golden"
CANARY = 0xA55A
STATUSES = {s.name.lower().removeprefix("err_"): s for s in strait.Status}
FAULTS = (strait.DataError, strait.CodebookError)

sys.path.insert(0, str(TESTS / "format"))
import model  # noqa: E402


@pytest.fixture(scope="module")
def chunk(codebook):
    values = values_like_kv(14 * 2048)
    values[::97] = 0x1234
    values[2048:4096] = 3
    return strait.encode(values, codebook, page_bytes=4096, mode="top16")


class Arena:
    """A pool whose page i is not next to page i + 1, in memory full of canaries."""

    def __init__(self, pages=14):
        self.memory = np.full((2 * pages + 1, 2048), CANARY, np.uint16)
        self.pages = strait.PageList(self.memory[1::2], np.arange(pages)[::-1])

    def assert_canaries(self):
        assert (self.memory[::2] == CANARY).all()

    def page(self, i):
        return self.memory[1::2][self.pages.ids[i]]


def test_any_flipped_byte_is_found(chunk, codebook, rng):
    values = strait.decode(chunk, codebook).reshape(14, 2048)
    metadata = strait.info(chunk).metadata_bytes
    places = [*range(48), *rng.integers(48, len(chunk), 250)]
    for place in places:
        bad = bytearray(chunk)
        bad[place] ^= rng.integers(1, 256)
        arena = Arena()
        with pytest.raises(FAULTS) as caught:
            strait.decode(bad, codebook, arena.pages)
        arena.assert_canaries()
        error = caught.value
        if place < metadata:
            assert error.page_status is None and error.failed_pages == []
            assert (arena.memory == CANARY).all()
        else:
            assert len(error.failed_pages) == 1 and isinstance(error, strait.CorruptError | strait.IntegrityError)
            for i in set(range(14)) - set(error.failed_pages):
                assert (arena.page(i) == values[i]).all()
        with pytest.raises(type(error)):
            strait.verify(bad, codebook)
        with pytest.raises(type(error)):
            strait.decode(bad, codebook)


def test_an_output_that_overlaps_the_chunk_is_refused(chunk, codebook):
    memory = bytearray(len(chunk) + 14 * 4096)
    memory[: len(chunk)] = chunk
    view = memoryview(memory)
    for begin in (0, 64, len(chunk) // 16 * 16 - 16):
        with pytest.raises(ValueError, match="overlap"):
            strait.decode(view[: len(chunk)], codebook, view[begin : begin + 14 * 4096])
    assert memory[: len(chunk)] == chunk
    landed = strait.encode(values_like_kv(3 * 8192), codebook, page_bytes=16384)  # it has landed in pages of a pool
    pool = np.zeros((6, 8192), np.uint16)
    pool.view(np.uint8).reshape(-1)[: len(landed)] = np.frombuffer(landed, np.uint8)
    source = pool.view(np.uint8).reshape(-1)[: len(landed)]
    strait.decode(source, codebook, strait.PageList(pool, [5, 4, 3]))
    with pytest.raises(ValueError, match="overlap"):
        strait.decode(source, codebook, strait.PageList(pool, [5, 4, 2]))


def test_encoding_over_the_pages_is_refused(rng):
    values = rng.standard_normal(400_000, np.float32)
    before, memory = values.copy(), values.view(np.uint8)
    for first, last in ((0, 300_000), (8192, 16384), (100_000, 400_000)):
        with pytest.raises(ValueError, match="overlap"):
            strait.encode(values[first:last], None, out=memory)
    pool = values[: 48 * 8192].reshape(48, 8192)
    with pytest.raises(ValueError, match="overlap"):
        strait.encode(strait.PageList(pool, [40, 2]), None, out=pool[:4])
    assert (values == before).all()
    chunk = strait.encode(values[200_000:202_048], None, out=memory)  # what lies behind the bound is not written
    assert (strait.decode(bytes(chunk), None) == before[200_000:202_048]).all()
    chunk = strait.encode(strait.PageList(pool, [40, 42]), None, out=pool[:4])
    assert (strait.decode(bytes(chunk), None) == before[: 48 * 8192].reshape(48, 8192)[[40, 42]].reshape(-1)).all()


def test_a_chunk_that_others_write_to_meanwhile_harms_nothing(codebook):
    """A chunk in shared memory: decode and verify look at its metadata once, in a copy. Ends the process if not."""
    values = values_like_kv(64 * 2048)
    good = strait.encode(values, codebook, page_bytes=4096)
    landed, arena = bytearray(good), Arena(64)
    metadata, stop = strait.info(good).metadata_bytes, threading.Event()

    def write():
        random = np.random.default_rng(1)
        while not stop.is_set():
            at = int(random.integers(48, metadata - 4))
            landed[at : at + 4] = b"\xff\xff\xff\x7f"
            landed[at : at + 4] = good[at : at + 4]

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(400):
            with contextlib.suppress(strait.Error):
                strait.decode(landed, codebook, arena.pages)
            with contextlib.suppress(strait.Error):
                strait.verify(landed, codebook)
    finally:
        stop.set()
        writer.join()
    arena.assert_canaries()
    assert strait.decode(good, codebook, arena.pages) is arena.pages
    assert all((arena.page(i) == values.reshape(64, 2048)[i]).all() for i in range(64))


def reseal(chunk, metadata):
    """Gives a chunk the metadata sum it should have: what only a hostile writer does."""
    chunk[40:48] = model.metadata_sum(bytes(chunk[:metadata])).to_bytes(8, "little")


def test_sealed_lies_are_seen_through(codebook, rng):
    """Headers and tables that lie, but sum up: all a writer of bad will can do."""
    values = values_like_kv(14 * 2048 - 5)
    for chunk in (
        strait.encode(values, codebook, page_bytes=4096),
        strait.encode(values, codebook, page_bytes=24000, mode="top16"),
    ):
        metadata, pages = strait.info(chunk).metadata_bytes, strait.info(chunk).page_count
        sealed = bytearray(chunk)
        reseal(sealed, metadata)
        assert sealed == chunk
        lengths = strait.chunk_pages(chunk)["page_bytes"]
        for _ in range(400):
            bad = bytearray(chunk)
            place = rng.integers(metadata)
            bad[place] = (bad[place] + int(rng.choice([1, 255, 16, 240, rng.integers(256)]))) % 256
            if rng.random() < 0.3:
                bad[rng.integers(metadata, len(bad))] ^= 1 << rng.integers(8)
            reseal(bad, metadata)
            memory = np.full((2 * pages + 1, 12000), CANARY, np.uint16)
            out = strait.PageList([memory[2 * i + 1, : lengths[i] // 2][None] for i in range(pages)])
            try:
                strait.decode(bad, codebook, out)
            except strait.Error:
                pass
            else:
                assert bad[:40] == chunk[:40] or 40 <= place < 48
            assert (memory[::2] == CANARY).all()
            for i in range(pages):
                assert (memory[2 * i + 1, lengths[i] // 2 :] == CANARY).all()
            try:
                strait.decode(bad, codebook)
            except (strait.Error, MemoryError):
                pass


def test_cut_and_extended_chunks(chunk, codebook):
    for size in [*range(64), *range(64, len(chunk), 501), len(chunk) - 1]:
        arena = Arena()
        with pytest.raises(strait.TruncatedError) as caught:
            strait.decode(chunk[:size], codebook, arena.pages)
        assert caught.value.status == strait.Status.ERR_TRUNCATED and caught.value.page_status is None
        assert (arena.memory == CANARY).all()
    with pytest.raises(strait.CorruptError):
        strait.decode(chunk + bytes(16), codebook)
    assert strait.info(chunk[:48]) == strait.info(chunk) == strait.info(chunk + chunk)


@pytest.mark.parametrize("size", [0, 1, 47, 48, 49, 1000, 100000])
def test_noise(size, codebook, rng):
    noise = rng.integers(0, 256, size, np.uint8)
    for function in (strait.decode, strait.verify):
        with pytest.raises(strait.DataError):
            function(noise, codebook)
    for function in (strait.info, strait.chunk_pages):
        with pytest.raises(strait.DataError):
            function(noise)
    with pytest.raises(strait.DataError):
        strait.decode(noise, codebook, Arena().pages)


def test_single_bad_pages_and_their_statuses(chunk, codebook):
    starts = strait.info(chunk).metadata_bytes + np.cumsum(strait.chunk_pages(chunk)["coded_bytes"])
    good = strait.decode(chunk, codebook).reshape(14, 2048)
    bad = bytearray(chunk)
    for page in (4, 9):
        bad[starts[page - 1]] ^= 0x80
    with pytest.raises(strait.IntegrityError, match="2 of 14 pages failed, first page 4: checksum") as caught:
        strait.decode(bad, codebook)
    assert caught.value.failed_pages == [4, 9] and caught.value.status == strait.Status.ERR_INTEGRITY
    stats = strait.Stats()
    back = strait.decode(bad, codebook, check=False, stats=stats).reshape(14, 2048)
    assert stats.failed_pages == [4, 9] and stats.raw_bytes == 12 * 4096
    assert not back[[4, 9]].any() and (np.delete(back, [4, 9], 0) == np.delete(good, [4, 9], 0)).all()
    assert (strait.decode(bad, codebook, select=[3, 5]) == good[[3, 5]].reshape(-1)).all()
    strait.verify(bad, codebook, check=False, stats=stats)
    assert stats.failed_pages == [4, 9]
    with pytest.raises(strait.IntegrityError):
        strait.verify(bad, codebook)


def test_another_codebook(chunk, codebook):
    other = strait.calibrate(values_like_kv(100))
    for wrong in (other, None):
        arena, stats = Arena(), strait.Stats()
        with pytest.raises(strait.CodebookError, match=codebook.id.hex()) as caught:
            strait.decode(chunk, wrong, arena.pages, check=False, stats=stats)
        assert caught.value.page_status is None and (arena.memory == CANARY).all()
        assert set(stats.page_status.tolist()) == {strait.Status.ERR_CODEBOOK} and stats.raw_bytes == 0
        with pytest.raises(strait.CodebookError):
            strait.verify(chunk, wrong, check=False, stats=stats)
        assert len(stats.failed_pages) == 14


def test_a_table_that_the_codebook_lacks(chunk, codebook):
    bad = bytearray(chunk)
    bad[48 + 4 : 48 + 6] = len(codebook).to_bytes(2, "little")  # of the first page
    reseal(bad, strait.info(chunk).metadata_bytes)
    with pytest.raises(strait.CodebookError, match=f"a table beyond the {len(codebook)} of its codebook"):
        strait.decode(bad, codebook)


def test_errors_can_be_pickled(chunk):
    import pickle

    status = np.array([0, -9], np.int32)
    error = pickle.loads(pickle.dumps(strait.IntegrityError("text", -9, status)))
    assert type(error) is strait.IntegrityError and str(error) == "text" and error.failed_pages == [1]
    assert issubclass(strait.IntegrityError, strait.DataError) and issubclass(strait.DataError, strait.Error)


def golden(kind):
    manifest = GOLDEN / "manifest.json"
    entries = json.loads(manifest.read_text())[kind] if manifest.is_file() else []
    missing = pytest.param(None, id="none", marks=pytest.mark.skip(reason="tests/data/golden is not there"))
    return [pytest.param(entry, id=entry["name"]) for entry in entries] or [missing]


def golden_set(name):
    if name is None:
        return None
    return strait.Codebook.from_rankings(np.fromfile(GOLDEN / f"set-{name}.bin", np.uint8).reshape(-1, 256))


@pytest.mark.parametrize("entry", golden("chunks"))
def test_golden_chunks_decode_and_come_back(entry):
    chunk, book = (GOLDEN / entry["file"]).read_bytes(), golden_set(entry["set"])
    pages = strait.chunk_pages(chunk)
    assert pages["page_bytes"].tolist() == entry["page_lengths"] and pages["table"].tolist() == entry["page_tables"]
    source = strait.decode(chunk, book).tobytes()
    assert hashlib.sha256(source).hexdigest() == entry["source_sha256"]
    ends = np.cumsum(entry["page_lengths"])
    pools = [np.frombuffer(source[end - size : end], np.uint8)[None] for end, size in zip(ends, entry["page_lengths"])]
    listed = strait.PageList(pools, tables=entry["page_tables"])
    element = strait.info(chunk).element
    for codec in strait.variants():
        assert strait.encode(listed, book, mode=entry["asked"], element=element, codec=codec) == chunk


@pytest.mark.parametrize("entry", golden("refused"))
def test_golden_faults_are_named(entry):
    chunk, book = (GOLDEN / entry["file"]).read_bytes(), golden_set(entry.get("set"))
    statuses = [STATUSES[name] for name in entry["page_statuses"]]
    for codec in strait.variants():
        with pytest.raises(strait.Error) as caught:
            strait.verify(chunk, book, codec=codec)
        if entry["chunk_error"] is None:
            assert caught.value.page_status.tolist() == statuses
        else:
            assert caught.value.page_status is None and caught.value.status == STATUSES[entry["chunk_error"]]
