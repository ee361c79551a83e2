/* The three parts of a phase (collective/engine.h). */
#ifndef STRAIT_COLLECTIVE_ENGINE_STEPS_H
#define STRAIT_COLLECTIVE_ENGINE_STEPS_H

#include "collective/engine/member.h"

/* Gives each step its own place in the staging memory of its stream; the memory has to be grown then. */
coll_result steps_reserve(struct coll_step *steps, unsigned count);
/* Grows it. If the GPU has no memory for that, host memory is used, and all ranks go raw soon. False: there is none
 * either. */
bool steps_grow(const struct coll_step *step);

coll_result steps_encode(struct coll_step *steps, unsigned count);
coll_result steps_move(struct coll_step *steps, unsigned count);
coll_result steps_decode(struct coll_step *steps, unsigned count);

#endif
