/* Rankings that need no calibration: those of `base` (FORMAT.md, section 3.2), by the large exponents of a block. */
#ifndef STRAIT_KERNELS_BLOCK_BASE_H
#define STRAIT_KERNELS_BLOCK_BASE_H

#include <stdint.h>

#include "kernels/codebook.h"

/* A block's largest exponent would be that of its outliers: the base is the smallest of the largest ones of its parts.
 */
#define BASE_PART 256u

/* The base of `count` values in BF16. */
uint8_t base_find(const uint8_t *values, uint32_t count);

/* The ranking of a base. */
void base_table(struct table *table, uint8_t base);

#endif
