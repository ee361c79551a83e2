/* Jobs that copy pages to pages. */
#include <string.h>

#include "daemon/equipment/fault.h"
#include "daemon/memory/job_private.h"
#include "daemon/memory/stream_copy.h"

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
