/*
 * Vector loops of mode 11 over lists with a byte for each value; a part of block_vector.h, in terms of its vectors and
 * of
 *
 *     vec_larger, vec_smaller       the larger and the smaller bytes of two vectors
 *     vec_add                       a number to all bytes
 *     vec_exchange                  one byte becomes another one, and that one the first
 *     second_of_lanes               of two vectors, the largest and the second largest of each lane: of all lanes
 *
 * Lists have room for a whole vector after the last byte, which may be anything.
 */
#ifndef STRAIT_KERNELS_BLOCK_VECTOR_PARTS_H
#define STRAIT_KERNELS_BLOCK_VECTOR_PARTS_H

#include "kernels/part_fields.h"

/* ---- Bases and symbols ---- */

/* Adds one to exponents, so that 255 becomes 0: infinities and NaN do not count. */
static inline uint8_t part_base(const uint8_t *exponents)
{
    vec first = vec_add(vec_load(exponents), 1), second = vec_all(0);
    for (uint32_t i = STEP; i < PART_VALUES; i += STEP) {
        vec e = vec_add(vec_load(exponents + i), 1);
        second = vec_larger(second, vec_smaller(first, e));
        first = vec_larger(first, e);
    }
    uint8_t found = second_of_lanes(first, second);
    return found < 2 ? 1 : (uint8_t)(found - 1);
}

static void find_part_bases(uint8_t *bases, const uint8_t *exponents, uint32_t count)
{
    uint32_t i = 0;
    for (; i + PART_VALUES <= count; i += PART_VALUES)
        bases[i / PART_VALUES] = part_base(exponents + i);
    if (i == count)
        return;
    uint8_t rest[PART_VALUES];
    memset(rest, 255, sizeof(rest));
    memcpy(rest, exponents + i, count - i);
    bases[i / PART_VALUES] = part_base(rest);
}

static void to_symbols(uint8_t *list, const uint8_t *bases, uint32_t count)
{
    for (uint32_t i = 0; i < count; i += STEP) {
        const uint8_t base = bases[i / PART_VALUES], far = part_far(base);
        vec_store(list + i, vec_add(vec_exchange(vec_load(list + i), 0, far), (uint8_t)-base));
    }
}

static void to_exponents(uint8_t *list, const uint8_t *bases, uint32_t count)
{
    for (uint32_t i = 0; i < count; i += STEP) {
        const uint8_t base = bases[i / PART_VALUES], far = part_far(base);
        vec_store(list + i, vec_exchange(vec_add(vec_load(list + i), base), 0, far));
    }
}

/* ---- Pieces of 4, 2 and 1 bits ---- */

static void pack_low(uint8_t *streams, const uint8_t *low, uint32_t count, const struct part_fields *fields)
{
    const uint32_t f = fields->low_bits, shift4 = f & 3, shift2 = f & 1;
    for (uint32_t i = 0; (f & 4) != 0 && i < count; i += STEP)
        pack4(streams + fields->at4 + i / 2,
              vec_select(vec_first(count - i), vec_and(vec_shr(vec_load(low + i), shift4), 15)));
    for (uint32_t i = 0; (f & 2) != 0 && i < count; i += STEP)
        pack2(streams + fields->at2 + i / 4,
              vec_select(vec_first(count - i), vec_and(vec_shr(vec_load(low + i), shift2), 3)));
    for (uint32_t i = 0; (f & 1) != 0 && i < count; i += STEP) {
        vec_mask ones = vec_signs(vec_shl(vec_load(low + i), 7)) & vec_first(count - i);
        memcpy(streams + fields->at1 + i / 8, &ones, STEP / 8);
    }
}

/* A step of values from the streams at the places that they have for value i. */
static inline vec unpack_step(const uint8_t *fours, const uint8_t *twos, const uint8_t *ones, uint32_t f)
{
    vec v = vec_all(0);
    if ((f & 4) != 0)
        v = vec_shl(unpack4(fours), f & 3);
    if ((f & 2) != 0)
        v = vec_or(v, vec_shl(unpack2(twos), f & 1));
    if ((f & 1) != 0) {
        vec_mask mask;
        memcpy(&mask, ones, STEP / 8);
        v = vec_or(v, vec_select(mask, vec_all(1)));
    }
    return v;
}

/* The last step goes through buffers: nothing behind the streams is read. */
static void unpack_low(uint8_t *low, const uint8_t *streams, uint32_t count, const struct part_fields *fields)
{
    const uint8_t *fours = streams + fields->at4, *twos = streams + fields->at2, *ones = streams + fields->at1;
    const uint32_t f = fields->low_bits;
    uint32_t i = 0;
    for (; i + STEP <= count; i += STEP)
        vec_store(low + i, unpack_step(fours + i / 2, twos + i / 4, ones + i / 8, f));
    if (i == count)
        return;
    uint8_t last4[STEP / 2] = {0}, last2[STEP / 4] = {0}, last1[STEP / 8] = {0};
    if ((f & 4) != 0)
        memcpy(last4, fours + i / 2, pack_bytes_4bit(count - i));
    if ((f & 2) != 0)
        memcpy(last2, twos + i / 4, pack_bytes_2bit(count - i));
    if ((f & 1) != 0)
        memcpy(last1, ones + i / 8, pack_bytes_1bit(count - i));
    vec_store(low + i, unpack_step(last4, last2, last1, f));
}

#endif
