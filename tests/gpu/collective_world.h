/* Ranks on real GPUs, a process each or a thread each, with what scenes of collectives need. */
#ifndef STRAIT_TESTS_GPU_COLLECTIVE_WORLD_H
#define STRAIT_TESTS_GPU_COLLECTIVE_WORLD_H

#include <pthread.h>

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

/* Its device, streams and memory of so many bytes for each rank. */
void world_allocate(struct rank *rank, size_t bytes);

/* The other ranks are here too. */
void world_meet(struct rank *rank);

struct world_scene {
    const char *name;
    void (*play)(struct rank *rank);
    const char *compressed; /* with STRAIT_COLL=compress this operation has to have been, on the first communicator */
    bool threads_too;       /* played a second time with threads where ranks are processes */
    bool alone;             /* one thread has all ranks: `play` is called once and makes what it needs */
};

/* PROGRAM [--threads] [--ranks=N] LIBRARY [SCENE ...]: plays all of them, or those that are named, each with ranks of
 * its own, which have memory of so many bytes for each rank. Returns the exit status: 77 where there are too few GPUs.
 */
int world_main(int argc, char **argv, const struct world_scene *scenes, int count, size_t bytes);

#endif
