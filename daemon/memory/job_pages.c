#include <internal/bytes.h>
#include <internal/element.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/fault.h"
#include "daemon/memory/job_internal.h"
#include "kernels/chunk.h"

/* The work of jobs: chunks are encoded, sealed, opened and decoded, by the processor or by a GPU, and pages copied. */

/* ---- What encode and decode have in common ----------------------------------------------------------------------- */

#define PASS_BYTES (256u * 1024) /* decoded pieces at least this large leave the caches to the chunks */

static struct strait_run run_of(struct job *job, struct strait_result *result)
{
    return (struct strait_run){.size = sizeof(struct strait_run),
                               .result = result,
                               .class_count = job->by_tables ? job->stats_count : 0,
                               .class_stats = job->by_tables ? job->stats : NULL};
}

static void count_values(struct job *job, const struct strait_result *result)
{
    memcpy(job->result.values, result->values, sizeof(job->result.values));
    if (!job->by_tables)
        return;
    for (unsigned m = STRAIT_BLOCK_TOP16; m < STRAIT_BLOCK_MODES; m++)
        job->result.coded_values += result->values[m];
    for (uint32_t t = 0; t < job->stats_count; t++)
        job->result.escapes += job->stats[t].escapes;
}

static uint32_t page_bytes(const struct strait_region *region)
{
    return region->rows * region->row_bytes;
}

/* The longest page, and whether others are shorter. */
static uint32_t longest_page(const struct strait_pages *pages, bool *differ)
{
    uint32_t longest = 0;
    *differ = false;
    for (uint32_t r = 0; r < pages->region_count; r++) {
        uint32_t bytes = page_bytes(&pages->regions[r]);
        *differ |= bytes != page_bytes(&pages->regions[0]);
        longest = bytes > longest ? bytes : longest;
    }
    return longest;
}

/* What mode tiered spent on exponents: what is left of the blocks without those that it did not code. Blocks of equal
 * values are taken for as long as most of them are. */
static void count_bits(struct job *job)
{
    const struct strait_pages *pages = &job->pages;
    const uint64_t *values = job->result.values;
    const struct strait_codebook *set = codebooks_current(job->codebooks);
    struct chunk_layout layout;
    uint64_t all = 0, expected = 0;
    bool lengths;
    if (!job->by_tables || job->mode != STRAIT_MODE_TIERED || job->element != STRAIT_ELEMENT_BF16 || set == NULL)
        return;
    for (uint32_t r = 0; r < pages->region_count; r++) {
        const uint64_t of_page = page_bytes(&pages->regions[r]) / 2;
        const uint32_t each = strait_codebook_expected(set, pages->regions[r].table);
        if (each == 0)
            return;
        all += of_page * pages->id_count;
        expected += of_page * pages->id_count * each / 1000;
    }
    const uint32_t longest = longest_page(pages, &lengths);
    chunk_layout_init(&layout, pages->region_count * pages->id_count, longest, lengths);
    const uint64_t block = longest < BLOCK_BYTES ? (longest + 1) / 2 : BLOCK_BYTES / 2;
    const uint64_t others = 16 * values[STRAIT_BLOCK_RAW] + 8 * values[STRAIT_BLOCK_TIERED] +
                            values[STRAIT_BLOCK_CONST] / block * 8 * CHUNK_UNIT;
    const uint64_t bits = 8 * (job->result.bytes - layout.metadata_bytes);
    if (values[STRAIT_BLOCK_TIERED] == 0 || bits <= others)
        return;
    job->result.exponent_bits = bits - others;
    job->result.expected_bits = (uint64_t)((double)expected * (double)values[STRAIT_BLOCK_TIERED] / (double)all);
}

static void seal(struct job *job)
{
    if (job->seal.suite == SEAL_NONE)
        return;
    if (seal_close(&job->seal, job->dst, job->result.bytes))
        job->result.bytes += SEAL_TAG_BYTES;
    else
        job->result.reason = STRAIT_REASON_LOCAL;
}

/* In place: the chunk is in the daemon's own arena. */
static void unseal(struct job *job)
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

/* Both sides cut chunks to fit: a peer that asks for a larger one has a different geometry. */
static enum strait_reason encode_reason(enum strait_status status)
{
    if (status == STRAIT_OK)
        return STRAIT_REASON_NONE;
    return status == STRAIT_ERR_NO_SPACE ? STRAIT_REASON_GEOMETRY : STRAIT_REASON_LOCAL;
}

static enum strait_reason decode_reason(enum strait_status status)
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
static enum strait_status copy_metadata(const struct job *job, uint8_t **metadata, uint64_t *size)
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

/* ---- On a device ------------------------------------------------------------------------------------------------- */

static enum strait_reason reason_of(const struct job *job, enum strait_status status)
{
    return job->task.work == DEVICE_ENCODE ? encode_reason(status) : decode_reason(status);
}

