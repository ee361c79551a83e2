#ifndef STRAIT_COLLECTIVE_ENGINE_PLAN_H
#define STRAIT_COLLECTIVE_ENGINE_PLAN_H

#include <stdbool.h>
#include <stdint.h>
#include <strait/codec.h>

#include "collective/api.h"

struct coll_ccomm;
struct coll_op;

/* Sizes of messages, and where their parts lie: a function of count, type and level alone.
 *
 *   head | tail: the values behind whole pages, as a chunk of one page | main part: a chunk of whole pages
 *
 * The tail has room for any result, the main part for what the level gives it. All messages that fit are sent with the
 * same number of bytes, even if they encode to fewer. */

enum { PLAN_PAGE = 32768 };

struct message_layout {
    enum strait_element element;
    uint64_t raw;                  /* bytes of the values */
    uint32_t pages, tail_bytes;    /* raw */
    uint64_t tail_at, main_at;     /* in a message; 0: there is none */
    uint64_t tail_room, main_room; /* bytes on the wire */
    uint64_t main_bound;           /* the most that the encoder may write */
    uint64_t message, encoded;     /* bytes on the wire; bytes of room for the encoder. Multiples of 128 */
};

/* False: it cannot be compressed, or would gain nothing. */
bool message_layout_of(struct message_layout *layout, coll_type type, uint64_t count, unsigned level);

/* The parts of a message whose values are at `raw`: 0 to 2, in the order of the message. */
struct message_part {
    struct strait_region region;
    uint64_t at, room, bound;
};
unsigned message_parts(const struct message_layout *layout, void *raw, struct message_part parts[2]);

/* The pages of a part, which has to stay where it is. */
struct strait_pages message_part_pages(const struct message_part *part);

/* Plan of a phase of an op: the messages that it sends and receives, and the memory that they take. */

/* Values at the beginning and end of each message that are left uncompressed (overlap.c); count 0: none. `at`: unless
 * they go straight to the program, where those of all ranks arrive in the staging memory, one every `stride` bytes.
 * Those to be added up may be sent from there, too (plan.copies): from `out_at` on, one every `stride` bytes. */
enum plan_end { PLAN_HEAD, PLAN_TAIL };
struct plan_raw_part {
    uint64_t from, count, bytes, stride;
    size_t at, out_at;
    bool gathers; /* NCCL moves them by an all_gather */
};

/* Whose messages a phase moves. Where there are rails (hosts.h), sums have a phase inside each host and one between
 * hosts. */
enum plan_scope {
    PLAN_ALL,   /* of all ranks */
    PLAN_LOCAL, /* of the ranks of this host, uncompressed (local.c) */
    PLAN_RAIL,  /* of the ranks of this one's place on all hosts */
};

/* By operation:
 *
 *                 sent, each to             received into
 *   all_gather    all of it      everybody  receive, by rank
 *   all_to_all    by rank        its rank   receive, by rank
 *   reduce_scatter  by rank      its rank   scratch, by rank; receive becomes the sum of scratch and the rank's own.
 *                                           Of a rail by host; inside a host the parts for its rail on all hosts, in
 *                                           scratch, whose sums by host are kept for the next phase
 *   all_reduce    all of it      the other  scratch, which is added to receive. Two ranks; more have two phases
 *   broadcast     all of it      all others  receive; sent by the root alone, received by all others
 *   send, recv    all of it      the peer   receive */
struct plan {
    struct coll_call whole; /* the phase's */
    struct coll_call call;  /* the part of it that is coded */
    struct coll_call rest;  /* moved uncompressed besides; count 0: nothing */
    struct message_layout layout;
    enum plan_scope scope;
    bool sends, receives, everybody; /* coded messages; everybody: one message, for all ranks */
    bool reduces;
    bool gathers; /* NCCL moves the messages by an all_gather */
    bool shm;     /* the channels of shm.h move them, and their heads and tails, instead of NCCL */
    /* Sums' heads and tails are copied, and sent from there: memory that the program has registered with NCCL, or that
     * NCCL registers for a graph, must be so on both sides of a send, and these arrive in the staging memory. */
    bool copies;
    /* Bytes that the program has at odd addresses, where BF16 may not be, are copied to the staging memory and back. */
    bool odd;
    uint32_t out, in;     /* number of messages: one for each rank of the scope, or one */
    uint32_t first, step; /* message i is that of rank first + i * step */
    uint32_t skip;        /* the rank's own message, which is not coded */
    uint32_t hosts; /* of rails; inside a host each message has so many parts of `stride` bytes, one for each host */
    uint64_t raw;   /* bytes of one message's values */
    uint64_t
        stride;    /* from one message's values to the next one's, for those that lie by rank in the program's memory */
    uint64_t left; /* bytes of the rest, for each rank */
    struct plan_raw_part raw_parts[2];
    /* Parts of the staging memory, relative to the op's place in it. */
    size_t out_at, in_at, scratch_at, rest_at, found_at, results_at, codec_at, codec_size, odd_out_at, odd_in_at, size;
};

