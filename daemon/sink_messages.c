/* The sink's half of a leg: its messages to the source, under this daemon or over its connection, and the source's
 * SEGMENTS. */
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "daemon/node.h"
#include "daemon/session.h"
#include "daemon/sink_private.h"

/* ---- To the source ----------------------------------------------------------------------------------------------- */

/* The slots of the grants that go with it. */
static void slots_of(const struct sink *sink, const struct leg_action *request, uint32_t slots[LEG_GRANTS])
{
    for (uint32_t i = 0, count = 0; i < LEG_GRANTS && count < request->count; i++)
        if (sink->leg.grants[i].id >= request->grant.id)
            slots[count++] = sink->leg.grants[i].slot;
}

void sink_send_request(struct sink *sink, const struct leg_action *action)
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
            return; /* the deadline ends it */
        parked->key.is_request = true;
        parked->key.wants = sink->source;
        parked->sink = sink;
        parked->expires = UINT64_MAX; /* lives as long as the sink */
        parked_add(node, parked);
        return;
    }
    uint64_t now = uv_now(node->loop);
    uint32_t sent = 0, slots[LEG_GRANTS];
    slots_of(sink, action, slots);
    node->metrics.grants += action->count;
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
                                                   .grant = more ? 0 : action->grant.id,
                                                   .slot_count = more ? 0 : action->count,
                                                   .slots = slots};
        (void)peer_send(sink->peer, &message); /* if the peer is down, `down` follows */
        sent += count;
    } while (sent < e->wanted_count);
}

void sink_send_grant(struct sink *sink, const struct leg_grant *grant)
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

void sink_send_revoke(struct sink *sink, uint64_t grant)
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

void sink_send_end(struct sink *sink, enum strait_reason reason)
{
    if (sink->is_local) {
        struct leg_event event = {.type = SOURCE_END, .reason = leg_peer_reason(reason)};
        if (sink->local != NULL)
            local_post(sink->node, NULL, sink->local, &event);
        return;
    }
    if (sink->peer == NULL)
        return; /* no source has been asked */
    struct message message = {.type = MESSAGE_END};
    message.end = (struct message_end){.leg = sink->id,
                                       .epoch = sink->expectation->epoch,
                                       .from_sink = true,
                                       .state = reason == STRAIT_REASON_NONE ? STRAIT_DONE : STRAIT_FAILED,
                                       .reason = (uint32_t)reason};
    (void)peer_send(sink->peer, &message);
}

/* ---- From the source --------------------------------------------------------------------------------------------- */

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

/* More units are ready at the source. Returns NONE, or why this leg fails. */
enum strait_reason sink_segments(struct sink *sink, const struct message_segments *message)
{
    struct expectation *e = sink->expectation;
    if (e->request.decided || sink->leg.last || message->before != sink->leg.ready)
        return STRAIT_REASON_NONE; /* late or duplicate */
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
                              .opens = message->granted_count,
                              .before = message->before,
                              .count = sink->segments.units - before,
                              .last = message->last};
    for (uint32_t i = 0; i < message->granted_count; i++)
        event.units[i] = message->granted[i];
    (void)sink_apply(sink, &event);
    return STRAIT_REASON_NONE;
}
