/* Shared by the parts of a scenario. */
#ifndef TESTS_CHAOS_SCENE_H
#define TESTS_CHAOS_SCENE_H

#include "tests/chaos/scenario.h"

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

/* strike.c: injects the fault while a daemon is held, then lets the daemon go. */
void strike(struct world *w, struct scene *s);

#endif
