#ifndef STRAIT_DAEMON_MEMORY_ARENA_H
#define STRAIT_DAEMON_MEMORY_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <strait/status.h>

/* Memory for chunks in transit, in equal slots: the receive arena is a sealed memfd that peers may write through a
 * transport; the send arena is touched by this process only. Faulted in when made. */

#define ARENA_NONE UINT32_MAX

struct arena {
    uint8_t *base;
    size_t size;
    int fd;        /* of the memfd, sealed against resizing; -1: private memory */
    bool borrowed; /* the arena does not free the memory */
    uint32_t slot_bytes, slot_count;
    uint32_t used;  /* slots taken */
    uint32_t *free; /* stack of free slots: the last one used is the warmest */
    uint8_t *taken; /* per slot */
};

/* slot_bytes must be a multiple of 4096. Uses huge pages where the system grants them on request (madvise), and never
 * fails for lack of them. ERR_NO_MEMORY, ERR_IO, ERR_INVALID. */
enum strait_status arena_init(struct arena *arena, bool shared, uint32_t slot_bytes, uint32_t slot_count);
/* The same over existing memory, such as a GPU's, which is not touched. */
enum strait_status arena_init_over(struct arena *arena, void *base, uint32_t slot_bytes, uint32_t slot_count);
void arena_fini(struct arena *arena); /* safe on a zeroed arena */

uint32_t arena_take(struct arena *arena); /* ARENA_NONE: no slot is free */
void arena_give(struct arena *arena, uint32_t slot);

static inline uint8_t *arena_slot(const struct arena *arena, uint32_t slot)
{
    return arena->base + (size_t)slot * arena->slot_bytes;
}

/* Large mappings. They are made, faulted in and released without holding up the process's other threads, which wait for
 * the kernel's lock on the address space whenever they map memory themselves. */

/* Maps `size` bytes for reading and writing: of a memfd, shared, or (fd -1) private memory. The address is a multiple
 * of 2 MiB, and huge pages are requested. NULL: errno says why. */
void *map_huge(size_t size, int fd);

/* Unmaps in pieces. */
void map_drop(void *base, size_t size);

/* Faults in every page of memory for writing without changing a byte, as others may be using it. 0, or what errno would
 * be: ENOMEM (also: nothing is mapped there), EACCES (read-only mapping), EFAULT, EHWPOISON, EINVAL (the kernel is too
 * old, or the mapping is a driver's: neither is an error of the memory). */
int map_populate(void *base, size_t size);

/* The same by touching each page, for kernels before 5.14. The memory must be mapped for writing. */
void map_touch(void *base, size_t size);

#endif
