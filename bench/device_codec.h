/* strait bench codec --device: the CUDA variant on pools in device memory. */
#ifndef STRAIT_BENCH_DEVICE_CODEC_H
#define STRAIT_BENCH_DEVICE_CODEC_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/device_beside.h"
#include "bench/machine.h"
#include "bench/options.h"
#include "tools/calibrate.h"

/* One line of the table. */
struct device_row {
    const char *name; /* copy engine, copy kernel, codec, one graph, limited */
    const char *mode; /* "-": none */
    const char *order;
    uint64_t bytes, page_bytes, chunk_bytes;
    uint32_t sm_budget;    /* 0: all */
    double ratio;          /* 0: none */
    double encode, decode; /* GB/s of raw bytes, medians; a copy has only `encode` */
    double p50_us, p99_us; /* encode + decode; 0: not measured */
    double limit;          /* GB/s that the copies of the same run allow; 0: none */
    uint64_t values;       /* device_sum of what was coded; 0: not taken */
    bool ok;
};

/* Measures everything and prints the report. False when something failed, with the error on stderr, or when a decoded
 * buffer is not what was encoded. */
bool device_codec_run(const struct codec_options *options, const struct machine *machine, const struct tensors *tensors,
                      const struct strait_codebook *codebook);

#define DEVICE_ROWS_MAX 64u

struct device_report {
    const struct codec_options *options;
    const struct machine *machine;
    const struct strait_codebook *codebook;
    char device[128];
    int driver, runtime, multiprocessors;
    struct device_row rows[DEVICE_ROWS_MAX];
    unsigned count;
    struct device_beside beside;
};

/* False when it failed, with the error on stderr. */
bool device_report_print(const struct device_report *report);

#endif
