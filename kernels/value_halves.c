#include "kernels/value_halves.h"

#include "internal/bytes.h"

/* ---- FP32 ---- */

void halves_take_fp32(uint8_t *halves, uint8_t *rest, const uint8_t *src, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        store_le16(halves + 2 * i, (uint16_t)(load_le32(src + 4 * i) >> 16));
    for (uint32_t i = 0; rest != NULL && i < count; i++)
        store_le16(rest + 2 * i, (uint16_t)load_le32(src + 4 * i));
}

void halves_join_fp32(uint8_t *dst, const uint8_t *halves, const uint8_t *rest, uint32_t count)
{
    for (uint32_t i = 0; rest != NULL && i < count; i++)
        store_le32(dst + 4 * i, (uint32_t)load_le16(halves + 2 * i) << 16 | load_le16(rest + 2 * i));
    for (uint32_t i = 0; rest == NULL && i < count; i++)
        store_le32(dst + 4 * i, (uint32_t)load_le16(halves + 2 * i) << 16);
}

/* In steps, so that the first value that has a lower half ends it. */
bool halves_are_all_fp32(const uint8_t *src, uint32_t count)
{
    enum { STEP = 64 };
    uint32_t any = 0, i = 0;
    for (; i + STEP <= count && (uint16_t)any == 0; i += STEP)
        for (uint32_t k = 0; k < STEP; k++)
            any |= load_le32(src + 4 * (i + k));
    for (; i < count && (uint16_t)any == 0; i++)
        any |= load_le32(src + 4 * i);
    return (uint16_t)any == 0;
}

/* ---- FP16 ---- */

/* Exponents of FP16 become those of BF16 values of the same size: so one table serves both. Zero and subnormal values
 * have the lowest exponent in both types, infinities and NaN the highest. */
enum { FP16_MOST = 31, BF16_MOST = 255, BIAS_DIFFERENCE = 127 - 15 };

static uint16_t half_of(uint16_t value)
{
    uint16_t exponent = value >> 10 & FP16_MOST;
    uint16_t wide = exponent == FP16_MOST ? BF16_MOST : exponent + BIAS_DIFFERENCE;
    wide = exponent == 0 ? 0 : wide;
    return (uint16_t)((value & 0x8000) | wide << 7 | (value >> 3 & 0x7f));
}

/* Without its rest; an exponent of no FP16 value gives anything, and sets *bad. */
static uint16_t value_of(uint16_t half, uint16_t *bad)
{
    uint16_t wide = half >> 7 & BF16_MOST, exponent = (uint16_t)(wide - BIAS_DIFFERENCE);
    exponent = wide == BF16_MOST ? FP16_MOST : exponent;
    bool zero = wide == 0, inside = (uint16_t)(exponent - 1) < FP16_MOST;
    *bad |= !zero && (!inside || (exponent == FP16_MOST && wide != BF16_MOST));
    exponent = zero ? 0 : exponent & FP16_MOST;
    return (uint16_t)((half & 0x8000) | exponent << 10 | (half & 0x7f) << 3);
}

/* Eight values: two bytes of their lowest two bits, one of the third. */
static void put_rests(uint8_t *twos, uint8_t *ones, const uint16_t values[8])
{
    uint32_t two = 0, one = 0;
    for (unsigned k = 0; k < 8; k++) {
        two |= (values[k] & 3u) << 2 * k;
        one |= (values[k] >> 2 & 1u) << k;
    }
    store_le16(twos, (uint16_t)two);
    *ones = (uint8_t)one;
}

static uint16_t get_rest(uint32_t two, uint32_t one, unsigned k)
{
    return (uint16_t)((two >> 2 * k & 3) | (one >> k & 1) << 2);
}

void halves_take_fp16(uint8_t *halves, uint8_t *twos, uint8_t *ones, const uint8_t *src, uint32_t count)
{
    uint16_t values[8] = {0};
    uint8_t last[2];
    uint32_t i = 0;
    for (uint32_t k = 0; k < count; k++)
        store_le16(halves + 2 * k, half_of(load_le16(src + 2 * k)));
    for (; i + 8 <= count; i += 8) {
        memcpy(values, src + 2 * i, sizeof(values));
        put_rests(twos + i / 4, ones + i / 8, values);
    }
    if (i == count)
        return;
    memset(values, 0, sizeof(values));
    memcpy(values, src + 2 * i, 2 * (size_t)(count - i));
    put_rests(last, ones + i / 8, values);
    memcpy(twos + i / 4, last, (count - i + 3) / 4);
}

bool halves_join_fp16(uint8_t *dst, const uint8_t *halves, const uint8_t *twos, const uint8_t *ones, uint32_t count)
{
    uint16_t bad = 0;
    uint32_t i = 0;
    for (; i + 8 <= count; i += 8) {
        uint32_t two = load_le16(twos + i / 4), one = ones[i / 8];
        for (unsigned k = 0; k < 8; k++)
            store_le16(dst + 2 * (i + k), value_of(load_le16(halves + 2 * (i + k)), &bad) | get_rest(two, one, k));
    }
    for (; i < count; i++) {
        uint32_t two = twos[i / 4] >> i % 4 * 2, one = ones[i / 8] >> i % 8;
        store_le16(dst + 2 * i, value_of(load_le16(halves + 2 * i), &bad) | get_rest(two, one, 0));
    }
    return bad == 0;
}
