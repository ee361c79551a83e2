/* Reports: JSON, and codec statistics summed over chunks. */
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/chunk.h"
#include "tools/report.h"
#include "tools/util.h"

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *command;
    int version;
} schemas[] = {
    {"strait encode", 1},
    {"strait decode", 1},
    {"strait inspect", 1},
    {"strait calibrate", 1},
    {"strait bench codec", 1},
    {"strait bench transfer", 1},
    {"strait bench collective", 1},
    {"strait bench checkpoint", 1},
    {"strait bench ep", 1},
    {"strait demo", 1},
    {"strait top", 1},
    {"strait doctor", 1},
    {"strait bench hosts", 1},
    {"strait codebook diff", 1},
    {"strait codebook expect", 1},
    {"strait collectives report", 1},
    {"strait checkpoint inspect", 1},
    {"strait checkpoint verify", 1},
    {"strait checkpoint diff", 1},
    {"strait checkpoint clean", 1},
};

void json_add_schema(cJSON *object)
{
    for (size_t i = 0; i < sizeof(schemas) / sizeof(schemas[0]); i++)
        if (strcmp(schemas[i].command, command_running()) == 0) {
            cJSON_AddStringToObject(object, "schema", schemas[i].command);
            cJSON_AddNumberToObject(object, "schema_version", schemas[i].version);
        }
}

/* A copy in which bytes of strings that are no UTF-8, which cJSON passes on, are \\xNN, and controls that it passes on
 * are escaped. */
static char *json_valid(const char *text)
{
    char *valid = malloc(6 * strlen(text) + 1), *dst = valid;

    while (valid != NULL && *text != '\0') {
        uint32_t code;
        unsigned length = text_character(text, &code);
        if (length == 0) {
            dst += sprintf(dst, "\\\\x%02x", (unsigned char)*text++);
        } else if (code >= 0x7f && text_is_control(code)) {
            dst += sprintf(dst, "\\u%04" PRIx32, code);
            text += length;
        } else {
            for (; length > 0; length--)
                *dst++ = *text++;
        }
    }
    if (valid != NULL)
        *dst = '\0';
    return valid;
}

bool json_print(cJSON *object, FILE *stream)
{
    json_add_schema(object);
    char *text = cJSON_Print(object);
    char *valid = text == NULL ? NULL : json_valid(text);
    bool printed = valid != NULL && fprintf(stream, "%s\n", valid) > 0 && fflush(stream) == 0;

    if (!printed)
        print_error(NULL, "cannot print the report");
    free(valid);
    cJSON_free(text);
    cJSON_Delete(object);
    return printed;
}

void json_add_hex(cJSON *object, const char *name, const uint8_t *bytes, size_t size)
{
    static const char digits[] = "0123456789abcdef";
    char *hex = malloc(2 * size + 1);

    if (hex == NULL)
        return;
    for (size_t i = 0; i < size; i++) {
        hex[2 * i] = digits[bytes[i] >> 4];
        hex[2 * i + 1] = digits[bytes[i] & 15];
    }
    hex[2 * size] = '\0';
    cJSON_AddStringToObject(object, name, hex);
    free(hex);
}

static int digit_of(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

uint8_t *json_read_hex(const cJSON *object, const char *name, size_t *size)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));
    const size_t length = text == NULL ? 0 : strlen(text);
    uint8_t *bytes = length == 0 || length % 2 != 0 ? NULL : malloc(length / 2);

    *size = length / 2;
    for (size_t i = 0; bytes != NULL && i < *size; i++) {
        const int high = digit_of(text[2 * i]), low = digit_of(text[2 * i + 1]);
        if (high < 0 || low < 0) {
            free(bytes);
            return NULL;
        }
        bytes[i] = (uint8_t)(high << 4 | low);
    }
    return bytes;
}

void json_add_known(cJSON *object, const char *name, double value)
{
    if (value > 0)
        cJSON_AddNumberToObject(object, name, value);
    else
        cJSON_AddNullToObject(object, name);
}

/* ---- Codec statistics -------------------------------------------------------------------------------------------- */

const char *const block_mode_names[STRAIT_BLOCK_MODES_ALL] = {
    [STRAIT_BLOCK_RAW] = "raw",       [STRAIT_BLOCK_CONST] = "const",
    [STRAIT_BLOCK_TOP16] = "top16",   [STRAIT_BLOCK_TOP16_ESCAPES] = "top16_escapes",
    [STRAIT_BLOCK_TIERED] = "tiered", [STRAIT_BLOCK_BASE] = "base",
    [STRAIT_BLOCK_SPLIT] = "split",   [STRAIT_BLOCK_FP32Z] = "fp32z",
    [STRAIT_BLOCK_FP8] = "fp8",       [STRAIT_BLOCK_PARTS] = "parts",
};

const char *const role_names[] = {
    [STRAIT_ROLE_OTHER] = "other", [STRAIT_ROLE_K] = "k", [STRAIT_ROLE_V] = "v", [STRAIT_ROLE_KV] = "kv"};

void totals_add(struct totals *totals, const void *chunk, uint64_t chunk_bytes, uint32_t pages,
                struct strait_class_stats *stats, uint32_t table_count)
{
    totals->chunks++;
    totals->pages += pages;
    (void)chunk_add_modes(chunk, chunk_bytes, totals->bytes);
    for (uint32_t t = 0; t < table_count; t++) {
        totals->coded.values += stats[t].values;
        totals->coded.escapes += stats[t].escapes;
    }
    if (table_count > 0)
        memset(stats, 0, table_count * sizeof(*stats));
}

double ratio_of(uint64_t a, uint64_t b)
{
    return b == 0 ? 0.0 : (double)a / (double)b;
}

/* Share of coded values that needed the escape stream or the last tier; 0 when none were coded. */
static double totals_escape_rate(const struct totals *totals)
{
    return ratio_of(totals->coded.escapes, totals->coded.values);
}

void totals_print(const struct totals *totals, FILE *stream)
{
    uint64_t all = 0;
    const char *separator = "  blocks: ";

    for (unsigned m = 0; m < STRAIT_BLOCK_MODES_ALL; m++)
        all += totals->bytes[m];
    for (unsigned m = STRAIT_BLOCK_MODES_ALL; m-- > 0;) {
        if (totals->bytes[m] == 0)
            continue;
        fprintf(stream, "%s%s %.2f%%", separator, block_mode_names[m], 100 * ratio_of(totals->bytes[m], all));
        separator = ", ";
    }
    if (totals->coded.values > 0)
        fprintf(stream, "; escapes %.4f%% of coded values", 100 * totals_escape_rate(totals));
    if (all > 0)
        fputc('\n', stream);
}

void totals_json(const struct totals *totals, cJSON *object)
{
    cJSON *modes;

    cJSON_AddNumberToObject(object, "chunks", (double)totals->chunks);
    cJSON_AddNumberToObject(object, "pages", (double)totals->pages);
    modes = cJSON_AddObjectToObject(object, "mode_bytes");
    for (unsigned m = 0; m < STRAIT_BLOCK_MODES_ALL; m++)
        if (block_mode_names[m] != NULL)
            cJSON_AddNumberToObject(modes, block_mode_names[m], (double)totals->bytes[m]);
    cJSON_AddNumberToObject(object, "coded_values", (double)totals->coded.values);
    cJSON_AddNumberToObject(object, "escapes", (double)totals->coded.escapes);
    cJSON_AddNumberToObject(object, "escape_rate", totals_escape_rate(totals));
}
