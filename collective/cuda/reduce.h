/* The kernel of collective/reduce.h. */
#ifndef STRAIT_COLLECTIVE_CUDA_REDUCE_H
#define STRAIT_COLLECTIVE_CUDA_REDUCE_H

#include <cuda_runtime_api.h>

#include "collective/reduce.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Launches on `stream` of the current device, and can be captured: nothing is allocated, nothing waits. The struct is
 * copied; its addresses are the device's. `sm_budget`: multiprocessors to occupy; 0: all. cudaErrorInvalidValue:
 * coll_reduce_check() fails, or there are more than 64 sources that are no 64 tiles: each some sources that follow each
 * other and lie evenly spaced, as messages of ranks do in the staging memory. */
cudaError_t coll_reduce_launch(const struct coll_reduce *reduce, unsigned sm_budget, cudaStream_t stream);

/* Loads the kernels on the current device, so that no launch has to wait for that. */
cudaError_t coll_reduce_prepare(void);

#ifdef __cplusplus
}
#endif
#endif
