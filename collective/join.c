#include <dirent.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "collective/comm.h"
#include "collective/group.h"
#include "collective/join.h"
#include "collective/nccl.h"
#include "collective/ranks.h"

static const struct coll_settings *settings(void)
{
    return &coll_library()->settings;
}

static struct coll_engine_host host_of(void)
{
    const struct coll_library *library = coll_library();
    return (struct coll_engine_host){.nccl = coll_nccl_blocking(),
                                     .settings = library->settings,
                                     .encrypted = coll_is_encrypted(),
                                     .enter = coll_thread_enter,
                                     .log = coll_log};
}

static bool is_closing(const struct coll_joiner *joiner)
{
    return joiner->held != NULL && coll_comm_is_closing(joiner->held);
}

/* ---- Votes ------------------------------------------------------------------------------------------------------- */

/* A random number of the calling thread. Process and thread numbers are those of a container, and containers may share
 * memory. */
static uint64_t this_thread(void)
{
    static _Thread_local uint64_t drawn;
    if (drawn == 0)
        drawn = coll_key_random().words[0];
    return drawn;
}

static struct coll_ballot ballot_of(const struct coll_joiner *joiner, bool able)
{
    return (struct coll_ballot){.able = able,
                                .blocks = joiner->held == NULL,
                                .index = joiner->index,
                                .paired = joiner->paired,
                                .thread = this_thread()};
}

static void cast(struct coll_joiner *joiner, enum coll_vote_phase phase, bool able)
{
    const struct coll_ballot ballot = ballot_of(joiner, able);
    coll_rdv_vote(joiner->rdv, phase, &ballot);
}

static bool wait_for_presence(struct coll_rdv *rdv, int64_t ms, void *argument)
{
    (void)rdv;
    return ms < settings()->wait_ms && !is_closing(argument);
}

/* All ranks are present, and reach this point with their next collective. They may be busy first, which a collective of
 * NCCL would wait for too. */
enum { WARN_MS = 10000, JOIN_MS_MAX = 1800 * 1000 };

struct patience {
    const struct coll_joiner *joiner;
    enum coll_vote_phase phase;
    int64_t warn_ms;
};

static bool wait_for_others(struct coll_rdv *rdv, int64_t ms, void *argument)
{
    struct patience *patience = argument;
    const struct coll_join_args *args = patience->joiner->args;
    if (ms >= patience->warn_ms) {
        char missing[96];
        coll_rdv_missing(rdv, patience->phase, missing, sizeof(missing));
        coll_log(
            "communicator %p, rank %d of %d: has waited %d s for %s to join, which comes with the first collective",
            (void *)args->comm, args->rank, args->ranks, (int)(ms / 1000), missing);
        patience->warn_ms *= 4;
    }
    return ms < JOIN_MS_MAX && !is_closing(patience->joiner);
}

/* Before anything is asked of the GPU, which may wait for a rank that has not reached the operation yet. */
static bool wait_reached(struct coll_joiner *joiner)
{
    struct patience patience = {joiner, COLL_PHASE_REACHED, WARN_MS};
    cast(joiner, COLL_PHASE_REACHED, true);
    const bool all = coll_rdv_wait(joiner->rdv, COLL_PHASE_REACHED, wait_for_others, &patience) == COLL_VERDICT_GO;
    if (!all)
        coll_rdv_reason(joiner->rdv, COLL_PHASE_REACHED, joiner->args->why, sizeof(joiner->args->why));
    joiner->args->paired = all && coll_rdv_any_paired(joiner->rdv);
    return all;
}

static bool wait_present(struct coll_joiner *joiner)
{
    const enum coll_verdict verdict = coll_rdv_wait(joiner->rdv, COLL_PHASE_PRESENT, wait_for_presence, joiner);
    if (verdict == COLL_VERDICT_RAW)
        coll_rdv_reason(joiner->rdv, COLL_PHASE_PRESENT, joiner->args->why, sizeof(joiner->args->why));
    return verdict == COLL_VERDICT_GO && (joiner->held == NULL || wait_reached(joiner));
}

