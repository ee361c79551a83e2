/* Options of `strait bench transfer --device`. */
#ifndef STRAIT_BENCH_GPU_OPTIONS_H
#define STRAIT_BENCH_GPU_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/sources.h"
#include "bench/values.h"

#define GPU_SIZES_MAX 8u

/* How chunks of GPU pages may travel, among the ways that the daemons can be told to use. */
enum gpu_wire {
    GPU_WIRE_PEER,   /* from GPU to GPU */
    GPU_WIRE_PINNED, /* through pinned host memory */
    GPU_WIRE_NCCL,   /* from GPU to GPU, over NCCL */
    GPU_WIRE_UCX,    /* likewise, over UCX */
    GPU_WIRES,
};
extern const char *const gpu_wire_names[GPU_WIRES];
extern const char *const gpu_wire_counters[GPU_WIRES]; /* names in the metrics */

struct gpu_options {
    struct sources sources;

    int from, to; /* ordinals; -1: the first GPU, and the next one if there is one */
    bool wires[GPU_WIRES];
    enum strait_coding codings[CODINGS_MAX];
    unsigned coding_count;
    uint64_t page_bytes;
    uint64_t sizes[GPU_SIZES_MAX]; /* of a request, in bytes */
    unsigned size_count;
    uint32_t repeats, warmups;

    const char *daemon[DAEMON_OPTIONS_MAX]; /* further options of every straitd */
    unsigned daemon_count;
    bool fault;       /* flip one bit of a landed page, so that the check has to fail */
    const char *save; /* also write the JSON to this file; NULL: do not */
    bool json;
    bool help; /* help was asked for: nothing else is checked */
};

/* Whether --device is among the arguments, which gpu_options_init must then read. */
bool gpu_options_asked(int argc, char **argv);

/* Reads the arguments and fills in the defaults. False when they are wrong, with the error on stderr. The caller must
 * call gpu_options_fini() either way. */
bool gpu_options_init(struct gpu_options *options, int argc, char **argv);
void gpu_options_fini(struct gpu_options *options);

extern const char gpu_usage[];

#endif
