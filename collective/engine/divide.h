/* Which ranks share memory of a host. Each rank tells which others it sees (watch.h); from that, all of them find the
 * same leaders. A leader's followers open its memory. */
#ifndef STRAIT_COLLECTIVE_ENGINE_DIVIDE_H
#define STRAIT_COLLECTIVE_ENGINE_DIVIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "collective/reduce.h"

enum { DIVIDE_RANKS_MAX = COLL_REDUCE_SOURCES_MAX };

/* By rank: whose memory it uses, which is the lowest leader that it sees, or its own. */
struct division {
    uint8_t leader[DIVIDE_RANKS_MAX];
};

/* sees: for each rank, a bit for each rank that it sees. */
void divide(struct division *division, const uint64_t *sees, int ranks);

static inline bool divide_near(const struct division *division, int a, int b)
{
    return division->leader[a] == division->leader[b];
}

#endif
