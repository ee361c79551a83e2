/* What the parts of a scenario share. */
#ifndef TESTS_CHAOS_SCENE_H
#define TESTS_CHAOS_SCENE_H

#include "tests/chaos/scenario.h"

enum setup {
    PLAIN,
    PUSHED,       /* the source starts, alone */
    STARVED,      /* somebody else wants slots, and encoding is slow */
    ABORTED,      /* held by a job; then its side aborts: it drains */
    ABORTED_FIRST /* the source aborts while its jobs run */
};

struct place {
    enum phase phase;
    int side;
    enum chaos_point at;
    enum setup setup;
};

/* Of those of the phase, mostly the one that has been met least. */
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
    int64_t lost, errors; /* connections that both daemons had lost before, and ended for a violation of the protocol */
    uint64_t restored_ns;
};

struct chaos_side *injector(struct world *w, int side);
/* Lets the daemon that is held at the place go on. */
void let_go(struct world *w, const struct scene *s);
void begin_transfer(struct world *w, struct transfer *t, const struct scene *s);
/* Verdicts of that side are due in so many ms, if they were due before. */
void excuse(struct world *w, int side, uint32_t more_ms);
void excuse_offers(struct world *w);

/* strike.c: the fault, while a daemon is held; and lets it go. */
void strike(struct world *w, struct scene *s);

#endif
