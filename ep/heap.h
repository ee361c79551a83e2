/* Heap inside the arena: which parts of a range of bytes are taken. Not thread-safe. */
#ifndef STRAIT_EP_HEAP_H
#define STRAIT_EP_HEAP_H

#include <stdbool.h>
#include <stdint.h>

#define EP_HEAP_ALIGNMENT 256u

struct ep_heap_part;

struct ep_heap {
    uint64_t bytes;
    struct ep_heap_part *taken; /* by offset */
};

/* First place for so many bytes. False: no room, or no memory to note it. */
bool ep_heap_take(struct ep_heap *heap, uint64_t bytes, uint64_t *offset);
/* Returns the room of what was taken at the offset; another offset is ignored. */
void ep_heap_give(struct ep_heap *heap, uint64_t offset);
/* Bytes from the offset to the end of the part that it lies in; 0: in none. */
uint64_t ep_heap_room(const struct ep_heap *heap, uint64_t offset);
void ep_heap_free(struct ep_heap *heap);

#endif
