#include <stdlib.h>
#include <string.h>

#include "collective/group.h"
#include "collective/nccl.h"
#include "collective/comm.h"

/* ---- The calling thread ------------------------------------------------------------------------------------------ */

_Thread_local struct coll_thread coll_thread;

void coll_thread_enter(void)
{
    coll_thread.inside++;
}

/* ---- Routes ------------------------------------------------------------------------------------------------------ */

/* NCCL makes sends and receives of it. */
static bool moves_by_pairs(const struct coll_call *call)
{
    return call->operation == COLL_SEND || call->operation == COLL_RECV || call->operation == COLL_ALL_TO_ALL ||
           call->operation == COLL_GATHER || call->operation == COLL_SCATTER;
}

/* What NCCL would refuse must not be deferred: that has to be known before anything is encoded. */
static bool is_accepted(const struct coll_call *call, int ranks)
{
    return call->peer >= 0 && call->peer < ranks && coll_type_row(call->type) != COLL_UNKNOWN;
}

static bool can_be_compressed(const struct coll_call *call)
{
    return call->type == COLL_BF16 || call->type == COLL_FP16 || call->type == COLL_FP32;
}

static const char *reason_to_stay_raw(const struct coll_comm_info *info, const struct coll_call *call)
{
    if (info->pinned)
        return "pinned";
    if (info->ending)
        return "ending";
    if (info->ranks == 1)
        return "one rank";
    if (!can_be_compressed(call))
        return "type is not compressed";
    if (info->member == NULL)
        return info->why != NULL ? info->why : "nothing is known of it";
    return NULL;
}

struct coll_decision coll_decide(const struct coll_comm_info *info, const struct coll_call *call, struct coll_op *op)
{
    const char *reason = reason_to_stay_raw(info, call);
    op->counted = false;
    const bool compressed = reason == NULL && coll_engine()->decide(info->member, call, op, &reason);
    op->held = info->held;
    if (compressed)
        return (struct coll_decision){COLL_ROUTE_COMPRESS, "compressed", op->wire};
    const bool mixed = call->grouped && info->member != NULL && !info->pinned;
    const bool deferred = mixed && moves_by_pairs(call) && is_accepted(call, info->ranks);
    return (struct coll_decision){deferred ? COLL_ROUTE_DEFER : COLL_ROUTE_NCCL, reason, 0};
}

/* After a failure all steps fail: a program that never asks for errors must not go on with data that did not arrive. */
static coll_result error_of(const struct coll_op *steps, unsigned count)
{
    coll_result result = COLL_SUCCESS;
    for (unsigned i = 0; i < count && result == COLL_SUCCESS; i++)
        result = coll_engine()->error(steps[i].member);
    return result;
}

/* If another thread has aborted one of them, NCCL must not be asked about it any more. */
static bool any_gone(const struct coll_op *steps, unsigned count)
{
    bool gone = false;
    for (unsigned i = 0; i < count; i++)
        gone |= coll_comm_is_removed(steps[i].held);
    return gone;
}

/* Nothing that the engine calls, nor what NCCL calls in turn, is looked at. */
coll_result coll_run_stage(coll_part *what, struct coll_op *steps, unsigned count)
{
    const bool begins = what == coll_engine()->encode || what == coll_engine()->pass;
    if (any_gone(steps, count))
        return COLL_INVALID_USAGE;
    const coll_result failed = begins ? error_of(steps, count) : COLL_SUCCESS;
    if (failed != COLL_SUCCESS)
        return failed;
    coll_thread.inside++;
    return coll_leave_nccl(what(steps, count));
}

/* Whether its coding and moving overlap; steps of groups never do. */
static bool is_cut(const struct coll_op *step)
{
    return step->pieces > 1 || step->head > 0 || step->tail > 0;
}

static coll_result group(coll_result (*what)(void))
{
    coll_thread.inside++;
    return coll_leave_nccl(what());
}

coll_result coll_run_moved(struct coll_op *steps, unsigned count, coll_part *move_run)
{
    coll_result result = coll_run_stage(coll_engine()->encode, steps, count);
    if (result == COLL_SUCCESS && any_gone(steps, count))
        result = COLL_INVALID_USAGE;
    if (result == COLL_SUCCESS)
        result = group(coll_nccl_blocking()->GroupStart);
    if (result != COLL_SUCCESS)
        return result;
    result = move_run(steps, count);
    coll_result ended = group(coll_nccl_blocking()->GroupEnd);
    result = result == COLL_SUCCESS ? ended : result;
    return result == COLL_SUCCESS ? coll_run_stage(coll_engine()->decode, steps, count) : result;
}

