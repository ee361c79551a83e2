/* Makes the wire `peer` when a communicator is made: every rank tells where its arena is, and tries to reach those of
 * the others. If one rank cannot, none uses the wire. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "collective/engine/peer_entry.h"
#include "collective/engine/peer_rounds.h"

/* ---- Alone ------------------------------------------------------------------------------------------------------- */

static bool refuse(struct peer_entry *entry, const char *why)
{
    entry->own.able = 0;
    if (entry->own.why[0] == '\0')
        snprintf(entry->own.why, sizeof(entry->own.why), "%s", why);
    return false;
}

/* Scratch for the largest call of the codec: a piece with a tail from each other rank. */
static bool scratch_sizes(struct peer_wire *wire, const struct coll_member *member)
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

static bool make_memory(struct peer_wire *wire, const struct coll_member *member)
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
    wire->mail = gpu->allocate_pinned(sizeof(*wire->mail));
    wire->last = gpu->event_make(false);
    return wire->arena != NULL && wire->outgoing != NULL && wire->counters != NULL && wire->world != NULL &&
           wire->results != NULL && wire->asides != NULL && wire->mail != NULL && wire->last != NULL &&
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
    gpu->release_pinned(wire->mail);
    if (wire->last != NULL)
        gpu->event_end(wire->last);
}

static bool prepare(struct peer_entry *entry)
{
    struct coll_member *member = entry->member;
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

static bool tell(struct peer_entry *entry)
{
    struct coll_member *member = entry->member;
    struct peer_offer *own = entry->told + member->ranks;
    return member->gpu->copy(own, &entry->own, sizeof(*own), member->stream) &&
           member->host.nccl->AllGather(own, entry->told, sizeof(*own), COLL_UINT8, member->comm, member->stream) ==
               COLL_SUCCESS;
}

static bool hear(struct peer_entry *entry, struct peer_offer *all)
{
    const struct coll_member *member = entry->member;
    return member->gpu->copy(all, entry->told, sizeof(*all) * (size_t)member->ranks, member->stream) &&
           member->gpu->stream_wait(member->stream);
}

/* False: one of the ranks is not able; sets why. */
static bool are_able(struct peer_entry *entry, const struct peer_offer *all)
{
    struct coll_member *member = entry->member;
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
    struct coll_member *member = entry->member;
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
                               .mail = wire->mail,
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

static void tell_trace(const struct coll_member *member, const struct peer_mail *mail)
{
    static const char *const names[PEER_POINTS] = {"claimed", "encoded", "crossed", "posted", "arrived", "decoded"};
    const uint32_t count = mail->marks < PEER_TRACE_MAX ? mail->marks : PEER_TRACE_MAX;
    for (uint32_t i = 0; i < count; i++)
        member->host.say("rank %d: %8.1f us: %s %u", member->rank, (double)(mail->mark[i].ns - mail->mark[0].ns) / 1e3,
                         names[mail->mark[i].point % PEER_POINTS], mail->mark[i].number);
}

static void end(const struct coll_member *member, struct peer_wire *wire)
{
    const struct gpu_ops *gpu = member->gpu;
    bool reached = true;
    for (int rank = 0; rank < member->ranks; rank++)
        reached &= wire->reached[rank] != NULL;
    const bool aborted = wire->mail != NULL && __atomic_load_n(&wire->mail->abort, __ATOMIC_ACQUIRE) != 0;
    const bool quiet =
        !reached || (!aborted && !wire->unsure && __atomic_load_n(&wire->mail->failed, __ATOMIC_ACQUIRE) == 0);
    if (!quiet)
        member->host.say("communicator %p, rank %d of %d: others may still write into its memory, which is not freed",
                         (void *)member->comm, member->rank, member->ranks);
    if (wire->tuning.trace != 0 && reached)
        tell_trace(member, wire->mail);
    for (int rank = 0; rank < member->ranks; rank++)
        if (rank != member->rank && wire->reached[rank] != NULL)
            gpu->peer->close(&wire->handle[rank], wire->reached[rank]);
    peer_lanes_end(wire, gpu);
    free_memory(wire, gpu, quiet);
    free(wire);
}

/* ---- All of this process ----------------------------------------------------------------------------------------- */

static bool settle(struct peer_entry *entry)
{
    struct coll_member *member = entry->member;
    struct peer_offer *all = calloc((size_t)member->ranks, sizeof(*all));
    const bool good = all != NULL && hear(entry, all);
    const bool able = good && are_able(entry, all);
    if (able)
        __atomic_store_n(&member->peer, entry->wire, __ATOMIC_RELEASE);
    else if (entry->wire != NULL)
        end(member, entry->wire);
    free(all);
    return good;
}

bool peer_each(struct peer_entry *entries, unsigned count, peer_part *what)
{
    bool all = true;
    for (unsigned i = 0; i < count; i++) {
        struct coll_member *member = entries[i].member;
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

void peer_join(struct coll_member *const members[], void *const told[], unsigned count)
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
        good = peer_grouped(entries, count, tell) && peer_each(entries, count, try_to_reach) &&
               peer_grouped(entries, count, tell) && peer_each(entries, count, settle);
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
static bool await_readers(const struct coll_member *member)
{
    const struct gpu_ops *gpu = member->gpu;
    const struct peer_wire *wire = member->peer;
    struct peer_claim claim = {.world = wire->world, .patience_ns = PEER_PATIENCE_NS};
    for (int rank = 0; rank < member->ranks; rank++)
        if (rank != member->rank)
            claim.receiver[claim.count++] = (uint8_t)rank;
    return gpu->event_follow(member->stream, wire->last) && gpu->peer->claim(&claim, member->stream) &&
           gpu->event_record(wire->last, member->stream);
}

void peer_close(struct coll_member *member)
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
void peer_end(struct coll_member *member)
{
    if (member->peer != NULL)
        end(member, member->peer);
    member->peer = NULL;
}

void peer_abort(struct coll_member *member)
{
    const struct peer_wire *wire = __atomic_load_n(&member->peer, __ATOMIC_ACQUIRE);
    if (wire != NULL)
        __atomic_store_n(&wire->mail->abort, 1, __ATOMIC_RELEASE);
}

bool peer_over(const struct coll_member *member)
{
    return member->peer == NULL || member->gpu->event_over(member->peer->last);
}

void peer_look(struct coll_member *member)
{
    const struct peer_wire *wire = __atomic_load_n(&member->peer, __ATOMIC_ACQUIRE);
    const uint32_t failed = wire != NULL ? __atomic_load_n(&wire->mail->failed, __ATOMIC_ACQUIRE) : 0;
    if (failed == (uint32_t)STRAIT_ERR_IO)
        member_fail(member, COLL_REMOTE_ERROR, "a rank has given up, or did not come");
    else if (failed != 0)
        member_fail(member, COLL_INTERNAL_ERROR, strait_status_string((enum strait_status)(int32_t)failed));
}
