#include "bench/gpu_report.h"

#include <inttypes.h>

#define STAGES_SIZE_MAX (64u << 20) /* for larger requests the stages are only in the JSON */

static void print_size(uint64_t bytes, FILE *stream)
{
    static const char *const units[] = {"", "K", "M", "G", "T"};
    unsigned unit = 0;
    char text[32];

    for (; unit < 4 && bytes > 0 && bytes % 1024 == 0; unit++)
        bytes /= 1024;
    snprintf(text, sizeof(text), "%" PRIu64 "%s", bytes, units[unit]);
    fprintf(stream, "%-6s", text);
}

static void print_number(double value, int width, FILE *stream)
{
    if (value <= 0)
        fprintf(stream, " %*s", width, "-");
    else
        fprintf(stream, " %*.*f", width, value < 9.995 ? 3 : value < 99.5 ? 2 : 1, value);
}

/* ---- Above the tables -------------------------------------------------------------------------------------------- */

static void print_devices(const struct gpu_bench *bench, FILE *stream)
{
    const struct gpu_about *about = &bench->about;

    fprintf(stream, "devices   %d (%s) to %d (%s)%s, driver %d, runtime %d\n", bench->from, about->names[0], bench->to,
            about->names[1],
            bench->from == bench->to ? ""
            : about->reach           ? ", direct"
                                     : ", by way of the host",
            about->driver, about->runtime);
}

static void print_head(const struct gpu_report *report, FILE *stream)
{
    const struct gpu_bench *bench = report->bench;
    const struct sources *sources = &bench->options->sources;
    const struct gpu_layout *layout = &bench->data.layout;

    head_print(&bench->machine, report->line, stream);
    print_devices(bench, stream);
    fprintf(stream, "values    repeated from ");
    names_print(sources->inputs, sources->input_count, stream);
    sources_print_codebook(sources, stream);
    fputc('\n', stream);
    fprintf(stream,
            "method    start to DONE at the sink's client; %u regions of %u pages of %u bytes, at random; sums on; %u "
            "turns after %u; every page compared\n",
            layout->regions, layout->pages, layout->page_bytes, bench->options->repeats, bench->options->warmups);
    for (unsigned i = 0; i < bench->options->daemon_count; i++)
        fprintf(stream, "daemons   %s\n", bench->options->daemon[i]);
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

static void print_label(const struct gpu_row *row, FILE *stream)
{
    print_size(row->bytes, stream);
    if (row->kind == GPU_ROW_MOVE)
        fprintf(stream, " %-6s %-7s", coding_names[row->coding], gpu_wire_names[row->wire]);
    else
        fprintf(stream, " %-6s %-7s", "copy", row->kind == GPU_ROW_EVENTS ? "events" : "clock");
}

static bool print_row(const struct gpu_bench *bench, const struct gpu_row *row, FILE *stream)
{
    char wires[WIRES_TEXT_BYTES];
    struct gpu_figures figures;

    if (!gpu_figures_make(bench, row, &figures))
        return false;
    wire_figures_name(&row->wires, wires);
    print_label(row, stream);
    fprintf(stream, " %-12s", wires);
    if (figures.wire_bytes > 0)
        fprintf(stream, " %11.0f", figures.wire_bytes);
    else
        fprintf(stream, " %11s", "-");
    print_number(figures.ratio, 7, stream);
    print_number(figures.p50_ms, 8, stream);
    print_number(figures.p50, 7, stream);
    print_number(figures.p10, 7, stream);
    print_number(figures.p90, 7, stream);
    print_number(figures.by_copy, 7, stream);
    print_number(figures.by_raw, 7, stream);
    fprintf(stream, "  %s\n", row->wrong > 0 ? "WRONG" : "ok");
    return true;
}

static bool print_rows(const struct gpu_bench *bench, FILE *stream)
{
    fprintf(stream, "\n%-6s %-6s %-7s %-12s %11s %7s %8s %7s %7s %7s %7s %7s  check\n", "size", "mode", "path", "wire",
            "wire bytes", "ratio", "ms p50", "GB/s", "p10", "p90", "x copy", "x raw");
    for (unsigned i = 0; i < bench->row_count; i++)
        if (!print_row(bench, &bench->rows[i], stream))
            return false;
    return true;
}

/* ---- Stages ------------------------------------------------------------------------------------------------------ */

static bool print_stages_of(const struct gpu_bench *bench, const struct gpu_row *row, FILE *stream)
{
    struct gpu_figures figures;

    if (!gpu_figures_make(bench, row, &figures))
        return false;
    print_label(row, stream);
    print_number(figures.mean_ms, 8, stream);
    for (enum bench_stage s = BENCH_QUEUE; s <= BENCH_DECODE; s++)
        print_number(figures.stage_ms[s], 8, stream);
    print_number(figures.overlap, 8, stream);
    print_number(figures.chunks, 7, stream);
    fprintf(stream, "  %s%s%s\n", row->used.transport, row->coding == STRAIT_CODING_AUTO ? ", " : "",
            row->coding == STRAIT_CODING_AUTO ? row->used.policy : "");
    return true;
}

static bool print_stages(const struct gpu_bench *bench, FILE *stream)
{
    fprintf(stream, "\nwhere the time of one transfer goes, in ms; of stages: all its chunks together\n");
    fprintf(stream, "%-6s %-6s %-7s %8s", "size", "mode", "path", "in all");
    for (enum bench_stage s = BENCH_QUEUE; s <= BENCH_DECODE; s++)
        fprintf(stream, " %8s", bench_stage_names[s]);
    fprintf(stream, " %8s %7s  transport, latest coding of auto\n", "overlap", "chunks");
    for (unsigned i = 0; i < bench->row_count; i++)
        if (bench->rows[i].kind == GPU_ROW_MOVE && bench->rows[i].bytes <= STAGES_SIZE_MAX &&
            !print_stages_of(bench, &bench->rows[i], stream))
            return false;
    return true;
}

bool gpu_report_print(const struct gpu_report *report, FILE *stream)
{
    const struct gpu_bench *bench = report->bench;

    print_head(report, stream);
    if (!print_rows(bench, stream) || !print_stages(bench, stream))
        return false;
    if (!bench->can_choose)
        fprintf(stream, "note: this straitd has no option gpu-peer: it may take the same way on all paths\n");
    if (bench->source_bad)
        fprintf(stream, "WRONG: the source's pool has been written to\n");
    return true;
}
