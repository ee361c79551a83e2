/* The order-independent 64-bit sum of FORMAT.md, section 5: constants, seed, and the scalar loop whose results the
 * vector variants reproduce. */
#ifndef STRAIT_KERNELS_SUM_H
#define STRAIT_KERNELS_SUM_H

#include <stddef.h>
#include <stdint.h>

#define SUM_LANES 16 /* words that share a key step */

extern const uint32_t sum_keys[SUM_LANES];
extern const uint32_t sum_steps[2];

uint64_t sum_seed(uint64_t a, uint64_t b, uint64_t c);

/* Seeds of the sum of a page and of that of the metadata. */
static inline uint64_t sum_seed_page(uint32_t page_bytes, uint32_t index, uint32_t table)
{
    return sum_seed(page_bytes, index, table);
}

static inline uint64_t sum_seed_metadata(uint32_t metadata_bytes)
{
    return sum_seed(metadata_bytes, UINT32_MAX, 65535);
}

/* Sum of the terms of the `size` bytes at src; their first 32-bit word is number `word` of the page, a multiple of
 * SUM_LANES. */
uint64_t sum_terms(const uint8_t *src, size_t size, uint32_t word);

#endif
