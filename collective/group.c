#include <stdlib.h>
#include <string.h>

#include "collective/comm.h"
#include "collective/group.h"

/* ---- The calling thread ------------------------------------------------------------------------------------------ */

_Thread_local struct coll_thread coll_thread;

void coll_thread_enter(void)
{
    coll_thread.in_nccl++;
}

/* A stage of the engine: encode, move, decode or pass. */
typedef coll_result coll_stage(struct coll_op *ops, unsigned count);

/* ---- Routes ------------------------------------------------------------------------------------------------------ */

/* NCCL makes sends and receives of these. */
static bool moves_by_pairs(const struct coll_call *call)
{
    return call->operation == COLL_SEND || call->operation == COLL_RECV || call->operation == COLL_ALL_TO_ALL ||
           call->operation == COLL_GATHER || call->operation == COLL_SCATTER;
}

/* Whether a call's config asks for what only NCCL's own operation does: an algorithm, where it runs (on copy engines,
 * say), an event, or a vendor's extension. It has to be the same on all ranks. */
static bool is_steered(const coll_call_config *config)
{
    if (config->head.magic != COLL_CONFIG_MAGIC) /* NCCL refuses it */
        return true;
    return (COLL_CONFIG_HAS(config, extensions) && config->extensions != NULL) ||
           (COLL_CONFIG_HAS(config, selection) && config->selection != NULL && config->selection[0] != '\0') ||
           (COLL_CONFIG_HAS(config, policy) && config->policy != COLL_UNDEFINED && config->policy != 0) ||
           (COLL_CONFIG_HAS(config, launched) && config->launched != NULL);
}

static const char *reason_to_stay_raw(const struct coll_comm_info *info, const struct coll_call *call)
{
    if (info->pinned)
        return "pinned";
    if (info->ending)
        return "ending";
    if (info->ranks == 1)
        return "one rank";
    if (call->type != COLL_BF16 && call->type != COLL_FP16 && call->type != COLL_FP32 && call->type != COLL_UINT8)
        return "type is not compressed";
    if (call->config != NULL && is_steered(call->config))
        return "its config says how NCCL moves it";
    if (info->ccomm == NULL)
        return info->why != NULL ? info->why : "nothing is known of it";
    return NULL;
}

/* Of all of its phases. */
static struct op_cost cost_of(const struct coll_op *op)
{
    struct op_cost cost = {0, 0, 0};
    for (unsigned phase = 0; phase < op->phases; phase++) {
        cost.plain += op->of[phase].cost.plain;
        cost.coded += op->of[phase].cost.coded;
        cost.repair += op->of[phase].cost.repair;
    }
    return cost;
}

struct coll_decision coll_decide(const struct coll_comm_info *info, const struct coll_call *call, struct coll_op *op)
{
    const char *reason = reason_to_stay_raw(info, call);
    op->counted = false;
    const bool compressed = reason == NULL && coll_engine()->decide(info->ccomm, call, op, &reason);
    op->held = info->held;
    if (compressed && op->left_raw)
        return (struct coll_decision){.route = COLL_ROUTE_TIMED, .reason = COLL_LEFT_RAW};
    if (compressed)
        return (struct coll_decision){COLL_ROUTE_COMPRESS, "compressed", op->wire, op->values, op->probe, cost_of(op)};
    const bool mixed = call->grouped && info->ccomm != NULL && !info->pinned;
    /* A call that NCCL refuses must not be deferred: the group fails before anything is encoded. */
    const bool deferred = mixed && moves_by_pairs(call) && call->peer >= 0 && call->peer < info->ranks &&
                          coll_type_row(call->type) != COLL_UNKNOWN;
    return (struct coll_decision){.route = deferred ? COLL_ROUTE_DEFER : COLL_ROUTE_NCCL, .reason = reason};
}

