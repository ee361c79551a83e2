/* The three kinds of input of `strait inspect`. Each function prints to stdout, prints errors to stderr, and returns
 * whether there were none. Nothing is decoded. */
#ifndef STRAIT_TOOLS_INSPECT_H
#define STRAIT_TOOLS_INSPECT_H

#include <stdbool.h>

#include <strait/codec.h>

#include "tools/encode_file.h"
#include "tools/util.h"
#include "tools/files.h"

struct inspect_options {
    bool json;
    bool pages; /* one line, or object, for each page */
};

bool inspect_file(const struct input *input, const struct inspect_options *options);
bool inspect_chunk(const struct input *input, const struct inspect_options *options);
/* A codebook set, or a partial file of histograms. */
bool inspect_set(const struct input *input, const struct inspect_options *options);

/* ---- What they share ------------------------------------------------------------------------------------------- */

/* Where a page lies. */
struct page_place {
    uint64_t chunk;
    uint32_t page;
    uint64_t offset;    /* in the uncompressed bytes, of its first one */
    const char *tensor; /* NULL: unknown */
};

void print_pages_title(FILE *stream);
void print_page(FILE *stream, const struct page_place *place, const struct strait_page_info *info);
struct cJSON *page_json(const struct page_place *place, const struct strait_page_info *info);

/* The 16 most frequent exponents of a table. */
void print_top(FILE *stream, const uint8_t *ranking);
struct cJSON *top_json(const uint8_t *ranking);

void print_hex(FILE *stream, const uint8_t *bytes, unsigned size);

#endif
