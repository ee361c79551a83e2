/* Ranks tell each other what they are before anything is compressed: one difference, and all of them stay raw. Every rank
 * takes part in every exchange, able or not, as the others cannot know. */
#include "collective/engine/join.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOIN_MAGIC   UINT64_C(0x3130654c4c4f4353)
#define JOIN_VERSION 1u

/* What a rank tells the others, and has to be the same on all. */
struct hello {
    uint64_t magic;
    uint32_t version, able;
    uint32_t ranks, order, forced, reserved;
    char release[32];
};

struct joining {
    struct coll_joining *what;
    struct coll_member *member; /* NULL: no memory even for that */
    struct hello *told;         /* in the GPU's memory: of all ranks, then of this one */
    bool able;
};

/* ---- Alone ------------------------------------------------------------------------------------------------------- */

static void destroy(struct coll_member *member)
{
    const struct gpu_ops *gpu = member->gpu;
    int before;
    if (gpu->enter(member->device, &before)) {
        staging_end(&member->stagings, gpu);
        gpu->release(member->counters);
        if (member->stream != NULL)
            gpu->stream_end(member->stream);
        gpu->leave(before);
    }
    pthread_mutex_destroy(&member->lock);
    pthread_cond_destroy(&member->told);
    free(member->levels);
    free(member);
}

static bool prepare(struct joining *joining)
{
    struct coll_member *member = joining->member;
    const struct gpu_ops *gpu = member->gpu;
    if (member->ranks > COLL_REDUCE_SOURCES_MAX) {
        snprintf(joining->what->why, sizeof(joining->what->why), "more than %d ranks", COLL_REDUCE_SOURCES_MAX);
        return false;
    }
    const char *trouble = gpu->trouble();
    if (trouble != NULL) {
        snprintf(joining->what->why, sizeof(joining->what->why), "%s", trouble);
        return false;
    }
    member->codec = gpu->codec();
    member->levels = calloc(member_keys(member), sizeof(*member->levels));
    member->counters = gpu->allocate(sizeof(uint64_t) * JOBS_MAX * (size_t)member->ranks, false);
    const bool coded = member->codec != NULL && strait_codec_prepare(member->codec) == STRAIT_OK && gpu->prepare();
    if (coded && member->levels != NULL && member->counters != NULL)
        return true;
    snprintf(joining->what->why, sizeof(joining->what->why), "%s",
             coded ? "no memory" : "the codec does not run on this GPU");
    return false;
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
    pthread_mutex_init(&member->lock, NULL);
    pthread_cond_init(&member->told, NULL);
    if (host->nccl->CommCuDevice(what->comm, &member->device) != COLL_SUCCESS || !gpu->enter(member->device, &before))
        return;
    member->stream = gpu->stream_make();
    joining->told = gpu->allocate(sizeof(struct hello) * ((size_t)member->ranks + 1), false);
    joining->able = prepare(joining);
    gpu->leave(before);
}

/* ---- Together ---------------------------------------------------------------------------------------------------- */

static struct hello hello_of(const struct joining *joining)
{
    struct hello hello = {.magic = JOIN_MAGIC,
                          .version = JOIN_VERSION,
                          .able = joining->able,
                          .ranks = (uint32_t)joining->member->ranks,
                          .order = joining->member->host.settings.ring,
                          .forced = joining->member->forced};
    snprintf(hello.release, sizeof(hello.release), "%s", strait_version());
    return hello;
}

static bool tell(const struct joining *joining)
{
    const struct coll_member *member = joining->member;
    const struct hello hello = hello_of(joining);
    struct hello *own = joining->told + member->ranks;
    return member->gpu->copy(own, &hello, sizeof(hello), member->stream) &&
           member->host.nccl->AllGather(own, joining->told, sizeof(hello), COLL_UINT8, member->comm,
                                        member->stream) == COLL_SUCCESS;
}

static bool agree(struct joining *joining)
{
    struct coll_member *member = joining->member;
    const struct hello mine = hello_of(joining);
    struct hello *all = calloc((size_t)member->ranks, sizeof(*all));
    bool same = all != NULL && member->gpu->copy(all, joining->told, sizeof(*all) * (size_t)member->ranks, member->stream) &&
                member->gpu->stream_wait(member->stream);
    for (int rank = 0; rank < member->ranks && same; rank++) {
        same = all[rank].able != 0 && memcmp(&all[rank], &mine, sizeof(mine)) == 0;
        if (!same && joining->able)
            snprintf(joining->what->why, sizeof(joining->what->why),
                     "rank %d is not able, or has another version or other settings", rank);
    }
    free(all);
    return same;
}

