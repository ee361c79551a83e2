/* Conversion of BF16, FP16 and FP32 values to numbers and back. Rounding uses integers, so that it does not depend on
 * the processor's rounding mode. */
#ifndef STRAIT_COLLECTIVE_REDUCE_VALUES_H
#define STRAIT_COLLECTIVE_REDUCE_VALUES_H

#include <string.h>

#include "collective/reduce.h"

static inline float float_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline uint64_t bits_of_double(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline double double_of_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline float widen_fp16(uint32_t bits)
{
    const uint32_t sign = (bits & 0x8000) << 16, exponent = bits >> 10 & 31, mantissa = bits & 0x3ff;
    if (exponent == 31)
        return float_of_bits(sign | 0x7f800000 | mantissa << 13);
    if (exponent > 0)
        return float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    const float tiny = (float)mantissa * 0x1p-24f; /* exact */
    return sign == 0 ? tiny : -tiny;
}

/* Exact. */
static inline float coll_reduce_widen(enum coll_reduce_type type, uint32_t bits)
{
    if (type == COLL_REDUCE_FP16)
        return widen_fp16(bits);
    return float_of_bits(type == COLL_REDUCE_BF16 ? bits << 16 : bits);
}

/* Format to round to: mantissa bits, exponent of the smallest normal value, sign bit, infinity. */
struct reduce_format {
    int mantissa, smallest;
    uint32_t sign, infinity;
};

static inline struct reduce_format reduce_format_of(enum coll_reduce_type type)
{
    static const struct reduce_format formats[] = {
        {7, -126, 0x8000, 0x7f80}, {10, -14, 0x8000, 0x7c00}, {23, -126, 0x80000000, 0x7f800000}};
    return formats[type];
}

/* Rounded to nearest, ties to even. */
static inline uint32_t coll_reduce_narrow(enum coll_reduce_type type, double x)
{
    const struct reduce_format format = reduce_format_of(type);
    const uint64_t bits = bits_of_double(x);
    const uint32_t sign = bits >> 63 != 0 ? format.sign : 0;
    const int exponent = (int)(bits >> 52 & 2047) - 1023;
    uint64_t mantissa = bits & 0xfffffffffffffu;
    if (exponent == 1024)
        return mantissa != 0 ? format.sign - 1 : sign | format.infinity;
    if (exponent < format.smallest - format.mantissa - 1) /* less than half of the smallest subnormal */
        return sign;
    const int below = exponent < format.smallest ? format.smallest - exponent : 0; /* subnormal */
    const int drop = 52 - format.mantissa + below;
    mantissa |= 1ull << 52;
    const uint64_t rest = mantissa & ((1ull << drop) - 1), half = 1ull << (drop - 1);
    uint64_t kept = mantissa >> drop;
    kept += rest > half || (rest == half && kept % 2 != 0);
    if (below == 0) /* the leading one adds one to the exponent */
        kept += (uint64_t)(exponent - format.smallest) << format.mantissa;
    return sign | (kept < format.infinity ? (uint32_t)kept : format.infinity);
}

/* NCCL's factor for the mean of n. */
static inline uint32_t coll_reduce_share(enum coll_reduce_type type, uint32_t n)
{
    return coll_reduce_narrow(type, (double)(float)(1.0 / n));
}

#endif
