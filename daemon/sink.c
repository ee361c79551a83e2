#include "daemon/sink.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>
#include <xxhash.h>

#include "daemon/base/fault.h"
#include "daemon/chunk_header.h"
#include "daemon/gpu_path.h"
#include "daemon/descriptions.h"
#include "daemon/node.h"
#include "daemon/part.h"
#include "daemon/source.h"
#include "daemon/withdraw.h"

/* ---- Events ------------------------------------------------------------------------------------------------------ */

void sink_post(struct sink *sink, const struct leg_event *event)
{
    leg_queue_append(&sink->node->exchange.events, &(struct leg_post){.sink = sink, .event = *event});
}

void sink_event(struct sink *sink, enum leg_event_type type, enum strait_reason reason)
{
    sink_post(sink, &(struct leg_event){.type = type, .reason = reason});
}

/* ---- Messages of the source -------------------------------------------------------------------------------------- */

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

const struct pool *sink_pool(const struct sink *sink)
{
    return sink->part != NULL ? &sink->part->view->pool : sink->expectation->request.pool->pool;
}

const struct page_set *sink_pages(const struct sink *sink)
{
    return sink->part != NULL ? &sink->part->tiles : &sink->expectation->request.pages;
}

/* The source's pool, which is laid out in another way; its daemon has told how, or is this one. NULL: it has not. */
static const struct pool_blob *describe_source(const struct sink *sink, uint64_t geometry, struct pool_blob *own)
{
    if (sink->local == NULL)
        return sink->peer != NULL ? description_find(sink->peer, &sink->source, geometry) : NULL;
    *own = view_described(sink->local->offer->request.pool->pool);
    return own;
}

/* The first SEGMENTS tell whether units are pages or tiles. A request has one or the other. */
static enum strait_reason settle_units(struct sink *sink, const struct message_segments *message)
{
    struct expectation *e = sink->expectation;
    enum strait_reason reason = STRAIT_REASON_GEOMETRY;
    struct pool_blob own;
    if (sink->part != NULL || message->before != 0 || message->reshaped == 0) {
        const bool same = message->reshaped == (sink->part != NULL ? sink->part->geometry : 0);
        e->has_pages |= sink->part == NULL && message->segment_count != 0;
        if (same && !(e->has_pages && e->parts != NULL))
            return STRAIT_REASON_NONE;
        sink->why = "sources of this pool's layout and of others do not mix";
        return reason;
    }
    const struct pool_blob *blob = describe_source(sink, message->reshaped, &own);
    sink->why = blob == NULL ? "the source's daemon has not described its pool"
                             : "sources of this pool's layout and of others do not mix";
    if (blob != NULL && !e->has_pages)
        sink->part = part_get(e, blob, message->reshaped, &reason, &sink->why);
    return sink->part != NULL ? STRAIT_REASON_NONE : reason;
}

static bool claim(struct sink *sink, const struct segment *segment)
{
    return sink->part != NULL ? part_claim(sink->part, segment) : coverage_claim(sink->expectation->coverage, segment);
}

/* More units are ready at the source. Returns NONE, or why this leg fails. */
static enum strait_reason take_segments(struct sink *sink, const struct message_segments *message)
{
    struct expectation *e = sink->expectation;
    const uint32_t before = sink->segments.units;
    if (e->request.decided || sink->leg.last || message->before != before)
        return STRAIT_REASON_NONE; /* late or duplicate */
    timeline_mark_first(&e->request.timeline, PHASE_ANSWER);
    enum strait_reason unsettled = settle_units(sink, message);
    if (unsettled != STRAIT_REASON_NONE)
        return unsettled;
    for (uint32_t i = 0; i < message->segment_count; i++) {
        if (!claim(sink, &message->segments[i])) {
            sink->why = "a source has announced what is not expected, or has come from another one";
            return STRAIT_REASON_GEOMETRY;
        }
        enum strait_status status = segments_add(&sink->segments, &message->segments[i]);
        if (status != STRAIT_OK)
            return status == STRAIT_ERR_NO_MEMORY ? STRAIT_REASON_NO_MEMORY : STRAIT_REASON_GEOMETRY;
        sink->bytes += segment_bytes(&message->segments[i], &sink_pool(sink)->sizes);
    }
    if (message->last) {
        enum strait_reason reason = take_aux(e, message);
        if (reason != STRAIT_REASON_NONE)
            return reason;
    }
    struct leg_event event = {.type = SINK_SEGMENTS,
                              .grant = message->grant,
                              .opens = message->granted_count,
                              .before = message->before,
                              .count = sink->segments.units - before,
                              .last = message->last};
    for (uint32_t i = 0; i < message->granted_count; i++)
        event.units[i] = message->granted[i];
    sink_post(sink, &event);
    return STRAIT_REASON_NONE;
}

