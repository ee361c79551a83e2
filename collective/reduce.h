/* The sum that ends reduce_scatter and all_reduce: the values of all ranks for one block, added element by element. The
 * scalar version is here, the kernel in collective/cuda/reduce.cu; both give the same bits.
 *
 * Two orders of addition:
 *
 *   FP32        In FP32, by rank, 0 first; rounded to the type once, at the end. AVG multiplies the FP32 sum by 1/n, in
 *               FP32 (one more rounding there), before that. The same on all ranks and for all sizes.
 *   NCCL_RING   What NCCL (2.28.9, compute capability 9.0) does for the block of rank d in a reduce_scatter by its
 * ring, where the ring is 0, 1, 2, ...: x[d+1], x[d+2], ..., x[d], rounded to the type after each. AVG multiplies each
 * value by 1/n, rounded to the type. The first product is rounded to the type; later ones are added without having been
 * rounded, as fused multiply and add, as protocols Simple and LL of NCCL do. (LL128 rounds them first: all for BF16 and
 * FP16, half of them for FP32. The result is the same if products are exact: n a power of two, results not subnormal.)
 *
 * However many sources there are, they are added one after another into one sum per element, which is rounded as above:
 * where a kernel takes them by tiles, the sum goes on from tile to tile.
 *
 * MAX and MIN are the same in both, as order does not matter to them.
 *
 * For two ranks, SUM is the same in both orders and equals NCCL's by whatever algorithm and protocol: FP32 holds enough
 * bits of BF16 and FP16 that rounding twice is rounding once. AVG of two in order FP32 equals NCCL's, with two
 * exceptions: if a value is less than twice the smallest normal one of the type, NCCL halves inexactly before it adds;
 * and if, for BF16 and FP32, the sum of two overflows but their mean does not, this order gives an infinity.
 *
 * Rounding is to nearest, ties to even. Subnormals and infinities are kept. A NaN result is the one that the hardware
 * makes, whatever the inputs: 0x7fff, for FP32 0x7fffffff. MAX and MIN of a number and a NaN give the number, and order
 * -0 below 0. */
#ifndef STRAIT_COLLECTIVE_REDUCE_H
#define STRAIT_COLLECTIVE_REDUCE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <strait/status.h>

#include "collective/ranks.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { COLL_REDUCE_SOURCES_MAX = COLL_RANKS_MAX };

enum coll_reduce_type { COLL_REDUCE_BF16, COLL_REDUCE_FP16, COLL_REDUCE_FP32, COLL_REDUCE_TYPES };
enum coll_reduce_operation {
    COLL_REDUCE_SUM,
    COLL_REDUCE_AVG,
    COLL_REDUCE_MAX,
    COLL_REDUCE_MIN,
    COLL_REDUCE_OPERATIONS
};
enum coll_reduce_order { COLL_REDUCE_IN_FP32, COLL_REDUCE_NCCL_RING, COLL_REDUCE_ORDERS };

struct coll_reduce {
    enum coll_reduce_type type;
    enum coll_reduce_operation operation;
    enum coll_reduce_order order;
    uint32_t sources;                            /* number of ranks: 1 to COLL_REDUCE_SOURCES_MAX */
    uint32_t rank;                               /* whose block it is; used by order NCCL_RING */
    const void *source[COLL_REDUCE_SOURCES_MAX]; /* by rank */
    void *dst;                                   /* equal to one of the sources, or overlapping none */
    size_t count;                                /* elements of each; addresses are multiples of their size */
};

static inline size_t coll_reduce_element_bytes(enum coll_reduce_type type)
{
    return type == COLL_REDUCE_FP32 ? 4 : 2;
}

/* STRAIT_OK; ERR_ALIGNMENT; or ERR_INVALID: a number out of range, an address missing, or dst and a source overlap
 * without being equal. The other functions return the same. */
enum strait_status coll_reduce_check(const struct coll_reduce *reduce);

/* On the host, unoptimised. */
enum strait_status coll_reduce_scalar(const struct coll_reduce *reduce);

#ifdef __cplusplus
}
#endif
/* ---- Values ------------------------------------------------------------------------------------------------------ */

/* Conversion of BF16, FP16 and FP32 values to numbers and back. Rounding uses integers, so that it does not depend on
 * the processor's rounding mode. */

static inline float float_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline uint64_t bits_of_double(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline double double_of_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline float widen_fp16(uint32_t bits)
{
    const uint32_t sign = (bits & 0x8000) << 16, exponent = bits >> 10 & 31, mantissa = bits & 0x3ff;
    if (exponent == 31)
        return float_of_bits(sign | 0x7f800000 | mantissa << 13);
    if (exponent > 0)
        return float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    const float tiny = (float)mantissa * 0x1p-24f; /* exact */
    return sign == 0 ? tiny : -tiny;
}

/* Exact. */
static inline float coll_reduce_widen(enum coll_reduce_type type, uint32_t bits)
{
    if (type == COLL_REDUCE_FP16)
        return widen_fp16(bits);
    return float_of_bits(type == COLL_REDUCE_BF16 ? bits << 16 : bits);
}

/* Format to round to: mantissa bits, exponent of the smallest normal value, sign bit, infinity. */
struct reduce_format {
    int mantissa, smallest;
    uint32_t sign, infinity;
};

static inline struct reduce_format reduce_format_of(enum coll_reduce_type type)
{
    static const struct reduce_format formats[] = {
        {7, -126, 0x8000, 0x7f80}, {10, -14, 0x8000, 0x7c00}, {23, -126, 0x80000000, 0x7f800000}};
    return formats[type];
}

/* Rounded to nearest, ties to even. */
static inline uint32_t coll_reduce_narrow(enum coll_reduce_type type, double x)
{
    const struct reduce_format format = reduce_format_of(type);
    const uint64_t bits = bits_of_double(x);
    const uint32_t sign = bits >> 63 != 0 ? format.sign : 0;
    const int exponent = (int)(bits >> 52 & 2047) - 1023;
    uint64_t mantissa = bits & 0xfffffffffffffu;
    if (exponent == 1024)
        return mantissa != 0 ? format.sign - 1 : sign | format.infinity;
    if (exponent < format.smallest - format.mantissa - 1) /* less than half of the smallest subnormal */
        return sign;
    const int below = exponent < format.smallest ? format.smallest - exponent : 0; /* subnormal */
    const int drop = 52 - format.mantissa + below;
    mantissa |= 1ull << 52;
    const uint64_t rest = mantissa & ((1ull << drop) - 1), half = 1ull << (drop - 1);
    uint64_t kept = mantissa >> drop;
    kept += rest > half || (rest == half && kept % 2 != 0);
    if (below == 0) /* the leading one adds one to the exponent */
        kept += (uint64_t)(exponent - format.smallest) << format.mantissa;
    return sign | (kept < format.infinity ? (uint32_t)kept : format.infinity);
}

/* NCCL's factor for the mean of n. */
static inline uint32_t coll_reduce_share(enum coll_reduce_type type, uint32_t n)
{
    return coll_reduce_narrow(type, (double)(float)(1.0 / n));
}

#endif
