/* The specification of the sums in C, one element after another. Compiled without contraction of products and sums, so
 * that each operation written here rounds. */
#include "collective/reduce.h"

#include <math.h>
#include <stdbool.h>

/* ---- Checks ------------------------------------------------------------------------------------------------------ */

static bool overlap(const void *a, const void *b, size_t bytes)
{
    const uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return x != y && (x < y ? y - x : x - y) < bytes;
}

enum strait_status coll_reduce_check(const struct coll_reduce *reduce)
{
    if ((unsigned)reduce->type >= COLL_REDUCE_TYPES || (unsigned)reduce->operation >= COLL_REDUCE_OPERATIONS ||
        (unsigned)reduce->order >= COLL_REDUCE_ORDERS || reduce->sources < 1 ||
        reduce->sources > COLL_REDUCE_SOURCES_MAX || reduce->rank >= reduce->sources)
        return STRAIT_ERR_INVALID;
    const size_t element = coll_reduce_element_bytes(reduce->type);
    if (reduce->count == 0)
        return STRAIT_OK;
    if (reduce->count > SIZE_MAX / element || reduce->dst == NULL)
        return STRAIT_ERR_INVALID;
    uintptr_t all = (uintptr_t)reduce->dst;
    for (uint32_t i = 0; i < reduce->sources; i++) {
        if (reduce->source[i] == NULL || overlap(reduce->source[i], reduce->dst, reduce->count * element))
            return STRAIT_ERR_INVALID;
        all |= (uintptr_t)reduce->source[i];
    }
    return all % element == 0 ? STRAIT_OK : STRAIT_ERR_ALIGNMENT;
}

/* ---- Elements ---------------------------------------------------------------------------------------------------- */

static float load(const struct coll_reduce *reduce, uint32_t rank, size_t at)
{
    const uint8_t *from = (const uint8_t *)reduce->source[rank] + at * coll_reduce_element_bytes(reduce->type);
    uint16_t half;
    uint32_t bits;
    if (reduce->type == COLL_REDUCE_FP32) {
        memcpy(&bits, from, sizeof(bits));
    } else {
        memcpy(&half, from, sizeof(half));
        bits = half;
    }
    return coll_reduce_widen(reduce->type, bits);
}

static void store(const struct coll_reduce *reduce, size_t at, uint32_t bits)
{
    uint8_t *to = (uint8_t *)reduce->dst + at * coll_reduce_element_bytes(reduce->type);
    const uint16_t half = (uint16_t)bits;
    if (reduce->type == COLL_REDUCE_FP32)
        memcpy(to, &bits, sizeof(bits));
    else
        memcpy(to, &half, sizeof(half));
}

/* ---- Order FP32 -------------------------------------------------------------------------------------------------- */

static uint32_t sum_in_fp32(const struct coll_reduce *reduce, size_t at)
{
    float sum = load(reduce, 0, at);
    for (uint32_t i = 1; i < reduce->sources; i++)
        sum = sum + load(reduce, i, at);
    if (reduce->operation == COLL_REDUCE_AVG)
        sum = sum * (float)(1.0 / reduce->sources);
    return coll_reduce_narrow(reduce->type, sum);
}

/* ---- Order NCCL_RING --------------------------------------------------------------------------------------------- */

/* a + b, rounded so that rounding it once more to any type used here gives the same as rounding once: an inexact sum
 * becomes whichever of its two neighbours has the last bit set. */
static double add_to_odd(double a, double b)
{
    const double sum = a + b, part = sum - a, lost = (a - (sum - part)) + (b - part);
    const uint64_t bits = bits_of_double(sum);
    if (!isfinite(sum) || lost == 0 || bits % 2 != 0)
        return sum;
    return double_of_bits((lost > 0) == (sum > 0) ? bits + 1 : bits - 1);
}

static uint32_t sum_around_ring(const struct coll_reduce *reduce, size_t at)
{
    const uint32_t n = reduce->sources, first = (reduce->rank + 1) % n;
    const double share = reduce->operation == COLL_REDUCE_AVG
                             ? (double)coll_reduce_widen(reduce->type, coll_reduce_share(reduce->type, n))
                             : 1;
    uint32_t sum = coll_reduce_narrow(reduce->type, load(reduce, first, at) * share);
    for (uint32_t i = 1; i < n; i++) {
        const double product = load(reduce, (first + i) % n, at) * share; /* exact: 48 bits */
        sum = coll_reduce_narrow(reduce->type, add_to_odd(product, coll_reduce_widen(reduce->type, sum)));
    }
    return sum;
}

/* ---- MAX and MIN ------------------------------------------------------------------------------------------------- */

static float larger(float a, float b)
{
    if (isnan(a) || isnan(b))
        return isnan(a) ? b : a;
    if (a == b)
        return signbit(a) ? b : a;
    return a > b ? a : b;
}

static uint32_t extreme(const struct coll_reduce *reduce, size_t at)
{
    const float sign = reduce->operation == COLL_REDUCE_MIN ? -1 : 1;
    float most = sign * load(reduce, 0, at);
    for (uint32_t i = 1; i < reduce->sources; i++)
        most = larger(most, sign * load(reduce, i, at));
    return coll_reduce_narrow(reduce->type, sign * most);
}

/* ---- All elements ------------------------------------------------------------------------------------------------ */

enum strait_status coll_reduce_scalar(const struct coll_reduce *reduce)
{
    const enum strait_status status = coll_reduce_check(reduce);
    if (status != STRAIT_OK)
        return status;
    uint32_t (*one)(const struct coll_reduce *, size_t) = sum_in_fp32;
    if (reduce->operation == COLL_REDUCE_MAX || reduce->operation == COLL_REDUCE_MIN)
        one = extreme;
    else if (reduce->order == COLL_REDUCE_NCCL_RING)
        one = sum_around_ring;
    for (size_t at = 0; at < reduce->count; at++)
        store(reduce, at, one(reduce, at));
    return STRAIT_OK;
}
