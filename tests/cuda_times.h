/* Speed of the kernels in all modes, on synthetic values and without rivals. Published figures come from bench/. */
#ifndef STRAIT_TESTS_CUDA_TIMES_H
#define STRAIT_TESTS_CUDA_TIMES_H

#include "tests/cuda_support.h"

/* Prints a line for each size and each mode whose name contains `named`; "-" where the plugin refuses. */
void time_modes(const struct device *device, const char *named);

#endif
