#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/memory/arena.h"

#define SLOT_ALIGNMENT 4096u

static enum strait_status status_of_errno(int error)
{
    return error == ENOMEM || error == ENOSPC ? STRAIT_ERR_NO_MEMORY : STRAIT_ERR_IO;
}

/* A memfd of this size that can neither grow nor shrink, so that processes that map it can rely on it. */
static int sealed_memfd(size_t size)
{
    int fd = memfd_create("strait-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -1;
    if (ftruncate(fd, (off_t)size) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

static enum strait_status map_slots(struct arena *arena, bool shared)
{
    if (shared) {
        arena->fd = sealed_memfd(arena->size);
        if (arena->fd < 0)
            return status_of_errno(errno);
    }
    arena->base = map_huge(arena->size, arena->fd);
    if (arena->base == NULL)
        return status_of_errno(errno);
    int error = map_populate(arena->base, arena->size);
    if (error == EINVAL) /* an old kernel */
        map_touch(arena->base, arena->size);
    else if (error != 0)
        return status_of_errno(error);
    return STRAIT_OK;
}

static enum strait_status list_slots(struct arena *arena)
{
    arena->free = malloc(arena->slot_count * sizeof(arena->free[0]));
    arena->taken = calloc(arena->slot_count, sizeof(arena->taken[0]));
    if (arena->free == NULL || arena->taken == NULL)
        return STRAIT_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < arena->slot_count; i++)
        arena->free[i] = arena->slot_count - 1 - i; /* slot 0 on top */
    return STRAIT_OK;
}

static enum strait_status measure(struct arena *arena, uint32_t slot_bytes, uint32_t slot_count)
{
    *arena = (struct arena){.fd = -1, .slot_bytes = slot_bytes, .slot_count = slot_count};
    if (slot_bytes == 0 || slot_bytes % SLOT_ALIGNMENT != 0 || slot_count == 0 || slot_count == ARENA_NONE)
        return STRAIT_ERR_INVALID;
    arena->size = (size_t)slot_bytes * slot_count;
    return arena->size <= INT64_MAX ? STRAIT_OK : STRAIT_ERR_INVALID;
}

enum strait_status arena_init_over(struct arena *arena, void *base, uint32_t slot_bytes, uint32_t slot_count)
{
    enum strait_status status = measure(arena, slot_bytes, slot_count);
    if (status != STRAIT_OK)
        return status;
    arena->base = base;
    arena->borrowed = true;
    status = list_slots(arena);
    if (status != STRAIT_OK)
        arena_fini(arena);
    return status;
}

enum strait_status arena_init(struct arena *arena, bool shared, uint32_t slot_bytes, uint32_t slot_count)
{
    enum strait_status status = measure(arena, slot_bytes, slot_count);
    if (status != STRAIT_OK)
        return status;
    status = list_slots(arena); /* the cheap part first */
    if (status == STRAIT_OK)
        status = map_slots(arena, shared);
    if (status != STRAIT_OK)
        arena_fini(arena);
    return status;
}

void arena_fini(struct arena *arena)
{
    if (arena->size == 0) /* zeroed, or never initialised: fd is meaningless */
        return;
    if (arena->base != NULL && !arena->borrowed)
        map_drop(arena->base, arena->size);
    if (arena->fd >= 0)
        close(arena->fd);
    free(arena->free);
    free(arena->taken);
    *arena = (struct arena){.fd = -1};
}

uint32_t arena_take(struct arena *arena)
{
    if (arena->used == arena->slot_count)
        return ARENA_NONE;
    uint32_t slot = arena->free[arena->slot_count - 1 - arena->used++];
    arena->taken[slot] = 1;
    return slot;
}

void arena_give(struct arena *arena, uint32_t slot)
{
    if (slot >= arena->slot_count || !arena->taken[slot]) /* a slot freed twice would be taken twice */
        return;
    arena->taken[slot] = 0;
    arena->free[arena->slot_count - arena->used--] = slot;
}

#define HUGE_PAGE      ((size_t)2 << 20)
#define POPULATE_PIECE ((size_t)16 << 20) /* holds the lock for a few milliseconds */
#define DROP_PIECE     ((size_t)1 << 30)  /* no smaller than the largest huge page */

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_READ  22
#define MADV_POPULATE_WRITE 23
#endif

/* Reserves an address range of `size` bytes that begins at a multiple of HUGE_PAGE. */
static uint8_t *reserve_aligned(size_t size)
{
    size_t all;
    if (__builtin_add_overflow(size, HUGE_PAGE, &all)) {
        errno = ENOMEM;
        return NULL;
    }
    uint8_t *base = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    size_t before = -(uintptr_t)base % HUGE_PAGE;
    if (before > 0)
        munmap(base, before);
    munmap(base + before + size, HUGE_PAGE - before);
    return base + before;
}

void *map_huge(size_t size, int fd)
{
    uint8_t *place = reserve_aligned(size);
    if (place == NULL)
        return NULL;
    int flags = MAP_FIXED | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
    void *base = mmap(place, size, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (base == MAP_FAILED) {
        int error = errno;
        munmap(place, size);
        errno = error;
        return NULL;
    }
    madvise(base, size, MADV_HUGEPAGE); /* only a hint */
    return base;
}

void map_drop(void *base, size_t size)
{
    for (size_t at = 0; at < size; at += DROP_PIECE)
        munmap((uint8_t *)base + at, size - at < DROP_PIECE ? size - at : DROP_PIECE);
}

void map_touch(void *base, size_t size)
{
    size_t step = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *bytes = base;
    for (size_t at = 0; at < size; at += step - ((uintptr_t)(bytes + at) % step))
        __atomic_fetch_or(&bytes[at], 0, __ATOMIC_RELAXED); /* a write that loses no concurrent one */
}

/* madvise needs whole pages. It says EINVAL both where it cannot work, on old kernels and drivers' memory, and for
 * read-only memory. */
static int populate_piece(uint8_t *base, size_t size)
{
    size_t before = (uintptr_t)base % (size_t)sysconf(_SC_PAGESIZE);
    if (madvise(base - before, size + before, MADV_POPULATE_WRITE) == 0)
        return 0;
    if (errno != EINVAL)
        return errno;
    return madvise(base - before, size + before, MADV_POPULATE_READ) == 0 ? EACCES : EINVAL;
}

int map_populate(void *base, size_t size)
{
    for (size_t at = 0; at < size; at += POPULATE_PIECE) {
        size_t piece = size - at < POPULATE_PIECE ? size - at : POPULATE_PIECE;
        int error = populate_piece((uint8_t *)base + at, piece);
        if (error != 0)
            return error;
    }
    return 0;
}

/* ---- Receive arenas ---------------------------------------------------------------------------------------------- */

/* Adds an arena whose slots exist already and, on OK, takes ownership of it. */
static enum strait_status append(struct receive *receive, struct receive_arena *arena)
{
    uint32_t before = receive->slot_count, count = arena->slots.slot_count;
    if (receive->arena_count == RECEIVE_ARENAS_MAX || count > UINT32_MAX - before)
        return STRAIT_ERR_NO_MEMORY;
    struct slot *slots = realloc(receive->slots, ((size_t)before + count) * sizeof(*slots));
    if (slots == NULL)
        return STRAIT_ERR_NO_MEMORY;
    for (uint32_t i = before; i < before + count; i++)
        slots[i] = (struct slot){.arena = receive->arena_count};
    arena->first = before;
    arena->index = receive->arena_count;
    receive->slots = slots;
    receive->slot_count = before + count;
    receive->arenas[receive->arena_count++] = arena;
    return STRAIT_OK;
}

enum strait_status receive_init(struct receive *receive, uint32_t slot_bytes, uint32_t slot_count, uint64_t target)
{
    *receive = (struct receive){0};
    struct receive_arena *host = calloc(1, sizeof(*host));
    if (host == NULL)
        return STRAIT_ERR_NO_MEMORY;
    host->device = -1;
    host->target = target;
    enum strait_status status = arena_init(&host->slots, true, slot_bytes, slot_count);
    if (status == STRAIT_OK)
        status = append(receive, host);
    if (status != STRAIT_OK) {
        arena_fini(&host->slots);
        free(host);
    }
    return status;
}

enum strait_status receive_add(struct receive *receive, int32_t device, void *base, uint32_t slot_bytes,
                               uint32_t slot_count, uint64_t *flags)
{
    struct receive_arena *arena = calloc(1, sizeof(*arena));
    if (arena == NULL)
        return STRAIT_ERR_NO_MEMORY;
    arena->device = device;
    arena->flags = flags;
    enum strait_status status = arena_init_over(&arena->slots, base, slot_bytes, slot_count);
    if (status == STRAIT_OK)
        status = append(receive, arena);
    if (status != STRAIT_OK) {
        arena_fini(&arena->slots);
        free(arena);
    }
    return status;
}

void receive_fini(struct receive *receive)
{
    for (uint32_t i = 0; i < receive->arena_count; i++) {
        arena_fini(&receive->arenas[i]->slots);
        free(receive->arenas[i]);
    }
    free(receive->slots);
    *receive = (struct receive){0};
}

struct receive_arena *receive_of_device(const struct receive *receive, int32_t device)
{
    for (uint32_t i = 0; i < receive->arena_count; i++)
        if (receive->arenas[i]->device == device)
            return receive->arenas[i];
    return NULL;
}

#define GPU_CHUNKS      8u /* of a small leg: as many as it has grants, which a REQUEST may open */
#define GPU_CHUNK_LEAST (2u << 20)
#define GPU_TAIL_LEAST  (4u << 20) /* a smaller launch takes as long */

uint64_t gpu_chunk_target(uint32_t slot_bytes, uint64_t bytes)
{
    uint64_t part = (bytes + GPU_CHUNKS - 1) / GPU_CHUNKS;
    part = part < GPU_CHUNK_LEAST ? GPU_CHUNK_LEAST : part;
    part += part / GPU_SLOT_OVERHEAD;
    return part < slot_bytes ? part : slot_bytes;
}

uint64_t gpu_chunk_count(uint32_t slot_bytes, uint64_t bytes)
{
    const uint64_t target = gpu_chunk_target(slot_bytes, bytes);
    return (bytes + target - 1) / target;
}

uint64_t gpu_tail_target(uint64_t target, uint64_t bytes, uint64_t left)
{
    while (bytes > GPU_CHUNKS * target && left <= target && target / 2 >= GPU_TAIL_LEAST)
        target /= 2;
    return target;
}

uint32_t receive_take(struct receive *receive, struct receive_arena *arena)
{
    uint32_t slot = arena_take(&arena->slots);
    if (slot == ARENA_NONE)
        return ARENA_NONE;
    receive->slots[arena->first + slot] = (struct slot){.arena = arena->index};
    return arena->first + slot;
}

struct receive_arena *receive_arena_of(const struct receive *receive, uint32_t slot)
{
    return receive->arenas[receive->slots[slot].arena];
}

void receive_give(struct receive *receive, uint32_t slot)
{
    struct receive_arena *arena = receive_arena_of(receive, slot);
    receive->slots[slot].sink = NULL;
    arena_give(&arena->slots, slot - arena->first);
}

uint8_t *receive_address(const struct receive *receive, uint32_t slot)
{
    const struct receive_arena *arena = receive_arena_of(receive, slot);
    return arena_slot(&arena->slots, slot - arena->first);
}

uint64_t *receive_flag(const struct receive *receive, uint32_t slot)
{
    const struct receive_arena *arena = receive_arena_of(receive, slot);
    return arena->flags != NULL ? arena->flags + (slot - arena->first) : NULL;
}
