/* Checks a registration as it came from a client: sizes, strides, order, overlaps. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/memory/pool_private.h"
#include "internal/element.h"

enum strait_status pool_refuse(const struct pool_why *why, enum strait_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why->text, why->size, format, arguments);
    va_end(arguments);
    return status;
}

/* ---- One region -------------------------------------------------------------------------------------------------- */

static enum strait_status check_handle(const struct wire_region *region, uint32_t r, uint32_t fd_count,
                                       const struct pool_context *context, const struct pool_why *why)
{
    switch (region->handle) {
    case STRAIT_HANDLE_MEMFD:
    case STRAIT_HANDLE_CUDA_VMM:
        if (region->fd >= fd_count)
            return pool_refuse(why, STRAIT_ERR_INVALID, "region %u: no descriptor came for it", r);
        break;
    case STRAIT_HANDLE_POINTER:
        if (!context->embedded)
            return pool_refuse(why, STRAIT_ERR_INVALID, "region %u: pointers are for embedded mode only", r);
        if (region->pointer == 0)
            return pool_refuse(why, STRAIT_ERR_INVALID, "region %u: null pointer", r);
        break;
    case STRAIT_HANDLE_CUDA_IPC:
        if (region->ipc.size != DEVICE_EVENT_BYTES)
            return pool_refuse(why, STRAIT_ERR_INVALID, "region %u: an IPC handle of %zu bytes", r, region->ipc.size);
        break;
    default:
        return pool_refuse(why, STRAIT_ERR_UNSUPPORTED, "region %u: memory of handle type %u is not supported", r,
                           region->handle);
    }
    return STRAIT_OK;
}

/* Checks where the region's memory is. Whether there is such a device turns out when it is mapped. */
static enum strait_status check_device(const struct wire_region *region, uint32_t r, const struct pool_context *context,
                                       const struct pool_why *why)
{
    bool on_host = region->handle == STRAIT_HANDLE_MEMFD,
         on_device = region->handle == STRAIT_HANDLE_CUDA_IPC || region->handle == STRAIT_HANDLE_CUDA_VMM;
    if ((on_host && region->device != -1) || (on_device && region->device < 0) || region->device < -1)
        return pool_refuse(why, STRAIT_ERR_INVALID, "region %u: memory of that kind is not on device %d", r,
                           region->device);
    if (region->device >= 0 && context->devices == NULL)
        return pool_refuse(why, STRAIT_ERR_UNSUPPORTED, "region %u: memory of GPUs is not supported here", r);
    return STRAIT_OK;
}

static enum strait_status check_kind(const struct wire_region *region, uint32_t r, const struct pool_why *why)
{
    if (region->element > STRAIT_ELEMENT_FP8_E5M2)
        return pool_refuse(why, STRAIT_ERR_UNSUPPORTED, "region %u: element type %u is not known", r, region->element);
    if (region->role > STRAIT_ROLE_V)
        return pool_refuse(why, STRAIT_ERR_UNSUPPORTED, "region %u: role %u is not known", r, region->role);
    if (region->layer < -1)
        return pool_refuse(why, STRAIT_ERR_INVALID, "region %u: layer %d", r, region->layer);
    if (region->group >= STRAIT_GROUPS_MAX)
        return pool_refuse(why, STRAIT_ERR_INVALID, "region %u: group %u, the last one possible is %u", r,
                           region->group, STRAIT_GROUPS_MAX - 1);
    return STRAIT_OK;
}

/* Bytes from the first byte of a page to behind its last, including gaps between rows. */
static bool page_span(const struct wire_region *region, uint64_t *span)
{
    uint64_t rows = region->rows == 1 ? 0 : region->row_stride; /* unused with one row */
    return !__builtin_mul_overflow(rows, (uint64_t)region->rows - 1, &rows) &&
           !__builtin_add_overflow(rows, region->row_bytes, span);
}

static bool all_span(const struct wire_region *region, uint64_t *span)
{
    uint64_t pages = region->page_count == 1 ? 0 : region->page_stride, page;
    return page_span(region, &page) && !__builtin_mul_overflow(pages, (uint64_t)region->page_count - 1, &pages) &&
           !__builtin_add_overflow(pages, page, span);
}

