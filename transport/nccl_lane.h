/* What an engine and its two threads share. */
#ifndef STRAIT_TRANSPORT_NCCL_LANE_H
#define STRAIT_TRANSPORT_NCCL_LANE_H

#include <pthread.h>

#include "transport/nccl_engine.h"

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
    struct nccl_ops asked;  /* not yet taken by the thread */
    struct nccl_ops flying; /* on the GPU, oldest first */
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
void nccl_engine_tell(struct nccl_engine *engine);
/* Without the lock: the first failure is recorded, and ends both lanes. */
void nccl_engine_fail(struct nccl_engine *engine, const char *why);
void nccl_engine_free(struct nccl_engine *engine);

/* The body of a lane's thread. */
void *nccl_lane_run(void *lane);

#endif
