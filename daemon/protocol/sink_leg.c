#include <string.h>

#include "daemon/protocol/leg_grants.h"

void sink_init(struct sink_leg *leg, uint32_t window)
{
    memset(leg, 0, sizeof(*leg));
    leg->state = STRAIT_BOOTSTRAP;
    leg->window = window < 1 ? 1 : window > LEG_GRANTS ? LEG_GRANTS : window;
    leg->next_grant = 1;
}

static struct leg_grant *find(struct sink_leg *leg, uint64_t id)
{
    return leg_grants_find(leg->grants, LEG_GRANTS, id);
}

static uint32_t outstanding(const struct sink_leg *leg)
{
    return leg_grants_count(leg->grants, LEG_GRANTS);
}

/* Given to the source, and not known to be used yet. */
static bool is_unused(const struct leg_grant *grant)
{
    return grant->state == GRANT_OPEN || grant->state == GRANT_GIVEN || grant->state == GRANT_REVOKING;
}

static void free_slot(struct sink_leg *leg, struct leg_grant *grant, struct leg_actions *actions)
{
    leg_act_grant(actions, LEG_FREE_SLOT, grant);
    leg_grants_remove(leg->grants, LEG_GRANTS, grant);
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

static bool any_ahead(const struct sink_leg *leg)
{
    for (uint32_t i = 0; i < LEG_GRANTS; i++)
        if (leg->grants[i].ahead)
            return true;
    return false;
}

/* After a verdict: a chunk that still arrives touches only its slot; one that is being decoded, or waited for by a
 * decoder, also touches pages. */
static void settle(struct sink_leg *leg, struct leg_actions *actions)
{
    if (!leg_has_verdict(leg->state))
        return;
    if (!leg->drained && !leg_grants_any(leg->grants, LEG_GRANTS, GRANT_DECODING) && !any_ahead(leg)) {
        leg->drained = 1;
        leg_act(actions, LEG_DRAINED);
    }
    if (leg->drained && !leg->closed && outstanding(leg) == 0) {
        leg->closed = 1;
        leg_act(actions, LEG_CLOSED);
    }
}

static void free_early(struct sink_leg *leg, struct leg_actions *actions)
{
    for (uint32_t i = 0; i < LEG_GRANTS;)
        if (leg->grants[i].state == GRANT_EARLY)
            free_slot(leg, &leg->grants[i], actions);
        else
            i++;
}

/* Grants stay held, because the source may be about to write to their slots. */
static void fail(struct sink_leg *leg, enum strait_reason reason, bool tell, struct leg_actions *actions)
{
    if (leg_has_verdict(leg->state))
        return;
    free_early(leg, actions);
    leg->state = STRAIT_FAILED;
    leg->reason = reason;
    leg->returned_count = 0;
    memset(leg->returned, 0, sizeof(leg->returned));
    leg_act_reason(actions, LEG_VERDICT, reason);
    if (tell && leg->started)
        leg_act_reason(actions, LEG_SEND_END, reason);
}

static void finish(struct sink_leg *leg, struct leg_actions *actions)
{
    if (!leg->complete || leg_has_verdict(leg->state))
        return;
    leg->state = STRAIT_DONE;
    leg_act_reason(actions, LEG_VERDICT, STRAIT_REASON_NONE);
    leg_act_reason(actions, LEG_SEND_END, STRAIT_REASON_NONE);
}

/* The leg is complete when all announced units have landed: each is either not yet granted, returned, granted or
 * landed. */
static void check_complete(struct sink_leg *leg, struct leg_actions *actions)
{
    if (leg_has_verdict(leg->state) || leg->complete || !leg->last || leg->landed != leg->ready)
        return;
    leg->complete = 1;
    leg_act(actions, LEG_COMPLETE);
}

/* ---- What is ready ----------------------------------------------------------------------------------------------- */

static void start(struct sink_leg *leg, const struct leg_event *event, struct leg_actions *actions)
{
    const bool starts = leg->state == STRAIT_BOOTSTRAP;
    uint32_t opened = 0;
    for (uint32_t i = 0; i < event->opens && i < LEG_GRANTS; i++) {
        struct leg_grant open = {.slot = event->slots[i], .state = GRANT_OPEN};
        if (!starts || outstanding(leg) >= leg->window) {
            leg_act_grant(actions, LEG_FREE_SLOT, &(struct leg_grant){.slot = open.slot});
            continue;
        }
        open.id = leg->next_grant++;
        leg_grants_append(leg->grants, LEG_GRANTS, &open);
        opened++;
    }
    if (!starts)
        return;
    leg->started = 1;
    struct leg_action *action = leg_act(actions, LEG_SEND_REQUEST);
    action->count = opened;
    action->grant.id = opened != 0 ? leg->next_grant - opened : 0;
}

/* Units that it names must be the first of its own, and a chunk that came early must be named. */
static bool names_well(const struct sink_leg *leg, const struct leg_event *event)
{
    uint64_t named = 0;
    if (event->opens > LEG_GRANTS)
        return false;
    for (uint32_t i = 0; i < event->opens; i++) {
        if (event->units[i] == 0)
            return false;
        named += event->units[i];
    }
    for (uint32_t i = 0; i < LEG_GRANTS; i++)
        if (leg->grants[i].state == GRANT_EARLY &&
            (leg->grants[i].id < event->grant || leg->grants[i].id - event->grant >= event->opens))
            return false;
    return named <= event->count;
}

/* The next `units` are those of an open grant. */
static void set_range(struct sink_leg *leg, struct leg_grant *open, uint32_t units, struct leg_actions *actions)
{
    if (leg->state == STRAIT_READY) {
        leg->state = STRAIT_TRANSFERRING;
        leg_act_state(actions, STRAIT_TRANSFERRING);
    }
    open->first = leg->granted;
    open->count = units;
    if (open->state == GRANT_OPEN)
        open->state = GRANT_GIVEN;
    if (open->state == GRANT_EARLY) {
        open->state = GRANT_DECODING;
        leg_act_grant(actions, LEG_DECODE, open);
    }
}

static void sink_give_back(struct sink_leg *leg, uint32_t first, uint32_t count);

/* The leg gets bound. Only open grants are held before. Units of one that has ended with its link are granted again. */
static void bound(struct sink_leg *leg, const struct leg_event *event, struct leg_actions *actions)
{
    leg->state = STRAIT_READY;
    leg_act_state(actions, STRAIT_READY);
    for (uint32_t i = 0; i < event->opens; i++) {
        struct leg_grant *open = find(leg, event->grant + i);
        if (open != NULL && open->state != GRANT_VOID)
            set_range(leg, open, event->units[i], actions);
        else
            sink_give_back(leg, leg->granted, event->units[i]);
        leg->granted += event->units[i];
    }
}

static bool segments(struct sink_leg *leg, const struct leg_event *event, struct leg_actions *actions)
{
    if (event->count > UINT32_MAX - event->before)
        return false;
    if (!leg->started || leg_has_verdict(leg->state) || event->before != leg->ready)
        return true; /* late, duplicate or out of order */
    if ((leg->last && event->count > 0) || !names_well(leg, event))
        return false;
    if (leg->state == STRAIT_BOOTSTRAP)
        bound(leg, event, actions);
    leg->ready += event->count;
    leg->last |= event->last;
    check_complete(leg, actions);
    return true;
}

/* ---- Grants ------------------------------------------------------------------------------------------------------ */

bool sink_wants(const struct sink_leg *leg, uint32_t *first, uint32_t *count)
{
    bool bound = leg->state == STRAIT_READY || leg->state == STRAIT_TRANSFERRING;
    if (!bound || leg->quiet || outstanding(leg) >= leg->window)
        return false;
    *first = leg->returned_count > 0 ? leg->returned[0].first : leg->granted;
    *count = leg->returned_count > 0 ? leg->returned[0].count : leg->ready - leg->granted;
    return *count > 0;
}

uint32_t sink_unused(const struct sink_leg *leg)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < LEG_GRANTS; i++)
        count += leg->grants[i].state == GRANT_GIVEN;
    return count;
}

