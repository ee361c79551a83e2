/* What `strait bench collective` was asked. */
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
    COLLECTIVE_SENDRECV, /* each to the next, in a group */
    COLLECTIVE_OPS,
};

enum collective_type {
    COLLECTIVE_BF16,
    COLLECTIVE_FP16,
    COLLECTIVE_FP32,
    COLLECTIVE_FP32_BF16, /* FP32 to NCCL, but of BF16 values that were widened */
    COLLECTIVE_TYPES,
};

/* Tensors of one kind, told by their names; all of them; or none. */
enum collective_data {
    COLLECTIVE_WEIGHTS,
    COLLECTIVE_GRADIENTS,
    COLLECTIVE_ACTIVATIONS,
    COLLECTIVE_MOMENTS, /* means of gradients, as optimizers have them */
    COLLECTIVE_SQUARES, /* and of their squares */
    COLLECTIVE_OTHER,
    COLLECTIVE_TENSORS, /* one behind the other, whatever they are */
    COLLECTIVE_RANDOM,  /* bits without order, but for one that keeps sums finite */
    COLLECTIVE_DATAS,
};

/* What NCCL may use between the GPUs: it reads that once per process. */
enum collective_links {
    COLLECTIVE_AS_IS,
    COLLECTIVE_SHM,    /* NCCL_P2P_DISABLE=1: by way of the host's memory */
    COLLECTIVE_SOCKET, /* and NCCL_SHM_DISABLE=1: by TCP */
    COLLECTIVE_LINKS,
};

extern const char *const collective_op_names[COLLECTIVE_OPS];
extern const char *const collective_type_names[COLLECTIVE_TYPES];
extern const char *const collective_data_names[COLLECTIVE_DATAS];
extern const char *const collective_links_names[COLLECTIVE_LINKS];

struct collective_options {
    struct sources sources; /* inputs alone */
    bool kinds;             /* no data was asked for: the kinds that the files have */
    bool ops[COLLECTIVE_OPS], types[COLLECTIVE_TYPES], datas[COLLECTIVE_DATAS], links[COLLECTIVE_LINKS];
    uint64_t sizes[COLLECTIVE_SIZES_MAX];
    unsigned size_count;
    uint32_t gpus; /* 0: all */
    uint32_t repeats, warmups;
    uint32_t singles;    /* calls of each row that are measured alone, before all others */
    uint32_t iterations; /* of a repeat; 0: as many as take some milliseconds */
    uint32_t seconds;    /* that all rows of one kind of links may take */
    const char *library, *nccl;
    const char *environment[COLLECTIVE_ENVIRONMENT_MAX]; /* "NAME=value" */
    unsigned environment_count;
    bool fault;       /* one bit of a result is turned over: a check that has to fail */
    const char *save; /* file for the JSON, besides; NULL: none */
    bool json;
    bool help; /* was asked for: nothing else is checked */
};

/* Reads the arguments and fills in what they leave open. False, which stderr has been told, when they are wrong. The
 * caller must collective_options_fini() it either way. */
bool collective_options_init(struct collective_options *options, int argc, char **argv);
void collective_options_fini(struct collective_options *options);

extern const char collective_usage[];

#endif
