/* Kernels of the bench itself. They return nonzero when CUDA refused. */
#ifndef STRAIT_BENCH_DEVICE_KERNELS_H
#define STRAIT_BENCH_DEVICE_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;
struct gpu_layout;

/* A plain copy kernel, for comparison; multiples of 16 bytes. */
int device_copy(void *dst, const void *src, size_t bytes, struct CUstream_st *stream);
/* Adds to *count the 16-byte vectors that differ. */
int device_count_differences(const void *a, const void *b, size_t bytes, unsigned long long *count,
                             struct CUstream_st *stream);
/* Adds to *sum each 64-bit word times its number, counted from 1, modulo 2^64: to compare the bytes of two programs. */
int device_sum(const void *values, size_t bytes, unsigned long long *sum, struct CUstream_st *stream);
/* The kernels behind gpu_stamp and gpu_wrong_pages of gpu_memory.h. */
int device_stamp(void *memory, uint64_t units, struct CUstream_st *stream);
int device_count_wrong_pages(const void *memory, const void *reference, const int32_t *wanted,
                             const struct gpu_layout *layout, unsigned long long *count, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
