/* Moves of pages between the daemons of a bench: timed, and checked. */
#ifndef STRAIT_BENCH_MOVES_H
#define STRAIT_BENCH_MOVES_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/strait.h>

#include "bench/daemons.h"

#define MOVES_MAX (BENCH_SIDES_MAX - 1u) /* at once: one side may be the same in all of them */

/* Load of one measurement: `requests` requests of `pages` pages in each region. */
struct move {
    struct bench_path *path;
    const struct bench_pools *pools;
    uint64_t bytes; /* of all requests together */
    uint32_t pages, requests;
    uint32_t
        sink_pages; /* of a request, where its tokens make another number of them there; 0: as many. Not of reads */
    const uint32_t *from, *to; /* page ids: requests * pages; at the sink requests * sink_pages */
    enum strait_coding coding;
    enum strait_direction direction; /* PULL: the sink starts; PUSH: the source */
    bool reads;                      /* PULL: the sink reads, from a pool that serves its pages */
    uint32_t gap_us;                 /* between the calls of the two sides */
    bool polls;                      /* the clients never sleep */
    /* Overwrites the sink's pages, and counts those that differ from the source's. Of several moves at once, those of
     * the first are called, for all of them. */
    bool (*wipe)(void *arg);
    bool (*count_wrong)(void *arg, uint64_t *wrong);
    void *arg;
};

/* Moves all requests at once. The side that does not start makes its calls first, untimed. *ns is the time from the
 * first call of the starting side to the last DONE at the sink's client; request_ns[0..requests-1] are the times of the
 * requests. False: failed, with the error on stderr. */
bool move_requests(const struct move *move, uint64_t *ns, uint64_t *request_ns, uint64_t *wrong);

/* Several moves at once, over paths that may share a side, of as many requests each, which both sides have announced
 * before: move_ns[0..count-1] are the times from the first call of strait_start to the last DONE of each move, and
 * request_ns[0..count*requests-1] those of requests from their own, move by move. The clients first poll for events
 * without sleeping. */
bool moves_from_start(const struct move *moves, unsigned count, uint64_t *move_ns, uint64_t *request_ns,
                      uint64_t *wrong);

#endif
