/* The two rings (rings.h) between ranks on different hosts: each side has both in its own host's memory, and a
 * connection carries what kernels write on one side to the other, so that kernels see what they would see in one shared
 * memory.
 *
 *   sender's memory                    connection               receiver's memory
 *   slots, full[] --------------------- SLOT -----------------> slots, full[]
 *   taken[] <-------------------------- TAKEN ----------------- taken[]
 *   records ---------------------------- RECORD --------------> records
 *
 * A slot is sent once it is full, and is filled again only after the sender's kernel has seen it taken, which is after
 * the receiver's kernel took it. So there is always room for what arrives, and whoever reads a connection never has to
 * wait for a GPU. Nothing here waits. */
#ifndef STRAIT_COLLECTIVE_ENGINE_CARRY_H
#define STRAIT_COLLECTIVE_ENGINE_CARRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collective/engine/frame.h"
#include "collective/engine/rings.h"

enum { CARRY_WORDS = 64 }; /* frames written at once */

/* One ring, as the host reaches it. */
struct carry_ring {
    struct ring_flags *flags;
    uint8_t *slots;
};

struct carry_out {
    uint64_t sent[RING_SLOTS]; /* number + 1 of what was last sent of each slot */
    uint64_t told[RING_SLOTS]; /* number + 1 of what was last reported taken */
    uint64_t records[2];       /* the next record's number */
    uint8_t words[CARRY_WORDS * FRAME_BYTES];
    uint32_t size, done; /* of the words */
    const uint8_t *values;
    uint64_t left; /* bytes left of the values, which follow the words */
};

struct carry_in {
    uint64_t filled[RING_SLOTS]; /* number + 1 of what last came into each slot */
    uint64_t records[2];         /* the least number that may come next */
    uint8_t head[FRAME_BYTES];
    uint32_t got; /* of the head */
    struct frame frame;
    uint8_t *values; /* where the frame's values go */
    uint64_t left;   /* bytes left of them */
};

struct carry {
    int socket; /* -1: it has ended */
    int peer;
    uint32_t slot_bytes;
    struct carry_ring to, from; /* to the peer, from it */
    struct carry_out out;
    struct carry_in in;
    bool blocked;        /* the socket takes no more for now */
    bool leaving, left;  /* this side has said that it leaves; the peer has */
    const char *trouble; /* why it has ended, if that is a failure; static */
    /* Frames of agree.h: a queue of those to send; those that come go to `hear`, which returns whether they are
     * valid. */
    struct frame *queue;
    uint32_t queued, queue_room;
    bool (*hear)(void *hearer, int peer, const struct frame *frame);
    void *hearer;
};

/* False: no memory. */
bool carry_say(struct carry *carry, const struct frame *frame);

/* Sends and receives what it can. True: there was something. */
bool carry_pass(struct carry *carry);

/* Whether all that carry_say was given has been sent; whether all that this rank's kernels have written has reached the
 * peer's host. */
bool carry_has_said(const struct carry *carry);
bool carry_has_arrived(const struct carry *carry);

void carry_end(struct carry *carry);

#endif
