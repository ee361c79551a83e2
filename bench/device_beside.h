/* How much slower matrix products get while the codec runs on some multiprocessors beside them. */
#ifndef STRAIT_BENCH_DEVICE_BESIDE_H
#define STRAIT_BENCH_DEVICE_BESIDE_H

#include <stdbool.h>
#include <stdint.h>

struct device_bench;

/* What is done for the codec. */
enum beside_setting {
    BESIDE_PLAIN,    /* nothing: two streams of one priority */
    BESIDE_PRIORITY, /* its stream has the highest priority, so that it gets its multiprocessors */
    BESIDE_TOLD,     /* that, and cuBLAS is told how many are left */
    BESIDE_SETTINGS,
};
extern const char *const beside_names[BESIDE_SETTINGS];

struct beside_row {
    const char *mode;
    bool decode;
    uint32_t sm_budget;
    struct {
        double loss;    /* share of the products' rate that is lost: 1 - time alone / time beside */
        double sm_GBps; /* raw bytes that the codec codes meanwhile, on each of its multiprocessors */
    } at[BESIDE_SETTINGS];
    bool ok;
};

#define BESIDE_ROWS_MAX 16u

struct device_beside {
    int size;        /* of the matrices; 0: not measured */
    int version;     /* of cuBLAS */
    double alone_us; /* of one product, the median of all that were paired with others */
    char why[256];   /* not measured: why not */
    struct beside_row rows[BESIDE_ROWS_MAX];
    unsigned count;
};

/* On a pool of so many bytes. A cuBLAS that is missing is no failure. False: something failed, which stderr has been
 * told. */
bool device_beside_run(struct device_bench *bench, uint64_t bytes, uint64_t page_bytes, uint64_t chunk_bytes,
                       const char *cublas);

#endif
