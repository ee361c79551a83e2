#include <dirent.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "collective/group.h"
#include "collective/join.h"
#include "collective/reduce.h"
#include "collective/nccl.h"
#include "collective/comm.h"

static const struct coll_settings *settings(void)
{
    return &coll_library()->settings;
}

static struct coll_engine_host host_of(void)
{
    const struct coll_library *library = coll_library();
    return (struct coll_engine_host){
        .nccl = coll_nccl_blocking(), .settings = library->settings, .enter = coll_thread_enter, .say = coll_say};
}

static bool is_over(const struct coll_entry *entry)
{
    return entry->held != NULL && coll_comm_is_closing(entry->held);
}

/* ---- The two questions ------------------------------------------------------------------------------------------- */

/* Drawn at random, because process and thread numbers are those of a container, which may share host memory with
 * others. */
static uint64_t this_thread(void)
{
    static _Thread_local uint64_t drawn;
    if (drawn == 0)
        drawn = coll_key_draw().words[0];
    return drawn;
}

static struct coll_ballot word_of(const struct coll_entry *entry, bool able)
{
    return (struct coll_ballot){.able = able,
                                .blocks = entry->held == NULL,
                                .index = entry->index,
                                .paired = entry->paired,
                                .thread = this_thread()};
}

static void say(struct coll_entry *entry, enum coll_vote_phase round, bool able)
{
    const struct coll_ballot word = word_of(entry, able);
    coll_rdv_vote(entry->meeting, round, &word);
}

static bool wait_for_presence(struct coll_rdv *meeting, int64_t ms, void *argument)
{
    (void)meeting;
    return ms < settings()->wait_ms && !is_over(argument);
}

/* All of them have the library, and will join_come with their next collective. They may have something else to do
 * first, which a collective of NCCL would wait for, too. */
enum { SAY_MS = 10000, COME_MS = 1800 * 1000 };

struct waiting {
    const struct coll_entry *entry;
    enum coll_vote_phase round;
    int64_t say_ms;
};

static bool wait_for_others(struct coll_rdv *meeting, int64_t ms, void *argument)
{
    struct waiting *waiting = argument;
    const struct coll_join_args *what = waiting->entry->what;
    if (ms >= waiting->say_ms) {
        char absent[96];
        coll_rdv_missing(meeting, waiting->round, absent, sizeof(absent));
        coll_say(
            "communicator %p, rank %d of %d: has waited %d s for %s to join, which comes with the first collective",
            (void *)what->comm, what->rank, what->ranks, (int)(ms / 1000), absent);
        waiting->say_ms *= 4;
    }
    return ms < COME_MS && !is_over(waiting->entry);
}

/* Nothing was asked of the GPU so far, as that may wait for a rank that is not there yet. */
static bool hear_reached(struct coll_entry *entry)
{
    struct waiting waiting = {entry, COLL_PHASE_REACHED, SAY_MS};
    say(entry, COLL_PHASE_REACHED, true);
    const bool all = coll_rdv_wait(entry->meeting, COLL_PHASE_REACHED, wait_for_others, &waiting) == COLL_VERDICT_GO;
    if (!all)
        coll_rdv_reason(entry->meeting, COLL_PHASE_REACHED, entry->what->why, sizeof(entry->what->why));
    entry->what->paired = all && coll_rdv_any_paired(entry->meeting);
    return all;
}

static bool hear_presence(struct coll_entry *entry)
{
    const enum coll_verdict verdict = coll_rdv_wait(entry->meeting, COLL_PHASE_PRESENT, wait_for_presence, entry);
    if (verdict == COLL_VERDICT_RAW)
        coll_rdv_reason(entry->meeting, COLL_PHASE_PRESENT, entry->what->why, sizeof(entry->what->why));
    return verdict == COLL_VERDICT_GO && (entry->held == NULL || hear_reached(entry));
}

