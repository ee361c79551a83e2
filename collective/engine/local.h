/* Sums inside a host, the first phase of those of several hosts (plan.h). Each rank gets, from every other one of its
 * host, the parts for the ranks of its own place on all hosts, uncompressed, and adds them up in FP32 in the order of
 * the host's ranks. What comes of it, rounded to the type, one part for each host, is kept for the phase of the rail.
 *
 * Parts move by sends on the program's communicator, not by a reduce_scatter of NCCL on one that is split off for the
 * host. Both move the same bytes. Sends leave the order of the sum to this library, where NCCL's follows from the
 * algorithm that it takes for the size; and there is no second communicator that takes memory and time when it is made,
 * that has to be aborted, suspended and captured along with the first, and that NCCL keeps in no order with it. */
#ifndef STRAIT_COLLECTIVE_ENGINE_LOCAL_H
#define STRAIT_COLLECTIVE_ENGINE_LOCAL_H

#include "collective/engine/op.h"

/* Of an op whose part of the staging memory is at `memory`. Before NCCL moves: copies what is sent, if it may not be
 * sent from the program's memory (plan.copies). */
bool local_copy(const struct coll_op *op, uint8_t *memory);
/* As launch_move. */
coll_result local_move(const struct coll_op *op, uint8_t *memory, coll_stream stream);
/* As launch_sums: `sum` has all but its sources. */
bool local_sum(const struct coll_op *op, uint8_t *memory, struct coll_reduce *sum);

#endif
