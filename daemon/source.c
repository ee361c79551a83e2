/* The source's half of a leg: carries out the actions of its state machine. */
#include <stdlib.h>

#include <utlist.h>

#include "daemon/node.h"
#include "daemon/source_private.h"

/* Takes ownership of `wanted`, also on failure. */
struct source *source_create(struct offer *o, struct peer *peer, struct sink *local, uint64_t id,
                             const struct epoch *epoch, struct wire_span *wanted, uint32_t wanted_count)
{
    struct source *source = calloc(1, sizeof(*source));
    if (source == NULL) {
        free(wanted);
        return NULL;
    }
    source->node = o->request.node;
    source->offer = o;
    source->id = id;
    source->epoch = *epoch;
    source->wanted = wanted;
    source->wanted_count = wanted_count;
    source->peer = peer;
    source->local = local;
    source->is_local = local != NULL;
    source->at.peer = peer;
    source->at.id = id;
    source_init(&source->leg);
    HASH_ADD(hh, source->node->exchange.sources, at, sizeof(source->at), source);
    LL_PREPEND(o->sources, source);
    o->leg_count++;
    return source;
}

static void stop_waiting(struct source *source)
{
    if (!source->waiting)
        return;
    DL_DELETE2(source->node->exchange.encoding, source, wprev, wnext);
    source->node->exchange.encoding_count--;
    source->waiting = false;
}

void source_free(struct source *source)
{
    stop_waiting(source);
    if (source->is_local)
        local_part(source->local, source);
    HASH_DELETE(hh, source->node->exchange.sources, source);
    LL_DELETE(source->offer->sources, source);
    request_over(&source->offer->request);
    segments_fini(&source->segments);
    free(source->wanted);
    free(source);
}

/* ---- The state machine ------------------------------------------------------------------------------------------- */

static void act(struct source *source, const struct leg_action *action)
{
    switch (action->type) {
    case LEG_SEND_SEGMENTS:
        source_send_segments(source, action);
        break;
    case LEG_SEND_RELEASED:
        source_send_released(source, action->grant.id);
        break;
    case LEG_SEND_END:
        source_send_end(source, action->reason);
        break;
    case LEG_ENCODE:
        source_encode_chunk(source, &action->grant);
        break;
    case LEG_TRANSMIT:
        source_transmit_chunk(source, &action->grant);
        break;
    case LEG_FREE_SLOT:
        source_end_flight(source, action->grant.id);
        break;
    case LEG_STATE:
        request_state(&source->offer->request, action->state);
        break;
    case LEG_VERDICT:
        if (!source->superseded)
            offer_leg_verdict(source->offer, action->reason);
        break;
    case LEG_DRAINED:
        offer_leg_drained(source->offer);
        break;
    case LEG_CLOSED:
        LL_PREPEND2(source->node->exchange.closed_sources, source, closed_next);
        break;
    default:
        break;
    }
}

static void update_waiting(struct source *source)
{
    bool wants = source_wants(&source->leg);
    if (wants && !source->waiting) {
        source->queued_at = uv_hrtime();
        DL_APPEND2(source->node->exchange.encoding, source, wprev, wnext);
        source->node->exchange.encoding_count++;
        source->waiting = true;
    } else if (!wants) {
        stop_waiting(source);
    }
}

bool source_apply(struct source *source, const struct leg_event *event)
{
    struct leg_actions actions = {0};
    bool honest = source_step(&source->leg, event, &actions);
    for (uint32_t i = 0; i < actions.count; i++)
        act(source, &actions.list[i]);
    update_waiting(source);
    if (source->offer->request.pool != NULL && source->offer->request.pool->pool->devices != NULL)
        node_attend(source->node);
    if (!honest)
        source_event(source, SOURCE_FAIL, STRAIT_REASON_GEOMETRY);
    return honest;
}

void source_event(struct source *source, enum leg_event_type type, enum strait_reason reason)
{
    struct leg_event event = {.type = type, .reason = reason};
    (void)source_apply(source, &event);
}
