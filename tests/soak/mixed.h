/* The mixed load, and what is known of it in the end. */
#ifndef STRAIT_TESTS_SOAK_MIXED_H
#define STRAIT_TESTS_SOAK_MIXED_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/soak/move.h"
#include "tests/soak/watch.h"
#include "tests/support.h"

struct slot {
    bool used;
    struct move move;
};

struct mixed {
    struct world world;
    struct watch watches[DAEMONS_MAX];
    struct slot *slots;
    uint32_t slot_count, live;
    struct rng rng;
    double sampled, seconds, stall_seconds;
    uint64_t done, bytes, smallest, largest; /* transfers that were DONE and right */
    uint64_t by_style[STYLES], by_starter[STARTERS], by_form[FORMS_MAX];
    uint64_t live_sum, live_samples;
};

/* Compares what daemons and clients counted, looks at stalls and memory, and prints all of it. */
void mixed_judge(struct mixed *mixed);

#endif
