/* One rank of `strait bench collective`: a process, a GPU, and both libraries. */
#ifndef STRAIT_BENCH_COLLECTIVE_RANK_H
#define STRAIT_BENCH_COLLECTIVE_RANK_H

#include "bench/collective_plan.h"

/* Measures all rows together with the other ranks. False, which stderr and shared->failed have been told: something
 * failed, here or there. */
bool collective_rank_run(const struct collective_plan *plan, struct collective_shared *shared, unsigned number);

#endif
