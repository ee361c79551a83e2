/* Value loops of the typed modes (6 to 8), one table per variant: split FP16 and FP32 values into high halves, which
 * look like BF16, and low bits, and join them again. And those of mode 11: exponents and fields.
 * FORMAT.md, sections 3.2 and 3.4. */
#ifndef STRAIT_KERNELS_VALUE_OPS_H
#define STRAIT_KERNELS_VALUE_OPS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/part_fields.h"

/* The base is the smallest of the largest exponents of the parts of a block: the block's largest would be an outlier's.
 */
#define BASE_PART 256u

struct value_ops {
    /* The base of `count` BF16 values. */
    uint8_t (*find_base)(const uint8_t *values, uint32_t count);

    /* FP32: the low bits are the lower 16. `low_bits` NULL: all are zero and left out. */
    void (*split_fp32)(uint8_t *high_halves, uint8_t *low_bits, const uint8_t *src, uint32_t count);
    void (*join_fp32)(uint8_t *dst, const uint8_t *high_halves, const uint8_t *low_bits, uint32_t count);
    /* Whether the lower 16 bits of all values are zero. */
    bool (*are_high_halves)(const uint8_t *src, uint32_t count);

    /* FP16: the low bits are the lower 3, stored as a stream of two bits and one of one. Zeroes the unused bits of
     * both. */
    void (*split_fp16)(uint8_t *high_halves, uint8_t *twos, uint8_t *ones, const uint8_t *src, uint32_t count);
    /* False when an exponent is not that of any FP16 value. */
    bool (*join_fp16)(uint8_t *dst, const uint8_t *high_halves, const uint8_t *twos, const uint8_t *ones,
                      uint32_t count);

    /* Mode 11. Lists have a byte for each value. */

    /* The bits that values have in common. */
    struct part_bits (*find_bits)(const uint8_t *src, uint32_t count, enum strait_element element);
    /* FP16: writes a patch for each value whose `zeros` lowest bits are not all zero, up to PATCHES_MAX of them, in
     * order. Returns their number; above PATCHES_MAX: there are more. */
    uint32_t (*find_patches)(uint8_t *patches, const uint8_t *src, uint32_t count, uint32_t zeros);
    /* The exponents of values; of FP16, as BF16 has them. */
    void (*find_exponents)(uint8_t *exponents, const uint8_t *src, uint32_t count, enum strait_element element);
    /* Exponents of BF16 to those of FP16, in place. False when FP16 lacks one of them. */
    bool (*narrow_exponents)(uint8_t *list, uint32_t count);
    /* Takes fields apart: the first writes the pieces of 16 bits to the beginning of the streams and the lower bits of
     * each field to a list, the second the pieces of 8 bits to their stream. */
    void (*split_fields)(uint8_t *streams, uint8_t *low, const uint8_t *src, uint32_t count,
                         const struct part_fields *fields);
    void (*split_eights)(uint8_t *eights, const uint8_t *src, uint32_t count, const struct part_fields *fields);
    /* Joins fields and exponents, of FP16 its own, to values. */
    void (*join_fields)(uint8_t *dst, const uint8_t *streams, const uint8_t *exponents, const uint8_t *low,
                        uint32_t count, const struct part_fields *fields);
};

extern const struct value_ops values_scalar;
#ifdef STRAIT_X86
extern const struct value_ops values_avx2, values_avx512;
#endif

#endif
