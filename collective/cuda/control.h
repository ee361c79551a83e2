/* The small kernels of collective/engine/gpu.h. */
#ifndef STRAIT_COLLECTIVE_CUDA_CONTROL_H
#define STRAIT_COLLECTIVE_CUDA_CONTROL_H

#include <cuda_runtime_api.h>

#include "collective/engine/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Loads the kernels on the current device. */
cudaError_t control_prepare(void);
cudaError_t control_seal(const struct gpu_write_headers *seal, cudaStream_t stream);
cudaError_t control_check(const struct gpu_check *check, cudaStream_t stream);
cudaError_t control_verify(const struct gpu_verify *verify, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
