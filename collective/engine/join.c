#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "collective/engine/op.h"
#include "transport/rank_address.h"

/* The version of all that ranks have to do alike: what they tell each other, how they decide, and by which operations
 * of NCCL they move messages. */
#define JOIN_MAGIC   UINT64_C(0x3130654c4c4f4353)
#define JOIN_VERSION 23u

/* Version and settings of a rank; they must be the same on all, or all of them stay raw. */
struct rank_config {
    uint64_t magic;
    uint32_t version, ranks;
    uint32_t order, forced, pairs, encrypted, bytes, shm;
    struct coll_sizes table;
    char release[32];
};
_Static_assert(sizeof(struct rank_config) <= CCOMM_GATHER_MAX && sizeof(struct peer_info) <= CCOMM_GATHER_MAX &&
                   sizeof(struct liveness_info) <= CCOMM_GATHER_MAX && sizeof(struct rank_set) <= CCOMM_GATHER_MAX &&
                   sizeof(struct reach_info) <= CCOMM_GATHER_MAX,
               "ranks gather longer records");

static struct rank_config config_of(const struct coll_ccomm *ccomm)
{
    struct rank_config config = {.magic = JOIN_MAGIC,
                                 .version = JOIN_VERSION,
                                 .ranks = (uint32_t)ccomm->ranks,
                                 .order = ccomm->host.settings.ring,
                                 .pairs = ccomm->host.settings.pairs,
                                 .encrypted = ccomm->host.encrypted,
                                 .bytes = ccomm->host.settings.bytes,
                                 .shm = ccomm->host.settings.shm,
                                 .table = ccomm->host.settings.table,
                                 .forced = ccomm->forced};
    snprintf(config.release, sizeof(config.release), "%s", strait_version());
    return config;
}

static bool config_gather(struct coll_ccomm *ccomm)
{
    const struct rank_config config = config_of(ccomm);
    return ccomm_gather(ccomm, &config, sizeof(config));
}

static bool config_compare(struct coll_ccomm *ccomm)
{
    const struct rank_config own = config_of(ccomm);
    struct rank_config *all = ccomm_gathered(ccomm, sizeof(*all));
    char why[64];
    bool same = all != NULL;
    for (int rank = 0; rank < ccomm->ranks && same; rank++) {
        same = memcmp(&all[rank], &own, sizeof(own)) == 0;
        snprintf(why, sizeof(why), "rank %d has another version or other settings", rank);
        if (!same)
            ccomm_stay_raw(ccomm, why);
    }
    free(all);
    return same;
}

/* Another thread may have aborted meanwhile. */
static bool gather_failed(struct coll_ccomm *ccomm)
{
    return ccomm_stay_raw(ccomm, "NCCL has not moved what ranks tell each other");
}

static bool divide(struct coll_ccomm *ccomm)
{
    if (!host_divide(ccomm))
        return false;
    return !ccomm->host.encrypted || !ccomm->shared.multi_host ||
           ccomm_stay_raw(ccomm,
                          "ncclSetEncryption: its ranks are on several hosts, and connections of this library are "
                          "not encrypted");
}

/* What the ranks of a new communicator exchange when all are able: first their versions and settings, then what they
 * need of each other to share memory and to look at each other's processes. */
static const struct exchange {
    bool (*gather)(struct coll_ccomm *), (*take)(struct coll_ccomm *);
} exchanges[] = {
    {config_gather, config_compare}, {keepalive_gather, keepalive_begin}, {host_gather_seen, divide},
    {host_gather, host_open},        {host_gather_opened, host_accept},   {host_gather_accepted, host_settle},
};

/* Calls `step` for all that are able, each with its GPU current; those for which it returns false are not able. */
static void each(struct coll_join_args *joins, unsigned count, bool (*step)(struct coll_ccomm *))
{
    for (unsigned i = 0; i < count; i++) {
        struct coll_ccomm *ccomm = joins[i].candidate;
        int before;
        if (!joins[i].able)
            continue;
        joins[i].able = ccomm->gpu->enter(ccomm->device, &before);
        if (!joins[i].able)
            continue;
        joins[i].able = step(ccomm);
        ccomm->gpu->leave(before);
    }
}

/* How a communicator ends: at once if it was aborted, else when all its operations are over. */