/* A rank that is itself not able keeps its own reason in `why`. */
static void wait_able(struct coll_joiner *joiner)
{
    struct patience patience = {joiner, COLL_PHASE_ABLE, WARN_MS};
    struct coll_join_args *args = joiner->args;
    const bool able = args->able;
    args->able = coll_rdv_wait(joiner->rdv, COLL_PHASE_ABLE, wait_for_others, &patience) == COLL_VERDICT_GO;
    if (!args->able && able)
        coll_rdv_reason(joiner->rdv, COLL_PHASE_ABLE, args->why, sizeof(args->why));
}

/* ---- All ranks together ------------------------------------------------------------------------------------------ */

/* Enters the result in the registry, and logs it; `held` of a lazy join, else NULL. */
static void coll_join_publish(const struct coll_join_args *args, struct coll_comm_entry *held)
{
    const char *why = coll_engine() != NULL ? "the ranks could not agree" : coll_engine_why();
    if (held != NULL)
        coll_comm_end_lazy_join(held, args->ccomm, why);
    else
        coll_comm_set_ccomm(args->comm, args->ccomm, why);
    coll_comm_set_told(args->comm, coll_engine() != NULL ? args->why : why);
    if ((args->ccomm == NULL && coll_engine() != NULL) || (args->ccomm != NULL && settings()->print))
        coll_log("communicator %p, rank %d of %d: %s%s", (void *)args->comm, args->rank, args->ranks,
                 args->ccomm == NULL ? "stays raw: " : "", args->why);
}

/* Moves the communicators whose ranks are all present to the front; returns their number. */
static unsigned sort_present(struct coll_joiner *joiners, unsigned count)
{
    unsigned present = 0;
    for (unsigned i = 0; i < count; i++) {
        const struct coll_joiner joiner = joiners[i];
        if (joiner.rdv == NULL || !wait_present(&joiners[i]))
            continue;
        joiners[i] = joiners[present];
        joiners[present++] = joiner;
    }
    return present;
}

/* Called when all ranks of each communicator are present. */
static void prepare_and_join(struct coll_joiner *joiners, unsigned count)
{
    const struct coll_engine_host host = host_of();
    struct coll_join_args *joins = calloc(count, sizeof(*joins));
    for (unsigned i = 0; i < count && joins != NULL; i++)
        joins[i] = *joiners[i].args;
    coll_thread.in_nccl++;
    if (joins != NULL)
        coll_engine()->prepare(&host, joins, count);
    for (unsigned i = 0; i < count && joins != NULL; i++)
        *joiners[i].args = joins[i];
    for (unsigned i = 0; i < count; i++)
        cast(&joiners[i], COLL_PHASE_ABLE, joiners[i].args->able && !is_closing(&joiners[i]));
    for (unsigned i = 0; i < count; i++)
        wait_able(&joiners[i]);
    for (unsigned i = 0; i < count && joins != NULL; i++)
        joins[i] = *joiners[i].args;
    if (joins != NULL)
        coll_engine()->join(&host, joins, count);
    for (unsigned i = 0; i < count && joins != NULL; i++)
        *joiners[i].args = joins[i];
    coll_thread.in_nccl--;
    free(joins);
}

static void coll_join_complete(struct coll_joiner *joiners, unsigned count)
{
    const unsigned present = sort_present(joiners, count);
    if (present > 0)
        prepare_and_join(joiners, present);
    for (unsigned i = 0; i < count; i++)
        coll_join_publish(joiners[i].args, joiners[i].held);
}

/* Number of GPUs of this host, beyond which ranks cannot all join in shared memory: no need to wait for them. Known
 * where the driver lists them; otherwise there is no limit. */
static int gpus_here(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/driver/nvidia/gpus");
    for (const struct dirent *joiner; folder != NULL && (joiner = readdir(folder)) != NULL;)
        count += joiner->d_name[0] != '.';
    if (folder != NULL)
        closedir(folder);
    return count > 0 ? count : INT_MAX;
}

/* A rank that does not reach the server joins in shared memory. There, too, all ranks join or none goes on, so it does
 * no harm if others have reached the server. With encryption, none asks the server. */