/* After a failure all ops fail: a program that never asks for errors must not go on with data that did not arrive. */
static coll_result error_of(const struct coll_op *ops, unsigned count)
{
    coll_result result = COLL_SUCCESS;
    for (unsigned i = 0; i < count && result == COLL_SUCCESS; i++)
        result = coll_engine()->error(ops[i].ccomm);
    return result;
}

/* NCCL must not be called for a communicator that another thread has aborted. */
static bool any_removed(const struct coll_op *ops, unsigned count)
{
    bool removed = false;
    for (unsigned i = 0; i < count; i++)
        removed |= coll_comm_is_removed(ops[i].held);
    return removed;
}

/* One of the engine's stages for these ops, all of which may be none; refused if one of their communicators has ended
 * or failed. Nothing that the engine calls, nor what NCCL calls in turn, is intercepted. */
static coll_result run_stage(coll_stage *stage, struct coll_op *ops, unsigned count)
{
    const bool begins = stage == coll_engine()->encode || stage == coll_engine()->pass;
    if (any_removed(ops, count))
        return COLL_INVALID_USAGE;
    const coll_result failed = begins ? error_of(ops, count) : COLL_SUCCESS;
    if (failed != COLL_SUCCESS)
        return failed;
    coll_thread.in_nccl++;
    return coll_leave_nccl(stage(ops, count));
}

static coll_result in_nccl_group(coll_result (*stage)(void))
{
    coll_thread.in_nccl++;
    return coll_leave_nccl(stage());
}

/* One phase of ops that do not overlap, in a group of ours: encode, what `move` does, decode. */
static coll_result run_moved(struct coll_op *ops, unsigned count, coll_stage *move)
{
    coll_result result = run_stage(coll_engine()->encode, ops, count);
    if (result == COLL_SUCCESS && any_removed(ops, count))
        result = COLL_INVALID_USAGE;
    if (result == COLL_SUCCESS)
        result = in_nccl_group(coll_nccl_blocking()->GroupStart);
    if (result != COLL_SUCCESS)
        return result;
    result = move(ops, count);
    coll_result ended = in_nccl_group(coll_nccl_blocking()->GroupEnd);
    result = result == COLL_SUCCESS ? ended : result;
    return result == COLL_SUCCESS ? run_stage(coll_engine()->decode, ops, count) : result;
}

static coll_result move_run(struct coll_op *ops, unsigned count)
{
    return run_stage(coll_engine()->move, ops, count);
}

/* An op outside of groups, whose coding and transfer overlap if it has a head or a tail, or which is left raw. */
static coll_result run_alone(struct coll_op *op)
{
    const bool passes = op->head > 0 || op->tail > 0 || op->left_raw;
    coll_result result = COLL_SUCCESS;
    for (op->phase = 0; op->phase < op->phases && result == COLL_SUCCESS; op->phase++)
        result = passes ? run_stage(coll_engine()->pass, op, 1) : run_moved(op, 1, move_run);
    return result;
}

/* ---- Releasing --------------------------------------------------------------------------------------------------- */

void coll_release(struct coll_comm_entry *held)
{
    struct coll_ccomm *ccomm = coll_comm_put(held);
    if (ccomm == NULL)
        return;
    coll_thread.in_nccl++;
    coll_engine()->leave(ccomm);
    coll_thread.in_nccl--;
}

/* Entries of communicators that the calling thread's group aborts or destroys. */
static _Thread_local struct {
    struct coll_comm_entry **items;
    unsigned count, capacity;
} releasing;

void coll_release_after_group(struct coll_comm_entry *held)
{
    struct coll_comm_entry **items = NULL;
    if (held != NULL && coll_thread.depth > 0)
        items = coll_grown(releasing.items, releasing.count, &releasing.capacity, sizeof(struct coll_comm_entry *));
    if (items == NULL) {
        coll_release(held);
        return;
    }
    releasing.items = items;
    items[releasing.count++] = held;
}

void coll_release_all(void)
{
    for (unsigned i = 0; i < releasing.count; i++)
        coll_release(releasing.items[i]);
    free(releasing.items);
    releasing.items = NULL;
    releasing.count = releasing.capacity = 0;
}