/* Sends and receives, whose peer is one rank. */
bool plan_is_pair(const struct plan *plan);

/* Ranks whose messages each rank decodes, the same number on all ranks; the root of a broadcast decodes none. */
uint32_t plan_sources(const struct plan *plan);

/* Bytes of staging memory for the sums of a host, which are kept from the local phase to that of the rail; of the local
 * phase or that one. */
size_t plan_kept(const struct plan *plan);

/* Rounds up to where the next part of a staging memory can begin. */
size_t plan_aligned(size_t size);

/* The plan of a phase at a level, which has no place in staging memory yet. False: the phase goes raw. */
bool plan_of(struct plan *plan, const struct coll_ccomm *ccomm, const struct coll_call *call, unsigned phase,
             unsigned level);

/* Takes `head` and `tail` pages at the ends of each message out of what is coded; the message has more pages than
 * these. Without any, an operation may be in a group, where NCCL moves it in every case. False: it goes raw. */
bool plan_cut(struct plan *plan, uint32_t head, uint32_t tail, unsigned level);

/* Lays out the staging memory, for which it asks the codec for the size of its scratch. False: no memory. */
bool plan_measure(struct plan *plan, const struct coll_ccomm *ccomm);

/* Bytes of coded messages and their ends as handed to NCCL, and bytes of the values that they stand for; of sums with
 * rails, those between hosts. */
uint64_t plan_wire(const struct plan *plan);
uint64_t plan_values(const struct plan *plan);

/* Where the values of message `i` lie, where those that arrive go, and where each rank's rest arrives. */
uint8_t *plan_source(const struct plan *plan, uint32_t i);
uint8_t *plan_target(const struct plan *plan, uint8_t *staging, uint32_t i);
uint8_t *plan_rest(const struct plan *plan, uint8_t *staging, uint32_t rank);

/* By received message: an enum message_found. */
uint32_t *plan_found(const struct plan *plan, uint8_t *staging);

/* Batch for the codec, for all messages except `skip`. The arrays have 2 x messages entries. */
struct codec_list {
    struct message_part *parts;
    struct strait_encode_item *encode;
    struct strait_decode_item *decode;
    unsigned count;
};
bool plan_list(struct codec_list *list, const struct plan *plan, uint8_t *staging, bool encoding);
void plan_list_free(struct codec_list *list);

/* Cost of moving messages by the links, as they were measured when the communicator was made (measure.c): seconds,
 * the same on all ranks; 0 where nothing was measured. */

/* Seconds that a phase takes: uncompressed; coded at the first level; to move all of its messages again if one
 * overflows. */
struct op_cost {
    double plain, coded, repair;
};

/* Of each byte of a phase's values, by the operation of NCCL that would move them uncompressed; inside a host none, as
 * all of it is the cost of the rail's phase. */
double cost_plain(const struct coll_ccomm *ccomm, const struct plan *plan);

/* Of each byte of the phase's messages as they are moved: by channels, or by NCCL's all_gather, broadcast, or sends and
 * receives. */
double cost_coded(const struct coll_ccomm *ccomm, const struct plan *plan);

/* Seconds to move the messages of a local phase, which is followed by the rail's `plan`. */
double cost_local(const struct coll_ccomm *ccomm, const struct plan *plan);

/* The most that a byte can cost. */
double cost_most(const struct coll_ccomm *ccomm);

/* An operation has one phase or several, one after another. Each is encoded, moved and decoded like a call of its own,
 * of a simpler operation.
 *
 *   all_reduce of more than two ranks   reduce_scatter of `count / ranks` values each, then all_gather of the sums
 *   all others                          themselves, including all_reduce of two ranks
 *
 * Where there are rails a reduce_scatter in FP32, also that of an all_reduce, has two: ranks of a host send each other
 * uncompressed what is for their places on all hosts, and add up; then ranks of a rail send each other these sums, one
 * for each host, as in a reduce_scatter of their own. So a host sends to each other one a sum for each of its ranks,
 * where each of its ranks would send a part to each of theirs.
 *
 * All parts have the same size, a multiple of 8 values so that they are aligned as the whole is. The values behind the
 * parts, fewer than 8 for each rank, are sent uncompressed by every rank to all others in the first phase, and all of
 * them add these up. */

unsigned phase_count(const struct coll_ccomm *ccomm, const struct coll_call *call);
enum plan_scope phase_scope(const struct coll_ccomm *ccomm, const struct coll_call *call, unsigned phase);
/* The phase as a call of its own; of a rail without a send buffer, as that is what was kept. */
struct coll_call phase_call(const struct coll_ccomm *ccomm, const struct coll_call *call, unsigned phase);

/* The same call for `count` values from number `at` on. */
struct coll_call phase_cut(const struct coll_call *call, size_t at, size_t count);

/* The values behind the parts, in this phase; count 0: none. */
struct coll_call phase_rest(const struct coll_ccomm *ccomm, const struct coll_call *call, unsigned phase);

#endif
