/* Pairs of pools in GPU memory, a source and a sink each, between which daemons move pages. Functions that return bool
 * have printed to stderr why they failed. */
#ifndef STRAIT_BENCH_PAIRS_H
#define STRAIT_BENCH_PAIRS_H

#include "bench/bench.h"
#include "bench/daemons.h"
#include "bench/device.h"

#define PAIRS_MAX  8u
#define PAIRS_WAYS 4u  /* kinds of daemons by which the same pages can move */
#define GPU_ANY    64u /* the next GPU if there is one */

/* Pools have regions as layouts have: region r repeats tensor r and belongs to its class. Every GPU_STAMP_STEP bytes
 * carry a number, so that a page in another's place is noticed. */
struct pair {
    int from, to; /* GPUs */
    struct gpu_about about;
    struct gpu_memory source, sink;
    struct gpu_memory reference; /* a copy of the source, on the sink's GPU */
    struct bench_path paths[PAIRS_WAYS];
    struct bench_pools pools[PAIRS_WAYS];
    char names[PAIRS_WAYS][12]; /* of the paths */
};

/* Pairs have the daemon and the client of one end in common, where there are several: the source's or the sink's. */
struct pairs {
    struct pair list[PAIRS_MAX];
    unsigned count;
    bool shares_source;
    const struct bench_values *values;
    struct gpu_layout layout;    /* of each pool */
    uint32_t *from_ids, *to_ids; /* ids of all pages, in random order */
    int32_t *wanted;             /* for checking: which page of the source each page of the sink should equal */
};

/* Opens GPUs: `from` and `to` of the first pair; of more sources, or more sinks, than one those that follow, in turn.
 */
bool pairs_choose(struct pairs *pairs, uint64_t from, uint64_t to, uint64_t sources, uint64_t sinks);
/* Makes and fills the memory. The caller must pairs_fini() it either way. */
bool pairs_make(struct pairs *pairs, const struct bench_values *values, const struct gpu_layout *layout);
/* Starts the daemons of one way, `name`, with the option "--name=value", and registers all pools. */
bool pairs_connect(struct pairs *pairs, unsigned way, const char *name, const char *option,
                   const struct bench_site *site);
void pairs_fini(struct pairs *pairs); /* safe on zeroes */

/* What the daemons of one way have counted; the one that pairs have in common is counted once. */
bool pairs_figures(struct pairs *pairs, unsigned way, struct node_figures *source, struct node_figures *sink);
/* Whether nobody has written to the sources, which are compared with their copies. */
bool pairs_check_sources(struct pairs *pairs);

/* Some of the pairs, and the pages of each that move together: of places first..first+ids-1 in the orders of ids. */
struct landing {
    struct pairs *pairs;
    unsigned pair, count; /* so many from this one on, in turn */
    uint32_t first, ids;
};

struct pair *landing_pair(const struct landing *landing, unsigned i);
/* Overwrites the sinks. */
bool landing_wipe(const struct landing *landing);
/* How many pages are wrong: those that landed must equal the source's, all others must be as they were overwritten. */
bool landing_count_wrong(const struct landing *landing, uint64_t *wrong);

#endif
