/*
 * Functions of a struct value_ops, in plain C that compilers vectorize for their target. Each variant includes it
 * once.
 */
#ifndef STRAIT_KERNELS_VALUE_LOOPS_H
#define STRAIT_KERNELS_VALUE_LOOPS_H

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "internal/bytes.h"
#include "kernels/part_loops.h"
#include "kernels/value_ops.h"

/* ---- Bases ---- */

/* The largest exponent, in place (not shifted down), except those of infinities and NaN; 0 when there is none. Signed,
 * because every target has a vector maximum of signed 16-bit words. */
static inline int16_t largest_exponent(const uint8_t *values, uint32_t count)
{
    const int16_t infinite = 255 << 7;
    int16_t found = 0;
    for (size_t i = 0; i < count; i++) {
        int16_t exponent = (int16_t)(load_le16(values + 2 * i) & infinite);
        exponent = exponent == infinite ? 0 : exponent;
        found = exponent > found ? exponent : found;
    }
    return found;
}

static uint8_t find_base(const uint8_t *values, uint32_t count)
{
    int16_t smallest = 0;
    uint32_t i = 0;
    for (; i < count; i += BASE_PART) {
        uint32_t left = count - i;
        int16_t of_part =
            left >= BASE_PART ? largest_exponent(values + 2 * i, BASE_PART) : largest_exponent(values + 2 * i, left);
        if (of_part != 0 && (smallest == 0 || of_part < smallest))
            smallest = of_part;
    }
    return (uint8_t)(smallest >> 7);
}

/* ---- FP32 ---- */

static void split_fp32(uint8_t *restrict high_halves, uint8_t *restrict low_bits, const uint8_t *restrict src,
                       uint32_t count)
{
    for (size_t i = 0; i < count; i++)
        store_le16(high_halves + 2 * i, (uint16_t)(load_le32(src + 4 * i) >> 16));
    for (size_t i = 0; low_bits != NULL && i < count; i++)
        store_le16(low_bits + 2 * i, (uint16_t)load_le32(src + 4 * i));
}

static void join_fp32(uint8_t *restrict dst, const uint8_t *restrict high_halves, const uint8_t *restrict low_bits,
                      uint32_t count)
{
    for (size_t i = 0; low_bits != NULL && i < count; i++)
        store_le32(dst + 4 * i, (uint32_t)load_le16(high_halves + 2 * i) << 16 | load_le16(low_bits + 2 * i));
    for (size_t i = 0; low_bits == NULL && i < count; i++)
        store_le32(dst + 4 * i, (uint32_t)load_le16(high_halves + 2 * i) << 16);
}

/* Works in steps, so that it can stop early at the first step with nonzero lower halves. */
static bool are_high_halves(const uint8_t *src, uint32_t count)
{
    enum { STEP = 256 };
    uint32_t any = 0;
    size_t i = 0;
    for (; i + STEP <= count && (uint16_t)any == 0; i += STEP)
        for (size_t k = 0; k < STEP; k++)
            any |= load_le32(src + 4 * (i + k));
    for (; i < count && (uint16_t)any == 0; i++)
        any |= load_le32(src + 4 * i);
    return (uint16_t)any == 0;
}

/* ---- FP16 ---- */

/* Exponents of FP16 become those of BF16 values of the same magnitude, so that one table serves both. Zero and
 * subnormal values have the lowest exponent in both types, infinities and NaN the highest. */
enum { FP16_MOST = 31, BF16_MOST = 255, BIAS_DIFFERENCE = 127 - 15 };

static inline uint16_t high_half_of(uint16_t value)
{
    uint16_t exponent = value >> 10 & FP16_MOST, wide = exponent + BIAS_DIFFERENCE;
    wide = exponent == FP16_MOST ? BF16_MOST : wide;
    wide = exponent == 0 ? 0 : wide;
    return (uint16_t)((value & 0x8000) | wide << 7 | (value >> 3 & 0x7f));
}

/* The value with zero low bits. The result is arbitrary when the exponent of the high half is that of no FP16 value. */
static inline uint16_t value_of(uint16_t high_half)
{
    uint16_t wide = high_half >> 7 & BF16_MOST, exponent = (wide - BIAS_DIFFERENCE) & FP16_MOST;
    exponent = wide == BF16_MOST ? FP16_MOST : exponent;
    exponent = wide == 0 ? 0 : exponent;
    return (uint16_t)((high_half & 0x8000) | exponent << 10 | (high_half & 0x7f) << 3);
}

