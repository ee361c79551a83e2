/* State of the calling thread: its group depth, whether it is inside NCCL, and the communicators that the end of its
 * group will have made. */
#ifndef STRAIT_COLLECTIVE_THREAD_H
#define STRAIT_COLLECTIVE_THREAD_H

#include <stdbool.h>

#include "collective/key.h"
#include "collective/nccl.h"

struct coll_thread {
    unsigned depth;                /* of ncclGroupStart */
    unsigned inside;               /* NCCL calls under way: what arrives now comes from NCCL or a library before it */
    const struct coll_table *nccl; /* where the current call goes on to */
};

extern _Thread_local struct coll_thread coll_thread;

/* Calls NCCL from a hook, and yields the result. */
#define COLL_NCCL(invocation) (coll_thread.inside++, coll_leave_nccl(coll_thread.nccl->invocation))

static inline coll_result coll_leave_nccl(coll_result result)
{
    coll_thread.inside--;
    return result;
}

/* Called once by each thread of ours: NCCL is called by nobody else there. */
void coll_thread_enter(void);

/* A communicator that will be at *slot when the outermost group ends. */
struct coll_pending {
    coll_comm *slot;
    int rank, ranks; /* -1: to be asked */
    struct coll_key key;
};

/* If there is no memory, it is forgotten: nothing will be known of its communicator. */
void coll_pending_add(struct coll_pending pending);
size_t coll_pending_count(void);
/* Hands them out one by one, in no order, and forgets them. */
bool coll_pending_take(struct coll_pending *pending);

#endif
