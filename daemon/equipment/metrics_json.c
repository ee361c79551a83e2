/* The metrics as JSON. Numbers are printed as raw text, because as doubles counters above 2^53 would be rounded. */
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/equipment/metric_rows.h"

static bool add_number(cJSON *object, const char *name, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof(text), "%" PRIu64, value);
    return cJSON_AddRawToObject(object, name, text) != NULL;
}

static bool add_rows(cJSON *root, const char *name, const struct metrics *metrics, const struct metric_row *rows,
                     size_t count)
{
    cJSON *object = cJSON_AddObjectToObject(root, name);
    for (size_t i = 0; i < count; i++)
        if (!add_number(object, rows[i].name, metric_value(metrics, &rows[i])))
            return false;
    return object != NULL;
}

static bool add_failures(cJSON *root, const char *name, const uint64_t failed[16])
{
    cJSON *object = cJSON_AddObjectToObject(root, name);
    for (unsigned reason = STRAIT_REASON_NONE + 1; metric_reason_name(reason) != NULL; reason++)
        if (!add_number(object, metric_reason_name(reason), failed[reason]))
            return false;
    return object != NULL;
}

/* null: the value is beyond the last bucket's bound. */
static bool add_quantile(cJSON *object, const char *name, const struct histogram *histogram, double quantile)
{
    uint64_t value = histogram_quantile(histogram, quantile);
    return value == UINT64_MAX ? cJSON_AddNullToObject(object, name) != NULL : add_number(object, name, value);
}

static bool add_histogram(cJSON *parent, const char *name, const struct histogram *histogram)
{
    cJSON *object = cJSON_AddObjectToObject(parent, name);
    return object != NULL && add_number(object, "count", histogram->count) &&
           add_number(object, "sum_us", histogram->sum_us) && add_quantile(object, "p50_us", histogram, 0.5) &&
           add_quantile(object, "p90_us", histogram, 0.9) && add_quantile(object, "p99_us", histogram, 0.99);
}

static bool add_stages(cJSON *root, const struct metrics *metrics)
{
    cJSON *object = cJSON_AddObjectToObject(root, "stages");
    for (unsigned i = 0; i < STAGES; i++)
        if (!add_histogram(object, metric_stage_names[i], &metrics->stages[i]))
            return false;
    return object != NULL;
}

static bool fill(cJSON *root, const struct metrics *metrics)
{
    return root != NULL && add_rows(root, "counters", metrics, metric_counters, metric_counter_count) &&
           add_failures(root, "source_failed", metrics->source_failed) &&
           add_failures(root, "sink_failed", metrics->sink_failed) &&
           add_rows(root, "gauges", metrics, metric_gauges, metric_gauge_count) && add_stages(root, metrics) &&
           add_histogram(root, "stalls", &metrics->stalls);
}

/* Is `extra` an object that uses none of our names? */
static bool extra_fits(const cJSON *root, const char *extra)
{
    cJSON *object = cJSON_ParseWithOpts(extra, NULL, true), *item;
    bool good = cJSON_IsObject(object);
    cJSON_ArrayForEach(item, object) good = good && cJSON_GetObjectItemCaseSensitive(root, item->string) == NULL;
    cJSON_Delete(object);
    return good;
}

/* Joins two objects as texts: if they were parsed and printed again, the numbers of `extra` would lose digits. */
static char *join(const char *ours, const char *extra, size_t *size)
{
    const char *inside = strchr(extra, '{') + 1;
    bool empty = inside[strspn(inside, " \t\r\n")] == '}';
    char *text = NULL;
    int length = asprintf(&text, "%.*s%s%s", (int)strlen(ours) - 1, ours, empty ? "" : ",", inside);
    if (length < 0)
        return NULL;
    *size = (size_t)length;
    return text;
}

char *metrics_json(const struct metrics *metrics, const char *extra, size_t *size)
{
    cJSON *root = cJSON_CreateObject();
    char *text = NULL, *joined = NULL;
    if (fill(root, metrics) && (extra == NULL || extra_fits(root, extra)))
        text = cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    if (text != NULL)
        joined = join(text, extra != NULL ? extra : "{}", size);
    cJSON_free(text);
    return joined;
}
