/* What daemons take of the machine, second by second. */
#ifndef STRAIT_TESTS_SOAK_WATCH_H
#define STRAIT_TESTS_SOAK_WATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/soak/figures.h"

#define WATCH_SETTLED_S 180u /* by then a daemon has what it needs */
#define WATCH_JUDGED_S  240u /* runs that are shorter tell nothing */

struct watch {
    const struct soak_daemon *daemon; /* borrowed */
    struct process_size *samples;     /* one a second */
    size_t count, room;
};

void watch_init(struct watch *watch, const struct soak_daemon *daemon);
void watch_fini(struct watch *watch);
void watch_sample(struct watch *watch);

/* The last sample; zeroes when there is none. */
struct process_size watch_last(const struct watch *watch);

/* By how much the largest sample after minute 3 exceeds the smallest, as a share of that; -1: too short a run. */
double watch_resident_spread(const struct watch *watch);
/* Complains when resident memory was not flat, or heap or descriptors grew. */
void watch_judge(const struct watch *watch);

#endif
