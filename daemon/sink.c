/* The sink's half of a leg: carries out the actions of its state machine. */
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/node.h"
#include "daemon/sink_private.h"
#include "daemon/source.h"

/* Grants of one leg at a time: one being encoded, one or two on the wire, one being decoded. A GPU is further away and
 * has twice as many. */
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
    sink_open(sink, &start);
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

/* ---- The state machine ------------------------------------------------------------------------------------------- */

static void act(struct sink *sink, const struct leg_action *action)
{
    switch (action->type) {
    case LEG_SEND_REQUEST:
        sink_send_request(sink, action);
        break;
    case LEG_SEND_GRANT:
        sink_send_grant(sink, &action->grant);
        break;
    case LEG_SEND_REVOKE:
        sink_send_revoke(sink, action->grant.id);
        break;
    case LEG_SEND_END:
        sink_send_end(sink, action->reason);
        break;
    case LEG_DECODE:
        sink_decode_chunk(sink, &action->grant);
        break;
    case LEG_FREE_SLOT:
        sink_free_slot(sink, &action->grant);
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
    default: /* LEG_ACCEPT is returned by sink_apply */
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
