/* Tasks of one direction, as launches. */
#include <string.h>

#include "daemon/device/cuda/cuda.h"

#define SCRATCH_FIXED (1u << 20)
#define BATCH_BYTES   (4u << 20) /* of pages: so much keeps the bus busy, and more would keep its first chunk waiting */
#define FAR_BYTES     (16u << 20) /* the same between GPUs, where a launch costs more than it does on the bus */

/* ---- Life -------------------------------------------------------------------------------------------------------- */

static cudaError_t batch_init(struct device *device, struct batch *batch)
{
    size_t stats = device->table_count <= TABLES_MAX ? device->table_count * sizeof(batch->stats[0]) : 0;
    cudaError_t error = cudaEventCreateWithFlags(&batch->over, cudaEventDisableTiming);
    if (error == cudaSuccess)
        error = cudaHostAlloc((void **)&batch->staged, device->staging_size, cudaHostAllocDefault);
    if (error == cudaSuccess)
        error = cudaMalloc((void **)&batch->staging, device->staging_size);
    if (error == cudaSuccess)
        error = cudaHostAlloc((void **)&batch->results, BATCH_TASKS * sizeof(batch->results[0]), cudaHostAllocMapped);
    if (error == cudaSuccess && stats != 0)
        error = cudaHostAlloc((void **)&batch->stats, stats, cudaHostAllocDefault);
    if (error == cudaSuccess && stats != 0)
        error = cudaMalloc((void **)&batch->counters, stats);
    return error;
}

/* Every block costs 32 bytes of scratch, and a page at least 20 bytes of its chunk: twice a slot is enough for one. Of
 * a far one there are fewer: FAR_PAGES_MAX, and one for every 8 KiB. */
cudaError_t lane_init(struct device *device, struct lane *lane)
{
    lane->waiting_end = &lane->waiting;
    lane->scratch_size = 2 * (size_t)device->setup.slot_bytes + FAR_PAGES_MAX * 64u +
                         (size_t)device->setup.far_bytes / 128 + SCRATCH_FIXED;
    cudaError_t error = cudaStreamCreateWithFlags(&lane->stream, cudaStreamNonBlocking);
    if (error == cudaSuccess)
        error = cudaMalloc((void **)&lane->scratch, lane->scratch_size);
    if (error == cudaSuccess)
        error = cudaMemset(lane->scratch, 0, lane->scratch_size);
    for (uint32_t i = 0; i < LANE_BATCHES && error == cudaSuccess; i++)
        error = batch_init(device, &lane->batches[i]);
    return error == cudaSuccess ? cudaDeviceSynchronize() : error;
}

void lane_fini(struct lane *lane)
{
    for (uint32_t i = 0; i < LANE_BATCHES; i++) {
        struct batch *batch = &lane->batches[i];
        if (batch->over != NULL)
            cudaEventDestroy(batch->over);
        cudaFreeHost(batch->staged);
        cudaFree(batch->staging);
        cudaFreeHost(batch->results);
        cudaFreeHost(batch->stats);
        cudaFree(batch->counters);
    }
    cudaFree(lane->scratch);
    if (lane->stream != NULL)
        cudaStreamDestroy(lane->stream);
}

/* ---- Choosing ---------------------------------------------------------------------------------------------------- */

static size_t rounded(size_t size)
{
    return (size + 15) & ~(size_t)15;
}

static size_t staged_size(const struct device_task *task)
{
    size_t fetch = task->far && task->work == DEVICE_DECODE ? sizeof(struct fetch) : 0;
    return rounded(task->pages.id_count * sizeof(uint32_t)) + rounded(task->metadata_size) + fetch;
}

static uint64_t raw_bytes(const struct device_task *task)
{
    uint64_t bytes = 0;
    for (uint32_t r = 0; r < task->pages.region_count; r++)
        bytes += (uint64_t)task->pages.regions[r].rows * task->pages.regions[r].row_bytes;
    return bytes * task->pages.id_count;
}

static void finish(struct device *device, struct device_task *task, enum strait_status status)
{
    task->status = status;
    device->setup.done(device->setup.owner, task);
}