static void sink_take_back(struct sink_leg *leg, uint32_t count);

/* Takes units from the range that sink_wants() named. */
static bool take(struct sink_leg *leg, uint32_t count, uint32_t *first)
{
    uint32_t most;
    if (count == 0 || !sink_wants(leg, first, &most) || count > most)
        return false;
    if (leg->returned_count == 0) {
        leg->granted += count;
        return true;
    }
    if (count < most && outstanding(leg) + leg->returned_count >= LEG_GRANTS)
        return false;
    sink_take_back(leg, count);
    return true;
}

static void grant(struct sink_leg *leg, const struct leg_event *event, struct leg_actions *actions)
{
    struct leg_grant given = {.count = event->count, .slot = event->slot, .state = GRANT_GIVEN};
    if (!take(leg, event->count, &given.first)) {
        leg_act_grant(actions, LEG_FREE_SLOT, &(struct leg_grant){.slot = event->slot});
        return;
    }
    if (leg->state == STRAIT_READY) {
        leg->state = STRAIT_TRANSFERRING;
        leg_act_state(actions, STRAIT_TRANSFERRING);
    }
    given.id = leg->next_grant++;
    leg_grants_append(leg->grants, LEG_GRANTS, &given);
    leg_act_grant(actions, LEG_SEND_GRANT, &given);
}

