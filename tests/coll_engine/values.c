#include "tests/coll_engine/values.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collective/api.h"
#include "collective/reduce.h"
#include "tests/support.h"

size_t element_bytes(int type)
{
    return type == COLL_FP32 || type == COLL_INT32 ? 4 : type == COLL_UINT8 ? 1 : 2;
}

const char *type_name(int type)
{
    return type == COLL_BF16 ? "bf16" : type == COLL_FP16 ? "fp16" : type == COLL_FP32 ? "fp32" : "other";
}

static inline uint64_t draw(uint64_t *state)
{
    uint64_t x = *state += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

/* Nearly normal: the sum of four numbers that are spread evenly. */
static uint32_t normal(int type, uint64_t random)
{
    int64_t sum = 0;
    for (unsigned i = 0; i < 4; i++)
        sum += (int64_t)(random >> 16 * i & 0xffff) - 0x8000;
    const double x = ((double)sum + 0.3) * 0x1p-18; /* 0.3: not rounder than others */
    const enum coll_reduce_type to = type == COLL_BF16   ? COLL_REDUCE_BF16
                                     : type == COLL_FP16 ? COLL_REDUCE_FP16
                                                         : COLL_REDUCE_FP32;
    return coll_reduce_narrow(to, x);
}

/* Values are drawn from a table, as computing each one would take most of the time of many tests. */
enum { DRAWN = 1 << 12 };
static uint32_t drawn[COLL_TYPES][DRAWN];

__attribute__((constructor)) static void draw_table(void)
{
    static const int types[] = {COLL_BF16, COLL_FP16, COLL_FP32};
    uint64_t seed = 1;
    for (size_t i = 0; i < COUNT(types); i++)
        for (unsigned n = 0; n < DRAWN; n++)
            drawn[types[i]][n] = normal(types[i], draw(&seed));
}

static inline uint32_t value(int type, enum values kind, uint64_t random)
{
    if (kind == VALUES_NOISE)
        return (uint32_t)random;
    const uint32_t bits = drawn[type][random >> 32 & (DRAWN - 1)];
    if (type != COLL_FP32)
        return bits;
    return kind == VALUES_WIDENED ? bits & 0xffff0000 : bits ^ (uint32_t)(random & 0xfff);
}

/* Of the next values, so many at a time. */
enum { CHUNK = 1024 };
union chunk {
    uint16_t halves[CHUNK];
    uint32_t words[CHUNK];
    uint8_t bytes[CHUNK * 4];
};

UNWATCHED static size_t draw_chunk(union chunk *chunk, int type, size_t count, enum values kind, uint64_t *seed)
{
    const size_t size = element_bytes(type), some = count < CHUNK ? count : CHUNK;
    for (size_t i = 0; i < some; i++) {
        const uint32_t bits = value(type, kind, draw(seed));
        if (size == 2)
            chunk->halves[i] = (uint16_t)bits;
        else if (size == 4)
            chunk->words[i] = bits;
        else
            chunk->bytes[i] = (uint8_t)bits;
    }
    return some * size;
}

void values_fill(void *values, int type, size_t count, enum values kind, uint64_t seed)
{
    union chunk chunk;
    for (size_t done = 0; done < count; done += CHUNK) {
        const size_t bytes = draw_chunk(&chunk, type, count - done, kind, &seed);
        memcpy((uint8_t *)values + done * element_bytes(type), chunk.bytes, bytes);
    }
}

static void tell_difference(const uint8_t *is, const uint8_t *expected, size_t size, size_t first, size_t count)
{
    size_t i = 0;
    while (memcmp(is + i * size, expected + i * size, size) == 0)
        i++;
    fprintf(stderr, "value %zu of %zu is ", first + i, count);
    for (size_t byte = size; byte > 0; byte--)
        fprintf(stderr, "%02x", is[i * size + byte - 1]);
    fprintf(stderr, ", not ");
    for (size_t byte = size; byte > 0; byte--)
        fprintf(stderr, "%02x", expected[i * size + byte - 1]);
    fprintf(stderr, "\n");
}

bool values_are(const void *values, int type, size_t count, enum values kind, uint64_t seed)
{
    const size_t size = element_bytes(type);
    union chunk chunk;
    for (size_t done = 0; done < count; done += CHUNK) {
        const uint8_t *is = (const uint8_t *)values + done * size;
        const size_t bytes = draw_chunk(&chunk, type, count - done, kind, &seed);
        if (memcmp(is, chunk.bytes, bytes) == 0)
            continue;
        tell_difference(is, chunk.bytes, size, done, count);
        return false;
    }
    return true;
}

void parts_fill(void *values, int type, size_t count, int parts, enum values kind, uint64_t seed, uint64_t step)
{
    for (int part = 0; part < parts; part++)
        values_fill((uint8_t *)values + (size_t)part * count * element_bytes(type), type, count, kind,
                    seed + (uint64_t)part * step);
}

bool parts_are(const void *values, int type, size_t count, int parts, enum values kind, uint64_t seed, uint64_t step)
{
    bool same = true;
    for (int part = 0; part < parts; part++)
        same &= values_are((const uint8_t *)values + (size_t)part * count * element_bytes(type), type, count, kind,
                           seed + (uint64_t)part * step);
    return same;
}

void values_fill_whole(float *values, size_t count, bool fits, uint64_t seed)
{
    for (size_t i = 0; i < count; i++) {
        const uint64_t random = draw(&seed);
        values[i] = (float)(int)(random & 255) - 128;
        if (!fits)
            values[i] += (float)(random >> 40) * 0x1p-24f;
    }
}

bool values_are_sums(const float *sums, size_t count, int ranks, bool fits, uint64_t seed)
{
    float *expected = calloc(2 * count, sizeof(*expected)), *one = expected + count;
    if (expected == NULL)
        return false;
    for (int from = 0; from < ranks; from++) {
        values_fill_whole(one, count, fits || from > 0, seed + (uint64_t)from);
        for (size_t i = 0; i < count; i++)
            expected[i] += one[i];
    }
    const bool same = memcmp(sums, expected, count * sizeof(*sums)) == 0;
    free(expected);
    return same;
}
