/* Compressible values for nccl-tests: preloaded, this overrides the function of its libverifiable (DSO=1) that makes
 * what is sent and what has to arrive. For operations that do not reduce, the original spreads exponents over 128
 * values, which is good for tests but says nothing about speed; here the values are normally distributed. They depend
 * only on seed, rank and place, so what is sent and what is expected agree, and nccl-tests does the comparison.
 *
 * Reductions (rank_n > 1) keep the original values, as another function computes their expected results. So do types
 * that are not compressed. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <stdint.h>

/* As verifiable.h of nccl-tests declares it. */
__attribute__((visibility("default"))) cudaError_t ncclVerifiablePrepareInput(void *elts, intptr_t elt_n, int elt_ty,
                                                                              int red_op, int rank_n, int rank_me,
                                                                              uint64_t seed, intptr_t elt_ix0,
                                                                              cudaStream_t stream);

namespace
{

enum { TYPE_FLOAT16 = 6, TYPE_FLOAT32 = 7, TYPE_BFLOAT16 = 9 }; /* ncclDataType_t */

__device__ uint64_t mixed(uint64_t word)
{
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ull;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebull;
    return word ^ (word >> 31);
}

/* Box and Muller: two uniform numbers make a normal one. */
__device__ float normal(uint64_t word)
{
    float first = ((uint32_t)word + 0.5f) * 0x1p-32f, second = (uint32_t)(word >> 32) * 0x1p-32f;
    return sqrtf(-2.0f * logf(fminf(first, 0.99999994f))) * cospif(2.0f * second);
}

__device__ void put(float *dst, float value)
{
    *dst = value;
}

__device__ void put(__half *dst, float value)
{
    *dst = __float2half(value);
}

__device__ void put(__nv_bfloat16 *dst, float value)
{
    *dst = __float2bfloat16(value);
}

template <typename T> __global__ void fill(T *dst, intptr_t count, uint64_t seed, intptr_t first)
{
    intptr_t step = (intptr_t)gridDim.x * blockDim.x;
    for (intptr_t i = (intptr_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        put(dst + i, 0.02f * normal(mixed(seed + (uint64_t)(first + i) * 0x9e3779b97f4a7c15ull)));
}

template <typename T> cudaError_t filled(void *dst, intptr_t count, uint64_t seed, intptr_t first, cudaStream_t stream)
{
    if (count > 0)
        fill<<<528, 256, 0, stream>>>(static_cast<T *>(dst), count, seed, first);
    return cudaGetLastError();
}

using prepare_input = decltype(&ncclVerifiablePrepareInput);

prepare_input original()
{
    Dl_info here;
    if (dladdr(reinterpret_cast<void *>(&ncclVerifiablePrepareInput), &here) == 0 || here.dli_sname == nullptr)
        return nullptr;
    return reinterpret_cast<prepare_input>(dlsym(RTLD_NEXT, here.dli_sname));
}

} // namespace

cudaError_t ncclVerifiablePrepareInput(void *elts, intptr_t elt_n, int elt_ty, int red_op, int rank_n, int rank_me,
                                       uint64_t seed, intptr_t elt_ix0, cudaStream_t stream)
{
    static const prepare_input next = original();
    /* Spread apart: ranks and repeats have consecutive seeds. */
    uint64_t mine = (seed + 1) * 0xd6e8feb86659fd93ull + (uint64_t)rank_me * 0xa0761d6478bd642full;
    if (rank_n == 1 && elt_ty == TYPE_FLOAT16)
        return filled<__half>(elts, elt_n, mine, elt_ix0, stream);
    if (rank_n == 1 && elt_ty == TYPE_FLOAT32)
        return filled<float>(elts, elt_n, mine, elt_ix0, stream);
    if (rank_n == 1 && elt_ty == TYPE_BFLOAT16)
        return filled<__nv_bfloat16>(elts, elt_n, mine, elt_ix0, stream);
    if (next == nullptr)
        return cudaErrorSharedObjectSymbolNotFound;
    return next(elts, elt_n, elt_ty, red_op, rank_n, rank_me, seed, elt_ix0, stream);
}
