/* The checksum of a message's head, the same on GPUs and here: any single flipped bit changes it. Rows decide whether
 * ranks wait for each other, so a damaged one must not be believed. */
#ifndef STRAIT_COLLECTIVE_ENGINE_HEAD_H
#define STRAIT_COLLECTIVE_ENGINE_HEAD_H

#include "collective/engine/gpu.h"

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
#endif
