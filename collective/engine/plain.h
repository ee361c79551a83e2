/* Values that go as they are, since their messages did not fit: when the kernels of exchange.h are launched. Each is
 * one for all steps of a staging memory, which are under way together; `last` is the last one of them. */
#ifndef STRAIT_COLLECTIVE_ENGINE_PLAIN_H
#define STRAIT_COLLECTIVE_ENGINE_PLAIN_H

#include "collective/engine/plan.h"

/* What a seal kernel takes down. */
struct exchange_job plain_job(const struct coll_step *step, const struct plan *plan, uint8_t *memory);

/* For what is grouped: behind all seals, before NCCL moves; and when NCCL's kernels have been launched, so that it is
 * in nobody's way where streams share a queue. */
bool plain_fork(const struct coll_step *last);
bool plain_beside(const struct coll_step *last);

/* Behind all checks. */
bool plain_behind(const struct coll_step *last, bool forked);

#endif
