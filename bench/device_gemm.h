/* Matrix products of cuBLAS, which is loaded when it is needed. */
#ifndef STRAIT_BENCH_DEVICE_GEMM_H
#define STRAIT_BENCH_DEVICE_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct CUstream_st;

struct device_gemm {
    void *library, *handle; /* of cuBLAS */
    int version;
    int (*product)(void *handle, int transpose_a, int transpose_b, int m, int n, int k, const void *alpha,
                   const void *a, int a_type, int lda, const void *b, int b_type, int ldb, const void *beta, void *c,
                   int c_type, int ldc, int compute, int algorithm);
    int (*set_multiprocessors)(void *handle, int count);
    int (*destroy)(void *handle);
    int size;       /* of the square matrices */
    uint8_t *c;     /* owned */
    const void *ab; /* both factors: BF16 values */
};

/* Square matrices of `size`; both factors are the first 2 * size * size bytes of `values`, device memory that must
 * outlive it. `path` NULL: the library by its usual names. False: there is none, or it failed; `why` tells. The caller
 * must device_gemm_close() it either way. */
bool device_gemm_open(struct device_gemm *gemm, const char *path, int size, const void *values,
                      struct CUstream_st *stream, char *why, size_t why_size);
void device_gemm_close(struct device_gemm *gemm); /* safe on zeroes */

/* Enqueues one product. False: it was refused, which was printed to stderr. */
bool device_gemm_run(const struct device_gemm *gemm);
/* From now on, products are planned for this many multiprocessors; 0: all. False: it was refused. */
bool device_gemm_use(const struct device_gemm *gemm, int multiprocessors);

#endif
