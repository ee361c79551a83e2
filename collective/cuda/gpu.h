#ifndef STRAIT_COLLECTIVE_CUDA_GPU_H
#define STRAIT_COLLECTIVE_CUDA_GPU_H

#include "collective/engine/gpu.h"

/* GPUs through the CUDA runtime. */
const struct gpu_ops *cuda_gpu(void);

#endif
