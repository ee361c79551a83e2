/* Hundreds of MiB in one launch: what comes round only after many blocks shows nowhere else. */
#ifndef STRAIT_TESTS_CUDA_MANY_H
#define STRAIT_TESTS_CUDA_MANY_H

#include "tests/cuda_support.h"

/* A batch of chunks, in both modes, several times; each of them what the host makes of it, and every page come back. */
void many_blocks(const struct device *device);

#endif
