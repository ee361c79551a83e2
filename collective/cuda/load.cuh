// Loads kernels on the current device in advance: the first launch of a kernel that is not loaded may wait for running
// work.
#ifndef STRAIT_COLLECTIVE_CUDA_LOAD_CUH
#define STRAIT_COLLECTIVE_CUDA_LOAD_CUH

#include <cuda_runtime_api.h>

template <size_t COUNT> cudaError_t load_kernels(const void *const (&kernels)[COUNT])
{
    cudaError_t error = cudaSuccess;
    cudaFuncAttributes attributes;
    for (const void *kernel : kernels)
        if (error == cudaSuccess)
            error = cudaFuncGetAttributes(&attributes, kernel);
    return error;
}

#endif
