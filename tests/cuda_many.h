/* Hundreds of MiB in one launch: finds errors that occur only when counters or rings wrap around after many blocks. */
#ifndef STRAIT_TESTS_CUDA_MANY_H
#define STRAIT_TESTS_CUDA_MANY_H

#include "tests/cuda_support.h"

/* Runs a batch of chunks in both modes, several times. Each chunk must equal the host's, and every page must come back.
 */
void many_blocks(const struct device *device);

#endif
