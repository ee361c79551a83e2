/* Encodes pages to a chunk on a CPU. */
#include <string.h>

#include "internal/bytes.h"
#include "kernels/chunk_layout.h"
#include "kernels/codec.h"
#include "kernels/pages.h"
#include "kernels/sum.h"

struct encoder {
    const struct block_ops *blocks;
    const struct strait_pages *src;
    struct cpu_scratch *scratch;
    struct typed typed;
    struct chunk_layout layout;
    enum strait_element element;
    enum strait_mode mode;
    uint8_t *dst;
    uint64_t at; /* end of what has been written */
    bool stream;
};

/* An uncoded block and the result of coding it. */
struct block {
    struct block_bytes in;
    uint32_t escapes;
    enum strait_block_mode mode, counted; /* as in the chunk, as in the statistics */
};

static bool values_equal(const uint8_t *src, uint32_t n)
{
    return n >= 1 && memcmp(src, src + 2, 2 * (n - 1)) == 0;
}

/* Zeroes the rest of the last unit after `used` bytes at dst. Returns the bytes in whole units. */
static uint32_t pad(uint8_t *dst, size_t used)
{
    uint32_t size = CHUNK_UNIT * units(used);
    memset(dst + used, 0, size - used);
    return size;
}

/* The mode that the block gets if it shrinks. */
static enum strait_block_mode wanted_mode(const struct encoder *e, const struct block_bytes *in,
                                          const struct table *table)
{
    if (e->mode == STRAIT_MODE_RAW || units(in->size) == 1)
        return STRAIT_BLOCK_RAW;
    if (values_equal(in->bytes, in->size / 2))
        return STRAIT_BLOCK_CONST;
    if (e->mode == STRAIT_MODE_BASE || (e->mode == STRAIT_MODE_SPLIT && table != NULL))
        return typed_mode(&e->typed, e->element, e->mode == STRAIT_MODE_BASE, in->bytes, in->size);
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
        block->counted = e->typed.counted;
        return used;
    }
    block->counted = block->mode;
    if (block->in.size % 2 != 0)
        stage[used++] = block->in.bytes[block->in.size - 1];
    return used;
}

/* Writes a block at e->at and returns its row. */
static uint32_t encode_block(struct encoder *e, struct block *block, const struct table *table)
{
    uint8_t *dst = e->dst + e->at, *stage = e->scratch->stage;
    uint32_t unit = (uint32_t)(e->at / CHUNK_UNIT), raw_units = units(block->in.size), size;
    block->mode = block->counted = wanted_mode(e, &block->in, table);
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
        block->mode = block->counted = STRAIT_BLOCK_RAW;
        block->escapes = 0;
        e->blocks->copy(dst, block->in.bytes, block->in.size, e->stream);
        size = pad(dst, block->in.size);
    }
    e->at += size;
    return unit << 4 | block->mode;
}

/* Address of block b of the page, in place or gathered. */
static uint8_t *get_block(struct encoder *e, const struct page *page, uint32_t b, uint32_t size)
{
    uint8_t *src = page_span(page, b * BLOCK_BYTES, size);
    if (src != NULL)
        return src;
    page_read(page, b * BLOCK_BYTES, size, e->scratch->rows);
    return e->scratch->rows;
}

/* The block after block b of page `index`, if it can be prefetched. */
static const uint8_t *next_block(const struct encoder *e, uint32_t index, const struct page *page, uint32_t b)
{
    struct page next;
    if (b + 1 < page_blocks(page->bytes))
        return page_span(page, (b + 1) * BLOCK_BYTES, 1);
    if (index + 1 == e->layout.page_count)
        return NULL;
    pages_get(e->src, index + 1, &next);
    return next.base;
}

