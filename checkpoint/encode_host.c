/* Chunks of tensors in host memory. */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/encoder.h"
#include "checkpoint/rounding.h"

struct host {
    const struct strait_codec *codec;
    enum strait_mode mode;
    uint8_t *gathered; /* pages of several pieces, each at its place; allocated when it is needed first */
    struct strait_region regions[ENCODER_PAGES_MAX];
};

static enum strait_status told_as(struct encoder_text told, enum strait_status status, const char *text)
{
    if (told.size > 0) {
        strncpy(told.text, text, told.size - 1);
        told.text[told.size - 1] = 0;
    }
    return status;
}

static enum strait_status host_prepare(void **state, const struct encoder_options *options, struct encoder_text told)
{
    struct host *host = calloc(1, sizeof(*host));

    if (host == NULL)
        return told_as(told, STRAIT_ERR_NO_MEMORY, "out of memory");
    host->codec = strait_codec_get(NULL);
    host->mode = options->mode;
    *state = host;
    return STRAIT_OK;
}

static void host_finish(void *state)
{
    struct host *host = state;

    if (host == NULL)
        return;
    free(host->gathered);
    free(host);
}

/* Sets pages from `piece->page` on to the piece's bytes where they are. */
static void set_pages(struct host *host, const struct piece *piece, const uint8_t *at)
{
    uint64_t left = piece->bytes;

    for (uint32_t page = piece->page; left > 0; page++) {
        const uint32_t bytes = left < ENCODER_PAGE_BYTES ? (uint32_t)left : ENCODER_PAGE_BYTES;
        host->regions[page] = (struct strait_region){
            .base = (void *)at, .page_count = 1, .rows = 1, .row_bytes = bytes, .row_stride = bytes};
        at += bytes;
        left -= bytes;
    }
}

/* Copies a piece that shares its page, or is not aligned as the codec wants it, to its place. */
static bool gather(struct host *host, const struct piece *piece)
{
    if (host->gathered == NULL)
        host->gathered = aligned_alloc(64, ENCODER_PAGES_MAX * (size_t)ENCODER_PAGE_BYTES);
    if (host->gathered == NULL)
        return false;
    uint8_t *page = host->gathered + (size_t)piece->page * ENCODER_PAGE_BYTES;
    const uint32_t before = piece->byte > 0 ? host->regions[piece->page].row_bytes : 0;
    memset(page + before, 0, piece->byte - before);
    memcpy(page + piece->byte, piece->data, piece->bytes);
    struct piece whole = *piece;
    whole.bytes += piece->byte;
    set_pages(host, &whole, page);
    return true;
}

static enum strait_status host_encode(void *state, const struct contents *contents, uint8_t *dst, uint64_t *bytes,
                                      struct encoder_text told)
{
    struct host *host = state;
    struct strait_result result;
    const struct strait_run run = {.size = sizeof(run), .result = &result};
    const struct strait_encode_params params = {
        .size = sizeof(params), .element = contents->element, .mode = host->mode};
    const struct strait_pages pages = {host->regions, NULL, contents->page_count, 1};

    for (uint32_t i = 0; i < contents->piece_count; i++) {
        const struct piece *piece = &contents->pieces[i];
        if (piece->byte == 0 && piece->bytes >= ENCODER_PAGE_BYTES && (uintptr_t)piece->data % 4 == 0)
            set_pages(host, piece, piece->data);
        else if (!gather(host, piece))
            return told_as(told, STRAIT_ERR_NO_MEMORY, "out of memory");
    }
    enum strait_status status = strait_encode(host->codec, &params, dst, ENCODER_BUFFER_BYTES, &pages, &run);
    if (status == STRAIT_OK)
        status = result.status;
    *bytes = result.bytes;
    return status == STRAIT_OK ? STRAIT_OK : told_as(told, status, strait_status_string(status));
}

static enum strait_status host_compare(void *state, const void *fp32, const void *bf16, uint64_t count, bool *equal,
                                       struct encoder_text told)
{
    (void)state;
    (void)told;
    *equal = rounding_equal(fp32, bf16, count);
    return STRAIT_OK;
}

const struct encoder encoder_host = {host_prepare, host_encode, host_compare, host_finish};