static coll_result move_run(struct coll_op *steps, unsigned count)
{
    return coll_run_stage(coll_engine()->move, steps, count);
}

static coll_result run_phase(struct coll_op *steps, unsigned count)
{
    return is_cut(&steps[0]) ? coll_run_stage(coll_engine()->pass, steps, 1) : coll_run_moved(steps, count, move_run);
}

/* Puts the steps with another phase first, keeping their order; returns how many they are. */
static unsigned next_phase(struct coll_op *steps, unsigned count)
{
    unsigned left = 0;
    for (unsigned i = 0; i < count; i++)
        if (steps[i].phase + 1 < steps[i].phases) {
            const struct coll_op step = steps[i];
            steps[i] = steps[left];
            steps[left] = step;
            steps[left++].phase++;
        }
    return left;
}

coll_result coll_run_later_phases(struct coll_op *steps, unsigned count)
{
    coll_result result = COLL_SUCCESS;
    while (result == COLL_SUCCESS && (count = next_phase(steps, count)) > 0)
        result = run_phase(steps, count);
    return result;
}

coll_result coll_run(const struct coll_op *step)
{
    struct coll_op own = *step;
    if (coll_thread.depth > 0 && coll_group_add(step))
        return COLL_SUCCESS;
    coll_result result = coll_thread.depth > 0 ? COLL_SYSTEM_ERROR : run_phase(&own, 1);
    if (result == COLL_SUCCESS)
        result = coll_run_later_phases(&own, 1);
    coll_run_release(step->held);
    return result;
}

/* ---- Releasing --------------------------------------------------------------------------------------------------- */

void coll_run_release(struct coll_comm_entry *held)
{
    struct coll_ccomm *member = coll_comm_put(held);
    if (member == NULL)
        return;
    coll_thread.inside++;
    coll_engine()->leave(member);
    coll_thread.inside--;
}

/* Of communicators that the calling thread's group aborts or destroys. */
static _Thread_local struct {
    struct coll_comm_entry **items;
    unsigned count, capacity;
} leaving;

