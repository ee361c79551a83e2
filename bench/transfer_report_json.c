/* The second half of transfer_report.h. */
#include "bench/transfer_report.h"

#include <cjson/cJSON.h>

#include "bench/transfer_figures.h"
#include "tools/util.h"

static void add_data(cJSON *root, const struct transfer_bench *bench)
{
    const struct transfer_options *options = bench->options;
    const struct strait_codebook *codebook = bench->data.codebook;
    cJSON *object = cJSON_AddObjectToObject(root, "data");

    cJSON_AddBoolToObject(object, "noise", options->noise);
    cJSON_AddItemToObject(object, "files",
                          cJSON_CreateStringArray(options->sources.inputs, (int)options->sources.input_count));
    if (options->sources.codebook != NULL)
        cJSON_AddStringToObject(object, "codebook", options->sources.codebook);
    else
        cJSON_AddItemToObject(
            object, "calibrated_on",
            options->sources.calib_count > 0
                ? cJSON_CreateStringArray(options->sources.calibs, (int)options->sources.calib_count)
                : cJSON_CreateStringArray(options->sources.inputs, (int)options->sources.input_count));
    json_add_hex(object, "codebook_id", strait_codebook_id(codebook), STRAIT_CODEBOOK_ID_BYTES);
    cJSON_AddItemToObject(root, "daemon_options", cJSON_CreateStringArray(options->daemon, (int)options->daemon_count));
    cJSON_AddNumberToObject(root, "repeats", options->repeats);
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

static void add_times(cJSON *row, const char *name, const uint64_t *ns, size_t count)
{
    cJSON *list = cJSON_AddArrayToObject(row, name);

    for (size_t i = 0; i < count; i++)
        cJSON_AddItemToArray(list, cJSON_CreateNumber((double)ns[i]));
}

static void add_shape(cJSON *row, const struct shape *shape)
{
    cJSON_AddNumberToObject(row, "page_bytes", (double)shape->page_bytes);
    cJSON_AddNumberToObject(row, "pages", shape->pages);
    cJSON_AddNumberToObject(row, "regions", shape->regions);
    cJSON_AddNumberToObject(row, "requests", shape->requests);
    cJSON_AddBoolToObject(row, "scattered", !shape->whole);
}

static void add_stages(cJSON *row, const struct row *one, const struct transfer_figures *figures)
{
    cJSON *stages = cJSON_AddObjectToObject(row, "stages_ms");

    for (unsigned i = 0; i < BENCH_STAGES; i++)
        cJSON_AddNumberToObject(stages, bench_stage_names[i], figures->stage_ms[i]);
    cJSON_AddNumberToObject(row, "wall_ms", figures->wall_ms);
    cJSON_AddNumberToObject(row, "stages_by_wall", figures->overlap);
    cJSON_AddNumberToObject(row, "chunks", figures->chunks);
    cJSON_AddStringToObject(row, "transport", one->path == PATH_LOCAL ? "copy" : one->used.transport);
    cJSON_AddStringToObject(row, "latest_policy", one->used.policy);
}

static bool add_layers(cJSON *row, const struct transfer_bench *bench, const struct row *one)
{
    cJSON *object = cJSON_AddObjectToObject(row, "layers"), *list;
    struct layer_figures figures;

    if (!layer_figures_make(bench, one, &figures))
        return false;
    cJSON_AddNumberToObject(object, "every_ms", bench->options->every_ms);
    cJSON_AddNumberToObject(object, "aux_bytes", (double)bench->options->aux_bytes);
    cJSON_AddNumberToObject(object, "aux_after_ms", bench->options->aux_after_ms);
    cJSON_AddNumberToObject(object, "behind_ms", figures.behind);
    json_add_known(object, "alone_ms", figures.alone);
    json_add_known(object, "behind_by_alone", figures.by_alone);
    cJSON_AddNumberToObject(object, "done_ms", figures.done);
    cJSON_AddNumberToObject(object, "landed_before", figures.landed_before);
    list = cJSON_AddArrayToObject(object, "behind_ns");
    for (unsigned i = 0; i < one->count; i++)
        cJSON_AddItemToArray(list, cJSON_CreateNumber((double)one->layers[i].behind_ns));
    return true;
}

static bool add_figures(cJSON *row, const struct transfer_bench *bench, const struct row *one)
{
    struct transfer_figures figures;
    cJSON *goodput = cJSON_AddObjectToObject(row, "GBps");

    if (!transfer_figures_make(bench, one, &figures))
        return false;
    cJSON_AddNumberToObject(goodput, "p50", figures.goodput.p50);
    cJSON_AddNumberToObject(goodput, "min", figures.goodput.min);
    cJSON_AddNumberToObject(goodput, "max", figures.goodput.max);
    cJSON_AddNumberToObject(row, "p50_ms", figures.p50);
    json_add_known(row, "p90_ms", figures.p90);
    cJSON_AddNumberToObject(row, "p99_ms", figures.p99);
    json_add_known(row, "ratio", figures.ratio);
    json_add_known(row, "by_base", figures.by_base);
    cJSON_AddStringToObject(row, "base", transfer_base_name(bench, one));
    add_times(row, "ns", one->ns, one->count);
    if (one->kind == ROW_UCX_LATENCY)
        add_times(row, "p99_ns", one->request_ns, one->count);
    else
        add_times(row, "request_ns", one->request_ns, (size_t)one->count * row_requests(bench, one));
    if (row_is_transfer(one))
        add_stages(row, one, &figures);
    cJSON_AddNumberToObject(row, "wrong_pages", (double)one->wrong);
    return one->kind != ROW_LAYERS || add_layers(row, bench, one);
}

static bool add_row(cJSON *rows, const struct transfer_bench *bench, const struct row *one)
{
    cJSON *row = cJSON_CreateObject();

    cJSON_AddItemToArray(rows, row);
    cJSON_AddStringToObject(row, "case", row_kind_names[one->kind]);
    cJSON_AddStringToObject(row, "path", path_names[one->path]);
    if (one->rate > 0)
        cJSON_AddNumberToObject(row, "gigabits", one->rate);
    if (row_is_transfer(one)) {
        cJSON_AddStringToObject(row, "coding", coding_names[one->coding]);
        cJSON_AddStringToObject(row, "direction", one->direction == STRAIT_PUSH ? "push" : "pull");
    }
    if (row_is_transfer(one) || one->kind == ROW_COPY)
        add_shape(row, &bench->shapes[one->shape]);
    if (one->skipped[0] != '\0' || one->count == 0) {
        cJSON_AddStringToObject(row, "skipped", one->skipped);
        return true;
    }
    cJSON_AddNumberToObject(row, "bytes", (double)one->bytes);
    cJSON_AddNumberToObject(row, "samples_per_turn", one->samples);
    return add_figures(row, bench, one);
}

static bool add_rows(cJSON *root, const struct transfer_bench *bench)
{
    cJSON *rows = cJSON_AddArrayToObject(root, "rows");

    for (unsigned i = 0; i < bench->rows.count; i++)
        if (!add_row(rows, bench, &bench->rows.list[i]))
            return false;
    return true;
}

/* ---- The rest ---------------------------------------------------------------------------------------------------- */

static void add_idle(cJSON *root, const struct transfer_bench *bench)
{
    cJSON *object = cJSON_AddObjectToObject(root, "idle_cpu_ms");

    cJSON_AddNumberToObject(object, "seconds", bench->options->idle_seconds);
    for (int kind = 0; kind < PATH_KINDS; kind++) {
        if (!bench->paths[kind].up)
            continue;
        cJSON *list = cJSON_AddArrayToObject(object, path_names[kind]);
        for (int side = 0; side < (kind == PATH_LOCAL ? 1 : 2); side++)
            cJSON_AddItemToArray(list, cJSON_CreateNumber((double)bench->idle_cpu_ms[kind][side]));
    }
}

static void add_change(cJSON *root, const struct change *change)
{
    cJSON *object = cJSON_AddObjectToObject(root, "change"), *seconds = cJSON_AddArrayToObject(object, "seconds");

    if (change->skipped[0] != '\0')
        cJSON_AddStringToObject(object, "skipped", change->skipped);
    for (unsigned i = 0; i < change->count && change->skipped[0] == '\0'; i++) {
        const struct change_second *second = &change->list[i];
        cJSON *item = cJSON_CreateObject();
        cJSON_AddNumberToObject(item, "gigabits", second->rate);
        cJSON_AddNumberToObject(item, "bytes", second->bytes);
        cJSON_AddNumberToObject(item, "wire_bytes", second->wire_bytes);
        cJSON_AddNumberToObject(item, "ns", second->ns);
        cJSON_AddStringToObject(item, "policy", second->policy);
        cJSON_AddItemToArray(seconds, item);
    }
    cJSON_AddNumberToObject(object, "wrong_pages", (double)change->wrong);
}

bool transfer_report_json(const struct transfer_report *report, FILE *stream)
{
    cJSON *root = cJSON_CreateObject();
    bool good = true;

    head_json(root, report->machine, report->line);
    add_data(root, report->bench);
    if (report->change != NULL)
        add_change(root, report->change);
    else
        good = add_rows(root, report->bench);
    if (report->bench->options->idle_seconds > 0)
        add_idle(root, report->bench);
    if (good)
        return json_print(root, stream);
    cJSON_Delete(root);
    return false;
}
