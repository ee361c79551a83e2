#include <string.h>

#include "kernels/block_fp8.h"

/* ---- Layout ----------------------------------------------------------------------------------------------------- */

static uint32_t rest_bytes(enum strait_element element, uint32_t count)
{
    return element == STRAIT_ELEMENT_FP8_E5M2 ? pack_bytes_2bit(count) + pack_bytes_1bit(count)
                                              : pack_bytes_4bit(count);
}

/* Exponents of the type. */
static uint32_t exponent_count(enum strait_element element)
{
    return element == STRAIT_ELEMENT_FP8_E5M2 ? 32 : 16;
}

/* Bytes of `count` exponents without a rank. */
static uint32_t last_tier_bytes(enum strait_element element, uint32_t count)
{
    return pack_bytes_4bit(count) + (element == STRAIT_ELEMENT_FP8_E5M2 ? pack_bytes_1bit(count) : 0);
}

uint32_t fp8_least_bytes(enum strait_element element, uint32_t size)
{
    return rest_bytes(element, size) + pack_bytes_2bit(size) + FP8_RANKS;
}

/* ---- Rankings --------------------------------------------------------------------------------------------------- */

enum { SAMPLE_GROUP = 64, SAMPLE_PIECE = 8, EXPONENTS_MAX = 32, NO_RANK = 255 };

/* Counts the exponents of the sample: a piece of each group, at places that no period of the values hits. */
static void count_sample(uint32_t counts[EXPONENTS_MAX], const uint8_t *exponents, uint32_t count)
{
    uint32_t parts[4][EXPONENTS_MAX] = {{0}}; /* an increment need not wait for the one before */
    for (uint32_t g = 0; g * SAMPLE_GROUP < count; g++) {
        uint32_t from = g * SAMPLE_GROUP + (g + g / 8 + g / 64) % 8 * SAMPLE_PIECE;
        if (from + SAMPLE_PIECE <= count) {
            for (uint32_t i = 0; i < SAMPLE_PIECE; i++)
                parts[i % 4][exponents[from + i]]++;
        } else {
            for (uint32_t i = from; i < count; i++)
                parts[0][exponents[i]]++;
        }
    }
    for (unsigned e = 0; e < EXPONENTS_MAX; e++)
        counts[e] = parts[0][e] + parts[1][e] + parts[2][e] + parts[3][e];
}

/* The most frequent exponents of the sample of a list, in falling order; the smaller of two equally frequent ones comes
 * first. */
static void rank_exponents(uint8_t ranking[FP8_RANKS], const uint8_t *list, uint32_t count, uint32_t exponents)
{
    uint32_t counts[EXPONENTS_MAX], keys[EXPONENTS_MAX]; /* keys order by count, then by exponent */
    count_sample(counts, list, count);
    for (uint32_t e = 0; e < exponents; e++)
        keys[e] = (counts[e] + 1) * EXPONENTS_MAX - e;
    for (unsigned r = 0; r < FP8_RANKS; r++) {
        uint32_t best = 0;
        for (uint32_t e = 1; e < exponents; e++)
            best = keys[e] > keys[best] ? e : best;
        ranking[r] = (uint8_t)best;
        keys[best] = 0;
    }
}

/* False when these are not different exponents of the type. */
static bool make_table(struct table *table, const uint8_t ranking[FP8_RANKS], uint32_t exponents)
{
    memset(table->rank, NO_RANK, sizeof(table->rank));
    memset(table->strays, 0, sizeof(table->strays));
    table->window = table->stray_count = 0; /* the window holds all exponents */
    for (unsigned r = 0; r < FP8_RANKS; r++) {
        if (ranking[r] >= exponents || table->rank[ranking[r]] != NO_RANK)
            return false;
        table->rank[ranking[r]] = (uint8_t)r;
        table->exponent[r] = ranking[r];
    }
    return true;
}

/* ---- The last tier ---------------------------------------------------------------------------------------------- */

static void pack_last_tier(uint8_t *stream, const uint8_t *exponents, uint32_t count, enum strait_element element)
{
    uint8_t *upper = stream + pack_bytes_4bit(count);
    memset(stream, 0, last_tier_bytes(element, count));
    for (uint32_t i = 0; i < count; i++) {
        stream[i / 2] |= (uint8_t)((exponents[i] & 15) << i % 2 * 4);
        if (element == STRAIT_ELEMENT_FP8_E5M2)
            upper[i / 8] |= (uint8_t)(exponents[i] >> 4 << i % 8);
    }
}

/* False when an exponent has a rank, or unused bits are not zero. */
static bool unpack_last_tier(uint8_t *exponents, const uint8_t *stream, uint32_t count, enum strait_element element,
                             const struct table *table)
{
    const uint8_t *upper = stream + pack_bytes_4bit(count);
    bool ranked = false;
    for (uint32_t i = 0; i < count; i++) {
        exponents[i] = stream[i / 2] >> i % 2 * 4 & 15;
        if (element == STRAIT_ELEMENT_FP8_E5M2)
            exponents[i] |= (uint8_t)((upper[i / 8] >> i % 8 & 1) << 4);
        ranked |= table->rank[exponents[i]] != NO_RANK;
    }
    return !ranked && is_padded(stream, count, 4) && (element != STRAIT_ELEMENT_FP8_E5M2 || is_padded(upper, count, 1));
}

