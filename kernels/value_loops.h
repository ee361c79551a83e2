/*
 * Functions of a struct value_ops, in plain C that compilers vectorize for their target. Each variant includes it
 * once.
 */
#ifndef STRAIT_KERNELS_VALUE_LOOPS_H
#define STRAIT_KERNELS_VALUE_LOOPS_H

#include "internal/bytes.h"
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
#include <immintrin.h>

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

/* Adds low bits to values in which they are zero. */
static void join_low_bits(uint8_t *restrict dst, const uint8_t *restrict twos, const uint8_t *restrict ones,
                          uint32_t count)
{
    uint32_t i = 0;
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

/* ---- FP8, eight values at a time ---- */

#define BYTES_OF(byte) (0x0101010101010101u * (byte))

/* From eight values: four bytes of sign and mantissa; two bytes of mantissas; a byte of signs. And back. */
#if defined(__BMI2__)
static inline uint32_t pack_rests_e4m3(uint64_t eight)
{
    return (uint32_t)_pext_u64(eight, BYTES_OF(0x87));
}

static inline uint64_t unpack_rests_e4m3(uint32_t rests)
{
    return _pdep_u64(rests, BYTES_OF(0x87));
}

static inline uint32_t pack_mantissas_e5m2(uint64_t eight)
{
    return (uint32_t)_pext_u64(eight, BYTES_OF(3));
}

static inline uint32_t pack_signs(uint64_t eight)
{
    return (uint32_t)_pext_u64(eight, BYTES_OF(0x80));
}

static inline uint64_t unpack_rests_e5m2(uint32_t mantissas, uint32_t signs)
{
    return _pdep_u64(mantissas, BYTES_OF(3)) | _pdep_u64(signs, BYTES_OF(0x80));
}
#else
static inline uint32_t pack_rests_e4m3(uint64_t eight)
{
    uint64_t x = (eight & BYTES_OF(7)) | (eight >> 4 & BYTES_OF(8));
    x = (x | x >> 4) & 0x00ff00ff00ff00ffu;
    x = (x | x >> 8) & 0x0000ffff0000ffffu;
    return (uint32_t)(x | x >> 16);
}

static inline uint64_t unpack_rests_e4m3(uint32_t rests)
{
    uint64_t x = (rests | (uint64_t)rests << 16) & 0x0000ffff0000ffffu;
    x = (x | x << 8) & 0x00ff00ff00ff00ffu;
    x = (x | x << 4) & BYTES_OF(15);
    return (x & BYTES_OF(7)) | (x & BYTES_OF(8)) << 4;
}

static inline uint32_t pack_mantissas_e5m2(uint64_t eight)
{
    uint64_t x = eight & BYTES_OF(3);
    x = (x | x >> 6) & 0x000f000f000f000fu;
    x = (x | x >> 12) & 0x000000ff000000ffu;
    return (uint32_t)(x | x >> 24) & 0xffff;
}

static inline uint32_t pack_signs(uint64_t eight)
{
    return (uint32_t)((eight >> 7 & BYTES_OF(1)) * 0x0102040810204080u >> 56);
}

static inline uint64_t unpack_rests_e5m2(uint32_t mantissas, uint32_t signs)
{
    uint64_t x = (mantissas | (uint64_t)mantissas << 24) & 0x000000ff000000ffu;
    x = (x | x << 12) & 0x000f000f000f000fu;
    x = (x | x << 6) & BYTES_OF(3);
    return x | (((signs * BYTES_OF(1) & 0x8040201008040201u) + BYTES_OF(0x7f)) & BYTES_OF(0x80));
}
#endif

static inline uint64_t exponents_fp8(uint64_t eight, bool e5m2)
{
    return e5m2 ? eight >> 2 & BYTES_OF(31) : eight >> 3 & BYTES_OF(15);
}

/* Up to eight values at the end of a block, from memory that has no more, with zeroes after them. */
static inline uint64_t load_some(const uint8_t *src, uint32_t count)
{
    uint64_t eight = 0;
    memcpy(&eight, src, count);
    return eight;
}

static void split_fp8(uint8_t *restrict exponents, uint8_t *restrict rests, const uint8_t *restrict src, uint32_t count,
                      bool e5m2)
{
    uint8_t *restrict signs = rests + (count + 3) / 4;
    const uint32_t whole = count / 8 * 8, left = count - whole;
    for (uint32_t i = 0; i < whole; i += 8)
        store_le64(exponents + i, exponents_fp8(load_le64(src + i), e5m2));
    for (uint32_t i = 0; !e5m2 && i < whole; i += 8)
        store_le32(rests + i / 2, pack_rests_e4m3(load_le64(src + i)));
    for (uint32_t i = 0; e5m2 && i < whole; i += 8) {
        uint64_t eight = load_le64(src + i);
        store_le16(rests + i / 4, (uint16_t)pack_mantissas_e5m2(eight));
        signs[i / 8] = (uint8_t)pack_signs(eight);
    }
    if (left == 0)
        return;
    uint64_t eight = load_some(src + whole, left), last = exponents_fp8(eight, e5m2);
    uint32_t packed = e5m2 ? pack_mantissas_e5m2(eight) : pack_rests_e4m3(eight);
    memcpy(exponents + whole, &last, left);
    memcpy(rests + (e5m2 ? whole / 4 : whole / 2), &packed, e5m2 ? (left + 3) / 4 : (left + 1) / 2);
    if (e5m2)
        signs[whole / 8] = (uint8_t)pack_signs(eight);
}

static void join_fp8(uint8_t *restrict dst, const uint8_t *restrict exponents, const uint8_t *restrict rests,
                     uint32_t count, bool e5m2)
{
    const uint8_t *restrict signs = rests + (count + 3) / 4;
    const uint32_t whole = count / 8 * 8, left = count - whole;
    for (uint32_t i = 0; !e5m2 && i < whole; i += 8)
        store_le64(dst + i, load_le64(exponents + i) << 3 | unpack_rests_e4m3(load_le32(rests + i / 2)));
    for (uint32_t i = 0; e5m2 && i < whole; i += 8)
        store_le64(dst + i, load_le64(exponents + i) << 2 | unpack_rests_e5m2(load_le16(rests + i / 4), signs[i / 8]));
    if (left == 0)
        return;
    uint64_t last = load_some(exponents + whole, left),
             packed = load_some(rests + whole / (e5m2 ? 4 : 2), (left + (e5m2 ? 3 : 1)) / (e5m2 ? 4 : 2));
    last = e5m2 ? last << 2 | unpack_rests_e5m2((uint32_t)packed, signs[whole / 8])
                : last << 3 | unpack_rests_e4m3((uint32_t)packed);
    memcpy(dst + whole, &last, left);
}

#define VALUE_OPS                                                                                                     \
    {                                                                                                                 \
        .find_base = find_base, .split_fp32 = split_fp32, .join_fp32 = join_fp32, .are_high_halves = are_high_halves, \
        .split_fp16 = split_fp16, .join_fp16 = join_fp16, .split_fp8 = split_fp8, .join_fp8 = join_fp8                \
    }

#endif
