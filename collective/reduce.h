/* The sum that ends reduce_scatter and all_reduce: what all ranks have for one block, element by element, made one. The
 * scalar twin is here, the kernel is in collective/cuda/reduce.cu; both give the same bits.
 *
 * Two orders of addition:
 *
 *   FP32        In FP32, by rank, 0 first; rounded to the type once, at the end. AVG multiplies the FP32 sum by 1/n, in
 *               FP32 (one more rounding there), before that. The same on all ranks and for all sizes.
 *   NCCL_RING   What NCCL (2.28.9, compute capability 9.0) does for the block of rank d in a reduce_scatter by its
 * ring, where the ring is 0, 1, 2, ...: x[d+1], x[d+2], ..., x[d], rounded to the type after each. AVG multiplies each
 * value by 1/n, rounded to the type. The first product is rounded to the type; later ones are added without having been
 * rounded, as fused multiply and add, as protocols Simple and LL of NCCL do. (LL128 rounds them first, of BF16 and FP16
 * all, of FP32 half of them. That is the same where products are exact: n a power of two, results not subnormal.)
 *
 * MAX and MIN are the same in both, as order does not matter to them.
 *
 * Of two ranks, SUM is the same in both orders and equals NCCL by whatever algorithm and protocol: FP32 holds enough
 * bits of BF16 and FP16 that rounding twice is rounding once. AVG of two in order FP32 equals NCCL's unless a value is
 * less than twice the smallest normal one of the type, where NCCL halves inexactly before it adds; or, of BF16 and
 * FP32, the sum of two overflows but their mean does not: then this order gives an infinity.
 *
 * Rounding is to nearest, ties to even. Subnormals are kept, infinities too. A result that is no number is the one that
 * the hardware makes, whatever went in: 0x7fff, of FP32 0x7fffffff. MAX and MIN give the other one of a number and
 * none, and -0 is less than 0 there. */
#ifndef STRAIT_COLLECTIVE_REDUCE_H
#define STRAIT_COLLECTIVE_REDUCE_H

#include <stddef.h>
#include <stdint.h>

#include <strait/status.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { COLL_REDUCE_SOURCES_MAX = 64 };

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
    uint32_t sources;                            /* ranks: 1 to COLL_REDUCE_SOURCES_MAX */
    uint32_t rank;                               /* whose block it is. Order NCCL_RING asks */
    const void *source[COLL_REDUCE_SOURCES_MAX]; /* by rank */
    void *dst;                                   /* one of the sources, or apart from all */
    size_t count;                                /* elements of each; addresses are multiples of their size */
};

static inline size_t coll_reduce_element_bytes(enum coll_reduce_type type)
{
    return type == COLL_REDUCE_FP32 ? 4 : 2;
}

/* STRAIT_OK; ERR_ALIGNMENT; or ERR_INVALID: a number out of range, an address missing, dst and a source that overlap
 * without being the same. What the others return for the same. */
enum strait_status coll_reduce_check(const struct coll_reduce *reduce);

/* On the host, plainly. */
enum strait_status coll_reduce_scalar(const struct coll_reduce *reduce);

#ifdef __cplusplus
}
#endif
#endif
