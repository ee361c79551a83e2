/* When the kernels of exchange.h are launched, which move the values of messages that overflow. One launch serves all
 * steps of a staging memory, which are under way together; `last` is the last of these steps. */
#ifndef STRAIT_COLLECTIVE_ENGINE_PLAIN_H
#define STRAIT_COLLECTIVE_ENGINE_PLAIN_H

#include "collective/engine/plan.h"

/* What a seal kernel stores for the step. */
struct exchange_job plain_job(const struct coll_step *step, const struct plan *plan, uint8_t *memory);

/* For grouped steps: plain_fork behind all seals, before NCCL moves; plain_beside when NCCL's kernels have been
 * launched, so that its kernel blocks nothing where streams share a queue. */
bool plain_fork(const struct coll_step *last);
bool plain_beside(const struct coll_step *last);

/* Behind all checks. */
bool plain_behind(const struct coll_step *last, bool forked);

#endif
