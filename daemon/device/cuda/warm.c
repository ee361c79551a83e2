/* The driver loads a kernel when it is first launched, which takes milliseconds. A device that is taken into use codes
 * a page in every mode, so that the first transfer does not wait for it. */
#include "daemon/device/cuda/cuda.h"

#define PAGE_BYTES  4096u
#define CHUNK_BYTES 16384u /* more than a page takes in any mode */

/* In device memory: a page, a page to decode into, a chunk. In pinned memory: results. */
struct room {
    uint8_t *page, *back, *chunk;
    uint32_t *id;
};

static struct strait_pages pages_at(struct strait_region *region, uint8_t *at, const struct room *room)
{
    *region = (struct strait_region){
        .base = at, .page_stride = PAGE_BYTES, .rows = 1, .row_bytes = PAGE_BYTES, .row_stride = PAGE_BYTES};
    return (struct strait_pages){.regions = region, .ids = room->id, .region_count = 1, .id_count = 1};
}

static cudaError_t code(struct device *device, enum strait_mode mode, const struct room *room)
{
    const struct device_codec *codec = device->setup.codec;
    struct lane *lane = &device->lanes[0];
    struct strait_region from, to;
    const struct strait_run run = {.size = sizeof(run),
                                   .scratch = lane->scratch,
                                   .scratch_size = lane->scratch_size,
                                   .stream = lane->stream,
                                   .sm_budget = device->setup.multiprocessors,
                                   .tables = device->tables};
    const struct strait_encode_params params = {.size = sizeof(params),
                                                .element = STRAIT_ELEMENT_BF16,
                                                .mode = mode,
                                                .codebook = mode == STRAIT_MODE_RAW ? NULL : device->setup.codebook};
    struct strait_result *result = &lane->batches[0].results[0];
    const struct strait_encode_item in = {
        .src = pages_at(&from, room->page, room), .dst = room->chunk, .dst_capacity = CHUNK_BYTES, .result = result};
    if (codec->encode(device->codec, &params, &in, 1, &run) != STRAIT_OK)
        return cudaErrorLaunchFailure;
    cudaError_t error = cudaStreamSynchronize(lane->stream);
    const struct strait_decode_item out = {
        .dst = pages_at(&to, room->back, room), .src = room->chunk, .src_size = result->bytes, .result = result};
    if (error == cudaSuccess && codec->decode(device->codec, device->setup.codebook, &out, 1, &run) != STRAIT_OK)
        error = cudaErrorLaunchFailure;
    return error == cudaSuccess ? cudaStreamSynchronize(lane->stream) : error;
}

cudaError_t device_warm(struct device *device)
{
    uint8_t *memory = NULL;
    const size_t size = 2 * PAGE_BYTES + CHUNK_BYTES + 16;
    cudaError_t error = cudaMalloc((void **)&memory, size);
    if (error == cudaSuccess)
        error = cudaMemset(memory, 0, size);
    if (error == cudaSuccess)
        error = cudaDeviceSynchronize();
    const struct room room = {.page = memory,
                              .back = memory + PAGE_BYTES,
                              .chunk = memory + 2 * PAGE_BYTES,
                              .id = (uint32_t *)(void *)(memory + 2 * PAGE_BYTES + CHUNK_BYTES)};
    if (error == cudaSuccess)
        error = code(device, STRAIT_MODE_RAW, &room);
    for (int mode = STRAIT_MODE_TOP16; mode <= STRAIT_MODE_TIERED && device->tables != NULL; mode++)
        if (error == cudaSuccess)
            error = code(device, (enum strait_mode)mode, &room);
    cudaFree(memory);
    return error;
}
