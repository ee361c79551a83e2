/* Ranks on GPUs, a process each or a thread each, with NCCL or libstrait-coll in its place, opened by its path. Ranks
 * can share a GPU, or be on hosts of their own as far as NCCL is told (STRAIT_TEST_HOSTS=1; N: so many neighbours on
 * each). */
#ifndef STRAIT_TESTS_GPU_COLLECTIVE_WORLD_H
#define STRAIT_TESTS_GPU_COLLECTIVE_WORLD_H

#include <pthread.h>
#include <stdbool.h>

#include "collective/api.h"
#include "tests/coll_engine/values.h"
#include "tests/gpu/device.h"

/* ---- NCCL -------------------------------------------------------------------------------------------------------- */

#define NCCL_OPERATION_END coll_comm comm, coll_stream stream

struct nccl {
    coll_result (*GetUniqueId)(coll_id *id);
    coll_result (*CommInitRank)(coll_comm *made, int ranks, coll_id id, int rank);
    coll_result (*CommInitRankConfig)(coll_comm *made, int ranks, coll_id id, int rank, void *config);
    coll_result (*CommInitAll)(coll_comm *made, int count, const int *devices);
    coll_result (*CommSplit)(coll_comm comm, int color, int key, coll_comm *made, void *config);
    coll_result (*CommDestroy)(coll_comm comm);
    coll_result (*CommAbort)(coll_comm comm);
    coll_result (*CommGetAsyncError)(coll_comm comm, coll_result *error);
    coll_result (*AllGather)(const void *send, void *receive, size_t count, coll_type type, NCCL_OPERATION_END);
    coll_result (*AlltoAll)(const void *send, void *receive, size_t count, coll_type type, NCCL_OPERATION_END);
    coll_result (*Broadcast)(const void *send, void *receive, size_t count, coll_type type, int root,
                             NCCL_OPERATION_END);
    coll_result (*ReduceScatter)(const void *send, void *receive, size_t count, coll_type type,
                                 coll_reduction reduction, NCCL_OPERATION_END);
    coll_result (*AllReduce)(const void *send, void *receive, size_t count, coll_type type, coll_reduction reduction,
                             NCCL_OPERATION_END);
    coll_result (*Send)(const void *send, size_t count, coll_type type, int peer, NCCL_OPERATION_END);
    coll_result (*Recv)(void *receive, size_t count, coll_type type, int peer, NCCL_OPERATION_END);
    coll_result (*GroupStart)(void);
    coll_result (*GroupEnd)(void);
    const char *(*GetErrorString)(coll_result result);
    size_t (*report)(coll_comm comm, char *dst, size_t dst_capacity); /* NULL: it is NCCL itself */
};

extern struct nccl nccl;

/* Ends the program when it cannot be used. */
void nccl_open(const char *path);
void require_nccl(coll_result result);

/* Calls of this operation that went compressed; 0 of NCCL itself. */
unsigned long long nccl_compressed(coll_comm comm, const char *operation);

/* ---- Ranks ------------------------------------------------------------------------------------------------------- */

enum { WORLD_RANKS_MAX = 8, WORLD_SLOTS = 2, WORLD_IDS = 24, WORLD_SECONDS_MAX = 60 };

struct world_shared {
    pthread_barrier_t barrier;
    coll_id ids[WORLD_IDS];
    pid_t pids[WORLD_RANKS_MAX]; /* of ranks that are processes */
};

/* Two of each, so that they can be used at once. */
struct rank {
    int number, ranks;
    struct world_shared *shared;
    const struct world_scene *scene;
    coll_comm comm[WORLD_SLOTS];
    cudaStream_t stream[WORLD_SLOTS];
    uint8_t *send[WORLD_SLOTS], *receive[WORLD_SLOTS]; /* on the GPU */
    uint8_t *host;                                     /* as large */
};

struct world_scene {
    const char *name;
    void (*play)(struct rank *rank);
    const char *compressed; /* with STRAIT_COLL=compress this operation has to have been, on the first communicator */
    const void *argument;   /* for `play` */
    void (*prepare)(int number); /* of a rank that is a process, before NCCL is opened; NULL: nothing */
    bool own_comms;              /* `play` makes communicators, of shared->ids, and ends them */
    bool threads_too;            /* played a second time with threads where ranks are processes */
    bool processes_only;
    bool alone;     /* one thread has all ranks: `play` is called once and makes what it needs */
    bool loses_one; /* the last rank is killed by another, or when all others have ended */
};

struct world_program {
    const struct world_scene *scenes;
    int count;
    size_t bytes;       /* of the memory of each rank, by ranks */
    unsigned slots;     /* how many of the two are used */
    const char *option; /* one more "--option", and where it is noted; NULL: none */
    bool *chosen;
};

/* PROGRAM [--threads] [--ranks=N] LIBRARY [SCENE ...]: plays all scenes, or those that are named, each with ranks of
 * its own. Returns the exit status: 77 where there are too few GPUs. */
int world_main(int argc, char **argv, const struct world_program *program);

/* The other ranks are here too. */
void world_meet(struct rank *rank);
/* The device, streams and memory of so many bytes for each rank. */
void world_allocate(struct rank *rank, size_t bytes, unsigned slots);
/* The GPU of a rank. */
void use_device(int rank);
/* Ranks that are processes, or on fake GPUs, are told to be on several hosts. */
bool are_apart(void);
bool is_demanding(void); /* STRAIT_COLL=compress, and it is not NCCL itself */
double now_ms(void);

/* ---- Values ------------------------------------------------------------------------------------------------------ */

/* Copies of the first bytes of rank->host. One from such memory may return before it has reached the GPU, and the
 * ranks' streams do not wait for it: this one does. */
void rank_upload(struct rank *rank, void *gpu, size_t size);
void rank_download(struct rank *rank, const void *gpu, size_t size);
/* Values that follow from the seed, by way of rank->host. */
void rank_fill(struct rank *rank, void *gpu, int type, size_t count, enum values kind, uint64_t seed);
void rank_require(struct rank *rank, const void *gpu, int type, size_t count, enum values kind, uint64_t seed);
/* The streams are through, and the first communicator has no error. */
void rank_settle(struct rank *rank);

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

cudaGraphExec_t graph_capture(struct rank *rank, unsigned slot, void (*call)(struct rank *rank, void *argument),
                              void *argument);

#endif
