/* Pools: check of their regions, registration, removal. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <strait/codec.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/client.h"
#include "internal/element.h"
#include "internal/memfd.h"

/* ---- Check of a region ------------------------------------------------------------------------------------------- */

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

/* ---- Check of its memory ----------------------------------------------------------------------------------------- */

static bool memfd_holds(int fd, uint64_t end)
{
    struct stat stat;
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(fd, &stat) == 0 && stat.st_size >= 0 &&
           (uint64_t)stat.st_size >= end;
}

/* GPU handles are checked by the daemon, which can open them. */
static bool memory_valid(const struct strait_pool_region *region, uint64_t end, bool embedded)
{
    switch (region->handle) {
    case STRAIT_HANDLE_MEMFD:
        return region->device == -1 && memfd_holds(region->fd, end);
    case STRAIT_HANDLE_POINTER:
        return embedded && region->pointer != NULL && end <= UINTPTR_MAX - (uintptr_t)region->pointer;
    case STRAIT_HANDLE_CUDA_IPC:
        return region->device >= 0;
    case STRAIT_HANDLE_CUDA_VMM:
        return region->device >= 0 && fcntl(region->fd, F_GETFD) >= 0;
    default:
        return false;
    }
}

static bool is_unused(const uint64_t reserved[3])
{
    return (reserved[0] | reserved[1] | reserved[2]) == 0;
}

static bool region_valid(const struct strait_pool_region *region, bool embedded)
{
    struct strait_pool_region checked = *region;
    uint64_t end;
    if (checked.handle != STRAIT_HANDLE_POINTER)
        checked.pointer = NULL;
    if (checked.rows == 1)
        checked.row_stride = 0;
    uint64_t bytes = (uint64_t)checked.rows * checked.row_bytes;
    return is_unused(checked.reserved) && checked.element <= STRAIT_ELEMENT_FP8_E5M2 &&
           checked.role <= STRAIT_ROLE_KV && checked.layout <= STRAIT_LAYOUT_HND && checked.layer >= -1 &&
           checked.device >= -1 && checked.group < STRAIT_GROUPS_MAX && checked.page_count > 0 && bytes > 0 &&
           bytes <= STRAIT_PAGE_BYTES_MAX && aligned(&checked) && extent_of(&checked, &end) &&
           heads_are_valid(checked.head_first, checked.heads, checked.heads_total) &&
           memory_valid(&checked, end, embedded);
}

/* ---- Check of all regions ---------------------------------------------------------------------------------------- */

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

static enum strait_status regions_check(const struct strait_pool_region *regions, uint32_t count, bool embedded)
{
    if (regions == NULL || count == 0 || count > STRAIT_REGIONS_MAX)
        return STRAIT_ERR_INVALID;
    for (uint32_t i = 0; i < count; i++)
        if (!region_valid(&regions[i], embedded))
            return STRAIT_ERR_INVALID;
    return groups_valid(regions, count) ? STRAIT_OK : STRAIT_ERR_INVALID;
}

/* ---- Whose memory it is ------------------------------------------------------------------------------------------ */

#define TOUCH_BYTES ((size_t)64 << 20) /* mapped at a time */

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* Returns 0 or an errno. Other threads may write to the memory meanwhile. */
static int touch_piece(int fd, uint64_t at, size_t size)
{
    uint8_t *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)at);
    if (base == MAP_FAILED)
        return errno;
    int error = madvise(base, size, MADV_POPULATE_WRITE) == 0 ? 0 : errno;
    if (error == EINVAL) { /* a kernel before 5.14 */
        for (size_t byte = 0; byte < size; byte += 4096)
            __atomic_fetch_or(&base[byte], 0, __ATOMIC_RELAXED);
        error = 0;
    }
    munmap(base, size);
    return error;
}

/* Touches what was never touched, so that the control group of this process is charged for it, and not that of the
 * daemon. ERR_NO_MEMORY; the daemon says what else may be wrong. */
