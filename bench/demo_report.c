/* Report of the demo: a table for people, JSON for machines. */
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <string.h>

#include "bench/demo.h"
#include "internal/element.h"
#include "tools/report.h"

#define MIB (1024.0 * 1024)

/* ---- Shared ------------------------------------------------------------------------------------------------------ */

static bool row_verified(const struct demo *demo, const struct demo_row *row)
{
    return row->bad_count == 0 && row->pages_right == demo_pages(demo);
}

static bool all_rows_verified(const struct demo *demo)
{
    for (uint32_t i = 0; i < demo->row_count; i++)
        if (!row_verified(demo, &demo->rows[i]))
            return false;
    return demo->row_count > 0;
}

bool demo_verified(const struct demo *demo)
{
    return demo->complete && all_rows_verified(demo);
}

static double gigabytes_per_second(const struct demo *demo, const struct demo_row *row)
{
    return row->seconds > 0 ? (double)demo_bytes(demo) * 1e-9 / row->seconds : 0;
}

static double ratio(const struct demo *demo, const struct demo_row *row)
{
    return (double)demo_bytes(demo) / (double)row->wire_bytes;
}

static struct strait_class class_at(const struct demo *demo, uint32_t region)
{
    return demo_pool_class(&demo->sink, region);
}

/* ---- For people -------------------------------------------------------------------------------------------------- */

static void print_layouts(const struct demo *demo, FILE *stream)
{
    char source[DEMO_LAYOUT_TEXT_BYTES], sink[DEMO_LAYOUT_TEXT_BYTES];

    demo_layout_text(&demo->source.layout, source);
    demo_layout_text(&demo->sink.layout, sink);
    if (strcmp(source, sink) != 0)
        fprintf(stream,
                "The prefill worker's pages are %s, of %" PRIu32 " bytes, the decode worker's\n%s, of %" PRIu32
                " bytes: they are rearranged on the way,\n"
                "and compared with pages that this program makes from the same values.\n",
                source, demo->source.page_bytes, sink, demo->sink.page_bytes);
}

void demo_print_head(const struct demo *demo, FILE *stream)
{
    fprintf(stream,
            "A prefill and a decode worker, a straitd for each, %.1f MiB of real KV cache in %s: %" PRIu32
            " pages of %.4g KiB\n"
            "in no order. Each row: the same pages, moved %u times, every page compared; the median time.\n"
            "network is TCP on loopback, shm shared memory between the two daemons, local both workers at one.\n",
            (double)demo_bytes(demo) / MIB, element_name(demo->element), demo_pages(demo),
            demo->sink.page_bytes / 1024.0, DEMO_ROUNDS);
    print_layouts(demo, stream);
    fprintf(stream, "\n%-8s %-9s %-7s %9s %9s %6s %9s %6s  %s\n", "path", "transport", "coding", "raw MiB", "wire MiB",
            "ratio", "time ms", "GB/s", "verified");
    fflush(stream);
}

void demo_print_row(const struct demo *demo, const struct demo_row *row, FILE *stream)
{
    fprintf(stream, "%-8s %-9s %-7s %9.2f ", row->path, row->transport, row->coding, (double)demo_bytes(demo) / MIB);
    if (row->wire_bytes > 0)
        fprintf(stream, "%9.2f %6.3f ", (double)row->wire_bytes / MIB, ratio(demo, row));
    else
        fprintf(stream, "%9s %6s ", "-", "-");
    fprintf(stream, "%9.2f %6.2f  %s%" PRIu32 " of %" PRIu32 " pages\n", row->seconds * 1e3,
            gigabytes_per_second(demo, row), row_verified(demo, row) ? "" : "NO: ", row->pages_right, demo_pages(demo));
    fflush(stream);
}

static void print_hash(const char *name, const uint8_t bytes[DEMO_HASH_BYTES], FILE *stream)
{
    fprintf(stream, "%s ", name);
    for (int i = 0; i < DEMO_HASH_BYTES; i++)
        fprintf(stream, "%02x", bytes[i]);
}

static void print_bad(const struct demo *demo, const struct demo_row *row, FILE *stream)
{
    for (uint32_t i = 0; i < row->bad_count; i++) {
        const struct demo_bad *bad = &row->bad[i];
        fprintf(stream, "WRONG: %s, %s: layer %" PRId32 " %s, page %" PRIu32, row->path, row->coding,
                class_at(demo, bad->region).layer, role_names[class_at(demo, bad->region).role], bad->sink_page);
        if (demo_alike(demo))
            fprintf(stream, " (page %" PRIu32 " of the source)", bad->source_page);
        print_hash(": sent", bad->sent, stream);
        print_hash(", landed", bad->landed, stream);
        fputc('\n', stream);
    }
}

