// Bit streams: conversion of 8 or 32 values to streams and back, in registers (also on the host, for tests), and the
// sum of FORMAT.md section 5.
#ifndef STRAIT_KERNELS_CUDA_BITS_CUH
#define STRAIT_KERNELS_CUDA_BITS_CUH

#include "kernels/cuda/ptx.cuh"

namespace strait
{

// ---- Instructions -------------------------------------------------------------------------------------------------

// Byte i of the result is byte (s >> 4i & 7) of b:a or, with bit 3 of that nibble set, that byte's sign in all bits.
ANY_SIDE uint32_t permute(uint32_t a, uint32_t b, uint32_t s)
{
#ifdef __CUDA_ARCH__
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(s));
    return r;
#else
    uint64_t v = static_cast<uint64_t>(b) << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t pick = s >> (4 * i) & 15, byte = v >> (8 * (pick & 7)) & 255;
        r |= (pick & 8 ? (byte & 128 ? 255u : 0u) : byte) << (8 * i);
    }
    return r;
#endif
}

ANY_SIDE uint32_t popcount(uint32_t x)
{
#ifdef __CUDA_ARCH__
    return __popc(x);
#else
    return __builtin_popcount(x);
#endif
}

// Index of the lowest and of the highest set bit; x is not 0.
ANY_SIDE uint32_t lowest_bit(uint32_t x)
{
#ifdef __CUDA_ARCH__
    return __ffs(x) - 1;
#else
    return __builtin_ctz(x);
#endif
}

ANY_SIDE uint32_t highest_bit(uint32_t x)
{
#ifdef __CUDA_ARCH__
    return 31 - __clz(x);
#else
    return 31 - __builtin_clz(x);
#endif
}

// Number of zeroes above the highest set bit; x is not 0.
ANY_SIDE uint32_t leading_zeroes(uint32_t x)
{
#ifdef __CUDA_ARCH__
    uint32_t r;
    asm("bfind.shiftamt.u32 %0, %1;" : "=r"(r) : "r"(x)); // one instruction; __clz, which must handle 0, takes two
    return r;
#else
    return __builtin_clz(x);
#endif
}

// Low word of high:low >> s; an s above 32 counts as 32.
ANY_SIDE uint32_t shift_right(uint32_t low, uint32_t high, uint32_t s)
{
#ifdef __CUDA_ARCH__
    return __funnelshift_rc(low, high, s);
#else
    return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> (s > 32 ? 32 : s));
#endif
}

// High word of high:low << s, s below 32.
ANY_SIDE uint32_t shift_left(uint32_t low, uint32_t high, uint32_t s)
{
#ifdef __CUDA_ARCH__
    return __funnelshift_l(low, high, s);
#else
    return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) << (s & 31) >> 32);
#endif
}

// Bits of a where the mask is set, of b elsewhere; one instruction.
ANY_SIDE uint32_t select_bits(uint32_t mask, uint32_t a, uint32_t b)
{
#ifdef __CUDA_ARCH__
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(r) : "r"(mask), "r"(a), "r"(b));
    return r;
#else
    return (a & mask) | (b & ~mask);
#endif
}

// For each u16: a + b, limited to at most c; to at least c.
ANY_SIDE uint32_t add_min_u16x2(uint32_t a, uint32_t b, uint32_t c)
{
#ifdef __CUDA_ARCH__
    return __viaddmin_u16x2(a, b, c);
#else
    const uint32_t low = (a + b) & 0xffff, high = ((a >> 16) + (b >> 16)) & 0xffff;
    return (low < (c & 0xffff) ? low : c & 0xffff) | (high < c >> 16 ? high : c >> 16) << 16;
#endif
}

ANY_SIDE uint32_t add_max_u16x2(uint32_t a, uint32_t b, uint32_t c)
{
#ifdef __CUDA_ARCH__
    return __viaddmax_u16x2(a, b, c);
#else
    const uint32_t low = (a + b) & 0xffff, high = ((a >> 16) + (b >> 16)) & 0xffff;
    return (low > (c & 0xffff) ? low : c & 0xffff) | (high > c >> 16 ? high : c >> 16) << 16;
#endif
}

