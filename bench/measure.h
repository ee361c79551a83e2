/* Runs the cases. */
#ifndef STRAIT_BENCH_MEASURE_H
#define STRAIT_BENCH_MEASURE_H

#include <stdbool.h>

#include "bench/cases.h"

/* Runs every case once per repeat, in turn, so that disturbances of the machine affect all cases alike; before the
 * first repeat, each runs on a few items to warm up. The destination is overwritten before each timed run, so that an
 * earlier case's output cannot pass for new, and the decoded bytes are compared with the source after it. */
void measure_cases(struct case_list *cases, const struct buffers *buffers);

/* Whether all checks passed. */
bool measure_passed(const struct case_list *cases);

#endif
