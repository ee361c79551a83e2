#include "collective/run.h"

#include <stdlib.h>

#include "collective/group.h"
#include "collective/grow.h"
#include "collective/patient.h"
#include "collective/thread.h"
#include "collective/track.h"

/* After a failure all steps fail: a program that never asks for errors must not go on with data that did not arrive. */
static coll_result error_of(const struct coll_step *steps, unsigned count)
{
    coll_result result = COLL_SUCCESS;
    for (unsigned i = 0; i < count && result == COLL_SUCCESS; i++)
        result = coll_engine()->error(steps[i].member);
    return result;
}

/* If another thread has aborted one of them, NCCL must not be asked about it any more. */
static bool any_gone(const struct coll_step *steps, unsigned count)
{
    bool gone = false;
    for (unsigned i = 0; i < count; i++)
        gone |= coll_track_has_gone(steps[i].held);
    return gone;
}

/* Nothing that the engine calls, nor what NCCL calls in turn, is looked at. */
coll_result coll_run_part(coll_part *what, struct coll_step *steps, unsigned count)
{
    const bool begins = what == coll_engine()->encode || what == coll_engine()->pass;
    if (any_gone(steps, count))
        return COLL_INVALID_USAGE;
    const coll_result failed = begins ? error_of(steps, count) : COLL_SUCCESS;
    if (failed != COLL_SUCCESS)
        return failed;
    coll_thread.inside++;
    return coll_left(what(steps, count));
}

/* Whether its coding and moving overlap; steps of groups never do. */
static bool is_cut(const struct coll_step *step)
{
    return step->pieces > 1 || step->head > 0 || step->tail > 0;
}

static coll_result group(coll_result (*what)(void))
{
    coll_thread.inside++;
    return coll_left(what());
}

coll_result coll_run_moved(struct coll_step *steps, unsigned count, coll_part *move)
{
    coll_result result = coll_run_part(coll_engine()->encode, steps, count);
    if (result == COLL_SUCCESS && any_gone(steps, count))
        result = COLL_INVALID_USAGE;
    if (result == COLL_SUCCESS)
        result = group(coll_patient()->GroupStart);
    if (result != COLL_SUCCESS)
        return result;
    result = move(steps, count);
    coll_result ended = group(coll_patient()->GroupEnd);
    result = result == COLL_SUCCESS ? ended : result;
    return result == COLL_SUCCESS ? coll_run_part(coll_engine()->decode, steps, count) : result;
}

static coll_result move(struct coll_step *steps, unsigned count)
{
    return coll_run_part(coll_engine()->move, steps, count);
}

static coll_result run_phase(struct coll_step *steps, unsigned count)
{
    return is_cut(&steps[0]) ? coll_run_part(coll_engine()->pass, steps, 1) : coll_run_moved(steps, count, move);
}

/* Puts the steps with another phase first, keeping their order; returns how many they are. */
static unsigned next_phase(struct coll_step *steps, unsigned count)
{
    unsigned left = 0;
    for (unsigned i = 0; i < count; i++)
        if (steps[i].phase + 1 < steps[i].phases) {
            const struct coll_step step = steps[i];
            steps[i] = steps[left];
            steps[left] = step;
            steps[left++].phase++;
        }
    return left;
}

coll_result coll_run_later_phases(struct coll_step *steps, unsigned count)
{
    coll_result result = COLL_SUCCESS;
    while (result == COLL_SUCCESS && (count = next_phase(steps, count)) > 0)
        result = run_phase(steps, count);
    return result;
}

coll_result coll_run(const struct coll_step *step)
{
    struct coll_step own = *step;
    if (coll_thread.depth > 0 && coll_group_add(step))
        return COLL_SUCCESS;
    coll_result result = coll_thread.depth > 0 ? COLL_SYSTEM_ERROR : run_phase(&own, 1);
    if (result == COLL_SUCCESS)
        result = coll_run_later_phases(&own, 1);
    coll_run_release(step->held);
    return result;
}

/* ---- Releasing --------------------------------------------------------------------------------------------------- */

void coll_run_release(struct coll_tracked *held)
{
    struct coll_member *member = coll_track_release(held);
    if (member == NULL)
        return;
    coll_thread.inside++;
    coll_engine()->leave(member);
    coll_thread.inside--;
}

/* Of communicators that the calling thread's group aborts or destroys. */
static _Thread_local struct {
    struct coll_tracked **items;
    unsigned count, capacity;
} leaving;

void coll_run_release_ended(struct coll_tracked *held)
{
    struct coll_tracked **items = NULL;
    if (held != NULL && coll_thread.depth > 0)
        items = coll_grown(leaving.items, leaving.count, &leaving.capacity, sizeof(struct coll_tracked *));
    if (items == NULL) {
        coll_run_release(held);
        return;
    }
    leaving.items = items;
    items[leaving.count++] = held;
}

void coll_run_release_all(void)
{
    for (unsigned i = 0; i < leaving.count; i++)
        coll_run_release(leaving.items[i]);
    free(leaving.items);
    leaving.items = NULL;
    leaving.count = leaving.capacity = 0;
}
