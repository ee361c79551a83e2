#include "collective/engine/compare.h"

/* Operations that are left raw: few, and some of them soon. */
enum { FIRST_EVERY = 24, FIRST = 4, LATER_EVERY = 256 };

/* Of so many of both kinds, the fastest are compared. */
enum { SAMPLES = 4 };

enum { REST_SHORTEST = 2048, REST_LONGEST = 32768 };

bool compare_leaves_raw(uint64_t behind)
{
    if (behind == 0)
        return false;
    return behind <= FIRST * FIRST_EVERY ? behind % FIRST_EVERY == 0 : behind % LATER_EVERY == 0;
}

static void forget(struct comparison *comparison)
{
    comparison->count[0] = comparison->count[1] = 0;
    comparison->least[0] = comparison->least[1] = 0;
}

static uint64_t judge(struct comparison *comparison)
{
    double now = comparison->least[0] / comparison->least[1];
    __atomic_store(&comparison->latest, &now, __ATOMIC_RELAXED);
    __atomic_store_n(&comparison->compared, comparison->compared + 1, __ATOMIC_RELEASE);
    comparison->ratio = comparison->ratio == 0 ? now : (comparison->ratio + now) / 2;
    forget(comparison);
    if (comparison->ratio < 1) {
        comparison->rest = 0;
        return 0;
    }
    const uint64_t rest = comparison->rest == 0 ? REST_SHORTEST : 2 * comparison->rest;
    comparison->rest = rest < REST_LONGEST ? rest : REST_LONGEST;
    comparison->ratio = 0;
    return comparison->rest;
}

uint64_t compare_add(struct comparison *comparison, bool raw, double relative)
{
    if (comparison->count[raw] == SAMPLES)
        return 0;
    double *least = &comparison->least[raw];
    *least = comparison->count[raw]++ == 0 || relative < *least ? relative : *least;
    return comparison->count[0] == SAMPLES && comparison->count[1] == SAMPLES ? judge(comparison) : 0;
}
