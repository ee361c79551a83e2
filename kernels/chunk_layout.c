#include "kernels/chunk_layout.h"

#include <string.h>

#include "internal/bytes.h"
#include "kernels/block_typed.h"
#include "kernels/sum.h"

static const uint8_t no_codebook[STRAIT_CODEBOOK_ID_BYTES];

static uint64_t rows_offset(const struct chunk_layout *layout)
{
    return entry_offset(layout->page_count) + (layout->lengths ? 4 * (uint64_t)layout->page_count : 0);
}

static uint64_t metadata_end(const struct chunk_layout *layout)
{
    return rows_offset(layout) + 4 * (uint64_t)layout->page_count * layout->rows_per_page;
}

void chunk_layout_init(struct chunk_layout *layout, uint32_t page_count, uint32_t page_bytes, bool lengths)
{
    layout->page_count = page_count;
    layout->page_bytes = page_bytes;
    layout->rows_per_page = page_blocks(page_bytes) - 1;
    layout->lengths = lengths;
    layout->metadata_bytes = CHUNK_UNIT * (uint64_t)units(metadata_end(layout));
}

uint64_t length_offset(const struct chunk_layout *layout, uint32_t page)
{
    return entry_offset(layout->page_count) + 4 * (uint64_t)page;
}

uint64_t row_offset(const struct chunk_layout *layout, uint32_t page, uint32_t b)
{
    if (b == 0)
        return entry_offset(page);
    return rows_offset(layout) + 4 * ((uint64_t)page * layout->rows_per_page + b - 1);
}

/* Checks 1 to 4. */
static enum strait_status read_header(struct strait_chunk_info *info, struct chunk_layout *layout, const uint8_t *src,
                                      uint64_t src_size)
{
    if (src_size < STRAIT_CHUNK_HEADER_BYTES)
        return STRAIT_ERR_TRUNCATED;
    if (memcmp(src, "STRC", 4) != 0)
        return STRAIT_ERR_CORRUPT;
    if (src[4] != CHUNK_VERSION || src[5] > STRAIT_ELEMENT_FP8_E5M2 || (src[6] & ~CHUNK_FLAG_LENGTHS) != 0)
        return STRAIT_ERR_UNSUPPORTED;
    uint32_t page_count = load_le32(src + 8), page_bytes = load_le32(src + 12), chunk_bytes = load_le32(src + 16);
    if (src[7] != 0 || load_le32(src + 20) != 0 || page_count == 0 || page_count > STRAIT_CHUNK_PAGES_MAX ||
        page_bytes == 0 || page_bytes > STRAIT_PAGE_BYTES_MAX || chunk_bytes % CHUNK_UNIT != 0)
        return STRAIT_ERR_CORRUPT;
    chunk_layout_init(layout, page_count, page_bytes, (src[6] & CHUNK_FLAG_LENGTHS) != 0);
    if (chunk_bytes < layout->metadata_bytes + CHUNK_UNIT)
        return STRAIT_ERR_CORRUPT;
    *info = (struct strait_chunk_info){.chunk_bytes = chunk_bytes,
                                       .metadata_bytes = layout->metadata_bytes,
                                       .page_count = page_count,
                                       .page_bytes = page_bytes,
                                       .element = (enum strait_element)src[5],
                                       .version = src[4]};
    memcpy(info->codebook_id, src + 24, STRAIT_CODEBOOK_ID_BYTES);
    return STRAIT_OK;
}

enum strait_status strait_chunk_info(const void *src, uint64_t src_size, struct strait_chunk_info *info)
{
    struct chunk_layout layout;
    if (src == NULL || info == NULL)
        return STRAIT_ERR_INVALID;
    return read_header(info, &layout, src, src_size);
}

/* The sum of the metadata with its own field taken as zero. Terms are independent, so the header is summed from a copy.
 */
uint64_t chunk_metadata_sum(const uint8_t *src, uint64_t metadata_bytes)
{
    uint8_t head[SUM_LANES * 4] = {0};
    memcpy(head, src, sizeof(head));
    memset(head + CHUNK_SUM_OFFSET, 0, 8);
    return sum_seed_metadata((uint32_t)metadata_bytes) + sum_terms(head, sizeof(head), 0) +
           sum_terms(src + sizeof(head), metadata_bytes - sizeof(head), SUM_LANES);
}

