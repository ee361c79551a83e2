/* Reads a Strait file (FORMAT.md section 7) forward, so that it may come from a pipe. The file is untrusted: everything
 * that can be checked without decoding is checked; failures are printed to stderr with their place in the file. */
#ifndef STRAIT_TOOLS_FILE_READER_H
#define STRAIT_TOOLS_FILE_READER_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/codec.h>

#include "kernels/container.h"
#include "tools/buffer.h"
#include "tools/original.h"
#include "tools/source.h"

struct file_reader {
    struct source *source; /* borrowed */
    uint64_t offset;       /* of the next read, in the file */
    struct container_header header;
    uint64_t preamble_left;
    struct strait_codebook *codebook;               /* owned; NULL: the file has no tables */
    uint32_t chunk_count;                           /* chunks read */
    uint8_t footer_head[STRAIT_CHUNK_HEADER_BYTES]; /* of the footer, read where a chunk might begin */
};

/* Reads the header. Call file_reader_fini in any case. */
bool file_reader_init(struct file_reader *reader, struct source *source);
void file_reader_fini(struct file_reader *reader);

/* Reads the next part of the preamble; *got is 0 when all of it has been read. */
bool file_reader_preamble(struct file_reader *reader, uint8_t *dst, size_t size, size_t *got);

/* Reads the tables, after the preamble. */
bool file_reader_tables(struct file_reader *reader);

/* Reads the next chunk and parses its header. */
enum file_part { FILE_PART_CHUNK, FILE_PART_FOOTER, FILE_PART_FAILED };
enum file_part file_reader_chunk(struct file_reader *reader, struct buffer *chunk, struct strait_chunk_info *info);

/* After FILE_PART_FOOTER: reads the footer to the end of the file; the footer must describe what was read. */
bool file_reader_finish(struct file_reader *reader, const struct container_chunk *chunks, uint32_t count,
                        const struct original *original);

#endif
