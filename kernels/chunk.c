#include <string.h>

#include "internal/bytes.h"
#include "internal/element.h"
#include "kernels/chunk.h"

/* ---- Layout and checks ------------------------------------------------------------------------------------------ */

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

static uint64_t length_offset(const struct chunk_layout *layout, uint32_t page)
{
    return entry_offset(layout->page_count) + 4 * (uint64_t)page;
}

/* Offset of a block's row: that of block 0 begins the page's entry, the others follow the entries. */
static uint64_t row_offset(const struct chunk_layout *layout, uint32_t page, uint32_t b)
{
    if (b == 0)
        return entry_offset(page);
    return rows_offset(layout) + 4 * ((uint64_t)page * layout->rows_per_page + b - 1);
}

/* Checks 1 to 4: the header. */
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
static uint64_t chunk_metadata_sum(const uint8_t *src, uint64_t metadata_bytes)
{
    uint8_t head[SUM_LANES * 4] = {0};
    memcpy(head, src, sizeof(head));
    memset(head + CHUNK_SUM_OFFSET, 0, 8);
    return sum_seed_metadata((uint32_t)metadata_bytes) + sum_terms(head, sizeof(head), 0) +
           sum_terms(src + sizeof(head), metadata_bytes - sizeof(head), SUM_LANES);
}

/* Check 8: lengths, and padding after the rows. */
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

static uint32_t chunk_page_bytes(const struct chunk *chunk, uint32_t page)
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

