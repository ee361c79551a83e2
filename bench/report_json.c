/* The second half of report.h. */
#include "bench/report.h"

#include <cjson/cJSON.h>

#include "bench/figures.h"
#include "bench/head.h"
#include "tools/util.h"

static void add_names(cJSON *object, const char *name, const char *const *names, unsigned count)
{
    cJSON_AddItemToObject(object, name, cJSON_CreateStringArray(names, (int)count));
}

static void add_input(cJSON *root, const struct bench_report *report)
{
    const struct codec_options *options = report->options;
    const struct data_figures *figures = report->data_figures;
    cJSON *object = cJSON_AddObjectToObject(root, "input");

    add_names(object, "files", options->sources.inputs, options->sources.input_count);
    cJSON_AddNumberToObject(object, "tensors", (double)report->tensors->spans.count);
    cJSON_AddNumberToObject(object, "tensor_bytes", (double)report->tensors->bytes);
    cJSON_AddNumberToObject(object, "skipped_tensors", (double)report->tensors->skipped);
    cJSON_AddNumberToObject(object, "bytes", (double)report->data->size);
    cJSON_AddNumberToObject(object, "period", (double)report->data->period);
    cJSON_AddNumberToObject(object, "overwritten_share", options->escapes);
    cJSON_AddNumberToObject(object, "seed", (double)report->seed);
    cJSON_AddNumberToObject(object, "classes", figures->classes);
    cJSON_AddNumberToObject(object, "top16_escape_rate", figures->top16_escapes);
    cJSON_AddNumberToObject(object, "top16_escape_rate_worst_class", figures->worst_top16);
    cJSON_AddNumberToObject(object, "tiered_escape_rate", figures->tiered_escapes);
    cJSON_AddNumberToObject(object, "tiered_escape_rate_worst_class", figures->worst_tiered);
    cJSON_AddNumberToObject(object, "entropy_bits_by_class", figures->class_bits);
    cJSON_AddNumberToObject(object, "entropy_bits", figures->global_bits);
}

static void add_tables(cJSON *root, const struct bench_report *report)
{
    const struct codec_options *options = report->options;
    cJSON *object = cJSON_AddObjectToObject(root, "codebook");

    json_add_hex(object, "id", strait_codebook_id(report->codebook), STRAIT_CODEBOOK_ID_BYTES);
    cJSON_AddNumberToObject(object, "tables", strait_codebook_count(report->codebook));
    if (options->sources.codebook != NULL)
        cJSON_AddStringToObject(object, "file", options->sources.codebook);
    else if (options->sources.calib_count > 0)
        add_names(object, "calibrated_on", options->sources.calibs, options->sources.calib_count);
    else
        add_names(object, "calibrated_on", options->sources.inputs, options->sources.input_count);
}

static void add_spread(cJSON *row, const char *name, struct spread spread)
{
    cJSON *object = cJSON_AddObjectToObject(row, name);

    cJSON_AddNumberToObject(object, "p50", spread.p50);
    cJSON_AddNumberToObject(object, "min", spread.min);
    cJSON_AddNumberToObject(object, "max", spread.max);
}

static void add_times(cJSON *row, const char *name, const uint64_t *ns, unsigned repeats)
{
    cJSON *list = cJSON_AddArrayToObject(row, name);

    for (unsigned r = 0; r < repeats; r++)
        cJSON_AddItemToArray(list, cJSON_CreateNumber((double)ns[r]));
}

static void add_figures(cJSON *row, const struct case_list *cases, unsigned index)
{
    const struct bench_case *one = &cases->list[index];
    struct figures figures;

    figures_make(cases, index, &figures);
    add_spread(row, "encode_GBps", figures.encode);
    add_spread(row, "decode_GBps", figures.decode);
    cJSON_AddNumberToObject(row, "encode_by_memcpy", figures.encode_memcpy);
    cJSON_AddNumberToObject(row, "decode_by_memcpy", figures.decode_memcpy);
    cJSON_AddBoolToObject(row, "baseline", figures.is_baseline);
    if (figures.encode_speedup > 0) {
        cJSON_AddNumberToObject(row, "encode_by_one_thread", figures.encode_speedup);
        cJSON_AddNumberToObject(row, "decode_by_one_thread", figures.decode_speedup);
    }
    cJSON_AddNumberToObject(row, "processors_used", figures.processors);
    add_times(row, "encode_ns", one->encode_ns, cases->repeats);
    add_times(row, "decode_ns", one->decode_ns, cases->repeats);
    cJSON_AddBoolToObject(row, "check", one->ok);
}

static void add_case(cJSON *rows, const struct case_list *cases, unsigned index)
{
    const struct bench_case *one = &cases->list[index];
    cJSON *row = cJSON_CreateObject();

    cJSON_AddStringToObject(row, "case", one->name);
    cJSON_AddStringToObject(row, "variant", one->variant);
    cJSON_AddStringToObject(row, "mode", one->mode);
    cJSON_AddNumberToObject(row, "ratio", figures_ratio(one));
    if (one->kind != NULL) {
        cJSON_AddNumberToObject(row, "threads", one->threads);
        cJSON_AddNumberToObject(row, "page_bytes", (double)one->page_bytes);
        cJSON_AddNumberToObject(row, "raw_bytes", (double)one->raw_bytes);
        cJSON_AddNumberToObject(row, "coded_bytes", (double)one->coded_bytes);
        cJSON_AddNumberToObject(row, "table_bytes", (double)one->table_bytes);
        add_figures(row, cases, index);
    }
    cJSON_AddItemToArray(rows, row);
}

bool report_json(const struct bench_report *report, FILE *stream)
{
    cJSON *root = cJSON_CreateObject();
    cJSON *rows;

    head_json(root, report->machine, NULL);
    add_input(root, report);
    add_tables(root, report);
    cJSON_AddNumberToObject(root, "chunk_bytes", (double)report->options->chunk_bytes);
    cJSON_AddNumberToObject(root, "rival_piece_bytes", (double)report->piece_bytes);
    cJSON_AddNumberToObject(root, "repeats", report->options->repeats);
    rows = cJSON_AddArrayToObject(root, "rows");
    for (unsigned i = 0; i < report->cases->count; i++)
        add_case(rows, report->cases, i);
    return json_print(root, stream);
}
