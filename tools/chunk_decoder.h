/* Decodes one chunk, piece by piece: a chunk of a hostile file may decode to a thousand times its size, so only a
 * limited number of its pages is in memory at a time. An ordinary chunk is one piece. */
#ifndef STRAIT_TOOLS_CHUNK_DECODER_H
#define STRAIT_TOOLS_CHUNK_DECODER_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/codec.h>

#include "tools/buffer.h"

/* Starts as zeroes; its memory is reused for the next chunk. */
struct chunk_decoder {
    struct buffer chunk; /* filled by the owner: info.chunk_bytes bytes */
    struct strait_chunk_info info;

    /* Set by chunk_decoder_begin. */
    enum strait_status status; /* of the chunk as a whole */
    struct buffer pages;       /* struct strait_page_info, info.page_count of them */
    uint64_t raw_bytes;        /* of all pages */

    /* Set by chunk_decoder_piece. */
    uint32_t first; /* the pages of the piece */
    uint32_t count;
    struct buffer raw; /* their bytes, back to back: piece_bytes of them */
    uint64_t piece_bytes;
    struct strait_result result;
    struct buffer page_status; /* int32_t, one per page of the piece */
    struct buffer stats;       /* struct strait_class_stats, added to; the owner makes it big enough for the codebook */

    struct buffer regions, select, scratch;
};

void chunk_decoder_fini(struct chunk_decoder *decoder);

/* Reads the page tables of the chunk in decoder->chunk; decodes no piece yet. */
void chunk_decoder_begin(struct chunk_decoder *decoder);

/* Decodes the next piece; false when there is none. Must not be called after a status that is not OK. Errors of the
 * chunk are reported in decoder->status, errors of pages in decoder->result and page_status. */
bool chunk_decoder_piece(struct chunk_decoder *decoder, const struct strait_codec *codec,
                         const struct strait_codebook *codebook);

static inline const struct strait_page_info *chunk_decoder_page(const struct chunk_decoder *decoder, uint32_t index)
{
    return (const struct strait_page_info *)decoder->pages.data + index;
}

#endif