void sink_message(struct sink *sink, const struct message *message)
{
    if (message->type == MESSAGE_SEGMENTS) {
        enum strait_reason reason = take_segments(sink, &message->segments);
        if (reason != STRAIT_REASON_NONE)
            sink_event(sink, SINK_FAIL, reason);
    } else if (message->type == MESSAGE_RELEASED) {
        sink_post(sink, &(struct leg_event){.type = SINK_RELEASED, .grant = message->grant_id.grant});
    } else if (message->type == MESSAGE_END) {
        sink->why = withdraw_text((enum strait_reason)message->end.reason);
        sink_event(sink, SINK_END, leg_peer_reason((enum strait_reason)message->end.reason));
    }
}

/* ---- Decoding ---------------------------------------------------------------------------------------------------- */

static struct leg_grant *find_grant(struct sink *sink, uint64_t id)
{
    for (uint32_t i = 0; i < LEG_GRANTS; i++)
        if (sink->leg.grants[i].state != GRANT_NONE && sink->leg.grants[i].id == id)
            return &sink->leg.grants[i];
    return NULL;
}

/* Counts landed pages and reports layers that are complete. False: these pages cannot have landed. */
static bool land(struct sink *sink, const struct leg_grant *grant)
{
    struct expectation *e = sink->expectation;
    struct piece piece;
    struct layers layers = {.count = 0};
    if (!segments_piece(&sink->segments, grant->first, grant->count, &piece) ||
        !(sink->part != NULL ? part_land(e, sink->part, &piece, layers_add, &layers)
                             : coverage_land(e->coverage, &piece, layers_add, &layers)))
        return false;
    if (layers.count != 0)
        sink->expectation->request.callbacks->layers(&e->request, layers.list, layers.count);
    return true;
}

void sink_landed(struct sink *sink, uint64_t grant_id, const struct job_result *result)
{
    struct expectation *e = sink->expectation;
    const struct leg_grant *grant = find_grant(sink, grant_id);
    struct leg_event event = {.type = SINK_DECODED, .grant = grant_id, .reason = result->reason};
    if (event.reason == STRAIT_REASON_NONE && !e->request.decided) {
        if (grant == NULL || !land(sink, grant))
            event.reason = STRAIT_REASON_GEOMETRY;
        e->request.raw_bytes += result->raw_bytes;
        e->request.tenant->bytes_landed += result->raw_bytes;
        timeline_mark(&e->request.timeline, PHASE_DECODE);
    }
    sink_post(sink, &event);
}

static void on_decoded(void *owner, uint64_t cookie, const struct job_result *result)
{
    struct node *node = owner;
    const struct slot *slot = &node->receive.slots[cookie];
    histogram_record(&node->metrics.stages[STAGE_DECODE], result->nanoseconds / 1000);
    if (result->reason == STRAIT_REASON_NONE && !slot->sink->expectation->request.decided) {
        node->metrics.raw_bytes_landed += result->raw_bytes;
        node->metrics.chunks_landed++;
        peer_figures_landed(peer_figures_of(slot->sink->peer), result->raw_bytes);
    }
    if (result->reason != STRAIT_REASON_NONE)
        peer_figures_failed(peer_figures_of(slot->sink->peer), PEER_FAILED_CHUNK);
    node->metrics.chunks_forged += result->forged;
    sink_landed(slot->sink, slot->grant, result);
    node->exchange.events.run(node);
}

/* How to decrypt the chunk of a grant. What is authenticated with it is what this side knows of the grant. False: the
 * connection is gone, or the library for it has failed. */
static bool seal_of(const struct sink *sink, const struct leg_grant *grant, struct seal *seal)
{
    uint8_t bytes[CHUNK_HEADER_BYTES];
    const struct chunk_header header = {.slot = grant->slot,
                                        .token = sink->peer->token,
                                        .leg = sink->id,
                                        .grant = grant->id,
                                        .epoch = sink->expectation->epoch,
                                        .number = sink->node->receive.slots[grant->slot].number};
    chunk_header_write(bytes, &header);
    return seal_make(&sink->peer->seal_in, header.number, bytes, sizeof(bytes), seal);
}