/* What an honest peer asks for fits: a slot does not hold more pages. */
void lane_add(struct device *device, struct lane *lane, struct device_task *task)
{
    if (staged_size(task) > device->staging_size) {
        finish(device, task, STRAIT_ERR_NO_SPACE);
        return;
    }
    task->next = NULL;
    *lane->waiting_end = task;
    lane->waiting_end = &task->next;
}

static bool is_alike(const struct device_task *a, const struct device_task *b)
{
    return a->far == b->far && (a->work == DEVICE_DECODE || (a->element == b->element && a->mode == b->mode));
}

static bool is_coded(const struct device_task *task)
{
    return task->mode != STRAIT_MODE_RAW && task->element == STRAIT_ELEMENT_BF16;
}

/* Moves tasks that can be launched together from what waits to the batch, in order. */
static void choose(struct device *device, struct lane *lane, struct batch *batch)
{
    size_t staged = 0;
    uint64_t bytes = 0;
    batch->count = 0;
    for (struct device_task **at = &lane->waiting, *task; (task = *at) != NULL;) {
        bool fits = batch->count < BATCH_TASKS && staged + staged_size(task) <= device->staging_size &&
                    bytes + raw_bytes(task) <= (task->far ? FAR_BYTES : BATCH_BYTES);
        if (batch->count > 0 && (!fits || !is_alike(task, batch->tasks[0]))) {
            at = &task->next;
            continue;
        }
        *at = task->next;
        staged += staged_size(task);
        bytes += raw_bytes(task);
        batch->tasks[batch->count++] = task;
        if (*at == NULL)
            lane->waiting_end = at;
    }
}

/* Puts the last ones back to the front of what waits. */
static void put_back(struct lane *lane, struct batch *batch, uint32_t keep)
{
    while (batch->count > keep) {
        struct device_task *task = batch->tasks[--batch->count];
        task->next = lane->waiting;
        if (lane->waiting == NULL)
            lane->waiting_end = &task->next;
        lane->waiting = task;
    }
}

/* ---- Launching --------------------------------------------------------------------------------------------------- */

static void *stage(struct batch *batch, size_t *used, const void *bytes, size_t size)
{
    void *there = batch->staging + *used;
    memcpy(batch->staged + *used, bytes, size);
    *used += rounded(size);
    return there;
}

/* Pages as the device finds them. Neighbours with equal regions share them: they then cost one launch little. */
static struct strait_pages place(struct batch *batch, uint32_t i, const struct strait_pages *before, size_t *used)
{
    struct strait_pages pages = batch->tasks[i]->pages;
    pages.ids = stage(batch, used, pages.ids, pages.id_count * sizeof(uint32_t));
    if (before != NULL && before->region_count == pages.region_count &&
        memcmp(before->regions, pages.regions, pages.region_count * sizeof(pages.regions[0])) == 0)
        pages.regions = before->regions;
    return pages;
}

static struct strait_run run_of(struct device *device, struct lane *lane, struct batch *batch)
{
    return (struct strait_run){.size = sizeof(struct strait_run),
                               .scratch = lane->scratch,
                               .scratch_size = lane->scratch_size,
                               .stream = lane->stream,
                               .class_stats = batch->counts ? batch->counters : NULL,
                               .class_count = batch->counts ? device->table_count : 0,
                               .sm_budget = device->setup.multiprocessors,
                               .tables = device->tables};
}

/* Enqueues what every batch begins with. */
static cudaError_t send_staged(struct lane *lane, struct batch *batch, size_t used)
{
    return cudaMemcpyAsync(batch->staging, batch->staged, used, cudaMemcpyHostToDevice, lane->stream);
}