/* On all that can take part; the GPU of each is current meanwhile. */
static bool each(struct joining *joinings, unsigned count, bool (*what)(struct joining *))
{
    bool all = true;
    for (unsigned i = 0; i < count; i++) {
        struct coll_member *member = joinings[i].member;
        int before;
        bool good = member != NULL && joinings[i].told != NULL && member->gpu->enter(member->device, &before);
        if (good) {
            good = what(&joinings[i]);
            member->gpu->leave(before);
        }
        joinings[i].able &= good;
        all &= good;
    }
    return all;
}

static bool tell_one(struct joining *joining)
{
    return tell(joining);
}

static bool split_one(struct joining *joining)
{
    struct coll_member *member = joining->member;
    return !joining->able || member->host.nccl->CommSplit(member->comm, 0, member->rank, &member->repairs, NULL) ==
                                 COLL_SUCCESS;
}

/* What the thread that repairs will need is made and loaded now: both may wait for what runs on the GPU, and then that
 * waits for the thread. */
static bool warm_one(struct joining *joining)
{
    return !joining->able || repair_warm(joining->member);
}

static bool wait_one(struct joining *joining)
{
    return !joining->able || joining->member->gpu->stream_wait(joining->member->stream);
}

static void exchange(struct joining *joinings, unsigned count, const struct coll_table *nccl)
{
    nccl->GroupStart();
    (void)each(joinings, count, tell_one);
    nccl->GroupEnd();
    (void)each(joinings, count, agree);
    /* From here on all ranks of a communicator are able, or none is. */
    nccl->GroupStart();
    (void)each(joinings, count, split_one);
    nccl->GroupEnd();
    nccl->GroupStart();
    (void)each(joinings, count, warm_one);
    nccl->GroupEnd();
    (void)each(joinings, count, wait_one);
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

static void finish(struct joining *joining)
{
    struct coll_member *member = joining->member;
    struct coll_joining *what = joining->what;
    if (member == NULL)
        return;
    if (joining->told != NULL)
        member->gpu->release(joining->told);
    if (joining->able && !repair_begin(member)) {
        member_fail(member, COLL_SYSTEM_ERROR, "no thread");
        joining->able = false;
    }
    if (!joining->able) {
        if (what->why[0] == '\0')
            snprintf(what->why, sizeof(what->why), "the ranks could not agree");
        destroy(member);
        return;
    }
    what->member = member;
    snprintf(what->why, sizeof(what->why), "%.1f us and %.2f GB/s to each other rank", member->cost.start * 1e6,
             member->cost.per_byte > 0 ? 1e-9 / member->cost.per_byte : 0.0);
}

void members_join(const struct gpu_ops *gpu, const struct coll_engine_host *host, struct coll_joining *joinings,
                  unsigned count)
{
    struct joining *all = calloc(count, sizeof(*all));
    for (unsigned i = 0; i < count; i++) {
        joinings[i].member = NULL;
        joinings[i].why[0] = '\0';
    }
    if (all == NULL)
        return;
    for (unsigned i = 0; i < count; i++) {
        all[i].what = &joinings[i];
        begin(&all[i], gpu, host);
    }
    exchange(all, count, host->nccl);
    measure(all, count);
    for (unsigned i = 0; i < count; i++)
        finish(&all[i]);
    free(all);
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

void member_abort(struct coll_member *member)
{
    for (struct coll_staging *staging = __atomic_load_n(&member->stagings.first, __ATOMIC_ACQUIRE); staging != NULL;
         staging = staging->next)
        __atomic_store_n(&staging->mail->abort, 1, __ATOMIC_RELEASE);
    if (member->repairs != NULL)
        (void)member->host.nccl->CommAbort(member->repairs);
    member->repairs = NULL;
}

/* What was asked for may still run. */
static void drain(struct coll_member *member)
{
    int before;
    if (!member->gpu->enter(member->device, &before))
        return;
    for (struct coll_staging *staging = member->stagings.first; staging != NULL; staging = staging->next)
        while (staging->used && staging->capture == 0 && !member->gpu->event_over(staging->last))
            ;
    member->gpu->leave(before);
}

void member_leave(struct coll_member *member)
{
    drain(member);
    repair_end(member);
    if (member->repairs != NULL)
        (void)member->host.nccl->CommDestroy(member->repairs);
    destroy(member);
}
