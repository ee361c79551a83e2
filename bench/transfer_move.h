/* One round of transfers, timed and checked. */
#ifndef STRAIT_BENCH_TRANSFER_MOVE_H
#define STRAIT_BENCH_TRANSFER_MOVE_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/transfer_path.h"
#include "bench/transfer_pools.h"

/* Operations on pages that are not in host memory. Both return false when they failed, with the error on stderr. */
struct landing {
    bool (*wipe)(void *arg);
    bool (*count_wrong)(void *arg, uint64_t *wrong);
    void *arg;
};

struct move {
    struct bench_path *path;
    const struct bench_pools *pools;
    const struct shape *shape;
    const struct transfer_data *data; /* NULL with a landing */
    const struct landing *landing;    /* NULL: pages of the host */
    enum strait_coding coding;
    enum strait_direction direction; /* PULL: the sink starts; PUSH: the source */
};

/* Moves all requests of the shape at once. The side that does not start makes its calls first, untimed. *ns is the time
 * from the first call of the starting side to the last DONE at the sink's client; request_ns[0..requests-1] are the
 * times of the requests. The sink's pages are overwritten before and compared with the source's after that time: *wrong
 * counts those that differ. False: they could not be moved; the error is on stderr. */
bool move_requests(const struct move *move, uint64_t *ns, uint64_t *request_ns, uint64_t *wrong);

/* The same for one request whose pages both sides have announced before: *ns is the time from the call of strait_start,
 * and the clients first poll for events without sleeping. */
bool move_from_start(const struct move *move, uint64_t *ns, uint64_t *wrong);

/* A request that is produced layer by layer while it travels. */
struct layer_plan {
    uint32_t layers;
    unsigned every_ms, aux_after_ms;
    const void *aux; /* arrives with DONE */
    uint64_t aux_bytes;
};

struct layer_times {
    uint64_t total_ns;      /* from start to DONE */
    uint64_t behind_ns;     /* from the last layer's append until all layers had landed */
    uint64_t done_ns;       /* from the append that said `last` until DONE */
    uint32_t landed_before; /* layers in place when the last one was appended */
};

/* One request of a layered shape: layer i is appended i * every_ms after the start. Otherwise as above. */
bool move_layers(const struct move *move, const struct layer_plan *plan, struct layer_times *times, uint64_t *wrong);

#endif
