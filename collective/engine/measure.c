#include <stdlib.h>
#include <string.h>

#include "collective/engine/join.h"
#include "collective/engine/ccomm.h"

/* Measures the cost of the link between ranks when a communicator is made: by all-gathers of two sizes and, where
 * compressing may pay, by the other operations that NCCL moves messages with or would be spared. Every rank measures,
 * and the fastest link counts for all: compressing where it does not pay is worse than not compressing where it would.
 */

/* The fastest of some turns counts. With sends NCCL connects ranks first. */
enum { SMALL = 64 << 10, LARGE_ALL = 128 << 20, LARGE_MAX = 16 << 20, TURNS = 4, LARGE_TURNS = 2 };
/* What a message can usually save, and what coding takes for each byte and other rank, both ways together. */
#define SAVED          0.3
#define CODEC_PER_BYTE 2e-12

size_t measure_large(const struct coll_ccomm *member)
{
    const size_t share = (size_t)LARGE_ALL / (size_t)member->ranks;
    return share < LARGE_MAX ? share / 128 * 128 : LARGE_MAX;
}

/* ---- One member, whose GPU is current ---------------------------------------------------------------------------- */

bool measure_prepare(struct coll_ccomm *member)
{
    const struct gpu_ops *gpu = member->gpu;
    struct link_probe *probe = &member->probe;
    probe->memory = gpu->allocate(measure_large(member) * ((size_t)member->ranks + 1), true);
    probe->begin = gpu->event_make(true);
    probe->end = gpu->event_make(true);
    return probe->memory != NULL && probe->begin != NULL && probe->end != NULL;
}

void measure_end(struct coll_ccomm *member)
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

static bool begin(struct coll_ccomm *member)
{
    return member->gpu->event_record(member->probe.begin, member->stream);
}

static bool gather(struct coll_ccomm *member, size_t size)
{
    uint8_t *memory = member->probe.memory;
    return begin(member) && member->host.nccl->AllGather(memory, memory + size, size, COLL_UINT8, member->comm,
                                                         member->stream) == COLL_SUCCESS;
}

static bool gather_small(struct coll_ccomm *member)
{
    return gather(member, SMALL);
}

static bool gather_large(struct coll_ccomm *member)
{
    return gather(member, measure_large(member));
}

static bool exchange(struct coll_ccomm *member)
{
    const struct coll_table *nccl = member->host.nccl;
    const size_t size = measure_large(member);
    uint8_t *memory = member->probe.memory;
    bool good = begin(member);
    for (int peer = 0; peer < member->ranks && good; peer++) {
        if (peer == member->rank)
            continue;
        good = nccl->Send(memory, size, COLL_UINT8, peer, member->comm, member->stream) == COLL_SUCCESS &&
               nccl->Recv(memory + (size_t)(peer + 1) * size, size, COLL_UINT8, peer, member->comm, member->stream) ==
                   COLL_SUCCESS;
    }
    return good;
}

/* The values do not matter. */
static bool scatter(struct coll_ccomm *member)
{
    const size_t size = measure_large(member);
    uint8_t *memory = member->probe.memory;
    return begin(member) && member->host.nccl->ReduceScatter(memory + size, memory, size / 2, COLL_BF16, COLL_SUM,
                                                             member->comm, member->stream) == COLL_SUCCESS;
}

static bool record(struct coll_ccomm *member)
{
    return member->gpu->event_record(member->probe.end, member->stream);
}

static bool read_time(struct coll_ccomm *member, int which)
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

static bool read_small(struct coll_ccomm *member)
{
    return read_time(member, PROBE_SMALL);
}

static bool read_gather(struct coll_ccomm *member)
{
    return read_time(member, LINK_GATHER);
}

static bool read_exchange(struct coll_ccomm *member)
{
    return read_time(member, LINK_EXCHANGE);
}

