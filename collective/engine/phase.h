/* An operation is one phase or several, one after the other, each of which is encoded, moved and decoded: a call of its
 * own, of a simpler kind.
 *
 *   all_reduce of more than two ranks   reduce_scatter of `count / ranks` values each, then all_gather of the sums
 *   all others                          themselves; so all_reduce of two, unless parts are asked for
 *
 * Parts are all of one size, a multiple of 8 values so that they lie as well as the whole does. What is left of the
 * values behind them, less than 8 for each rank, every rank tells all others as it is in the first phase, and all of
 * them add it up. */
#ifndef STRAIT_COLLECTIVE_ENGINE_PHASE_H
#define STRAIT_COLLECTIVE_ENGINE_PHASE_H

#include "collective/engine/member.h"

unsigned phase_count(const struct coll_member *member, const struct coll_call *call);
struct coll_call phase_call(const struct coll_member *member, const struct coll_call *call, unsigned phase);

/* The same of `count` values from number `at` on. */
struct coll_call phase_cut(const struct coll_call *call, size_t at, size_t count);

/* What is left behind the parts, in this phase; count 0: nothing. */
struct coll_call phase_rest(const struct coll_member *member, const struct coll_call *call, unsigned phase);

#endif
