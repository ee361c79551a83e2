/* Lists that grow. */
#ifndef STRAIT_COLLECTIVE_GROW_H
#define STRAIT_COLLECTIVE_GROW_H

#include <stdlib.h>

/* `items` with room for one more than `count`, maybe elsewhere. Returns NULL, and changes nothing, if there is no
 * memory. */
static inline void *coll_grown(void *items, unsigned count, unsigned *capacity, size_t size)
{
    const unsigned more = *capacity == 0 ? 8 : 2 * *capacity;
    if (count < *capacity)
        return items;
    items = realloc(items, more * size);
    *capacity = items != NULL ? more : *capacity;
    return items;
}

#endif
