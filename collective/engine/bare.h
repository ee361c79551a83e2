/* What an operation that is alone leaves as it is, so that coding overlaps with moving where NCCL moves: the head moves
 * while what is behind it is encoded, and the tail while what is before it is decoded. It costs wire, which is why it
 * is no longer than coding takes.
 *
 * A head and a tail cost NCCL an operation each, and nothing else; messages in pieces (pieces.h) leave the first
 * piece's encoding and the last one's decoding uncovered. */
#ifndef STRAIT_COLLECTIVE_ENGINE_BARE_H
#define STRAIT_COLLECTIVE_ENGINE_BARE_H

#include "collective/engine/plan.h"

/* How many pages of each message of the step's first phase they take: by what settings say, else by the size and the
 * link; 0 and 0: none. A function of what all ranks hold alike. */
void bare_cut(const struct coll_member *member, const struct plan *plan, struct coll_step *step);

/* Hands one of them to NCCL, on the step's stream. */
coll_result bare_move(const struct coll_step *step, enum plan_end end);
/* When it has arrived: puts it where it belongs, or adds it up. On the step's stream. */
bool bare_finish(const struct coll_step *step, enum plan_end end);

/* A phase of the step, all three parts of it (collective/engine.h). */
coll_result bare_run(struct coll_step *step);

#endif