/* The ops of a group that ends, in the order in which NCCL moves them; filled once, and cut into slices that go through
 * encode, move and decode together:
 *
 *   [0, collectives)       collectives, in the order of the calls
 *   [collectives, first)   sends and receives, in the order of the calls     first pass: in the program's group
 *   [first, phases[1])     those of the first slice with phase 1, in that    a group of ours; of each later phase too
 *   [phases[last], count)  sends and receives of communicators with such     second pass: one more group of ours
 *
 * Ranks may have a collective of several phases in no group, and come to sends and receives of its communicator only
 * behind its last phase: so these wait for it here, too. */
struct op_batch {
    struct coll_op *ops;
    unsigned collectives, first, count;
    unsigned phases[COLL_PHASES_MAX]; /* by phase, from 1 on: the end of its slice */
};

/* State of the group of the calling thread. */
static _Thread_local struct {
    struct coll_op *ops; /* in the order of the calls */
    unsigned op_count, op_capacity;
    struct op_batch batch;
    struct raw { /* deferred raw calls, each behind `ops_before` ops */
        struct coll_call call;
        coll_call_config *config; /* copy of the call's, with its text; NULL: none */
        unsigned ops_before;
    } * raw;
    unsigned raw_count, raw_capacity;
    struct coll_op *counted; /* raw ops that count */
    unsigned counted_count, counted_capacity;
    struct used_stream { /* streams of calls */
        coll_comm comm;
        coll_stream stream;
        bool captured;
    } * streams;
    unsigned stream_count, stream_capacity;
    coll_result failed;
} group;

/* ---- While it is open -------------------------------------------------------------------------------------------- */

static bool is_noted(const struct coll_call *call)
{
    for (unsigned i = 0; i < group.stream_count; i++)
        if (group.streams[i].comm == call->comm && group.streams[i].stream == call->stream)
            return true;
    return false;
}

void coll_group_note(const struct coll_call *call)
{
    if (is_noted(call))
        return;
    struct used_stream *streams =
        coll_grown(group.streams, group.stream_count, &group.stream_capacity, sizeof(*streams));
    if (streams == NULL) {
        coll_group_fail(COLL_SYSTEM_ERROR);
        return;
    }
    group.streams = streams;
    streams[group.stream_count++] = (struct used_stream){call->comm, call->stream, call->captured};
}

/* The program may end its config when the call has returned. Extensions stay where they are. */
static coll_call_config *copy_config(const coll_call_config *config)
{
    const bool known = config->head.magic == COLL_CONFIG_MAGIC && config->head.size >= sizeof(config->head);
    const bool has_text = COLL_CONFIG_HAS(config, selection) && config->selection != NULL;
    const size_t size = known ? config->head.size : sizeof(config->head),
                 text = has_text ? strlen(config->selection) + 1 : 0;
    coll_call_config *copy = malloc((size < sizeof(*copy) ? sizeof(*copy) : size) + text);
    if (copy == NULL)
        return NULL;
    memcpy(copy, config, size);
    if (has_text)
        copy->selection = memcpy((char *)copy + size, config->selection, text);
    return copy;
}

coll_result coll_group_keep(const struct coll_call *call)
{
    coll_call_config *config = call->config != NULL ? copy_config(call->config) : NULL;
    struct raw *raw = coll_grown(group.raw, group.raw_count, &group.raw_capacity, sizeof(*raw));
    if (raw == NULL || (config == NULL && call->config != NULL)) {
        group.raw = raw != NULL ? raw : group.raw;
        free(config);
        return COLL_SYSTEM_ERROR;
    }
    group.raw = raw;
    raw[group.raw_count++] = (struct raw){*call, config, group.op_count};
    return COLL_SUCCESS;
}

