/* Timed work: a queue of items, emptied by some threads, and what repeats of it say together. */
#ifndef STRAIT_BENCH_TIMING_H
#define STRAIT_BENCH_TIMING_H

#include <stdbool.h>
#include <stdint.h>

/* Does one item. `thread` is below the number of threads and no two that run at once have the same. */
typedef bool work_item(void *arg, unsigned thread, uint32_t item);

struct elapsed {
    uint64_t wall_ns; /* at least 1 */
    uint64_t cpu_ns;  /* of all threads together: less than wall times threads when the processors were shared */
};

/* Runs fn for items 0..count-1, from one queue, in `threads` threads (as parallel_run does: starting them is inside the
 * time). *ok becomes false when an item failed, and stays as it is otherwise. */
struct elapsed time_items(unsigned threads, uint32_t count, work_item *fn, void *arg, bool *ok);

struct spread {
    double p50; /* the median: of an even number the mean of the middle two */
    double min;
    double max;
};

/* count >= 1. Sorts `samples`. */
struct spread spread_of(double *samples, unsigned count);

#endif
