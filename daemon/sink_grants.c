/* The sink's half of a leg: which legs get slots, and for how many units. */
#include <utlist.h>

#include "daemon/node.h"
#include "daemon/reach.h"
#include "daemon/sink_private.h"

/* ---- Slots ------------------------------------------------------------------------------------------------------- */

struct share {
    uint64_t node;
    uint32_t arena, slots;
};

static void add_slots(void *arg, struct peer *peer)
{
    struct share *share = arg;
    const struct peer_use *use = peer->owner;
    if (use != NULL && peer->node == share->node)
        share->slots += use->slots[share->arena];
}

/* No daemon may hold more than half of an arena, over all its connections: otherwise one that is stopped could block
 * all others. */
static bool has_share(const struct node *node, const struct sink *sink, const struct receive_arena *arena)
{
    struct share share = {.node = sink->peer->node, .arena = arena->index};
    peers_each(node->peers, add_slots, &share);
    return share.slots == 0 || share.slots < (arena->slots.slot_count + 1) / 2;
}

static bool has_room(const struct node *node, const struct sink *sink, const struct receive_arena *arena)
{
    return arena->slots.used < arena->slots.slot_count && has_share(node, sink, arena);
}

/* The arena for chunks of this GPU (-1: of the host): in its own memory if the source's GPUs reach it. */
static struct receive_arena *arena_for(const struct sink *sink, int32_t device)
{
    const struct receive *receive = &sink->node->receive;
    if (device < 0 || (reach_devices(sink->peer, &sink->source.pool) >> device & 1) == 0)
        return receive->arenas[0];
    struct receive_arena *arena = receive_of_device(receive, device);
    return arena != NULL ? arena : receive->arenas[0];
}

/* There must be one. */
static uint32_t take_slot(struct sink *sink, struct receive_arena *arena, uint64_t grant)
{
    struct node *node = sink->node;
    uint32_t number = receive_take(&node->receive, arena);
    struct slot *slot = &node->receive.slots[number];
    slot->sink = sink;
    slot->grant = grant;
    ((struct peer_use *)sink->peer->owner)->slots[arena->index]++;
    sink->granted_at = uv_now(node->loop);
    return number;
}

void sink_free_slot(struct sink *sink, const struct leg_grant *grant)
{
    if (sink->is_local)
        return;
    struct receive *receive = &sink->node->receive;
    if (sink->peer != NULL)
        ((struct peer_use *)sink->peer->owner)->slots[receive->slots[grant->slot].arena]--;
    receive_give(receive, grant->slot);
}

/* The device of all groups of the pool; -1: there are several, or it is the host. */
static int32_t only_device(const struct pool *pool)
{
    for (uint32_t g = 1; g < pool->group_count; g++)
        if (pool->groups[g].device != pool->groups[0].device)
            return -1;
    return pool->groups[0].device;
}

/* Of all pages, counted up to `enough`. */
static uint64_t wanted_bytes(const struct expectation *e, uint64_t enough)
{
    const struct region_sizes *sizes = &e->request.pool->pool->sizes;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < e->wanted_count && bytes < enough; i++) {
        const struct wire_span *span = &e->wanted[i];
        const struct segment pages = {span->group, 0, sizes->region_counts[span->group], span->first, span->count};
        bytes += segment_bytes(&pages, sizes);
    }
    return bytes;
}

/* How many grants the first chunks of the request can use. Between GPUs several chunks have to be under way before the
 * link is busy; the host's memory is shared by more, and a message takes less time than a chunk there. */
static uint32_t most_open(const struct sink *sink, const struct receive_arena *arena)
{
    const struct expectation *e = sink->expectation;
    if (e->wanted_count == 0 || arena->device < 0)
        return e->wanted_count != 0;
    const uint32_t slot_bytes = arena->slots.slot_bytes, most = sink->leg.window;
    const uint64_t chunks = far_chunks(slot_bytes, wanted_bytes(e, (uint64_t)slot_bytes * most));
    return chunks < most ? (uint32_t)chunks : most;
}

void sink_open(struct sink *sink, struct leg_event *start)
{
    const struct node *node = sink->node;
    struct receive_arena *arena = arena_for(sink, only_device(sink->expectation->request.pool->pool));
    const uint32_t most = most_open(sink, arena);
    while (start->opens < most && arena->slots.used < arena->slots.slot_count / 2 &&
           node->exchange.wanting_count == 0 && has_share(node, sink, arena)) {
        start->slots[start->opens] = take_slot(sink, arena, sink->leg.next_grant + start->opens);
        start->opens++;
    }
}

bool sink_holds_grants(const struct sink *sink)
{
    for (uint32_t i = 0; i < LEG_GRANTS; i++)
        if (sink->leg.grants[i].state != GRANT_NONE)
            return true;
    return false;
}

