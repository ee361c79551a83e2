/* A link whose rate changes while pages travel: how the coding `auto` reacts, second by second. */
#ifndef STRAIT_BENCH_TRANSFER_CHANGE_H
#define STRAIT_BENCH_TRANSFER_CHANGE_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/transfer_rows.h"

/* The bytes of a transfer that spans several seconds are split in proportion. */
struct change_second {
    double rate;       /* Gbit/s at its end */
    double bytes;      /* of pages */
    double wire_bytes; /* that crossed the link */
    double ns;         /* time in which pages travelled; the rest was spent on checking them */
    char policy[128];  /* in force at its end */
};

struct change {
    struct change_second *list; /* owned */
    unsigned count;
    uint64_t wrong; /* pages */
    char skipped[REASON_BYTES + 32];
};

/* Moves requests of the first shape, one after another, for options->seconds; the rate changes half-way. False when it
 * failed, with the error on stderr. The caller must call change_fini() either way. */
bool change_run(struct transfer_bench *bench, struct change *change);
void change_fini(struct change *change);

#endif