/* Nothing of the communicator runs. */
static void destroy(struct coll_ccomm *ccomm)
{
    const struct gpu_ops *gpu = ccomm->gpu;
    int before;
    if (gpu->enter(ccomm->device, &before)) {
        measure_end(ccomm);
        timings_end(ccomm);
        keepalive_end(ccomm);
        staging_end(&ccomm->stagings, gpu);
        shm_end(ccomm);
        host_end(ccomm);
        gpu->release(ccomm->gathered);
        gpu->release(ccomm->ends);
        gpu->release(ccomm->overflow_counters);
        gpu->release_pinned(ccomm->host_status);
        if (ccomm->last != NULL)
            gpu->event_end(ccomm->last);
        if (ccomm->joined != NULL)
            gpu->event_end(ccomm->joined);
        if (ccomm->stream != NULL)
            gpu->stream_end(ccomm->stream);
        gpu->leave(before);
    }
    pthread_mutex_destroy(&ccomm->lock);
    tally_end(ccomm);
    free(ccomm->issued);
    free(ccomm);
}

void ccomm_abort(struct coll_ccomm *ccomm)
{
    ccomm->aborted = true;
    ccomm_abort_kernels(ccomm);
}

/* Operations may still run. After an abort they end soon, except for work queued behind something else on its stream,
 * which nobody may be made to wait for. */
static bool drain(struct coll_ccomm *ccomm)
{
    enum { LOOK_NS = 100 * 1000, ABORTED_MS = 2000 };
    int before;
    if (!ccomm->gpu->enter(ccomm->device, &before))
        return true;
    const int64_t since_ms = now_ms();
    bool over = ccomm->gpu->event_over(ccomm->last);
    while (!over && (!ccomm->aborted || now_ms() - since_ms < ABORTED_MS)) {
        nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
        over = ccomm->gpu->event_over(ccomm->last);
    }
    ccomm->gpu->leave(before);
    return over;
}

/* The communicator's memory is still in use, and freeing any would wait for that. */
static void keep(struct coll_ccomm *ccomm)
{
    static struct coll_ccomm *kept;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    ccomm->host.log("communicator %p, rank %d of %d: its streams go on: its memory is not freed", (void *)ccomm->comm,
                    ccomm->rank, ccomm->ranks);
    pthread_mutex_lock(&lock);
    ccomm->next = kept;
    kept = ccomm;
    pthread_mutex_unlock(&lock);
}

/* Processes are watched until all is over: other ranks may still have to read what this one has sent them. */
void ccomm_leave(struct coll_ccomm *ccomm)
{
    const bool over = drain(ccomm);
    proxy_leave(ccomm);
    keepalive_leave(ccomm);
    if (over)
        destroy(ccomm);
    else
        keep(ccomm);
}

/* ---- Suspending -------------------------------------------------------------------------------------------------- */

void ccomm_suspend(struct coll_ccomm *ccomm)
{
    int before;
    if (!drain(ccomm) || !ccomm->gpu->enter(ccomm->device, &before))
        return;
    staging_suspend(&ccomm->stagings, ccomm->gpu);
    ccomm->gpu->leave(before);
}

void ccomm_resume(struct coll_ccomm *ccomm)
{
    int before;
    if (!ccomm->gpu->enter(ccomm->device, &before))
        return;
    staging_resume(&ccomm->stagings, ccomm->gpu);
    ccomm->gpu->leave(before);
}

struct coll_memory ccomm_memory(struct coll_ccomm *ccomm)
{
    const size_t ranks = (size_t)ccomm->ranks, classes = ccomm_local_classes(ccomm);
    return (struct coll_memory){.suspendable = staging_bytes(&ccomm->stagings, false),
                                .persistent = staging_bytes(&ccomm->stagings, true) + CCOMM_GATHER_MAX * (ranks + 1) +
                                              ring_ends_size((uint32_t)ccomm->ranks) + shm_gpu_bytes(ccomm) +
                                              classes * sizeof(*ccomm->overflow_counters)};
}

/* ---- Alone ------------------------------------------------------------------------------------------------------- */

