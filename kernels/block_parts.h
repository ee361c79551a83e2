/* Mode 11: values as exponents, relative to a base for each 256 of them, and fields of those bits of sign and mantissa
 * that change within the block; FP16 values with bits that all others lack have patches. FORMAT.md, section 3.4. */
#ifndef STRAIT_KERNELS_BLOCK_PARTS_H
#define STRAIT_KERNELS_BLOCK_PARTS_H

#include "kernels/block.h"

#define PARTS_LIST_BYTES (STRAIT_BLOCK_VALUES + VECTOR_BYTES) /* a byte for each value */

/* Memory that a call needs besides its stack. */
struct parts_scratch {
    _Alignas(64) uint8_t exponents[PARTS_LIST_BYTES]; /* or symbols */
    _Alignas(64) uint8_t low[PARTS_LIST_BYTES];       /* pieces of less than 8 bits; symbols, beside exponents */
    uint8_t patches[PATCH_BYTES * PATCHES_MAX];
    struct table symbols; /* the ranking of symbols */
};

/* The fewest bytes that such a block can take for `size` raw ones. */
uint32_t parts_least_bytes(enum strait_element element, uint32_t size);

/* Codes a whole block to the stage: whole units, including patches, bases, form and coder. Returns its bytes. `table`
 * NULL: there is no codebook. *escapes counts symbols or exponents of the last tier. */
size_t parts_encode(const struct block_ops *blocks, struct parts_scratch *scratch, uint8_t *stage,
                    struct block_bytes *block, enum strait_element element, const struct table *table,
                    uint32_t *escapes);

/* Decodes the `size` bytes of a block, at least parts_least_bytes of them. False when they are not well formed. `table`
 * NULL: the chunk names no codebook. */
bool parts_decode(const struct block_ops *blocks, struct parts_scratch *scratch, struct block_bytes *block,
                  const uint8_t *src, size_t size, enum strait_element element, const struct table *table,
                  uint32_t *escapes);

#endif
