"""Random data for the tests of the model: exponents as real values have them, or where a coder has its limits."""
import numpy as np

import format_model as fm

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
