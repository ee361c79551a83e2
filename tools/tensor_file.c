#include "tools/tensor_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "kernels/container.h"
#include "tools/decode_file.h"
#include "tools/util.h"

struct tensor_reader {
    const struct tensor_task *task;
    struct container_header header;
    struct container_tail tail;
    struct buffer preamble, tables, footer;
    uint32_t chunk_count;
    struct strait_codebook *codebook;
    struct safetensors list;
    const struct safetensor *tensor;
    struct chunk_decoder decoder;
    uint64_t read_bytes;
    uint64_t written;
};

static bool fail(const struct tensor_reader *reader, const char *where, enum strait_status status)
{
    print_error(reader->task->source->name, "%s: %s", where, strait_status_string(status));
    return false;
}

/* Reads a part that lies inside the file. */
static bool get(struct tensor_reader *reader, uint64_t offset, uint64_t size, struct buffer *buffer, const char *where)
{
    if (!buffer_reserve(buffer, 0, size + 1))
        return fail(reader, where, STRAIT_ERR_NO_MEMORY);
    reader->read_bytes += size;
    return source_read_at(reader->task->source, offset, buffer->data, size);
}

/* ---- The file ---------------------------------------------------------------------------------------------------- */

static bool open_footer(struct tensor_reader *reader)
{
    const uint64_t size = reader->task->source->size;
    uint8_t bytes[CONTAINER_HEADER_BYTES], tail[CONTAINER_TAIL_BYTES];
    enum strait_status status;

    if (size < sizeof(bytes) + sizeof(tail))
        return fail(reader, "file", STRAIT_ERR_TRUNCATED);
    if (!source_read_at(reader->task->source, 0, bytes, sizeof(bytes)) ||
        !source_read_at(reader->task->source, size - sizeof(tail), tail, sizeof(tail)))
        return false;
    if (!container_is_file(bytes, sizeof(bytes))) {
        print_error(reader->task->source->name, "not a Strait file");
        return false;
    }
    status = container_read_header(&reader->header, bytes, sizeof(bytes));
    if (status != STRAIT_OK)
        return fail(reader, "file header", status);
    status = container_read_tail(&reader->tail, tail);
    if (status != STRAIT_OK)
        return fail(reader, "footer", status);
    if (container_chunks_offset(&reader->header) > size || reader->tail.footer_offset > size)
        return fail(reader, "file", STRAIT_ERR_TRUNCATED);
    if (!get(reader, reader->tail.footer_offset, size - reader->tail.footer_offset, &reader->footer, "footer"))
        return false;
    status = container_check_footer(reader->footer.data, size - reader->tail.footer_offset, &reader->header,
                                    &reader->chunk_count, &reader->tail);
    return status == STRAIT_OK || fail(reader, "footer", status);
}

static bool open_tables(struct tensor_reader *reader)
{
    const uint64_t size = (uint64_t)reader->header.table_count * CONTAINER_TABLE_BYTES;
    enum strait_status status;

    if (size == 0)
        return true;
    if (!get(reader, container_tables_offset(&reader->header), size, &reader->tables, "tables"))
        return false;
    status = strait_codebook_create((const uint8_t(*)[256])reader->tables.data, NULL, reader->header.table_count,
                                    &reader->codebook);
    if (status != STRAIT_OK)
        return fail(reader, "tables", status == STRAIT_ERR_NO_MEMORY ? status : STRAIT_ERR_CORRUPT);
    if (memcmp(strait_codebook_id(reader->codebook), reader->header.codebook_id, STRAIT_CODEBOOK_ID_BYTES) != 0)
        return fail(reader, "tables", STRAIT_ERR_INTEGRITY);
    return true;
}

static bool find_tensor(struct tensor_reader *reader)
{
    const uint64_t size = reader->header.preamble_bytes;
    const char *why = "it is none";

    if (!get(reader, CONTAINER_HEADER_BYTES, size, &reader->preamble, "preamble"))
        return false;
    if (!safetensors_probe(reader->preamble.data, size, reader->tail.original_bytes) ||
        safetensors_init(&reader->list, reader->preamble.data, size, reader->tail.original_bytes, &why) != STRAIT_OK) {
        print_error(reader->task->source->name, "was not made of a safetensors file: %s", why);
        return false;
    }
    for (uint32_t i = 0; i < reader->list.count; i++)
        if (strcmp(reader->list.tensors[i].name, reader->task->name) == 0)
            reader->tensor = &reader->list.tensors[i];
    if (reader->tensor == NULL)
        print_error(reader->task->source->name, "has no tensor '%s'", reader->task->name);
    return reader->tensor != NULL;
}

