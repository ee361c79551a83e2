/* Computes what the columns show from the times. */
#ifndef STRAIT_BENCH_TRANSFER_FIGURES_H
#define STRAIT_BENCH_TRANSFER_FIGURES_H

#include "bench/timing.h"
#include "bench/transfer_rows.h"

struct transfer_figures {
    struct spread goodput;         /* GB/s: 10^9 bytes of pages per second */
    double p50, p90, p99;          /* ms from start to DONE, of requests; p90 is 0 where it is not known */
    double by_base;                /* median over turns of this row's goodput / the base's; 0: no base */
    double ratio;                  /* bytes of pages / bytes that crossed; 0: nothing crossed */
    double stage_ms[BENCH_STAGES]; /* of a sample, all chunks together */
    double chunks;                 /* of a sample */
    double wall_ms;                /* of a sample */
    double overlap;                /* sum of the stages' times / wall time; 0: not counted */
};

/* For a row that ran. False when out of memory, which was printed to stderr. */
bool transfer_figures_make(const struct transfer_bench *bench, const struct row *row, struct transfer_figures *figures);

/* For ROW_LAYERS: medians over samples, in ms, and the row of one layer alone. */
struct layer_figures {
    double total, behind, done;
    double landed_before; /* layers */
    double alone;         /* one layer by itself; 0: not measured */
    double by_alone;      /* median over turns of behind / alone; 0 */
};

bool layer_figures_make(const struct transfer_bench *bench, const struct row *row, struct layer_figures *figures);

/* What a row is compared with: "memcpy", "whole", "raw"; "-". */
const char *transfer_base_name(const struct transfer_bench *bench, const struct row *row);

#endif
