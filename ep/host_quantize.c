/* Rows of BF16 to E4M3 with a scale for each STRAIT_EP_SCALE_VALUES values. This file is compiled as host_sum.c is, and
 * each loop over values is a plain one, too. */
#include <fenv.h>
#include <string.h>

#include "ep/host.h"

static float amax_of(const uint16_t values[STRAIT_EP_SCALE_VALUES])
{
    uint32_t amax = 0;

    for (uint32_t i = 0; i < STRAIT_EP_SCALE_VALUES; i++) {
        const uint32_t magnitude = values[i] & 0x7FFF, counted = magnitude > 0x7F80 ? 0 : magnitude;
        amax = counted > amax ? counted : amax;
    }
    const float found = ep_host_float(amax << 16);
    return found > EP_AMAX_MIN ? found : EP_AMAX_MIN;
}

/* The least power of two that is not below x, which is normal or infinite. */
static float power_above(float x)
{
    return ep_host_float((ep_host_bits(x) + 0x7FFFFF) & 0x7F800000);
}

static uint8_t to_e4m3(float x)
{
    const uint32_t bits = ep_host_bits(x), magnitude = bits & 0x7FFFFFFF, sign = bits >> 24 & 0x80;
    /* Below 2^-6 the sum with 2^14 is rounded where the subnormal values of E4M3 end, at 2^-9. */
    const uint32_t small = ep_host_bits(ep_host_float(magnitude < 0x3C800000 ? magnitude : 0) + 0x1p14f) - 0x46800000;
    const uint32_t normal = (magnitude - 0x3C000000 + 0x7FFFF + (magnitude >> 20 & 1)) >> 20;
    const uint32_t finite = magnitude < 0x3C800000 ? small : magnitude < 0x43E00000 ? normal : 0x7E;

    return magnitude > 0x7F800000 ? 0x7F : (uint8_t)(finite | sign);
}

/* Returns the scale. */
static float quantize_block(uint8_t *quantized, const uint8_t *rows, bool powers)
{
    uint16_t values[STRAIT_EP_SCALE_VALUES];

    memcpy(values, rows, sizeof(values));
    const float amax = amax_of(values), exact = amax * (1.0f / EP_E4M3_MAX);
    const float scale = powers ? power_above(exact) : exact;
    const float factor = powers ? 1.0f / scale : EP_E4M3_MAX / amax;
    for (uint32_t i = 0; i < STRAIT_EP_SCALE_VALUES; i++)
        quantized[i] = to_e4m3(factor * ep_host_float((uint32_t)values[i] << 16));
    return scale;
}

enum strait_status ep_host_quantize(void *context, const struct ep_quantize_args *args, struct CUstream_st *stream)
{
    const uint64_t blocks = (uint64_t)args->row_count * (args->values / STRAIT_EP_SCALE_VALUES);
    fenv_t before;

    (void)context;
    (void)stream;
    /* The caller's thread may round otherwise, or flush subnormal values to zero. */
    fegetenv(&before);
    fesetenv(FE_DFL_ENV);
    for (uint64_t i = 0; i < blocks; i++)
        args->scales[i] = quantize_block(args->quantized + i * STRAIT_EP_SCALE_VALUES,
                                         args->rows + i * STRAIT_EP_SCALE_VALUES * sizeof(uint16_t), args->powers);
    fesetenv(&before);
    return STRAIT_OK;
}
