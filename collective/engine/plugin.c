#include "collective/engine/op.h"

#include "collective/engine/join.h"
#include "collective/engine/overflow_tcp.h"
#include "collective/engine/hosts.h"

static const struct gpu_ops *gpus;

static void prepare(const struct coll_engine_host *host, struct coll_join_args *joinings, unsigned count)
{
    members_prepare(gpus, host, joinings, count);
}

/* The calling thread may be waiting for other ranks, or for work that has failed since. */
static coll_result error_of(struct coll_ccomm *member)
{
    member_look(member);
    pthread_mutex_lock(&member->lock);
    const int failed = member->failed;
    pthread_mutex_unlock(&member->lock);
    return failed;
}

static void fail(struct coll_ccomm *member, coll_result result)
{
    member_fail(member, result, "a group of calls could not be moved");
}

/* That this rank ends is no failure for the others. */
static void finish(struct coll_ccomm *member)
{
    link_finish(member);
    watch_leave(member);
}

static coll_result tie(struct coll_ccomm *member, const coll_stream *streams, unsigned count)
{
    int before;
    bool good = member->gpu->enter(member->device, &before);
    if (good) {
        good = streams_join(member, streams, count);
        member->gpu->leave(before);
    }
    if (!good)
        member_fail(member, COLL_UNHANDLED_CUDA_ERROR, "streams of a group could not wait for each other");
    return good ? COLL_SUCCESS : COLL_UNHANDLED_CUDA_ERROR;
}

static coll_result pass(struct coll_op *steps, unsigned count)
{
    (void)count;
    return overlap_run(&steps[0]);
}

static const struct coll_engine_ops ops = {.version = COLL_ENGINE_VERSION,
                                           .prepare = prepare,
                                           .join = members_join,
                                           .decide = member_decide,
                                           .forget = member_forget,
                                           .tie = tie,
                                           .encode = steps_encode,
                                           .move = steps_move,
                                           .decode = steps_decode,
                                           .pass = pass,
                                           .error = error_of,
                                           .fail = fail,
                                           .abort = member_abort,
                                           .finish = finish,
                                           .leave = member_leave};

const struct coll_engine_ops *engine_ops(const struct gpu_ops *gpu)
{
    gpus = gpu;
    return &ops;
}
