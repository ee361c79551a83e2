/* Sets of ranks of a communicator: a bit for each rank. The same on GPUs and on hosts. */
#ifndef STRAIT_COLLECTIVE_RANKS_H
#define STRAIT_COLLECTIVE_RANKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define RANKS_FN __host__ __device__ static inline
#else
#define RANKS_FN static inline
#endif

/* Larger communicators stay raw. */
enum { COLL_RANKS_MAX = 1024, RANK_SET_WORDS = COLL_RANKS_MAX / 64 };

struct rank_set {
    uint64_t words[RANK_SET_WORDS];
};

RANKS_FN bool rank_set_has(const struct rank_set *set, uint32_t rank)
{
    return (set->words[rank / 64] >> rank % 64 & 1) != 0;
}

RANKS_FN void rank_set_add(struct rank_set *set, uint32_t rank)
{
    set->words[rank / 64] |= (uint64_t)1 << rank % 64;
}

RANKS_FN void rank_set_drop(struct rank_set *set, uint32_t rank)
{
    set->words[rank / 64] &= ~((uint64_t)1 << rank % 64);
}

RANKS_FN bool rank_set_is_empty(const struct rank_set *set)
{
    uint64_t any = 0;
    for (uint32_t word = 0; word < RANK_SET_WORDS; word++)
        any |= set->words[word];
    return any == 0;
}

#endif
