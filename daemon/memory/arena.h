/* Memory for chunks on their way, in equal slots: the receive arena, a sealed memfd that peers may write by way of a
 * transport, and the send arena, which only this process touches. Faulted in when made. */
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
    bool borrowed; /* memory that the arena does not free */
    uint32_t slot_bytes, slot_count;
    uint32_t used;  /* slots taken */
    uint32_t *free; /* stack of free slots: the last one used is the warmest */
    uint8_t *taken; /* per slot */
};

/* slot_bytes is a multiple of 4096. Uses huge pages where the system gives them for the asking (madvise), never fails
 * for want of them. ERR_NO_MEMORY, ERR_IO, ERR_INVALID. */
enum strait_status arena_init(struct arena *arena, bool shared, uint32_t slot_bytes, uint32_t slot_count);
/* The same over memory of another's making, which is not touched: a GPU's. */
enum strait_status arena_init_over(struct arena *arena, void *base, uint32_t slot_bytes, uint32_t slot_count);
void arena_fini(struct arena *arena); /* safe on a zeroed one */

uint32_t arena_take(struct arena *arena); /* ARENA_NONE: all are taken */
void arena_give(struct arena *arena, uint32_t slot);

static inline uint8_t *arena_slot(const struct arena *arena, uint32_t slot)
{
    return arena->base + (size_t)slot * arena->slot_bytes;
}

#endif
