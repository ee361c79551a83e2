/* A communicator that is compressed, as one rank of it sees it. */
#ifndef STRAIT_COLLECTIVE_ENGINE_MEMBER_H
#define STRAIT_COLLECTIVE_ENGINE_MEMBER_H

#include <pthread.h>
#include <stdbool.h>

#include "collective/engine.h"
#include "collective/engine/gpu.h"
#include "collective/engine/levels.h"
#include "collective/engine/staging.h"

enum { MEMBER_TYPES = 3, MEMBER_OPERATIONS = 4 };

/* What was found of the link between ranks, the same on all of them: a message of S bytes to each other rank takes
 * `start` + S x `per_byte` seconds. */
struct link_cost {
    double start, per_byte;
};

/* With what it is found; made before ranks tell each other whether they are able. */
struct link_probe {
    uint8_t *memory; /* a message, and one of each rank */
    gpu_event begin, end;
    double seconds[2]; /* of a small message and a large one */
};

struct coll_member {
    struct coll_engine_host host;
    const struct gpu_ops *gpu;
    const struct strait_codec *codec;
    coll_comm comm, repairs; /* repairs: another one of the same ranks, for what did not fit */
    int rank, ranks, device;
    bool forced; /* compressed whatever it costs */
    struct link_cost cost;
    struct link_probe probe;

    struct staging_list stagings;
    struct peer_wire *peer; /* NULL: there is none; why */
    char no_peer[112];

    pthread_mutex_t lock;     /* of the levels */
    struct level *levels;     /* by key, levels_of_member */
    pthread_t thread;         /* that repairs */
    bool running, ending;     /* ending: of the thread; under the lock */
    bool calling, aborted;    /* the thread calls NCCL for `repairs`; it may no longer. Under the lock */
    uint64_t decided;         /* operations, so that the thread knows when to look often. Under the lock */
    int failed;               /* a coll_result. Under the lock */
    coll_stream stream;       /* of the thread, of the beginning */
    uint64_t *counters;       /* in the GPU's memory: of each job what each rank has issued of its kind */
    bool telling;             /* the thread asks the others: nothing is issued meanwhile. Under the lock */
    pthread_cond_t told;      /* telling or calling is over */
    struct coll_member *next; /* of those that could not be freed */
};

/* Of a call, or of what a peer sends to this rank and this rank to it. */
unsigned member_key(const struct coll_member *member, const struct coll_call *call);
unsigned member_keys(const struct coll_member *member);

/* The first failure is kept, and said on stderr. */
void member_fail(struct coll_member *member, coll_result result, const char *why);

/* What kernels found to be wrong is a failure. */
void member_look(struct coll_member *member);

/* repair.c: the thread. warm: sends something to all others, in a group of the caller's. */
bool repair_warm(struct coll_member *member);
bool repair_begin(struct coll_member *member);
void repair_end(struct coll_member *member);

/* measure.c: makes the probe, on the member's GPU; sets `cost`, which is collective; ends the probe, made or not. */
bool measure_prepare(struct coll_member *member);
bool measure_links(struct coll_member *const members[], unsigned count);
void measure_end(struct coll_member *member);

#endif
