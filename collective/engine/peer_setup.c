#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "collective/engine/peer.h"
#include "collective/engine/peer_rounds.h"

/* Measures, when a communicator is made, how long this wire and NCCL take to gather compressible values. All ranks use
 * the same numbers: NCCL's from the rank where it was fastest, this wire's from the one where it was slowest.
 *
 * How many pieces to leave uncompressed depends on the speed of the codec relative to the link's, and on what launches
 * in between leave of both; whether encoders fill the link by themselves depends on the link. So several ways are
 * tried, and all ranks take the fastest. */

enum { TILE = PEER_PAGE, TURNS = 3, AT_ONCE = 2 };

/* The first way is also used for small messages. */
static const struct way {
    uint32_t direct, bare, cross;
} ways[PEER_TRIALS - PEER_OWN] = {{0, 4, 1}, {0, 4, 2}, {0, 2, 1}, {0, 2, 2}, {0, 0, 2}, {0, 1, 2}, {1, 0, 1}};

/* ---- One member, whose GPU is current ---------------------------------------------------------------------------- */

bool peer_compared(const struct coll_ccomm *member)
{
    return !member->forced && member->host.settings.wire == COLL_WIRE_AUTO;
}

bool peer_measured(const struct coll_ccomm *member, const struct peer_wire *wire)
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

static bool is_tried(const struct coll_ccomm *member, const struct peer_wire *wire, int trial)
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

static bool end_peer_measure(struct peer_entry *entry)
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
static struct coll_op step_of(const struct peer_entry *entry, int trial)
{
    const size_t size = size_of(entry->wire, is_large(trial));
    const struct coll_call call = {.operation = COLL_ALL_GATHER,
                                   .send = entry->probe + (size_t)entry->member->rank * size,
                                   .receive = entry->probe,
                                   .count = size / 2,
                                   .type = COLL_BF16,
                                   .comm = entry->member->comm,
                                   .stream = entry->member->stream};
    return (struct coll_op){.member = entry->member, .call = call, .phases = 1, .pieces = 1, .peer = true};
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
    struct coll_op *steps = calloc(count, sizeof(*steps));
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
    good = good && peer_each(entries, count, end_peer_measure);
    for (unsigned i = 0; i < count && good; i++)
        good = read_time(&entries[i], &entries[i].times.of[trial]);
    return good;
}

