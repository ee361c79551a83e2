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

/* All false when they failed, which stderr has been told. */
bool gpu_report_print(const struct gpu_report *report, FILE *stream);
bool gpu_report_json(const struct gpu_report *report, FILE *stream);

/* What the columns show of a row. */
struct gpu_figures {
    double p50_ms;
    double p50, p10, p90;   /* GB/s: 10^9 bytes of pages per second */
    double by_copy, by_raw; /* median over turns of the quotient of both rows' rates; 0: nothing to compare with */
    double ratio;           /* bytes of pages by bytes of chunks; 0: not counted */
    double wire_bytes;      /* of one transfer */
    double chunks;          /* of one transfer; and in ms, of all of them together: */
    double stage_ms[BENCH_STAGES];
    double mean_ms; /* of a transfer, by the client's clock */
    double overlap; /* the stages' times, but for waiting, by that of the client */
};

bool gpu_figures_make(const struct gpu_bench *bench, const struct gpu_row *row, struct gpu_figures *figures);

#endif
