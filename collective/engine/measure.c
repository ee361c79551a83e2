#include <stdlib.h>
#include <string.h>

#include "collective/engine/ccomm.h"
#include "collective/engine/proxy.h"

/* Measures the cost of the link between ranks when a communicator is made: by all-gathers of two sizes and, where
 * compressing may pay, by the other operations that NCCL moves messages with or would be spared. Every rank measures,
 * and the fastest link counts for all: compressing where it does not pay is worse than not compressing where it would.
 *
 * A rank on which something fails asks NCCL for all that the others ask it for, as they would wait for it, and launches
 * no kernel of ours any more, for which they wait ten seconds at most. In the end all vote, and stay raw if anything
 * has failed on any of them. */

/* The fastest of some rounds counts. With sends NCCL connects ranks first. */
enum { SMALL = 64 << 10, LARGE_ALL = 128 << 20, LARGE_MAX = 16 << 20, ROUNDS = 4, LARGE_ROUNDS = 2 };
/* Usual saving of a message. */
#define SAVED 0.3

/* Bytes of the probe's large messages. */
static size_t measure_large(const struct coll_ccomm *ccomm)
{
    const size_t share = (size_t)LARGE_ALL / (size_t)ccomm->ranks;
    return share < LARGE_MAX ? share / 128 * 128 : LARGE_MAX;
}

/* ---- One communicator, whose GPU is current ---------------------------------------------------------------------- */

bool measure_prepare(struct coll_ccomm *ccomm)
{
    const struct gpu_ops *gpu = ccomm->gpu;
    struct link_probe *probe = &ccomm->probe;
    probe->size = measure_large(ccomm) * ((size_t)ccomm->ranks + 1);
    probe->memory = gpu->allocate(probe->size, true);
    probe->begin = gpu->event_make(true);
    probe->end = gpu->event_make(true);
    return probe->memory != NULL && probe->begin != NULL && probe->end != NULL;
}

void measure_end(struct coll_ccomm *ccomm)
{
    const struct gpu_ops *gpu = ccomm->gpu;
    struct link_probe *probe = &ccomm->probe;
    gpu->release(probe->memory);
    if (probe->begin != NULL)
        gpu->event_end(probe->begin);
    if (probe->end != NULL)
        gpu->event_end(probe->end);
    *probe = (struct link_probe){0};
}

static bool begin(struct coll_ccomm *ccomm)
{
    return ccomm->gpu->event_record(ccomm->probe.begin, ccomm->stream);
}

static bool gather(struct coll_ccomm *ccomm, size_t size)
{
    uint8_t *memory = ccomm->probe.memory;
    const bool begun = begin(ccomm);
    return ccomm->host.nccl->AllGather(memory, memory + size, size, COLL_UINT8, ccomm->comm, ccomm->stream) ==
               COLL_SUCCESS &&
           begun;
}

static bool gather_small(struct coll_ccomm *ccomm)
{
    return gather(ccomm, SMALL);
}

static bool gather_large(struct coll_ccomm *ccomm)
{
    return gather(ccomm, measure_large(ccomm));
}

/* Among every `step`th rank from `first` to before `until`. */
static bool exchange_among(struct coll_ccomm *ccomm, int first, int until, int step)
{
    const struct coll_table *nccl = ccomm->host.nccl;
    const size_t size = measure_large(ccomm);
    uint8_t *memory = ccomm->probe.memory;
    bool good = begin(ccomm);
    for (int peer = first; peer < until; peer += step) {
        if (peer == ccomm->rank)
            continue;
        good &= nccl->Send(memory, size, COLL_UINT8, peer, ccomm->comm, ccomm->stream) == COLL_SUCCESS;
        good &= nccl->Recv(memory + (size_t)(peer + 1) * size, size, COLL_UINT8, peer, ccomm->comm, ccomm->stream) ==
                COLL_SUCCESS;
    }
    return good;
}

static bool exchange(struct coll_ccomm *ccomm)
{
    return exchange_among(ccomm, 0, ccomm->ranks, 1);
}

/* Of communicators that are measured together some may have no rails. */
static bool exchange_local(struct coll_ccomm *ccomm)
{
    const int each = (int)ccomm->shared.rails.each, first = each > 0 ? ccomm->rank / each * each : 0;
    return each == 0 || exchange_among(ccomm, first, first + each, 1);
}

static bool exchange_rail(struct coll_ccomm *ccomm)
{
    const int each = (int)ccomm->shared.rails.each;
    return each == 0 || exchange_among(ccomm, ccomm->rank % each, ccomm->ranks, each);
}

