/* Holds a daemon at a point: for the injector, and for the plugin in front of the daemon's own. */
#ifndef TESTS_CHAOS_HOLD_H
#define TESTS_CHAOS_HOLD_H

#include <stdbool.h>

#include "tests/chaos/shared.h"

/* Maps the file that CHAOS_VARIABLE names, and sets *side to this daemon's part. NULL: the variable is not set. */
struct chaos_shared *hold_begin(struct chaos_side **side);

/* Decrements a counter, unless it is 0. */
bool hold_take_one(_Atomic uint32_t *counter);

/* Records that a point is reached. True: the daemon must be held here. */
bool hold_reached(struct chaos_side *side, int at);
/* Waits until the driver sets `go`. */
void hold(struct chaos_side *side);

void hold_rest(long microseconds);

#endif