uint64_t pool_region_span(const struct wire_region *region)
{
    uint64_t span = 0;
    (void)all_span(region, &span); /* it did not overflow when it was checked */
    return span;
}

static enum strait_status check_sizes(const struct wire_region *region, uint32_t r, const struct pool_why *why)
{
    uint64_t page_bytes = (uint64_t)region->rows * region->row_bytes, span, end;
    if (region->page_count == 0 || page_bytes == 0)
        return pool_refuse(why, STRAIT_ERR_INVALID, "region %u: %u pages of %u rows of %u bytes", r, region->page_count,
                           region->rows, region->row_bytes);
    if (page_bytes > STRAIT_PAGE_BYTES_MAX)
        return pool_refuse(why, STRAIT_ERR_INVALID, "region %u: pages of %llu bytes, at most %u are possible", r,
                           (unsigned long long)page_bytes, STRAIT_PAGE_BYTES_MAX);
    if (!all_span(region, &span) || __builtin_add_overflow(region->offset, span, &end) ||
        __builtin_add_overflow(end, region->handle == STRAIT_HANDLE_POINTER ? region->pointer : 0, &end) ||
        end > INT64_MAX)
        return pool_refuse(why, STRAIT_ERR_INVALID, "region %u: offset and strides lead beyond any memory", r);
    return STRAIT_OK;
}

/* No two rows of the region may share a byte. That holds when pages lie one after another, and when rows do, each with
 * the rows of all pages in it; layouts that fit neither way are not in use, and telling them apart would not be cheap.
 */
static bool rows_are_apart(const struct wire_region *region)
{
    uint64_t page, stripe = (uint64_t)(region->page_count - 1) * region->page_stride + region->row_bytes;
    if (!page_span(region, &page) || (region->rows > 1 && region->row_stride < region->row_bytes))
        return false;
    if (region->page_count == 1 || region->page_stride >= page)
        return true;
    return region->page_stride >= region->row_bytes && region->row_stride >= stripe;
}

static bool is_aligned(const struct wire_region *region)
{
    uint64_t all = region->offset;
    if (region->handle == STRAIT_HANDLE_POINTER)
        all += region->pointer;
    if (region->page_count > 1)
        all |= region->page_stride;
    if (region->rows > 1)
        all |= region->row_stride | region->row_bytes;
    return all % element_bytes(region->element) == 0;
}

static enum strait_status check_region(const struct message_pool_register *registration, uint32_t r,
                                       const struct pool_context *context, const struct pool_why *why)
{
    const struct wire_region *region = &registration->regions[r];
    enum strait_status status = check_handle(region, r, registration->fd_count, context, why);
    if (status == STRAIT_OK)
        status = check_device(region, r, context, why);
    if (status == STRAIT_OK)
        status = check_kind(region, r, why);
    if (status == STRAIT_OK)
        status = check_sizes(region, r, why);
    if (status != STRAIT_OK)
        return status;
    if (!rows_are_apart(region))
        return pool_refuse(why, STRAIT_ERR_INVALID, "region %u: its pages overlap one another", r);
    if (!is_aligned(region))
        return pool_refuse(why, STRAIT_ERR_INVALID,
                           "region %u: offset, strides or row bytes are no multiples of its "
                           "element's size",
                           r);
    return STRAIT_OK;
}

/* ---- Between regions --------------------------------------------------------------------------------------------- */

/* Groups are numbered without gaps, and their regions are of one element type and on one device: a chunk holds pages of
 * several regions and is coded by one processor. */
static enum strait_status check_groups(const struct message_pool_register *registration, const struct pool_why *why)
{
    const struct wire_region *regions = registration->regions;
    uint64_t ids = regions[0].page_count;
    if (regions[0].group != 0)
        return pool_refuse(why, STRAIT_ERR_INVALID, "region 0: the first group is 0, not %u", regions[0].group);
    for (uint32_t r = 1; r < registration->region_count; r++) {
        bool same = regions[r].group == regions[r - 1].group;
        if (!same && regions[r].group != regions[r - 1].group + 1)
            return pool_refuse(why, STRAIT_ERR_INVALID, "region %u: group %u follows group %u", r, regions[r].group,
                               regions[r - 1].group);
        if (same && regions[r].element != regions[r - 1].element)
            return pool_refuse(why, STRAIT_ERR_INVALID, "region %u: another element type than the rest of its group",
                               r);
        if (same && regions[r].device != regions[r - 1].device)
            return pool_refuse(why, STRAIT_ERR_INVALID,
                               "region %u: on device %d, the rest of its group on %d; a group is on one device", r,
                               regions[r].device, regions[r - 1].device);
        ids += same ? 0 : regions[r].page_count;
    }
    if (ids > POOL_IDS_MAX)
        return pool_refuse(why, STRAIT_ERR_INVALID, "%llu page ids, at most %u are possible", (unsigned long long)ids,
                           POOL_IDS_MAX);
    return STRAIT_OK;
}