/* If it is this rank that is not able, `why` keeps its own reason. */
static void hear_ability(struct coll_entry *entry)
{
    struct waiting waiting = {entry, COLL_PHASE_ABLE, SAY_MS};
    struct coll_join_args *what = entry->what;
    const bool able = what->able;
    what->able = coll_rdv_wait(entry->meeting, COLL_PHASE_ABLE, wait_for_others, &waiting) == COLL_VERDICT_GO;
    if (!what->able && able)
        coll_rdv_reason(entry->meeting, COLL_PHASE_ABLE, what->why, sizeof(what->why));
}

/* ---- Together ---------------------------------------------------------------------------------------------------- */

void coll_join_tell(const struct coll_join_args *what, struct coll_comm_entry *held)
{
    const char *why = coll_engine() != NULL ? "the ranks could not agree" : coll_engine_why();
    if (held != NULL)
        coll_comm_set_engine(held, what->member, why);
    else
        coll_track_member(what->comm, what->member, why);
    if ((what->member == NULL && coll_engine() != NULL) || (what->member != NULL && settings()->print))
        coll_say("communicator %p, rank %d of %d: %s%s", (void *)what->comm, what->rank, what->ranks,
                 what->member == NULL ? "stays raw: " : "", what->why);
}

/* Puts those whose ranks are all there first; returns how many they are. */
static unsigned sort_present(struct coll_entry *entries, unsigned count)
{
    unsigned present = 0;
    for (unsigned i = 0; i < count; i++) {
        const struct coll_entry entry = entries[i];
        if (entry.meeting == NULL || !hear_presence(&entries[i]))
            continue;
        entries[i] = entries[present];
        entries[present++] = entry;
    }
    return present;
}

/* Called when the ranks of each are all there. */
static void prepare_and_join(struct coll_entry *entries, unsigned count)
{
    const struct coll_engine_host host = host_of();
    struct coll_join_args *joinings = calloc(count, sizeof(*joinings));
    for (unsigned i = 0; i < count && joinings != NULL; i++)
        joinings[i] = *entries[i].what;
    coll_thread.inside++;
    if (joinings != NULL)
        coll_engine()->prepare(&host, joinings, count);
    for (unsigned i = 0; i < count && joinings != NULL; i++)
        *entries[i].what = joinings[i];
    for (unsigned i = 0; i < count; i++)
        say(&entries[i], COLL_PHASE_ABLE, entries[i].what->able && !is_over(&entries[i]));
    for (unsigned i = 0; i < count; i++)
        hear_ability(&entries[i]);
    for (unsigned i = 0; i < count && joinings != NULL; i++)
        joinings[i] = *entries[i].what;
    if (joinings != NULL)
        coll_engine()->join(&host, joinings, count);
    for (unsigned i = 0; i < count && joinings != NULL; i++)
        *entries[i].what = joinings[i];
    coll_thread.inside--;
    free(joinings);
}

void coll_join_meet(struct coll_entry *entries, unsigned count)
{
    const unsigned present = sort_present(entries, count);
    if (present > 0)
        prepare_and_join(entries, present);
    for (unsigned i = 0; i < count; i++)
        coll_join_tell(entries[i].what, entries[i].held);
}

/* Saves waiting for ranks that cannot join_come. Known where the driver tells; otherwise there is no limit. */
static int gpus_here(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/driver/nvidia/gpus");
    for (const struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;)
        count += entry->d_name[0] != '.';
    if (folder != NULL)
        closedir(folder);
    return count > 0 ? count : INT_MAX;
}

static struct coll_rdv *come_here(const struct coll_key *key, struct coll_join_args *what)
{
    const struct coll_key here = {.words = {key->words[0], key->words[1]}};
    if (what->ranks > gpus_here()) {
        snprintf(what->why, sizeof(what->why), "more ranks than this host has GPUs, and no other place to meet at");
        return NULL;
    }
    struct coll_rdv *meeting = coll_rdv_join(&here, what->rank, what->ranks);
    if (meeting == NULL)
        snprintf(what->why, sizeof(what->why), "there is no memory of the host to meet in (/dev/shm)");
    return meeting;
}

