/* Measures the cost of the link between ranks, by all-gathers of two sizes when a communicator is made. Every rank
 * measures, and the fastest link counts for all: compressing where it does not pay is worse than not compressing where
 * it would. */
#include <stdlib.h>

#include "collective/engine/member.h"

enum { SMALL = 64 << 10, LARGE_ALL = 128 << 20, LARGE_MAX = 16 << 20, TURNS = 4, PROBES = 3 };

size_t measure_large(const struct coll_member *member)
{
    const size_t share = (size_t)LARGE_ALL / (size_t)member->ranks;
    return share < LARGE_MAX ? share / 128 * 128 : LARGE_MAX;
}

static size_t size_of(const struct coll_member *member, int large)
{
    return large ? measure_large(member) : SMALL;
}

/* ---- One member, whose GPU is current ---------------------------------------------------------------------------- */

bool measure_prepare(struct coll_member *member)
{
    const struct gpu_ops *gpu = member->gpu;
    struct link_probe *probe = &member->probe;
    probe->memory = gpu->allocate(size_of(member, 1) * ((size_t)member->ranks + 1), true);
    probe->begin = gpu->event_make(true);
    probe->end = gpu->event_make(true);
    return probe->memory != NULL && probe->begin != NULL && probe->end != NULL;
}

void measure_end(struct coll_member *member)
{
    const struct gpu_ops *gpu = member->gpu;
    struct link_probe *probe = &member->probe;
    gpu->release(probe->memory);
    if (probe->begin != NULL)
        gpu->event_end(probe->begin);
    if (probe->end != NULL)
        gpu->event_end(probe->end);
    *probe = (struct link_probe){0};
}

static bool gather(struct coll_member *member, int large)
{
    uint8_t *memory = member->probe.memory;
    const size_t size = size_of(member, large);
    return member->gpu->event_record(member->probe.begin, member->stream) &&
           member->host.nccl->AllGather(memory, memory + size, size, COLL_UINT8, member->comm, member->stream) ==
               COLL_SUCCESS;
}

static bool gather_small(struct coll_member *member)
{
    return gather(member, 0);
}

static bool gather_large(struct coll_member *member)
{
    return gather(member, 1);
}

static bool record(struct coll_member *member)
{
    return member->gpu->event_record(member->probe.end, member->stream);
}

static bool read_time(struct coll_member *member, int which)
{
    const struct gpu_ops *gpu = member->gpu;
    struct link_probe *probe = &member->probe;
    if (!gpu->stream_wait(member->stream))
        return false;
    const double seconds = gpu->event_seconds(probe->begin, probe->end);
    if (seconds > 0 && (probe->seconds[which] <= 0 || seconds < probe->seconds[which]))
        probe->seconds[which] = seconds;
    return seconds >= 0;
}

static bool read_small(struct coll_member *member)
{
    return read_time(member, 0);
}

static bool read_large(struct coll_member *member)
{
    return read_time(member, 1);
}

static bool read_repair(struct coll_member *member)
{
    return read_time(member, 2);
}

/* Nothing else can differ between ranks by now: all take what the fastest one measured. */
static bool tell(struct coll_member *member)
{
    const struct link_probe *probe = &member->probe;
    double *own = (double *)(void *)probe->memory, *all = own + PROBES;
    return member->gpu->copy(own, probe->seconds, sizeof(probe->seconds), member->stream) &&
           member->host.nccl->AllGather(own, all, sizeof(probe->seconds), COLL_UINT8, member->comm, member->stream) ==
               COLL_SUCCESS;
}

static bool settle(struct coll_member *member)
{
    const struct link_probe *probe = &member->probe;
    const size_t ranks = (size_t)member->ranks, size = sizeof(probe->seconds);
    double *all = calloc(ranks, size);
    bool good = all != NULL && member->gpu->copy(all, probe->memory + size, ranks * size, member->stream) &&
                member->gpu->stream_wait(member->stream);
    double least[PROBES] = {0};
    for (size_t i = 0; i < ranks * PROBES && good; i++)
        least[i % PROBES] = i < PROBES || all[i] < least[i % PROBES] ? all[i] : least[i % PROBES];
    const double small = least[0], large = least[1];
    const double bytes = (double)(size_of(member, 1) - size_of(member, 0));
    member->cost.per_byte = large > small ? (large - small) / bytes : 0;
    member->cost.start = small;
    member->cost.repair = least[2] / (double)measure_repaired(member);
    free(all);
    return good;
}

/* ---- All of this process ----------------------------------------------------------------------------------------- */

static bool each(struct coll_member *const members[], unsigned count, bool (*what)(struct coll_member *))
{
    bool all = true;
    for (unsigned i = 0; i < count; i++) {
        struct coll_member *member = members[i];
        int before;
        bool good = member->gpu->enter(member->device, &before);
        if (good) {
            good = what(member);
            member->gpu->leave(before);
        }
        all &= good;
    }
    return all;
}

static bool grouped(struct coll_member *const members[], unsigned count, bool (*what)(struct coll_member *))
{
    const struct coll_table *nccl = members[0]->host.nccl;
    bool good = nccl->GroupStart() == COLL_SUCCESS && each(members, count, what);
    return nccl->GroupEnd() == COLL_SUCCESS && good;
}

static bool turn(struct coll_member *const members[], unsigned count, bool (*what)(struct coll_member *),
                 bool (*read)(struct coll_member *))
{
    bool good = true;
    for (int i = 0; i < TURNS && good; i++)
        good = grouped(members, count, what) && each(members, count, record) && each(members, count, read);
    return good;
}

/* NCCL moves something first, so that all ranks begin together. */
static bool turn_repair(struct coll_member *const members[], unsigned count, unsigned number)
{
    bool good = grouped(members, count, gather_small);
    for (unsigned i = 0; i < count && good; i++) {
        struct coll_member *member = members[i];
        int before;
        good = member->gpu->enter(member->device, &before);
        if (!good)
            break;
        good = measure_repair(member, number);
        member->gpu->leave(before);
    }
    return good && each(members, count, read_repair);
}

static bool end_repair(struct coll_member *member)
{
    return measure_repair_end(member, TURNS);
}

static bool turns_of_repair(struct coll_member *const members[], unsigned count)
{
    bool good = true;
    for (unsigned i = 0; i < TURNS && good; i++)
        good = turn_repair(members, count, i);
    return good && each(members, count, end_repair);
}

bool measure_links(struct coll_member *const members[], unsigned count)
{
    return turn(members, count, gather_small, read_small) && turn(members, count, gather_large, read_large) &&
           turns_of_repair(members, count) && grouped(members, count, tell) && each(members, count, settle);
}
