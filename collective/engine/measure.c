/* What the link between ranks costs, by all-gathers of two sizes when a communicator is set up. Every rank measures, and
 * the fastest link counts for all: compressing where it does not pay is worse than not compressing where it would. */
#include <stdlib.h>

#include "collective/engine/member.h"

enum { SMALL = 64 << 10, LARGE_ALL = 128 << 20, LARGE_MAX = 16 << 20, TURNS = 4 };

struct run {
    struct coll_member *member;
    uint8_t *memory; /* a message, and one of each rank */
    gpu_event begin, end;
    double seconds[2]; /* of a small one and a large one */
};

static size_t size_of(const struct coll_member *member, int large)
{
    const size_t share = (size_t)LARGE_ALL / (size_t)member->ranks;
    return !large ? SMALL : share < LARGE_MAX ? share / 128 * 128 : LARGE_MAX;
}

/* ---- One member, whose GPU is current ---------------------------------------------------------------------------- */

static bool prepare(struct run *run)
{
    const struct gpu_ops *gpu = run->member->gpu;
    run->memory = gpu->allocate(size_of(run->member, 1) * ((size_t)run->member->ranks + 1), true);
    run->begin = gpu->event_make(true);
    run->end = gpu->event_make(true);
    return run->memory != NULL && run->begin != NULL && run->end != NULL;
}

static bool gather(struct run *run, int large)
{
    const struct coll_member *member = run->member;
    const size_t size = size_of(member, large);
    return member->gpu->event_record(run->begin, member->stream) &&
           member->host.nccl->AllGather(run->memory, run->memory + size, size, COLL_UINT8, member->comm,
                                        member->stream) == COLL_SUCCESS;
}

static bool gather_small(struct run *run)
{
    return gather(run, 0);
}

static bool gather_large(struct run *run)
{
    return gather(run, 1);
}

static bool record(struct run *run)
{
    return run->member->gpu->event_record(run->end, run->member->stream);
}

static bool read_time(struct run *run, int large)
{
    const struct gpu_ops *gpu = run->member->gpu;
    if (!gpu->stream_wait(run->member->stream))
        return false;
    const double seconds = gpu->event_seconds(run->begin, run->end);
    if (seconds > 0 && (run->seconds[large] <= 0 || seconds < run->seconds[large]))
        run->seconds[large] = seconds;
    return seconds >= 0;
}

static bool read_small(struct run *run)
{
    return read_time(run, 0);
}

static bool read_large(struct run *run)
{
    return read_time(run, 1);
}

/* By now nothing else can differ between ranks: they take what the fastest one saw. */
static bool tell(struct run *run)
{
    const struct coll_member *member = run->member;
    double *own = (double *)(void *)run->memory, *all = own + 2;
    return member->gpu->copy(own, run->seconds, sizeof(run->seconds), member->stream) &&
           member->host.nccl->AllGather(own, all, sizeof(run->seconds), COLL_UINT8, member->comm, member->stream) ==
               COLL_SUCCESS;
}

static bool settle(struct run *run)
{
    struct coll_member *member = run->member;
    const size_t ranks = (size_t)member->ranks;
    double *all = calloc(ranks, sizeof(run->seconds));
    bool good = all != NULL && member->gpu->copy(all, run->memory + sizeof(run->seconds), ranks * sizeof(run->seconds),
                                                 member->stream) &&
                member->gpu->stream_wait(member->stream);
    double small = 0, large = 0;
    for (size_t rank = 0; rank < ranks && good; rank++) {
        small = rank == 0 || all[2 * rank] < small ? all[2 * rank] : small;
        large = rank == 0 || all[2 * rank + 1] < large ? all[2 * rank + 1] : large;
    }
    const double bytes = (double)(size_of(member, 1) - size_of(member, 0));
    member->cost.per_byte = large > small ? (large - small) / bytes : 0;
    member->cost.start = small;
    free(all);
    return good;
}

static bool release(struct run *run)
{
    const struct gpu_ops *gpu = run->member->gpu;
    gpu->release(run->memory);
    if (run->begin != NULL)
        gpu->event_end(run->begin);
    if (run->end != NULL)
        gpu->event_end(run->end);
    return true;
}

/* ---- All of this process ----------------------------------------------------------------------------------------- */

static bool each(struct run *runs, unsigned count, bool (*what)(struct run *))
{
    bool all = true;
    for (unsigned i = 0; i < count; i++) {
        const struct coll_member *member = runs[i].member;
        int before;
        bool good = member->gpu->enter(member->device, &before);
        if (good) {
            good = what(&runs[i]);
            member->gpu->leave(before);
        }
        all &= good;
    }
    return all;
}

static bool grouped(struct run *runs, unsigned count, bool (*what)(struct run *))
{
    const struct coll_table *nccl = runs[0].member->host.nccl;
    bool good = nccl->GroupStart() == COLL_SUCCESS && each(runs, count, what);
    return nccl->GroupEnd() == COLL_SUCCESS && good;
}

static bool turn(struct run *runs, unsigned count, bool (*what)(struct run *), bool (*read)(struct run *))
{
    bool good = true;
    for (int i = 0; i < TURNS && good; i++)
        good = grouped(runs, count, what) && each(runs, count, record) && each(runs, count, read);
    return good;
}

bool measure_links(struct coll_member *const members[], unsigned count)
{
    struct run *runs = calloc(count, sizeof(*runs));
    if (runs == NULL)
        return false;
    for (unsigned i = 0; i < count; i++)
        runs[i].member = members[i];
    bool good = each(runs, count, prepare) && turn(runs, count, gather_small, read_small) &&
                turn(runs, count, gather_large, read_large) && grouped(runs, count, tell) && each(runs, count, settle);
    (void)each(runs, count, release);
    free(runs);
    return good;
}
