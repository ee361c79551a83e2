/* The wire `peer` (peer_gpu.h): operations of ranks that reach each other's memory, without NCCL.
 *
 * Everything is queued in an order that could run on a single stream, on every rank: first the work that makes piece n
 * + 1 ready for others, then the work that waits for their piece n. So nothing waits for work behind it in a hardware
 * queue that streams share; only for work before it, or for work that another rank has earlier in the same order.
 * Whatever waits is a single warp, so it never keeps other work from running, and nothing has to be launched while it
 * waits. This holds for collectives, which all ranks call in the same order, and for sends and receives if both sides
 * group them alike. */
#ifndef STRAIT_COLLECTIVE_ENGINE_PEER_H
#define STRAIT_COLLECTIVE_ENGINE_PEER_H

#include "collective/engine/member.h"
#include "collective/engine/peer_gpu.h"
#include "collective/engine/peer_plan.h"

/* Streams of an operation, and the events that order them. While a graph is captured, those that it uses are part of
 * it. */
enum peer_stream {
    PEER_CLAIMING,
    PEER_ENCODING, /* several, which encode in turn; likewise below */
    PEER_CROSSING = PEER_ENCODING + PEER_ENCODERS_MAX,
    PEER_CROSSING_TOO,
    PEER_POSTING,
    PEER_WAITING,
    PEER_DECODING,
    PEER_FREEING = PEER_DECODING + PEER_DECODERS_MAX,
    PEER_STREAMS
};
struct peer_lane {
    struct peer_lane *next;
    uint64_t capture; /* the capture that last used it; 0: none */
    coll_stream stream[PEER_STREAMS];
    gpu_event begun, claimed, encoded, crossed, come, decoded, summed, ended;
    gpu_event posted[PEER_OUTGOING], freed[PEER_DECODERS_MAX];
};

/* Memory that a codec kernel hands on to the next one on its stream. */
struct peer_scratch {
    uint8_t *memory;
    uint64_t size;
};

struct peer_wire {
    struct peer_tuning tuning;
    uint64_t slot;                    /* bytes */
    uint8_t *arena;                   /* this rank's; others write there */
    uint8_t *outgoing;                /* encoded data: a slot for each other rank, PEER_OUTGOING times */
    uint8_t *sums;                    /* raw pieces of other ranks, to be added up; NULL: not needed so far */
    uint8_t *reached[PEER_RANKS_MAX]; /* arenas by rank, including this rank's own */
    struct peer_handle handle[PEER_RANKS_MAX];
    struct peer_counters *counters;
    struct peer_world *world; /* in the GPU's memory */
    struct peer_mail *mail;
    struct strait_result *results; /* of decoding: by stream, then by rank the main part's and the tail's */
    uint8_t *asides;               /* metadata of pieces to be decoded: likewise */
    struct peer_scratch encoding[PEER_ENCODERS_MAX], decoding[PEER_DECODERS_MAX];
    struct peer_lane *lanes;
    gpu_event last;              /* orders operations, including those of graphs */
    struct link_cost plain, own; /* of NCCL and of this wire, if they were measured */
    bool unsure;                 /* it is not known whether others have read all they were sent */
};

/* Collective, called for the able members of this process: makes their `peer`, or sets `no_peer` to why there is none.
 * told: GPU memory of each member, for one offer of each rank and one more. */
void peer_join(struct coll_member *const members[], void *const told[], unsigned count);
size_t peer_offer_bytes(void);

/* No more operations will come: those so far (peer_over) then end when other ranks have read what they were sent, for
 * which they get as long as within an operation. Nothing if it was aborted. */
void peer_close(struct coll_member *member);
/* Called when nothing of it runs any more. */
void peer_end(struct coll_member *member);

void peer_abort(struct coll_member *member);
bool peer_over(const struct coll_member *member); /* everything outside of graphs has ended */
void peer_look(struct coll_member *member);       /* turns an error that kernels found into a failure */

/* Appends what became of it, as text. */
void peer_describe(const struct coll_member *member, char *text, size_t size);

/* Whether the call goes by this wire; if so, `step` is complete. */
bool peer_decide(struct coll_member *member, const struct coll_call *call, struct coll_step *step);

/* Runs the steps of one group, all of which go by this wire. Nothing is left for the other parts of a run. */
coll_result peer_run(struct coll_step *steps, unsigned count);

/* peer_layout.c: where things lie. */
uint64_t peer_arena_bytes(const struct peer_wire *wire, int ranks);
uint64_t peer_outgoing_bytes(const struct peer_wire *wire, int ranks);
/* In the arena of `owner`, of a message from `sender`. */
uint8_t *peer_slot(const struct peer_wire *wire, int owner, int sender, uint32_t piece);
/* Where a piece sent in a round is encoded: place 0 to ranks - 2. */
uint8_t *peer_outgoing(const struct peer_wire *wire, int ranks, uint32_t place, uint32_t round);
/* What is decoded on a stream, by place in the round: metadata of the tail or of whole pages, and results. */
uint64_t peer_asides_bytes(const struct peer_wire *wire, int ranks);
uint8_t *peer_aside(const struct peer_wire *wire, int ranks, uint32_t decoder, uint32_t i, bool tail);
uint64_t peer_results_bytes(int ranks);
struct strait_result *peer_results(const struct peer_wire *wire, int ranks, uint32_t decoder, uint32_t i);
uint64_t peer_sums_stride(const struct peer_wire *wire); /* from one rank's sums to the next one's */
bool peer_sums_prepare(struct coll_member *member);      /* allocates `sums`; false: no memory */

/* peer_lane.c: the lane for the next operation on a stream; NULL: none can be had. */
struct peer_lane *peer_lane_of(struct coll_member *member, coll_stream stream);
void peer_lanes_end(struct peer_wire *wire, const struct gpu_ops *gpu);

#endif
