/* Report of the demo: a table for people, JSON for machines. */
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <string.h>

#include "tools/demo.h"
#include "tools/util.h"
#include "tools/report.h"

#define MIB (1024.0 * 1024)

static const char *const role_names[] = {[STRAIT_ROLE_OTHER] = "other", [STRAIT_ROLE_K] = "k", [STRAIT_ROLE_V] = "v"};

/* ---- Shared ------------------------------------------------------------------------------------------------------ */

static bool row_verified(const struct demo_row *row, const struct demo_sample *sample)
{
    return row->bad_count == 0 && row->pages_right == demo_pages(sample);
}

static bool all_rows_verified(const struct demo_report *report)
{
    for (uint32_t i = 0; i < report->row_count; i++)
        if (!row_verified(&report->rows[i], report->sample))
            return false;
    return report->row_count > 0;
}

bool demo_verified(const struct demo_report *report)
{
    return report->complete && all_rows_verified(report);
}

static double gigabytes_per_second(const struct demo_row *row)
{
    return row->seconds > 0 ? (double)row->raw_bytes * 1e-9 / row->seconds : 0;
}

static double ratio(const struct demo_row *row)
{
    return (double)row->raw_bytes / (double)row->wire_bytes;
}

/* ---- For people -------------------------------------------------------------------------------------------------- */

void demo_print_head(const struct demo_sample *sample, FILE *stream)
{
    fprintf(
        stream,
        "A prefill and a decode worker, a straitd for each, %.1f MiB of real KV cache: %" PRIu32 " pages of %u KiB\n"
        "in no order. Each row: the same pages, moved %u times, every page compared; the median time.\n"
        "network is UCX over TCP on loopback, shm shared memory between the two daemons, local both workers at one.\n\n"
        "%-8s %-9s %-7s %9s %9s %6s %9s %6s  %s\n",
        (double)demo_bytes(sample) / MIB, demo_pages(sample), DEMO_PAGE_BYTES / 1024, DEMO_ROUNDS, "path", "transport",
        "coding", "raw MiB", "wire MiB", "ratio", "time ms", "GB/s", "verified");
    fflush(stream);
}

void demo_print_row(const struct demo_row *row, const struct demo_sample *sample, FILE *stream)
{
    fprintf(stream, "%-8s %-9s %-7s %9.2f ", row->path, row->transport, row->coding, (double)row->raw_bytes / MIB);
    if (row->wire_bytes > 0)
        fprintf(stream, "%9.2f %6.3f ", (double)row->wire_bytes / MIB, ratio(row));
    else
        fprintf(stream, "%9s %6s ", "-", "-");
    fprintf(stream, "%9.2f %6.2f  %s%" PRIu32 " of %" PRIu32 " pages\n", row->seconds * 1e3, gigabytes_per_second(row),
            row_verified(row, sample) ? "" : "NO: ", row->pages_right, demo_pages(sample));
    fflush(stream);
}

static void print_hash(const char *name, const uint8_t bytes[DEMO_HASH_BYTES], FILE *stream)
{
    fprintf(stream, "%s ", name);
    for (int i = 0; i < DEMO_HASH_BYTES; i++)
        fprintf(stream, "%02x", bytes[i]);
}

static void print_bad(const struct demo_row *row, const struct demo_sample *sample, FILE *stream)
{
    for (uint32_t i = 0; i < row->bad_count; i++) {
        const struct demo_bad *bad = &row->bad[i];
        fprintf(stream,
                "WRONG: %s, %s: layer %" PRId32 " %s, page %" PRIu32 " (page %" PRIu32 " of the source): ", row->path,
                row->coding, sample->classes[bad->region].layer, role_names[sample->classes[bad->region].role],
                bad->sink_page, bad->source_page);
        print_hash("sent", bad->sent, stream);
        print_hash(", landed", bad->landed, stream);
        fputc('\n', stream);
    }
}

