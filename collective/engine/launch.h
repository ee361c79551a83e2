/* What is launched for a phase of a step, or for a piece of it, on its GPU, which has to be current: the order is the
 * caller's (steps.h, pieces.h). False: it could not be. */
#ifndef STRAIT_COLLECTIVE_ENGINE_LAUNCH_H
#define STRAIT_COLLECTIVE_ENGINE_LAUNCH_H

#include "collective/engine/plan.h"

/* A phase's plan follows from the step alone, so it is made anew for whatever is launched. */
bool launch_plan(struct plan *plan, const struct coll_step *step);

/* Encodes messages and writes their heads. */
bool launch_encode(const struct coll_step *step);
/* What NCCL moves, on `stream`, in a group that is open. */
coll_result launch_move(const struct coll_step *step, coll_stream stream);
/* Looks what did not fit. */
bool launch_check(const struct coll_step *step);
/* Decodes what did. */
bool launch_decode(const struct coll_step *step);
/* What the rank has for itself of all of the phase, piece or not; at any time. */
bool launch_own(const struct coll_step *step);
/* When all has arrived that is added up. */
bool launch_sums(const struct coll_step *step);

/* The step's part of the staging memory; how values of this call are added up, all but their sources. */
uint8_t *launch_memory(const struct coll_step *step);
struct coll_reduce launch_sum_of(const struct coll_step *step, const struct coll_call *call);

bool launch_is_pair(const struct coll_step *step);

/* The communicator fails; what for. */
coll_result launch_failed(const struct coll_step *step, const char *why);

#endif
