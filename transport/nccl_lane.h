/* What an engine and its two threads share. */
#ifndef STRAIT_TRANSPORT_NCCL_LANE_H
#define STRAIT_TRANSPORT_NCCL_LANE_H

#include <pthread.h>

#include "transport/nccl_engine.h"

/* Operations of a lane on the GPU at a time: the next one is there when one is over. Not many, as each stream that has
 * more than one may hold up others when there are more streams than connections to the GPU (CUDA has 8). */
#define NCCL_AHEAD 2u

struct nccl_ops {
    struct nccl_op *head, **tail;
};

struct nccl_lane {
    struct nccl_engine *engine;
    enum nccl_direction direction;
    pthread_t thread;

    /* Under the engine's lock. */
    pthread_cond_t work;
    struct nccl_ops asked;  /* not looked at */
    struct nccl_ops flying; /* on the GPU, oldest first */
    bool ready, drained;

    /* The thread's own. */
    void *comm, *stream, *events[NCCL_AHEAD];
    uint64_t posted, over; /* operations; number n has event n % NCCL_AHEAD */
    bool posting;          /* the one after `posted` is not yet on the stream */
    int64_t since;         /* ns: the last operation ended, or the only one began */
};

struct nccl_engine {
    struct nccl_engine_config config;
    pthread_mutex_t lock; /* of all that follows */
    struct nccl_lane lanes[NCCL_DIRECTIONS];
    struct nccl_ops over;
    uint8_t ids[NCCL_DIRECTIONS][NCCL_ID_BYTES];
    bool id_made, joined;
    bool ending;
    bool abandoned; /* nobody listens: the eventfd may be gone */
    bool released;  /* the last thread frees it */
    const char *failed;
    uint32_t running; /* threads */
};

void nccl_ops_add(struct nccl_ops *ops, struct nccl_op *op);
struct nccl_op *nccl_ops_take(struct nccl_ops *ops); /* NULL: none */

/* Under the lock: there are news. */
void nccl_engine_tell(struct nccl_engine *engine);
/* Not under the lock: the first failure counts, and ends both lanes. */
void nccl_engine_fail(struct nccl_engine *engine, const char *why);
void nccl_engine_free(struct nccl_engine *engine);

/* The thread of a lane. */
void *nccl_lane_run(void *lane);

#endif
