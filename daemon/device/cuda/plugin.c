#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/device/cuda/cuda.h"
#include "internal/element.h"

/* The driver loads a kernel when it is first launched, which takes milliseconds. A device that is taken into use codes
 * a page in every mode, so that the first transfer does not wait for it. */

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

static cudaError_t code(struct device *device, enum strait_element element, enum strait_mode mode,
                        const struct room *room)
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
                                                .element = element,
                                                .mode = mode,
                                                .codebook =
                                                    element_uses_tables(element, mode) ? device->setup.codebook : NULL};
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

static const struct {
    enum strait_element element;
    enum strait_mode mode;
} ways[] = {
    {STRAIT_ELEMENT_BF16, STRAIT_MODE_RAW},    {STRAIT_ELEMENT_BF16, STRAIT_MODE_TOP16},
    {STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED}, {STRAIT_ELEMENT_BF16, STRAIT_MODE_BASE},
    {STRAIT_ELEMENT_FP16, STRAIT_MODE_BASE},   {STRAIT_ELEMENT_FP16, STRAIT_MODE_SPLIT},
    {STRAIT_ELEMENT_FP32, STRAIT_MODE_BASE},   {STRAIT_ELEMENT_FP32, STRAIT_MODE_SPLIT},
    {STRAIT_ELEMENT_FP16, STRAIT_MODE_PARTS},  {STRAIT_ELEMENT_FP32, STRAIT_MODE_PARTS},
    {STRAIT_ELEMENT_BF16, STRAIT_MODE_PARTS},  {STRAIT_ELEMENT_FP8_E4M3, STRAIT_MODE_BASE},
};

static cudaError_t device_warm(struct device *device)
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
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]) && error == cudaSuccess; i++)
        if (device->tables != NULL || !element_uses_tables(ways[i].element, ways[i].mode))
            error = code(device, ways[i].element, ways[i].mode, &room);
    cudaFree(memory);
    return error;
}

/* Taking a GPU into use, and the plugin's interface to the daemon. */

/* ---- Taking a GPU into use --------------------------------------------------------------------------------------- */

static uint32_t plugin_count(const struct device_why *why)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess)
        (void)refuse_error(why, STRAIT_OK, "no GPU can be used", error);
    else if (count <= 0)
        (void)refuse(why, STRAIT_OK, "no GPU can be used: there is none");
    return error == cudaSuccess && count > 0 ? (uint32_t)count : 0;
}

/* Checks that host memory has the same address for the device, and that the codec has code for it. */
static enum strait_status check_device(struct device *device, const struct device_why *why)
{
    int same = 0;
    cudaError_t error = cudaDeviceGetAttribute(&same, cudaDevAttrCanUseHostPointerForRegisteredMem, device->number);
    if (error != cudaSuccess)
        return refuse_error(why, STRAIT_ERR_DEVICE, "GPU", error);
    device->codec = device->setup.codec->get("cuda");
    if (device->codec == NULL)
        return refuse(why, STRAIT_ERR_UNSUPPORTED,
                      "the codec does not run on GPU %d: no libstrait-cuda.so.0, or none with kernels for this GPU",
                      device->number);
    if (!same)
        return refuse(why, STRAIT_ERR_UNSUPPORTED, "GPU %d cannot use the host's addresses", device->number);
    return STRAIT_OK;
}

static cudaError_t upload_tables(struct device *device)
{
    const struct device_codec *codec = device->setup.codec;
    if (device->setup.codebook == NULL)
        return cudaSuccess;
    size_t size = codec->image_size(device->setup.codebook);
    void *image = malloc(size);
    if (image == NULL)
        return cudaErrorMemoryAllocation;
    cudaError_t error = cudaMalloc(&device->tables, size);
    if (error == cudaSuccess && codec->image(device->setup.codebook, image, size) == STRAIT_OK)
        error = cudaMemcpy(device->tables, image, size, cudaMemcpyHostToDevice);
    free(image);
    device->table_count = codec->tables(device->setup.codebook);
    return error;
}

static void release(struct device *device)
{
    for (uint32_t i = 0; i < LANES; i++)
        lane_fini(&device->lanes[i]);
    stage_fini(&device->out);
    stage_fini(&device->in);
    copier_fini(&device->copier);
    cudaFree(device->tables);
    (void)cudaGetLastError();
    pthread_mutex_destroy(&device->lock);
    pthread_cond_destroy(&device->work);
    pthread_cond_destroy(&device->events);
    free(device);
}

/* Metadata is part of a chunk and so no longer than a slot, and has at least 20 bytes for every page; an id has 4. A
 * GPU chunk's has 20 bytes for every page and 4 for every other block, and at most GPU_CHUNK_PAGES_MAX pages. */
static size_t staging_size(const struct device_setup *setup)
{
    size_t near = (size_t)setup->slot_bytes / 4 * 5 + 65536;
    size_t on_gpu = GPU_CHUNK_PAGES_MAX * 24u + (size_t)setup->gpu_chunk_bytes / 1024 + 65536;
    return near > on_gpu ? near : on_gpu;
}

/* Half of the multiprocessors keep a link busy. The others are left for decoders, which would otherwise wait while
 * chunks cross. */
static cudaError_t count_multiprocessors(struct device *device)
{
    int all = (int)device->setup.multiprocessors;
    cudaError_t error =
        all > 0 ? cudaSuccess : cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, device->number);
    device->peer_multiprocessors = all > 1 ? (uint32_t)all / 2 : 1;
    return error;
}

