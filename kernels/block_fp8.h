/* Mode 10, FP8: exponents in tiers by a ranking that the block carries, sign and mantissa unchanged. FORMAT.md, section
 * 3.3. */
#ifndef STRAIT_KERNELS_BLOCK_FP8_H
#define STRAIT_KERNELS_BLOCK_FP8_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/block.h"

#define FP8_RANKS      9u                           /* three tiers of three; also the bytes at the end of a block */
#define FP8_LIST_BYTES (BLOCK_BYTES + VECTOR_BYTES) /* a list of the exponents of a block */

static inline bool is_fp8(enum strait_element element)
{
    return element == STRAIT_ELEMENT_FP8_E4M3 || element == STRAIT_ELEMENT_FP8_E5M2;
}

/* The fewest bytes that such a block can take for `size` raw ones. */
uint32_t fp8_least_bytes(enum strait_element element, uint32_t size);

/* Codes a whole block to the stage: whole units, including the ranking. Returns its bytes. `list`: FP8_LIST_BYTES of
 * scratch. *escapes counts, in pairs, the values whose exponents have no rank. */
size_t fp8_encode(const struct block_ops *blocks, uint8_t *list, uint8_t *stage, struct block_bytes *block,
                  enum strait_element element, uint32_t *escapes);

/* Decodes the `size` bytes of a block, at least fp8_least_bytes of them. False when no encoder would have written them.
 */
bool fp8_decode(const struct block_ops *blocks, uint8_t *list, struct block_bytes *block, const uint8_t *src,
                size_t size, enum strait_element element, uint32_t *escapes);

#endif