static bool mode_is_known(unsigned mode) /* 4 bits of a row */
{
    return (CHUNK_BLOCK_MODES >> mode & 1) != 0;
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

/* Check 10: entries and rows of all pages. */
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

/* Does checks 1 to 10. `metadata` is src itself, or a copy of at least the chunk's metadata bytes. */
static enum strait_status chunk_open(struct chunk *chunk, const uint8_t *src, uint64_t src_size,
                                     const uint8_t *metadata)
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

static struct chunk_block chunk_get_block(const struct chunk *chunk, uint32_t page, uint32_t page_bytes, uint32_t b)
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

enum strait_status chunk_add_modes(const void *src, uint64_t src_size, uint64_t bytes[STRAIT_BLOCK_MODES_ALL])
{
    struct chunk chunk;
    enum strait_status status = chunk_open(&chunk, src, src_size, src);
    for (uint32_t p = 0; status == STRAIT_OK && p < chunk.layout.page_count; p++) {
        const uint32_t page_bytes = chunk_page_bytes(&chunk, p);
        for (uint32_t b = 0; b < page_blocks(page_bytes); b++)
            bytes[get_row(&chunk, p, b) & 15] += block_bytes(page_bytes, b);
    }
    return status;
}

/* ---- Runs: results, statistics, caching ------------------------------------------------------------------------- */

/* Chunks of at least this size are stored past the caches unless the caller says otherwise: their reader is another
 * device, or comes later. */
#define STREAM_BYTES (1u << 20)

/* Whether the stores for a chunk of this size go past the caches. */
static bool passes_caches(const struct strait_run *run, uint64_t chunk_bytes)
{
    if (run->size >= RUN_SIZE_CACHING && run->caching != STRAIT_CACHING_AUTO)
        return run->caching >= STRAIT_CACHING_PASS;
    return chunk_bytes >= STREAM_BYTES;
}

/* Values of a page by block mode, and its escapes, kept until the page is known to be good. */
struct page_stats {
    uint64_t values[STRAIT_BLOCK_MODES];
    uint64_t escapes;
};

/* Adds a good page to the result's statistics and to those of its class. */
static void count_page(const struct strait_run *run, struct strait_result *result, const struct page_stats *stats,
                       uint32_t table)
{
    for (unsigned m = 0; m < STRAIT_BLOCK_MODES; m++)
        result->values[m] += stats->values[m];
    if (run->class_stats == NULL || table >= run->class_count)
        return;
    for (unsigned m = STRAIT_BLOCK_TOP16; m < STRAIT_BLOCK_MODES; m++)
        run->class_stats[table].values += stats->values[m];
    run->class_stats[table].escapes += stats->escapes;
}

/* Records a page's status; the first failure becomes the result's. */
static void set_page_status(const struct strait_run *run, struct strait_result *result, uint32_t page,
                            enum strait_status status)
{
    if (page < run->page_status_count)
        run->page_status[page] = status;
    if (status == STRAIT_OK)
        return;
    if (result->failed_pages++ == 0)
        result->status = status;
}

uint64_t strait_encode_bound(const struct strait_pages *pages)
{
    if (pages_check(pages, 1) != STRAIT_OK)
        return 0;
    uint32_t longest = 0;
    uint64_t blocks = 0;
    for (uint32_t r = 0; r < pages->region_count; r++) {
        uint32_t bytes = region_page_bytes(&pages->regions[r]);
        longest = bytes > longest ? bytes : longest;
        blocks += (uint64_t)CHUNK_UNIT * units(bytes) * pages->id_count;
    }
    struct chunk_layout layout;
    chunk_layout_init(&layout, pages_count(pages), longest, pages->region_count > 1);
    uint64_t bound = layout.metadata_bytes + blocks;
    return bound <= UINT32_MAX ? bound : 0;
}

/* ---- Encoding --------------------------------------------------------------------------------------------------- */

struct encoder {
    const struct block_ops *blocks;
    const struct strait_pages *src;
    struct chunk_scratch *scratch;
    struct typed typed;
    struct chunk_layout layout;
    enum strait_element element;
    enum strait_mode mode;
    uint8_t *dst;
    uint64_t at; /* end of what has been written */
    bool stream;
    const uint8_t *absent; /* of strait_encode_params */
};

/* Page `index` of the source. False: it does not exist, and nothing stands for it. */
static bool get_source(const struct encoder *e, uint32_t index, struct page *page)
{
    if (pages_get(e->src, index, page))
        return true;
    page->base = (uint8_t *)e->absent;
    return e->absent != NULL;
}

/* An uncoded block and the result of coding it. */
struct block {
    struct block_bytes in;
    uint32_t escapes;
    enum strait_block_mode mode, stats_mode; /* as in the chunk, as in the statistics */
};

static bool values_equal(const uint8_t *src, uint32_t n)
{
    return n >= 1 && memcmp(src, src + 2, 2 * (n - 1)) == 0;
}

/* Zeroes the remainder of the last unit after `used` bytes at dst. Returns the bytes in whole units. */
static uint32_t pad(uint8_t *dst, size_t used)
{
    uint32_t size = CHUNK_UNIT * units(used);
    memset(dst + used, 0, size - used);
    return size;
}

/* Mode of the block, unless it would not shrink. */
static enum strait_block_mode wanted_mode(const struct encoder *e, const struct block_bytes *in,
                                          const struct table *table)
{
    if (e->mode == STRAIT_MODE_RAW || units(in->size) == 1)
        return STRAIT_BLOCK_RAW;
    if (values_equal(in->bytes, in->size / 2))
        return STRAIT_BLOCK_CONST;
    if (e->mode >= STRAIT_MODE_BASE)
        return typed_mode(&e->typed, e->element, e->mode, in->bytes, in->size);
    if (table == NULL || e->element != STRAIT_ELEMENT_BF16)
        return STRAIT_BLOCK_RAW;
    return e->mode == STRAIT_MODE_TOP16 ? STRAIT_BLOCK_TOP16 : STRAIT_BLOCK_TIERED;
}

/* Writes the streams of a block and its tail to the stage. Returns their bytes. */
static size_t encode_streams(struct encoder *e, struct block *block, const struct table *table)
{
    uint8_t *stage = e->scratch->stage;
    size_t used;
    switch (block->mode) {
    case STRAIT_BLOCK_CONST:
        block->in.sum = e->blocks->sum(block->in.bytes, block->in.size, block->in.word);
        memcpy(stage, block->in.bytes, 2);
        used = 2;
        break;
    case STRAIT_BLOCK_TOP16:
        used = e->blocks->encode_top16(stage, &block->in, table, &block->escapes);
        if (block->escapes > 0)
            block->mode = STRAIT_BLOCK_TOP16_ESCAPES;
        break;
    case STRAIT_BLOCK_TIERED:
        used = e->blocks->encode_tiered(stage, &block->in, table, &block->escapes);
        break;
    default:
        used = typed_encode(&e->typed, stage, &block->in, block->mode, e->element,
                            e->mode == STRAIT_MODE_BASE ? NULL : table, &block->escapes);
        block->stats_mode = e->typed.stats_mode;
        return used;
    }
    block->stats_mode = block->mode;
    if (block->in.size % 2 != 0)
        stage[used++] = block->in.bytes[block->in.size - 1];
    return used;
}

/* Writes a block at e->at and returns its row. */
static uint32_t encode_block(struct encoder *e, struct block *block, const struct table *table)
{
    uint8_t *dst = e->dst + e->at, *stage = e->scratch->stage;
    uint32_t unit = (uint32_t)(e->at / CHUNK_UNIT), raw_units = units(block->in.size), size;
    block->mode = block->stats_mode = wanted_mode(e, &block->in, table);
    if (block->mode == STRAIT_BLOCK_RAW) {
        block->in.sum = e->blocks->sum_copy(dst, block->in.bytes, block->in.size, block->in.word, e->stream);
        e->at += pad(dst, block->in.size);
        return unit << 4 | STRAIT_BLOCK_RAW;
    }
    size_t used = encode_streams(e, block, table);
    if (units(used) < raw_units) {
        size = pad(stage, used);
        e->blocks->copy(dst, stage, size, e->stream);
    } else {
        block->mode = block->stats_mode = STRAIT_BLOCK_RAW;
        block->escapes = 0;
        e->blocks->copy(dst, block->in.bytes, block->in.size, e->stream);
        size = pad(dst, block->in.size);
    }
    e->at += size;
    return unit << 4 | block->mode;
}

/* The page after page `index`, if it is as long. */
static const uint8_t *next_page(const struct encoder *e, uint32_t index, const struct page *page)
{
    struct page next;
    return index + 1 < e->layout.page_count && get_source(e, index + 1, &next) && next.bytes == page->bytes ? next.base
                                                                                                            : NULL;
}

/* Whether encoders prefetch the next block while they code one. */
static bool coders_prefetch(const struct encoder *e)
{
    return e->mode == STRAIT_MODE_TOP16 || e->mode == STRAIT_MODE_TIERED || element_bytes(e->element) == 1;
}

/* Writes a block that crosses rows and returns its row. */
static uint32_t encode_gathered(struct encoder *e, uint32_t index, const struct page *page, struct block *block,
                                const struct table *table)
{
    uint8_t *dst = e->dst + e->at;
    const uint32_t unit = (uint32_t)(e->at / CHUNK_UNIT);
    if (e->mode != STRAIT_MODE_RAW || !page_sums_by_pieces(page)) {
        const bool told = block->in.next != NULL && coders_prefetch(e);
        page_read(page, 4 * block->in.word, block->in.size, e->scratch->rows, told ? NULL : next_page(e, index, page));
        block->in.bytes = e->scratch->rows;
        return encode_block(e, block, table);
    }
    block->mode = block->stats_mode = STRAIT_BLOCK_RAW;
    const uint8_t *next = next_page(e, index, page);
    struct cursor cursor = page_cursor(page, 4 * block->in.word);
    block->in.sum = e->blocks->sum_gather(dst, &cursor, block->in.size, block->in.word,
                                          next != NULL ? next - page->base : 0, e->stream);
    e->at += pad(dst, block->in.size);
    return unit << 4 | STRAIT_BLOCK_RAW;
}

/* The block after block b of page `index`. False: there is none, or it cannot be prefetched line by line. */
static bool next_block(const struct encoder *e, uint32_t index, const struct page *page, uint32_t b,
                       struct cursor *cursor)
{
    struct page next = *page;
    if (++b == page_blocks(page->bytes)) {
        b = 0;
        if (index + 1 == e->layout.page_count)
            return false;
        get_source(e, index + 1, &next);
    }
    *cursor = page_is_in_row(&next) ? cursor_in_row(next.base + b * BLOCK_BYTES) : page_cursor(&next, b * BLOCK_BYTES);
    return cursor->piece % CURSOR_LINE == 0;
}

/* Encodes page `index` and fills its entry and rows. `table` NULL: there is no codebook. */
static void encode_page(struct encoder *e, uint32_t index, const struct page *page, const struct table *table,
                        struct page_stats *stats)
{
    uint64_t sum = sum_seed_page(page->bytes, index, page->region->table);
    uint32_t blocks = page_blocks(page->bytes);
    for (uint32_t b = 0; b < blocks; b++) {
        uint32_t size = block_bytes(page->bytes, b);
        struct cursor next;
        struct block block = {.in = {.bytes = page_span(page, b * BLOCK_BYTES, size),
                                     .size = size,
                                     .word = b * (BLOCK_BYTES / 4),
                                     .next = next_block(e, index, page, b, &next) ? &next : NULL}};
        const uint32_t row =
            block.in.bytes != NULL ? encode_block(e, &block, table) : encode_gathered(e, index, page, &block, table);
        store_le32(e->dst + row_offset(&e->layout, index, b), row);
        sum += block.in.sum;
        stats->values[block.stats_mode] += size / 2;
        stats->escapes += block.escapes;
    }
    for (uint32_t b = blocks; b <= e->layout.rows_per_page; b++)
        store_le32(e->dst + row_offset(&e->layout, index, b), 0);
    if (e->layout.lengths)
        store_le32(e->dst + length_offset(&e->layout, index), page->bytes);
    uint8_t *entry = e->dst + entry_offset(index);
    store_le16(entry + 4, (uint16_t)page->region->table);
    store_le16(entry + 6, 0);
    store_le64(entry + 8, sum);
}

/* Called last: needs the size of the chunk and the bytes of all other metadata, for their sum. */
static void write_header(struct encoder *e, const struct strait_encode_params *params)
{
    uint8_t *dst = e->dst;
    memset(dst, 0, STRAIT_CHUNK_HEADER_BYTES);
    memcpy(dst, "STRC", 4);
    dst[4] = CHUNK_VERSION;
    dst[5] = (uint8_t)params->element;
    dst[6] = e->layout.lengths ? CHUNK_FLAG_LENGTHS : 0;
    store_le32(dst + 8, e->layout.page_count);
    store_le32(dst + 12, e->layout.page_bytes);
    store_le32(dst + 16, (uint32_t)e->at);
    if (params->codebook != NULL)
        memcpy(dst + 24, params->codebook->id, STRAIT_CODEBOOK_ID_BYTES);
    store_le64(dst + CHUNK_SUM_OFFSET, chunk_metadata_sum(dst, e->layout.metadata_bytes));
}

static void encode_chunk(struct encoder *e, const struct strait_encode_params *params, const struct strait_run *run,
                         struct strait_result *result)
{
    e->at = e->layout.metadata_bytes;
    memset(e->dst + e->at - CHUNK_UNIT, 0, CHUNK_UNIT); /* padding; rows and entries overwrite the rest */
    for (uint32_t i = 0; i < e->layout.page_count; i++) {
        struct page page;
        struct page_stats stats = {{0}, 0};
        get_source(e, i, &page);
        const struct strait_codebook *codebook = params->codebook;
        encode_page(e, i, &page, codebook == NULL ? NULL : &codebook->tables[page.region->table], &stats);
        count_page(run, result, &stats, page.region->table);
    }
    write_header(e, params);
    e->blocks->flush();
    result->bytes = e->at;
}

static void encode_with(struct chunk_scratch *scratch, const struct block_ops *blocks,
                        const struct strait_encode_params *params, uint8_t *dst, const struct strait_pages *src,
                        const struct strait_run *run)
{
    struct strait_result result = {.status = STRAIT_OK};
    struct encoder e = {.blocks = blocks,
                        .src = src,
                        .scratch = scratch,
                        .typed = typed_init(blocks, &scratch->typed),
                        .element = params->element,
                        .mode = params->mode,
                        .absent = params->absent,
                        .dst = dst,
                        .stream = passes_caches(run, strait_encode_bound(src))};
    uint32_t longest = 0, shortest = UINT32_MAX;
    for (uint32_t r = 0; r < src->region_count; r++) {
        uint32_t bytes = region_page_bytes(&src->regions[r]);
        longest = bytes > longest ? bytes : longest;
        shortest = bytes < shortest ? bytes : shortest;
    }
    chunk_layout_init(&e.layout, pages_count(src), longest, shortest != longest);
    /* All ids are checked before anything is encoded: a chunk with a missing page would be useless. */
    struct page page;
    for (uint32_t i = 0; i < pages_count(src); i++)
        set_page_status(run, &result, i, get_source(&e, i, &page) ? STRAIT_OK : STRAIT_ERR_PAGE_ID);
    if (result.failed_pages == 0)
        encode_chunk(&e, params, run, &result);
    *run->result = result;
}

/* Not inlined: a caller that provides scratch may have no room for it on the stack. */
static __attribute__((noinline)) void encode_on_stack(const struct block_ops *blocks,
                                                      const struct strait_encode_params *params, uint8_t *dst,
                                                      const struct strait_pages *src, const struct strait_run *run)
{
    struct chunk_scratch scratch;
    encode_with(&scratch, blocks, params, dst, src, run);
}

void chunk_encode(const struct block_ops *blocks, const struct strait_encode_params *params, uint8_t *dst,
                  const struct strait_pages *src, const struct strait_run *run)
{
    if (run->scratch != NULL)
        encode_with(run->scratch, blocks, params, dst, src, run);
    else
        encode_on_stack(blocks, params, dst, src, run);
}

/* ---- Decoding --------------------------------------------------------------------------------------------------- */

/* The chunk may be hostile: chunk_open has checked where its blocks lie. */

struct decoder {
    const struct block_ops *blocks;
    const struct strait_codebook *codebook;
    struct chunk_scratch *scratch;
    struct typed typed;
    struct chunk chunk;
    bool stream;
};

static size_t decode_const(const struct decoder *d, struct block_bytes *out, const uint8_t *src)
{
    uint32_t n = out->size / 2, t = out->size % 2;
    for (uint32_t i = 0; i < n; i++)
        memcpy(out->bytes + 2 * i, src, 2);
    memcpy(out->bytes + 2 * n, src + 2, t);
    out->sum = d->blocks->sum(out->bytes, out->size, out->word);
    return 2 + t;
}

/* Decodes streams, tail and end of a block. Returns their bytes, or 0 when no encoder would have written them. */
static size_t decode_streams(struct decoder *d, const struct chunk_block *block, struct block_bytes *out,
                             const struct table *table, uint32_t *escapes)
{
    switch (block->mode) {
    case STRAIT_BLOCK_RAW:
        out->sum = d->blocks->sum_copy(out->bytes, block->src, out->size, out->word, out->stream);
        return out->size;
    case STRAIT_BLOCK_CONST:
        return decode_const(d, out, block->src);
    case STRAIT_BLOCK_TIERED:
        return d->blocks->decode_tiered(out, block->src, block->size, table, escapes);
    case STRAIT_BLOCK_TOP16:
    case STRAIT_BLOCK_TOP16_ESCAPES:
        return d->blocks->decode_top16(out, block->src, block->size, block->mode == STRAIT_BLOCK_TOP16_ESCAPES, table,
                                       escapes);
    default:
        return typed_decode(&d->typed, out, block->src, block->size, block->mode, d->chunk.info.element, table, escapes)
                   ? block->size
                   : 0;
    }
}

/* Decodes a block of any mode to out->bytes. False when no encoder would have written it. */
static bool decode_block(struct decoder *d, const struct chunk_block *block, struct block_bytes *out,
                         const struct table *table, uint32_t *escapes)
{
    size_t used = decode_streams(d, block, out, table, escapes);
    if (used == 0 || units(used) * CHUNK_UNIT != block->size || !all_zero(block->src + used, block->size - used))
        return false;
    if (block->mode < STRAIT_BLOCK_TOP16 || block->mode == STRAIT_BLOCK_PARTS)
        return true; /* equal values are allowed */
    return !out->maybe_const || memcmp(out->bytes, out->bytes + 2, out->size / 2 * 2 - 2) != 0;
}

/* Decodes page `index` of the chunk. */
static enum strait_status decode_page(struct decoder *d, uint32_t index, const struct page *page,
                                      struct page_stats *stats)
{
    const uint8_t *entry = d->chunk.metadata + entry_offset(index);
    uint32_t page_bytes = chunk_page_bytes(&d->chunk, index), table_index = load_le16(entry + 4);
    const struct table *table = d->chunk.codebook ? &d->codebook->tables[table_index] : NULL;
    uint64_t sum = sum_seed_page(page_bytes, index, table_index);
    for (uint32_t b = 0; b < page_blocks(page_bytes); b++) {
        struct chunk_block block = chunk_get_block(&d->chunk, index, page_bytes, b);
        uint32_t offset = b * BLOCK_BYTES, escapes = 0;
        struct block_bytes out = {.size = block_bytes(page_bytes, b), .word = offset / 4};
        uint8_t *in_place = page == NULL ? NULL : page_span(page, offset, out.size);
        out.bytes = in_place != NULL ? in_place : d->scratch->stage;
        out.stream = in_place != NULL && d->stream;
        if (page != NULL && in_place == NULL && block.mode == STRAIT_BLOCK_RAW && page_sums_by_pieces(page)) {
            struct cursor cursor = page_cursor(page, offset); /* whole units, so nothing is behind them */
            out.sum = d->blocks->sum_scatter(&cursor, block.src, out.size, out.word, d->stream);
        } else if (!decode_block(d, &block, &out, table, &escapes)) {
            return STRAIT_ERR_CORRUPT;
        } else if (page != NULL && in_place == NULL) {
            page_write(d->blocks, page, offset, out.size, out.bytes, d->stream);
        }
        sum += out.sum;
        stats->values[block.mode > STRAIT_BLOCK_TIERED ? d->typed.stats_mode : block.mode] += out.size / 2;
        stats->escapes += escapes;
    }
    return sum == load_le64(entry + 8) ? STRAIT_OK : STRAIT_ERR_INTEGRITY;
}

static enum strait_status decode_listed(struct decoder *d, const struct strait_pages *dst, uint32_t i, uint32_t index,
                                        struct page_stats *stats)
{
    struct page page;
    if (index >= d->chunk.layout.page_count)
        return STRAIT_ERR_INVALID;
    if (dst == NULL)
        return decode_page(d, index, NULL, stats);
    if (!pages_get(dst, i, &page))
        return STRAIT_ERR_PAGE_ID;
    if (page.bytes != chunk_page_bytes(&d->chunk, index))
        return STRAIT_ERR_INVALID;
    return decode_page(d, index, &page, stats);
}

static void decode_chunk(struct decoder *d, const struct strait_pages *dst, const uint32_t *select,
                         const struct strait_run *run, struct strait_result *result)
{
    uint32_t count = dst == NULL ? d->chunk.layout.page_count : pages_count(dst);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t index = select == NULL ? i : select[i];
        struct page_stats stats = {{0}, 0};
        enum strait_status status = decode_listed(d, dst, i, index, &stats);
        set_page_status(run, result, i, status);
        if (status != STRAIT_OK)
            continue;
        count_page(run, result, &stats, load_le16(d->chunk.metadata + entry_offset(index) + 4));
        result->bytes += chunk_page_bytes(&d->chunk, index);
    }
    d->blocks->flush();
}

