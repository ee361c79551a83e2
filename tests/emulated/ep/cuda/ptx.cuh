// In place of ep/cuda/ptx.cuh, for kernels that run on the host. Blocks have few threads, so that there are many steps.
#ifndef STRAIT_EP_CUDA_PTX_CUH
#define STRAIT_EP_CUDA_PTX_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>

#include <strait/codec.h>

#include "tests/emulated/lanes.h"

#define DEVICE inline

namespace strait
{

constexpr uint32_t ALL_LANES = 0xffffffffu;
constexpr uint32_t THREADS = 96;

// ---- Flags ----------------------------------------------------------------------------------------------------------

DEVICE uint64_t load_acquire_system(const uint64_t *from)
{
    emulated::pause();
    return *from;
}

DEVICE void store_release_system(uint64_t *to, uint64_t value)
{
    emulated::pause();
    *to = value;
}

DEVICE uint32_t load_acquire_device(const uint32_t *from)
{
    emulated::pause();
    return *from;
}

DEVICE void store_release_device(uint32_t *to, uint32_t value)
{
    emulated::pause();
    *to = value;
}

DEVICE void fence_system()
{
    emulated::pause();
}

// Time goes on by a microsecond whenever it is asked for.
DEVICE uint64_t now_ns()
{
    static uint64_t now;
    return now += 1000;
}

DEVICE void pause_wait(bool)
{
    emulated::yield();
}

// ---- Memory ---------------------------------------------------------------------------------------------------------

template <class T> DEVICE T load_fresh(const T *from)
{
    return *static_cast<const volatile T *>(from);
}

DEVICE void check_vector(const void *at)
{
    if (reinterpret_cast<uintptr_t>(at) % sizeof(uint4) != 0)
        __builtin_trap();
}

DEVICE uint4 load_vector(const uint8_t *from)
{
    uint4 v;
    check_vector(from);
    memcpy(&v, from, sizeof(v));
    return v;
}

DEVICE void store_vector(uint8_t *to, const uint4 &v)
{
    check_vector(to);
    memcpy(to, &v, sizeof(v));
}

// ---- Bits -----------------------------------------------------------------------------------------------------------

DEVICE uint32_t count_bits(uint32_t x)
{
    return static_cast<uint32_t>(__builtin_popcount(x));
}

DEVICE uint32_t lowest_bit(unsigned long long x)
{
    return static_cast<uint32_t>(__builtin_ctzll(x));
}

// ---- Values ---------------------------------------------------------------------------------------------------------

DEVICE float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

DEVICE uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

// A NaN result is the GPU's.
DEVICE float with_nan(float x)
{
    return x != x ? float_of(0x7fffffffu) : x;
}

DEVICE float add(float x, float y)
{
    return with_nan(x + y);
}

DEVICE float multiply(float x, float y)
{
    return with_nan(x * y);
}

template <strait_element TYPE> constexpr int values_of_word()
{
    return TYPE == STRAIT_ELEMENT_FP32 ? 1 : 2;
}

template <strait_element TYPE> DEVICE void widen(uint32_t word, float x[])
{
    for (int i = 0; i < values_of_word<TYPE>(); i++) {
        const uint16_t half = static_cast<uint16_t>(word >> 16 * i);
        if (TYPE == STRAIT_ELEMENT_BF16)
            x[i] = float_of(static_cast<uint32_t>(half) << 16);
        else if (TYPE == STRAIT_ELEMENT_FP16)
            x[i] = __half2float(__half(__half_raw{half}));
        else
            x[i] = float_of(word);
    }
}

template <strait_element TYPE> DEVICE uint32_t narrow(const float x[])
{
    uint32_t word = 0;
    for (int i = 0; i < values_of_word<TYPE>(); i++) {
        const bool is_nan = x[i] != x[i];
        if (TYPE == STRAIT_ELEMENT_BF16)
            word |= (is_nan ? 0x7fffu : __nv_bfloat16_raw(__float2bfloat16_rn(x[i])).x) << 16 * i;
        else if (TYPE == STRAIT_ELEMENT_FP16)
            word |= (is_nan ? 0x7fffu : __half_raw(__float2half_rn(x[i])).x) << 16 * i;
        else
            word = is_nan ? 0x7fffffffu : bits_of(x[i]);
    }
    return word;
}

} // namespace strait
#endif
