/* Rankings that need no calibration: those of mode `base` (FORMAT.md, section 3.2), from the large exponents of a
 * block. */
#ifndef STRAIT_KERNELS_BLOCK_BASE_H
#define STRAIT_KERNELS_BLOCK_BASE_H

#include <stdint.h>

#include "kernels/codebook.h"

/* Makes the ranking of a base. */
void base_table(struct table *table, uint8_t base);

/* A cache of the tables of recent bases: the blocks of one tensor have few. Zero `known` before use; the tables
 * themselves need no initialization. */
#define BASE_TABLES 4u

struct base_tables {
    uint16_t known[BASE_TABLES]; /* base + 1 of each table; 0: none */
    struct table *tables;        /* BASE_TABLES of them */
};

static inline const struct table *base_tables_get(struct base_tables *bases, uint8_t base)
{
    unsigned at = base % BASE_TABLES;
    if (bases->known[at] != base + 1u) {
        base_table(&bases->tables[at], base);
        bases->known[at] = (uint16_t)(base + 1u);
    }
    return &bases->tables[at];
}

#endif
