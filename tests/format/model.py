"""A plain model of the Strait formats, written from kernels/FORMAT.md alone: the judge of the C and CUDA codecs.

Sections in the docstrings are those of FORMAT.md. Needs numpy; the hashes of files (section 7) also need `xxhash` from
PyPI: without it they are written as zero and not checked, and FILE_HASHES_CHECKED is False.
"""
import functools
import hashlib
import struct
from dataclasses import dataclass

import numpy as np

try:
    import xxhash
except ImportError:
    xxhash = None

FILE_HASHES_CHECKED = xxhash is not None

VERSION = 1
UNIT = 16
BLOCK_BYTES = 16384
PAGE_BYTES_MAX = 1 << 24
CHUNK_PAGES_MAX = 1 << 20
HEADER_BYTES = 48
BLOCK_MODES = RAW, CONST, TOP16, ESCAPES, TIERED, BASE, SPLIT, FP32Z, FP8, PARTS = 0, 1, 2, 3, 4, 6, 7, 8, 10, 11
ELEMENTS = BYTES, BF16, FP16, FP32, FP8_E4M3, FP8_E5M2 = range(6)
ASKED_MODES = ("auto", "raw", "top16", "tiered", "base", "split", "parts")
VALUE_BYTES = {BF16: 2, FP16: 2, FP32: 4}
MANTISSA_BITS = {BF16: 7, FP16: 10, FP32: 23}
FP8_MANTISSA_BITS = {FP8_E4M3: 3, FP8_E5M2: 2}
FP8_RANKS = 9
NO_CODEBOOK = bytes(16)
ERRORS = ("truncated", "corrupt", "unsupported", "integrity", "codebook")


class FormatError(Exception):
    """A failed check of section 6; `name` is one of ERRORS."""

    def __init__(self, name):
        super().__init__(name)
        self.name = name


def require(condition, name="corrupt"):
    if not condition:
        raise FormatError(name)


