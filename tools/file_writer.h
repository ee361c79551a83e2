/* Writes a Strait file (FORMAT.md section 7) forward, part by part, and hashes the original as it goes. */
#ifndef STRAIT_TOOLS_FILE_WRITER_H
#define STRAIT_TOOLS_FILE_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <strait/codec.h>

#include "kernels/container.h"
#include "tools/chunk_list.h"
#include "tools/original.h"
#include "tools/util.h"

struct file_writer {
    struct output *output; /* borrowed */
    uint64_t offset;       /* bytes written */
    struct container_header header;
    struct original original;
    struct chunk_list chunks;
};

/* Writes header, preamble (bytes of the original) and tables; codebook NULL: no tables. Errors of this and the
 * functions below are printed to stderr. Call file_writer_fini in any case. */
bool file_writer_init(struct file_writer *writer, struct output *output, const void *preamble, uint64_t preamble_bytes,
                      const struct strait_codebook *codebook);
void file_writer_fini(struct file_writer *writer);

/* Writes a chunk. The caller has added the bytes that it holds to writer->original before. */
bool file_writer_chunk(struct file_writer *writer, const void *chunk, uint32_t chunk_bytes, uint32_t page_count,
                       uint64_t raw_bytes);

/* Writes the footer. */
bool file_writer_finish(struct file_writer *writer);

#endif
