#include "collective/engine/steps.h"

#include "collective/engine/launch.h"
#include "collective/engine/order.h"
#include "collective/engine/plain.h"

static bool is_last(const struct coll_step *steps, unsigned count, unsigned i)
{
    for (unsigned later = i + 1; later < count; later++)
        if (steps[later].staging == steps[i].staging)
            return false;
    return true;
}

static bool follow(const struct coll_step *step)
{
    return order_follow(step->member, step->staging, step->call.stream);
}

/* Steps of a group may be on several streams. */
static bool mark(const struct coll_step *step, unsigned count)
{
    return count == 1 || order_mark(step->member, step->staging, step->call.stream);
}

/* For grouped steps, NCCL may finish only after other ranks have received their overflow. */
static bool is_grouped(const struct coll_step *steps, unsigned count)
{
    return count > 1 || steps[0].call.grouped;
}

/* ---- Encoding ---------------------------------------------------------------------------------------------------- */

/* All steps of a group are under way at once, so each has its own place, behind the jobs of all. */
static bool reserve_one(struct coll_step *step)
{
    struct coll_member *member = step->member;
    int before;
    if (!member->gpu->enter(member->device, &before))
        return false;
    step->staging = staging_get(&member->stagings, member->gpu, step->call.stream);
    member->gpu->leave(before);
    return step->staging != NULL;
}

coll_result steps_reserve(struct coll_step *steps, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        if (!reserve_one(&steps[i]))
            return launch_failed(&steps[i], "no memory");
        steps[i].staging->steps = 0;
    }
    for (unsigned i = 0; i < count; i++) {
        steps[i].number = steps[i].staging->steps++;
        steps[i].staging->reserved = plan_aligned(steps[i].staging->steps * sizeof(struct exchange_job));
    }
    for (unsigned i = 0; i < count; i++) {
        struct plan plan;
        if (!launch_plan(&plan, &steps[i]))
            return launch_failed(&steps[i], "no plan");
        steps[i].at = steps[i].staging->reserved;
        steps[i].staging->reserved += plan.size;
    }
    return COLL_SUCCESS;
}

/* Other ranks are at this operation already, or will be, so it has to be compressed. Later ones need not be. */
bool steps_grow(const struct coll_step *step)
{
    struct coll_member *member = step->member;
    const bool hosted = step->staging->hosted;
    if (!staging_grow(step->staging, member->gpu))
        return false;
    if (!step->staging->hosted || hosted)
        return true;
    kinds_stop(member);
    member->host.say(
        "communicator %p, rank %d of %d: no memory of the GPU for messages: the host's has to do, and what "
        "comes next is raw on all ranks",
        (void *)member->comm, member->rank, member->ranks);
    return true;
}

static bool encode_step(const struct coll_step *step, unsigned count)
{
    return follow(step) && launch_encode(step) && mark(step, count);
}

static coll_result encode_one(const struct coll_step *steps, unsigned count, unsigned i)
{
    const struct coll_step *step = &steps[i];
    if (!steps_grow(step))
        return launch_failed(step, "no memory for messages");
    if (!encode_step(step, count) || (is_last(steps, count, i) && is_grouped(steps, count) && !plain_fork(step)))
        return launch_failed(step, "encoding could not be launched");
    return COLL_SUCCESS;
}

/* What the ranks would move is not the same. */
static coll_result refuse_different(const struct coll_step *steps, unsigned count)
{
    coll_result result = COLL_SUCCESS;
    for (unsigned i = 0; i < count; i++) {
        if (!steps[i].differs)
            continue;
        result = COLL_INVALID_USAGE;
        member_fail(steps[i].member, result, "a rank groups an operation that another has begun outside of groups");
    }
    return result;
}

coll_result steps_encode(struct coll_step *steps, unsigned count)
{
    coll_result result = refuse_different(steps, count);
    if (result == COLL_SUCCESS)
        result = steps_reserve(steps, count);
    for (unsigned i = 0; i < count && result == COLL_SUCCESS; i++) {
        const struct gpu_ops *gpu = steps[i].member->gpu;
        int before;
        if (!gpu->enter(steps[i].member->device, &before))
            return launch_failed(&steps[i], "no GPU");
        result = encode_one(steps, count, i);
        gpu->leave(before);
    }
    return result;
}

coll_result steps_move(struct coll_step *steps, unsigned count)
{
    coll_result result = COLL_SUCCESS;
    for (unsigned i = 0; i < count && result == COLL_SUCCESS; i++)
        result = launch_move(&steps[i], steps[i].call.stream);
    return result;
}

/* ---- Overflow ---------------------------------------------------------------------------------------------------- */

/* Calls `what` on the GPU of each step. */
static bool each(const struct coll_step *steps, unsigned count,
                 bool (*what)(const struct coll_step *steps, unsigned count, unsigned i))
{
    bool good = true;
    for (unsigned i = 0; i < count && good; i++) {
        const struct gpu_ops *gpu = steps[i].member->gpu;
        int before;
        if (!gpu->enter(steps[i].member->device, &before))
            return false;
        good = what(steps, count, i);
        gpu->leave(before);
    }
    return good;
}

static bool move_beside(const struct coll_step *steps, unsigned count, unsigned i)
{
    return !is_last(steps, count, i) || !is_grouped(steps, count) || plain_beside(&steps[i]);
}

static bool check_one(const struct coll_step *steps, unsigned count, unsigned i)
{
    const bool last = is_last(steps, count, i);
    return follow(&steps[i]) && launch_check(&steps[i]) &&
           (!last || plain_behind(&steps[i], is_grouped(steps, count))) && mark(&steps[i], count);
}

/* ---- Decoding ---------------------------------------------------------------------------------------------------- */

static bool decode_one(const struct coll_step *steps, unsigned count, unsigned i)
{
    const struct coll_step *step = &steps[i];
    (void)count;
    return follow(step) && launch_decode(step) && launch_own(step) && launch_sums(step) &&
           order_end(step->member, step->staging, step->call.stream);
}

coll_result steps_decode(struct coll_step *steps, unsigned count)
{
    if (!each(steps, count, move_beside) || !each(steps, count, check_one))
        return launch_failed(&steps[0], "what did not fit could not be looked for");
    if (!each(steps, count, decode_one))
        return launch_failed(&steps[0], "decoding could not be launched");
    return COLL_SUCCESS;
}