def ceil_div(a, b):
    return -(-a // b)


def units(size):
    return ceil_div(size, UNIT)


def padding(size):
    """Zero bytes up to a multiple of 16."""
    return bytes(-size % UNIT)


# ---- Section 2: tables and sets


class TableSet:
    """Section 2: an ordered list of rankings. exponent[t][r] and its inverse rank[t][e] are uint8 arrays."""

    def __init__(self, rankings):
        self.exponent = np.array(rankings, dtype=np.uint8).reshape(-1, 256)
        require(1 <= len(self.exponent) <= 65535)
        require((np.sort(self.exponent, axis=1) == np.arange(256)).all())
        self.rank = np.argsort(self.exponent, axis=1).astype(np.uint8)
        self.id = set_id(self.exponent)

    def __len__(self):
        return len(self.exponent)


def set_id(exponent):
    """Section 2: the first 16 bytes of SHA-256 over mark, count and rankings."""
    return hashlib.sha256(b"STRAITCB" + struct.pack("<I", len(exponent)) + exponent.tobytes()).digest()[:16]


# ---- Section 5: sums

MASK32, MASK64 = (1 << 32) - 1, (1 << 64) - 1
SUM_R = np.array([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0, 0x082EFA98, 0xEC4E6C89,
                  0x452821E6, 0x38D01377, 0xBE5466CF, 0x34E90C6C, 0xC0AC29B7, 0xC97C50DD, 0x3F84D5B5, 0xB5470917],
                 dtype=np.uint64)
SUM_C = np.array([0x9E3779B1, 0x85EBCA77], dtype=np.uint64)


def mix(z):
    """Section 5: mix of a 64-bit number."""
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK64
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK64
    return z ^ z >> 31


def seed(a, b, c):
    """Section 5: what a sum begins with."""
    return mix((mix((a + (b << 32)) & MASK64) + c) & MASK64)


@functools.lru_cache(maxsize=1)
def all_sum_keys(count):
    i = np.arange(count, dtype=np.uint64)
    return (SUM_R[i % 16] + (i // 16) * SUM_C[i % 2]).astype(np.uint32)


def sum_keys(count):
    """Section 5: what is added to each of `count` words, modulo 2^32."""
    return all_sum_keys(1 << max(16, (count - 1).bit_length()))[:count]


def strait_sum(data, a, b, c):
    """Section 5: sum(bytes, a, b, c)."""
    data = bytes(data) + bytes(-len(data) % 8)
    w = np.frombuffer(data, "<u4")
    x = (w + sum_keys(len(w))).astype(np.uint64)
    even, odd = x[0::2], x[1::2]
    terms = even * odd + even + (odd << 32)
    return (seed(a, b, c) + int(terms.sum(dtype=np.uint64))) & MASK64


def page_sum(page, index, table):
    """Section 5: sum of a page's source bytes."""
    return strait_sum(page, len(page), index, table)


def metadata_sum(metadata):
    """Section 5: sum of the first M bytes of a chunk, the sum itself taken as zero."""
    return strait_sum(metadata[:40] + bytes(8) + metadata[48:], len(metadata), 4294967295, 65535)


# ---- Section 3: blocks


def block_shapes(length):
    """Section 1: (n, t) of each block of a page."""
    sizes = [min(BLOCK_BYTES, length - start) for start in range(0, length, BLOCK_BYTES)]
    return [(size // 2, size % 2) for size in sizes]


def split_values(values):
    """Section 1: sign+mantissa and exponent of each value."""
    return (values >> 8 & 0x80 | values & 0x7F).astype(np.uint8), (values >> 7 & 0xFF).astype(np.uint8)


def join_values(sign_mantissa, exponent):
    sm, e = sign_mantissa.astype(np.uint16), exponent.astype(np.uint16)
    return (sm & 0x80) << 8 | e << 7 | sm & 0x7F


def pack(items, bits):
    """Section 3: items of 1, 2 or 4 bits fill a byte from bit 0 upward."""
    per_byte = 8 // bits
    grid = np.zeros((ceil_div(len(items), per_byte), per_byte), np.uint8)
    grid.reshape(-1)[:len(items)] = items
    return np.bitwise_or.reduce(grid << (np.arange(per_byte, dtype=np.uint8) * bits), axis=1).astype(np.uint8).tobytes()


def encode_top16(values, rank):
    """Section 3: modes 2 and 3; (mode, streams)."""
    sign_mantissa, exponent = split_values(values)
    ranks = rank[exponent]
    escapes = np.flatnonzero(ranks >= 16)
    streams = sign_mantissa.tobytes() + pack(np.where(ranks < 16, ranks, 0), 4)
    if not len(escapes):
        return TOP16, streams
    streams += struct.pack("<H", len(escapes)) + escapes.astype("<u2").tobytes() + exponent[escapes].tobytes()
    return ESCAPES, streams


def encode_tiered(values, rank):
    """Section 3: mode 4; (mode, streams)."""
    sign_mantissa, exponent = split_values(values)
    ranks = rank[exponent]
    beyond2, beyond5, beyond20 = ranks > 2, ranks > 5, ranks > 20
    t1 = np.where(beyond2, 3, ranks)
    t2 = np.where(beyond5, 3, ranks - 3)[beyond2]
    t3 = np.where(beyond20, 15, ranks - 6)[beyond5]
    return TIERED, sign_mantissa.tobytes() + pack(t1, 2) + pack(t2, 2) + pack(t3, 4) + exponent[beyond20].tobytes()


# ---- Section 3.2: modes 6 to 8


def split_halves(block, element):
    """(halves, rests) of the values of a block."""
    size = VALUE_BYTES[element]
    values = np.frombuffer(block, "<u%d" % size, len(block) // size)
    if element == FP32:
        return (values >> 16).astype("<u2"), (values & 0xFFFF).astype("<u2")
    if element == BF16:
        return values, np.zeros(0, np.uint8)
    e = values >> 10 & 31
    wide = np.where(e == 0, 0, np.where(e == 31, 255, e + 112)).astype("<u2")
    return (values & 0x8000 | wide << 7 | values >> 3 & 0x7F).astype("<u2"), (values & 7).astype(np.uint8)


def join_halves(halves, rests, element):
    """The inverse; corrupt where there is none."""
    if element == FP32:
        return (halves.astype("<u4") << 16 | rests).astype("<u4").tobytes()
    if element == BF16:
        return halves.astype("<u2").tobytes()
    wide = halves >> 7 & 255
    require(((wide == 0) | (wide == 255) | (wide > 112) & (wide < 143)).all())
    e = np.where(wide == 0, 0, np.where(wide == 255, 31, wide - 112)).astype("<u2")
    return (halves & 0x8000 | e << 10 | (halves & 0x7F) << 3 | rests).astype("<u2").tobytes()


def base_of(halves):
    """The smallest of the largest exponents of all parts that have one from 1 to 254."""
    exponents = np.where(halves >> 7 & 255 == 255, 0, halves >> 7 & 255)
    largest = [int(exponents[at:at + 256].max()) for at in range(0, len(exponents), 256)]
    return min([e for e in largest if e > 0], default=0)


def base_ranking(base):
    """(exponent of each rank, rank of each exponent)"""
    first = [1, 2, 3, 0, 4, 5, 6, -1, 7, -2, 8, -3, 9, 10, 11, 12, 13, 14, 15, -4, -5]
    distances = np.array(first + list(range(16, 251)))
    exponent = (base - distances) % 256
    at = int(np.flatnonzero(exponent == 0)[0])
    if at > 15:
        exponent[[15, at]] = exponent[[at, 15]]
    return exponent.astype(np.uint8), np.argsort(exponent).astype(np.uint8)


def pack_rests(rests, mode, element):
    if mode != SPLIT:
        return b""
    return rests.tobytes() if element == FP32 else pack(rests & 3, 2) + pack(rests >> 2, 1)


def rest_bytes(mode, element, count):
    if mode != SPLIT:
        return 0
    return 2 * count if element == FP32 else ceil_div(count, 4) + ceil_div(count, 8)


def encode_typed(block, rank, element, asked):
    """(mode, the whole block, padded): `rank` is that of the page's table; not used for `base`."""
    halves, rests = split_halves(block, element)
    mode = BASE if element == BF16 else SPLIT if element == FP16 or rests.any() else FP32Z
    tail = block[len(halves) * VALUE_BYTES[element]:]
    if asked == "split":
        candidates = [(0, 0, encode_tiered(halves, rank)[1])]
    else:
        base = base_of(halves)
        own = base_ranking(base)[1]
        flat, streams = encode_top16(halves, own)
        candidates = [(1, base, encode_tiered(halves, own)[1]), (flat, base, streams)]
    blocks = []
    for coder, base, streams in candidates:
        used = pack_rests(rests, mode, element) + streams + tail
        blocks.append(used + bytes(-(len(used) + 2) % UNIT) + bytes([coder, base]))
    return mode, min(blocks, key=len)


# ---- Section 3.3: mode 10


def split_fp8(block, element):
    """(exponents, mantissas, signs) of the values of a block."""
    values, bits = np.frombuffer(block, np.uint8), FP8_MANTISSA_BITS[element]
    return values >> bits & (0x7F >> bits), values & (1 << bits) - 1, values >> 7


def fp8_ranking(exponents, element):
    """The nine most frequent exponents of the sample, in falling order."""
    p = np.arange(len(exponents))
    g = p // 64
    sample = exponents[p // 8 % 8 == (g + g // 8 + g // 64) % 8]
    counts = np.bincount(sample, minlength=128 >> FP8_MANTISSA_BITS[element])
    return sorted(range(len(counts)), key=lambda e: (-counts[e], e))[:FP8_RANKS]


def fp8_rest_bytes(element, count):
    return ceil_div(count, 2) if element == FP8_E4M3 else ceil_div(count, 4) + ceil_div(count, 8)


def encode_fp8(block, element, ranking):
    """(mode, the whole block, padded), by nine exponents."""
    exponents, mantissas, signs = split_fp8(block, element)
    if element == FP8_E4M3:
        streams = pack(signs << 3 | mantissas, 4)
    else:
        streams = pack(mantissas, 2) + pack(signs, 1)
    for first in (0, 3, 6):
        items = np.full(len(exponents), 3)
        for item in range(3):
            items[exponents == ranking[first + item]] = item
        streams += pack(items, 2)
        exponents = exponents[items == 3]
    streams += pack(exponents & 15, 4)
    if element == FP8_E5M2:
        streams += pack(exponents >> 4, 1)
    return FP8, streams + bytes(-(len(streams) + FP8_RANKS) % UNIT) + bytes(ranking)


# ---- Section 3.4: mode 11

SYMBOLS = np.array([-1, -2, -3, 0, -4, -5, *range(-6, -17, -1), 1, 2, 3, 128]) % 256  # those with the ranks 0 to 20
SYMBOL_EXPONENTS = np.concatenate([SYMBOLS, np.setdiff1d(np.arange(256), SYMBOLS)]).astype(np.uint8)
SYMBOL_RANK = np.argsort(SYMBOL_EXPONENTS).astype(np.uint8)
PATCHED, PATCHES_MAX = 128, 1024


def part_values(block, element):
    """(sign, exponent, mantissa) of each value of a block."""
    halves, _ = split_halves(block, element)
    size, bits = VALUE_BYTES[element], MANTISSA_BITS[element]
    values = np.frombuffer(block, "<u%d" % size, len(block) // size).astype(np.int64)
    return values >> 8 * size - 1, (halves >> 7 & 0xFF).astype(np.int64), values & (1 << bits) - 1


def zero_bits(mantissas, bits):
    return next((z for z in range(bits) if (mantissas >> z & 1).any()), bits)


def part_form(signs, exponents, mantissas, element):
    """(z, g, positions of the values with patches) that an encoder takes."""
    bits, count, positions = MANTISSA_BITS[element], len(mantissas), np.array([], np.int64)
    z = zero_bits(mantissas, bits)
    if element == FP16:
        wide = zero_bits(mantissas[exponents != 0], bits)
        odd = np.flatnonzero(mantissas & (1 << wide) - 1)
        if len(odd) <= PATCHES_MAX and 8 * (4 * len(odd) + 2) < (wide - z) * count:
            z, positions = wide, odd
    return z, 0 if signs.any() and not signs.all() else 2 if signs.all() else 1, positions


def field_pieces(f):
    """(width of a piece, how far its lowest bit is from the field's), in the order of the streams."""
    at, pieces = f, {}
    for width in (8, 16, 4, 2, 1):
        if f & width:
            at -= width
            pieces[width] = at
    return [(width, pieces[width]) for width in (16, 4, 2, 1, 8) if width in pieces]


def pack_fields(fields, f):
    streams = b""
    for width, at in field_pieces(f):
        items = fields >> at & (1 << width) - 1
        streams += items.astype("<u2" if width == 16 else "u1").tobytes() if width >= 8 else pack(items, width)
    return streams


def exchanged(exponents, base):
    """Exponents of a part: 0 and base + 128 change places for bases above 16."""
    far = (base + 128) % 256
    if base <= 16:
        return exponents
    return np.where(exponents == 0, far, np.where(exponents == far, 0, exponents))


def part_bases(exponents):
    bases = []
    for at in range(0, len(exponents), 256):
        part = np.sort(exponents[at:at + 256][exponents[at:at + 256] != 255])
        bases.append(max(1, int(part[-2])) if len(part) > 1 else 1)
    return bases


def part_symbols(exponents, bases):
    symbols = [(exchanged(exponents[256 * i:256 * i + 256], base) - base) % 256 for i, base in enumerate(bases)]
    return np.concatenate(symbols).astype(np.uint8)


def patches_of(positions, mantissas, z):
    """The patches of these values with their number; none: nothing."""
    patches = b"".join(struct.pack("<HH", i, int(mantissas[i]) & (1 << z) - 1 & 0xFFFF) for i in positions)
    return patches + struct.pack("<H", len(positions)) if len(positions) else b""


def encode_parts_as(block, element, z, g, positions, coder, bases, rank):
    """A whole block, padded, of this form, patches, coder and bases; `rank` is that of the page's table, for coder 0."""
    signs, exponents, mantissas = part_values(block, element)
    bits = MANTISSA_BITS[element]
    fields, f = mantissas >> z, bits - z
    if g == 0:
        fields, f = fields | signs << f, f + 1
    symbols, end = exponents.astype(np.uint8), patches_of(positions, mantissas, z)
    if coder == 1:
        symbols, rank, end = part_symbols(exponents, bases), SYMBOL_RANK, end + bytes(bases)
    tiers = encode_tiered(join_values(np.zeros(len(symbols), np.uint8), symbols), rank)[1][len(symbols):]
    used = pack_fields(fields, f) + tiers + block[len(symbols) * VALUE_BYTES[element]:]
    end += bytes([z + 32 * g + PATCHED * (len(positions) > 0), coder])
    return used + bytes(-(len(used) + len(end)) % UNIT) + end


def encode_parts(block, rank, element):
    """(mode, the whole block, padded)"""
    signs, exponents, mantissas = part_values(block, element)
    form = part_form(signs, exponents, mantissas, element)
    blocks = [encode_parts_as(block, element, *form, 1, part_bases(exponents), None)]
    if rank is not None:
        blocks.insert(0, encode_parts_as(block, element, *form, 0, None, rank))
    return PARTS, min(blocks, key=len)


def block_mode_exists(element, asked):
    """Section 3.1: the table of modes."""
    if asked in ("base", "split", "parts"):
        return element != BYTES
    return element == BF16


def encode_block(block, rank, element, asked):
    """Section 3.1: (mode, streams and tail, unpadded). `rank` is None when there is no codebook."""
    n = len(block) // 2
    values, tail = np.frombuffer(block, "<u2", n), block[2 * n:]
    raw = (RAW, block)
    if asked == "raw" or units(len(block)) == 1:
        return raw
    if (values == values[0]).all():
        return CONST, block[:2] + tail
    no_table = rank is None and asked not in ("base", "parts") and element not in FP8_MANTISSA_BITS
    if not block_mode_exists(element, asked) or no_table or n == 0:
        return raw
    if element in FP8_MANTISSA_BITS:
        coded = encode_fp8(block, element, fp8_ranking(split_fp8(block, element)[0], element))
    elif asked == "parts":
        coded = encode_parts(block, rank, element)
    elif asked == "base" or asked == "split" and element != BF16:
        coded = encode_typed(block, rank, element, asked)
    else:
        mode, streams = (encode_top16 if asked == "top16" else encode_tiered)(values, rank)
        coded = (mode, streams + tail)
    return coded if units(len(coded[1])) < units(len(block)) else raw


class Streams:
    """Takes the streams of a block's bytes one after another, section 3; what cannot be taken is corrupt."""

    def __init__(self, payload):
        self.payload, self.at = payload, 0

    def take(self, size):
        require(self.at + size <= len(self.payload))
        self.at += size
        return self.payload[self.at - size:self.at]

    def array(self, count, dtype):
        return np.frombuffer(self.take(count * np.dtype(dtype).itemsize), dtype)

    def items(self, count, bits):
        """`count` items of 1, 2 or 4 bits; unused bits must be zero (check 14)."""
        packed = self.array(ceil_div(count * bits, 8), np.uint8)
        shifts = np.arange(8 // bits, dtype=np.uint8) * bits
        items = (packed[:, None] >> shifts & (1 << bits) - 1).astype(np.uint8).reshape(-1)
        require(not items[count:].any())
        return items[:count]

    def finish(self):
        """Only padding is left, less than a unit of it, all zero (check 14)."""
        rest = self.payload[self.at:]
        require(len(rest) < UNIT and not any(rest))


def decode_top16(streams, n, mode, exponents, rank):
    """Section 3, modes 2 and 3, with check 14."""
    sign_mantissa = streams.array(n, np.uint8)
    codes = streams.items(n, 4)
    exponent = exponents[codes]
    if mode == ESCAPES:
        count = int(streams.array(1, "<u2")[0])
        require(1 <= count <= n)
        positions = streams.array(count, "<u2").astype(np.int64)
        require((np.diff(positions) > 0).all() and positions[-1] < n)
        require(not codes[positions].any())
        escaped = streams.array(count, np.uint8)
        require((rank[escaped] >= 16).all())
        exponent[positions] = escaped
    return join_values(sign_mantissa, exponent)


def decode_tiers(streams, n, exponents, rank):
    """T1 to T4 of mode 4, with check 14: exponents."""
    t1 = streams.items(n, 2)
    in2 = np.flatnonzero(t1 == 3)
    t2 = streams.items(len(in2), 2)
    in3 = in2[t2 == 3]
    t3 = streams.items(len(in3), 4)
    in4 = in3[t3 == 15]
    t4 = streams.array(len(in4), np.uint8)
    require((rank[t4] >= 21).all())
    ranks = t1.copy()
    ranks[in2] = 3 + t2
    ranks[in3] = 6 + t3
    exponent = exponents[ranks]
    exponent[in4] = t4
    return exponent


def decode_tiered(streams, n, exponents, rank):
    """Section 3, mode 4, with check 14."""
    sign_mantissa = streams.array(n, np.uint8)
    return join_values(sign_mantissa, decode_tiers(streams, n, exponents, rank))


def decode_rests(streams, count, mode, element):
    if mode != SPLIT:
        return 0
    if element == FP32:
        rests = streams.array(count, "<u2")
        require(rests.any())
        return rests
    twos = streams.items(count, 2)
    return twos | streams.items(count, 1) << 2


def decode_typed(mode, payload, size, element, exponents, rank):
    """Section 3.2 with check 14: the source bytes of a block of `size`."""
    coder, base = payload[-2:]
    streams = Streams(payload[:-2])
    count = size // VALUE_BYTES[element]
    require(coder <= 3 and (coder > 0 or mode != BASE and base == 0 and exponents is not None))
    rests = decode_rests(streams, count, mode, element)
    if coder > 0:
        exponents, rank = base_ranking(base)
    if coder < 2:
        halves = decode_tiered(streams, count, exponents, rank)
    else:
        halves = decode_top16(streams, count, coder, exponents, rank)
    require(coder == 0 or base == base_of(halves))
    data = join_halves(halves, rests, element) + streams.take(size % VALUE_BYTES[element])
    streams.finish()
    words = np.frombuffer(data, "<u2", size // 2)
    require((words != words[0]).any())
    return data


def decode_fp8(payload, size, element):
    """Section 3.3 with check 14: the source bytes of a block of `size`."""
    streams, ranking = Streams(payload[:-FP8_RANKS]), np.frombuffer(payload[-FP8_RANKS:], np.uint8)
    bits = FP8_MANTISSA_BITS[element]
    require((ranking < 128 >> bits).all())
    if element == FP8_E4M3:
        rests = streams.items(size, 4)
        mantissas, signs = rests & 7, rests >> 3
    else:
        mantissas = streams.items(size, 2)
        signs = streams.items(size, 1)
    exponents, open_ones = np.zeros(size, np.uint8), np.arange(size)
    for first in (0, 3, 6):
        items = streams.items(len(open_ones), 2)
        exponents[open_ones[items < 3]] = ranking[first + items[items < 3]]
        open_ones = open_ones[items == 3]
    last = streams.items(len(open_ones), 4)
    if element == FP8_E5M2:
        last = last | streams.items(len(open_ones), 1) << 4
    require(not np.isin(last, ranking).any())
    exponents[open_ones] = last
    require(fp8_ranking(exponents, element) == ranking.tolist())
    streams.finish()
    data = (signs << 7 | exponents << bits | mantissas).astype(np.uint8).tobytes()
    words = np.frombuffer(data, "<u2", size // 2)
    require((words != words[0]).any())
    return data


def decode_fields(streams, count, f):
    fields = np.zeros(count, np.int64)
    for width, at in field_pieces(f):
        if width < 8:
            fields |= streams.items(count, width).astype(np.int64) << at
        else:
            fields |= streams.array(count, "<u2" if width == 16 else "u1").astype(np.int64) << at
    return fields


def decode_patches(payload, count, z):
    """[(position, lowest bits)] that end the payload."""
    require(len(payload) >= 2)
    size, = struct.unpack("<H", payload[-2:])
    require(0 < size <= PATCHES_MAX and 4 * size + 2 <= len(payload))
    patches = list(struct.iter_unpack("<HH", payload[len(payload) - 2 - 4 * size:-2]))
    positions = [at for at, _ in patches]
    require(all(a < b for a, b in zip(positions, positions[1:] + [count])))
    require(all(0 < lowest < 1 << z for _, lowest in patches))
    return patches


def decode_parts(payload, size, element, exponents, rank):
    """Section 3.4 with check 14: the source bytes of a block of `size`."""
    form, coder = payload[-2:]
    z, g, bits, count = form & 31, form >> 5 & 3, MANTISSA_BITS[element], size // VALUE_BYTES[element]
    require(coder == 1 or coder == 0 and exponents is not None)
    require(z <= bits and g <= 2 and (form < PATCHED or element == FP16))
    end = 2 + (ceil_div(count, 256) if coder == 1 else 0)
    require(end <= len(payload))
    bases = payload[len(payload) - end:-2]
    require(all(1 <= base <= 254 for base in bases))
    payload = payload[:len(payload) - end]
    patches = decode_patches(payload, count, z) if form >= PATCHED else []
    streams, f = Streams(payload[:len(payload) - 4 * len(patches) - 2 * (form >= PATCHED)]), bits - z + (g == 0)
    fields = decode_fields(streams, count, f)
    if coder == 1:
        exponents, rank = SYMBOL_EXPONENTS, SYMBOL_RANK
    e = decode_tiers(streams, count, exponents, rank).astype(np.int64)
    if coder == 1:
        e = np.concatenate([exchanged((e[256 * i:256 * i + 256] + base) % 256, base) for i, base in enumerate(bases)])
    signs = fields >> f - 1 & 1 if g == 0 else np.full(count, g - 1)
    mantissas = fields << z & (1 << bits) - 1
    for at, lowest in patches:
        mantissas[at] |= lowest
    if element == FP16:
        require(((e == 0) | (e == 255) | (e > 112) & (e < 143)).all())
        e = np.where(e == 0, 0, np.where(e == 255, 31, e - 112))
    width = VALUE_BYTES[element]
    data = (signs << 8 * width - 1 | e << bits | mantissas).astype("<u%d" % width).tobytes() + streams.take(size % width)
    streams.finish()
    return data


def decode_block(mode, payload, n, t, element, exponents, rank):
    """Section 3 with check 14: the source bytes of a block; corrupt else."""
    if mode == FP8:
        return decode_fp8(payload, 2 * n + t, element)
    if mode == PARTS:
        return decode_parts(payload, 2 * n + t, element, exponents, rank)
    if mode in (BASE, SPLIT, FP32Z):
        return decode_typed(mode, payload, 2 * n + t, element, exponents, rank)
    streams = Streams(payload)
    if mode == RAW:
        values = streams.array(n, "<u2")
    elif mode == CONST:
        values = np.repeat(streams.array(1, "<u2"), n)
    elif mode == TIERED:
        values = decode_tiered(streams, n, exponents, rank)
    else:
        values = decode_top16(streams, n, mode, exponents, rank)
    tail = streams.take(t)
    streams.finish()
    require(mode in (RAW, CONST) or (values != values[0]).any())
    return values.astype("<u2").tobytes() + tail


# ---- Section 4: chunks


@dataclass
class Header:
    """Section 4: the first 48 bytes."""
    element: int
    has_lengths: int
    pages: int
    longest: int
    size: int
    id: bytes
    sum: int

    @property
    def rows_per_page(self):
        return ceil_div(self.longest, BLOCK_BYTES) - 1

    @property
    def tables_bytes(self):
        """Header and tables without the padding."""
        return HEADER_BYTES + self.pages * (16 + 4 * self.has_lengths + 4 * self.rows_per_page)

    @property
    def metadata_bytes(self):
        return units(self.tables_bytes) * UNIT


@dataclass
class Block:
    mode: int
    offset: int  # bytes from the start of the chunk
    extent: int  # bytes
    n: int
    t: int


@dataclass
class Page:
    length: int
    table: int
    sum: int
    blocks: list


def assemble_chunk(element, codebook_id, pages):
    """Section 4: a chunk of coded blocks. pages: (length, table, page sum, [(mode, streams and tail)]) each."""
    lengths = [page[0] for page in pages]
    longest = max(lengths)
    has_lengths = int(min(lengths) != longest)
    header = Header(element, has_lengths, len(pages), longest, 0, codebook_id, 0)
    offset = header.metadata_bytes
    entries, rows, blocks = [], [], []
    for _, table, total, coded in pages:
        page_rows = []
        for mode, streams in coded:
            page_rows.append(offset // UNIT << 4 | mode)
            blocks.append(streams + padding(len(streams)))
            offset += len(blocks[-1])
        entries.append(struct.pack("<IHHQ", page_rows[0], table, 0, total))
        rows += page_rows[1:] + [0] * (header.rows_per_page - len(page_rows) + 1)
    metadata = struct.pack("<4sBBBBIIII16sQ", b"STRC", VERSION, element, has_lengths, 0, len(pages), longest, offset, 0,
                           codebook_id, 0) + b"".join(entries)
    metadata += np.array((lengths if has_lengths else []) + rows, "<u4").tobytes()
    metadata += padding(len(metadata))
    return metadata[:40] + struct.pack("<Q", metadata_sum(metadata)) + metadata[48:] + b"".join(blocks)


def encode_chunk(pages, page_tables, tables, element, asked_mode):
    """Sections 3 and 4: the one encoding of these pages. `tables` is a TableSet or None."""
    assert asked_mode in ASKED_MODES and 1 <= len(pages) <= CHUNK_PAGES_MAX
    coded = []
    for index, (page, table) in enumerate(zip(pages, page_tables, strict=True)):
        page = bytes(page)
        assert 1 <= len(page) <= PAGE_BYTES_MAX and 0 <= table < (len(tables) if tables else 1)
        rank = tables.rank[table] if tables else None
        blocks = [encode_block(page[at:at + BLOCK_BYTES], rank, element, asked_mode)
                  for at in range(0, len(page), BLOCK_BYTES)]
        coded.append((len(page), table, page_sum(page, index, table), blocks))
    return assemble_chunk(element, tables.id if tables else NO_CODEBOOK, coded)


# ---- Section 6: what a decoder refuses, in this order


def parse_header(chunk):
    """Checks 1 to 4."""
    require(len(chunk) >= HEADER_BYTES, "truncated")
    (magic, version, element, flags, reserved1, pages, longest, size, reserved2, codebook_id,
     total) = struct.unpack_from("<4sBBBBIIII16sQ", chunk)
    require(magic == b"STRC")
    require(version == VERSION and flags <= 1 and element in ELEMENTS, "unsupported")
    header = Header(element, flags, pages, longest, size, codebook_id, total)
    require(reserved1 == 0 and reserved2 == 0)
    require(1 <= pages <= CHUNK_PAGES_MAX and 1 <= longest <= PAGE_BYTES_MAX)
    require(size % UNIT == 0 and size >= header.metadata_bytes + UNIT)
    return header


def parse_lengths(chunk, header):
    """Check 8: the page lengths, and the padding of the metadata."""
    lengths = [header.longest] * header.pages
    if header.has_lengths:
        lengths = np.frombuffer(chunk, "<u4", header.pages, HEADER_BYTES + 16 * header.pages).tolist()
        require(min(lengths) >= 1 and max(lengths) == header.longest and min(lengths) != header.longest)
    require(not any(chunk[header.tables_bytes:header.metadata_bytes]))
    return lengths


def mode_allowed(mode, element, codebook_id):
    """Check 10: may such blocks be in such chunks?"""
    if mode in (TOP16, ESCAPES, TIERED):
        return element == BF16 and codebook_id != NO_CODEBOOK
    typed = {BASE: (BF16,), SPLIT: (FP16, FP32), FP32Z: (FP32,), FP8: (FP8_E4M3, FP8_E5M2),
             PARTS: (BF16, FP16, FP32)}
    return element in typed.get(mode, ELEMENTS)


def size_allowed(mode, element, count, n, t):
    """Check 10: may a block of this mode and shape take `count` units?"""
    raw = units(2 * n + t)
    if mode == RAW:
        return count == raw
    if mode == CONST:
        return count == 1 < raw
    if mode == FP8:
        m = 2 * n + t
        return units(fp8_rest_bytes(element, m) + ceil_div(m, 4) + FP8_RANKS) <= count < raw
    if mode == PARTS:
        m, tail = divmod(2 * n + t, VALUE_BYTES[element])
        return units(ceil_div(m, 4) + tail + 2) <= count < raw
    if mode in (BASE, SPLIT, FP32Z):
        size = 2 * n + t
        m, tail = divmod(size, VALUE_BYTES[element])
        return units(rest_bytes(mode, element, m) + m + ceil_div(m, 4) + tail + 2) <= count < raw
    static = {TOP16: n + ceil_div(n, 2) + t, ESCAPES: n + ceil_div(n, 2) + 5 + t, TIERED: n + ceil_div(n, 4) + t}[mode]
    return (count == units(static) if mode == TOP16 else count >= units(static)) and count < raw


def parse_pages(chunk, header, lengths):
    """Checks 9 and 10."""
    table_rows = header.rows_per_page
    rows_at = header.tables_bytes - 4 * header.pages * table_rows
    entries = [struct.unpack_from("<IHHQ", chunk, HEADER_BYTES + 16 * p) for p in range(header.pages)]
    rows = np.frombuffer(chunk, "<u4", header.pages * table_rows, rows_at).tolist()
    page_rows = [[entry[0]] + rows[p * table_rows:(p + 1) * table_rows] for p, entry in enumerate(entries)]
    shapes = [block_shapes(length) for length in lengths]
    require(all(row & 15 in BLOCK_MODES for own, shape in zip(page_rows, shapes) for row in own[:len(shape)]), "unsupported")
    offsets = [row >> 4 for own, shape in zip(page_rows, shapes) for row in own[:len(shape)]] + [header.size // UNIT]
    pages, at = [], 0
    for (_, table, reserved, total), own, shape, length in zip(entries, page_rows, shapes, lengths):
        require(reserved == 0)
        blocks = []
        for row, (n, t) in zip(own, shape):
            mode = row & 15
            require(mode_allowed(mode, header.element, header.id))
            count = offsets[at + 1] - offsets[at]
            require(at > 0 or offsets[0] * UNIT == header.metadata_bytes)
            require(size_allowed(mode, header.element, count, n, t))
            blocks.append(Block(mode, offsets[at] * UNIT, count * UNIT, n, t))
            at += 1
        require(not any(own[len(shape):]))
        require(header.id != NO_CODEBOOK or table == 0)
        pages.append(Page(length, table, total, blocks))
    return pages


def parse_chunk(chunk):
    """Checks 1 to 10: (Header, [Page]); raises FormatError."""
    header = parse_header(chunk)
    require(len(chunk) >= header.size, "truncated")
    require(len(chunk) <= header.size)
    require(metadata_sum(chunk[:header.metadata_bytes]) == header.sum, "integrity")
    lengths = parse_lengths(chunk, header)
    return header, parse_pages(chunk, header, lengths)


def check_codebook(header, pages, tables):
    """Check 11."""
    if header.id != NO_CODEBOOK:
        require(tables is not None and tables.id == header.id, "codebook")
        require(max(page.table for page in pages) < len(tables), "codebook")


def decode_page(chunk, index, page, element, tables):
    """Checks 14 and 15: (page status or None, page bytes or None)."""
    exponents, rank = (tables.exponent[page.table], tables.rank[page.table]) if tables else (None, None)
    try:
        data = b"".join(decode_block(b.mode, chunk[b.offset:b.offset + b.extent], b.n, b.t, element, exponents, rank)
                        for b in page.blocks)
        require(page_sum(data, index, page.table) == page.sum, "integrity")
    except FormatError as error:
        return error.name, None
    return None, data


def decode_chunk(chunk, tables=None):
    """Section 6: (chunk error or None, [(page status or None, page bytes or None)]). Checks 12 and 13 are the caller's."""
    chunk = bytes(chunk)
    try:
        header, pages = parse_chunk(chunk)
        check_codebook(header, pages, tables)
    except FormatError as error:
        return error.name, []
    own = tables if header.id != NO_CODEBOOK else None
    return None, [decode_page(chunk, index, page, header.element, own) for index, page in enumerate(pages)]


# ---- Section 7: files


def xxh3_64(data):
    return xxhash.xxh3_64_intdigest(data) if xxhash else 0


def xxh3_128(data):
    return xxhash.xxh3_128_intdigest(data) if xxhash else 0


def encode_file(preamble, chunks, tables, original):
    """Section 7: a file of these chunks, which hold `original` without the preamble."""
    codebook_id, count = (tables.id, len(tables)) if tables else (NO_CODEBOOK, 0)
    head = struct.pack("<4sBxxxQII16s", b"STRF", VERSION, len(preamble), count, 0, codebook_id)
    head += struct.pack("<Q", xxh3_64(head)) + preamble
    head += padding(len(head)) + (tables.exponent.tobytes() if tables else b"")
    records, at, data_at = b"", len(head), 0
    for chunk in chunks:
        header, pages = parse_chunk(chunk)
        records += struct.pack("<QQII", at, data_at, header.size, header.pages)
        at, data_at = at + header.size, data_at + sum(page.length for page in pages)
    whole = xxh3_128(original)
    footer = struct.pack("<4sIQ", b"STRI", len(chunks), 0) + records
    footer += struct.pack("<QQQQ", at, len(original), whole & MASK64, whole >> 64)
    return head + b"".join(chunks) + footer + struct.pack("<Q", xxh3_64(footer)) + b"STRFEND0"


def parse_file_head(data):
    """Section 7: (preamble, TableSet or None, where the chunks begin)."""
    require(len(data) >= 48, "truncated")
    fields = struct.unpack_from("<4sB3sQII16sQ", data)
    magic, version, reserved1, preamble, count, reserved2, codebook_id, check = fields
    require(magic == b"STRF")
    require(version == VERSION, "unsupported")
    require(not any(reserved1) and reserved2 == 0 and preamble <= 1 << 30 and count <= 65535)
    require(xxhash is None or check == xxh3_64(data[:40]), "integrity")
    tables_at = units(48 + preamble) * UNIT
    chunks_at = tables_at + 256 * count
    require(len(data) >= chunks_at, "truncated")
    require(not any(data[48 + preamble:tables_at]))
    tables = TableSet(np.frombuffer(data, np.uint8, 256 * count, tables_at)) if count else None
    require(codebook_id == (tables.id if tables else NO_CODEBOOK))
    return data[48:48 + preamble], tables, chunks_at


def parse_footer(data):
    """Section 7: (X, chunk records, length of the original, its XXH3-128)."""
    require(len(data) >= 96 and data[-8:] == b"STRFEND0", "truncated")
    at, length, low, high, check = struct.unpack_from("<QQQQQ", data, len(data) - 48)
    require(at % UNIT == 0 and at <= len(data) - 64)
    require(xxhash is None or check == xxh3_64(data[at:-16]), "integrity")
    magic, count, reserved = struct.unpack_from("<4sIQ", data, at)
    require(magic == b"STRI" and reserved == 0 and at + 16 + 24 * count + 48 == len(data))
    return at, [struct.unpack_from("<QQII", data, at + 16 + 24 * i) for i in range(count)], length, high << 64 | low


def decode_file(data):
    """Section 7: the original bytes; raises FormatError. Hashes are checked when FILE_HASHES_CHECKED."""
    data = bytes(data)
    original, tables, at = parse_file_head(data)
    end, records, length, whole = parse_footer(data)
    parts, data_at = [original], 0
    for offset, raw_offset, size, count in records:
        chunk = data[offset:offset + size]
        require(offset == at and raw_offset == data_at and offset + size <= end)
        error, pages = decode_chunk(chunk, tables)
        require(error is None, error)
        require(len(pages) == count)
        for status, page in pages:
            require(status is None, status)
            parts.append(page)
            data_at += len(page)
        at += size
    original = b"".join(parts)
    require(at == end and len(original) == length)
    require(xxhash is None or xxh3_128(original) == whole, "integrity")
    return original
