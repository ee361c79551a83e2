/* Whether an operation is compressed (collective/engine.h). */
#ifndef STRAIT_COLLECTIVE_ENGINE_DECIDE_H
#define STRAIT_COLLECTIVE_ENGINE_DECIDE_H

#include "collective/engine/member.h"

bool member_decide(struct coll_member *member, const struct coll_call *call, struct coll_step *step,
                   const char **reason);

#endif
