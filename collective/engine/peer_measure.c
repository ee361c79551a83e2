/* What this wire and NCCL take to gather values that can be compressed, when a communicator is made: the same numbers
 * on all ranks, NCCL's from the rank where it was fastest, this wire's from the one where it was slowest. */
#include <stdio.h>
#include <stdlib.h>

#include "collective/engine/peer_entry.h"

enum { TILE = 1 << 20, TURNS = 4 };

static const size_t sizes[PEER_SIZES] = {2 << 20, 32 << 20};

/* ---- One member, whose GPU is current ---------------------------------------------------------------------------- */

bool peer_measured(const struct coll_member *member)
{
    return !member->forced && member->host.settings.wire == COLL_WIRE_AUTO;
}

/* BF16 with the exponents of a bell curve: of numbers spread evenly, each added to three others. */
static void fill_tile(uint16_t *tile)
{
    uint64_t state = 1;
    for (size_t i = 0; i < TILE / sizeof(*tile); i++) {
        int32_t sum = 0;
        for (int j = 0; j < 4; j++) {
            state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            sum += (int32_t)(state >> 40) - (1 << 23);
        }
        union {
            float value;
            uint32_t bits;
        } word = {.value = (float)sum * 0x1p-30f};
        tile[i] = (uint16_t)(word.bits >> 16);
    }
}

bool peer_measure_prepare(struct peer_entry *entry)
{
    const struct gpu_ops *gpu = entry->member->gpu;
    const size_t most = sizes[PEER_SIZES - 1];
    uint16_t *tile = malloc(TILE);
    entry->probe = gpu->allocate(most * ((size_t)entry->member->ranks + 1), true);
    entry->begin = gpu->event_make(true);
    entry->end = gpu->event_make(true);
    bool good = tile != NULL && entry->probe != NULL && entry->begin != NULL && entry->end != NULL;
    if (good)
        fill_tile(tile);
    for (size_t at = 0; at < most && good; at += TILE)
        good = gpu->copy(entry->probe + at, tile, TILE, entry->member->stream);
    good = good && gpu->stream_wait(entry->member->stream);
    free(tile);
    return good;
}

bool peer_measure_end(struct peer_entry *entry)
{
    const struct gpu_ops *gpu = entry->member->gpu;
    gpu->release(entry->probe);
    if (entry->begin != NULL)
        gpu->event_end(entry->begin);
    if (entry->end != NULL)
        gpu->event_end(entry->end);
    return true;
}

static bool begin(struct peer_entry *entry)
{
    return entry->member->gpu->event_record(entry->begin, entry->member->stream);
}

static bool end(struct peer_entry *entry)
{
    return entry->member->gpu->event_record(entry->end, entry->member->stream);
}

/* The shortest time so far. */
static bool read_time(const struct peer_entry *entry, double *seconds)
{
    const struct gpu_ops *gpu = entry->member->gpu;
    if (!gpu->stream_wait(entry->member->stream))
        return false;
    const double now = gpu->event_seconds(entry->begin, entry->end);
    if (*seconds == 0 || now < *seconds)
        *seconds = now;
    return now >= 0;
}

/* ---- All of this process ----------------------------------------------------------------------------------------- */

static struct coll_step step_of(const struct peer_entry *entry, size_t size)
{
    const struct coll_call call = {.operation = COLL_ALL_GATHER,
                                   .send = entry->probe,
                                   .receive = entry->probe + sizes[PEER_SIZES - 1],
                                   .count = size / 2,
                                   .type = COLL_BF16,
                                   .comm = entry->member->comm,
                                   .stream = entry->member->stream};
    return (struct coll_step){.member = entry->member, .call = call, .phases = 1, .pieces = 1, .peer = true};
}

static bool gather_own(struct peer_entry *entries, unsigned count, size_t size)
{
    struct coll_step *steps = calloc(count, sizeof(*steps));
    bool good = steps != NULL;
    for (unsigned i = 0; i < count && good; i++)
        steps[i] = step_of(&entries[i], size);
    good = good && peer_run(steps, count) == COLL_SUCCESS;
    free(steps);
    return good;
}

