#!/usr/bin/env python3
"""The model of kernels/FORMAT.md against itself, and the C codecs against the model.

    python3 tests/test_format_model.py --lib build/kernels/libstrait-codec.so [--seed N] [--chunks 1000]

Without --lib only the model is tested. Exit code 0: all equal; 1: not; 77: numpy or the library is missing.
"""
import argparse
import collections
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

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import format_model as fm  # noqa: E402

STATUS = {None: 0, "invalid": -1, "no memory": -2, "no space": -3, "alignment": -4, "truncated": -5, "corrupt": -6,
          "unsupported": -7, "codebook": -8, "integrity": -9, "page id": -10}
NAMES = {value: name or "ok" for name, value in STATUS.items()}
ASKED = {"auto": 0, "raw": 1, "top16": 2, "tiered": 3, "base": 4, "split": 5}
ASKED_SHARES = [.15, .07, .2, .18, .25, .15]
ALIGNMENT = {fm.BYTES: 1, fm.BF16: 2, fm.FP16: 2, fm.FP32: 4, fm.FP8_E4M3: 1, fm.FP8_E5M2: 1}
GUARD = 0xA5
EDGES = (1, 2, 3, 15, 16, 17, 31, 32, 33, 40, 63, 64, 65, 257, 1000, 16383, 16384, 16385, 16386, 40000)

failures = []
seen = collections.Counter()


def expect(condition, what, *details):
    """Counts a failure; prints the first ones."""
    if not condition:
        failures.append(what)
        if len(failures) <= 20:
            print("FAILED:", what, *details)
    return condition


# ---- Data


def values_of(sign_mantissa, exponent):
    return fm.join_values(np.asarray(sign_mantissa, np.uint8), np.asarray(exponent, np.uint8)).astype("<u2").tobytes()


