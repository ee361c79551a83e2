/* Pairs of daemons with pools in GPU memory: one for each way that chunks may travel. */
#ifndef STRAIT_BENCH_GPU_PAIRS_H
#define STRAIT_BENCH_GPU_PAIRS_H

#include <stdbool.h>

#include "bench/gpu_data.h"
#include "bench/gpu_options.h"
#include "bench/transfer_path.h"
#include "bench/transfer_pools.h"
#include "bench/transfer_wires.h"

struct gpu_pair {
    struct bench_path path;
    struct bench_pools pools;
};

/* Whether this straitd can be told how chunks travel. */
bool gpu_pairs_can_choose(const struct bench_site *site);

/* Starts the daemons of one way and opens both pools. False when it failed, with the error on stderr. The caller must
 * call gpu_pair_close() either way. */
bool gpu_pair_open(struct gpu_pair *pair, enum gpu_wire wire, bool can_choose, const struct gpu_data *data,
                   const struct bench_site *site);
void gpu_pair_close(struct gpu_pair *pair); /* safe on zeroes */

/* What both daemons have counted so far, and what the source's daemon has sent over each wire. */
struct gpu_counted {
    struct node_figures source, sink;
    struct wire_figures wires;
};
bool gpu_pair_count(struct gpu_pair *pair, struct gpu_counted *counted);

#endif
