/* Two rings (rings.h) between ranks on different hosts: each side has both in memory of its own host, and what kernels
 * write into the one is carried to the other by a connection, so that kernels see what they would see in one memory.
 *
 *   sender's memory                    connection               receiver's memory
 *   slots, full[] --------------------- SLOT -----------------> slots, full[]
 *   taken[] <-------------------------- TAKEN ----------------- taken[]
 *   records ---------------------------- RECORD --------------> records
 *
 * A slot is sent once it is full, and is full again only when the sender's kernel has seen it taken, which it sees when
 * the receiver's has: so there is always room where it comes, and whoever reads a connection never has to wait for a
 * GPU. Nothing here waits. */
#ifndef STRAIT_COLLECTIVE_ENGINE_CARRY_H
#define STRAIT_COLLECTIVE_ENGINE_CARRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collective/engine/frame.h"
#include "collective/engine/rings.h"

enum { CARRY_WORDS = 64 }; /* frames that are written at once */

/* One ring, as the host reaches it. */
struct carry_ring {
    struct ring_flags *flags;
    uint8_t *slots;
};

struct carry_out {
    uint64_t sent[RING_SLOTS]; /* number + 1 of what was sent of each slot last */
    uint64_t told[RING_SLOTS]; /* of what was told to be taken */
    uint64_t records[2];       /* the next one's number */
    uint8_t words[CARRY_WORDS * FRAME_BYTES];
    uint32_t size, done; /* of the words */
    const uint8_t *values;
    uint64_t left; /* of the values, which come behind the words */
};

struct carry_in {
    uint64_t filled[RING_SLOTS]; /* number + 1 of what came into each slot last */
    uint64_t records[2];         /* the least number that may come */
    uint8_t head[FRAME_BYTES];
    uint32_t got; /* of the head */
    struct frame frame;
    uint8_t *values; /* where the frame's values come */
    uint64_t left;   /* of them */
};

struct carry {
    int socket; /* -1: it has ended */
    int peer;
    uint32_t slot_bytes;
    struct carry_ring to, from; /* to the peer, from it */
    struct carry_out out;
    struct carry_in in;
    bool blocked;        /* the socket takes no more for now */
    bool leaving, left;  /* this side, the peer has said that it leaves */
    const char *trouble; /* why it has ended, if that is a failure; static */
    /* Frames of agree.h: to be sent, a queue; what comes goes to `hear`, which says whether it was in order. */
    struct frame *queue;
    uint32_t queued, queue_room;
    bool (*hear)(void *hearer, int peer, const struct frame *frame);
    void *hearer;
};

/* False: no memory. */
bool carry_say(struct carry *carry, const struct frame *frame);

/* Sends and receives what there is. True: there was something. */
bool carry_pass(struct carry *carry);

/* What was said by carry_say is on its way; all that this rank's kernels have written has reached the peer's host. */
bool carry_has_said(const struct carry *carry);
bool carry_has_arrived(const struct carry *carry);

void carry_end(struct carry *carry);

#endif
