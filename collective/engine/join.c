/* Ranks tell each other what they are before anything is compressed: one difference, and all of them stay raw. First by
 * a split, which needs nothing of a GPU, so that a rank that is not able, even for want of memory, can say so: it is
 * left out, and the others see that they are fewer. What comes then all of them can do. */
#include "collective/engine/join.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "collective/engine/peer.h"

#define JOIN_MAGIC   UINT64_C(0x3130654c4c4f4353)
#define JOIN_VERSION 3u
#define LEFT_OUT     (-1) /* NCCL_SPLIT_NOCOLOR */

/* What a rank tells the others, and has to be the same on all. */
struct hello {
    uint64_t magic;
    uint32_t version, ranks;
    uint32_t order, forced, pairs, wire;
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
    repair_end(member);
    if (member->repairs != NULL)
        (void)member->host.nccl->CommDestroy(member->repairs);
    if (gpu->enter(member->device, &before)) {
        measure_end(member);
        staging_end(&member->stagings, gpu);
        peer_end(member);
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

/* For whichever of the two is told. */
static size_t told_bytes(void)
{
    return sizeof(struct hello) > peer_offer_bytes() ? sizeof(struct hello) : peer_offer_bytes();
}

static const char *why_not(struct joining *joining)
{
    struct coll_member *member = joining->member;
    const struct gpu_ops *gpu = member->gpu;
    const size_t ranks = (size_t)member->ranks;
    if (member->ranks > COLL_REDUCE_SOURCES_MAX)
        return "more ranks than sums are made of";
    if (member->host.nccl->CommSplit == NULL)
        return "this NCCL is too old";
    const char *trouble = gpu->trouble();
    if (trouble != NULL)
        return trouble;
    if ((member->codec = gpu->codec()) == NULL || strait_codec_prepare(member->codec) != STRAIT_OK || !gpu->prepare())
        return "the codec does not run on this GPU";
    member->levels = calloc(member_keys(member), sizeof(*member->levels));
    member->stream = gpu->stream_make();
    joining->told = gpu->allocate(told_bytes() * (ranks + 1), false);
    member->counters = gpu->allocate(sizeof(uint64_t) * JOBS_MAX * ranks, false);
    if (member->levels == NULL || member->stream == NULL || joining->told == NULL || member->counters == NULL)
        return "no memory";
    if (!member->forced && !measure_prepare(member))
        return "no memory to measure links with";
    return repair_begin(member) ? NULL : "no thread";
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
    const char *why = why_not(joining);
    joining->able = why == NULL;
    snprintf(what->why, sizeof(what->why), "%s", why != NULL ? why : "");
    gpu->leave(before);
}

/* ---- Together ---------------------------------------------------------------------------------------------------- */

static struct hello hello_of(const struct joining *joining)
{
    struct hello hello = {.magic = JOIN_MAGIC,
                          .version = JOIN_VERSION,
                          .ranks = (uint32_t)joining->member->ranks,
                          .order = joining->member->host.settings.ring,
                          .pairs = joining->member->host.settings.pairs,
                          .wire = joining->member->host.settings.wire,
                          .forced = joining->member->forced};
    snprintf(hello.release, sizeof(hello.release), "%s", strait_version());
    return hello;
}

static bool tell(struct joining *joining)
{
    const struct coll_member *member = joining->member;
    const struct hello hello = hello_of(joining);
    struct hello *own = joining->told + member->ranks;
    return member->gpu->copy(own, &hello, sizeof(hello), member->stream) &&
           member->host.nccl->AllGather(own, joining->told, sizeof(hello), COLL_UINT8, member->comm, member->stream) ==
               COLL_SUCCESS;
}

static bool agree(struct joining *joining)
{
    struct coll_member *member = joining->member;
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

/* On all that are able; the GPU of each is current meanwhile. */
static void each(struct joining *joinings, unsigned count, bool (*what)(struct joining *))
{
    for (unsigned i = 0; i < count; i++) {
        struct coll_member *member = joinings[i].member;
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

/* Those that are able get a communicator for repairs. */
static void split(struct joining *joinings, unsigned count, const struct coll_table *nccl)
{
    nccl->GroupStart();
    for (unsigned i = 0; i < count; i++) {
        struct joining *joining = &joinings[i];
        const struct coll_joining *what = joining->what;
        static _Thread_local coll_comm none;
        coll_comm *made = joining->able ? &joining->member->repairs : &none;
        const coll_result result = nccl->CommSplit(what->comm, joining->able ? 0 : LEFT_OUT, what->rank, made, NULL);
        joining->able &= result == COLL_SUCCESS;
    }
    nccl->GroupEnd();
}

static bool is_whole(struct joining *joining)
{
    const struct coll_member *member = joining->member;
    int ranks = 0;
    const bool whole = member->repairs != NULL &&
                       member->host.nccl->CommCount(member->repairs, &ranks) == COLL_SUCCESS && ranks == member->ranks;
    if (!whole)
        snprintf(joining->what->why, sizeof(joining->what->why), "%d of the ranks are not able", member->ranks - ranks);
    return whole;
}

/* What the thread that repairs will need is made and loaded now: both may wait for what runs on the GPU, and then that
 * waits for the thread. */
static bool warm_one(struct joining *joining)
{
    return repair_warm(joining->member);
}

static bool wait_one(struct joining *joining)
{
    return joining->member->gpu->stream_wait(joining->member->stream);
}

static void exchange(struct joining *joinings, unsigned count, const struct coll_table *nccl)
{
    if (nccl->CommSplit == NULL)
        return;
    split(joinings, count, nccl);
    each(joinings, count, is_whole);
    /* From here on all ranks of a communicator are able, or none is. */
    nccl->GroupStart();
    each(joinings, count, tell);
    nccl->GroupEnd();
    each(joinings, count, agree);
    nccl->GroupStart();
    each(joinings, count, warm_one);
    nccl->GroupEnd();
    each(joinings, count, wait_one);
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

static void finish(struct joining *joining)
{
    struct coll_member *member = joining->member;
    struct coll_joining *what = joining->what;
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
            destroy(member);
        return;
    }
    what->member = member;
    snprintf(what->why, sizeof(what->why), "%.1f us and %.2f GB/s to each other rank%s%.80s", member->cost.start * 1e6,
             member->cost.per_byte > 0 ? 1e-9 / member->cost.per_byte : 0.0,
             member->peer != NULL         ? ", wire peer"
             : member->no_peer[0] != '\0' ? ", no wire peer: "
                                          : "",
             member->no_peer);
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
    reach(all, count);
    measure(all, count);
    for (unsigned i = 0; i < count; i++)
        finish(&all[i]);
    free(all);
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

/* The thread's calls for `repairs` are short, unless they wait for ranks to connect: then NCCL's abort is what ends
 * them. */
static coll_comm take_repairs(struct coll_member *member)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    pthread_mutex_lock(&member->lock);
    member->aborted = true;
    while (member->calling && pthread_cond_timedwait(&member->told, &member->lock, &until) == 0)
        ;
    coll_comm repairs = member->repairs;
    member->repairs = NULL;
    pthread_mutex_unlock(&member->lock);
    return repairs;
}

void member_abort(struct coll_member *member)
{
    for (struct coll_staging *staging = __atomic_load_n(&member->stagings.first, __ATOMIC_ACQUIRE); staging != NULL;
         staging = staging->next)
        __atomic_store_n(&staging->mail->abort, 1, __ATOMIC_RELEASE);
    peer_abort(member);
    coll_comm repairs = take_repairs(member);
    if (repairs != NULL)
        (void)member->host.nccl->CommAbort(repairs);
}

static bool is_over(const struct coll_member *member)
{
    bool over = peer_over(member);
    for (struct coll_staging *staging = member->stagings.first; staging != NULL; staging = staging->next)
        over &= !staging->used || staging->capture != 0 || member->gpu->event_over(staging->last);
    return over;
}

/* What was asked for may still run. After an abort it ends soon, but for what stands behind something else on its
 * stream, for which nobody may be made to wait. */
static bool drain(struct coll_member *member)
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

/* Its memory is still in use, and to free any would wait for that. */
static void keep(struct coll_member *member)
{
    static struct coll_member *kept;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    member->host.say("communicator %p, rank %d of %d: aborted, but its streams go on: its memory is not freed",
                     (void *)member->comm, member->rank, member->ranks);
    pthread_mutex_lock(&lock);
    member->next = kept;
    kept = member;
    pthread_mutex_unlock(&lock);
}

void member_leave(struct coll_member *member)
{
    const bool over = drain(member);
    repair_end(member);
    if (over)
        destroy(member);
    else
        keep(member);
}