static void reclaim(struct sink_leg *leg, struct leg_actions *actions)
{
    if (leg_has_verdict(leg->state))
        return; /* END asks for all of them */
    for (uint32_t i = 0; i < LEG_GRANTS; i++) {
        if (leg->grants[i].state != GRANT_GIVEN) /* the source answers an open grant as soon as it reads it */
            continue;
        leg->grants[i].state = GRANT_REVOKING;
        leg_act_grant(actions, LEG_SEND_REVOKE, &leg->grants[i]);
    }
}

/* Frees the slot of an unused grant; its units are granted again. Both only when no decoder waits for it. */
static void drop(struct sink_leg *leg, struct leg_grant *dropped, struct leg_actions *actions)
{
    if (dropped->ahead) {
        dropped->state = GRANT_DROPPED;
        return;
    }
    uint32_t first = dropped->first, count = dropped->count;
    free_slot(leg, dropped, actions);
    if (count > 0 && !leg_has_verdict(leg->state))
        sink_give_back(leg, first, count);
}

static void released(struct sink_leg *leg, uint64_t id, struct leg_actions *actions)
{
    struct leg_grant *found = find(leg, id);
    if (found != NULL && is_unused(found)) /* else the chunk overtook it */
        drop(leg, found, actions);
}

static void quiet(struct sink_leg *leg, struct leg_actions *actions)
{
    if (leg->closed)
        return;
    leg->quiet = leg->state != STRAIT_BOOTSTRAP;
    free_early(leg, actions);
    for (uint32_t i = 0; i < LEG_GRANTS; i++)
        if (leg->grants[i].state == GRANT_ARRIVING && leg->grants[i].count == 0)
            leg->grants[i].state = GRANT_VOID;
    for (uint32_t i = 0; i < LEG_GRANTS;)
        if (is_unused(&leg->grants[i]))
            drop(leg, &leg->grants[i], actions);
        else
            i++;
}

/* ---- Chunks ------------------------------------------------------------------------------------------------------ */

static void arriving(struct sink_leg *leg, uint64_t id, struct leg_actions *actions)
{
    struct leg_grant *found = find(leg, id);
    if (found == NULL || !is_unused(found))
        return;
    if (leg_has_verdict(leg->state)) {
        drop(leg, found, actions); /* refused: the source is done with the chunk */
        return;
    }
    found->state = GRANT_ARRIVING;
    leg_act_grant(actions, LEG_ACCEPT, found);
}

/* A chunk has arrived intact. If its open grant has no range yet, it waits for that. The source may have said that it
 * has nothing for the grant. */
static void arrived_well(struct sink_leg *leg, struct leg_grant *grant, struct leg_actions *actions)
{
    if (grant->count > 0) {
        grant->state = GRANT_DECODING;
        leg_act_grant(actions, LEG_DECODE, grant);
    } else if (leg->state == STRAIT_BOOTSTRAP) {
        grant->state = GRANT_EARLY;
    } else {
        free_slot(leg, grant, actions);
        fail(leg, STRAIT_REASON_GEOMETRY, true, actions);
    }
}

static void arrived(struct sink_leg *leg, const struct leg_event *event, struct leg_actions *actions)
{
    struct leg_grant *found = find(leg, event->grant);
    if (found == NULL || (found->state != GRANT_ARRIVING && found->state != GRANT_VOID))
        return;
    if (found->state == GRANT_ARRIVING && event->reason == STRAIT_REASON_NONE && !leg_has_verdict(leg->state)) {
        arrived_well(leg, found, actions);
        return;
    }
    bool fails = found->state == GRANT_ARRIVING && event->reason != STRAIT_REASON_NONE;
    if (found->ahead)
        found->state = GRANT_DROPPED;
    else
        free_slot(leg, found, actions);
    if (fails)
        fail(leg, event->reason, true, actions);
}

