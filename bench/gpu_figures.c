/* Computes what the columns show from the times. */
#include <stdlib.h>

#include "bench/gpu_report.h"
#include "bench/timing.h"
#include "tools/util.h"

/* Nearest-rank percentile; `sorted` is sorted. */
static double percentile(const double *sorted, unsigned count, unsigned percent)
{
    unsigned rank = (count * percent + 99) / 100;
    return sorted[rank > 0 ? rank - 1 : 0];
}

static void make_rates(const struct gpu_row *row, double *list, struct gpu_figures *figures)
{
    double sum = 0;

    for (unsigned i = 0; i < row->count; i++) {
        list[i] = (double)row->bytes / (double)row->ns[i];
        sum += (double)row->ns[i];
    }
    figures->p50 = spread_of(list, row->count).p50; /* sorts */
    figures->p10 = percentile(list, row->count, 10);
    figures->p90 = percentile(list, row->count, 90);
    figures->p50_ms = (double)row->bytes / figures->p50 * 1e-6;
    figures->mean_ms = sum * 1e-6 / row->count;
}

/* Compares turn by turn: both rows ran in every turn, so longer disturbances affect both. */
static double compare(const struct gpu_bench *bench, const struct gpu_row *row, int with, double *list)
{
    const struct gpu_row *base = with < 0 ? NULL : &bench->rows[with];

    if (base == NULL || base->count != row->count)
        return 0;
    for (unsigned i = 0; i < row->count; i++)
        list[i] = (double)base->ns[i] / (double)row->ns[i];
    return spread_of(list, row->count).p50;
}

static void make_stages(const struct gpu_row *row, struct gpu_figures *figures)
{
    double sum = 0;

    for (unsigned i = 0; i < BENCH_STAGES; i++) {
        figures->stage_ms[i] = (double)row->used.stages[i].sum_us * 1e-3 / row->count;
        sum += i == BENCH_QUEUE ? 0 : figures->stage_ms[i]; /* waiting is not work */
    }
    figures->chunks = (double)row->used.stages[BENCH_DECODE].count / row->count;
    figures->overlap = sum / figures->mean_ms;
    figures->wire_bytes = (double)row->used.wire_bytes / row->count;
    if (row->used.wire_bytes > 0)
        figures->ratio = (double)row->used.raw_bytes / (double)row->used.wire_bytes;
}

bool gpu_figures_make(const struct gpu_bench *bench, const struct gpu_row *row, struct gpu_figures *figures)
{
    double *list = calloc(row->count, sizeof(list[0]));

    *figures = (struct gpu_figures){0};
    if (list == NULL) {
        print_error(NULL, "out of memory");
        return false;
    }
    make_rates(row, list, figures);
    figures->by_copy = compare(bench, row, row->copy, list);
    figures->by_raw = compare(bench, row, row->raw, list);
    if (row->kind == GPU_ROW_MOVE)
        make_stages(row, figures);
    free(list);
    return true;
}