static enum strait_status encode(struct device *device, struct lane *lane, struct batch *batch, cudaError_t *error)
{
    const struct device_codec *codec = device->setup.codec;
    struct strait_encode_item items[BATCH_TASKS];
    size_t used = 0;
    for (uint32_t i = 0; i < batch->count; i++)
        items[i] = (struct strait_encode_item){.src = place(batch, i, i > 0 ? &items[i - 1].src : NULL, &used),
                                               .dst = batch->tasks[i]->dst,
                                               .dst_capacity = batch->tasks[i]->size,
                                               .result = &batch->results[i]};
    while (batch->count > 1 && codec->encode_scratch(device->codec, items, batch->count) > lane->scratch_size)
        put_back(lane, batch, batch->count / 2);
    const struct device_task *first = batch->tasks[0];
    const struct strait_encode_params params = {.size = sizeof(params),
                                                .element = first->element,
                                                .mode = first->mode,
                                                .codebook = is_coded(first) ? device->setup.codebook : NULL};
    const struct strait_run run = run_of(device, lane, batch);
    *error = send_staged(lane, batch, used);
    if (*error == cudaSuccess && batch->counts)
        *error = cudaMemsetAsync(batch->counters, 0, device->table_count * sizeof(batch->stats[0]), lane->stream);
    return *error != cudaSuccess ? STRAIT_ERR_DEVICE : codec->encode(device->codec, &params, items, batch->count, &run);
}

/* Room for metadata that the device itself copies; behind all that is sent there, so that none of it is. */
static cudaError_t fetch_metadata(struct lane *lane, struct batch *batch, struct strait_decode_item *items,
                                  size_t *used)
{
    struct fetch fetches[BATCH_TASKS] = {0};
    size_t behind = *used + rounded(batch->count * sizeof(fetches[0]));
    if (!batch->tasks[0]->far)
        return send_staged(lane, batch, *used);
    for (uint32_t i = 0; i < batch->count; i++) {
        const struct device_task *task = batch->tasks[i];
        fetches[i] = (struct fetch){.from = task->src,
                                    .to = batch->staging + behind,
                                    .vectors = (uint32_t)(task->metadata_size / 16)};
        memcpy(fetches[i].begins, task->begins, sizeof(fetches[i].begins));
        items[i].metadata = fetches[i].to;
        behind += rounded(task->metadata_size);
    }
    const struct fetch *there = stage(batch, used, fetches, batch->count * sizeof(fetches[0]));
    cudaError_t error = send_staged(lane, batch, *used);
    return error == cudaSuccess ? fetches_launch(there, batch->count, lane->stream) : error;
}

static enum strait_status decode(struct device *device, struct lane *lane, struct batch *batch, cudaError_t *error)
{
    const struct device_codec *codec = device->setup.codec;
    struct strait_decode_item items[BATCH_TASKS];
    size_t used = 0;
    for (uint32_t i = 0; i < batch->count; i++) {
        const struct device_task *task = batch->tasks[i];
        items[i] = (struct strait_decode_item){.dst = place(batch, i, i > 0 ? &items[i - 1].dst : NULL, &used),
                                               .src = task->src,
                                               .src_size = task->size,
                                               .result = &batch->results[i]};
        if (!task->far)
            items[i].metadata = stage(batch, &used, task->metadata, task->metadata_size);
    }
    while (batch->count > 1 && codec->decode_scratch(device->codec, items, batch->count) > lane->scratch_size)
        put_back(lane, batch, batch->count / 2);
    const struct strait_run run = run_of(device, lane, batch);
    *error = fetch_metadata(lane, batch, items, &used);
    return *error != cudaSuccess ? STRAIT_ERR_DEVICE
                                 : codec->decode(device->codec, device->setup.codebook, items, batch->count, &run);
}

/* What the codec refused has not run: only these tasks fail. */
static void launched(struct device *device, struct lane *lane, struct batch *batch, enum strait_status status,
                     cudaError_t error)
{
    if (status == STRAIT_OK && batch->counts)
        error = cudaMemcpyAsync(batch->stats, batch->counters, device->table_count * sizeof(batch->stats[0]),
                                cudaMemcpyDeviceToHost, lane->stream);
    if (status == STRAIT_OK && error == cudaSuccess)
        error = cudaEventRecord(batch->over, lane->stream);
    if (status == STRAIT_ERR_DEVICE || error != cudaSuccess)
        device_fail(device, "launch", error != cudaSuccess ? error : cudaErrorLaunchFailure);
    if (status == STRAIT_OK || status == STRAIT_ERR_DEVICE) {
        lane->running++; /* after a failure too: something of it may run */
        return;
    }
    for (uint32_t i = 0; i < batch->count; i++)
        finish(device, batch->tasks[i], status);
}