/* Encodes page `index` and fills its entry and rows. `table` NULL: there is no codebook. */
static void encode_page(struct encoder *e, uint32_t index, const struct page *page, const struct table *table,
                        struct page_stats *stats)
{
    uint64_t sum = sum_seed_page(page->bytes, index, page->region->table);
    uint32_t blocks = page_blocks(page->bytes);
    for (uint32_t b = 0; b < blocks; b++) {
        uint32_t size = block_bytes(page->bytes, b);
        struct block block = {.in = {.bytes = get_block(e, page, b, size),
                                     .size = size,
                                     .word = b * (BLOCK_BYTES / 4),
                                     .next = next_block(e, index, page, b)}};
        store_le32(e->dst + row_offset(&e->layout, index, b), encode_block(e, &block, table));
        sum += block.in.sum;
        stats->values[block.counted] += size / 2;
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

/* Written last, when the chunk's size and all that goes into its sum are known. */
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

static void plan_layout(struct chunk_layout *layout, const struct strait_pages *src)
{
    uint32_t longest = 0, shortest = UINT32_MAX;
    for (uint32_t r = 0; r < src->region_count; r++) {
        uint32_t bytes = region_page_bytes(&src->regions[r]);
        longest = bytes > longest ? bytes : longest;
        shortest = bytes < shortest ? bytes : shortest;
    }
    chunk_layout_init(layout, pages_count(src), longest, shortest != longest);
}

/* Checks all ids before anything is encoded: a chunk with a missing page would be useless. */
static bool check_ids(const struct strait_pages *src, const struct strait_run *run, struct strait_result *result)
{
    struct page page;
    for (uint32_t i = 0; i < pages_count(src); i++)
        run_page_status(run, result, i, pages_get(src, i, &page) ? STRAIT_OK : STRAIT_ERR_PAGE_ID);
    return result->failed_pages == 0;
}

static void encode_chunk(struct encoder *e, const struct strait_encode_params *params, const struct strait_run *run,
                         struct strait_result *result)
{
    e->at = e->layout.metadata_bytes;
    memset(e->dst + e->at - CHUNK_UNIT, 0, CHUNK_UNIT); /* padding; rows and entries overwrite the rest */
    for (uint32_t i = 0; i < e->layout.page_count; i++) {
        struct page page;
        struct page_stats stats = {{0}, 0};
        pages_get(e->src, i, &page);
        const struct strait_codebook *codebook = params->codebook;
        encode_page(e, i, &page, codebook == NULL ? NULL : &codebook->tables[page.region->table], &stats);
        run_count_page(run, result, &stats, page.region->table);
    }
    write_header(e, params);
    e->blocks->flush();
    result->bytes = e->at;
}

static void encode_with(struct cpu_scratch *scratch, const struct strait_codec *codec,
                        const struct strait_encode_params *params, uint8_t *dst, const struct strait_pages *src,
                        const struct strait_run *run)
{
    struct strait_result result = {.status = STRAIT_OK};
    struct encoder e = {.blocks = codec->blocks,
                        .src = src,
                        .scratch = scratch,
                        .typed = typed_init(codec->blocks, &scratch->typed),
                        .element = params->element,
                        .mode = params->mode,
                        .dst = dst,
                        .stream = run_passes_caches(run, strait_encode_bound(src))};
    plan_layout(&e.layout, src);
    if (check_ids(src, run, &result))
        encode_chunk(&e, params, run, &result);
    *run->result = result;
}

/* Not inlined: a caller who provides scratch may have no room for it on the stack. */
static __attribute__((noinline)) void encode_on_stack(const struct strait_codec *codec,
                                                      const struct strait_encode_params *params, uint8_t *dst,
                                                      const struct strait_pages *src, const struct strait_run *run)
{
    struct cpu_scratch scratch;
    encode_with(&scratch, codec, params, dst, src, run);
}

void cpu_encode(const struct strait_codec *codec, const struct strait_encode_params *params, uint8_t *dst,
                const struct strait_pages *src, const struct strait_run *run)
{
    if (run->scratch != NULL)
        encode_with(run->scratch, codec, params, dst, src, run);
    else
        encode_on_stack(codec, params, dst, src, run);
}
