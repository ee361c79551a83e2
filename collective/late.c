#include "collective/late.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "collective/join.h"
#include "collective/patient.h"
#include "collective/run.h"
#include "collective/thread.h"
#include "collective/track.h"

struct coll_late {
    pthread_mutex_t lock; /* of all fields below; also held while it joins */
    struct coll_key key;
    struct coll_meeting *meeting; /* NULL: its ranks are not known yet */
    uint32_t begun;               /* collectives that went raw */
    bool paired, over;
};

void coll_ask_ranks(coll_comm comm, int *rank, int *ranks)
{
    const struct coll_table *nccl = coll_thread.nccl;
    if (nccl->CommCount == NULL || nccl->CommUserRank == NULL || COLL_NCCL(CommCount(comm, ranks)) != COLL_SUCCESS ||
        COLL_NCCL(CommUserRank(comm, rank)) != COLL_SUCCESS)
        *rank = *ranks = -1;
}

void coll_late_end(struct coll_late *late)
{
    if (late == NULL)
        return;
    coll_meeting_leave(late->meeting);
    pthread_mutex_destroy(&late->lock);
    free(late);
}

/* ---- Saying that a rank is there --------------------------------------------------------------------------------- */

static bool is_ready(coll_comm comm)
{
    coll_result error = COLL_SUCCESS;
    coll_patient_lock();
    const coll_result asked = COLL_NCCL(CommGetAsyncError(comm, &error));
    coll_patient_unlock();
    return asked == COLL_SUCCESS && error == COLL_SUCCESS;
}

static struct coll_entry entry_of(struct coll_late *late, struct coll_joining *what, struct coll_tracked *held)
{
    return (struct coll_entry){
        .what = what, .meeting = late->meeting, .held = held, .index = late->begun, .paired = late->paired};
}

/* A communicator of one rank has nobody to join; one that finds no place leaves the others waiting for a moment. */
static void come(struct coll_late *late, coll_comm comm, struct coll_standing *standing)
{
    struct coll_joining what = {.comm = comm, .rank = standing->rank, .ranks = standing->ranks};
    struct coll_entry entry = entry_of(late, &what, standing->held);
    if (what.ranks > 1)
        coll_join_come(&entry, &late->key);
    late->meeting = entry.meeting;
    late->over = late->meeting == NULL;
    if (late->over && what.ranks > 1)
        coll_join_tell(&what, standing->held);
    else if (late->over)
        coll_track_joined(standing->held, NULL, NULL);
}

static void learn_ranks(coll_comm comm, struct coll_standing *standing)
{
    if (standing->ranks >= 0)
        return;
    coll_ask_ranks(comm, &standing->rank, &standing->ranks);
    coll_track_ranks(comm, standing->rank, standing->ranks);
}

/* NCCL may be asked only if the communicator is ready. */
static void be_there(coll_comm comm, bool ready)
{
    struct coll_standing standing;
    (void)coll_track_hold(comm, &standing);
    struct coll_late *late = standing.late;
    if (late != NULL && pthread_mutex_trylock(&late->lock) == 0) { /* otherwise another thread is doing it */
        if (ready)
            learn_ranks(comm, &standing);
        if (late->meeting == NULL && !late->over && standing.ranks >= 0)
            come(late, comm, &standing);
        pthread_mutex_unlock(&late->lock);
    }
    coll_run_release(standing.held);
}

void coll_late_begin(coll_comm comm, const struct coll_key *key)
{
    const struct coll_settings *settings = &coll_library()->settings;
    if (settings->raw)
        return;
    struct coll_late *late = settings->meet == COLL_MEET_NCCL ? NULL : calloc(1, sizeof(*late));
    if (late != NULL) {
        pthread_mutex_init(&late->lock, NULL);
        late->key = *key;
    }
    coll_track_late(comm, late, "it does not block, and has not joined yet");
    be_there(comm, false);
}

void coll_late_ready(coll_comm comm)
{
    be_there(comm, true);
}

/* ---- The first collective ---------------------------------------------------------------------------------------- */

static void join(struct coll_late *late, coll_comm comm, const struct coll_standing *standing)
{
    struct coll_joining what = {.comm = comm, .rank = standing->rank, .ranks = standing->ranks};
    struct coll_entry entry = entry_of(late, &what, standing->held);
    coll_join_meet(&entry, 1);
    coll_meeting_leave(late->meeting);
    late->meeting = NULL;
    late->over = true;
}

static bool is_pair(const struct coll_call *call)
{
    return call->operation == COLL_SEND || call->operation == COLL_RECV;
}

static void stay_raw(struct coll_late *late, coll_comm comm, const struct coll_standing *standing)
{
    struct coll_joining what = {.comm = comm, .rank = standing->rank, .ranks = standing->ranks};
    snprintf(what.why, sizeof(what.why), "its first %u collectives were in groups and graphs", late->begun);
    coll_join_tell(&what, standing->held);
    coll_meeting_leave(late->meeting);
    late->meeting = NULL;
    late->over = true;
}

/* Collectives that do not join are counted, as ranks that are not equally far do not join, and others may be waiting
 * already. Telling them costs some microseconds, which a program that always groups its calls should not pay
 * forever. */
static void pass(struct coll_late *late, coll_comm comm, const struct coll_standing *standing)
{
    enum { PASSED_MAX = 1024 };
    late->begun++;
    if (late->meeting != NULL)
        coll_meeting_pass(late->meeting, late->begun);
    if (late->begun == PASSED_MAX)
        stay_raw(late, comm, standing);
}

static bool can_join(const struct coll_late *late, const struct coll_call *call, const struct coll_standing *standing)
{
    return late->meeting != NULL && !call->grouped && !call->captured && !standing->pinned && !standing->ending &&
           is_ready(call->comm);
}

static void look_at(struct coll_late *late, const struct coll_call *call, struct coll_standing *standing)
{
    if (late->over)
        return;
    if (is_pair(call))
        late->paired = true;
    else if (can_join(late, call, standing))
        join(late, call->comm, standing);
    else
        pass(late, call->comm, standing);
}

bool coll_late_call(const struct coll_call *call, struct coll_standing *standing)
{
    struct coll_late *late = standing->late;
    struct coll_tracked *held = standing->held;
    pthread_mutex_lock(&late->lock);
    look_at(late, call, standing);
    pthread_mutex_unlock(&late->lock);
    const bool gone = coll_track_has_gone(held);
    struct coll_member *member = coll_track_member_of(held);
    if (gone && member != NULL) /* the thread that ended it did not know of the member */
        coll_engine()->abort(member);
    if (!gone)
        (void)coll_track_hold(call->comm, standing);
    coll_run_release(held);
    return !gone;
}
