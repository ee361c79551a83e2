/* Rounds of an operation on the wire `peer`: of round n
 *
 *   encoding   encode, claim slots of the receivers: the next piece is encoded while these may still be full
 *   crossing     after that, on one or two streams, copy engine: what usually suffices, or values as they are
 *   posting        after that, kernel: what is missing, and that it is there
 *   decoding   decode what has come from others, add up; free its slots and wait for round n + 1
 *
 * With tuning `direct` a kernel of the codec fills or empties the link alone only while all of it runs. So those of two
 * rounds run at once, on streams in turn, with multiprocessors of their own, and what orders rounds has other streams:
 *
 *   claiming   claim slots of the receivers
 *   encoding     after that, in turn: encode, into a slot of the one receiver
 *   crossing, posting as above: nothing is missing
 *   waiting    wait for round n
 *   decoding     after that, in turn: decode
 *   freeing        after that: free its slots
 *
 * Operations that add up decode on one stream, as above.
 *
 * False: it could not be launched. On the GPU of the member. */
#ifndef STRAIT_COLLECTIVE_ENGINE_PEER_ROUNDS_H
#define STRAIT_COLLECTIVE_ENGINE_PEER_ROUNDS_H

#include "collective/engine/peer_flows.h"

/* A rank may come to an operation as late as it likes, but once it is there, it goes on. */
#define PEER_PATIENCE_NS UINT64_C(60000000000)

/* What one member does for the steps of a group. */
struct peer_operation {
    struct coll_member *member;
    const struct coll_step *steps;
    unsigned count;
    struct peer_lane *lane;
    struct peer_segments segments;
    unsigned current;     /* segment */
    bool begun;           /* it is */
    uint32_t sent, taken; /* rounds: sent, decoded */
    uint32_t decoders;    /* streams of them */
    struct peer_round in; /* that is waited for */
    bool sends, receives;
};

/* peer_send.c: a round on its way. */
bool peer_send(struct peer_operation *operation, const struct peer_round *round);

/* peer_receive.c: waits for the first round; what was waited for is decoded and added up, its slots are freed, and what
 * is in `next` is waited for. */
bool peer_await(const struct peer_operation *operation, const struct peer_round *first);
bool peer_receive(struct peer_operation *operation, const struct peer_round *round, const struct peer_round *next);

/* Where sending and receiving begin, and where they end. */
coll_stream peer_sending(const struct peer_operation *operation);
coll_stream peer_receiving(const struct peer_operation *operation);
coll_stream peer_received(const struct peer_operation *operation);

/* For the codec: main part and tail of a piece whose values are there, 1 or 2 of them. */
uint32_t peer_regions(const struct peer_piece *piece, uint8_t *values, struct strait_region region[2]);
struct strait_pages peer_pages(const struct strait_region *region);

#endif
