#include "collective/engine/op.h"
#include "collective/engine/plan.h"

/* ---- Sizes of head and tail -------------------------------------------------------------------------------------- */

/* Times that head and tail have to cover: launches, before a message can be sent and after one has arrived, and coding.
 * The margin of what coding costs is about what multiprocessors that are left to NCCL take, and decoding waits for
 * NCCL's last bytes. Too short costs all of what is missing, too long a third of the excess. */
#define ENCODE_SECONDS 40e-6
#define DECODE_SECONDS 55e-6
#define DECODE_MARGIN  1.25
/* Seconds per byte of host memory (25 GB/s), used where nothing was measured. */
#define PER_BYTE 4e-11
/* Operations shorter than this many heads and tails gain nothing. */
#define LEAST 3

static uint32_t pages_of(double seconds, double per_byte)
{
    return 1 + (uint32_t)(seconds / per_byte / PLAN_PAGE);
}

void overlap_split(const struct coll_ccomm *ccomm, const struct plan *plan, struct coll_op *op)
{
    op->head = op->tail = 0;
    const double raw = (double)plan->raw, others = plan_sources(plan);
    const double measured = cost_coded(ccomm, plan), per_byte = measured > 0 ? measured : PER_BYTE;
    const double encoding = ENCODE_SECONDS + (plan->everybody ? 1 : others) * raw * ccomm->cost.encode;
    const double decoding = DECODE_SECONDS + DECODE_MARGIN * others * raw * ccomm->cost.decode;
    if (LEAST * (encoding + decoding) > raw * per_byte)
        return;
    const uint32_t head = pages_of(encoding, per_byte), tail = pages_of(decoding, per_byte);
    if (head + tail >= plan->layout.pages) /* each is a page at least */
        return;
    op->head = head;
    op->tail = tail;
}

/* ---- Moving ------------------------------------------------------------------------------------------------------ */

static const uint8_t *source_of(const struct plan *plan, const struct plan_raw_part *part, int rank)
{
    const uint64_t size = plan->stride / plan->whole.count;
    const uint64_t message = plan->everybody ? 0 : (uint64_t)rank * plan->stride;
    return (const uint8_t *)plan->whole.send + message + part->from * size;
}

static uint8_t *target_of(const struct plan *plan, const struct plan_raw_part *part, int rank)
{
    const uint64_t size = plan->stride / plan->whole.count;
    return (uint8_t *)plan->whole.receive + (uint64_t)rank * plan->stride + part->from * size;
}

static uint8_t *raw_arrival_of(const struct plan *plan, const struct plan_raw_part *part, uint8_t *memory, int rank)
{
    return plan->reduces ? memory + part->at + (uint64_t)rank * part->stride : target_of(plan, part, rank);
}

/* Values that `peer` gets, in the program's memory or in their copy. */
static const uint8_t *raw_departure_of(const struct plan *plan, const struct plan_raw_part *part, const uint8_t *memory,
                                       int peer)
{
    return plan->copies ? memory + part->out_at + (plan->everybody ? 0 : (uint64_t)peer * part->stride)
                        : source_of(plan, part, peer);
}

static coll_result exchange(const struct coll_op *op, const struct plan *plan, const struct plan_raw_part *part)
{
    const struct coll_table *nccl = op->ccomm->host.nccl;
    const coll_stream stream = op->call.stream;
    uint8_t *memory = launch_memory(op);
    coll_result result = COLL_SUCCESS;
    for (int peer = 0; peer < op->ccomm->ranks && result == COLL_SUCCESS; peer++) {
        if (peer == op->ccomm->rank)
            continue;
        result = nccl->Send(raw_departure_of(plan, part, memory, peer), part->bytes, COLL_UINT8, peer, op->call.comm,
                            stream);
        if (result == COLL_SUCCESS)
            result = nccl->Recv(raw_arrival_of(plan, part, memory, peer), part->bytes, COLL_UINT8, peer, op->call.comm,
                                stream);
    }
    return result;
}

static coll_result gather(const struct coll_op *op, const struct plan *plan, const struct plan_raw_part *part)
{
    uint8_t *memory = launch_memory(op);
    /* Sums that are gathered are of two ranks; what is for everybody is the same for any peer. */
    const uint8_t *from = raw_departure_of(plan, part, memory, 1 - op->ccomm->rank);
    return op->ccomm->host.nccl->AllGather(from, memory + part->at, part->bytes, COLL_UINT8, op->call.comm,
                                           op->call.stream);
}

/* From the program's memory to the program's, as NCCL would have moved it. */
static coll_result broadcast(const struct coll_op *op, const struct plan *plan, const struct plan_raw_part *part)
{
    return op->ccomm->host.nccl->Broadcast(source_of(plan, part, 0), target_of(plan, part, 0), part->bytes, COLL_UINT8,
                                           op->call.peer, op->call.comm, op->call.stream);
}

static coll_result move_by_channels(const struct coll_op *op, const struct gpu_shm *message)
{
    return shm_move(op->ccomm, message, op->call.stream) ? COLL_SUCCESS
                                                         : launch_failed(op, "a message could not be moved");
}

