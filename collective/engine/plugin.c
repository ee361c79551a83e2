#include "collective/engine/op.h"

#include "collective/engine/figures.h"
#include "collective/engine/proxy.h"
#include "collective/engine/hosts.h"

static const struct gpu_ops *gpus;

static void prepare(const struct coll_engine_host *host, struct coll_join_args *joins, unsigned count)
{
    ccomms_prepare(gpus, host, joins, count);
}

/* The calling thread may be waiting for other ranks, or for work that has failed since. */
static coll_result error_of(struct coll_ccomm *ccomm)
{
    ccomm_poll_error(ccomm);
    pthread_mutex_lock(&ccomm->lock);
    const int failed = ccomm->failed;
    pthread_mutex_unlock(&ccomm->lock);
    return failed;
}

static void fail(struct coll_ccomm *ccomm, coll_result result)
{
    ccomm_fail(ccomm, result, "a group of calls could not be moved");
}

/* Leaving is no failure for the other ranks. */
static void finish(struct coll_ccomm *ccomm)
{
    proxy_finish(ccomm);
    keepalive_leave(ccomm);
}

static coll_result join_streams(struct coll_ccomm *ccomm, const coll_stream *streams, unsigned count)
{
    int before;
    bool good = ccomm->gpu->enter(ccomm->device, &before);
    if (good) {
        good = streams_join(ccomm, streams, count);
        ccomm->gpu->leave(before);
    }
    if (!good)
        ccomm_fail(ccomm, COLL_UNHANDLED_CUDA_ERROR, "streams of a group could not wait for each other");
    return good ? COLL_SUCCESS : COLL_UNHANDLED_CUDA_ERROR;
}

static coll_result pass(struct coll_op *ops, unsigned count)
{
    (void)count;
    return ops[0].left_raw ? overlap_left_raw(&ops[0]) : overlap_run(&ops[0]);
}

static const struct coll_engine_ops engine = {.version = COLL_ENGINE_VERSION,
                                              .prepare = prepare,
                                              .join = ccomms_join,
                                              .decide = op_decide,
                                              .forget = op_forget,
                                              .join_streams = join_streams,
                                              .encode = ops_encode,
                                              .move = ops_move,
                                              .decode = ops_decode,
                                              .pass = pass,
                                              .error = error_of,
                                              .fail = fail,
                                              .abort = ccomm_abort,
                                              .suspend = ccomm_suspend,
                                              .resume = ccomm_resume,
                                              .memory = ccomm_memory,
                                              .figures = ccomm_figures,
                                              .finish = finish,
                                              .leave = ccomm_leave};

const struct coll_engine_ops *engine_ops(const struct gpu_ops *gpu)
{
    gpus = gpu;
    return &engine;
}
