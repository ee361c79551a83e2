#include "bench/transfer_figures.h"

#include <stdlib.h>
#include <string.h>

#include "tools/util.h"

static double *doubles(size_t count)
{
    double *list = calloc(count, sizeof(list[0]));

    if (list == NULL)
        print_error(NULL, "out of memory");
    return list;
}

/* Nearest-rank percentile of sorted samples. */
static double percentile(const double *sorted, size_t count, unsigned percent)
{
    size_t rank = (count * percent + 99) / 100;
    return sorted[rank > 0 ? rank - 1 : 0];
}

static double gigabytes(const struct row *row, double ns)
{
    return (double)row->bytes / ns;
}

/* ---- Comparing --------------------------------------------------------------------------------------------------- */

/* Median of a turn's samples, in ns. */
static double turn_median(const struct row *row, unsigned turn, double *scratch)
{
    for (unsigned i = 0; i < row->samples; i++)
        scratch[i] = (double)row->ns[turn * row->samples + i];
    return spread_of(scratch, row->samples).p50;
}

static const struct row *base_of(const struct transfer_bench *bench, const struct row *row)
{
    const struct row *base = row->base < 0 ? NULL : &bench->rows.list[row->base];
    return base == NULL || base->count == 0 || base->skipped[0] != '\0' ? NULL : base;
}

const char *transfer_base_name(const struct transfer_bench *bench, const struct row *row)
{
    const struct row *base = base_of(bench, row);

    if (base == NULL)
        return "-";
    if (base->kind != ROW_REQUESTS)
        return row_kind_names[base->kind];
    return bench->shapes[base->shape].whole && base->shape != row->shape ? "whole" : "raw";
}

static bool compare(const struct transfer_bench *bench, const struct row *row, double *by_base)
{
    const struct row *base = base_of(bench, row);
    double *scratch, *quotients;

    *by_base = 0;
    if (base == NULL)
        return true;
    scratch = doubles(row->samples > base->samples ? row->samples : base->samples);
    quotients = doubles(bench->rows.repeats);
    for (unsigned t = 0; scratch != NULL && quotients != NULL && t < bench->rows.repeats; t++)
        quotients[t] = gigabytes(row, turn_median(row, t, scratch)) / gigabytes(base, turn_median(base, t, scratch));
    bool good = scratch != NULL && quotients != NULL;
    if (good)
        *by_base = spread_of(quotients, bench->rows.repeats).p50;
    free(scratch);
    free(quotients);
    return good;
}

/* ---- Times ------------------------------------------------------------------------------------------------------- */

static void make_times(const struct row *row, unsigned requests, double *list, struct transfer_figures *figures)
{
    size_t count = (size_t)row->count * requests;

    for (unsigned i = 0; i < row->count; i++)
        list[i] = gigabytes(row, (double)row->ns[i]);
    figures->goodput = spread_of(list, row->count);
    if (row->kind == ROW_UCX_LATENCY) {
        for (unsigned i = 0; i < row->count; i++)
            list[i] = (double)row->request_ns[i] * 1e-6;
        figures->p99 = spread_of(list, row->count).p50;
        for (unsigned i = 0; i < row->count; i++)
            list[i] = (double)row->ns[i] * 1e-6;
        figures->p50 = spread_of(list, row->count).p50;
        return;
    }
    for (size_t i = 0; i < count; i++)
        list[i] = (double)row->request_ns[i] * 1e-6;
    spread_of(list, (unsigned)count);
    figures->p50 = percentile(list, count, 50);
    figures->p90 = percentile(list, count, 90);
    figures->p99 = percentile(list, count, 99);
}

static void make_stages(const struct row *row, struct transfer_figures *figures)
{
    double sum = 0;

    for (unsigned i = 0; i < BENCH_STAGES; i++) {
        figures->stage_ms[i] = (double)row->used.stages[i].sum_us * 1e-3 / row->count;
        sum += i == BENCH_QUEUE ? 0 : figures->stage_ms[i]; /* waiting is not work */
    }
    figures->chunks = (double)(row->used.stages[BENCH_DECODE].count + row->used.stages[BENCH_COPY].count) / row->count;
    figures->wall_ms = (double)row->wall_ns * 1e-6 / row->count;
    figures->overlap = figures->wall_ms > 0 ? sum / figures->wall_ms : 0;
    if (row->used.wire_bytes > 0)
        figures->ratio = (double)row->used.raw_bytes / (double)row->used.wire_bytes;
}

bool transfer_figures_make(const struct transfer_bench *bench, const struct row *row, struct transfer_figures *figures)
{
    unsigned requests = row_requests(bench, row);
    double *list = doubles((size_t)row->count * requests);

    *figures = (struct transfer_figures){0};
    if (list == NULL)
        return false;
    make_times(row, requests, list, figures);
    make_stages(row, figures);
    free(list);
    return compare(bench, row, &figures->by_base);
}

/* ---- Layers ------------------------------------------------------------------------------------------------------ */

static const struct row *find_alone(const struct transfer_bench *bench, const struct row *row)
{
    for (unsigned i = 0; i < bench->rows.count; i++) {
        const struct row *other = &bench->rows.list[i];
        if (other->kind == ROW_REQUESTS && bench->shapes[other->shape].layered && other->path == row->path &&
            other->coding == row->coding && other->direction == row->direction && other->rate == row->rate &&
            other->count > 0)
            return other;
    }
    return NULL;
}

static double median_of(const struct row *row, double *list, double (*value)(const struct layer_times *times))
{
    for (unsigned i = 0; i < row->count; i++)
        list[i] = value(&row->layers[i]);
    return spread_of(list, row->count).p50;
}

static double total_of(const struct layer_times *times)
{
    return (double)times->total_ns * 1e-6;
}

static double behind_of(const struct layer_times *times)
{
    return (double)times->behind_ns * 1e-6;
}

static double done_of(const struct layer_times *times)
{
    return (double)times->done_ns * 1e-6;
}

static double landed_of(const struct layer_times *times)
{
    return times->landed_before;
}

static bool compare_alone(const struct transfer_bench *bench, const struct row *row, struct layer_figures *figures)
{
    const struct row *alone = find_alone(bench, row);
    double *scratch = alone == NULL ? NULL : doubles(alone->samples);
    double *list = alone == NULL ? NULL : doubles(bench->rows.repeats);

    for (unsigned t = 0; scratch != NULL && list != NULL && t < bench->rows.repeats; t++)
        list[t] = (double)row->layers[t].behind_ns / turn_median(alone, t, scratch);
    if (scratch != NULL && list != NULL) {
        figures->by_alone = spread_of(list, bench->rows.repeats).p50;
        for (unsigned t = 0; t < bench->rows.repeats; t++)
            list[t] = turn_median(alone, t, scratch) * 1e-6;
        figures->alone = spread_of(list, bench->rows.repeats).p50;
    }
    bool good = alone == NULL || (scratch != NULL && list != NULL);
    free(scratch);
    free(list);
    return good;
}

bool layer_figures_make(const struct transfer_bench *bench, const struct row *row, struct layer_figures *figures)
{
    double *list = doubles(row->count);

    *figures = (struct layer_figures){0};
    if (list == NULL)
        return false;
    figures->total = median_of(row, list, total_of);
    figures->behind = median_of(row, list, behind_of);
    figures->done = median_of(row, list, done_of);
    figures->landed_before = median_of(row, list, landed_of);
    free(list);
    return compare_alone(bench, row, figures);
}
