#include <internal/bytes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "daemon/base/fault.h"
#include "daemon/memory/job.h"
#include "kernels/chunk.h"

/* Shared by the kinds of jobs. */

#define JOB_TABLES_MAX 4096u /* tables of the largest codebook whose escapes are counted: 64 KiB a job */

struct jobs {
    uv_loop_t *loop;
    struct codebooks *codebooks; /* those of new jobs */
    uint64_t small_bytes;
    uint32_t running;
    uint32_t handles;         /* open ones */
    uv_check_t check;         /* reports small jobs, right after the turn's I/O */
    uv_idle_t idle;           /* keeps that turn from blocking */
    struct job *first, **end; /* small jobs that are done but not reported */
    struct devices *devices;  /* NULL: no GPUs */
    uv_prepare_t turn;        /* end of the turn: submits the collected jobs to their devices */
    struct job *collected, **collected_end;
};

struct job;

typedef void job_work(struct job *job);

/* A job; the copies of its arguments that it needs follow it in memory. */
struct job {
    uv_work_t request;
    struct jobs *jobs;
    struct job *next;
    job_work *work;
    job_done *done;
    void *owner;
    uint64_t cookie;
    uint64_t created;
    struct job_result result;
    struct codebooks *codebooks; /* those of when it was made */

    struct strait_pages pages; /* of the piece, in its pool */
    enum strait_element element;
    enum strait_mode mode;    /* encode */
    void *dst;                /* encode */
    const void *src;          /* decode */
    uint64_t size;            /* encode: of dst; decode: of src */
    bool on_gpu, on_peer_gpu; /* the chunk is in a GPU's memory; in another GPU's */
    bool alone;
    struct seal seal;              /* of the chunk */
    struct strait_pages src_pages; /* copy */
    struct strait_class_stats *stats;
    uint32_t stats_count;

    int32_t device; /* holds the pages; -1: the host */
    int32_t src_device;
    struct device_task task;
    uint8_t *metadata; /* decode on a device */
    struct job *collected_next;
};

/* The arguments of a job: what to do, with which pages, and whom to tell. */
struct job_order {
    job_work *work;
    struct pool *pool;
    const struct piece *piece;
    const uint32_t *ids;
    struct pool *src_pool; /* copy */
    const uint32_t *src_ids;
    job_done *done;
    void *owner;
    uint64_t cookie;
};

/* Makes a job with copies of the ids and regions. ERR_INVALID: the piece is not one of the pool's; ERR_NO_MEMORY. */
enum strait_status job_make(struct jobs *jobs, const struct job_order *order, struct job **job);
void job_drop(struct job *job); /* frees a job that was not started */
/* Runs the job in place or hands it to a worker, depending on its size. From here on it owns itself. */
void job_start(struct job *job);
/* The same for pages in a device's memory, coded by the device; submitted at the end of the turn. */
void job_start_on_device(struct job *job);
void jobs_submit(struct jobs *jobs); /* submits the collected jobs */
/* Ends a job whose result is set. From the loop's callbacks only. */
void job_finish(struct job *job);
/* Ends a job at once; it is reported by jobs_report, or else in the next turn. */
void job_tell_soon(struct job *job);

/* A copy of the chunk's metadata, which its sender may still be able to change. OK: the caller frees *metadata. */
enum strait_status job_copy_metadata(const struct job *job, uint8_t **metadata, uint64_t *size);
enum strait_reason job_reason_of(enum strait_status status);
enum strait_reason job_encode_reason(enum strait_status status);
/* Encrypts the chunk that was encoded, or decrypts the one that is to be decoded; job->result tells what failed. */
void job_seal(struct job *job);
void job_unseal(struct job *job);
/* Adds the codec's counts per mode to job->result. */
void job_count_values(struct job *job, const struct strait_result *result);

#ifdef __SSE2__ /* every x86-64 processor; wider stores are no faster here */

#include <emmintrin.h>

#define LINE  64u
#define AHEAD 1024u /* bytes ahead: further than the hardware prefetches at the beginning of a page */