void demo_print_end(const struct demo_report *report, FILE *stream)
{
    if (report->row_count > 0)
        print_hash("\nXXH3-128 over the XXH3-128 of all pages: source", report->rows[0].sent, stream);
    fputs(all_rows_verified(report) ? ", landed the same in every row\n" : "\n", stream);
    for (uint32_t i = 0; i < report->row_count; i++)
        print_bad(&report->rows[i], report->sample, stream);
    if (report->flip)
        fputs("--fault flip turned one bit of a landed page over, after its transfer was DONE and checked by straitd,\n"
              "to show that this comparison can fail.\n",
              stream);
    fprintf(stream, "verified: %s\n", demo_verified(report) ? "true" : "false");
}

/* ---- For machines ------------------------------------------------------------------------------------------------ */

static cJSON *row_object(const struct demo_row *row, const struct demo_sample *sample)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "path", row->path);
    cJSON_AddStringToObject(object, "transport", row->transport);
    cJSON_AddStringToObject(object, "coding", row->coding);
    cJSON_AddNumberToObject(object, "raw_bytes", (double)row->raw_bytes);
    cJSON_AddNumberToObject(object, "wire_bytes", (double)row->wire_bytes);
    if (row->wire_bytes > 0)
        cJSON_AddNumberToObject(object, "ratio", ratio(row));
    else
        cJSON_AddNullToObject(object, "ratio");
    cJSON_AddNumberToObject(object, "seconds", row->seconds);
    cJSON_AddNumberToObject(object, "gigabytes_per_second", gigabytes_per_second(row));
    cJSON_AddNumberToObject(object, "pages_right", row->pages_right);
    json_add_hex(object, "source_hash", row->sent, DEMO_HASH_BYTES);
    json_add_hex(object, "landed_hash", row->landed, DEMO_HASH_BYTES);
    cJSON_AddBoolToObject(object, "verified", row_verified(row, sample));
    return object;
}

static void add_bad(cJSON *array, const struct demo_row *row, const struct demo_sample *sample)
{
    for (uint32_t i = 0; i < row->bad_count; i++) {
        const struct demo_bad *bad = &row->bad[i];
        cJSON *object = cJSON_CreateObject();
        cJSON_AddItemToArray(array, object);
        cJSON_AddStringToObject(object, "path", row->path);
        cJSON_AddStringToObject(object, "coding", row->coding);
        cJSON_AddNumberToObject(object, "layer", sample->classes[bad->region].layer);
        cJSON_AddStringToObject(object, "role", role_names[sample->classes[bad->region].role]);
        cJSON_AddNumberToObject(object, "page", bad->sink_page);
        cJSON_AddNumberToObject(object, "source_page", bad->source_page);
        json_add_hex(object, "source_hash", bad->sent, DEMO_HASH_BYTES);
        json_add_hex(object, "landed_hash", bad->landed, DEMO_HASH_BYTES);
    }
}

static void add_errors(cJSON *array)
{
    size_t count;
    char *const *errors = errors_kept(&count);
    for (size_t i = 0; i < count; i++)
        cJSON_AddItemToArray(array, cJSON_CreateString(errors[i]));
}

bool demo_print_json(const struct demo_report *report, FILE *stream)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddBoolToObject(object, "verified", demo_verified(report));
    cJSON_AddStringToObject(object, "version", strait_version());
    cJSON_AddStringToObject(object, "codec", strait_codec_name(strait_codec_get(NULL)));
    if (report->flip)
        cJSON_AddStringToObject(object, "fault", "flip");
    else
        cJSON_AddNullToObject(object, "fault");
    cJSON_AddNumberToObject(object, "pages", demo_pages(report->sample));
    cJSON_AddNumberToObject(object, "page_bytes", DEMO_PAGE_BYTES);
    cJSON_AddNumberToObject(object, "rounds", DEMO_ROUNDS);
    cJSON *rows = cJSON_AddArrayToObject(object, "transfers"), *bad = cJSON_AddArrayToObject(object, "bad_pages");
    for (uint32_t i = 0; i < report->row_count; i++) {
        cJSON_AddItemToArray(rows, row_object(&report->rows[i], report->sample));
        add_bad(bad, &report->rows[i], report->sample);
    }
    add_errors(cJSON_AddArrayToObject(object, "errors"));
    return json_print(object, stream);
}
