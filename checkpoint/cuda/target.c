/* Memory of GPUs as a target of loads: a chunk is copied to the device, which decodes its pages, in place where their
 * values are next to one another. */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/batch.h"
#include "checkpoint/cuda/cuda.h"

#define STAGE_BYTES     (8u << 20)
#define STAGE_ALIGNMENT 64u

struct loader {
    struct place place;
    struct room chunk; /* of the device */
    struct room stage;
    uint64_t stage_used;
    struct room told; /* pinned: the result, then for each page its status and its number in the chunk */
    struct batches batches;
};

static void *cuda_open(void)
{
    return calloc(1, sizeof(struct loader));
}

static void free_rooms(struct loader *loader)
{
    (void)cudaFree(loader->chunk.memory);
    (void)cudaFree(loader->stage.memory);
    loader->chunk = loader->stage = (struct room){0};
}

static void cuda_close(void *state)
{
    struct loader *loader = state;
    free_rooms(loader);
    place_leave(&loader->place);
    (void)cudaFreeHost(loader->told.memory);
    batches_fini(&loader->batches);
    free(loader);
}

/* ---- Pages ------------------------------------------------------------------------------------------------------- */

static enum strait_status cuda_decode(void *state, struct batch *batch, const struct chunk_work *work)
{
    struct loader *loader = state;
    const uint64_t told_bytes = sizeof(struct strait_result) + batch->pages * (sizeof(int32_t) + sizeof(uint32_t));
    if (room_pinned(&loader->told, told_bytes) != cudaSuccess)
        return STRAIT_ERR_NO_MEMORY;
    struct strait_result *result = loader->told.memory;
    int32_t *status = (int32_t *)(result + 1);
    uint32_t *select = (uint32_t *)(status + batch->pages);
    memcpy(select, batch->select, batch->pages * sizeof(*select));
    const struct strait_decode_item item = {.dst = {batch->regions, NULL, batch->pages, 1},
                                            .select = select,
                                            .src = loader->chunk.memory,
                                            .src_size = work->info.chunk_bytes,
                                            .result = result,
                                            .page_status = status,
                                            .page_status_count = batch->pages};
    struct place *place = &loader->place;
    const cudaError_t error = room_device(&place->scratch, strait_decode_scratch_size(place->codec, &item, 1));
    if (error != cudaSuccess)
        return cuda_told((struct encoder_text){NULL, 0}, "", error);
    const struct strait_run run = {.size = sizeof(run),
                                   .scratch = place->scratch.memory,
                                   .scratch_size = place->scratch.bytes,
                                   .stream = (struct CUstream_st *)place->stream};
    result->status = result->chunk_status = STRAIT_ERR_DEVICE;
    const enum strait_status refused = strait_decode_batch(place->codec, NULL, &item, 1, &run);
    if (refused != STRAIT_OK)
        return refused;
    if (place_wait(place) != cudaSuccess)
        return STRAIT_ERR_DEVICE;
    for (uint32_t p = 0; p < batch->pages; p++)
        batch->status[p] = result->chunk_status != STRAIT_OK ? result->chunk_status : status[p];
    return STRAIT_OK;
}

static enum strait_status cuda_place(void *state, const struct delivery *delivery, const uint8_t *page)
{
    struct loader *loader = state;
    struct walk walk;
    delivery_walk(&walk, delivery);
    const cudaError_t error = kernel_place(&walk, delivery->first, delivery->end, page + delivery->source->first_byte,
                                           delivery->shard != delivery->source, loader->place.stream);
    return error == cudaSuccess ? STRAIT_OK : STRAIT_ERR_DEVICE;
}

