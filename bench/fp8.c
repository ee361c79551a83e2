/* FP8 values for the codec's bench, from BF16 tensors, and the compression that their exponents allow. */
#include <math.h>
#include <string.h>

#include "bench/codec.h"
#include "internal/bytes.h"

/* Where the parts of a value lie, and the largest finite one. */
static const struct fp8_type {
    unsigned mantissa_bits, bias;
    float largest;
} e4m3 = {3, 7, 448.0f}, e5m2 = {2, 15, 57344.0f};

static const struct fp8_type *type_of(enum strait_element element)
{
    return element == STRAIT_ELEMENT_FP8_E5M2 ? &e5m2 : &e4m3;
}

static float bf16_value(const uint8_t *src)
{
    uint32_t bits = (uint32_t)load_le16(src) << 16;
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* The nearest value, of two equally near ones the even one. No size is above the type's largest. */
static uint8_t nearest(float value, const struct fp8_type *type)
{
    const unsigned shift = 23 - type->mantissa_bits;
    const int least_exponent = 1 - (int)type->bias;
    float size = fminf(fabsf(value), type->largest);
    uint32_t bits, sign = signbit(value) ? 0x80 : 0;

    if (size < ldexpf(1, least_exponent)) /* subnormal: a multiple of the smallest */
        return (uint8_t)(sign | (uint32_t)lrintf(ldexpf(size, (int)type->mantissa_bits - least_exponent)));
    memcpy(&bits, &size, sizeof(bits));
    bits += (1u << (shift - 1)) - 1 + (bits >> shift & 1);
    return (uint8_t)(sign | ((bits >> shift) - ((127 - type->bias) << type->mantissa_bits)));
}

void fp8_cast(uint8_t *dst, const uint8_t *src, uint64_t count, enum strait_element element)
{
    const struct fp8_type *type = type_of(element);
    float largest = 0;

    for (uint64_t i = 0; i < count; i++)
        largest = fmaxf(largest, fabsf(bf16_value(src + 2 * i)));
    for (uint64_t i = 0; i < count; i++)
        dst[i] = nearest(bf16_value(src + 2 * i) * (type->largest / largest), type);
}

double entropy_bits(const uint64_t counts[256], double count)
{
    double bits = 0;

    for (unsigned e = 0; e < 256; e++)
        if (counts[e] > 0)
            bits += (double)counts[e] * log2(count / (double)counts[e]);
    return bits;
}

void fp8_measure(const struct data *data, struct data_figures *figures)
{
    const unsigned mantissa_bits = type_of(data->element)->mantissa_bits;
    uint64_t all[256] = {0};

    *figures = (struct data_figures){0};
    for (uint32_t s = 0; s < data->plan.segment_count; s++) {
        const struct segment *segment = &data->plan.segments[s];
        figures->classes += segment->begin < data->period;
        uint64_t counts[256] = {0};
        for (uint64_t i = segment->begin; i < segment->end; i++)
            counts[(data->bytes[i] & 0x7f) >> mantissa_bits]++;
        for (unsigned e = 0; e < 256; e++)
            all[e] += counts[e];
        figures->class_bits += entropy_bits(counts, (double)(segment->end - segment->begin));
    }
    figures->all_bits = entropy_bits(all, (double)data->size) / (double)data->size;
    figures->class_bits /= (double)data->size;
}

double fp8_limit(enum strait_element element, double exponent_bits)
{
    return 8 / (1 + type_of(element)->mantissa_bits + exponent_bits);
}
