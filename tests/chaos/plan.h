/* The options of a run. */
#ifndef TESTS_CHAOS_PLAN_H
#define TESTS_CHAOS_PLAN_H

#include "tests/chaos/world.h"

#define WORLDS_MAX 8u

struct plan {
    struct setting setting;
    const char *transport;
    uint64_t seed;
    uint32_t transfers, seconds, hits, worlds;
    int fault, phase; /* -1: all */
    bool local, keep, verbose;
    bool fail_fast; /* the first violation ends the run */
    bool partly;    /* pairs that were not met when the time is up are not failures */
    char folder[128];
};

/* 0, or the exit status for bad usage. */
int plan_take_options(struct plan *plan, int argc, char **argv);

#endif
