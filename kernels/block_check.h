/* What every decoder has to check in a block's streams before it trusts them. */
#ifndef STRAIT_KERNELS_BLOCK_CHECK_H
#define STRAIT_KERNELS_BLOCK_CHECK_H

#include <stdbool.h>
#include <stddef.h>

#include "internal/bytes.h"
#include "kernels/block.h"

/* Whether the unused bits after the last of `items` items of 2 or 4 bits are zero. */
static inline bool is_padded(const uint8_t *stream, uint32_t items, unsigned width)
{
    unsigned used = items % (8 / width) * width;
    return used == 0 || stream[items / (8 / width)] >> used == 0;
}

/* Whether the bytes after the streams are zero. */
static inline bool all_zero(const uint8_t *src, size_t size)
{
    uint8_t any = 0;
    for (size_t i = 0; i < size; i++)
        any |= src[i];
    return any == 0;
}

/* The escape list of a `top16` block, read in order. */
struct listed_escapes {
    const uint8_t *positions, *exponents;
    uint32_t count;
};

static inline uint32_t listed_at(const struct listed_escapes *list, uint32_t k)
{
    return load_le16(list->positions + 2 * k);
}

/* Opens the list at src and checks all of it except the codes at its positions. Returns the list's bytes, 0 when no
 * encoder would write it. */
static inline size_t listed_open(struct listed_escapes *list, const uint8_t *src, size_t size, uint32_t n,
                                 const struct table *table)
{
    uint32_t count = size < 2 ? 0 : load_le16(src);
    if (count == 0 || count > n || size < 2 + 3 * (size_t)count)
        return 0;
    *list = (struct listed_escapes){.positions = src + 2, .exponents = src + 2 + 2 * count, .count = count};
    for (uint32_t k = 0; k < count; k++) {
        if (listed_at(list, k) >= n || (k > 0 && listed_at(list, k) <= listed_at(list, k - 1)) ||
            table->rank[list->exponents[k]] < TOP16_RANKS)
            return 0;
    }
    return 2 + 3 * (size_t)count;
}

#endif