// Whether one of the four bytes of x is `byte`.
ANY_SIDE bool holds_byte(uint32_t x, uint32_t byte)
{
    x ^= byte * 0x01010101u;
    return ((x - 0x01010101u) & ~x & 0x80808080u) != 0;
}

ANY_SIDE uint32_t reverse_bits(uint32_t x)
{
#ifdef __CUDA_ARCH__
    return __brev(x);
#else
    uint32_t r = 0;
    for (int i = 0; i < 32; i++)
        r |= (x >> i & 1) << (31 - i);
    return r;
#endif
}

// The lowest `count` bits; all 32 if count is larger.
ANY_SIDE uint32_t low_mask(uint32_t count)
{
    return count >= 32 ? 0xffffffffu : (1u << count) - 1;
}

// Moves bit i of the lowest eight to bit 4i.
ANY_SIDE uint32_t spread_bits(uint32_t bits)
{
    bits = (bits | bits << 12) & 0x000f000fu;
    bits = (bits | bits << 6) & 0x03030303u;
    return (bits | bits << 3) & 0x11111111u;
}

// ---- Streams of 2 and 4 bits ----------------------------------------------------------------------------------------

// Packs the even bits of a, then those of b; the odd ones must be zero.
ANY_SIDE uint32_t even_bits(uint32_t a, uint32_t b)
{
    a = (a | a >> 1) & 0x33333333u;
    a = (a | a >> 2) & 0x0f0f0f0fu;
    a |= a >> 4;
    b = (b | b >> 1) & 0x33333333u;
    b = (b | b >> 2) & 0x0f0f0f0fu;
    b |= b >> 4;
    return permute(a, b, 0x6420);
}

// Bit 2i is set where 2-bit item i is 3, so that the value has an item in the next tier.
ANY_SIDE uint32_t threes(uint32_t items)
{
    return items & (items >> 1) & 0x55555555u;
}

// Bit 4i is set where 4-bit item i is 15.
ANY_SIDE uint32_t fifteens(uint32_t items)
{
    uint32_t x = items & (items >> 1);
    return x & (x >> 2) & 0x11111111u;
}

// The lowest `count` of eight 4-bit items, moved to the top, above zeroes.
ANY_SIDE uint32_t lowest_items(uint32_t items, uint32_t count)
{
#ifdef __CUDA_ARCH__
    return __funnelshift_lc(0, items, 32 - 4 * count);
#else
    return count == 0 ? 0 : items << (32 - 4 * count);
#endif
}

// Shifts in bits, one a byte, of the three upper bytes of a word when each byte holds as many 2-bit items as its byte
// of `counts` says.
ANY_SIDE uint32_t byte_shifts(uint32_t counts)
{
    return counts * 0x02020200u;
}

struct byte_masks {
    uint32_t one, two; // bytes whose lower half has one item; two items
    uint32_t counts;   // number of items in each byte
};

ANY_SIDE byte_masks count_items(uint32_t wanted)
{
    uint32_t nibbles = (wanted + (wanted >> 2)) & 0x33333333u;
    return {(nibbles & 0x01010101u) * 0xffu, (nibbles >> 1 & 0x01010101u) * 0xffu,
            (nibbles + (nibbles >> 4)) & 0x07070707u};
}

// Moves the wanted 2-bit items of x to the bottom, in order. Bit 2i of `wanted` stands for item i; items that are not
// wanted must be zero.
ANY_SIDE uint32_t compact(uint32_t x, uint32_t wanted)
{
    // Inside each half byte: the upper item moves down unless the lower one is wanted.
    uint32_t t = x & ~(wanted * 3u << 2) & 0xccccccccu;
    x = (x & ~t) | t >> 2;
    // Inside each byte: the upper half moves down by what the lower half leaves free.
    byte_masks m = count_items(wanted);
    uint32_t upper = x & 0xf0f0f0f0u, moved = select_bits(m.one, upper >> 2, upper >> 4);
    moved = select_bits(m.two, upper, moved);
    x = (x & 0x0f0f0f0fu) | moved;
    // Bytes, each to the end of those below it.
    uint32_t s = byte_shifts(m.counts), r = x & 255u;
    r |= permute(x, 0, 0x4441) << (s >> 8 & 31);
    r |= permute(x, 0, 0x4442) << (s >> 16 & 31);
    r |= x >> 24 << (s >> 24 & 31);
    return r;
}

