/* What libstrait-coll looks up in its plugin. */
#include <cuda_runtime_api.h>
#include <stdio.h>

#include "collective/cuda/gpu.h"
#include "collective/engine/ops.h"

__attribute__((visibility("default"))) coll_engine_get strait_coll_engine;
const struct coll_engine_ops *strait_coll_engine(char *why, size_t why_size)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count > 0)
        return engine_ops(cuda_gpu());
    snprintf(why, why_size, "no GPU can be used: %s",
             error != cudaSuccess ? cudaGetErrorString(error) : "there is none");
    return NULL;
}
