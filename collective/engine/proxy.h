/* Overflows between hosts: what kernels write into rings (rings.h) goes to ranks on other hosts by a transport, as do
 * steps of levels (levels.h), which those ranks take together. */
#ifndef STRAIT_COLLECTIVE_ENGINE_PROXY_H
#define STRAIT_COLLECTIVE_ENGINE_PROXY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collective/engine/rings.h"
#include "collective/ranks.h"
#include "internal/address.h"
#include "internal/bytes.h"
#include "transport/tcp.h"

/* The protocol between ranks on different hosts: frames of 32 bytes, little-endian, each the header of a chunk, whose
 * bytes are a slot's values for one type of frame and none for the others. They are untrusted: an invalid frame ends
 * the connection. */

enum { FRAME_BYTES = 32 };

enum frame_type {
    FRAME_SLOT = 1, /* a: number of the slot; `small` bytes of values follow */
    FRAME_TAKEN,    /* a: number + 1 of what was taken out of its slot */
    FRAME_RECORD,   /* a: number, b: first slot; small: 1 for pairs */
    FRAME_ASK,      /* small: an op class that a step is wanted for (level_consensus) */
    FRAME_PROMISE,  /* small: an op class; a: no operation from this one on begins before the step comes; b: 1 if all
                       ranks there are past the last step, else 0 */
    FRAME_STEP,     /* small: an op class; a, b, c: from, until, level; a is 0: there is none */
    FRAME_LEAVE,    /* the end of this connection is no failure from now on */
    FRAME_FLUSH,    /* once, to be answered: what went before has arrived */
    FRAME_FLUSHED,  /* the answer */
    FRAME_TYPES
};

struct frame {
    uint32_t type, small;
    uint64_t a, b, c;
};

static inline void frame_put(uint8_t *bytes, const struct frame *frame)
{
    store_le32(bytes, frame->type);
    store_le32(bytes + 4, frame->small);
    store_le64(bytes + 8, frame->a);
    store_le64(bytes + 16, frame->b);
    store_le64(bytes + 24, frame->c);
}

static inline struct frame frame_get(const uint8_t *bytes)
{
    return (struct frame){.type = load_le32(bytes),
                          .small = load_le32(bytes + 4),
                          .a = load_le64(bytes + 8),
                          .b = load_le64(bytes + 16),
                          .c = load_le64(bytes + 24)};
}

/* Consensus on steps of levels (levels.h), which ranks on several hosts take together. The copy that wants a step asks
 * all others, over their connections. Each promises an operation number: none of the op class from that one on begins
 * before the step has come. The step takes effect from the highest of these numbers on, so nobody has begun an
 * operation that it applies to. A rank that gets there too early waits for as long as an answer takes, which other
 * threads give; that is rare, since there are OP_CLASS_AHEAD operations until then. If ranks somewhere are not past the
 * step before, there is none. */

struct coll_ccomm;

/* One for each op class, in the process of the rank that decides. */
struct class_consensus {
    struct rank_set missing; /* those that have not promised yet; none: nobody was asked */
    uint64_t from;           /* the highest number promised so far */
    bool early;              /* ranks somewhere are not past the last step */
};

struct level_consensus {
    struct coll_ccomm *ccomm;
    struct class_consensus *classes; /* by op_class_own_index */
    uint64_t seen;                   /* value of classes.wanted that was handled */
    struct rank_set gone;            /* ranks that have gone */
    /* Sends a frame to a rank on another host. False: no memory. */
    bool (*send)(void *arg, int peer, const struct frame *frame);
    void *send_arg;
};

/* False: no memory. */
bool consensus_init(struct level_consensus *agree, struct coll_ccomm *ccomm);
void consensus_fini(struct level_consensus *agree);

/* Asks for all steps wanted by now. False: no memory. */
bool consensus_ask(struct level_consensus *agree);
/* Handles a frame from another rank. False: it is invalid. */
bool consensus_receive(struct level_consensus *agree, int peer, const struct frame *frame);
/* The peer has gone: it begins no operation and decides nothing any more. False: no memory. */
bool consensus_rank_gone(struct level_consensus *agree, int peer);

/* The two rings (rings.h) between ranks on different hosts: each side has both in its own host's memory, and a link
 * carries what kernels write on one side to the other, so that kernels see what they would see in one shared memory.
 *
 *   sender's memory                       link                  receiver's memory
 *   slots, full[] --------------------- SLOT -----------------> slots, full[]
 *   taken[] <-------------------------- TAKEN ----------------- taken[]
 *   records ---------------------------- RECORD --------------> records
 *
 * A slot is sent once it is full, and is filled again only after the sender's kernel has seen it taken, which is after
 * the receiver's kernel took it. So there is always room for what arrives, it is received straight into its slot, and
 * whoever carries a link never has to wait for a GPU. */

/* On their way, as the transport has not reported them sent; further ones wait. */
enum { PROXY_FRAMES_MAX = 64, PROXY_SLOTS_MAX = 2 };

