#ifndef STRAIT_TRANSPORT_NCCL_INTERNAL_H
#define STRAIT_TRANSPORT_NCCL_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <strait/status.h>

#include "transport/core.h"
#include "transport/nccl.h"
#include "transport/nccl_calls.h"
#include "transport/nccl_wire.h"

/* The GPU side of a link: for each direction a communicator of two ranks and a stream, with a thread of its own (a
 * lane). One communicator for both directions would not do: it runs its operations in order, so a send that waits for
 * the peer would hold up the receive that the peer waits for.
 *
 * NCCL is called in ways that do not wait, except for abort, which frees memory and so may wait for everything on the
 * GPU: another reason for two threads. The functions here, which the owner calls, never wait. */

enum nccl_direction {
    NCCL_OUT, /* the sender is rank 0 of its communicator and makes the communicator's id */
    NCCL_IN,
    NCCL_DIRECTIONS,
};

/* A send or a receive. The memory is the owner's; it is lent to the engine from nccl_engine_post until the operation is
 * among the news. */
struct nccl_op {
    struct nccl_op *next;
    void *data;
    size_t size;
    bool done; /* set when it is over: the bytes are where they belong. False: nothing touches them any more */
};

struct nccl_engine_config {
    const struct nccl_calls *calls;
    int device;
    uint32_t blocks;     /* thread blocks on the GPU, for each direction */
    uint32_t timeout_ms; /* for connecting, and from the end of one operation to the end of the next */
    int wake;            /* the owner's eventfd, written when there are news */
};

struct nccl_news {
    bool id_made, ready;
    uint8_t id[NCCL_ID_BYTES]; /* of the outgoing communicator, once id_made */
    const char *failed;        /* static; NULL: it has not failed. Operations come back once that is safe */
    bool drained;              /* the end: all operations are back, and the GPU does nothing for the engine any more */
    struct nccl_op *over;      /* list of those that ended since the last news, in order within each direction */
};

struct nccl_engine;

/* Starts the threads. ERR_NO_MEMORY, ERR_IO. */
enum strait_status nccl_engine_start(const struct nccl_engine_config *config, struct nccl_engine **engine);
/* Connects both directions. `id` is that of the incoming communicator, which is the peer's outgoing one. Once. */
void nccl_engine_join(struct nccl_engine *engine, const uint8_t id[NCCL_ID_BYTES]);
/* After `ready`. Operations of one direction run in the order of these calls, which must be the peer's order too. */
void nccl_engine_post(struct nccl_engine *engine, enum nccl_direction direction, struct nccl_op *op);
/* Ends the engine whatever it is doing: all operations come back, then it is drained. May be called any number of
 * times. */
void nccl_engine_end(struct nccl_engine *engine);
void nccl_engine_take(struct nccl_engine *engine, struct nccl_news *news);
/* Of an ended engine: returns all operations that are not among the news yet, though the GPU may still be working on
 * them. */
struct nccl_op *nccl_engine_abandon(struct nccl_engine *engine);
/* Frees an engine that is drained or abandoned; threads that are left clean up after themselves. */
void nccl_engine_release(struct nccl_engine *engine);

/* State shared by an engine and its two threads. */

/* Operations that a lane has on the GPU at a time, so that the next one is ready when one ends. Not more, because a
 * stream with more than one may hold up other streams when there are more streams than connections to the GPU (CUDA has
 * 8). */
#define NCCL_AHEAD 2u

struct nccl_ops {
    struct nccl_op *head, **tail;
};

struct nccl_lane {
    struct nccl_engine *engine;
    enum nccl_direction direction;
    pthread_t thread;

    /* Protected by the engine's lock. */
    pthread_cond_t work;
    struct nccl_ops asked;    /* not yet taken by the thread */
    struct nccl_ops inflight; /* on the GPU, oldest first */
    bool ready, drained;

    /* The thread's own, without lock. */
    void *comm, *stream, *events[NCCL_AHEAD];
    uint64_t posted, over; /* numbers of operations; operation n uses event n % NCCL_AHEAD */
    bool posting;          /* the operation after `posted` is not yet on the stream */
    int64_t since;         /* ns: when the last operation ended, or the only one began */
};

struct nccl_engine {
    struct nccl_engine_config config;
    pthread_mutex_t lock; /* protects everything below */
    struct nccl_lane lanes[NCCL_DIRECTIONS];
    struct nccl_ops over;
    uint8_t ids[NCCL_DIRECTIONS][NCCL_ID_BYTES];
    bool id_made, joined;
    bool ending;
    bool abandoned; /* nobody listens: the eventfd may be gone */
    bool released;  /* the last thread to end frees the engine */
    const char *failed;
    uint32_t running; /* number of threads */
};