static struct coll_rdv *enter(const struct coll_key *key, struct coll_join_args *args)
{
    const bool by_server = coll_key_has_server(key) && !coll_is_encrypted();
    struct coll_rdv *there = by_server ? coll_rdv_join(key, args->rank, args->ranks) : NULL;
    if (there != NULL)
        return there;
    if (by_server)
        coll_log("communicator %p, rank %d of %d: the process that made the unique id is not reached, or has no file "
                 "descriptors for so many ranks (ulimit -n)",
                 (void *)args->comm, args->rank, args->ranks);
    const struct coll_key here = {.words = {key->words[0], key->words[1]}};
    if (args->ranks > gpus_here()) {
        snprintf(args->why, sizeof(args->why), "more ranks than this host has GPUs, and no rendezvous server");
        return NULL;
    }
    struct coll_rdv *rdv = coll_rdv_join(&here, args->rank, args->ranks);
    if (rdv == NULL)
        snprintf(args->why, sizeof(args->why), "no shared memory (/dev/shm) for the rendezvous");
    return rdv;
}

/* The two parts of joining: coll_join_enter joins the rendezvous and posts this rank's presence, and waits for no other
 * rank; coll_join_complete does the rest. */
static void coll_join_enter(struct coll_joiner *joiner, const struct coll_key *key)
{
    struct coll_join_args *args = joiner->args;
    if (args->ranks > COLL_RANKS_MAX) {
        snprintf(args->why, sizeof(args->why), "%s", COLL_TOO_MANY_RANKS);
        return;
    }
    joiner->rdv = enter(key, args);
    if (joiner->rdv != NULL)
        cast(joiner, COLL_PHASE_PRESENT, coll_engine() != NULL);
}

/* ---- Communicators that block ------------------------------------------------------------------------------------ */

void coll_join(struct coll_join_args *joins, const struct coll_key *keys, unsigned count)
{
    if (settings()->raw || count == 0)
        return;
    if (coll_engine() == NULL && settings()->forced)
        coll_log("nothing is compressed: %s", coll_engine_why());
    struct coll_joiner *joiners = calloc(count, sizeof(*joiners));
    for (unsigned i = 0; i < count && joiners != NULL; i++) {
        joiners[i].args = &joins[i];
        coll_join_enter(&joiners[i], &keys[i]);
    }
    if (joiners != NULL)
        coll_join_complete(joiners, count);
    for (unsigned i = 0; i < count && joiners != NULL; i++)
        coll_rdv_leave(joiners[i].rdv);
    free(joiners);
}

/* ---- Communicators that do not block ----------------------------------------------------------------------------- */

void coll_query_ranks(coll_comm comm, int *rank, int *ranks)
{
    const struct coll_table *nccl = coll_thread.nccl;
    if (nccl->CommCount == NULL || nccl->CommUserRank == NULL || COLL_NCCL(CommCount(comm, ranks)) != COLL_SUCCESS ||
        COLL_NCCL(CommUserRank(comm, rank)) != COLL_SUCCESS)
        *rank = *ranks = -1;
}

/* ---- Presence ---------------------------------------------------------------------------------------------------- */

static bool is_ready(coll_comm comm)
{
    coll_result error = COLL_SUCCESS;
    coll_nccl_query_lock();
    const coll_result asked = COLL_NCCL(CommGetAsyncError(comm, &error));
    coll_nccl_query_unlock();
    return asked == COLL_SUCCESS && error == COLL_SUCCESS;
}

static struct coll_joiner joiner_of(struct coll_lazy_join *lazy, struct coll_join_args *args,
                                    struct coll_comm_entry *held)
{
    return (struct coll_joiner){
        .args = args, .rdv = lazy->rdv, .held = held, .index = lazy->raw_ops, .paired = lazy->paired};
}

/* If this rank reaches no rendezvous, the others wait until STRAIT_COLL_WAIT expires. */
static void enter_lazily(struct coll_lazy_join *lazy, coll_comm comm, struct coll_comm_info *info)
{
    struct coll_join_args args = {.comm = comm, .rank = info->rank, .ranks = info->ranks};
    struct coll_joiner joiner = joiner_of(lazy, &args, info->held);
    if (args.ranks > 1)
        coll_join_enter(&joiner, &lazy->key);
    lazy->rdv = joiner.rdv;
    lazy->over = lazy->rdv == NULL;
    if (lazy->over && args.ranks > 1)
        coll_join_publish(&args, info->held);
    else if (lazy->over)
        coll_comm_end_lazy_join(info->held, NULL, NULL);
}

