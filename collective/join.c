#include "collective/join.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "collective/patient.h"
#include "collective/reduce.h"
#include "collective/thread.h"
#include "collective/track.h"

static const struct coll_settings *settings(void)
{
    return &coll_library()->settings;
}

static struct coll_engine_host host_of(void)
{
    const struct coll_library *library = coll_library();
    return (struct coll_engine_host){
        .nccl = coll_patient(), .settings = library->settings, .enter = coll_thread_enter, .say = coll_say};
}

static bool is_over(const struct coll_entry *entry)
{
    return entry->held != NULL && coll_track_is_over(entry->held);
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

static struct coll_word word_of(const struct coll_entry *entry, bool able)
{
    return (struct coll_word){.able = able,
                              .blocks = entry->held == NULL,
                              .index = entry->index,
                              .paired = entry->paired,
                              .thread = this_thread()};
}

static void say(struct coll_entry *entry, enum coll_round round, bool able)
{
    const struct coll_word word = word_of(entry, able);
    coll_meeting_say(entry->meeting, round, &word);
}

static bool wait_for_presence(struct coll_meeting *meeting, int64_t ms, void *argument)
{
    (void)meeting;
    return ms < settings()->wait_ms && !is_over(argument);
}

/* All of them have the library, and will come with their next collective. They may have something else to do first,
 * which a collective of NCCL would wait for, too. */
enum { SAY_MS = 10000, COME_MS = 1800 * 1000 };

struct waiting {
    const struct coll_entry *entry;
    enum coll_round round;
    int64_t say_ms;
};

static bool wait_for_others(struct coll_meeting *meeting, int64_t ms, void *argument)
{
    struct waiting *waiting = argument;
    const struct coll_joining *what = waiting->entry->what;
    if (ms >= waiting->say_ms) {
        char absent[96];
        coll_meeting_absent(meeting, waiting->round, absent, sizeof(absent));
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
    struct waiting waiting = {entry, COLL_ROUND_REACHED, SAY_MS};
    say(entry, COLL_ROUND_REACHED, true);
    const bool all =
        coll_meeting_wait(entry->meeting, COLL_ROUND_REACHED, wait_for_others, &waiting) == COLL_VERDICT_GO;
    if (!all)
        coll_meeting_why(entry->meeting, COLL_ROUND_REACHED, entry->what->why, sizeof(entry->what->why));
    entry->what->paired = all && coll_meeting_any_paired(entry->meeting);
    return all;
}

static bool hear_presence(struct coll_entry *entry)
{
    const enum coll_verdict verdict = coll_meeting_wait(entry->meeting, COLL_ROUND_PRESENT, wait_for_presence, entry);
    if (verdict == COLL_VERDICT_RAW)
        coll_meeting_why(entry->meeting, COLL_ROUND_PRESENT, entry->what->why, sizeof(entry->what->why));
    return verdict == COLL_VERDICT_GO && (entry->held == NULL || hear_reached(entry));
}

/* If it is this rank that is not able, `why` keeps its own reason. */
static void hear_ability(struct coll_entry *entry)
{
    struct waiting waiting = {entry, COLL_ROUND_ABLE, SAY_MS};
    struct coll_joining *what = entry->what;
    const bool able = what->able;
    what->able = coll_meeting_wait(entry->meeting, COLL_ROUND_ABLE, wait_for_others, &waiting) == COLL_VERDICT_GO;
    if (!what->able && able)
        coll_meeting_why(entry->meeting, COLL_ROUND_ABLE, what->why, sizeof(what->why));
}

/* ---- Together ---------------------------------------------------------------------------------------------------- */

void coll_join_tell(const struct coll_joining *what, struct coll_tracked *held)
{
    const char *why = coll_engine() != NULL ? "the ranks could not agree" : coll_engine_why();
    if (held != NULL)
        coll_track_joined(held, what->member, why);
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
    struct coll_joining *joinings = calloc(count, sizeof(*joinings));
    for (unsigned i = 0; i < count && joinings != NULL; i++)
        joinings[i] = *entries[i].what;
    coll_thread.inside++;
    if (joinings != NULL)
        coll_engine()->prepare(&host, joinings, count);
    for (unsigned i = 0; i < count && joinings != NULL; i++)
        *entries[i].what = joinings[i];
    for (unsigned i = 0; i < count; i++)
        say(&entries[i], COLL_ROUND_ABLE, entries[i].what->able && !is_over(&entries[i]));
    for (unsigned i = 0; i < count; i++)
        hear_ability(&entries[i]);
    for (unsigned i = 0; i < count && joinings != NULL; i++)
        joinings[i] = *entries[i].what;
    if (joinings != NULL)
        coll_engine()->join(&host, joinings, count, true);
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

/* Saves waiting for ranks that cannot come. Known where the driver tells; otherwise there is no limit. */
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

static struct coll_meeting *come_here(const struct coll_key *key, struct coll_joining *what)
{
    const struct coll_key here = {.words = {key->words[0], key->words[1]}};
    if (what->ranks > gpus_here()) {
        snprintf(what->why, sizeof(what->why), "more ranks than this host has GPUs, and no other place to meet at");
        return NULL;
    }
    struct coll_meeting *meeting = coll_meeting_come(&here, what->rank, what->ranks);
    if (meeting == NULL)
        snprintf(what->why, sizeof(what->why), "there is no memory of the host to meet in (/dev/shm)");
    return meeting;
}

/* A rank that does not reach the place meets in host memory: there, too, either all come or none goes on, so it does no
 * harm if others have reached the place. */
static struct coll_meeting *come(const struct coll_key *key, struct coll_joining *what)
{
    struct coll_meeting *there = coll_key_has_place(key) ? coll_meeting_come(key, what->rank, what->ranks) : NULL;
    if (there != NULL)
        return there;
    if (coll_key_has_place(key))
        coll_say("communicator %p, rank %d of %d: the process that made the unique id is not reached",
                 (void *)what->comm, what->rank, what->ranks);
    return come_here(key, what);
}

void coll_join_come(struct coll_entry *entry, const struct coll_key *key)
{
    struct coll_joining *what = entry->what;
    if (what->ranks > COLL_REDUCE_SOURCES_MAX) {
        snprintf(what->why, sizeof(what->why), "more ranks than sums are made of");
        return;
    }
    entry->meeting = come(key, what);
    if (entry->meeting != NULL)
        say(entry, COLL_ROUND_PRESENT, coll_engine() != NULL);
}

/* ---- Communicators that block ------------------------------------------------------------------------------------ */

/* A rank that is not able still takes part in the vote. */
static void be_left_out(const struct coll_table *nccl, const struct coll_joining *joinings, unsigned count)
{
    coll_comm none = NULL;
    if (nccl->CommSplit == NULL)
        return;
    (void)nccl->GroupStart();
    for (unsigned i = 0; i < count; i++)
        (void)nccl->CommSplit(joinings[i].comm, COLL_SPLIT_NOCOLOR, joinings[i].rank, &none, NULL);
    (void)nccl->GroupEnd();
}

/* Joins by NCCL alone: all ranks have to vote, and wait for each other without a time limit (engine/join.c). */
static void join_by_nccl(struct coll_joining *joinings, unsigned count)
{
    const struct coll_engine_host host = host_of();
    coll_thread.inside++;
    if (coll_engine() == NULL)
        be_left_out(host.nccl, joinings, count);
    else
        coll_engine()->prepare(&host, joinings, count);
    if (coll_engine() != NULL)
        coll_engine()->join(&host, joinings, count, false);
    coll_thread.inside--;
    for (unsigned i = 0; i < count; i++)
        coll_join_tell(&joinings[i], NULL);
}

static void join_by_meeting(struct coll_joining *joinings, const struct coll_key *keys, unsigned count)
{
    struct coll_entry *entries = calloc(count, sizeof(*entries));
    for (unsigned i = 0; i < count && entries != NULL; i++) {
        entries[i].what = &joinings[i];
        coll_join_come(&entries[i], &keys[i]);
    }
    if (entries != NULL)
        coll_join_meet(entries, count);
    for (unsigned i = 0; i < count && entries != NULL; i++)
        coll_meeting_leave(entries[i].meeting);
    free(entries);
}

void coll_join(struct coll_joining *joinings, const struct coll_key *keys, unsigned count)
{
    if (settings()->raw || count == 0)
        return;
    if (coll_engine() == NULL && settings()->forced)
        coll_say("nothing is compressed: %s", coll_engine_why());
    if (settings()->meet == COLL_MEET_NCCL)
        join_by_nccl(joinings, count);
    else
        join_by_meeting(joinings, keys, count);
}
