/* A link whose rate changes while pages travel: what coding auto makes of it, second by second. */
#ifndef STRAIT_BENCH_TRANSFER_CHANGE_H
#define STRAIT_BENCH_TRANSFER_CHANGE_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/transfer_rows.h"

/* Bytes of a transfer that touches several seconds are shared out in proportion. */
struct change_second {
    double rate;       /* Gbit/s at its end */
    double bytes;      /* of pages */
    double wire_bytes; /* that crossed */
    double ns;         /* in which pages travelled: the rest was spent on looking at them */
    char policy[128];  /* in force at its end */
};

struct change {
    struct change_second *list; /* owned */
    unsigned count;
    uint64_t wrong; /* pages */
    char skipped[REASON_BYTES + 32];
};

/* Requests of the first shape one after another for options->seconds; the rate changes half-way. False, which stderr
 * has been told; the caller must change_fini() it either way. */
bool change_run(struct transfer_bench *bench, struct change *change);
void change_fini(struct change *change);

#endif
