/* Computes what the columns show from the times. */
#ifndef STRAIT_BENCH_FIGURES_H
#define STRAIT_BENCH_FIGURES_H

#include "bench/cases.h"

struct figures {
    double ratio;
    struct spread encode, decode; /* GB/s: 10^9 raw bytes per second */
    /* Median over repeats of rate / rate of memcpy, or of one thread, in the same repeat. 0: none. */
    double encode_memcpy, decode_memcpy;
    double encode_speedup, decode_speedup;
    double processors; /* processors in use while it ran: fewer than its threads when something else ran too */
    bool is_baseline;  /* the memcpy with which the others are compared */
};

/* Figures of case `index`, which must have run. */
void figures_make(const struct case_list *cases, unsigned index, struct figures *figures);

double figures_ratio(const struct bench_case *one);

#endif