/* Check 11: the codebook. */
static bool codebook_fits(const struct chunk *chunk, const struct strait_codebook *codebook)
{
    return !chunk->codebook ||
           (codebook != NULL && memcmp(codebook->id, chunk->info.codebook_id, STRAIT_CODEBOOK_ID_BYTES) == 0 &&
            chunk->table_limit <= codebook->count);
}

/* Does all checks of the chunk as a whole, and last whether it fits the list of pages. */
static enum strait_status open_chunk(struct decoder *d, const struct strait_pages *dst, const uint32_t *select,
                                     const uint8_t *src, uint64_t src_size, const struct strait_run *run)
{
    enum strait_status status = chunk_open(&d->chunk, src, src_size, run->metadata == NULL ? src : run->metadata);
    if (status != STRAIT_OK)
        return status;
    if (!codebook_fits(&d->chunk, d->codebook))
        return STRAIT_ERR_CODEBOOK;
    if (dst == NULL)
        return STRAIT_OK;
    if (select == NULL && pages_count(dst) != d->chunk.layout.page_count)
        return STRAIT_ERR_INVALID;
    return pages_check(dst, element_bytes(d->chunk.info.element));
}

static void decode_with(struct chunk_scratch *scratch, const struct block_ops *blocks,
                        const struct strait_codebook *codebook, const struct strait_pages *dst, const uint32_t *select,
                        const uint8_t *src, uint64_t src_size, const struct strait_run *run)
{
    struct strait_result result = {.status = STRAIT_OK};
    struct decoder d = {.blocks = blocks,
                        .codebook = codebook,
                        .scratch = scratch,
                        .typed = typed_init(blocks, &scratch->typed),
                        .stream = passes_caches(run, src_size)};
    result.chunk_status = open_chunk(&d, dst, select, src, src_size, run);
    if (result.chunk_status == STRAIT_OK)
        decode_chunk(&d, dst, select, run, &result);
    else {
        /* Nothing was decoded: every listed page shares the chunk's status. */
        result.status = result.chunk_status;
        result.failed_pages = dst == NULL ? 0 : pages_count(dst);
        for (uint32_t i = 0; i < result.failed_pages && i < run->page_status_count; i++)
            run->page_status[i] = result.status;
    }
    *run->result = result;
}

/* Not inlined: a caller that provides scratch may have no room for it on the stack. */
static __attribute__((noinline)) void decode_on_stack(const struct block_ops *blocks,
                                                      const struct strait_codebook *codebook,
                                                      const struct strait_pages *dst, const uint32_t *select,
                                                      const uint8_t *src, uint64_t src_size,
                                                      const struct strait_run *run)
{
    struct chunk_scratch scratch;
    decode_with(&scratch, blocks, codebook, dst, select, src, src_size, run);
}

void chunk_decode(const struct block_ops *blocks, const struct strait_codebook *codebook,
                  const struct strait_pages *dst, const uint32_t *select, const uint8_t *src, uint64_t src_size,
                  const struct strait_run *run)
{
    if (run->scratch != NULL)
        decode_with(run->scratch, blocks, codebook, dst, select, src, src_size, run);
    else
        decode_on_stack(blocks, codebook, dst, select, src, src_size, run);
}