/* The values do not matter. */
static bool scatter(struct coll_ccomm *ccomm)
{
    const size_t size = measure_large(ccomm);
    uint8_t *memory = ccomm->probe.memory;
    const bool begun = begin(ccomm);
    return ccomm->host.nccl->ReduceScatter(memory + size, memory, size / 2, COLL_BF16, COLL_SUM, ccomm->comm,
                                           ccomm->stream) == COLL_SUCCESS &&
           begun;
}

static bool record(struct coll_ccomm *ccomm)
{
    return ccomm->gpu->event_record(ccomm->probe.end, ccomm->stream);
}

static bool read_time(struct coll_ccomm *ccomm, int which)
{
    const struct gpu_ops *gpu = ccomm->gpu;
    struct link_probe *probe = &ccomm->probe;
    if (!ccomm_wait(ccomm))
        return false;
    const double seconds = gpu->event_seconds(probe->begin, probe->end);
    if (seconds > 0 && (probe->seconds[which] <= 0 || seconds < probe->seconds[which]))
        probe->seconds[which] = seconds;
    return seconds >= 0;
}

static bool read_small(struct coll_ccomm *ccomm)
{
    return read_time(ccomm, PROBE_SMALL);
}

static bool read_gather(struct coll_ccomm *ccomm)
{
    return read_time(ccomm, LINK_GATHER);
}

static bool read_exchange(struct coll_ccomm *ccomm)
{
    return read_time(ccomm, LINK_EXCHANGE);
}

static bool read_scatter(struct coll_ccomm *ccomm)
{
    return read_time(ccomm, LINK_SCATTER);
}

static bool read_local(struct coll_ccomm *ccomm)
{
    return ccomm->shared.rails.each == 0 || read_time(ccomm, LINK_LOCAL);
}

static bool read_rail(struct coll_ccomm *ccomm)
{
    return ccomm->shared.rails.each == 0 || read_time(ccomm, LINK_RAIL);
}

static bool has_channels(const struct coll_ccomm *ccomm)
{
    return ccomm->shm.channels.moved != NULL;
}

static bool read_shm(struct coll_ccomm *ccomm)
{
    return !has_channels(ccomm) || read_time(ccomm, LINK_SHM);
}

static bool gather_times(struct coll_ccomm *ccomm)
{
    ccomm->probe.seconds[PROBE_ENCODE] = ccomm->cost.encode;
    ccomm->probe.seconds[PROBE_DECODE] = ccomm->cost.decode;
    return ccomm_gather(ccomm, ccomm->probe.seconds, sizeof(ccomm->probe.seconds));
}

/* Measures what it costs to move overflow: the heads say that messages overflow, but nothing was encoded. This also
 * uses the memory and the kernels once before a program needs them. Where ranks of different hosts are connected only
 * when something overflows (proxy.h), it does so by the connections of the start alone: from the first rank of each
 * host to that of the next. */

#define PATIENCE_NS UINT64_C(10000000000)

/* In the probe's memory: values | this struct, for the kernel | values of all ranks. */
struct overflow_probe {
    struct exchange_job jobs[2];
    struct message_head head; /* the same for all messages: all ranks have used as many slots */
    uint32_t found;
};

/* Where ranks are many, what fills their short rings several times is enough. */
static size_t measure_overflow_bytes(const struct coll_ccomm *ccomm)
{
    const size_t bytes = measure_large(ccomm) / 2;
    return proxy_is_lazy(ccomm) && bytes > SMALL ? (size_t)SMALL : bytes;
}

/* How many times longer a message to each other rank takes than what was measured: those of other hosts go through one
 * thread. */
static double measure_overflow_share(const struct coll_ccomm *ccomm)
{
    return proxy_is_lazy(ccomm) ? ccomm->ranks - (double)ring_ranks_below(&ccomm->shared.here, (uint32_t)ccomm->ranks)
                                : 1;
}

/* With few connections; -1: this rank has none. */
static int overflow_to(const struct coll_ccomm *ccomm)
{
    return host_groups_next(&ccomm->shared.groups, ccomm->rank, ccomm->ranks);
}

/* The first rank of the host whose next one is this rank's. */
static int overflow_from(const struct coll_ccomm *ccomm)
{
    const struct host_groups *groups = &ccomm->shared.groups;
    int from = 0;
    while (from < ccomm->ranks && host_groups_next(groups, from, ccomm->ranks) != ccomm->rank)
        from++;
    return from;
}