static bool group_add(const struct coll_op *op)
{
    struct coll_op *ops = coll_grown(group.ops, group.op_count, &group.op_capacity, sizeof(*ops));
    if (ops == NULL)
        return false;
    group.ops = ops;
    ops[group.op_count] = *op;
    ops[group.op_count].group_index = group.op_count;
    group.op_count++;
    return true;
}

coll_result coll_op_run(const struct coll_op *op)
{
    struct coll_op own = *op;
    if (coll_thread.depth > 0 && group_add(op))
        return COLL_SUCCESS;
    const coll_result result = coll_thread.depth > 0 ? COLL_SYSTEM_ERROR : run_alone(&own);
    coll_release(op->held);
    return result;
}

bool coll_group_counts(const struct coll_op *op)
{
    struct coll_op *counted = NULL;
    if (op->counted && coll_thread.depth > 0)
        counted = coll_grown(group.counted, group.counted_count, &group.counted_capacity, sizeof(*counted));
    if (counted == NULL)
        return false;
    group.counted = counted;
    counted[group.counted_count++] = *op;
    return true;
}

void coll_group_fail(coll_result result)
{
    group.failed = group.failed == COLL_SUCCESS ? result : group.failed;
}

/* ---- The end of it ----------------------------------------------------------------------------------------------- */

static void clear(void)
{
    for (unsigned i = 0; i < group.op_count; i++)
        coll_release(group.ops[i].held);
    for (unsigned i = 0; i < group.counted_count; i++)
        coll_release(group.counted[i].held);
    for (unsigned i = 0; i < group.raw_count; i++)
        free(group.raw[i].config);
    free(group.ops);
    free(group.batch.ops);
    free(group.raw);
    free(group.counted);
    free(group.streams);
    memset(&group, 0, sizeof(group));
}

static void cancel_all(void)
{
    if (group.op_count > 0)
        coll_engine()->forget(group.ops, group.op_count);
    if (group.counted_count > 0)
        coll_engine()->forget(group.counted, group.counted_count);
}

static bool is_in_second_pass(const struct coll_call *call)
{
    bool second_pass = false;
    for (unsigned i = 0; i < group.op_count && moves_by_pairs(call); i++)
        second_pass |= group.ops[i].phases > 1 && group.ops[i].call.comm == call->comm;
    return second_pass;
}

static bool has_second_pass(void)
{
    bool second_pass = group.batch.phases[COLL_PHASES_MAX - 1] < group.batch.count;
    for (unsigned i = 0; i < group.raw_count; i++)
        second_pass |= is_in_second_pass(&group.raw[i].call);
    return second_pass;
}

/* False: no memory. */
static bool fill_batch(struct op_batch *batch)
{
    enum { COLLECTIVES, FIRST, PHASES, SECOND = PHASES + COLL_PHASES_MAX - 1, SLICES };
    unsigned end[SLICES];
    batch->ops = calloc(COLL_PHASES_MAX * (size_t)group.op_count, sizeof(*batch->ops));
    if (batch->ops == NULL)
        return false;
    for (unsigned slice = 0; slice < SLICES; slice++) {
        const unsigned phase = slice >= PHASES && slice < SECOND ? slice - PHASES + 1 : 0;
        for (unsigned i = 0; i < group.op_count; i++) {
            const struct coll_op *op = &group.ops[i];
            const bool by_pairs = moves_by_pairs(&op->call), second = is_in_second_pass(&op->call);
            const bool belongs = slice == COLLECTIVES ? !by_pairs
                                 : slice == FIRST     ? by_pairs && !second
                                 : slice == SECOND    ? by_pairs && second
                                                      : op->phases > phase;
            if (!belongs)
                continue;
            batch->ops[batch->count] = *op;
            batch->ops[batch->count++].phase = phase;
        }
        end[slice] = batch->count;
    }
    batch->collectives = end[COLLECTIVES];
    batch->first = end[FIRST];
    for (unsigned phase = 1; phase < COLL_PHASES_MAX; phase++)
        batch->phases[phase] = end[PHASES + phase - 1];
    return true;
}

