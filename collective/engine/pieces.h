/* A step that is in no group, in pieces: one is encoded while the one before it moves, and decoded while the one behind
 * it does. Each is a message of its own to every rank, with a head of its own. */
#ifndef STRAIT_COLLECTIVE_ENGINE_PIECES_H
#define STRAIT_COLLECTIVE_ENGINE_PIECES_H

#include "collective/engine/member.h"

/* A phase of steps[0], all three parts of it; there is no other. */
coll_result pieces_run(struct coll_step *steps, unsigned count);

#endif
