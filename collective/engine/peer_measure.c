/* Measures, when a communicator is made, how long this wire and NCCL take to gather compressible values. All ranks use
 * the same numbers: NCCL's from the rank where it was fastest, this wire's from the one where it was slowest.
 *
 * How many pieces to leave uncompressed depends on the speed of the codec relative to the link's, and on what launches
 * in between leave of both; whether encoders fill the link by themselves depends on the link. So several ways are
 * tried, and all ranks take the fastest. */
#include <stdio.h>
#include <stdlib.h>

#include "collective/engine/peer_entry.h"

enum { TILE = PEER_PAGE, TURNS = 3, AT_ONCE = 2 };

/* The first way is also used for small messages. */
static const struct way {
    uint32_t direct, bare, cross;
} ways[PEER_TRIALS - PEER_OWN] = {{0, 4, 1}, {0, 4, 2}, {0, 2, 1}, {0, 2, 2}, {0, 0, 2}, {0, 1, 2}, {1, 0, 1}};

/* ---- One member, whose GPU is current ---------------------------------------------------------------------------- */

bool peer_compared(const struct coll_member *member)
{
    return !member->forced && member->host.settings.wire == COLL_WIRE_AUTO;
}

bool peer_measured(const struct coll_member *member, const struct peer_wire *wire)
{
    return wire->tuning.open != 0 || peer_compared(member);
}

/* A large message is cut into about ten pieces, a small one is not cut. */
static size_t size_of(const struct peer_wire *wire, bool large)
{
    const size_t small = wire->tuning.piece / 16;
    return large ? 4 * (size_t)wire->tuning.piece : small < PEER_PAGE ? PEER_PAGE : small;
}

static bool is_large(int trial)
{
    return trial == PEER_PLAIN || trial >= PEER_OWN;
}

static bool is_own(int trial)
{
    return trial >= PEER_OWN_SMALL;
}

static bool is_tried(const struct coll_member *member, const struct peer_wire *wire, int trial)
{
    if (trial > PEER_OWN)
        return (wire->tuning.open & (ways[trial - PEER_OWN].direct ? PEER_OPEN_DIRECT : PEER_OPEN_SHARE)) != 0;
    return trial == PEER_OWN || peer_compared(member);
}

/* BF16 values whose exponents are distributed as in a bell curve: each is a sum of four uniform random numbers. */
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
    const size_t most = size_of(entry->wire, true) * (size_t)entry->member->ranks;
    uint16_t *tile = malloc(TILE);
    entry->probe = gpu->allocate(most, true);
    entry->begin = gpu->event_make(true);
    entry->end = gpu->event_make(true);
    bool good = tile != NULL && entry->probe != NULL && entry->begin != NULL && entry->end != NULL;
    if (good)
        fill_tile(tile);
    good = good && gpu->copy(entry->probe, tile, TILE, entry->member->stream);
    for (size_t filled = TILE; filled < most && good; filled *= 2)
        good = gpu->copy(entry->probe + filled, entry->probe, filled < most - filled ? filled : most - filled,
                         entry->member->stream);
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

/* Keeps the shortest time so far. */
static bool read_time(const struct peer_entry *entry, double *seconds)
{
    const struct gpu_ops *gpu = entry->member->gpu;
    if (!gpu->stream_wait(entry->member->stream))
        return false;
    const double now = gpu->event_seconds(entry->begin, entry->end) / AT_ONCE;
    if (*seconds == 0 || now < *seconds)
        *seconds = now;
    return now >= 0;
}

/* ---- All of this process ----------------------------------------------------------------------------------------- */

/* In place. */
static struct coll_step step_of(const struct peer_entry *entry, int trial)
{
    const size_t size = size_of(entry->wire, is_large(trial));
    const struct coll_call call = {.operation = COLL_ALL_GATHER,
                                   .send = entry->probe + (size_t)entry->member->rank * size,
                                   .receive = entry->probe,
                                   .count = size / 2,
                                   .type = COLL_BF16,
                                   .comm = entry->member->comm,
                                   .stream = entry->member->stream};
    return (struct coll_step){.member = entry->member, .call = call, .phases = 1, .pieces = 1, .peer = true};
}

static void take_way(struct peer_wire *wire, int trial)
{
    if (wire->tuning.open == 0)
        return;
    const struct way *way = &ways[trial > PEER_OWN ? trial - PEER_OWN : 0];
    wire->tuning.direct = way->direct;
    wire->tuning.bare = way->bare;
    wire->tuning.cross = way->cross;
}

static bool gather_own(struct peer_entry *entries, unsigned count, int trial)
{
    struct coll_step *steps = calloc(count, sizeof(*steps));
    bool good = steps != NULL;
    for (unsigned i = 0; i < count && good; i++) {
        take_way(entries[i].wire, trial);
        steps[i] = step_of(&entries[i], trial);
    }
    good = good && peer_run(steps, count) == COLL_SUCCESS;
    free(steps);
    return good;
}

