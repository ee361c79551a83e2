#include "collective/engine/order.h"

#include "collective/engine/member.h"

/* When a graph runs, it waits for what was last marked outside of it, and later work waits for the graph. A handle
 * alone does not identify a stream: each thread has another one by that of cudaStreamPerThread. */
static bool follow_in_graph(struct coll_member *member, const struct coll_staging *staging, coll_stream stream)
{
    if (!staging->used)
        return member->gpu->event_follow_outside(stream, member->last);
    return member->gpu->event_follow(stream, staging->last);
}

bool order_follow(struct coll_member *member, const struct coll_staging *staging, coll_stream stream)
{
    if (staging->capture != 0)
        return follow_in_graph(member, staging, stream);
    return member->gpu->event_follow(stream, member->last);
}

bool order_mark(struct coll_member *member, struct coll_staging *staging, coll_stream stream)
{
    staging->used = true;
    return member->gpu->event_record(staging->capture == 0 ? member->last : staging->last, stream);
}

bool order_end(struct coll_member *member, struct coll_staging *staging, coll_stream stream)
{
    if (!order_mark(member, staging, stream))
        return false;
    return staging->capture == 0 || member->gpu->event_record_outside(member->last, stream);
}

bool order_tie(struct coll_member *member, const coll_stream *streams, unsigned count)
{
    const struct gpu_ops *gpu = member->gpu;
    bool good = true;
    for (unsigned i = 1; i < count && good; i++)
        good = gpu->event_record(member->tie, streams[i]) && gpu->event_follow(streams[0], member->tie);
    good = good && gpu->event_record(member->tie, streams[0]);
    for (unsigned i = 1; i < count && good; i++)
        good = gpu->event_follow(streams[i], member->tie);
    return good;
}
