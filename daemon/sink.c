/* The sink's half of a leg: the actions of its state machine, carried out. */
#include <stdlib.h>
#include <string.h>

#include <utlist.h>
#include <xxhash.h>

#include "daemon/chunk_header.h"
#include "daemon/equipment/fault.h"
#include "daemon/node.h"
#include "daemon/reach.h"
#include "daemon/session.h"

/* Grants of one leg at once: one encoded, one or two travelling, one decoded. A GPU is further away, and has twice
 * that. */
#define SINK_WINDOW 4u

struct sink *sink_create(struct expectation *e, const struct name *source, const char *address, bool local)
{
    struct sink *sink = calloc(1, sizeof(*sink));
    if (sink == NULL)
        return NULL;
    sink->node = e->request.node;
    sink->expectation = e;
    sink->id = ++sink->node->exchange.next_leg;
    sink->source = *source;
    sink->is_local = local;
    strcpy(sink->address, address);
    sink_init(&sink->leg, local || e->request.pool->pool->devices != NULL ? LEG_GRANTS : SINK_WINDOW);
    HASH_ADD(hh, sink->node->exchange.sinks, id, sizeof(sink->id), sink);
    LL_PREPEND(e->sinks, sink);
    e->sink_count++;
    request_rouse(&e->request);
    return sink;
}

static void stop_waiting(struct sink *sink)
{
    if (!sink->waiting)
        return;
    DL_DELETE2(sink->node->exchange.wanting, sink, wprev, wnext);
    sink->node->exchange.wanting_count--;
    sink->node->exchange.wanting_local -= sink->is_local;
    sink->waiting = false;
    sink->wants_since = 0;
}

void sink_free(struct sink *sink)
{
    stop_waiting(sink);
    parked_forget_sink(sink->node, sink);
    if (sink->is_local && sink->local != NULL)
        sink->local->local = NULL;
    HASH_DELETE(hh, sink->node->exchange.sinks, sink);
    LL_DELETE(sink->expectation->sinks, sink);
    request_over(&sink->expectation->request);
    segments_fini(&sink->segments);
    free(sink);
}

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

/* No daemon may hold more than half of an arena, over all its connections: one that is stopped while it does would stop
 * everybody. */
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

/* Where chunks for this GPU (-1: for the host) land: in its own memory, if the source's GPUs reach that. */
static struct receive_arena *arena_for(const struct sink *sink, int32_t device)
{
    const struct receive *receive = &sink->node->receive;
    if (device < 0 || (reach_devices(sink->peer, &sink->source.pool) >> device & 1) == 0)
        return receive->arenas[0];
    struct receive_arena *arena = receive_of_device(receive, device);
    return arena != NULL ? arena : receive->arenas[0];
}

static uint32_t take_slot(struct sink *sink, struct receive_arena *arena)
{
    struct node *node = sink->node;
    uint32_t number = receive_take(&node->receive, arena);
    struct slot *slot = &node->receive.slots[number];
    slot->sink = sink;
    slot->grant = sink->leg.next_grant;
    ((struct peer_use *)sink->peer->owner)->slots[arena->index]++;
    sink->granted_at = uv_now(node->loop);
    return number;
}

/* Of all groups of its pool; -1: they have several, or it is the host. */
static int32_t only_device(const struct pool *pool)
{
    for (uint32_t g = 1; g < pool->group_count; g++)
        if (pool->groups[g].device != pool->groups[0].device)
            return -1;
    return pool->groups[0].device;
}

/* Is there room for a grant before it is known what is ready? Only where nobody misses the slot. */
static struct receive_arena *may_open(const struct sink *sink)
{
    const struct node *node = sink->node;
    struct receive_arena *arena = arena_for(sink, only_device(sink->expectation->request.pool->pool));
    bool may = sink->expectation->wanted_count != 0 && arena->slots.used < arena->slots.slot_count / 2 &&
               node->exchange.wanting_count == 0 && has_share(node, sink, arena);
    return may ? arena : NULL;
}

