#!/usr/bin/env python3
"""The model of kernels/FORMAT.md against itself, and the C codecs against the model.

    python3 tests/test_format_model.py --lib build/kernels/libstrait-codec.so [--seed N] [--chunks 1000]

Without --lib only the model is tested. Exit code 0: all equal; 1: not; 77: numpy or the library is missing.
"""
import argparse
import os
import sys
import time

try:
    import numpy as np
except ImportError:
    print("skipped: numpy is missing")
    sys.exit(77)

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import format_model as fm  # noqa: E402
from format_model_compare import (Source, compare_codebooks, compare_decode, compare_encode, compare_info,  # noqa: E402
                                  compare_page_ids, compare_select, mode_values)
from format_model_data import DISTRIBUTIONS, EDGES, random_data, random_tables  # noqa: E402
from format_model_expect import expect, failures, seen  # noqa: E402
from format_model_hostile import mutations  # noqa: E402
from format_model_library import Codec, create_codebook, load  # noqa: E402

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
        for element in (fm.FP16, fm.FP32):
            for size in EDGES:
                for _ in range(8):
                    pages = [random_data(rng, size, tables.exponent[1], element), bytes(size)]
                    for page in fm.parse_chunk(round_trip(pages, [1, 2], tables, element, asked, size))[1]:
                        for block in page.blocks:
                            seen["block of mode %d, element %d" % (block.mode, element)] += 1
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


# ---- Random chunks: the C library against the model


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
    parser.add_argument("--codecs", default="scalar,avx2,avx512", help="those of them that run here (default: all)")
    options = parser.parse_args()
    print("seed", options.seed, flush=True)
    if options.lib and not os.path.exists(options.lib):
        print("skipped: no library at", options.lib)
        return 77
    start = time.time()
    rng = np.random.default_rng(options.seed)
    test_model(rng)
    names = test_chunks(rng, load(os.path.abspath(options.lib)) if options.lib else None, options.codecs.split(","),
                        options.chunks)
    print("seen:", ", ".join("%s: %d" % item for item in sorted(seen.items())))
    if not fm.FILE_HASHES_CHECKED:
        print("note: no xxhash, hashes of files were not checked")
    print("%s: model%s, %d chunks, seed %d, %d failures, %.1f s" % (
        "FAILED" if failures else "ok", "".join(" = " + name for name in names), options.chunks,
        options.seed, len(failures), time.time() - start))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
