/* Prometheus text exposition format, version 0.0.4. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/equipment/metric_rows.h"

static void print_family(FILE *out, const char *family, const char *type, const char *help)
{
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", family, help, family, type);
}

static void print_rows(FILE *out, const struct metrics *metrics, const struct metric_row *rows, size_t count,
                       const char *type)
{
    for (size_t i = 0; i < count; i++) {
        const struct metric_row *row = &rows[i];
        if (row->help != NULL)
            print_family(out, row->family, type, row->help);
        if (row->labels != NULL)
            fprintf(out, "%s{%s} %" PRIu64 "\n", row->family, row->labels, metric_value(metrics, row));
        else
            fprintf(out, "%s %" PRIu64 "\n", row->family, metric_value(metrics, row));
    }
}

static void print_failures(FILE *out, const char *role, const uint64_t failed[16])
{
    for (unsigned reason = STRAIT_REASON_NONE + 1; metric_reason_name(reason) != NULL; reason++)
        fprintf(out, "strait_transfers_failed_total{role=\"%s\",reason=\"%s\"} %" PRIu64 "\n", role,
                metric_reason_name(reason), failed[reason]);
}

/* `label` is empty or ends with a comma. +Inf and _count are summed from the buckets: they must agree. */
static void print_histogram(FILE *out, const char *family, const char *label, const struct histogram *histogram)
{
    int bare = (int)strlen(label) - (label[0] != 0);
    const char *open = bare > 0 ? "{" : "", *close = bare > 0 ? "}" : "";
    uint64_t total = 0;
    for (unsigned b = 0; b < HISTOGRAM_BUCKETS - 1; b++) {
        total += histogram->buckets[b];
        fprintf(out, "%s_bucket{%sle=\"%.9g\"} %" PRIu64 "\n", family, label, (double)histogram_bound(b) / 1e6, total);
    }
    total += histogram->buckets[HISTOGRAM_BUCKETS - 1];
    fprintf(out, "%s_bucket{%sle=\"+Inf\"} %" PRIu64 "\n", family, label, total);
    fprintf(out, "%s_sum%s%.*s%s %" PRIu64 ".%06" PRIu64 "\n", family, open, bare, label, close,
            histogram->sum_us / 1000000, histogram->sum_us % 1000000);
    fprintf(out, "%s_count%s%.*s%s %" PRIu64 "\n", family, open, bare, label, close, total);
}

static void print_histograms(FILE *out, const struct metrics *metrics)
{
    char label[64];
    print_family(out, "strait_stage_seconds", "histogram", "Time that chunks and transfers spent in each stage.");
    for (unsigned i = 0; i < STAGES; i++) {
        snprintf(label, sizeof(label), "stage=\"%s\",", metric_stage_names[i]);
        print_histogram(out, "strait_stage_seconds", label, &metrics->stages[i]);
    }
    print_family(out, "strait_loop_stall_seconds", "histogram", "Time that one turn of the event loop took.");
    print_histogram(out, "strait_loop_stall_seconds", "", &metrics->stalls);
}

static void print_metrics(FILE *out, const struct metrics *metrics)
{
    print_rows(out, metrics, metric_counters, metric_counter_count, "counter");
    print_family(out, "strait_transfers_failed_total", "counter", "Offers and expectations that failed, by reason.");
    print_failures(out, "source", metrics->source_failed);
    print_failures(out, "sink", metrics->sink_failed);
    print_rows(out, metrics, metric_gauges, metric_gauge_count, "gauge");
    print_histograms(out, metrics);
}

char *metrics_text(const struct metrics *metrics, size_t *size)
{
    char *text = NULL;
    size_t written = 0;
    FILE *out = open_memstream(&text, &written);
    if (out == NULL)
        return NULL;
    print_metrics(out, metrics);
    bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed) {
        free(text);
        return NULL;
    }
    *size = written;
    return text;
}
