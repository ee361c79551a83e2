/* Runs a step that is in no group in pieces: while one piece moves, the next is encoded and the one before it is
 * decoded. Each piece is a message of its own to every rank, with its own head. */
#ifndef STRAIT_COLLECTIVE_ENGINE_PIECES_H
#define STRAIT_COLLECTIVE_ENGINE_PIECES_H

#include "collective/engine/member.h"

/* All three parts of a phase of steps[0], the only step. */
coll_result pieces_run(struct coll_step *steps, unsigned count);

#endif
