#include "collective/engine/levels.h"

#include <errno.h>
#include <time.h>

#include "collective/engine/ccomm.h"

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

/* ---- Op classes -------------------------------------------------------------------------------------------------- */

enum { COLLECTIVES = MEMBER_OPERATIONS * MEMBER_TYPES };

/* Limit for awaiting a step. Normally it takes no longer than a question and its answer, as no GPU is involved. */
enum { LOOK_NS = 20000, LOOKS_MAX = 500000 };

size_t kinds_size(int ranks)
{
    const size_t pairs = (size_t)ranks * (size_t)ranks * MEMBER_TYPES;
    return sizeof(struct kinds) + (COLLECTIVES + pairs) * sizeof(struct kind);
}

bool kinds_begin(struct kinds *kinds)
{
    pthread_mutexattr_t attributes;
    if (pthread_mutexattr_init(&attributes) != 0)
        return false;
    const bool good = pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0 &&
                      pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0 &&
                      pthread_mutex_init(&kinds->lock, &attributes) == 0;
    pthread_mutexattr_destroy(&attributes);
    return good;
}

/* Keys of pairs are local to each side, numbers are not. */
static uint32_t number_of(const struct coll_ccomm *member, unsigned key)
{
    if (key < COLLECTIVES)
        return key;
    const unsigned ranks = (unsigned)member->ranks, me = (unsigned)member->rank;
    const unsigned row = (key - COLLECTIVES) / MEMBER_TYPES, type = (key - COLLECTIVES) % MEMBER_TYPES;
    const unsigned from = row < ranks ? me : row - ranks, to = row < ranks ? row : me;
    return COLLECTIVES + (from * ranks + to) * MEMBER_TYPES + type;
}

/* ---- On several hosts -------------------------------------------------------------------------------------------- */

uint32_t kinds_count(const struct coll_ccomm *member)
{
    return COLLECTIVES + (uint32_t)member->ranks * (uint32_t)member->ranks * MEMBER_TYPES;
}

int kinds_decider(const struct coll_ccomm *member, uint32_t number)
{
    const struct division *hosts = &member->share.division;
    if (number < COLLECTIVES)
        return member->share.apart ? 0 : -1;
    const int pair = (int)((number - COLLECTIVES) / MEMBER_TYPES);
    const int from = pair / member->ranks, to = pair % member->ranks;
    return !member->share.apart || host_groups_same(hosts, from, to) ? -1 : from;
}

bool kinds_asked(const struct coll_ccomm *member, uint32_t number, int rank)
{
    if (number < COLLECTIVES)
        return rank != 0 && member->share.division.leader[rank] == rank;
    return rank == (int)((number - COLLECTIVES) / MEMBER_TYPES) % member->ranks;
}

/* ---- Overflows --------------------------------------------------------------------------------------------------- */

/* A step that other copies take over begins when all of them have promised. */
static void want(struct kinds *kinds, struct kind *kind, uint64_t overflow)
{
    kind->overflow = overflow;
    kind->limit = kind->level.issued + KINDS_AHEAD;
    __atomic_fetch_add(&kinds->wanted, 1, __ATOMIC_RELEASE);
}

/* The rank that hears of an overflow first considers it, for all. */
static void consider(struct coll_ccomm *member, const struct report *report)
{
    if (report->key >= member_keys(member))
        return;
    struct kinds *kinds = member->share.kinds;
    const uint32_t number = number_of(member, report->key);
    struct kind *kind = &kinds->kinds[number];
    const int decider = kinds_decider(member, number);
    if (report->count <= kind->overflows ||
        (decider >= 0 && !host_groups_same(&member->share.division, decider, member->rank)))
        return;
    kind->overflows = report->count;
    const unsigned fitting = levels_fitting(member_key_type(report->key), report->share);
    if (!levels_overflowed(&kind->level, report->index, fitting) || kind->limit != 0)
        return;
    if (decider >= 0)
        want(kinds, kind, report->index);
    else
        levels_step(&kind->level, report->index, kind->level.issued);
}

