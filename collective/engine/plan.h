/* What a phase of a step sends, receives and needs room for. */
#ifndef STRAIT_COLLECTIVE_ENGINE_PLAN_H
#define STRAIT_COLLECTIVE_ENGINE_PLAN_H

#include "collective/engine/member.h"
#include "collective/engine/shape.h"

/* Values before and behind what is coded that are left as they are (bare.h), of each message; count 0: none. `at`:
 * where those of all ranks come in the staging memory, one every `stride` bytes, if they are not for the program at
 * once. */
enum plan_end { PLAN_HEAD, PLAN_TAIL };
struct plan_bare {
    uint64_t from, count, bytes, stride;
    size_t at;
};

/*
 *                 sent, each to             received into
 *   all_gather    all of it      everybody  receive, by rank
 *   all_to_all    by rank        its rank   receive, by rank
 *   reduce_scatter  by rank      its rank   scratch, by rank; receive is the sum of it and of what is its own
 *   all_reduce    all of it      the other  scratch; the same. Of two ranks: more have two phases (phase.h)
 *   send, recv    all of it      the peer   receive
 */
struct plan {
    struct coll_call whole; /* the phase's */
    struct coll_call call;  /* what of it is coded */
    struct coll_call rest;  /* moved as it is, besides; count 0: nothing */
    struct shape shape;
    bool sends, receives, everybody; /* everybody: one message, for all */
    bool reduces;
    uint32_t out, in; /* messages: by rank, or one */
    uint32_t skip;    /* the rank's own, which is not coded */
    uint64_t raw;     /* bytes of a message's values */
    uint64_t
        stride;    /* from one message's values to the next one's, of those that are by rank in the program's memory */
    uint64_t left; /* of the rest, of each rank */
    struct plan_bare bare[2];
    /* Parts of the staging memory, from the step's place in it. */
    size_t out_at, in_at, scratch_at, rest_at, found_at, results_at, codec_at, codec_size, size;
};

/* Where the next part of a staging memory can begin. */
size_t plan_aligned(size_t size);

/* False: it goes raw. */
bool plan_of(struct plan *plan, const struct coll_member *member, const struct coll_call *call, unsigned phase,
             unsigned level);

/* The step's piece, or what it leaves between head and tail; there are more pages than that. False: it goes raw. */
bool plan_cut(struct plan *plan, const struct coll_step *step, unsigned level);

/* Adds the codec's scratch, by asking it; then the whole is known. False: no memory. */
bool plan_measure(struct plan *plan, const struct coll_member *member);

/* Bytes that NCCL is handed. */
uint64_t plan_wire(const struct plan *plan);

/* Where the values of message `i` are, and where those that come go; where each rank's rest comes. */
uint8_t *plan_source(const struct plan *plan, uint32_t i);
uint8_t *plan_target(const struct plan *plan, uint8_t *staging, uint32_t i);
uint8_t *plan_rest(const struct plan *plan, uint8_t *staging, uint32_t rank);

/* By message that comes: whether it did not fit. */
uint32_t *plan_found(const struct plan *plan, uint8_t *staging);

/* What the codec is asked to do, for messages other than `skip`. The arrays are as long as 2 x messages. */
struct codec_list {
    struct shape_part *parts;
    struct strait_encode_item *encode;
    struct strait_decode_item *decode;
    unsigned count;
};
bool plan_list(struct codec_list *list, const struct plan *plan, uint8_t *staging, bool encoding);
void plan_list_free(struct codec_list *list);

#endif
