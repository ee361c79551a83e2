#include "ep/heap.h"

#include <stdlib.h>

struct ep_heap_part {
    struct ep_heap_part *next;
    uint64_t offset, bytes;
};

bool ep_heap_take(struct ep_heap *heap, uint64_t bytes, uint64_t *offset)
{
    struct ep_heap_part **at = &heap->taken, *part;
    uint64_t from = 0;

    if (bytes == 0 || bytes > heap->bytes)
        return false;
    bytes = (bytes + EP_HEAP_ALIGNMENT - 1) / EP_HEAP_ALIGNMENT * EP_HEAP_ALIGNMENT;
    while (*at != NULL && (*at)->offset - from < bytes) {
        from = (*at)->offset + (*at)->bytes;
        at = &(*at)->next;
    }
    if (*at == NULL && heap->bytes - from < bytes)
        return false;
    part = malloc(sizeof(*part));
    if (part == NULL)
        return false;
    *part = (struct ep_heap_part){.next = *at, .offset = from, .bytes = bytes};
    *at = part;
    *offset = from;
    return true;
}

void ep_heap_give(struct ep_heap *heap, uint64_t offset)
{
    for (struct ep_heap_part **at = &heap->taken; *at != NULL; at = &(*at)->next)
        if ((*at)->offset == offset) {
            struct ep_heap_part *gone = *at;
            *at = gone->next;
            free(gone);
            return;
        }
}

uint64_t ep_heap_room(const struct ep_heap *heap, uint64_t offset)
{
    for (const struct ep_heap_part *part = heap->taken; part != NULL; part = part->next)
        if (offset >= part->offset && offset - part->offset < part->bytes)
            return part->bytes - (offset - part->offset);
    return 0;
}

void ep_heap_free(struct ep_heap *heap)
{
    while (heap->taken != NULL)
        ep_heap_give(heap, heap->taken->offset);
}
