#include "daemon/memory/map.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

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
