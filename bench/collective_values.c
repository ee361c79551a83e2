#include "bench/collective_values.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/collective_kinds.h"
#include "bench/random.h"
#include "internal/bytes.h"
#include "tools/calibrate.h"
#include "tools/util.h"

#define RANDOM_BYTES ((uint64_t)16 << 20)
#define FP16_MAX     65504.0f

const unsigned collective_type_bytes[] = {2, 2, 4, 4};

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

static float float_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

uint16_t collective_bf16_of(float value)
{
    uint32_t bits = bits_of(value);

    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* The hardware's rounding in the addition: of numbers that FP16 holds with its full precision, and then of those at its
 * fixed steps of 2^-24. */
uint16_t collective_fp16_of(float value)
{
    uint32_t sign = bits_of(value) >> 16 & 0x8000, bits = bits_of(value) & 0x7FFFFFFF;

    if (bits >= bits_of(65520.0f))
        return (uint16_t)(sign | (bits > bits_of(INFINITY) ? 0x7E00 : 0x7C00));
    if (bits < bits_of(0x1p-14f))
        return (uint16_t)(sign | (uint32_t)lrintf(float_of(bits) * 0x1p24f));
    bits += 0xFFF + (bits >> 13 & 1);
    return (uint16_t)(sign | (bits - ((127u - 15u) << 23)) >> 13);
}

float collective_fp16_value(uint16_t bits)
{
    uint32_t exponent = bits >> 10 & 31, mantissa = bits & 0x3FF;
    float size = exponent == 0 ? (float)mantissa * 0x1p-24f : float_of((exponent + 127 - 15) << 23 | mantissa << 13);

    return (bits & 0x8000) != 0 ? -size : size;
}

/* ---- Patterns ---------------------------------------------------------------------------------------------------- */

/* Makes room for the pattern, which is filled once and then doubled. */
static bool allocate(struct collective_values *values, uint64_t period)
{
    values->period = period / 16 * 16;
    values->bytes = malloc(2 * period + 16);
    if (values->bytes == NULL)
        print_error(NULL, "out of memory");
    return values->bytes != NULL;
}

static bool complete(struct collective_values *values)
{
    memcpy(values->bytes + values->period, values->bytes, values->period);
    return true;
}

static bool fill_random(struct collective_values *values, enum collective_type type)
{
    uint64_t seed = 20 + type, mask = type >= COLLECTIVE_FP32 ? 0xBFFFFFFFBFFFFFFF : 0xBFFFBFFFBFFFBFFF;

    if (!allocate(values, RANDOM_BYTES))
        return false;
    if (type == COLLECTIVE_FP32_BF16)
        mask &= 0xFFFF0000FFFF0000;
    for (uint64_t at = 0; at < values->period; at += 8)
        store_le64(values->bytes + at, random_next(&seed) & mask);
    return complete(values);
}

/* Appends the values of a span, in the wanted type; returns their end. */
static uint8_t *append(uint8_t *dst, const struct span *span, enum collective_type type)
{
    unsigned bytes = collective_type_bytes[type];

    if (span->element != STRAIT_ELEMENT_BF16 || type == COLLECTIVE_BF16) {
        memcpy(dst, span->data, span->values * bytes);
        return dst + span->values * bytes;
    }
    for (uint64_t i = 0; i < span->values; i++, dst += bytes) {
        uint32_t wide = (uint32_t)load_le16(span->data + 2 * i) << 16;
        if (type == COLLECTIVE_FP16)
            store_le16(dst, collective_fp16_of(fmaxf(-FP16_MAX, fminf(float_of(wide), FP16_MAX))));
        else
            store_le32(dst, wide);
    }
    return dst;
}

static bool take(struct collective_values *values, enum collective_type type, const struct tensors *tensors)
{
    uint64_t count = 0;

    for (size_t i = 0; i < tensors->spans.count; i++)
        count += tensors->spans.list[i].values;
    if (count < 16) {
        print_error(NULL, "--input: too few values of type %s", collective_type_names[type]);
        return false;
    }
    if (!allocate(values, count * collective_type_bytes[type]))
        return false;
    uint8_t *end = values->bytes;
    for (size_t i = 0; i < tensors->spans.count; i++)
        end = append(end, &tensors->spans.list[i], type);
    return complete(values);
}

static bool is_wanted(const char *name, int data)
{
    return data == COLLECTIVE_TENSORS || collective_kind_of(name) == (enum collective_data)data;
}

/* Takes nothing when the files have no such values. */
static bool take_element(struct collective_values *values, enum collective_data data, enum collective_type type,
                         enum strait_element element, const struct sources *sources)
{
    struct tensors tensors;
    bool taken;

    if (!tensors_open_wanted(&tensors, sources->inputs, sources->input_count, 1u << element, is_wanted, (int)data))
        return false;
    taken = tensors.spans.count == 0 || take(values, type, &tensors);
    tensors_close(&tensors);
    return taken;
}

static bool fill_tensors(struct collective_values *values, enum collective_data data, enum collective_type type,
                         const struct sources *sources)
{
    static const enum strait_element first[] = {STRAIT_ELEMENT_BF16, STRAIT_ELEMENT_FP16, STRAIT_ELEMENT_FP32,
                                                STRAIT_ELEMENT_BF16};

    if (!take_element(values, data, type, first[type], sources))
        return false;
    return values->bytes != NULL || type != COLLECTIVE_FP16 ||
           take_element(values, data, type, STRAIT_ELEMENT_BF16, sources);
}

bool collective_values_init(struct collective_values *values, enum collective_data data, enum collective_type type,
                            const struct sources *sources)
{
    *values = (struct collective_values){0};
    return data == COLLECTIVE_RANDOM ? fill_random(values, type) : fill_tensors(values, data, type, sources);
}

void collective_values_fini(struct collective_values *values)
{
    free(values->bytes);
    *values = (struct collective_values){0};
}

uint64_t collective_values_start(const struct collective_values *values, unsigned rank, unsigned slot)
{
    return ((uint64_t)rank * 1237 + (uint64_t)slot * 311) * 4096 % values->period / 16 * 16;
}

/* ---- Sums -------------------------------------------------------------------------------------------------------- */

static float element_at(const struct collective_values *values, enum collective_type type, uint64_t at)
{
    const uint8_t *src = values->bytes + at % values->period;

    switch (type) {
    case COLLECTIVE_BF16:
        return float_of((uint32_t)load_le16(src) << 16);
    case COLLECTIVE_FP16:
        return collective_fp16_value(load_le16(src));
    default:
        return float_of(load_le32(src));
    }
}

void collective_values_sum(const struct collective_values *values, enum collective_type type, unsigned ranks,
                           unsigned slot, uint64_t index, uint8_t *dst)
{
    uint64_t offset = index * collective_type_bytes[type];
    float sum = element_at(values, type, collective_values_start(values, 0, slot) + offset);

    for (unsigned rank = 1; rank < ranks; rank++)
        sum += element_at(values, type, collective_values_start(values, rank, slot) + offset);
    if (type == COLLECTIVE_BF16)
        store_le16(dst, collective_bf16_of(sum));
    else if (type == COLLECTIVE_FP16)
        store_le16(dst, collective_fp16_of(sum));
    else
        store_le32(dst, bits_of(sum));
}
