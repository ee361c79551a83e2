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

/* What a rank tells the others; must be the same on all. */
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
                          .ranks = (uint32_t)joining->member->ranks,
                          .order = joining->member->host.settings.ring,
                          .pairs = joining->member->host.settings.pairs,
                          .table = joining->member->host.settings.table,
                          .forced = joining->member->forced};
    snprintf(hello.release, sizeof(hello.release), "%s", strait_version());
    return hello;
}

static bool tell(struct joining *joining)
{
    const struct coll_ccomm *member = joining->member;
    const struct hello hello = hello_of(joining);
    struct hello *own = joining->told + member->ranks;
    return member->gpu->copy(own, &hello, sizeof(hello), member->stream) &&
           member->host.nccl->AllGather(own, joining->told, sizeof(hello), COLL_UINT8, member->comm, member->stream) ==
               COLL_SUCCESS;
}

static bool agree(struct joining *joining)
{
    struct coll_ccomm *member = joining->member;
    const struct hello mine = hello_of(joining);
    struct hello *all = calloc((size_t)member->ranks, sizeof(*all));
    bool same = all != NULL &&
                member->gpu->copy(all, joining->told, sizeof(*all) * (size_t)member->ranks, member->stream) &&
                member->gpu->stream_wait(member->stream);
    for (int rank = 0; rank < member->ranks && same; rank++) {
        same = memcmp(&all[rank], &mine, sizeof(mine)) == 0;
        if (!same)
            snprintf(joining->what->why, sizeof(joining->what->why), "rank %d has another version or other settings",
                     rank);
    }
    free(all);
    return same;
}

/* ---- Of the parts of a member ------------------------------------------------------------------------------------ */

static bool tell_seen(struct joining *joining)
{
    return host_gather_seen(joining->member);
}

static bool form_groups(struct joining *joining)
{
    return host_divide(joining->member);
}

static bool tell_share(struct joining *joining)
{
    return host_gather(joining->member);
}

static bool open_share(struct joining *joining)
{
    return host_open(joining->member);
}

static bool tell_opened(struct joining *joining)
{
    return host_gather_opened(joining->member);
}

static bool accept_share(struct joining *joining)
{
    const bool shared = host_accept(joining->member);
    if (!shared)
        snprintf(joining->what->why, sizeof(joining->what->why),
                 "not all ranks reach the memory of their host, or those of others by TCP");
    return shared;
}

static bool tell_accepted(struct joining *joining)
{
    return host_gather_accepted(joining->member);
}

static bool settle_share(struct joining *joining)
{
    const bool settled = host_settle(joining->member);
    if (!settled)
        snprintf(joining->what->why, sizeof(joining->what->why), "not all ranks on other hosts could connect");
    return settled;
}

static bool tell_watch(struct joining *joining)
{
    return watch_gather(joining->member);
}

static bool begin_watch(struct joining *joining)
{
    return watch_begin(joining->member);
}

/* ---- All of it --------------------------------------------------------------------------------------------------- */