// Inverse of compact: moves items from the bottom of x to the wanted positions; the others become zero.
ANY_SIDE uint32_t expand(uint32_t x, uint32_t wanted)
{
    byte_masks m = count_items(wanted);
    uint32_t s = byte_shifts(m.counts);
    uint32_t b1 = x >> (s >> 8 & 31), b2 = x >> (s >> 16 & 31), b3 = x >> (s >> 24 & 31);
    uint32_t y = permute(permute(x, b1, 0x0040), permute(b2, b3, 0x0040), 0x5410);
    uint32_t t = select_bits(m.one, y << 2, y << 4);
    t = select_bits(m.two, y, t);
    y = select_bits(0x0f0f0f0fu, y, t);
    t = select_bits((wanted & 0x11111111u) * 0xcu, y, y << 2);
    y = select_bits(0x33333333u, y, t);
    return y & (wanted * 3u);
}

// ---- Items of four bytes or eight -----------------------------------------------------------------------------------

// Four items of two bits, or of one, from the lowest bits of four bytes, and back.
ANY_SIDE uint32_t pack_four_twos(uint32_t four)
{
    return (four & 0x03030303u) * 0x01041040u >> 24;
}
ANY_SIDE uint32_t pack_four_ones(uint32_t four)
{
    return (four & 0x01010101u) * 0x01020408u >> 24;
}
ANY_SIDE uint32_t unpack_four_twos(uint32_t items)
{
    uint32_t x = items & 255;
    x = (x | x << 12) & 0x000f000fu;
    return (x | x << 6) & 0x03030303u;
}
ANY_SIDE uint32_t unpack_four_ones(uint32_t items)
{
    return (items & 15) * 0x00204081u & 0x01010101u;
}

// Eight items of four bits from bytes below 16, and back.
ANY_SIDE uint32_t pack_eight(uint32_t a, uint32_t b)
{
    a |= a >> 4, b |= b >> 4;
    return permute(a, b, 0x6420);
}
ANY_SIDE void unpack_eight(uint32_t items, uint32_t four[2])
{
    const uint32_t even = items & 0x0f0f0f0fu, odd = items >> 4 & 0x0f0f0f0fu;
    four[0] = permute(even, odd, 0x5140);
    four[1] = permute(even, odd, 0x7362);
}

// ---- Eight values ---------------------------------------------------------------------------------------------------

// Splits four words of two values each; gives eight bytes of sign and mantissa.
ANY_SIDE void split_values(const uint32_t w[4], uint32_t sign_mantissa[2])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t low = permute(w[2 * i], w[2 * i + 1], 0x6420), high = permute(w[2 * i], w[2 * i + 1], 0x7531);
        sign_mantissa[i] = select_bits(0x80808080u, high, low);
    }
}

// Joins bytes of sign and mantissa with bytes of exponents: four values, or eight.
ANY_SIDE void join_four(uint32_t sign_mantissa, uint32_t exponents, uint32_t w[2])
{
    uint32_t high = select_bits(0x80808080u, sign_mantissa, exponents >> 1);
    uint32_t low = select_bits(0x7f7f7f7fu, sign_mantissa, exponents << 7);
    w[0] = permute(low, high, 0x5140);
    w[1] = permute(low, high, 0x7362);
}

ANY_SIDE void join_values(const uint32_t sign_mantissa[2], const uint32_t exponents[2], uint32_t w[4])
{
    join_four(sign_mantissa[0], exponents[0], w);
    join_four(sign_mantissa[1], exponents[1], w + 2);
}

// A look-up table by exponent, at a multiple of 1024 bytes of shared memory; on the host, a pointer.
typedef size_t table_address;

// The table's word for the exponent in bits 9..2 of x.
ANY_SIDE uint32_t look_up(table_address table, uint32_t x)
{
#ifdef __CUDA_ARCH__
    uint32_t r;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(r) : "r"((x & 0x3fcu) | static_cast<uint32_t>(table)));
    return r;
#else
    return reinterpret_cast<const uint32_t *>(table)[x >> 2 & 255];
#endif
}

