/* What `strait bench collective` prints. */
#ifndef STRAIT_BENCH_COLLECTIVE_REPORT_H
#define STRAIT_BENCH_COLLECTIVE_REPORT_H

#include <stdio.h>

#include "bench/collective_plan.h"
#include "bench/head.h"
#include "bench/timing.h"

struct collective_report {
    const struct collective_plan *plan;
    const struct machine *machine;
    const struct command_line *line;
    struct collective_shared *const *shared; /* indexed by links; NULL: not asked for */
};

/* Times are those of the slowest rank. */
struct collective_figures {
    struct spread ns[COLLECTIVE_WAYS];
    double algbw[COLLECTIVE_WAYS], busbw[COLLECTIVE_WAYS]; /* 10^9 bytes per second, of the medians */
    double ratio;          /* of what went compressed: bytes of the values / bytes handed to NCCL; 0: nothing did */
    struct spread speedup; /* time of plain / time of strait, per repeat: above 1 strait is faster */
};

/* Of calls that were timed one by one: medians, and the slowest. */
struct collective_singles {
    double p50[COLLECTIVE_WAYS], slowest[COLLECTIVE_WAYS];
    unsigned which; /* number of libstrait-coll's slowest call, from 0 */
};

/* The slowest rank's time of one call of a repeat; single calls are numbered after the repeats. */
double collective_slowest_ns(const struct collective_plan *plan, struct collective_result *result, unsigned repeat,
                             enum collective_way way);
/* False: none were measured, or no memory. */
bool collective_singles_make(const struct collective_plan *plan, struct collective_result *result,
                             struct collective_singles *singles);
void collective_singles_print(const struct collective_report *report, FILE *stream);

/* `samples` has room for one number per repeat. */
void collective_figures_make(const struct collective_plan *plan, const struct collective_row *row,
                             struct collective_result *result, double *samples, struct collective_figures *figures);

/* False when out of memory or when output failed, with the error on stderr. */
bool collective_report_print(const struct collective_report *report, FILE *stream);
bool collective_report_json(const struct collective_report *report, FILE *stream);

/* Whether all ranks finished the row; other rows have no figures. */
bool collective_row_is_done(const struct collective_report *report, enum collective_links links, unsigned row);

/* Whether all results were correct. */
bool collective_report_is_right(const struct collective_report *report);

#endif