static bool peer_measure_tell(struct peer_entry *entry)
{
    const struct coll_ccomm *member = entry->member;
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

static bool peer_measure_settle(struct peer_entry *entry)
{
    struct coll_ccomm *member = entry->member;
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
    return good && peer_grouped(entries, count, peer_measure_tell) && peer_each(entries, count, peer_measure_settle);
}

static double rate_of(const struct link_cost *cost)
{
    return cost->per_byte > 0 ? 1e-9 / cost->per_byte : 0;
}

void peer_describe(const struct coll_ccomm *member, char *text, size_t size)
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

/* Makes the wire `peer` when a communicator is made: every rank tells where its arena is, and tries to reach those of
 * the others. If one rank cannot, none uses the wire. */

/* ---- Alone ------------------------------------------------------------------------------------------------------- */

static bool refuse(struct peer_entry *entry, const char *why)
{
    entry->own.able = 0;
    if (entry->own.why[0] == '\0')
        snprintf(entry->own.why, sizeof(entry->own.why), "%s", why);
    return false;
}

/* Scratch for the largest call of the codec: a piece with a tail from each other rank. */
static bool scratch_sizes(struct peer_wire *wire, const struct coll_ccomm *member)
{
    static uint64_t somewhere;
    struct strait_region region[2] = {{.base = &somewhere,
                                       .page_stride = PEER_PAGE,
                                       .row_stride = PEER_PAGE,
                                       .page_count = wire->tuning.piece / PEER_PAGE,
                                       .rows = 1,
                                       .row_bytes = PEER_PAGE}};
    struct strait_encode_item encode[2 * PEER_RANKS_MAX] = {0};
    struct strait_decode_item decode[2 * PEER_RANKS_MAX] = {0};
    const uint32_t count = 2 * (uint32_t)(member->ranks - 1);
    region[1] = region[0];
    region[1].page_count = 1;
    for (uint32_t i = 0; i < count; i++) {
        const struct strait_pages pages = {
            .regions = &region[i % 2], .region_count = 1, .id_count = region[i % 2].page_count};
        encode[i].src = decode[i].dst = pages;
        decode[i].src_size = wire->slot;
    }
    for (uint32_t i = 0; i < PEER_ENCODERS_MAX; i++)
        wire->encoding[i].size = strait_encode_scratch_size(member->codec, encode, count);
    for (uint32_t i = 0; i < PEER_DECODERS_MAX; i++)
        wire->decoding[i].size = strait_decode_scratch_size(member->codec, decode, count);
    return wire->encoding[0].size > 0 && wire->decoding[0].size > 0;
}

static bool make_scratch(struct peer_scratch *scratch, unsigned count, const struct gpu_ops *gpu)
{
    bool good = true;
    for (unsigned i = 0; i < count && good; i++)
        good = (scratch[i].memory = gpu->allocate(scratch[i].size, true)) != NULL;
    return good;
}

static void free_scratch(const struct peer_scratch *scratch, unsigned count, const struct gpu_ops *gpu)
{
    for (unsigned i = 0; i < count; i++)
        gpu->release(scratch[i].memory);
}

static bool make_memory(struct peer_wire *wire, const struct coll_ccomm *member)
{
    const struct gpu_ops *gpu = member->gpu;
    const int ranks = member->ranks;
    if (!scratch_sizes(wire, member))
        return false;
    wire->arena = gpu->allocate(peer_arena_bytes(wire, ranks), true);
    wire->outgoing = gpu->allocate(peer_outgoing_bytes(wire, ranks), true);
    wire->counters = gpu->allocate(sizeof(*wire->counters), true);
    wire->world = gpu->allocate(sizeof(*wire->world), true);
    wire->results = gpu->allocate(peer_results_bytes(ranks), true);
    wire->asides = gpu->allocate(peer_asides_bytes(wire, ranks), true);
    wire->host_status = gpu->allocate_pinned(sizeof(*wire->host_status));
    wire->last = gpu->event_make(false);
    return wire->arena != NULL && wire->outgoing != NULL && wire->counters != NULL && wire->world != NULL &&
           wire->results != NULL && wire->asides != NULL && wire->host_status != NULL && wire->last != NULL &&
           make_scratch(wire->encoding, PEER_ENCODERS_MAX, gpu) && make_scratch(wire->decoding, PEER_DECODERS_MAX, gpu);
}

static void free_memory(struct peer_wire *wire, const struct gpu_ops *gpu, bool arena)
{
    if (arena)
        gpu->release(wire->arena);
    gpu->release(wire->outgoing);
    gpu->release(wire->counters);
    gpu->release(wire->world);
    gpu->release(wire->results);
    gpu->release(wire->asides);
    free_scratch(wire->encoding, PEER_ENCODERS_MAX, gpu);
    free_scratch(wire->decoding, PEER_DECODERS_MAX, gpu);
    gpu->release(wire->sums);
    gpu->release_pinned(wire->host_status);
    if (wire->last != NULL)
        gpu->event_end(wire->last);
}

static bool prepare(struct peer_entry *entry)
{
    struct coll_ccomm *member = entry->member;
    const struct gpu_ops *gpu = member->gpu;
    if (member->ranks > PEER_RANKS_MAX)
        return refuse(entry, "more ranks than a host has");
    const char *disabled = getenv("NCCL_P2P_DISABLE");
    if (disabled != NULL && strcmp(disabled, "1") == 0)
        return refuse(entry, "NCCL_P2P_DISABLE=1");
    struct peer_wire *wire = entry->wire = calloc(1, sizeof(*wire));
    if (wire == NULL)
        return refuse(entry, "no memory");
    if (!peer_tuning_of(&wire->tuning, member->host.settings.peer, member->ranks))
        member->host.say("STRAIT_COLL_PEER=%s is not understood: not used", member->host.settings.peer);
    entry->own.tuning = wire->tuning;
    wire->slot = peer_slot_bytes(&wire->tuning);
    if (!make_memory(wire, member))
        return refuse(entry, "no memory for slots");
    if (peer_measured(member, wire) && !peer_measure_prepare(entry))
        return refuse(entry, "no memory to measure it with");
    if (!gpu->peer->prepare())
        return refuse(entry, "its kernels do not run on this GPU");
    if (!gpu->peer->share(wire->arena, &entry->own.handle))
        return refuse(entry, "memory cannot be told of");
    wire->reached[member->rank] = wire->arena;
    return true;
}

/* ---- Together ---------------------------------------------------------------------------------------------------- */

static bool peer_join_tell(struct peer_entry *entry)
{
    struct coll_ccomm *member = entry->member;
    struct peer_offer *own = entry->told + member->ranks;
    return member->gpu->copy(own, &entry->own, sizeof(*own), member->stream) &&
           member->host.nccl->AllGather(own, entry->told, sizeof(*own), COLL_UINT8, member->comm, member->stream) ==
               COLL_SUCCESS;
}

static bool hear(struct peer_entry *entry, struct peer_offer *all)
{
    const struct coll_ccomm *member = entry->member;
    return member->gpu->copy(all, entry->told, sizeof(*all) * (size_t)member->ranks, member->stream) &&
           member->gpu->stream_wait(member->stream);
}

/* False: one of the ranks is not able; sets why. */
static bool are_able(struct peer_entry *entry, const struct peer_offer *all)
{
    struct coll_ccomm *member = entry->member;
    for (int rank = 0; rank < member->ranks; rank++) {
        const char *why = NULL;
        if (all[rank].able == 0)
            why = all[rank].why;
        else if (all[rank].handle.host != entry->own.handle.host)
            why = "on another host";
        else if (memcmp(&all[rank].tuning, &entry->own.tuning, sizeof(all->tuning)) != 0)
            why = "other settings";
        if (why == NULL)
            continue;
        snprintf(member->no_peer, sizeof(member->no_peer), "rank %d: %.90s", rank, why);
        return false;
    }
    return true;
}

static bool reach(struct peer_entry *entry, const struct peer_offer *all)
{
    struct coll_ccomm *member = entry->member;
    struct peer_wire *wire = entry->wire;
    for (int rank = 0; rank < member->ranks; rank++) {
        const char *why = "cannot be reached";
        if (rank == member->rank)
            continue;
        wire->handle[rank] = all[rank].handle;
        if ((wire->reached[rank] = member->gpu->peer->open(&all[rank].handle, &why)) == NULL)
            return refuse(entry, why);
    }
    struct peer_world world = {.rank = (uint32_t)member->rank,
                               .ranks = (uint32_t)member->ranks,
                               .counters = wire->counters,
                               .host_status = wire->host_status,
                               .trace = wire->tuning.trace};
    for (int rank = 0; rank < member->ranks; rank++)
        world.flags[rank] = (void *)wire->reached[rank];
    return (member->gpu->copy(wire->world, &world, sizeof(world), member->stream) &&
            member->gpu->stream_wait(member->stream)) ||
           refuse(entry, "the GPU failed");
}

/* Agrees first on whether all can try, then on whether all have succeeded. */
static bool try_to_reach(struct peer_entry *entry)
{
    struct peer_offer *all = calloc((size_t)entry->member->ranks, sizeof(*all));
    bool good = all != NULL && hear(entry, all);
    if (!good || !are_able(entry, all) || !reach(entry, all))
        entry->own.able = 0;
    free(all);
    return good;
}

/* ---- Ending ------------------------------------------------------------------------------------------------------ */

static void tell_trace(const struct coll_ccomm *member, const struct peer_mail *host_status)
{
    static const char *const names[PEER_POINTS] = {"claimed", "encoded", "crossed", "posted", "arrived", "decoded"};
    const uint32_t count = host_status->marks < PEER_TRACE_MAX ? host_status->marks : PEER_TRACE_MAX;
    for (uint32_t i = 0; i < count; i++)
        member->host.say("rank %d: %8.1f us: %s %u", member->rank,
                         (double)(host_status->mark[i].ns - host_status->mark[0].ns) / 1e3,
                         names[host_status->mark[i].point % PEER_POINTS], host_status->mark[i].number);
}

static void peer_join_end(const struct coll_ccomm *member, struct peer_wire *wire)
{
    const struct gpu_ops *gpu = member->gpu;
    bool reached = true;
    for (int rank = 0; rank < member->ranks; rank++)
        reached &= wire->reached[rank] != NULL;
    const bool aborted = wire->host_status != NULL && __atomic_load_n(&wire->host_status->abort, __ATOMIC_ACQUIRE) != 0;
    const bool quiet =
        !reached || (!aborted && !wire->unsure && __atomic_load_n(&wire->host_status->failed, __ATOMIC_ACQUIRE) == 0);
    if (!quiet)
        member->host.say("communicator %p, rank %d of %d: others may still write into its memory, which is not freed",
                         (void *)member->comm, member->rank, member->ranks);
    if (wire->tuning.trace != 0 && reached)
        tell_trace(member, wire->host_status);
    for (int rank = 0; rank < member->ranks; rank++)
        if (rank != member->rank && wire->reached[rank] != NULL)
            gpu->peer->close(&wire->handle[rank], wire->reached[rank]);
    peer_lanes_end(wire, gpu);
    free_memory(wire, gpu, quiet);
    free(wire);
}

/* ---- All of this process ----------------------------------------------------------------------------------------- */

static bool peer_join_settle(struct peer_entry *entry)
{
    struct coll_ccomm *member = entry->member;
    struct peer_offer *all = calloc((size_t)member->ranks, sizeof(*all));
    const bool good = all != NULL && hear(entry, all);
    const bool able = good && are_able(entry, all);
    if (able)
        __atomic_store_n(&member->peer, entry->wire, __ATOMIC_RELEASE);
    else if (entry->wire != NULL)
        peer_join_end(member, entry->wire);
    free(all);
    return good;
}

bool peer_each(struct peer_entry *entries, unsigned count, peer_part *what)
{
    bool all = true;
    for (unsigned i = 0; i < count; i++) {
        struct coll_ccomm *member = entries[i].member;
        int before;
        bool good = member->gpu->enter(member->device, &before);
        if (good) {
            good = what(&entries[i]);
            member->gpu->leave(before);
        }
        all &= good;
    }
    return all;
}

bool peer_grouped(struct peer_entry *entries, unsigned count, peer_part *what)
{
    const struct coll_table *nccl = entries[0].member->host.nccl;
    const bool good = nccl->GroupStart() == COLL_SUCCESS && peer_each(entries, count, what);
    return nccl->GroupEnd() == COLL_SUCCESS && good;
}

/* Puts the members that are to be measured first; returns how many they are. */
static unsigned sort_measured(struct peer_entry *entries, unsigned count)
{
    unsigned measured = 0;
    for (unsigned i = 0; i < count; i++)
        if (entries[i].member->peer != NULL && peer_measured(entries[i].member, entries[i].wire)) {
            const struct peer_entry entry = entries[i];
            entries[i] = entries[measured];
            entries[measured++] = entry;
        }
    return measured;
}

size_t peer_offer_bytes(void)
{
    return sizeof(struct peer_offer);
}

void peer_join(struct coll_ccomm *const members[], void *const told[], unsigned count)
{
    struct peer_entry *entries = calloc(count, sizeof(*entries));
    bool good = entries != NULL;
    for (unsigned i = 0; i < count && good; i++) {
        entries[i].member = members[i];
        entries[i].told = told[i];
        entries[i].own.able = 1;
    }
    if (good) {
        (void)peer_each(entries, count, prepare);
        good = peer_grouped(entries, count, peer_join_tell) && peer_each(entries, count, try_to_reach) &&
               peer_grouped(entries, count, peer_join_tell) && peer_each(entries, count, peer_join_settle);
        const unsigned measured = good ? sort_measured(entries, count) : 0;
        good = good && (measured == 0 || peer_measure(entries, measured));
        (void)peer_each(entries, count, peer_measure_end);
    }
    for (unsigned i = 0; i < count && !good; i++)
        member_fail(members[i], COLL_INTERNAL_ERROR, "the wire peer could not be tried");
    free(entries);
}

/* ---- Members that have the wire ---------------------------------------------------------------------------------- */

/* Queued behind all operations, and part of them. */
static bool await_readers(const struct coll_ccomm *member)
{
    const struct gpu_ops *gpu = member->gpu;
    const struct peer_wire *wire = member->peer;
    struct peer_claim claim = {.world = wire->world, .patience_ns = PEER_TIMEOUT_NS};
    for (int rank = 0; rank < member->ranks; rank++)
        if (rank != member->rank)
            claim.receiver[claim.count++] = (uint8_t)rank;
    return gpu->event_follow(member->stream, wire->last) && gpu->peer->claim(&claim, member->stream) &&
           gpu->event_record(wire->last, member->stream);
}

void peer_close(struct coll_ccomm *member)
{
    int before;
    if (member->peer == NULL || member->aborted)
        return;
    member->peer->unsure = true;
    if (!member->gpu->enter(member->device, &before))
        return;
    member->peer->unsure = !await_readers(member);
    member->gpu->leave(before);
}

/* Nothing that was pushed here matters any more, and the other ranks do not need this memory either, as they read their
 * own arenas. All that others could still write here is that they have freed slots. */
void peer_end(struct coll_ccomm *member)
{
    if (member->peer != NULL)
        peer_join_end(member, member->peer);
    member->peer = NULL;
}

void peer_abort(struct coll_ccomm *member)
{
    const struct peer_wire *wire = __atomic_load_n(&member->peer, __ATOMIC_ACQUIRE);
    if (wire != NULL)
        __atomic_store_n(&wire->host_status->abort, 1, __ATOMIC_RELEASE);
}

bool peer_over(const struct coll_ccomm *member)
{
    return member->peer == NULL || member->gpu->event_over(member->peer->last);
}

void peer_look(struct coll_ccomm *member)
{
    const struct peer_wire *wire = __atomic_load_n(&member->peer, __ATOMIC_ACQUIRE);
    const uint32_t failed = wire != NULL ? __atomic_load_n(&wire->host_status->failed, __ATOMIC_ACQUIRE) : 0;
    if (failed == (uint32_t)STRAIT_ERR_IO)
        member_fail(member, COLL_REMOTE_ERROR, "a rank has given up, or did not come");
    else if (failed != 0)
        member_fail(member, COLL_INTERNAL_ERROR, strait_status_string((enum strait_status)(int32_t)failed));
}

/* Decides which operations go by the wire `peer`. */

static bool is_sum(const struct coll_call *call)
{
    return call->reduction == COLL_SUM || call->reduction == COLL_AVG;
}

/* How many messages a rank encodes; `count` becomes the number of values of the shortest. False: the operation does not
 * go this way. */
static bool messages_of(const struct coll_ccomm *member, const struct coll_call *call, uint64_t *count,
                        unsigned *messages)
{
    const struct peer_block last = peer_block_of(call->count, member->ranks, member->ranks - 1);
    *count = call->count;
    *messages = (unsigned)member->ranks - 1;
    switch (call->operation) {
    case COLL_ALL_GATHER:
        *messages = 1;
        return true;
    case COLL_ALL_TO_ALL:
        return true;
    case COLL_REDUCE_SCATTER:
        return is_sum(call);
    case COLL_ALL_REDUCE: /* blocks of others, then the sum of the own one */
        *count = last.at < call->count ? last.count : 0;
        *messages = (unsigned)member->ranks;
        return is_sum(call);
    case COLL_SEND:
    case COLL_RECV:
        *messages = call->operation == COLL_SEND;
        return member->host.settings.pairs && call->peer != member->rank && call->peer >= 0 &&
               call->peer < member->ranks;
    default:
        return false;
    }
}

/* As measured for all_gather. That is NCCL's slowest operation, so others have to gain more, by what was seen of them
 * on two GPUs (bench/RESULTS.md, "Collectives"). */
static bool pays(const struct coll_ccomm *member, const struct coll_call *call, const struct peer_cut *cut)
{
    const struct link_cost *own = &member->peer->own, *plain = &member->peer->plain;
    const double bytes = (double)cut->pages * PEER_PAGE + cut->tail_bytes;
    const double gain = call->operation == COLL_ALL_GATHER ? 0.97 : call->operation == COLL_ALL_REDUCE ? 0.78 : 0.85;
    return own->start + bytes * own->per_byte < gain * (plain->start + bytes * plain->per_byte);
}

static uint64_t message_bytes(const struct peer_cut *cut)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < cut->pieces; i++)
        bytes += peer_piece_of(cut, i).room;
    return bytes;
}

bool peer_decide(struct coll_ccomm *member, const struct coll_call *call, struct coll_op *step)
{
    uint64_t count;
    unsigned messages;
    struct peer_cut cut;
    if (member->peer == NULL || !messages_of(member, call, &count, &messages) ||
        !peer_cut_of(&cut, call->type, count, &member->peer->tuning))
        return false;
    if (peer_compared(member) && !pays(member, call, &cut))
        return false;
    *step = (struct coll_op){.member = member, .call = *call, .phases = 1, .pieces = 1, .peer = true};
    step->wire = messages * message_bytes(&cut);
    return true;
}
