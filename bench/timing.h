/* Timed work: a queue of items that several threads empty, and statistics over repeats of it. */
#ifndef STRAIT_BENCH_TIMING_H
#define STRAIT_BENCH_TIMING_H

#include <stdbool.h>
#include <stdint.h>

/* Processes one item. `thread` is below the number of threads, and differs between calls that run at once. */
typedef bool work_item(void *arg, unsigned thread, uint32_t item);

struct elapsed {
    uint64_t wall_ns; /* at least 1 */
    uint64_t cpu_ns;  /* of all threads together: below wall_ns * threads when the processors were shared */
};

/* Runs fn for items 0..count-1, from one queue, in `threads` threads (with parallel_run; the time includes starting
 * them). *ok becomes false when an item failed, and is unchanged otherwise. */
struct elapsed time_items(unsigned threads, uint32_t count, work_item *fn, void *arg, bool *ok);

struct spread {
    double p50; /* the median; for an even number of samples the mean of the middle two */
    double min;
    double max;
};

/* count >= 1. Sorts `samples`. */
struct spread spread_of(double *samples, unsigned count);

#endif
