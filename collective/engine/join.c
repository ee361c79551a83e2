/* Whether all ranks are able is agreed on first, where they meet (collective/meeting.h), or else by a split. A split
 * needs nothing of a GPU, so even a rank without memory can say that it is not able: it is left out, and the others see
 * that they are fewer. All ranks can do everything that comes afterwards: tell each other what they have to (tell.h),
 * reach each other's memory, and measure links. */
#include "collective/engine/join.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collective/engine/decide.h"
#include "collective/engine/link.h"
#include "collective/engine/peer.h"
#include "collective/engine/tell.h"
#include "collective/engine/watch.h"

#define LEFT_OUT (-1) /* NCCL_SPLIT_NOCOLOR */

/* Kept until all ranks have said that they are able. */
struct coll_candidate {
    struct joining joining;
};

/* ---- Alone ------------------------------------------------------------------------------------------------------- */

static bool make_own(struct coll_member *member)
{
    const struct gpu_ops *gpu = member->gpu;
    const size_t keys = member_keys(member);
    member->issued = calloc(keys, sizeof(*member->issued));
    member->mail = gpu->allocate_pinned(sizeof(*member->mail));
    member->ends = gpu->allocate(ring_ends_size((uint32_t)member->ranks), true);
    member->tallies = gpu->allocate(keys * sizeof(*member->tallies), true);
    member->last = gpu->event_make(false);
    member->tie = gpu->event_make(false);
    return member->issued != NULL && member->mail != NULL && member->ends != NULL && member->tallies != NULL &&
           member->last != NULL && member->tie != NULL && gpu->event_record(member->last, member->stream) &&
           staging_get(&member->stagings, gpu, member->stream) != NULL;
}

static const char *why_not(struct joining *joining)
{
    struct coll_member *member = joining->member;
    const struct gpu_ops *gpu = member->gpu;
    const size_t ranks = (size_t)member->ranks;
    if (member->ranks < 2)
        return "there is no other rank";
    if (member->ranks > COLL_REDUCE_SOURCES_MAX)
        return "more ranks than sums are made of";
    if (member->host.settings.meet == COLL_MEET_NCCL && member->host.nccl->CommSplit == NULL)
        return "this NCCL is too old";
    const char *trouble = gpu->trouble();
    if (trouble != NULL)
        return trouble;
    if ((member->codec = gpu->codec()) == NULL || strait_codec_prepare(member->codec) != STRAIT_OK || !gpu->prepare())
        return "the codec does not run on this GPU";
    member->stream = gpu->stream_make();
    joining->told = gpu->allocate(tell_bytes() * (ranks + 1), false);
    if (member->stream == NULL || joining->told == NULL || !make_own(member))
        return "no memory";
    if (!share_prepare(member))
        return "no memory that ranks could share";
    if (!watch_prepare(member))
        return "no memory to watch ranks with";
    if (!member->forced && !measure_prepare(member))
        return "no memory to measure links with";
    return NULL;
}