static void decode_chunk(struct sink *sink, const struct leg_grant *grant)
{
    struct node *node = sink->node;
    struct piece piece;
    const uint32_t *ids = NULL;
    struct seal seal;
    struct job_chunk chunk = {.bytes = receive_address(&node->receive, grant->slot),
                              .size = node->receive.slots[grant->slot].size,
                              .on_gpu = receive_arena_of(&node->receive, grant->slot)->device >= 0,
                              .alone = sink->leg.last && grant->count == sink->segments.units};
    if (segments_piece(&sink->segments, grant->first, grant->count, &piece))
        ids = page_set_ids(sink_pages(sink), piece.group, piece.first, piece.count);
    enum strait_status status = STRAIT_ERR_INVALID;
    if (sink->peer != NULL && sink->peer->sealed) {
        chunk.seal = &seal;
        ids = seal_of(sink, grant, &seal) ? ids : NULL;
    }
    if (ids != NULL)
        status = job_decode(node->jobs, sink_pool(sink), &piece, ids, &chunk, on_decoded, node, grant->slot);
    if (chunk.seal != NULL)
        seal_wipe(&seal, sizeof(seal));
    if (status != STRAIT_OK) {
        struct leg_event event = {.type = SINK_DECODED, .grant = grant->id};
        event.reason = status == STRAIT_ERR_NO_MEMORY ? STRAIT_REASON_NO_MEMORY : STRAIT_REASON_GEOMETRY;
        sink_post(sink, &event);
    }
}

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

/* The arena for chunks of this GPU (-1: of the host): in its own memory if the source's GPUs reach it. */
static struct receive_arena *arena_for(const struct sink *sink, int32_t device)
{
    const struct receive *receive = &sink->node->receive;
    if (device < 0 || (gpu_path_devices(sink->peer, &sink->source) >> device & 1) == 0)
        return receive->arenas[0];
    struct receive_arena *arena = receive_of_device(receive, device);
    return arena != NULL ? arena : receive->arenas[0];
}

/* One must be free. */
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

static void free_slot(struct sink *sink, const struct leg_grant *grant)
{
    struct receive *receive = &sink->node->receive;
    if (grant->slot == ARENA_NONE)
        return;
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

/* Bytes of all pages, counted up to `enough`. */
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
    const uint64_t chunks = gpu_chunk_count(slot_bytes, wanted_bytes(e, (uint64_t)slot_bytes * most));
    return chunks < most ? (uint32_t)chunks : most;
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
    return sink_pool(sink)->groups[piece.group].device;
}

/* A range that came back is taken whole: it fitted a slot. */
uint32_t sink_cut(const struct sink *sink, const struct receive_arena *arena, uint64_t most, uint32_t first,
                  uint32_t count)
{
    if (arena->device >= 0 && count > GPU_CHUNK_PAGES_MAX)
        count = GPU_CHUNK_PAGES_MAX;
    const bool by_gpu = arena->device >= 0 || next_device(sink, first) >= 0;
    const bool is_new = first >= sink->leg.granted;
    uint64_t target = !is_new ? most : by_gpu ? gpu_chunk_target((uint32_t)most, sink->bytes) : arena->target;
    if (is_new && arena->device >= 0 && sink->leg.last && sink->leg.ready > 0)
        target = gpu_tail_target(target, sink->bytes / sink->leg.ready * count);
    return segments_cut_chunk(&sink->segments, first, count, &sink_pool(sink)->sizes, sink_pages(sink), target, most);
}

static uint32_t cut_for(const struct sink *sink, const struct receive_arena *arena, uint32_t first, uint32_t count)
{
    uint64_t most = arena->slots.slot_bytes;
    if (arena->device < 0 && sink->peer->slot_bytes < most)
        most = sink->peer->slot_bytes; /* the source encodes into a slot of its own first */
    if (arena->device < 0)
        most -= peer_seal_bytes(sink->peer);
    return sink_cut(sink, arena, most, first, count);
}

