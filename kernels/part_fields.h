/* Fields of mode 11 (FORMAT.md, section 3.4): which bits of sign and mantissa a block stores, and where its streams
 * have them. */
#ifndef STRAIT_KERNELS_PART_FIELDS_H
#define STRAIT_KERNELS_PART_FIELDS_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/codec.h>

/* Values that share a base, and the most bases that a block has. */
#define PART_VALUES 256u
#define PART_BASES  (STRAIT_BLOCK_VALUES / PART_VALUES)

/* Patches: the position of a value in its block and the lowest bits that its field lacks, two bytes each. */
#define PATCH_BYTES 4u
#define PATCHES_MAX 1024u

/* The exponent that changes places with 0 in parts of this base, so that zeros have one symbol by all larger ones; 0:
 * none, as the symbol of 0 has a rank anyway. */
static inline uint8_t part_far(uint8_t base)
{
    return base > 16 ? (uint8_t)(base + 128) : 0;
}

/* Bits of values: those that some value has, and those that every one has; of FP16 also those that some value has that
 * is not subnormal. */
struct part_bits {
    uint32_t any, all, normal;
};

/* What the signs of a block are. */
enum part_signs {
    PART_SIGNS_STORED = 0, /* in the fields */
    PART_SIGNS_CLEAR = 1,  /* no sign bit is set */
    PART_SIGNS_SET = 2,    /* every sign bit is set */
    PART_SIGNS = 3,
};

/* Bits of the mantissa, M. */
static inline uint32_t part_mantissa_bits(enum strait_element element)
{
    return element == STRAIT_ELEMENT_FP32 ? 23 : element == STRAIT_ELEMENT_FP16 ? 10 : 7;
}

/* The fields of a block. A value's sign and mantissa as one number, the sign above the mantissa, is
 *     eights << shift8 | sixteens << shift16 | low << zeros | set,
 * where `low` has the pieces of 4, 2 and 1 bits, the highest first; what there is no stream for is 0. */
struct part_fields {
    enum strait_element element;
    uint32_t zeros, width;                  /* z, f */
    uint32_t set;                           /* the sign, when every value has it */
    uint32_t shift8, shift16;               /* where the pieces of 8 and 16 bits lie */
    uint32_t low_bits;                      /* f mod 8 */
    uint32_t at16, at4, at2, at1, at8, end; /* offsets of the streams, one after another */
};

/* False when there are no such fields: more zero bits than a mantissa has, or other signs than the three. */
static inline bool part_fields_init(struct part_fields *fields, enum strait_element element, uint32_t zeros,
                                    uint32_t signs, uint32_t count)
{
    const uint32_t mantissa = part_mantissa_bits(element);
    if (zeros > mantissa || signs >= PART_SIGNS)
        return false;
    const uint32_t f = mantissa - zeros + (signs == PART_SIGNS_STORED), low = f % 8;
    fields->element = element;
    fields->zeros = zeros;
    fields->width = f;
    fields->set = signs == PART_SIGNS_SET ? 1u << mantissa : 0;
    fields->shift8 = zeros + (f & 8 ? f - 8 : 0);
    fields->shift16 = zeros + low;
    fields->low_bits = low;
    fields->at16 = 0;
    fields->at4 = fields->at16 + (f & 16 ? 2 * count : 0);
    fields->at2 = fields->at4 + (f & 4 ? (count + 1) / 2 : 0);
    fields->at1 = fields->at2 + (f & 2 ? (count + 3) / 4 : 0);
    fields->at8 = fields->at1 + (f & 1 ? (count + 7) / 8 : 0);
    fields->end = fields->at8 + (f & 8 ? count : 0);
    return true;
}

#endif