void demo_print_end(const struct demo *demo, FILE *stream)
{
    if (demo->row_count > 0)
        print_hash(demo_alike(demo) ? "\nXXH3-128 over the XXH3-128 of all pages: source"
                                    : "\nXXH3-128 over the XXH3-128 of all pages: wanted",
                   demo->rows[0].sent, stream);
    fputs(all_rows_verified(demo) ? ", landed the same in every row\n" : "\n", stream);
    for (uint32_t i = 0; i < demo->row_count; i++)
        print_bad(demo, &demo->rows[i], stream);
    if (demo->flip)
        fputs("--fault flip turned one bit of a landed page over, after its transfer was DONE and checked by straitd,\n"
              "to show that this comparison can fail.\n",
              stream);
    fprintf(stream, "verified: %s\n", demo_verified(demo) ? "true" : "false");
}

/* ---- For machines ------------------------------------------------------------------------------------------------ */

static cJSON *row_object(const struct demo *demo, const struct demo_row *row)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "path", row->path);
    cJSON_AddStringToObject(object, "transport", row->transport);
    cJSON_AddStringToObject(object, "coding", row->coding);
    cJSON_AddNumberToObject(object, "raw_bytes", (double)demo_bytes(demo));
    cJSON_AddNumberToObject(object, "wire_bytes", (double)row->wire_bytes);
    if (row->wire_bytes > 0)
        cJSON_AddNumberToObject(object, "ratio", ratio(demo, row));
    else
        cJSON_AddNullToObject(object, "ratio");
    cJSON_AddNumberToObject(object, "seconds", row->seconds);
    cJSON_AddNumberToObject(object, "gigabytes_per_second", gigabytes_per_second(demo, row));
    cJSON_AddNumberToObject(object, "pages_right", row->pages_right);
    json_add_hex(object, "source_hash", row->sent, DEMO_HASH_BYTES);
    json_add_hex(object, "landed_hash", row->landed, DEMO_HASH_BYTES);
    cJSON_AddBoolToObject(object, "verified", row_verified(demo, row));
    return object;
}

static void add_bad(cJSON *array, const struct demo *demo, const struct demo_row *row)
{
    for (uint32_t i = 0; i < row->bad_count; i++) {
        const struct demo_bad *bad = &row->bad[i];
        cJSON *object = cJSON_CreateObject();
        cJSON_AddItemToArray(array, object);
        cJSON_AddStringToObject(object, "path", row->path);
        cJSON_AddStringToObject(object, "coding", row->coding);
        cJSON_AddNumberToObject(object, "layer", class_at(demo, bad->region).layer);
        cJSON_AddStringToObject(object, "role", role_names[class_at(demo, bad->region).role]);
        cJSON_AddNumberToObject(object, "page", bad->sink_page);
        if (demo_alike(demo))
            cJSON_AddNumberToObject(object, "source_page", bad->source_page);
        else
            cJSON_AddNullToObject(object, "source_page");
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

bool demo_print_json(const struct demo *demo, FILE *stream)
{
    cJSON *object = cJSON_CreateObject();
    char text[DEMO_LAYOUT_TEXT_BYTES];
    cJSON_AddBoolToObject(object, "verified", demo_verified(demo));
    cJSON_AddStringToObject(object, "version", strait_version());
    cJSON_AddStringToObject(object, "codec", strait_codec_name(strait_codec_get(NULL)));
    if (demo->flip)
        cJSON_AddStringToObject(object, "fault", "flip");
    else
        cJSON_AddNullToObject(object, "fault");
    cJSON_AddStringToObject(object, "dtype", element_name(demo->element));
    cJSON_AddStringToObject(object, "source_layout", demo_layout_text(&demo->source.layout, text));
    cJSON_AddStringToObject(object, "sink_layout", demo_layout_text(&demo->sink.layout, text));
    cJSON_AddNumberToObject(object, "pages", demo_pages(demo));
    cJSON_AddNumberToObject(object, "page_bytes", demo->sink.page_bytes);
    cJSON_AddNumberToObject(object, "rounds", DEMO_ROUNDS);
    cJSON *rows = cJSON_AddArrayToObject(object, "transfers"), *bad = cJSON_AddArrayToObject(object, "bad_pages");
    for (uint32_t i = 0; i < demo->row_count; i++) {
        cJSON_AddItemToArray(rows, row_object(demo, &demo->rows[i]));
        add_bad(bad, demo, &demo->rows[i]);
    }
    add_errors(cJSON_AddArrayToObject(object, "errors"));
    return json_print(object, stream);
}
