/* Shared by the rows of `strait bench codec --device`: the device, calls of the codec, and their times. */
#ifndef STRAIT_BENCH_DEVICE_CALLS_H
#define STRAIT_BENCH_DEVICE_CALLS_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/codec.h>

#include "bench/device_codec.h"
#include "bench/device_pool.h"
#include "tools/calibrate.h"

struct CUstream_st;

struct device_bench {
    const struct tensors *tensors;
    const struct strait_codebook *codebook;
    const struct strait_codec *codec;
    struct CUstream_st *stream; /* of all calls */
    uint8_t *scratch, *tables;
    uint64_t scratch_size;
    unsigned repeats;
    double copy_traffic; /* bytes that the copy kernel reads and writes per nanosecond */
    struct device_report report;
};

/* False, with a message on stderr, unless the status is OK. */
bool device_status_ok(enum strait_status status, const char *what);

/* Allocates scratch memory for the calls of this pool, and of others of its shape. */
bool device_use_scratch(struct device_bench *bench, const struct device_pool *pool);
/* Both enqueue. sm_budget 0: all multiprocessors. */
bool device_encode_pool(const struct device_bench *bench, const struct device_pool *pool, enum strait_mode mode,
                        uint32_t sm_budget);
bool device_decode_pool(const struct device_bench *bench, const struct device_pool *pool, uint32_t sm_budget);
/* Encodes and decodes once, into memory that held other bytes, and waits. Afterwards the pool may be decoded. */
bool device_prove_pool(const struct device_bench *bench, struct device_pool *pool, enum strait_mode mode,
                       uint32_t sm_budget, uint64_t *coded_bytes);

/* Times `count` calls, one after another; us[] is sorted, in microseconds. */
typedef bool device_timed_call(const struct device_bench *bench, void *arg, unsigned turn);
bool device_time_calls(const struct device_bench *bench, device_timed_call *call, void *arg, unsigned count, float *us);

#endif
