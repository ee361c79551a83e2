/* The memory of a pool: one mapping for each memfd or handle, however many regions lie in it. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/memory/map.h"
#include "daemon/memory/pool_private.h"

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
    int memory = pool_memory_compare(a->region, b->region);
    if (memory != 0)
        return memory;
    return a->first < b->first ? -1 : a->first > b->first;
}

static struct need need_of(const struct wire_region *region, uint32_t r)
{
    uint64_t first = region->offset + (is_pointer(region) ? region->pointer : 0);
    return (struct need){.region = region, .r = r, .first = first, .end = first + pool_region_span(region)};
}

/* How many of the sorted needs one mapping serves, and the range of it: all needs of a memfd, but only connected ones
 * of the process's own memory. */
static uint32_t merge_needs(const struct need *needs, uint32_t count, struct need *all)
{
    uint32_t i = 1;
    *all = needs[0];
    for (; i < count && pool_memory_compare(needs[i].region, all->region) == 0 &&
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
        return pool_refuse(why, STRAIT_ERR_INVALID, "region %u: bad descriptor: %s", need->r, strerror(errno));
    int seals = S_ISREG(info->st_mode) ? fcntl(fd, F_GET_SEALS) : -1;
    if (seals < 0)
        return pool_refuse(why, STRAIT_ERR_INVALID, "region %u: its descriptor is no memfd", need->r);
    if ((seals & F_SEAL_SHRINK) == 0)
        return pool_refuse(why, STRAIT_ERR_INVALID, "region %u: its memfd is not sealed against shrinking", need->r);
    if ((seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0 || (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR)
        return pool_refuse(why, STRAIT_ERR_INVALID, "region %u: its memfd cannot be written", need->r);
    if ((uint64_t)info->st_size < need->end)
        return pool_refuse(why, STRAIT_ERR_INVALID, "region %u: its memfd has %llu bytes, its regions end at %llu",
                           need->r, (unsigned long long)info->st_size, (unsigned long long)need->end);
    return STRAIT_OK;
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
        return pool_refuse(why, errno == ENOMEM ? STRAIT_ERR_NO_MEMORY : STRAIT_ERR_IO, "region %u: mmap: %s", need->r,
                           strerror(errno));
    mapping->base = base;
    mapping->size = (size_t)(end - need->first);
    need->end = end < last ? end : last; /* nothing behind the file's end may be touched */
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
        return pool_refuse(why, STRAIT_ERR_INVALID, "region %u: no memory to write at its pointer: %s", need->r,
                           strerror(error));
    return pool_refuse(why, error == ENOMEM ? STRAIT_ERR_NO_MEMORY : STRAIT_ERR_IO, "region %u: its memory: %s",
                       need->r, strerror(error));
}

/* ---- All mappings ------------------------------------------------------------------------------------------------ */

/* Maps memory of a GPU, from its beginning; takes no host memory. */
static enum strait_status map_on_device(struct pool *pool, struct need *all, const int *fds,
                                        const struct pool_context *context, const struct pool_why *why)
{
    uint64_t first = is_pointer(all->region) ? all->first : 0;
    struct pool_mapping *mapping = &pool->mappings[pool->mapping_count];
    enum strait_status status =
        pool_map_device(context, all->region, all->r, fds, first, all->end - first, mapping, why);
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
        return pool_refuse(why, STRAIT_ERR_NO_MEMORY, "region %u: more than the %llu bytes that may be mapped", all->r,
                           (unsigned long long)bytes_max);
    pool->bytes += all->end - all->first;
    return fault_in(all, mapping, why);
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

enum strait_status pool_map_memory(struct pool *pool, const struct message_pool_register *registration, const int *fds,
                                   const struct pool_context *context, uint8_t **bases, const struct pool_why *why)
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
        pool_refuse(why, status, "no memory");
    }
    free(needs);
    return status;
}