/* ---- Chunks ------------------------------------------------------------------------------------------------------ */

/* Writes what the decoded pages, from byte `begin` of the original on, have of the tensor. */
static bool write_pages(struct tensor_reader *reader, uint64_t begin)
{
    const struct chunk_decoder *decoder = &reader->decoder;
    const uint64_t end = begin + decoder->piece_bytes;
    const uint64_t from = begin > reader->tensor->begin ? begin : reader->tensor->begin;
    const uint64_t to = end < reader->tensor->end ? end : reader->tensor->end;

    reader->written += to - from;
    return output_write(reader->task->output, decoder->raw.data + (from - begin), to - from);
}

static bool read_chunk(struct tensor_reader *reader, const struct container_chunk *chunk)
{
    struct chunk_decoder *decoder = &reader->decoder;
    enum strait_status status;

    if (!get(reader, chunk->file_offset, chunk->chunk_bytes, &decoder->chunk, "chunk"))
        return false;
    status = strait_chunk_info(decoder->chunk.data, chunk->chunk_bytes, &decoder->info);
    if (status == STRAIT_OK &&
        (decoder->info.chunk_bytes != chunk->chunk_bytes || decoder->info.page_count != chunk->page_count))
        status = STRAIT_ERR_CORRUPT;
    if (status == STRAIT_OK)
        chunk_decoder_begin(decoder);
    if (status == STRAIT_OK)
        status = decoder->status;
    if (status == STRAIT_OK &&
        !buffer_reserve_zeroes(&decoder->stats, (reader->header.table_count + 1) * sizeof(struct strait_class_stats)))
        status = STRAIT_ERR_NO_MEMORY;
    return status == STRAIT_OK || fail(reader, "chunk", status);
}

/* The chunk has bytes begin..end of the original. */
static bool take_chunk(struct tensor_reader *reader, const struct container_chunk *chunk, uint64_t begin, uint64_t end)
{
    struct chunk_decoder *decoder = &reader->decoder;
    uint32_t page = 0;

    if (!read_chunk(reader, chunk))
        return false;
    if (decoder->raw_bytes != end - begin)
        return fail(reader, "chunk", STRAIT_ERR_CORRUPT);
    for (; page < decoder->end && begin + chunk_decoder_page(decoder, page)->page_bytes <= reader->tensor->begin;
         page++)
        begin += chunk_decoder_page(decoder, page)->page_bytes;
    decoder->first = page;
    for (uint64_t at = begin; page < decoder->end && at < reader->tensor->end; page++)
        at += chunk_decoder_page(decoder, page)->page_bytes;
    decoder->end = page;
    while (chunk_decoder_piece(decoder, reader->task->codec, reader->codebook)) {
        if (decoder->status != STRAIT_OK || decoder->result.status != STRAIT_OK)
            return fail(reader, "chunk",
                        decoder->status != STRAIT_OK ? decoder->status : (enum strait_status)decoder->result.status);
        if (!write_pages(reader, begin))
            return false;
        begin += decoder->piece_bytes;
    }
    return true;
}

static bool take_chunks(struct tensor_reader *reader)
{
    const uint64_t preamble = reader->header.preamble_bytes;

    for (uint32_t i = 0; i < reader->chunk_count; i++) {
        const struct container_chunk chunk = container_footer_chunk(reader->footer.data, i);
        const uint64_t next = i + 1 < reader->chunk_count
                                  ? container_footer_chunk(reader->footer.data, i + 1).raw_offset + preamble
                                  : reader->tail.original_bytes;
        if (next > reader->tensor->begin && chunk.raw_offset + preamble < reader->tensor->end &&
            !take_chunk(reader, &chunk, chunk.raw_offset + preamble, next))
            return false;
    }
    return reader->written == reader->tensor->end - reader->tensor->begin || fail(reader, "footer", STRAIT_ERR_CORRUPT);
}

bool tensor_decode(const struct tensor_task *task, struct tensor_outcome *outcome)
{
    struct tensor_reader reader = {.task = task};
    const bool done = open_footer(&reader) && open_tables(&reader) && find_tensor(&reader) && take_chunks(&reader);

    if (done) {
        memcpy(outcome->dtype, reader.tensor->dtype, sizeof(outcome->dtype));
        outcome->bytes = reader.written;
        outcome->read_bytes = reader.read_bytes;
    }
    chunk_decoder_fini(&reader.decoder);
    safetensors_fini(&reader.list);
    strait_codebook_destroy(reader.codebook);
    buffer_fini(&reader.preamble);
    buffer_fini(&reader.tables);
    buffer_fini(&reader.footer);
    return done;
}
