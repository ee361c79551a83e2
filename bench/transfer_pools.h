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
    struct strait_peer *source_peer; /* the source's pool as the sink's client knows it */
    struct strait_peer *sink_peer;
};

/* Those of a shape, in memory of the host. Like all here: false when it failed, which stderr has been told. */
bool bench_path_add_pools(struct bench_path *path, struct bench_pools *pools, const struct shape *shape,
                          const struct transfer_data *data);

/* Of any regions: one pool at a side, */
bool bench_side_register(struct bench_side *side, const struct strait_pool_region *regions, uint32_t count,
                         struct strait_pool **pool);
/* and, when both ends have theirs: waits until the daemons have mapped them, and introduces them. */
bool bench_path_introduce(struct bench_path *path, struct bench_pools *pools);

#endif