void lane_launch(struct device *device, struct lane *lane)
{
    struct batch *batch = &lane->batches[(lane->first + lane->running) % LANE_BATCHES];
    cudaError_t error = cudaSuccess;
    choose(device, lane, batch);
    batch->began = clock_ns();
    batch->counts = batch->counters != NULL && batch->tasks[0]->work == DEVICE_ENCODE && is_coded(batch->tasks[0]);
    for (uint32_t i = 0; i < batch->count; i++)
        batch->results[i] = (struct strait_result){.status = STRAIT_ERR_DEVICE};
    enum strait_status status = batch->tasks[0]->work == DEVICE_ENCODE ? encode(device, lane, batch, &error)
                                                                       : decode(device, lane, batch, &error);
    launched(device, lane, batch, status, error);
}

/* ---- Collecting -------------------------------------------------------------------------------------------------- */

static uint64_t escapes_of(const struct device *device, const struct batch *batch)
{
    uint64_t escapes = 0;
    for (uint32_t t = 0; batch->counts && t < device->table_count; t++)
        escapes += batch->stats[t].escapes;
    return escapes;
}

/* Reports of a batch that has completed. A task may be gone once it was told. */
static void tell(struct device *device, struct lane *lane, struct batch *batch)
{
    uint64_t now = clock_ns(), from = batch->began > lane->last_over ? batch->began : lane->last_over, all = 0;
    uint64_t escapes = escapes_of(device, batch);
    lane->last_over = now;
    for (uint32_t i = 0; i < batch->count; i++)
        all += raw_bytes(batch->tasks[i]);
    for (uint32_t i = 0; i < batch->count; i++) {
        struct device_task *task = batch->tasks[i];
        task->result = batch->results[i];
        task->escapes = i == 0 ? escapes : 0;
        task->queued = batch->began > task->created ? batch->began - task->created : 0;
        task->nanoseconds = (uint64_t)((double)(now - from) * (double)raw_bytes(task) / (double)all);
        finish(device, task, STRAIT_OK);
    }
}

uint64_t lane_load(const struct lane *lane)
{
    uint64_t tasks = 0;
    for (uint32_t i = 0; i < lane->running; i++)
        tasks += lane->batches[(lane->first + i) % LANE_BATCHES].count;
    for (const struct device_task *task = lane->waiting; task != NULL; task = task->next)
        tasks++;
    return tasks;
}

bool lane_collect(struct device *device, struct lane *lane)
{
    struct batch *batch = &lane->batches[lane->first];
    if (device_has_failed(device))
        return false; /* lane_abandon's */
    cudaError_t error = cudaEventQuery(batch->over);
    if (error == cudaErrorNotReady)
        return false;
    if (error != cudaSuccess) {
        device_fail(device, batch->tasks[0]->work == DEVICE_ENCODE ? "encode" : "decode", error);
        return false;
    }
    tell(device, lane, batch);
    lane->first = (lane->first + 1) % LANE_BATCHES;
    lane->running--;
    return true;
}

void lane_abandon(struct device *device, struct lane *lane)
{
    (void)cudaStreamSynchronize(lane->stream); /* nothing of it touches pages any more, whatever it says */
    for (; lane->running > 0; lane->running--) {
        struct batch *batch = &lane->batches[lane->first];
        for (uint32_t i = 0; i < batch->count; i++)
            finish(device, batch->tasks[i], STRAIT_ERR_DEVICE);
        lane->first = (lane->first + 1) % LANE_BATCHES;
    }
    struct device_task *task = lane->waiting, *next;
    lane->waiting = NULL;
    lane->waiting_end = &lane->waiting;
    for (; task != NULL; task = next) {
        next = task->next;
        finish(device, task, STRAIT_ERR_DEVICE);
    }
}