static enum strait_status touch(int fd, uint64_t first, uint64_t end)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (memfd_is_hugetlb(fd))
        return STRAIT_OK;
    for (uint64_t at = memfd_hole(fd, first, end); at < end; at = memfd_hole(fd, at, end)) {
        const uint64_t from = at - at % page, left = end - from;
        const size_t size = left < TOUCH_BYTES ? (size_t)left : TOUCH_BYTES;
        const int error = touch_piece(fd, from, size);
        if (error != 0)
            return error == ENOMEM ? STRAIT_ERR_NO_MEMORY : STRAIT_OK;
        at = from + size;
    }
    return STRAIT_OK;
}

static uint64_t end_of(const struct wire_region *region)
{
    return region->offset + (uint64_t)(region->page_count - 1) * region->page_stride +
           (uint64_t)(region->rows - 1) * (region->rows > 1 ? region->row_stride : 0) + region->row_bytes;
}

/* The daemon maps each memfd from the beginning of the first region in it to the end of the last. */
static enum strait_status touch_all(const struct strait_pool *pool)
{
    enum strait_status status = STRAIT_OK;
    for (uint32_t i = 0; i < pool->fd_count && status == STRAIT_OK; i++) {
        uint64_t first = UINT64_MAX, end = 0;
        for (uint32_t r = 0; r < pool->region_count; r++) {
            const struct wire_region *region = &pool->wire[r];
            if (region->handle != STRAIT_HANDLE_MEMFD || region->fd != i)
                continue;
            first = region->offset < first ? region->offset : first;
            end = end_of(region) > end ? end_of(region) : end;
        }
        if (first < end)
            status = touch(pool->fds[i], first, end);
    }
    return status;
}

/* ---- Regions in the pool's order --------------------------------------------------------------------------------- */

static struct blob_region describe(const struct strait_pool_region *region)
{
    return (struct blob_region){
        .group = region->group,
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
        .heads_total = region->heads_total,
    };
}

static struct wire_region wire_of(const struct strait_pool_region *region, uint32_t fd)
{
    return (struct wire_region){
        .handle = region->handle,
        .device = region->device,
        .fd = fd,
        .pointer = region->handle == STRAIT_HANDLE_POINTER ? (uintptr_t)region->pointer : 0,
        .offset = region->offset,
        .page_stride = region->page_stride,
        .row_stride = region->row_stride,
        .page_count = region->page_count,
        .rows = region->rows,
        .row_bytes = region->row_bytes,
        .element = region->element,
        .role = region->role,
        .layer = region->layer,
        .heads = region->heads,
        .group = region->group,
        .layout = region->layout,
        .tokens = region->tokens,
        .head_first = region->head_first,
        .heads_total = region->heads_total,
    };
}

_Static_assert(STRAIT_DESCRIPTORS_MAX == CHANNEL_FDS_MAX, "a registration is one message");

/* The index of a descriptor among the pool's duplicates: one for all regions in the same memfd. GPU handles share an
 * inode, so for them only equal descriptor numbers mean the same memory. */
