// Launches: a block fills a multiprocessor, and there are never more of them than multiprocessors.
#ifndef STRAIT_EP_CUDA_LAUNCH_CUH
#define STRAIT_EP_CUDA_LAUNCH_CUH

#include "ep/cuda/block.cuh"
#include "ep/cuda/phases.h"

namespace strait
{

inline uint32_t blocks_of(const ep_group_view &group, uint32_t multiprocessors)
{
    return group.sm_budget < multiprocessors ? group.sm_budget : multiprocessors;
}

template <class ARGS, class SHARED>
cudaError_t launch(const void *kernel, const ARGS &args, uint32_t blocks, cudaStream_t stream)
{
    static_assert(sizeof(SHARED) <= 48 * 1024, "what a launch may have without asking");
    ARGS copy = args;
    void *arguments[] = {&copy};
    return cudaLaunchKernel(kernel, dim3(blocks), dim3(THREADS), arguments, sizeof(SHARED), stream);
}

template <size_t COUNT> cudaError_t load(const void *const (&kernels)[COUNT])
{
    cudaFuncAttributes attributes;
    cudaError_t error = cudaSuccess;
    for (size_t i = 0; i < COUNT && error == cudaSuccess; i++)
        error = cudaFuncGetAttributes(&attributes, kernels[i]);
    return error;
}

} // namespace strait
#endif