bool sink_holds_grants(const struct sink *sink)
{
    for (uint32_t i = 0; i < LEG_GRANTS; i++)
        if (sink->leg.grants[i].state != GRANT_NONE)
            return true;
    return false;
}

void sink_part(struct sink *sink)
{
    sink->peer = NULL;
    sink->asked = false;
}

void sink_ask_peer(struct sink *sink, struct peer *peer)
{
    struct leg_event start = {.type = SINK_START};
    sink->peer = peer;
    sink->asked = true;
    struct receive_arena *arena = may_open(sink);
    if (arena != NULL) {
        start.slot = take_slot(sink, arena);
        start.count = 1;
    }
    (void)sink_apply(sink, &start);
}

void sink_ask(struct sink *sink)
{
    struct node *node = sink->node;
    if (sink->leg.state != STRAIT_BOOTSTRAP || sink->asked)
        return;
    if (sink->is_local) {
        struct leg_event start = {.type = SINK_START};
        sink->asked = true;
        (void)sink_apply(sink, &start);
        return;
    }
    struct peer *peer = peers_get(node->peers, sink->address);
    if (peer != NULL && peer->state == PEER_UP)
        sink_ask_peer(sink, peer);
}

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

static void send_request(struct sink *sink, const struct leg_grant *open)
{
    struct expectation *e = sink->expectation;
    struct node *node = sink->node;
    if (sink->is_local) {
        struct request *offer;
        HASH_FIND(by_name, node->exchange.offers_by_name, &sink->source, sizeof(sink->source), offer);
        if (offer != NULL && offer->begun) {
            local_bind(sink, (struct offer *)offer);
            return;
        }
        enum strait_reason failed = tombstone_reason(node, &sink->source, true);
        if (offer == NULL && failed != STRAIT_REASON_NONE) {
            sink_event(sink, SINK_END, leg_peer_reason(failed));
            return;
        }
        struct parked *parked = calloc(1, sizeof(*parked));
        if (parked == NULL)
            return; /* the deadline tells */
        parked->key.is_request = true;
        parked->key.wants = sink->source;
        parked->sink = sink;
        parked->expires = UINT64_MAX; /* as long as the sink */
        parked_add(node, parked);
        return;
    }
    uint64_t now = uv_now(node->loop);
    uint32_t sent = 0;
    do {
        uint32_t count = e->wanted_count - sent < MESSAGE_LIST_MAX ? e->wanted_count - sent : MESSAGE_LIST_MAX;
        bool more = sent + count < e->wanted_count;
        struct message message = {.type = MESSAGE_REQUEST};
        message.request = (struct message_request){.leg = sink->id,
                                                   .epoch = e->epoch,
                                                   .source_pool = sink->source.pool,
                                                   .sink_pool = e->request.name.pool,
                                                   .source_key = view_of(sink->source.key, sink->source.size),
                                                   .sink_key = view_of(e->request.name.key, e->request.name.size),
                                                   .geometry = e->request.pool->pool->geometry,
                                                   .deadline_ms = e->deadline > now ? (uint32_t)(e->deadline - now) : 1,
                                                   .more = more,
                                                   .rest = sent != 0,
                                                   .span_count = count,
                                                   .spans = e->wanted + sent,
                                                   .grant = more ? 0 : open->id,
                                                   .slot = more ? 0 : open->slot};
        (void)peer_send(sink->peer, &message); /* a peer that is down says so itself */
        sent += count;
    } while (sent < e->wanted_count);
}

