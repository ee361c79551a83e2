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
    struct expectation *e = sink->expectation;
    const char *why = "a source has announced what is not expected, or what another one has announced";
    const bool good =
        sink->part != NULL ? part_claim(e, sink->part, segment, &why) : coverage_claim(e->coverage, segment);
    sink->why = good ? sink->why : why;
    return good;
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
        if (!claim(sink, &message->segments[i]))
            return STRAIT_REASON_GEOMETRY;
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

struct leg_grant *sink_find_grant(struct sink *sink, uint64_t id)
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
    if (sink->part == NULL)
        e->request.callbacks->landed(&e->request, &piece);
    if (layers.count != 0)
        sink->expectation->request.callbacks->layers(&e->request, layers.list, layers.count);
    return true;
}

void sink_landed(struct sink *sink, uint64_t grant_id, const struct job_result *result)
{
    struct expectation *e = sink->expectation;
    const struct leg_grant *grant = sink_find_grant(sink, grant_id);
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

bool sink_holds_grants(const struct sink *sink)
{
    for (uint32_t i = 0; i < LEG_GRANTS; i++)
        if (sink->leg.grants[i].state != GRANT_NONE)
            return true;
    return false;
}

/* ---- Granting ---------------------------------------------------------------------------------------------------- */

int32_t sink_next_device(const struct sink *sink, uint32_t first)
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
    const bool by_gpu = arena->device >= 0 || sink_next_device(sink, first) >= 0;
    const bool is_new = first >= sink->leg.granted;
    uint64_t target = !is_new ? most : by_gpu ? gpu_chunk_target((uint32_t)most, sink->bytes) : arena->target;
    if (is_new && arena->device >= 0 && sink->leg.last && sink->leg.ready > 0)
        target = gpu_tail_target(target, sink->bytes, sink->bytes / sink->leg.ready * count);
    return segments_cut_chunk(&sink->segments, first, count, &sink_pool(sink)->sizes, sink_pages(sink), target, most);
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
        if (sink->port->free_slot != NULL)
            sink->port->free_slot(sink, &action->grant);
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

bool sink_take_now(struct sink *sink, const struct leg_event *event)
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
    if (sink->port->granted != NULL && event->type == SINK_SEGMENTS)
        sink->port->granted(sink);
    return accepted;
}

/* A queued ARRIVING is that of pages under this daemon, which are there already. */
void sink_take(struct sink *sink, const struct leg_event *event)
{
    const bool accepted = sink_take_now(sink, event);
    if (event->type != SINK_ARRIVING)
        return;
    if (accepted)
        (void)sink_take_now(sink, &(struct leg_event){.type = SINK_ARRIVED, .grant = event->grant});
    else
        sink->port->refuse(sink, event->grant);
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
