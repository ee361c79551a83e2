#include "bench/device_codec.h"

#include <cjson/cJSON.h>
#include <stdio.h>

#include "bench/values.h"
#include "tools/util.h"

static void print_size(char text[24], uint64_t bytes)
{
    if (bytes == 0)
        snprintf(text, 24, "-");
    else if (bytes % (1u << 20) == 0)
        snprintf(text, 24, "%lluM", (unsigned long long)(bytes >> 20));
    else
        snprintf(text, 24, "%lluK", (unsigned long long)(bytes >> 10));
}

static void print_figure(double figure, int digits)
{
    if (figure > 0)
        printf(" %8.*f", digits, figure);
    else
        printf(" %8s", "-");
}

static void print_row(const struct device_row *row)
{
    char bytes[24], page[24], chunk[24], sms[24];
    print_size(bytes, row->bytes);
    print_size(page, row->page_bytes);
    print_size(chunk, row->chunk_bytes);
    snprintf(sms, sizeof(sms), row->sm_budget == 0 ? "all" : "%u", row->sm_budget);
    printf("%-12s %-6s %6s %5s %-6s %6s %4s", row->name, row->mode, bytes, page, row->order, chunk, sms);
    print_figure(row->ratio, 4);
    print_figure(row->encode, 1);
    print_figure(row->decode, 1);
    print_figure(row->limit, 0);
    print_figure(row->p50_us, 1);
    print_figure(row->p99_us, 1);
    printf("  %s\n", row->ok ? "ok" : "FAILED");
}

static void print_share(double share)
{
    printf(" %7.1f%%", 100 * share);
}

/* The loss, its excess over the codec's share of the multiprocessors, and the codec's speed on each of them. */
static void print_beside_row(const struct beside_row *row, int multiprocessors)
{
    const double share = (double)row->sm_budget / multiprocessors;

    printf("%-6s %-6s %4u", row->mode, row->decode ? "decode" : "encode", row->sm_budget);
    print_share(share);
    for (int s = 0; s < BESIDE_SETTINGS; s++) {
        print_share(row->at[s].loss);
        print_share(row->at[s].loss - share);
        print_figure(row->at[s].sm_GBps, 1);
    }
    printf("  %s\n", row->ok ? "ok" : "FAILED");
}

static void print_beside(const struct device_report *report)
{
    const struct device_beside *beside = &report->beside;

    if (beside->why[0] != '\0')
        printf("skipped: beside matrix products: %s\n", beside->why);
    if (beside->count == 0)
        return;
    printf("\nbeside BF16 products of %d x %d, cuBLAS %d: %.1f us each alone, %.0f TFLOP/s\n", beside->size,
           beside->size, beside->version, beside->alone_us,
           2 * (double)beside->size * beside->size * beside->size / beside->alone_us * 1e-6);
    printf("%27s", "");
    for (int s = 0; s < BESIDE_SETTINGS; s++)
        printf(" %26s", beside_names[s]);
    printf("\n%-6s %-6s %4s %8s", "mode", "what", "SMs", "share");
    for (int s = 0; s < BESIDE_SETTINGS; s++)
        printf(" %8s %8s %8s", "loss", "excess", "GB/s/SM");
    printf("  check\n");
    for (unsigned i = 0; i < beside->count; i++)
        print_beside_row(&beside->rows[i], report->multiprocessors);
}

static void print_table(const struct device_report *report)
{
    printf("program   strait %s, commit %s, %s\n", report->machine->version, report->machine->commit,
           report->machine->compiler);
    printf("device    %s, %d multiprocessors, driver %d, runtime %d\n", report->device, report->multiprocessors,
           report->driver, report->runtime);
    printf("host      %s, %s\n", report->machine->cpu, report->machine->kernel);
    printf("method    medians of %u; sums on; every decoded buffer compared\n\n", report->options->repeats);
    printf("%-12s %-6s %6s %5s %-6s %6s %4s %8s %8s %8s %8s %8s %8s  check\n", "case", "mode", "bytes", "page", "order",
           "chunk", "SMs", "ratio", "enc GB/s", "dec GB/s", "limit", "p50 us", "p99 us");
    for (unsigned i = 0; i < report->count; i++)
        print_row(&report->rows[i]);
    print_beside(report);
}

