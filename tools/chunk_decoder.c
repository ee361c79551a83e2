#include "tools/chunk_decoder.h"

#include <string.h>

#define PIECE_BYTES    (64u * 1024 * 1024) /* a piece ends with the page that reaches this */
#define PAGE_ALIGNMENT 16u                 /* in memory, of pages that are being decoded */

void chunk_decoder_fini(struct chunk_decoder *decoder)
{
    buffer_fini(&decoder->chunk);
    buffer_fini(&decoder->pages);
    buffer_fini(&decoder->raw);
    buffer_fini(&decoder->page_status);
    buffer_fini(&decoder->stats);
    buffer_fini(&decoder->regions);
    buffer_fini(&decoder->select);
    buffer_fini(&decoder->scratch);
}

static enum strait_status read_pages(struct chunk_decoder *decoder)
{
    uint32_t count = decoder->info.page_count;

    if (!buffer_reserve(&decoder->pages, 0, (uint64_t)count * sizeof(struct strait_page_info)))
        return STRAIT_ERR_NO_MEMORY;
    return strait_chunk_pages(decoder->chunk.data, decoder->info.chunk_bytes, count,
                              (struct strait_page_info *)decoder->pages.data);
}

void chunk_decoder_begin(struct chunk_decoder *decoder)
{
    decoder->first = 0;
    decoder->count = 0;
    decoder->raw_bytes = 0;
    decoder->status = read_pages(decoder);
    if (decoder->status != STRAIT_OK)
        return;
    for (uint32_t i = 0; i < decoder->info.page_count; i++)
        decoder->raw_bytes += chunk_decoder_page(decoder, i)->page_bytes;
}

/* ---- Pieces ---------------------------------------------------------------------------------------------------- */

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + PAGE_ALIGNMENT - 1) / PAGE_ALIGNMENT * PAGE_ALIGNMENT;
}

/* Advances to the next piece; returns the bytes of memory that its pages take when each begins aligned. */
static uint64_t next_piece(struct chunk_decoder *decoder)
{
    uint64_t room = 0;

    decoder->first += decoder->count;
    decoder->count = 0;
    decoder->piece_bytes = 0;
    while (decoder->first + decoder->count < decoder->info.page_count && room < PIECE_BYTES) {
        uint32_t bytes = chunk_decoder_page(decoder, decoder->first + decoder->count)->page_bytes;
        decoder->piece_bytes += bytes;
        decoder->count++;
        room += aligned(bytes);
    }
    return room;
}

static bool reserve(struct chunk_decoder *decoder, uint64_t room, size_t scratch)
{
    return buffer_reserve(&decoder->raw, 0, room) && buffer_reserve(&decoder->scratch, 0, scratch) &&
           buffer_reserve(&decoder->regions, 0, decoder->count * sizeof(struct strait_region)) &&
           buffer_reserve(&decoder->select, 0, decoder->count * sizeof(uint32_t)) &&
           buffer_reserve(&decoder->page_status, 0, decoder->count * sizeof(int32_t));
}

/* One region per page, as pages may differ in length. */
static void list_pages(struct chunk_decoder *decoder)
{
    struct strait_region *regions = (struct strait_region *)decoder->regions.data;
    uint32_t *select = (uint32_t *)decoder->select.data;
    uint8_t *base = decoder->raw.data;

    for (uint32_t i = 0; i < decoder->count; i++) {
        uint32_t bytes = chunk_decoder_page(decoder, decoder->first + i)->page_bytes;
        regions[i] = (struct strait_region){.base = base, .page_count = 1, .rows = 1, .row_bytes = bytes};
        select[i] = decoder->first + i;
        base += aligned(bytes);
    }
}

/* Closes the gaps behind pages of odd lengths. */
static void compact(struct chunk_decoder *decoder)
{
    const struct strait_region *regions = (const struct strait_region *)decoder->regions.data;
    uint8_t *dst = decoder->raw.data;

    for (uint32_t i = 0; i < decoder->count; i++) {
        if (dst != regions[i].base)
            memmove(dst, regions[i].base, regions[i].row_bytes);
        dst += regions[i].row_bytes;
    }
}

static enum strait_status decode_piece(struct chunk_decoder *decoder, uint64_t room, const struct strait_codec *codec,
                                       const struct strait_codebook *codebook)
{
    struct strait_pages pages = {.region_count = decoder->count, .id_count = 1};
    struct strait_run run = {
        .size = sizeof(run),
        .scratch_size = strait_scratch_size(codec),
        .result = &decoder->result,
        .class_stats = (struct strait_class_stats *)decoder->stats.data,
        .class_count = codebook == NULL ? 0 : strait_codebook_count(codebook),
    };
    enum strait_status status;

    if (!reserve(decoder, room, run.scratch_size))
        return STRAIT_ERR_NO_MEMORY;
    list_pages(decoder);
    pages.regions = (const struct strait_region *)decoder->regions.data;
    run.scratch = decoder->scratch.data;
    run.page_status = (int32_t *)decoder->page_status.data;
    run.page_status_count = decoder->count;
    status = strait_decode(codec, codebook, &pages, (const uint32_t *)decoder->select.data, decoder->chunk.data,
                           decoder->info.chunk_bytes, &run);
    if (status != STRAIT_OK)
        return status;
    if (decoder->result.status == STRAIT_ERR_CODEBOOK)
        return STRAIT_ERR_CODEBOOK; /* the chunk's fault: it names a table that the set lacks */
    compact(decoder);
    return STRAIT_OK;
}

bool chunk_decoder_piece(struct chunk_decoder *decoder, const struct strait_codec *codec,
                         const struct strait_codebook *codebook)
{
    uint64_t room = next_piece(decoder);

    if (decoder->count == 0)
        return false;
    decoder->status = decode_piece(decoder, room, codec, codebook);
    return true;
}
