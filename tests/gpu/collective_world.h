/* Ranks on real GPUs, a process each or a thread each, with what scenes of collectives need. */
#ifndef STRAIT_TESTS_GPU_COLLECTIVE_WORLD_H
#define STRAIT_TESTS_GPU_COLLECTIVE_WORLD_H

#include <pthread.h>

#include "tests/gpu/apart.h"
#include "tests/gpu/collective_nccl.h"

enum { WORLD_RANKS_MAX = 8, WORLD_SLOTS = 2, WORLD_SECONDS_MAX = 60 };

struct world_shared {
    pthread_barrier_t barrier;
    coll_id ids[WORLD_SLOTS];
};

/* Two of each, so that they can be used at once. */
struct rank {
    int number, ranks;
    struct world_shared *shared;
    coll_comm comm[WORLD_SLOTS];
    cudaStream_t stream[WORLD_SLOTS];
    uint8_t *send[WORLD_SLOTS], *receive[WORLD_SLOTS]; /* on the GPU */
    uint8_t *host;                                     /* as large */
};

struct world {
    bool threads;
    int ranks;
    const char *library;
    size_t bytes; /* of the memory of each rank, by ranks */
    void (*play)(struct rank *rank, const void *argument);
    const void *argument;
};

/* The other ranks are here too. */
void world_meet(struct rank *rank);

/* Plays it on all ranks, with what they need made before and gone after. False: one of them failed, or took too long,
 * which stderr has been told. */
bool world_run(const struct world *world);

#endif
