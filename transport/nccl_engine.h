/* What a link does on its GPU: a communicator of two ranks and a stream for each direction, each with a thread of its
 * own (a lane). One communicator for both would not do: what is on it runs in its order, and a send that waits for the
 * peer would hold up the receive that the peer waits for.
 *
 * NCCL's calls are made so that none of them waits (but for abort, which frees memory and so may wait for everything
 * on the GPU: another reason for two threads). The owner's calls here never do. */
#ifndef STRAIT_TRANSPORT_NCCL_ENGINE_H
#define STRAIT_TRANSPORT_NCCL_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <strait/status.h>

#include "transport/nccl_calls.h"

enum nccl_direction {
    NCCL_OUT, /* the sender is rank 0 of its communicator, and makes its id */
    NCCL_IN,
    NCCL_DIRECTIONS,
};

/* A send or a receive: the owner's memory, the engine's from nccl_engine_post until it is among the news. */
struct nccl_op {
    struct nccl_op *next;
    void *data;
    size_t size;
    bool done; /* set when it is over: the bytes are where they belong. False: nothing touches them any more */
};

struct nccl_engine_config {
    const struct nccl_calls *calls;
    int device;
    uint32_t blocks;     /* of threads, on the GPU, for each direction */
    uint32_t timeout_ms; /* for connecting, and between the end of one operation and that of the next */
    int wake;            /* an eventfd of the owner's, written when there are news */
};

struct nccl_news {
    bool id_made, ready;
    uint8_t id[NCCL_ID_BYTES]; /* once it is made: of the outgoing communicator */
    const char *failed;        /* NULL: it has not. Static. Operations come back once that is safe */
    bool drained;              /* at its end: all operations are back, the GPU does nothing for it any more */
    struct nccl_op *over;      /* a list: since the last news; each direction's in order */
};

struct nccl_engine;

/* Starts the threads. ERR_NO_MEMORY, ERR_IO. */
enum strait_status nccl_engine_start(const struct nccl_engine_config *config, struct nccl_engine **engine);
/* Connects both directions: `id` is of the incoming communicator, the peer's outgoing one. Once. */
void nccl_engine_join(struct nccl_engine *engine, const uint8_t id[NCCL_ID_BYTES]);
/* After `ready`. Operations of one direction run in the order of these calls, which has to be the peer's, too. */
void nccl_engine_post(struct nccl_engine *engine, enum nccl_direction direction, struct nccl_op *op);
/* Ends it whatever it does: everything comes back, then it is drained. Any number of times. */
void nccl_engine_end(struct nccl_engine *engine);
void nccl_engine_take(struct nccl_engine *engine, struct nccl_news *news);
/* Of an engine that was ended: all operations that are not among the news yet, though the GPU may still be at them. */
struct nccl_op *nccl_engine_abandon(struct nccl_engine *engine);
/* It is drained, or abandoned: what is left of its threads looks after itself. */
void nccl_engine_release(struct nccl_engine *engine);

#endif