def gaussian(rng, n, scale=None):
    scale = 10.0 ** rng.uniform(-4, 3) if scale is None else scale
    return (rng.normal(0, scale, n).astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()


def ranked(rng, n, exponents, choose):
    """Values whose exponents have the ranks choose(n)."""
    return values_of(rng.integers(0, 256, n), exponents[np.asarray(choose, np.int64)])


def sparse_escapes(rng, n, exponents):
    """A few escapes among small ranks, at the ends of the block too."""
    ranks = rng.integers(0, 16, n)
    for at in {0, n - 1, *rng.integers(0, n, 3).tolist()}:
        ranks[at] = rng.choice([16, 17, 20, 21, 255])
    return ranked(rng, n, exponents, ranks)


def at_top16_limit(rng, n, exponents):
    """As many escapes as just fit, or one or two units around it, in each block."""
    out = b""
    for at in range(0, n, 8192):
        m = min(8192, n - at)
        most = (16 * (fm.units(2 * m) - 1) - m - (m + 1) // 2 - 2) // 3 + int(rng.integers(-3, 4))
        ranks = rng.integers(0, 16, m)
        ranks[rng.permutation(m)[:max(0, most)]] = rng.integers(16, 256)
        out += ranked(rng, m, exponents, ranks)
    return out


def at_tiered_limit(rng, n, exponents):
    """As many values of the last tier as just fit, or a few around it, in each block."""
    out = b""
    for at in range(0, n, 8192):
        m = min(8192, n - at)
        most = int((0.75 * m - 16) / 1.75) + int(rng.integers(-12, 13))
        ranks = rng.integers(0, 3, m)
        ranks[rng.permutation(m)[:max(0, most)]] = rng.choice([21, 22, 255])
        out += ranked(rng, m, exponents, ranks)
    return out


def tier_edges(rng, n, exponents):
    return ranked(rng, n, exponents, rng.choice([0, 2, 3, 5, 6, 15, 16, 20, 21, 255], n,
                                                p=[.3, .2, .1, .1, .1, .1, .04, .02, .02, .02]))


def mostly_one(rng, n, _):
    """One value, with one exception in some blocks."""
    values = np.full(n, rng.integers(0, 65536), "<u2")
    if rng.random() < 0.5:
        values[rng.integers(0, n)] ^= 1 << int(rng.integers(0, 16))
    return values.tobytes()


def specials(rng, n, _):
    return rng.choice(np.array([0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0xFFFF, 0x7FFF, 0x0001, 0x8001, 0x007F, 0x0080],
                               "<u2"), n).astype("<u2").tobytes()


DISTRIBUTIONS = {
    "gaussian": lambda rng, n, _: gaussian(rng, n),
    "uniform": lambda rng, n, _: rng.bytes(2 * n),
    "geometric": lambda rng, n, e: ranked(rng, n, e, np.minimum(rng.geometric(0.35, n) - 1, 255)),
    "top16": lambda rng, n, e: ranked(rng, n, e, rng.integers(0, 16, n)),
    "first tier": lambda rng, n, e: ranked(rng, n, e, rng.integers(0, 3, n)),
    "all escapes": lambda rng, n, e: ranked(rng, n, e, rng.integers(21, 256, n)),
    "sparse escapes": sparse_escapes,
    "top16 limit": at_top16_limit,
    "tiered limit": at_tiered_limit,
    "tier edges": tier_edges,
    "mostly one": mostly_one,
    "specials": specials,
}


def as_fp32(rng, halves, count):
    """Values with these upper halves; the lower ones zero, or not in some block, or anything."""
    values = np.frombuffer(halves, "<u2", count).astype("<u4") << 16
    kind = rng.integers(0, 4)
    if kind == 1:
        values[rng.integers(0, count)] |= 1 << int(rng.integers(0, 16))
    elif kind > 1:
        values |= rng.integers(0, 65536, count).astype("<u4")
    return values.tobytes()


def as_fp16(rng, halves, count):
    """Values of about these sizes: what FP16 cannot hold becomes zero or infinite. At times the bits as they are."""
    if rng.random() < 0.2:
        return halves
    with np.errstate(over="ignore", invalid="ignore"):
        return (np.frombuffer(halves, "<u2", count).astype("<u4") << 16).view("<f4").astype("<f2").tobytes()


def random_data(rng, size, exponents, element=fm.BF16):
    """`size` bytes: one distribution, or another one from some block on."""
    n = size // 2 + 1
    if element == fm.FP32:
        return as_fp32(rng, random_data(rng, 2 * n, exponents), n)[:size]
    if element == fm.FP16:
        return as_fp16(rng, random_data(rng, 2 * n, exponents), n)[:size]
    names = list(DISTRIBUTIONS)
    data = DISTRIBUTIONS[rng.choice(names)](rng, n, exponents)
    if size > fm.BLOCK_BYTES and rng.random() < 0.7:
        data = data[:fm.BLOCK_BYTES] + DISTRIBUTIONS[rng.choice(names)](rng, n, exponents)
    return data[:size]


def random_tables(rng, count):
    """Random permutations, and rankings like those of real data."""
    rankings = []
    for _ in range(count):
        ranking = rng.permutation(256)
        if rng.random() < 0.5:
            center = rng.integers(100, 140)
            ranking = np.argsort(np.abs(np.arange(256) - center) * 2 + (np.arange(256) > center), kind="stable")
        rankings.append(ranking)
    return fm.TableSet(rankings)


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


# ---- The C library (include/strait/codec.h)


class Region(ct.Structure):
    _fields_ = [("base", ct.c_void_p), ("page_stride", ct.c_uint64), ("row_stride", ct.c_uint64),
                ("page_count", ct.c_uint32), ("rows", ct.c_uint32), ("row_bytes", ct.c_uint32), ("table", ct.c_uint32),
                ("reserved", ct.c_uint32 * 2)]


class Pages(ct.Structure):
    _fields_ = [("regions", ct.POINTER(Region)), ("ids", ct.POINTER(ct.c_uint32)), ("region_count", ct.c_uint32),
                ("id_count", ct.c_uint32)]


class Result(ct.Structure):
    _fields_ = [("bytes", ct.c_uint64), ("status", ct.c_int32), ("chunk_status", ct.c_int32),
                ("failed_pages", ct.c_uint32), ("reserved", ct.c_uint32),
                ("values", ct.c_uint64 * 5)]


class Run(ct.Structure):
    _fields_ = [("size", ct.c_size_t), ("scratch", ct.c_void_p), ("scratch_size", ct.c_size_t),
                ("stream", ct.c_void_p), ("result", ct.POINTER(Result)), ("page_status", ct.POINTER(ct.c_int32)),
                ("page_status_count", ct.c_uint32), ("class_count", ct.c_uint32), ("class_stats", ct.c_void_p),
                ("metadata", ct.c_void_p)]


class ClassStats(ct.Structure):
    _fields_ = [("values", ct.c_uint64), ("escapes", ct.c_uint64)]


class ChunkInfo(ct.Structure):
    _fields_ = [("chunk_bytes", ct.c_uint64), ("metadata_bytes", ct.c_uint64), ("page_count", ct.c_uint32),
                ("page_bytes", ct.c_uint32), ("element", ct.c_int), ("version", ct.c_uint8),
                ("codebook_id", ct.c_uint8 * 16)]


class PageInfo(ct.Structure):
    _fields_ = [("sum", ct.c_uint64), ("page_bytes", ct.c_uint32), ("coded_bytes", ct.c_uint32),
                ("table", ct.c_uint32), ("block_modes", ct.c_uint32)]


class EncodeParams(ct.Structure):
    _fields_ = [("size", ct.c_size_t), ("element", ct.c_int), ("mode", ct.c_int), ("codebook", ct.c_void_p)]


def load(path):
    lib = ct.CDLL(path)
    pointer, pages, run = ct.c_void_p, ct.POINTER(Pages), ct.POINTER(Run)
    for name, result, arguments in (
            ("strait_codec_get", pointer, [ct.c_char_p]),
            ("strait_codebook_create", ct.c_int, [pointer, pointer, ct.c_uint32, ct.POINTER(pointer)]),
            ("strait_codebook_destroy", None, [pointer]),
            ("strait_codebook_id", pointer, [pointer]),
            ("strait_scratch_size", ct.c_size_t, [pointer]),
            ("strait_encode_bound", ct.c_uint64, [pages]),
            ("strait_encode", ct.c_int, [pointer, ct.POINTER(EncodeParams), pointer, ct.c_uint64, pages, run]),
            ("strait_decode", ct.c_int, [pointer, pointer, pages, pointer, pointer, ct.c_uint64, run]),
            ("strait_verify", ct.c_int, [pointer, pointer, pointer, ct.c_uint64, run]),
            ("strait_chunk_info", ct.c_int, [pointer, ct.c_uint64, ct.POINTER(ChunkInfo)]),
            ("strait_chunk_pages", ct.c_int, [pointer, ct.c_uint64, ct.c_uint32, ct.POINTER(PageInfo)])):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def aligned(size, alignment=64):
    """A uint8 array of `size` bytes at a multiple of `alignment`."""
    whole = np.full(size + alignment, GUARD, np.uint8)
    skip = -whole.ctypes.data % alignment
    return whole[skip:skip + size]


class Pool:
    """Regions in memory: regions are (page bytes, table), every region has id_count pages of the list."""

    def __init__(self, rng, regions, id_count, element):
        self.id_count, step = id_count, ALIGNMENT[element]
        page_count = id_count + int(rng.integers(0, 3))
        self.ids = (ct.c_uint32 * id_count)(*rng.permutation(page_count)[:id_count].tolist())
        identity = all(i == x for i, x in enumerate(self.ids))
        self.array, self.buffers, self.shapes = (Region * len(regions))(), [], []
        for region, (length, table) in zip(self.array, regions):
            rows = int(rng.choice([r for r in (1, 1, 1, 2, 4, 8, 64) if length % (r * step) == 0 or r == 1]))
            row_stride = self.stride(rng, length // rows, step)
            page_stride = self.stride(rng, row_stride * (rows - 1) + length // rows, step)
            skip = step * int(rng.integers(0, 9))
            buffer = aligned(skip + page_stride * page_count + 8)
            region.base, region.page_stride, region.row_stride = buffer.ctypes.data + skip, page_stride, row_stride
            region.page_count, region.rows, region.row_bytes, region.table = page_count, rows, length // rows, table
            self.buffers.append(buffer)
            self.shapes.append((skip, page_stride, row_stride, rows, length // rows))
        ids = None if identity and rng.random() < 0.5 else ct.cast(self.ids, ct.POINTER(ct.c_uint32))
        self.pages = Pages(self.array, ids, len(regions), id_count)
        self.count = len(regions) * id_count

    @staticmethod
    def stride(rng, size, step):
        return fm.ceil_div(size, step) * step + step * int(rng.integers(0, 5)) * int(rng.integers(0, 2))

    def spans(self, page):
        """Where the rows of a page of the list are: slices of its region's buffer."""
        region, i = divmod(page, self.id_count)
        skip, page_stride, row_stride, rows, row_bytes = self.shapes[region]
        start = skip + self.ids[i] * page_stride
        return self.buffers[region], [slice(start + r * row_stride, start + r * row_stride + row_bytes)
                                      for r in range(rows)]

    def write(self, page, data):
        buffer, spans = self.spans(page)
        source = np.frombuffer(data, np.uint8).reshape(len(spans), -1)
        for span, row in zip(spans, source):
            buffer[span] = row

    def read(self, page):
        buffer, spans = self.spans(page)
        return b"".join(buffer[span].tobytes() for span in spans)

    def untouched(self, written):
        """Nothing but the pages of `written` has changed since the pool was made."""
        kept = [buffer.copy() for buffer in self.buffers]
        for page in written:
            for span in self.spans(page)[1]:
                kept[page // self.id_count][span] = GUARD
        return all((buffer == GUARD).all() for buffer in kept)


class Codec:
    """One variant of the library."""
    statuses = (ct.c_int32 * fm.CHUNK_PAGES_MAX)()

    def __init__(self, lib, name):
        self.lib, self.name = lib, name
        self.handle = lib.strait_codec_get(name.encode())
        self.scratch = aligned(lib.strait_scratch_size(self.handle)) if self.handle else None
        self.stats = (ClassStats * 8)()

    def run(self, result, with_scratch):
        run = Run(ct.sizeof(Run), None, 0, None, ct.pointer(result), ct.cast(self.statuses, ct.POINTER(ct.c_int32)),
                  len(self.statuses))
        if with_scratch:
            run.scratch, run.scratch_size = self.scratch.ctypes.data, len(self.scratch)
        ct.memset(self.stats, 0, ct.sizeof(self.stats))
        run.class_stats, run.class_count = ct.addressof(self.stats), len(self.stats)
        return run

    def encode(self, pool, element, asked, codebook, with_scratch=False):
        """(returned, result, chunk)"""
        capacity = self.lib.strait_encode_bound(pool.pages)
        chunk = aligned(capacity + 64)
        result = Result()
        params = EncodeParams(ct.sizeof(EncodeParams), element, ASKED[asked], codebook)
        returned = self.lib.strait_encode(self.handle, params, chunk.ctypes.data, capacity, pool.pages,
                                          self.run(result, with_scratch))
        expect((chunk[capacity:] == GUARD).all(), "encode wrote beyond its capacity", self.name)
        return returned, result, chunk[:result.bytes].tobytes()

    def decode(self, chunk, codebook, pool, select=None, with_scratch=False):
        """(returned, result, page statuses)"""
        result, source = Result(), self.source(chunk)
        chosen = (ct.c_uint32 * len(select))(*select) if select is not None else None
        returned = self.lib.strait_decode(self.handle, codebook, pool.pages, chosen, source.ctypes.data, len(chunk),
                                          self.run(result, with_scratch))
        return returned, result, self.statuses[:pool.count]

    def verify(self, chunk, codebook, count):
        result, source = Result(), self.source(chunk)
        returned = self.lib.strait_verify(self.handle, codebook, source.ctypes.data, len(chunk),
                                          self.run(result, False))
        return returned, result, self.statuses[:count]

    @staticmethod
    def source(chunk):
        """The bytes at the end of their own allocation, so that a sanitizer sees reads beyond them."""
        return np.frombuffer(bytes(chunk) or b"\0", np.uint8).copy()


def create_codebook(lib, tables):
    handle = ct.c_void_p()
    rankings = np.ascontiguousarray(tables.exponent)
    status = lib.strait_codebook_create(rankings.ctypes.data, None, len(tables), ct.byref(handle))
    expect(status == 0, "strait_codebook_create", status)
    expect(ct.string_at(lib.strait_codebook_id(handle), 16) == tables.id, "set id")
    return handle


# ---- Hostile chunks


def repair(chunk):
    """The chunk with the metadata sum that its first M bytes call for, where they can be found."""
    if len(chunk) < 48:
        return chunk
    pages, longest = struct.unpack_from("<II", chunk, 8)
    header = fm.Header(0, chunk[6] & 1, pages, max(longest, 1), 0, b"", 0)
    if header.metadata_bytes > len(chunk):
        return chunk
    total = fm.metadata_sum(bytes(chunk[:header.metadata_bytes]))
    return bytes(chunk[:40]) + struct.pack("<Q", total) + bytes(chunk[48:])


def flip(rng, data, low, high):
    at = int(rng.integers(low, high))
    data[at] ^= 1 << int(rng.integers(0, 8))


def set_word(rng, data, low, high):
    """A hostile word at a multiple of 4."""
    at = int(rng.integers(low // 4, high // 4)) * 4
    old = struct.unpack_from("<I", data, at)[0]
    new = [0, 1, old + 1, old - 1, old + 16, old - 16, old ^ 1 << int(rng.integers(0, 32)), 0x7FFFFFFF, 0xFFFFFFFF,
           1 << 20, (1 << 20) + 1, 1 << 24, (1 << 24) + 1, 16384, 16385, int(rng.integers(0, 1 << 32))]
    struct.pack_into("<I", data, at, new[int(rng.integers(0, len(new)))] & fm.MASK32)


def row_places(header):
    """Where the rows of a chunk are."""
    rows_at = header.tables_bytes - 4 * header.pages * header.rows_per_page
    return [48 + 16 * p for p in range(header.pages)] + list(range(rows_at, header.tables_bytes, 4))


def mutate_row(rng, data, header):
    """A row gets another mode, or two rows change places."""
    places = row_places(header)
    a, b = rng.choice(places, 2).tolist()
    if rng.random() < 0.6:
        data[a] = data[a] & 0xF0 | int(rng.choice([0, 1, 2, 3, 4, 5, 15]))
    else:
        data[a:a + 4], data[b:b + 4] = data[b:b + 4], data[a:a + 4]


def mutate_entry(rng, data, header):
    """Two entries change places, or one gets another table."""
    a, b = (48 + 16 * rng.integers(0, header.pages, 2)).tolist()
    if rng.random() < 0.5:
        data[a:a + 16], data[b:b + 16] = data[b:b + 16], data[a:a + 16]
    else:
        struct.pack_into("<H", data, a + 4, int(rng.choice([0, 1, 2, 3, 7, 65534, 65535])))


def mutate_metadata(rng, data, header):
    kind = rng.integers(0, 6)
    end = header.metadata_bytes
    if kind == 0:
        flip(rng, data, 0, end)
    elif kind == 1:
        set_word(rng, data, 0, 48)
    elif kind == 2:
        set_word(rng, data, 48, end)
    elif kind == 3:
        mutate_entry(rng, data, header)
    else:
        mutate_row(rng, data, header)


def mutate_escapes(rng, data, block, exponents):
    """Hostile counts, positions, exponents and codes of a mode 3 block."""
    count_at = block.offset + block.n + (block.n + 1) // 2
    room = (block.offset + block.extent - count_at - 2) // 3
    count = max(1, min(room, struct.unpack_from("<H", data, count_at)[0]))  # may be hostile already
    at = int(rng.choice([0, count - 1, rng.integers(0, count)]))
    position_at = count_at + 2 + 2 * at
    position = struct.unpack_from("<H", data, position_at)[0]
    before = struct.unpack_from("<H", data, position_at - 2)[0]
    kind = rng.integers(0, 4)
    if kind == 0:
        struct.pack_into("<H", data, count_at, int(rng.choice([0, count - 1, count + 1, block.n, block.n + 1, 65535])))
    elif kind == 1:
        new = int(rng.choice([0, position + 1, position - 1, block.n, block.n - 1, 65535, 8191, 8192, before, before]))
        struct.pack_into("<H", data, position_at, new & 0xFFFF)
    elif kind == 2:
        data[count_at + 2 + 2 * count + at] = int(exponents[rng.choice([0, 15, 15, 16, 17, 255])])
    else:
        data[block.offset + block.n + min(position, block.n - 1) // 2] |= 1 << int(rng.integers(0, 8))


def mutate_tiers(rng, data, block, exponents):
    """The last tier gets exponents on both sides of its limit, or any bit behind S changes."""
    if rng.random() < 0.5:
        data[block.offset + block.extent - int(rng.integers(1, 17))] = int(exponents[rng.choice([6, 20, 20, 21, 255])])
    else:
        flip(rng, data, block.offset + block.n, block.offset + block.extent)


def mutate_end(rng, data, block):
    """Another coder or another base, or a bit of the streams of codes."""
    kind, end = rng.integers(0, 3), block.offset + block.extent
    if kind == 0:
        data[end - 2] = int(rng.choice([0, 1, 2, 3, 4, 255]))
    elif kind == 1:
        data[end - 1] = (data[end - 1] + int(rng.choice([-16, -1, 1, 2, 16]))) & 255
    else:
        flip(rng, data, block.offset + block.extent // 2, end - 2)


def mutate_block(rng, data, pages, tables):
    """Something in a block: its escapes, its tiers, its last unit, any bit."""
    blocks = [(page, block) for page in pages for block in page.blocks]
    escaped = [(page, block) for page, block in blocks if block.mode == fm.ESCAPES]
    if escaped and rng.random() < 0.5:
        page, block = escaped[int(rng.integers(0, len(escaped)))]
        return mutate_escapes(rng, data, block, tables.exponent[page.table])
    page, block = blocks[int(rng.integers(0, len(blocks)))]
    if block.mode == fm.TIERED and rng.random() < 0.7:
        return mutate_tiers(rng, data, block, tables.exponent[page.table])
    if block.mode in (fm.BASE, fm.SPLIT, fm.FP32Z) and rng.random() < 0.5:
        return mutate_end(rng, data, block)
    low = block.offset + (block.extent - 16 if rng.random() < 0.6 else 0)
    return flip(rng, data, low, block.offset + block.extent)


def with_all_lengths(chunk):
    """A chunk of equal pages with a length table that it must not have, all else fitting."""
    header, pages = fm.parse_chunk(chunk)
    if header.has_lengths:
        return chunk
    longer = fm.Header(header.element, 1, header.pages, header.longest, 0, b"", 0).metadata_bytes
    shift = longer - header.metadata_bytes
    rows_at, lengths_at = header.tables_bytes - 4 * header.pages * header.rows_per_page, 48 + 16 * header.pages
    data = bytearray(chunk)
    for place in row_places(header):
        if place < 48 + 16 * header.pages or struct.unpack_from("<I", data, place)[0]:
            struct.pack_into("<I", data, place, struct.unpack_from("<I", data, place)[0] + shift)
    data[6] = 1
    struct.pack_into("<I", data, 16, header.size + shift)
    metadata = data[:lengths_at] + struct.pack("<I", header.longest) * header.pages + data[rows_at:header.tables_bytes]
    return repair(bytes(metadata + fm.padding(len(metadata)) + data[header.metadata_bytes:]))


def force_typed(rng, block, rank, element):
    """A block of modes 6 to 8, right or with a coder, base or mode that no encoder takes for these bytes."""
    mode, data = fm.encode_typed(block, rank, element, str(rng.choice(["base", "split"])))
    halves, rests = fm.split_halves(block, element)
    kind, base = rng.integers(0, 5), fm.base_of(halves)
    if kind < 2:  # the other coder, or another base
        base = base if kind == 0 else (base + int(rng.choice([1, 255]))) & 255
        own = fm.base_ranking(base)[1]
        coder, streams = (fm.encode_top16 if rng.random() < 0.5 else fm.encode_tiered)(halves, own)
        used = fm.pack_rests(rests, mode, element) + streams + block[len(halves) * fm.VALUE_BYTES[element]:]
        data = used + bytes(-(len(used) + 2) % 16) + bytes([1 if coder == fm.TIERED else coder, base])
    elif kind == 2:
        mode = int(rng.choice([fm.BASE, fm.SPLIT, fm.FP32Z]))
    return mode, data + bytes(int(rng.choice([0, 0, 0, 16])))


def force_block(rng, page, at, tables, table, element):
    """A coded block that no encoder writes for these bytes, or one of odd size."""
    block = page[at:at + fm.BLOCK_BYTES]
    n = len(block) // 2
    values, tail = np.frombuffer(block, "<u2", n), block[2 * n:]
    rank = tables.rank[table] if tables else np.arange(256, dtype=np.uint8)
    if element in fm.VALUE_BYTES and len(block) >= 16 and rng.random() < 0.5:
        return force_typed(rng, block, rank, element)
    kind = rng.integers(0, 5)
    if kind == 0 or n == 0:
        return fm.RAW, block
    if kind == 1:
        return fm.CONST, block[:2] + tail
    mode, streams = (fm.encode_top16 if kind < 4 else fm.encode_tiered)(values, rank)
    return mode, streams + tail + bytes(int(rng.choice([0, 0, 16])))


def forced_chunk(rng, source):
    """The source's pages as another encoder could have coded them, all sums right."""
    tables, coded = source.tables, []
    for index, (page, table) in enumerate(zip(source.data, source.page_tables)):
        if rng.random() < 0.5 and page:
            page = page[:2] * (len(page) // 2) + page[-(len(page) % 2):][:len(page) % 2]
        rank = tables.rank[table] if tables else None
        blocks = [force_block(rng, page, at, tables, table, source.element) if rng.random() < 0.5 else
                  fm.encode_block(page[at:at + fm.BLOCK_BYTES], rank, source.element, source.asked)
                  for at in range(0, len(page), fm.BLOCK_BYTES)]
        coded.append((len(page), table, fm.page_sum(page, index, table), blocks))
    return fm.assemble_chunk(source.element, tables.id if tables else fm.NO_CODEBOOK, coded)


def resized(rng, chunk):
    """Cut or extended, the field of the size following or not."""
    grow = int(rng.choice([1, 15, 16, 32]))
    size = len(chunk) + grow if rng.random() < 0.5 else int(rng.integers(0, len(chunk)))
    if rng.random() < 0.5:
        size = size // 16 * 16
    data = bytearray(chunk[:size] + bytes(max(0, size - len(chunk))))
    if rng.random() < 0.5 and size >= 48:
        struct.pack_into("<I", data, 16, size)
        return repair(data)
    return bytes(data)


def mutations(rng, source, chunk):
    """(name, bytes) of chunks to refuse, or at times to accept."""
    header, pages = fm.parse_chunk(chunk)
    data = bytearray(chunk)
    flip(rng, data, 0, len(data))
    yield "bit", bytes(data)
    for times in (1, 1, 2, 2):
        data = bytearray(chunk)
        for _ in range(times):
            mutate_metadata(rng, data, header)
        yield "metadata, repaired", repair(data)
    for times in (1, 1, 3):
        data = bytearray(chunk)
        for _ in range(times):
            mutate_block(rng, data, pages, source.tables)
        yield "block", bytes(data)
    yield "size", resized(rng, chunk)
    yield "lengths", with_all_lengths(chunk)
    yield "forced", forced_chunk(rng, source)


# ---- Random chunks: the C library against the model


class Source:
    """Random pages and how they are to be encoded."""

    def __init__(self, rng, sets):
        self.set_index = None if rng.random() < 0.1 else int(rng.integers(0, len(sets)))
        self.tables = None if self.set_index is None else sets[self.set_index][0]
        self.codebook = None if self.set_index is None else sets[self.set_index][1]
        self.element = int(rng.choice([1, 1, 1, 1, 1, 1, 2, 2, 3, 3, 3, 0, 4, 5]))
        self.asked = str(rng.choice(fm.ASKED_MODES, p=ASKED_SHARES))
        if self.tables is None and self.element in fm.VALUE_BYTES:
            self.asked = str(rng.choice(["raw", "base", "base"]))
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
    """Values per block mode; blocks of modes 6 to 8 count as what their coder is."""
    total = [0] * 5
    for page in parsed:
        for block in page.blocks:
            coder = chunk[block.offset + block.extent - 2]
            total[block.mode if block.mode <= fm.TIERED else fm.TIERED if coder < 2 else coder] += block.n
    return total


def typed_escapes(source, chunk, block, data, table):
    """Halves in the escapes or the last tier of a block of modes 6 to 8."""
    coder, base = chunk[block.offset + block.extent - 2:block.offset + block.extent]
    halves, _ = fm.split_halves(data[:2 * block.n + block.t], source.element)
    rank = source.tables.rank[table] if coder == 0 else fm.base_ranking(base)[1]
    return int((rank[halves >> 7 & 0xFF] >= (21 if coder < 2 else 16)).sum())


def escape_counts(source, chunk, parsed):
    """Per table: (values of coded blocks, those of them in the escapes or the last tier)."""
    total = [[0, 0] for _ in range(8)]
    for page, data, table in zip(parsed, source.data, source.page_tables):
        for at, block in enumerate(page.blocks):
            if block.mode in (fm.BASE, fm.SPLIT, fm.FP32Z):
                total[table][0] += block.n
                total[table][1] += typed_escapes(source, chunk, block, data[at * fm.BLOCK_BYTES:], table)
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
    stats = [[entry.values, entry.escapes] for entry in codec.stats]
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
    at = next((i for i, (x, y) in enumerate(zip(coded, chunk)) if x != y), min(len(coded), len(chunk)))
    expect(coded == chunk, "encode bytes differ at %d" % at, codec.name, len(coded), len(chunk), source.what())
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
    info, pages = ChunkInfo(), (PageInfo * 16)()
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
    got_status = lib.strait_chunk_pages(source.ctypes.data, len(chunk), max(1, len(wanted)), pages)
    got = [(p.sum, p.page_bytes, p.coded_bytes, p.table, p.block_modes) for p in pages[:len(wanted)]]
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
    pool.ids[at] = int(rng.choice([pool.array[0].page_count, 0xFFFFFFFF, 0x80000000]))
    pool.pages.ids = ct.cast(pool.ids, ct.POINTER(ct.c_uint32))
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
