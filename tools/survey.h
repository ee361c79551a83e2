/* Statistics of chunks from their tables, without decoding, for `strait inspect`. */
#ifndef STRAIT_TOOLS_SURVEY_H
#define STRAIT_TOOLS_SURVEY_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <strait/codec.h>

#include "tools/buffer.h"

#define SURVEY_ELEMENTS 6u     /* number of values of enum strait_element */
#define SURVEY_TABLES   65536u /* number of values of a page's table index */

struct cJSON;

/* Sums over the pages of one element type or table. */
struct survey_sum {
    uint64_t pages;
    uint64_t raw_bytes;
    uint64_t coded_bytes;
    uint64_t first_offset; /* in the data, of the first page */
};

struct survey {
    uint64_t chunks;
    uint64_t metadata_bytes;
    struct survey_sum all;
    struct survey_sum elements[SURVEY_ELEMENTS];
    struct survey_sum *tables;                   /* owned, SURVEY_TABLES of them; BF16 pages only */
    uint64_t mode_pages[STRAIT_BLOCK_MODES_ALL]; /* pages with a block of this mode: one page may count for several */

    struct strait_chunk_info info; /* of the last chunk added */
    struct buffer pages;           /* struct strait_page_info, info.page_count of them */
};

extern const char *const element_names[SURVEY_ELEMENTS];

/* False: out of memory. survey_fini may follow in any case. */
bool survey_init(struct survey *survey);
void survey_fini(struct survey *survey);

/* Adds a whole chunk. On failure nothing is added. */
enum strait_status survey_add(struct survey *survey, const void *chunk, uint64_t chunk_bytes);

static inline const struct strait_page_info *survey_page(const struct survey *survey, uint32_t index)
{
    return (const struct strait_page_info *)survey->pages.data + index;
}

/* Chunks, element types and modes, as lines of text or as fields. */
void survey_print(const struct survey *survey, FILE *stream);
void survey_json(const struct survey *survey, struct cJSON *object);

/* "raw+tiered": the modes of a page, in at most SURVEY_MODES_BYTES with the zero. */
#define SURVEY_MODES_BYTES 64
void survey_modes(char text[SURVEY_MODES_BYTES], uint32_t block_modes);

#endif
