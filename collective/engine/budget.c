#include "collective/engine/levels.h"
#include "collective/engine/plan.h"

/* Of what compression saves, the part that overflows may take; that of at most so many operations is kept. */
#define CREDIT_PART 0.25
enum { CREDIT_OPERATIONS = 1024 };

/* Time that passes raw, relative to that of overflows which were not paid for. */
enum { REST_PER_DEBT = 100, REST_SHORTEST = 1024, REST_LONGEST = 1 << 24 };

/* After a rest the first few operations are probes, then every 61st, a prime as in levels.c. So many have to fit before
 * anything is packed by what they needed: fewer at first, as programs are to be compressed soon. If one does not fit,
 * the next come after a rest that doubles. */
enum {
    PROBES_AT_ONCE = 4,
    PROBE_EVERY = 61,
    PROBES_FIRST = 4,
    PROBES = 8,
    PROBE_REST = 256,
    PROBE_REST_LONGEST = 16384
};

/* Where no more probes come: the level cannot be any lower. */
#define NEVER (UINT64_MAX / 4)

/* Averages are over about so many operations. */
enum { LATELY = 64 };

/* A span that has no end is the one that a class begins with. */
static unsigned level_of(const struct level_span *span)
{
    return span->until == 0 ? (unsigned)LEVEL_RAW : span->level;
}

static const struct level_span *span_at(const struct level *level, uint64_t index)
{
    return index >= level->now.from ? &level->now : &level->old;
}

unsigned budget_level_at(const struct level *level, uint64_t index)
{
    const struct level_span *span = span_at(level, index);
    if (index < span->until)
        return level_of(span);
    const uint64_t behind = index - span->until;
    return behind < PROBES_AT_ONCE || behind % PROBE_EVERY == 0 ? (unsigned)LEVEL_PROBE : level_of(span);
}

static double lately(double before, double now)
{
    return before == 0 ? now : before + (now - before) / LATELY;
}

void budget_issue(struct budget *budget, unsigned level, const struct op_cost *cost)
{
    budget->plain = lately(budget->plain, cost->plain);
    /* Of operations of several sizes, the largest overflow is what it may have been. */
    budget->repair *= 1 - 1.0 / LATELY;
    budget->repair = cost->repair > budget->repair ? cost->repair : budget->repair;
    if (level >= LEVEL_RAW)
        return;
    const double saved = cost->plain * (1 - level / 128.0) - cost->coded;
    budget->saved = lately(budget->saved, saved > 0 ? saved : 0);
    budget->credit += saved > 0 ? CREDIT_PART * saved : 0;
    const double most = CREDIT_OPERATIONS * CREDIT_PART * budget->saved;
    budget->credit = budget->credit < most ? budget->credit : most;
}

static bool decide(struct budget *budget, unsigned level, uint64_t rest)
{
    budget->decided = true;
    budget->next_level = level;
    budget->next_rest = rest;
    return true;
}

/* Raw, until overflows that have not been paid for are 1 % of the time. */
static bool go_raw(struct budget *budget)
{
    const double operations = budget->plain > 0 ? REST_PER_DEBT * -budget->credit / budget->plain : REST_SHORTEST;
    budget->credit = 0;
    return decide(budget, LEVEL_RAW,
                  operations < REST_SHORTEST  ? (uint64_t)REST_SHORTEST
                  : operations > REST_LONGEST ? (uint64_t)REST_LONGEST
                                              : (uint64_t)operations);
}

/* A single overflow is on credit that is yet to come: it may be chance. */
bool budget_overflowed(struct budget *budget, const struct level *level, const struct need *need)
{
    const uint64_t index = need->index;
    budget->credit -= need->known ? 0 : budget->repair;
    if (index < level->now.from || budget->decided || level_of(&level->now) >= need->raw) /* it was under way */
        return false;
    if (need->known) {
        if (need->fitting < need->raw && need->fitting > budget->wanted)
            budget->wanted = need->fitting;
        return false;
    }
    const bool again = budget->seen && index != budget->overflowed && index - budget->overflowed <= CREDIT_OPERATIONS;
    budget->seen = true;
    budget->overflowed = index;
    if (budget->credit + budget->repair < 0)
        return go_raw(budget);
    if (need->fitting < need->raw && need->fitting > budget->wanted)
        budget->wanted = need->fitting;
    const unsigned above = level->now.level + 1, next = budget->wanted > above ? budget->wanted : above;
    /* What a little more room would have held gets it, as that costs little. */
    return again && need->fitting < need->raw && next < need->raw && decide(budget, next, REST_SHORTEST);
}

/* No level below the present one would do. */
static bool is_over(const struct level *level, const struct need *need)
{
    const unsigned now = level_of(&level->now);
    return need->fitting >= (now < need->raw ? now : need->raw);
}

bool budget_probed(struct budget *budget, const struct level *level, const struct need *need)
{
    const uint64_t index = need->index;
    if (index < level->now.from || index < level->now.until || budget->decided)
        return false;
    if (is_over(level, need)) {
        const uint64_t rest = budget->rest == 0 ? PROBE_REST : 2 * budget->rest;
        budget->rest = rest < PROBE_REST_LONGEST ? rest : PROBE_REST_LONGEST;
        return decide(budget, level_of(&level->now), budget->rest);
    }
    budget->needed = need->fitting > budget->needed ? need->fitting : budget->needed;
    if (need->known)
        return false;
    if (++budget->probes < (level->now.until == 0 ? (unsigned)PROBES_FIRST : (unsigned)PROBES))
        return false;
    budget->rest = 0;
    return decide(budget, budget->needed, budget->needed == 0 ? NEVER : (uint64_t)REST_SHORTEST);
}

bool budget_rest(struct budget *budget, uint64_t rest)
{
    return !budget->decided && decide(budget, LEVEL_SLOW, rest);
}

void budget_step(struct budget *budget, struct level *level, uint64_t from)
{
    level->old = level->now;
    level->now = (struct level_span){.from = from, .until = from + budget->next_rest, .level = budget->next_level};
    budget->probes = budget->wanted = budget->needed = 0;
    budget->seen = budget->decided = false;
}
