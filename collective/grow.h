#ifndef STRAIT_COLLECTIVE_GROW_H
#define STRAIT_COLLECTIVE_GROW_H

#include <stdint.h>
#include <stdlib.h>
#include <time.h>

/* Lists that grow. */

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

/* Milliseconds of the monotonic clock. */

static inline int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

#endif