static bool cut_and_take_slot(struct sink *sink, struct leg_event *grant)
{
    const struct node *node = sink->node;
    struct receive_arena *arena = arena_for(sink, next_device(sink, grant->first));
    uint32_t count = cut_for(sink, arena, grant->first, grant->count);
    if (count == 0 && arena->device >= 0) { /* its slots are too small */
        arena = node->receive.arenas[0];
        count = cut_for(sink, arena, grant->first, grant->count);
    }
    grant->count = count;
    if (arena->slots.used >= arena->slots.slot_count || !has_share(node, sink, arena))
        return false;
    if (count != 0)
        grant->slot = take_slot(sink, arena, sink->leg.next_grant);
    return true;
}

bool sink_grant(struct sink *sink)
{
    if (!tenant_may_grant(sink->expectation->request.tenant, uv_now(sink->node->loop)))
        return false;
    struct leg_event event = {.type = SINK_GRANT, .slot = ARENA_NONE};
    if (!sink_wants(&sink->leg, &event.first, &event.count) || !sink->port->cut(sink, &event))
        return false;
    if (event.count == 0) {
        sink->expectation->request.callbacks->verdict(&sink->expectation->request, STRAIT_REASON_GEOMETRY,
                                                      "a page is larger than chunk-bytes allows");
        return false;
    }
    sink_post(sink, &event);
    return true;
}

/* When a leg has waited for grant-timeout without any slot, the others give back grants that they have not used for as
 * long. */
void sink_reclaim(struct node *node)
{
    uint64_t now = uv_now(node->loop);
    bool starving = false;
    struct sink *sink, *next;
    DL_FOREACH2 (node->exchange.wanting, sink, wnext) {
        if (sink_holds_grants(sink) || !tenant_may_grant(sink->expectation->request.tenant, now))
            sink->wants_since = 0;
        else if (sink->wants_since == 0)
            sink->wants_since = now;
        else
            starving |= now - sink->wants_since >= node->options.grant_ms;
    }
    if (!starving)
        return;
    HASH_ITER (hh, node->exchange.sinks, sink, next)
        if (sink->peer != NULL && sink_unused(&sink->leg) != 0 && now - sink->granted_at >= node->options.grant_ms)
            sink_event(sink, SINK_RECLAIM, STRAIT_REASON_NONE);
}

/* ---- Messages to the source over a connection -------------------------------------------------------------------- */

#define READ_LISTS 64u /* in one message: most reads number their pages without gaps, and have one for a group */

/* What a REQUEST names: the spans that are wanted, or the pages that are read; cut at the limits of a message. */
struct request_cursor {
    uint32_t sent; /* spans, or pages */
    struct page_lists_cursor pages;
    struct wire_page_list lists[READ_LISTS];
};

static void next_spans(const struct expectation *e, struct request_cursor *at, struct message_request *request)
{
    const uint32_t left = e->wanted_count - at->sent;
    request->spans = e->wanted + at->sent;
    request->span_count = left < MESSAGE_LIST_MAX ? left : MESSAGE_LIST_MAX;
    at->sent += request->span_count;
    request->more = at->sent < e->wanted_count;
}

static void next_lists(const struct expectation *e, struct request_cursor *at, struct message_request *request)
{
    uint32_t room = MESSAGE_IDS_MAX, count = 0;
    while (count < READ_LISTS && room > 0 && page_set_next_list(&e->served, &at->pages, room, &at->lists[count])) {
        room -= at->lists[count].count;
        at->sent += at->lists[count++].count;
    }
    request->read = true;
    request->lists = at->lists;
    request->list_count = count;
    request->more = at->sent < e->served.total;
}

static void send_request(struct sink *sink, const struct leg_action *action)
{
    struct expectation *e = sink->expectation;
    struct node *node = sink->node;
    uint64_t now = uv_now(node->loop);
    uint32_t slots[LEG_GRANTS];
    struct request_cursor at = {0};
    for (uint32_t i = 0, count = 0; i < LEG_GRANTS && count < action->count; i++)
        if (sink->leg.grants[i].id >= action->grant.id)
            slots[count++] = sink->leg.grants[i].slot;
    node->metrics.grants += action->count;
    timeline_mark_first(&e->request.timeline, PHASE_CONNECT);
    struct message message = {.type = MESSAGE_REQUEST};
    do {
        const bool rest = at.sent != 0;
        message.request = (struct message_request){.leg = sink->id,
                                                   .epoch = e->epoch,
                                                   .source_pool = sink->source.pool,
                                                   .sink_pool = e->request.name.pool,
                                                   .source_key = view_of(sink->source.key, sink->source.size),
                                                   .sink_key = view_of(e->request.name.key, e->request.name.size),
                                                   .tenant = tenant_view(e->request.tenant),
                                                   .geometry = e->request.pool->pool->geometry,
                                                   .deadline_ms = e->deadline > now ? (uint32_t)(e->deadline - now) : 1,
                                                   .rest = rest,
                                                   .slots = slots,
                                                   .on_gpu = e->request.pool->pool->devices != NULL};
        (e->is_read ? next_lists : next_spans)(e, &at, &message.request);
        if (!message.request.more) {
            message.request.grant = action->grant.id;
            message.request.slot_count = action->count;
        }
        (void)peer_send(sink->peer, &message); /* if the peer is down, `down` follows */
    } while (message.request.more);
}

