#ifndef STRAIT_DAEMON_MEMORY_ARENA_H
#define STRAIT_DAEMON_MEMORY_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <strait/status.h>

#include "daemon/device/devices.h"

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

/* ---- Receive arenas ---------------------------------------------------------------------------------------------- */

/* Receive arenas: slots in the host's memory, which every transport reaches, and slots in the memory of each
 * GPU in use, which encoders on other GPUs of this host may reach. Slots are numbered through all arenas, beginning
 * with the host's. */

#define RECEIVE_ARENAS_MAX (1 + DEVICES_MAX)
#define GPU_SLOT_OVERHEAD  64u

struct sink;

/* The holder of a slot. */
struct slot {
    struct sink *sink; /* NULL: nobody */
    uint64_t grant;
    uint64_t size;   /* of the chunk in it */
    uint64_t number; /* of the chunk, where chunks are encrypted */
    uint32_t arena;  /* index */
    bool ahead;      /* a decoder waits for the chunk */
};

struct receive_arena {
    struct arena slots;
    uint32_t index;
    int32_t device;  /* -1: the host */
    uint32_t first;  /* number of its first slot */
    uint64_t target; /* of the host's: the size to which chunks of host pages are cut */
    uint64_t *flags; /* of a GPU's: one for each slot (chunk_flag), in the GPU's memory; NULL: none */
};

struct receive {
    struct receive_arena *arenas[RECEIVE_ARENAS_MAX]; /* [0]: the host's */
    uint32_t arena_count;
    struct slot *slots; /* all arenas' slots; the array moves when an arena is added */
    uint32_t slot_count;
};

/* Makes the host's slots. ERR_NO_MEMORY, ERR_IO, ERR_INVALID. */
enum strait_status receive_init(struct receive *receive, uint32_t slot_bytes, uint32_t slot_count, uint64_t target);
void receive_fini(struct receive *receive);
/* Adds slots in a GPU's memory at base, which must outlive them, and their flags (or NULL). ERR_NO_MEMORY. */
enum strait_status receive_add(struct receive *receive, int32_t device, void *base, uint32_t slot_bytes,
                               uint32_t slot_count, uint64_t *flags);

static inline struct arena *receive_host(const struct receive *receive)
{
    return &receive->arenas[0]->slots;
}
/* Size of a slot of a GPU's arena for chunks with so many bytes of pages: adds the chunk's overhead. */
static inline uint32_t gpu_slot_bytes(uint64_t chunk_bytes)
{
    return (uint32_t)((chunk_bytes + chunk_bytes / GPU_SLOT_OVERHEAD + 4095) / 4096 * 4096);
}
/* The size to which chunks that GPUs code are cut, for slots of this size and a leg of `bytes` in all. A large leg has
 * enough chunks under way to keep the link busy; a small leg is cut into as many as may be under way, so that its
 * stages overlap. */
uint64_t gpu_chunk_target(uint32_t slot_bytes, uint64_t bytes);
uint64_t gpu_chunk_count(uint32_t slot_bytes, uint64_t bytes); /* about so many they are */
/* The same when only `left` bytes remain of a leg's and no more will come: the last chunks of a large leg are smaller,
 * because nothing is under way any more while the very last one is decoded. */
uint64_t gpu_tail_target(uint64_t target, uint64_t bytes, uint64_t left);

struct receive_arena *receive_of_device(const struct receive *receive, int32_t device); /* NULL: none */

uint32_t receive_take(struct receive *receive, struct receive_arena *arena); /* ARENA_NONE: no slot is free */
void receive_give(struct receive *receive, uint32_t slot);
struct receive_arena *receive_arena_of(const struct receive *receive, uint32_t slot);
uint8_t *receive_address(const struct receive *receive, uint32_t slot);
uint64_t *receive_flag(const struct receive *receive, uint32_t slot); /* NULL: it has none */

#endif
