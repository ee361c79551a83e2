/* Rounds of an operation on the wire `peer`. By stream, in round n:
 *
 *   encoding   encode, claim slots of the receivers: the next piece is encoded while these may still be full
 *   crossing     after that, on one or two streams, copy engine: what usually suffices, or uncompressed values
 *   posting        after that, kernel: push what is missing, and say that the piece is there
 *   decoding   decode what has come from others, add up; free its slots and wait for round n + 1
 *
 * With tuning `direct`, a codec kernel fills or empties the link by itself, but only while all of it runs. So the
 * kernels of two rounds run at once, on streams that take turns, with multiprocessors of their own, and other streams
 * order the rounds:
 *
 *   claiming   claim slots of the receivers
 *   encoding     after that, streams in turn: encode, into a slot of the one receiver
 *   crossing, posting as above: nothing is missing
 *   waiting    wait for round n
 *   decoding     after that, streams in turn: decode
 *   freeing        after that: free its slots
 *
 * Operations that add up decode on one stream, as in the first scheme.
 *
 * All of this runs on the member's GPU; functions return false if something could not be launched. */
#ifndef STRAIT_COLLECTIVE_ENGINE_PEER_ROUNDS_H
#define STRAIT_COLLECTIVE_ENGINE_PEER_ROUNDS_H

#include "collective/engine/peer.h"

/* A rank may start an operation as late as it likes, but once it has, it goes on. */
#define PEER_TIMEOUT_NS UINT64_C(60000000000)

/* What one member does for the steps of a group. */
struct peer_operation {
    struct coll_ccomm *member;
    const struct coll_op *steps;
    unsigned count;
    struct peer_lane *lane;
    struct peer_segments segments;
    unsigned current;     /* segment */
    bool begun;           /* the current segment has begun */
    uint32_t sent, taken; /* rounds sent, and rounds decoded */
    uint32_t decoders;    /* number of streams that decode */
    struct peer_round in; /* the round that is waited for */
    bool sends, receives;
};

/* peer_send.c: sends a round. */
bool peer_send(struct peer_operation *operation, const struct peer_round *round);

/* peer_receive.c: peer_await waits for the first round. peer_receive decodes and adds up the round that was waited for,
 * frees its slots, and waits for `next`. */
bool peer_await(const struct peer_operation *operation, const struct peer_round *first);
bool peer_receive(struct peer_operation *operation, const struct peer_round *round, const struct peer_round *next);

/* Where sending and receiving begin, and where they end. */
coll_stream peer_sending(const struct peer_operation *operation);
coll_stream peer_receiving(const struct peer_operation *operation);
coll_stream peer_received(const struct peer_operation *operation);

/* For the codec: main part and tail of a piece whose values are at `values`; 1 or 2 regions. */
uint32_t peer_regions(const struct peer_piece *piece, uint8_t *values, struct strait_region region[2]);
struct strait_pages peer_pages(const struct strait_region *region);

#endif