/* ---- Blocks ----------------------------------------------------------------------------------------------------- */

size_t fp8_encode(const struct block_ops *blocks, uint8_t *list, uint8_t *stage, struct block_bytes *block,
                  enum strait_element element, uint32_t *escapes)
{
    const uint32_t count = block->size, rests = rest_bytes(element, count);
    uint32_t items = count;
    uint8_t ranking[FP8_RANKS], *at = stage + rests;
    struct table table;
    blocks->split_fp8(list, stage, block, element == STRAIT_ELEMENT_FP8_E5M2);
    rank_exponents(ranking, list, count, exponent_count(element));
    make_table(&table, ranking, exponent_count(element));
    for (uint8_t first = 0; first < FP8_RANKS; first += 3) {
        uint32_t on = blocks->encode_tier(at, list, items, &table, first);
        at += pack_bytes_2bit(items);
        items = on;
    }
    pack_last_tier(at, list, items, element);
    *escapes = (items + 1) / 2;
    size_t used = (size_t)(at - stage) + last_tier_bytes(element, items);
    size_t size = CHUNK_UNIT * (size_t)units(used + FP8_RANKS);
    memset(stage + used, 0, size - used);
    memcpy(stage + size - FP8_RANKS, ranking, FP8_RANKS);
    return size;
}

/* The tiers of a block: where each begins in their copy, and its items. The last ends where the next would begin. */
struct tiers {
    uint32_t at[5], items[4];
};

/* Finds the tiers in their `size` bytes. False when they do not lie inside, or unused bits are not zero. */
static bool find_tiers(struct tiers *tiers, const struct block_ops *blocks, const uint8_t *src, size_t size,
                       uint32_t count, enum strait_element element)
{
    *tiers = (struct tiers){.items = {count}};
    for (unsigned k = 0; k < 3; k++) {
        const uint8_t *stream = src + tiers->at[k];
        uint32_t items = tiers->items[k];
        tiers->at[k + 1] = tiers->at[k] + pack_bytes_2bit(items);
        if (tiers->at[k + 1] > size || !is_padded(stream, items, 2))
            return false;
        tiers->items[k + 1] = blocks->count_threes(stream, items);
    }
    tiers->at[4] = tiers->at[3] + last_tier_bytes(element, tiers->items[3]);
    return tiers->at[4] <= size;
}

/* Decodes the exponents of a block to the list, from the `size` bytes of its tiers and the zeroes after these, which
 * end the block. */
static bool decode_exponents(const struct block_ops *blocks, uint8_t *list, uint32_t count, const uint8_t *src,
                             size_t size, enum strait_element element, const struct table *table, uint32_t *escapes)
{
    uint8_t copy[FP8_LIST_BYTES], odd[FP8_LIST_BYTES], even[FP8_LIST_BYTES]; /* the copy: src may change meanwhile */
    struct tiers tiers;
    memcpy(copy, src, size);
    memset(copy + size, 0, VECTOR_BYTES);
    if (!find_tiers(&tiers, blocks, copy, size, count, element) || !all_zero(copy + tiers.at[4], size - tiers.at[4]) ||
        !unpack_last_tier(even, copy + tiers.at[3], tiers.items[3], element, table))
        return false;
    blocks->decode_tier(odd, copy + tiers.at[2], tiers.items[2], even, table, 6);
    blocks->decode_tier(even, copy + tiers.at[1], tiers.items[1], odd, table, 3);
    blocks->decode_tier(list, copy, count, even, table, 0);
    *escapes = (tiers.items[3] + 1) / 2;
    return size - tiers.at[4] < CHUNK_UNIT;
}

bool fp8_decode(const struct block_ops *blocks, uint8_t *list, struct block_bytes *block, const uint8_t *src,
                size_t size, enum strait_element element, uint32_t *escapes)
{
    const uint32_t count = block->size, rests = rest_bytes(element, count);
    const bool e5m2 = element == STRAIT_ELEMENT_FP8_E5M2;
    uint8_t ranking[FP8_RANKS], right[FP8_RANKS];
    struct table table;
    memcpy(ranking, src + size - FP8_RANKS, FP8_RANKS);
    if (!make_table(&table, ranking, exponent_count(element)) ||
        !decode_exponents(blocks, list, count, src + rests, size - rests - FP8_RANKS, element, &table, escapes) ||
        !is_padded(src, count, e5m2 ? 2 : 4) || (e5m2 && !is_padded(src + pack_bytes_2bit(count), count, 1)))
        return false;
    rank_exponents(right, list, count, exponent_count(element));
    if (memcmp(ranking, right, FP8_RANKS) != 0)
        return false;
    blocks->join_fp8(block, list, src, e5m2);
    block->maybe_const = true;
    return true;
}
