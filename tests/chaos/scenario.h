/* Scenarios of the chaos test. */
#ifndef STRAIT_TESTS_CHAOS_SCENARIO_H
#define STRAIT_TESTS_CHAOS_SCENARIO_H

#include <stdbool.h>

#include "tests/chaos/world.h"

enum setup {
    PLAIN,
    PUSHED,       /* the source starts, alone */
    STARVED,      /* another transfer wants slots, and encoding is slow */
    ABORTED,      /* held by a job; then its side aborts: it drains */
    ABORTED_FIRST /* the source aborts while its jobs run */
};

struct place {
    enum phase phase;
    int side;
    enum chaos_point at;
    enum setup setup;
};

/* Chooses a place of the phase, mostly the one that has been met least. */
const struct place *place_choose(struct world *w, enum phase phase);

static inline bool in_job(const struct place *place)
{
    return place->at >= AT_ENCODE && place->at <= AT_COPIED;
}

struct scene {
    enum fault fault;
    const struct place *place;
    struct transfer *target, *other;
    bool struck;
    int64_t lost, errors; /* connections that both daemons had lost before, and had ended for protocol violations */
    uint64_t restored_ns;
};

struct chaos_side *injector(struct world *w, int side);
/* Lets the daemon that is held at the place go on. */
void let_go(struct world *w, const struct scene *s);
void begin_transfer(struct world *w, struct transfer *t, const struct scene *s);
/* Delays the due time of that side's verdicts to at least more_ms from now. */
void excuse(struct world *w, int side, uint32_t more_ms);
void excuse_offers(struct world *w);

/* Injects the fault while a daemon is held, then lets the daemon go. */
void strike(struct world *w, struct scene *s);

extern const char *const fault_names[FAULTS], *const phase_names[PHASES], *const point_names[CHAOS_POINTS];

/* Whether the pair is possible when both sides are under one daemon. */
bool scenario_is_local(enum fault fault, enum phase phase);

/* Holds one transfer in a state, lets a fault strike, checks everything, and requires that a transfer over the same
 * pages is soon DONE. False: the world cannot go on. */
bool scenario_run(struct world *w, enum fault fault, enum phase phase);

#endif
