/* What a phase of a step sends, receives and needs room for. */
#ifndef STRAIT_COLLECTIVE_ENGINE_PLAN_H
#define STRAIT_COLLECTIVE_ENGINE_PLAN_H

#include "collective/engine/member.h"
#include "collective/engine/shape.h"

/* Values at the beginning and end of each message that are left uncompressed (bare.h); count 0: none. `at`: unless they
 * go straight to the program, where those of all ranks arrive in the staging memory, one every `stride` bytes. Those to
 * be added up may be sent from there, too (plan.copies): from `out_at` on, likewise. */
enum plan_end { PLAN_HEAD, PLAN_TAIL };
struct plan_bare {
    uint64_t from, count, bytes, stride;
    size_t at, out_at;
};

/* By operation:
 *
 *                 sent, each to             received into
 *   all_gather    all of it      everybody  receive, by rank
 *   all_to_all    by rank        its rank   receive, by rank
 *   reduce_scatter  by rank      its rank   scratch, by rank; receive becomes the sum of scratch and the rank's own
 *   all_reduce    all of it      the other  scratch; likewise. For two ranks: more have two phases (phase.h)
 *   send, recv    all of it      the peer   receive */
struct plan {
    struct coll_call whole; /* the phase's */
    struct coll_call call;  /* the part of it that is coded */
    struct coll_call rest;  /* moved uncompressed besides; count 0: nothing */
    struct shape shape;
    bool sends, receives, everybody; /* everybody: one message, for all ranks */
    bool reduces;
    /* Sums' heads and tails are copied, and sent from there: memory that the program has registered with NCCL, or that
     * NCCL registers for a graph, must be so on both sides of a send, and these arrive in the staging memory. */
    bool copies;
    uint32_t out, in; /* number of messages: one for each rank, or one */
    uint32_t skip;    /* the rank's own message, which is not coded */
    uint64_t raw;     /* bytes of one message's values */
    uint64_t
        stride;    /* from one message's values to the next one's, for those that lie by rank in the program's memory */
    uint64_t left; /* bytes of the rest, for each rank */
    struct plan_bare bare[2];
    /* Parts of the staging memory, relative to the step's place in it. */
    size_t out_at, in_at, scratch_at, rest_at, found_at, results_at, codec_at, codec_size, size;
};

/* Rounds up to where the next part of a staging memory can begin. */
size_t plan_aligned(size_t size);

/* False: the phase goes raw. */
bool plan_of(struct plan *plan, const struct coll_member *member, const struct coll_call *call, unsigned phase,
             unsigned level);

/* The plan of the step's piece, or of what lies between its head and tail; the message has more pages than these.
 * False: it goes raw. */
bool plan_cut(struct plan *plan, const struct coll_step *step, unsigned level);

/* Asks the codec for the size of its scratch and adds it; the total is known then. False: no memory. */
bool plan_measure(struct plan *plan, const struct coll_member *member);

/* Bytes handed to NCCL. */
uint64_t plan_wire(const struct plan *plan);

/* Where the values of message `i` lie, where those that arrive go, and where each rank's rest arrives. */
uint8_t *plan_source(const struct plan *plan, uint32_t i);
uint8_t *plan_target(const struct plan *plan, uint8_t *staging, uint32_t i);
uint8_t *plan_rest(const struct plan *plan, uint8_t *staging, uint32_t rank);

/* By received message: an enum message_found. */
uint32_t *plan_found(const struct plan *plan, uint8_t *staging);

/* What the codec is asked to do, for all messages except `skip`. The arrays have 2 x messages entries. */
struct codec_list {
    struct shape_part *parts;
    struct strait_encode_item *encode;
    struct strait_decode_item *decode;
    unsigned count;
};
bool plan_list(struct codec_list *list, const struct plan *plan, uint8_t *staging, bool encoding);
void plan_list_free(struct codec_list *list);

#endif