static void send_grant(struct sink *sink, const struct leg_grant *grant)
{
    if (sink->is_local) {
        struct leg_event event = {.type = SOURCE_GRANT,
                                  .grant = grant->id,
                                  .first = grant->first,
                                  .count = grant->count,
                                  .slot = grant->slot};
        local_post(sink->node, NULL, sink->local, &event);
        return;
    }
    struct message message = {.type = MESSAGE_GRANT};
    message.grant = (struct message_grant){.leg = sink->id,
                                           .epoch = sink->expectation->epoch,
                                           .grant = grant->id,
                                           .first = grant->first,
                                           .count = grant->count,
                                           .slot = grant->slot};
    sink->node->metrics.grants++;
    (void)peer_send(sink->peer, &message);
}

static void send_revoke(struct sink *sink, uint64_t grant)
{
    if (sink->is_local) {
        struct leg_event event = {.type = SOURCE_REVOKE, .grant = grant};
        local_post(sink->node, NULL, sink->local, &event);
        return;
    }
    struct message message = {.type = MESSAGE_REVOKE};
    message.grant_id = (struct message_grant_id){.leg = sink->id, .epoch = sink->expectation->epoch, .grant = grant};
    sink->node->metrics.grants_reclaimed++;
    (void)peer_send(sink->peer, &message);
}

static void send_end(struct sink *sink, enum strait_reason reason)
{
    if (sink->is_local) {
        struct leg_event event = {.type = SOURCE_END, .reason = leg_peer_reason(reason)};
        if (sink->local != NULL)
            local_post(sink->node, NULL, sink->local, &event);
        return;
    }
    if (sink->peer == NULL)
        return; /* nobody has been asked */
    struct message message = {.type = MESSAGE_END};
    message.end = (struct message_end){.leg = sink->id,
                                       .epoch = sink->expectation->epoch,
                                       .from_sink = true,
                                       .state = reason == STRAIT_REASON_NONE ? STRAIT_DONE : STRAIT_FAILED,
                                       .reason = (uint32_t)reason};
    (void)peer_send(sink->peer, &message);
}

/* ---- Slots ------------------------------------------------------------------------------------------------------- */

static void free_slot(struct sink *sink, const struct leg_grant *grant)
{
    if (sink->is_local)
        return;
    struct receive *receive = &sink->node->receive;
    if (sink->peer != NULL)
        ((struct peer_use *)sink->peer->owner)->slots[receive->slots[grant->slot].arena]--;
    receive_give(receive, grant->slot);
}

static void on_decoded(void *owner, uint64_t cookie, const struct job_result *result)
{
    struct node *node = owner;
    const struct slot *slot = &node->receive.slots[cookie];
    histogram_record(&node->metrics.stages[STAGE_DECODE], result->nanoseconds / 1000);
    sink_copied(slot->sink, slot->grant, result);
}

static struct leg_grant *find_grant(struct sink *sink, uint64_t id)
{
    for (uint32_t i = 0; i < LEG_GRANTS; i++)
        if (sink->leg.grants[i].state != GRANT_NONE && sink->leg.grants[i].id == id)
            return &sink->leg.grants[i];
    return NULL;
}

struct layers {
    uint32_t count;
    int32_t list[STRAIT_REGIONS_MAX];
};

static void add_layer(void *owner, int32_t layer)
{
    struct layers *layers = owner;
    if (layers->count < STRAIT_REGIONS_MAX)
        layers->list[layers->count++] = layer;
}

/* Counts pages in place and tells of layers that are complete. False: they cannot have landed. */
static bool land(struct sink *sink, const struct leg_grant *grant)
{
    struct expectation *e = sink->expectation;
    struct piece piece;
    struct layers layers = {.count = 0};
    if (!segments_piece(&sink->segments, grant->first, grant->count, &piece) ||
        !coverage_land(e->coverage, &piece, add_layer, &layers))
        return false;
    if (layers.count != 0) {
        struct message message = {.type = MESSAGE_LAYERS};
        message.layers = (struct message_layers){
            .transfer = e->request.transfer, .layer_count = layers.count, .layers = layers.list};
        session_send(e->request.session, &message);
        waits_layers(e, layers.list, layers.count);
    }
    return true;
}