void joining_each(struct joining *joinings, unsigned count, bool (*what)(struct joining *))
{
    for (unsigned i = 0; i < count; i++) {
        struct coll_ccomm *member = joinings[i].member;
        int before;
        if (!joinings[i].able)
            continue;
        joinings[i].able = member->gpu->enter(member->device, &before);
        if (!joinings[i].able)
            continue;
        joinings[i].able = what(&joinings[i]);
        member->gpu->leave(before);
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

void ccomm_destroy(struct coll_ccomm *member)
{
    const struct gpu_ops *gpu = member->gpu;
    int before;
    if (gpu->enter(member->device, &before)) {
        measure_end(member);
        watch_end(member);
        staging_end(&member->stagings, gpu);
        host_end(member);
        gpu->release(member->ends);
        gpu->release(member->overflow_counters);
        gpu->release_pinned(member->host_status);
        if (member->last != NULL)
            gpu->event_end(member->last);
        if (member->tie != NULL)
            gpu->event_end(member->tie);
        if (member->stream != NULL)
            gpu->stream_end(member->stream);
        gpu->leave(before);
    }
    pthread_mutex_destroy(&member->lock);
    free(member->issued);
    free(member);
}

void ccomm_abort(struct coll_ccomm *member)
{
    member->aborted = true;
    ccomm_abort_kernels(member);
}

static bool is_over(const struct coll_ccomm *member)
{
    return member->gpu->event_over(member->last);
}

/* Operations may still run. After an abort they end soon, except for work queued behind something else on its stream,
 * which nobody may be made to wait for. */
static bool drain(struct coll_ccomm *member)
{
    enum { LOOK_NS = 100 * 1000, LOOKS_MAX = 10000 };
    int before;
    bool over = false;
    if (!member->gpu->enter(member->device, &before))
        return true;
    for (int i = 0; !over && (!member->aborted || i < LOOKS_MAX); i++) {
        if (i > 0)
            nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
        over = is_over(member);
    }
    member->gpu->leave(before);
    return over;
}

/* The member's memory is still in use, and freeing any would wait for that. */
static void keep(struct coll_ccomm *member)
{
    static struct coll_ccomm *kept;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    member->host.say("communicator %p, rank %d of %d: aborted, but its streams go on: its memory is not freed",
                     (void *)member->comm, member->rank, member->ranks);
    pthread_mutex_lock(&lock);
    member->next = kept;
    kept = member;
    pthread_mutex_unlock(&lock);
}

/* Processes are watched until all is over: other ranks may still have to read what this one has sent them. */
void ccomm_leave(struct coll_ccomm *member)
{
    const bool over = drain(member);
    overflow_tcp_leave(member);
    watch_leave(member);
    if (over)
        ccomm_destroy(member);
    else
        keep(member);
}

/* Joining is called only for communicators whose ranks have all voted that they are able (collective/rendezvous.h):
 * they exchange their configurations, share memory on each host, and measure the links. */

/* Kept until all ranks have said that they are able. */
struct coll_join_scratch {
    struct joining joining;
};

/* ---- Alone ------------------------------------------------------------------------------------------------------- */

static bool make_own(struct coll_ccomm *member)
{
    const struct gpu_ops *gpu = member->gpu;
    const size_t keys = ccomm_key_count(member);
    member->issued = calloc(keys, sizeof(*member->issued));
    member->host_status = gpu->allocate_pinned(sizeof(*member->host_status));
    member->ends = gpu->allocate(ring_ends_size((uint32_t)member->ranks), true);
    member->overflow_counters = gpu->allocate(keys * sizeof(*member->overflow_counters), true);
    member->last = gpu->event_make(false);
    member->tie = gpu->event_make(false);
    return member->issued != NULL && member->host_status != NULL && member->ends != NULL &&
           member->overflow_counters != NULL && member->last != NULL && member->tie != NULL &&
           gpu->event_record(member->last, member->stream) &&
           staging_get(&member->stagings, gpu, member->stream) != NULL;
}

static const char *why_not(struct joining *joining)
{
    struct coll_ccomm *member = joining->member;
    const struct gpu_ops *gpu = member->gpu;
    const size_t ranks = (size_t)member->ranks;
    if (member->ranks < 2)
        return "there is no other rank";
    if (member->ranks > COLL_REDUCE_SOURCES_MAX)
        return "more ranks than sums are made of";
    const char *trouble = gpu->trouble();
    if (trouble != NULL)
        return trouble;
    if ((member->codec = gpu->codec()) == NULL || strait_codec_prepare(member->codec) != STRAIT_OK || !gpu->prepare())
        return "the codec does not run on this GPU";
    member->stream = gpu->stream_make();
    joining->told = gpu->allocate(sizeof(*joining->told) * (ranks + 1), false);
    if (member->stream == NULL || joining->told == NULL || !make_own(member))
        return "no memory";
    if (!host_prepare(member))
        return "no memory that ranks could share";
    if (!watch_prepare(member))
        return "no memory to watch ranks with";
    if (!member->forced && !measure_prepare(member))
        return "no memory to measure links with";
    return NULL;
}

static void begin(struct joining *joining, const struct gpu_ops *gpu, const struct coll_engine_host *host)
{
    struct coll_join_args *what = joining->what;
    struct coll_ccomm *member = joining->member = calloc(1, sizeof(*member));
    int before;
    if (member == NULL)
        return;
    member->host = *host;
    member->gpu = gpu;
    member->comm = what->comm;
    member->rank = what->rank;
    member->ranks = what->ranks;
    member->forced = host->settings.forced;
    member->share.segment.file = -1;
    pthread_mutex_init(&member->lock, NULL);
    if (host->nccl->CommCuDevice(what->comm, &member->device) != COLL_SUCCESS || !gpu->enter(member->device, &before))
        return;
    member->multiprocessors = gpu->multiprocessors();
    const char *why = why_not(joining);
    joining->able = why == NULL;
    snprintf(what->why, sizeof(what->why), "%s", why != NULL ? why : "");
    gpu->leave(before);
}

/* ---- Together ---------------------------------------------------------------------------------------------------- */

static void measure(struct joining *joinings, unsigned count)
{
    struct coll_ccomm **members = calloc(count, sizeof(*members));
    unsigned able = 0;
    for (unsigned i = 0; i < count && members != NULL; i++)
        if (joinings[i].able && !joinings[i].member->forced)
            members[able++] = joinings[i].member;
    if (able > 0 && !measure_links(members, able))
        for (unsigned i = 0; i < able; i++)
            ccomm_fail(members[i], COLL_INTERNAL_ERROR, "links could not be measured");
    free(members);
}

/* GB/s */
static double rate_of(double per_byte)
{
    return per_byte > 0 ? 1e-9 / per_byte : 0;
}

/* As a setting that would have the same effect. */
static void tell_table(struct coll_ccomm *member)
{
    char text[COLL_SIZES_TEXT];
    if (!member->host.settings.print)
        return;
    const struct coll_sizes sizes = op_size_table(member);
    coll_sizes_write(&sizes, text);
    member->host.say("communicator %p, rank %d of %d: STRAIT_COLL_TABLE=%s", (void *)member->comm, member->rank,
                     member->ranks, text);
}

static void finish(struct joining *joining)
{
    struct coll_ccomm *member = joining->member;
    struct coll_join_args *what = joining->what;
    int before;
    if (member != NULL && member->gpu->enter(member->device, &before)) {
        member->gpu->release(joining->told);
        measure_end(member);
        member->gpu->leave(before);
    }
    if (!joining->able) {
        if (what->why[0] == '\0')
            snprintf(what->why, sizeof(what->why), "the ranks could not agree");
        if (member != NULL)
            ccomm_destroy(member);
        return;
    }
    what->member = member;
    char linked[40], watched[40];
    overflow_tcp_describe(member, linked, sizeof(linked));
    watch_describe(member, watched, sizeof(watched));
    const double *cost = member->cost.per;
    snprintf(
        what->why, sizeof(what->why),
        "%.1f us and %.2f GB/s to each other rank (all_to_all %.2f, reduce_scatter %.2f), %.2f GB/s of what does not "
        "fit, %s%s",
        member->cost.start * 1e6, rate_of(cost[LINK_GATHER]), rate_of(cost[LINK_EXCHANGE]), rate_of(cost[LINK_SCATTER]),
        rate_of(member->cost.repair), linked, watched);
    tell_table(member);
}

void ccomms_prepare(const struct gpu_ops *gpu, const struct coll_engine_host *host, struct coll_join_args *joinings,
                    unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        struct coll_join_args *what = &joinings[i];
        what->able = false;
        what->member = NULL;
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
        if (all[i].member != NULL && what->paired)
            all[i].member->host.settings.pairs = false;
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