static bool gather_plain(struct peer_entry *entries, unsigned count, size_t size)
{
    const struct coll_table *nccl = entries[0].member->host.nccl;
    bool good = nccl->GroupStart() == COLL_SUCCESS;
    for (unsigned i = 0; i < count && good; i++) {
        const struct coll_call call = step_of(&entries[i], size).call;
        good = nccl->AllGather(call.send, call.receive, call.count, call.type, call.comm, call.stream) == COLL_SUCCESS;
    }
    return nccl->GroupEnd() == COLL_SUCCESS && good;
}

static bool turn(struct peer_entry *entries, unsigned count, int size, bool own)
{
    bool good = peer_each(entries, count, begin) && (own ? gather_own : gather_plain)(entries, count, sizes[size]) &&
                peer_each(entries, count, end);
    for (unsigned i = 0; i < count && good; i++)
        good = read_time(&entries[i], own ? &entries[i].times.own[size] : &entries[i].times.plain[size]);
    return good;
}

static bool tell(struct peer_entry *entry)
{
    const struct coll_member *member = entry->member;
    struct peer_times *all = (void *)entry->told, *own = all + member->ranks;
    return member->gpu->copy(own, &entry->times, sizeof(*own), member->stream) &&
           member->host.nccl->AllGather(own, all, sizeof(*own), COLL_UINT8, member->comm, member->stream) ==
               COLL_SUCCESS;
}

static struct link_cost cost_of(const double seconds[PEER_SIZES])
{
    const double bytes = (double)(sizes[1] - sizes[0]);
    const double per_byte = seconds[1] > seconds[0] ? (seconds[1] - seconds[0]) / bytes : 0;
    const double start = seconds[0] - per_byte * (double)sizes[0];
    return (struct link_cost){.start = start > 0 ? start : 0, .per_byte = per_byte};
}

static bool settle(struct peer_entry *entry)
{
    struct coll_member *member = entry->member;
    const size_t ranks = (size_t)member->ranks;
    struct peer_times *all = calloc(ranks, sizeof(*all)), worst = {{0}, {0}};
    const bool good = all != NULL && member->gpu->copy(all, entry->told, ranks * sizeof(*all), member->stream) &&
                      member->gpu->stream_wait(member->stream);
    for (size_t rank = 0; rank < ranks && good; rank++)
        for (int size = 0; size < PEER_SIZES; size++) {
            if (rank == 0 || all[rank].plain[size] < worst.plain[size])
                worst.plain[size] = all[rank].plain[size];
            if (all[rank].own[size] > worst.own[size])
                worst.own[size] = all[rank].own[size];
        }
    member->peer->plain = cost_of(worst.plain);
    member->peer->own = cost_of(worst.own);
    free(all);
    return good;
}

bool peer_measure(struct peer_entry *entries, unsigned count)
{
    bool good = true;
    for (int size = 0; size < PEER_SIZES && good; size++)
        for (int i = 0; i < 2 * TURNS && good; i++)
            good = turn(entries, count, size, i % 2 == 1);
    return good && peer_grouped(entries, count, tell) && peer_each(entries, count, settle);
}

static double rate_of(const struct link_cost *cost)
{
    return cost->per_byte > 0 ? 1e-9 / cost->per_byte : 0;
}

void peer_describe(const struct coll_member *member, char *text, size_t size)
{
    const struct peer_wire *wire = member->peer;
    if (wire == NULL)
        snprintf(text, size, "%s%s", member->no_peer[0] != '\0' ? ", no wire peer: " : "", member->no_peer);
    else if (!peer_measured(member))
        snprintf(text, size, ", wire peer");
    else
        snprintf(text, size, ", wire peer: %.1f us and %.1f GB/s, where NCCL has %.1f us and %.1f GB/s",
                 wire->own.start * 1e6, rate_of(&wire->own), wire->plain.start * 1e6, rate_of(&wire->plain));
}
