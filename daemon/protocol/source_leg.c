#include "daemon/protocol/leg_grants.h"

#include <string.h>

void source_init(struct source_leg *leg)
{
    memset(leg, 0, sizeof(*leg));
    leg->state = STRAIT_BOOTSTRAP;
}

static struct leg_grant *find(struct source_leg *leg, uint64_t id)
{
    return leg_grants_find(leg->grants, SOURCE_GRANTS, id);
}

static void send_released(uint64_t id, struct leg_actions *actions)
{
    leg_act_grant(actions, LEG_SEND_RELEASED, &(struct leg_grant){.id = id});
}

static void forget(struct source_leg *leg, struct leg_grant *grant)
{
    leg_grants_remove(leg->grants, SOURCE_GRANTS, grant);
}

static void release(struct source_leg *leg, struct leg_grant *grant, struct leg_actions *actions)
{
    send_released(grant->id, actions);
    forget(leg, grant);
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

/* After a verdict: only an encoding job reads pages; a chunk being sent is a copy. */
static void settle(struct source_leg *leg, struct leg_actions *actions)
{
    if (!leg_has_verdict(leg->state))
        return;
    if (!leg->drained && !leg_grants_any(leg->grants, SOURCE_GRANTS, GRANT_ENCODING)) {
        leg->drained = 1;
        leg_act(actions, LEG_DRAINED);
    }
    if (leg->drained && !leg->closed && leg_grants_count(leg->grants, SOURCE_GRANTS) == 0) {
        leg->closed = 1;
        leg_act(actions, LEG_CLOSED);
    }
}

static void conclude(struct source_leg *leg, enum strait_state state, enum strait_reason reason, bool tell,
                     struct leg_actions *actions)
{
    leg->state = state;
    leg->reason = reason;
    leg_act_reason(actions, LEG_VERDICT, reason);
    if (tell)
        leg_act_reason(actions, LEG_SEND_END, reason);
    for (uint32_t i = 0; i < SOURCE_GRANTS;)
        if (leg->grants[i].state == GRANT_QUEUED)
            release(leg, &leg->grants[i], actions);
        else
            i++;
}

static void fail(struct source_leg *leg, enum strait_reason reason, bool tell, struct leg_actions *actions)
{
    if (!leg_has_verdict(leg->state))
        conclude(leg, STRAIT_FAILED, reason, tell, actions);
}

/* The sink's verdict. It cannot be DONE before the last unit was announced. */
static bool end(struct source_leg *leg, enum strait_reason reason, struct leg_actions *actions)
{
    if (leg_has_verdict(leg->state))
        return true;
    if (reason == STRAIT_REASON_NONE && !leg->last)
        return false;
    conclude(leg, reason == STRAIT_REASON_NONE ? STRAIT_DONE : STRAIT_FAILED, reason, false, actions);
    return true;
}

/* ---- What is ready ----------------------------------------------------------------------------------------------- */

static void send_segments(const struct source_leg *leg, uint32_t first, struct leg_actions *actions)
{
    struct leg_action *action = leg_act(actions, LEG_SEND_SEGMENTS);
    action->first = first;
    action->count = leg->ready - first;
    action->last = leg->last;
}

static void queue(struct source_leg *leg, const struct leg_grant *grant, struct leg_actions *actions)
{
    if (leg->state == STRAIT_READY) {
        leg->state = STRAIT_TRANSFERRING;
        leg_act_state(actions, STRAIT_TRANSFERRING);
    }
    struct leg_grant *queued = leg_grants_append(leg->grants, SOURCE_GRANTS, grant);
    queued->state = GRANT_QUEUED;
}

/* An open grant of a REQUEST is used at once, in its turn, or never. */
static void use_open(struct source_leg *leg, const struct leg_event *event, struct leg_actions *actions)
{
    uint32_t first = 0;
    for (uint32_t i = 0; i < event->opens && event->units[i] != 0 && event->units[i] <= leg->ready - first; i++) {
        const struct leg_grant open = {
            .id = event->grant + i, .first = first, .count = event->units[i], .slot = event->slots[i]};
        queue(leg, &open, actions);
        leg->opened = event->grant;
        leg->opened_units[i] = event->units[i];
        first += event->units[i];
    }
}

static void release_open(struct source_leg *leg, const struct leg_event *event, struct leg_actions *actions)
{
    for (uint64_t id = event->grant; id - event->grant < event->opens; id++) {
        leg->seen = id > leg->seen ? id : leg->seen;
        if (leg->opened == 0 || id < leg->opened || id - leg->opened >= LEG_GRANTS ||
            leg->opened_units[id - leg->opened] == 0)
            send_released(id, actions);
    }
}

/* A repeated REQUEST came over a new link: what the old one carried may be lost. */
static void bind_again(struct source_leg *leg, struct leg_actions *actions)
{
    if (leg->state == STRAIT_FAILED)
        leg_act_reason(actions, LEG_SEND_END, (enum strait_reason)leg->reason);
    else if (leg->state != STRAIT_DONE)
        send_segments(leg, 0, actions);
}

static void bind_first(struct source_leg *leg, const struct leg_event *event, struct leg_actions *actions)
{
    leg->state = STRAIT_READY;
    leg->ready = event->count;
    leg->last = event->last;
    leg_act_state(actions, STRAIT_READY);
    use_open(leg, event, actions);
    send_segments(leg, 0, actions);
}

static void bind(struct source_leg *leg, const struct leg_event *event, struct leg_actions *actions)
{
    if (leg->state == STRAIT_BOOTSTRAP)
        bind_first(leg, event, actions);
    else
        bind_again(leg, actions);
    release_open(leg, event, actions);
}

static bool more(struct source_leg *leg, const struct leg_event *event, struct leg_actions *actions)
{
    bool bound = leg->state == STRAIT_READY || leg->state == STRAIT_TRANSFERRING;
    if (!bound || leg->last || (event->count == 0 && !event->last))
        return true;
    if (event->count > UINT32_MAX - leg->ready)
        return false;
    uint32_t before = leg->ready;
    leg->ready += event->count;
    leg->last = event->last;
    send_segments(leg, before, actions);
    return true;
}

/* ---- Grants ------------------------------------------------------------------------------------------------------ */

/* Each grant is accepted only once. An unused grant is always answered, or its slot would stay held. */
static bool grant(struct source_leg *leg, const struct leg_event *event, struct leg_actions *actions)
{
    if (event->grant == 0)
        return false;
    if (find(leg, event->grant) != NULL)
        return true; /* duplicate: the chunk, or RELEASED, will come */
    bool bound = leg->state == STRAIT_READY || leg->state == STRAIT_TRANSFERRING;
    bool is_new = event->grant > leg->seen,
         announced = event->count > 0 && event->first <= leg->ready && event->count <= leg->ready - event->first;
    leg->seen = is_new ? event->grant : leg->seen;
    if (bound && is_new && announced && leg_grants_count(leg->grants, SOURCE_GRANTS) < SOURCE_GRANTS) {
        queue(
            leg,
            &(struct leg_grant){.id = event->grant, .first = event->first, .count = event->count, .slot = event->slot},
            actions);
        return true;
    }
    send_released(event->grant, actions);
    if (leg->state == STRAIT_FAILED)
        leg_act_reason(actions, LEG_SEND_END, (enum strait_reason)leg->reason); /* stops further grants */
    return !bound || !is_new || announced;
}

/* A grant that is not held any more has been answered, by RELEASED or by its chunk. Another RELEASED would overtake the
 * chunk, and its units would be sent twice. */
static void revoke(struct source_leg *leg, uint64_t id, struct leg_actions *actions)
{
    struct leg_grant *found = find(leg, id);
    if (found == NULL && id > leg->seen) {
        leg->seen = id; /* if the grant still comes, it is known to be void */
        send_released(id, actions);
    } else if (found != NULL && found->state == GRANT_QUEUED)
        release(leg, found, actions);
}

/* ---- Chunks ------------------------------------------------------------------------------------------------------ */

const struct leg_grant *source_next(const struct source_leg *leg)
{
    for (uint32_t i = 0; i < SOURCE_GRANTS; i++)
        if (leg->grants[i].state == GRANT_QUEUED)
            return &leg->grants[i];
    return NULL;
}

static void encode(struct source_leg *leg, struct leg_actions *actions)
{
    struct leg_grant *grant = (struct leg_grant *)source_next(leg); /* it points into our own leg */
    if (grant == NULL)
        return;
    grant->state = GRANT_ENCODING;
    leg_act_grant(actions, LEG_ENCODE, grant);
}

static void encoded(struct source_leg *leg, const struct leg_event *event, struct leg_actions *actions)
{
    struct leg_grant *found = find(leg, event->grant);
    if (found == NULL || found->state != GRANT_ENCODING)
        return;
    if (event->reason == STRAIT_REASON_NONE && !leg_has_verdict(leg->state)) {
        found->state = GRANT_SENDING;
        leg_act_grant(actions, LEG_TRANSMIT, found);
        return;
    }
    leg_act_grant(actions, LEG_FREE_SLOT, found);
    release(leg, found, actions);
    if (event->reason != STRAIT_REASON_NONE)
        fail(leg, event->reason, true, actions);
}

static void sent(struct source_leg *leg, const struct leg_event *event, struct leg_actions *actions)
{
    struct leg_grant *found = find(leg, event->grant);
    if (found == NULL || found->state != GRANT_SENDING)
        return;
    bool arrives = event->reason == STRAIT_REASON_NONE && !leg_has_verdict(leg->state);
    leg_act_grant(actions, LEG_FREE_SLOT, found);
    if (arrives)
        forget(leg, found);
    else
        release(leg, found, actions); /* if the chunk arrives anyway, the sink ignores the answer */
    if (event->reason != STRAIT_REASON_NONE)
        fail(leg, STRAIT_REASON_PEER_DOWN, true, actions);
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

static bool step(struct source_leg *leg, const struct leg_event *event, struct leg_actions *actions)
{
    switch (event->type) {
    case SOURCE_BIND:
        bind(leg, event, actions);
        return true;
    case SOURCE_MORE:
        return more(leg, event, actions);
    case SOURCE_GRANT:
        return grant(leg, event, actions);
    case SOURCE_REVOKE:
        if (event->grant != 0)
            revoke(leg, event->grant, actions);
        return event->grant != 0;
    case SOURCE_ENCODE:
        encode(leg, actions);
        return true;
    case SOURCE_ENCODED:
        encoded(leg, event, actions);
        return true;
    case SOURCE_SENT:
        sent(leg, event, actions);
        return true;
    case SOURCE_END:
        return end(leg, event->reason, actions);
    case SOURCE_FAIL:
        fail(leg, event->reason == STRAIT_REASON_NONE ? STRAIT_REASON_LOCAL : event->reason, true, actions);
        return true;
    default:
        return true; /* not a source event */
    }
}

bool source_step(struct source_leg *leg, const struct leg_event *event, struct leg_actions *actions)
{
    actions->count = 0;
    bool honest = step(leg, event, actions);
    settle(leg, actions);
    return honest;
}
