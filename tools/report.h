/* Reports of commands: helpers for JSON, and codec statistics. */
#ifndef STRAIT_TOOLS_REPORT_H
#define STRAIT_TOOLS_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <strait/codec.h>

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

/* Code that builds objects does not check for lack of memory: cJSON passes NULL on, and
 * json_print then fails or prints less. */

struct cJSON;

/* Adds "schema", the name of the running command, and "schema_version", which rises when fields are removed or mean
 * something else: new ones may come without. docs/operations.md lists them. */
void json_add_schema(struct cJSON *object);

/* Adds the schema, prints the object and a newline, and deletes it. False: no memory, or output failed; the error is on
 * stderr. */
bool json_print(struct cJSON *object, FILE *stream);

/* Adds `size` bytes as hexadecimal digits in their order; nothing without memory. */
void json_add_hex(struct cJSON *object, const char *name, const uint8_t *bytes, size_t size);
/* The bytes that json_add_hex has added, *size of them, which the caller frees. NULL: the member is missing, empty or
 * not hexadecimal, or there is no memory. */
uint8_t *json_read_hex(const struct cJSON *object, const char *name, size_t *size);

/* Adds the number if it is above 0, else null, for "not known". */
void json_add_known(struct cJSON *object, const char *name, double value);

/* ---- Codec statistics, summed over chunks ------------------------------------------------------------------------ */

struct totals {
    uint64_t chunks;
    uint64_t pages;
    uint64_t bytes[STRAIT_BLOCK_MODES_ALL]; /* of the original, by the mode of their block */
    struct strait_class_stats coded;
};

/* Adds a sound chunk and its statistics per table, then zeroes the latter for the next one. */
void totals_add(struct totals *totals, const void *chunk, uint64_t chunk_bytes, uint32_t pages,
                struct strait_class_stats *stats, uint32_t table_count);

/* "top16", "tiered", ...: index enum strait_block_mode. */
extern const char *const block_mode_names[STRAIT_BLOCK_MODES_ALL];

#define ELEMENTS 6u                    /* values of enum strait_element */
extern const char *const role_names[]; /* index enum strait_role */

/* One line: "  blocks: tiered 99.12%, raw 0.88%". Nothing when there were no bytes. */
void totals_print(const struct totals *totals, FILE *stream);
/* Adds the fields chunks, pages, mode_bytes, coded_values, escapes and escape_rate. */
void totals_json(const struct totals *totals, struct cJSON *object);

/* a / b, 0 when b is 0. */
double ratio_of(uint64_t a, uint64_t b);

#endif
