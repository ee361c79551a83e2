/* The GPU side of a link: for each direction a communicator of two ranks and a stream, with a thread of its own (a
 * lane). One communicator for both directions would not do: it runs its operations in order, so a send that waits for
 * the peer would hold up the receive that the peer waits for.
 *
 * NCCL is called in ways that do not wait, except for abort, which frees memory and so may wait for everything on the
 * GPU: another reason for two threads. The functions here, which the owner calls, never wait. */
#ifndef STRAIT_TRANSPORT_NCCL_ENGINE_H
#define STRAIT_TRANSPORT_NCCL_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <strait/status.h>

#include "transport/nccl_calls.h"

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

#endif
