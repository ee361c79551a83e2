/* Chunks whose blocks have modes of many kinds. No encoder writes them so, but all decoders read them. */
#ifndef STRAIT_TESTS_CUDA_MIXED_H
#define STRAIT_TESTS_CUDA_MIXED_H

#include "tests/cuda_support.h"

/* Batches of such chunks, of several element types: what a block leaves behind in a team's shared memory must not be in
 * the way of the next one, whatever the two are. Returns how many chunks. */
unsigned mixed_blocks(const struct device *device, unsigned batches);

#endif