static bool allocate(struct coll_ccomm *ccomm)
{
    const struct gpu_ops *gpu = ccomm->gpu;
    const size_t classes = ccomm_local_classes(ccomm), ranks = (size_t)ccomm->ranks;
    ccomm->stream = gpu->stream_make();
    ccomm->gathered = gpu->allocate(CCOMM_GATHER_MAX * (ranks + 1), false);
    ccomm->issued = calloc(classes, sizeof(*ccomm->issued));
    ccomm->host_status = gpu->allocate_pinned(sizeof(*ccomm->host_status));
    ccomm->ends = gpu->allocate(ring_ends_size((uint32_t)ccomm->ranks), true);
    ccomm->overflow_counters = gpu->allocate(classes * sizeof(*ccomm->overflow_counters), true);
    ccomm->last = gpu->event_make(false);
    ccomm->joined = gpu->event_make(false);
    return ccomm->stream != NULL && ccomm->gathered != NULL && ccomm->issued != NULL && ccomm->host_status != NULL &&
           ccomm->ends != NULL && ccomm->overflow_counters != NULL && ccomm->last != NULL && ccomm->joined != NULL &&
           tally_make(ccomm) && gpu->event_record(ccomm->last, ccomm->stream) &&
           staging_get(&ccomm->stagings, gpu, ccomm->stream) != NULL;
}

/* Returns the reason why this rank is not able; NULL: it is. */
static const char *prepare(struct coll_ccomm *ccomm)
{
    const struct gpu_ops *gpu = ccomm->gpu;
    if (ccomm->ranks < 2)
        return "there is no other rank";
    if (ccomm->ranks > COLL_RANKS_MAX)
        return COLL_TOO_MANY_RANKS;
    const char *trouble = gpu->trouble();
    if (trouble != NULL)
        return trouble;
    if ((ccomm->codec = gpu->codec()) == NULL || strait_codec_prepare(ccomm->codec) != STRAIT_OK || !gpu->prepare())
        return "the codec does not run on this GPU";
    if (!allocate(ccomm))
        return "no memory";
    if (!keepalive_prepare(ccomm))
        return "no memory to watch ranks with";
    if (!ccomm->forced && !(measure_prepare(ccomm) && timings_make(ccomm)))
        return "no memory to measure links with";
    if (ccomm->forced)
        codec_rate_assume(ccomm);
    else
        codec_rate_measure(ccomm);
    return NULL;
}

void ccomms_prepare(const struct gpu_ops *gpu, const struct coll_engine_host *host, struct coll_join_args *joins,
                    unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        struct coll_join_args *args = &joins[i];
        struct coll_ccomm *ccomm = args->candidate = calloc(1, sizeof(*ccomm));
        int before;
        args->able = false;
        args->ccomm = NULL;
        args->why[0] = '\0';
        if (ccomm == NULL)
            continue;
        ccomm->host = *host;
        ccomm->gpu = gpu;
        ccomm->comm = args->comm;
        ccomm->rank = args->rank;
        ccomm->ranks = args->ranks;
        ccomm->forced = host->settings.forced;
        ccomm->shared.segment.file = ccomm->shm.segment.file = -1;
        pthread_mutex_init(&ccomm->lock, NULL);
        if (host->nccl->CommCuDevice(args->comm, &ccomm->device) != COLL_SUCCESS || !gpu->enter(ccomm->device, &before))
            continue;
        ccomm->multiprocessors = gpu->multiprocessors();
        const char *why = prepare(ccomm);
        args->able = why == NULL;
        snprintf(args->why, sizeof(args->why), "%s", why != NULL ? why : "");
        gpu->leave(before);
    }
}

/* ---- Together ---------------------------------------------------------------------------------------------------- */

/* Either all ranks of a communicator stay raw, or this one does not know what the others do. */
static void take_failure(struct coll_join_args *args)
{
    struct coll_ccomm *ccomm = args->candidate;
    if (ccomm->probe.raw)
        args->able = ccomm_stay_raw(ccomm, "a rank has failed, or was too late, while links were measured");
    else if (ccomm->probe.bad)
        ccomm_fail(ccomm, COLL_INTERNAL_ERROR, "links could not be measured");
}

static void measure(struct coll_join_args *joins, unsigned count)
{
    struct coll_ccomm **ccomms = calloc(count, sizeof(*ccomms));
    for (unsigned forced = 0; forced < 2 && ccomms != NULL; forced++) {
        unsigned able = 0;
        for (unsigned i = 0; i < count; i++)
            if (joins[i].able && joins[i].candidate->forced == (forced != 0))
                ccomms[able++] = joins[i].candidate;
        if (able > 0)
            (forced != 0 ? channels_make : measure_links)(ccomms, able);
    }
    free(ccomms);
    for (unsigned i = 0; i < count; i++)
        if (joins[i].able)
            take_failure(&joins[i]);
}