/* ---- Granting ---------------------------------------------------------------------------------------------------- */

/* The GPU that holds the next units; -1: the host. */
static int32_t next_device(const struct sink *sink, uint32_t first)
{
    struct piece piece;
    if (!segments_piece(&sink->segments, first, 1, &piece))
        return -1;
    return sink->expectation->request.pool->pool->groups[piece.group].device;
}

/* How many units from `first` on fit into one chunk for this arena. A range that came back is taken whole: it fitted a
 * slot. */
static uint32_t cut(const struct sink *sink, const struct receive_arena *arena, uint32_t first, uint32_t count)
{
    const struct request *request = &sink->expectation->request;
    uint64_t most = arena->slots.slot_bytes;
    if (!sink->is_local && arena->device < 0 && sink->peer->slot_bytes < most)
        most = sink->peer->slot_bytes; /* the source encodes into a slot of its own first */
    if (arena->device >= 0 && count > FAR_PAGES_MAX)
        count = FAR_PAGES_MAX;
    const bool by_gpu = arena->device >= 0 || next_device(sink, first) >= 0;
    const bool is_new = first >= sink->leg.granted;
    uint64_t target = !is_new ? most : by_gpu ? far_target((uint32_t)most, sink->bytes) : arena->target;
    if (is_new && arena->device >= 0 && sink->leg.last && sink->leg.ready > 0)
        target = far_tail(target, sink->bytes / sink->leg.ready * count);
    return segments_cut_chunk(&sink->segments, first, count, &request->pool->pool->sizes, &request->pages, target,
                              most);
}

/* Grants one slot to this sink. False: it cannot use one, or none is free for it. */
static bool grant_one(struct sink *sink)
{
    struct node *node = sink->node;
    struct receive_arena *arena = node->receive.arenas[0];
    const uint64_t next = sink->leg.next_grant;
    uint32_t first, most, count = 0;
    if (!sink_wants(&sink->leg, &first, &most))
        return false;
    if (!sink->is_local)
        arena = arena_for(sink, next_device(sink, first));
    count = cut(sink, arena, first, most);
    if (count == 0 && arena->device >= 0) { /* its slots are too small */
        arena = node->receive.arenas[0];
        count = cut(sink, arena, first, most);
    }
    if (!sink->is_local && !has_room(node, sink, arena))
        return false;
    if (count == 0) {
        expectation_fail(sink->expectation, STRAIT_REASON_GEOMETRY, "a page is larger than chunk-bytes allows");
        return false;
    }
    struct leg_event event = {.type = SINK_GRANT, .first = first, .count = count, .slot = ARENA_NONE};
    if (!sink->is_local)
        event.slot = take_slot(sink, arena, sink->leg.next_grant);
    (void)sink_apply(sink, &event);
    return sink->leg.next_grant != next; /* else the leg holds too many pieces, and the slot is free again */
}

static bool is_full(const struct receive *receive)
{
    for (uint32_t i = 0; i < receive->arena_count; i++)
        if (receive->arenas[i]->slots.used < receive->arenas[i]->slots.slot_count)
            return false;
    return true;
}

/* Hands out free slots in turn to the legs that want one; local legs need none. */
void sink_grants(struct node *node)
{
    struct exchange *x = &node->exchange;
    struct sink *sink;
    for (uint32_t passed = 0; passed < x->wanting_count;) {
        if (x->wanting_local == 0 && is_full(&node->receive))
            break;
        sink = x->wanting;
        passed = grant_one(sink) ? 0 : passed + 1;
        if (x->wanting == sink) { /* to the end of the round */
            DL_DELETE2(x->wanting, sink, wprev, wnext);
            DL_APPEND2(x->wanting, sink, wprev, wnext);
        }
    }
}

/* When a leg has waited for grant-timeout without any slot, the others give back grants that they have not used for as
 * long. */
void sink_reclaim(struct node *node)
{
    uint64_t now = uv_now(node->loop);
    bool starving = false;
    struct sink *sink, *next;
    DL_FOREACH2 (node->exchange.wanting, sink, wnext) {
        if (sink_holds_grants(sink))
            sink->wants_since = 0;
        else if (sink->wants_since == 0)
            sink->wants_since = now;
        else
            starving |= now - sink->wants_since >= node->options.grant_ms;
    }
    if (!starving)
        return;
    HASH_ITER (hh, node->exchange.sinks, sink, next)
        if (!sink->is_local && sink_unused(&sink->leg) != 0 && now - sink->granted_at >= node->options.grant_ms)
            sink_event(sink, SINK_RECLAIM, STRAIT_REASON_NONE);
}
