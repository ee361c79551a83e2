/* The kernel of collective/reduce.h. */
#ifndef STRAIT_COLLECTIVE_CUDA_REDUCE_H
#define STRAIT_COLLECTIVE_CUDA_REDUCE_H

#include <cuda_runtime_api.h>

#include "collective/reduce.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Launches on `stream`, of the current device, and can be captured: nothing is allocated, nothing waits. The struct is
 * copied; the addresses are those that the device uses. `sm_budget`: multiprocessors to occupy; 0: all.
 * cudaErrorInvalidValue: what coll_reduce_check() does not like. */
cudaError_t coll_reduce_launch(const struct coll_reduce *reduce, unsigned sm_budget, cudaStream_t stream);

/* Loads the kernels on the current device, so that no launch waits for that. */
cudaError_t coll_reduce_prepare(void);

#ifdef __cplusplus
}
#endif
#endif
