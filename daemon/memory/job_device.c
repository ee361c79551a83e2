/* Jobs on pages in memory of a GPU: collected during a turn of the loop, submitted at its end. */
#include <string.h>

#include <internal/bytes.h>

#include "daemon/memory/job_private.h"
#include "kernels/chunk.h"

static enum strait_reason reason_of(const struct job *job, enum strait_status status)
{
    return job->task.work == DEVICE_ENCODE ? job_encode_reason(status) : job_reason_of(status);
}

static void on_finished(struct device_task *task)
{
    struct job *job = (struct job *)((uint8_t *)task - offsetof(struct job, task));
    enum strait_status status = task->status != STRAIT_OK ? task->status : (enum strait_status)task->result.status;
    bool encodes = task->work == DEVICE_ENCODE;
    job->result.queued = task->queued;
    job->result.nanoseconds = task->nanoseconds;
    job->result.reason = reason_of(job, status);
    if (status == STRAIT_OK || !encodes) {
        job->result.bytes = task->result.bytes;
        job_count_values(job, &job->task.result);
        job->result.escapes = job->task.escapes;
    }
    job_finish(job);
}

static uint32_t page_bytes(const struct strait_region *region)
{
    return region->rows * region->row_bytes;
}

/* Computes how a chunk of these pages begins, and how much metadata it has (FORMAT.md, section 4): the processor cannot
 * reach the chunk, and the device must not trust what the chunk says of its own size. */
static enum strait_status foresee_metadata(struct job *job)
{
    const struct strait_pages *pages = &job->pages;
    struct chunk_layout layout;
    uint32_t longest = 0;
    bool lengths = false;
    for (uint32_t r = 0; r < pages->region_count; r++) {
        uint32_t bytes = page_bytes(&pages->regions[r]);
        lengths |= bytes != page_bytes(&pages->regions[0]);
        longest = bytes > longest ? bytes : longest;
    }
    chunk_layout_init(&layout, pages->region_count * pages->id_count, longest, lengths);
    job->task.metadata_size = layout.metadata_bytes;
    memcpy(job->task.begins, "STRC", 4);
    job->task.begins[4] = CHUNK_VERSION;
    job->task.begins[5] = (uint8_t)job->element;
    job->task.begins[6] = lengths ? CHUNK_FLAG_LENGTHS : 0;
    store_le32(job->task.begins + 8, layout.page_count);
    store_le32(job->task.begins + 12, longest);
    return layout.metadata_bytes <= job->size ? STRAIT_OK : STRAIT_ERR_TRUNCATED;
}

/* Metadata that the processor can reach is copied here before any of it is trusted. */
static enum strait_status describe(struct job *job)
{
    job->task = (struct device_task){.work = job->dst != NULL ? DEVICE_ENCODE : DEVICE_DECODE,
                                     .finished = on_finished,
                                     .created = job->created,
                                     .pages = job->pages,
                                     .element = job->element,
                                     .mode = job->mode,
                                     .far = job->far,
                                     .away = job->away,
                                     .dst = job->dst,
                                     .src = job->src,
                                     .size = job->size};
    if (job->dst != NULL) /* a chunk that does not fit is refused here: in a launch it would fail others too */
        return strait_encode_bound(&job->pages) <= job->size ? STRAIT_OK : STRAIT_ERR_NO_SPACE;
    if (job->far)
        return foresee_metadata(job);
    enum strait_status status = job_copy_metadata(job, &job->metadata, &job->task.metadata_size);
    job->task.metadata = job->metadata;
    return status;
}

void job_start_on_device(struct job *job)
{
    struct jobs *jobs = job->jobs;
    jobs->running++;
    enum strait_status status = describe(job);
    if (status != STRAIT_OK) {
        job->result.reason = reason_of(job, status);
        job_tell_soon(job);
        return;
    }
    *jobs->collected_end = job;
    jobs->collected_end = &job->collected_next;
}

/* Removes the collected jobs of the first one's device from the list, as tasks. */
static struct device_task *take_device(struct jobs *jobs, int32_t device)
{
    struct device_task *tasks = NULL, **tasks_end = &tasks;
    struct job **at = &jobs->collected, *job;
    while ((job = *at) != NULL) {
        if (job->device != device) {
            at = &job->collected_next;
            continue;
        }
        *at = job->collected_next;
        *tasks_end = &job->task;
        tasks_end = &job->task.next;
    }
    jobs->collected_end = at;
    return tasks;
}

void jobs_submit(struct jobs *jobs)
{
    while (jobs->collected != NULL) {
        int32_t device = jobs->collected->device;
        devices_submit(jobs->devices, device, take_device(jobs, device));
    }
}
