/* The processes of `strait bench collective`. */
#ifndef STRAIT_BENCH_COLLECTIVE_RUN_H
#define STRAIT_BENCH_COLLECTIVE_RUN_H

#include "bench/collective_plan.h"

/* How many GPUs there are, asked in a process of its own: what CUDA starts would be inherited. Of none it tells why. */
unsigned collective_count_gpus(char *why, size_t size);

/* Runs all rows, a process for each rank, with these links. False, which stderr has been told: one failed, took too
 * long, or a signal asked for the end. */
bool collective_run(const struct collective_plan *plan, enum collective_links links, struct collective_shared *shared);

#endif
