/* The steps of a group as the wire `peer` sees them: consecutive segments, each of messages that are sent at once. A
 * collective is one segment, an all_reduce two; all sends and receives of a group are one segment, the last. */
#ifndef STRAIT_COLLECTIVE_ENGINE_PEER_FLOWS_H
#define STRAIT_COLLECTIVE_ENGINE_PEER_FLOWS_H

#include "collective/engine/peer.h"

/* One message, to or from one rank or to all others. Messages of one rank go one after another, piece by piece. */
struct peer_flow {
    struct peer_cut cut;
    uint8_t *values; /* NULL: received to be added up */
    int rank;        /* the other rank; for sending also PEER_TO_ALL */
    uint32_t next;   /* next piece */
};
#define PEER_TO_ALL (-1)

struct peer_segment {
    const struct coll_step *step;
    struct peer_flow *out, *in;
    unsigned outs, ins;
    bool sums;    /* what is received is added up, with `own`, into `sum` */
    bool follows; /* sends the sum of the segment before it */
    uint8_t *own, *sum;
};

struct peer_segments {
    struct peer_segment *segment;
    struct peer_flow *flow; /* flows of all segments */
    unsigned count;
};

/* For the steps of one member; false: no memory. */
bool peer_segments_of(struct peer_segments *segments, const struct coll_member *member, const struct coll_step *steps,
                      unsigned count);
void peer_segments_free(struct peer_segments *segments);

/* The next piece of each flow, at most one for each rank. */
struct peer_round {
    uint32_t count;
    struct peer_flow *flow[PEER_RANKS_MAX];
    struct peer_piece piece[PEER_RANKS_MAX];
    uint32_t number[PEER_RANKS_MAX]; /* of the piece in its message */
};
struct peer_round peer_round_next(struct peer_flow *flows, unsigned count);
bool peer_round_left(const struct peer_flow *flows, unsigned count); /* whether another round follows */

/* For all_reduce: the block of values that `rank` adds up. All blocks but the last are equal. */
struct peer_block {
    uint64_t at, count;
};
struct peer_block peer_block_of(uint64_t count, int ranks, int rank);

#endif
