/* The processes of `strait bench collective`. */
#ifndef STRAIT_BENCH_COLLECTIVE_RUN_H
#define STRAIT_BENCH_COLLECTIVE_RUN_H

#include "bench/collective_plan.h"

/* Number of GPUs, found in a child process, because forked ranks would inherit CUDA's state. For 0, `why` says why. */
unsigned collective_count_gpus(char *why, size_t size);

/* Runs all rows with these links, in one process per rank. False: a rank failed, took too long, or a signal asked for
 * the end; the error is on stderr. */
bool collective_run(const struct collective_plan *plan, enum collective_links links, struct collective_shared *shared);

#endif
