/* How fast kernels are, in all modes: made values, no rival. bench/ has what is told to others. */
#ifndef STRAIT_TESTS_CUDA_TIMES_H
#define STRAIT_TESTS_CUDA_TIMES_H

#include "tests/cuda_support.h"

/* Prints a line for each mode whose name has `named` in it, and each size; "-" where the plugin refuses. */
void time_modes(const struct device *device, const char *named);

#endif
