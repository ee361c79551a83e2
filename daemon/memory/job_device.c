/* Jobs on pages in memory of a GPU: collected during a turn of the loop, submitted at its end. */
#include <string.h>

#include "daemon/memory/job_private.h"

static void on_finished(struct device_task *task)
{
    struct job *job = (struct job *)((uint8_t *)task - offsetof(struct job, task));
    enum strait_status status = task->status != STRAIT_OK ? task->status : (enum strait_status)task->result.status;
    bool encodes = task->work == DEVICE_ENCODE;
    job->result.queued = task->queued;
    job->result.nanoseconds = task->nanoseconds;
    job->result.reason = encodes && status != STRAIT_OK ? STRAIT_REASON_LOCAL : job_reason_of(status);
    if (status == STRAIT_OK || !encodes) {
        job->result.bytes = task->result.bytes;
        job_count_values(job, &job->task.result);
        job->result.escapes = job->task.escapes;
    }
    job_finish(job);
}

/* The metadata is copied here: by the processor, before anything of it is believed. */
static enum strait_status describe(struct job *job)
{
    job->task = (struct device_task){.work = job->dst != NULL ? DEVICE_ENCODE : DEVICE_DECODE,
                                     .finished = on_finished,
                                     .created = job->created,
                                     .pages = job->pages,
                                     .element = job->element,
                                     .mode = job->mode,
                                     .dst = job->dst,
                                     .src = job->src,
                                     .size = job->size};
    if (job->dst != NULL)
        return STRAIT_OK;
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
        job->result.reason = job_reason_of(status);
        job_tell_soon(job);
        return;
    }
    *jobs->collected_end = job;
    jobs->collected_end = &job->collected_next;
}

/* Takes those of the first one's device out of what was collected. */
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