static struct overflow_probe overflow_probe_of(const struct coll_ccomm *ccomm, unsigned round)
{
    uint8_t *memory = ccomm->probe.memory;
    const size_t bytes = measure_overflow_bytes(ccomm);
    struct overflow_probe *place = (struct overflow_probe *)(void *)(memory + bytes);
    const struct exchange_job all = {.send = memory,
                                     .sent = (uint8_t *)&place->head,
                                     .receive = memory + 2 * bytes,
                                     .received = (uint8_t *)&place->head,
                                     .found = &place->found,
                                     .receive_stride = bytes,
                                     .bytes = bytes,
                                     .peer = -1,
                                     .step = 1};
    struct overflow_probe overflow_probe = {.jobs = {all, all}, .found = MESSAGE_OVERFLOWS};
    if (proxy_is_lazy(ccomm)) {
        overflow_probe.jobs[0].peer = overflow_to(ccomm);
        overflow_probe.jobs[0].received = NULL;
        overflow_probe.jobs[1].peer = overflow_from(ccomm);
        overflow_probe.jobs[1].sent = NULL;
    }
    overflow_probe.head.magic = MESSAGE_MAGIC;
    overflow_probe.head.first = round * ring_slots(&ccomm->shared.rings, bytes);
    rank_set_add(&overflow_probe.head.row, 0);
    overflow_probe.head.sum = head_sum(&overflow_probe.head);
    return overflow_probe;
}

static bool measures_overflow(const struct coll_ccomm *ccomm)
{
    return !proxy_is_lazy(ccomm) || overflow_to(ccomm) >= 0;
}

/* Moves a message of measure_overflow_bytes() from each rank to each other one, or by the connections that there are,
 * as overflow is moved, between the probe's events; `round` counts from 0. */
static bool measure_overflow(struct coll_ccomm *ccomm, unsigned round)
{
    const struct overflow_probe overflow_probe = overflow_probe_of(ccomm, round);
    struct overflow_probe *place =
        (struct overflow_probe *)(void *)(ccomm->probe.memory + measure_overflow_bytes(ccomm));
    const struct gpu_exchange what = {.rings = ccomm->shared.rings,
                                      .ends = ccomm->ends,
                                      .jobs = place->jobs,
                                      .host_status = ccomm->host_status,
                                      .patience_ns = PATIENCE_NS,
                                      .pair_patience_ns = PATIENCE_NS,
                                      .count = proxy_is_lazy(ccomm) ? 2 : 1,
                                      .kind = EXCHANGE_BEHIND};
    return !measures_overflow(ccomm) ||
           (ccomm->gpu->copy(place, &overflow_probe, sizeof(overflow_probe), ccomm->stream) &&
            ccomm->gpu->event_record(ccomm->probe.begin, ccomm->stream) && ccomm->gpu->exchange(&what, ccomm->stream) &&
            ccomm->gpu->event_record(ccomm->probe.end, ccomm->stream));
}

static bool read_overflow(struct coll_ccomm *ccomm)
{
    return !measures_overflow(ccomm) || read_time(ccomm, PROBE_OVERFLOW);
}

/* The same message from each rank to each other one as for LINK_EXCHANGE, through channels. */
static bool measure_shm(struct coll_ccomm *ccomm, unsigned round)
{
    const size_t size = measure_large(ccomm);
    uint8_t *memory = ccomm->probe.memory;
    const struct gpu_shm message = {
        .send = memory, .receive = memory + size, .receive_stride = size, .bytes = size, .patience_ns = PATIENCE_NS};
    (void)round;
    return !has_channels(ccomm) || (begin(ccomm) && shm_move(ccomm, &message, ccomm->stream) && record(ccomm));
}

/* Patterns that were not measured cost as much as a gather, except through channels. Small messages to all ranks may
 * take longer than large ones inside a host. */
static void set_cost(struct coll_ccomm *ccomm)
{
    const double *seconds = ccomm->probe.seconds, small = seconds[PROBE_SMALL];
    const double bytes = (double)(measure_large(ccomm) - SMALL);
    struct link_costs *cost = &ccomm->cost;
    for (int use = 0; use < LINK_USES; use++) {
        const double large = seconds[use] > 0 ? seconds[use] : seconds[LINK_GATHER];
        cost->per[use] = large > small ? (large - small) / bytes : 0;
    }
    if (seconds[LINK_LOCAL] > 0)
        cost->per[LINK_LOCAL] = seconds[LINK_LOCAL] / (double)measure_large(ccomm);
    cost->per[LINK_SHM] = seconds[LINK_SHM] / (double)measure_large(ccomm);
    cost->start = small;
    cost->encode = seconds[PROBE_ENCODE];
    cost->decode = seconds[PROBE_DECODE];
    cost->overflow = seconds[PROBE_OVERFLOW] / (double)measure_overflow_bytes(ccomm) * measure_overflow_share(ccomm);
}

