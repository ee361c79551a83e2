#ifndef TESTS_CHAOS_SCENARIO_H
#define TESTS_CHAOS_SCENARIO_H

#include <stdbool.h>

#include "tests/chaos/totals.h"
#include "tests/chaos/world.h"

extern const char *const fault_names[FAULTS], *const phase_names[PHASES], *const point_names[CHAOS_POINTS];

/* Whether the pair is possible when both sides are under one daemon. */
bool scenario_is_local(enum fault fault, enum phase phase);

/* Holds one transfer in a state, lets a fault strike, checks everything, and requires that a transfer over the same
 * pages is soon DONE. False: the world cannot go on. */
bool scenario_run(struct world *w, enum fault fault, enum phase phase);

#endif
