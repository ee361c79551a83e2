/* One round of transfers, timed and looked at. */
#ifndef STRAIT_BENCH_TRANSFER_MOVE_H
#define STRAIT_BENCH_TRANSFER_MOVE_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/transfer_path.h"
#include "bench/transfer_pools.h"

/* Pages that are not in a strait_memory of the host. Both false, which stderr has been told, when they failed. */
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

/* Moves all requests of the shape at once. The side that does not start has made its calls before; *ns is the time from
 * the first call of the side that starts to the last DONE at the sink's client, request_ns[0..requests-1] each
 * request's own. Outside of it the sink's pages are overwritten first and compared with the source's afterwards: *wrong
 * counts those that differ. False, which stderr has been told: it could not be moved. */
bool move_requests(const struct move *move, uint64_t *ns, uint64_t *request_ns, uint64_t *wrong);

/* The same for one request whose pages both sides have told before: *ns is the time from the call of strait_start
 * alone, and the clients look for events without sleeping for a while. */
bool move_from_start(const struct move *move, uint64_t *ns, uint64_t *wrong);

/* A request that is produced while it travels. */
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
