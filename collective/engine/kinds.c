#include "collective/engine/kinds.h"

#include <errno.h>

#include "collective/engine/member.h"

enum { COLLECTIVES = MEMBER_OPERATIONS * MEMBER_TYPES };

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

/* Keys of a pair are each side's own. */
static struct kind *kind_of(const struct coll_member *member, unsigned key)
{
    struct kind *kinds = member->share.kinds->kinds;
    if (key < COLLECTIVES)
        return &kinds[key];
    const unsigned ranks = (unsigned)member->ranks, me = (unsigned)member->rank;
    const unsigned row = (key - COLLECTIVES) / MEMBER_TYPES, type = (key - COLLECTIVES) % MEMBER_TYPES;
    const unsigned from = row < ranks ? me : row - ranks, to = row < ranks ? row : me;
    return &kinds[COLLECTIVES + (from * ranks + to) * MEMBER_TYPES + type];
}

/* Whoever hears of it first considers it, for all. */
static void consider(struct coll_member *member, const struct report *report)
{
    if (report->key >= member_keys(member))
        return;
    struct kind *kind = kind_of(member, report->key);
    if (report->count <= kind->overflows)
        return;
    kind->overflows = report->count;
    const unsigned fitting = levels_fitting(member_key_type(report->key), report->share);
    if (levels_overflowed(&kind->level, report->index, fitting))
        levels_step(&kind->level, report->index, kind->level.issued);
}

/* Those that were written over while they were not read are missed: there will be more. */
static void listen(struct coll_member *member)
{
    const struct mail *mail = member->mail;
    const uint64_t reported = __atomic_load_n(&mail->reported, __ATOMIC_ACQUIRE);
    if (reported - member->heard > REPORTS_MAX / 2)
        member->heard = reported - REPORTS_MAX / 2;
    for (; member->heard < reported; member->heard++)
        consider(member, &mail->reports[member->heard % REPORTS_MAX]);
}

/* It is held for less time than it takes to sleep and be woken, and ranks come at the same time. */
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

/* A process that ended with the lock held has left what it protects whole enough: numbers, of which any are in order.
 */
static void lock(struct kinds *kinds)
{
    if (lock_soon(kinds) == EOWNERDEAD)
        (void)pthread_mutex_consistent(&kinds->lock);
}

static void count_alone(const struct coll_member *member, struct kind *kind, uint64_t index)
{
    if (index >= KINDS_ALONE)
        return;
    kind->alone++;
    if (kind->alone == (uint64_t)KINDS_ALONE * (uint64_t)member->ranks)
        kind->cut_from = kind->level.issued;
}

struct issued kinds_issue(struct coll_member *member, unsigned key, bool grouped)
{
    struct kinds *kinds = member->share.kinds;
    struct kind *kind = kind_of(member, key);
    lock(kinds);
    listen(member);
    const uint64_t index = member->issued[key]++;
    if (kind->level.issued < member->issued[key])
        kind->level.issued = member->issued[key];
    const struct issued issued = {index, levels_at(&kind->level, index),
                                  !grouped && kind->cut_from > 0 && index >= kind->cut_from};
    if (!grouped)
        count_alone(member, kind, index);
    pthread_mutex_unlock(&kinds->lock);
    return issued;
}
