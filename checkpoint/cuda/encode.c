/* Chunks of tensors in memory of GPUs. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/cuda/cuda.h"

#define SM_BUDGET     16u
#define SM_BUDGET_MAX 1024u /* more than any device has */

/* Multiprocessors are limited for a save as a whole, so that its threads encode in turn. */
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

/* What the device writes. */
struct told_by_device {
    struct strait_result result;
    uint32_t different;
};

struct coder {
    struct place place;
    struct encoder_options options;
    struct room chunk;    /* pinned: ENCODER_BUFFER_BYTES, then struct told_by_device */
    struct room gathered; /* of the device: pages of several pieces, each at its place */
    struct strait_region regions[ENCODER_PAGES_MAX];
};

static enum strait_status cuda_prepare(void **state, const struct encoder_options *options, struct encoder_text told)
{
    struct coder *coder = calloc(1, sizeof(*coder));
    if (coder == NULL)
        return cuda_told(told, "coder", cudaErrorMemoryAllocation);
    coder->options = *options;
    if (coder->options.sm_budget == 0)
        coder->options.sm_budget = SM_BUDGET;
    if (coder->options.sm_budget > SM_BUDGET_MAX)
        coder->options.sm_budget = SM_BUDGET_MAX;
    coder->options.sm_budget = (coder->options.sm_budget + 1) / 2 * 2; /* pairs of multiprocessors */
    *state = coder;
    return STRAIT_OK;
}

static void cuda_finish(void *state)
{
    struct coder *coder = state;
    if (coder == NULL)
        return;
    (void)cudaFreeHost(coder->chunk.memory);
    (void)cudaFree(coder->gathered.memory);
    place_leave(&coder->place);
    free(coder);
}

/* Goes to the device of `data`. */
static enum strait_status take(struct coder *coder, const void *data, struct encoder_text told)
{
    bool moved = false;
    const enum strait_status status = place_take(&coder->place, data, STREAM_LOW, &moved, told);
    if (status != STRAIT_OK || !moved)
        return status;
    (void)cudaFree(coder->gathered.memory);
    coder->gathered = (struct room){0};
    const cudaError_t error = room_pinned(&coder->chunk, ENCODER_BUFFER_BYTES + sizeof(struct told_by_device));
    return error == cudaSuccess ? STRAIT_OK : cuda_told(told, "pinned memory", error);
}

static struct told_by_device *told_by_device(struct coder *coder)
{
    return (struct told_by_device *)((uint8_t *)coder->chunk.memory + ENCODER_BUFFER_BYTES);
}

/* ---- Pages ------------------------------------------------------------------------------------------------------- */

/* Sets pages from `page` on to `bytes` bytes where they are. */
static void set_pages(struct coder *coder, uint32_t page, const uint8_t *at, uint64_t bytes)
{
    for (uint64_t left = bytes; left > 0; page++) {
        const uint32_t some = left < ENCODER_PAGE_BYTES ? (uint32_t)left : ENCODER_PAGE_BYTES;
        coder->regions[page] = (struct strait_region){
            .base = (void *)at, .page_count = 1, .rows = 1, .row_bytes = some, .row_stride = some};
        at += some;
        left -= some;
    }
}

/* Whether the codec can read a piece where it is: pages of its own, aligned for it, on the device that encodes. */
static bool in_place(const struct coder *coder, const struct piece *piece)
{
    return piece->byte == 0 && piece->bytes >= ENCODER_PAGE_BYTES && (uintptr_t)piece->data % 16 == 0 &&
           device_of(piece->data) == coder->place.device;
}

/* Copies a piece to its place. */
static cudaError_t gather(struct coder *coder, const struct piece *piece)
{
    cudaError_t error = room_device(&coder->gathered, ENCODER_PAGES_MAX * (uint64_t)ENCODER_PAGE_BYTES);
    if (error != cudaSuccess)
        return error;
    uint8_t *page = (uint8_t *)coder->gathered.memory + (size_t)piece->page * ENCODER_PAGE_BYTES;
    const uint32_t before = piece->byte > 0 ? coder->regions[piece->page].row_bytes : 0;
    if (piece->byte > before)
        error = cudaMemsetAsync(page + before, 0, piece->byte - before, coder->place.stream);
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(page + piece->byte, piece->data, piece->bytes, cudaMemcpyDefault, coder->place.stream);
    set_pages(coder, piece->page, page, piece->byte + piece->bytes);
    return error;
}

