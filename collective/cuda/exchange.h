/* The kernels that move messages that overflow (collective/engine/exchange.h). */
#ifndef STRAIT_COLLECTIVE_CUDA_EXCHANGE_H
#define STRAIT_COLLECTIVE_CUDA_EXCHANGE_H

#include <cuda_runtime_api.h>

#include "collective/engine/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Loads the kernels on the current device. */
cudaError_t exchange_prepare(void);
cudaError_t exchange_launch(const struct gpu_exchange *exchange, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