static void send_to_peer(struct sink *sink, const struct message *message)
{
    struct metrics *metrics = &sink->node->metrics;
    if (sink->peer == NULL)
        return; /* no source has been asked */
    metrics->grants += message->type == MESSAGE_GRANT;
    metrics->grants_reclaimed += message->type == MESSAGE_REVOKE;
    (void)peer_send(sink->peer, message);
}

const struct sink_port sink_over_peer = {.takes_slots = true,
                                         .request = send_request,
                                         .send = send_to_peer,
                                         .cut = cut_and_take_slot,
                                         .decode = decode_chunk};

/* ---- The state machine ------------------------------------------------------------------------------------------- */

static uint64_t grant_bytes(const struct sink *sink, const struct leg_grant *grant)
{
    struct piece piece;
    if (!segments_piece(&sink->segments, grant->first, grant->count, &piece))
        return 0;
    const struct segment units = {piece.group, piece.region_first, piece.region_count, piece.first, piece.count};
    return segment_bytes(&units, &sink->expectation->request.pool->pool->sizes);
}

static void send_grant(struct sink *sink, const struct leg_grant *grant)
{
    tenant_granted(sink->expectation->request.tenant, grant_bytes(sink, grant));
    struct message message = {.type = MESSAGE_GRANT};
    message.grant = (struct message_grant){.leg = sink->id,
                                           .epoch = sink->expectation->epoch,
                                           .grant = grant->id,
                                           .first = grant->first,
                                           .count = grant->count,
                                           .slot = grant->slot};
    sink->port->send(sink, &message);
}

static void send_revoke(struct sink *sink, uint64_t grant)
{
    struct message message = {.type = MESSAGE_REVOKE};
    message.grant_id = (struct message_grant_id){.leg = sink->id, .epoch = sink->expectation->epoch, .grant = grant};
    sink->port->send(sink, &message);
}

static void send_end(struct sink *sink, enum strait_reason reason)
{
    struct message message = {.type = MESSAGE_END};
    message.end = (struct message_end){.leg = sink->id,
                                       .epoch = sink->expectation->epoch,
                                       .from_sink = true,
                                       .state = reason == STRAIT_REASON_NONE ? STRAIT_DONE : STRAIT_FAILED,
                                       .reason = (uint32_t)reason};
    sink->port->send(sink, &message);
}

static void act(struct sink *sink, const struct leg_action *action)
{
    switch (action->type) {
    case LEG_SEND_REQUEST:
        sink->port->request(sink, action);
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
        sink->port->decode(sink, &action->grant);
        break;
    case LEG_FREE_SLOT:
        free_slot(sink, &action->grant);
        break;
    case LEG_STATE:
        request_state(&sink->expectation->request, action->state);
        break;
    case LEG_COMPLETE:
        sink->expectation->request.callbacks->complete(&sink->expectation->request);
        break;
    case LEG_VERDICT:
        peer_figures_verdict(peer_figures_of(sink->peer), action->reason);
        if (action->reason != STRAIT_REASON_NONE)
            sink->expectation->request.callbacks->verdict(&sink->expectation->request, action->reason, sink->why);
        break;
    case LEG_DRAINED:
        sink->expectation->request.callbacks->drained(&sink->expectation->request);
        break;
    case LEG_CLOSED:
        LL_PREPEND2(sink->node->exchange.closed_sinks, sink, closed_next);
        break;
    default: /* LEG_ACCEPT is what step returns */
        break;
    }
}

