/* Rounds of an operation on the wire `peer`: of round n
 *
 *   encoding   encode, claim slots of the receivers: the next piece is encoded while these may still be full
 *   crossing     after that, on one or two streams, copy engine: what usually suffices, or values as they are
 *   posting        after that, kernel: what is missing, and that it is there
 *   decoding   decode what has come from others, add up; free its slots and wait for round n + 1
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
    uint32_t sent;        /* rounds */
    struct peer_round in; /* that is waited for */
    bool sends, receives;
};

/* peer_send.c: a round on its way. */
bool peer_send(struct peer_operation *operation, const struct peer_round *round);

/* peer_receive.c: what was waited for is decoded, and added up; frees what is in `done`, waits for what is in `next`.
 */
bool peer_receive(const struct peer_operation *operation, const struct peer_round *round);
bool peer_turn(const struct peer_operation *operation, const struct peer_round *done, const struct peer_round *next);

/* For the codec: main part and tail of a piece whose values are there, 1 or 2 of them; how it runs. */
uint32_t peer_regions(const struct peer_piece *piece, uint8_t *values, struct strait_region region[2]);
struct strait_pages peer_pages(const struct strait_region *region);
struct strait_run peer_codec_run(const struct peer_operation *operation, bool encoding);

#endif
