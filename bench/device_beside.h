/* How much slower matrix products become while the codec runs on some of the multiprocessors. */
#ifndef STRAIT_BENCH_DEVICE_BESIDE_H
#define STRAIT_BENCH_DEVICE_BESIDE_H

#include <stdbool.h>
#include <stdint.h>

struct device_bench;

/* What is done to make room for the codec. */
enum beside_setting {
    BESIDE_PLAIN,    /* nothing: two streams of one priority */
    BESIDE_PRIORITY, /* the codec's stream has the highest priority, so that it gets its multiprocessors */
    BESIDE_TOLD,     /* also, cuBLAS is told how many multiprocessors are left */
    BESIDE_SETTINGS,
};
extern const char *const beside_names[BESIDE_SETTINGS];

struct beside_row {
    const char *mode;
    bool decode;
    uint32_t sm_budget;
    struct {
        double loss;    /* share of the products' rate that is lost: 1 - time alone / time beside the codec */
        double sm_GBps; /* raw bytes that the codec codes meanwhile, per multiprocessor that it has */
    } at[BESIDE_SETTINGS];
    bool ok;
};

#define BESIDE_ROWS_MAX 16u

struct device_beside {
    int size;        /* of the matrices; 0: not measured */
    int version;     /* of cuBLAS */
    double alone_us; /* of one product alone, the median over all pairs */
    char why[256];   /* if not measured: why not */
    struct beside_row rows[BESIDE_ROWS_MAX];
    unsigned count;
};

/* Measures on a pool of `bytes`. A missing cuBLAS is not a failure. False: something failed; the error is on stderr. */
bool device_beside_run(struct device_bench *bench, uint64_t bytes, uint64_t page_bytes, uint64_t chunk_bytes,
                       const char *cublas);

#endif