static void stop_waiting(struct sink *sink)
{
    if (!sink->waiting)
        return;
    DL_DELETE2(sink->node->exchange.wanting, sink, wprev, wnext);
    sink->node->exchange.wanting_count--;
    sink->node->exchange.wanting_pages -= !sink->port->takes_slots;
    sink->waiting = false;
    sink->wants_since = 0;
}

static void update_waiting(struct sink *sink)
{
    uint32_t first, count;
    bool wants = sink_wants(&sink->leg, &first, &count);
    if (wants && !sink->waiting) {
        DL_APPEND2(sink->node->exchange.wanting, sink, wprev, wnext);
        sink->node->exchange.wanting_count++;
        sink->node->exchange.wanting_pages += !sink->port->takes_slots;
        sink->waiting = true;
    } else if (!wants) {
        stop_waiting(sink);
    }
}

/* True: the event was accepted (ARRIVING). */
static bool step(struct sink *sink, const struct leg_event *event)
{
    struct leg_actions actions = {0};
    bool accepted = false;
    bool honest = sink_step(&sink->leg, event, &actions);
    for (uint32_t i = 0; i < actions.count; i++) {
        accepted |= actions.list[i].type == LEG_ACCEPT;
        act(sink, &actions.list[i]);
    }
    update_waiting(sink);
    sink->node->exchange.stepped = true;
    if (sink->expectation->request.pool != NULL && sink->expectation->request.pool->pool->devices != NULL)
        sink->node->exchange.gpu_stepped = true;
    if (!honest)
        sink_event(sink, SINK_FAIL, STRAIT_REASON_GEOMETRY);
    return accepted;
}

/* A queued ARRIVING is that of pages under this daemon, which are there already. */
void sink_take(struct sink *sink, const struct leg_event *event)
{
    const bool accepted = step(sink, event);
    if (event->type != SINK_ARRIVING)
        return;
    if (accepted)
        (void)step(sink, &(struct leg_event){.type = SINK_ARRIVED, .grant = event->grant});
    else
        sink->port->refuse(sink, event->grant);
}

/* ---- Arrival ----------------------------------------------------------------------------------------------------- */

/* Can chunks for that arena come by this GPU's link, or by the connection's own (-1)? */
static bool comes_by(const struct receive_arena *arena, const struct peer *peer, int32_t device)
{
    return device >= 0 ? arena->device == device : arena->device < 0 || peer->direct;
}

/* The slot that was granted for exactly this chunk; NULL: there is none, or it was released. */
static struct slot *granted_slot(struct node *node, const struct peer *peer, int32_t device,
                                 const struct chunk_header *header)
{
    if (header->slot >= node->receive.slot_count || peer->token != header->token || (peer->sealed && device >= 0))
        return NULL;
    struct slot *slot = &node->receive.slots[header->slot];
    if (slot->sink == NULL || slot->grant != header->grant || slot->sink->peer != peer ||
        !comes_by(node->receive.arenas[slot->arena], peer, device))
        return NULL;
    const struct epoch *epoch = &slot->sink->expectation->epoch;
    return slot->sink->id == header->leg && epoch->incarnation == header->epoch.incarnation &&
                   epoch->counter == header->epoch.counter
               ? slot
               : NULL;
}

/* How the chunk comes, as far as this side can see: whether shared memory was written by a GPU it cannot. */
static enum gpu_path way_of(const struct node *node, const struct peer *peer, int32_t device, const struct slot *slot)
{
    if (node->receive.arenas[slot->arena]->device >= 0)
        return device < 0                                                   ? WIRE_PEER
               : peers_has_gpu(node->peers, LINK_BY_NCCL, (uint32_t)device) ? WIRE_NCCL
                                                                            : WIRE_UCX;
    const char *transport = peer_transport_name(peer);
    return strcmp(transport, "shm") == 0 ? WIRE_SHM : strcmp(transport, "tcp") == 0 ? WIRE_TCP : WIRE_UCX;
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
    if (slot == NULL || !step(slot->sink, &event)) {
        node->metrics.chunks_refused++;
        return (struct landing){.address = NULL};
    }
    slot->size = size;
    slot->number = header.number;
    struct span *span = &slot->sink->expectation->request.span;
    if (span->sampled)
        span->wires |= (uint8_t)(1u << way_of(node, peer, device, slot));
    return (struct landing){.address = receive_address(&node->receive, header.slot), .cookie = header.slot};
}