/* A rank that does not reach the place meets in host memory: there, too, either all join_come or none goes on, so it
 * does no harm if others have reached the place. */
static struct coll_rdv *join_come(const struct coll_key *key, struct coll_join_args *what)
{
    struct coll_rdv *there = coll_key_has_place(key) ? coll_rdv_join(key, what->rank, what->ranks) : NULL;
    if (there != NULL)
        return there;
    if (coll_key_has_place(key))
        coll_say("communicator %p, rank %d of %d: the process that made the unique id is not reached",
                 (void *)what->comm, what->rank, what->ranks);
    return come_here(key, what);
}

void coll_join_come(struct coll_entry *entry, const struct coll_key *key)
{
    struct coll_join_args *what = entry->what;
    if (what->ranks > COLL_REDUCE_SOURCES_MAX) {
        snprintf(what->why, sizeof(what->why), "more ranks than sums are made of");
        return;
    }
    entry->meeting = join_come(key, what);
    if (entry->meeting != NULL)
        say(entry, COLL_PHASE_PRESENT, coll_engine() != NULL);
}

/* ---- Communicators that block ------------------------------------------------------------------------------------ */

void coll_join(struct coll_join_args *joinings, const struct coll_key *keys, unsigned count)
{
    if (settings()->raw || count == 0)
        return;
    if (coll_engine() == NULL && settings()->forced)
        coll_say("nothing is compressed: %s", coll_engine_why());
    struct coll_entry *entries = calloc(count, sizeof(*entries));
    for (unsigned i = 0; i < count && entries != NULL; i++) {
        entries[i].what = &joinings[i];
        coll_join_come(&entries[i], &keys[i]);
    }
    if (entries != NULL)
        coll_join_meet(entries, count);
    for (unsigned i = 0; i < count && entries != NULL; i++)
        coll_rdv_leave(entries[i].meeting);
    free(entries);
}

/* ---- Communicators that do not block ----------------------------------------------------------------------------- */

void coll_ask_ranks(coll_comm comm, int *rank, int *ranks)
{
    const struct coll_table *nccl = coll_thread.nccl;
    if (nccl->CommCount == NULL || nccl->CommUserRank == NULL || COLL_NCCL(CommCount(comm, ranks)) != COLL_SUCCESS ||
        COLL_NCCL(CommUserRank(comm, rank)) != COLL_SUCCESS)
        *rank = *ranks = -1;
}

/* ---- Saying that a rank is there --------------------------------------------------------------------------------- */

static bool is_ready(coll_comm comm)
{
    coll_result error = COLL_SUCCESS;
    coll_nccl_query_lock();
    const coll_result asked = COLL_NCCL(CommGetAsyncError(comm, &error));
    coll_nccl_query_unlock();
    return asked == COLL_SUCCESS && error == COLL_SUCCESS;
}

static struct coll_entry entry_of(struct coll_lazy_join *late, struct coll_join_args *what,
                                  struct coll_comm_entry *held)
{
    return (struct coll_entry){
        .what = what, .meeting = late->meeting, .held = held, .index = late->begun, .paired = late->paired};
}

/* A communicator of one rank has nobody to join; one that finds no place leaves the others waiting for a moment. */
static void come(struct coll_lazy_join *late, coll_comm comm, struct coll_comm_info *standing)
{
    struct coll_join_args what = {.comm = comm, .rank = standing->rank, .ranks = standing->ranks};
    struct coll_entry entry = entry_of(late, &what, standing->held);
    if (what.ranks > 1)
        coll_join_come(&entry, &late->key);
    late->meeting = entry.meeting;
    late->over = late->meeting == NULL;
    if (late->over && what.ranks > 1)
        coll_join_tell(&what, standing->held);
    else if (late->over)
        coll_comm_set_engine(standing->held, NULL, NULL);
}