// The codes of eight values: tier 1 in the low half, tier 2 (zero where there is none) in the high half.
ANY_SIDE uint32_t tier_codes(const uint32_t w[4], table_address table)
{
    uint32_t z = 0;
#pragma unroll
    for (int k = 3; k >= 0; k--) {
        z = z * 4u + look_up(table, w[k] >> 21);
        z = z * 4u + look_up(table, w[k] >> 5);
    }
    return z;
}

// The same of four values.
ANY_SIDE uint32_t four_tier_codes(const uint32_t w[2], table_address table)
{
    uint32_t z = 0;
#pragma unroll
    for (int k = 1; k >= 0; k--) {
        z = z * 4u + look_up(table, w[k] >> 21);
        z = z * 4u + look_up(table, w[k] >> 5);
    }
    return z;
}

// The ranks of eight values. If one of them is 16 or more, bit 31 of `escapes` is set and the result is useless.
ANY_SIDE uint32_t top16_codes(const uint32_t w[4], table_address table, uint32_t &escapes)
{
    uint32_t z = 0;
#pragma unroll
    for (int k = 3; k >= 0; k--) {
        uint32_t a = look_up(table, w[k] >> 21), b = look_up(table, w[k] >> 5);
        z = z * 16u + a;
        z = z * 16u + b;
        escapes |= a | b;
    }
    return z;
}

// Exponents from eight ranks, as merge_tiers gives them. `first` are the exponents of ranks 0..5, then zeroes. `rest`
// are the exponents of values in tiers 3 and 4, each at its position, and zeroes elsewhere.
ANY_SIDE void rank_exponents(uint32_t z, const uint32_t rest[2], const uint32_t first[2], uint32_t exponents[2])
{
    uint32_t a = permute(first[0], first[1], z), b = permute(first[0], first[1], z >> 16);
    exponents[0] = permute(a, b, 0x5140) | rest[0];
    exponents[1] = permute(a, b, 0x7362) | rest[1];
}

// rank_exponents for the four lower ranks only, or for the upper ones.
ANY_SIDE uint32_t four_exponents(uint32_t z, bool upper, uint32_t rest, const uint32_t first[2])
{
    uint32_t a = permute(first[0], first[1], z), b = permute(first[0], first[1], z >> 16);
    return permute(a, b, upper ? 0x7362 : 0x5140) | rest;
}

// The exponents of eight 4-bit codes.
ANY_SIDE void top16_exponents(uint32_t codes, const uint32_t table[4], uint32_t exponents[2])
{
    uint32_t low = codes & 0x77777777u, high = codes >> 1 & 0x44444444u;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t x = low >> (16 * i), upper = permute(0, 0xffffffffu, high >> (16 * i));
        exponents[i] = select_bits(upper, permute(table[2], table[3], x), permute(table[0], table[1], x));
    }
}

// ---- 32 values of a lane ------------------------------------------------------------------------------------------

// Splits four results of tier_codes into 32 items of tier 1 and 32 of tier 2.
ANY_SIDE void part_tiers(const uint32_t z[4], uint32_t tier1[2], uint32_t tier2[2])
{
    tier1[0] = permute(z[0], z[1], 0x5410);
    tier1[1] = permute(z[2], z[3], 0x5410);
    tier2[0] = permute(z[0], z[1], 0x7632);
    tier2[1] = permute(z[2], z[3], 0x7632);
}

// Merges 32 items of both tiers to ranks; 6 stands for tier 3. Of each eight values, the even ones are in the low half
// of a word, the odd ones in the high half, in nibbles.
ANY_SIDE void merge_tiers(const uint32_t tier1[2], const uint32_t tier2[2], uint32_t z[4])
{
#pragma unroll
    for (int j = 0; j < 2; j++) {
        uint32_t even = (tier1[j] & 0x33333333u) + (tier2[j] & 0x33333333u);
        uint32_t odd = (tier1[j] >> 2 & 0x33333333u) + (tier2[j] >> 2 & 0x33333333u);
        z[2 * j] = permute(even, odd, 0x5410);
        z[2 * j + 1] = permute(even, odd, 0x7632);
    }
}

// Compacts the tier-2 items of wanted values.
ANY_SIDE uint64_t compact_pair(const uint32_t tier2[2], const uint32_t wanted[2])
{
    return static_cast<uint64_t>(compact(tier2[0], wanted[0])) | static_cast<uint64_t>(compact(tier2[1], wanted[1]))
                                                                     << (2 * popcount(wanted[0]));
}

