/* What `strait bench transfer --device` prints. */
#ifndef STRAIT_BENCH_GPU_REPORT_H
#define STRAIT_BENCH_GPU_REPORT_H

#include <stdbool.h>
#include <stdio.h>

#include "bench/gpu_rows.h"
#include "bench/head.h"

struct gpu_report {
    const struct gpu_bench *bench;
    const struct command_line *line;
};

/* All return false when they failed, with the error on stderr. */
bool gpu_report_print(const struct gpu_report *report, FILE *stream);
bool gpu_report_json(const struct gpu_report *report, FILE *stream);

/* What the columns show for a row. */
struct gpu_figures {
    double p50_ms;
    double p50, p10, p90;   /* GB/s: 10^9 bytes of pages per second */
    double by_copy, by_raw; /* median over turns of this row's rate / the other's; 0: nothing to compare with */
    double ratio;           /* bytes of pages / bytes of chunks; 0: not counted */
    double wire_bytes;      /* of one transfer */
    double chunks;          /* of one transfer; and in ms, of all of them together: */
    double stage_ms[BENCH_STAGES];
    double mean_ms; /* of a transfer, by the client's clock */
    double overlap; /* sum of the stages' times, except waiting, / mean_ms */
};

bool gpu_figures_make(const struct gpu_bench *bench, const struct gpu_row *row, struct gpu_figures *figures);

#endif
