/* Loops of mode 11 over values, in plain C that compilers vectorize for their target; a part of value_loops.h. */
#ifndef STRAIT_KERNELS_PART_LOOPS_H
#define STRAIT_KERNELS_PART_LOOPS_H

#include <string.h>

#include "internal/bytes.h"
#include "kernels/value_ops.h"

/* ---- Bits that change ---- */

static struct part_bits find_bits32(const uint8_t *restrict src, uint32_t count)
{
    struct part_bits bits = {0, UINT32_MAX, 0};
    for (size_t i = 0; i < count; i++) {
        bits.any |= load_le32(src + 4 * i);
        bits.all &= load_le32(src + 4 * i);
    }
    return bits;
}

static inline struct part_bits find_bits16(const uint8_t *restrict src, uint32_t count, bool fp16)
{
    uint16_t any = 0, all = UINT16_MAX, normal = 0;
    for (size_t i = 0; i < count; i++) {
        const uint16_t value = load_le16(src + 2 * i);
        any |= value;
        all &= value;
        if (fp16)
            normal |= (value & 0x7c00) != 0 ? value : 0;
    }
    return (struct part_bits){any, all, normal};
}

static struct part_bits find_bits(const uint8_t *src, uint32_t count, enum strait_element element)
{
    if (element == STRAIT_ELEMENT_FP32)
        return find_bits32(src, count);
    return element == STRAIT_ELEMENT_FP16 ? find_bits16(src, count, true) : find_bits16(src, count, false);
}

/* Values are looked at one by one where some of a group have such bits. */
static uint32_t find_patches(uint8_t *restrict patches, const uint8_t *restrict src, uint32_t count, uint32_t zeros)
{
    enum { GROUP = 64 };
    const uint16_t mask = (uint16_t)((1u << zeros) - 1);
    uint32_t found = 0;
    for (uint32_t from = 0; from < count && found <= PATCHES_MAX; from += GROUP) {
        const uint32_t to = count - from < GROUP ? count : from + GROUP;
        uint16_t some = 0;
        for (size_t i = from; i < to; i++)
            some |= load_le16(src + 2 * i);
        for (size_t i = from; (some & mask) != 0 && i < to && found <= PATCHES_MAX; i++) {
            const uint16_t lowest = load_le16(src + 2 * i) & mask;
            if (lowest == 0)
                continue;
            if (found < PATCHES_MAX) {
                store_le16(patches + PATCH_BYTES * found, (uint16_t)i);
                store_le16(patches + PATCH_BYTES * found + 2, lowest);
            }
            found++;
        }
    }
    return found;
}

/* ---- Exponents ---- */

static void find_exponents(uint8_t *restrict exponents, const uint8_t *restrict src, uint32_t count,
                           enum strait_element element)
{
    switch (element) {
    case STRAIT_ELEMENT_FP32:
        for (size_t i = 0; i < count; i++)
            exponents[i] = (uint8_t)(load_le32(src + 4 * i) >> 23);
        break;
    case STRAIT_ELEMENT_FP16:
        for (size_t i = 0; i < count; i++) {
            uint8_t exponent = load_le16(src + 2 * i) >> 10 & 31;
            uint8_t wide = (uint8_t)(exponent + 112);
            wide = exponent == 31 ? 255 : wide;
            exponents[i] = exponent == 0 ? 0 : wide;
        }
        break;
    default:
        for (size_t i = 0; i < count; i++)
            exponents[i] = (uint8_t)(load_le16(src + 2 * i) >> 7);
    }
}

static bool narrow_exponents(uint8_t *restrict list, uint32_t count)
{
    uint8_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        uint8_t wide = list[i], exponent = (uint8_t)(wide - 112);
        bool inner = (uint8_t)(exponent - 1) < 30;
        bad |= !inner && wide != 0 && wide != 255;
        exponent = wide == 0 ? 0 : exponent;
        list[i] = wide == 255 ? 31 : exponent;
    }
    return bad == 0;
}

/* ---- Fields ---- */

/* Sign and mantissa of an FP32 value as one number. */
static inline uint32_t compact32(uint32_t value)
{
    return (value & 0x7fffff) | (value >> 8 & 0x800000);
}

static inline uint32_t expand32(uint32_t compact, uint8_t exponent)
{
    return (compact & 0x800000) << 8 | (uint32_t)exponent << 23 | (compact & 0x7fffff);
}

static inline void words_of32(uint8_t *restrict dst, const uint8_t *restrict src, uint32_t count, uint32_t shift)
{
    for (size_t i = 0; i < count; i++)
        store_le16(dst + 2 * i, (uint16_t)(compact32(load_le32(src + 4 * i)) >> shift));
}

/* Sign and mantissa of a value of 16 bits, whose mantissa has `bits`. */
static inline uint16_t compact16(uint16_t value, uint32_t bits)
{
    return (uint16_t)((value & ((1u << bits) - 1)) | (value >> (15 - bits) & 1u << bits));
}

static inline uint16_t expand16(uint32_t compact, uint8_t exponent, uint32_t bits)
{
    return (uint16_t)((compact & 1u << bits) << (15 - bits) | (uint32_t)exponent << bits |
                      (compact & ((1u << bits) - 1)));
}

static inline void bytes_of32(uint8_t *restrict dst, const uint8_t *restrict src, uint32_t count, uint32_t shift,
                              uint8_t mask)
{
    for (size_t i = 0; i < count; i++)
        dst[i] = (uint8_t)(compact32(load_le32(src + 4 * i)) >> shift) & mask;
}

