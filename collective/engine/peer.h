#ifndef STRAIT_COLLECTIVE_ENGINE_PEER_H
#define STRAIT_COLLECTIVE_ENGINE_PEER_H

#include <stdbool.h>
#include <stdint.h>
#include <strait/codec.h>

#include "collective/call.h"
#include "collective/engine/ccomm.h"
#include "collective/engine/peer_gpu.h"

/* How the wire `peer` cuts messages into pieces, and where these lie: a function of sizes alone, so the same on all
 * ranks. */

enum {
    PEER_PAGE = 32768, /* raw bytes that are coded as one page */
    PEER_DEPTH = 5,    /* slots of each sender: two being filled, one full, two being decoded */
    PEER_OUTGOING = 3, /* encoded pieces yet to cross: one being filled, one full, one crossing */
    PEER_ENCODERS_MAX = 3,
    PEER_DECODERS_MAX = 2,
};

/* How encoded pieces cross: a copy engine pushes as many bytes as usually suffice and a kernel the rest, or a kernel
 * pushes all. */
enum peer_crossing { PEER_BY_ENGINE, PEER_BY_KERNEL };

/* What is still to be measured: the best values of bare and cross, and whether direct is better than any of them. */
enum peer_open { PEER_OPEN_SHARE = 1, PEER_OPEN_DIRECT = 2 };

/* What can be tuned; the same on all ranks. */
struct peer_tuning {
    uint32_t crossing;
    uint32_t piece;  /* raw bytes of a piece: a multiple of PEER_PAGE */
    uint32_t blocks; /* of a kernel that moves */
    uint32_t sms;    /* multiprocessors that a codec kernel may have; 0: all */
    uint32_t direct; /* pieces for one rank are encoded into its slots: they cross as the encoder stores them */
    uint32_t encoders, encoder_sms; /* for direct: streams that encode in turn, and `sms` for all of them together */
    uint32_t decoders, decoder_sms; /* likewise */
    uint32_t bare;                  /* each N-th piece, the first and the last stay uncompressed; 0: none, 1: all */
    uint32_t cross;                 /* streams on which pieces cross in turn: 1 or 2 */
    uint32_t open;                  /* bits of peer_open */
    uint32_t flat;                  /* pieces are equal from the first to the last */
    uint32_t trace;                 /* prints on stderr, at the end, when each stage ended */
};

/* Parses words between commas: direct, engine or kernel, piece=KIB, blocks=N, sms=N, bare=N, cross=N, encoders=N,
 * encoder_sms=N, decoders=N, decoder_sms=N, flat, trace. NULL: the best values known. If none of direct, bare and cross
 * is given, they are left open for measuring; with engine or kernel, direct is not tried. False: not understood, and
 * the best values are used. Pieces are smaller the more ranks there are, as all of them share the memory. */
bool peer_tuning_of(struct peer_tuning *tuning, const char *text, int ranks);

/* A message of one element type, of at least one page.
 *
 * When pieces are encoded here and then pushed, encoding, moving and decoding are about equally fast, so some pieces
 * are left uncompressed: while one of them crosses, others are coded. The first and the last are among them, so that
 * crossing begins at once and nothing has to be decoded at the end; the last two are smaller than the rest. Without
 * bare pieces, as with direct, the first two are smaller, too. */
struct peer_cut {
    enum strait_element element;
    uint32_t pieces;
    uint64_t pages;      /* whole ones, of all pieces */
    uint32_t ramp;       /* pages of the last piece, half of those of the one before it; 0: all pieces are equal */
    uint32_t front;      /* pieces at the beginning that grow likewise: 2 or 0 */
    uint32_t bare;       /* as tuned */
    uint32_t tail_bytes; /* behind the pages of the last piece */
};

/* False: it is too small or too large. */
bool peer_cut_of(struct peer_cut *cut, coll_type type, uint64_t count, const struct peer_tuning *tuning);

struct peer_piece {
    uint64_t at, bytes; /* of the message's values */
    uint32_t pages, tail_bytes;
    bool bare;                       /* uncompressed values follow the head */
    uint64_t tail_at, main_at;       /* in the slot; tail_at 0: none */
    uint64_t tail_bound, main_bound; /* the most bytes they can encode to */
    uint64_t room;                   /* bytes at the slot's beginning that usually suffice: a multiple of 128 */
};
struct peer_piece peer_piece_of(const struct peer_cut *cut, uint32_t number);

/* The chunk of so many pages: how it begins, and the bytes of its metadata, a multiple of 16 (kernels/FORMAT.md). */
struct peer_chunk {
    uint32_t begins[4];
    uint32_t metadata_bytes;
};
struct peer_chunk peer_chunk_of(enum strait_element element, uint32_t pages, uint32_t page_bytes);

/* Bytes of the largest slot. */
uint64_t peer_slot_bytes(const struct peer_tuning *tuning);

/* The wire `peer` (peer_gpu.h): operations of ranks that reach each other's memory, without NCCL.
 *
 * Everything is queued in an order that could run on a single stream, on every rank: first the work that makes piece n
 * + 1 ready for others, then the work that waits for their piece n. So nothing waits for work behind it in a hardware
 * queue that streams share; only for work before it, or for work that another rank has earlier in the same order.
 * Whatever waits is a single warp, so it never keeps other work from running, and nothing has to be launched while it
 * waits. This holds for collectives, which all ranks call in the same order, and for sends and receives if both sides
 * group them alike. */

/* Streams of an operation, and the events that order them. While a graph is captured, those that it uses are part of
 * it. */
