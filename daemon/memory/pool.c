#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/memory/arena.h"
#include "daemon/memory/limits.h"
#include "daemon/memory/pool.h"
#include "internal/element.h"
#include "internal/memfd.h"

#define POOL_IDS_MAX (64u * 1024 * 1024) /* page ids of all groups together; each costs 4 bytes */

/* Memory that holds regions. */
struct pool_mapping {
    uint8_t *base;
    size_t size;
    bool borrowed;  /* a client's pointer in embedded mode: not ours to unmap */
    int32_t device; /* -1: the host */
    struct device_memory memory;
};

/* Receives the text of an error, for people. */
struct pool_why {
    char *text;
    size_t size;
};

/* Writes the text; returns `status`. */
static enum strait_status refuse(const struct pool_why *why, enum strait_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static enum strait_status refuse(const struct pool_why *why, enum strait_status status, const char *format, ...)
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
            return refuse(why, STRAIT_ERR_INVALID, "region %u: no descriptor came for it", r);
        break;
    case STRAIT_HANDLE_POINTER:
        if (!context->embedded)
            return refuse(why, STRAIT_ERR_INVALID, "region %u: pointers are for embedded mode only", r);
        if (region->pointer == 0)
            return refuse(why, STRAIT_ERR_INVALID, "region %u: null pointer", r);
        break;
    case STRAIT_HANDLE_CUDA_IPC:
        if (region->ipc.size != DEVICE_EVENT_BYTES)
            return refuse(why, STRAIT_ERR_INVALID, "region %u: an IPC handle of %zu bytes", r, region->ipc.size);
        break;
    default:
        return refuse(why, STRAIT_ERR_UNSUPPORTED, "region %u: memory of handle type %u is not supported", r,
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
        return refuse(why, STRAIT_ERR_INVALID, "region %u: memory of that kind is not on device %d", r, region->device);
    if (region->device >= 0 && context->devices == NULL)
        return refuse(why, STRAIT_ERR_UNSUPPORTED, "region %u: memory of GPUs is not supported here", r);
    return STRAIT_OK;
}

static enum strait_status check_kind(const struct wire_region *region, uint32_t r, const struct pool_why *why)
{
    if (region->element > STRAIT_ELEMENT_FP8_E5M2)
        return refuse(why, STRAIT_ERR_UNSUPPORTED, "region %u: element type %u is not known", r, region->element);
    if (region->role > STRAIT_ROLE_KV)
        return refuse(why, STRAIT_ERR_UNSUPPORTED, "region %u: role %u is not known", r, region->role);
    if (region->layout > STRAIT_LAYOUT_HND)
        return refuse(why, STRAIT_ERR_UNSUPPORTED, "region %u: layout %u is not known", r, region->layout);
    if (region->layer < -1)
        return refuse(why, STRAIT_ERR_INVALID, "region %u: layer %d", r, region->layer);
    if (region->group >= STRAIT_GROUPS_MAX)
        return refuse(why, STRAIT_ERR_INVALID, "region %u: group %u, the last one possible is %u", r, region->group,
                      STRAIT_GROUPS_MAX - 1);
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

/* Bytes from the beginning of a region's page 0 to the end of its last page. The region has been checked. */
static uint64_t region_span(const struct wire_region *region)
{
    uint64_t span = 0;
    (void)all_span(region, &span); /* it did not overflow when it was checked */
    return span;
}

static enum strait_status check_sizes(const struct wire_region *region, uint32_t r, const struct pool_why *why)
{
    uint64_t page_bytes = (uint64_t)region->rows * region->row_bytes, span, end;
    if (region->page_count == 0 || page_bytes == 0)
        return refuse(why, STRAIT_ERR_INVALID, "region %u: %u pages of %u rows of %u bytes", r, region->page_count,
                      region->rows, region->row_bytes);
    if (page_bytes > STRAIT_PAGE_BYTES_MAX)
        return refuse(why, STRAIT_ERR_INVALID, "region %u: pages of %llu bytes, at most %u are possible", r,
                      (unsigned long long)page_bytes, STRAIT_PAGE_BYTES_MAX);
    if (!all_span(region, &span) || __builtin_add_overflow(region->offset, span, &end) ||
        __builtin_add_overflow(end, region->handle == STRAIT_HANDLE_POINTER ? region->pointer : 0, &end) ||
        end > INT64_MAX)
        return refuse(why, STRAIT_ERR_INVALID, "region %u: offset and strides lead beyond any memory", r);
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
        return refuse(why, STRAIT_ERR_INVALID, "region %u: its pages overlap one another", r);
    if (!is_aligned(region))
        return refuse(why, STRAIT_ERR_INVALID,
                      "region %u: offset, strides or row bytes are no multiples of its "
                      "element's size",
                      r);
    if (!heads_are_valid(region->head_first, region->heads, region->heads_total))
        return refuse(why, STRAIT_ERR_INVALID, "region %u: %u heads from %u on are not among %u", r, region->heads,
                      region->head_first, region->heads_total);
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
        return refuse(why, STRAIT_ERR_INVALID, "region 0: the first group is 0, not %u", regions[0].group);
    for (uint32_t r = 1; r < registration->region_count; r++) {
        bool same = regions[r].group == regions[r - 1].group;
        if (!same && regions[r].group != regions[r - 1].group + 1)
            return refuse(why, STRAIT_ERR_INVALID, "region %u: group %u follows group %u", r, regions[r].group,
                          regions[r - 1].group);
        if (same && regions[r].element != regions[r - 1].element)
            return refuse(why, STRAIT_ERR_INVALID, "region %u: another element type than the rest of its group", r);
        if (same && regions[r].device != regions[r - 1].device)
            return refuse(why, STRAIT_ERR_INVALID,
                          "region %u: on device %d, the rest of its group on %d; a group is on one device", r,
                          regions[r].device, regions[r - 1].device);
        ids += same ? 0 : regions[r].page_count;
    }
    if (ids > POOL_IDS_MAX)
        return refuse(why, STRAIT_ERR_INVALID, "%llu page ids, at most %u are possible", (unsigned long long)ids,
                      POOL_IDS_MAX);
    return STRAIT_OK;
}

/* Orders regions by the memory that they name: 0 when it is the same as far as the registration tells. */
static int memory_compare(const struct wire_region *a, const struct wire_region *b)
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
    int memory = memory_compare(a->region, b->region);
    if (memory != 0)
        return memory;
    return a->first < b->first ? -1 : a->first > b->first;
}

static struct place place_of(const struct wire_region *region, uint32_t r)
{
    bool pointer = region->handle == STRAIT_HANDLE_POINTER;
    return (struct place){.region = region, .r = r, .first = region->offset + (pointer ? region->pointer : 0)};
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
        return refuse(why, STRAIT_ERR_NO_MEMORY, "no memory");
    for (uint32_t r = 0; r < count; r++)
        places[r] = place_of(&registration->regions[r], r);
    qsort(places, count, sizeof(places[0]), place_compare);
    for (uint32_t i = 1; i < count && status == STRAIT_OK; i++) {
        if (places[i - 1].region->group == places[i].region->group &&
            memory_compare(places[i - 1].region, places[i].region) == 0 &&
            places[i].first - places[i - 1].first < places[i - 1].region->row_bytes)
            status = refuse(why, STRAIT_ERR_INVALID, "regions %u and %u lie in the same memory", places[i - 1].r,
                            places[i].r);
    }
    free(places);
    return status;
}

/* Checks everything that does not need a look at memory or descriptors. ERR_INVALID, ERR_UNSUPPORTED, ERR_NO_MEMORY. */
static enum strait_status check(const struct message_pool_register *registration, const struct pool_context *context,
                                const struct pool_why *why)
{
    if (registration->region_count == 0 || registration->region_count > STRAIT_REGIONS_MAX)
        return refuse(why, STRAIT_ERR_INVALID, "%u regions, 1 to %u are possible", registration->region_count,
                      STRAIT_REGIONS_MAX);
    if (registration->coding > STRAIT_CODING_PARTS)
        return refuse(why, STRAIT_ERR_UNSUPPORTED, "coding %u is not known", registration->coding);
    for (uint32_t r = 0; r < registration->region_count; r++) {
        enum strait_status status = check_region(registration, r, context, why);
        if (status != STRAIT_OK)
            return status;
    }
    enum strait_status status = check_groups(registration, why);
    return status == STRAIT_OK ? check_places(registration, why) : status;
}

/* Memory of GPUs in a pool. */

/* Maps GPU memory of which region r needs `size` bytes, from the beginning of the memory or, for a pointer, from
 * `first`. */
static enum strait_status map_device(const struct pool_context *context, const struct wire_region *region, uint32_t r,
                                     const int *fds, uint64_t first, uint64_t size, struct pool_mapping *mapping,
                                     const struct pool_why *why)
{
    char text[256] = "";
    const struct device_why reason = {.text = text, .size = sizeof(text)};
    const struct device_handle handle = {.kind = (enum strait_handle)region->handle,
                                         .ipc = region->ipc.data,
                                         .fd = region->handle == STRAIT_HANDLE_CUDA_VMM ? fds[region->fd] : -1,
                                         .pointer = (uint8_t *)(uintptr_t)first,
                                         .size = size};
    *mapping = (struct pool_mapping){.device = region->device};
    enum strait_status status = devices_open(context->devices, region->device, &reason);
    if (status == STRAIT_OK)
        status = devices_map(context->devices, region->device, &handle, &mapping->memory, &reason);
    if (status != STRAIT_OK)
        return refuse(why, status, "region %u: %s", r, text);
    mapping->base = mapping->memory.base;
    mapping->size = mapping->memory.size;
    return STRAIT_OK;
}

/* The memory of a pool: one mapping for each memfd or handle, however many regions lie in it. */

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/* Bytes [first, end) that a region needs: offsets in the memory that it names or, for pointers, addresses in this
 * process. */
struct need {
    const struct wire_region *region;
    uint32_t r;
    uint64_t first, end;
};

static bool is_pointer(const struct wire_region *region)
{
    return region->handle == STRAIT_HANDLE_POINTER;
}

static int need_compare(const void *left, const void *right)
{
    const struct need *a = left, *b = right;
    int memory = memory_compare(a->region, b->region);
    if (memory != 0)
        return memory;
    return a->first < b->first ? -1 : a->first > b->first;
}

static struct need need_of(const struct wire_region *region, uint32_t r)
{
    uint64_t first = region->offset + (is_pointer(region) ? region->pointer : 0);
    return (struct need){.region = region, .r = r, .first = first, .end = first + region_span(region)};
}

/* How many of the sorted needs one mapping serves, and the range of it: all needs of a memfd, but only connected ones
 * of the process's own memory. */
static uint32_t merge_needs(const struct need *needs, uint32_t count, struct need *all)
{
    uint32_t i = 1;
    *all = needs[0];
    for (; i < count && memory_compare(needs[i].region, all->region) == 0 &&
           (!is_pointer(all->region) || needs[i].first <= all->end);
         i++)
        all->end = needs[i].end > all->end ? needs[i].end : all->end;
    return i;
}

/* ---- memfds ------------------------------------------------------------------------------------------------------ */

/* Checks that the file cannot be truncated under us, and returns its length. */
static enum strait_status check_memfd(int fd, const struct need *need, struct stat *info, const struct pool_why *why)
{
    if (fstat(fd, info) != 0)
        return refuse(why, STRAIT_ERR_INVALID, "region %u: bad descriptor: %s", need->r, strerror(errno));
    int seals = S_ISREG(info->st_mode) ? fcntl(fd, F_GET_SEALS) : -1;
    if (seals < 0)
        return refuse(why, STRAIT_ERR_INVALID, "region %u: its descriptor is no memfd", need->r);
    if ((seals & F_SEAL_SHRINK) == 0)
        return refuse(why, STRAIT_ERR_INVALID, "region %u: its memfd is not sealed against shrinking", need->r);
    if ((seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0 || (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR)
        return refuse(why, STRAIT_ERR_INVALID, "region %u: its memfd cannot be written", need->r);
    if ((uint64_t)info->st_size < need->end)
        return refuse(why, STRAIT_ERR_INVALID, "region %u: its memfd has %llu bytes, its regions end at %llu", need->r,
                      (unsigned long long)info->st_size, (unsigned long long)need->end);
    return STRAIT_OK;
}

static enum strait_status refuse_mapping(int error, uint64_t bytes, const struct need *need, const struct pool_why *why)
{
    char limits[128];
    memory_rlimits_text(limits, sizeof(limits));
    return refuse(why, error == ENOMEM ? STRAIT_ERR_NO_MEMORY : STRAIT_ERR_IO,
                  "region %u: the daemon cannot map its %llu MiB: %s%s%s%s", need->r, (unsigned long long)(bytes >> 20),
                  strerror(error), limits[0] != 0 ? " (" : "", limits, limits[0] != 0 ? ")" : "");
}

/* Mappings begin and end at whole pages, which for hugetlb memory are large. */
static enum strait_status map_memfd(int fd, struct need *need, const struct pool_why *why, struct pool_mapping *mapping)
{
    struct stat info;
    enum strait_status status = check_memfd(fd, need, &info, why);
    if (status != STRAIT_OK)
        return status;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if ((uint64_t)info.st_blksize > page)
        page = (uint64_t)info.st_blksize;
    uint64_t last = (uint64_t)info.st_size, end = (need->end + page - 1) / page * page;
    need->first -= need->first % page;
    uint8_t *base = mmap(NULL, (size_t)(end - need->first), PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)need->first);
    if (base == MAP_FAILED)
        return refuse_mapping(errno, end - need->first, need, why);
    mapping->base = base;
    mapping->size = (size_t)(end - need->first);
    need->end = end < last ? end : last; /* nothing behind the file's end may be touched */
    return STRAIT_OK;
}

#define PAGE_TABLE_SHARE 512u /* mapping memory takes one part in so many of it, if no huge pages are there */

/* Checks that the worker pays for its memory, and that this process can pay for mapping it: page tables are taken like
 * other memory, and a group that has none left is killed. */
static enum strait_status check_cost(int fd, const struct need *need, const struct pool_why *why)
{
    struct memory_limit limit;
    char what[400];
    if (memfd_is_hugetlb(fd))
        return STRAIT_OK;
    const uint64_t hole = memfd_hole(fd, need->first, need->end);
    if (hole < need->end)
        return refuse(why, STRAIT_ERR_INVALID,
                      "region %u: its memory was never touched, from byte %llu of the memfd on: the daemon would be "
                      "charged for it",
                      need->r, (unsigned long long)hole);
    memory_limit_read("", &limit);
    if (!memory_fits((need->end - need->first) / PAGE_TABLE_SHARE, &limit, what, sizeof(what)))
        return refuse(why, STRAIT_ERR_NO_MEMORY, "region %u: the daemon's page tables for its %llu MiB: %s", need->r,
                      (unsigned long long)((need->end - need->first) >> 20), what);
    return STRAIT_OK;
}

static enum strait_status fault_in(const struct need *need, struct pool_mapping *mapping, const struct pool_why *why)
{
    int error = map_populate(mapping->base, (size_t)(need->end - need->first));
    if (error == EINVAL && !mapping->borrowed)
        map_touch(mapping->base, (size_t)(need->end - need->first));
    if (error == 0 || error == EINVAL) /* pointers: memory mapped by a driver is present already */
        return STRAIT_OK;
    if (mapping->borrowed)
        return refuse(why, STRAIT_ERR_INVALID, "region %u: no memory to write at its pointer: %s", need->r,
                      strerror(error));
    return refuse(why, error == ENOMEM ? STRAIT_ERR_NO_MEMORY : STRAIT_ERR_IO, "region %u: its memory: %s", need->r,
                  strerror(error));
}

/* ---- All mappings ------------------------------------------------------------------------------------------------ */

/* Maps memory of a GPU, from its beginning; takes no host memory. */
static enum strait_status map_on_device(struct pool *pool, struct need *all, const int *fds,
                                        const struct pool_context *context, const struct pool_why *why)
{
    uint64_t first = is_pointer(all->region) ? all->first : 0;
    struct pool_mapping *mapping = &pool->mappings[pool->mapping_count];
    enum strait_status status = map_device(context, all->region, all->r, fds, first, all->end - first, mapping, why);
    if (status != STRAIT_OK)
        return status;
    pool->devices = context->devices;
    pool->mapping_count++;
    pool->device_bytes += all->end - all->first;
    all->first = first;
    return STRAIT_OK;
}

static enum strait_status map_on_host(struct pool *pool, struct need *all, const int *fds, uint64_t bytes_max,
                                      const struct pool_why *why)
{
    struct pool_mapping *mapping = &pool->mappings[pool->mapping_count];
    *mapping = (struct pool_mapping){.base = (uint8_t *)(uintptr_t)all->first, .borrowed = true, .device = -1};
    if (!is_pointer(all->region)) {
        enum strait_status status = map_memfd(fds[all->region->fd], all, why, mapping);
        if (status != STRAIT_OK)
            return status;
        mapping->borrowed = false;
    }
    pool->mapping_count++;
    if (all->end - all->first > bytes_max - pool->bytes) /* costs nothing yet: memory is taken by faulting it in */
        return refuse(why, STRAIT_ERR_NO_MEMORY, "region %u: more than the %llu bytes that may be mapped", all->r,
                      (unsigned long long)bytes_max);
    pool->bytes += all->end - all->first;
    enum strait_status status = mapping->borrowed ? STRAIT_OK : check_cost(fds[all->region->fd], all, why);
    return status == STRAIT_OK ? fault_in(all, mapping, why) : status;
}

static enum strait_status map_needs(struct pool *pool, const struct need *needs, uint32_t count, const int *fds,
                                    const struct pool_context *context, uint8_t **bases, const struct pool_why *why)
{
    for (uint32_t i = 0, served; i < count; i += served) {
        struct need all;
        served = merge_needs(&needs[i], count - i, &all);
        enum strait_status status = all.region->device >= 0 ? map_on_device(pool, &all, fds, context, why)
                                                            : map_on_host(pool, &all, fds, context->bytes_max, why);
        if (status != STRAIT_OK)
            return status;
        for (uint32_t k = i; k < i + served; k++)
            bases[needs[k].r] = pool->mappings[pool->mapping_count - 1].base + (needs[k].first - all.first);
    }
    return STRAIT_OK;
}

/* Maps the memory of all regions into pool->mappings; bases[r] receives the beginning of region r. pool_unmap undoes
 * what was mapped, also on failure. */
static enum strait_status map_memory(struct pool *pool, const struct message_pool_register *registration,
                                     const int *fds, const struct pool_context *context, uint8_t **bases,
                                     const struct pool_why *why)
{
    uint32_t count = registration->region_count;
    struct need *needs = malloc(count * sizeof(needs[0]));
    pool->mappings = calloc(count, sizeof(pool->mappings[0]));
    enum strait_status status = STRAIT_ERR_NO_MEMORY;
    if (needs != NULL && pool->mappings != NULL) {
        for (uint32_t r = 0; r < count; r++)
            needs[r] = need_of(&registration->regions[r], r);
        qsort(needs, count, sizeof(needs[0]), need_compare);
        status = map_needs(pool, needs, count, fds, context, bases, why);
    } else {
        refuse(why, status, "no memory");
    }
    free(needs);
    return status;
}

/* Tracks the use of pages: a page is in one live expectation and nothing else, or in any number of offers. */

static uint32_t id_at(const struct wire_page_list *list, uint32_t i)
{
    return list->ids == NULL ? list->first_id + i : list->ids[i];
}

bool pool_has(const struct pool *pool, const struct wire_page_list *list)
{
    if (list->group >= pool->group_count)
        return false;
    uint32_t page_count = pool->groups[list->group].page_count;
    if (list->ids == NULL)
        return (uint64_t)list->first_id + list->count <= page_count;
    for (uint32_t i = 0; i < list->count; i++)
        if (list->ids[i] >= page_count)
            return false;
    return true;
}

static uint64_t bit_of(uint32_t id)
{
    return 1ull << id % 64;
}

static bool mark(struct pool_group *group, uint32_t id, bool expected)
{
    uint64_t *bits = &group->expected[id / 64];
    if ((*bits & bit_of(id)) != 0 || (expected ? group->uses[id] != 0 : group->uses[id] == UINT32_MAX))
        return false;
    if (expected)
        *bits |= bit_of(id);
    else
        group->uses[id]++;
    return true;
}

static void unmark(struct pool_group *group, uint32_t id, bool expected)
{
    if (expected)
        group->expected[id / 64] &= ~bit_of(id);
    else if (group->uses[id] > 0)
        group->uses[id]--;
}

bool pool_mark(struct pool *pool, const struct wire_page_list *list, bool expected, uint32_t *used)
{
    uint32_t done = 0;
    *used = 0;
    if (!pool_has(pool, list))
        return false;
    struct pool_group *group = &pool->groups[list->group];
    while (done < list->count && mark(group, id_at(list, done), expected))
        done++;
    if (done == list->count)
        return true;
    *used = id_at(list, done);
    while (done > 0)
        unmark(group, id_at(list, --done), expected);
    return false;
}

#define AHEAD 32u /* ids are in any order: prefetching the counts hides much of the memory latency */

static void release_group(struct pool_group *group, const struct page_group *pages, bool expected)
{
    for (uint32_t i = 0; i < pages->id_count; i++) {
        if (!expected && i + AHEAD < pages->id_count && pages->ids[i + AHEAD] < group->page_count)
            __builtin_prefetch(&group->uses[pages->ids[i + AHEAD]], 1);
        if (pages->ids[i] < group->page_count)
            unmark(group, pages->ids[i], expected);
    }
}

void pool_release(struct pool *pool, const struct page_set *pages, bool expected)
{
    for (uint32_t g = 0; g < pages->group_count && g < pool->group_count; g++)
        release_group(&pool->groups[g], &pages->groups[g], expected);
}

/* ---- Description ------------------------------------------------------------------------------------------------- */

static struct blob_region describe_region(const struct wire_region *region)
{
    return (struct blob_region){.group = region->group,
                                .layer = region->layer,
                                .role = region->role,
                                .element = region->element,
                                .rows = region->rows,
                                .row_bytes = region->row_bytes,
                                .heads = region->heads,
                                .page_count = region->page_count,
                                .layout = region->layout,
                                .tokens = region->tokens,
                                .head_first = region->head_first,
                                .heads_total = region->heads_total};
}

/* Computes the geometry's hash. Regions must come in the pool's order, because peers refer to them by their places. */
static enum strait_status describe(struct pool *pool, const struct message_pool_register *registration,
                                   const struct pool_why *why)
{
    uint32_t count = registration->region_count, moved = 0;
    struct blob_region *regions = malloc(count * sizeof(regions[0]));
    uint32_t *order = malloc(count * sizeof(order[0]));
    enum strait_status status = STRAIT_OK;
    if (regions == NULL || order == NULL) {
        status = refuse(why, STRAIT_ERR_NO_MEMORY, "no memory");
    } else {
        for (uint32_t r = 0; r < count; r++)
            regions[r] = describe_region(&registration->regions[r]);
        blob_sort(regions, order, count);
        while (moved < count && order[moved] == moved)
            moved++;
        if (moved < count)
            status = refuse(why, STRAIT_ERR_INVALID, "region %u: not in the order of group, layer and role", moved);
        else
            pool->geometry = blob_geometry(regions, count, registration->compat);
    }
    free(order);
    pool->described = regions;
    pool->described_count = count;
    if (registration->compat.size != 0 && registration->compat.size <= STRAIT_COMPAT_BYTES_MAX)
        memcpy(pool->compat, registration->compat.data, registration->compat.size);
    return status;
}

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

static bool group_init(struct pool_group *group, const struct wire_region *regions, uint32_t region_count)
{
    group->region_count = region_count;
    group->element = (enum strait_element)regions[0].element;
    group->device = regions[0].device;
    group->page_count = regions[0].page_count;
    for (uint32_t r = 1; r < region_count; r++)
        if (regions[r].page_count < group->page_count)
            group->page_count = regions[r].page_count;
    group->regions = calloc(region_count, sizeof(group->regions[0]));
    group->layers = calloc(region_count, sizeof(group->layers[0]));
    group->roles = calloc(region_count, sizeof(group->roles[0]));
    group->uses = calloc(group->page_count, sizeof(group->uses[0]));
    group->expected = calloc(group->page_count / 64 + 1u, sizeof(group->expected[0]));
    return group->regions != NULL && group->layers != NULL && group->roles != NULL && group->uses != NULL &&
           group->expected != NULL;
}

/* Fills in every group with its regions, whose bases are not known yet. */
static bool groups_init(struct pool *pool, const struct message_pool_register *registration)
{
    const struct wire_region *regions = registration->regions;
    uint32_t count = regions[registration->region_count - 1].group + 1, first = 0;
    const struct strait_region **lists = calloc(count, sizeof(lists[0]));
    uint32_t *region_counts = calloc(count, sizeof(region_counts[0]));
    pool->sizes = (struct region_sizes){.groups = lists, .region_counts = region_counts, .group_count = count};
    pool->groups = calloc(count, sizeof(pool->groups[0]));
    if (lists == NULL || region_counts == NULL || pool->groups == NULL)
        return false;
    for (pool->group_count = 0; pool->group_count < count;) {
        uint32_t g = pool->group_count++, end = first;
        while (end < registration->region_count && regions[end].group == g)
            end++;
        if (!group_init(&pool->groups[g], &regions[first], end - first))
            return false;
        lists[g] = pool->groups[g].regions;
        region_counts[g] = end - first;
        first = end;
    }
    return true;
}

static void place_regions(struct pool *pool, const struct wire_region *wire, uint8_t *const *bases)
{
    uint32_t r = 0;
    for (uint32_t g = 0; g < pool->group_count; g++)
        for (uint32_t i = 0; i < pool->groups[g].region_count; i++, r++) {
            pool->groups[g].layers[i] = wire[r].layer;
            pool->groups[g].roles[i] = (uint8_t)wire[r].role;
            pool->groups[g].regions[i] = (struct strait_region){.base = bases[r],
                                                                .page_stride = wire[r].page_stride,
                                                                .row_stride = wire[r].row_stride,
                                                                .page_count = wire[r].page_count,
                                                                .rows = wire[r].rows,
                                                                .row_bytes = wire[r].row_bytes};
        }
}

void pool_choose_tables(struct pool *pool, const struct strait_codebook *codebook)
{
    for (uint32_t g = 0; g < pool->group_count; g++)
        for (uint32_t i = 0; i < pool->groups[g].region_count; i++) {
            const struct pool_group *group = &pool->groups[g];
            const struct strait_class wanted = {.role = (enum strait_role)group->roles[i], .layer = group->layers[i]};
            group->regions[i].table = codebook == NULL ? 0 : strait_codebook_find(codebook, wanted);
        }
}

/* ---- The pool ---------------------------------------------------------------------------------------------------- */

/* Memory is mapped last, because that takes long. */
static enum strait_status fill(struct pool *pool, const struct message_pool_register *registration, const int *fds,
                               const struct pool_context *context, const struct pool_why *why)
{
    pool->id = registration->pool;
    pool->coding = registration->coding;
    enum strait_status status = describe(pool, registration, why);
    if (status != STRAIT_OK)
        return status;
    uint8_t **bases = calloc(registration->region_count, sizeof(bases[0]));
    if (bases == NULL || !groups_init(pool, registration))
        status = refuse(why, STRAIT_ERR_NO_MEMORY, "no memory");
    else
        status = map_memory(pool, registration, fds, context, bases, why);
    if (status == STRAIT_OK)
        place_regions(pool, registration->regions, bases);
    free(bases);
    return status;
}

enum strait_status pool_map(const struct message_pool_register *registration, const int *fds,
                            const struct pool_context *context, struct pool **pool, char *why, size_t why_size)
{
    const struct pool_why reason = {.text = why, .size = why_size};
    if (why_size > 0)
        why[0] = '\0';
    enum strait_status status = check(registration, context, &reason);
    if (status != STRAIT_OK)
        return status;
    struct pool *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return refuse(&reason, STRAIT_ERR_NO_MEMORY, "no memory");
    status = fill(made, registration, fds, context, &reason);
    if (status == STRAIT_OK)
        *pool = made;
    else
        pool_unmap(made);
    return status;
}

void pool_free_groups(struct pool *pool)
{
    for (uint32_t g = 0; g < pool->group_count; g++) {
        free(pool->groups[g].regions);
        free(pool->groups[g].layers);
        free(pool->groups[g].roles);
        free(pool->groups[g].uses);
        free(pool->groups[g].expected);
    }
    free((void *)pool->sizes.groups);
    free((void *)pool->sizes.region_counts);
    free(pool->groups);
}

void pool_unmap(struct pool *pool)
{
    if (pool == NULL)
        return;
    for (uint32_t i = 0; i < pool->mapping_count; i++) {
        struct pool_mapping *mapping = &pool->mappings[i];
        if (mapping->device >= 0)
            devices_unmap(pool->devices, mapping->device, &mapping->memory);
        else if (!mapping->borrowed)
            map_drop(mapping->base, mapping->size);
    }
    pool_free_groups(pool);
    free(pool->described);
    free(pool->mappings);
    free(pool);
}
