/* Launches the tasks of one direction, in batches. */
#include <string.h>

#include "daemon/device/cuda/cuda.h"

#define SCRATCH_FIXED (1u << 20)
#define BATCH_BYTES   (4u << 20)  /* bytes of pages: keeps the bus busy; with more, its first chunk would wait longer */
#define FAR_BYTES     (64u << 20) /* the same for chunks that another GPU sent: nothing waits for the first of them */
#define AWAY_BYTES                                                                                                    \
    (128u << 20) /* for chunks stored into another GPU: results come one by one, and the launch takes the link's time \
                  */
#define LINK_BYTES (17u << 20) /* for chunks that another library sends: it waits for the first of them */

/* ---- Life -------------------------------------------------------------------------------------------------------- */

static cudaError_t batch_init(struct device *device, struct batch *batch)
{
    cudaError_t error = cudaEventCreateWithFlags(&batch->over, cudaEventDisableTiming);
    if (error == cudaSuccess)
        error = cudaHostAlloc((void **)&batch->staged, device->staging_size, cudaHostAllocMapped);
    if (error == cudaSuccess)
        error = cudaMalloc((void **)&batch->staging, device->staging_size);
    if (error == cudaSuccess)
        error = cudaHostAlloc((void **)&batch->results, BATCH_TASKS * sizeof(batch->results[0]), cudaHostAllocMapped);
    return error;
}

/* Decoders get the higher priority: an encoder for a link takes the link's time anyway. */
static cudaError_t make_stream(const struct device *device, struct lane *lane)
{
    const bool decodes = lane >= device->lanes + ENCODE_LANES;
    int least = 0, greatest = 0;
    cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    return error != cudaSuccess
               ? error
               : cudaStreamCreateWithPriority(&lane->stream, cudaStreamNonBlocking, decodes ? greatest : least);
}

/* Every block costs 40 bytes of scratch and every page at least 20 bytes of its chunk, so twice a slot is enough for a
 * near chunk. Far chunks have fewer blocks: FAR_PAGES_MAX, and one for every 8 KiB. */
cudaError_t lane_init(struct device *device, struct lane *lane)
{
    lane->waiting_end = &lane->waiting;
    lane->scratch_size = 2 * (size_t)device->setup.slot_bytes + FAR_PAGES_MAX * 64u +
                         (size_t)device->setup.far_bytes / 128 + SCRATCH_FIXED;
    cudaError_t error = make_stream(device, lane);
    if (error == cudaSuccess)
        error = cudaMalloc((void **)&lane->scratch, lane->scratch_size);
    if (error == cudaSuccess)
        error = cudaMemset(lane->scratch, 0, lane->scratch_size);
    for (uint32_t i = 0; i < LANE_BATCHES && error == cudaSuccess; i++)
        error = batch_init(device, &lane->batches[i]);
    if (error == cudaSuccess)
        error = escapes_init(&lane->escapes, device->table_count);
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
    }
    escapes_fini(&lane->escapes);
    cudaFree(lane->scratch);
    if (lane->stream != NULL)
        cudaStreamDestroy(lane->stream);
}

/* ---- Choosing ---------------------------------------------------------------------------------------------------- */

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t rounded(size_t size)
{
    return (size + 15) & ~(size_t)15;
}

static size_t staged_size(const struct device_task *task)
{
    return rounded(task->pages.id_count * sizeof(uint32_t)) + rounded(task->metadata_size);
}

/* An honest peer's task fits: a slot does not hold more pages. */
void lane_add(struct device *device, struct lane *lane, struct device_task *task)
{
    if (staged_size(task) > device->staging_size) {
        task_fail(device, task, STRAIT_ERR_NO_SPACE);
        return;
    }
    task->next = NULL;
    *lane->waiting_end = task;
    lane->waiting_end = &task->next;
}

static bool is_alike(const struct device_task *a, const struct device_task *b)
{
    return a->far == b->far && a->away == b->away &&
           (a->work == DEVICE_DECODE || (a->element == b->element && a->mode == b->mode));
}

static bool is_coded(const struct device_task *task)
{
    return task->mode != STRAIT_MODE_RAW && task->element == STRAIT_ELEMENT_BF16;
}

/* The stage in which the task's chunk is coded; NULL: it is coded in place. */
static struct stage *stage_of(struct device *device, const struct device_task *task)
{
    if (task->far)
        return NULL;
    return task->work == DEVICE_ENCODE ? &device->out : &device->in;
}

static uint64_t most_bytes(const struct device_task *task)
{
    if (!task->far)
        return BATCH_BYTES;
    if (task->work == DEVICE_DECODE)
        return FAR_BYTES;
    return task->away ? AWAY_BYTES : LINK_BYTES;
}

