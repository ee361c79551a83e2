/* Calls that were timed one by one (--singles): what a single call can cost, apart from averages. */
#include <stdlib.h>

#include "bench/collective_report.h"
#include "tools/util.h"

/* Returns the number of the slowest call. */
static unsigned make_way(const struct collective_plan *plan, struct collective_result *result, enum collective_way way,
                         double *samples, struct collective_singles *singles)
{
    unsigned which = 0;

    for (unsigned i = 0; i < plan->options->singles; i++) {
        samples[i] = collective_slowest_ns(plan, result, plan->options->repeats + i, way);
        if (samples[i] <= singles->slowest[way])
            continue;
        singles->slowest[way] = samples[i];
        which = i;
    }
    singles->p50[way] = spread_of(samples, plan->options->singles).p50; /* sorts the samples */
    return which;
}

bool collective_singles_make(const struct collective_plan *plan, struct collective_result *result,
                             struct collective_singles *singles)
{
    const unsigned count = plan->options->singles;
    double *samples = count > 0 ? calloc(count, sizeof(*samples)) : NULL;

    *singles = (struct collective_singles){0};
    if (samples == NULL)
        return false;
    (void)make_way(plan, result, COLLECTIVE_PLAIN, samples, singles);
    singles->which = make_way(plan, result, COLLECTIVE_STRAIT, samples, singles);
    free(samples);
    return true;
}

static void print_row(const struct collective_row *row, enum collective_links links,
                      const struct collective_singles *singles, FILE *stream)
{
    const double plain = singles->p50[COLLECTIVE_PLAIN], strait = singles->p50[COLLECTIVE_STRAIT],
                 slowest = singles->slowest[COLLECTIVE_STRAIT];

    fprintf(stream, "%-6s %-11s %-9s %-14s %10.1f MiB %10.1f %10.1f %10.1f %10.1f %6u %6.3f %6.3f\n",
            collective_links_names[links], collective_data_names[row->data], collective_type_names[row->type],
            collective_op_names[row->op], (double)row->size / (1 << 20), plain / 1e3,
            singles->slowest[COLLECTIVE_PLAIN] / 1e3, strait / 1e3, slowest / 1e3, singles->which + 1, plain / strait,
            plain / slowest);
}

void collective_singles_print(const struct collective_report *report, FILE *stream)
{
    struct collective_singles singles;

    if (report->plan->options->singles == 0)
        return;
    fprintf(stream, "\nsingle calls, from the first on that has these values; medians and the slowest\n");
    fprintf(stream, "%-6s %-11s %-9s %-14s %14s %10s %10s %10s %10s %6s %6s %6s\n", "links", "data", "type",
            "operation", "size", "NCCL us", "slowest", "strait us", "slowest", "number", "x", "worst");
    for (enum collective_links links = 0; links < COLLECTIVE_LINKS; links++)
        for (unsigned i = 0; i < report->plan->row_count; i++)
            if (collective_row_is_done(report, links, i) &&
                collective_singles_make(report->plan, collective_result_of(report->shared[links], i), &singles))
                print_row(&report->plan->rows[i], links, &singles, stream);
}
