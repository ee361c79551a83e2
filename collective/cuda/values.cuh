// Operations of the GPU on values of sums. Every one names its rounding, so that the compiler contracts nothing. For
// kernels that run on a host there is another file of this name (tests/emulated).
#ifndef STRAIT_COLLECTIVE_CUDA_VALUES_CUH
#define STRAIT_COLLECTIVE_CUDA_VALUES_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "collective/reduce.h"

#define DEVICE __device__ __forceinline__

namespace strait
{

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

DEVICE float plus(float x, float y)
{
    return __fadd_rn(x, y);
}

DEVICE float times(float x, float y)
{
    return __fmul_rn(x, y);
}

// That a NaN result is.
DEVICE float nan_of_sums()
{
    return __uint_as_float(0x7fffffffu);
}

DEVICE float larger(float x, float y)
{
    return fmaxf(x, y);
}

DEVICE float smaller(float x, float y)
{
    return fminf(x, y);
}

} // namespace strait
#endif
