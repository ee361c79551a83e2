// Typed modes (6 to 8), FORMAT.md section 3.2: bases and their rankings; values as high halves, which look like BF16,
// and low bits (the text calls them halves and rests). Functions also run on the host, for tests.
#ifndef STRAIT_KERNELS_CUDA_TYPED_CUH
#define STRAIT_KERNELS_CUDA_TYPED_CUH

#include "kernels/cuda/bits.cuh"
#include "kernels/cuda/launch.cuh"

namespace strait
{

enum typed_coder { TYPED_TABLE_TIERS, TYPED_BASE_TIERS, TYPED_BASE_CODES, TYPED_BASE_LISTED, TYPED_CODERS };
constexpr uint32_t TYPED_END_BYTES = 2; // coder and base
constexpr uint32_t PART_VALUES = 256;   // of a part, whose greatest exponent counts

// ---- Types ----------------------------------------------------------------------------------------------------------

// Value type of a block.
enum typed_type { TYPE_BF16, TYPE_FP16, TYPE_FP32 };

template <typed_type TYPE> struct typed_values {
    static constexpr uint32_t BYTES = TYPE == TYPE_FP32 ? 4 : 2;  // bytes of a value
    static constexpr uint32_t EACH = TYPE == TYPE_FP32 ? 16 : 32; // high halves that a lane codes
    static constexpr uint32_t VECTOR = 16 / BYTES;                // values in a vector
    static constexpr uint32_t HIGH_HALVES = BLOCK_SIZE / BYTES;   // high halves in a full block
    static constexpr uint32_t STEPS = BYTES / 2; // a warp's steps of 32 vectors that make up a part of 256 values
};

// Bytes of the low bits of m values, in mode split.
template <typed_type TYPE> ANY_SIDE constexpr uint32_t low_bits_size(uint32_t m)
{
    return TYPE == TYPE_FP32 ? 2 * m : TYPE == TYPE_FP16 ? (m + 3) / 4 + (m + 7) / 8 : 0;
}

// Bytes of the low bits of m values in any typed mode.
ANY_SIDE uint32_t low_bits_size_of(uint32_t mode, bool fp32, uint32_t m)
{
    return mode != STRAIT_BLOCK_SPLIT ? 0 : fp32 ? low_bits_size<TYPE_FP32>(m) : low_bits_size<TYPE_FP16>(m);
}

// Whether blocks of one of the modes 6 to 8 or 11 can have this element type: four bits for each mode.
ANY_SIDE bool typed_mode_fits(uint32_t mode, uint32_t element)
{
    constexpr uint64_t BF16 = 1u << STRAIT_ELEMENT_BF16, FP16 = 1u << STRAIT_ELEMENT_FP16,
                       FP32 = 1u << STRAIT_ELEMENT_FP32;
    constexpr uint64_t FITS = BF16 << (4 * STRAIT_BLOCK_BASE) | (FP16 | FP32) << (4 * STRAIT_BLOCK_SPLIT) |
                              FP32 << (4 * STRAIT_BLOCK_FP32Z) | (BF16 | FP16 | FP32) << (4 * STRAIT_BLOCK_PARTS);
    return element <= STRAIT_ELEMENT_FP32 && (FITS >> (4 * mode + element) & 1) != 0;
}

// ---- Bases ----------------------------------------------------------------------------------------------------------

// Orders the value in the upper half of a word by its exponent: a greater exponent gives a greater word, that of
// infinities and NaN gives the lowest.
ANY_SIDE uint32_t exponent_order(uint32_t upper)
{
    return (upper << 1) + 0x01000000u;
}

// The greater exponent_order of a pair of values.
ANY_SIDE uint32_t greater_exponent(uint32_t pair)
{
    const uint32_t a = exponent_order(pair), b = exponent_order(pair << 16);
    return a > b ? a : b;
}

// Greatest exponents as u16x2, accumulated over a part: adds two values, or eight given by their exponents. Of each u16
// only the upper byte counts.
ANY_SIDE uint32_t greatest_u16x2(uint32_t greatest, uint32_t pair)
{
    return add_max_u16x2(pair << 1, 0x01000100u, greatest);
}
ANY_SIDE uint32_t greatest_exponents(uint32_t greatest, const uint32_t exponents[2])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        greatest = add_max_u16x2(exponents[i], 0x01000100u, greatest);
        greatest = add_max_u16x2(exponents[i] << 8, 0x01000100u, greatest);
    }
    return greatest;
}