static void learn_ranks(coll_comm comm, struct coll_comm_info *standing)
{
    if (standing->ranks >= 0)
        return;
    coll_ask_ranks(comm, &standing->rank, &standing->ranks);
    coll_track_ranks(comm, standing->rank, standing->ranks);
}

/* NCCL may be asked only if the communicator is ready. */
static void post_presence(coll_comm comm, bool ready)
{
    struct coll_comm_info standing;
    (void)coll_comm_get(comm, &standing);
    struct coll_lazy_join *late = standing.late;
    if (late != NULL && pthread_mutex_trylock(&late->lock) == 0) { /* otherwise another thread is doing it */
        if (ready)
            learn_ranks(comm, &standing);
        if (late->meeting == NULL && !late->over && standing.ranks >= 0)
            come(late, comm, &standing);
        pthread_mutex_unlock(&late->lock);
    }
    coll_run_release(standing.held);
}

void coll_lazy_join_begin(coll_comm comm, const struct coll_key *key)
{
    if (coll_library()->settings.raw)
        return;
    coll_comm_set_lazy_join(comm, key, "it does not block, and has not joined yet");
    post_presence(comm, false);
}

void coll_lazy_join_ready(coll_comm comm)
{
    post_presence(comm, true);
}

/* ---- The first collective ---------------------------------------------------------------------------------------- */

static void join(struct coll_lazy_join *late, coll_comm comm, const struct coll_comm_info *standing)
{
    struct coll_join_args what = {.comm = comm, .rank = standing->rank, .ranks = standing->ranks};
    struct coll_entry entry = entry_of(late, &what, standing->held);
    coll_join_meet(&entry, 1);
    coll_rdv_leave(late->meeting);
    late->meeting = NULL;
    late->over = true;
}

static bool is_pair(const struct coll_call *call)
{
    return call->operation == COLL_SEND || call->operation == COLL_RECV;
}

static void give_up_joining(struct coll_lazy_join *late, coll_comm comm, const struct coll_comm_info *standing)
{
    struct coll_join_args what = {.comm = comm, .rank = standing->rank, .ranks = standing->ranks};
    snprintf(what.why, sizeof(what.why), "its first %u collectives were in groups and graphs", late->begun);
    coll_join_tell(&what, standing->held);
    coll_rdv_leave(late->meeting);
    late->meeting = NULL;
    late->over = true;
}

/* Collectives that do not join are counted, as ranks that are not equally far do not join, and others may be waiting
 * already. Telling them costs some microseconds, which a program that always groups its calls should not pay
 * forever. */
static void pass(struct coll_lazy_join *late, coll_comm comm, const struct coll_comm_info *standing)
{
    enum { PASSED_MAX = 1024 };
    late->begun++;
    if (late->meeting != NULL)
        coll_rdv_note_raw(late->meeting, late->begun);
    if (late->begun == PASSED_MAX)
        give_up_joining(late, comm, standing);
}

static bool can_join(const struct coll_lazy_join *late, const struct coll_call *call,
                     const struct coll_comm_info *standing)
{
    return late->meeting != NULL && !call->grouped && !call->captured && !standing->pinned && !standing->ending &&
           is_ready(call->comm);
}

static void look_at(struct coll_lazy_join *late, const struct coll_call *call, struct coll_comm_info *standing)
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

bool coll_lazy_join_call(const struct coll_call *call, struct coll_comm_info *standing)
{
    struct coll_lazy_join *late = standing->late;
    struct coll_comm_entry *held = standing->held;
    pthread_mutex_lock(&late->lock);
    look_at(late, call, standing);
    pthread_mutex_unlock(&late->lock);
    const bool gone = coll_comm_is_removed(held);
    struct coll_ccomm *member = coll_track_member_of(held);
    if (gone && member != NULL) /* the thread that ended it did not know of the member */
        coll_engine()->abort(member);
    if (!gone)
        (void)coll_comm_get(call->comm, standing);
    coll_run_release(held);
    return !gone;
}
