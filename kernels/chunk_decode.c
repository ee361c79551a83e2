/* Decodes a chunk to pages on a CPU. The chunk may be hostile: chunk_open has checked where its blocks lie. */
#include <string.h>

#include "internal/bytes.h"
#include "internal/element.h"
#include "kernels/block_check.h"
#include "kernels/chunk_layout.h"
#include "kernels/codec.h"
#include "kernels/pages.h"
#include "kernels/sum.h"

struct decoder {
    const struct block_ops *blocks;
    const struct strait_codebook *codebook;
    struct cpu_scratch *scratch;
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
    return block->mode < STRAIT_BLOCK_TOP16 || !out->maybe_const ||
           memcmp(out->bytes, out->bytes + 2, out->size / 2 * 2 - 2) != 0;
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
        if (!decode_block(d, &block, &out, table, &escapes))
            return STRAIT_ERR_CORRUPT;
        if (page != NULL && in_place == NULL)
            page_write(page, offset, out.size, out.bytes);
        sum += out.sum;
        stats->values[block.mode > STRAIT_BLOCK_TIERED ? d->typed.counted : block.mode] += out.size / 2;
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
        run_page_status(run, result, i, status);
        if (status != STRAIT_OK)
            continue;
        run_count_page(run, result, &stats, load_le16(d->chunk.metadata + entry_offset(index) + 4));
        result->bytes += chunk_page_bytes(&d->chunk, index);
    }
    d->blocks->flush();
}

/* Check 11. */
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

/* Nothing was decoded: every listed page shares the chunk's status. */
static void fail_all(const struct strait_pages *dst, const struct strait_run *run, struct strait_result *result)
{
    result->status = result->chunk_status;
    result->failed_pages = dst == NULL ? 0 : pages_count(dst);
    for (uint32_t i = 0; i < result->failed_pages && i < run->page_status_count; i++)
        run->page_status[i] = result->status;
}

static void decode_with(struct cpu_scratch *scratch, const struct strait_codec *codec,
                        const struct strait_codebook *codebook, const struct strait_pages *dst, const uint32_t *select,
                        const uint8_t *src, uint64_t src_size, const struct strait_run *run)
{
    struct strait_result result = {.status = STRAIT_OK};
    struct decoder d = {.blocks = codec->blocks,
                        .codebook = codebook,
                        .scratch = scratch,
                        .typed = typed_init(codec->blocks, &scratch->typed),
                        .stream = run_passes_caches(run, src_size)};
    result.chunk_status = open_chunk(&d, dst, select, src, src_size, run);
    if (result.chunk_status == STRAIT_OK)
        decode_chunk(&d, dst, select, run, &result);
    else
        fail_all(dst, run, &result);
    *run->result = result;
}

/* Not inlined: a caller who provides scratch may have no room for it on the stack. */
static __attribute__((noinline)) void decode_on_stack(const struct strait_codec *codec,
                                                      const struct strait_codebook *codebook,
                                                      const struct strait_pages *dst, const uint32_t *select,
                                                      const uint8_t *src, uint64_t src_size,
                                                      const struct strait_run *run)
{
    struct cpu_scratch scratch;
    decode_with(&scratch, codec, codebook, dst, select, src, src_size, run);
}

void cpu_decode(const struct strait_codec *codec, const struct strait_codebook *codebook,
                const struct strait_pages *dst, const uint32_t *select, const uint8_t *src, uint64_t src_size,
                const struct strait_run *run)
{
    if (run->scratch != NULL)
        decode_with(run->scratch, codec, codebook, dst, select, src, src_size, run);
    else
        decode_on_stack(codec, codebook, dst, select, src, src_size, run);
}
