#!/usr/bin/env python3
"""Golden vectors of kernels/FORMAT.md, made by the model alone.

    python3 tests/format/golden.py             writes tests/data/golden/*.bin and manifest.json
    python3 tests/format/golden.py --check     compares what is there, and FORMAT.md, with what would be written; exit code 0 or 1

manifest.json: `sets` (a file of 256 bytes per table, the id), `chunks` (to be encoded and decoded exactly so),
`refused` (chunks with the chunk error or the page statuses that a decoder must report), `files`.
"""
import argparse
import hashlib
import json
import os
import re
import struct
import sys

import numpy as np

import model as fm

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "golden")
EXAMPLE_RANKS = (0, 1, 2, 0, 0, 3, 1, 0, 4, 0, 2, 6, 1, 5, 0, 20, 0, 1, 21, 0)  # 20 values, every tier


# ---- Sources: every number comes from mix() of a counter, so that no library's generator matters


def numbers(stream, count, below):
    return np.array([fm.mix((stream << 32) + i + 1) % below for i in range(count)], np.int64)


def random_bytes(stream, count):
    return numbers(stream, count, 256).astype(np.uint8).tobytes()


def values(stream, exponents):
    """Values of these exponents with random signs and mantissas, as bytes."""
    sign_mantissa = numbers(stream, len(exponents), 256).astype(np.uint8)
    return fm.join_values(sign_mantissa, np.asarray(exponents, np.uint8)).astype("<u2").tobytes()


def ranks_like_data(stream, count):
    """Ranks that fall off by about one half each: trailing zero bits of random numbers, rarely anything."""
    random = numbers(stream, count, 1 << 40)
    ranks = np.array([(int(x) & -int(x)).bit_length() - 1 if x else 40 for x in random])
    return np.where(random >> 32 == 0, random & 255, np.minimum(ranks, 255))


