#ifndef STRAIT_COLLECTIVE_ENGINE_OVERLAP_H
#define STRAIT_COLLECTIVE_ENGINE_OVERLAP_H

#include "collective/engine/ccomm.h"
#include "collective/engine/plan.h"

/* What an operation outside of groups leaves uncompressed, so that coding overlaps with moving where NCCL moves: the
 * head moves while the values behind it are encoded, and the tail while the values before it are decoded. That costs
 * wire bytes, so both are only as long as coding takes. A head and a tail cost NCCL one operation each. */

/* Sets how many pages of each message of the step's first phase head and tail take, by the size and the link; 0 and 0:
 * none. A function of what all ranks hold alike. */
void overlap_split(const struct coll_ccomm *member, const struct plan *plan, struct coll_op *step);

/* Hands the head or the tail to NCCL, on the step's stream. */
coll_result overlap_send_raw(const struct coll_op *step, enum plan_end end);
/* When it has arrived, puts it where it belongs or adds it up. On the step's stream. */
bool overlap_finish_raw(const struct coll_op *step, enum plan_end end);

/* All three parts of a phase of the step (collective/engine.h). */
coll_result overlap_run(struct coll_op *step);

#endif
