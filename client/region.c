#include <fcntl.h>
#include <sys/stat.h>

#include <strait/codec.h>

#include "client/client.h"
#include "internal/element.h"

/* ---- One region -------------------------------------------------------------------------------------------------- */

static bool names_valid(const struct strait_pool_region *region)
{
    return region->element <= STRAIT_ELEMENT_FP8_E5M2 && region->role <= STRAIT_ROLE_V && region->layer >= -1 &&
           region->device >= -1 && region->group < STRAIT_GROUPS_MAX;
}

static bool page_valid(const struct strait_pool_region *region)
{
    uint64_t bytes = (uint64_t)region->rows * region->row_bytes;
    return region->page_count > 0 && bytes > 0 && bytes <= STRAIT_PAGE_BYTES_MAX;
}

static bool aligned(const struct strait_pool_region *region)
{
    uint64_t all = region->offset | region->page_stride | region->row_bytes | (uint64_t)(uintptr_t)region->pointer;
    if (region->rows > 1)
        all |= region->row_stride;
    return all % element_bytes(region->element) == 0;
}

/* Bytes from the start of the first to the end of the last of `count` pieces; false: overflows 64 bits. */
static bool span_of(uint64_t count, uint64_t stride, uint64_t piece, uint64_t *span)
{
    uint64_t before;
    return !__builtin_mul_overflow(count - 1, stride, &before) && !__builtin_add_overflow(before, piece, span);
}

/* Pages must not share bytes: either whole pages lie one after another, or row i of all pages does, for each i. */
static bool disjoint(const struct strait_pool_region *region, uint64_t page_span)
{
    uint64_t rows_span;
    if (region->rows > 1 && region->row_stride < region->row_bytes)
        return false;
    if (region->page_count == 1 || region->page_stride >= page_span)
        return true;
    return region->rows > 1 && region->page_stride >= region->row_bytes &&
           span_of(region->page_count, region->page_stride, region->row_bytes, &rows_span) &&
           region->row_stride >= rows_span;
}

/* End of the region, in bytes from the beginning of its memory. */
static bool extent_of(const struct strait_pool_region *region, uint64_t *end)
{
    uint64_t page_span, pages_span;
    return span_of(region->rows, region->row_stride, region->row_bytes, &page_span) && disjoint(region, page_span) &&
           span_of(region->page_count, region->page_stride, page_span, &pages_span) &&
           !__builtin_add_overflow(pages_span, region->offset, end);
}

/* ---- Its memory -------------------------------------------------------------------------------------------------- */

static bool memfd_holds(int fd, uint64_t end)
{
    struct stat stat;
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(fd, &stat) == 0 && stat.st_size >= 0 &&
           (uint64_t)stat.st_size >= end;
}

static bool pointer_holds(const void *pointer, uint64_t end)
{
    return pointer != NULL && end <= UINTPTR_MAX - (uintptr_t)pointer;
}

/* GPU handles are checked by the daemon, which can open them. */
static bool memory_valid(const struct strait_pool_region *region, uint64_t end, bool embedded)
{
    switch (region->handle) {
    case STRAIT_HANDLE_MEMFD:
        return region->device == -1 && memfd_holds(region->fd, end);
    case STRAIT_HANDLE_POINTER:
        return embedded && pointer_holds(region->pointer, end);
    case STRAIT_HANDLE_CUDA_IPC:
        return region->device >= 0;
    case STRAIT_HANDLE_CUDA_VMM:
        return region->device >= 0 && fcntl(region->fd, F_GETFD) >= 0;
    default:
        return false;
    }
}

static bool region_valid(const struct strait_pool_region *region, bool embedded)
{
    struct strait_pool_region checked = *region;
    uint64_t end;
    if (checked.handle != STRAIT_HANDLE_POINTER)
        checked.pointer = NULL;
    if (checked.rows == 1)
        checked.row_stride = 0;
    return names_valid(&checked) && page_valid(&checked) && aligned(&checked) && extent_of(&checked, &end) &&
           memory_valid(&checked, end, embedded);
}

/* ---- All of them ------------------------------------------------------------------------------------------------- */

/* Groups are counted from 0 without gaps, and each is of one element type. */
static bool groups_valid(const struct strait_pool_region *regions, uint32_t count)
{
    uint32_t elements[STRAIT_GROUPS_MAX], highest = 0;
    bool seen[STRAIT_GROUPS_MAX] = {false};
    for (uint32_t i = 0; i < count; i++) {
        uint32_t group = regions[i].group;
        if (seen[group] && elements[group] != regions[i].element)
            return false;
        seen[group] = true;
        elements[group] = regions[i].element;
        highest = group > highest ? group : highest;
    }
    for (uint32_t group = 0; group <= highest; group++)
        if (!seen[group])
            return false;
    return true;
}

enum strait_status regions_check(const struct strait_pool_region *regions, uint32_t count, bool embedded)
{
    if (regions == NULL || count == 0 || count > STRAIT_REGIONS_MAX)
        return STRAIT_ERR_INVALID;
    for (uint32_t i = 0; i < count; i++)
        if (!region_valid(&regions[i], embedded))
            return STRAIT_ERR_INVALID;
    return groups_valid(regions, count) ? STRAIT_OK : STRAIT_ERR_INVALID;
}
