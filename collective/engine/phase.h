/* An operation has one phase or several, one after another. Each is encoded, moved and decoded like a call of its own,
 * of a simpler kind.
 *
 *   all_reduce of more than two ranks   reduce_scatter of `count / ranks` values each, then all_gather of the sums
 *   all others                          themselves, including all_reduce of two ranks unless parts are asked for
 *
 * All parts have the same size, a multiple of 8 values so that they are aligned as the whole is. The values behind the
 * parts, fewer than 8 for each rank, are sent uncompressed by every rank to all others in the first phase, and all of
 * them add these up. */
#ifndef STRAIT_COLLECTIVE_ENGINE_PHASE_H
#define STRAIT_COLLECTIVE_ENGINE_PHASE_H

#include "collective/engine/member.h"

unsigned phase_count(const struct coll_member *member, const struct coll_call *call);
struct coll_call phase_call(const struct coll_member *member, const struct coll_call *call, unsigned phase);

/* The same call for `count` values from number `at` on. */
struct coll_call phase_cut(const struct coll_call *call, size_t at, size_t count);

/* The values behind the parts, in this phase; count 0: none. */
struct coll_call phase_rest(const struct coll_member *member, const struct coll_call *call, unsigned phase);

#endif
