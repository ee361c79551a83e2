#ifndef STRAIT_COLLECTIVE_ENGINE_JOIN_H
#define STRAIT_COLLECTIVE_ENGINE_JOIN_H

#include "collective/engine/gpu.h"
#include "collective/engine/ccomm.h"

/* The checksum of a message's head, the same on GPUs and here: any single flipped bit changes it. Rows decide whether
 * ranks wait for each other, so a damaged one must not be believed. */

#ifdef __CUDACC__
#define HEAD_FUNCTION __host__ __device__ static inline
#else
#define HEAD_FUNCTION static inline
#endif

/* Every step is a bijection of the state and of the word, so different inputs stay different. */
HEAD_FUNCTION uint64_t head_sum(const struct message_head *head)
{
    const uint64_t *words = (const uint64_t *)(const void *)head;
    uint64_t sum = UINT64_C(0x9e3779b97f4a7c15);
    for (unsigned i = 0; i < offsetof(struct message_head, sum) / sizeof(*words); i++) {
        sum = (sum ^ words[i]) * UINT64_C(0xbf58476d1ce4e5b9);
        sum ^= sum >> 31;
    }
    return sum;
}

#undef HEAD_FUNCTION

/* Configuration exchange of the ranks of a new communicator, when all are able (join.c): first their versions and
 * settings, and if any differs, all of them stay raw; then what they need of each other to share memory and to watch
 * each other. NCCL moves it, for all communicators of a group together. */

struct hello;

/* A communicator that is joining. */
struct joining {
    struct coll_join_args *what;
    struct coll_ccomm *ccomm; /* NULL: no memory even for that */
    struct hello *told;       /* in the GPU's memory: of all ranks, then of this one */
    bool able;
};

/* Calls `what` for all that are able, each with its GPU current; those for which it returns false are not able. */
void joining_each(struct joining *joinings, unsigned count, bool (*what)(struct joining *));
/* Precondition: of each communicator all ranks are able, or none is. Those that are able afterwards have the same
 * version and settings, share memory with their host and are connected to others; else `why` tells what was wrong. */
void exchange_configs(struct joining *joinings, unsigned count, const struct coll_table *nccl);

/* Making and ending ccomms (collective/engine.h). */

void ccomms_prepare(const struct gpu_ops *gpu, const struct coll_engine_host *host, struct coll_join_args *joinings,
                    unsigned count);
void ccomms_join(const struct coll_engine_host *host, struct coll_join_args *joinings, unsigned count);
/* ccomm_destroy requires that nothing of the communicator runs. */
void ccomm_destroy(struct coll_ccomm *ccomm);
void ccomm_abort(struct coll_ccomm *ccomm);
void ccomm_leave(struct coll_ccomm *ccomm);

#endif
