#include "tools/file_reader.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tools/util.h"

#define GROW_STEP (16u * 1024 * 1024)

static bool fail(const struct file_reader *reader, const char *where, enum strait_status status)
{
    print_error(reader->source->name, "%s: %s", where, strait_status_string(status));
    return false;
}

static bool truncated(const struct file_reader *reader, const char *where)
{
    print_error(reader->source->name, "truncated: the file ends at byte %" PRIu64 ", inside %s", reader->offset, where);
    return false;
}

/* Reads exactly `size` bytes of the part that `where` names. */
static bool get(struct file_reader *reader, void *dst, size_t size, const char *where)
{
    size_t got;

    if (!source_read(reader->source, dst, size, &got))
        return false;
    reader->offset += got;
    return got == size || truncated(reader, where);
}

/* Appends to a buffer that has `used` bytes. Memory grows only as bytes arrive, because `size` is untrusted. */
static bool get_into(struct file_reader *reader, struct buffer *buffer, size_t used, uint64_t size, const char *where)
{
    while (size > 0) {
        size_t step = size < GROW_STEP ? (size_t)size : GROW_STEP;
        uint64_t room = used + step;

        if (room > buffer->capacity && !buffer_reserve(buffer, used, step == size ? room : room * 2))
            return fail(reader, where, STRAIT_ERR_NO_MEMORY);
        if (!get(reader, buffer->data + used, step, where))
            return false;
        used += step;
        size -= step;
    }
    return true;
}

/* ---- Head ------------------------------------------------------------------------------------------------------ */

bool file_reader_init(struct file_reader *reader, struct source *source)
{
    uint8_t bytes[CONTAINER_HEADER_BYTES];
    enum strait_status status;
    size_t got;

    *reader = (struct file_reader){.source = source};
    if (!source_read(source, bytes, sizeof(bytes), &got))
        return false;
    if (!container_is_file(bytes, got)) {
        print_error(source->name, got < 4 ? "truncated: too short to be a Strait file" : "not a Strait file");
        return false;
    }
    reader->offset = got;
    status = container_read_header(&reader->header, bytes, got);
    if (status == STRAIT_ERR_TRUNCATED)
        return truncated(reader, "the file header");
    reader->preamble_left = reader->header.preamble_bytes;
    return status == STRAIT_OK || fail(reader, "file header", status);
}

void file_reader_fini(struct file_reader *reader)
{
    strait_codebook_destroy(reader->codebook);
    reader->codebook = NULL;
}

bool file_reader_preamble(struct file_reader *reader, uint8_t *dst, size_t size, size_t *got)
{
    *got = reader->preamble_left < size ? (size_t)reader->preamble_left : size;
    reader->preamble_left -= *got;
    return get(reader, dst, *got, "the preamble");
}

static bool skip_padding(struct file_reader *reader)
{
    uint8_t bytes[16];
    size_t size = (size_t)(container_tables_offset(&reader->header) - reader->offset);

    if (!get(reader, bytes, size, "the padding of the preamble"))
        return false;
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != 0)
            return fail(reader, "padding of the preamble", STRAIT_ERR_CORRUPT);
    return true;
}

static bool make_codebook(struct file_reader *reader, const struct buffer *tables)
{
    enum strait_status status = strait_codebook_create((const uint8_t(*)[256])tables->data, NULL,
                                                       reader->header.table_count, &reader->codebook);

    if (status != STRAIT_OK) /* a table that is not a permutation is the file's fault, not the caller's */
        return fail(reader, "tables", status == STRAIT_ERR_NO_MEMORY ? status : STRAIT_ERR_CORRUPT);
    if (memcmp(strait_codebook_id(reader->codebook), reader->header.codebook_id, STRAIT_CODEBOOK_ID_BYTES) != 0)
        return fail(reader, "tables", STRAIT_ERR_INTEGRITY);
    return true;
}

bool file_reader_tables(struct file_reader *reader)
{
    struct buffer tables = {0};
    uint64_t size = (uint64_t)reader->header.table_count * CONTAINER_TABLE_BYTES;
    bool ok = skip_padding(reader) && get_into(reader, &tables, 0, size, "the tables");

    if (ok && size > 0)
        ok = make_codebook(reader, &tables);
    buffer_fini(&tables);
    return ok;
}

/* ---- Chunks ---------------------------------------------------------------------------------------------------- */

static bool chunk_fail(const struct file_reader *reader, uint64_t begin, const char *what)
{
    print_error(reader->source->name, "chunk %" PRIu32 " at byte %" PRIu64 ": %s", reader->chunk_count, begin, what);
    return false;
}

static bool is_zero_id(const uint8_t id[STRAIT_CODEBOOK_ID_BYTES])
{
    static const uint8_t none[STRAIT_CODEBOOK_ID_BYTES];
    return memcmp(id, none, sizeof(none)) == 0;
}

