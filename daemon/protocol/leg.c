#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/protocol/leg_grants.h"

/* Grants are compared and hashed as bytes: no padding. */
_Static_assert(sizeof(struct leg_grant) == 24, "grants have no padding");
_Static_assert(sizeof(struct sink_leg) == 40 + LEG_GRANTS * (24 + 8), "sink legs have no padding");
_Static_assert(sizeof(struct source_leg) == 32 + LEG_GRANTS * 4 + SOURCE_GRANTS * 24, "source legs have no padding");
_Static_assert(LEG_ACTIONS >= SOURCE_GRANTS + 4, "a failure answers every queued grant, and tells of itself");

uint32_t leg_grants_count(const struct leg_grant *grants, uint32_t capacity)
{
    uint32_t count = 0;
    while (count < capacity && grants[count].id != 0)
        count++;
    return count;
}

bool leg_grants_any(const struct leg_grant *grants, uint32_t capacity, enum grant_state state)
{
    for (uint32_t i = 0; i < capacity; i++)
        if (grants[i].state == (uint32_t)state)
            return true;
    return false;
}

struct leg_grant *leg_grants_find(struct leg_grant *grants, uint32_t capacity, uint64_t id)
{
    for (uint32_t i = 0; i < capacity && id != 0; i++)
        if (grants[i].id == id)
            return &grants[i];
    return NULL;
}

struct leg_grant *leg_grants_append(struct leg_grant *grants, uint32_t capacity, const struct leg_grant *grant)
{
    struct leg_grant *at = &grants[leg_grants_count(grants, capacity)];
    *at = *grant;
    return at;
}

void leg_grants_remove(struct leg_grant *grants, uint32_t capacity, struct leg_grant *grant)
{
    uint32_t index = (uint32_t)(grant - grants);
    memmove(grant, grant + 1, (capacity - 1 - index) * sizeof(*grant));
    memset(&grants[capacity - 1], 0, sizeof(*grant));
}

struct leg_action *leg_act(struct leg_actions *actions, enum leg_action_type type)
{
    struct leg_action *action = &actions->list[actions->count++];
    memset(action, 0, sizeof(*action));
    action->type = type;
    return action;
}

void leg_act_grant(struct leg_actions *actions, enum leg_action_type type, const struct leg_grant *grant)
{
    leg_act(actions, type)->grant = *grant;
}

void leg_act_reason(struct leg_actions *actions, enum leg_action_type type, enum strait_reason reason)
{
    leg_act(actions, type)->reason = reason;
}

void leg_act_state(struct leg_actions *actions, enum strait_state state)
{
    leg_act(actions, LEG_STATE)->state = state;
}

enum strait_reason leg_peer_reason(enum strait_reason reason)
{
    switch (reason) {
    case STRAIT_REASON_ABORTED:
        return STRAIT_REASON_PEER_ABORT;
    case STRAIT_REASON_LOCAL:
        return STRAIT_REASON_PEER_DOWN;
    default: /* a fault between the two, or with what they agreed on, looks the same from both sides */
        return reason;
    }
}

/* ---- Queue of events --------------------------------------------------------------------------------------------- */

/* Events of one leg that can be queued at once: one callback adds few, and a failed source answers each of its grants,
 * for which a local sink gets an event. */
#define LEG_EVENTS (SOURCE_GRANTS + 16u)

static bool grow(struct leg_queue *queue, uint32_t capacity)
{
    struct leg_post *posts = malloc(capacity * sizeof(*posts));
    if (posts == NULL)
        return false;
    for (uint32_t i = 0; i < queue->count; i++)
        posts[i] = queue->posts[(queue->first + i) % queue->capacity];
    free(queue->posts);
    queue->posts = posts;
    queue->first = 0;
    queue->capacity = capacity;
    return true;
}

bool leg_queue_reserve(struct leg_queue *queue)
{
    const uint32_t needed = (queue->legs + 1) * LEG_EVENTS;
    if (needed > queue->capacity && !grow(queue, 2 * needed))
        return false;
    queue->legs++;
    return true;
}

void leg_queue_release(struct leg_queue *queue)
{
    queue->legs--;
}

void leg_queue_fini(struct leg_queue *queue)
{
    free(queue->posts);
    *queue = (struct leg_queue){0};
}

void leg_queue_append(struct leg_queue *queue, const struct leg_post *post)
{
    assert(queue->count < queue->capacity);
    /* Not reached while LEG_EVENTS holds. A build without assertions makes room all the same, and overwrites nothing.
     */
    if (queue->count == queue->capacity && !grow(queue, 2 * queue->capacity + LEG_EVENTS))
        return;
    queue->posts[(queue->first + queue->count++) % queue->capacity] = *post;
}

bool leg_queue_take(struct leg_queue *queue, struct leg_post *post)
{
    if (queue->count == 0)
        return false;
    *post = queue->posts[queue->first++];
    if (--queue->count == 0 || queue->first == queue->capacity)
        queue->first = 0; /* an empty queue begins anew: its first posts are in the caches */
    return true;
}