static cJSON *make_row(const struct device_row *from)
{
    cJSON *row = cJSON_CreateObject();
    uint8_t values[8];

    cJSON_AddStringToObject(row, "case", from->name);
    cJSON_AddStringToObject(row, "mode", from->mode);
    cJSON_AddStringToObject(row, "order", from->order);
    cJSON_AddNumberToObject(row, "bytes", (double)from->bytes);
    cJSON_AddNumberToObject(row, "page_bytes", (double)from->page_bytes);
    cJSON_AddNumberToObject(row, "chunk_bytes", (double)from->chunk_bytes);
    cJSON_AddNumberToObject(row, "sm_budget", from->sm_budget);
    cJSON_AddNumberToObject(row, "ratio", from->ratio);
    cJSON_AddNumberToObject(row, "encode_GBps", from->encode);
    cJSON_AddNumberToObject(row, "decode_GBps", from->decode);
    cJSON_AddNumberToObject(row, "limit_GBps", from->limit);
    cJSON_AddNumberToObject(row, "p50_us", from->p50_us);
    cJSON_AddNumberToObject(row, "p99_us", from->p99_us);
    for (int i = 0; i < 8; i++) /* most significant digit first */
        values[i] = (uint8_t)(from->values >> (56 - 8 * i));
    json_add_hex(row, "values", values, sizeof(values));
    cJSON_AddBoolToObject(row, "check", from->ok);
    return row;
}

static cJSON *make_beside_row(const struct beside_row *from)
{
    cJSON *row = cJSON_CreateObject();

    cJSON_AddStringToObject(row, "mode", from->mode);
    cJSON_AddStringToObject(row, "what", from->decode ? "decode" : "encode");
    cJSON_AddNumberToObject(row, "sm_budget", from->sm_budget);
    for (int s = 0; s < BESIDE_SETTINGS; s++) {
        cJSON *at = cJSON_AddObjectToObject(row, beside_names[s]);
        cJSON_AddNumberToObject(at, "loss", from->at[s].loss);
        cJSON_AddNumberToObject(at, "GBps_per_sm", from->at[s].sm_GBps);
    }
    cJSON_AddBoolToObject(row, "check", from->ok);
    return row;
}

static void add_beside(cJSON *root, const struct device_beside *beside)
{
    cJSON *object = cJSON_AddObjectToObject(root, "beside"), *rows;

    if (beside->why[0] != '\0')
        cJSON_AddStringToObject(object, "skipped", beside->why);
    cJSON_AddNumberToObject(object, "size", beside->size);
    cJSON_AddNumberToObject(object, "cublas", beside->version);
    cJSON_AddNumberToObject(object, "alone_us", beside->alone_us);
    rows = cJSON_AddArrayToObject(object, "rows");
    for (unsigned i = 0; i < beside->count; i++)
        cJSON_AddItemToArray(rows, make_beside_row(&beside->rows[i]));
}

static bool print_json(const void *arg, FILE *stream)
{
    const struct device_report *report = arg;
    cJSON *root = cJSON_CreateObject(), *rows;

    cJSON_AddStringToObject(root, "version", report->machine->version);
    cJSON_AddStringToObject(root, "commit", report->machine->commit);
    cJSON_AddStringToObject(root, "device", report->device);
    cJSON_AddNumberToObject(root, "multiprocessors", report->multiprocessors);
    cJSON_AddNumberToObject(root, "driver", report->driver);
    cJSON_AddNumberToObject(root, "runtime", report->runtime);
    cJSON_AddStringToObject(root, "cpu", report->machine->cpu);
    cJSON_AddNumberToObject(root, "repeats", report->options->repeats);
    json_add_hex(root, "codebook", strait_codebook_id(report->codebook), STRAIT_CODEBOOK_ID_BYTES);
    rows = cJSON_AddArrayToObject(root, "rows");
    for (unsigned i = 0; i < report->count; i++)
        cJSON_AddItemToArray(rows, make_row(&report->rows[i]));
    add_beside(root, &report->beside);
    return json_print(root, stream);
}

bool device_report_print(const struct device_report *report)
{
    bool printed = true;

    if (report->options->json)
        printed = print_json(report, stdout);
    else
        print_table(report);
    return value_save(report->options->save, print_json, report) && printed;
}
