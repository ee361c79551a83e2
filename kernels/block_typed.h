/*
 * Typed modes (6 to 8, 10 and 11). In modes 6 to 8 the coders of BF16 values are applied to any floating-point type: a
 * value is split into its high half, which looks like BF16, and low mantissa bits, which are stored unchanged.
 * FORMAT.md, section 3, which calls them *half* and *rest*, says how. Mode 10 is that of block_fp8.h, mode 11
 * that of block_parts.h.
 */
#ifndef STRAIT_KERNELS_BLOCK_TYPED_H
#define STRAIT_KERNELS_BLOCK_TYPED_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/block_fp8.h"
#include "kernels/block_parts.h"

/* Cache of the tables of recent bases: the blocks of one tensor have few. Zero `known` before use; the tables
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

/* The last two bytes of a block: how its high halves are coded, and their base. */
#define TYPED_END_BYTES 2u

enum typed_coder {
    TYPED_TABLE_TIERS = 0, /* as `tiered` by the page's table */
    TYPED_BASE_TIERS = 1,  /* as `tiered` by the ranking of the base */
    TYPED_BASE_CODES = 2,  /* as `top16` by the ranking of the base */
    TYPED_BASE_LISTED = 3, /* as `top16` by the ranking of the base, with escapes */
    TYPED_CODERS = 4,
};

/* Memory that a call needs besides its stack. */
struct typed_scratch {
    _Alignas(64) uint8_t high_halves[FP8_LIST_BYTES]; /* or the exponents of FP8 values */
    struct table base_tables[BASE_TABLES];
    struct parts_scratch parts;
};

struct typed {
    const struct block_ops *blocks;
    struct typed_scratch *scratch;
    struct base_tables bases;
    bool ranks_symbols;                /* the ranking of symbols has been made */
    enum strait_block_mode stats_mode; /* out: the mode under which statistics count the last block */
};

static inline struct typed typed_init(const struct block_ops *blocks, struct typed_scratch *scratch)
{
    return (struct typed){.blocks = blocks, .scratch = scratch, .bases = {.tables = scratch->base_tables}};
}

/* The mode of a block of this element type and size when BASE, SPLIT or PARTS is asked for; RAW when there is none. */
enum strait_block_mode typed_mode(const struct typed *typed, enum strait_element element, enum strait_mode asked,
                                  const uint8_t *src, uint32_t size);

/* Whether blocks of this typed mode can hold values of this type. */
bool typed_mode_fits(unsigned mode, enum strait_element element);

/* The fewest bytes that such a block can take for `size` raw ones. */
uint32_t typed_least_bytes(unsigned mode, enum strait_element element, uint32_t size);

/* Codes a whole block to the stage: whole units, including the end of the block. Returns its bytes. `table` NULL: by
 * base, or bases. */
size_t typed_encode(struct typed *typed, uint8_t *stage, struct block_bytes *block, enum strait_block_mode mode,
                    enum strait_element element, const struct table *table, uint32_t *escapes);

/* Decodes the `size` bytes of a block, at least typed_least_bytes of them. False when no encoder would have written
 * them. `table` NULL: the chunk has no table. */
bool typed_decode(struct typed *typed, struct block_bytes *block, const uint8_t *src, size_t size,
                  enum strait_block_mode mode, enum strait_element element, const struct table *table,
                  uint32_t *escapes);

#endif
