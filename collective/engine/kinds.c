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

/* A process that ended with the lock held has left what it protects whole enough: numbers, of which any are in order.
 */
static void lock(struct kinds *kinds)
{
    if (pthread_mutex_lock(&kinds->lock) == EOWNERDEAD)
        (void)pthread_mutex_consistent(&kinds->lock);
}

struct issued kinds_issue(struct coll_member *member, unsigned key)
{
    struct kinds *kinds = member->share.kinds;
    struct kind *kind = kind_of(member, key);
    lock(kinds);
    listen(member);
    const uint64_t index = member->issued[key]++;
    if (kind->level.issued < member->issued[key])
        kind->level.issued = member->issued[key];
    const struct issued issued = {index, levels_at(&kind->level, index), kinds->stopped != 0 && index >= kind->stop};
    pthread_mutex_unlock(&kinds->lock);
    return issued;
}

void kinds_stop(struct coll_member *member)
{
    const size_t ranks = (size_t)member->ranks;
    struct kinds *kinds = member->share.kinds;
    lock(kinds);
    for (size_t i = 0; i < COLLECTIVES + ranks * ranks * MEMBER_TYPES && kinds->stopped == 0; i++)
        kinds->kinds[i].stop = kinds->kinds[i].level.issued;
    kinds->stopped = 1;
    pthread_mutex_unlock(&kinds->lock);
}
