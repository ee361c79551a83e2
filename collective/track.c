#include "collective/track.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "collective/late.h"

enum { BUCKETS = 64 };

struct coll_tracked {
    struct coll_tracked *next;
    coll_comm comm;
    unsigned holders;
    atomic_bool gone; /* no longer found by its address */
    struct coll_late *late;
    struct coll_key key;
    uint64_t children[COLL_BIRTHS];
    struct coll_standing standing;
    struct coll_counts counts;
};

/* Threads that drive one GPU each call at the same time; a sleeping one would wake too late for a call of
 * microseconds. */
static pthread_mutex_t lock = PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP;
static struct coll_tracked *buckets[BUCKETS];
static struct coll_counts process;
static bool pin_all;
static atomic_bool registered; /* memory, with any communicator; never cleared, so that no count can be wrong */

/* ---- Under the lock ---------------------------------------------------------------------------------------------- */

static struct coll_tracked **bucket_of(coll_comm comm)
{
    uint64_t mixed = (uint64_t)(uintptr_t)comm * UINT64_C(0x9E3779B97F4A7C15);
    return &buckets[mixed >> 58];
}

static struct coll_tracked **place_of(coll_comm comm)
{
    struct coll_tracked **at = bucket_of(comm);
    while (*at != NULL && (*at)->comm != comm)
        at = &(*at)->next;
    return at;
}

/* If there is no memory, it is not tracked; its calls count for the process only. */
static struct coll_tracked *place_for(coll_comm comm)
{
    struct coll_tracked **at = place_of(comm);
    if (*at == NULL && (*at = calloc(1, sizeof(**at))) != NULL)
        (*at)->comm = comm;
    return *at;
}

static void add(struct coll_counts *counts, const struct coll_call *call, const struct coll_decision *decision,
                coll_result result)
{
    struct coll_count *count = &counts->of[call->operation][coll_type_row(call->type)];
    count->reason = decision->reason;
    if (result != COLL_SUCCESS && result != COLL_IN_PROGRESS) {
        count->failed++;
        return;
    }
    count->calls++;
    count->bytes += coll_call_bytes(call);
    count->grouped += call->grouped;
    count->captured += call->captured;
    if (decision->way != COLL_COMPRESS)
        return;
    count->compressed++;
    count->plain += coll_call_bytes(call);
    count->wire += decision->wire;
}

/* ---- Communicators -------------------------------------------------------------------------------------------------
 */

void coll_track_lock(void)
{
    pthread_mutex_lock(&lock);
}

void coll_track_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

struct coll_tracked *coll_track_end(coll_comm comm)
{
    coll_track_lock();
    struct coll_tracked **at = place_of(comm), *gone = *at;
    if (gone != NULL) {
        *at = gone->next;
        gone->holders++;
        gone->gone = true;
    }
    coll_track_unlock();
    return gone;
}

static struct coll_standing standing_of(const struct coll_tracked *tracked)
{
    return tracked != NULL ? tracked->standing : (struct coll_standing){.rank = -1, .ranks = -1, .pinned = pin_all};
}

bool coll_track_standing(coll_comm comm, struct coll_standing *standing)
{
    coll_track_lock();
    const struct coll_tracked *tracked = *place_of(comm);
    *standing = standing_of(tracked);
    coll_track_unlock();
    return tracked != NULL;
}

bool coll_track_hold(coll_comm comm, struct coll_standing *standing)
{
    coll_track_lock();
    struct coll_tracked *tracked = *place_of(comm);
    *standing = standing_of(tracked);
    if (standing->member != NULL || standing->late != NULL) {
        standing->held = tracked;
        tracked->holders++;
    }
    coll_track_unlock();
    return tracked != NULL;
}

struct coll_member *coll_track_release(struct coll_tracked *held)
{
    if (held == NULL)
        return NULL;
    coll_track_lock();
    const bool last = --held->holders == 0 && held->gone;
    coll_track_unlock();
    if (!last)
        return NULL;
    struct coll_member *member = held->standing.member;
    coll_late_end(held->late);
    free(held);
    return member;
}

void coll_track_gone(coll_comm comm)
{
    (void)coll_track_release(coll_track_end(comm));
}

/* A communicator that was at the same address has ended without a call that we saw, and so has its member. */
void coll_track_made(coll_comm comm, int rank, int ranks)
{
    coll_track_gone(comm);
    coll_track_lock();
    struct coll_tracked *tracked = place_for(comm);
    if (tracked != NULL)
        tracked->standing = (struct coll_standing){.rank = rank, .ranks = ranks, .pinned = pin_all};
    coll_track_unlock();
}

struct coll_member *coll_track_member_of(const struct coll_tracked *held)
{
    coll_track_lock();
    struct coll_member *member = held != NULL ? held->standing.member : NULL;
    coll_track_unlock();
    return member;
}

