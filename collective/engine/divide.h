/* Which ranks share memory of a host. Each tells whom it sees (watch.h); from that all of them find the same leaders,
 * whose memory those that follow them open. */
#ifndef STRAIT_COLLECTIVE_ENGINE_DIVIDE_H
#define STRAIT_COLLECTIVE_ENGINE_DIVIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "collective/reduce.h"

enum { DIVIDE_RANKS_MAX = COLL_REDUCE_SOURCES_MAX };

/* By rank: the rank whose memory it uses, which is the lowest leader that it sees, or itself. */
struct division {
    uint8_t leader[DIVIDE_RANKS_MAX];
};

/* sees: by rank, a bit for each rank that it sees. */
void divide(struct division *division, const uint64_t *sees, int ranks);

static inline bool divide_near(const struct division *division, int a, int b)
{
    return division->leader[a] == division->leader[b];
}

#endif