static bool read_scatter(struct coll_ccomm *member)
{
    return read_time(member, LINK_SCATTER);
}

static bool read_repair(struct coll_ccomm *member)
{
    return read_time(member, PROBE_REPAIR);
}

static bool tell(struct coll_ccomm *member)
{
    const struct link_probe *probe = &member->probe;
    double *own = (double *)(void *)probe->memory, *all = own + PROBES;
    return member->gpu->copy(own, probe->seconds, sizeof(probe->seconds), member->stream) &&
           member->host.nccl->AllGather(own, all, sizeof(probe->seconds), COLL_UINT8, member->comm, member->stream) ==
               COLL_SUCCESS;
}

/* What was not measured costs as much as a gather. */
static void set_cost(struct coll_ccomm *member)
{
    const double *seconds = member->probe.seconds, small = seconds[PROBE_SMALL];
    const double bytes = (double)(measure_large(member) - SMALL);
    struct link_costs *cost = &member->cost;
    for (int use = 0; use < LINK_USES; use++) {
        const double large = seconds[use] > 0 ? seconds[use] : seconds[LINK_GATHER];
        cost->per[use] = large > small ? (large - small) / bytes : 0;
    }
    cost->start = small;
    cost->repair = seconds[PROBE_REPAIR] / (double)measure_repaired(member);
}

/* Nothing else can differ between ranks by now: all take what the fastest one measured. */
static bool settle(struct coll_ccomm *member)
{
    struct link_probe *probe = &member->probe;
    const size_t ranks = (size_t)member->ranks, size = sizeof(probe->seconds);
    double *all = calloc(ranks, size);
    const bool good = all != NULL && member->gpu->copy(all, probe->memory + size, ranks * size, member->stream) &&
                      member->gpu->stream_wait(member->stream);
    for (size_t i = 0; i < ranks * PROBES && good; i++)
        probe->seconds[i % PROBES] =
            i < PROBES || all[i] < probe->seconds[i % PROBES] ? all[i] : probe->seconds[i % PROBES];
    if (good)
        set_cost(member);
    free(all);
    return good;
}

/* By faster links hardly anything is compressed, and sends and receives, which few programs use, would make NCCL
 * connect every rank with all others. */
static bool end_if_fast(struct coll_ccomm *member)
{
    member->probe.over = SAVED * member->cost.per[LINK_GATHER] <= CODEC_PER_BYTE * (member->ranks - 1);
    return true;
}

/* ---- All of this process, also of several communicators ---------------------------------------------------------- */

static bool each(struct coll_ccomm *const members[], unsigned count, bool (*what)(struct coll_ccomm *))
{
    bool all = true;
    for (unsigned i = 0; i < count; i++) {
        struct coll_ccomm *member = members[i];
        int before;
        if (member->probe.over)
            continue;
        bool good = member->gpu->enter(member->device, &before);
        if (good) {
            good = what(member);
            member->gpu->leave(before);
        }
        all &= good;
    }
    return all;
}

static bool grouped(struct coll_ccomm *const members[], unsigned count, bool (*what)(struct coll_ccomm *))
{
    const struct coll_table *nccl = members[0]->host.nccl;
    bool good = nccl->GroupStart() == COLL_SUCCESS && each(members, count, what);
    return nccl->GroupEnd() == COLL_SUCCESS && good;
}

static bool turn(struct coll_ccomm *const members[], unsigned count, bool (*what)(struct coll_ccomm *),
                 bool (*read)(struct coll_ccomm *), unsigned turns)
{
    bool good = true;
    for (unsigned i = 0; i < turns && good; i++)
        good = grouped(members, count, what) && each(members, count, record) && each(members, count, read);
    return good;
}