// Word for base_order from the greatest of both u16.
ANY_SIDE uint32_t greatest_of_u16x2(uint32_t greatest)
{
    const uint32_t low = greatest << 16;
    return greatest > low ? greatest : low;
}

// Order of a part, from its greatest: the exponent less 1, or NO_BASE for exponent 0. The least order over all parts
// gives the base.
constexpr uint32_t NO_BASE = 255;
ANY_SIDE uint32_t base_order(uint32_t greatest)
{
    const uint32_t next = greatest >> 24;
    return next < 2 ? NO_BASE : next - 2;
}

// Least of the greatest exponents of parts, leaving out parts without an exponent; and the order of the result.
constexpr uint32_t NO_PART = 0xffffffffu;
ANY_SIDE uint32_t least_part(uint32_t parts, uint32_t greatest)
{
    const uint32_t next = greatest - 0x02000000u; // wraps to beyond all others when the part has no exponent
    return next < parts ? next : parts;
}
ANY_SIDE uint32_t order_of_parts(uint32_t parts)
{
    return parts >= 0xfe000000u ? NO_BASE : parts >> 24;
}

ANY_SIDE uint32_t base_from_order(uint32_t least)
{
    return (least + 1) & 255;
}

// The rank of the exponent at this distance below the base, modulo 256, leaving aside that exponent 0 has a rank of its
// own.
ANY_SIDE uint32_t rank_of_distance(uint32_t distance)
{
    distance &= 255;
    if (distance >= 251) // above the base, by 5 to 1
        return distance == 255 ? 7 : distance == 254 ? 9 : distance == 253 ? 11 : distance == 252 ? 19 : 20;
    if (distance < 4)
        return distance == 0 ? 3 : distance - 1;
    if (distance < 7)
        return distance;
    return distance < 9 ? 2 * distance - 6 : distance < 16 ? distance + 3 : distance + 5;
}

ANY_SIDE uint32_t base_rank(uint32_t exponent, uint32_t base)
{
    const uint32_t rank = rank_of_distance(base - exponent), of_zero = rank_of_distance(base);
    if (of_zero > 15)
        return exponent == 0 ? 15 : rank == 15 ? of_zero : rank;
    return rank;
}

// How far the exponent of a rank up to 20 lies below the base, modulo 256.
ANY_SIDE uint32_t distance_of_rank(uint32_t rank)
{
    const uint32_t of_four = rank < 8    ? (rank < 4 ? 0x00030201u : 0xff060504u)
                             : rank < 16 ? (rank < 12 ? 0xfd08fe07u : 0x0c0b0a09u)
                                         : (rank < 20 ? 0xfc0f0e0du : 0xfbu);
    return of_four >> (rank % 4 * 8) & 255;
}

// The exponent of a rank up to 20. By its distance, which is the base, exponent 0 would have a rank above 15 unless
// that distance is one of 0 to 12 or 253 to 255.
ANY_SIDE uint32_t base_exponent(uint32_t rank, uint32_t base)
{
    const uint32_t exponent = (base - distance_of_rank(rank)) & 255;
    if (base - 13 >= 240)
        return exponent;
    return rank == 15 ? 0 : exponent == 0 ? (base - distance_of_rank(15)) & 255 : exponent;
}

// Byte i of the 64 bytes of a table_image before its `rank`, which decoders look up.
ANY_SIDE uint32_t base_image_byte(uint32_t i, uint32_t base)
{
    if (i < TIER3_RANK)
        return base_exponent(i, base);
    if (i < 16 || i == 31 || i >= 48)
        return 0;
    return base_exponent(i < 32 ? i - 16 + TIER3_RANK : i - 32, base);
}

// Entries of a table_image that encoders look up.
ANY_SIDE uint32_t tiers_of_rank(uint32_t rank)
{
    return rank < TIER2_RANK ? rank : 3u | (rank < TIER3_RANK ? rank - TIER2_RANK : 3u) << 16;
}

ANY_SIDE uint32_t tier3_of_rank(uint32_t rank)
{
    return rank < TIER3_RANK ? 0 : rank < TIER4_RANK ? rank - TIER3_RANK : 15;
}

// ---- Codes by the base ----------------------------------------------------------------------------------------------

// Inverted exponents of two values, for the functions below, in the upper byte of each u16; the lower byte does not
// matter.
ANY_SIDE uint32_t inverted_exponents(uint32_t pair)
{
    return ~(pair << 1);
}

// Least inverted exponents of a part, as u16x2: adds two values. As in exponent_order, infinities and NaN come last:
// theirs is the greatest of all.
constexpr uint32_t NO_INVERTED = 0xffffffffu;
ANY_SIDE uint32_t least_inverted(uint32_t least, uint32_t inverted)
{
    return add_min_u16x2(inverted, 0xff00ff00u, least);
}