static bool gather_plain(struct peer_entry *entries, unsigned count, int trial)
{
    const struct coll_table *nccl = entries[0].member->host.nccl;
    bool good = nccl->GroupStart() == COLL_SUCCESS;
    for (unsigned i = 0; i < count && good; i++) {
        const struct coll_call call = step_of(&entries[i], trial).call;
        good = nccl->AllGather(call.send, call.receive, call.count, call.type, call.comm, call.stream) == COLL_SUCCESS;
    }
    return nccl->GroupEnd() == COLL_SUCCESS && good;
}

/* Two, one behind the other: the second is launched while the first runs, as when a program is ahead of its GPU. */
static bool try_once(struct peer_entry *entries, unsigned count, int trial)
{
    bool good = peer_each(entries, count, begin);
    for (int i = 0; i < AT_ONCE && good; i++)
        good = (is_own(trial) ? gather_own : gather_plain)(entries, count, trial);
    good = good && peer_each(entries, count, end);
    for (unsigned i = 0; i < count && good; i++)
        good = read_time(&entries[i], &entries[i].times.of[trial]);
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

static struct link_cost cost_of(const struct peer_wire *wire, double small, double large)
{
    const double less = (double)size_of(wire, false), bytes = (double)size_of(wire, true) - less;
    const double per_byte = large > small ? (large - small) / bytes : 0;
    const double start = small - per_byte * less;
    return (struct link_cost){.start = start > 0 ? start : 0, .per_byte = per_byte};
}

/* Combines what all ranks measured. */
static struct peer_times of_all(const struct peer_times *all, int ranks)
{
    struct peer_times times = all[0];
    for (int trial = 0; trial < PEER_TRIALS; trial++)
        for (int rank = 1; rank < ranks; rank++)
            if (is_own(trial) ? all[rank].of[trial] > times.of[trial] : all[rank].of[trial] < times.of[trial])
                times.of[trial] = all[rank].of[trial];
    return times;
}

static int fastest_way(const struct peer_wire *wire, const struct peer_times *times)
{
    int best = PEER_OWN;
    for (int trial = PEER_OWN; trial < PEER_TRIALS && wire->tuning.open != 0; trial++)
        if (times->of[trial] > 0 && times->of[trial] < times->of[best])
            best = trial;
    return best;
}

static bool settle(struct peer_entry *entry)
{
    struct coll_member *member = entry->member;
    struct peer_wire *wire = entry->wire;
    const size_t ranks = (size_t)member->ranks;
    struct peer_times *all = calloc(ranks, sizeof(*all));
    const bool good = all != NULL && member->gpu->copy(all, entry->told, ranks * sizeof(*all), member->stream) &&
                      member->gpu->stream_wait(member->stream);
    if (good) {
        const struct peer_times times = of_all(all, member->ranks);
        const int best = fastest_way(wire, &times);
        take_way(wire, best);
        wire->plain = cost_of(wire, times.of[PEER_PLAIN_SMALL], times.of[PEER_PLAIN]);
        wire->own = cost_of(wire, times.of[PEER_OWN_SMALL], times.of[best]);
    }
    free(all);
    return good;
}

/* Takes all trials in turn, so that a passing disturbance affects all of them alike. */
bool peer_measure(struct peer_entry *entries, unsigned count)
{
    bool good = true;
    for (int i = 0; i < TURNS * PEER_TRIALS && good; i++)
        if (is_tried(entries[0].member, entries[0].wire, i % PEER_TRIALS))
            good = try_once(entries, count, i % PEER_TRIALS);
    return good && peer_grouped(entries, count, tell) && peer_each(entries, count, settle);
}

static double rate_of(const struct link_cost *cost)
{
    return cost->per_byte > 0 ? 1e-9 / cost->per_byte : 0;
}

void peer_describe(const struct coll_member *member, char *text, size_t size)
{
    const struct peer_wire *wire = member->peer;
    if (wire == NULL) {
        snprintf(text, size, "%s%s", member->no_peer[0] != '\0' ? ", no wire peer: " : "", member->no_peer);
        return;
    }
    const int used = snprintf(text, size, ", wire peer (%sbare=%u,cross=%u)", wire->tuning.direct != 0 ? "direct," : "",
                              wire->tuning.bare, wire->tuning.cross);
    if (peer_compared(member) && used > 0 && (size_t)used < size)
        snprintf(text + used, size - (size_t)used, ": %.1f us and %.1f GB/s, where NCCL has %.1f us and %.1f GB/s",
                 wire->own.start * 1e6, rate_of(&wire->own), wire->plain.start * 1e6, rate_of(&wire->plain));
}