/* The link to one rank, whose owner is this. */
struct proxy_peer {
    struct link *link; /* NULL: there is none, or it has ended */
    int rank;
    uint32_t slot_bytes, depth, records; /* of rings */
    struct ring_parts to, from;    /* to the peer, from it, as the host reaches them; all NULL: the link carries none */
    uint64_t sent[RING_SLOTS];     /* number + 1 of what was last sent of each slot */
    uint64_t reported[RING_SLOTS]; /* number + 1 of what was last reported taken */
    uint64_t filled[RING_SLOTS];   /* number + 1 of what last came into each slot */
    uint64_t next_records[2];      /* number of the next record to send */
    uint64_t least_records[2];     /* the least number that may come next */
    uint32_t frames, slots;        /* on their way; slots are frames, too */
    bool dialled, connected;
    struct frame *waiting; /* frames of the consensus, until it is connected */
    unsigned waiting_count;
    bool leaving, left;     /* this side has said that it leaves; the peer has */
    bool flushing, flushed; /* this side has asked to flush; the peer has answered */
    bool answered;          /* the peer has asked to flush, and was answered */
    bool starved;           /* no memory */
    bool gone;              /* the link's end was handled */
    const char *trouble;    /* why it has ended, if that is a failure; static */
    const char *cause;      /* if it has ended before it was connected, why that could not be; static */
    /* Handles frames of the consensus on levels, and returns whether they are valid. */
    bool (*on_consensus)(void *arg, int rank, const struct frame *frame);
    void *consensus_arg;
};

/* Of the transport, whose owner is the number of its links; the owner of a link is its proxy_peer. Chunks have to
 * arrive in order. */
extern const struct transport_events proxy_events;

/* Sends a frame without values. A link that has ended takes nothing; that is no failure. */
void proxy_peer_frame(struct proxy_peer *peer, const struct frame *frame);
/* Hands to the transport what kernels have written. */
void proxy_peer_send(struct proxy_peer *peer);
/* Ends the link; `why` as `trouble`. */
void proxy_peer_end(struct proxy_peer *peer, const char *why);

/* Whether the ring to the peer has slots that were not sent; and whether anything of either ring waits to be sent. */
bool proxy_peer_is_full(const struct proxy_peer *peer);
bool proxy_peer_is_quiet(const struct proxy_peer *peer);

/* All links of a communicator whose ranks are not all on one host. One thread of the process carries those of all its
 * communicators: it calls neither CUDA nor NCCL, waits for no GPU, and polls memory that kernels write.
 *
 * Up to RING_FEW_RANKS ranks, each is connected with every rank of other hosts from the start, by one link that carries
 * both rings: so the end of any of them is seen. With more, a rank makes a link to another one when it has something
 * for it: a message that overflows, or a frame of the consensus on levels. Such a link carries one ring, from the rank
 * that has made it; what goes the other way has a link of its own, made by the other rank. So each rank decides about
 * its links alone, and most pairs of ranks never have one. Records are sent by links that there are: kernels do not
 * depend on them (exchange.h).
 *
 * Links of the start tell whether hosts reach each other: whoever dials says what came of it, and all ranks stay raw if
 * one was not connected. With more ranks than RING_FEW_RANKS some are made for that: the leader of each host (hosts.h)
 * dials that of the next, so that every host connects once and is connected to once. */

struct proxy;

/* How others reach a rank: where it listens, and what they have to show. The same for all of them. */
enum { PROXY_SECRET_BYTES = 16 };
struct proxy_info {
    struct address address;
    uint8_t secret[PROXY_SECRET_BYTES];
};

/* Whether links are made when they are needed. */
bool proxy_is_lazy(const struct coll_ccomm *ccomm);
/* Listens for ranks of other hosts. False: no memory, or no address that others could reach. */
bool proxy_prepare(struct coll_ccomm *ccomm, struct proxy_info *info);
/* Once the rings are reached: takes what is needed to connect to a rank, and begins the link to it, if that is one of
 * the start. Does not wait. */
void proxy_connect(struct coll_ccomm *ccomm, int rank, const struct proxy_info *info);
/* The rings are carried from now on. False: no memory, or no thread. */
bool proxy_start(struct coll_ccomm *ccomm);
/* All ranks carry their rings: from now on it is their time that passes until they are connected. */
void proxy_expect(struct coll_ccomm *ccomm);
/* Waits until all ranks that this one has dialled are connected: ADDRESS_CONNECT_MS at most for the network, and
 * PROXY_ANSWER_MS for the rank there, after proxy_expect. Returns NULL, or why `rank` is not; static. */
enum { PROXY_ANSWER_MS = 10000 };
const char *proxy_await(struct coll_ccomm *ccomm, int *rank);
/* Where a rank listens, as it has said. */
const struct address *proxy_address(const struct coll_ccomm *ccomm, int rank);
/* All ranks have connected: the end of a link is the communicator's failure from now on. False: one has ended. */
bool proxy_settle(struct coll_ccomm *ccomm);

/* Text that tells how many ranks it is connected to, to be appended; empty: there is no link. */
void proxy_describe(const struct coll_ccomm *ccomm, char *text, size_t size);

/* No more operations will come: that other ranks end, or this one, is no failure. Any thread. */
void proxy_finish(struct coll_ccomm *ccomm);
/* Waits until what this rank's kernels have written has arrived, unless it was aborted. Then links end, and none of its
 * memory is read any more. */
void proxy_leave(struct coll_ccomm *ccomm);
void proxy_end(struct coll_ccomm *ccomm);

#endif
