// Sums of the values in one 32-bit word: two of BF16 or FP16, or one of FP32. Every operation names its rounding, so
// that the compiler contracts nothing.
#ifndef STRAIT_COLLECTIVE_CUDA_ACCUMULATE_CUH
#define STRAIT_COLLECTIVE_CUDA_ACCUMULATE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "collective/reduce.h"

#define DEVICE __device__ __forceinline__

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

template <coll_reduce_type TYPE> constexpr int values_of_word()
{
    return TYPE == COLL_REDUCE_FP32 ? 1 : 2;
}

template <coll_reduce_type TYPE> DEVICE void widen(uint32_t word, float x[])
{
    if constexpr (TYPE == COLL_REDUCE_BF16) {
        x[0] = __uint_as_float(word << 16);
        x[1] = __uint_as_float(word & 0xffff0000u);
    } else if constexpr (TYPE == COLL_REDUCE_FP16) {
        const float2 two = __half22float2(reinterpret_cast<const __half2 &>(word));
        x[0] = two.x;
        x[1] = two.y;
    } else {
        x[0] = __uint_as_float(word);
    }
}

// To nearest even; a NaN becomes 0x7fff.
template <coll_reduce_type TYPE> DEVICE uint32_t narrow(const float x[])
{
    if constexpr (TYPE == COLL_REDUCE_BF16) {
        const __nv_bfloat162 two = __floats2bfloat162_rn(x[0], x[1]);
        return reinterpret_cast<const uint32_t &>(two);
    } else if constexpr (TYPE == COLL_REDUCE_FP16) {
        const __half2 two = __floats2half2_rn(x[0], x[1]);
        return reinterpret_cast<const uint32_t &>(two);
    } else {
        return __float_as_uint(x[0]);
    }
}

// x * y + z of each value, rounded once.
template <coll_reduce_type TYPE> DEVICE uint32_t fused(uint32_t x, uint32_t y, uint32_t z)
{
    uint32_t r;
    if constexpr (TYPE == COLL_REDUCE_BF16)
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z));
    else if constexpr (TYPE == COLL_REDUCE_FP16)
        asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z));
    else
        r = __float_as_uint(__fmaf_rn(__uint_as_float(x), __uint_as_float(y), __uint_as_float(z)));
    return r;
}

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
            sum[i] = __fadd_rn(sum[i], x[i]);
    }
    DEVICE uint32_t end(const reduce_terms &terms)
    {
        for (int i = 0; i < COUNT; i++)
            sum[i] = __fmul_rn(sum[i], terms.scale);
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
            most[i] = __uint_as_float(0x7fffffffu);
    }
    DEVICE void add(uint32_t word, const reduce_terms &terms)
    {
        float x[COUNT];
        widen<TYPE>(word, x);
        for (int i = 0; i < COUNT; i++)
            most[i] = terms.minimum != 0 ? fminf(most[i], x[i]) : fmaxf(most[i], x[i]);
    }
    DEVICE uint32_t end(const reduce_terms &)
    {
        return narrow<TYPE>(most);
    }
};

} // namespace strait
#endif