static void on_sealed(uv_work_t *request, int status)
{
    (void)status;
    job_finish(request->data);
}

/* Size of a chunk that the device has found by its flag, as its header says; 0 if it says none that can be. */
static uint64_t chunk_bytes_of(const struct device_task *task)
{
    struct strait_chunk_info info;
    const enum strait_status status = strait_chunk_info(task->header, sizeof(task->header), &info);
    return status == STRAIT_OK && info.chunk_bytes <= task->size ? info.chunk_bytes : 0;
}

static void on_finished(struct device_task *task)
{
    struct job *job = (struct job *)((uint8_t *)task - offsetof(struct job, task));
    enum strait_status status = task->status != STRAIT_OK ? task->status : (enum strait_status)task->result.status;
    bool encodes = task->work == DEVICE_ENCODE;
    job->result.queued = task->queued;
    job->result.nanoseconds = task->nanoseconds;
    job->result.reason = reason_of(job, status);
    if (!encodes && task->flag != NULL) {
        job->result.absent = task->status == STRAIT_ERR_AGAIN;
        job->result.chunk_bytes = chunk_bytes_of(task);
    }
    if (status == STRAIT_OK || !encodes) {
        job->result.bytes = task->result.bytes;
        count_values(job, &job->task.result);
        job->result.escapes = job->task.escapes;
        if (encodes)
            count_bits(job);
    }
    if (encodes && status == STRAIT_OK && job->seal.suite != SEAL_NONE)
        job_start_part(job, seal, on_sealed);
    else
        job_finish(job);
}

/* Computes how a chunk of these pages begins, and how much metadata it has (FORMAT.md, section 4): the processor cannot
 * reach the chunk, and the device must not trust what the chunk says of its own size. */
static enum strait_status foresee_metadata(struct job *job)
{
    const struct strait_pages *pages = &job->pages;
    struct chunk_layout layout;
    bool lengths;
    const uint32_t longest = longest_page(pages, &lengths);
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
                                     .flag = job->flag,
                                     .flag_value = job->flag_value,
                                     .dst = job->dst,
                                     .src = job->src,
                                     .size = job->size};
    if (job->dst != NULL) /* a chunk that does not fit is refused here: in a launch it would fail others too */
        return strait_encode_bound(&job->pages) <= job->size ? STRAIT_OK : STRAIT_ERR_NO_SPACE;
    if (job->on_gpu)
        return foresee_metadata(job);
    enum strait_status status = copy_metadata(job, &job->metadata, &job->task.metadata_size);
    job->task.metadata = job->metadata;
    return status;
}

