/* Codec statistics summed over chunks, for the reports of encode and decode. */
#ifndef STRAIT_TOOLS_TOTALS_H
#define STRAIT_TOOLS_TOTALS_H

#include <stdint.h>
#include <stdio.h>

#include <strait/codec.h>

struct cJSON;

struct totals {
    uint64_t chunks;
    uint64_t pages;
    uint64_t values[STRAIT_BLOCK_MODES]; /* of 2 bytes each */
    struct strait_class_stats coded;
};

/* Adds the result of some pages and their statistics per table, then zeroes the latter for the next ones. The caller
 * counts the chunks. */
void totals_add(struct totals *totals, uint32_t pages, const struct strait_result *result,
                struct strait_class_stats *stats, uint32_t table_count);

/* "top16", "tiered", ...: index enum strait_block_mode. */
extern const char *const block_mode_names[STRAIT_BLOCK_MODES_ALL];

/* One line: "  blocks: tiered 99.12%, raw 0.88%". Nothing when there were no values. */
void totals_print(const struct totals *totals, FILE *stream);
/* Adds the fields chunks, pages, mode_bytes, coded_values, escapes and escape_rate. */
void totals_json(const struct totals *totals, struct cJSON *object);

/* a / b, 0 when b is 0. */
double ratio_of(uint64_t a, uint64_t b);

#endif