static void stream_line(uint8_t *dst, const uint8_t *src)
{
    __m128i a = _mm_loadu_si128((const __m128i *)src), b = _mm_loadu_si128((const __m128i *)(src + 16));
    __m128i c = _mm_loadu_si128((const __m128i *)(src + 32)), d = _mm_loadu_si128((const __m128i *)(src + 48));
    _mm_stream_si128((__m128i *)dst, a);
    _mm_stream_si128((__m128i *)(dst + 16), b);
    _mm_stream_si128((__m128i *)(dst + 32), c);
    _mm_stream_si128((__m128i *)(dst + 48), d);
}

void stream_copy(void *dst, const void *src, size_t size)
{
    uint8_t *to = dst;
    const uint8_t *from = src;
    size_t head = -(uintptr_t)to % LINE; /* only whole lines are worth it */
    if (size < head + LINE) {
        memcpy(to, from, size);
        return;
    }
    memcpy(to, from, head);
    to += head, from += head, size -= head;
    for (; size >= LINE; to += LINE, from += LINE, size -= LINE) {
        _mm_prefetch((const char *)((uintptr_t)from + AHEAD), _MM_HINT_NTA);
        stream_line(to, from);
    }
    memcpy(to, from, size);
}

void stream_flush(void)
{
    _mm_sfence();
}

#else

void stream_copy(void *dst, const void *src, size_t size)
{
    memcpy(dst, src, size);
}

void stream_flush(void)
{
}

#endif

/* Jobs on pages in memory of a GPU: collected during a turn of the loop, submitted at its end. */

static enum strait_reason reason_of(const struct job *job, enum strait_status status)
{
    return job->task.work == DEVICE_ENCODE ? job_encode_reason(status) : job_reason_of(status);
}

/* Hands the job to a worker, or runs it here if that cannot be done. `worked` is called on the loop's thread. */
static void run_on_worker(struct job *job, job_work *work, uv_after_work_cb worked);

static void on_sealed(uv_work_t *request, int status)
{
    (void)status;
    job_finish(request->data);
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
    if (encodes && status == STRAIT_OK && job->seal.suite != SEAL_NONE)
        run_on_worker(job, job_seal, on_sealed);
    else
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
                                     .on_gpu = job->on_gpu,
                                     .on_peer_gpu = job->on_peer_gpu,
                                     .dst = job->dst,
                                     .src = job->src,
                                     .size = job->size};
    if (job->dst != NULL) /* a chunk that does not fit is refused here: in a launch it would fail others too */
        return strait_encode_bound(&job->pages) <= job->size ? STRAIT_OK : STRAIT_ERR_NO_SPACE;
    if (job->on_gpu)
        return foresee_metadata(job);
    enum strait_status status = job_copy_metadata(job, &job->metadata, &job->task.metadata_size);
    job->task.metadata = job->metadata;
    return status;
}

static void collect(struct job *job)
{
    struct jobs *jobs = job->jobs;
    enum strait_status status = describe(job);
    if (status != STRAIT_OK) {
        job->result.reason = reason_of(job, status);
        job_tell_soon(job);
        return;
    }
    *jobs->collected_end = job;
    jobs->collected_end = &job->collected_next;
}

static void on_unsealed(uv_work_t *request, int status)
{
    struct job *job = request->data;
    (void)status;
    if (job->result.reason == STRAIT_REASON_NONE)
        collect(job);
    else
        job_finish(job);
}

