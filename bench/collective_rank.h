/* One rank of `strait bench collective`: a process, a GPU, and both libraries. */
#ifndef STRAIT_BENCH_COLLECTIVE_RANK_H
#define STRAIT_BENCH_COLLECTIVE_RANK_H

#include "bench/collective_plan.h"

/* Measures all rows together with the other ranks. False: this or another rank failed; the error is on stderr and
 * shared->failed is set. */
bool collective_rank_run(const struct collective_plan *plan, struct collective_shared *shared, unsigned number);

#endif
