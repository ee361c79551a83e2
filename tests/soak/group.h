/* Moves that run together. */
#ifndef STRAIT_TESTS_SOAK_GROUP_H
#define STRAIT_TESTS_SOAK_GROUP_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/soak/move.h"

struct group {
    struct move *moves;
    uint32_t count, room;
};

void group_init(struct group *group, uint32_t room);
/* Prepares another move. */
struct move *group_add(struct group *group, const struct move_plan *plan);
void group_begin(struct group *group);

/* Drives the moves until `reached` says so of each of them. False: not within `ms`, complained. */
bool group_until(struct group *group, struct world *world, bool (*reached)(const struct move *move), uint64_t ms,
                 const char *what);

/* Checks and lets go of all moves; those that are not DONE are complained about. Returns how many were DONE. */
uint32_t group_finish(struct group *group);

#endif