/* The pages of a grant are in place, or not: a job says so. */
void sink_copied(struct sink *sink, uint64_t grant_id, const struct job_result *result)
{
    struct expectation *e = sink->expectation;
    const struct leg_grant *grant = find_grant(sink, grant_id);
    struct leg_event event = {.type = SINK_DECODED, .grant = grant_id, .reason = result->reason};
    if (event.reason == STRAIT_REASON_NONE && !e->request.decided) {
        if (grant == NULL || !land(sink, grant))
            event.reason = STRAIT_REASON_GEOMETRY;
        e->raw_bytes += result->raw_bytes;
        sink->node->metrics.raw_bytes_landed += sink->is_local ? 0 : result->raw_bytes;
        sink->node->metrics.chunks_landed += sink->is_local ? 0 : 1;
    }
    (void)sink_apply(sink, &event);
}

static void decode(struct sink *sink, const struct leg_grant *grant)
{
    struct node *node = sink->node;
    if (sink->is_local)
        return; /* local_copy does it */
    if (fault_at(FAULT_BUG_ACKNOWLEDGE, sink, grant))
        return;
    struct piece piece;
    struct request *request = &sink->expectation->request;
    const uint32_t *ids = NULL;
    const struct job_chunk chunk = {.bytes = receive_address(&node->receive, grant->slot),
                                    .size = node->receive.slots[grant->slot].size,
                                    .far = receive_arena_of(&node->receive, grant->slot)->device >= 0};
    if (segments_piece(&sink->segments, grant->first, grant->count, &piece))
        ids = page_set_ids(&request->pages, piece.group, piece.first, piece.count);
    enum strait_status status = STRAIT_ERR_INVALID;
    if (ids != NULL)
        status = job_decode(node->jobs, request->pool->pool, &piece, ids, &chunk, on_decoded, node, grant->slot);
    if (status != STRAIT_OK) {
        struct leg_event event = {.type = SINK_DECODED, .grant = grant->id};
        event.reason = status == STRAIT_ERR_NO_MEMORY ? STRAIT_REASON_NO_MEMORY : STRAIT_REASON_GEOMETRY;
        (void)sink_apply(sink, &event);
    }
}

/* ---- The machine ------------------------------------------------------------------------------------------------- */

static void act(struct sink *sink, const struct leg_action *action)
{
    switch (action->type) {
    case LEG_SEND_REQUEST:
        send_request(sink, &action->grant);
        break;
    case LEG_SEND_GRANT:
        send_grant(sink, &action->grant);
        break;
    case LEG_SEND_REVOKE:
        send_revoke(sink, action->grant.id);
        break;
    case LEG_SEND_END:
        send_end(sink, action->reason);
        break;
    case LEG_DECODE:
        decode(sink, &action->grant);
        break;
    case LEG_FREE_SLOT:
        free_slot(sink, &action->grant);
        break;
    case LEG_STATE:
        request_state(&sink->expectation->request, action->state);
        break;
    case LEG_COMPLETE:
        expectation_leg_complete(sink->expectation);
        break;
    case LEG_VERDICT:
        if (action->reason != STRAIT_REASON_NONE)
            expectation_fail(sink->expectation, action->reason, "");
        break;
    case LEG_DRAINED:
        expectation_leg_drained(sink->expectation);
        break;
    case LEG_CLOSED:
        LL_PREPEND2(sink->node->exchange.closed_sinks, sink, closed_next);
        break;
    default: /* LEG_ACCEPT is the answer of sink_apply */
        break;
    }
}

static void update_waiting(struct sink *sink)
{
    uint32_t first, count;
    bool wants = sink_wants(&sink->leg, &first, &count);
    if (wants && !sink->waiting) {
        DL_APPEND2(sink->node->exchange.wanting, sink, wprev, wnext);
        sink->node->exchange.wanting_count++;
        sink->node->exchange.wanting_local += sink->is_local;
        sink->waiting = true;
    } else if (!wants) {
        stop_waiting(sink);
    }
}