static void query_ranks(coll_comm comm, struct coll_comm_info *info)
{
    if (info->ranks >= 0)
        return;
    coll_query_ranks(comm, &info->rank, &info->ranks);
    coll_comm_set_ranks(comm, info->rank, info->ranks);
}

/* NCCL may be asked only if the communicator is ready. */
static void post_presence(coll_comm comm, bool ready)
{
    struct coll_comm_info info;
    (void)coll_comm_get(comm, &info);
    struct coll_lazy_join *lazy = info.lazy_join;
    if (lazy != NULL && pthread_mutex_trylock(&lazy->lock) == 0) { /* else another thread is posting */
        if (ready)
            query_ranks(comm, &info);
        if (lazy->rdv == NULL && !lazy->over && info.ranks >= 0)
            enter_lazily(lazy, comm, &info);
        pthread_mutex_unlock(&lazy->lock);
    }
    coll_release(info.held);
}

void coll_lazy_join_begin(coll_comm comm, const struct coll_key *key)
{
    if (coll_library()->settings.raw)
        return;
    coll_comm_begin_lazy_join(comm, key, COLL_NOT_JOINED);
    post_presence(comm, false);
}

void coll_lazy_join_ready(coll_comm comm)
{
    post_presence(comm, true);
}

/* ---- The first collective ---------------------------------------------------------------------------------------- */

static void join(struct coll_lazy_join *lazy, coll_comm comm, const struct coll_comm_info *info)
{
    struct coll_join_args args = {.comm = comm, .rank = info->rank, .ranks = info->ranks};
    struct coll_joiner joiner = joiner_of(lazy, &args, info->held);
    coll_join_complete(&joiner, 1);
    coll_rdv_leave(lazy->rdv);
    lazy->rdv = NULL;
    lazy->over = true;
}

/* Counts a collective that does not join, as ranks with different counts stay raw, and tells the others, which may be
 * waiting already. That takes microseconds, which a program that always groups its calls should not pay forever. */
static void note_raw(struct coll_lazy_join *lazy, coll_comm comm, const struct coll_comm_info *info)
{
    enum { RAW_MAX = 1024 };
    lazy->raw_ops++;
    if (lazy->rdv != NULL)
        coll_rdv_note_raw(lazy->rdv, lazy->raw_ops);
    if (lazy->raw_ops == RAW_MAX) {
        struct coll_join_args args = {.comm = comm, .rank = info->rank, .ranks = info->ranks};
        snprintf(args.why, sizeof(args.why), "its first %u collectives were in groups and graphs", lazy->raw_ops);
        coll_join_publish(&args, info->held);
        coll_rdv_leave(lazy->rdv);
        lazy->rdv = NULL;
        lazy->over = true;
    }
}

static void on_call(struct coll_lazy_join *lazy, const struct coll_call *call, struct coll_comm_info *info)
{
    if (lazy->over)
        return;
    if (call->operation == COLL_SEND || call->operation == COLL_RECV)
        lazy->paired = true;
    else if (lazy->rdv != NULL && !call->grouped && !call->captured && !info->pinned && !info->ending &&
             is_ready(call->comm))
        join(lazy, call->comm, info);
    else
        note_raw(lazy, call->comm, info);
}

bool coll_lazy_join_call(const struct coll_call *call, struct coll_comm_info *info)
{
    struct coll_lazy_join *lazy = info->lazy_join;
    struct coll_comm_entry *held = info->held;
    pthread_mutex_lock(&lazy->lock);
    on_call(lazy, call, info);
    pthread_mutex_unlock(&lazy->lock);
    const bool removed = coll_comm_is_removed(held);
    struct coll_ccomm *ccomm = coll_comm_ccomm(held);
    if (removed && ccomm != NULL) /* the thread that removed the communicator did not know the communicator yet */
        coll_engine()->abort(ccomm);
    if (!removed)
        (void)coll_comm_get(call->comm, info);
    coll_release(held);
    return !removed;
}
