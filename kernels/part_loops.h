/* Loops of mode 11 over values, in plain C that compilers vectorize for their target; a part of value_loops.h. */
#ifndef STRAIT_KERNELS_PART_LOOPS_H
#define STRAIT_KERNELS_PART_LOOPS_H

#include <string.h>

#include "internal/bytes.h"
#include "kernels/value_ops.h"

/* ---- Bits that change ---- */

static void find_bits(uint32_t *restrict any, uint32_t *restrict all, const uint8_t *restrict src, uint32_t count,
                      uint32_t value_bytes)
{
    uint32_t some = 0, every = UINT32_MAX;
    if (value_bytes == 4) {
        for (size_t i = 0; i < count; i++) {
            some |= load_le32(src + 4 * i);
            every &= load_le32(src + 4 * i);
        }
    } else {
        uint16_t some16 = 0, every16 = UINT16_MAX;
        for (size_t i = 0; i < count; i++) {
            some16 |= load_le16(src + 2 * i);
            every16 &= load_le16(src + 2 * i);
        }
        some = some16;
        every = every16;
    }
    *any = some;
    *all = every;
}

/* ---- Exponents, bases, symbols ---- */

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

/* The largest exponents of a part by lanes: each lane has the two largest of its own, and lanes are merged in pairs. */
enum { PART_LANES = 64 };

static inline uint8_t larger(uint8_t a, uint8_t b)
{
    return a > b ? a : b;
}

static inline uint8_t smaller(uint8_t a, uint8_t b)
{
    return a < b ? a : b;
}

/* The second largest exponent below 255 of a whole number of lanes, or 0. */
static inline uint8_t second_largest(const uint8_t *restrict exponents, uint32_t count)
{
    uint8_t first[PART_LANES] = {0}, second[PART_LANES] = {0};
    for (uint32_t i = 0; i < count; i += PART_LANES) {
        for (uint32_t k = 0; k < PART_LANES; k++) {
            uint8_t e = exponents[i + k];
            e = e == 255 ? 0 : e;
            second[k] = larger(second[k], smaller(first[k], e));
            first[k] = larger(first[k], e);
        }
    }
#define MERGE_LANES(LANES)                                                                                 \
    for (uint32_t k = 0; k < (LANES); k++) {                                                               \
        second[k] = larger(smaller(first[k], first[k + (LANES)]), larger(second[k], second[k + (LANES)])); \
        first[k] = larger(first[k], first[k + (LANES)]);                                                   \
    }
    MERGE_LANES(32)
    MERGE_LANES(16)
    MERGE_LANES(8)
    MERGE_LANES(4)
    MERGE_LANES(2)
    MERGE_LANES(1)
#undef MERGE_LANES
    return second[0];
}

static void find_part_bases(uint8_t *restrict bases, const uint8_t *restrict exponents, uint32_t count)
{
    uint32_t whole = count / PART_VALUES * PART_VALUES, i = 0;
    for (; i < whole; i += PART_VALUES)
        bases[i / PART_VALUES] = larger(second_largest(exponents + i, PART_VALUES), 1);
    if (i == count)
        return;
    uint8_t rest[PART_VALUES] = {0};
    memcpy(rest, exponents + i, count - i);
    bases[i / PART_VALUES] = larger(second_largest(rest, PART_VALUES), 1);
}

/* Exponents 0 and base + 128 change places, so that zeros have one symbol by all bases. */
static inline void exchange_zeros(uint8_t *restrict list, uint32_t count, uint8_t base)
{
    if (base <= PART_BASE_PLAIN)
        return;
    const uint8_t far = (uint8_t)(base + 128);
    for (uint32_t i = 0; i < count; i++) {
        uint8_t e = list[i], changed = e == far ? 0 : e;
        list[i] = e == 0 ? far : changed;
    }
}

static void to_symbols(uint8_t *restrict list, const uint8_t *restrict bases, uint32_t count)
{
    for (uint32_t i = 0; i < count; i += PART_VALUES) {
        const uint32_t values = count - i < PART_VALUES ? count - i : PART_VALUES;
        const uint8_t base = bases[i / PART_VALUES];
        exchange_zeros(list + i, values, base);
        for (uint32_t k = 0; k < values; k++)
            list[i + k] = (uint8_t)(list[i + k] - base);
    }
}

