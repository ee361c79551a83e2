#include "collective/engine/levels.h"

/* A single overflow may be chance; two, the second soon after the first, are the nature of the data. So is one overflow
 * of a try: the data is what it was before. */
enum { NEAR = 64, REST_SHORTEST = 1024, REST_LONGEST = 16384 };

/* A prime, so that tries reach all layers that a program cycles through. */
enum { TRY_EVERY = 61, TRIES_UNTIL = 16 * TRY_EVERY };

/* Above 952 of 1024, coding saves less than 7 % and costs more than that gains. */
enum { STEP = 8, SHARE_MAX = 952 };

unsigned levels_share(coll_type type, unsigned level)
{
    const unsigned first = type == COLL_BF16 ? 700 : type == COLL_FP16 ? 896 : 360;
    return level <= (SHARE_MAX - first) / STEP ? first + STEP * level : 0;
}

unsigned levels_fitting(coll_type type, unsigned share)
{
    unsigned level = 0;
    while (levels_share(type, level) != 0 && levels_share(type, level) < share)
        level++;
    return level;
}

static bool is_try(const struct level_span *span, uint64_t index)
{
    return span->until > span->from && index >= span->until && index - span->until < TRIES_UNTIL &&
           (index - span->until) % TRY_EVERY == 0;
}

unsigned levels_at(const struct level *level, uint64_t index)
{
    const struct level_span *span = index >= level->now.from ? &level->now : &level->old;
    if (index < span->from || index >= span->until + TRIES_UNTIL || is_try(span, index))
        return 0;
    return span->level;
}

bool levels_overflowed(struct level *level, uint64_t index, unsigned fitting)
{
    if (index < level->now.from) /* it was under way when the step was agreed on */
        return false;
    const bool same = level->seen && index == level->last; /* a repeated graph */
    const bool again = is_try(&level->now, index) || (level->seen && !same && index - level->last <= NEAR);
    level->seen = true;
    level->last = index;
    if ((!again && !same) || fitting > level->wanted)
        level->wanted = fitting;
    return again;
}

/* Each failed try doubles the rest before the next one. */
static uint64_t rest_after(const struct level *level, uint64_t overflowed)
{
    if (level->rest == 0 || overflowed >= level->now.until + TRIES_UNTIL)
        return REST_SHORTEST;
    return is_try(&level->now, overflowed) && level->rest < REST_LONGEST ? 2 * level->rest : level->rest;
}

void levels_step(struct level *level, uint64_t overflowed, uint64_t from)
{
    const unsigned above = levels_at(level, overflowed) + 1;
    const unsigned next = level->wanted > above ? level->wanted : above;
    level->rest = rest_after(level, overflowed);
    level->old = level->now;
    level->now = (struct level_span){.from = from, .until = from + level->rest, .level = next};
    level->wanted = 0;
    level->seen = false;
}
