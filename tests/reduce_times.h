/* Speed of sums on a GPU. */
#ifndef STRAIT_TESTS_REDUCE_TIMES_H
#define STRAIT_TESTS_REDUCE_TIMES_H

#include <cuda_runtime_api.h>

/* Prints medians, next to those of a copy of as much memory. */
void time_reduce(cudaStream_t stream);

#endif
