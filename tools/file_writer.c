#include "tools/file_writer.h"

#include <stdlib.h>
#include <string.h>

static bool put(struct file_writer *writer, const void *data, size_t size)
{
    writer->offset += size;
    return output_write(writer->output, data, size);
}

static bool put_tables(struct file_writer *writer, const struct strait_codebook *codebook)
{
    for (uint32_t t = 0; t < writer->header.table_count; t++)
        if (!put(writer, strait_codebook_ranking(codebook, t), CONTAINER_TABLE_BYTES))
            return false;
    return true;
}

static bool put_head(struct file_writer *writer, const void *preamble, const struct strait_codebook *codebook)
{
    static const uint8_t zeroes[16];
    const struct container_header *header = &writer->header;
    uint8_t bytes[CONTAINER_HEADER_BYTES];
    uint64_t padding = container_tables_offset(header) - CONTAINER_HEADER_BYTES - header->preamble_bytes;

    container_write_header(bytes, header);
    return put(writer, bytes, sizeof(bytes)) && put(writer, preamble, header->preamble_bytes) &&
           put(writer, zeroes, padding) && put_tables(writer, codebook);
}

bool file_writer_init(struct file_writer *writer, struct output *output, const void *preamble, uint64_t preamble_bytes,
                      const struct strait_codebook *codebook)
{
    *writer = (struct file_writer){.output = output, .header.preamble_bytes = preamble_bytes};
    if (codebook != NULL) {
        writer->header.table_count = strait_codebook_count(codebook);
        memcpy(writer->header.codebook_id, strait_codebook_id(codebook), STRAIT_CODEBOOK_ID_BYTES);
    }
    if (!original_init(&writer->original)) {
        print_error(NULL, "out of memory");
        return false;
    }
    original_add(&writer->original, preamble, preamble_bytes);
    return put_head(writer, preamble, codebook);
}

void file_writer_fini(struct file_writer *writer)
{
    original_fini(&writer->original);
    chunk_list_fini(&writer->chunks);
}

/* ---- Chunks and footer ----------------------------------------------------------------------------------------- */

bool file_writer_chunk(struct file_writer *writer, const void *chunk, uint32_t chunk_bytes, uint32_t page_count,
                       uint64_t raw_bytes)
{
    uint64_t raw_end = writer->original.bytes - writer->header.preamble_bytes;

    return chunk_list_add(&writer->chunks, (struct container_chunk){.file_offset = writer->offset,
                                                                    .raw_offset = raw_end - raw_bytes,
                                                                    .chunk_bytes = chunk_bytes,
                                                                    .page_count = page_count}) &&
           put(writer, chunk, chunk_bytes);
}

bool file_writer_finish(struct file_writer *writer)
{
    struct container_tail tail = {.footer_offset = writer->offset, .original_bytes = writer->original.bytes};
    uint64_t size = container_footer_bytes(writer->chunks.count);
    uint8_t *footer = malloc(size);
    bool ok = footer != NULL;

    if (!ok) {
        print_error(NULL, "out of memory");
    } else {
        original_hash(&writer->original, tail.hash);
        container_write_footer(footer, writer->chunks.list, writer->chunks.count, &tail);
        ok = put(writer, footer, size);
    }
    free(footer);
    return ok;
}