/* Check 8. */
static bool check_lengths(const struct chunk *chunk)
{
    const struct chunk_layout *layout = &chunk->layout;
    for (uint64_t i = metadata_end(layout); i < layout->metadata_bytes; i++)
        if (chunk->metadata[i] != 0)
            return false;
    if (!layout->lengths)
        return true;
    uint32_t longest = 0, shortest = UINT32_MAX;
    for (uint32_t p = 0; p < layout->page_count; p++) {
        uint32_t length = load_le32(chunk->metadata + length_offset(layout, p));
        longest = length > longest ? length : longest;
        shortest = length < shortest ? length : shortest;
    }
    return shortest >= 1 && shortest < longest && longest == layout->page_bytes;
}

uint32_t chunk_page_bytes(const struct chunk *chunk, uint32_t page)
{
    if (!chunk->layout.lengths)
        return chunk->layout.page_bytes;
    return load_le32(chunk->metadata + length_offset(&chunk->layout, page));
}

static uint32_t get_row(const struct chunk *chunk, uint32_t page, uint32_t b)
{
    return load_le32(chunk->metadata + row_offset(&chunk->layout, page, b));
}

/* The unit where block b ends: the offset of the block that follows in the order (page, block). */
static uint32_t block_end(const struct chunk *chunk, uint32_t page, uint32_t blocks, uint32_t b)
{
    if (b + 1 < blocks)
        return get_row(chunk, page, b + 1) >> 4;
    if (page + 1 < chunk->layout.page_count)
        return get_row(chunk, page + 1, 0) >> 4;
    return (uint32_t)(chunk->info.chunk_bytes / CHUNK_UNIT);
}

/* Whether a block of `bytes` raw bytes may have this mode and extent (in units). */
static bool extent_fits(unsigned mode, enum strait_element element, uint32_t bytes, uint32_t extent)
{
    uint32_t n = bytes / 2, t = bytes % 2, raw = units(bytes);
    switch (mode) {
    case STRAIT_BLOCK_RAW:
        return extent == raw;
    case STRAIT_BLOCK_CONST:
        return extent == 1 && extent < raw;
    case STRAIT_BLOCK_TOP16:
        return extent == units(n + pack_bytes_4bit(n) + t) && extent < raw;
    case STRAIT_BLOCK_TOP16_ESCAPES:
        return extent >= units(n + pack_bytes_4bit(n) + 5 + t) && extent < raw;
    case STRAIT_BLOCK_TIERED:
        return extent >= units(n + pack_bytes_2bit(n) + t) && extent < raw;
    default:
        return extent >= units(typed_least_bytes(mode, element, bytes)) && extent < raw;
    }
}

/* Golden vectors rely on mode 5 being unknown. */
static bool mode_is_known(unsigned mode)
{
    return mode < STRAIT_BLOCK_MODES_ALL && mode != STRAIT_BLOCK_MODES;
}

/* Whether blocks of this mode may occur in this chunk. */
static bool mode_fits(const struct chunk *chunk, unsigned mode)
{
    if (mode >= STRAIT_BLOCK_BASE)
        return typed_mode_fits(mode, chunk->info.element);
    return mode < STRAIT_BLOCK_TOP16 || (chunk->info.element == STRAIT_ELEMENT_BF16 && chunk->codebook);
}

/* Check 9: all modes are checked before rows are used for anything else. */
static bool modes_known(const struct chunk *chunk)
{
    for (uint32_t p = 0; p < chunk->layout.page_count; p++) {
        uint32_t blocks = page_blocks(chunk_page_bytes(chunk, p));
        for (uint32_t b = 0; b < blocks; b++)
            if (!mode_is_known(get_row(chunk, p, b) & 15))
                return false;
    }
    return true;
}

/* Check 10 for one page. *at is the unit where its first block must begin and, on return, where the next page's must.
 */