/* GB/s */
static double rate_of(double per_byte)
{
    return per_byte > 0 ? 1e-9 / per_byte : 0;
}

/* Writes what was measured, and logs the setting that would have the same effect. */
static void describe(struct coll_ccomm *ccomm, char *text, size_t size)
{
    char linked[40], watched[40], rails[100] = "", shm[60] = "";
    const struct rails *of = &ccomm->shared.rails;
    proxy_describe(ccomm, linked, sizeof(linked));
    keepalive_describe(ccomm, watched, sizeof(watched));
    const double *cost = ccomm->cost.per;
    if (of->each > 0)
        snprintf(rails, sizeof(rails), ", sums by %u rails of %u hosts (%.2f GB/s within one, %.2f by rail)", of->each,
                 of->hosts, rate_of(cost[LINK_LOCAL]), rate_of(cost[LINK_RAIL]));
    if (cost[LINK_SHM] > 0)
        snprintf(shm, sizeof(shm), ", %.2f GB/s through channels in host memory", rate_of(cost[LINK_SHM]));
    snprintf(
        text, size,
        "%.1f us and %.2f GB/s to each other rank (all_to_all %.2f, reduce_scatter %.2f)%s, %.2f GB/s of what does not "
        "fit, codec %.0f and %.0f GB/s%s, %s%s",
        ccomm->cost.start * 1e6, rate_of(cost[LINK_GATHER]), rate_of(cost[LINK_EXCHANGE]), rate_of(cost[LINK_SCATTER]),
        shm, rate_of(ccomm->cost.overflow), rate_of(ccomm->cost.encode), rate_of(ccomm->cost.decode), rails, linked,
        watched);
    if (!ccomm->host.settings.print && ccomm->host.settings.report == NULL)
        return;
    const struct coll_sizes sizes = op_size_table(ccomm);
    coll_sizes_write(&sizes, ccomm->table);
    if (ccomm->host.settings.print)
        ccomm->host.log("communicator %p, rank %d of %d: STRAIT_COLL_TABLE=%s", (void *)ccomm->comm, ccomm->rank,
                        ccomm->ranks, ccomm->table);
}

/* Others need not be told that this rank has gone, as they stay raw like it. Freeing memory would wait for what NCCL
 * moves, which never ends if a rank has gone. */
static void discard(struct coll_ccomm *ccomm)
{
    const bool lost = ccomm_has_failed(ccomm);
    ccomm->aborted |= lost;
    if (lost || ccomm->probe.raw)
        proxy_leave(ccomm);
    keepalive_leave(ccomm);
    if (lost)
        keep(ccomm);
    else
        destroy(ccomm);
}

static void finish(struct coll_join_args *args)
{
    struct coll_ccomm *ccomm = args->candidate;
    int before;
    args->candidate = NULL;
    if (!args->able) {
        if (ccomm != NULL && ccomm_has_failed(ccomm)) /* whatever could not be exchanged for that reason */
            snprintf(args->why, sizeof(args->why), "a rank has ended while the ranks were joining");
        else if (args->why[0] == '\0')
            snprintf(args->why, sizeof(args->why), "the ranks could not agree");
        if (ccomm != NULL)
            discard(ccomm);
        return;
    }
    if (!ccomm_has_failed(ccomm) && ccomm->gpu->enter(ccomm->device, &before)) {
        measure_end(ccomm);
        ccomm->gpu->leave(before);
    }
    ccomm->args = NULL;
    args->ccomm = ccomm;
    describe(ccomm, args->why, sizeof(args->why));
}

/* Called only for communicators whose ranks have all voted that they are able (collective/rendezvous.h), so of each
 * communicator all ranks are able, or none is: they exchange what they need of each other, and measure the links. */
void ccomms_join(const struct coll_engine_host *host, struct coll_join_args *joins, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        struct coll_ccomm *ccomm = joins[i].candidate;
        if (ccomm != NULL) {
            ccomm->args = &joins[i];
            ccomm->host.settings.pairs &= !joins[i].paired;
        }
    }
    for (unsigned i = 0; i < sizeof(exchanges) / sizeof(exchanges[0]); i++) {
        host->nccl->GroupStart();
        each(joins, count, exchanges[i].gather);
        each(joins, count, host->nccl->GroupEnd() == COLL_SUCCESS ? exchanges[i].take : gather_failed);
    }
    measure(joins, count);
    for (unsigned i = 0; i < count; i++)
        finish(&joins[i]);
}