// Expands items from three words of the stream, the first item at bit `shift`, to the wanted positions.
ANY_SIDE void expand_pair(const uint32_t words[3], uint32_t shift, const uint32_t wanted[2], uint32_t tier2[2])
{
    uint32_t a = shift_right(words[0], words[1], shift), b = shift_right(words[1], words[2], shift);
    tier2[0] = expand(a, wanted[0]);
    tier2[1] = expand(shift_right(a, b, 2 * popcount(wanted[0])), wanted[1]);
}

// ---- Sums, a vector of four words at a time ------------------------------------------------------------------------

constexpr uint32_t SUM_STEP_EVEN = 0x9E3779B1u, SUM_STEP_ODD = 0x85EBCA77u;

__constant__ const uint32_t sum_keys[16] = {
    0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0, 0x082EFA98, 0xEC4E6C89,
    0x452821E6, 0x38D01377, 0xBE5466CF, 0x34E90C6C, 0xC0AC29B7, 0xC97C50DD, 0x3F84D5B5, 0xB5470917,
};

DEVICE uint64_t sum_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

DEVICE uint64_t sum_seed(uint64_t a, uint64_t b, uint64_t c)
{
    return sum_mix(sum_mix(a + (b << 32)) + c);
}

// The three parts of the terms, added up separately: fewer carries.
struct partial_sum {
    uint64_t products, even;
    uint32_t odd;
};

DEVICE uint64_t sum_total(const partial_sum &sum)
{
    return sum.products + sum.even + (static_cast<uint64_t>(sum.odd) << 32);
}

// The keys of the four words of vector v are keys[v % 4] plus v / 4 times the steps.
DEVICE void sum_load_keys(uint32_t keys[4], uint32_t vector)
{
#pragma unroll
    for (int k = 0; k < 4; k++)
        keys[k] = sum_keys[vector % 4 * 4 + k];
}

DEVICE void sum_pair(partial_sum &sum, uint32_t even, uint32_t odd)
{
    sum.products += static_cast<uint64_t>(even) * odd;
    sum.even += even;
    sum.odd += odd;
}

// Adds a vector of the page; even_step and odd_step are its number / 4 times the steps. It takes both pairs at once,
// because an addition of three numbers is one instruction.
DEVICE void sum_vector(partial_sum &sum, const uint32_t w[4], const uint32_t keys[4], uint32_t even_step,
                       uint32_t odd_step)
{
    const uint32_t a = w[0] + keys[0] + even_step, b = w[1] + keys[1] + odd_step;
    const uint32_t c = w[2] + keys[2] + even_step, d = w[3] + keys[3] + odd_step;
    sum.products += static_cast<uint64_t>(a) * b;
    sum.products += static_cast<uint64_t>(c) * d;
    sum.even += static_cast<uint64_t>(a) + c;
    sum.odd += b + d;
}

// sum_vector for a vector of which only `bytes` bytes exist; its words are zero beyond them.
DEVICE void sum_part(partial_sum &sum, const uint32_t w[4], uint32_t bytes, const uint32_t keys[4], uint32_t even_step,
                     uint32_t odd_step)
{
    for (int j = 0; j < 2; j++)
        if (8 * j < bytes)
            sum_pair(sum, w[2 * j] + keys[2 * j] + even_step, w[2 * j + 1] + keys[2 * j + 1] + odd_step);
}

// Sum of any vector, by its number: for where speed does not matter.
DEVICE uint64_t sum_of_vector(const uint32_t w[4], uint32_t vector)
{
    partial_sum sum = {0, 0, 0};
    uint32_t keys[4], step = vector / 4;
    sum_load_keys(keys, vector);
    sum_vector(sum, w, keys, step * SUM_STEP_EVEN, step * SUM_STEP_ODD);
    return sum_total(sum);
}

// Zeroes a vector from byte `bytes` on.
DEVICE void truncate_vector(uint32_t w[4], uint32_t bytes)
{
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
        uint32_t keep = bytes <= 4 * j ? 0 : bytes - 4 * j;
        w[j] &= keep >= 4 ? 0xffffffffu : (1u << (8 * keep)) - 1;
    }
}

} // namespace strait
#endif
