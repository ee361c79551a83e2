/* From times to what the columns show. */
#ifndef STRAIT_BENCH_FIGURES_H
#define STRAIT_BENCH_FIGURES_H

#include "bench/cases.h"

struct figures {
    double ratio;
    struct spread encode, decode; /* GB/s: 10^9 raw bytes per second */
    /* Medians over repeats of the rate of a repeat by that of memcpy, or of one thread, in the same repeat. 0: none. */
    double encode_memcpy, decode_memcpy;
    double encode_speedup, decode_speedup;
    double processors; /* in use while it ran: fewer than its threads when something else ran too */
    bool is_baseline;  /* the memcpy that the others are compared with */
};

/* Of case `index`; one that ran. */
void figures_make(const struct case_list *cases, unsigned index, struct figures *figures);

double figures_ratio(const struct bench_case *one);

#endif
