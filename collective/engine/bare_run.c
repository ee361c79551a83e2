/* How the work overlaps:
 *
 *   the step's stream   move head      | move what is coded | move tail      | finish tail
 *   beside it           encode, copy own                    | check, decode, finish head
 *
 * It is queued in an order that a single stream could run, so nothing waits for work behind it where streams share a
 * queue. NCCL's parts follow each other directly on one stream. */
#include "collective/engine/bare.h"
#include "collective/engine/launch.h"
#include "collective/engine/order.h"
#include "collective/engine/plain.h"
#include "collective/engine/steps.h"

/* Stream `behind` goes on when `before` has come to this point. */
static bool follow(const struct coll_step *step, coll_stream behind, coll_stream before, gpu_event event)
{
    const struct gpu_ops *gpu = step->member->gpu;
    return gpu->event_record(event, before) && gpu->event_follow(behind, event);
}

static coll_result move_coded(const struct coll_step *step)
{
    const struct coll_table *nccl = step->member->host.nccl;
    coll_result result = nccl->GroupStart();
    if (result != COLL_SUCCESS)
        return result;
    result = launch_move(step, step->call.stream);
    const coll_result ended = nccl->GroupEnd();
    return result == COLL_SUCCESS ? ended : result;
}

/* `beside`: the same step, on the other stream. */
static bool encode(const struct coll_step *step, const struct coll_step *beside)
{
    return launch_encode(beside) && follow(step, step->call.stream, beside->call.stream, step->staging->join) &&
           launch_own(beside);
}

static bool decode(const struct coll_step *beside)
{
    return beside->member->gpu->event_follow(beside->call.stream, beside->staging->turn) && launch_check(beside) &&
           plain_behind(beside, false) && launch_decode(beside) && bare_finish(beside, PLAN_HEAD) &&
           launch_sums(beside);
}

static bool finish(const struct coll_step *step, const struct coll_step *beside)
{
    return follow(step, step->call.stream, beside->call.stream, step->staging->join) && bare_finish(step, PLAN_TAIL) &&
           order_end(step->member, step->staging, step->call.stream);
}

/* From the fork up to what is decoded. */
static coll_result pass(const struct coll_step *step, const struct coll_step *beside)
{
    const struct gpu_ops *gpu = step->member->gpu;
    const struct coll_staging *staging = step->staging;
    coll_result result = bare_move(step, PLAN_HEAD);
    if (result != COLL_SUCCESS)
        return result;
    if (!gpu->event_follow(staging->side, staging->fork) || !encode(step, beside))
        return launch_failed(step, "encoding could not be launched");
    result = move_coded(step);
    if (result == COLL_SUCCESS && !gpu->event_record(staging->turn, step->call.stream))
        return launch_failed(step, "what has come could not be followed");
    return result == COLL_SUCCESS ? bare_move(step, PLAN_TAIL) : result;
}

static coll_result run(const struct coll_step *step)
{
    const struct gpu_ops *gpu = step->member->gpu;
    struct coll_staging *staging = step->staging;
    if (!steps_grow(step))
        return launch_failed(step, "no memory for messages");
    if (!order_follow(step->member, staging, step->call.stream) || !gpu->event_record(staging->fork, step->call.stream))
        return launch_failed(step, "encoding could not be launched");
    struct coll_step beside = *step;
    beside.call.stream = staging->side;
    const coll_result result = pass(step, &beside);
    if (result != COLL_SUCCESS)
        return result;
    return decode(&beside) && finish(step, &beside) ? COLL_SUCCESS
                                                    : launch_failed(step, "decoding could not be launched");
}

coll_result bare_run(struct coll_step *step)
{
    const struct gpu_ops *gpu = step->member->gpu;
    int before;
    coll_result result = steps_reserve(step, 1);
    if (result != COLL_SUCCESS)
        return result;
    if (!gpu->enter(step->member->device, &before))
        return launch_failed(step, "no GPU");
    result = run(step);
    gpu->leave(before);
    return result;
}
