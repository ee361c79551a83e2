#include "collective/run.h"

#include <stdlib.h>
#include <string.h>

#include "collective/patient.h"
#include "collective/thread.h"
#include "collective/track.h"

/* Of the calling thread's group. `raw`: sends and receives that go raw, each behind `turn` steps. */
static _Thread_local struct {
    struct coll_step *items;
    unsigned count, capacity;
    struct raw {
        struct coll_call call;
        unsigned turn;
    } * raw;
    unsigned raw_count, raw_capacity;
    struct coll_step *counted; /* of raw calls */
    unsigned counted_count, counted_capacity;
} kept;

/* Makes room for one more. Returns NULL, and changes nothing, if there is no memory. */
static void *grown(void *items, unsigned count, unsigned *capacity, size_t size)
{
    const unsigned more = *capacity == 0 ? 8 : 2 * *capacity;
    if (count < *capacity)
        return items;
    items = realloc(items, more * size);
    *capacity = items != NULL ? more : *capacity;
    return items;
}

static bool keep(const struct coll_step *step)
{
    struct coll_step *items = grown(kept.items, kept.count, &kept.capacity, sizeof(*items));
    if (items == NULL)
        return false;
    kept.items = items;
    items[kept.count] = *step;
    items[kept.count].turn = kept.count;
    kept.count++;
    return true;
}

static bool is_pair(const struct coll_call *call)
{
    return call->operation == COLL_SEND || call->operation == COLL_RECV;
}

bool coll_run_has_to_wait(const struct coll_call *call)
{
    bool waits = false;
    for (unsigned i = 0; i < kept.count && !waits && is_pair(call); i++) {
        const struct coll_step *step = &kept.items[i];
        waits = !step->peer && step->call.comm == call->comm && step->call.operation == call->operation &&
                step->call.peer == call->peer;
    }
    return waits;
}

bool coll_run_counts(const struct coll_step *step)
{
    struct coll_step *counted = NULL;
    if (step->counted && coll_thread.depth > 0)
        counted = grown(kept.counted, kept.counted_count, &kept.counted_capacity, sizeof(*counted));
    if (counted == NULL)
        return false;
    kept.counted = counted;
    counted[kept.counted_count++] = *step;
    return true;
}

coll_result coll_run_keep(const struct coll_call *call)
{
    struct raw *raw = grown(kept.raw, kept.raw_count, &kept.raw_capacity, sizeof(*raw));
    if (raw == NULL)
        return COLL_SYSTEM_ERROR;
    kept.raw = raw;
    raw[kept.raw_count++] = (struct raw){*call, kept.count};
    return COLL_SUCCESS;
}

/* Nothing that the engine calls, nor what NCCL calls in turn, is looked at. */
typedef coll_result part(struct coll_step *steps, unsigned count);

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

static coll_result run(part *what, struct coll_step *steps, unsigned count)
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

static coll_result run_phase(struct coll_step *steps, unsigned count)
{
    const struct coll_engine_ops *engine = coll_engine();
    if (is_cut(&steps[0]))
        return run(engine->pass, steps, 1);
    coll_result result = run(engine->encode, steps, count);
    if (result == COLL_SUCCESS && any_gone(steps, count))
        result = COLL_INVALID_USAGE;
    if (result == COLL_SUCCESS)
        result = group(coll_patient()->GroupStart);
    if (result != COLL_SUCCESS)
        return result;
    result = run(engine->move, steps, count);
    coll_result ended = group(coll_patient()->GroupEnd);
    result = result == COLL_SUCCESS ? ended : result;
    return result == COLL_SUCCESS ? run(engine->decode, steps, count) : result;
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

static coll_result run_later_phases(struct coll_step *steps, unsigned count)
{
    coll_result result = COLL_SUCCESS;
    while (result == COLL_SUCCESS && (count = next_phase(steps, count)) > 0)
        result = run_phase(steps, count);
    return result;
}

coll_result coll_run(const struct coll_step *step)
{
    struct coll_step own = *step;
    if (coll_thread.depth > 0 && keep(step))
        return COLL_SUCCESS;
    coll_result result = coll_thread.depth > 0 ? COLL_SYSTEM_ERROR : run_phase(&own, 1);
    if (result == COLL_SUCCESS)
        result = run_later_phases(&own, 1);
    coll_run_release(step->held);
    return result;
}

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
        items = grown(leaving.items, leaving.count, &leaving.capacity, sizeof(struct coll_tracked *));
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

static void forget(void)
{
    for (unsigned i = 0; i < kept.count; i++)
        coll_run_release(kept.items[i].held);
    for (unsigned i = 0; i < kept.counted_count; i++)
        coll_run_release(kept.counted[i].held);
    free(kept.items);
    free(kept.raw);
    free(kept.counted);
    memset(&kept, 0, sizeof(kept));
}

static coll_result move_raw(const struct coll_call *call)
{
    const struct coll_table *nccl = coll_patient();
    coll_thread.inside++;
    return coll_left(call->operation == COLL_SEND
                         ? nccl->Send(call->send, call->count, call->type, call->peer, call->comm, call->stream)
                         : nccl->Recv(call->receive, call->count, call->type, call->peer, call->comm, call->stream));
}

/* The engine has put the collectives first, and left sends and receives in their order. */
static unsigned end_before(unsigned at, unsigned turn)
{
    while (at < kept.count && (!is_pair(&kept.items[at].call) || kept.items[at].turn < turn))
        at++;
    return at;
}

static coll_result move_kept(void)
{
    coll_result result = COLL_SUCCESS;
    unsigned at = 0;
    for (unsigned i = 0; i <= kept.raw_count && result == COLL_SUCCESS; i++) {
        const bool last = i == kept.raw_count;
        const unsigned end = last ? kept.count : end_before(at, kept.raw[i].turn);
        result = run(coll_engine()->move, kept.items + at, end - at);
        if (result == COLL_SUCCESS && !last)
            result = move_raw(&kept.raw[i].call);
        at = end;
    }
    return result;
}

coll_result coll_run_before_end(void)
{
    if (kept.count == 0)
        return COLL_SUCCESS;
    coll_result result = run(coll_engine()->encode, kept.items, kept.count);
    return result == COLL_SUCCESS ? move_kept() : result;
}

/* Decoding has to be queued behind what NCCL moves, so this waits until NCCL has queued that. */
static coll_result await_kept(coll_result ended)
{
    coll_result result = ended;
    coll_thread.inside++;
    for (unsigned i = 0; i < kept.count && ended == COLL_IN_PROGRESS; i++) {
        const coll_result came = coll_patient_await(kept.items[i].call.comm, ended);
        result = result == COLL_SUCCESS || result == COLL_IN_PROGRESS ? came : result;
    }
    return coll_left(result);
}

coll_result coll_run_after_end(coll_result ended)
{
    coll_result result = await_kept(ended);
    if (result == COLL_SUCCESS && kept.count > 0)
        result = run(coll_engine()->decode, kept.items, kept.count);
    if (result == COLL_SUCCESS)
        result = run_later_phases(kept.items, kept.count);
    forget();
    return result == COLL_SUCCESS ? ended : result;
}

coll_result coll_run_before_simulation(void)
{
    coll_result result = COLL_SUCCESS;
    for (unsigned i = 0; i < kept.raw_count && result == COLL_SUCCESS; i++)
        result = move_raw(&kept.raw[i].call);
    if (kept.count > 0)
        coll_engine()->forget(kept.items, kept.count);
    if (kept.counted_count > 0)
        coll_engine()->forget(kept.counted, kept.counted_count);
    forget();
    return result;
}