void coll_run_release_ended(struct coll_comm_entry *held)
{
    struct coll_comm_entry **items = NULL;
    if (held != NULL && coll_thread.depth > 0)
        items = coll_grown(leaving.items, leaving.count, &leaving.capacity, sizeof(struct coll_comm_entry *));
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

/* Of the calling thread. */
static _Thread_local struct {
    struct coll_op *steps;
    unsigned step_count, step_capacity;
    unsigned now; /* when the group ends: steps from this one on come in a group of ours */
    struct raw {  /* calls that go raw, each behind `turn` steps */
        struct coll_call call;
        unsigned turn;
    } * raw;
    unsigned raw_count, raw_capacity;
    struct coll_op *counted; /* of raw calls */
    unsigned counted_count, counted_capacity;
    struct place { /* where calls are */
        coll_comm comm;
        coll_stream stream;
        bool captured;
    } * places;
    unsigned place_count, place_capacity;
    coll_result failed;
} kept;

/* ---- While it is open -------------------------------------------------------------------------------------------- */

static bool is_noted(const struct coll_call *call)
{
    for (unsigned i = 0; i < kept.place_count; i++)
        if (kept.places[i].comm == call->comm && kept.places[i].stream == call->stream)
            return true;
    return false;
}

void coll_group_note(const struct coll_call *call)
{
    if (is_noted(call))
        return;
    struct place *places = coll_grown(kept.places, kept.place_count, &kept.place_capacity, sizeof(*places));
    if (places == NULL) {
        coll_group_fail(COLL_SYSTEM_ERROR);
        return;
    }
    kept.places = places;
    places[kept.place_count++] = (struct place){call->comm, call->stream, call->captured};
}

coll_result coll_group_keep(const struct coll_call *call)
{
    struct raw *raw = coll_grown(kept.raw, kept.raw_count, &kept.raw_capacity, sizeof(*raw));
    if (raw == NULL)
        return COLL_SYSTEM_ERROR;
    kept.raw = raw;
    raw[kept.raw_count++] = (struct raw){*call, kept.step_count};
    return COLL_SUCCESS;
}

bool coll_group_add(const struct coll_op *step)
{
    struct coll_op *steps = coll_grown(kept.steps, kept.step_count, &kept.step_capacity, sizeof(*steps));
    if (steps == NULL)
        return false;
    kept.steps = steps;
    steps[kept.step_count] = *step;
    steps[kept.step_count].turn = kept.step_count;
    kept.step_count++;
    return true;
}

bool coll_group_counts(const struct coll_op *step)
{
    struct coll_op *counted = NULL;
    if (step->counted && coll_thread.depth > 0)
        counted = coll_grown(kept.counted, kept.counted_count, &kept.counted_capacity, sizeof(*counted));
    if (counted == NULL)
        return false;
    kept.counted = counted;
    counted[kept.counted_count++] = *step;
    return true;
}

void coll_group_fail(coll_result result)
{
    kept.failed = kept.failed == COLL_SUCCESS ? result : kept.failed;
}

/* ---- The end of it ----------------------------------------------------------------------------------------------- */

static void forget(void)
{
    for (unsigned i = 0; i < kept.step_count; i++)
        coll_run_release(kept.steps[i].held);
    for (unsigned i = 0; i < kept.counted_count; i++)
        coll_run_release(kept.counted[i].held);
    free(kept.steps);
    free(kept.raw);
    free(kept.counted);
    free(kept.places);
    memset(&kept, 0, sizeof(kept));
}

static void uncount(void)
{
    if (kept.step_count > 0)
        coll_engine()->forget(kept.steps, kept.step_count);
    if (kept.counted_count > 0)
        coll_engine()->forget(kept.counted, kept.counted_count);
}

static bool is_collective(const struct coll_call *call)
{
    return !moves_by_pairs(call);
}

/* An all_reduce in two phases needs two groups. Other ranks may have it in no group, and come to sends and receives of
 * its communicator only behind its second phase. */
static bool is_late(const struct coll_call *call)
{
    bool late = false;
    for (unsigned i = 0; i < kept.step_count && moves_by_pairs(call); i++)
        late |= kept.steps[i].phases > 1 && kept.steps[i].call.comm == call->comm;
    return late;
}

static bool is_prompt(const struct coll_call *call)
{
    return !is_late(call);
}

/* Of the steps from `first` on, puts those that belong there first, otherwise keeping their order; returns where they
 * end. */
static unsigned put_first(unsigned first, bool (*belongs)(const struct coll_call *call))
{
    for (unsigned i = first; i < kept.step_count; i++) {
        if (!belongs(&kept.steps[i].call))
            continue;
        const struct coll_op step = kept.steps[i];
        memmove(&kept.steps[first + 1], &kept.steps[first], (i - first) * sizeof(step));
        kept.steps[first++] = step;
    }
    return first;
}

static bool any_late(void)
{
    bool late = kept.now < kept.step_count;
    for (unsigned i = 0; i < kept.raw_count; i++)
        late |= is_late(&kept.raw[i].call);
    return late;
}

/* What NCCL would do with the streams of a communicator, since it does not know of coding. It refuses by itself that
 * only some of them are captured. */
static coll_result tie(const struct coll_op *step)
{
    coll_stream *streams = malloc(kept.place_count * sizeof(*streams));
    unsigned count = 0, captured = 0;
    coll_result result = streams != NULL ? COLL_SUCCESS : COLL_SYSTEM_ERROR;
    for (unsigned i = 0; i < kept.place_count && streams != NULL; i++)
        if (kept.places[i].comm == step->call.comm) {
            streams[count++] = kept.places[i].stream;
            captured += kept.places[i].captured;
        }
    coll_thread.inside++;
    if (count > 1 && (captured == 0 || captured == count))
        result = coll_engine()->tie(step->member, streams, count);
    free(streams);
    return coll_leave_nccl(result);
}

static bool is_first(unsigned i)
{
    for (unsigned before = 0; before < i; before++)
        if (kept.steps[before].member == kept.steps[i].member)
            return false;
    return true;
}

static coll_result tie_all(void)
{
    coll_result result = COLL_SUCCESS;
    for (unsigned i = 0; i < kept.step_count && result == COLL_SUCCESS; i++)
        if (is_first(i))
            result = tie(&kept.steps[i]);
    return result;
}

static coll_result move_raw(const struct coll_call *call)
{
    const struct coll_table *nccl = coll_nccl_blocking();
    coll_thread.inside++;
    switch (call->operation) {
    case COLL_SEND:
        return coll_leave_nccl(nccl->Send(call->send, call->count, call->type, call->peer, call->comm, call->stream));
    case COLL_RECV:
        return coll_leave_nccl(
            nccl->Recv(call->receive, call->count, call->type, call->peer, call->comm, call->stream));
    case COLL_ALL_TO_ALL:
        return coll_leave_nccl(
            nccl->AlltoAll(call->send, call->receive, call->count, call->type, call->comm, call->stream));
    case COLL_GATHER:
        return coll_leave_nccl(
            nccl->Gather(call->send, call->receive, call->count, call->type, call->peer, call->comm, call->stream));
    default:
        return coll_leave_nccl(
            nccl->Scatter(call->send, call->receive, call->count, call->type, call->peer, call->comm, call->stream));
    }
}

static unsigned end_before(unsigned at, unsigned until, unsigned turn)
{
    while (at < until && (is_collective(&kept.steps[at].call) || kept.steps[at].turn < turn))
        at++;
    return at;
}

static coll_result move_steps(unsigned at, unsigned until)
{
    return at < until ? coll_run_stage(coll_engine()->move, kept.steps + at, until - at) : COLL_SUCCESS;
}

/* Those steps, with the raw calls in between that are as late or prompt. */
static coll_result move(unsigned at, unsigned until, bool late)
{
    coll_result result = COLL_SUCCESS;
    for (unsigned i = 0; i < kept.raw_count && result == COLL_SUCCESS; i++) {
        const struct raw *raw = &kept.raw[i];
        if (is_late(&raw->call) != late)
            continue;
        const unsigned end = end_before(at, until, raw->turn);
        result = move_steps(at, end);
        if (result == COLL_SUCCESS)
            result = move_raw(&raw->call);
        at = end;
    }
    return result == COLL_SUCCESS ? move_steps(at, until) : result;
}

static coll_result begin(void)
{
    kept.now = put_first(put_first(0, is_collective), is_prompt);
    coll_result result = tie_all();
    if (result == COLL_SUCCESS && kept.now > 0)
        result = coll_run_stage(coll_engine()->encode, kept.steps, kept.now);
    return result;
}

coll_result coll_group_before_end(void)
{
    const coll_result failed = kept.failed;
    coll_result result = COLL_SUCCESS;
    if (failed != COLL_SUCCESS) {
        uncount();
        forget();
        kept.failed = failed;
    } else if (kept.step_count > 0) {
        result = begin();
    }
    return result == COLL_SUCCESS ? move(0, kept.now, false) : result;
}

/* Decoding has to be queued behind what NCCL moves, so this waits until NCCL has queued that. */
static coll_result await(coll_result ended)
{
    coll_result result = ended;
    coll_thread.inside++;
    for (unsigned i = 0; i < kept.step_count && ended == COLL_IN_PROGRESS; i++) {
        const coll_result came = coll_nccl_wait(kept.steps[i].call.comm, ended);
        result = result == COLL_SUCCESS || result == COLL_IN_PROGRESS ? came : result;
    }
    return coll_leave_nccl(result);
}

static coll_result move_late(struct coll_op *steps, unsigned count)
{
    (void)steps;
    (void)count;
    return move(kept.now, kept.step_count, true);
}

static coll_result end(void)
{
    coll_result result = coll_run_stage(coll_engine()->decode, kept.steps, kept.now);
    if (result == COLL_SUCCESS)
        result = coll_run_later_phases(kept.steps, kept.now);
    if (result == COLL_SUCCESS && any_late())
        result = coll_run_moved(kept.steps + kept.now, kept.step_count - kept.now, move_late);
    return result == COLL_SUCCESS ? tie_all() : result;
}

/* Something was encoded, and maybe moved, that other ranks count otherwise now. */
static void fail_all(coll_result result)
{
    for (unsigned i = 0; i < kept.step_count; i++)
        if (!coll_comm_is_removed(kept.steps[i].held))
            coll_engine()->fail(kept.steps[i].member, result);
}

coll_result coll_group_after_end(coll_result ended)
{
    const coll_result failed = kept.failed;
    coll_result result = await(ended);
    if (result == COLL_SUCCESS && kept.step_count > 0)
        result = end();
    if (result != COLL_SUCCESS)
        fail_all(result);
    forget();
    if (result == COLL_SUCCESS)
        result = ended;
    return result == COLL_SUCCESS ? failed : result;
}

coll_result coll_group_before_simulation(void)
{
    coll_result result = COLL_SUCCESS;
    for (unsigned i = 0; i < kept.raw_count && result == COLL_SUCCESS; i++)
        result = move_raw(&kept.raw[i].call);
    uncount();
    forget();
    return result;
}
