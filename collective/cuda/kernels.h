/* The kernels of the plugin, except for the reduction (reduce.h). */
#ifndef STRAIT_COLLECTIVE_CUDA_KERNELS_H
#define STRAIT_COLLECTIVE_CUDA_KERNELS_H

#include <cuda_runtime_api.h>

#include "collective/engine/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* control.cu */
/* Loads the kernels on the current device. */
cudaError_t control_prepare(void);
cudaError_t control_write_headers(const struct gpu_write_headers *headers, cudaStream_t stream);
cudaError_t control_check(const struct gpu_check *check, cudaStream_t stream);
cudaError_t control_verify(const struct gpu_verify *verify, cudaStream_t stream);

/* exchange.cu, which moves messages through host memory: those that overflow (collective/engine/exchange.h), and others
 * in NCCL's place (collective/engine/shm_step.h) */
/* Loads the kernels on the current device. */
cudaError_t exchange_prepare(void);
cudaError_t exchange_launch(const struct gpu_exchange *exchange, cudaStream_t stream);
cudaError_t shm_launch(const struct gpu_shm *shm, cudaStream_t stream);

#ifdef __cplusplus
}

/* Loads kernels on the current device in advance: the first launch of a kernel that is not loaded may wait for running
 * work. */
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

#endif