static enum strait_status keep_fd(struct strait_pool *pool, const struct strait_pool_region *region,
                                  const int *originals, uint32_t *index)
{
    for (uint32_t i = 0; i < pool->fd_count; i++) {
        *index = i;
        if (originals[i] == region->fd)
            return STRAIT_OK;
        struct stat x, y;
        if (region->handle == STRAIT_HANDLE_MEMFD && fstat(originals[i], &x) == 0 && fstat(region->fd, &y) == 0 &&
            x.st_dev == y.st_dev && x.st_ino == y.st_ino)
            return STRAIT_OK;
    }
    if (pool->fd_count == CHANNEL_FDS_MAX)
        return STRAIT_ERR_INVALID;
    int fd = fcntl(region->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return STRAIT_ERR_IO;
    *index = pool->fd_count;
    pool->fds[pool->fd_count++] = fd;
    return STRAIT_OK;
}

static enum strait_status place_region(struct strait_pool *pool, uint32_t place,
                                       const struct strait_pool_region *region, int originals[CHANNEL_FDS_MAX])
{
    uint32_t index = 0, before = pool->fd_count;
    enum strait_status status = region->handle == STRAIT_HANDLE_MEMFD || region->handle == STRAIT_HANDLE_CUDA_VMM
                                    ? keep_fd(pool, region, originals, &index)
                                    : STRAIT_OK;
    if (status != STRAIT_OK)
        return status;
    if (pool->fd_count > before)
        originals[before] = region->fd;
    pool->wire[place] = wire_of(region, index);
    if (region->handle == STRAIT_HANDLE_CUDA_IPC) { /* the caller's bytes are borrowed: keep them behind the regions */
        uint8_t *ipc = (uint8_t *)(pool->wire + pool->region_count) + (size_t)place * sizeof(region->ipc);
        memcpy(ipc, region->ipc, sizeof(region->ipc));
        pool->wire[place].ipc = view_of(ipc, sizeof(region->ipc));
    }
    uint32_t *pages = &pool->group_pages[region->group];
    *pages = *pages == 0 || region->page_count < *pages ? region->page_count : *pages;
    pool->group_count = region->group >= pool->group_count ? region->group + 1 : pool->group_count;
    return STRAIT_OK;
}

static enum strait_status place_regions(struct strait_pool *pool, const struct strait_pool_region *regions)
{
    int originals[CHANNEL_FDS_MAX];
    uint32_t *order = malloc(pool->region_count * sizeof(*order));
    enum strait_status status = order != NULL ? STRAIT_OK : STRAIT_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < pool->region_count; i++)
        pool->regions[i] = describe(&regions[i]);
    if (status == STRAIT_OK)
        blob_sort(pool->regions, order, pool->region_count);
    for (uint32_t i = 0; i < pool->region_count && status == STRAIT_OK; i++)
        status = place_region(pool, i, &regions[order[i]], originals);
    free(order);
    return status;
}

/* ---- Create and destroy ------------------------------------------------------------------------------------------ */

static struct strait_pool *pool_allocate(struct strait_client *client, uint32_t regions)
{
    struct strait_pool *pool = calloc(1, sizeof(*pool));
    if (pool == NULL)
        return NULL;
    pool->client = client;
    pool->region_count = regions;
    pool->wire = calloc(regions, sizeof(*pool->wire) + sizeof(((struct strait_pool_region *)NULL)->ipc));
    pool->regions = calloc(regions, sizeof(*pool->regions));
    pool->group_pages = calloc(STRAIT_GROUPS_MAX, sizeof(*pool->group_pages));
    pool->fds = calloc(CHANNEL_FDS_MAX, sizeof(*pool->fds));
    if (pool->wire != NULL && pool->regions != NULL && pool->group_pages != NULL && pool->fds != NULL)
        return pool;
    pool_destroy(pool);
    return NULL;
}

static void unlink_pool(struct strait_pool *pool)
{
    if (pool->link == NULL)
        return;
    *pool->link = pool->next;
    if (pool->next != NULL)
        pool->next->link = pool->link;
    pool->link = NULL;
}

static void link_pool(struct strait_pool *pool)
{
    struct strait_client *client = pool->client;
    pool->next = client->pools;
    pool->link = &client->pools;
    if (pool->next != NULL)
        pool->next->link = &pool->next;
    client->pools = pool;
}

void pool_destroy(struct strait_pool *pool)
{
    unlink_pool(pool);
    for (uint32_t i = 0; i < pool->fd_count; i++)
        close(pool->fds[i]);
    serve_forget(pool);
    free(pool->fds);
    free(pool->group_pages);
    free(pool->regions);
    free(pool->wire);
    free(pool);
}

/* ---- Register ---------------------------------------------------------------------------------------------------- */

