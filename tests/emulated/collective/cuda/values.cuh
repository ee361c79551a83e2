// In place of collective/cuda/values.cuh, for kernels that run on the host: what collective/reduce.h says of the GPU's
// operations. A NaN result is the GPU's.
#ifndef STRAIT_COLLECTIVE_CUDA_VALUES_CUH
#define STRAIT_COLLECTIVE_CUDA_VALUES_CUH

#include <cmath>
#include <cstdint>

#include <cuda_runtime.h>

#include "collective/reduce.h"

#define DEVICE inline

inline uint4 __ldcg(const uint4 *from)
{
    return *from;
}

namespace strait
{

template <coll_reduce_type TYPE> constexpr int values_of_word()
{
    return TYPE == COLL_REDUCE_FP32 ? 1 : 2;
}

DEVICE uint32_t half_of(uint32_t word, int i)
{
    return i == 0 ? word & 0xffff : word >> 16;
}

template <coll_reduce_type TYPE> DEVICE void widen(uint32_t word, float x[])
{
    for (int i = 0; i < values_of_word<TYPE>(); i++)
        x[i] = coll_reduce_widen(TYPE, TYPE == COLL_REDUCE_FP32 ? word : half_of(word, i));
}

template <coll_reduce_type TYPE> DEVICE uint32_t narrow(const float x[])
{
    uint32_t word = 0;
    for (int i = 0; i < values_of_word<TYPE>(); i++)
        word |= coll_reduce_narrow(TYPE, x[i]) << 16 * i;
    return word;
}

// x * y + z, rounded so that rounding it to the type afterwards is rounding once: what the sum has lost goes to its
// last bit. The product is exact.
DEVICE double fused_to_odd(float x, float y, float z)
{
    const double product = static_cast<double>(x) * y, sum = product + z, part = sum - product;
    const double lost = (product - (sum - part)) + (z - part);
    const uint64_t bits = bits_of_double(sum);
    if (!std::isfinite(sum) || lost == 0 || bits % 2 != 0)
        return sum;
    return double_of_bits((lost > 0) == (sum > 0) ? bits + 1 : bits - 1);
}

template <coll_reduce_type TYPE> DEVICE uint32_t fused(uint32_t x, uint32_t y, uint32_t z)
{
    float a[2], b[2], c[2];
    uint32_t word = 0;
    widen<TYPE>(x, a);
    widen<TYPE>(y, b);
    widen<TYPE>(z, c);
    for (int i = 0; i < values_of_word<TYPE>(); i++)
        word |= coll_reduce_narrow(TYPE, fused_to_odd(a[i], b[i], c[i])) << 16 * i;
    return word;
}

DEVICE float nan_of_sums()
{
    return float_of_bits(0x7fffffff);
}

DEVICE float with_nan(float x)
{
    return std::isnan(x) ? nan_of_sums() : x;
}

DEVICE float plus(float x, float y)
{
    return with_nan(x + y);
}

DEVICE float times(float x, float y)
{
    return with_nan(x * y);
}

DEVICE float larger(float x, float y)
{
    if (std::isnan(x) || std::isnan(y))
        return with_nan(std::isnan(x) ? y : x);
    if (x == y)
        return std::signbit(x) ? y : x;
    return x > y ? x : y;
}

DEVICE float smaller(float x, float y)
{
    return -larger(-x, -y);
}

} // namespace strait
#endif