bool sink_apply(struct sink *sink, const struct leg_event *event)
{
    struct leg_actions actions = {0};
    bool accepted = false;
    bool honest = sink_step(&sink->leg, event, &actions);
    for (uint32_t i = 0; i < actions.count; i++) {
        accepted |= actions.list[i].type == LEG_ACCEPT;
        act(sink, &actions.list[i]);
    }
    update_waiting(sink);
    if (sink->expectation->request.pool != NULL && sink->expectation->request.pool->pool->devices != NULL)
        node_attend(sink->node);
    if (!honest)
        sink_event(sink, SINK_FAIL, STRAIT_REASON_GEOMETRY);
    return accepted;
}

void sink_event(struct sink *sink, enum leg_event_type type, enum strait_reason reason)
{
    struct leg_event event = {.type = type, .reason = reason};
    (void)sink_apply(sink, &event);
}

static enum strait_reason take_aux(struct expectation *e, const struct message_segments *message)
{
    if (message->aux.size == 0 || e->aux != NULL)
        return STRAIT_REASON_NONE;
    if (XXH3_64bits(message->aux.data, message->aux.size) != message->aux_sum)
        return STRAIT_REASON_INTEGRITY;
    e->aux = malloc(message->aux.size);
    if (e->aux == NULL)
        return STRAIT_REASON_NO_MEMORY;
    memcpy(e->aux, message->aux.data, message->aux.size);
    e->aux_size = message->aux.size;
    return STRAIT_REASON_NONE;
}

/* More units are ready at the source: NONE, or why this leg fails. */
enum strait_reason sink_segments(struct sink *sink, const struct message_segments *message)
{
    struct expectation *e = sink->expectation;
    if (e->request.decided || sink->leg.last || message->before != sink->leg.ready)
        return STRAIT_REASON_NONE; /* late or doubled */
    uint32_t before = sink->segments.units;
    for (uint32_t i = 0; i < message->segment_count; i++) {
        if (!coverage_claim(e->coverage, &message->segments[i]))
            return STRAIT_REASON_GEOMETRY;
        enum strait_status status = segments_add(&sink->segments, &message->segments[i]);
        if (status != STRAIT_OK)
            return status == STRAIT_ERR_NO_MEMORY ? STRAIT_REASON_NO_MEMORY : STRAIT_REASON_GEOMETRY;
        sink->bytes += segment_bytes(&message->segments[i], &e->request.pool->pool->sizes);
    }
    if (message->last) {
        enum strait_reason reason = take_aux(e, message);
        if (reason != STRAIT_REASON_NONE)
            return reason;
    }
    struct leg_event event = {.type = SINK_SEGMENTS,
                              .grant = message->grant,
                              .first = message->granted,
                              .before = message->before,
                              .count = sink->segments.units - before,
                              .last = message->last};
    (void)sink_apply(sink, &event);
    return STRAIT_REASON_NONE;
}

/* ---- Granting ---------------------------------------------------------------------------------------------------- */

/* How many units from `first` on one chunk for this arena takes. */
static uint32_t cut(const struct sink *sink, const struct receive_arena *arena, uint32_t first, uint32_t count)
{
    const struct request *request = &sink->expectation->request;
    uint64_t most = arena->slots.slot_bytes;
    if (!sink->is_local && arena->device < 0 && sink->peer->slot_bytes < most)
        most = sink->peer->slot_bytes; /* the source encodes into a slot of its own */
    if (arena->device >= 0 && count > FAR_PAGES_MAX)
        count = FAR_PAGES_MAX;
    uint64_t target = arena->device >= 0 ? far_target(arena->slots.slot_bytes, sink->bytes) : arena->target;
    return segments_cut_chunk(&sink->segments, first, count, &request->pool->pool->sizes, &request->pages, target,
                              most);
}