/* Describes the pages: as few regions as there can be, as launches take few. */
static struct strait_pages describe(struct coder *coder, const struct contents *contents)
{
    const struct piece *first = &contents->pieces[0];
    const uint32_t last = coder->regions[contents->page_count - 1].row_bytes;
    if (contents->piece_count == 1 && last == ENCODER_PAGE_BYTES && coder->regions[0].base == first->data) {
        coder->regions[0].page_count = contents->page_count;
        coder->regions[0].page_stride = ENCODER_PAGE_BYTES;
        return (struct strait_pages){coder->regions, NULL, 1, contents->page_count};
    }
    return (struct strait_pages){coder->regions, NULL, contents->page_count, 1};
}

static cudaError_t launch(struct coder *coder, const struct contents *contents, enum strait_status *refused)
{
    struct told_by_device *heard = told_by_device(coder);
    const struct strait_encode_params params = {
        .size = sizeof(params), .element = contents->element, .mode = coder->options.mode};
    const struct strait_encode_item item = {.src = describe(coder, contents),
                                            .dst = coder->chunk.memory,
                                            .dst_capacity = ENCODER_BUFFER_BYTES,
                                            .result = &heard->result};
    const cudaError_t error =
        room_device(&coder->place.scratch, strait_encode_scratch_size(coder->place.codec, &item, 1));
    if (error != cudaSuccess)
        return error;
    const struct strait_run run = {.size = sizeof(run),
                                   .scratch = coder->place.scratch.memory,
                                   .scratch_size = coder->place.scratch.bytes,
                                   .stream = (struct CUstream_st *)coder->place.stream,
                                   .caching = STRAIT_CACHING_LINK,
                                   .sm_budget = coder->options.sm_budget};
    heard->result.status = STRAIT_ERR_DEVICE;
    *refused = strait_encode_batch(coder->place.codec, &params, &item, 1, &run);
    return *refused == STRAIT_OK ? place_wait(&coder->place) : cudaSuccess;
}

static enum strait_status cuda_encode(void *state, const struct contents *contents, uint8_t *dst, uint64_t *bytes,
                                      struct encoder_text told)
{
    struct coder *coder = state;
    cudaError_t error = cudaSuccess;
    enum strait_status status = take(coder, contents->pieces[0].data, told);
    if (status != STRAIT_OK)
        return status;
    for (uint32_t i = 0; i < contents->piece_count && error == cudaSuccess; i++) {
        const struct piece *piece = &contents->pieces[i];
        if (in_place(coder, piece))
            set_pages(coder, piece->page, piece->data, piece->bytes);
        else
            error = gather(coder, piece);
    }
    if (error != cudaSuccess)
        return cuda_told(told, "gathering pages", error);
    pthread_mutex_lock(&turn);
    error = launch(coder, contents, &status);
    pthread_mutex_unlock(&turn);
    if (error != cudaSuccess)
        return cuda_told(told, "encoding", error);
    const struct strait_result *result = &told_by_device(coder)->result;
    status = status != STRAIT_OK ? status : (enum strait_status)result->status;
    if (status != STRAIT_OK) {
        snprintf(told.text, told.size, "encoding on GPU %d: %s", coder->place.device, strait_status_string(status));
        return status;
    }
    *bytes = result->bytes;
    memcpy(dst, coder->chunk.memory, result->bytes);
    return STRAIT_OK;
}

static enum strait_status cuda_compare(void *state, const void *fp32, const void *bf16, uint64_t count, bool *equal,
                                       struct encoder_text told)
{
    struct coder *coder = state;
    const enum strait_status status = take(coder, bf16, told);
    if (status != STRAIT_OK)
        return status;
    if (device_of(fp32) != coder->place.device) { /* which this one may not reach: then the copy is stored */
        *equal = false;
        return STRAIT_OK;
    }
    struct told_by_device *heard = told_by_device(coder);
    heard->different = 0;
    pthread_mutex_lock(&turn);
    cudaError_t error =
        kernel_compare(fp32, bf16, count, &heard->different, coder->options.sm_budget, coder->place.stream);
    if (error == cudaSuccess)
        error = place_wait(&coder->place);
    pthread_mutex_unlock(&turn);
    if (error != cudaSuccess)
        return cuda_told(told, "comparing with the values it is a rounding of", error);
    *equal = heard->different == 0;
    return STRAIT_OK;
}

const struct encoder encoder_cuda = {cuda_prepare, cuda_encode, cuda_compare, cuda_finish};