/* The processor decrypts what a device decodes, and encrypts what it has encoded. */
void job_start_on_device(struct job *job)
{
    job->jobs->running++;
    if (job->dst == NULL && job->seal.suite != SEAL_NONE)
        run_on_worker(job, job_unseal, on_unsealed);
    else
        collect(job);
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

/* Jobs that run the codec. */

#define PASS_BYTES (256u * 1024) /* decoded pieces at least this large leave the caches to the chunks */

static struct strait_run run_of(struct job *job, struct strait_result *result)
{
    return (struct strait_run){.size = sizeof(struct strait_run),
                               .result = result,
                               .class_count = job->stats_count,
                               .class_stats = job->stats};
}

void job_count_values(struct job *job, const struct strait_result *result)
{
    memcpy(job->result.values, result->values, sizeof(job->result.values));
    for (unsigned m = STRAIT_BLOCK_TOP16; m < STRAIT_BLOCK_MODES; m++)
        job->result.coded_values += result->values[m];
    for (uint32_t t = 0; t < job->stats_count; t++)
        job->result.escapes += job->stats[t].escapes;
}

void job_seal(struct job *job)
{
    if (job->seal.suite == SEAL_NONE)
        return;
    if (seal_close(&job->seal, job->dst, job->result.bytes))
        job->result.bytes += SEAL_TAG_BYTES;
    else
        job->result.reason = STRAIT_REASON_LOCAL;
}

/* In place: the chunk is in the daemon's own arena. */
void job_unseal(struct job *job)
{
    if (job->seal.suite == SEAL_NONE)
        return;
    if (seal_open(&job->seal, (void *)job->src, job->size)) {
        job->size -= SEAL_TAG_BYTES;
        return;
    }
    job->result.reason = STRAIT_REASON_INTEGRITY;
    job->result.forged = true;
}

static enum strait_status begin(struct job *job, const struct job_chunk *chunk)
{
    job->size = chunk->size;
    job->on_gpu = chunk->on_gpu;
    job->on_peer_gpu = chunk->on_peer_gpu;
    job->alone = chunk->alone;
    if (chunk->seal != NULL)
        job->seal = *chunk->seal;
    if (job->on_gpu && job->device < 0) {
        job_drop(job);
        return STRAIT_ERR_INVALID;
    }
    if (job->device >= 0)
        job_start_on_device(job);
    else
        job_start(job);
    return STRAIT_OK;
}

/* ---- Encode ------------------------------------------------------------------------------------------------------ */

/* Both sides cut chunks to fit: a peer that asks for a larger one has a different geometry. */
enum strait_reason job_encode_reason(enum strait_status status)
{
    if (status == STRAIT_OK)
        return STRAIT_REASON_NONE;
    return status == STRAIT_ERR_NO_SPACE ? STRAIT_REASON_GEOMETRY : STRAIT_REASON_LOCAL;
}

static void work_encode(struct job *job)
{
    const struct strait_encode_params params = {.size = sizeof(params),
                                                .element = job->element,
                                                .mode = job->mode,
                                                .codebook =
                                                    job->mode == STRAIT_MODE_RAW || job->element != STRAIT_ELEMENT_BF16
                                                        ? NULL
                                                        : codebooks_current(job->codebooks)};
    struct strait_result result;
    struct strait_run run = run_of(job, &result);
    run.caching = STRAIT_CACHING_KEEP; /* the network stack or the other daemon reads the chunk next */
    (void)fault_at(FAULT_ENCODE, NULL, NULL);
    enum strait_status status = strait_encode(NULL, &params, job->dst, job->size, &job->pages, &run);
    (void)fault_at(FAULT_ENCODED, NULL, NULL);
    if (status == STRAIT_OK)
        status = (enum strait_status)result.status;
    job->result.reason = job_encode_reason(status);
    if (status != STRAIT_OK)
        return;
    job->result.bytes = result.bytes;
    job_count_values(job, &result);
    job_seal(job);
}

enum strait_status job_encode(struct jobs *jobs, struct pool *pool, const struct piece *piece, const uint32_t *ids,
                              enum strait_mode mode, const struct job_chunk *chunk, job_done *done, void *owner,
                              uint64_t cookie)
{
    const struct job_order order = {
        .work = work_encode, .pool = pool, .piece = piece, .ids = ids, .done = done, .owner = owner, .cookie = cookie};
    struct job *job;
    enum strait_status status = job_make(jobs, &order, &job);
    if (status != STRAIT_OK)
        return status;
    bool bf16 = job->element == STRAIT_ELEMENT_BF16;
    job->mode = bf16 && codebooks_current(job->codebooks) == NULL ? STRAIT_MODE_RAW : mode;
    if (!bf16 || job->mode == STRAIT_MODE_RAW) {
        /* A chunk that uses no table must not name a codebook, so that a sink with another codebook set, or none, can
         * read it. */
        struct strait_region *regions = (struct strait_region *)job->pages.regions; /* the job's own copy */
        for (uint32_t r = 0; r < job->pages.region_count; r++)
            regions[r].table = 0;
    }
    job->dst = chunk->bytes;
    return begin(job, chunk);
}

/* ---- Decode ------------------------------------------------------------------------------------------------------ */

enum strait_reason job_reason_of(enum strait_status status)
{
    switch (status) {
    case STRAIT_OK:
        return STRAIT_REASON_NONE;
    case STRAIT_ERR_INTEGRITY:
        return STRAIT_REASON_INTEGRITY;
    case STRAIT_ERR_NO_MEMORY:
        return STRAIT_REASON_NO_MEMORY;
    case STRAIT_ERR_DEVICE:
        return STRAIT_REASON_LOCAL;
    default:
        return STRAIT_REASON_CODEC;
    }
}

/* Copies the chunk's metadata, which its sender may still be able to change. The header is copied twice: its numbers
 * are checked before memory is allocated for what they claim. */
enum strait_status job_copy_metadata(const struct job *job, uint8_t **metadata, uint64_t *size)
{
    uint8_t header[STRAIT_CHUNK_HEADER_BYTES];
    struct strait_chunk_info info;
    if (job->size < sizeof(header))
        return STRAIT_ERR_TRUNCATED;
    memcpy(header, job->src, sizeof(header));
    enum strait_status status = strait_chunk_info(header, sizeof(header), &info);
    if (status != STRAIT_OK)
        return status;
    if (info.metadata_bytes > job->size)
        return STRAIT_ERR_TRUNCATED;
    if (info.page_count != job->pages.region_count * job->pages.id_count || info.element != job->element)
        return STRAIT_ERR_INVALID;
    uint8_t *copy = malloc(info.metadata_bytes);
    if (copy == NULL)
        return STRAIT_ERR_NO_MEMORY;
    memcpy(copy, header, sizeof(header));
    memcpy(copy + sizeof(header), (const uint8_t *)job->src + sizeof(header), info.metadata_bytes - sizeof(header));
    *metadata = copy;
    *size = info.metadata_bytes;
    return STRAIT_OK;
}

static enum strait_status decode_checked(struct job *job, const uint8_t *metadata)
{
    struct strait_chunk_info info;
    struct strait_result result;
    if (strait_chunk_info(metadata, STRAIT_CHUNK_HEADER_BYTES, &info) != STRAIT_OK)
        return STRAIT_ERR_CORRUPT;
    const struct strait_codebook *codebook = codebooks_find(job->codebooks, info.codebook_id);
    struct strait_run run = run_of(job, &result);
    run.metadata = metadata;
    if (job->result.raw_bytes >= PASS_BYTES)
        run.caching = STRAIT_CACHING_PASS; /* otherwise a reader that is told at once finds the pages in the caches */
    enum strait_status status = strait_decode(NULL, codebook, &job->pages, NULL, job->src, job->size, &run);
    if (status != STRAIT_OK)
        return status;
    job->result.bytes = result.bytes;
    job_count_values(job, &result);
    return (enum strait_status)result.status;
}

static void work_decode(struct job *job)
{
    uint8_t *metadata = NULL;
    uint64_t metadata_size;
    (void)fault_at(FAULT_DECODE, NULL, NULL);
    job_unseal(job);
    if (job->result.reason != STRAIT_REASON_NONE)
        return;
    enum strait_status status = job_copy_metadata(job, &metadata, &metadata_size);
    if (status == STRAIT_OK)
        status = decode_checked(job, metadata);
    job->result.reason = job_reason_of(status);
    free(metadata);
    (void)fault_at(FAULT_DECODED, NULL, NULL);
}

enum strait_status job_decode(struct jobs *jobs, struct pool *pool, const struct piece *piece, const uint32_t *ids,
                              const struct job_chunk *chunk, job_done *done, void *owner, uint64_t cookie)
{
    const struct job_order order = {
        .work = work_decode, .pool = pool, .piece = piece, .ids = ids, .done = done, .owner = owner, .cookie = cookie};
    struct job *job;
    enum strait_status status = job_make(jobs, &order, &job);
    if (status != STRAIT_OK)
        return status;
    job->src = chunk->bytes;
    return begin(job, chunk);
}

/* Jobs that copy pages to pages. */

#define STREAM_BYTES (1u << 20) /* bytes of a piece: a smaller one may be read from the caches soon */

typedef void copy_bytes(void *dst, const void *src, size_t size);

/* Two pools may name the same memory, so their pages may overlap by any number of bytes. */
static void copy_any(uint8_t *dst, const uint8_t *src, size_t size, copy_bytes *copy)
{
    uintptr_t to = (uintptr_t)dst, from = (uintptr_t)src;
    if (to - from >= size && from - to >= size)
        copy(dst, src, size);
    else
        memmove(dst, src, size);
}

static void copy_apart(void *dst, const void *src, size_t size)
{
    memcpy(dst, src, size);
}

static bool is_plain(const struct strait_region *region)
{
    return region->rows == 1 || region->row_stride == region->row_bytes;
}

static void copy_page(const struct strait_region *to, uint8_t *dst, const struct strait_region *from,
                      const uint8_t *src, copy_bytes *copy)
{
    if (is_plain(to) && is_plain(from)) {
        copy_any(dst, src, (size_t)to->rows * to->row_bytes, copy);
        return;
    }
    for (uint32_t r = 0; r < to->rows; r++)
        copy_any(dst + r * to->row_stride, src + r * from->row_stride, to->row_bytes, copy);
}

static void work_copy(struct job *job)
{
    const struct strait_pages *to = &job->pages, *from = &job->src_pages;
    copy_bytes *copy = job->result.raw_bytes >= STREAM_BYTES ? stream_copy : copy_apart;
    (void)fault_at(FAULT_COPY, NULL, NULL);
    for (uint32_t r = 0; r < to->region_count; r++)
        for (uint32_t i = 0; i < to->id_count; i++) {
            const struct strait_region *dst = &to->regions[r], *src = &from->regions[r];
            copy_page(dst, (uint8_t *)dst->base + to->ids[i] * dst->page_stride, src,
                      (const uint8_t *)src->base + from->ids[i] * src->page_stride, copy);
        }
    stream_flush();
    (void)fault_at(FAULT_COPIED, NULL, NULL);
    job->result.bytes = job->result.raw_bytes;
}

/* At least one side is on a device, whose copy this waits for. */
static void work_copy_on_device(struct job *job)
{
    enum strait_status status =
        devices_copy(job->jobs->devices, job->device, &job->pages, job->src_device, &job->src_pages);
    job->result.reason = status == STRAIT_OK              ? STRAIT_REASON_NONE
                         : status == STRAIT_ERR_NO_MEMORY ? STRAIT_REASON_NO_MEMORY
                                                          : STRAIT_REASON_LOCAL;
    job->result.bytes = job->result.raw_bytes;
}

/* Are the pages of equal sizes, row by row? */
static bool fits(const struct strait_pages *a, const struct strait_pages *b)
{
    for (uint32_t r = 0; r < a->region_count; r++)
        if (a->regions[r].rows != b->regions[r].rows || a->regions[r].row_bytes != b->regions[r].row_bytes)
            return false;
    return true;
}

enum strait_status job_copy(struct jobs *jobs, struct pool *src, const uint32_t *src_ids, struct pool *dst,
                            const uint32_t *dst_ids, const struct piece *piece, job_done *done, void *owner,
                            uint64_t cookie)
{
    const struct job_order order = {.work = work_copy,
                                    .pool = dst,
                                    .piece = piece,
                                    .ids = dst_ids,
                                    .src_pool = src,
                                    .src_ids = src_ids,
                                    .done = done,
                                    .owner = owner,
                                    .cookie = cookie};
    struct job *job;
    enum strait_status status = job_make(jobs, &order, &job);
    if (status != STRAIT_OK)
        return status;
    if (!fits(&job->pages, &job->src_pages)) {
        job_drop(job);
        return STRAIT_ERR_INVALID;
    }
    if (job->device >= 0 || job->src_device >= 0)
        job->work = work_copy_on_device;
    job_start(job);
    return STRAIT_OK;
}

/* Creates, runs and reports jobs. */

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

static void run_on_worker(struct job *job, job_work *work, uv_after_work_cb worked)
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
    codebooks_release(jobs->codebooks);
    uv_close((uv_handle_t *)&jobs->check, on_closed);
    uv_close((uv_handle_t *)&jobs->idle, on_closed);
    uv_close((uv_handle_t *)&jobs->turn, on_closed);
}

uint32_t jobs_running(const struct jobs *jobs)
{
    return jobs->running;
}