/* The head or the tail, straight to the program's memory or to where it is added up. */
static coll_result raw_by_channels(const struct coll_op *op, const struct plan *plan, const struct plan_raw_part *part)
{
    uint8_t *memory = launch_memory(op);
    const struct gpu_shm message = {.send = source_of(plan, part, 0),
                                    .receive = raw_arrival_of(plan, part, memory, 0),
                                    .send_stride = plan->everybody ? 0 : plan->stride,
                                    .receive_stride = plan->reduces ? part->stride : plan->stride,
                                    .bytes = part->bytes};
    return move_by_channels(op, &message);
}

/* What is coded: message i is that of rank i, or the only one. */
static coll_result coded_by_channels(const struct coll_op *op, const struct plan *plan)
{
    uint8_t *memory = launch_memory(op);
    const struct gpu_shm message = {.send = memory + plan->out_at,
                                    .receive = memory + plan->in_at,
                                    .send_stride = plan->out > 1 ? plan->layout.encoded : 0,
                                    .receive_stride = plan->in > 1 ? plan->layout.message : 0,
                                    .bytes = plan->layout.message};
    return move_by_channels(op, &message);
}

/* In a group even if it is one call: when the group has ended the work is on the stream (coll_nccl_blocking), so more
 * can follow. */
static coll_result move_all(const struct coll_op *op, const struct plan *plan, const struct plan_raw_part *part)
{
    const struct coll_table *nccl = op->ccomm->host.nccl;
    if (plan->shm)
        return raw_by_channels(op, plan, part);
    if (plan->copies &&
        !op->ccomm->gpu->copy_rows(launch_memory(op) + part->out_at, part->stride, source_of(plan, part, 0),
                                   plan->stride, part->bytes, plan->out, op->call.stream))
        return launch_failed(op, "a head or tail could not be copied");
    coll_result result = nccl->GroupStart();
    if (result != COLL_SUCCESS)
        return result;
    result = part->gathers                             ? gather(op, plan, part)
             : plan->whole.operation == COLL_BROADCAST ? broadcast(op, plan, part)
                                                       : exchange(op, plan, part);
    const coll_result ended = nccl->GroupEnd();
    return result == COLL_SUCCESS ? ended : result;
}

/* Hands the head or the tail to NCCL, on the op's stream. */
static coll_result overlap_send_raw(const struct coll_op *op, enum plan_end end)
{
    const struct plan *plan = launch_plan(op);
    return plan->raw_parts[end].count > 0 ? move_all(op, plan, &plan->raw_parts[end]) : COLL_SUCCESS;
}

/* ---- Finishing --------------------------------------------------------------------------------------------------- */

/* Copies the values of ranks `from` to `until`. */
static bool put(const struct coll_op *op, const struct plan *plan, const struct plan_raw_part *part, int from,
                int until)
{
    return from == until ||
           op->ccomm->gpu->copy_rows(target_of(plan, part, from), plan->stride,
                                     launch_memory(op) + part->at + (uint64_t)from * part->stride, part->stride,
                                     part->bytes, (size_t)(until - from), op->call.stream);
}

/* When it has arrived, puts it where it belongs or adds it up. On the op's stream. */
static bool overlap_finish_raw(const struct coll_op *op, enum plan_end end)
{
    const struct plan *plan = launch_plan(op);
    const struct plan_raw_part *part = &plan->raw_parts[end];
    const int rank = op->ccomm->rank;
    if (part->count == 0)
        return true;
    if (plan->reduces) {
        const struct coll_call call = phase_cut(&plan->whole, part->from, part->count);
        struct coll_reduce sum = launch_sum_of(op, &call, (uint32_t)op->ccomm->ranks);
        for (int i = 0; i < op->ccomm->ranks; i++)
            sum.source[i] = i == rank ? source_of(plan, part, i) : raw_arrival_of(plan, part, launch_memory(op), i);
        return op->ccomm->gpu->reduce(&sum, op->ccomm->host.settings.sms, op->call.stream);
    }
    return plan->whole.operation != COLL_ALL_GATHER || plan->shm ||
           (put(op, plan, part, 0, rank) && put(op, plan, part, rank + 1, op->ccomm->ranks));
}

/* How the work overlaps:
 *
 *   the op's stream   move head      | move what is coded | move tail      | finish tail
 *   beside it           encode, copy own                             | check, decode, finish head
 *
 * It is queued in an order that a single stream could run, so nothing waits for work behind it where streams share a
 * queue. NCCL's parts follow each other directly on one stream. */

/* Stream `behind` goes on when `before` has come to this point. */
static bool follow(const struct coll_op *op, coll_stream behind, coll_stream before, gpu_event event)
{
    const struct gpu_ops *gpu = op->ccomm->gpu;
    return gpu->event_record(event, before) && gpu->event_follow(behind, event);
}

