// FP8 blocks (mode 10), FORMAT.md section 3.3: values as exponents and rests, tiers of two bits, rankings. A lane of
// workers has 64 consecutive values, one group of the sample; of even blocks of half the size or less, half a group.
#ifndef STRAIT_KERNELS_CUDA_FP8_CUH
#define STRAIT_KERNELS_CUDA_FP8_CUH

#include "kernels/cuda/bits.cuh"
#include "kernels/cuda/launch.cuh"

namespace strait
{

constexpr uint32_t FP8_RANKS = 9;                  // also the bytes at the end of a block
constexpr uint32_t FP8_EACH = 64, FP8_LAST = 0x3f; // values of a group; code of an exponent without a rank

// Whether lanes share a block by half groups: an even one of at most half of the size.
ANY_SIDE bool is_fp8_short(uint32_t bytes)
{
    return bytes % EVEN_BYTES == 0 && bytes <= BLOCK_SIZE / 2;
}

// Bytes of the rests of m values.
ANY_SIDE uint32_t fp8_rests_size(bool e5m2, uint32_t m)
{
    return e5m2 ? (m + 3) / 4 + (m + 7) / 8 : (m + 1) / 2;
}

// Bytes of `count` exponents without a rank.
ANY_SIDE uint32_t fp8_last_size(bool e5m2, uint32_t count)
{
    return (count + 1) / 2 + (e5m2 ? (count + 7) / 8 : 0);
}

ANY_SIDE bool is_fp8(uint32_t element)
{
    return element == STRAIT_ELEMENT_FP8_E4M3 || element == STRAIT_ELEMENT_FP8_E5M2;
}

// ---- Four values ----------------------------------------------------------------------------------------------------

// Exponents, a byte each.
ANY_SIDE uint32_t fp8_exponents(bool e5m2, uint32_t four)
{
    return e5m2 ? four >> 2 & 0x1f1f1f1fu : four >> 3 & 0x0f0f0f0fu;
}

// Four items of one bit from the highest bits of four bytes.
ANY_SIDE uint32_t pack_four_signs(uint32_t four)
{
    return pack_four_ones(four >> 7);
}

// Eight rests of E4M3, of four bits each.
ANY_SIDE uint32_t pack_eight_rests(uint32_t a, uint32_t b)
{
    uint32_t x = (a & 0x07070707u) | (a >> 4 & 0x08080808u), y = (b & 0x07070707u) | (b >> 4 & 0x08080808u);
    x |= x >> 4, y |= y >> 4;
    return permute(x, y, 0x6420);
}

// Values with zero exponents from eight rests of E4M3; from four mantissas and signs of E5M2.
ANY_SIDE void unpack_eight_rests(uint32_t rests, uint32_t w[2])
{
    unpack_eight(rests, w);
#pragma unroll
    for (int i = 0; i < 2; i++)
        w[i] = (w[i] & 0x07070707u) | (w[i] & 0x08080808u) << 4;
}
ANY_SIDE uint32_t unpack_e5m2(uint32_t mantissas, uint32_t signs)
{
    return unpack_four_twos(mantissas) | unpack_four_ones(signs) << 7;
}

// ---- Tiers ----------------------------------------------------------------------------------------------------------

// Code of a rank: its items of tiers 1 to 3, two bits each.
ANY_SIDE uint32_t fp8_code(uint32_t rank)
{
    return rank < 3 ? rank : rank < 6 ? 3 | (rank - 3) << 2 : rank < FP8_RANKS ? 15 | (rank - 6) << 4 : FP8_LAST;
}

// Codes of eight exponents in `a` and `b`, a byte each, by the codes of all exponents.
ANY_SIDE void fp8_codes(bool e5m2, const uint32_t codes[8], uint32_t &a, uint32_t &b)
{
    const uint32_t low = pack_eight(a & 0x0f0f0f0fu, b & 0x0f0f0f0fu);
    uint32_t found[2], upper[2];
    top16_exponents(low, codes, found);
    if (e5m2) {
        top16_exponents(low, codes + 4, upper);
        found[0] = select_bits((a >> 4 & 0x01010101u) * 255u, upper[0], found[0]);
        found[1] = select_bits((b >> 4 & 0x01010101u) * 255u, upper[1], found[1]);
    }
    a = found[0], b = found[1];
}

// Exponents of 16 values from their items of all tiers, by 16 bytes: the ranking, then zeroes.
ANY_SIDE void fp8_exponents_of(uint32_t tier1, uint32_t tier2, uint32_t tier3, const uint32_t ranking[4], uint32_t e[4])
{
    constexpr uint32_t EVEN = 0x33333333u;
    const uint32_t even = (tier1 & EVEN) + (tier2 & EVEN) + (tier3 & EVEN);
    const uint32_t odd = (tier1 >> 2 & EVEN) + (tier2 >> 2 & EVEN) + (tier3 >> 2 & EVEN);
    uint32_t of_even[2], of_odd[2];
    top16_exponents(even, ranking, of_even);
    top16_exponents(odd, ranking, of_odd);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        e[2 * i] = permute(of_even[i], of_odd[i], 0x5140);
        e[2 * i + 1] = permute(of_even[i], of_odd[i], 0x7362);
    }
}

