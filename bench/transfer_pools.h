/* Pools of both ends of a path, registered and introduced to each other. */
#ifndef STRAIT_BENCH_TRANSFER_POOLS_H
#define STRAIT_BENCH_TRANSFER_POOLS_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/transfer_data.h"
#include "bench/transfer_path.h"

/* They live as long as the path. */
struct bench_pools {
    struct strait_pool *source, *sink;
    struct strait_peer *source_peer; /* the source's pool, imported by the sink's client */
    struct strait_peer *sink_peer;
};

/* Adds the pools of a shape, in host memory. All functions here return false when they failed, with the error on
 * stderr. */
bool bench_path_add_pools(struct bench_path *path, struct bench_pools *pools, const struct shape *shape,
                          const struct transfer_data *data);

/* Registers a pool of any regions at one side. */
bool bench_side_register(struct bench_side *side, const struct strait_pool_region *regions, uint32_t count,
                         struct strait_pool **pool);
/* When both sides have registered theirs: waits until the daemons have mapped the pools, and imports each at the other
 * side. */
bool bench_path_introduce(struct bench_path *path, struct bench_pools *pools);

#endif