/* Calls `move`, which hands NCCL something on the op's stream, in a group of its own. */
static coll_result move_by_nccl(const struct coll_op *op, coll_result (*move)(const struct coll_op *, coll_stream))
{
    const struct coll_table *nccl = op->ccomm->host.nccl;
    coll_result result = nccl->GroupStart();
    if (result != COLL_SUCCESS)
        return result;
    result = move(op, op->call.stream);
    const coll_result ended = nccl->GroupEnd();
    return result == COLL_SUCCESS ? ended : result;
}

static coll_result move_coded(const struct coll_op *op)
{
    const struct plan *plan = launch_plan(op);
    if (!plan->shm)
        return move_by_nccl(op, launch_move);
    const coll_result result = plan->left > 0 ? move_by_nccl(op, launch_rest) : COLL_SUCCESS;
    return result == COLL_SUCCESS ? coded_by_channels(op, plan) : result;
}

static bool overlap_decode(const struct coll_op *beside)
{
    return beside->ccomm->gpu->event_follow(beside->call.stream, beside->staging->arrived) && launch_check(beside) &&
           overflow_finish(beside, false) && launch_decode(beside) && overlap_finish_raw(beside, PLAN_HEAD) &&
           launch_sums(beside);
}

/* From the fork up to what is decoded. */
static coll_result pass(const struct coll_op *op, const struct coll_op *beside)
{
    const struct gpu_ops *gpu = op->ccomm->gpu;
    const struct coll_staging *staging = op->staging;
    coll_result result = overlap_send_raw(op, PLAN_HEAD);
    if (result != COLL_SUCCESS)
        return result;
    if (!gpu->event_follow(staging->side, staging->fork) || !launch_encode(beside) ||
        !follow(op, op->call.stream, beside->call.stream, op->staging->join) || !launch_own(beside))
        return launch_failed(op, "encoding could not be launched");
    result = move_coded(op);
    if (result == COLL_SUCCESS && !gpu->event_record(staging->arrived, op->call.stream))
        return launch_failed(op, "what has come could not be followed");
    return result == COLL_SUCCESS ? overlap_send_raw(op, PLAN_TAIL) : result;
}

static coll_result run(struct coll_op *op)
{
    const struct gpu_ops *gpu = op->ccomm->gpu;
    struct coll_staging *staging = op->staging;
    if (!op_grow_staging(op))
        return launch_failed(op, "no memory for messages");
    if (!order_follow(op->ccomm, staging, op->call.stream) || !launch_odd_in(op) ||
        !gpu->event_record(staging->fork, op->call.stream))
        return launch_failed(op, "encoding could not be launched");
    struct coll_op beside = *op;
    beside.call.stream = staging->side;
    const coll_result result = pass(op, &beside);
    if (result != COLL_SUCCESS)
        return result;
    return overlap_decode(&beside) && follow(op, op->call.stream, beside.call.stream, op->staging->join) &&
                   overlap_finish_raw(op, PLAN_TAIL) && launch_odd_out(op) &&
                   order_end(op->ccomm, op->staging, op->call.stream)
               ? COLL_SUCCESS
               : launch_failed(op, "decoding could not be launched");
}

coll_result overlap_run(struct coll_op *op)
{
    const struct gpu_ops *gpu = op->ccomm->gpu;
    int before;
    coll_result result = ops_reserve(op, 1);
    if (result != COLL_SUCCESS)
        return result;
    if (!gpu->enter(op->ccomm->device, &before))
        return launch_failed(op, "no GPU");
    timing_begin(op);
    result = run(op);
    if (result == COLL_SUCCESS)
        timing_end(op);
    gpu->leave(before);
    return result;
}

/* ---- Operations that are left raw -------------------------------------------------------------------------------- */

static coll_result call_nccl(const struct coll_op *op)
{
    const struct coll_table *nccl = op->ccomm->host.nccl;
    const struct coll_call *call = &op->call;
    switch (call->operation) {
    case COLL_ALL_GATHER:
        return nccl->AllGather(call->send, call->receive, call->count, call->type, call->comm, call->stream);
    case COLL_ALL_TO_ALL:
        return nccl->AlltoAll(call->send, call->receive, call->count, call->type, call->comm, call->stream);
    case COLL_REDUCE_SCATTER:
        return nccl->ReduceScatter(call->send, call->receive, call->count, call->type, call->reduction, call->comm,
                                   call->stream);
    case COLL_BROADCAST:
        return nccl->Broadcast(call->send, call->receive, call->count, call->type, call->peer, call->comm,
                               call->stream);
    default: /* all_reduce */
        return nccl->AllReduce(call->send, call->receive, call->count, call->type, call->reduction, call->comm,
                               call->stream);
    }
}

coll_result overlap_left_raw(struct coll_op *op)
{
    const struct gpu_ops *gpu = op->ccomm->gpu;
    int before;
    if (!gpu->enter(op->ccomm->device, &before))
        return launch_failed(op, "no GPU");
    timing_begin(op);
    const coll_result result = call_nccl(op);
    if (result == COLL_SUCCESS) /* else it may not be on the stream yet */
        timing_end(op);
    gpu->leave(before);
    return result;
}
