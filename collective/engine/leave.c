/* How a communicator ends: at once if it was aborted, else when all its operations are over. */
#include <stdlib.h>
#include <time.h>

#include "collective/engine/join.h"
#include "collective/engine/link.h"
#include "collective/engine/peer.h"
#include "collective/engine/watch.h"

void member_destroy(struct coll_member *member)
{
    const struct gpu_ops *gpu = member->gpu;
    int before;
    if (gpu->enter(member->device, &before)) {
        measure_end(member);
        watch_end(member);
        staging_end(&member->stagings, gpu);
        peer_end(member);
        share_end(member);
        gpu->release(member->ends);
        gpu->release(member->tallies);
        gpu->release_pinned(member->mail);
        if (member->last != NULL)
            gpu->event_end(member->last);
        if (member->tie != NULL)
            gpu->event_end(member->tie);
        if (member->stream != NULL)
            gpu->stream_end(member->stream);
        gpu->leave(before);
    }
    pthread_mutex_destroy(&member->lock);
    free(member->issued);
    free(member);
}

void member_abort(struct coll_member *member)
{
    member->aborted = true;
    member_give_up(member);
}

static bool is_over(const struct coll_member *member)
{
    return member->gpu->event_over(member->last) && peer_over(member);
}

/* Operations may still run. After an abort they end soon, except for work queued behind something else on its stream,
 * which nobody may be made to wait for. */
static bool drain(struct coll_member *member)
{
    enum { LOOK_NS = 100 * 1000, LOOKS_MAX = 10000 };
    int before;
    bool over = false;
    if (!member->gpu->enter(member->device, &before))
        return true;
    for (int i = 0; !over && (!member->aborted || i < LOOKS_MAX); i++) {
        if (i > 0)
            nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
        over = is_over(member);
    }
    member->gpu->leave(before);
    return over;
}

/* The member's memory is still in use, and freeing any would wait for that. */
static void keep(struct coll_member *member)
{
    static struct coll_member *kept;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    member->host.say("communicator %p, rank %d of %d: aborted, but its streams go on: its memory is not freed",
                     (void *)member->comm, member->rank, member->ranks);
    pthread_mutex_lock(&lock);
    member->next = kept;
    kept = member;
    pthread_mutex_unlock(&lock);
}

/* Processes are watched until all is over: other ranks may still have to read what this one has sent them. */
void member_leave(struct coll_member *member)
{
    peer_close(member);
    const bool over = drain(member);
    link_leave(member);
    watch_leave(member);
    if (over)
        member_destroy(member);
    else
        keep(member);
}
