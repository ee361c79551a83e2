/* Memory for chunks in transit, in equal slots: the receive arena is a sealed memfd that peers may write through a
 * transport; the send arena is touched by this process only. Faulted in when made. */
#ifndef STRAIT_DAEMON_MEMORY_ARENA_H
#define STRAIT_DAEMON_MEMORY_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <strait/status.h>

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

#endif