void nccl_ops_add(struct nccl_ops *ops, struct nccl_op *op);
struct nccl_op *nccl_ops_take(struct nccl_ops *ops); /* NULL: none */

/* With the lock held: tells the owner that there are news. */
void nccl_engine_notify(struct nccl_engine *engine);
/* Without the lock: the first failure is recorded, and ends both lanes. */
void nccl_engine_fail(struct nccl_engine *engine, const char *why);
void nccl_engine_free(struct nccl_engine *engine);

/* The body of a lane's thread. */
void *nccl_lane_run(void *lane);

/* State shared by nccl.c and nccl_engine.c. */

struct nccl_options {
    const struct transport_ops *carrier;
    uint32_t timeout_ms, blocks;
    char library[OPTION_MAX]; /* empty: where the system finds it */
    char *rest;               /* the carrier's options; to be freed by the caller */
};

struct nccl {
    struct core core;
    const struct nccl_calls *calls;
    struct nccl_options options; /* without `rest` */
    struct nccl_place place;
    struct transport *carrier;
    void *carrier_arena; /* a page: messages of the carrier land in memory of their own */
    int poll, wake;      /* an epoll of the carrier's descriptor and of the eventfd that engines write to */
};

/* A chunk, of either direction. `op` is lent to the engine once the peers have agreed. */
struct nccl_chunk {
    struct event event; /* first */
    struct nccl_op op;
    uint64_t id;    /* outgoing: the peer's answer carries it */
    uint64_t place; /* outgoing, once it may be sent: its number */
    struct nccl_chunk *next;
};

struct nccl_link {
    struct core_link core;
    struct link *carrier; /* NULL once it is closed */
    struct nccl_engine *engine;
    bool carrier_closing, received_hello, sent_hello, sent_ready, received_ready, drained, abandoned;
    uint64_t last_id;              /* of outgoing chunks */
    uint64_t received, sent;       /* how many incoming and outgoing chunks have a number */
    struct nccl_chunk *unanswered; /* waiting for the peer's answer, oldest first */
    struct nccl_chunk *early;      /* may be sent once all with lower numbers have been; in order of number */
};

/* ---- nccl_engine.c: plugin and options --------------------------------------------------------------------------- */

/* The calls of NCCL and CUDA; NULL when unavailable. */
const struct nccl_calls *nccl_load(const char *library);
/* transport_missing, and what records its text. */
void nccl_missing(char *dst, size_t size);
void nccl_note_missing(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ERR_INVALID, ERR_UNSUPPORTED (no such carrier in this build), ERR_NO_MEMORY. */
enum strait_status nccl_options_read(const char *text, struct nccl_options *options);

/* ---- nccl.c ------------------------------------------------------------------------------------------------------ */

/* A link from its start to its end. */
enum strait_status nccl_link_open(struct transport *transport, int fd, enum link_side side, void *link_owner,
                                  struct link **link);
size_t nccl_link_address(struct link *link, void *dst, size_t capacity);
enum strait_status nccl_link_connect(struct link *link, const void *address, size_t size);
void nccl_link_close(struct link *link);
void nccl_link_abandon(struct link *link);
void nccl_link_break(struct nccl_link *link, const char *why);
/* `connected` becomes due once both sides are ready. */
void nccl_link_connected_if_ready(struct nccl_link *link);
/* Takes the news of the link's engine. */
void nccl_link_take_news(struct nccl_link *link);
bool nccl_link_quiet(struct core_link *link);
void nccl_link_release(struct core_link *link);

/* Messages over the carrier. */
extern const struct transport_events nccl_carrier_events;
/* Breaks the link if the message cannot be sent. */
void nccl_send_message(struct nccl_link *link, const struct nccl_message *message, const void *payload,
                       size_t payload_size);
/* Sends the message of a chunk. For a chunk without bytes, its event becomes due when that is sent. Returns what
 * link_send returns. */
enum strait_status nccl_send_chunk_message(struct nccl_link *link, struct nccl_chunk *chunk, const void *header,
                                           size_t header_size);

/* Outgoing and incoming chunks. */
enum strait_status nccl_link_send(struct link *link, const void *header, size_t header_size, const void *data,
                                  size_t size, void *handle, uint64_t cookie);
void nccl_chunk_arrives(struct nccl_link *link, const struct nccl_message *message, const void *header,
                        size_t header_size);
void nccl_chunk_answered(struct nccl_link *link, const struct nccl_message *message);
/* Takes a list of ended operations from the engine. */
void nccl_chunks_over(struct nccl_op *ops);
/* Fails the chunks that wait for the peer's answer. */
void nccl_chunks_fail(struct nccl_link *link);

#endif
