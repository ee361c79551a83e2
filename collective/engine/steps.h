/* The three parts of a run (collective/engine.h). */
#ifndef STRAIT_COLLECTIVE_ENGINE_STEPS_H
#define STRAIT_COLLECTIVE_ENGINE_STEPS_H

#include "collective/engine/member.h"

/* Gives each a place of its own in the staging memory of its stream, which has to grow then. */
coll_result steps_reserve(struct coll_step *steps, unsigned count);
/* Grows it. Where the GPU has no memory for that, the host's has to do, and all ranks go raw soon. False: nor there. */
bool steps_grow(const struct coll_step *step);

coll_result steps_encode(struct coll_step *steps, unsigned count);
coll_result steps_move(struct coll_step *steps, unsigned count);
coll_result steps_decode(struct coll_step *steps, unsigned count);

#endif
