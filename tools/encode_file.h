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

/* The pipeline of `strait encode`: chunks of a plan are read, encoded side by side and written in order. */

/* What the tables of a set cost, over pages of BF16 values. */
struct spent {
    uint64_t values;
    uint64_t bytes; /* of their blocks */
};

/* All borrowed. */
struct encode_task {
    struct source *source;
    const struct plan *plan;
    const struct strait_codebook *codebook; /* NULL when no value will be coded with tables */
    const struct strait_codec *codec;
    struct spent *spent;  /* NULL, or for each table of the codebook: added to, as if no chunk chose base */
    bool fits;            /* values of role other, or of a class without a table, get the one that fits */
    bool chooses;         /* chunks in mode split become base where that is smaller */
    bool tries_parts;     /* chunks in modes split and base become parts where that is smaller */
    uint64_t page_bytes;  /* see struct cutter */
    uint64_t chunk_bytes; /* small enough that strait_encode_bound stays below 4 GiB */
    unsigned threads;
    struct output *output;
    struct progress *progress;
};

struct encode_outcome {
    uint64_t unplain_bytes;
    uint64_t file_bytes;
    uint8_t hash[16]; /* XXH3-128 of the uncompressed bytes */
    struct totals totals;
    uint64_t chosen_bytes; /* uncompressed, of chunks that could choose */
    uint64_t base_bytes;   /* of those that chose base */
    uint64_t table_bytes;  /* compressed, of chunks that could choose, with tables */
    uint64_t kept_bytes;   /* the same, as they chose between tables and base */
};

/* Writes the whole file. Its bytes depend only on source, plan, codebook and sizes, not on threads or codec.
 * False when it failed, with the error on stderr. */
bool encode_file(const struct encode_task *task, struct encode_outcome *outcome);

#endif