static void to_exponents(uint8_t *restrict list, const uint8_t *restrict bases, uint32_t count)
{
    for (uint32_t i = 0; i < count; i += PART_VALUES) {
        const uint32_t values = count - i < PART_VALUES ? count - i : PART_VALUES;
        const uint8_t base = bases[i / PART_VALUES];
        for (uint32_t k = 0; k < values; k++)
            list[i + k] = (uint8_t)(list[i + k] + base);
        exchange_zeros(list + i, values, base);
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

/* ---- Items of 4, 2 and 1 bits, one from each of eight bytes ---- */

#define EIGHT_BYTES(byte) (0x0101010101010101u * (uint64_t)(byte))

#if defined(__BMI2__)
static inline uint32_t pack_eight4(uint64_t bytes)
{
    return (uint32_t)_pext_u64(bytes, EIGHT_BYTES(15));
}

static inline uint16_t pack_eight2(uint64_t bytes)
{
    return (uint16_t)_pext_u64(bytes, EIGHT_BYTES(3));
}

static inline uint8_t pack_eight1(uint64_t bytes)
{
    return (uint8_t)_pext_u64(bytes, EIGHT_BYTES(1));
}

static inline uint64_t unpack_eight4(uint32_t packed)
{
    return _pdep_u64(packed, EIGHT_BYTES(15));
}

static inline uint64_t unpack_eight2(uint16_t packed)
{
    return _pdep_u64(packed, EIGHT_BYTES(3));
}

static inline uint64_t unpack_eight1(uint8_t packed)
{
    return _pdep_u64(packed, EIGHT_BYTES(1));
}
#else
static inline uint32_t pack_eight4(uint64_t bytes)
{
    uint64_t v = bytes & EIGHT_BYTES(15);
    v = (v | v >> 4) & 0x00ff00ff00ff00ffu;
    v = (v | v >> 8) & 0x0000ffff0000ffffu;
    return (uint32_t)(v | v >> 16);
}

static inline uint16_t pack_eight2(uint64_t bytes)
{
    uint64_t v = bytes & EIGHT_BYTES(3);
    v = (v | v >> 6) & 0x000f000f000f000fu;
    v = (v | v >> 12) & 0x000000ff000000ffu;
    return (uint16_t)(v | v >> 24);
}

static inline uint8_t pack_eight1(uint64_t bytes)
{
    return (uint8_t)((bytes & EIGHT_BYTES(1)) * 0x0102040810204080u >> 56);
}

static inline uint64_t unpack_eight4(uint32_t packed)
{
    uint64_t v = packed;
    v = (v | v << 16) & 0x0000ffff0000ffffu;
    v = (v | v << 8) & 0x00ff00ff00ff00ffu;
    return (v | v << 4) & EIGHT_BYTES(15);
}

static inline uint64_t unpack_eight2(uint16_t packed)
{
    uint64_t v = packed;
    v = (v | v << 24) & 0x000000ff000000ffu;
    v = (v | v << 12) & 0x000f000f000f000fu;
    return (v | v << 6) & EIGHT_BYTES(3);
}

static inline uint64_t unpack_eight1(uint8_t packed)
{
    uint64_t v = EIGHT_BYTES(packed) & 0x8040201008040201u; /* the bit of each byte, at its own place */
    return (v + EIGHT_BYTES(0x7f)) >> 7 & EIGHT_BYTES(1);
}
#endif

/* Packs the `low` bytes of a block. The last store of each stream may go seven bytes past its end. */
static void pack_low(uint8_t *restrict streams, uint8_t *restrict low, uint32_t count, const struct part_fields *fields)
{
    const uint32_t f = fields->low_bits, shift4 = f & 3, shift2 = f & 1;
    memset(low + count, 0, 8);
    for (size_t i = 0; (f & 4) != 0 && i < count; i += 8)
        store_le32(streams + fields->at4 + i / 2, pack_eight4(load_le64(low + i) >> shift4));
    for (size_t i = 0; (f & 2) != 0 && i < count; i += 8)
        store_le16(streams + fields->at2 + i / 4, pack_eight2(load_le64(low + i) >> shift2));
    for (size_t i = 0; (f & 1) != 0 && i < count; i += 8)
        streams[fields->at1 + i / 8] = pack_eight1(load_le64(low + i));
}

/* The inverse. Reads up to three bytes past the end of a stream, where other bytes of the block are. */
static void unpack_low(uint8_t *restrict low, const uint8_t *restrict streams, uint32_t count,
                       const struct part_fields *fields)
{
    const uint32_t f = fields->low_bits, shift4 = f & 3, shift2 = f & 1;
    const uint8_t *fours = streams + fields->at4, *twos = streams + fields->at2, *ones = streams + fields->at1;
    for (size_t i = 0; i < count; i += 8) {
        uint64_t v = f & 4 ? unpack_eight4(load_le32(fours + i / 2)) << shift4 : 0;
        v |= f & 2 ? unpack_eight2(load_le16(twos + i / 4)) << shift2 : 0;
        v |= f & 1 ? unpack_eight1(ones[i / 8]) : 0;
        store_le64(low + i, v);
    }
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

static inline void split_fields32(uint8_t *restrict streams, uint8_t *restrict low, const uint8_t *restrict src,
                                  uint32_t count, const struct part_fields *fields)
{
    const uint32_t zeros = fields->zeros, shift8 = fields->shift8, shift16 = fields->shift16;
    const uint8_t mask = (uint8_t)((1u << fields->low_bits) - 1);
    uint8_t *sixteens = streams + fields->at16, *eights = streams + fields->at8;
    for (size_t i = 0; (fields->width & 16) != 0 && i < count; i++)
        store_le16(sixteens + 2 * i, (uint16_t)(compact32(load_le32(src + 4 * i)) >> shift16));
    if (fields->low_bits != 0) {
        for (size_t i = 0; i < count; i++)
            low[i] = (uint8_t)(compact32(load_le32(src + 4 * i)) >> zeros) & mask;
        pack_low(streams, low, count, fields);
    }
    for (size_t i = 0; (fields->width & 8) != 0 && i < count; i++)
        eights[i] = (uint8_t)(compact32(load_le32(src + 4 * i)) >> shift8);
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

static inline void split_fields16(uint8_t *restrict streams, uint8_t *restrict low, const uint8_t *restrict src,
                                  uint32_t count, const struct part_fields *fields, uint32_t bits)
{
    const uint32_t zeros = fields->zeros, shift8 = fields->shift8;
    const uint8_t mask = (uint8_t)((1u << fields->low_bits) - 1);
    uint8_t *eights = streams + fields->at8;
    if (fields->low_bits != 0) {
        for (size_t i = 0; i < count; i++)
            low[i] = (uint8_t)(compact16(load_le16(src + 2 * i), bits) >> zeros) & mask;
        pack_low(streams, low, count, fields);
    }
    for (size_t i = 0; (fields->width & 8) != 0 && i < count; i++)
        eights[i] = (uint8_t)(compact16(load_le16(src + 2 * i), bits) >> shift8);
}

static void split_fields(uint8_t *restrict streams, uint8_t *restrict low, const uint8_t *restrict src, uint32_t count,
                         const struct part_fields *fields)
{
    if (fields->element == STRAIT_ELEMENT_FP32)
        split_fields32(streams, low, src, count, fields);
    else if (fields->element == STRAIT_ELEMENT_FP16)
        split_fields16(streams, low, src, count, fields, 10);
    else
        split_fields16(streams, low, src, count, fields, 7);
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
                        uint8_t *restrict low, uint32_t count, const struct part_fields *fields)
{
    const bool fp16 = fields->element == STRAIT_ELEMENT_FP16, has_low = fields->low_bits != 0;
    if (has_low)
        unpack_low(low, streams, count, fields);
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

#define PART_OPS                                                                                  \
    .find_bits = find_bits, .find_exponents = find_exponents, .find_part_bases = find_part_bases, \
    .to_symbols = to_symbols, .to_exponents = to_exponents, .narrow_exponents = narrow_exponents, \
    .split_fields = split_fields, .join_fields = join_fields

#endif
