/* What belongs to the calling thread: how deep it is in groups, whether it is inside NCCL, and the communicators that
 * the end of its group will have made. */
#ifndef STRAIT_COLLECTIVE_THREAD_H
#define STRAIT_COLLECTIVE_THREAD_H

#include <stdbool.h>

#include "collective/key.h"
#include "collective/load.h"

struct coll_thread {
    unsigned depth;                /* of ncclGroupStart */
    unsigned inside;               /* calls of NCCL under way: what comes now comes from NCCL, or what lies before it */
    const struct coll_table *nccl; /* that the call under way goes on to */
};

extern _Thread_local struct coll_thread coll_thread;

/* A call of NCCL, and its result, from a hook. */
#define COLL_NCCL(invocation) (coll_thread.inside++, coll_left(coll_thread.nccl->invocation))

static inline coll_result coll_left(coll_result result)
{
    coll_thread.inside--;
    return result;
}

/* What a thread of ours calls once: NCCL is called by nobody else there. */
void coll_thread_enter(void);

/* A communicator that will be at *slot when the outermost group ends. */
struct coll_pending {
    coll_comm *slot;
    int rank, ranks; /* -1: to be asked */
    struct coll_key key;
};

/* Without memory it is not remembered: its communicator is then one that nothing is known of. */
void coll_pending_add(struct coll_pending pending);
size_t coll_pending_count(void);
/* Hands out and forgets one after the other, in no order. */
bool coll_pending_take(struct coll_pending *pending);

#endif
