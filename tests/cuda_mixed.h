/* Chunks that mix blocks of many modes. No encoder writes such chunks, but all decoders must read them. */
#ifndef STRAIT_TESTS_CUDA_MIXED_H
#define STRAIT_TESTS_CUDA_MIXED_H

#include "tests/cuda_support.h"

/* Batches of such chunks, of several element types: what a block leaves in a team's shared memory must not disturb the
 * next block, whatever the modes of the two. Returns the number of chunks. */
unsigned mixed_blocks(const struct device *device, unsigned batches);

#endif
