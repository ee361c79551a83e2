#include "kernels/container.h"

#include <string.h>

#include <xxhash.h>

#include "internal/bytes.h"

#define FOOTER_HEAD_BYTES   16u
#define HASHED_HEADER_BYTES 40u
#define HASHED_TAIL_BYTES   32u

static const uint8_t magic_file[4] = {'S', 'T', 'R', 'F'};
static const uint8_t magic_footer[4] = {'S', 'T', 'R', 'I'};
static const uint8_t magic_end[8] = {'S', 'T', 'R', 'F', 'E', 'N', 'D', '0'};

static bool all_zero(const uint8_t *src, unsigned bytes)
{
    uint8_t any = 0;
    for (unsigned i = 0; i < bytes; i++)
        any |= src[i];
    return any == 0;
}

void container_store_hash(uint8_t dst[16], uint64_t low, uint64_t high)
{
    store_le64(dst, low);
    store_le64(dst + 8, high);
}

/* ---- Header ---------------------------------------------------------------------------------------------------- */

bool container_is_file(const uint8_t *src, uint64_t src_size)
{
    return src_size >= sizeof(magic_file) && memcmp(src, magic_file, sizeof(magic_file)) == 0;
}

bool container_is_footer(const uint8_t *src, uint64_t src_size)
{
    return src_size >= sizeof(magic_footer) && memcmp(src, magic_footer, sizeof(magic_footer)) == 0;
}

void container_write_header(uint8_t dst[CONTAINER_HEADER_BYTES], const struct container_header *header)
{
    memset(dst, 0, CONTAINER_HEADER_BYTES);
    memcpy(dst, magic_file, sizeof(magic_file));
    dst[4] = CONTAINER_VERSION;
    store_le64(dst + 8, header->preamble_bytes);
    store_le32(dst + 16, header->table_count);
    memcpy(dst + 24, header->codebook_id, STRAIT_CODEBOOK_ID_BYTES);
    store_le64(dst + 40, XXH3_64bits(dst, HASHED_HEADER_BYTES));
}

/* Whether the header's fields are within their limits; its hash has been checked. */
static bool header_is_valid(const struct container_header *header)
{
    bool has_id = !all_zero(header->codebook_id, STRAIT_CODEBOOK_ID_BYTES);
    return header->preamble_bytes <= CONTAINER_PREAMBLE_MAX && header->table_count <= STRAIT_CODEBOOK_TABLES_MAX &&
           has_id == (header->table_count > 0);
}

enum strait_status container_read_header(struct container_header *header, const uint8_t *src, uint64_t src_size)
{
    struct container_header found;

    if (src_size < CONTAINER_HEADER_BYTES)
        return STRAIT_ERR_TRUNCATED;
    if (!container_is_file(src, src_size))
        return STRAIT_ERR_CORRUPT;
    if (src[4] != CONTAINER_VERSION)
        return STRAIT_ERR_UNSUPPORTED;
    if (load_le64(src + 40) != XXH3_64bits(src, HASHED_HEADER_BYTES))
        return STRAIT_ERR_INTEGRITY;
    found.preamble_bytes = load_le64(src + 8);
    found.table_count = load_le32(src + 16);
    memcpy(found.codebook_id, src + 24, STRAIT_CODEBOOK_ID_BYTES);
    if (!all_zero(src + 5, 3) || !all_zero(src + 20, 4) || !header_is_valid(&found))
        return STRAIT_ERR_CORRUPT;
    *header = found;
    return STRAIT_OK;
}

uint64_t container_tables_offset(const struct container_header *header)
{
    return (CONTAINER_HEADER_BYTES + header->preamble_bytes + 15) & ~(uint64_t)15;
}

uint64_t container_chunks_offset(const struct container_header *header)
{
    return container_tables_offset(header) + (uint64_t)header->table_count * CONTAINER_TABLE_BYTES;
}

/* ---- Footer ---------------------------------------------------------------------------------------------------- */

uint64_t container_footer_bytes(uint32_t count)
{
    return FOOTER_HEAD_BYTES + (uint64_t)count * CONTAINER_ENTRY_BYTES + CONTAINER_TAIL_BYTES;
}

