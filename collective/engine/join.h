/* Making and ending members (collective/engine.h). */
#ifndef STRAIT_COLLECTIVE_ENGINE_JOIN_H
#define STRAIT_COLLECTIVE_ENGINE_JOIN_H

#include "collective/engine/member.h"

void members_prepare(const struct gpu_ops *gpu, const struct coll_engine_host *host, struct coll_joining *joinings,
                     unsigned count);
void members_join(const struct coll_engine_host *host, struct coll_joining *joinings, unsigned count, bool voted);
/* leave.c. member_destroy requires that nothing of the member runs. */
void member_destroy(struct coll_member *member);
void member_abort(struct coll_member *member);
void member_leave(struct coll_member *member);

#endif
