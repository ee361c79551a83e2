#include <stdio.h>

#include "checkpoint/cuda/cuda.h"

enum strait_status cuda_told(struct encoder_text told, const char *what, cudaError_t error)
{
    if (told.size > 0)
        snprintf(told.text, told.size, "%s: %s", what, cudaGetErrorString(error));
    return error == cudaErrorMemoryAllocation ? STRAIT_ERR_NO_MEMORY : STRAIT_ERR_DEVICE;
}

/* Returns an error that has been dealt with, which the thread's next launch would report otherwise. */
static cudaError_t forget(cudaError_t error)
{
    (void)cudaGetLastError();
    return error;
}

static cudaError_t enter(struct place *place, bool low)
{
    int least, greatest;
    cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (error == cudaSuccess)
        error = cudaStreamCreateWithPriority(&place->stream, cudaStreamNonBlocking, low ? least : 0);
    if (error == cudaSuccess)
        error = cudaEventCreateWithFlags(&place->done, cudaEventDisableTiming | cudaEventBlockingSync);
    return error;
}

int device_of(const void *data)
{
    struct cudaPointerAttributes about;
    const cudaError_t error = cudaPointerGetAttributes(&about, data);
    if (error != cudaSuccess) {
        forget(error);
        return -1;
    }
    return about.type == cudaMemoryTypeDevice || about.type == cudaMemoryTypeManaged ? about.device : -1;
}

enum strait_status place_take(struct place *place, const void *data, bool low, bool *moved, struct encoder_text told)
{
    const int device = device_of(data);
    if (device < 0) {
        if (told.size > 0)
            snprintf(told.text, told.size, "%p is not memory of a GPU", data);
        return STRAIT_ERR_INVALID;
    }
    *moved = place->codec == NULL || place->device != device;
    if (!*moved)
        return STRAIT_OK;
    place_leave(place);
    cudaError_t error = cudaSetDevice(device);
    if (error != cudaSuccess)
        return cuda_told(told, "cudaSetDevice", error);
    const struct strait_codec *codec = strait_codec_get("cuda");
    if (codec == NULL) {
        if (told.size > 0)
            snprintf(told.text, told.size, "GPU %d: no libstrait-cuda with kernels for it", device);
        return STRAIT_ERR_UNSUPPORTED;
    }
    place->device = device;
    place->codec = codec;
    error = enter(place, low);
    if (error == cudaSuccess)
        return STRAIT_OK;
    place_leave(place);
    return cuda_told(told, "a stream", error);
}

void place_leave(struct place *place)
{
    if (place->codec == NULL)
        return;
    if (place->stream != NULL)
        (void)cudaStreamDestroy(place->stream);
    if (place->done != NULL)
        (void)cudaEventDestroy(place->done);
    (void)cudaFree(place->scratch.memory);
    *place = (struct place){0};
}

cudaError_t place_wait(struct place *place)
{
    const cudaError_t error = cudaEventRecord(place->done, place->stream);
    return error == cudaSuccess ? cudaEventSynchronize(place->done) : error;
}

cudaError_t room_device(struct room *room, uint64_t bytes)
{
    if (bytes <= room->bytes)
        return cudaSuccess;
    (void)cudaFree(room->memory);
    *room = (struct room){0};
    cudaError_t error = cudaMalloc(&room->memory, bytes);
    if (error == cudaSuccess)
        error = cudaMemset(room->memory, 0, bytes);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(NULL); /* the place's stream does not wait for it */
    room->bytes = error == cudaSuccess ? bytes : 0;
    return error == cudaSuccess ? cudaSuccess : forget(error);
}

cudaError_t room_pinned(struct room *room, uint64_t bytes)
{
    if (bytes <= room->bytes)
        return cudaSuccess;
    (void)cudaFreeHost(room->memory);
    *room = (struct room){0};
    const cudaError_t error = cudaHostAlloc(&room->memory, bytes, cudaHostAllocPortable);
    room->bytes = error == cudaSuccess ? bytes : 0;
    return error == cudaSuccess ? cudaSuccess : forget(error);
}