static inline void bytes_of16(uint8_t *restrict dst, const uint8_t *restrict src, uint32_t count, uint32_t bits,
                              uint32_t shift, uint8_t mask)
{
    for (size_t i = 0; i < count; i++)
        dst[i] = (uint8_t)(compact16(load_le16(src + 2 * i), bits) >> shift) & mask;
}

/* A byte of each value: sign and mantissa as one number, shifted and masked. */
static inline void bytes_of(uint8_t *restrict dst, const uint8_t *restrict src, uint32_t count,
                            enum strait_element element, uint32_t shift, uint8_t mask)
{
    if (element == STRAIT_ELEMENT_FP32)
        bytes_of32(dst, src, count, shift, mask);
    else if (element == STRAIT_ELEMENT_FP16)
        bytes_of16(dst, src, count, 10, shift, mask);
    else
        bytes_of16(dst, src, count, 7, shift, mask);
}

static void split_fields(uint8_t *restrict streams, uint8_t *restrict low, const uint8_t *restrict src, uint32_t count,
                         const struct part_fields *fields)
{
    if ((fields->width & 16) != 0)
        words_of32(streams + fields->at16, src, count, fields->shift16);
    if (fields->low_bits != 0)
        bytes_of(low, src, count, fields->element, fields->zeros, (uint8_t)((1u << fields->low_bits) - 1));
}

static void split_eights(uint8_t *restrict eights, const uint8_t *restrict src, uint32_t count,
                         const struct part_fields *fields)
{
    bytes_of(eights, src, count, fields->element, fields->shift8, 255);
}

/* Loops for the streams that there are: the flags are constants where it is called. */
static inline void join_fields32(uint8_t *restrict dst, const uint8_t *restrict streams,
                                 const uint8_t *restrict exponents, const uint8_t *restrict low, uint32_t count,
                                 const struct part_fields *fields, bool has16, bool has8, bool has_low)
{
    const uint32_t zeros = fields->zeros, shift8 = fields->shift8, shift16 = fields->shift16, set = fields->set;
    const uint8_t *sixteens = streams + fields->at16, *eights = streams + fields->at8;
    for (size_t i = 0; i < count; i++) {
        uint32_t compact = set;
        if (has16)
            compact |= (uint32_t)load_le16(sixteens + 2 * i) << shift16;
        if (has8)
            compact |= (uint32_t)eights[i] << shift8;
        if (has_low)
            compact |= (uint32_t)low[i] << zeros;
        store_le32(dst + 4 * i, expand32(compact, exponents[i]));
    }
}

static inline void join_fields16(uint8_t *restrict dst, const uint8_t *restrict streams,
                                 const uint8_t *restrict exponents, const uint8_t *restrict low, uint32_t count,
                                 const struct part_fields *fields, uint32_t bits, bool has8, bool has_low)
{
    const uint32_t zeros = fields->zeros, shift8 = fields->shift8, set = fields->set;
    const uint8_t *eights = streams + fields->at8;
    for (size_t i = 0; i < count; i++) {
        uint16_t compact = (uint16_t)set;
        if (has8)
            compact |= (uint16_t)(eights[i] << shift8);
        if (has_low)
            compact |= (uint16_t)(low[i] << zeros);
        store_le16(dst + 2 * i, expand16(compact, exponents[i], bits));
    }
}

static void join_fields(uint8_t *restrict dst, const uint8_t *restrict streams, const uint8_t *restrict exponents,
                        const uint8_t *restrict low, uint32_t count, const struct part_fields *fields)
{
    const bool fp16 = fields->element == STRAIT_ELEMENT_FP16, has_low = fields->low_bits != 0;
#define JOIN32(HAS16, HAS8, HAS_LOW)                                                  \
    join_fields32(dst, streams, exponents, low, count, fields, HAS16, HAS8, HAS_LOW); \
    break
#define JOIN16(BITS, HAS8, HAS_LOW)                                                  \
    join_fields16(dst, streams, exponents, low, count, fields, BITS, HAS8, HAS_LOW); \
    break
    if (fields->element == STRAIT_ELEMENT_FP32) {
        switch ((fields->width & 16) / 4 + (fields->width & 8) / 4 + has_low) {
        case 0:
            JOIN32(false, false, false);
        case 1:
            JOIN32(false, false, true);
        case 2:
            JOIN32(false, true, false);
        case 3:
            JOIN32(false, true, true);
        case 4:
            JOIN32(true, false, false);
        case 5:
            JOIN32(true, false, true);
        default:
            JOIN32(true, true, false); /* 24 bits are the most */
        }
        return;
    }
    switch (fp16 * 4 + (fields->width & 8) / 4 + has_low) {
    case 0:
        JOIN16(7, false, false);
    case 1:
        JOIN16(7, false, true);
    case 2:
        JOIN16(7, true, false); /* 8 bits are the most */
    case 4:
        JOIN16(10, false, false);
    case 5:
        JOIN16(10, false, true);
    case 6:
        JOIN16(10, true, false);
    default:
        JOIN16(10, true, true);
    }
#undef JOIN32
#undef JOIN16
}

#define PART_OPS                                                                                      \
    .find_bits = find_bits, .find_patches = find_patches, .find_exponents = find_exponents,           \
    .narrow_exponents = narrow_exponents, .split_fields = split_fields, .split_eights = split_eights, \
    .join_fields = join_fields

#endif