static void begin(struct joining *joining, const struct gpu_ops *gpu, const struct coll_engine_host *host)
{
    struct coll_joining *what = joining->what;
    struct coll_member *member = joining->member = calloc(1, sizeof(*member));
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

/* Those that are able get a communicator, which serves no other purpose. */
static void split(struct joining *joinings, unsigned count, const struct coll_table *nccl)
{
    nccl->GroupStart();
    for (unsigned i = 0; i < count; i++) {
        struct joining *joining = &joinings[i];
        const struct coll_joining *what = joining->what;
        static _Thread_local coll_comm none;
        coll_comm *made = joining->able ? &joining->voted : &none;
        const coll_result result = nccl->CommSplit(what->comm, joining->able ? 0 : LEFT_OUT, what->rank, made, NULL);
        joining->able &= result == COLL_SUCCESS;
    }
    nccl->GroupEnd();
}

static bool is_whole(struct joining *joining)
{
    const struct coll_member *member = joining->member;
    int ranks = 0;
    const bool whole = joining->voted != NULL && member->host.nccl->CommCount(joining->voted, &ranks) == COLL_SUCCESS &&
                       ranks == member->ranks;
    if (!whole)
        snprintf(joining->what->why, sizeof(joining->what->why), "%d of the ranks are not able", member->ranks - ranks);
    return whole;
}

/* The vote is over. */
static void forget_votes(struct joining *joinings, unsigned count, const struct coll_table *nccl)
{
    for (unsigned i = 0; i < count; i++)
        if (joinings[i].voted != NULL)
            (void)nccl->CommDestroy(joinings[i].voted);
}

static void vote(struct joining *joinings, unsigned count, const struct coll_table *nccl)
{
    if (nccl->CommSplit == NULL)
        return;
    split(joinings, count, nccl);
    joining_each(joinings, count, is_whole);
    forget_votes(joinings, count, nccl);
}

static void reach(struct joining *joinings, unsigned count)
{
    struct coll_member **members = calloc(count, sizeof(*members));
    void **told = calloc(count, sizeof(*told));
    unsigned able = 0;
    for (unsigned i = 0; i < count && members != NULL && told != NULL; i++) {
        if (!joinings[i].able || joinings[i].member->host.settings.wire == COLL_WIRE_NCCL)
            continue;
        told[able] = joinings[i].told;
        members[able++] = joinings[i].member;
    }
    if (able > 0)
        peer_join(members, told, able);
    free(members);
    free(told);
}

static void measure(struct joining *joinings, unsigned count)
{
    struct coll_member **members = calloc(count, sizeof(*members));
    unsigned able = 0;
    for (unsigned i = 0; i < count && members != NULL; i++)
        if (joinings[i].able && !joinings[i].member->forced)
            members[able++] = joinings[i].member;
    if (able > 0 && !measure_links(members, able))
        for (unsigned i = 0; i < able; i++)
            member_fail(members[i], COLL_INTERNAL_ERROR, "links could not be measured");
    free(members);
}

/* GB/s */
static double rate_of(double per_byte)
{
    return per_byte > 0 ? 1e-9 / per_byte : 0;
}

/* As a setting that would have the same effect. */
static void tell_table(struct coll_member *member)
{
    char text[COLL_SIZES_TEXT];
    if (!member->host.settings.print)
        return;
    const struct coll_sizes sizes = member_table(member);
    coll_sizes_write(&sizes, text);
    member->host.say("communicator %p, rank %d of %d: STRAIT_COLL_TABLE=%s", (void *)member->comm, member->rank,
                     member->ranks, text);
}

static void finish(struct joining *joining)
{
    struct coll_member *member = joining->member;
    struct coll_joining *what = joining->what;
    int before;
    if (member != NULL && member->gpu->enter(member->device, &before)) {
        member->gpu->release(joining->told);
        measure_end(member);
        if (joining->able && member->peer != NULL)
            (void)peer_lane_of(member, member->stream); /* if it cannot be had, the first call tries again */
        member->gpu->leave(before);
    }
    if (!joining->able) {
        if (what->why[0] == '\0')
            snprintf(what->why, sizeof(what->why), "the ranks could not agree");
        if (member != NULL)
            member_destroy(member);
        return;
    }
    what->member = member;
    char linked[40], watched[40], peer[160];
    link_describe(member, linked, sizeof(linked));
    watch_describe(member, watched, sizeof(watched));
    peer_describe(member, peer, sizeof(peer));
    const double *cost = member->cost.per;
    snprintf(
        what->why, sizeof(what->why),
        "%.1f us and %.2f GB/s to each other rank (all_to_all %.2f, reduce_scatter %.2f), %.2f GB/s of what does not "
        "fit, %s%s%s",
        member->cost.start * 1e6, rate_of(cost[LINK_GATHER]), rate_of(cost[LINK_EXCHANGE]), rate_of(cost[LINK_SCATTER]),
        rate_of(member->cost.repair), linked, watched, peer);
    tell_table(member);
}

void members_prepare(const struct gpu_ops *gpu, const struct coll_engine_host *host, struct coll_joining *joinings,
                     unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        struct coll_joining *what = &joinings[i];
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
static struct joining *gather_candidates(struct coll_joining *joinings, unsigned count)
{
    struct joining *all = calloc(count, sizeof(*all));
    for (unsigned i = 0; i < count && all != NULL; i++) {
        struct coll_joining *what = &joinings[i];
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

void members_join(const struct coll_engine_host *host, struct coll_joining *joinings, unsigned count, bool voted)
{
    struct joining *all = gather_candidates(joinings, count);
    if (all == NULL)
        return;
    if (!voted)
        vote(all, count, host->nccl);
    /* From here on all ranks of a communicator are able, or none is. */
    tell_all(all, count, host->nccl);
    reach(all, count);
    measure(all, count);
    for (unsigned i = 0; i < count; i++)
        finish(&all[i]);
    free(all);
}
