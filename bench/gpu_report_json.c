/* The second half of gpu_report.h. */
#include "bench/gpu_report.h"

#include <cjson/cJSON.h>

#include "tools/util.h"

static void add_devices(cJSON *root, const struct gpu_bench *bench)
{
    const int numbers[] = {bench->from, bench->to};
    cJSON *list = cJSON_AddArrayToObject(root, "devices");

    for (int i = 0; i < 2; i++) {
        cJSON *device = cJSON_CreateObject();
        cJSON_AddNumberToObject(device, "number", numbers[i]);
        cJSON_AddStringToObject(device, "name", bench->about.names[i]);
        cJSON_AddItemToArray(list, device);
    }
    cJSON_AddBoolToObject(root, "direct", bench->about.reach);
    cJSON_AddNumberToObject(root, "driver", bench->about.driver);
    cJSON_AddNumberToObject(root, "runtime", bench->about.runtime);
}

static void add_data(cJSON *root, const struct gpu_bench *bench)
{
    const struct gpu_options *options = bench->options;
    const struct gpu_layout *layout = &bench->data.layout;

    cJSON_AddItemToObject(root, "inputs",
                          cJSON_CreateStringArray(options->sources.inputs, (int)options->sources.input_count));
    json_add_hex(root, "codebook_id", strait_codebook_id(bench->data.codebook), STRAIT_CODEBOOK_ID_BYTES);
    cJSON_AddNumberToObject(root, "regions", layout->regions);
    cJSON_AddNumberToObject(root, "pages", layout->pages);
    cJSON_AddNumberToObject(root, "page_bytes", layout->page_bytes);
    cJSON_AddItemToObject(root, "daemon_options", cJSON_CreateStringArray(options->daemon, (int)options->daemon_count));
    cJSON_AddBoolToObject(root, "can_choose", bench->can_choose);
    cJSON_AddNumberToObject(root, "repeats", options->repeats);
    cJSON_AddNumberToObject(root, "warmups", options->warmups);
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

static void add_move(cJSON *row, const struct gpu_row *one, const struct gpu_figures *figures)
{
    cJSON *wires = cJSON_AddObjectToObject(row, "wires"), *stages;

    for (unsigned i = 0; i < one->wires.count; i++)
        cJSON_AddNumberToObject(wires, one->wires.wires[i].name, (double)one->wires.wires[i].bytes);
    cJSON_AddStringToObject(row, "transport", one->used.transport);
    cJSON_AddStringToObject(row, "policy", one->used.policy);
    json_add_known(row, "ratio", figures->ratio);
    json_add_known(row, "wire_bytes", figures->wire_bytes);
    json_add_known(row, "x_copy", figures->by_copy);
    json_add_known(row, "x_raw", figures->by_raw);
    cJSON_AddNumberToObject(row, "chunks", figures->chunks);
    stages = cJSON_AddObjectToObject(row, "stage_ms");
    for (enum bench_stage s = BENCH_QUEUE; s <= BENCH_DECODE; s++)
        cJSON_AddNumberToObject(stages, bench_stage_names[s], figures->stage_ms[s]);
}

static cJSON *make_row(const struct gpu_row *one, const struct gpu_figures *figures)
{
    static const char *const kinds[] = {"copy", "events", "strait"};
    cJSON *row = cJSON_CreateObject(), *times;

    cJSON_AddStringToObject(row, "case", kinds[one->kind]);
    cJSON_AddNumberToObject(row, "bytes", (double)one->bytes);
    if (one->kind == GPU_ROW_MOVE) {
        cJSON_AddStringToObject(row, "path", gpu_wire_names[one->wire]);
        cJSON_AddStringToObject(row, "coding", coding_names[one->coding]);
        add_move(row, one, figures);
    }
    cJSON_AddNumberToObject(row, "p50_GBps", figures->p50);
    cJSON_AddNumberToObject(row, "p10_GBps", figures->p10);
    cJSON_AddNumberToObject(row, "p90_GBps", figures->p90);
    cJSON_AddNumberToObject(row, "wrong", (double)one->wrong);
    times = cJSON_AddArrayToObject(row, "ns");
    for (unsigned i = 0; i < one->count; i++)
        cJSON_AddItemToArray(times, cJSON_CreateNumber((double)one->ns[i]));
    return row;
}

bool gpu_report_json(const struct gpu_report *report, FILE *stream)
{
    const struct gpu_bench *bench = report->bench;
    cJSON *root = cJSON_CreateObject(), *rows;
    struct gpu_figures figures;

    head_json(root, &bench->machine, report->line);
    add_devices(root, bench);
    add_data(root, bench);
    rows = cJSON_AddArrayToObject(root, "rows");
    for (unsigned i = 0; i < bench->row_count; i++) {
        if (!gpu_figures_make(bench, &bench->rows[i], &figures)) {
            cJSON_Delete(root);
            return false;
        }
        cJSON_AddItemToArray(rows, make_row(&bench->rows[i], &figures));
    }
    cJSON_AddBoolToObject(root, "source_whole", !bench->source_bad);
    return json_print(root, stream);
}
