/* Options of `strait bench collective`. */
#ifndef STRAIT_BENCH_COLLECTIVE_OPTIONS_H
#define STRAIT_BENCH_COLLECTIVE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/sources.h"

#define COLLECTIVE_SIZES_MAX       8u
#define COLLECTIVE_ENVIRONMENT_MAX 16u
#define COLLECTIVE_RANKS_MAX       16u

enum collective_op {
    COLLECTIVE_ALL_GATHER,
    COLLECTIVE_ALL_TO_ALL,
    COLLECTIVE_REDUCE_SCATTER,
    COLLECTIVE_ALL_REDUCE,
    COLLECTIVE_SENDRECV, /* each rank to the next, in a group */
    COLLECTIVE_OPS,
};

enum collective_type {
    COLLECTIVE_BF16,
    COLLECTIVE_FP16,
    COLLECTIVE_FP32,
    COLLECTIVE_FP32_BF16, /* FP32 for NCCL, but the values are widened BF16 */
    COLLECTIVE_TYPES,
};

/* Tensors of one kind, recognised by their names; all of them; or none. */
enum collective_data {
    COLLECTIVE_WEIGHTS,
    COLLECTIVE_GRADIENTS,
    COLLECTIVE_ACTIVATIONS,
    COLLECTIVE_MOMENTS, /* an optimizer's running means of gradients */
    COLLECTIVE_SQUARES, /* and of their squares */
    COLLECTIVE_OTHER,
    COLLECTIVE_TENSORS, /* all tensors, one after another */
    COLLECTIVE_RANDOM,  /* random bits, except one that keeps sums finite */
    COLLECTIVE_DATAS,
};

/* What NCCL may use between the GPUs. NCCL reads these variables once per process. */
enum collective_links {
    COLLECTIVE_AS_IS,
    COLLECTIVE_SHM,    /* NCCL_P2P_DISABLE=1: through host memory */
    COLLECTIVE_SOCKET, /* also NCCL_SHM_DISABLE=1: over TCP */
    COLLECTIVE_LINKS,
};

extern const char *const collective_op_names[COLLECTIVE_OPS];
extern const char *const collective_type_names[COLLECTIVE_TYPES];
extern const char *const collective_data_names[COLLECTIVE_DATAS];
extern const char *const collective_links_names[COLLECTIVE_LINKS];

struct collective_options {
    struct sources sources; /* only its inputs are used */
    bool kinds;             /* no data was named: use the kinds that the files have */
    bool ops[COLLECTIVE_OPS], types[COLLECTIVE_TYPES], datas[COLLECTIVE_DATAS], links[COLLECTIVE_LINKS];
    uint64_t sizes[COLLECTIVE_SIZES_MAX];
    unsigned size_count;
    uint32_t gpus;  /* 0: all */
    uint32_t ranks; /* 0: one on each GPU */
    uint32_t repeats, warmups;
    uint32_t singles;    /* calls of each row that are timed one by one, before all others */
    uint32_t iterations; /* per repeat; 0: as many as take some milliseconds */
    uint32_t seconds;    /* time limit for all rows of one kind of links */
    const char *library, *nccl;
    const char *environment[COLLECTIVE_ENVIRONMENT_MAX]; /* "NAME=value" */
    unsigned environment_count;
    bool fault;       /* flip one bit of a result, so that the check has to fail */
    const char *save; /* also write the JSON to this file; NULL: do not */
    bool json;
    bool help; /* help was asked for: nothing else is checked */
};

/* Reads the arguments and fills in the defaults. False when they are wrong, with the error on stderr. The caller must
 * call collective_options_fini() either way. */
bool collective_options_init(struct collective_options *options, int argc, char **argv);
void collective_options_fini(struct collective_options *options);

extern const char collective_usage[];

#endif
