#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "collective/engine/overflow_tcp.h"
#include "collective/engine/op.h"
#include "collective/engine/hosts.h"
#include "collective/engine/join.h"

#define JOIN_MAGIC   UINT64_C(0x3130654c4c4f4353)
#define JOIN_VERSION 12u

/* Settings that a rank sends to the others; they must be the same on all. */
struct hello {
    uint64_t magic;
    uint32_t version, ranks;
    uint32_t order, forced, pairs, reserved;
    struct coll_sizes table;
    char release[32];
};

/* ---- Version and settings ---------------------------------------------------------------------------------------- */

static struct hello hello_of(const struct joining *joining)
{
    struct hello hello = {.magic = JOIN_MAGIC,
                          .version = JOIN_VERSION,
                          .ranks = (uint32_t)joining->ccomm->ranks,
                          .order = joining->ccomm->host.settings.ring,
                          .pairs = joining->ccomm->host.settings.pairs,
                          .table = joining->ccomm->host.settings.table,
                          .forced = joining->ccomm->forced};
    snprintf(hello.release, sizeof(hello.release), "%s", strait_version());
    return hello;
}

static bool tell(struct joining *joining)
{
    const struct coll_ccomm *ccomm = joining->ccomm;
    const struct hello hello = hello_of(joining);
    struct hello *own = joining->told + ccomm->ranks;
    return ccomm->gpu->copy(own, &hello, sizeof(hello), ccomm->stream) &&
           ccomm->host.nccl->AllGather(own, joining->told, sizeof(hello), COLL_UINT8, ccomm->comm, ccomm->stream) ==
               COLL_SUCCESS;
}

static bool agree(struct joining *joining)
{
    struct coll_ccomm *ccomm = joining->ccomm;
    const struct hello mine = hello_of(joining);
    struct hello *all = calloc((size_t)ccomm->ranks, sizeof(*all));
    bool same = all != NULL &&
                ccomm->gpu->copy(all, joining->told, sizeof(*all) * (size_t)ccomm->ranks, ccomm->stream) &&
                ccomm->gpu->stream_wait(ccomm->stream);
    for (int rank = 0; rank < ccomm->ranks && same; rank++) {
        same = memcmp(&all[rank], &mine, sizeof(mine)) == 0;
        if (!same)
            snprintf(joining->what->why, sizeof(joining->what->why), "rank %d has another version or other settings",
                     rank);
    }
    free(all);
    return same;
}

/* ---- Of the parts of a communicator
 * ------------------------------------------------------------------------------------ */

static bool tell_seen(struct joining *joining)
{
    return host_gather_seen(joining->ccomm);
}

static bool form_groups(struct joining *joining)
{
    return host_divide(joining->ccomm);
}

static bool tell_share(struct joining *joining)
{
    return host_gather(joining->ccomm);
}

static bool open_share(struct joining *joining)
{
    return host_open(joining->ccomm);
}

static bool tell_opened(struct joining *joining)
{
    return host_gather_opened(joining->ccomm);
}

static bool accept_share(struct joining *joining)
{
    const bool shared = host_accept(joining->ccomm);
    if (!shared)
        snprintf(joining->what->why, sizeof(joining->what->why),
                 "not all ranks reach the memory of their host, or those of others by TCP");
    return shared;
}

static bool tell_accepted(struct joining *joining)
{
    return host_gather_accepted(joining->ccomm);
}

static bool settle_share(struct joining *joining)
{
    const bool settled = host_settle(joining->ccomm);
    if (!settled)
        snprintf(joining->what->why, sizeof(joining->what->why), "not all ranks on other hosts could connect");
    return settled;
}

static bool tell_watch(struct joining *joining)
{
    return keepalive_gather(joining->ccomm);
}

static bool begin_watch(struct joining *joining)
{
    return keepalive_begin(joining->ccomm);
}

/* ---- All of it --------------------------------------------------------------------------------------------------- */

