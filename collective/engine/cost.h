/* What moving messages takes by the links, as they were measured when the communicator was made (measure.c): seconds,
 * the same on all ranks; 0 where nothing was measured. */
#ifndef STRAIT_COLLECTIVE_ENGINE_COST_H
#define STRAIT_COLLECTIVE_ENGINE_COST_H

#include "collective/engine/plan.h"

/* Of each byte of a phase's values, by the operation of NCCL that would move them uncompressed. */
double cost_plain(const struct coll_member *member, const struct plan *plan);

/* Of each byte handed to NCCL to move the phase's messages: all_gather, or sends and receives. */
double cost_coded(const struct coll_member *member, const struct plan *plan);

/* The most that a byte can cost. */
double cost_most(const struct coll_member *member);

#endif
