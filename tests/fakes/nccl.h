/* What the parts of the fake NCCL share. */
#ifndef STRAIT_TESTS_COLL_FAKE_NCCL_H
#define STRAIT_TESTS_COLL_FAKE_NCCL_H

#include <pthread.h>

#include "tests/fakes/gpu.h"
#include "tests/collective/fake_nccl.h"

enum { WORLD_MAX = FAKE_GPUS, INVALID_ARGUMENT = 4 };

/* What one rank has ready for another, or waits for. */
struct post {
    struct post *next;
    const struct item *item;
    uint8_t *buffer;
    size_t bytes;
    struct running *running;
};

/* From one rank to another: at most one of the two lists has entries. */
struct channel {
    struct post *sends, *receives;
};

/* All that one rank has in a group, while it runs. */
struct running {
    struct running *next; /* of its world's */
    unsigned pending;     /* posts whose data has not been copied */
    pthread_cond_t done;  /* none is pending, or the communicator has ended */
};

/* What the ranks of a communicator share. */
struct world {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct world *next; /* in the list of worlds being made */
    coll_id id, grown;  /* grown: of the world that it grows into next */
    int ranks, joined, references;
    int devices[WORLD_MAX]; /* by rank */
    struct running *running;
    /* Separate for sends and receives and for collectives, which do not match each other. */
    struct channel channels[2][WORLD_MAX][WORLD_MAX];
    struct {
        int colors[WORLD_MAX], keys[WORLD_MAX];
        int told, taken;
        struct world *made[WORLD_MAX];
        int rank_of[WORLD_MAX];
    } splitting;
};

struct ncclComm {
    struct world *world;
    int rank, device;
    bool suspended;
    bool aborted, revoked;   /* under the world's lock */
    unsigned underway;       /* pieces of work that may still run; under the world's lock */
    struct CUevent_st *last; /* end of what it moved before, on stream */
    coll_stream stream;
    /* For communicators that do not block; all under the lock of nccl_busy.c. */
    bool nonblocking, making;
    unsigned questions;        /* how many more are answered with COLL_IN_PROGRESS */
    struct deferred *deferred; /* what is launched after that */
    coll_comm *child;          /* where the communicator split from it goes; NULL: none is being split */
    atomic_bool asked;         /* ncclCommGetAsyncError is running; under no lock */
};

/* One call of an operation. */
enum kind {
    KIND_SEND,
    KIND_RECEIVE,
    KIND_ALL_GATHER,
    KIND_ALL_TO_ALL,
    KIND_REDUCE_SCATTER,
    KIND_ALL_REDUCE,
    KIND_BROADCAST
};

struct item {
    enum kind kind;
    coll_comm comm;
    coll_stream stream;
    const uint8_t *send;
    uint8_t *receive;
    size_t count, bytes; /* bytes: of count */
    int type, reduction, peer;
};

/* nccl_comm.c: of both pairs, the second part waits for all ranks. */
coll_comm fake_comm_begin(int ranks, const coll_id *id, int rank, int device);
void fake_comm_finish(coll_comm comm);
void fake_split_begin(coll_comm comm, int color, int key);
bool fake_split_is_told(coll_comm comm);     /* all ranks have begun: the second part waits for nobody */
coll_comm fake_split_finish(coll_comm comm); /* NULL: this rank is left out */

void fake_comm_work_over(coll_comm comm);
/* Under the world's lock: whoever waits for anything looks again. */
void fake_world_wake(struct world *world);

bool fake_comm_is_whole(coll_comm comm); /* all ranks have begun */

/* nccl_busy.c: communicators that do not block. They are usable once they have answered that they are ready. */
void fake_busy_make(coll_comm comm);
void fake_busy_split(coll_comm comm, coll_comm *child);
void fake_busy_launch(const struct item *items, unsigned count);
bool fake_busy_is(coll_comm comm);
void fake_busy_end(coll_comm comm);

/* nccl_move.c: queues all operations of one communicator on its streams, as one. */
void fake_nccl_launch(const struct item *items, unsigned count);

#endif