/* The GPU that has the next units; -1: the host. */
static int32_t next_device(const struct sink *sink, uint32_t first)
{
    struct piece piece;
    if (!segments_piece(&sink->segments, first, 1, &piece))
        return -1;
    return sink->expectation->request.pool->pool->groups[piece.group].device;
}

/* Grants one slot to this sink. False: it cannot use one, or there is none for it. */
static bool grant_one(struct sink *sink)
{
    struct node *node = sink->node;
    struct receive_arena *arena = node->receive.arenas[0];
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
        event.slot = take_slot(sink, arena);
    (void)sink_apply(sink, &event);
    return true;
}

static bool is_full(const struct receive *receive)
{
    for (uint32_t i = 0; i < receive->arena_count; i++)
        if (receive->arenas[i]->slots.used < receive->arenas[i]->slots.slot_count)
            return false;
    return true;
}

/* Free slots go round among those who want one; local ones need none. */
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

/* When somebody has waited for long without any slot, others give back what they have not used for as long. */
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

/* ---- Arrival ----------------------------------------------------------------------------------------------------- */

static bool is_current(const struct sink *sink, const struct chunk_header *header)
{
    const struct epoch *epoch = &sink->expectation->epoch;
    return sink->id == header->leg && epoch->incarnation == header->epoch.incarnation &&
           epoch->counter == header->epoch.counter;
}

/* Can chunks for that arena come by the link of this GPU, or by the connection's own (-1)? */
static bool comes_by(const struct receive_arena *arena, const struct peer *peer, int32_t device)
{
    return device >= 0 ? arena->device == device : arena->device < 0 || peer->direct;
}

/* The slot that was granted for exactly this chunk; NULL: there is none, or not any more. */
static struct slot *granted_slot(struct node *node, const struct peer *peer, int32_t device,
                                 const struct chunk_header *header)
{
    if (header->slot >= node->receive.slot_count || peer->token != header->token)
        return NULL;
    struct slot *slot = &node->receive.slots[header->slot];
    if (slot->sink == NULL || slot->grant != header->grant || slot->sink->peer != peer ||
        !comes_by(node->receive.arenas[slot->arena], peer, device))
        return NULL;
    return is_current(slot->sink, header) || fault_at(FAULT_BUG_EPOCH, NULL, NULL) ? slot : NULL;
}

struct landing sink_arriving(struct node *node, struct peer *peer, int32_t device, const void *bytes,
                             size_t header_size, size_t size)
{
    struct chunk_header header;
    struct slot *slot = NULL;
    (void)fault_at(FAULT_ARRIVING, peer, NULL);
    if (chunk_header_read(&header, bytes, header_size))
        slot = granted_slot(node, peer, device, &header);
    if (slot != NULL && (size == 0 || size > node->receive.arenas[slot->arena]->slots.slot_bytes))
        slot = NULL;
    struct leg_event event = {.type = SINK_ARRIVING, .grant = slot != NULL ? slot->grant : 0};
    if (slot == NULL || !sink_apply(slot->sink, &event)) {
        node->metrics.chunks_refused++;
        return (struct landing){.address = NULL};
    }
    slot->size = size;
    return (struct landing){.address = receive_address(&node->receive, header.slot), .cookie = header.slot};
}

void sink_arrived(struct node *node, uint64_t cookie, enum strait_status status)
{
    struct slot *slot = &node->receive.slots[cookie];
    struct leg_event event = {.type = SINK_ARRIVED, .grant = slot->grant};
    (void)fault_at(FAULT_ARRIVED, slot->sink->peer, NULL);
    if (status != STRAIT_OK)
        event.reason = STRAIT_REASON_PEER_DOWN;
    slot->sink->expectation->wire_bytes += slot->size;
    node->metrics.wire_bytes_landed += slot->size;
    (void)sink_apply(slot->sink, &event);
}
