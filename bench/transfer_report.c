#include "bench/transfer_report.h"

#include <inttypes.h>
#include <string.h>

#include "bench/size_text.h"
#include "bench/transfer_figures.h"
#include "tools/util.h"

/* ---- Above the tables -------------------------------------------------------------------------------------------- */

static void print_head(const struct transfer_report *report, FILE *stream)
{
    const struct transfer_options *options = report->bench->options;

    head_print(report->machine, report->line, stream);
    fprintf(stream, "values    %s", options->noise ? "random bits" : "repeated from ");
    if (!options->noise)
        names_print(options->sources.inputs, options->sources.input_count, stream);
    sources_print_codebook(&options->sources, stream);
    fputc('\n', stream);
}

static void print_method(const struct transfer_report *report, FILE *stream)
{
    const struct transfer_options *options = report->bench->options;

    fprintf(stream,
            "method    start to DONE at the sink's client; sums on; %u turn%s, all rows of a rate in each; every "
            "page compared\n",
            options->repeats, options->repeats == 1 ? "" : "s");
    for (unsigned i = 0; i < options->daemon_count; i++)
        fprintf(stream, "daemons   %s\n", options->daemon[i]);
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

static const char *row_name(const struct transfer_bench *bench, const struct row *row)
{
    const struct shape *shape = &bench->shapes[row->shape];

    if (row->kind == ROW_REQUESTS && shape->layered)
        return "strait alone";
    return row->kind == ROW_REQUESTS && shape->whole ? "strait whole" : row_kind_names[row->kind];
}

/* "strait  tcp  tiered pull 1G": the label that all tables use. */
static void print_label(const struct transfer_bench *bench, const struct row *row, FILE *stream)
{
    char rate[SIZE_TEXT_BYTES] = "-";

    if (row->rate > 0)
        snprintf(rate, sizeof(rate), "%g", row->rate);
    fprintf(stream, "%-13s %-5s %5s %-6s %-4s", row_name(bench, row),
            row->kind == ROW_COPY ? "-" : path_names[row->path], rate,
            row_is_transfer(row) && row->path != PATH_LOCAL ? coding_names[row->coding] : "-",
            !row_is_transfer(row)           ? "-"
            : row->direction == STRAIT_PUSH ? "push"
                                            : "pull");
}

static void print_shape(const struct transfer_bench *bench, const struct row *row, FILE *stream)
{
    const struct shape *shape = &bench->shapes[row->shape];
    char page[SIZE_TEXT_BYTES], size[SIZE_TEXT_BYTES];

    if (row->kind == ROW_UCX_BANDWIDTH)
        fprintf(stream, " %6s %6s %3s %3s %9s", "4M", "-", "-", "-", size_text(size, row->bytes));
    else if (row->kind == ROW_UCX_LATENCY || row->kind == ROW_IPERF)
        fprintf(stream, " %6s %6s %3s %3s %9s", "-", "-", "-", "-",
                row->kind == ROW_IPERF ? "-" : size_text(size, row->bytes));
    else
        fprintf(stream, " %6s %6u %3u %3u %9s", size_text(page, shape->page_bytes), shape->pages, shape->regions,
                shape->requests, size_text(size, row->bytes));
}

static void print_number(double value, int width, FILE *stream)
{
    if (value <= 0)
        fprintf(stream, " %*s", width, "-");
    else
        fprintf(stream, " %*.*f", width, value < 0.995 ? 4 : value < 99.5 ? 2 : 1, value);
}

static bool print_row(const struct transfer_bench *bench, const struct row *row, FILE *stream)
{
    struct transfer_figures figures;
    bool timed = row->kind != ROW_UCX_BANDWIDTH && row->kind != ROW_IPERF;

    if (row->skipped[0] != '\0' || row->count == 0)
        return true;
    if (!transfer_figures_make(bench, row, &figures))
        return false;
    print_label(bench, row, stream);
    print_shape(bench, row, stream);
    print_number(figures.ratio, 6, stream);
    print_number(timed ? figures.p50 : 0, 8, stream);
    print_number(timed ? figures.p90 : 0, 8, stream);
    print_number(timed ? figures.p99 : 0, 8, stream);
    print_number(figures.goodput.p50, 7, stream);
    print_number(figures.goodput.min, 7, stream);
    print_number(figures.goodput.max, 7, stream);
    print_number(figures.by_base, 6, stream);
    fprintf(stream, " %-10s %s\n", transfer_base_name(bench, row),
            row->wrong > 0                                  ? "WRONG"
            : row_is_transfer(row) || row->kind == ROW_COPY ? "ok"
                                                            : "-");
    return true;
}

static bool print_rows(const struct transfer_bench *bench, FILE *stream)
{
    fprintf(stream, "\n%79s %26s %23s\n", "", "ms", "GB/s");
    fprintf(stream, "%-13s %-5s %5s %-6s %-4s %6s %6s %3s %3s %9s %6s %8s %8s %8s %7s %7s %7s %6s %-10s %s\n", "case",
            "path", "Gb/s", "coding", "dir", "page", "pages", "reg", "req", "bytes", "ratio", "p50", "p90", "p99",
            "p50", "min", "max", "x base", "base", "check");
    for (unsigned i = 0; i < bench->rows.count; i++)
        if (!print_row(bench, &bench->rows.list[i], stream))
            return false;
    return true;
}

/* Lists rows that are missing for the same reason together. */
static void print_skipped(const struct transfer_bench *bench, FILE *stream)
{
    const struct row *rows = bench->rows.list;

    for (unsigned i = 0; i < bench->rows.count; i++) {
        bool told = rows[i].skipped[0] == '\0';
        for (unsigned j = 0; j < i && !told; j++)
            told = strcmp(rows[j].skipped, rows[i].skipped) == 0 && rows[j].kind == rows[i].kind;
        if (!told)
            fprintf(stream, "skipped: %s: %s\n", row_name(bench, &rows[i]), rows[i].skipped);
    }
}

/* ---- The other tables -------------------------------------------------------------------------------------------- */

static bool print_stages(const struct transfer_bench *bench, FILE *stream)
{
    struct transfer_figures figures;

    fprintf(stream, "\nstages of one sample, ms of all its chunks together%7s", "");
    for (unsigned i = 0; i < BENCH_STAGES; i++)
        fprintf(stream, " %8s", bench_stage_names[i]);
    fprintf(stream, " %8s %8s %8s  transport, latest coding of auto\n", "wall", "sum/wall", "chunks");
    for (unsigned i = 0; i < bench->rows.count; i++) {
        const struct row *row = &bench->rows.list[i];
        char page[SIZE_TEXT_BYTES];
        if (!row_is_transfer(row) || row->count == 0)
            continue;
        if (!transfer_figures_make(bench, row, &figures))
            return false;
        print_label(bench, row, stream);
        fprintf(stream, " %6s x %-10" PRIu32, size_text(page, bench->shapes[row->shape].page_bytes),
                shape_places(&bench->shapes[row->shape]) * bench->shapes[row->shape].regions);
        for (unsigned s = 0; s < BENCH_STAGES; s++)
            print_number(figures.stage_ms[s], 8, stream);
        print_number(figures.wall_ms, 8, stream);
        print_number(figures.overlap, 8, stream);
        print_number(figures.chunks, 8, stream);
        fprintf(stream, "  %s%s%s\n", row->path == PATH_LOCAL ? "copy" : row->used.transport,
                row->coding == STRAIT_CODING_AUTO ? ", " : "",
                row->coding == STRAIT_CODING_AUTO ? row->used.policy : "");
    }
    return true;
}

static bool print_layers(const struct transfer_bench *bench, FILE *stream)
{
    const struct transfer_options *options = bench->options;
    struct layer_figures figures;

    fprintf(stream, "\n%u layers, one every %u ms", options->layers, options->every_ms);
    if (options->aux_bytes > 0 || options->aux_after_ms > 0)
        fprintf(stream, "; aux of %" PRIu64 " bytes %u ms behind the last", options->aux_bytes, options->aux_after_ms);
    fprintf(stream, "; ms\n%-37s %9s %9s %9s %9s %9s %9s\n", "", "in all", "behind", "alone", "x alone", "done",
            "before");
    for (unsigned i = 0; i < bench->rows.count; i++) {
        const struct row *row = &bench->rows.list[i];
        if (row->kind != ROW_LAYERS || row->count == 0)
            continue;
        if (!layer_figures_make(bench, row, &figures))
            return false;
        print_label(bench, row, stream);
        print_number(figures.total, 9, stream);
        print_number(figures.behind, 9, stream);
        print_number(figures.alone, 9, stream);
        print_number(figures.by_alone, 9, stream);
        print_number(figures.done, 9, stream);
        fprintf(stream, " %9g\n", figures.landed_before);
    }
    return true;
}

static void print_idle(const struct transfer_bench *bench, FILE *stream)
{
    unsigned seconds = bench->options->idle_seconds;

    for (int kind = 0; kind < PATH_KINDS; kind++) {
        const uint64_t *ms = bench->idle_cpu_ms[kind];
        if (!bench->paths[kind].up)
            continue;
        fprintf(stream, "idle      %s: processor time in %u s: source %" PRIu64 " ms", path_names[kind], seconds,
                ms[0]);
        if (kind != PATH_LOCAL)
            fprintf(stream, ", sink %" PRIu64 " ms", ms[1]);
        fprintf(stream, " (%.2f %% of a processor together)\n", (double)(ms[0] + ms[1]) / 10.0 / seconds);
    }
}

static void print_change(const struct transfer_report *report, FILE *stream)
{
    const struct change *change = report->change;

    if (change->skipped[0] != '\0') {
        fprintf(stream, "skipped: %s\n", change->skipped);
        return;
    }
    fprintf(stream, "\n%6s %7s %10s %10s %6s  %s\n", "second", "Gb/s", "GB/s", "wire Gb/s", "ratio", "coding");
    for (unsigned i = 0; i < change->count; i++) {
        const struct change_second *second = &change->list[i];
        fprintf(stream, "%6u", i);
        print_number(second->rate, 7, stream);
        print_number(second->ns > 0 ? second->bytes / second->ns : 0, 10, stream);
        print_number(second->ns > 0 ? 8 * second->wire_bytes / second->ns : 0, 10, stream);
        print_number(second->wire_bytes > 0 ? second->bytes / second->wire_bytes : 0, 6, stream);
        fprintf(stream, "  %s\n", second->policy[0] != '\0' ? second->policy : "-");
    }
    fprintf(stream, "check     %s\n", change->wrong > 0 ? "WRONG" : "ok");
}

bool transfer_report_print(const struct transfer_report *report, FILE *stream)
{
    const struct transfer_bench *bench = report->bench;

    print_head(report, stream);
    if (report->change != NULL) {
        print_change(report, stream);
        return true;
    }
    print_method(report, stream);
    if (!print_rows(bench, stream) || (bench->options->layers > 0 && !print_layers(bench, stream)) ||
        !print_stages(bench, stream))
        return false;
    if (bench->options->idle_seconds > 0)
        print_idle(bench, stream);
    print_skipped(bench, stream);
    return true;
}
