#include "collective/engine/levels.h"

/* One overflow alone may be chance; two of them, the second not long after the first, are what the data is like. */
enum { NEAR = 64, REST_SHORTEST = 1024, REST_LONGEST = 1 << 20 };

static const uint16_t bf16[] = {700, 768, 0}, fp16[] = {896, 0}, fp32[] = {369, 896, 0};

unsigned levels_share(coll_type type, unsigned level)
{
    const uint16_t *share = type == COLL_BF16 ? bf16 : type == COLL_FP16 ? fp16 : fp32;
    for (; level > 0 && *share != 0; level--)
        share++;
    return *share;
}

unsigned levels_at(const struct level *level, uint64_t index)
{
    const struct level_span *span = index >= level->now.from ? &level->now : &level->old;
    return index >= span->from && index < span->until ? span->level : 0;
}

bool levels_overflowed(struct level *level, uint64_t index)
{
    if (index < level->now.from) /* on its way when the step was agreed */
        return false;
    bool again = level->seen && index - level->last <= NEAR;
    level->seen = true;
    level->last = index;
    return again;
}

void levels_step(struct level *level, uint64_t overflowed, uint64_t from)
{
    unsigned next = levels_at(level, overflowed) + 1;
    level->rest = level->rest == 0 ? REST_SHORTEST : level->rest < REST_LONGEST ? 2 * level->rest : level->rest;
    level->old = level->now;
    level->now = (struct level_span){.from = from, .until = from + level->rest, .level = next};
    level->seen = false;
}