/* Reports that were overwritten before they were read are lost: there will be more. */
static void listen(struct coll_ccomm *member)
{
    const struct host_status *host_status = member->host_status;
    const uint64_t reported = __atomic_load_n(&host_status->reported, __ATOMIC_ACQUIRE);
    if (reported - member->heard > REPORTS_MAX / 2)
        member->heard = reported - REPORTS_MAX / 2;
    for (; member->heard < reported; member->heard++)
        consider(member, &host_status->reports[member->heard % REPORTS_MAX]);
}

/* Spins first: the lock is held for less time than sleeping and waking takes, and ranks come at the same time. */
static int lock_soon(struct kinds *kinds)
{
    enum { TURNS = 1000 };
    for (int i = 0; i < TURNS; i++) {
        const int error = pthread_mutex_trylock(&kinds->lock);
        if (error != EBUSY)
            return error;
    }
    return pthread_mutex_lock(&kinds->lock);
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

/* A process that ended with the lock held leaves consistent data: numbers, any of which are valid. */
void kinds_lock(struct kinds *kinds)
{
    if (lock_soon(kinds) == EOWNERDEAD)
        (void)pthread_mutex_consistent(&kinds->lock);
}

void kinds_unlock(struct kinds *kinds)
{
    pthread_mutex_unlock(&kinds->lock);
}

/* The step depends only on threads that answer each other, not on what callers do meanwhile. */
static void await_step(struct coll_ccomm *member, const struct kind *kind, uint64_t index)
{
    struct kinds *kinds = member->share.kinds;
    int looks = 0;
    while (kind->limit != 0 && index >= kind->limit &&
           __atomic_load_n(&member->host_status->abort, __ATOMIC_ACQUIRE) == 0) {
        kinds_unlock(kinds);
        if (looks++ == LOOKS_MAX) {
            member_fail(member, COLL_REMOTE_ERROR, "another host has not answered");
            member_give_up(member);
        } else {
            nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
        }
        kinds_lock(kinds);
    }
}

static void count_alone(const struct coll_ccomm *member, struct kind *kind, uint64_t index)
{
    if (index >= KINDS_ALONE)
        return;
    kind->alone++;
    if (kind->alone == (uint64_t)KINDS_ALONE * (uint64_t)member->ranks)
        kind->cut_from = kind->level.issued;
}

static bool is_cut(const struct kind *kind, uint64_t index)
{
    return kind->cut_from > 0 && index >= kind->cut_from && (kind->cut_until == 0 || index < kind->cut_until);
}

/* A rank has the operation in a group. If it is the first to come to it, others will not cut it. */
static void stop_cutting(struct kind *kind, uint64_t index)
{
    if (is_cut(kind, index) && kind->level.issued <= index)
        kind->cut_until = index;
}

struct issued kinds_issue(struct coll_ccomm *member, unsigned key, bool grouped, bool long_enough)
{
    struct kinds *kinds = member->share.kinds;
    struct kind *kind = &kinds->kinds[number_of(member, key)];
    kinds_lock(kinds);
    listen(member);
    const uint64_t index = member->issued[key]++;
    await_step(member, kind, index);
    if (grouped && long_enough)
        stop_cutting(kind, index);
    if (kind->level.issued < index + 1)
        kind->level.issued = index + 1;
    const bool stopped = kinds->stopped != 0 && index >= kind->stop;
    const bool cut = long_enough && is_cut(kind, index);
    const struct issued issued = {index, levels_at(&kind->level, index), cut && !grouped, cut && grouped, stopped};
    if (!grouped)
        count_alone(member, kind, index);
    kinds_unlock(kinds);
    return issued;
}

/* level.issued stays: it then says too much, and the next step comes later than it could. */
void kinds_forget(struct coll_ccomm *member, unsigned key, uint64_t index)
{
    struct kinds *kinds = member->share.kinds;
    kinds_lock(kinds);
    if (index < member->issued[key])
        member->issued[key] = index;
    kinds_unlock(kinds);
}

void kinds_stop(struct coll_ccomm *member)
{
    struct kinds *kinds = member->share.kinds;
    if (member->share.apart)
        return;
    kinds_lock(kinds);
    for (uint32_t i = 0; i < kinds_count(member) && kinds->stopped == 0; i++)
        kinds->kinds[i].stop = kinds->kinds[i].level.issued;
    kinds->stopped = 1;
    kinds_unlock(kinds);
}