static enum strait_status check_page(const struct chunk *chunk, uint32_t page, uint32_t *at)
{
    uint32_t bytes = chunk_page_bytes(chunk, page), blocks = page_blocks(bytes);
    if (load_le16(chunk->metadata + entry_offset(page) + 6) != 0)
        return STRAIT_ERR_CORRUPT;
    for (uint32_t b = 0; b < blocks; b++) {
        uint32_t row = get_row(chunk, page, b), mode = row & 15, end = block_end(chunk, page, blocks, b);
        if (!mode_fits(chunk, mode) || row >> 4 != *at || end <= *at ||
            !extent_fits(mode, chunk->info.element, block_bytes(bytes, b), end - *at))
            return STRAIT_ERR_CORRUPT;
        *at = end;
    }
    for (uint32_t b = blocks; b <= chunk->layout.rows_per_page; b++)
        if (get_row(chunk, page, b) != 0)
            return STRAIT_ERR_CORRUPT;
    return STRAIT_OK;
}

/* Check 10. */
static enum strait_status check_pages(struct chunk *chunk)
{
    uint32_t at = (uint32_t)(chunk->layout.metadata_bytes / CHUNK_UNIT);
    chunk->table_limit = 0;
    for (uint32_t p = 0; p < chunk->layout.page_count; p++) {
        enum strait_status status = check_page(chunk, p, &at);
        if (status != STRAIT_OK)
            return status;
        uint32_t table = load_le16(chunk->metadata + entry_offset(p) + 4);
        if (table != 0 && !chunk->codebook)
            return STRAIT_ERR_CORRUPT;
        if (table >= chunk->table_limit)
            chunk->table_limit = table + 1;
    }
    return STRAIT_OK;
}

enum strait_status chunk_open(struct chunk *chunk, const uint8_t *src, uint64_t src_size, const uint8_t *metadata)
{
    enum strait_status status = read_header(&chunk->info, &chunk->layout, metadata, src_size);
    if (status != STRAIT_OK)
        return status;
    if (src_size < chunk->info.chunk_bytes)
        return STRAIT_ERR_TRUNCATED;
    if (src_size > chunk->info.chunk_bytes)
        return STRAIT_ERR_CORRUPT;
    if (chunk_metadata_sum(metadata, chunk->layout.metadata_bytes) != load_le64(metadata + CHUNK_SUM_OFFSET))
        return STRAIT_ERR_INTEGRITY;
    chunk->src = src;
    chunk->metadata = metadata;
    chunk->codebook = memcmp(chunk->info.codebook_id, no_codebook, sizeof(no_codebook)) != 0;
    if (!check_lengths(chunk))
        return STRAIT_ERR_CORRUPT;
    return modes_known(chunk) ? check_pages(chunk) : STRAIT_ERR_UNSUPPORTED;
}

struct chunk_block chunk_get_block(const struct chunk *chunk, uint32_t page, uint32_t page_bytes, uint32_t b)
{
    uint32_t row = get_row(chunk, page, b);
    uint32_t end = block_end(chunk, page, page_blocks(page_bytes), b);
    return (struct chunk_block){.src = chunk->src + CHUNK_UNIT * (uint64_t)(row >> 4),
                                .size = CHUNK_UNIT * (end - (row >> 4)),
                                .mode = (enum strait_block_mode)(row & 15)};
}

enum strait_status strait_chunk_pages(const void *src, uint64_t src_size, uint32_t count, struct strait_page_info *info)
{
    struct chunk chunk;
    if (src == NULL || (info == NULL && count > 0))
        return STRAIT_ERR_INVALID;
    enum strait_status status = chunk_open(&chunk, src, src_size, src);
    if (status != STRAIT_OK)
        return status;
    if (count > chunk.layout.page_count)
        return STRAIT_ERR_INVALID;
    for (uint32_t p = 0; p < count; p++) {
        const uint8_t *entry = chunk.metadata + entry_offset(p);
        info[p] = (struct strait_page_info){
            .sum = load_le64(entry + 8), .page_bytes = chunk_page_bytes(&chunk, p), .table = load_le16(entry + 4)};
        for (uint32_t b = 0; b < page_blocks(info[p].page_bytes); b++) {
            struct chunk_block block = chunk_get_block(&chunk, p, info[p].page_bytes, b);
            info[p].coded_bytes += block.size;
            info[p].block_modes |= 1u << block.mode;
        }
    }
    return STRAIT_OK;
}