int pool_memory_compare(const struct wire_region *a, const struct wire_region *b)
{
    bool has_fd = a->handle == STRAIT_HANDLE_MEMFD || a->handle == STRAIT_HANDLE_CUDA_VMM;
    if (a->handle != b->handle)
        return a->handle < b->handle ? -1 : 1;
    if (a->device != b->device)
        return a->device < b->device ? -1 : 1;
    if (has_fd && a->fd != b->fd)
        return a->fd < b->fd ? -1 : 1;
    return a->handle == STRAIT_HANDLE_CUDA_IPC ? memcmp(a->ipc.data, b->ipc.data, DEVICE_EVENT_BYTES) : 0;
}

struct place {
    const struct wire_region *region;
    uint32_t r;
    uint64_t first;
};

static int place_compare(const void *left, const void *right)
{
    const struct place *a = left, *b = right;
    if (a->region->group != b->region->group)
        return a->region->group < b->region->group ? -1 : 1;
    int memory = pool_memory_compare(a->region, b->region);
    if (memory != 0)
        return memory;
    return a->first < b->first ? -1 : a->first > b->first;
}

static struct place place_of(const struct wire_region *region, uint32_t r)
{
    bool pointer = region->handle == STRAIT_HANDLE_POINTER;
    return (struct place){.region = region, .r = r, .first = region->offset + (pointer ? region->pointer : 0)};
}

static bool share_memory(const struct place *a, const struct place *b)
{
    return a->region->group == b->region->group && pool_memory_compare(a->region, b->region) == 0 &&
           b->first - a->first < a->region->row_bytes;
}

/* Regions of a group share page ids, so memory that they have in common would be written twice: the usual mistake is to
 * register one tensor under two layers. This finds regions whose first rows overlap. Interleaved regions are fine (K
 * and V in one page stride). Overlaps that begin later are not looked for; they harm only the client that made them.
 * Groups may share memory: keeping their ids apart is the framework's business. */
static enum strait_status check_places(const struct message_pool_register *registration, const struct pool_why *why)
{
    uint32_t count = registration->region_count;
    struct place *places = malloc(count * sizeof(places[0]));
    enum strait_status status = STRAIT_OK;
    if (places == NULL)
        return pool_refuse(why, STRAIT_ERR_NO_MEMORY, "no memory");
    for (uint32_t r = 0; r < count; r++)
        places[r] = place_of(&registration->regions[r], r);
    qsort(places, count, sizeof(places[0]), place_compare);
    for (uint32_t i = 1; i < count && status == STRAIT_OK; i++) {
        if (share_memory(&places[i - 1], &places[i]))
            status = pool_refuse(why, STRAIT_ERR_INVALID, "regions %u and %u lie in the same memory", places[i - 1].r,
                                 places[i].r);
    }
    free(places);
    return status;
}

enum strait_status pool_check(const struct message_pool_register *registration, const struct pool_context *context,
                              const struct pool_why *why)
{
    if (registration->region_count == 0 || registration->region_count > STRAIT_REGIONS_MAX)
        return pool_refuse(why, STRAIT_ERR_INVALID, "%u regions, 1 to %u are possible", registration->region_count,
                           STRAIT_REGIONS_MAX);
    if (registration->coding > STRAIT_CODING_TIERED)
        return pool_refuse(why, STRAIT_ERR_UNSUPPORTED, "coding %u is not known", registration->coding);
    for (uint32_t r = 0; r < registration->region_count; r++) {
        enum strait_status status = check_region(registration, r, context, why);
        if (status != STRAIT_OK)
            return status;
    }
    enum strait_status status = check_groups(registration, why);
    return status == STRAIT_OK ? check_places(registration, why) : status;
}
