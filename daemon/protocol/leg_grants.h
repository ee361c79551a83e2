/* Shared by both halves of a leg: the table of grants, and lists of actions. */
#ifndef STRAIT_DAEMON_PROTOCOL_LEG_GRANTS_H
#define STRAIT_DAEMON_PROTOCOL_LEG_GRANTS_H

#include "daemon/protocol/leg.h"

/* Tables are sorted by id, without gaps, and zero behind the last grant, so that each set of grants has exactly one
 * form. */
uint32_t leg_grants_count(const struct leg_grant *grants, uint32_t capacity);
bool leg_grants_any(const struct leg_grant *grants, uint32_t capacity, enum grant_state state);
/* NULL: no such grant; 0 is never an id. */
struct leg_grant *leg_grants_find(struct leg_grant *grants, uint32_t capacity, uint64_t id);
/* The id must be higher than all others, and there must be room. */
struct leg_grant *leg_grants_append(struct leg_grant *grants, uint32_t capacity, const struct leg_grant *grant);
/* Invalidates pointers into the table. */
void leg_grants_remove(struct leg_grant *grants, uint32_t capacity, struct leg_grant *grant);

/* Appends an action that is zero except for its type. */
struct leg_action *leg_act(struct leg_actions *actions, enum leg_action_type type);
void leg_act_grant(struct leg_actions *actions, enum leg_action_type type, const struct leg_grant *grant);
void leg_act_reason(struct leg_actions *actions, enum leg_action_type type, enum strait_reason reason);
void leg_act_state(struct leg_actions *actions, enum strait_state state);

static inline bool leg_has_verdict(uint32_t state)
{
    return state == STRAIT_FAILED || state == STRAIT_DONE;
}

#endif
