/* The wire `peer` (peer_gpu.h): operations of ranks that reach each other's memory, without NCCL.
 *
 * The order in which everything is queued is one in which it could run on a single stream, on every rank: first what
 * makes piece n + 1 ready for others, then what waits for their piece n. So nothing waits for what lies behind it in a
 * queue that the hardware shares among streams; only for what lies before, or for what another rank has before it in
 * the same order. What waits is a single warp, so it never keeps others from running. And nothing has to be launched
 * while it waits. That holds of collectives, which all ranks ask for in the same order, and of sends and receives when
 * both sides group them alike. */
#ifndef STRAIT_COLLECTIVE_ENGINE_PEER_H
#define STRAIT_COLLECTIVE_ENGINE_PEER_H

#include "collective/engine/member.h"
#include "collective/engine/peer_gpu.h"
#include "collective/engine/peer_plan.h"

/* Streams of an operation, and what orders them. Those of a graph that is being captured are part of it until then. */
enum peer_stream {
    PEER_CLAIMING,
    PEER_ENCODING, /* as many as encode in turn; likewise below */
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
    uint64_t capture; /* that it was last used in; 0: none */
    coll_stream stream[PEER_STREAMS];
    gpu_event begun, claimed, encoded, crossed, come, decoded, summed, ended;
    gpu_event posted[PEER_OUTGOING], freed[PEER_DECODERS_MAX];
};

/* What a codec kernel leaves to the next one on its stream. */
struct peer_scratch {
    uint8_t *memory;
    uint64_t size;
};

struct peer_wire {
    struct peer_tuning tuning;
    uint64_t slot;                    /* bytes */
    uint8_t *arena;                   /* of this rank; others write there */
    uint8_t *outgoing;                /* what is encoded: a slot for each other rank, PEER_OUTGOING times */
    uint8_t *sums;                    /* raw pieces of other ranks that are to be added up; NULL: not needed so far */
    uint8_t *reached[PEER_RANKS_MAX]; /* arenas by rank, the own one too */
    struct peer_handle handle[PEER_RANKS_MAX];
    struct peer_counters *counters;
    struct peer_world *world; /* in the GPU's memory */
    struct peer_mail *mail;
    struct strait_result *results; /* of decoding: by stream, main and tail by rank */
    uint8_t *asides;               /* metadata of what is decoded: likewise */
    struct peer_scratch encoding[PEER_ENCODERS_MAX], decoding[PEER_DECODERS_MAX];
    struct peer_lane *lanes;
    gpu_event last;              /* the order of operations, of graphs too */
    struct link_cost plain, own; /* of NCCL and of this wire, when they were measured */
};

/* Collective, of members of this process that are able: `peer` is made, or why there is none is in their `no_peer`.
 * told: memory of their GPUs for an offer of each rank and another one. */
void peer_join(struct coll_member *const members[], void *const told[], unsigned count);
size_t peer_offer_bytes(void);

/* When nothing of it runs any more. Waits a while for others to have read what they were sent. */
void peer_end(struct coll_member *member);

void peer_abort(struct coll_member *member);
bool peer_over(const struct coll_member *member); /* what was asked for straight */
void peer_look(struct coll_member *member);       /* what kernels found to be wrong is a failure */

/* What became of it, as text that goes on. */
void peer_describe(const struct coll_member *member, char *text, size_t size);

/* Whether the call goes this way; then `step` is complete. */
bool peer_decide(struct coll_member *member, const struct coll_call *call, struct coll_step *step);

/* All of it: nothing is left for other parts of the run. Of one group; every step is of this wire. */
coll_result peer_run(struct coll_step *steps, unsigned count);

/* peer_layout.c: where things are. */
uint64_t peer_arena_bytes(const struct peer_wire *wire, int ranks);
uint64_t peer_outgoing_bytes(const struct peer_wire *wire, int ranks);
/* In the arena of `owner`, of a message from `sender`. */
uint8_t *peer_slot(const struct peer_wire *wire, int owner, int sender, uint32_t piece);
/* For what is sent in a round: place 0 to ranks - 2. */
uint8_t *peer_outgoing(const struct peer_wire *wire, int ranks, uint32_t place, uint32_t round);
/* Of what is decoded on a stream, by place in the round: metadata of a tail, or of whole pages; results. */
uint64_t peer_asides_bytes(const struct peer_wire *wire, int ranks);
uint8_t *peer_aside(const struct peer_wire *wire, int ranks, uint32_t decoder, uint32_t i, bool tail);
uint64_t peer_results_bytes(int ranks);
struct strait_result *peer_results(const struct peer_wire *wire, int ranks, uint32_t decoder, uint32_t i);
uint64_t peer_sums_stride(const struct peer_wire *wire); /* from one rank's to the next one's */
bool peer_sums_prepare(struct coll_member *member);      /* room for them; false: no memory */

/* peer_lane.c: those of a stream, for the next operation on it; NULL: they cannot be had. */
struct peer_lane *peer_lane_of(struct coll_member *member, coll_stream stream);
void peer_lanes_end(struct peer_wire *wire, const struct gpu_ops *gpu);

#endif
