/* From times to what the columns show. */
#ifndef STRAIT_BENCH_FIGURES_H
#define STRAIT_BENCH_FIGURES_H

#include "bench/cases.h"

struct figures {
    double ratio;
    struct spread encode, decode; /* GB/s: 10^9 raw bytes per second */
    double encode_memcpy, decode_memcpy;   /* medians over repeats: the rate of a repeat by that of its memcpy; 0: none */
    double encode_speedup, decode_speedup; /* the same by one thread; 0: there is only one */
    bool is_baseline; /* the memcpy that the others are compared with */
};

/* Of case `index`; one that ran. */
void figures_make(const struct case_list *cases, unsigned index, struct figures *figures);

double figures_ratio(const struct bench_case *one);

#endif
