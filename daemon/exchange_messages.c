/* Messages of peers about legs. */
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/exchange_messages.h"
#include "daemon/node.h"
#include "daemon/reach.h"
#include "daemon/session.h"
#include "daemon/sink.h"
#include "daemon/source.h"

static struct sink *find_sink(struct node *node, struct peer *peer, uint64_t leg, const struct epoch *epoch)
{
    struct sink *sink;
    HASH_FIND(hh, node->exchange.sinks, &leg, sizeof(leg), sink);
    if (sink == NULL || sink->peer != peer || sink->expectation->epoch.incarnation != epoch->incarnation ||
        sink->expectation->epoch.counter != epoch->counter)
        return NULL;
    return sink;
}

struct source *exchange_find_source(struct node *node, struct peer *peer, uint64_t leg, const struct epoch *epoch)
{
    struct source_key key;
    memset(&key, 0, sizeof(key));
    key.peer = peer;
    key.id = leg;
    struct source *source;
    HASH_FIND(hh, node->exchange.sources, &key, sizeof(key), source);
    if (source == NULL || source->epoch.incarnation != epoch->incarnation || source->epoch.counter != epoch->counter)
        return NULL;
    return source;
}

static bool on_end(struct node *node, struct peer *peer, const struct message_end *end)
{
    enum strait_reason reason = (enum strait_reason)end->reason;
    if (end->state == STRAIT_FAILED && reason == STRAIT_REASON_NONE)
        return false;
    if (end->from_sink) {
        struct source *source = exchange_find_source(node, peer, end->leg, &end->epoch);
        if (source != NULL)
            source_event(source, SOURCE_END, end->state == STRAIT_DONE ? STRAIT_REASON_NONE : leg_peer_reason(reason));
        struct parked *parked = parked_find_leg(node, peer, end->leg);
        if (parked != NULL)
            parked_remove(node, parked);
        return true;
    }
    struct sink *sink = find_sink(node, peer, end->leg, &end->epoch);
    if (sink != NULL)
        sink_event(sink, SINK_END, leg_peer_reason(reason));
    return end->state == STRAIT_FAILED; /* only the sink can say DONE */
}

static bool on_segments(struct node *node, struct peer *peer, const struct message_segments *message)
{
    struct sink *sink = find_sink(node, peer, message->leg, &message->epoch);
    if (sink == NULL) { /* the leg is over and forgotten: the source must not wait for its lease */
        exchange_send_end(peer, message->leg, &message->epoch, true, STRAIT_REASON_PEER_ABORT);
        return true;
    }
    enum strait_reason reason = sink_segments(sink, message);
    if (reason != STRAIT_REASON_NONE)
        sink_event(sink, SINK_FAIL, reason);
    return true;
}

void exchange_send_released(struct peer *peer, const struct message_grant_id *id)
{
    struct message message = {.type = MESSAGE_RELEASED, .grant_id = *id};
    (void)peer_send(peer, &message);
}

static bool on_grant(struct node *node, struct peer *peer, const struct message_grant *grant)
{
    struct source *source = exchange_find_source(node, peer, grant->leg, &grant->epoch);
    if (!reach_knows_slot(peer, grant->slot))
        return false;
    if (source == NULL) {
        struct message_grant_id id = {.leg = grant->leg, .epoch = grant->epoch, .grant = grant->grant};
        exchange_send_released(peer, &id);
        return true;
    }
    struct leg_event event = {
        .type = SOURCE_GRANT, .grant = grant->grant, .first = grant->first, .count = grant->count, .slot = grant->slot};
    (void)source_apply(source, &event);
    return true;
}

static bool on_grant_id(struct node *node, struct peer *peer, const struct message_grant_id *id, bool revoke)
{
    if (revoke) {
        struct source *source = exchange_find_source(node, peer, id->leg, &id->epoch);
        struct leg_event event = {.type = SOURCE_REVOKE, .grant = id->grant};
        if (source != NULL)
            (void)source_apply(source, &event);
        else
            exchange_send_released(peer, id);
        return true;
    }
    struct sink *sink = find_sink(node, peer, id->leg, &id->epoch);
    struct leg_event event = {.type = SINK_RELEASED, .grant = id->grant};
    if (sink != NULL)
        (void)sink_apply(sink, &event);
    return true;
}

static bool on_note(struct node *node, const struct message_note *note)
{
    struct pool_ref *pool;
    HASH_FIND(hh, node->exchange.pools, &note->pool, sizeof(note->pool), pool);
    if (pool != NULL) {
        struct message message = {.type = MESSAGE_NOTE, .note = *note};
        session_send_note(pool->session, &message);
    }
    return true;
}

bool exchange_message(void *owner, struct peer *peer, const struct message *message)
{
    struct node *node = owner;
    switch (message->type) {
    case MESSAGE_REQUEST:
        return exchange_request(node, peer, &message->request);
    case MESSAGE_ANNOUNCE:
        return exchange_announce(node, peer, &message->announce);
    case MESSAGE_SEGMENTS:
        return on_segments(node, peer, &message->segments);
    case MESSAGE_GRANT:
        return on_grant(node, peer, &message->grant);
    case MESSAGE_REVOKE:
    case MESSAGE_RELEASED:
        return on_grant_id(node, peer, &message->grant_id, message->type == MESSAGE_REVOKE);
    case MESSAGE_END:
        return on_end(node, peer, &message->end);
    case MESSAGE_ARENA:
        return reach_arena(node, peer, &message->arena);
    case MESSAGE_REACH:
        return reach_reach(peer, &message->reach);
    case MESSAGE_PEER_NOTE:
        return on_note(node, &message->note);
    default:
        return false;
    }
}
