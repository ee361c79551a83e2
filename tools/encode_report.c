#include "tools/encode_report.h"

#include <inttypes.h>

#include <cjson/cJSON.h>

#include "kernels/container.h"
#include "tools/json.h"
#include "tools/original.h"

static uint64_t table_bytes(const struct encode_report *report)
{
    const struct strait_codebook *codebook = report->task->codebook;
    return codebook == NULL ? 0 : (uint64_t)strait_codebook_count(codebook) * CONTAINER_TABLE_BYTES;
}

/* Bytes of the original per nanosecond. */
static double gigabytes_per_second(const struct encode_report *report)
{
    return report->seconds > 0 ? (double)report->outcome->original_bytes / 1e9 / report->seconds : 0;
}

/* The types that are carried as they are, so that nobody wonders about the ratio. */
static void print_carried(const struct plan *plan, FILE *stream)
{
    const char *separator = "  carried uncompressed (not BF16): ";

    for (uint32_t i = 0; i < plan->dtype_count; i++) {
        const struct dtype_sum *sum = &plan->dtypes[i];
        if (sum->element == STRAIT_ELEMENT_BF16 || sum->bytes == 0)
            continue;
        fprintf(stream, "%s%" PRIu64 " %s tensor%s, %" PRIu64 " bytes", separator, sum->tensors, sum->name,
                sum->tensors == 1 ? "" : "s", sum->bytes);
        separator = "; ";
    }
    if (separator[0] == ';')
        fputc('\n', stream);
}

void encode_report_print(const struct encode_report *report, FILE *stream)
{
    const struct encode_outcome *outcome = report->outcome;

    fprintf(stream, "%s: %" PRIu64 " -> %" PRIu64 " bytes, ratio %.4f, %.2f s, %.2f GB/s (%s)\n",
            report->task->source->name, outcome->original_bytes, outcome->file_bytes,
            ratio_of(outcome->original_bytes, outcome->file_bytes), report->seconds, gigabytes_per_second(report),
            strait_codec_name(report->task->codec));
    if (table_bytes(report) > 0)
        fprintf(stream, "  codebook: %" PRIu32 " tables, %" PRIu64 " bytes of the file\n",
                strait_codebook_count(report->task->codebook), table_bytes(report));
    totals_print(&outcome->totals, stream);
    print_carried(report->task->plan, stream);
}

static void add_dtypes(cJSON *object, const struct plan *plan)
{
    cJSON *list = cJSON_AddArrayToObject(object, "dtypes");

    for (uint32_t i = 0; i < plan->dtype_count; i++) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "dtype", plan->dtypes[i].name);
        cJSON_AddNumberToObject(item, "tensors", (double)plan->dtypes[i].tensors);
        cJSON_AddNumberToObject(item, "bytes", (double)plan->dtypes[i].bytes);
        cJSON_AddBoolToObject(item, "compressed", plan->dtypes[i].element == STRAIT_ELEMENT_BF16);
        cJSON_AddItemToArray(list, item);
    }
}

static cJSON *describe(const struct encode_report *report)
{
    const struct encode_outcome *outcome = report->outcome;
    char hex[ORIGINAL_HEX_BYTES];
    cJSON *object = cJSON_CreateObject();

    original_hex(hex, outcome->hash);
    cJSON_AddStringToObject(object, "input", report->task->source->name);
    cJSON_AddStringToObject(object, "output", report->output);
    cJSON_AddNumberToObject(object, "original_bytes", (double)outcome->original_bytes);
    cJSON_AddNumberToObject(object, "compressed_bytes", (double)outcome->file_bytes);
    cJSON_AddNumberToObject(object, "ratio", ratio_of(outcome->original_bytes, outcome->file_bytes));
    cJSON_AddNumberToObject(object, "seconds", report->seconds);
    cJSON_AddNumberToObject(object, "gigabytes_per_second", gigabytes_per_second(report));
    cJSON_AddStringToObject(object, "codec", strait_codec_name(report->task->codec));
    cJSON_AddStringToObject(object, "mode", report->mode);
    cJSON_AddNumberToObject(object, "threads", report->task->threads);
    if (report->task->codebook != NULL)
        json_add_hex(object, "codebook_id", strait_codebook_id(report->task->codebook), STRAIT_CODEBOOK_ID_BYTES);
    cJSON_AddNumberToObject(object, "table_bytes", (double)table_bytes(report));
    totals_json(&outcome->totals, object);
    add_dtypes(object, report->task->plan);
    cJSON_AddStringToObject(object, "xxh3_128", hex);
    return object;
}

bool encode_report_json(const struct encode_report *report, FILE *stream)
{
    return json_print(describe(report), stream);
}
