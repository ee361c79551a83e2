#include "tests/soak/group.h"

#include <stdlib.h>

#include "tests/soak/report.h"
#include "tests/support.h"

void group_init(struct group *group, uint32_t room)
{
    *group = (struct group){.moves = calloc(room, sizeof(struct move)), .room = room};
    require(group->moves != NULL);
}

struct move *group_add(struct group *group, const struct move_plan *plan)
{
    require(group->count < group->room);
    move_prepare(&group->moves[group->count], plan);
    return &group->moves[group->count++];
}

void group_begin(struct group *group)
{
    for (uint32_t i = 0; i < group->count; i++)
        move_begin(&group->moves[i]);
}

static bool all(struct group *group, bool (*reached)(const struct move *move))
{
    bool all_reached = true;
    for (uint32_t i = 0; i < group->count; i++) {
        move_turn(&group->moves[i]);
        all_reached = reached(&group->moves[i]) && all_reached;
    }
    return all_reached;
}

bool group_until(struct group *group, struct world *world, bool (*reached)(const struct move *move), uint64_t ms,
                 const char *what)
{
    for (uint64_t end = now_ms() + ms; !all(group, reached);) {
        if (!world_pump(world, 2))
            return false;
        if (now_ms() > end) {
            complain("%s: not within %u ms", what, (unsigned)ms);
            return false;
        }
    }
    return true;
}

uint32_t group_finish(struct group *group)
{
    uint32_t done = 0;
    for (uint32_t i = 0; i < group->count; i++) {
        struct move *move = &group->moves[i];
        if (move->source.state != STRAIT_DONE || move->sink.state != STRAIT_DONE)
            move_complain(move);
        done += move_finish(move);
    }
    free(group->moves);
    *group = (struct group){0};
    return done;
}