/* Nonzero when no FP16 value has this high half, which does not survive the round trip then. */
static inline uint16_t invalid_bits(uint16_t high_half)
{
    return high_half_of(value_of(high_half)) ^ high_half;
}

#define LOW_TWO 0x0003000300030003u
#define LOW_ONE 0x0001000100010001u

/* From four values: one byte of their lowest two bits, half a byte of their third bits; and back, to words of 16 bits.
 * PEXT and PDEP are fast on all processors with AVX-512, but may be slow on those with AVX2 only. */
#if defined(__BMI2__)
static inline uint32_t pack_twos(uint64_t four)
{
    return (uint32_t)_pext_u64(four, LOW_TWO);
}

static inline uint32_t pack_ones(uint64_t four)
{
    return (uint32_t)_pext_u64(four, LOW_ONE << 2);
}

static inline uint64_t unpack_low_bits(uint64_t two, uint64_t one)
{
    return _pdep_u64(two, LOW_TWO) | _pdep_u64(one, LOW_ONE << 2);
}
#else
static inline uint32_t pack_twos(uint64_t four)
{
    uint64_t low = four & LOW_TWO;
    return (uint32_t)(low | low >> 14 | low >> 28 | low >> 42) & 0xff;
}

static inline uint32_t pack_ones(uint64_t four)
{
    uint64_t third = four >> 2 & LOW_ONE;
    return (uint32_t)(third | third >> 15 | third >> 30 | third >> 45) & 0xf;
}

static inline uint64_t unpack_low_bits(uint64_t two, uint64_t one)
{
    uint64_t low = (two | two << 14 | two << 28 | two << 42) & LOW_TWO;
    uint64_t third = (one | one << 15 | one << 30 | one << 45) & LOW_ONE;
    return low | third << 2;
}
#endif

static void split_low_bits(uint8_t *restrict twos, uint8_t *restrict ones, const uint8_t *restrict src, uint32_t count)
{
    uint32_t i = 0;
    for (; i + 8 <= count; i += 8) {
        uint64_t a = load_le64(src + 2 * i), b = load_le64(src + 2 * i + 8);
        store_le16(twos + i / 4, (uint16_t)(pack_twos(a) | pack_twos(b) << 8));
        ones[i / 8] = (uint8_t)(pack_ones(a) | pack_ones(b) << 4);
    }
    if (i == count)
        return;
    uint64_t last[2] = {0};
    memcpy(last, src + 2 * i, 2 * (size_t)(count - i));
    twos[i / 4] = (uint8_t)pack_twos(last[0]);
    if (count - i > 4)
        twos[i / 4 + 1] = (uint8_t)pack_twos(last[1]);
    ones[i / 8] = (uint8_t)(pack_ones(last[0]) | pack_ones(last[1]) << 4);
}

/* Adds low bits to as many values, from the first on, as are a multiple of what a vector holds; returns how many. In
 * each 64-bit lane the four values of one byte of `twos` are shifted, each by its own distance, to where they belong.
 */
#define SPREAD(byte)                                                                                \
    ((long long)(0x8000800080008000u + (byte)*LOW_ONE)) /* for PSHUFB: into four words, with zeroes \
                                                         */

#if defined(__AVX512BW__)
enum { JOINED_AT_ONCE = 32 };

static inline uint32_t join_low_bits_vectors(uint8_t *restrict dst, const uint8_t *restrict twos,
                                             const uint8_t *restrict ones, uint32_t count)
{
    const __m512i spread =
        _mm512_set_epi64(SPREAD(7), SPREAD(6), SPREAD(5), SPREAD(4), SPREAD(3), SPREAD(2), SPREAD(1), SPREAD(0));
    const __m512i distance = _mm512_set1_epi64(0x0006000400020000);
    uint32_t i = 0;
    for (; i + JOINED_AT_ONCE <= count; i += JOINED_AT_ONCE) {
        __m512i bytes = _mm512_shuffle_epi8(_mm512_set1_epi64((long long)load_le64(twos + i / 4)), spread);
        __m512i two = _mm512_and_si512(_mm512_srlv_epi16(bytes, distance), _mm512_set1_epi16(3));
        __m512i one = _mm512_maskz_set1_epi16(load_le32(ones + i / 8), 4);
        __m512i value = _mm512_loadu_si512(dst + 2 * i);
        _mm512_storeu_si512(dst + 2 * i, _mm512_ternarylogic_epi32(value, two, one, 0xfe)); /* or of all three */
    }
    return i;
}
#elif defined(__AVX2__)
enum { JOINED_AT_ONCE = 16 };

