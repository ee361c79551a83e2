#ifndef TESTS_CHAOS_SCENARIO_H
#define TESTS_CHAOS_SCENARIO_H

#include <stdbool.h>

#include "tests/chaos/totals.h"
#include "tests/chaos/world.h"

extern const char *const fault_names[FAULTS], *const phase_names[PHASES], *const point_names[CHAOS_POINTS];

/* Can it be, when both sides are under one daemon? */
bool scenario_is_local(enum fault fault, enum phase phase);

/* One transfer is held in a state, a fault strikes, everything is looked at, and a transfer over the same pages must be
 * done soon. False: the world cannot go on. */
bool scenario_run(struct world *w, enum fault fault, enum phase phase);

#endif
