/* Byte rings in memory that two processes share, for one sender and one receiver each. Neither end believes what the
 * other has written: the own index is kept outside the shared memory, the other's is checked, and bytes are copied out
 * before anybody looks at them. Calls no system call but to make and to map the memory. */
#ifndef STRAIT_INTERNAL_RING_H
#define STRAIT_INTERNAL_RING_H

#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal/memfd.h"

#define RING_LINE 128u /* bytes that processors may fetch at once */

/* What both ends of a ring see. Indices count bytes, modulo 2^32. */
struct ring_head {
    uint32_t put;   /* the sender's */
    uint32_t waits; /* the sender's: it has found no room, and wants to be woken when there is some */
    uint8_t line[RING_LINE - 8];
    uint32_t taken; /* the receiver's */
    uint8_t rest[RING_LINE - 4];
};

/* One end of a ring. */
struct ring {
    struct ring_head *head;
    uint8_t *bytes;
    uint32_t size; /* a power of two */
    uint32_t own;  /* index of this end */
    bool broken;   /* the other end has written an index that cannot be */
};

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

static inline uint32_t ring_room(struct ring *ring)
{
    const uint32_t used = ring->own - __atomic_load_n(&ring->head->taken, __ATOMIC_SEQ_CST);
    ring->broken |= used > ring->size;
    return ring->broken ? 0 : ring->size - used;
}

/* Puts in as many of the bytes as there is room for, and returns how many. */
static inline size_t ring_put(struct ring *ring, const void *src, size_t size)
{
    const uint32_t room = ring_room(ring), at = ring->own & (ring->size - 1);
    const size_t put = size < room ? size : room, first = put < ring->size - at ? put : ring->size - at;
    if (put == 0)
        return 0;
    memcpy(ring->bytes + at, src, first);
    memcpy(ring->bytes, (const uint8_t *)src + first, put - first);
    ring->own += (uint32_t)put;
    __atomic_store_n(&ring->head->put, ring->own, __ATOMIC_SEQ_CST);
    return put;
}

/* Says whether the receiver is to tell when it has made room. */
static inline void ring_wait(struct ring *ring, bool waits)
{
    if (waits || __atomic_load_n(&ring->head->waits, __ATOMIC_RELAXED) != 0)
        __atomic_store_n(&ring->head->waits, waits, __ATOMIC_SEQ_CST);
}

/* ---- Receiving --------------------------------------------------------------------------------------------------- */

static inline uint32_t ring_used(struct ring *ring)
{
    const uint32_t used = __atomic_load_n(&ring->head->put, __ATOMIC_SEQ_CST) - ring->own;
    ring->broken |= used > ring->size;
    return ring->broken ? 0 : used;
}

/* Takes out at most so many bytes, and returns how many. */
static inline size_t ring_take(struct ring *ring, void *dst, size_t size)
{
    const uint32_t used = ring_used(ring), at = ring->own & (ring->size - 1);
    const size_t taken = size < used ? size : used, first = taken < ring->size - at ? taken : ring->size - at;
    if (taken == 0)
        return 0;
    memcpy(dst, ring->bytes + at, first);
    memcpy((uint8_t *)dst + first, ring->bytes, taken - first);
    ring->own += (uint32_t)taken;
    __atomic_store_n(&ring->head->taken, ring->own, __ATOMIC_SEQ_CST);
    return taken;
}

/* Does the sender wait for the room that was made? */
static inline bool ring_is_waited_for(const struct ring *ring)
{
    return __atomic_load_n(&ring->head->waits, __ATOMIC_SEQ_CST) != 0;
}

/* ---- Sleeping ---------------------------------------------------------------------------------------------------- */

/* A side that is going to sleep says so, and only then looks at its rings once more. The other side puts bytes in, or
 * makes room, and only then looks whether to wake it. All of that is sequentially consistent, so one of the two sees
 * what the other has written. */

static inline void ring_sleep(uint32_t *sleeps, bool so)
{
    if (so)
        __atomic_store_n(sleeps, 1, __ATOMIC_SEQ_CST);
    else if (__atomic_load_n(sleeps, __ATOMIC_RELAXED) != 0)
        __atomic_store_n(sleeps, 0, __ATOMIC_RELAXED);
}

/* Is the other side to be woken? True once for each time that it sleeps. */
static inline bool ring_must_wake(uint32_t *sleeps)
{
    return __atomic_load_n(sleeps, __ATOMIC_SEQ_CST) != 0 && __atomic_exchange_n(sleeps, 0, __ATOMIC_SEQ_CST) != 0;
}

/* ---- The memory -------------------------------------------------------------------------------------------------- */

/* Pairs of rings in one file: whether each side sleeps, the heads, the bytes. Side 0 has made the file. */
struct ring_file {
    uint8_t *base; /* NULL: none */
    uint32_t side;
    uint32_t pairs;
    const uint32_t *sizes; /* of the rings of each pair, powers of two */
};

static inline size_t ring_file_heads(const struct ring_file *file)
{
    const size_t size = 2 * RING_LINE + 2 * file->pairs * sizeof(struct ring_head);
    return (size + 4095) & ~(size_t)4095;
}

static inline size_t ring_file_size(const struct ring_file *file)
{
    size_t size = ring_file_heads(file);
    for (uint32_t i = 0; i < file->pairs; i++)
        size += 2 * (size_t)file->sizes[i];
    return size;
}

/* The sealed memfd for the rings, or -1. Its memory is there, and charged to this process. */
static inline int ring_file_make(const struct ring_file *file)
{
    const int fd = memfd_create("strait-rings", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -1;
    if (fallocate(fd, 0, 0, (off_t)ring_file_size(file)) == 0 &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        return fd;
    close(fd);
    return -1;
}

/* Maps the file, which another process may have made. False: it is not sealed, too short, of huge pages, or cannot be
 * mapped. */
static inline bool ring_file_map(struct ring_file *file, int fd)
{
    struct stat info;
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) ||
        info.st_size < 0 || (size_t)info.st_size < ring_file_size(file) || memfd_is_hugetlb(fd))
        return false;
    void *at = mmap(NULL, ring_file_size(file), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    file->base = at != MAP_FAILED ? at : NULL;
    return file->base != NULL;
}

static inline void ring_file_unmap(struct ring_file *file)
{
    if (file->base != NULL)
        munmap(file->base, ring_file_size(file));
    file->base = NULL;
}

/* Whether this side, or the other one, sleeps. */
static inline uint32_t *ring_file_sleeps(const struct ring_file *file, bool other)
{
    return (uint32_t *)(void *)(file->base + (file->side ^ (uint32_t)other) * RING_LINE);
}

/* This side's end of a ring of the pair: of the one that it sends by, or receives from. Nothing has been sent yet. */
static inline struct ring ring_file_ring(const struct ring_file *file, uint32_t pair, bool sends)
{
    const uint32_t ring = sends ? file->side : 1 - file->side;
    uint8_t *bytes = file->base + ring_file_heads(file) + (size_t)ring * file->sizes[pair];
    for (uint32_t i = 0; i < pair; i++)
        bytes += 2 * (size_t)file->sizes[i];
    return (struct ring){
        .head = (struct ring_head *)(void *)(file->base + 2 * RING_LINE) + (2 * pair + ring),
        .bytes = bytes,
        .size = file->sizes[pair],
    };
}

#endif
