#!/usr/bin/env python3
"""The model of kernels/FORMAT.md against itself, and the C codecs against the model.

    python3 tests/format/compare.py --lib build/kernels/libstrait-codec.so [--seed N] [--chunks 1000]

Without --lib only the model is tested. Exit code 0: all equal; 1: not; 77: numpy or the library is missing.
"""
import argparse
import ctypes as ct
import os
import struct
import sys
import time

try:
    import numpy as np
except ImportError:
    print("skipped: numpy is missing")
    sys.exit(77)

import library  # noqa: E402
import model as fm  # noqa: E402
from cases import DISTRIBUTIONS, EDGES, mutations, random_data, random_tables  # noqa: E402
from library import NAMES, STATUS, Codec, Pool, create_codebook, expect, failures, seen  # noqa: E402

# ---- The model alone


def round_trip(pages, page_tables, tables, element, asked, what):
    chunk = fm.encode_chunk(pages, page_tables, tables, element, asked)
    error, decoded = fm.decode_chunk(chunk, tables)
    expect(error is None and decoded == [(None, page) for page in pages], "model round trip", what, asked, error,
           [status for status, _ in decoded])
    return chunk


def test_sum():
    """The vectorised sum against the text, word by word."""
    rng = np.random.default_rng(5)
    for size in (0, 1, 7, 8, 9, 300, 1001):
        data = rng.bytes(size)
        words = [int.from_bytes(data[i:i + 4], "little") for i in range(0, size, 4)]
        words += [0] * (len(words) % 2)
        r, c = [int(x) for x in fm.SUM_R], [int(x) for x in fm.SUM_C]
        x = [(w + r[i % 16] + i // 16 * c[i % 2]) % 2**32 for i, w in enumerate(words)]
        total = fm.seed(1, 2, 3) + sum(x[j] * x[j + 1] + x[j] + 2**32 * x[j + 1] for j in range(0, len(x), 2))
        expect(fm.strait_sum(data, 1, 2, 3) == total % 2**64, "sum", size)


def test_model(rng):
    test_sum()
    tables = random_tables(rng, 3)
    for asked in fm.ASKED_MODES:
        for size in EDGES:
            for name, make in DISTRIBUTIONS.items():
                pages = [make(rng, size // 2 + 1, tables.exponent[1])[:size], bytes(size)]
                chunk = round_trip(pages, [1, 2], tables, fm.BF16, asked, (name, size))
                _, parsed = fm.parse_chunk(chunk)
                for page in parsed:
                    for block in page.blocks:
                        seen["block of mode %d" % block.mode] += 1
                        expect(block.extent <= fm.units(2 * block.n + block.t) * 16, "block above raw", name, size)
        for element in (fm.FP16, fm.FP32, fm.FP8_E4M3, fm.FP8_E5M2):
            for size in EDGES:
                for _ in range(8):
                    pages = [random_data(rng, size, tables.exponent[1], element), bytes(size)]
                    chunk = round_trip(pages, [1, 2], tables, element, asked, size)
                    for page in fm.parse_chunk(chunk)[1]:
                        for block in page.blocks:
                            seen["block of mode %d, element %d" % (block.mode, element)] += 1
                            form = chunk[block.offset + block.extent - 2]
                            seen["block with patches"] += block.mode == fm.PARTS and form >= fm.PATCHED
        for element in fm.ELEMENTS:
            sizes = (33, 16384, 16385, 1)
            round_trip([rng.bytes(s) for s in sizes] + [b"\7" * 16384], [0] * 5, tables, element, asked, element)
            round_trip([b"\7" * s for s in sizes], [0] * 4, None, element, asked, ("no codebook", element))
    data = b"preamble" + rng.bytes(70000)
    pages = [data[8 + at:8 + at + 30000] for at in range(0, 70000, 30000)]
    chunks = [fm.encode_chunk(pages[:2], [0, 1], tables, fm.BF16, "auto"),
              fm.encode_chunk(pages[2:], [0], None, fm.BYTES, "auto")]
    expect(fm.decode_file(fm.encode_file(data[:8], chunks, tables, data)) == data, "file round trip")
    expect(fm.decode_file(fm.encode_file(b"", [], None, b"")) == b"", "empty file")


# ---- The C library against the model: the same chunks from the same pages, the same verdict on any chunk

ASKED_SHARES = [.12, .05, .16, .15, .18, .12, .22]


class Source:
    """Random pages and how they are to be encoded."""

    def __init__(self, rng, sets):
        self.set_index = None if rng.random() < 0.1 else int(rng.integers(0, len(sets)))
        self.tables = None if self.set_index is None else sets[self.set_index][0]
        self.codebook = None if self.set_index is None else sets[self.set_index][1]
        self.element = int(rng.choice([1, 1, 1, 1, 1, 1, 2, 2, 3, 3, 3, 0, 4, 4, 5, 5]))
        self.asked = str(rng.choice(fm.ASKED_MODES, p=ASKED_SHARES))
        if self.tables is None and self.element in fm.VALUE_BYTES:
            self.asked = str(rng.choice(["raw", "base", "base", "parts", "parts"]))
        size = self.size(rng)
        same, count, self.id_count = rng.random() < 0.5, int(rng.integers(1, 5)), int(rng.integers(1, 4))
        self.regions = [(size if same else self.size(rng), int(rng.integers(0, len(self.tables) if self.tables else 1)))
                        for _ in range(count)]
        self.page_tables = [table for _, table in self.regions for _ in range(self.id_count)]
        lengths = [length for length, _ in self.regions for _ in range(self.id_count)]
        exponents = self.tables.exponent if self.tables else [np.arange(256)]
        self.data = [random_data(rng, length, exponents[table], self.element) for length, table in zip(lengths, self.page_tables)]

    @staticmethod
    def size(rng):
        kind = rng.random()
        return int(rng.choice(EDGES) if kind < 0.3 else rng.integers(1, 200) if kind < 0.55 else
                   rng.integers(200, 6000) if kind < 0.9 else rng.integers(6000, 50000))

    def pool(self, rng, chunk=None):
        """Pages of this shape; for `chunk`, which may name another element, aligned for all of them."""
        element = self.element if chunk is None or chunk[5:6] == bytes([self.element]) else fm.FP32
        return Pool(rng, self.regions, self.id_count, element)

    def what(self):
        return "regions %s x %d, element %d, asked %s, set %s" % (self.regions, self.id_count, self.element, self.asked,
                                                                self.set_index)


def mode_values(chunk, parsed):
    """Values per block mode; blocks of modes 6 to 8 count as what their coder is, those of modes 10 and 11 as tiered."""
    total = [0] * 5
    for page in parsed:
        for block in page.blocks:
            coder = chunk[block.offset + block.extent - 2]
            tiered = block.mode in (fm.FP8, fm.PARTS) or coder < 2
            total[block.mode if block.mode <= fm.TIERED else fm.TIERED if tiered else coder] += block.n
    return total


def typed_escapes(source, chunk, block, data, table):
    """Halves in the escapes or the last tier of a block of modes 6 to 8."""
    coder, base = chunk[block.offset + block.extent - 2:block.offset + block.extent]
    halves, _ = fm.split_halves(data[:2 * block.n + block.t], source.element)
    rank = source.tables.rank[table] if coder == 0 else fm.base_ranking(base)[1]
    return int((rank[halves >> 7 & 0xFF] >= (21 if coder < 2 else 16)).sum())


def fp8_escapes(source, chunk, block, data):
    """Values without a rank in a block of mode 10, in pairs."""
    end = block.offset + block.extent
    exponents = fm.split_fp8(data[:2 * block.n + block.t], source.element)[0]
    return fm.ceil_div(int((~np.isin(exponents, list(chunk[end - fm.FP8_RANKS:end]))).sum()), 2)


def parts_escapes(source, chunk, block, data, table):
    """Exponents or symbols in the last tier of a block of mode 11."""
    end = block.offset + block.extent
    exponents = fm.part_values(data[:2 * block.n + block.t], source.element)[1]
    if chunk[end - 1] == 0:
        return int((source.tables.rank[table][exponents] >= 21).sum())
    bases = list(chunk[end - 2 - fm.ceil_div(len(exponents), 256):end - 2])
    return int((fm.SYMBOL_RANK[fm.part_symbols(exponents, bases)] >= 21).sum())


def escape_counts(source, chunk, parsed):
    """Per table: (values of coded blocks, those of them in the escapes or the last tier)."""
    total = [[0, 0] for _ in range(8)]
    for page, data, table in zip(parsed, source.data, source.page_tables):
        for at, block in enumerate(page.blocks):
            if block.mode in (fm.BASE, fm.SPLIT, fm.FP32Z):
                total[table][0] += block.n
                total[table][1] += typed_escapes(source, chunk, block, data[at * fm.BLOCK_BYTES:], table)
                continue
            if block.mode == fm.PARTS:
                total[table][0] += block.n
                total[table][1] += parts_escapes(source, chunk, block, data[at * fm.BLOCK_BYTES:], table)
                continue
            if block.mode == fm.FP8:
                total[table][0] += block.n
                total[table][1] += fp8_escapes(source, chunk, block, data[at * fm.BLOCK_BYTES:])
                continue
            values = np.frombuffer(data, "<u2", block.n, at * fm.BLOCK_BYTES)
            if block.mode in (fm.TOP16, fm.ESCAPES, fm.TIERED):
                ranks = source.tables.rank[table][values >> 7 & 0xFF]
                total[table][0] += block.n
                total[table][1] += int((ranks >= (21 if block.mode == fm.TIERED else 16)).sum())
    return total


def compare_stats(codec, source, chunk, result, what):
    """Values per block mode and escapes per table, of a whole good chunk."""
    parsed = fm.parse_chunk(chunk)[1]
    expect(list(result.values) == mode_values(chunk, parsed), what + ": values per mode", codec.name, list(result.values),
           mode_values(chunk, parsed), source.what())
    stats = [list(entry) for entry in codec.stats.tolist()]
    counts = escape_counts(source, chunk, parsed)
    expect(stats == counts, what + ": class stats", codec.name, stats, counts, source.what())


def compare_encode(rng, codec, source, chunk):
    pool = source.pool(rng)
    for page, data in enumerate(source.data):
        pool.write(page, data)
    returned, result, coded = codec.encode(pool, source.element, source.asked, source.codebook, rng.random() < 0.5)
    if not expect(returned == 0 and result.status == 0 and result.failed_pages == 0, "encode status", codec.name,
                  returned, result.status, source.what()):
        return
    if coded != chunk:
        at = next((i for i, (x, y) in enumerate(zip(coded, chunk)) if x != y), min(len(coded), len(chunk)))
        expect(False, "encode bytes differ at %d" % at, codec.name, len(coded), len(chunk), source.what())
    compare_stats(codec, source, chunk, result, "encode")


def compare_result(what, codec, returned, result, statuses, error, pages, details):
    """What the library reports about a chunk against (error, pages) of the model."""
    if error is not None:
        return expect(returned == 0 and result.status == STATUS[error], what + ": chunk error", codec.name, "library",
                      returned, NAMES.get(result.status), "model", error, details)
    wanted = [STATUS[status] for status, _ in pages]
    first = next((status for status in wanted if status), 0)
    good = expect(returned == 0 and list(statuses) == wanted, what + ": page statuses", codec.name, "library", returned,
                  NAMES.get(result.status), [NAMES.get(s) for s in statuses], "model", [s for s, _ in pages], details)
    passed = sum(len(data) for status, data in pages if status is None)
    return good and expect((result.status, result.failed_pages, result.bytes) ==
                           (first, sum(map(bool, wanted)), passed), what + ": result", codec.name, NAMES[result.status],
                           result.failed_pages, result.bytes, "model", NAMES[first], sum(map(bool, wanted)), passed,
                           details)


def compare_decode(rng, codec, source, chunk, verdict, codebook, what):
    """strait_verify, and strait_decode into pages of the source's shape, against the model's verdict."""
    error, pages = verdict
    details = (source.what(), chunk.hex() if len(chunk) < 400 else "%d bytes" % len(chunk))
    returned, result, statuses = codec.verify(chunk, codebook, len(pages))
    compare_result(what + ", verify", codec, returned, result, statuses, error, pages, details)
    lengths = [len(data) for data in source.data]
    if error is None:
        parsed = fm.parse_chunk(chunk)[1]
        if len(parsed) != len(lengths):
            return
        pages = [("invalid", None) if page.length != length else verdict
                 for page, length, verdict in zip(parsed, lengths, pages)]
    elif len(chunk) >= 12 and struct.unpack_from("<I", chunk, 8)[0] != len(lengths):
        return
    pool = source.pool(rng, chunk)
    returned, result, statuses = codec.decode(chunk, codebook, pool, None, rng.random() < 0.5)
    compare_result(what + ", decode", codec, returned, result, statuses, error, pages, details)
    expect(pool.untouched([] if error else range(pool.count)), what + ": decode wrote elsewhere", codec.name, details)
    if what == "valid":
        compare_stats(codec, source, chunk, result, "decode")
    for page, (status, data) in enumerate(pages):
        if status is None:
            expect(pool.read(page) == data, what + ": decoded bytes", codec.name, page, details)


def compare_info(lib, chunk, what):
    """strait_chunk_info and strait_chunk_pages against checks 1 to 4 and 1 to 9."""
    info, pages = library.abi.ChunkInfo(), np.zeros(16, library.abi.PAGE_INFO)
    source = Codec.source(chunk)
    try:
        header = fm.parse_header(chunk)
        wanted = (0, header.size, header.metadata_bytes, header.pages, header.longest, header.element, fm.VERSION,
                  header.id)
    except fm.FormatError as error:
        wanted = (STATUS[error.name], 0, 0, 0, 0, 0, 0, fm.NO_CODEBOOK)
    status = lib.strait_chunk_info(source.ctypes.data, min(48, len(chunk)), info)
    got = (status, info.chunk_bytes, info.metadata_bytes, info.page_count, info.page_bytes, info.element, info.version,
           bytes(info.codebook_id))
    expect(got == wanted, what + ": chunk info", got, wanted)
    try:
        parsed = fm.parse_chunk(chunk)[1][:16]
        wanted = [(page.sum, page.length, sum(b.extent for b in page.blocks), page.table,
                   sum(1 << mode for mode in {b.mode for b in page.blocks})) for page in parsed]
        status = 0
    except fm.FormatError as error:
        wanted, status = [], STATUS[error.name]
    got_status = lib.strait_chunk_pages(source.ctypes.data, len(chunk), max(1, len(wanted)), pages.ctypes.data)
    got = pages[:len(wanted)].tolist()
    expect((got_status, got) == (status, wanted), what + ": chunk pages", got_status, status, got, wanted)


def compare_select(rng, codec, source, chunk):
    """Some pages of the chunk, in any order, some twice."""
    select = rng.integers(0, len(source.data), int(rng.integers(1, 5))).tolist()
    pool = Pool(rng, [(len(source.data[page]), 0) for page in select], 1, source.element)
    returned, result, statuses = codec.decode(chunk, source.codebook, pool, select)
    expect(returned == 0 and result.status == 0 and not any(statuses), "select", codec.name, returned, result.status)
    expect(all(pool.read(i) == source.data[page] for i, page in enumerate(select)), "selected bytes", codec.name)
    expect(pool.untouched(range(pool.count)), "select wrote elsewhere", codec.name)


def compare_page_ids(rng, codec, source, chunk):
    """Check 11: an id that a region does not have."""
    pool = source.pool(rng)
    for page, data in enumerate(source.data):
        pool.write(page, data)
    at = int(rng.integers(0, source.id_count))
    pool.ids[at] = int(rng.choice([pool.array["page_count"][0], 0xFFFFFFFF, 0x80000000]))
    pool.pages.ids = ct.addressof(pool.ids)
    returned, result, _ = codec.encode(pool, source.element, source.asked, source.codebook)
    expect((returned, result.status, result.bytes) == (0, STATUS["page id"], 0), "encode of a bad id", codec.name)
    returned, result, statuses = codec.decode(chunk, source.codebook, pool)
    wanted = [STATUS["page id"] if page % source.id_count == at else 0 for page in range(pool.count)]
    expect(returned == 0 and list(statuses) == wanted, "decode with a bad id", codec.name, statuses, wanted)


def compare_codebooks(rng, codec, sets, source, chunk):
    """Check 10: no set, another set."""
    other = sets[int(rng.integers(0, len(sets)))]
    for tables, codebook in ((None, None), other):
        verdict = fm.decode_chunk(chunk, tables)
        compare_decode(rng, codec, source, chunk, verdict, codebook, "another codebook")


# ---- Random chunks


def test_chunks(rng, lib, names, chunks):
    """Random chunks and hostile variants of them, by the model and, with `lib`, by each of its codecs."""
    codecs = [Codec(lib, name) for name in names] if lib else []
    codecs = [codec for codec in codecs if codec.handle]
    expect(codecs or not lib, "the library has none of the codecs", names)
    sets = [random_tables(rng, count) for count in (1, 3, 8)]
    sets = [(tables, create_codebook(lib, tables) if lib else None) for tables in sets]
    for number in range(chunks):
        source = Source(rng, sets)
        chunk = fm.encode_chunk(source.data, source.page_tables, source.tables, source.element, source.asked)
        verdict = fm.decode_chunk(chunk, source.tables)
        expect(verdict == (None, [(None, page) for page in source.data]), "model round trip", source.what())
        for mode, count in enumerate(mode_values(chunk, fm.parse_chunk(chunk)[1])):
            seen["values of mode %d" % mode] += count
        cases = [("valid", chunk, verdict)]
        for name, hostile in mutations(rng, source, chunk):
            verdict = fm.decode_chunk(hostile, source.tables)
            seen["chunk %s" % verdict[0]] += 1
            seen.update("page %s" % status for status, _ in verdict[1])
            cases.append((name, hostile, verdict))
        for name, hostile, _ in cases if lib else []:
            compare_info(lib, hostile, name)
        for codec in codecs:
            compare_encode(rng, codec, source, chunk)
            for name, hostile, verdict in cases:
                compare_decode(rng, codec, source, hostile, verdict, source.codebook, name)
            if number % 4 == 0:
                compare_select(rng, codec, source, chunk)
                compare_page_ids(rng, codec, source, chunk)
                compare_codebooks(rng, codec, sets, source, chunk)
    for _, codebook in sets if lib else []:
        lib.strait_codebook_destroy(codebook)
    return [codec.name for codec in codecs]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lib", help="path of libstrait-codec.so")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--chunks", type=int, default=1000)
    parser.add_argument("--codecs", default="scalar,avx2,avx512,neon", help="those of them that run here (default: all)")
    options = parser.parse_args()
    print("seed", options.seed, flush=True)
    if options.lib and not os.path.exists(options.lib):
        print("skipped: no library at", options.lib)
        return 77
    start = time.time()
    rng = np.random.default_rng(options.seed)
    test_model(rng)
    names = test_chunks(rng, library.load(os.path.abspath(options.lib)) if options.lib else None, options.codecs.split(","),
                        options.chunks)
    expect(seen["block with patches"] > 0, "no block had patches")
    print("seen:", ", ".join("%s: %d" % item for item in sorted(seen.items())))
    if not fm.FILE_HASHES_CHECKED:
        print("note: no xxhash, hashes of files were not checked")
    print("%s: model%s, %d chunks, seed %d, %d failures, %.1f s" % (
        "FAILED" if failures else "ok", "".join(" = " + name for name in names), options.chunks,
        options.seed, len(failures), time.time() - start))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
