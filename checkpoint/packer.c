#include "checkpoint/packer.h"

#include <stdlib.h>

static uint32_t pages_of(uint64_t bytes)
{
    return (uint32_t)((bytes + ENCODER_PAGE_BYTES - 1) / ENCODER_PAGE_BYTES);
}

static enum strait_status close_chunk(struct packer *packer, struct packer_chunk *open)
{
    const struct contents contents = open->contents;

    if (contents.piece_count == 0)
        return STRAIT_OK;
    for (uint32_t i = 0; i < contents.piece_count; i++)
        (*packer->shards)[open->shards[i]].first_chunk = *packer->chunk_count;
    open->contents = (struct contents){0};
    open->piece_room = 0;
    open->page_used = 0;
    ++*packer->chunk_count;
    return pipeline_put(packer->pipeline, packer->encoder, &contents); /* frees the pieces */
}

/* Makes room for one more piece. */
static bool grow(struct packer_chunk *open)
{
    if (open->contents.piece_count < open->piece_room)
        return true;
    const uint32_t room = open->piece_room > 0 ? open->piece_room * 4 : 16;
    struct piece *pieces = realloc(open->contents.pieces, room * sizeof(*pieces));
    if (pieces != NULL)
        open->contents.pieces = pieces;
    uint32_t *shards = realloc(open->shards, room * sizeof(*shards));
    if (shards != NULL)
        open->shards = shards;
    if (pieces == NULL || shards == NULL)
        return false;
    open->piece_room = room;
    return true;
}

/* A shard of a chunk's size or more: chunks of its own. */
static enum strait_status add_large(struct packer *packer, struct checkpoint_shard *shard, const uint8_t *data)
{
    uint64_t left = shard->bytes;
    const enum strait_element element = shard->dtype->element;
    enum strait_status status = STRAIT_OK;

    shard->first_chunk = *packer->chunk_count;
    while (left > 0 && status == STRAIT_OK) {
        const uint64_t bytes = left < ENCODER_CHUNK_BYTES ? left : ENCODER_CHUNK_BYTES;
        struct piece *piece = malloc(sizeof(*piece));
        if (piece == NULL)
            return STRAIT_ERR_NO_MEMORY;
        *piece = (struct piece){.data = data, .bytes = bytes};
        const struct contents contents = {piece, 1, pages_of(bytes), bytes, element};
        ++*packer->chunk_count;
        status = pipeline_put(packer->pipeline, packer->encoder, &contents);
        data += bytes;
        left -= bytes;
    }
    return status;
}

/* Where a shard's piece goes in the open chunk. A small one shares the page that is not full yet, if it fits. */
static struct piece piece_for(const struct packer_chunk *open, const struct checkpoint_shard *shard,
                              const uint8_t *data)
{
    struct piece piece = {.data = data, .bytes = shard->bytes, .page = open->contents.page_count};

    if (shard->bytes < ENCODER_PAGE_BYTES && open->page_used > 0) {
        const uint32_t byte = (open->page_used + shard->dtype->bytes - 1) / shard->dtype->bytes * shard->dtype->bytes;
        if (byte + shard->bytes <= ENCODER_PAGE_BYTES) {
            piece.page = open->page;
            piece.byte = byte;
        }
    }
    return piece;
}

static bool fits(const struct packer_chunk *open, const struct piece *piece)
{
    const struct contents *contents = &open->contents;

    return contents->bytes + piece->bytes <= ENCODER_CHUNK_BYTES && contents->piece_count < ENCODER_PIECES_MAX &&
           (piece->byte > 0 || contents->page_count + pages_of(piece->bytes) <= ENCODER_PAGES_MAX);
}

enum strait_status packer_add(struct packer *packer, uint32_t place, const uint8_t *data)
{
    struct checkpoint_shard *shard = &(*packer->shards)[place];
    struct packer_chunk *open = &packer->open[shard->dtype->element];

    shard->page_bytes = ENCODER_PAGE_BYTES;
    if (shard->bytes >= ENCODER_CHUNK_BYTES)
        return add_large(packer, shard, data);
    struct piece piece = piece_for(open, shard, data);
    if (!fits(open, &piece)) {
        const enum strait_status status = close_chunk(packer, open);
        if (status != STRAIT_OK)
            return status;
        piece = piece_for(open, shard, data);
    }
    if (!grow(open))
        return STRAIT_ERR_NO_MEMORY;
    if (piece.byte == 0)
        open->contents.page_count += pages_of(piece.bytes);
    if (piece.bytes < ENCODER_PAGE_BYTES) {
        open->page = piece.page;
        open->page_used = piece.byte + (uint32_t)piece.bytes;
    }
    open->contents.element = shard->dtype->element;
    open->contents.bytes += piece.bytes;
    open->shards[open->contents.piece_count] = place;
    open->contents.pieces[open->contents.piece_count++] = piece;
    shard->first_page = piece.page;
    shard->first_byte = piece.byte;
    return STRAIT_OK;
}

enum strait_status packer_flush(struct packer *packer)
{
    for (uint32_t i = 0; i < PACKER_ELEMENTS; i++) {
        const enum strait_status status = close_chunk(packer, &packer->open[i]);
        if (status != STRAIT_OK)
            return status;
    }
    return STRAIT_OK;
}

void packer_fini(struct packer *packer)
{
    for (uint32_t i = 0; i < PACKER_ELEMENTS; i++) {
        free(packer->open[i].contents.pieces);
        free(packer->open[i].shards);
    }
}