static bool check_info(const struct file_reader *reader, uint64_t begin, const uint8_t *head,
                       struct strait_chunk_info *info)
{
    enum strait_status status = strait_chunk_info(head, STRAIT_CHUNK_HEADER_BYTES, info);

    if (status != STRAIT_OK)
        return chunk_fail(reader, begin, strait_status_string(status));
    if (!is_zero_id(info->codebook_id) &&
        memcmp(info->codebook_id, reader->header.codebook_id, STRAIT_CODEBOOK_ID_BYTES) != 0)
        return chunk_fail(reader, begin, "it names another codebook set than the file's");
    return reader->chunk_count < UINT32_MAX || chunk_fail(reader, begin, "too many chunks");
}

enum file_part file_reader_chunk(struct file_reader *reader, struct buffer *chunk, struct strait_chunk_info *info)
{
    uint64_t begin = reader->offset;
    uint8_t head[STRAIT_CHUNK_HEADER_BYTES];
    char where[64];

    snprintf(where, sizeof(where), "chunk %" PRIu32 " or before the footer", reader->chunk_count);
    if (!get(reader, head, sizeof(head), where))
        return FILE_PART_FAILED;
    if (container_is_footer(head, sizeof(head))) {
        memcpy(reader->footer_head, head, sizeof(head));
        return FILE_PART_FOOTER;
    }
    if (!check_info(reader, begin, head, info))
        return FILE_PART_FAILED;
    if (!buffer_reserve(chunk, 0, sizeof(head))) {
        chunk_fail(reader, begin, strait_status_string(STRAIT_ERR_NO_MEMORY));
        return FILE_PART_FAILED;
    }
    memcpy(chunk->data, head, sizeof(head));
    snprintf(where, sizeof(where), "chunk %" PRIu32, reader->chunk_count);
    if (!get_into(reader, chunk, sizeof(head), info->chunk_bytes - sizeof(head), where))
        return FILE_PART_FAILED;
    reader->chunk_count++;
    return FILE_PART_CHUNK;
}

/* ---- Footer ---------------------------------------------------------------------------------------------------- */

/* The footer does not match what was read: reports the part that explains most. */
static bool footer_differs(const struct file_reader *reader, const uint8_t *footer, uint64_t size,
                           const struct container_tail *seen)
{
    struct container_tail tail;
    uint32_t count;
    enum strait_status status = container_check_footer(footer, size, &reader->header, &count, &tail);

    if (status == STRAIT_ERR_TRUNCATED) /* nothing is missing, but it does not end as it should */
        status = STRAIT_ERR_CORRUPT;
    if (status != STRAIT_OK)
        return fail(reader, "footer", status);
    if (tail.original_bytes == seen->original_bytes && memcmp(tail.hash, seen->hash, sizeof(tail.hash)) != 0)
        print_error(reader->source->name, "the decoded bytes are not the original ones: XXH3-128 mismatch");
    else
        print_error(reader->source->name, "footer: it does not describe the chunks of this file");
    return false;
}

static bool check_end(struct file_reader *reader)
{
    uint8_t byte;
    size_t got;

    if (!source_read(reader->source, &byte, 1, &got))
        return false;
    if (got > 0)
        print_error(reader->source->name, "bytes follow the end of the file at %" PRIu64, reader->offset);
    return got == 0;
}

static bool compare_footer(struct file_reader *reader, struct buffer *found, const struct container_chunk *chunks,
                           uint32_t count, const struct container_tail *seen)
{
    struct buffer expected = {0};
    uint64_t size = container_footer_bytes(count);
    bool ok;

    if (!buffer_reserve(found, 0, size) || !buffer_reserve(&expected, 0, size)) {
        ok = fail(reader, "footer", STRAIT_ERR_NO_MEMORY);
    } else {
        size_t held = sizeof(reader->footer_head);
        container_write_footer(expected.data, chunks, count, seen);
        memcpy(found->data, reader->footer_head, held);
        ok = get_into(reader, found, held, size - held, "the footer") &&
             (memcmp(found->data, expected.data, size) == 0 || footer_differs(reader, found->data, size, seen));
    }
    buffer_fini(&expected);
    return ok;
}

bool file_reader_finish(struct file_reader *reader, const struct container_chunk *chunks, uint32_t count,
                        const struct original *original)
{
    struct container_tail seen = {
        .footer_offset = reader->offset - sizeof(reader->footer_head),
        .original_bytes = original->bytes,
    };
    struct buffer found = {0};
    bool ok;

    original_hash(original, seen.hash);
    ok = compare_footer(reader, &found, chunks, count, &seen) && check_end(reader);
    buffer_fini(&found);
    return ok;
}
