#ifndef STRAIT_TOOLS_ENCODE_FILE_H
#define STRAIT_TOOLS_ENCODE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <strait/codec.h>

#include "kernels/container.h"
#include "tools/decode_file.h"
#include "tools/input.h"
#include "tools/pipeline.h"
#include "tools/util.h"
#include "tools/files.h"
#include "tools/report.h"

/* Writes a Strait file (FORMAT.md section 7) forward, part by part, and hashes the uncompressed bytes as it goes. */

struct file_writer {
    struct output *output; /* borrowed */
    uint64_t offset;       /* bytes written */
    struct container_header header;
    struct digest digest;
    struct chunk_list chunks;
};

/* Writes header, preamble and tables; codebook NULL: no tables. Errors of this and the
 * functions below are printed to stderr. Call file_writer_fini in any case. */
bool file_writer_init(struct file_writer *writer, struct output *output, const void *preamble, uint64_t preamble_bytes,
                      const struct strait_codebook *codebook);
void file_writer_fini(struct file_writer *writer);

/* Writes a chunk. The caller has added the bytes that it holds to writer->digest before. */
bool file_writer_chunk(struct file_writer *writer, const void *chunk, uint32_t chunk_bytes, uint32_t page_count,
                       uint64_t raw_bytes);

/* Writes the footer. */
bool file_writer_finish(struct file_writer *writer);

/* Statistics of chunks from their tables, without decoding, for `strait inspect`. */

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

/* Report of `strait encode`. */

struct encode_report {
    const struct encode_task *task;
    const struct encode_outcome *outcome;
    const char *output;
    const char *mode;
    double seconds; /* of all passes over the input */
};

void encode_report_print(const struct encode_report *report, FILE *stream);
/* One JSON object and a newline. False when it failed, with the error on stderr. */
bool encode_report_json(const struct encode_report *report, FILE *stream);

/* The pipeline of `strait encode`: chunks of a plan are read, encoded side by side and written in order. */

/* All borrowed. */
struct encode_task {
    struct source *source;
    const struct plan *plan;
    const struct strait_codebook *codebook; /* NULL when no value will be coded with tables */
    const struct strait_codec *codec;
    enum strait_mode mode;
    uint64_t page_bytes;  /* see struct cutter */
    uint64_t chunk_bytes; /* small enough that strait_encode_bound stays below 4 GiB */
    unsigned threads;
    struct output *output;
    struct progress *progress;
};

struct encode_outcome {
    uint64_t uncompressed_bytes;
    uint64_t file_bytes;
    uint8_t hash[16]; /* XXH3-128 of the uncompressed bytes */
    struct totals totals;
};

/* Writes the whole file. Its bytes depend only on source, plan, codebook, mode and sizes, not on threads or codec.
 * False when it failed, with the error on stderr. */
bool encode_file(const struct encode_task *task, struct encode_outcome *outcome);

#endif
