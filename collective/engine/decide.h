/* Whether an operation is compressed (collective/engine.h). */
#ifndef STRAIT_COLLECTIVE_ENGINE_DECIDE_H
#define STRAIT_COLLECTIVE_ENGINE_DECIDE_H

#include "collective/engine/ccomm.h"

bool member_decide(struct coll_ccomm *member, const struct coll_call *call, struct coll_op *step, const char **reason);
void member_forget(const struct coll_op *steps, unsigned count);

/* From which size on operations outside of groups are compressed, among powers of two: those of STRAIT_COLL_TABLE, and
 * else what follows from what was measured. */
struct coll_sizes member_table(struct coll_ccomm *member);

#endif
