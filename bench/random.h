/* Reproducible pseudorandom numbers: SplitMix64. */
#ifndef STRAIT_BENCH_RANDOM_H
#define STRAIT_BENCH_RANDOM_H

#include <stdint.h>

static inline uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15;

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
}

/* Puts 0..count-1 into a random order, which the seed determines. */
static inline void random_order(uint32_t *ids, uint32_t count, uint64_t seed)
{
    for (uint32_t i = 0; i < count; i++)
        ids[i] = i;
    for (uint32_t i = count; i > 1; i--) {
        uint32_t j = (uint32_t)((random_next(&seed) >> 32) * i >> 32), id = ids[i - 1];
        ids[i - 1] = ids[j];
        ids[j] = id;
    }
}

#endif
