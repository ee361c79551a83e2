// Sums of the values in one 32-bit word: two of BF16 or FP16, or one of FP32.
#ifndef STRAIT_COLLECTIVE_CUDA_ACCUMULATE_CUH
#define STRAIT_COLLECTIVE_CUDA_ACCUMULATE_CUH

#include <cstdint>

#include "collective/cuda/values.cuh"
#include "collective/reduce.h"

namespace strait
{

enum reduce_kind { REDUCE_IN_FP32, REDUCE_RING, REDUCE_EXTREME, REDUCE_KINDS };

// What the kinds need besides values.
struct reduce_terms {
    float scale;      // IN_FP32: the factor of the sum
    uint32_t share;   // RING: the factor of each value, in the type, in both halves
    uint32_t minimum; // EXTREME: minimum instead of maximum
    uint32_t reserved;
};

// All begin with the neutral element: -0 for sums, a NaN for extremes.
template <coll_reduce_type TYPE, reduce_kind KIND> struct accumulator;

template <coll_reduce_type TYPE> struct accumulator<TYPE, REDUCE_IN_FP32> {
    static constexpr int COUNT = values_of_word<TYPE>();
    float sum[COUNT];

    DEVICE void begin()
    {
        for (int i = 0; i < COUNT; i++)
            sum[i] = -0.0f;
    }
    DEVICE void add(uint32_t word, const reduce_terms &)
    {
        float x[COUNT];
        widen<TYPE>(word, x);
        for (int i = 0; i < COUNT; i++)
            sum[i] = plus(sum[i], x[i]);
    }
    DEVICE uint32_t end(const reduce_terms &terms)
    {
        for (int i = 0; i < COUNT; i++)
            sum[i] = times(sum[i], terms.scale);
        return narrow<TYPE>(sum);
    }
};

template <coll_reduce_type TYPE> struct accumulator<TYPE, REDUCE_RING> {
    uint32_t sum;

    DEVICE void begin()
    {
        sum = TYPE == COLL_REDUCE_FP32 ? 0x80000000u : 0x80008000u;
    }
    DEVICE void add(uint32_t word, const reduce_terms &terms)
    {
        sum = fused<TYPE>(word, terms.share, sum);
    }
    DEVICE uint32_t end(const reduce_terms &)
    {
        return sum;
    }
};

template <coll_reduce_type TYPE> struct accumulator<TYPE, REDUCE_EXTREME> {
    static constexpr int COUNT = values_of_word<TYPE>();
    float most[COUNT];

    DEVICE void begin()
    {
        for (int i = 0; i < COUNT; i++)
            most[i] = nan_of_sums();
    }
    DEVICE void add(uint32_t word, const reduce_terms &terms)
    {
        float x[COUNT];
        widen<TYPE>(word, x);
        for (int i = 0; i < COUNT; i++)
            most[i] = terms.minimum != 0 ? smaller(most[i], x[i]) : larger(most[i], x[i]);
    }
    DEVICE uint32_t end(const reduce_terms &)
    {
        return narrow<TYPE>(most);
    }
};

} // namespace strait
#endif
