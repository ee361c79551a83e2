/* Runs the cases. */
#ifndef STRAIT_BENCH_MEASURE_H
#define STRAIT_BENCH_MEASURE_H

#include <stdbool.h>

#include "bench/cases.h"

/* Runs every case once per repeat, in turn, so that what disturbs the machine disturbs all alike; before the first
 * repeat, each on a few items to warm up. Before each timed run its destination is overwritten, so that nothing passes
 * for new that an earlier case left, and after it the decoded bytes are compared with the source. */
void measure_cases(struct case_list *cases, const struct buffers *buffers);

/* Whether all checks passed. */
bool measure_passed(const struct case_list *cases);

#endif
