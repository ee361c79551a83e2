#include "tools/encode_report.h"

#include <inttypes.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "kernels/container.h"
#include "tools/json.h"
#include "tools/original.h"
#include "tools/survey.h"

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

/* The type of plain values, which the plan's list does not name. NULL when there are none, or for tensors. */
static const char *plain_type(const struct encode_report *report)
{
    const struct plan *plan = report->task->plan;
    bool plain = plan->dtype_count == 0 && plan->preamble_bytes == 0 && report->outcome->original_bytes > 0;
    return plain ? element_names[plan->segments[0].element] : NULL;
}

static const char *why_carried(const struct plan *plan)
{
    return plan_codes(plan, STRAIT_ELEMENT_FP32) ? "not BF16, FP16 or FP32" : "not BF16";
}

static void print_carried_plain(const struct encode_report *report, FILE *stream)
{
    const char *type = plain_type(report);

    if (type != NULL && !plan_codes(report->task->plan, report->task->plan->segments[0].element))
        fprintf(stream, "  carried uncompressed (%s): %" PRIu64 " bytes%s%s\n", why_carried(report->task->plan),
                report->outcome->original_bytes, strcmp(type, "bytes") == 0 ? "" : " of ",
                strcmp(type, "bytes") == 0 ? "" : type);
}

/* Lists the types that are stored unchanged, which explains the ratio. */
static void print_carried(const struct plan *plan, FILE *stream)
{
    char first[64];
    const char *separator = first;

    snprintf(first, sizeof(first), "  carried uncompressed (%s): ", why_carried(plan));
    for (uint32_t i = 0; i < plan->dtype_count; i++) {
        const struct dtype_sum *sum = &plan->dtypes[i];
        if (plan_codes(plan, sum->element) || sum->bytes == 0)
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
    print_carried_plain(report, stream);
}

static void add_dtype(cJSON *list, const char *name, uint64_t tensors, uint64_t bytes, bool compressed)
{
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "dtype", name);
    cJSON_AddNumberToObject(item, "tensors", (double)tensors);
    cJSON_AddNumberToObject(item, "bytes", (double)bytes);
    cJSON_AddBoolToObject(item, "compressed", compressed);
    cJSON_AddItemToArray(list, item);
}

static void add_dtypes(cJSON *object, const struct encode_report *report)
{
    const struct plan *plan = report->task->plan;
    const char *type = plain_type(report);
    cJSON *list = cJSON_AddArrayToObject(object, "dtypes");

    if (type != NULL)
        add_dtype(list, type, 0, report->outcome->original_bytes, plan_codes(plan, plan->segments[0].element));
    for (uint32_t i = 0; i < plan->dtype_count; i++) {
        const struct dtype_sum *sum = &plan->dtypes[i];
        add_dtype(list, sum->name, sum->tensors, sum->bytes, plan_codes(plan, sum->element));
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
    add_dtypes(object, report);
    cJSON_AddStringToObject(object, "xxh3_128", hex);
    return object;
}

bool encode_report_json(const struct encode_report *report, FILE *stream)
{
    return json_print(describe(report), stream);
}
