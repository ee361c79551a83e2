/* Values to add up, for the tests of collective/reduce.h. */
#ifndef STRAIT_TESTS_COLLECTIVE_REDUCE_VALUES_H
#define STRAIT_TESTS_COLLECTIVE_REDUCE_VALUES_H

#include "collective/reduce.h"
#include "tests/support.h"

enum addend {
    ADDEND_ANY,     /* any bits */
    ADDEND_BELL,    /* close exponents: rounding and ties */
    ADDEND_TINY,    /* subnormal, and a little above */
    ADDEND_HUGE,    /* sums overflow */
    ADDEND_SPECIAL, /* zeroes, infinities, NaNs, extremes */
    ADDENDS
};

static inline uint32_t reduce_special(struct rng *rng, enum coll_reduce_type type)
{
    static const uint32_t specials[COLL_REDUCE_TYPES][9] = {
        {0, 0x8000, 1, 0x8001, 0x7f80, 0xff80, 0x7fc0, 0xff81, 0x7f7f},
        {0, 0x8000, 1, 0x8001, 0x7c00, 0xfc00, 0x7e00, 0xfc01, 0x7bff},
        {0, 0x80000000, 1, 0x80000001, 0x7f800000, 0xff800000, 0x7fc00000, 0xff800001, 0x7f7fffff}};
    return specials[type][rng_below(rng, 9)];
}

static inline uint32_t reduce_addend(struct rng *rng, enum coll_reduce_type type, enum addend kind)
{
    static const struct {
        uint32_t mantissa, middle, last, sign;
    } formats[] = {{7, 127, 254, 15}, {10, 15, 30, 15}, {23, 127, 254, 31}};
    const uint32_t bits = (uint32_t)rng_next(rng), mantissa = bits & ((1u << formats[type].mantissa) - 1);
    uint32_t exponent = formats[type].middle + rng_below(rng, 5);
    if (kind == ADDEND_SPECIAL)
        return reduce_special(rng, type);
    if (kind == ADDEND_ANY)
        return type == COLL_REDUCE_FP32 ? bits : bits & 0xffff;
    if (kind == ADDEND_TINY)
        exponent = rng_below(rng, 4);
    if (kind == ADDEND_HUGE)
        exponent = formats[type].last - rng_below(rng, 3);
    return (bits >> 31) << formats[type].sign | exponent << formats[type].mantissa | mantissa;
}

static inline uint32_t reduce_get(enum coll_reduce_type type, const uint8_t *bytes, size_t i)
{
    return type == COLL_REDUCE_FP32 ? get_value(bytes, 2 * i) | (uint32_t)get_value(bytes, 2 * i + 1) << 16
                                    : get_value(bytes, i);
}

static inline void reduce_put(enum coll_reduce_type type, uint8_t *bytes, size_t i, uint32_t bits)
{
    if (type == COLL_REDUCE_FP32) {
        put_value(bytes, 2 * i, (uint16_t)bits);
        put_value(bytes, 2 * i + 1, (uint16_t)(bits >> 16));
    } else {
        put_value(bytes, i, (uint16_t)bits);
    }
}

/* Fills with values of one kind, or of all kinds when `kind` is ADDENDS. */
static inline void reduce_fill(struct rng *rng, enum coll_reduce_type type, enum addend kind, uint8_t *bytes,
                               size_t count)
{
    for (size_t i = 0; i < count; i++)
        reduce_put(type, bytes, i,
                   reduce_addend(rng, type, kind == ADDENDS ? (enum addend)rng_below(rng, ADDENDS) : kind));
}

#endif
