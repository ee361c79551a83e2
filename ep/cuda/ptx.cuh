// Instructions that have no name in C++, and operations on values with their rounding. For kernels that run on a host
// there is another file of this name (tests/emulated).
#ifndef STRAIT_EP_CUDA_PTX_CUH
#define STRAIT_EP_CUDA_PTX_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include <strait/codec.h>

#define DEVICE __device__ __forceinline__

namespace strait
{

constexpr uint32_t ALL_LANES = 0xffffffffu;
constexpr uint32_t THREADS = 1024; // of a block, which fills a multiprocessor

// ---- Flags ----------------------------------------------------------------------------------------------------------

DEVICE uint64_t load_acquire_system(const uint64_t *from)
{
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}

DEVICE void store_release_system(uint64_t *to, uint64_t value)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

DEVICE uint32_t load_acquire_device(const uint32_t *from)
{
    uint32_t value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

DEVICE void store_release_device(uint32_t *to, uint32_t value)
{
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

DEVICE void fence_system()
{
    __threadfence_system();
}

DEVICE uint64_t now_ns()
{
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// Between two looks of a wait. Those at host memory leave the link to others.
DEVICE void pause_wait(bool far)
{
    if (far)
        __nanosleep(200);
}

// ---- Memory ---------------------------------------------------------------------------------------------------------

// A value that another GPU, or another block of the launch, has stored: not from a cache of this multiprocessor.
template <class T> DEVICE T load_fresh(const T *from)
{
    return *static_cast<const volatile T *>(from);
}

// 16 bytes that are read once. Coherent loads, since other GPUs write what is read.
DEVICE uint4 load_vector(const uint8_t *from)
{
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}

DEVICE void store_vector(uint8_t *to, const uint4 &v)
{
    asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}

// ---- Bits -----------------------------------------------------------------------------------------------------------

DEVICE uint32_t count_bits(uint32_t x)
{
    return static_cast<uint32_t>(__popc(x));
}

// Of a set that is not empty.
DEVICE uint32_t lowest_bit(unsigned long long x)
{
    return static_cast<uint32_t>(__ffsll(static_cast<long long>(x))) - 1;
}

// ---- Values ---------------------------------------------------------------------------------------------------------

DEVICE float add(float x, float y)
{
    return __fadd_rn(x, y);
}

DEVICE float multiply(float x, float y)
{
    return __fmul_rn(x, y);
}

template <strait_element TYPE> constexpr int values_of_word()
{
    return TYPE == STRAIT_ELEMENT_FP32 ? 1 : 2;
}

template <strait_element TYPE> DEVICE void widen(uint32_t word, float x[])
{
    if constexpr (TYPE == STRAIT_ELEMENT_BF16) {
        x[0] = __uint_as_float(word << 16);
        x[1] = __uint_as_float(word & 0xffff0000u);
    } else if constexpr (TYPE == STRAIT_ELEMENT_FP16) {
        const float2 two = __half22float2(reinterpret_cast<const __half2 &>(word));
        x[0] = two.x;
        x[1] = two.y;
    } else {
        x[0] = __uint_as_float(word);
    }
}

// To nearest even; a NaN becomes 0x7fff, of FP32 0x7fffffff.
template <strait_element TYPE> DEVICE uint32_t narrow(const float x[])
{
    if constexpr (TYPE == STRAIT_ELEMENT_BF16) {
        const __nv_bfloat162 two = __floats2bfloat162_rn(x[0], x[1]);
        return reinterpret_cast<const uint32_t &>(two);
    } else if constexpr (TYPE == STRAIT_ELEMENT_FP16) {
        const __half2 two = __floats2half2_rn(x[0], x[1]);
        return reinterpret_cast<const uint32_t &>(two);
    } else {
        const uint32_t bits = __float_as_uint(x[0]);
        return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffffffu : bits;
    }
}

} // namespace strait
#endif