static inline uint32_t join_low_bits_vectors(uint8_t *restrict dst, const uint8_t *restrict twos,
                                             const uint8_t *restrict ones, uint32_t count)
{
    const __m256i spread = _mm256_set_epi64x(SPREAD(3), SPREAD(2), SPREAD(1), SPREAD(0));
    const __m256i factor = _mm256_set1_epi64x(0x0001000400100040); /* shifts left, so that the same bits come to lie
                                                                      at the same place */
    const __m256i bit = _mm256_set_epi16((short)0x8000, 0x4000, 0x2000, 0x1000, 0x800, 0x400, 0x200, 0x100, 0x80, 0x40,
                                         0x20, 0x10, 8, 4, 2, 1);
    uint32_t i = 0;
    for (; i + JOINED_AT_ONCE <= count; i += JOINED_AT_ONCE) {
        __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32((int)load_le32(twos + i / 4)), spread);
        __m256i two = _mm256_and_si256(_mm256_srli_epi16(_mm256_mullo_epi16(bytes, factor), 6), _mm256_set1_epi16(3));
        __m256i third = _mm256_and_si256(_mm256_set1_epi16((short)load_le16(ones + i / 8)), bit);
        __m256i one = _mm256_and_si256(_mm256_cmpeq_epi16(third, bit), _mm256_set1_epi16(4));
        __m256i value = _mm256_loadu_si256((const __m256i *)(dst + 2 * i));
        _mm256_storeu_si256((__m256i *)(dst + 2 * i), _mm256_or_si256(value, _mm256_or_si256(two, one)));
    }
    return i;
}
#else
static inline uint32_t join_low_bits_vectors(uint8_t *restrict dst, const uint8_t *restrict twos,
                                             const uint8_t *restrict ones, uint32_t count)
{
    (void)dst, (void)twos, (void)ones, (void)count;
    return 0;
}
#endif

/* Adds low bits to values in which they are zero. */
static void join_low_bits(uint8_t *restrict dst, const uint8_t *restrict twos, const uint8_t *restrict ones,
                          uint32_t count)
{
    uint32_t i = join_low_bits_vectors(dst, twos, ones, count);
    for (; i + 4 <= count; i += 4)
        store_le64(dst + 2 * i, load_le64(dst + 2 * i) | unpack_low_bits(twos[i / 4], ones[i / 8] >> i % 8 & 15));
    if (i == count)
        return;
    uint64_t last = 0;
    memcpy(&last, dst + 2 * i, 2 * (size_t)(count - i));
    last |= unpack_low_bits(twos[i / 4], ones[i / 8] >> i % 8 & 15);
    memcpy(dst + 2 * i, &last, 2 * (size_t)(count - i));
}

static void split_fp16(uint8_t *restrict high_halves, uint8_t *restrict twos, uint8_t *restrict ones,
                       const uint8_t *restrict src, uint32_t count)
{
    for (size_t i = 0; i < count; i++)
        store_le16(high_halves + 2 * i, high_half_of(load_le16(src + 2 * i)));
    split_low_bits(twos, ones, src, count);
}

static bool join_fp16(uint8_t *restrict dst, const uint8_t *restrict high_halves, const uint8_t *restrict twos,
                      const uint8_t *restrict ones, uint32_t count)
{
    uint16_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        uint16_t high_half = load_le16(high_halves + 2 * i);
        bad |= invalid_bits(high_half);
        store_le16(dst + 2 * i, value_of(high_half));
    }
    join_low_bits(dst, twos, ones, count);
    return bad == 0;
}

#define VALUE_OPS                                                                                                     \
    {                                                                                                                 \
        .find_base = find_base, .split_fp32 = split_fp32, .join_fp32 = join_fp32, .are_high_halves = are_high_halves, \
        .split_fp16 = split_fp16, .join_fp16 = join_fp16, PART_OPS                                                    \
    }

#endif