// ---- Rankings -------------------------------------------------------------------------------------------------------

// Which eight bytes of its 64 a group adds to the sample.
ANY_SIDE uint32_t sample_piece(uint32_t group)
{
    return (group + group / 8 + group / 64) % 8;
}

// All lanes: how often exponent number `lane` is among those of all lanes' `BYTES` bytes, of which `count` exist.
template <uint32_t BYTES>
DEVICE uint32_t count_exponents(bool e5m2, const uint32_t exponents[BYTES / 4], uint32_t count, uint32_t lane)
{
    static_assert(BYTES < 16, "four bits count them");
    uint32_t all = 0; // of all lanes: those of two exponents, whose numbers differ by 4
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        if (half == 1 && !e5m2)
            break;
        uint32_t found[2] = {0, 0}; // of the lane, four bits for each of 16 exponents
#pragma unroll
        for (uint32_t i = 0; i < BYTES; i++) {
            const uint32_t e = exponents[i / 4] >> (8 * (i % 4)) & 31, one = i < count ? 1u << (4 * (e % 8)) : 0;
            found[0] += e / 8 == 2 * half ? one : 0;
            found[1] += e / 8 == 2 * half + 1 ? one : 0;
        }
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            const uint32_t two = __reduce_add_sync(ALL_LANES, found[i / 4] >> (4 * (i % 4)) & 0x000f000fu);
            all = lane / 8 == 2 * half + i / 4 && lane % 4 == i % 4 ? two : all;
        }
    }
    return lane % 8 < 4 ? all & 0xffff : all >> 16;
}

// Orders exponents by rank, the first greatest; 0 for what is no exponent of the type. No two others are equal.
ANY_SIDE uint32_t exponent_key(uint32_t count, bool e5m2, uint32_t exponent)
{
    return e5m2 || exponent < 16 ? count * 32 + 32 - exponent : 0;
}
ANY_SIDE uint32_t exponent_of_key(uint32_t key)
{
    return (32 - key % 32) % 32;
}

// All lanes: the rank of exponent number `lane`, or FP8_RANKS; ranking[r] becomes the exponent of rank r.
DEVICE uint32_t rank_exponents(uint32_t count, bool e5m2, uint32_t lane, uint32_t ranking[FP8_RANKS])
{
    uint32_t key = exponent_key(count, e5m2, lane), rank = FP8_RANKS;
#pragma unroll
    for (uint32_t r = 0; r < FP8_RANKS; r++) {
        const uint32_t greatest = __reduce_max_sync(ALL_LANES, key);
        ranking[r] = exponent_of_key(greatest);
        if (key == greatest) {
            rank = r;
            key = 0;
        }
    }
    return rank;
}

} // namespace strait
#endif
