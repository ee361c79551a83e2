"""Pages and chunks for the tests of the model: values as real ones are, or where a coder has its limits; and chunks that a
decoder has to refuse, or at times to accept."""
import struct

import numpy as np

import model as fm

EDGES = (1, 2, 3, 15, 16, 17, 31, 32, 33, 40, 63, 64, 65, 257, 1000, 16383, 16384, 16385, 16386, 40000)


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
    """Values of about these sizes: what FP16 cannot hold becomes zero or infinite. At times the bits as they are, or
    values that end in three zero bits, but for some subnormal ones."""
    kind = rng.random()
    if kind < 0.2:
        return halves
    if kind < 0.4:
        values = np.frombuffer(halves, "<u2", count) & 0xBFF8 | 0x2000
        values[rng.integers(0, count, rng.integers(0, max(1, count // 9)))] &= 0x83FF
        values[rng.integers(0, count, rng.integers(0, 20))] = rng.integers(0, 1024)
        return values.astype("<u2").tobytes()
    with np.errstate(over="ignore", invalid="ignore"):
        return (np.frombuffer(halves, "<u2", count).astype("<u4") << 16).view("<f4").astype("<f2").tobytes()


def as_fp8(rng, halves, count, element):
    """Values of about these sizes, scaled to the type; exponents of any frequencies; at times the bits as they are."""
    bits = fm.FP8_MANTISSA_BITS[element]
    kind = rng.integers(0, 5)
    if kind == 0:
        return halves[:count]
    rests = rng.integers(0, 256, count).astype(np.uint8) & (0x80 | (1 << bits) - 1)
    if kind < 3:
        wide = (np.frombuffer(halves, "<u2", count) >> 7 & 255).astype(np.int64)
        e = np.clip(wide - int(np.median(wide)) + int(rng.integers(2, 128 >> bits)), 0, (128 >> bits) - 1)
    else:  # with many outside the ranking, and many equal counts
        e = rng.permutation(128 >> bits)[np.minimum(rng.geometric(rng.choice([0.15, 0.3, 0.5]), count) - 1, (128 >> bits) - 1)]
    return (rests | e.astype(np.uint8) << bits).astype(np.uint8).tobytes()


def narrowed(rng, data, element):
    """The values with lowest bits of the mantissa that are zero, and of one sign, at times but for one value."""
    size, bits = fm.VALUE_BYTES[element], fm.MANTISSA_BITS[element]
    count = len(data) // size
    values = np.frombuffer(data, "<u%d" % size, count).astype(np.int64)
    z, sign = int(rng.integers(0, bits + 1)), 1 << 8 * size - 1
    narrow = values >> z << z
    kind = rng.integers(0, 3)
    narrow = narrow & ~sign if kind == 1 else narrow | sign if kind == 2 else narrow
    if count > 0 and rng.random() < 0.2:
        at = int(rng.integers(0, count))
        narrow[at] = values[at]
    return narrow.astype("<u%d" % size).tobytes() + data[count * size:]


def random_data(rng, size, exponents, element=fm.BF16):
    """`size` bytes: one distribution, or another one from some block on."""
    if element in fm.VALUE_BYTES and rng.random() < 0.3:
        return narrowed(rng, plain_data(rng, size, exponents, element), element)
    return plain_data(rng, size, exponents, element)


def plain_data(rng, size, exponents, element):
    n = size // 2 + 1
    if element == fm.FP32:
        return as_fp32(rng, plain_data(rng, 2 * n, exponents, fm.BF16), n)[:size]
    if element in fm.FP8_MANTISSA_BITS:
        return as_fp8(rng, plain_data(rng, 4 * n, exponents, fm.BF16), 2 * n, element)[:size]
    if element == fm.FP16:
        return as_fp16(rng, plain_data(rng, 2 * n, exponents, fm.BF16), n)[:size]
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
        data[a] = data[a] & 0xF0 | int(rng.choice([0, 1, 2, 3, 4, 5, 9, 11, 15]))
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


def mutate_ranking(rng, data, block):
    """Another exponent in the ranking of a block of mode 10, or two that change places, or a bit before it."""
    kind, end = rng.integers(0, 3), block.offset + block.extent
    a, b = (end - 1 - rng.permutation(fm.FP8_RANKS)[:2]).tolist()
    if kind == 0:
        data[a] = int(rng.choice([0, 15, 16, 31, 32, 255, data[b], data[a] ^ 1]))
    elif kind == 1:
        data[a], data[b] = data[b], data[a]
    else:
        flip(rng, data, block.offset, end - fm.FP8_RANKS)


def mutate_parts(rng, data, block, element):
    """Another form, coder or base of a block of mode 11, another patch or symbol of the last tier, or any bit."""
    kind, end = rng.integers(0, 6), block.offset + block.extent
    count = (2 * block.n + block.t) // fm.VALUE_BYTES[element]
    if kind == 0:
        data[end - 1] = int(rng.choice([0, 1, 2, 255]))
    elif kind == 1:
        data[end - 2] = int(rng.choice([data[end - 2] ^ 32, data[end - 2] ^ 64, (data[end - 2] + 1) & 255, data[end - 2] ^ 128, 23, 24, 96]))
    elif kind == 2:
        at = end - 3 - int(rng.integers(0, fm.ceil_div(count, 256)))
        if at >= block.offset:
            data[at] = int(rng.choice([0, 1, 16, 17, 254, 255, (data[at] + 1) & 255]))
    elif kind == 3:
        data[end - int(rng.integers(2, 20)) % block.extent - 1] = int(rng.choice(fm.SYMBOLS))
    elif kind == 4:
        at = end - 3 - (fm.ceil_div(count, 256) if data[end - 1] == 1 else 0) - int(rng.integers(0, 9))
        if at >= block.offset:
            data[at] = int(rng.choice([0, 1, 2, 255, data[at] ^ 1, (data[at] + 1) & 255]))
    else:
        flip(rng, data, block.offset, end)


def mutate_block(rng, data, pages, tables, element):
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
    if block.mode == fm.FP8 and rng.random() < 0.7:
        return mutate_ranking(rng, data, block)
    if block.mode == fm.PARTS and rng.random() < 0.8:
        return mutate_parts(rng, data, block, element)
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


def force_fp8(rng, block, element):
    """A block of mode 10, right or by another ranking; or of an exponent twice, or of another type."""
    exponents = fm.split_fp8(block, element)[0]
    ranking, kind = fm.fp8_ranking(exponents, element), rng.integers(0, 4)
    if kind > 0:
        ranking = rng.permutation(128 >> fm.FP8_MANTISSA_BITS[element])[:fm.FP8_RANKS].tolist()
    if kind == 3:
        ranking[int(rng.integers(0, 9))] = int(rng.choice([ranking[int(rng.integers(0, 9))], 16, 32, 255]))
    return fm.FP8, fm.encode_fp8(block, element, ranking)[1] + bytes(int(rng.choice([0, 0, 0, 16])))


def force_parts(rng, block, rank, element):
    """A block of mode 11, by any form, coder and bases that hold these values, or that do not."""
    signs, exponents, mantissas = fm.part_values(block, element)
    z, g, positions = fm.part_form(signs, exponents, mantissas, element)
    bases, kind = fm.part_bases(exponents), rng.integers(0, 7)
    if kind == 0:
        z, g, positions = int(rng.integers(0, z + 1)), int(rng.choice([0, g])), []
    elif kind == 1:
        z, g = int(rng.integers(0, fm.MANTISSA_BITS[element] + 1)), int(rng.integers(0, 3))
    elif kind == 2:
        bases = rng.integers(1, 255, len(bases)).tolist()
    elif kind == 3:
        bases[int(rng.integers(0, len(bases)))] = int(rng.choice([0, 255]))
    elif kind == 4:  # any z, with as many patches as that takes
        z = int(rng.integers(z, fm.MANTISSA_BITS[element] + 1))
        positions = np.flatnonzero(mantissas & (1 << z) - 1)[:fm.PATCHES_MAX]
    elif kind == 5 and len(positions) > 0:  # one left out, twice, out of order, or one more, perhaps of zero bits
        positions, at = list(positions), int(rng.integers(0, len(positions)))
        positions = [positions[:at] + positions[at + 1:], positions[:at + 1] + positions[at:], positions[::-1],
                     positions + [len(mantissas) - 1], [int(rng.integers(0, len(mantissas)))] + positions,
                     ][int(rng.integers(0, 5))][:fm.PATCHES_MAX]
    coder = int(rng.integers(0, 2))
    return fm.PARTS, fm.encode_parts_as(block, element, z, g, positions, coder, bases, rank) + bytes(int(rng.choice([0, 0, 0, 16])))


def force_block(rng, page, at, tables, table, element):
    """A coded block that no encoder writes for these bytes, or one of odd size."""
    block = page[at:at + fm.BLOCK_BYTES]
    n = len(block) // 2
    values, tail = np.frombuffer(block, "<u2", n), block[2 * n:]
    rank = tables.rank[table] if tables else np.arange(256, dtype=np.uint8)
    if element in fm.VALUE_BYTES and len(block) >= 16 and rng.random() < 0.4:
        return force_parts(rng, block, rank, element)
    if element in fm.VALUE_BYTES and len(block) >= 16 and rng.random() < 0.5:
        return force_typed(rng, block, rank, element)
    if element in fm.FP8_MANTISSA_BITS and len(block) >= 16 and rng.random() < 0.7:
        return force_fp8(rng, block, element)
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
            mutate_block(rng, data, pages, source.tables, source.element)
        yield "block", bytes(data)
    yield "size", resized(rng, chunk)
    yield "lengths", with_all_lengths(chunk)
    yield "forced", forced_chunk(rng, source)
