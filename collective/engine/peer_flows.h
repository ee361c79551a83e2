/* What the steps of a group mean for the wire `peer`: segments one after the other, each of messages that go at once.
 * A collective is a segment, all_reduce two; all sends and receives of a group are one, the last. */
#ifndef STRAIT_COLLECTIVE_ENGINE_PEER_FLOWS_H
#define STRAIT_COLLECTIVE_ENGINE_PEER_FLOWS_H

#include "collective/engine/peer.h"

/* One message, or one to all others. Those of one rank go one after the other, piece by piece. */
struct peer_flow {
    struct peer_cut cut;
    uint8_t *values; /* NULL: they come to be added up */
    int rank;        /* the other one; out: TO_ALL others */
    uint32_t next;   /* piece */
};
#define PEER_TO_ALL (-1)

struct peer_segment {
    const struct coll_step *step;
    struct peer_flow *out, *in;
    unsigned outs, ins;
    bool sums;    /* what comes is added up, with `own`, to `sum` */
    bool follows; /* what is sent is the sum before it */
    uint8_t *own, *sum;
};

struct peer_segments {
    struct peer_segment *segment;
    struct peer_flow *flow; /* of all */
    unsigned count;
};

/* Of the steps of one member; false: no memory. */
bool peer_segments_of(struct peer_segments *segments, const struct coll_member *member, const struct coll_step *steps,
                      unsigned count);
void peer_segments_free(struct peer_segments *segments);

/* The next piece of, or for, each rank. */
struct peer_round {
    uint32_t count;
    struct peer_flow *flow[PEER_RANKS_MAX];
    struct peer_piece piece[PEER_RANKS_MAX];
    uint32_t number[PEER_RANKS_MAX]; /* of the piece in its message */
};
struct peer_round peer_round_next(struct peer_flow *flows, unsigned count);
bool peer_round_left(const struct peer_flow *flows, unsigned count); /* whether there will be another one */

/* Of all_reduce: values of the block that `rank` adds up. Blocks are equal, but for the last. */
struct peer_block {
    uint64_t at, count;
};
struct peer_block peer_block_of(uint64_t count, int ranks, int rank);

#endif
