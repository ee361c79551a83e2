/* Kernels of the bench itself. Nonzero: CUDA refused. */
#ifndef STRAIT_BENCH_DEVICE_KERNELS_H
#define STRAIT_BENCH_DEVICE_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

/* What a plain copy kernel needs; multiples of 16 bytes. */
int device_copy(void *dst, const void *src, size_t bytes, struct CUstream_st *stream);
/* Adds to *count the 16-byte vectors that differ. */
int device_count_differences(const void *a, const void *b, size_t bytes, unsigned long long *count,
                             struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
