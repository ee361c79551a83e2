#include "collective/engine/ops.h"

#include "collective/engine/decide.h"
#include "collective/engine/join.h"
#include "collective/engine/pieces.h"
#include "collective/engine/steps.h"
#include "collective/engine/watch.h"

static const struct gpu_ops *gpus;

static void join(const struct coll_engine_host *host, struct coll_joining *joinings, unsigned count)
{
    members_join(gpus, host, joinings, count);
}

/* The thread may be waiting for other ranks, for what has failed since. */
static coll_result error_of(struct coll_member *member)
{
    member_look(member);
    pthread_mutex_lock(&member->lock);
    const int failed = member->failed;
    pthread_mutex_unlock(&member->lock);
    return failed;
}

static const struct coll_engine_ops ops = {.version = COLL_ENGINE_VERSION,
                                           .join = join,
                                           .decide = member_decide,
                                           .encode = steps_encode,
                                           .move = steps_move,
                                           .decode = steps_decode,
                                           .pass = pieces_run,
                                           .error = error_of,
                                           .abort = member_abort,
                                           .finish = watch_leave,
                                           .leave = member_leave};

const struct coll_engine_ops *engine_ops(const struct gpu_ops *gpu)
{
    gpus = gpu;
    return &ops;
}
