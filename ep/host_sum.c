/* Sums of rows. This file is compiled without contraction of products and sums, and with the compiler's vectors: each
 * loop over values is a plain one. */
#include "ep/host.h"

#include <fenv.h>
#include <string.h>

#define TILE 256u /* values whose sums are kept at a time */

static float from_bf16(uint16_t x)
{
    return ep_host_float((uint32_t)x << 16);
}

/* The exponent's bias differs by 112; the product is exact, for subnormal values too. */
static float from_fp16(uint16_t x)
{
    const uint32_t magnitude = (uint32_t)(x & 0x7FFF) << 13;
    const uint32_t finite = ep_host_bits(ep_host_float(magnitude) * 0x1p112f);
    const uint32_t bits = magnitude < 0x0F800000u ? finite : magnitude | 0x7F800000u;

    return ep_host_float(bits | (uint32_t)(x & 0x8000) << 16);
}

static uint16_t to_bf16(float x)
{
    const uint32_t bits = ep_host_bits(x);
    const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;

    return (bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FFF : (uint16_t)rounded;
}

static uint16_t to_fp16(float x)
{
    const uint32_t bits = ep_host_bits(x), magnitude = bits & 0x7FFFFFFF, sign = bits >> 16 & 0x8000;
    /* Below 2^-14 the sum with 0.5 is rounded where the subnormal values of FP16 end. */
    const uint32_t small = ep_host_bits(ep_host_float(magnitude < 0x38800000 ? magnitude : 0) + 0.5f) - 0x3F000000;
    const uint32_t normal = (magnitude - 0x38000000 + 0xFFF + (magnitude >> 13 & 1)) >> 13;
    const uint32_t finite = magnitude < 0x38800000 ? small : magnitude < 0x477FF000 ? normal : 0x7C00;

    return magnitude > 0x7F800000 ? 0x7FFF : (uint16_t)(finite | sign);
}

static uint32_t to_fp32(float x)
{
    const uint32_t bits = ep_host_bits(x);

    return (bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FFFFFFF : bits;
}

static void widen(enum strait_element type, float *dst, const uint8_t *src, uint32_t count)
{
    uint16_t halves[TILE];

    if (type == STRAIT_ELEMENT_FP32) {
        memcpy(dst, src, count * sizeof(*dst));
        return;
    }
    memcpy(halves, src, count * sizeof(*halves));
    if (type == STRAIT_ELEMENT_BF16)
        for (uint32_t i = 0; i < count; i++)
            dst[i] = from_bf16(halves[i]);
    else
        for (uint32_t i = 0; i < count; i++)
            dst[i] = from_fp16(halves[i]);
}

static void narrow(enum strait_element type, uint8_t *dst, const float *src, uint32_t count)
{
    union {
        uint32_t words[TILE];
        uint16_t halves[TILE];
    } out;

    if (type == STRAIT_ELEMENT_FP32)
        for (uint32_t i = 0; i < count; i++)
            out.words[i] = to_fp32(src[i]);
    else if (type == STRAIT_ELEMENT_BF16)
        for (uint32_t i = 0; i < count; i++)
            out.halves[i] = to_bf16(src[i]);
    else
        for (uint32_t i = 0; i < count; i++)
            out.halves[i] = to_fp16(src[i]);
    memcpy(dst, &out, count * (type == STRAIT_ELEMENT_FP32 ? 4 : 2));
}

/* Sets or adds the values of a term, times its weight unless that is NULL. */
static void add_term(float *sums, const float *values, const float *weight, bool first, uint32_t count)
{
    const float factor = weight != NULL ? *weight : 1.0f; /* the product with 1 is exact */

    if (first)
        for (uint32_t i = 0; i < count; i++)
            sums[i] = factor * values[i];
    else
        for (uint32_t i = 0; i < count; i++)
            sums[i] = sums[i] + factor * values[i];
}

void ep_host_sum(enum strait_element type, uint8_t *dst, const uint8_t *const *terms, const float *weights,
                 uint32_t count, uint32_t bytes)
{
    const uint32_t value_bytes = type == STRAIT_ELEMENT_FP32 ? 4 : 2, end = bytes / value_bytes;
    float sums[TILE], values[TILE];
    fenv_t before;

    /* The caller's thread may round otherwise, or flush subnormal values to zero. */
    fegetenv(&before);
    fesetenv(FE_DFL_ENV);
    for (uint32_t from = 0; from < end; from += TILE) {
        const uint32_t part = end - from < TILE ? end - from : TILE;
        const uint64_t at = (uint64_t)from * value_bytes;
        memset(sums, 0, sizeof(sums));
        for (uint32_t term = 0; term < count; term++) {
            widen(type, values, terms[term] + at, part);
            add_term(sums, values, weights != NULL ? &weights[term] : NULL, term == 0, part);
        }
        narrow(type, dst + at, sums, part);
    }
    fesetenv(&before);
}