/* Order of all streams of the group, which NCCL would keep by itself but for coding, which it does not know. It refuses
 * by itself that only some of them are captured. */
static coll_result join_streams(const struct coll_op *op)
{
    coll_stream *streams = malloc(group.stream_count * sizeof(*streams));
    unsigned count = 0, captured = 0;
    coll_result result = streams != NULL ? COLL_SUCCESS : COLL_SYSTEM_ERROR;
    for (unsigned i = 0; i < group.stream_count && streams != NULL; i++)
        if (group.streams[i].comm == op->call.comm) {
            streams[count++] = group.streams[i].stream;
            captured += group.streams[i].captured;
        }
    coll_thread.in_nccl++;
    if (count > 1 && (captured == 0 || captured == count))
        result = coll_engine()->join_streams(op->ccomm, streams, count);
    free(streams);
    return coll_leave_nccl(result);
}

static bool is_first(unsigned i)
{
    for (unsigned before = 0; before < i; before++)
        if (group.ops[before].ccomm == group.ops[i].ccomm)
            return false;
    return true;
}

static coll_result join_all_streams(void)
{
    coll_result result = COLL_SUCCESS;
    for (unsigned i = 0; i < group.op_count && result == COLL_SUCCESS; i++)
        if (is_first(i))
            result = join_streams(&group.ops[i]);
    return result;
}

static coll_result move_configured(const struct coll_call *call, const coll_call_config *config)
{
    const struct coll_table *nccl = coll_nccl_blocking();
    switch (call->operation) {
    case COLL_ALL_TO_ALL:
        return nccl->AlltoAllConfig(call->send, call->receive, call->count, call->type, call->comm, call->stream,
                                    config);
    case COLL_GATHER:
        return nccl->GatherConfig(call->send, call->receive, call->count, call->type, call->peer, call->comm,
                                  call->stream, config);
    default:
        return nccl->ScatterConfig(call->send, call->receive, call->count, call->type, call->peer, call->comm,
                                   call->stream, config);
    }
}

static coll_result move_plain(const struct coll_call *call)
{
    const struct coll_table *nccl = coll_nccl_blocking();
    switch (call->operation) {
    case COLL_SEND:
        return nccl->Send(call->send, call->count, call->type, call->peer, call->comm, call->stream);
    case COLL_RECV:
        return nccl->Recv(call->receive, call->count, call->type, call->peer, call->comm, call->stream);
    case COLL_ALL_TO_ALL:
        return nccl->AlltoAll(call->send, call->receive, call->count, call->type, call->comm, call->stream);
    case COLL_GATHER:
        return nccl->Gather(call->send, call->receive, call->count, call->type, call->peer, call->comm, call->stream);
    default:
        return nccl->Scatter(call->send, call->receive, call->count, call->type, call->peer, call->comm, call->stream);
    }
}

static coll_result move_raw(const struct raw *raw)
{
    coll_thread.in_nccl++;
    return coll_leave_nccl(raw->config != NULL ? move_configured(&raw->call, raw->config) : move_plain(&raw->call));
}

static coll_result move_ops(unsigned from, unsigned until)
{
    return from < until ? run_stage(coll_engine()->move, group.batch.ops + from, until - from) : COLL_SUCCESS;
}

/* Moves the ops of one pass, with the raw calls of that pass in between: behind all collectives, in the order of the
 * calls. */
static coll_result move_pass(unsigned from, unsigned until, bool second_pass)
{
    coll_result result = COLL_SUCCESS;
    for (unsigned i = 0; i < group.raw_count && result == COLL_SUCCESS; i++) {
        const struct raw *raw = &group.raw[i];
        unsigned at = from;
        if (is_in_second_pass(&raw->call) != second_pass)
            continue;
        while (at < until && (at < group.batch.collectives || group.batch.ops[at].group_index < raw->ops_before))
            at++;
        result = move_ops(from, at);
        from = at;
        if (result == COLL_SUCCESS)
            result = move_raw(raw);
    }
    return result == COLL_SUCCESS ? move_ops(from, until) : result;
}