enum strait_status strait_pool_register(struct strait_client *client, const struct strait_pool_params *params,
                                        struct strait_pool **pool)
{
    if (client == NULL || pool == NULL || params == NULL || !params_known(params, params->size, sizeof(*params)))
        return STRAIT_ERR_INVALID;
    const char *compat = params->compat != NULL ? params->compat : "";
    const size_t compat_size = strnlen(compat, STRAIT_COMPAT_BYTES_MAX + 1);
    enum strait_status status = regions_check(params->regions, params->region_count, client->embedded != NULL);
    if (status == STRAIT_OK && !compat_is_valid(compat, compat_size))
        status = STRAIT_ERR_INVALID;
    if (status != STRAIT_OK)
        return status;
    struct strait_pool *made = pool_allocate(client, params->region_count);
    if (made == NULL)
        return STRAIT_ERR_NO_MEMORY;
    memcpy(made->compat, compat, compat_size);
    ssize_t got;
    do
        got = getrandom(&made->id, sizeof(made->id), 0);
    while (got < 0 && errno == EINTR);
    status = got == sizeof(made->id) ? STRAIT_OK : STRAIT_ERR_IO;
    if (status == STRAIT_OK)
        status = place_regions(made, params->regions);
    if (status == STRAIT_OK)
        status = touch_all(made);
    if (status == STRAIT_OK)
        /* While the daemon is away or going nothing is sent: when its WELCOME comes, all pools are. */
        status =
            made->client->state == READY && !made->client->going ? outbox_send_pool(made->client, made) : STRAIT_OK;
    if (status != STRAIT_OK) {
        pool_destroy(made);
        return status;
    }
    link_pool(made);
    outbox_flush(client);
    *pool = made;
    return STRAIT_OK;
}

struct strait_pool *pool_find(struct strait_client *client, const struct pool_id *id)
{
    struct strait_pool *pool = client->pools;
    while (pool != NULL && memcmp(&pool->id, id, sizeof(*id)) != 0)
        pool = pool->next;
    return pool;
}

/* ---- Remove ------------------------------------------------------------------------------------------------------ */

static void removal_seen(const struct strait_event *event)
{
    pool_destroy(event->pool);
}

/* The pool is freed with this event, the last of the queue: earlier ones that name the pool may still wait. */
void pool_removed(struct strait_pool *pool)
{
    struct strait_client *client = pool->client;
    for (struct strait_transfer *transfer = client->transfers; transfer != NULL; transfer = transfer->next) {
        if (transfer->pool != pool)
            continue;
        transfer_give_up(transfer, STRAIT_REASON_ABORTED, true, "the pool was removed");
        transfer_drained(transfer);
        transfer->pool = NULL;
    }
    outbox_drop_pool(client, pool);
    unlink_pool(pool);
    pool->removed.event.type = STRAIT_EVENT_POOL_REMOVED;
    pool->removed.event.pool = pool;
    pool->removed.seen = removal_seen;
    event_push(client, &pool->removed);
}

/* Whether a daemon still has the pool and must let go of it, even if the connection is CLOSING. */
static bool daemon_has(const struct strait_pool *pool)
{
    return (pool->client->state == READY || pool->client->state == CLOSING) && !pool->refused;
}

void strait_pool_remove(struct strait_pool *pool)
{
    if (pool == NULL || pool->removing)
        return;
    struct strait_client *client = pool->client;
    pool->removing = true;
    for (struct strait_transfer *transfer = pool->client->transfers; transfer != NULL; transfer = transfer->next)
        if (transfer->pool == pool)
            strait_abort(transfer);
    if (!daemon_has(pool)) {
        pool_removed(pool);
        return;
    }
    if (client->state == CLOSING)
        return; /* the end of the connection removes the pool */
    struct message message = {.type = MESSAGE_POOL_REMOVE, .pool_remove.pool = pool->id};
    outbox_send_always(client, &message);
    outbox_flush(client);
}

/* ---- Id and policy ----------------------------------------------------------------------------------------------- */

const uint8_t *strait_pool_id(const struct strait_pool *pool)
{
    return pool->id.bytes;
}

enum strait_status strait_set_policy(struct strait_pool *pool, enum strait_coding coding)
{
    if (pool == NULL || (unsigned)coding > STRAIT_CODING_PARTS || pool->removing)
        return STRAIT_ERR_INVALID;
    struct message message = {.type = MESSAGE_POLICY, .policy = {.pool = pool->id, .coding = coding}};
    enum strait_status status = pool->client->state == READY && !pool->client->going
                                    ? outbox_send(pool->client, &message, NULL, NULL)
                                    : STRAIT_OK;
    if (status != STRAIT_OK)
        return status;
    pool->coding = coding;
    outbox_flush(pool->client);
    return STRAIT_OK;
}