enum peer_stream {
    PEER_CLAIMING,
    PEER_ENCODING, /* several, which encode in turn; likewise below */
    PEER_COPY_STREAM_0 = PEER_ENCODING + PEER_ENCODERS_MAX,
    PEER_COPY_STREAM_1,
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
    struct peer_mail *host_status;
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
void peer_join(struct coll_ccomm *const members[], void *const told[], unsigned count);
size_t peer_offer_bytes(void);

/* No more operations will come: those so far (peer_over) then end when other ranks have read what they were sent, for
 * which they get as long as within an operation. Nothing if it was aborted. */
void peer_close(struct coll_ccomm *member);
/* Called when nothing of it runs any more. */
void peer_end(struct coll_ccomm *member);

void peer_abort(struct coll_ccomm *member);
bool peer_over(const struct coll_ccomm *member); /* everything outside of graphs has ended */
void peer_look(struct coll_ccomm *member);       /* turns an error that kernels found into a failure */

/* Appends what became of it, as text. */
void peer_describe(const struct coll_ccomm *member, char *text, size_t size);

/* Whether the call goes by this wire; if so, `step` is complete. */
bool peer_decide(struct coll_ccomm *member, const struct coll_call *call, struct coll_op *step);

/* Runs the steps of one group, all of which go by this wire. Nothing is left for the other parts of a run. */
coll_result peer_run(struct coll_op *steps, unsigned count);

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
bool peer_sums_prepare(struct coll_ccomm *member);       /* allocates `sums`; false: no memory */

/* peer_lane.c: the lane for the next operation on a stream; NULL: none can be had. */
struct peer_lane *peer_lane_of(struct coll_ccomm *member, coll_stream stream);
void peer_lanes_end(struct peer_wire *wire, const struct gpu_ops *gpu);

/* The steps of a group as the wire `peer` sees them: consecutive segments, each of messages that are sent at once. A
 * collective is one segment, an all_reduce two; all sends and receives of a group are one segment, the last. */

/* One message, to or from one rank or to all others. Messages of one rank go one after another, piece by piece. */
struct peer_flow {
    struct peer_cut cut;
    uint8_t *values; /* NULL: received to be added up */
    int rank;        /* the other rank; for sending also PEER_TO_ALL */
    uint32_t next;   /* next piece */
};
#define PEER_TO_ALL (-1)

struct peer_segment {
    const struct coll_op *step;
    struct peer_flow *out, *in;
    unsigned outs, ins;
    bool sums;    /* what is received is added up, with `own`, into `sum` */
    bool follows; /* sends the sum of the segment before it */
    uint8_t *own, *sum;
};

struct peer_segments {
    struct peer_segment *segment;
    struct peer_flow *flow; /* flows of all segments */
    unsigned count;
};

/* For the steps of one member; false: no memory. */
bool peer_segments_of(struct peer_segments *segments, const struct coll_ccomm *member, const struct coll_op *steps,
                      unsigned count);
void peer_segments_free(struct peer_segments *segments);

/* The next piece of each flow, at most one for each rank. */
struct peer_round {
    uint32_t count;
    struct peer_flow *flow[PEER_RANKS_MAX];
    struct peer_piece piece[PEER_RANKS_MAX];
    uint32_t number[PEER_RANKS_MAX]; /* of the piece in its message */
};
struct peer_round peer_round_next(struct peer_flow *flows, unsigned count);
bool peer_round_left(const struct peer_flow *flows, unsigned count); /* whether another round follows */

/* For all_reduce: the block of values that `rank` adds up. All blocks but the last are equal. */
struct peer_block {
    uint64_t at, count;
};
struct peer_block peer_block_of(uint64_t count, int ranks, int rank);

/* Members of this process whose wire `peer` is being made, together with those of others. */

/* What a rank tells the others. */
struct peer_offer {
    struct peer_handle handle;
    struct peer_tuning tuning; /* the same on all */
    uint32_t able;
    char why[96];
};

/* What is measured: a small message and a large one, by NCCL and by this wire, the latter in several ways. */
enum peer_trial { PEER_PLAIN_SMALL, PEER_PLAIN, PEER_OWN_SMALL, PEER_OWN, PEER_TRIALS = PEER_OWN + 7 };

/* What each took, in seconds; 0: it was not tried. */
struct peer_times {
    double of[PEER_TRIALS];
};

struct peer_entry {
    struct coll_ccomm *member;
    struct peer_wire *wire; /* becomes the member's when all ranks have it, since a thread of the member looks there */
    struct peer_offer own;
    struct peer_offer *told; /* in the GPU's memory: of all ranks, then of this one */
    uint8_t *probe;          /* large messages of all ranks; NULL: nothing is measured */
    gpu_event begin, end;
    struct peer_times times;
};

typedef bool peer_part(struct peer_entry *entry);

/* Calls `what` for each entry, on its GPU; peer_grouped in a group of NCCL. False: one of them failed. */
bool peer_each(struct peer_entry *entries, unsigned count, peer_part *what);
bool peer_grouped(struct peer_entry *entries, unsigned count, peer_part *what);

/* peer_measure.c: whether NCCL is measured for comparison, and whether anything is measured; what measuring needs,
 * before ranks tell whether they are able; and measuring itself. */
bool peer_compared(const struct coll_ccomm *member);
bool peer_measured(const struct coll_ccomm *member, const struct peer_wire *wire);
bool peer_measure_prepare(struct peer_entry *entry);
bool peer_measure(struct peer_entry *entries, unsigned count);
bool peer_measure_end(struct peer_entry *entry);

#endif