/* The fastest link counts, and the slowest codec: others wait for it; of connections between some ranks the slowest,
 * which tells of all. */
static bool counts(const struct coll_ccomm *ccomm, int which, double seconds, double before)
{
    const bool slowest =
        which == PROBE_ENCODE || which == PROBE_DECODE || (which == PROBE_OVERFLOW && proxy_is_lazy(ccomm));
    return slowest ? seconds > before : seconds < before;
}

/* Nothing else can differ between ranks by now: all take the same one's measurement. */
static bool settle(struct coll_ccomm *ccomm)
{
    double *seconds = ccomm->probe.seconds, *all = ccomm_gathered(ccomm, sizeof(ccomm->probe.seconds));
    if (all == NULL)
        return false;
    for (size_t i = 0; i < (size_t)ccomm->ranks * PROBES; i++)
        if (i < PROBES || counts(ccomm, (int)(i % PROBES), all[i], seconds[i % PROBES]))
            seconds[i % PROBES] = all[i];
    set_cost(ccomm);
    free(all);
    return true;
}

/* By faster links hardly anything is compressed, and sends and receives, which few programs use, would make NCCL
 * connect every rank with all others. */
static bool end_if_fast(struct coll_ccomm *ccomm)
{
    const double coding = (ccomm->cost.encode + ccomm->cost.decode) * (ccomm->ranks - 1);
    ccomm->probe.over = SAVED * ccomm->cost.per[LINK_GATHER] <= coding;
    return true;
}

/* ---- All of this process, also of several communicators ---------------------------------------------------------- */

/* After a rank has gone NCCL may never end what it moves: nothing more is asked for. */
static void note(struct coll_ccomm *ccomm, bool good)
{
    ccomm->probe.bad |= !good;
    ccomm->probe.over |= !good && ccomm_has_failed(ccomm);
}

static void each(struct coll_ccomm *const ccomms[], unsigned count, bool (*what)(struct coll_ccomm *))
{
    for (unsigned i = 0; i < count; i++) {
        struct coll_ccomm *ccomm = ccomms[i];
        int before;
        if (ccomm->probe.over)
            continue;
        bool good = ccomm->gpu->enter(ccomm->device, &before);
        if (good) {
            good = what(ccomm);
            ccomm->gpu->leave(before);
        }
        note(ccomm, good);
    }
}

typedef void calling(struct coll_ccomm *const ccomms[], unsigned count, bool (*what)(struct coll_ccomm *));

static void grouped_by(calling *call, struct coll_ccomm *const ccomms[], unsigned count,
                       bool (*what)(struct coll_ccomm *))
{
    const struct coll_table *nccl = ccomms[0]->host.nccl;
    bool good = nccl->GroupStart() == COLL_SUCCESS;
    if (good)
        call(ccomms, count, what);
    good = nccl->GroupEnd() == COLL_SUCCESS && good;
    for (unsigned i = 0; i < count && !good; i++)
        if (!ccomms[i]->probe.over && (call == each || shm_wants(ccomms[i]))) /* others have asked for nothing */
            note(ccomms[i], false);
}

static void grouped(struct coll_ccomm *const ccomms[], unsigned count, bool (*what)(struct coll_ccomm *))
{
    grouped_by(each, ccomms, count, what);
}

static void repeat(struct coll_ccomm *const ccomms[], unsigned count, bool (*what)(struct coll_ccomm *),
                   bool (*read)(struct coll_ccomm *), unsigned rounds)
{
    for (unsigned i = 0; i < rounds; i++) {
        grouped(ccomms, count, what);
        each(ccomms, count, record);
        each(ccomms, count, read);
    }
}

/* NCCL moves something first, so that all ranks begin together. */
static void round_of(struct coll_ccomm *const ccomms[], unsigned count, unsigned number,
                     bool (*together)(struct coll_ccomm *), bool (*what)(struct coll_ccomm *, unsigned number),
                     bool (*read)(struct coll_ccomm *))
{
    grouped(ccomms, count, together);
    for (unsigned i = 0; i < count; i++) {
        struct coll_ccomm *ccomm = ccomms[i];
        int before;
        if (ccomm->probe.over || ccomm->probe.bad)
            continue;
        bool good = ccomm->gpu->enter(ccomm->device, &before);
        if (good) {
            good = what(ccomm, number);
            ccomm->gpu->leave(before);
        }
        note(ccomm, good);
    }
    each(ccomms, count, read);
}

static bool has_not_failed(struct coll_ccomm *ccomm)
{
    return __atomic_load_n(&ccomm->host_status->failed, __ATOMIC_ACQUIRE) == 0;
}

