/* How a daemon is held at a point: for the injector, and for the plugin that stands in front of the daemon's own. */
#ifndef TESTS_CHAOS_HOLD_H
#define TESTS_CHAOS_HOLD_H

#include <stdbool.h>

#include "tests/chaos/shared.h"

/* Maps what CHAOS_VARIABLE names, and sets *side to this daemon's part. NULL: there is no such variable. */
struct chaos_shared *hold_begin(struct chaos_side **side);

/* Takes one from a counter that may reach 0. */
bool hold_take_one(_Atomic uint32_t *counter);

/* A point is reached. True: this is where the daemon is to be held. */
bool hold_reached(struct chaos_side *side, int at);
/* Until the driver says go. */
void hold(struct chaos_side *side);

void hold_rest(long microseconds);

#endif
