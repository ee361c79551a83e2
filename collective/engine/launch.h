/* Launches work for a phase of a step, or for a piece of it, on the current device, which must be the member's. The
 * caller sets the order (steps.h, pieces.h). False: it could not be launched. */
#ifndef STRAIT_COLLECTIVE_ENGINE_LAUNCH_H
#define STRAIT_COLLECTIVE_ENGINE_LAUNCH_H

#include "collective/engine/plan.h"

/* The plan of the step's phase. It follows from the step alone, so it is computed anew for each launch. */
bool launch_plan(struct plan *plan, const struct coll_step *step);

/* Encodes messages and writes their heads. */
bool launch_encode(const struct coll_step *step);
/* Hands NCCL what it moves, on `stream`, in a group that is open. */
coll_result launch_move(const struct coll_step *step, coll_stream stream);
/* Checks which messages overflow. */
bool launch_check(const struct coll_step *step);
/* Decodes the others. */
bool launch_decode(const struct coll_step *step);
/* Copies what the rank has for itself, for the whole phase even if the step is cut into pieces; at any time. */
bool launch_own(const struct coll_step *step);
/* Adds up, when everything to be added has arrived. */
bool launch_sums(const struct coll_step *step);

/* The step's part of the staging memory; the parameters of the call's sum, except for its sources. */
uint8_t *launch_memory(const struct coll_step *step);
struct coll_reduce launch_sum_of(const struct coll_step *step, const struct coll_call *call);

/* Fails the communicator, for the reason `why`. */
coll_result launch_failed(const struct coll_step *step, const char *why);

#endif