void joining_each(struct joining *joinings, unsigned count, bool (*what)(struct joining *))
{
    for (unsigned i = 0; i < count; i++) {
        struct coll_ccomm *ccomm = joinings[i].ccomm;
        int before;
        if (!joinings[i].able)
            continue;
        joinings[i].able = ccomm->gpu->enter(ccomm->device, &before);
        if (!joinings[i].able)
            continue;
        joinings[i].able = what(&joinings[i]);
        ccomm->gpu->leave(before);
    }
}

/* Another thread may have aborted meanwhile. */
static bool lose(struct joining *joining)
{
    snprintf(joining->what->why, sizeof(joining->what->why), "NCCL has not moved what ranks tell each other");
    return false;
}

/* `say` is what all tell each other, `hear` what each makes of it. */
static void together(struct joining *joinings, unsigned count, const struct coll_table *nccl,
                     bool (*say)(struct joining *), bool (*hear)(struct joining *))
{
    nccl->GroupStart();
    joining_each(joinings, count, say);
    joining_each(joinings, count, nccl->GroupEnd() == COLL_SUCCESS ? hear : lose);
}

void exchange_configs(struct joining *joinings, unsigned count, const struct coll_table *nccl)
{
    together(joinings, count, nccl, tell, agree);
    together(joinings, count, nccl, tell_watch, begin_watch);
    together(joinings, count, nccl, tell_seen, form_groups);
    together(joinings, count, nccl, tell_share, open_share);
    together(joinings, count, nccl, tell_opened, accept_share);
    together(joinings, count, nccl, tell_accepted, settle_share);
}

/* How a communicator ends: at once if it was aborted, else when all its operations are over. */