void container_write_footer(uint8_t *dst, const struct container_chunk *chunks, uint32_t count,
                            const struct container_tail *tail)
{
    uint8_t *end = dst + FOOTER_HEAD_BYTES + (uint64_t)count * CONTAINER_ENTRY_BYTES;

    memcpy(dst, magic_footer, sizeof(magic_footer));
    store_le32(dst + 4, count);
    store_le64(dst + 8, 0);
    uint8_t *entry = dst + FOOTER_HEAD_BYTES;
    for (uint32_t i = 0; i < count; i++, entry += CONTAINER_ENTRY_BYTES) {
        store_le64(entry, chunks[i].file_offset);
        store_le64(entry + 8, chunks[i].raw_offset);
        store_le32(entry + 16, chunks[i].chunk_bytes);
        store_le32(entry + 20, chunks[i].page_count);
    }
    store_le64(end, tail->footer_offset);
    store_le64(end + 8, tail->original_bytes);
    memcpy(end + 16, tail->hash, sizeof(tail->hash));
    store_le64(end + 32, XXH3_64bits(dst, (size_t)(end + HASHED_TAIL_BYTES - dst)));
    memcpy(end + 40, magic_end, sizeof(magic_end));
}

enum strait_status container_read_tail(struct container_tail *tail, const uint8_t src[CONTAINER_TAIL_BYTES])
{
    if (memcmp(src + 40, magic_end, sizeof(magic_end)) != 0)
        return STRAIT_ERR_TRUNCATED;
    tail->footer_offset = load_le64(src);
    tail->original_bytes = load_le64(src + 8);
    memcpy(tail->hash, src + 16, sizeof(tail->hash));
    return STRAIT_OK;
}

struct container_chunk container_footer_chunk(const uint8_t *footer, uint32_t index)
{
    const uint8_t *src = footer + FOOTER_HEAD_BYTES + (uint64_t)index * CONTAINER_ENTRY_BYTES;

    return (struct container_chunk){
        .file_offset = load_le64(src),
        .raw_offset = load_le64(src + 8),
        .chunk_bytes = load_le32(src + 16),
        .page_count = load_le32(src + 20),
    };
}

/* Chunks lie back to back from the tables to the footer, and so do the bytes that they hold. */
static bool index_is_valid(const uint8_t *footer, uint32_t count, const struct container_header *header,
                           const struct container_tail *tail)
{
    uint64_t file_offset = container_chunks_offset(header);
    uint64_t data_bytes = tail->original_bytes - header->preamble_bytes;
    uint64_t raw_offset = 0;

    if (tail->original_bytes < header->preamble_bytes)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        struct container_chunk chunk = container_footer_chunk(footer, i);
        uint64_t raw_end = i + 1 < count ? container_footer_chunk(footer, i + 1).raw_offset : data_bytes;

        if (chunk.file_offset != file_offset || chunk.raw_offset != raw_offset || raw_end < raw_offset)
            return false;
        if (chunk.chunk_bytes <= STRAIT_CHUNK_HEADER_BYTES || chunk.chunk_bytes % 16 != 0)
            return false;
        const uint64_t bytes = raw_end - raw_offset; /* of its pages */
        if (chunk.page_count < 1 || chunk.page_count > STRAIT_CHUNK_PAGES_MAX || bytes < chunk.page_count ||
            bytes > (uint64_t)chunk.page_count * STRAIT_PAGE_BYTES_MAX)
            return false;
        if (__builtin_add_overflow(file_offset, chunk.chunk_bytes, &file_offset))
            return false;
        raw_offset = raw_end;
    }
    return raw_offset == data_bytes && file_offset == tail->footer_offset;
}

enum strait_status container_check_footer(const uint8_t *src, uint64_t src_size, const struct container_header *header,
                                          uint32_t *count, struct container_tail *tail)
{
    struct container_tail found;
    const uint8_t *end;
    uint32_t chunks;

    if (src_size < container_footer_bytes(0))
        return STRAIT_ERR_TRUNCATED;
    end = src + (src_size - CONTAINER_TAIL_BYTES);
    if (container_read_tail(&found, end) != STRAIT_OK)
        return STRAIT_ERR_TRUNCATED;
    if (load_le64(end + 32) != XXH3_64bits(src, (size_t)(src_size - CONTAINER_TAIL_BYTES + HASHED_TAIL_BYTES)))
        return STRAIT_ERR_INTEGRITY;
    chunks = load_le32(src + 4);
    if (!container_is_footer(src, src_size) || !all_zero(src + 8, 8) || src_size != container_footer_bytes(chunks))
        return STRAIT_ERR_CORRUPT;
    if (!index_is_valid(src, chunks, header, &found))
        return STRAIT_ERR_CORRUPT;
    *count = chunks;
    *tail = found;
    return STRAIT_OK;
}