def gaussian(stream, count):
    """Sums of four uniform numbers, as BF16."""
    total = numbers(stream, 4 * count, 65536).reshape(-1, 4).sum(axis=1) - 131070
    return ((total / 65536).astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()


def as_fp32(stream, halves, rests=True):
    """Values with these upper halves, and random or zero lower ones."""
    low = numbers(stream, len(halves) // 2, 65536) if rests else 0
    return (np.frombuffer(halves, "<u2").astype("<u4") << 16 | low).astype("<u4").tobytes()


def as_fp16(halves):
    """Values of these sizes: what FP16 cannot hold becomes zero or infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return (np.frombuffer(halves, "<u2").astype("<u4") << 16).view("<f4").astype("<f2").tobytes()


def tables_like_data():
    """Three rankings: of gaussian values, the same shifted, and one of no order."""
    distance = np.abs(np.arange(256) - 126.25)
    ranking = np.argsort(distance, kind="stable")
    return fm.TableSet([ranking, (ranking - 8) % 256, np.argsort(numbers(99, 256, 1 << 60), kind="stable")])


def example_tables():
    return fm.TableSet([(127 - np.arange(256)) % 256])


def at_limit(exponents, count, escapes, low, high):
    """`count` values of rank `low` or below but for the first `escapes`, which have rank `high`."""
    ranks = np.where(np.arange(count) < escapes, high, np.arange(count) % (low + 1))
    return values(50, exponents[ranks])


SPECIALS = struct.pack("<12H", 0, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0xFFFF, 0x7F81, 1, 0x8001, 0x007F, 0x0080, 0x3F80)


def golden_chunks(sets):
    """(name, set name or None, element, asked mode, pages, tables of the pages)"""
    one, three = sets["example"].exponent, sets["three"].exponent
    data = values(1, three[1][ranks_like_data(2, 20001)])
    few = bytearray(values(3, three[0][numbers(4, 10000, 16)]))
    for at in (0, 1, 8191, 8192, 9999):
        struct.pack_into("<H", few, 2 * at, int(three[0][255]) << 7)
    plain = values(5, three[2][numbers(6, 2048, 16)])
    const = struct.pack("<H", 0xBF81)
    constants = [const * 8192, const * 8192 + b"\1", const * 16 + b"\2", const * 8]
    sparse = SPECIALS + data[:800] + SPECIALS
    pages = [data[:1], data[:17], data[:16385], bytes(300), random_bytes(7, 1000), gaussian(8, 900)]
    return [
        ("example", "example", fm.BF16, "tiered", [values(9, one[0][list(EXAMPLE_RANKS)])], [0]),
        ("raw", "three", fm.BF16, "raw", [data[:64], bytes(64), random_bytes(10, 64)], [0, 1, 2]),
        ("const", "three", fm.BF16, "auto", constants, [0] * 4),
        ("top16", "three", fm.BF16, "top16", [plain, plain[:1024] * 4], [2, 2]),
        ("top16-escapes", "three", fm.BF16, "top16", [bytes(few), bytes(few[:19999])], [0, 0]),
        ("top16-escapes-small", "three", fm.BF16, "top16", [bytes(few[:200]), plain[:200]], [0, 2]),
        ("top16-limit", "three", fm.BF16, "top16", [at_limit(three[1], 1024, e, 15, 16) for e in (164, 165, 170)],
         [1] * 3),
        ("tiered", "three", fm.BF16, "tiered", [data[:40001]], [1]),
        ("tiered-limit", "example", fm.BF16, "tiered", [at_limit(one[0], 1024, e, 2, 21) for e in (426, 429, 430, 440)],
         [0] * 4),
        ("tiers", "example", fm.BF16, "auto", [values(11, one[0][np.array([0, 2, 3, 5, 6, 20, 21, 255, 0, 1, 2, 0])
                                                                [numbers(12, 500, 12)]])], [0]),
        ("mixed-lengths", "three", fm.BF16, "auto", pages, [0, 1, 1, 2, 1, 0]),
        ("mixed-lengths-top16", "three", fm.BF16, "top16", pages, [0, 1, 1, 2, 1, 0]),
        ("specials", "three", fm.BF16, "auto", [SPECIALS * 20 + b"\xff", sparse], [0, 1]),
        ("small", "three", fm.BF16, "auto", [data[at:at + 33] for at in range(0, 330, 33)], [1] * 10),
        ("fp16", "three", fm.FP16, "auto", [data[:16400], const * 8200], [0, 0]),
        ("fp32", "three", fm.FP32, "tiered", [data[:100], b"\0\0\x80\x3f" * 25], [1, 2]),
        ("no-codebook", None, fm.BF16, "raw", [data[:50], const * 25], [0, 0]),
        ("no-codebook-bytes", None, fm.BYTES, "raw", [data[:31], data[:7]], [0, 0]),
    ] + later_chunks()


def later_chunks():
    """Chunks of modes 6 to 8: name, set, type, mode, pages, tables."""
    bell, low = gaussian(20, 9000), gaussian(21, 300)
    spread = values(22, numbers(23, 600, 12) + 100)  # no tier helps: codes of four bits
    rare = bytearray(values(24, numbers(25, 600, 12) + 100))
    for at in (0, 1, 300, 598, 599):
        struct.pack_into("<H", rare, 2 * at, 0x7F80 if at % 2 else 0x0180)
    infinite = struct.pack("<64H", *(0x7F80 | i for i in range(64)))
    halves = np.frombuffer(low, "<u2").copy()
    halves[::7] = 0
    sparse = halves.tobytes()
    small = values(26, numbers(27, 100, 5))  # a base below the distances of some ranks
    wide, mixed = as_fp32(28, bell), as_fp32(29, low) + as_fp32(30, bell[:8000], False)
    half = as_fp16(bell)
    half_spread = as_fp16(values(31, numbers(32, 900, 12) + 120))
    return [
        ("base", None, fm.BF16, "base", [bell, bell[:201], sparse + b"\1"], [0] * 3),
        ("base-codes", None, fm.BF16, "base", [spread, spread[:77], bytes(rare), bytes(rare[:1001])], [0] * 4),
        ("base-edges", None, fm.BF16, "base", [infinite, small, SPECIALS * 8, bytes(66) + SPECIALS[:31]], [0] * 4),
        ("base-set", "three", fm.BF16, "base", [low, low[:100]], [1, 2]),
        ("base-bytes", None, fm.BYTES, "base", [low, bytes(40)], [0] * 2),
        ("base-fp16", None, fm.FP16, "base", [half, half[:203], as_fp16(SPECIALS * 4), half_spread], [0] * 4),
        ("base-fp32", None, fm.FP32, "base", [wide[:20003], wide[:301], wide[:402], wide[:503]], [0] * 4),
        ("fp32z", None, fm.FP32, "base", [as_fp32(0, bell, False), as_fp32(0, spread, False)[:407], mixed,
                                         b"\0\0\x80\x3f" * 100], [0] * 4),
        ("fp32z-split", "three", fm.FP32, "split", [as_fp32(0, bell, False), b"\0\0\x80\x3f" * 99 + b"\1\2\3"],
         [0, 1]),
        ("split-fp16", "three", fm.FP16, "split", [half, half[:203], as_fp16(SPECIALS * 4)], [0, 1, 2]),
        ("split-fp32", "three", fm.FP32, "split", [wide[:20003], wide[:301], wide[:402], mixed], [0, 0, 0, 2]),
        ("split-bf16", "three", fm.BF16, "split", [bell, low[:99]], [0, 1]),
    ]


# ---- Refused chunks


def with_sum(chunk):
    size = fm.parse_header(chunk).metadata_bytes
    return chunk[:40] + struct.pack("<Q", fm.metadata_sum(chunk[:size])) + chunk[48:]


def put(chunk, at, data):
    return chunk[:at] + data + chunk[at + len(data):]


def golden_refused(chunks):
    """(name, set name or None, chunk)"""
    example, escapes = chunks["example"], chunks["top16-escapes-small"]
    block = fm.parse_chunk(escapes)[1][0].blocks[0]  # two escapes, at positions 0 and 1
    count_at = block.offset + block.n + (block.n + 1) // 2
    tail_at = fm.parse_chunk(example)[1][0].blocks[0].offset
    tiny = fm.assemble_chunk(fm.BF16, chunks["sets"]["example"].id, [
        (60, 0, fm.page_sum(b"\x80\x3f" * 30, 0, 0), [fm.encode_tiered(np.full(30, 0x3F80, "<u2"), np.argsort(
            chunks["sets"]["example"].exponent[0]).astype(np.uint8))])])
    return [
        ("refused-magic", "example", put(example, 0, b"X")),
        ("refused-version", "example", put(example, 4, b"\2")),
        ("refused-version-0", "example", put(example, 4, b"\0")),
        ("refused-short", "example", example[:47]),
        ("refused-cut", "example", example[:-16]),
        ("refused-longer", "example", example + bytes(16)),
        ("refused-sum", "example", put(example, 41, bytes([example[41] ^ 1]))),
        ("refused-mode", "example", with_sum(put(example, 48, bytes([example[48] & 0xF0 | 5])))),
        ("refused-offset", "example", with_sum(put(example, 48, bytes([example[48] + 16])))),
        ("refused-table", "example", with_sum(put(example, 52, b"\1"))),
        ("refused-set", "three", example),
        ("refused-no-set", None, example),
        ("refused-padding", "example", put(example, len(example) - 1, b"\1")),
        ("refused-bit", "example", put(example, tail_at, bytes([example[tail_at] ^ 0x80]))),
        ("refused-equal-values", "example", tiny),
        ("refused-count", "three", put(escapes, count_at, b"\0\0")),
        ("refused-position", "three", put(escapes, count_at + 4, b"\0\0")),
        ("refused-exponent", "three", put(escapes, count_at + 6, bytes([chunks["sets"]["three"].exponent[0][15]]))),
    ] + later_refused()


def hand_made(mode, element, source, coder, base, used):
    """A chunk of one block of modes 6 to 8, its sums right, as no encoder makes it."""
    block = used + bytes(-(len(used) + 2) % 16) + bytes([coder, base])
    return fm.assemble_chunk(element, fm.NO_CODEBOOK, [(len(source), 0, fm.page_sum(source, 0, 0), [(mode, block)])])


def later_refused():
    """(name, None, chunk)"""
    source = gaussian(40, 100)
    halves = np.frombuffer(source, "<u2")
    base = fm.base_of(halves)
    other = fm.encode_tiered(halves, fm.base_ranking(base + 1)[1])[1]
    own = fm.encode_tiered(halves, fm.base_ranking(base)[1])[1]
    zeros = bytes(200)
    no_fp16 = source[:-2] + b"\0\x01"  # E = 2
    half = fm.encode_tiered(np.frombuffer(no_fp16, "<u2"), fm.base_ranking(base)[1])[1]
    whole = as_fp32(0, source, False)
    padded = fm.pack(np.zeros(100, np.uint8), 2) + fm.pack(np.zeros(100, np.uint8), 1)
    good = hand_made(fm.BASE, fm.BF16, source, 1, base, own)
    assert fm.decode_chunk(good) == (None, [(None, source)])
    return [
        ("refused-coder", None, put(good, len(good) - 2, b"\4")),
        ("refused-coder-0", None, put(good, len(good) - 2, b"\0")),
        ("refused-base", None, hand_made(fm.BASE, fm.BF16, source, 1, base + 1, other)),
        ("refused-base-fp16", None, hand_made(fm.BASE, fm.FP16, source, 1, base, own)),
        ("refused-split-of-zeros", None, hand_made(fm.SPLIT, fm.FP32, whole, 1, base, zeros + own)),
        ("refused-split-bit", None, hand_made(fm.SPLIT, fm.FP16, source, 1, base, padded[:-1] + b"\x10" + own)),
        ("refused-split-exponent", None, hand_made(fm.SPLIT, fm.FP16, source, 1, base, padded + half)),
        ("refused-fp32z-table", None, hand_made(fm.FP32Z, fm.FP32, whole, 0, 0, own)),
        ("refused-later-mode", None, with_sum(put(good, 48, bytes([good[48] & 0xF0 | 9])))),
    ]


# ---- Writing


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def make():
    """{file name: bytes} of the folder."""
    sets = {"example": example_tables(), "three": tables_like_data()}
    files = {"set-%s.bin" % name: tables.exponent.tobytes() for name, tables in sets.items()}
    manifest = {"format_version": fm.VERSION,
                "sets": [{"name": name, "file": "set-%s.bin" % name, "tables": len(tables), "id": tables.id.hex()}
                         for name, tables in sets.items()], "chunks": [], "refused": [], "files": []}
    chunks = {"sets": sets}
    for name, set_name, element, asked, pages, page_tables in golden_chunks(sets):
        tables = sets.get(set_name)
        chunk = chunks[name] = fm.encode_chunk(pages, page_tables, tables, element, asked)
        assert fm.decode_chunk(chunk, tables) == (None, [(None, page) for page in pages]), name
        modes = sorted({block.mode for page in fm.parse_chunk(chunk)[1] for block in page.blocks})
        files[name + ".bin"] = chunk
        manifest["chunks"].append({
            "name": name, "file": name + ".bin", "set": set_name, "asked": asked, "element": element,
            "page_lengths": [len(page) for page in pages], "page_tables": page_tables, "block_modes": modes,
            "source_sha256": sha256(b"".join(pages)), "chunk_bytes": len(chunk), "chunk_sha256": sha256(chunk)})
    for name, set_name, chunk in golden_refused(chunks):
        error, pages = fm.decode_chunk(chunk, sets.get(set_name))
        assert error or any(status for status, _ in pages), name
        files[name + ".bin"] = chunk
        manifest["refused"].append({"name": name, "file": name + ".bin", "set": set_name, "chunk_error": error,
                                    "page_statuses": [status or "ok" for status, _ in pages],
                                    "chunk_sha256": sha256(chunk)})
    original = b"a preamble of 26 bytes...." + b"".join(
        page for name in ("tiers", "no-codebook") for _, page in fm.decode_chunk(chunks[name], sets["example"])[1])
    if fm.FILE_HASHES_CHECKED:
        files["file.bin"] = fm.encode_file(original[:26], [chunks["tiers"], chunks["no-codebook"]], sets["example"],
                                           original)
        assert fm.decode_file(files["file.bin"]) == original
        manifest["files"].append({"name": "file", "file": "file.bin", "bytes": len(files["file.bin"]),
                                  "original_bytes": len(original), "original_sha256": sha256(original)})
    files["manifest.json"] = (json.dumps(manifest, indent=1) + "\n").encode()
    return files


# ---- What is there


def documented_example():
    """The bytes that stand in the worked example of FORMAT.md."""
    path = os.path.join(FOLDER, "..", "..", "..", "kernels", "FORMAT.md")
    with open(path, encoding="utf-8") as file:
        text = file.read().split("## 9. Worked example")[1].split("## 10.")[0]
    fields = re.findall(r"^ *\d+  ((?:[0-9a-f]{2,32} ?)+)(?:  |$)", text, re.MULTILINE)
    return bytes.fromhex("".join(fields))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    files = make()
    if options.check:
        wrong = []
        for name, data in files.items():
            try:
                with open(os.path.join(FOLDER, name), "rb") as file:
                    if file.read() != data:
                        wrong.append(name)
            except FileNotFoundError:
                wrong.append(name)
        if documented_example() != files["example.bin"]:
            wrong.append("FORMAT.md")
        print("golden vectors:", "differ: " + " ".join(wrong) if wrong else "%d files, equal" % len(files))
        return 1 if wrong else 0
    os.makedirs(FOLDER, exist_ok=True)
    for name, data in files.items():
        with open(os.path.join(FOLDER, name), "wb") as file:
            file.write(data)
    print("%d files, %d bytes" % (len(files), sum(map(len, files.values()))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
