/* Creates, runs and reports jobs. */
#include "daemon/memory/job.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/memory/job_private.h"

/* ---- Reporting --------------------------------------------------------------------------------------------------- */

void job_finish(struct job *job)
{
    job->jobs->running--;
    job->done(job->owner, job->cookie, &job->result);
    free(job->metadata);
    free(job);
}

/* Jobs that callbacks start here are reported in the next turn: I/O gets its own turn in between. */
static void on_check(uv_check_t *check)
{
    struct jobs *jobs = check->data;
    struct job *job = jobs->first, *next;
    jobs->first = NULL;
    jobs->end = &jobs->first;
    uv_check_stop(&jobs->check);
    uv_idle_stop(&jobs->idle);
    for (; job != NULL; job = next) {
        next = job->next;
        job_finish(job);
    }
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

static void on_worked(uv_work_t *request, int status)
{
    (void)status; /* nothing cancels jobs */
    job_finish(request->data);
}

/* Is the job too long for the loop? Copies that involve a device block until it is done. */
static bool is_long(const struct job *job)
{
    return job->result.raw_bytes > job->jobs->small_bytes || job->device >= 0 || job->src_device >= 0;
}

void job_start(struct job *job)
{
    struct jobs *jobs = job->jobs;
    jobs->running++;
    if (is_long(job) && uv_queue_work(jobs->loop, &job->request, on_worker, on_worked) == 0)
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

static uint64_t piece_bytes(const struct strait_pages *pages)
{
    uint64_t bytes = 0;
    for (uint32_t r = 0; r < pages->region_count; r++)
        bytes += (uint64_t)pages->regions[r].rows * pages->regions[r].row_bytes;
    return bytes * pages->id_count;
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
    uint32_t tables = copies || jobs->codebook == NULL ? 0 : strait_codebook_count(jobs->codebook);
    tables = tables > JOB_TABLES_MAX ? 0 : tables;
    size_t pages_size =
        piece->region_count * sizeof(struct strait_region) + ((size_t)piece->count + 1) * sizeof(uint32_t);
    size_t stats_size = tables * sizeof(struct strait_class_stats);
    struct job *job = malloc(sizeof(*job) + stats_size + pages_size * (copies ? 2 : 1));
    if (job == NULL)
        return STRAIT_ERR_NO_MEMORY;
    uint8_t *at = (uint8_t *)(job + 1);
    *job = (struct job){.jobs = jobs,
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
    job->result.raw_bytes = piece_bytes(&job->pages);
    *made = job;
    return STRAIT_OK;
}

void job_drop(struct job *job)
{
    free(job);
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

enum strait_status jobs_create(struct uv_loop_s *loop, const struct strait_codebook *codebook, uint64_t small_bytes,
                               struct jobs **made)
{
    struct jobs *jobs = calloc(1, sizeof(*jobs));
    if (jobs == NULL)
        return STRAIT_ERR_NO_MEMORY;
    *jobs = (struct jobs){.loop = loop, .codebook = codebook, .small_bytes = small_bytes, .handles = 3};
    jobs->end = &jobs->first;
    jobs->collected_end = &jobs->collected;
    uv_check_init(loop, &jobs->check); /* these three cannot fail */
    uv_idle_init(loop, &jobs->idle);
    uv_prepare_init(loop, &jobs->turn);
    jobs->check.data = jobs->idle.data = jobs->turn.data = jobs;
    *made = jobs;
    return STRAIT_OK;
}

static void on_turn(uv_prepare_t *turn)
{
    jobs_submit(turn->data);
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
    uv_close((uv_handle_t *)&jobs->check, on_closed);
    uv_close((uv_handle_t *)&jobs->idle, on_closed);
    uv_close((uv_handle_t *)&jobs->turn, on_closed);
}

uint32_t jobs_running(const struct jobs *jobs)
{
    return jobs->running;
}
