#include <stdlib.h>
#include <string.h>

#include "daemon/memory/job_internal.h"

/* Jobs are made, run and reported; their work is in job_pages.c. */

#define JOB_TABLES_MAX 4096u /* tables of the largest codebook whose escapes are counted: 64 KiB a job */

/* ---- Reporting --------------------------------------------------------------------------------------------------- */

void job_finish(struct job *job)
{
    job->jobs->running--;
    job->done(job->owner, job->cookie, &job->result);
    free(job->metadata);
    job_drop(job);
}

/* Jobs that callbacks start here are reported next time. */
bool jobs_report(struct jobs *jobs)
{
    struct job *job = jobs->first, *next;
    if (job == NULL)
        return false;
    jobs->first = NULL;
    jobs->end = &jobs->first;
    uv_check_stop(&jobs->check);
    uv_idle_stop(&jobs->idle);
    for (; job != NULL; job = next) {
        next = job->next;
        job_finish(job);
    }
    return true;
}

/* What was not reported at the end of a turn: I/O has had its own turn in between. */
static void on_check(uv_check_t *check)
{
    (void)jobs_report(check->data);
}

static void on_idle(uv_idle_t *idle)
{
    (void)idle;
}

void job_tell_soon(struct job *job)
{
    struct jobs *jobs = job->jobs;
    *jobs->end = job;
    jobs->end = &job->next;
    uv_check_start(&jobs->check, on_check);
    uv_idle_start(&jobs->idle, on_idle);
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

static void job_run(struct job *job)
{
    uint64_t began = uv_hrtime();
    job->result.queued = began - job->created;
    job->work(job);
    job->result.nanoseconds = uv_hrtime() - began;
}

static void on_worker(uv_work_t *request)
{
    job_run(request->data);
}

/* Part of a job whose time a device has measured. */
static void on_worker_part(uv_work_t *request)
{
    struct job *job = request->data;
    job->work(job);
}

static void on_worked(uv_work_t *request, int status)
{
    (void)status; /* nothing cancels jobs */
    job_finish(request->data);
}

void job_start_part(struct job *job, job_work *work, uv_after_work_cb worked)
{
    job->work = work;
    if (uv_queue_work(job->jobs->loop, &job->request, on_worker_part, worked) == 0)
        return;
    work(job);
    worked(&job->request, 0);
}

/* A job of this size takes about as long as handing it to a worker and back, on processors that sleep. So one that
 * nothing can overlap with is quicker on the loop. */
#define ALONE_BYTES ((uint64_t)1024 * 1024)

void job_start(struct job *job)
{
    struct jobs *jobs = job->jobs;
    const bool alone = job->alone && jobs->running == 0 && jobs->small_bytes > 0;
    const uint64_t small = alone && jobs->small_bytes < ALONE_BYTES ? ALONE_BYTES : jobs->small_bytes;
    jobs->running++;
    /* Long jobs go to a worker, and so do copies that involve a device, as they block until they are done. */
    if ((job->result.raw_bytes > small || job->device >= 0 || job->src_device >= 0) &&
        uv_queue_work(jobs->loop, &job->request, on_worker, on_worked) == 0)
        return;
    job_run(job);
    job_tell_soon(job);
}

/* ---- Making ------------------------------------------------------------------------------------------------------ */

static bool has_piece(const struct pool *pool, const struct piece *piece, const uint32_t *ids)
{
    if (piece->group >= pool->group_count || piece->count == 0 || piece->region_count == 0)
        return false;
    const struct pool_group *group = &pool->groups[piece->group];
    if ((uint64_t)piece->region_first + piece->region_count > group->region_count ||
        (uint64_t)piece->region_count * piece->count > STRAIT_CHUNK_PAGES_MAX)
        return false;
    uint32_t top = 0;
    for (uint32_t i = 0; i < piece->count; i++)
        top = ids[i] > top ? ids[i] : top;
    return top < group->page_count;
}

/* Cuts one block of memory into arrays. */
static void *carve(uint8_t **at, size_t size)
{
    void *part = *at;
    *at += (size + 7) & ~(size_t)7;
    return part;
}

static struct strait_pages copy_pages(uint8_t **at, const struct pool *pool, const struct piece *piece,
                                      const uint32_t *ids)
{
    size_t regions_size = piece->region_count * sizeof(struct strait_region), ids_size = piece->count * sizeof(ids[0]);
    struct strait_region *regions = carve(at, regions_size);
    uint32_t *own_ids = carve(at, ids_size);
    memcpy(regions, &pool->groups[piece->group].regions[piece->region_first], regions_size);
    memcpy(own_ids, ids, ids_size);
    return (struct strait_pages){
        .regions = regions, .ids = own_ids, .region_count = piece->region_count, .id_count = piece->count};
}

enum strait_status job_make(struct jobs *jobs, const struct job_order *order, struct job **made)
{
    const struct piece *piece = order->piece;
    bool copies = order->src_pool != NULL;
    if (!has_piece(order->pool, piece, order->ids) || (copies && !has_piece(order->src_pool, piece, order->src_ids)))
        return STRAIT_ERR_INVALID;
    const struct strait_codebook *codebook = codebooks_current(jobs->codebooks);
    uint32_t tables = copies || codebook == NULL ? 0 : strait_codebook_count(codebook);
    tables = tables > JOB_TABLES_MAX ? 0 : tables;
    size_t pages_size =
        piece->region_count * sizeof(struct strait_region) + ((size_t)piece->count + 1) * sizeof(uint32_t);
    size_t stats_size = tables * sizeof(struct strait_class_stats);
    struct job *job = malloc(sizeof(*job) + stats_size + pages_size * (copies ? 2 : 1));
    if (job == NULL)
        return STRAIT_ERR_NO_MEMORY;
    uint8_t *at = (uint8_t *)(job + 1);
    *job = (struct job){.jobs = jobs,
                        .codebooks = codebooks_hold(jobs->codebooks),
                        .work = order->work,
                        .done = order->done,
                        .owner = order->owner,
                        .cookie = order->cookie,
                        .created = uv_hrtime(),
                        .element = order->pool->groups[piece->group].element,
                        .device = order->pool->groups[piece->group].device,
                        .src_device = copies ? order->src_pool->groups[piece->group].device : -1,
                        .stats_count = tables};
    job->request.data = job;
    job->stats = tables == 0 ? NULL : memset(carve(&at, stats_size), 0, stats_size);
    job->pages = copy_pages(&at, order->pool, piece, order->ids);
    if (copies)
        job->src_pages = copy_pages(&at, order->src_pool, piece, order->src_ids);
    uint64_t bytes = 0;
    for (uint32_t r = 0; r < job->pages.region_count; r++)
        bytes += (uint64_t)job->pages.regions[r].rows * job->pages.regions[r].row_bytes;
    job->result.raw_bytes = bytes * job->pages.id_count;
    *made = job;
    return STRAIT_OK;
}

void job_drop(struct job *job)
{
    codebooks_release(job->codebooks);
    free(job);
}

/* ---- Jobs of devices --------------------------------------------------------------------------------------------- */

void job_collect(struct job *job)
{
    *job->jobs->collected_end = job;
    job->jobs->collected_end = &job->collected_next;
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

static void submit(struct jobs *jobs)
{
    while (jobs->collected != NULL) {
        int32_t device = jobs->collected->device;
        devices_submit(jobs->devices, device, take_device(jobs, device));
    }
}

/* ---- Any function ------------------------------------------------------------------------------------------------ */

struct call {
    uv_work_t request;
    struct jobs *jobs;
    void (*work)(void *arg);
    void (*done)(void *arg);
    void *arg;
};

static void on_call(uv_work_t *request)
{
    struct call *call = request->data;
    call->work(call->arg);
}

static void on_called(uv_work_t *request, int status)
{
    struct call *call = request->data;
    (void)status;
    call->jobs->running--;
    call->done(call->arg);
    free(call);
}

enum strait_status job_call(struct jobs *jobs, void (*work)(void *arg), void (*done)(void *arg), void *arg)
{
    struct call *call = malloc(sizeof(*call));
    if (call == NULL)
        return STRAIT_ERR_NO_MEMORY;
    *call = (struct call){.jobs = jobs, .work = work, .done = done, .arg = arg};
    call->request.data = call;
    if (uv_queue_work(jobs->loop, &call->request, on_call, on_called) != 0) {
        free(call);
        return STRAIT_ERR_NO_MEMORY;
    }
    jobs->running++;
    return STRAIT_OK;
}

/* ---- Life -------------------------------------------------------------------------------------------------------- */

enum strait_status jobs_create(struct uv_loop_s *loop, struct codebooks *codebooks, uint64_t small_bytes,
                               struct jobs **made)
{
    struct jobs *jobs = calloc(1, sizeof(*jobs));
    if (jobs == NULL)
        return STRAIT_ERR_NO_MEMORY;
    *jobs =
        (struct jobs){.loop = loop, .codebooks = codebooks_hold(codebooks), .small_bytes = small_bytes, .handles = 3};
    jobs->end = &jobs->first;
    jobs->collected_end = &jobs->collected;
    uv_check_init(loop, &jobs->check); /* these three cannot fail */
    uv_idle_init(loop, &jobs->idle);
    uv_prepare_init(loop, &jobs->turn);
    jobs->check.data = jobs->idle.data = jobs->turn.data = jobs;
    *made = jobs;
    return STRAIT_OK;
}

void jobs_set_codebooks(struct jobs *jobs, struct codebooks *codebooks)
{
    codebooks_release(jobs->codebooks);
    jobs->codebooks = codebooks_hold(codebooks);
}

static void on_turn(uv_prepare_t *turn)
{
    submit(turn->data);
}

/* Starts the prepare handle. A handle that is started by another at the end of a turn would run only a turn later, so
 * this one runs from the beginning. Handles that start jobs at the end of a turn were started after it, and so run
 * before it. */
void jobs_use_devices(struct jobs *jobs, struct devices *devices)
{
    jobs->devices = devices;
    uv_prepare_start(&jobs->turn, on_turn);
    uv_unref((uv_handle_t *)&jobs->turn);
}

static void on_closed(uv_handle_t *handle)
{
    struct jobs *jobs = handle->data;
    if (--jobs->handles == 0)
        free(jobs);
}

void jobs_destroy(struct jobs *jobs)
{
    if (jobs == NULL)
        return;
    codebooks_release(jobs->codebooks);
    uv_close((uv_handle_t *)&jobs->check, on_closed);
    uv_close((uv_handle_t *)&jobs->idle, on_closed);
    uv_close((uv_handle_t *)&jobs->turn, on_closed);
}

uint32_t jobs_running(const struct jobs *jobs)
{
    return jobs->running;
}
