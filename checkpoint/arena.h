/* Memory that is freed all at once. */
#ifndef STRAIT_CHECKPOINT_ARENA_H
#define STRAIT_CHECKPOINT_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

/* Starts as zeroes. */
struct arena {
    struct arena_block {
        struct arena_block *next;
        max_align_t bytes[];
    } * blocks;
    size_t used, room; /* of the first block */
};

/* Bytes that an allocation takes. */
static inline size_t arena_rounded(size_t bytes)
{
    const size_t step = _Alignof(max_align_t);
    return (bytes + step - 1) / step * step;
}

/* Memory that is not zeroed; NULL: there is none. */
static inline void *arena_take(struct arena *arena, size_t bytes)
{
    const size_t needed = arena_rounded(bytes);
    if (arena->blocks == NULL || arena->room - arena->used < needed) {
        const size_t room = needed > 65536 ? needed : 65536;
        struct arena_block *block = malloc(sizeof(*block) + room);
        if (block == NULL)
            return NULL;
        block->next = arena->blocks;
        arena->blocks = block;
        arena->used = 0;
        arena->room = room;
    }
    void *taken = (char *)arena->blocks->bytes + arena->used;
    arena->used += needed;
    return taken;
}

static inline void arena_free(struct arena *arena)
{
    while (arena->blocks != NULL) {
        struct arena_block *next = arena->blocks->next;
        free(arena->blocks);
        arena->blocks = next;
    }
    *arena = (struct arena){NULL, 0, 0};
}

/* Makes room for one more item in a list that is to be freed with free(). False: no memory. */
static inline bool list_grow(void **list, size_t count, size_t *room, size_t item)
{
    if (count < *room)
        return true;
    const size_t more = *room == 0 ? 64 : 2 * *room;
    void *grown = realloc(*list, more * item);
    if (grown == NULL)
        return false;
    *list = grown;
    *room = more;
    return true;
}

#endif