static void collect(struct job *job)
{
    enum strait_status status = describe(job);
    if (status != STRAIT_OK) {
        job->result.reason = reason_of(job, status);
        job_tell_soon(job);
        return;
    }
    job_collect(job);
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
static void start_on_device(struct job *job)
{
    job->jobs->running++;
    if (job->dst == NULL && job->seal.suite != SEAL_NONE)
        job_start_part(job, unseal, on_unsealed);
    else
        collect(job);
}

static enum strait_status begin(struct job *job, const struct job_chunk *chunk)
{
    job->size = chunk->size;
    job->on_gpu = chunk->on_gpu;
    job->on_peer_gpu = chunk->on_peer_gpu;
    job->flag = chunk->flag;
    job->flag_value = chunk->flag_value;
    job->alone = chunk->alone;
    if (chunk->seal != NULL)
        job->seal = *chunk->seal;
    if (job->on_gpu && job->device < 0) {
        job_drop(job);
        return STRAIT_ERR_INVALID;
    }
    if (job->device >= 0)
        start_on_device(job);
    else
        job_start(job);
    return STRAIT_OK;
}

/* ---- Encode ------------------------------------------------------------------------------------------------------ */

static void work_encode(struct job *job)
{
    const struct strait_encode_params params = {.size = sizeof(params),
                                                .element = job->element,
                                                .mode = job->mode,
                                                .codebook = job->by_tables ? codebooks_current(job->codebooks) : NULL};
    struct strait_result result;
    struct strait_run run = run_of(job, &result);
    run.caching = STRAIT_CACHING_KEEP; /* the network stack or the other daemon reads the chunk next */
    (void)fault_at(FAULT_ENCODE, NULL, NULL);
    enum strait_status status = strait_encode(NULL, &params, job->dst, job->size, &job->pages, &run);
    (void)fault_at(FAULT_ENCODED, NULL, NULL);
    if (status == STRAIT_OK)
        status = (enum strait_status)result.status;
    job->result.reason = encode_reason(status);
    if (status != STRAIT_OK)
        return;
    job->result.bytes = result.bytes;
    count_values(job, &result);
    count_bits(job);
    seal(job);
}

enum strait_status job_encode(struct jobs *jobs, const struct pool *pool, const struct piece *piece,
                              const uint32_t *ids, enum strait_mode mode, const struct job_chunk *chunk, job_done *done,
                              void *owner, uint64_t cookie)
{
    const struct job_order order = {
        .work = work_encode, .pool = pool, .piece = piece, .ids = ids, .done = done, .owner = owner, .cookie = cookie};
    struct job *job;
    enum strait_status status = job_make(jobs, &order, &job);
    if (status != STRAIT_OK)
        return status;
    job->by_tables = element_uses_tables(job->element, mode) && codebooks_current(job->codebooks) != NULL;
    job->mode = job->by_tables || !element_uses_tables(job->element, mode) ? mode : STRAIT_MODE_RAW;
    if (!job->by_tables) {
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

static enum strait_status decode_checked(struct job *job, const uint8_t *metadata)
{
    struct strait_chunk_info info;
    struct strait_result result;
    if (strait_chunk_info(metadata, STRAIT_CHUNK_HEADER_BYTES, &info) != STRAIT_OK)
        return STRAIT_ERR_CORRUPT;
    static const uint8_t none[STRAIT_CODEBOOK_ID_BYTES];
    const struct strait_codebook *codebook = codebooks_find(job->codebooks, info.codebook_id);
    job->by_tables = memcmp(info.codebook_id, none, sizeof(none)) != 0;
    struct strait_run run = run_of(job, &result);
    run.metadata = metadata;
    if (job->result.raw_bytes >= PASS_BYTES)
        run.caching = STRAIT_CACHING_PASS; /* otherwise a reader that is told at once finds the pages in the caches */
    enum strait_status status = strait_decode(NULL, codebook, &job->pages, NULL, job->src, job->size, &run);
    if (status != STRAIT_OK)
        return status;
    job->result.bytes = result.bytes;
    count_values(job, &result);
    return (enum strait_status)result.status;
}

static void work_decode(struct job *job)
{
    uint8_t *metadata = NULL;
    uint64_t metadata_size;
    (void)fault_at(FAULT_DECODE, NULL, NULL);
    unseal(job);
    if (job->result.reason != STRAIT_REASON_NONE)
        return;
    enum strait_status status = copy_metadata(job, &metadata, &metadata_size);
    if (status == STRAIT_OK)
        status = decode_checked(job, metadata);
    job->result.reason = decode_reason(status);
    free(metadata);
    (void)fault_at(FAULT_DECODED, NULL, NULL);
}

enum strait_status job_decode(struct jobs *jobs, const struct pool *pool, const struct piece *piece,
                              const uint32_t *ids, const struct job_chunk *chunk, job_done *done, void *owner,
                              uint64_t cookie)
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

/* ---- Copy -------------------------------------------------------------------------------------------------------- */

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

/* A position in a page, whose pieces are its rows, or the columns of its rows. */
struct place {
    uint8_t *at, *page;
    const struct strait_region *region;
    uint64_t left;           /* of the piece */
    uint32_t piece, columns; /* its number; those of a row */
    uint64_t piece_bytes;
};

static struct place place_of(const struct strait_region *region, uint8_t *page)
{
    const uint32_t columns = region->columns > 1 ? region->columns : 1;
    const uint64_t bytes =
        columns == 1 && is_plain(region) ? (uint64_t)region->rows * region->row_bytes : region->row_bytes / columns;
    return (struct place){
        .at = page, .page = page, .region = region, .left = bytes, .columns = columns, .piece_bytes = bytes};
}

static void advance(struct place *place, uint64_t bytes)
{
    place->at += bytes;
    place->left -= bytes;
    if (place->left != 0)
        return;
    place->piece++;
    place->left = place->piece_bytes;
    place->at = place->page + place->piece / place->columns * place->region->row_stride +
                (uint64_t)(place->piece % place->columns) * place->region->column_stride;
}

/* The two pages have as many bytes, but need not have the same rows. */
static void copy_page(const struct strait_region *to, uint8_t *dst, const struct strait_region *from, uint8_t *src,
                      copy_bytes *copy)
{
    struct place put = place_of(to, dst), take = place_of(from, src);
    for (uint64_t left = (uint64_t)to->rows * to->row_bytes, n; left > 0; left -= n) {
        n = put.left < take.left ? put.left : take.left;
        copy_any(put.at, take.at, n, copy);
        advance(&put, n);
        advance(&take, n);
    }
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
                      (uint8_t *)src->base + from->ids[i] * src->page_stride, copy);
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

/* Are the pages of equal sizes? */
static bool fits(const struct strait_pages *a, const struct strait_pages *b)
{
    for (uint32_t r = 0; r < a->region_count; r++)
        if (page_bytes(&a->regions[r]) != page_bytes(&b->regions[r]))
            return false;
    return true;
}

enum strait_status job_copy(struct jobs *jobs, const struct pool *src, const uint32_t *src_ids, const struct pool *dst,
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
