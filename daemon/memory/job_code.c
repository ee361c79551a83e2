/* Jobs that run the codec. */
#include <stdlib.h>
#include <string.h>

#include "daemon/equipment/fault.h"
#include "daemon/memory/job_private.h"

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

static enum strait_status begin(struct job *job, const struct job_chunk *chunk)
{
    job->size = chunk->size;
    job->far = chunk->far;
    job->away = chunk->away;
    if (job->far && job->device < 0) {
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
    const struct strait_encode_params params = {
        .size = sizeof(params),
        .element = job->element,
        .mode = job->mode,
        .codebook = job->mode == STRAIT_MODE_RAW || job->element != STRAIT_ELEMENT_BF16 ? NULL : job->jobs->codebook};
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
}

/* A chunk that uses no table must not name a codebook, so that a sink with another codebook set, or none, can read
 * it. */
static void forget_tables(struct job *job)
{
    struct strait_region *regions = (struct strait_region *)job->pages.regions; /* the job's own copy */
    for (uint32_t r = 0; r < job->pages.region_count; r++)
        regions[r].table = 0;
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
    job->mode = bf16 && jobs->codebook == NULL ? STRAIT_MODE_RAW : mode;
    if (!bf16 || job->mode == STRAIT_MODE_RAW)
        forget_tables(job);
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
    struct strait_result result;
    struct strait_run run = run_of(job, &result);
    run.metadata = metadata;
    if (job->result.raw_bytes >= PASS_BYTES)
        run.caching = STRAIT_CACHING_PASS; /* otherwise a reader that is told at once finds the pages in the caches */
    enum strait_status status = strait_decode(NULL, job->jobs->codebook, &job->pages, NULL, job->src, job->size, &run);
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
