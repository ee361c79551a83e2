#include <stdlib.h>
#include <string.h>

#include <strait/codec.h>

#include "internal/bytes.h"

#define LANES 4 /* neighbours often share an exponent: with separate counters their increments are independent */

void strait_histogram_add(uint64_t counts[256], const void *values, size_t count)
{
    const uint8_t *src = values;
    uint64_t lanes[LANES][256] = {{0}};
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        uint64_t four = load_le64(src + 2 * i);
        lanes[0][(four >> 7) & 255]++;
        lanes[1][(four >> 23) & 255]++;
        lanes[2][(four >> 39) & 255]++;
        lanes[3][(four >> 55) & 255]++;
    }
    for (; i < count; i++)
        lanes[0][(load_le16(src + 2 * i) >> 7) & 255]++;
    for (unsigned e = 0; e < 256; e++)
        counts[e] += lanes[0][e] + lanes[1][e] + lanes[2][e] + lanes[3][e];
}

static void add_fp32(uint64_t counts[256], const uint8_t *src, size_t count)
{
    for (size_t i = 0; i < count; i++)
        counts[load_le32(src + 4 * i) >> 23 & 255]++;
}

/* Zero, infinity and NaN keep their places; the other exponents move up by the difference of the biases. */
static void add_fp16(uint64_t counts[256], const uint8_t *src, size_t count)
{
    uint64_t own[32] = {0};
    for (size_t i = 0; i < count; i++)
        own[load_le16(src + 2 * i) >> 10 & 31]++;
    counts[0] += own[0];
    counts[255] += own[31];
    for (unsigned e = 1; e < 31; e++)
        counts[e + 112] += own[e];
}

enum strait_status strait_histogram_add_values(uint64_t counts[256], enum strait_element element, const void *values,
                                               size_t count)
{
    switch (element) {
    case STRAIT_ELEMENT_BF16:
        strait_histogram_add(counts, values, count);
        return STRAIT_OK;
    case STRAIT_ELEMENT_FP16:
        add_fp16(counts, values, count);
        return STRAIT_OK;
    case STRAIT_ELEMENT_FP32:
        add_fp32(counts, values, count);
        return STRAIT_OK;
    default:
        return STRAIT_ERR_INVALID;
    }
}

struct counted {
    uint64_t count;
    uint8_t exponent;
};

static int by_falling_count(const void *a, const void *b)
{
    const struct counted *x = a, *y = b;
    if (x->count != y->count)
        return x->count > y->count ? -1 : 1;
    return (int)x->exponent - (int)y->exponent;
}

void strait_histogram_rank(uint8_t ranking[256], const uint64_t counts[256])
{
    struct counted order[256];
    for (unsigned e = 0; e < 256; e++)
        order[e] = (struct counted){.count = counts[e], .exponent = (uint8_t)e};
    qsort(order, 256, sizeof(order[0]), by_falling_count);
    for (unsigned r = 0; r < 256; r++)
        ranking[r] = order[r].exponent;
}