/* The transport still writes a slot whose chunk is told of only now; then its slot is freed with ARRIVED. */
static void leave(struct sink_leg *leg, struct leg_grant *grant, struct leg_actions *actions)
{
    grant->ahead = 0;
    if (grant->state != GRANT_ARRIVING) {
        free_slot(leg, grant, actions);
        return;
    }
    grant->state = GRANT_VOID;
    grant->count = 0;
}

static void decoded(struct sink_leg *leg, const struct leg_event *event, struct leg_actions *actions)
{
    struct leg_grant *found = find(leg, event->grant);
    if (found == NULL || (found->state != GRANT_DECODING && !found->ahead))
        return;
    uint32_t count = found->count;
    leave(leg, found, actions);
    if (leg_has_verdict(leg->state))
        return;
    if (event->reason != STRAIT_REASON_NONE) {
        fail(leg, event->reason, true, actions);
        return;
    }
    leg->landed += count;
    check_complete(leg, actions);
}

static void ahead(struct sink_leg *leg, uint64_t grant)
{
    struct leg_grant *found = find(leg, grant);
    if (found != NULL && found->state == GRANT_GIVEN && !leg_has_verdict(leg->state))
        found->ahead = 1;
}

static void absent(struct sink_leg *leg, uint64_t grant, struct leg_actions *actions)
{
    struct leg_grant *found = find(leg, grant);
    if (found == NULL || !found->ahead)
        return;
    found->ahead = 0;
    if (found->state == GRANT_DROPPED)
        drop(leg, found, actions);
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

static bool step(struct sink_leg *leg, const struct leg_event *event, struct leg_actions *actions)
{
    switch (event->type) {
    case SINK_START:
        start(leg, event, actions);
        return true;
    case SINK_SEGMENTS:
        return segments(leg, event, actions);
    case SINK_GRANT:
        grant(leg, event, actions);
        return true;
    case SINK_RECLAIM:
        reclaim(leg, actions);
        return true;
    case SINK_RELEASED:
        released(leg, event->grant, actions);
        return true;
    case SINK_ARRIVING:
        arriving(leg, event->grant, actions);
        return true;
    case SINK_ARRIVED:
        arrived(leg, event, actions);
        return true;
    case SINK_DECODED:
        decoded(leg, event, actions);
        return true;
    case SINK_AHEAD:
        ahead(leg, event->grant);
        return true;
    case SINK_ABSENT:
        absent(leg, event->grant, actions);
        return true;
    case SINK_FINISH:
        finish(leg, actions);
        return true;
    case SINK_END:
        if (event->reason == STRAIT_REASON_NONE)
            return false; /* only the sink can say DONE */
        if (!leg->complete)
            fail(leg, event->reason, false, actions);
        return true;
    case SINK_FAIL:
        fail(leg, event->reason == STRAIT_REASON_NONE ? STRAIT_REASON_LOCAL : event->reason, true, actions);
        return true;
    case SINK_QUIET:
        quiet(leg, actions);
        return true;
    default:
        return true; /* not a sink event */
    }
}

bool sink_step(struct sink_leg *leg, const struct leg_event *event, struct leg_actions *actions)
{
    actions->count = 0;
    bool honest = step(leg, event, actions);
    settle(leg, actions);
    return honest;
}

/* Ranges of units that came back unused. */

/* There is room: a range that returns was one of at most LEG_GRANTS pieces, a grant's or the first SEGMENTS'. */
static void sink_give_back(struct sink_leg *leg, uint32_t first, uint32_t count)
{
    uint32_t at = 0;
    while (at < leg->returned_count && leg->returned[at].first < first)
        at++;
    memmove(&leg->returned[at + 1], &leg->returned[at], (leg->returned_count - at) * sizeof(leg->returned[0]));
    leg->returned[at].first = first;
    leg->returned[at].count = count;
    leg->returned_count++;
}

/* The sink's ranges that came back, in order: adds one, and takes units from the first. */
static void sink_take_back(struct sink_leg *leg, uint32_t count)
{
    if (count < leg->returned[0].count) {
        leg->returned[0].first += count;
        leg->returned[0].count -= count;
        return;
    }
    leg->returned_count--;
    memmove(&leg->returned[0], &leg->returned[1], leg->returned_count * sizeof(leg->returned[0]));
    memset(&leg->returned[leg->returned_count], 0, sizeof(leg->returned[0]));
}