// The lesser u16, in the lower one.
ANY_SIDE uint32_t least_of_u16x2(uint32_t least)
{
    return add_min_u16x2(least >> 16, 0, least);
}

// Adds a part to the greatest over parts, which gives the base; parts without an exponent count least. Then the order,
// as base_order gives it.
ANY_SIDE uint32_t count_part(uint32_t parts, uint32_t least)
{
    return add_max_u16x2(least, 0x0200, parts);
}
ANY_SIDE uint32_t order_of_inverted(uint32_t parts)
{
    return parts < 0x0200 ? NO_BASE : 255 - (parts >> 8);
}

// Base in the form for base_codes.
ANY_SIDE uint32_t base_to_add(uint32_t base)
{
    return (base + 1) * 0x01000100u;
}

// Tiers 1 and 2 of eight values from their inverted exponents, without a table: both depend on how far below the base
// an exponent lies, 0 to 5 or further. Each byte holds tier 1 of two values, then their tier 2; in order, values 0 and
// 1, 4 and 5, 2 and 3, 6 and 7.
ANY_SIDE uint32_t base_codes(const uint32_t inverted[4], uint32_t to_add)
{
    constexpr uint32_t CODES = 0x02010003u, FURTHER = 0x00332313u; // by distance; tier 2 in the upper half of a byte
    uint32_t d[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        d[j] = add_min_u16x2(inverted[j], to_add, 0x06ff06ffu);
    const uint32_t a = select_bits(0xf000f000u, d[2] << 4, d[0]), b = select_bits(0xf000f000u, d[3] << 4, d[1]);
    const uint32_t distances = permute(a, b, 0x7351);
    return permute(CODES, FURTHER, distances) + 4 * permute(CODES, FURTHER, distances >> 16);
}

// Splits results of base_codes for 16 consecutive values into items of tiers 1 and 2.
ANY_SIDE void part_base_codes(uint32_t first, uint32_t second, uint32_t &tier1, uint32_t &tier2)
{
    const uint32_t a = permute(first, second, 0x5410), b = permute(first, second, 0x7632);
    tier1 = select_bits(0x0f0f0f0fu, a, b << 4);
    tier2 = select_bits(0x0f0f0f0fu, a >> 4, b);
}

// ---- High halves and low bits --------------------------------------------------------------------------------------

// High halves of two FP16 values. Exponents grow by 112, the difference of the biases; but 0 stays, and 31 grows by
// twice as much.
ANY_SIDE uint32_t fp16_high_halves(uint32_t pair)
{
    const uint32_t x = pair >> 3 & 0x0fff0fffu;
    const uint32_t times = ((x + 0x0f800f80u) >> 12 & 0x00010001u) + ((x + 0x00800080u) >> 12 & 0x00010001u);
    return (pair & 0x80008000u) | (x + times * 0x3800u);
}

// FP16 values with zero low bits, from high halves. A high half of no FP16 value gives a value whose high half differs
// from it.
ANY_SIDE uint32_t fp16_values(uint32_t high_halves)
{
    const uint32_t x = high_halves & 0x7fff7fffu;
    const uint32_t times = ((x + 0x7f807f80u) >> 15 & 0x00010001u) + ((x + 0x00800080u) >> 15 & 0x00010001u);
    return (high_halves & 0x80008000u) | (x - times * 0x3800u & 0x0fff0fffu) << 3;
}

// Low bits of eight FP16 values: two bits of each; one bit of each.
ANY_SIDE uint32_t pack_low_twos(const uint32_t w[4])
{
    uint32_t twos = 0;
#pragma unroll
    for (int j = 0; j < 4; j++)
        twos |= ((w[j] & 3) | (w[j] >> 14 & 12)) << (4 * j);
    return twos;
}

ANY_SIDE uint32_t pack_low_ones(const uint32_t w[4])
{
    uint32_t ones = 0;
#pragma unroll
    for (int j = 0; j < 4; j++)
        ones |= ((w[j] >> 2 & 1) | (w[j] >> 17 & 2)) << (2 * j);
    return ones;
}

ANY_SIDE void join_low_bits(uint32_t w[4], uint32_t twos, uint32_t ones)
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint32_t two = twos >> (4 * j), one = ones >> (2 * j);
        w[j] |= (two & 3) | (two & 12) << 14 | (one & 1) << 2 | (one & 2) << 17;
    }
}

} // namespace strait
#endif
