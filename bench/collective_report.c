#include "bench/collective_report.h"

#include <inttypes.h>
#include <stdlib.h>

#include "tools/util.h"

/* ---- Figures ----------------------------------------------------------------------------------------------------- */

double collective_slowest_ns(const struct collective_plan *plan, struct collective_result *result, unsigned repeat,
                             enum collective_way way)
{
    uint64_t most = 0;

    for (unsigned rank = 0; rank < plan->ranks; rank++) {
        uint64_t ns = *collective_ns_of(plan, result, repeat, way, rank);
        most = ns > most ? ns : most;
    }
    return (double)most;
}

void collective_figures_make(const struct collective_plan *plan, const struct collective_row *row,
                             struct collective_result *result, double *samples, struct collective_figures *figures)
{
    const struct collective_shape shape = collective_shape_of(row, plan->ranks);
    const unsigned repeats = plan->options->repeats;

    for (enum collective_way way = 0; way < COLLECTIVE_WAYS; way++) {
        for (unsigned i = 0; i < repeats; i++)
            samples[i] = collective_slowest_ns(plan, result, i, way);
        figures->ns[way] = spread_of(samples, repeats);
        figures->algbw[way] = (double)shape.bytes / figures->ns[way].p50;
        figures->busbw[way] = figures->algbw[way] * shape.bus;
    }
    for (unsigned i = 0; i < repeats; i++)
        samples[i] = collective_slowest_ns(plan, result, i, COLLECTIVE_PLAIN) /
                     collective_slowest_ns(plan, result, i, COLLECTIVE_STRAIT);
    figures->ratio =
        result->wire.bytes == 0 ? 0 : (double)(shape.handed * result->wire.compressed) / (double)result->wire.bytes;
    figures->speedup = spread_of(samples, repeats);
}

bool collective_row_is_done(const struct collective_report *report, enum collective_links links, unsigned row)
{
    return report->shared[links] != NULL &&
           atomic_load(&collective_result_of(report->shared[links], row)->done) == report->plan->ranks;
}

bool collective_report_is_right(const struct collective_report *report)
{
    for (enum collective_links links = 0; links < COLLECTIVE_LINKS; links++)
        for (unsigned i = 0; report->shared[links] != NULL && i < report->plan->row_count; i++) {
            const struct collective_result *result = collective_result_of(report->shared[links], i);
            if (atomic_load(&result->wrong) > 0 || atomic_load(&result->done) < report->plan->ranks)
                return false;
        }
    return true;
}

/* ---- For people -------------------------------------------------------------------------------------------------- */

static const struct collective_shared *any_shared(const struct collective_report *report)
{
    for (enum collective_links links = 0; links < COLLECTIVE_LINKS; links++)
        if (report->shared[links] != NULL)
            return report->shared[links];
    return NULL;
}

static void print_head(const struct collective_report *report, FILE *stream)
{
    const struct collective_options *options = report->plan->options;
    const struct collective_shared *shared = any_shared(report);

    head_print(report->machine, report->line, stream);
    fprintf(stream, "devices   %u of %s, driver %d, runtime %d; NCCL %d, %s\n", report->plan->gpus, shared->gpu,
            shared->driver, shared->runtime, shared->nccl_version, shared->nccl);
    if (report->plan->ranks > report->plan->gpus)
        fprintf(stream, "shared    %u ranks on them, which have a GPU by turns\n", report->plan->ranks);
    if (options->sources.input_count > 0) {
        fprintf(stream, "values    repeated from ");
        names_print(options->sources.inputs, options->sources.input_count, stream);
        fputc('\n', stream);
    }
    for (unsigned i = 0; i < options->environment_count; i++)
        fprintf(stream, "ranks     %s\n", options->environment[i]);
    fprintf(stream,
            "method    a process for each rank; %u repeats, each: calls by NCCL and the same by libstrait-coll, one "
            "after the other on a stream, in turn\n"
            "          which comes first; time of the slowest rank by calls; medians, x of each repeat; all results of "
            "each repeat compared\n",
            options->repeats);
}

static void print_size(uint64_t bytes, FILE *stream)
{
    static const char *const units[] = {"", "K", "M", "G", "T"};
    unsigned unit = 0;
    char text[32];

    for (; unit < 4 && bytes > 0 && bytes % 1024 == 0; unit++)
        bytes /= 1024;
    snprintf(text, sizeof(text), "%" PRIu64 "%s", bytes, units[unit]);
    fprintf(stream, " %6s", text);
}

static void print_row(const struct collective_report *report, enum collective_links links, unsigned index,
                      double *samples, FILE *stream)
{
    const struct collective_row *row = &report->plan->rows[index];
    struct collective_result *result = collective_result_of(report->shared[links], index);
    struct collective_figures figures;

    collective_figures_make(report->plan, row, result, samples, &figures);
    fprintf(stream, "%-6s %-11s %-9s %-14s", collective_links_names[links], collective_data_names[row->data],
            collective_type_names[row->type], collective_op_names[row->op]);
    print_size(row->size, stream);
    for (enum collective_way way = 0; way < COLLECTIVE_WAYS; way++)
        fprintf(stream, " %10.1f %8.2f %8.2f", figures.ns[way].p50 / 1e3, figures.algbw[way], figures.busbw[way]);
    fprintf(stream, " %6.3f %6.3f %6.3f", figures.speedup.p50, figures.speedup.min, figures.speedup.max);
    if (figures.ratio > 0)
        fprintf(stream, " %6.3f", figures.ratio);
    else
        fprintf(stream, " %6s", "-");
    fprintf(stream, "  %s  %s", atomic_load(&result->wrong) > 0 ? "WRONG" : "ok   ", result->wire.name);
    if (result->wire.compressed > 0 && result->wire.compressed < result->wire.calls)
        fprintf(stream, " (%" PRIu64 " of %" PRIu64 " calls)", result->wire.compressed, result->wire.calls);
    fputc('\n', stream);
}

static double *make_samples(const struct collective_plan *plan)
{
    double *samples = calloc(plan->options->repeats, sizeof(*samples));

    if (samples == NULL)
        print_error(NULL, "out of memory");
    return samples;
}

bool collective_report_print(const struct collective_report *report, FILE *stream)
{
    double *samples = make_samples(report->plan);

    if (samples == NULL)
        return false;
    print_head(report, stream);
    fprintf(stream, "\n%-6s %-11s %-9s %-14s %6s %10s %8s %8s %10s %8s %8s %6s %6s %6s %6s  check  way\n", "links",
            "data", "type", "operation", "size", "NCCL us", "algbw", "busbw", "strait us", "algbw", "busbw", "x", "min",
            "max", "ratio");
    for (enum collective_links links = 0; links < COLLECTIVE_LINKS; links++)
        for (unsigned i = 0; i < report->plan->row_count; i++)
            if (collective_row_is_done(report, links, i))
                print_row(report, links, i, samples, stream);
    collective_singles_print(report, stream);
    free(samples);
    return true;
}
