#include "daemon/device/cuda/cuda.h"

/* Copies chunks between the device's memory and the host's. Coding kernels work on slots in the device's own memory,
 * and copy engines carry the chunks: they fill the bus, and multiprocessors are occupied for a fraction of the time
 * that a kernel's loads and stores would take (bench/RESULTS.md). */

/* ---- Life -------------------------------------------------------------------------------------------------------- */

cudaError_t stage_init(struct stage *stage, size_t slot_bytes)
{
    slot_bytes = (slot_bytes + 4095) / 4096 * 4096;
    cudaError_t error = cudaMalloc((void **)&stage->memory, STAGE_SLOTS * slot_bytes);
    stage->slot_bytes = slot_bytes;
    for (uint32_t i = 0; i < STAGE_STREAMS && error == cudaSuccess; i++)
        error = cudaStreamCreateWithFlags(&stage->streams[i], cudaStreamNonBlocking);
    for (uint32_t i = 0; i < STAGE_SLOTS && error == cudaSuccess; i++) {
        stage->slots[i].memory = stage->memory + i * slot_bytes;
        error = cudaEventCreateWithFlags(&stage->slots[i].copied, cudaEventDisableTiming);
    }
    return error;
}

void stage_fini(struct stage *stage)
{
    for (uint32_t i = 0; i < STAGE_SLOTS; i++)
        if (stage->slots[i].copied != NULL)
            cudaEventDestroy(stage->slots[i].copied);
    for (uint32_t i = 0; i < STAGE_STREAMS; i++)
        if (stage->streams[i] != NULL)
            cudaStreamDestroy(stage->streams[i]);
    cudaFree(stage->memory);
}

struct stage_slot *stage_take(struct stage *stage)
{
    for (uint32_t i = 0; i < STAGE_SLOTS; i++)
        if (!stage->slots[i].taken) {
            stage->slots[i].taken = true;
            stage->taken++;
            return &stage->slots[i];
        }
    return NULL;
}

void stage_give(struct stage *stage, struct stage_slot *slot)
{
    slot->taken = slot->leaving = false;
    slot->task = NULL;
    stage->taken--;
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

/* Alternates streams, so that one copy begins while another ends. */
static cudaError_t copy(struct stage *stage, struct stage_slot *slot, void *to, const void *from, size_t size)
{
    cudaStream_t stream = stage->streams[stage->turn++ % STAGE_STREAMS];
    cudaError_t error = cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, stream);
    return error == cudaSuccess ? cudaEventRecord(slot->copied, stream) : error;
}

cudaError_t stage_fetch(struct stage *stage, struct stage_slot *slot, const struct device_task *task,
                        cudaStream_t reader)
{
    cudaError_t error = copy(stage, slot, slot->memory, task->src, task->size);
    return error == cudaSuccess ? cudaStreamWaitEvent(reader, slot->copied, 0) : error;
}

void stage_send(struct device *device, struct stage_slot *slot, struct device_task *task, uint64_t began)
{
    cudaError_t error = copy(&device->out, slot, task->dst, slot->memory, task->result.bytes);
    slot->task = task;
    slot->began = began;
    slot->leaving = true;
    device->out.leaving++;
    if (error != cudaSuccess)
        device_fail(device, "copy", error);
}

static void finish(struct device *device, struct stage_slot *slot, enum strait_status status)
{
    struct stage *stage = &device->out;
    struct device_task *task = slot->task;
    uint64_t now = clock_ns(), from = slot->began > stage->last_over ? slot->began : stage->last_over;
    stage->last_over = now;
    stage->leaving--;
    stage_give(stage, slot);
    task->status = status;
    task->nanoseconds = now - from;
    device->setup.done(device->setup.owner, task);
}

bool stage_collect(struct device *device)
{
    bool moved = false;
    for (uint32_t i = 0; i < STAGE_SLOTS && device->out.leaving > 0 && !device_has_failed(device); i++) {
        struct stage_slot *slot = &device->out.slots[i];
        if (!slot->leaving)
            continue;
        cudaError_t error = cudaEventQuery(slot->copied);
        if (error == cudaErrorNotReady)
            continue;
        if (error != cudaSuccess) {
            device_fail(device, "copy", error);
            break;
        }
        finish(device, slot, STRAIT_OK);
        moved = true;
    }
    return moved;
}

void stage_abandon(struct device *device)
{
    for (uint32_t i = 0; i < STAGE_STREAMS; i++)
        (void)cudaStreamSynchronize(device->out.streams[i]);
    device_wait_stopped(device); /* none of it is in flight any more */
    for (uint32_t i = 0; i < STAGE_SLOTS; i++)
        if (device->out.slots[i].leaving)
            finish(device, &device->out.slots[i], STRAIT_ERR_DEVICE);
}