/* NCCL moves something first, so that all ranks begin together. */
static bool turn_repair(struct coll_ccomm *const members[], unsigned count, unsigned number)
{
    bool good = grouped(members, count, gather_small);
    for (unsigned i = 0; i < count && good; i++) {
        struct coll_ccomm *member = members[i];
        int before;
        good = member->gpu->enter(member->device, &before);
        if (!good)
            break;
        good = measure_repair(member, number);
        member->gpu->leave(before);
    }
    return good && each(members, count, read_repair);
}

static bool end_repair(struct coll_ccomm *member)
{
    return measure_repair_end(member, TURNS);
}

static bool turns_of_repair(struct coll_ccomm *const members[], unsigned count)
{
    bool good = true;
    for (unsigned i = 0; i < TURNS && good; i++)
        good = turn_repair(members, count, i);
    return good && each(members, count, end_repair);
}

static bool agree(struct coll_ccomm *const members[], unsigned count)
{
    return grouped(members, count, tell) && each(members, count, settle);
}

bool measure_links(struct coll_ccomm *const members[], unsigned count)
{
    return turn(members, count, gather_small, read_small, TURNS) &&
           turn(members, count, gather_large, read_gather, TURNS) && turns_of_repair(members, count) &&
           agree(members, count) && each(members, count, end_if_fast) &&
           turn(members, count, exchange, read_exchange, LARGE_TURNS) &&
           turn(members, count, scatter, read_scatter, LARGE_TURNS) && agree(members, count);
}

/* Measures what it costs to move overflow: the heads say that messages overflow, but nothing was encoded. This also
 * uses the memory and the kernels once before a program needs them. */

#define PATIENCE_NS UINT64_C(10000000000)

/* In the probe's memory: values | this struct, for the kernel | values of all ranks. */
struct told {
    struct exchange_job job;
    struct message_head head; /* the same for all messages: all ranks have used as many slots */
    uint32_t found;
};

size_t measure_repaired(const struct coll_ccomm *member)
{
    return measure_large(member) / 2;
}

static struct told told_of(const struct coll_ccomm *member, unsigned turn)
{
    uint8_t *memory = member->probe.memory;
    const size_t bytes = measure_repaired(member);
    struct told *place = (struct told *)(void *)(memory + bytes);
    struct told told = {.job = {.send = memory,
                                .sent = (uint8_t *)&place->head,
                                .receive = memory + 2 * bytes,
                                .received = (uint8_t *)&place->head,
                                .found = &place->found,
                                .receive_stride = bytes,
                                .bytes = bytes,
                                .peer = -1},
                        .found = MESSAGE_OVERFLOWS};
    told.head.magic = MESSAGE_MAGIC;
    told.head.first = turn * ring_slots(&member->share.rings, bytes);
    told.head.row[0] = 1;
    told.head.sum = head_sum(&told.head);
    return told;
}

bool measure_repair(struct coll_ccomm *member, unsigned turn)
{
    const struct told told = told_of(member, turn);
    struct told *place = (struct told *)(void *)(member->probe.memory + measure_repaired(member));
    const struct gpu_exchange what = {.rings = member->share.rings,
                                      .ends = member->ends,
                                      .jobs = &place->job,
                                      .host_status = member->host_status,
                                      .patience_ns = PATIENCE_NS,
                                      .pair_patience_ns = PATIENCE_NS,
                                      .count = 1,
                                      .kind = EXCHANGE_BEHIND};
    return member->gpu->copy(place, &told, sizeof(told), member->stream) &&
           member->gpu->event_record(member->probe.begin, member->stream) &&
           member->gpu->exchange(&what, member->stream) && member->gpu->event_record(member->probe.end, member->stream);
}

bool measure_repair_end(struct coll_ccomm *member, unsigned turns)
{
    const uint64_t next = turns * ring_slots(&member->share.rings, measure_repaired(member));
    return member->gpu->copy(&member->ends->next, &next, sizeof(next), member->stream) &&
           member->gpu->stream_wait(member->stream) &&
           __atomic_load_n(&member->host_status->failed, __ATOMIC_ACQUIRE) == 0;
}