static uint8_t *cuda_stage(void *state, uint32_t page_bytes)
{
    struct loader *loader = state;
    if (loader->stage_used > 0 && loader->stage_used + page_bytes > loader->stage.bytes)
        return NULL;
    if (room_device(&loader->stage, page_bytes > STAGE_BYTES ? page_bytes : STAGE_BYTES) != cudaSuccess)
        return NULL;
    uint8_t *place = (uint8_t *)loader->stage.memory + loader->stage_used;
    loader->stage_used += (page_bytes + STAGE_ALIGNMENT - 1) / STAGE_ALIGNMENT * STAGE_ALIGNMENT;
    return place;
}

/* What is placed from it is on the same stream as what comes into it next. */
static void cuda_stage_empty(void *state)
{
    struct loader *loader = state;
    loader->stage_used = 0;
}

static void fail(struct chunk_work *work, enum strait_status status)
{
    for (uint32_t d = 0; d < work->count; d++)
        work->deliveries[d].status = status;
}

/* Of values that all go to one device. */
static void deliver_to_one(struct loader *loader, struct chunk_work *work)
{
    static const struct batch_ops ops = {cuda_decode, cuda_place, cuda_stage, cuda_stage_empty};
    const struct encoder_text unheard = {NULL, 0};
    bool moved = false;
    const enum strait_status status =
        place_take(&loader->place, work->deliveries[0].memory->data, STREAM_HIGH, &moved, unheard);
    if (status != STRAIT_OK) {
        fail(work, status);
        return;
    }
    if (moved)
        free_rooms(loader);
    const uint64_t bytes = work->info.chunk_bytes;
    const cudaError_t error = room_device(&loader->chunk, bytes);
    if (error != cudaSuccess) {
        fail(work, cuda_told(unheard, "", error));
        return;
    }
    if (cudaMemcpyAsync(loader->chunk.memory, work->chunk, bytes, cudaMemcpyHostToDevice, loader->place.stream) !=
        cudaSuccess) {
        fail(work, STRAIT_ERR_DEVICE);
        return;
    }
    batches_run(&loader->batches, &ops, loader, work);
    if (place_wait(&loader->place) != cudaSuccess) /* what was placed last */
        fail(work, STRAIT_ERR_DEVICE);
}

/* Gives the deliveries to the device of the first one that has none yet; the others stay. Returns how many went. */
static uint32_t deliver_some(struct loader *loader, const struct chunk_work *work, struct delivery *some, bool *given)
{
    struct chunk_work part = *work;
    int device = -1;
    part.deliveries = some;
    part.count = 0;
    for (uint32_t d = 0; d < work->count; d++) {
        const int its = given[d] ? -1 : device_of(work->deliveries[d].memory->data);
        if (given[d] || (part.count > 0 && its != device))
            continue;
        device = its;
        some[part.count++] = work->deliveries[d];
    }
    deliver_to_one(loader, &part);
    for (uint32_t d = 0, p = 0; p < part.count; d++)
        if (!given[d] && device_of(work->deliveries[d].memory->data) == device) {
            work->deliveries[d].status = some[p++].status;
            given[d] = true;
        }
    return part.count;
}

static bool one_device(const struct chunk_work *work)
{
    const int device = device_of(work->deliveries[0].memory->data);
    for (uint32_t d = 1; d < work->count; d++)
        if (work->deliveries[d].memory != work->deliveries[d - 1].memory &&
            device_of(work->deliveries[d].memory->data) != device)
            return false;
    return true;
}

static void cuda_deliver(void *state, struct chunk_work *work)
{
    if (one_device(work)) {
        deliver_to_one(state, work);
        return;
    }
    struct delivery *some = malloc(work->count * sizeof(*some));
    bool *given = calloc(work->count, sizeof(*given));
    if (some == NULL || given == NULL)
        fail(work, STRAIT_ERR_NO_MEMORY);
    else
        for (uint32_t done = 0; done < work->count;)
            done += deliver_some(state, work, some, given);
    free(some);
    free(given);
}

const struct target target_cuda = {.open = cuda_open, .close = cuda_close, .deliver = cuda_deliver};