/* Moves waiting tasks that can be launched together to the batch, in order. */
static void choose(struct device *device, struct lane *lane, struct batch *batch)
{
    size_t staged = 0;
    uint64_t bytes = 0;
    batch->count = 0;
    for (struct device_task **at = &lane->waiting, *task; (task = *at) != NULL;) {
        struct stage *on = stage_of(device, task);
        bool fits = batch->count < BATCH_TASKS && (on == NULL || on->taken < STAGE_SLOTS) &&
                    staged + staged_size(task) <= device->staging_size && bytes + task_bytes(task) <= most_bytes(task);
        if (batch->count > 0 && (!fits || !is_alike(task, batch->tasks[0]))) {
            at = &task->next;
            continue;
        }
        *at = task->next;
        staged += staged_size(task);
        bytes += task_bytes(task);
        batch->slots[batch->count] = on != NULL ? stage_take(on) : NULL;
        batch->tasks[batch->count++] = task;
        if (*at == NULL)
            lane->waiting_end = at;
    }
}

/* Puts the last tasks of the batch back to the front of the waiting ones. */
static void put_back(struct device *device, struct lane *lane, struct batch *batch, uint32_t keep)
{
    while (batch->count > keep) {
        struct device_task *task = batch->tasks[--batch->count];
        if (batch->slots[batch->count] != NULL)
            stage_give(stage_of(device, task), batch->slots[batch->count]);
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

/* The task's pages with ids staged for the device. Neighbours with equal regions share them, which makes them cheap to
 * launch together. An encoder for a link has the time to read ids from host memory, and so begins sooner. */
static struct strait_pages place(struct batch *batch, uint32_t i, const struct strait_pages *before, size_t *used)
{
    const bool away = batch->tasks[i]->away;
    struct strait_pages pages = batch->tasks[i]->pages;
    const uint8_t *host = batch->staged + *used,
                  *there = stage(batch, used, pages.ids, pages.id_count * sizeof(uint32_t));
    pages.ids = (const uint32_t *)(away ? host : there);
    if (before != NULL && before->region_count == pages.region_count &&
        memcmp(before->regions, pages.regions, pages.region_count * sizeof(pages.regions[0])) == 0)
        pages.regions = before->regions;
    return pages;
}

static struct strait_run run_of(struct device *device, struct lane *lane, const struct batch *batch)
{
    bool counts = lane->escapes.counters != NULL && batch->tasks[0]->work == DEVICE_ENCODE && is_coded(batch->tasks[0]);
    const bool away = batch->tasks[0]->away;
    lane->escapes.counted |= counts;
    return (struct strait_run){.size = sizeof(struct strait_run),
                               .scratch = lane->scratch,
                               .scratch_size = lane->scratch_size,
                               .stream = lane->stream,
                               .class_stats = counts ? lane->escapes.counters : NULL,
                               .class_count = counts ? device->table_count : 0,
                               .caching = away ? STRAIT_CACHING_LINK : STRAIT_CACHING_AUTO,
                               .sm_budget = away ? device->away_multiprocessors : device->setup.multiprocessors,
                               .tables = device->tables};
}

/* Copies what has been staged; on the device there is room behind it. */
static struct prepare prepare_staged(const struct batch *batch, size_t used)
{
    return (struct prepare){.from = batch->staged, .to = batch->staging, .vectors = (uint32_t)(used / 16)};
}

static enum strait_status encode(struct device *device, struct lane *lane, struct batch *batch, cudaError_t *error)
{
    const struct device_codec *codec = device->setup.codec;
    struct strait_encode_item items[BATCH_TASKS];
    size_t used = 0;
    for (uint32_t i = 0; i < batch->count; i++) {
        const struct device_task *task = batch->tasks[i];
        items[i] = (struct strait_encode_item){.src = place(batch, i, i > 0 ? &items[i - 1].src : NULL, &used),
                                               .dst = task->far ? task->dst : batch->slots[i]->memory,
                                               .dst_capacity =
                                                   task->far ? task->size : least(task->size, device->out.slot_bytes),
                                               .result = &batch->results[i]};
    }
    while (batch->count > 1 && codec->encode_scratch(device->codec, items, batch->count) > lane->scratch_size)
        put_back(device, lane, batch, batch->count / 2);
    const struct device_task *first = batch->tasks[0];
    const struct strait_encode_params params = {.size = sizeof(params),
                                                .element = first->element,
                                                .mode = first->mode,
                                                .codebook = is_coded(first) ? device->setup.codebook : NULL};
    const struct strait_run run = run_of(device, lane, batch);
    const struct prepare prepare = prepare_staged(batch, used);
    if (!first->away)
        *error = prepare_launch(&prepare, lane->stream);
    return *error != cudaSuccess ? STRAIT_ERR_DEVICE : codec->encode(device->codec, &params, items, batch->count, &run);
}

/* Metadata that the device copies itself goes behind what is staged. */
static struct prepare prepare_far(const struct batch *batch, struct strait_decode_item *items, size_t used)
{
    struct prepare prepare = prepare_staged(batch, used);
    for (uint32_t i = 0; i < batch->count; i++) {
        const struct device_task *task = batch->tasks[i];
        struct fetch *fetch = &prepare.fetches[prepare.fetch_count++];
        *fetch = (struct fetch){
            .from = task->src, .to = batch->staging + used, .vectors = (uint32_t)(task->metadata_size / 16)};
        memcpy(fetch->begins, task->begins, sizeof(fetch->begins));
        items[i].metadata = fetch->to;
        used += rounded(task->metadata_size);
    }
    return prepare;
}

static enum strait_status decode(struct device *device, struct lane *lane, struct batch *batch, cudaError_t *error)
{
    const struct device_codec *codec = device->setup.codec;
    struct strait_decode_item items[BATCH_TASKS];
    size_t used = 0;
    for (uint32_t i = 0; i < batch->count; i++) {
        const struct device_task *task = batch->tasks[i];
        items[i] = (struct strait_decode_item){.dst = place(batch, i, i > 0 ? &items[i - 1].dst : NULL, &used),
                                               .src = task->far ? task->src : batch->slots[i]->memory,
                                               .src_size = task->size,
                                               .result = &batch->results[i]};
        if (!task->far)
            items[i].metadata = stage(batch, &used, task->metadata, task->metadata_size);
    }
    while (batch->count > 1 && codec->decode_scratch(device->codec, items, batch->count) > lane->scratch_size)
        put_back(device, lane, batch, batch->count / 2);
    const struct strait_run run = run_of(device, lane, batch);
    const struct prepare prepare = batch->tasks[0]->far ? prepare_far(batch, items, used) : prepare_staged(batch, used);
    for (uint32_t i = 0; i < batch->count && *error == cudaSuccess; i++)
        if (batch->slots[i] != NULL)
            *error = stage_fetch(&device->in, batch->slots[i], batch->tasks[i], lane->stream);
    if (*error == cudaSuccess)
        *error = prepare_launch(&prepare, lane->stream);
    return *error != cudaSuccess ? STRAIT_ERR_DEVICE
                                 : codec->decode(device->codec, device->setup.codebook, items, batch->count, &run);
}

/* What the codec refused has not run: only these tasks fail. Their chunks may still be on their way to the stage. */
static void launched(struct device *device, struct lane *lane, struct batch *batch, enum strait_status status,
                     cudaError_t error)
{
    if (status == STRAIT_OK && error == cudaSuccess)
        error = cudaEventRecord(batch->over, lane->stream);
    if (status == STRAIT_ERR_DEVICE || error != cudaSuccess)
        device_fail(device, "launch", error);
    if (status == STRAIT_OK || status == STRAIT_ERR_DEVICE) {
        lane->running++; /* after a failure too: part of it may run */
        return;
    }
    for (uint32_t i = 0; i < batch->count; i++) {
        if (batch->slots[i] != NULL && batch->tasks[i]->work == DEVICE_DECODE)
            (void)cudaEventSynchronize(batch->slots[i]->copied);
        if (batch->slots[i] != NULL)
            stage_give(stage_of(device, batch->tasks[i]), batch->slots[i]);
        task_fail(device, batch->tasks[i], status);
    }
}

/* A small launch would delay a large one: while a far batch is being decoded, wait for more tasks. */
bool lane_may_launch(struct device *device, const struct lane *lane)
{
    uint64_t bytes = 0;
    if (lane->waiting == NULL || lane->running == LANE_BATCHES)
        return false;
    const struct stage *on = stage_of(device, lane->waiting);
    if (on != NULL && on->taken == STAGE_SLOTS)
        return false;
    if (!lane->waiting->far || lane->waiting->work == DEVICE_ENCODE || lane->running == 0)
        return true;
    for (const struct device_task *task = lane->waiting; task != NULL && bytes < FAR_BYTES / 2; task = task->next)
        bytes += task_bytes(task);
    return bytes >= FAR_BYTES / 2;
}

void lane_launch(struct device *device, struct lane *lane)
{
    struct batch *batch = &lane->batches[(lane->first + lane->running) % LANE_BATCHES];
    cudaError_t error = cudaSuccess;
    choose(device, lane, batch);
    batch->began = clock_ns();
    batch->told = 0;
    for (uint32_t i = 0; i < batch->count; i++)
        batch->results[i] = (struct strait_result){.status = STRAIT_ERR_DEVICE};
    enum strait_status status = batch->tasks[0]->work == DEVICE_ENCODE ? encode(device, lane, batch, &error)
                                                                       : decode(device, lane, batch, &error);
    launched(device, lane, batch, status, error);
}
