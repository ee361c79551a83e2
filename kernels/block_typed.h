/*
 * Blocks of modes 6 to 8: values of any floating-point type in terms of the coders of BF16 ones. A value is taken apart
 * into its *half*, which looks like BF16, and a rest of low mantissa bits that goes into the block as it is. FORMAT.md,
 * section 3, says how.
 */
#ifndef STRAIT_KERNELS_BLOCK_TYPED_H
#define STRAIT_KERNELS_BLOCK_TYPED_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/block.h"
#include "kernels/block_base.h"

/* The last two bytes of a block: how its halves are coded, and from which base. */
#define TYPED_END_BYTES 2u

enum typed_coder {
    TYPED_TABLE_TIERS = 0, /* as `tiered` by the page's table */
    TYPED_BASE_TIERS = 1,  /* as `tiered` by the ranking of the base */
    TYPED_BASE_CODES = 2,  /* as `top16` by it */
    TYPED_BASE_LISTED = 3, /* as `top16` with escapes */
    TYPED_CODERS = 4,
};

/* What a call needs besides its stack. */
struct typed_scratch {
    _Alignas(64) uint8_t halves[BLOCK_BYTES];
    struct table base_tables[BASE_TABLES];
};

struct typed {
    const struct block_ops *blocks;
    struct typed_scratch *scratch;
    struct base_tables bases;
    enum strait_block_mode counted; /* out: what the last block counts as in the statistics */
};

static inline struct typed typed_init(const struct block_ops *blocks, struct typed_scratch *scratch)
{
    return (struct typed){.blocks = blocks, .scratch = scratch, .bases = {.tables = scratch->base_tables}};
}

/* The mode of a block of this element type and size that shall be coded by its base, or by a table; RAW when there is
 * none. */
enum strait_block_mode typed_mode(const struct typed *typed, enum strait_element element, bool by_base,
                                  const uint8_t *src, uint32_t size);

/* Whether values of this type are ever in blocks of this mode, 6 to 8. */
bool typed_mode_fits(unsigned mode, enum strait_element element);

/* The least bytes that such a block can take for `size` raw ones. */
uint32_t typed_least_bytes(unsigned mode, enum strait_element element, uint32_t size);

/* Codes a block to the stage, all of it: in whole units, its end included. Returns its bytes. `table` NULL: by base. */
size_t typed_encode(struct typed *typed, uint8_t *stage, struct block_bytes *block, enum strait_block_mode mode,
                    enum strait_element element, const struct table *table, uint32_t *escapes);

/* Decodes the `size` bytes of a block, at least typed_least_bytes of them. False when no encoder would have written
 * them. `table` NULL: the chunk has none. */
bool typed_decode(struct typed *typed, struct block_bytes *block, const uint8_t *src, size_t size,
                  enum strait_block_mode mode, enum strait_element element, const struct table *table,
                  uint32_t *escapes);

#endif
