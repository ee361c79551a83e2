/* Faults of a GPU, made from within the process that uses it: by a plugin in front of a daemon's, or a client. */
#ifndef STRAIT_TESTS_CHAOS_GPU_H
#define STRAIT_TESTS_CHAOS_GPU_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum gpu_fault { GPU_TRAP, GPU_BAD_ADDRESS, GPU_FAULTS };

/* Runs a kernel that fails: the process has no use of the GPU any more. Returns what the driver says. */
const char *gpu_break(int32_t device, enum gpu_fault fault) __attribute__((weak));
/* Keeps all multiprocessors busy. Returns what the driver says. */
const char *gpu_stall(int32_t device, uint32_t ms) __attribute__((weak));

#ifdef __cplusplus
}
#endif
#endif
