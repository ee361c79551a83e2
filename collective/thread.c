#include "collective/thread.h"

#include <stdlib.h>

_Thread_local struct coll_thread coll_thread;

void coll_thread_enter(void)
{
    coll_thread.inside++;
}

static _Thread_local struct {
    struct coll_pending *items;
    size_t count, capacity;
} pendings;

static bool grow(void)
{
    size_t capacity = pendings.capacity == 0 ? 8 : 2 * pendings.capacity;
    void *items = realloc(pendings.items, capacity * sizeof(*pendings.items));
    if (items == NULL)
        return false;
    pendings.items = items;
    pendings.capacity = capacity;
    return true;
}

void coll_pending_add(struct coll_pending pending)
{
    if (pendings.count < pendings.capacity || grow())
        pendings.items[pendings.count++] = pending;
}

size_t coll_pending_count(void)
{
    return pendings.count;
}

bool coll_pending_take(struct coll_pending *pending)
{
    if (pendings.count > 0) {
        *pending = pendings.items[--pendings.count];
        return true;
    }
    free(pendings.items);
    pendings.items = NULL;
    pendings.capacity = 0;
    return false;
}