void sink_arrived(struct node *node, uint64_t cookie, enum strait_status status)
{
    struct slot *slot = &node->receive.slots[cookie];
    struct leg_event event = {.type = SINK_ARRIVED, .grant = slot->grant};
    (void)fault_at(FAULT_ARRIVED, slot->sink->peer, NULL);
    if (status != STRAIT_OK)
        event.reason = STRAIT_REASON_PEER_DOWN;
    timeline_mark_first(&slot->sink->expectation->request.timeline, PHASE_ANSWER);
    timeline_mark(&slot->sink->expectation->request.timeline, PHASE_CHUNKS);
    slot->sink->expectation->request.wire_bytes += slot->size;
    node->metrics.wire_bytes_landed += slot->size;
    peer_figures_arrived(peer_figures_of(slot->sink->peer), slot->size);
    if (status != STRAIT_OK)
        peer_figures_failed(peer_figures_of(slot->sink->peer), PEER_FAILED_CHUNK);
    sink_post(slot->sink, &event);
}

/* ---- Life -------------------------------------------------------------------------------------------------------- */

/* Grants of one leg at a time: one being encoded, one or two on the wire, one being decoded. A GPU is further away and
 * has twice as many, and so have pages that are copied. */
#define SINK_WINDOW 4u

struct sink *sink_create(struct expectation *e, const struct name *source, const char *address,
                         const struct sink_port *port)
{
    struct node *node = e->request.node;
    struct sink *sink = calloc(1, sizeof(*sink));
    if (sink == NULL || !leg_queue_reserve(&node->exchange.events)) {
        free(sink);
        return NULL;
    }
    sink->node = node;
    sink->expectation = e;
    sink->port = port;
    sink->id = ++node->exchange.next_leg;
    sink->source = *source;
    strcpy(sink->address, address);
    sink->asked_since = UINT32_MAX;
    sink->why = "";
    sink_init(&sink->leg, !port->takes_slots || e->request.pool->pool->devices != NULL ? LEG_GRANTS : SINK_WINDOW);
    HASH_ADD(hh, node->exchange.sinks, id, sizeof(sink->id), sink);
    LL_PREPEND(e->sinks, sink);
    e->sink_count++;
    timeline_mark_first(&e->request.timeline, PHASE_START);
    request_wake_gpus(&e->request);
    return sink;
}

void sink_free(struct sink *sink)
{
    stop_waiting(sink);
    if (sink->local != NULL)
        sink->local->local = NULL;
    HASH_DELETE(hh, sink->node->exchange.sinks, sink);
    LL_DELETE(sink->expectation->sinks, sink);
    leg_queue_release(&sink->node->exchange.events);
    request_reap(&sink->expectation->request);
    segments_fini(&sink->segments);
    free(sink);
}

void sink_detach_peer(struct sink *sink)
{
    sink->peer = NULL;
    sink->asked = false;
}

void sink_ask_peer(struct sink *sink, struct peer *peer)
{
    struct leg_event start = {.type = SINK_START};
    sink->peer = peer;
    sink->asked = true;
    request_met(&sink->expectation->request, sink->address);
    /* Slots for open grants: as many as the sink's first chunks can use and nobody else needs. */
    const struct node *node = sink->node;
    struct receive_arena *arena = arena_for(sink, only_device(sink->expectation->request.pool->pool));
    /* What open grants will carry is not known yet, so it could not be counted against a rate. */
    const uint32_t most = sink->expectation->request.tenant->rate != 0 ? 0 : most_open(sink, arena);
    while (start.opens < most && arena->slots.used < arena->slots.slot_count / 2 && node->exchange.wanting_count == 0 &&
           has_share(node, sink, arena)) {
        start.slots[start.opens] = take_slot(sink, arena, sink->leg.next_grant + start.opens);
        start.opens++;
    }
    sink_post(sink, &start);
}

void sink_ask(struct sink *sink)
{
    if (sink->leg.state != STRAIT_BOOTSTRAP || sink->asked)
        return;
    struct request *request = &sink->expectation->request;
    struct peer *peer = peers_get(sink->node->peers, sink->address, request->pool->uid);
    if (peer != NULL && peer->state == PEER_UP)
        sink_ask_peer(sink, peer);
    else if (peer != NULL && peer_is_hopeless(peer, &sink->asked_since))
        request->callbacks->verdict(request, STRAIT_REASON_PEER_DOWN, request_waits(request, sink->address, false));
}