static enum strait_status prepare(struct device *device, const struct device_why *why)
{
    const size_t near = (size_t)device->setup.slot_bytes;
    device->staging_size = staging_size(&device->setup);
    cudaError_t error = count_multiprocessors(device);
    if (error == cudaSuccess)
        error = upload_tables(device);
    for (uint32_t i = 0; i < LANES && error == cudaSuccess; i++)
        error = lane_init(device, &device->lanes[i]);
    if (error == cudaSuccess)
        error = stage_init(&device->out, near);
    if (error == cudaSuccess)
        error = stage_init(&device->in, near);
    if (error == cudaSuccess)
        error = copier_init(&device->copier);
    if (error == cudaSuccess)
        error = device_warm(device);
    return error == cudaSuccess ? STRAIT_OK : refuse_error(why, STRAIT_ERR_DEVICE, "memory for the GPU's work", error);
}

static enum strait_status start_threads(struct device *device, const struct device_why *why)
{
    if (pthread_create(&device->coder, NULL, coder_run, device) != 0)
        return refuse(why, STRAIT_ERR_NO_MEMORY, "no thread for the GPU");
    if (pthread_create(&device->waiter, NULL, waiter_run, device) == 0)
        return STRAIT_OK;
    pthread_mutex_lock(&device->lock);
    device->closing = true;
    pthread_cond_signal(&device->work);
    pthread_mutex_unlock(&device->lock);
    pthread_join(device->coder, NULL);
    return refuse(why, STRAIT_ERR_NO_MEMORY, "no thread for the GPU");
}

static enum strait_status open_device(const struct device_setup *setup, int32_t number, struct device **device,
                                      const struct device_why *why)
{
    if (process_is_broken(number, why))
        return STRAIT_ERR_DEVICE;
    cudaError_t error = cudaSetDevice(number);
    if (error == cudaSuccess)
        error = cudaFree(NULL); /* makes the context */
    if (error != cudaSuccess)
        return refuse_error(why, STRAIT_ERR_DEVICE, "the GPU cannot be used", error);
    struct device *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return refuse(why, STRAIT_ERR_NO_MEMORY, "no memory");
    made->setup = *setup;
    made->number = number;
    made->submitted_end = &made->submitted;
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->work, NULL);
    pthread_cond_init(&made->events, NULL);
    pthread_mutex_init(&made->copier.lock, NULL);
    enum strait_status status = check_device(made, why);
    if (status == STRAIT_OK)
        status = prepare(made, why);
    if (status == STRAIT_OK)
        status = start_threads(made, why);
    if (status != STRAIT_OK) {
        release(made);
        return status;
    }
    memory_use_device(number);
    process_enter(made);
    *device = made;
    return STRAIT_OK;
}

/* Another GPU may have failed without anybody having asked it since. */
static enum strait_status plugin_open(const struct device_setup *setup, int32_t number, struct device **device,
                                      const struct device_why *why)
{
    enum strait_status status = open_device(setup, number, device, why);
    return status != STRAIT_OK && process_is_sick(number, "taking a GPU into use", why) ? STRAIT_ERR_DEVICE : status;
}

static void plugin_close(struct device *device)
{
    process_leave(device);
    pthread_mutex_lock(&device->lock);
    device->closing = true;
    pthread_cond_signal(&device->work);
    pthread_cond_signal(&device->events);
    pthread_mutex_unlock(&device->lock);
    pthread_join(device->coder, NULL);
    pthread_join(device->waiter, NULL);
    cudaSetDevice(device->number);
    release(device);
}

/* ---- Tasks ------------------------------------------------------------------------------------------------------- */

static void plugin_submit(struct device *device, struct device_task *first)
{
    struct device_task *next;
    pthread_mutex_lock(&device->lock);
    for (struct device_task *task = first; task != NULL; task = next) {
        next = task->next;
        if (task->work == DEVICE_READY) {
            task->next = device->awaited;
            device->awaited = task;
            continue;
        }
        task->next = NULL;
        *device->submitted_end = task;
        device->submitted_end = &task->next;
    }
    if (device->submitted != NULL)
        pthread_cond_signal(&device->work);
    if (device->awaited != NULL)
        pthread_cond_signal(&device->events);
    pthread_mutex_unlock(&device->lock);
}

static void plugin_wake(struct device *device)
{
    pthread_mutex_lock(&device->lock);
    device->woken = true;
    pthread_cond_signal(&device->work);
    pthread_mutex_unlock(&device->lock);
}

static const struct device_ops ops = {.version = DEVICE_VERSION,
                                      .count = plugin_count,
                                      .open = plugin_open,
                                      .close = plugin_close,
                                      .submit = plugin_submit,
                                      .wake = plugin_wake,
                                      .failure = device_failure,
                                      .map = memory_map,
                                      .reach = memory_reach,
                                      .unmap = memory_unmap,
                                      .arena = memory_arena,
                                      .arena_free = memory_arena_free,
                                      .pin = memory_pin,
                                      .unpin = memory_unpin,
                                      .copy = copy_pages};

extern const struct device_ops *strait_node_device_ops(void);
__attribute__((visibility("default"))) const struct device_ops *strait_node_device_ops(void)
{
    return &ops;
}