void ccomm_destroy(struct coll_ccomm *ccomm)
{
    const struct gpu_ops *gpu = ccomm->gpu;
    int before;
    if (gpu->enter(ccomm->device, &before)) {
        measure_end(ccomm);
        keepalive_end(ccomm);
        staging_end(&ccomm->stagings, gpu);
        host_end(ccomm);
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
    free(ccomm->issued);
    free(ccomm);
}

void ccomm_abort(struct coll_ccomm *ccomm)
{
    ccomm->aborted = true;
    ccomm_abort_kernels(ccomm);
}

static bool is_over(const struct coll_ccomm *ccomm)
{
    return ccomm->gpu->event_over(ccomm->last);
}

/* Operations may still run. After an abort they end soon, except for work queued behind something else on its stream,
 * which nobody may be made to wait for. */
static bool drain(struct coll_ccomm *ccomm)
{
    enum { LOOK_NS = 100 * 1000, LOOKS_MAX = 10000 };
    int before;
    bool over = false;
    if (!ccomm->gpu->enter(ccomm->device, &before))
        return true;
    for (int i = 0; !over && (!ccomm->aborted || i < LOOKS_MAX); i++) {
        if (i > 0)
            nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
        over = is_over(ccomm);
    }
    ccomm->gpu->leave(before);
    return over;
}

/* The communicator's memory is still in use, and freeing any would wait for that. */
static void keep(struct coll_ccomm *ccomm)
{
    static struct coll_ccomm *kept;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    ccomm->host.log("communicator %p, rank %d of %d: aborted, but its streams go on: its memory is not freed",
                    (void *)ccomm->comm, ccomm->rank, ccomm->ranks);
    pthread_mutex_lock(&lock);
    ccomm->next = kept;
    kept = ccomm;
    pthread_mutex_unlock(&lock);
}

/* Processes are watched until all is over: other ranks may still have to read what this one has sent them. */
void ccomm_leave(struct coll_ccomm *ccomm)
{
    const bool over = drain(ccomm);
    overflow_tcp_leave(ccomm);
    keepalive_leave(ccomm);
    if (over)
        ccomm_destroy(ccomm);
    else
        keep(ccomm);
}

/* Joining is called only for communicators whose ranks have all voted that they are able (collective/rendezvous.h):
 * they exchange their configurations, share memory on each host, and measure the links. */

/* Kept until all ranks have said that they are able. */
struct coll_join_scratch {
    struct joining joining;
};

/* ---- Alone ------------------------------------------------------------------------------------------------------- */

static bool make_own(struct coll_ccomm *ccomm)
{
    const struct gpu_ops *gpu = ccomm->gpu;
    const size_t keys = ccomm_local_classes(ccomm);
    ccomm->issued = calloc(keys, sizeof(*ccomm->issued));
    ccomm->host_status = gpu->allocate_pinned(sizeof(*ccomm->host_status));
    ccomm->ends = gpu->allocate(ring_ends_size((uint32_t)ccomm->ranks), true);
    ccomm->overflow_counters = gpu->allocate(keys * sizeof(*ccomm->overflow_counters), true);
    ccomm->last = gpu->event_make(false);
    ccomm->joined = gpu->event_make(false);
    return ccomm->issued != NULL && ccomm->host_status != NULL && ccomm->ends != NULL &&
           ccomm->overflow_counters != NULL && ccomm->last != NULL && ccomm->joined != NULL &&
           gpu->event_record(ccomm->last, ccomm->stream) && staging_get(&ccomm->stagings, gpu, ccomm->stream) != NULL;
}

static const char *why_not(struct joining *joining)
{
    struct coll_ccomm *ccomm = joining->ccomm;
    const struct gpu_ops *gpu = ccomm->gpu;
    const size_t ranks = (size_t)ccomm->ranks;
    if (ccomm->ranks < 2)
        return "there is no other rank";
    if (ccomm->ranks > COLL_REDUCE_SOURCES_MAX)
        return "more ranks than sums are made of";
    const char *trouble = gpu->trouble();
    if (trouble != NULL)
        return trouble;
    if ((ccomm->codec = gpu->codec()) == NULL || strait_codec_prepare(ccomm->codec) != STRAIT_OK || !gpu->prepare())
        return "the codec does not run on this GPU";
    ccomm->stream = gpu->stream_make();
    joining->told = gpu->allocate(sizeof(*joining->told) * (ranks + 1), false);
    if (ccomm->stream == NULL || joining->told == NULL || !make_own(ccomm))
        return "no memory";
    if (!host_prepare(ccomm))
        return "no memory that ranks could share";
    if (!keepalive_prepare(ccomm))
        return "no memory to watch ranks with";
    if (!ccomm->forced && !measure_prepare(ccomm))
        return "no memory to measure links with";
    return NULL;
}

static void begin(struct joining *joining, const struct gpu_ops *gpu, const struct coll_engine_host *host)
{
    struct coll_join_args *what = joining->what;
    struct coll_ccomm *ccomm = joining->ccomm = calloc(1, sizeof(*ccomm));
    int before;
    if (ccomm == NULL)
        return;
    ccomm->host = *host;
    ccomm->gpu = gpu;
    ccomm->comm = what->comm;
    ccomm->rank = what->rank;
    ccomm->ranks = what->ranks;
    ccomm->forced = host->settings.forced;
    ccomm->shared.segment.file = -1;
    pthread_mutex_init(&ccomm->lock, NULL);
    if (host->nccl->CommCuDevice(what->comm, &ccomm->device) != COLL_SUCCESS || !gpu->enter(ccomm->device, &before))
        return;
    ccomm->multiprocessors = gpu->multiprocessors();
    const char *why = why_not(joining);
    joining->able = why == NULL;
    snprintf(what->why, sizeof(what->why), "%s", why != NULL ? why : "");
    gpu->leave(before);
}

/* ---- Together ---------------------------------------------------------------------------------------------------- */

static void measure(struct joining *joinings, unsigned count)
{
    struct coll_ccomm **ccomms = calloc(count, sizeof(*ccomms));
    unsigned able = 0;
    for (unsigned i = 0; i < count && ccomms != NULL; i++)
        if (joinings[i].able && !joinings[i].ccomm->forced)
            ccomms[able++] = joinings[i].ccomm;
    if (able > 0 && !measure_links(ccomms, able))
        for (unsigned i = 0; i < able; i++)
            ccomm_fail(ccomms[i], COLL_INTERNAL_ERROR, "links could not be measured");
    free(ccomms);
}

/* GB/s */
static double rate_of(double per_byte)
{
    return per_byte > 0 ? 1e-9 / per_byte : 0;
}

/* As a setting that would have the same effect. */
static void tell_table(struct coll_ccomm *ccomm)
{
    char text[COLL_SIZES_TEXT];
    if (!ccomm->host.settings.print)
        return;
    const struct coll_sizes sizes = op_size_table(ccomm);
    coll_sizes_write(&sizes, text);
    ccomm->host.log("communicator %p, rank %d of %d: STRAIT_COLL_TABLE=%s", (void *)ccomm->comm, ccomm->rank,
                    ccomm->ranks, text);
}

static void finish(struct joining *joining)
{
    struct coll_ccomm *ccomm = joining->ccomm;
    struct coll_join_args *what = joining->what;
    int before;
    if (ccomm != NULL && ccomm->gpu->enter(ccomm->device, &before)) {
        ccomm->gpu->release(joining->told);
        measure_end(ccomm);
        ccomm->gpu->leave(before);
    }
    if (!joining->able) {
        if (what->why[0] == '\0')
            snprintf(what->why, sizeof(what->why), "the ranks could not agree");
        if (ccomm != NULL)
            ccomm_destroy(ccomm);
        return;
    }
    what->ccomm = ccomm;
    char linked[40], watched[40];
    overflow_tcp_describe(ccomm, linked, sizeof(linked));
    keepalive_describe(ccomm, watched, sizeof(watched));
    const double *cost = ccomm->cost.per;
    snprintf(
        what->why, sizeof(what->why),
        "%.1f us and %.2f GB/s to each other rank (all_to_all %.2f, reduce_scatter %.2f), %.2f GB/s of what does not "
        "fit, %s%s",
        ccomm->cost.start * 1e6, rate_of(cost[LINK_GATHER]), rate_of(cost[LINK_EXCHANGE]), rate_of(cost[LINK_SCATTER]),
        rate_of(ccomm->cost.overflow), linked, watched);
    tell_table(ccomm);
}

void ccomms_prepare(const struct gpu_ops *gpu, const struct coll_engine_host *host, struct coll_join_args *joinings,
                    unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        struct coll_join_args *what = &joinings[i];
        what->able = false;
        what->ccomm = NULL;
        what->why[0] = '\0';
        what->candidate = calloc(1, sizeof(*what->candidate));
        if (what->candidate == NULL)
            continue;
        what->candidate->joining.what = what;
        begin(&what->candidate->joining, gpu, host);
        what->able = what->candidate->joining.able;
    }
}

/* From here on they are in one array. */
static struct joining *gather_candidates(struct coll_join_args *joinings, unsigned count)
{
    struct joining *all = calloc(count, sizeof(*all));
    for (unsigned i = 0; i < count && all != NULL; i++) {
        struct coll_join_args *what = &joinings[i];
        if (what->candidate != NULL)
            all[i] = what->candidate->joining;
        free(what->candidate);
        what->candidate = NULL;
        all[i].what = what;
        all[i].able = what->able;
        if (all[i].ccomm != NULL && what->paired)
            all[i].ccomm->host.settings.pairs = false;
    }
    return all;
}

void ccomms_join(const struct coll_engine_host *host, struct coll_join_args *joinings, unsigned count)
{
    struct joining *all = gather_candidates(joinings, count);
    if (all == NULL)
        return;
    exchange_configs(all, count, host->nccl);
    measure(all, count);
    for (unsigned i = 0; i < count; i++)
        finish(&all[i]);
    free(all);
}
