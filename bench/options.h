/* Options of `strait bench codec`. */
#ifndef STRAIT_BENCH_OPTIONS_H
#define STRAIT_BENCH_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/codec.h>

#include "bench/sources.h"

#define PAGES_MAX    8u
#define VARIANTS_MAX 8u
#define MODES_MAX    8u
#define REPEATS_MAX  1000u

/* What is measured on a device. */
enum device_case {
    DEVICE_CODEC,   /* large pools, and copies of them */
    DEVICE_LIMITED, /* on some of the multiprocessors */
    DEVICE_SMALL,   /* 4 KiB pages */
    DEVICE_GRAPHS,  /* small batches, encoded and decoded by one graph */
    DEVICE_BESIDE,  /* beside matrix products */
    DEVICE_CASES,
};

struct codec_options {
    struct sources sources;
    uint64_t pages[PAGES_MAX];
    unsigned page_count;
    uint64_t chunk_bytes;
    uint64_t size;
    unsigned repeats;
    unsigned threads;
    const struct strait_codec *variants[VARIANTS_MAX];
    unsigned variant_count;
    enum strait_mode modes[MODES_MAX];
    unsigned mode_count;
    double escapes; /* share of values to overwrite */
    const char *rivals;
    bool device; /* the CUDA variant on pools in device memory, and nothing else */
    bool cases[DEVICE_CASES];
    const char *cublas; /* library; NULL: by its usual names */
    const char *save;   /* also write the JSON of --device to this file; NULL: do not */
    bool json;
    bool help; /* help was asked for: nothing else is checked */
};

/* Reads the arguments and fills in the defaults. False when they are wrong, with the error on stderr. The caller must
 * call codec_options_fini() either way. */
bool codec_options_init(struct codec_options *options, int argc, char **argv);
void codec_options_fini(struct codec_options *options);

extern const char codec_usage[];

#endif
