#ifndef STRAIT_COLLECTIVE_ENGINE_OVERFLOW_TCP_H
#define STRAIT_COLLECTIVE_ENGINE_OVERFLOW_TCP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collective/address.h"
#include "collective/engine/rings.h"
#include "internal/bytes.h"

/* The protocol between ranks on different hosts: frames of a 32-byte head, little-endian, followed by a slot's values
 * for one type of frame. The bytes are untrusted: an invalid frame ends the connection. */

enum { FRAME_BYTES = 32 };

enum frame_type {
    FRAME_SLOT = 1, /* a: number of the slot; `small` bytes of values follow */
    FRAME_TAKEN,    /* a: number + 1 of what was taken out of its slot */
    FRAME_RECORD,   /* a: number, b: first slot; small: 1 for pairs */
    FRAME_ASK,      /* small: an op class that a step is wanted for (level_consensus) */
    FRAME_PROMISE,  /* small: an op class; a: no operation from this one on begins before the step comes */
    FRAME_STEP,     /* small: an op class; a, b, c: from, until, level */
    FRAME_LEAVE,    /* the end of this connection is no failure from now on */
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

/* Authentication of connections between ranks on different hosts by 128-bit secrets. Each rank has drawn a secret and
 * told it to all ranks of the communicator through NCCL. The rank that connects sends the secret of the rank it wants,
 * and gets back its own. A stranger who connects knows neither and is dropped. Secrets are sent in the clear: anyone
 * who can read the network can impersonate a rank. */

enum { AUTH_SECRET_BYTES = 16, AUTH_TIMEOUT_MS = 10000 };

/* Record that a rank sends to the others. */
struct peer_endpoint {
    struct address address;
    uint8_t secret[AUTH_SECRET_BYTES];
};

/* A listening socket; -1: there is none. */
int auth_listen(struct peer_endpoint *card);

/* Connects rank `from` to rank `to`, whose endpoint is `card`, and proves itself. -1: it is not reached. */
int auth_connect(const struct peer_endpoint *card, int from, int to);
/* Waits for the answer to that, which comes before anything else. False: it is the wrong one, or none came in time. */
bool auth_await(int connected, const struct peer_endpoint *own, int from, int to);

/* Rank `to` accepts the awaited ranks (a bit for each) and answers them; sockets are by rank. False: not all came in
 * time. */
bool auth_accept(int listener, const struct peer_endpoint *cards, int to, uint64_t awaited, int *sockets);

/* Consensus on steps of levels (levels.h), which ranks on several hosts take together. The copy that wants a step asks
 * all others, over their connections. Each promises an operation number: none of the op class from that one on begins
 * before the step has come. The step takes effect from the highest of these numbers on, so nobody has begun an
 * operation that it applies to. A rank that gets there too early waits for as long as an answer takes, which other
 * threads give; that is rare, since there are OP_CLASS_AHEAD operations until then. */

struct coll_ccomm;

/* One for each op class, in the process of the rank that decides. */
struct class_consensus {
    uint64_t missing; /* a bit for each rank that has not promised yet; 0: nobody was asked */
    uint64_t from;    /* the highest number promised so far */
};

struct level_consensus {
    struct coll_ccomm *ccomm;
    struct class_consensus *classes;
    uint64_t seen; /* value of classes.wanted that was handled */
    uint64_t gone; /* a bit for each rank that has gone */
    /* Sends a frame to a rank on another host. False: no memory. */
    bool (*say)(void *speaker, int peer, const struct frame *frame);
    void *speaker;
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
 * wait for a GPU. None of these functions waits. */

enum { TCP_FRAMES = 64 }; /* frames written at once */

/* One ring, as the host reaches it. */
struct tcp_ring {
    struct ring_flags *flags;
    uint8_t *slots;
};

struct tcp_tx {
    uint64_t sent[RING_SLOTS]; /* number + 1 of what was last sent of each slot */
    uint64_t told[RING_SLOTS]; /* number + 1 of what was last reported taken */
    uint64_t records[2];       /* the next record's number */
    uint8_t words[TCP_FRAMES * FRAME_BYTES];
    uint32_t size, done; /* of the words */
    const uint8_t *values;
    uint64_t left; /* bytes left of the values, which follow the words */
};

struct tcp_rx {
    uint64_t filled[RING_SLOTS]; /* number + 1 of what last came into each slot */
    uint64_t records[2];         /* the least number that may come next */
    uint8_t head[FRAME_BYTES];
    uint32_t got; /* of the head */
    struct frame frame;
    uint8_t *values; /* where the frame's values go */
    uint64_t left;   /* bytes left of them */
};

struct tcp_conn {
    int socket; /* -1: it has ended */
    int peer;
    uint32_t slot_bytes;
    struct tcp_ring to, from; /* to the peer, from it */
    struct tcp_tx out;
    struct tcp_rx in;
    bool blocked;        /* the socket takes no more for now */
    bool leaving, left;  /* this side has said that it leaves; the peer has */
    const char *trouble; /* why it has ended, if that is a failure; static */
    /* Frames of the consensus on levels: a queue of those to send; those that come go to `hear`, which returns whether
     * they are valid. */
    struct frame *queue;
    uint32_t queued, queue_room;
    bool (*hear)(void *hearer, int peer, const struct frame *frame);
    void *hearer;
};

/* False: no memory. */
bool tcp_queue_frame(struct tcp_conn *conn, const struct frame *frame);

/* Sends and receives what it can. True: there was something. */
bool tcp_progress(struct tcp_conn *conn);

/* Whether all that tcp_queue_frame was given has been sent; whether all that this rank's kernels have written has
 * reached the peer's host. */
bool tcp_has_sent(const struct tcp_conn *conn);
bool tcp_has_flushed(const struct tcp_conn *conn);

void tcp_close(struct tcp_conn *conn);

/* The process's thread that moves frames for all communicators. Any thread may call these functions. */

struct overflow_tcp;

/* False: no thread can be had. */
bool tcp_thread_add(struct overflow_tcp *link);
/* Sets link->finished. */
void tcp_thread_finish(struct overflow_tcp *link);
/* Stops carrying the link if `done` returns true or is NULL. True: it is not progressed any more. */
bool tcp_thread_remove(struct overflow_tcp *link, bool (*done)(const struct overflow_tcp *link));
/* False in a process that was forked from the one in which the thread runs. */
bool tcp_thread_is_ours(void);

/* State that the connections of a communicator and that thread share. */

/* While `progressed`, the tcp_thread's lock protects the fields below it. */
struct overflow_tcp {
    struct coll_ccomm *ccomm;
    int listener;    /* -1: no more connections are awaited */
    int peers;       /* number of ranks that it is connected to */
    bool progressed; /* the thread was given the link and has not dropped it */
    struct overflow_tcp *next;
    struct level_consensus agree;
    bool finished;           /* overflow_tcp_finish was called */
    bool lost;               /* a rank has gone without leaving: the communicator has failed */
    bool starved;            /* no memory */
    struct tcp_conn conns[]; /* by rank */
};

/* Carries what it can. True: there was something. */
bool overflow_tcp_progress(struct overflow_tcp *link);

/* The connections of a communicator whose ranks are not all on one host. They carry overflow and agree on
 * steps of levels. One thread of the process does this for all of its communicators: it calls neither CUDA nor NCCL,
 * waits for no GPU, and polls memory that kernels write. */

struct coll_ccomm;
struct overflow_tcp;

/* Starts to listen. False: no memory, or no address that others could reach. */
bool overflow_tcp_prepare(struct coll_ccomm *ccomm, struct peer_endpoint *card);
/* Called for all ranks, in this order: connects to those of higher rank, accepts those of lower rank, and awaits the
 * answers of the higher ones. False: a rank is not reached. Cards are by rank. */
bool overflow_tcp_connect(struct coll_ccomm *ccomm, const struct peer_endpoint *cards);
bool overflow_tcp_accept(struct coll_ccomm *ccomm, const struct peer_endpoint *cards);
bool overflow_tcp_await(struct coll_ccomm *ccomm, const struct peer_endpoint *own);
/* When all ranks are connected: the rings are progressed from now on. False: no memory, or no thread. */
bool overflow_tcp_start(struct coll_ccomm *ccomm);

/* Text that tells how many ranks it is connected to, to be appended; empty: there is no link. */
void overflow_tcp_describe(const struct coll_ccomm *ccomm, char *text, size_t size);

/* No more operations will come: that other ranks end, or this one, is no failure. Any thread. */
void overflow_tcp_finish(struct coll_ccomm *ccomm);
/* Waits until what this rank's kernels have written has arrived, unless it was aborted. Then connections end, and none
 * of its memory is read any more. */
void overflow_tcp_leave(struct coll_ccomm *ccomm);
void overflow_tcp_end(struct coll_ccomm *ccomm);

#endif