bool coll_track_is_over(const struct coll_tracked *held)
{
    coll_track_lock();
    const bool over = held->gone || held->standing.ending;
    coll_track_unlock();
    return over;
}

bool coll_track_has_gone(const struct coll_tracked *held)
{
    return held->gone;
}

void coll_track_ranks(coll_comm comm, int rank, int ranks)
{
    coll_track_lock();
    struct coll_tracked *tracked = *place_of(comm);
    if (tracked != NULL) {
        tracked->standing.rank = rank;
        tracked->standing.ranks = ranks;
    }
    coll_track_unlock();
}

void coll_track_ending(coll_comm comm)
{
    coll_track_lock();
    struct coll_tracked *tracked = *place_of(comm);
    if (tracked != NULL)
        tracked->standing.ending = true;
    coll_track_unlock();
}

void coll_track_memory(coll_comm comm, int change)
{
    if (change > 0)
        atomic_store(&registered, true);
    coll_track_lock();
    struct coll_tracked *tracked = *place_of(comm);
    if (tracked != NULL)
        tracked->standing.memory += change;
    coll_track_unlock();
}

bool coll_track_any_memory(void)
{
    return atomic_load(&registered);
}

void coll_track_member(coll_comm comm, struct coll_member *member, const char *why)
{
    coll_track_lock();
    struct coll_tracked *tracked = *place_of(comm);
    if (tracked != NULL) {
        tracked->standing.member = member;
        tracked->standing.why = why;
    }
    coll_track_unlock();
}

void coll_track_joined(struct coll_tracked *held, struct coll_member *member, const char *why)
{
    coll_track_lock();
    held->standing.member = member;
    held->standing.why = why;
    held->standing.late = NULL;
    coll_track_unlock();
}

void coll_track_late(coll_comm comm, struct coll_late *late, const char *why)
{
    coll_track_lock();
    struct coll_tracked *tracked = *place_of(comm);
    if (tracked != NULL) {
        tracked->late = tracked->standing.late = late;
        tracked->standing.why = why;
    }
    coll_track_unlock();
    if (tracked == NULL)
        coll_late_end(late);
}

void coll_track_key(coll_comm comm, const struct coll_key *key)
{
    coll_track_lock();
    struct coll_tracked *tracked = *place_of(comm);
    if (tracked != NULL) {
        tracked->key = *key;
        memset(tracked->children, 0, sizeof(tracked->children));
    }
    coll_track_unlock();
}

struct coll_key coll_track_child(coll_comm comm, enum coll_birth way, int64_t color)
{
    struct coll_key key = {0};
    coll_track_lock();
    struct coll_tracked *tracked = *place_of(comm);
    if (tracked != NULL)
        key = coll_key_child(&tracked->key, 1 + (uint64_t)way, tracked->children[way]++, color);
    coll_track_unlock();
    return key;
}

bool coll_track_pin(coll_comm comm, bool raw)
{
    coll_track_lock();
    struct coll_tracked *tracked = *place_of(comm);
    if (tracked != NULL)
        tracked->standing.pinned = raw;
    coll_track_unlock();
    return tracked != NULL;
}

void coll_track_pin_all(bool raw)
{
    coll_track_lock();
    pin_all = raw;
    for (unsigned i = 0; i < BUCKETS; i++)
        for (struct coll_tracked *tracked = buckets[i]; tracked != NULL; tracked = tracked->next)
            tracked->standing.pinned = raw;
    coll_track_unlock();
}

/* ---- Counts --------------------------------------------------------------------------------------------------------
 */

void coll_track_count(const struct coll_call *call, const struct coll_decision *decision, coll_result result)
{
    coll_track_lock();
    struct coll_tracked *tracked = *place_of(call->comm);
    if (tracked != NULL)
        add(&tracked->counts, call, decision, result);
    add(&process, call, decision, result);
    coll_track_unlock();
}

bool coll_track_counts(coll_comm comm, struct coll_standing *standing, struct coll_counts *counts)
{
    coll_track_lock();
    const struct coll_tracked *tracked = comm != NULL ? *place_of(comm) : NULL;
    *standing = standing_of(tracked);
    if (tracked != NULL)
        *counts = tracked->counts;
    else if (comm == NULL)
        *counts = process;
    coll_track_unlock();
    return tracked != NULL || comm == NULL;
}

bool coll_track_any(void)
{
    bool any = false;
    coll_track_lock();
    for (unsigned i = 0; i < COLL_OPERATIONS * COLL_TYPES; i++)
        any |= process.of[i / COLL_TYPES][i % COLL_TYPES].reason != NULL;
    coll_track_unlock();
    return any;
}

void coll_track_clear(void)
{
    memset(&process, 0, sizeof(process));
    for (unsigned i = 0; i < BUCKETS; i++)
        for (struct coll_tracked *tracked = buckets[i]; tracked != NULL; tracked = tracked->next)
            memset(&tracked->counts, 0, sizeof(tracked->counts));
}
