#include "bench/report.h"

#include <inttypes.h>
#include <string.h>

#include "bench/figures.h"
#include "bench/head.h"
#include "bench/rivals.h"
#include "bench/size_text.h"

#define PROCESSORS_MIN 0.9 /* share of its threads that an undisturbed row keeps busy */

/* ---- Above the table ------------------------------------------------------------------------------------------- */

static void print_input(const struct bench_report *report, FILE *stream)
{
    const struct tensors *tensors = report->tensors;

    fprintf(stream, "input     ");
    names_print(report->options->sources.inputs, report->options->sources.input_count, stream);
    fprintf(stream, ": %zu BF16 tensors, %" PRIu64 " bytes, ", tensors->spans.count, tensors->bytes);
    if (report->data->period < report->data->size)
        fprintf(stream, "repeated to %" PRIu64 " bytes", report->data->size);
    else if (report->data->size < tensors->bytes)
        fprintf(stream, "of which %" PRIu64 " are used", report->data->size);
    else
        fprintf(stream, "all used once");
    if (tensors->skipped > 0)
        fprintf(stream, "; %" PRIu64 " tensors of other types left out", tensors->skipped);
    fputc('\n', stream);
}

static void print_tables(const struct bench_report *report, FILE *stream)
{
    const struct codec_options *options = report->options;

    fprintf(stream, "tables    %" PRIu32 ", ", strait_codebook_count(report->codebook));
    if (options->sources.codebook != NULL)
        fprintf(stream, "read from %s", options->sources.codebook);
    else if (options->sources.calib_count == 0)
        fprintf(stream, "calibrated on the input itself");
    else
        fprintf(stream, "calibrated on ");
    names_print(options->sources.calibs, options->sources.calib_count, stream);
    fputc('\n', stream);
}

static void print_values(const struct bench_report *report, FILE *stream)
{
    const struct data_figures *figures = report->data_figures;

    fprintf(stream, "values    escape rate top16 %.4f%% (worst class %.4f%%), tiered %.4f%% (%.4f%%)",
            100 * figures->top16_escapes, 100 * figures->worst_top16, 100 * figures->tiered_escapes,
            100 * figures->worst_tiered);
    if (report->options->escapes > 0)
        fprintf(stream, "\n          %g%% of the values were overwritten, seed %" PRIu64,
                100 * report->options->escapes, report->seed);
    fprintf(stream, "\n          exponents have %.4f bits of entropy by class (%" PRIu32 "), %.4f all together\n",
            figures->class_bits, figures->classes, figures->global_bits);
}

static void print_method(const struct bench_report *report, FILE *stream)
{
    char chunk[SIZE_TEXT_BYTES], piece[SIZE_TEXT_BYTES];

    fprintf(stream, "method    chunks of %s, rivals in pieces of %s; sums on; %u repeats, all rows in turn\n",
            size_text(chunk, report->options->chunk_bytes), size_text(piece, report->piece_bytes),
            report->options->repeats);
}

/* ---- The table ------------------------------------------------------------------------------------------------- */

static void print_heading(bool speedups, FILE *stream)
{
    fprintf(stream, "\n%80s %20s %20s %13s%s\n", "", "encode GB/s", "decode GB/s", "by memcpy",
            speedups ? "   by 1 thread" : "");
    fprintf(stream, "%-13s %-8s %-9s %2s %5s %11s %11s %6s %7s", "case", "variant", "mode", "T", "page", "raw bytes",
            "coded bytes", "tables", "ratio");
    fprintf(stream, " %6s %6s %6s %6s %6s %6s %6s %6s%s  cpus  check\n", "p50", "min", "max", "p50", "min", "max",
            "enc", "dec", speedups ? "    enc    dec" : "");
}

/* Digits after the point, chosen so that slow compressors keep some significant ones. */
static int digits_of(double number)
{
    return number < 0.995 ? 4 : 2;
}

static void print_spread(struct spread spread, FILE *stream)
{
    int digits = digits_of(spread.max);
    fprintf(stream, " %6.*f %6.*f %6.*f", digits, spread.p50, digits, spread.min, digits, spread.max);
}

static void print_speedup(const struct figures *figures, FILE *stream)
{
    if (figures->encode_speedup > 0)
        fprintf(stream, " %6.2f %6.2f", figures->encode_speedup, figures->decode_speedup);
    else
        fprintf(stream, " %6s %6s", "-", "-");
}

static void print_case(const struct case_list *cases, unsigned index, bool speedups, FILE *stream)
{
    const struct bench_case *one = &cases->list[index];
    char page[SIZE_TEXT_BYTES];
    struct figures figures;

    if (one->kind == NULL) {
        fprintf(stream, "%-13s %-8s %-9s %2s %5s %11s %11s %6s %7.4f\n", one->name, one->variant, one->mode, "-", "-",
                "-", "-", "-", one->limit);
        return;
    }
    figures_make(cases, index, &figures);
    fprintf(stream, "%-13s %-8s %-9s %2u %5s", one->name, one->variant, one->mode, one->threads,
            one->page_bytes > 0 ? size_text(page, one->page_bytes) : "-");
    fprintf(stream, " %11" PRIu64 " %11" PRIu64 " %6" PRIu64 " %7.4f", one->raw_bytes, one->coded_bytes,
            one->table_bytes, figures.ratio);
    print_spread(figures.encode, stream);
    print_spread(figures.decode, stream);
    fprintf(stream, " %6.*f %6.*f", digits_of(figures.encode_memcpy), figures.encode_memcpy,
            digits_of(figures.decode_memcpy), figures.decode_memcpy);
    if (speedups)
        print_speedup(&figures, stream);
    fprintf(stream, " %5.2f  %s%s\n", figures.processors, one->ok ? "ok" : "FAILED",
            figures.is_baseline ? " (baseline)" : "");
}

/* Lists rows that were disturbed: they say little about threads or speed. */
static void print_disturbed(const struct case_list *cases, FILE *stream)
{
    unsigned disturbed = 0;

    for (unsigned i = 0; i < cases->count; i++) {
        struct figures figures;
        if (cases->list[i].kind == NULL)
            continue;
        figures_make(cases, i, &figures);
        disturbed += figures.processors < PROCESSORS_MIN * cases->list[i].threads;
    }
    if (disturbed > 0)
        fprintf(stream, "%u row%s ran on fewer processors than threads (column cpus): something else was running\n",
                disturbed, disturbed == 1 ? "" : "s");
}

static void print_missing(const struct codec_options *options, FILE *stream)
{
    for (unsigned i = 0; i < RIVAL_COUNT; i++)
        if (rivals[i].ops == NULL && rival_listed(&rivals[i], options->rivals))
            fprintf(stream, "%s: not in this build\n", rivals[i].name);
}

void report_print(const struct bench_report *report, FILE *stream)
{
    bool speedups = report->options->threads > 1;

    head_print(report->machine, NULL, stream);
    print_input(report, stream);
    print_tables(report, stream);
    print_values(report, stream);
    print_method(report, stream);
    print_heading(speedups, stream);
    for (unsigned i = 0; i < report->cases->count; i++)
        print_case(report->cases, i, speedups, stream);
    print_disturbed(report->cases, stream);
    print_missing(report->options, stream);
}
