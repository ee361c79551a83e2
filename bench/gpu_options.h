/* What `strait bench transfer --device` was asked. */
#ifndef STRAIT_BENCH_GPU_OPTIONS_H
#define STRAIT_BENCH_GPU_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/sources.h"
#include "bench/values.h"

#define GPU_SIZES_MAX 8u

/* How chunks of GPU pages may travel, as far as the daemons can be told to. */
enum gpu_wire {
    GPU_WIRE_PEER,   /* from GPU to GPU */
    GPU_WIRE_PINNED, /* by way of pinned memory of the host */
    GPU_WIRE_NCCL,   /* from GPU to GPU, by NCCL */
    GPU_WIRE_UCX,    /* likewise, by UCX */
    GPU_WIRES,
};
extern const char *const gpu_wire_names[GPU_WIRES];
extern const char *const gpu_wire_counters[GPU_WIRES]; /* as metrics name them */

struct gpu_options {
    struct sources sources;

    int from, to; /* ordinals; -1: the first, and the next if there is one */
    bool wires[GPU_WIRES];
    enum strait_coding codings[CODINGS_MAX];
    unsigned coding_count;
    uint64_t page_bytes;
    uint64_t sizes[GPU_SIZES_MAX]; /* of a request, in bytes */
    unsigned size_count;
    uint32_t repeats, warmups;

    const char *daemon[DAEMON_OPTIONS_MAX]; /* further options of every straitd */
    unsigned daemon_count;
    bool fault;       /* one bit of a page that has landed is turned over: a check that has to fail */
    const char *save; /* file for the JSON, besides; NULL: none */
    bool json;
    bool help; /* was asked for: nothing else is checked */
};

/* Whether --device is among the arguments, which are then read here. */
bool gpu_options_asked(int argc, char **argv);

/* Reads the arguments and fills in what they leave open. False, which stderr has been told, when they are wrong. The
 * caller must gpu_options_fini() it either way. */
bool gpu_options_init(struct gpu_options *options, int argc, char **argv);
void gpu_options_fini(struct gpu_options *options);

extern const char gpu_usage[];

#endif