static bool end_overflow(struct coll_ccomm *ccomm)
{
    const uint64_t next = ROUNDS * ring_slots(&ccomm->shared.rings, measure_overflow_bytes(ccomm));
    return ccomm->gpu->copy(&ccomm->ends->next, &next, sizeof(next), ccomm->stream) && ccomm_wait(ccomm) &&
           has_not_failed(ccomm);
}

static void overflow_rounds(struct coll_ccomm *const ccomms[], unsigned count)
{
    for (unsigned i = 0; i < ROUNDS; i++)
        round_of(ccomms, count, i, gather_small, measure_overflow, read_overflow);
    each(ccomms, count, end_overflow);
}

/* ---- Agreeing ---------------------------------------------------------------------------------------------------- */

static bool gather_good(struct coll_ccomm *ccomm)
{
    return ccomm_gather_good(ccomm, !ccomm->probe.bad);
}

/* A rank that cannot read what the others have voted, though its own vote was good, knows nothing of them. */
static bool accept_good(struct coll_ccomm *ccomm)
{
    bool all;
    const bool moved = ccomm_all_good(ccomm, &all);
    ccomm->probe.raw = !all && (moved || (ccomm->probe.bad && !ccomm_has_failed(ccomm)));
    ccomm->probe.over |= !all;
    return all;
}

/* Those of which a rank has failed are over. The times are gathered before, as reading them may fail, too. */
static void agree(struct coll_ccomm *const ccomms[], unsigned count)
{
    grouped(ccomms, count, gather_times);
    each(ccomms, count, settle);
    grouped(ccomms, count, gather_good);
    each(ccomms, count, accept_good);
}

/* ---- Channels ---------------------------------------------------------------------------------------------------- */

/* Called for those that want channels. */
static void each_wanting(struct coll_ccomm *const ccomms[], unsigned count, bool (*what)(struct coll_ccomm *))
{
    for (unsigned i = 0; i < count; i++)
        if (shm_wants(ccomms[i]))
            each(&ccomms[i], 1, what);
}

static void grouped_wanting(struct coll_ccomm *const ccomms[], unsigned count, bool (*what)(struct coll_ccomm *))
{
    grouped_by(each_wanting, ccomms, count, what);
}

static void reach_channels(struct coll_ccomm *const ccomms[], unsigned count)
{
    grouped_wanting(ccomms, count, shm_gather_made);
    each_wanting(ccomms, count, shm_reach);
    grouped_wanting(ccomms, count, shm_gather_reached);
    each_wanting(ccomms, count, shm_accept);
}

void channels_make(struct coll_ccomm *const ccomms[], unsigned count)
{
    reach_channels(ccomms, count);
    grouped_wanting(ccomms, count, gather_good);
    each_wanting(ccomms, count, accept_good);
}

static bool any_channels(struct coll_ccomm *const ccomms[], unsigned count)
{
    bool any = false;
    for (unsigned i = 0; i < count; i++)
        any |= has_channels(ccomms[i]);
    return any;
}

/* Not of those without channels: another process may have these alone, and gathers nothing then. */
static bool gather_shm(struct coll_ccomm *ccomm)
{
    return !has_channels(ccomm) || gather_small(ccomm);
}

static void shm_rounds(struct coll_ccomm *const ccomms[], unsigned count)
{
    reach_channels(ccomms, count);
    for (unsigned i = 0; i < ROUNDS && any_channels(ccomms, count); i++)
        round_of(ccomms, count, i, gather_shm, measure_shm, read_shm);
    each(ccomms, count, has_not_failed);
}

static bool any_rails(struct coll_ccomm *const ccomms[], unsigned count)
{
    bool any = false;
    for (unsigned i = 0; i < count; i++)
        any |= ccomms[i]->shared.rails.each > 0;
    return any;
}

void measure_links(struct coll_ccomm *const ccomms[], unsigned count)
{
    repeat(ccomms, count, gather_small, read_small, ROUNDS);
    repeat(ccomms, count, gather_large, read_gather, ROUNDS);
    overflow_rounds(ccomms, count);
    agree(ccomms, count);
    each(ccomms, count, end_if_fast);
    repeat(ccomms, count, exchange, read_exchange, LARGE_ROUNDS);
    repeat(ccomms, count, scatter, read_scatter, LARGE_ROUNDS);
    shm_rounds(ccomms, count);
    if (any_rails(ccomms, count)) {
        repeat(ccomms, count, exchange_local, read_local, LARGE_ROUNDS);
        repeat(ccomms, count, exchange_rail, read_rail, LARGE_ROUNDS);
    }
    agree(ccomms, count);
}