static coll_result begin(void)
{
    if (!fill_batch(&group.batch))
        return COLL_SYSTEM_ERROR;
    coll_result result = join_all_streams();
    if (result == COLL_SUCCESS && group.batch.first > 0)
        result = run_stage(coll_engine()->encode, group.batch.ops, group.batch.first);
    return result;
}

coll_result coll_group_before_end(void)
{
    const coll_result failed = group.failed;
    coll_result result = COLL_SUCCESS;
    if (failed != COLL_SUCCESS) {
        cancel_all();
        clear();
        group.failed = failed;
    } else if (group.op_count > 0) {
        result = begin();
    }
    return result == COLL_SUCCESS ? move_pass(0, group.batch.first, false) : result;
}

/* Waits until NCCL has queued what it moves, as decoding has to be queued behind that. */
static coll_result wait_queued(coll_result ended)
{
    coll_result result = ended;
    coll_thread.in_nccl++;
    for (unsigned i = 0; i < group.op_count && ended == COLL_IN_PROGRESS; i++) {
        const coll_result outcome = coll_nccl_wait(group.ops[i].call.comm, ended);
        result = result == COLL_SUCCESS || result == COLL_IN_PROGRESS ? outcome : result;
    }
    return coll_leave_nccl(result);
}

static coll_result move_second_pass(struct coll_op *ops, unsigned count)
{
    (void)ops;
    (void)count;
    return move_pass(group.batch.phases[COLL_PHASES_MAX - 1], group.batch.count, true);
}

/* The ops of a slice go on from what the phase before, in the slice from `before` on, has left. */
static coll_result run_phase(unsigned phase, unsigned before, unsigned from, unsigned until)
{
    struct coll_op *ops = group.batch.ops;
    for (unsigned i = from, of = before; i < until; i++, of++) {
        while (ops[of].group_index != ops[i].group_index)
            of++;
        ops[i] = ops[of];
        ops[i].phase = phase;
    }
    return from < until ? run_moved(ops + from, until - from, move_run) : COLL_SUCCESS;
}

static coll_result end(void)
{
    const struct op_batch *batch = &group.batch;
    const unsigned behind = batch->phases[COLL_PHASES_MAX - 1];
    coll_result result = run_stage(coll_engine()->decode, batch->ops, batch->first);
    for (unsigned phase = 1, before = 0, from = batch->first; phase < COLL_PHASES_MAX; phase++) {
        if (result == COLL_SUCCESS)
            result = run_phase(phase, before, from, batch->phases[phase]);
        before = from;
        from = batch->phases[phase];
    }
    if (result == COLL_SUCCESS && has_second_pass())
        result = run_moved(batch->ops + behind, batch->count - behind, move_second_pass);
    return result == COLL_SUCCESS ? join_all_streams() : result;
}

coll_result coll_group_after_end(coll_result ended)
{
    const coll_result failed = group.failed;
    coll_result result = wait_queued(ended);
    if (result == COLL_SUCCESS && group.op_count > 0)
        result = end();
    if (result != COLL_SUCCESS)
        /* Ops were encoded, and maybe moved, whose numbers differ from those on other ranks now: their communicators
         * fail. */
        for (unsigned i = 0; i < group.op_count; i++)
            if (!coll_comm_is_removed(group.ops[i].held))
                coll_engine()->fail(group.ops[i].ccomm, result);
    clear();
    if (result == COLL_SUCCESS)
        result = ended;
    return result == COLL_SUCCESS ? failed : result;
}

coll_result coll_group_before_simulation(void)
{
    coll_result result = COLL_SUCCESS;
    for (unsigned i = 0; i < group.raw_count && result == COLL_SUCCESS; i++)
        result = move_raw(&group.raw[i]);
    cancel_all();
    clear();
    return result;
}
