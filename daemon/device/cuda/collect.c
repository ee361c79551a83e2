/* Collects the results of launches. */
#include "daemon/device/cuda/cuda.h"

uint64_t task_bytes(const struct device_task *task)
{
    uint64_t bytes = 0;
    for (uint32_t r = 0; r < task->pages.region_count; r++)
        bytes += (uint64_t)task->pages.regions[r].rows * task->pages.regions[r].row_bytes;
    return bytes * task->pages.id_count;
}

void task_fail(struct device *device, struct device_task *task, enum strait_status status)
{
    task->status = status;
    device->setup.done(device->setup.owner, task);
}

/* ---- Escapes ----------------------------------------------------------------------------------------------------- */

cudaError_t escapes_init(struct escapes *escapes, uint32_t tables)
{
    size_t size = tables * sizeof(escapes->stats[0]);
    if (tables == 0 || tables > TABLES_MAX)
        return cudaSuccess;
    cudaError_t error = cudaHostAlloc((void **)&escapes->stats, size, cudaHostAllocDefault);
    if (error == cudaSuccess)
        error = cudaEventCreateWithFlags(&escapes->copied, cudaEventDisableTiming);
    if (error == cudaSuccess)
        error = cudaMalloc((void **)&escapes->counters, size);
    return error == cudaSuccess ? cudaMemset(escapes->counters, 0, size) : error;
}

void escapes_fini(struct escapes *escapes)
{
    cudaFreeHost(escapes->stats);
    cudaFree(escapes->counters);
    if (escapes->copied != NULL)
        cudaEventDestroy(escapes->copied);
}

static void copy_escapes(struct device *device, struct lane *lane)
{
    struct escapes *e = &lane->escapes;
    cudaError_t error = cudaMemcpyAsync(e->stats, e->counters, device->table_count * sizeof(e->stats[0]),
                                        cudaMemcpyDeviceToHost, lane->stream);
    if (error == cudaSuccess)
        error = cudaEventRecord(e->copied, lane->stream);
    if (error != cudaSuccess)
        device_fail(device, "copy", error);
    e->counted = false;
    e->copying = error == cudaSuccess;
}

/* Escapes of what was encoded up to the latest copy of the counters, less those reported already. */
static uint64_t take_escapes(struct device *device, struct lane *lane)
{
    struct escapes *e = &lane->escapes;
    if (e->copying && cudaEventQuery(e->copied) == cudaSuccess) {
        e->copying = false;
        e->seen = 0;
        for (uint32_t t = 0; t < device->table_count; t++)
            e->seen += e->stats[t].escapes;
    }
    uint64_t fresh = e->seen - e->told;
    e->told = e->seen;
    return fresh;
}

/* ---- Tasks ------------------------------------------------------------------------------------------------------- */

/* Reports a task, which may be freed by that. A chunk encoded in a stage must first be copied out. */
static void tell(struct device *device, struct lane *lane, struct batch *batch, uint32_t i)
{
    struct device_task *task = batch->tasks[i];
    struct stage_slot *slot = batch->slots[i];
    uint64_t now = clock_ns(), from = batch->began > lane->last_over ? batch->began : lane->last_over;
    batch->tasks[i] = NULL;
    batch->told++;
    lane->last_over = now;
    task->result = batch->results[i];
    task->status = STRAIT_OK;
    task->queued = batch->began > task->created ? batch->began - task->created : 0;
    task->nanoseconds = now - from;
    if (task->work == DEVICE_ENCODE) {
        task->escapes = take_escapes(device, lane);
        if (task->result.status == STRAIT_OK && slot != NULL) {
            stage_send(device, slot, task, batch->began);
            return;
        }
    }
    if (slot != NULL)
        stage_give(task->work == DEVICE_ENCODE ? &device->out : &device->in, slot);
    device->setup.done(device->setup.owner, task);
}

/* A chunk's result is written last: the chunk is complete then, whatever else its launch still does. */
static bool tell_results(struct device *device, struct lane *lane, struct batch *batch)
{
    uint32_t before = batch->told;
    for (uint32_t i = 0; i < batch->count; i++)
        if (batch->tasks[i] != NULL &&
            __atomic_load_n(&batch->results[i].status, __ATOMIC_ACQUIRE) != STRAIT_ERR_DEVICE)
            tell(device, lane, batch, i);
    return batch->told != before;
}

/* Ends the oldest batch. True: it is complete, and all its tasks have been reported. */
static bool end_batch(struct device *device, struct lane *lane)
{
    struct batch *batch = &lane->batches[lane->first];
    cudaError_t error = cudaEventQuery(batch->over);
    if (error == cudaErrorNotReady)
        return false;
    if (error == cudaSuccess)
        tell_results(device, lane, batch);
    if (error != cudaSuccess || batch->told != batch->count) {
        device_fail(device, "encode or decode", error);
        return false;
    }
    lane->first = (lane->first + 1) % LANE_BATCHES;
    lane->running--;
    return true;
}

bool lane_collect(struct device *device, struct lane *lane)
{
    bool moved = false;
    if (device_has_failed(device))
        return false; /* left to lane_abandon */
    for (uint32_t i = 0; i < lane->running; i++)
        moved |= tell_results(device, lane, &lane->batches[(lane->first + i) % LANE_BATCHES]);
    while (lane->running > 0 && lane->batches[lane->first].told == lane->batches[lane->first].count &&
           end_batch(device, lane))
        moved = true;
    if (!moved && lane->running > 0 && end_batch(device, lane)) /* a failed launch writes no results */
        moved = true;
    if (lane->running == 0 && lane->waiting == NULL && lane->escapes.counted && !lane->escapes.copying)
        copy_escapes(device, lane);
    return moved;
}

uint64_t lane_load(const struct lane *lane)
{
    uint64_t tasks = 0;
    for (uint32_t i = 0; i < lane->running; i++) {
        const struct batch *batch = &lane->batches[(lane->first + i) % LANE_BATCHES];
        tasks += batch->count - batch->told;
    }
    for (const struct device_task *task = lane->waiting; task != NULL; task = task->next)
        tasks++;
    return tasks;
}

bool lane_is_busy(const struct lane *lane)
{
    return lane->running > 0 || lane->waiting != NULL;
}

void lane_abandon(struct device *device, struct lane *lane)
{
    (void)cudaStreamSynchronize(lane->stream); /* any error is ignored */
    for (; lane->running > 0; lane->running--) {
        struct batch *batch = &lane->batches[lane->first];
        device_settle_batch(device, batch);
        for (uint32_t i = 0; i < batch->count; i++) {
            struct device_task *task = batch->tasks[i];
            if (task == NULL)
                continue;
            if (batch->slots[i] != NULL)
                stage_give(task->work == DEVICE_ENCODE ? &device->out : &device->in, batch->slots[i]);
            task_fail(device, task, STRAIT_ERR_DEVICE);
        }
        lane->first = (lane->first + 1) % LANE_BATCHES;
    }
    struct device_task *task = lane->waiting, *next;
    lane->waiting = NULL;
    lane->waiting_end = &lane->waiting;
    for (; task != NULL; task = next) {
        next = task->next;
        task_fail(device, task, STRAIT_ERR_DEVICE);
    }
}
