#include "collective/engine/op.h"
#include "collective/engine/plan.h"

/* ---- Sizes of head and tail -------------------------------------------------------------------------------------- */

/* What head and tail have to cover: launches, before a message can be sent and after one has arrived, and coding, in
 * raw bytes per second while some multiprocessors are left to NCCL. Too short costs all of what is missing, too long a
 * third of the excess. */
#define ENCODE_SECONDS    40e-6
#define DECODE_SECONDS    55e-6
#define ENCODE_PER_SECOND 1.0e12
#define DECODE_PER_SECOND 0.8e12
/* That of host memory, used where nothing was measured. */
#define PER_BYTE 4e-11
/* Operations shorter than this many heads and tails gain nothing. */
#define LEAST 3

static uint32_t pages_of(double seconds, double per_byte)
{
    return 1 + (uint32_t)(seconds / per_byte / PLAN_PAGE);
}

void overlap_split(const struct coll_ccomm *member, const struct plan *plan, struct coll_op *op)
{
    op->head = op->tail = 0;
    const double raw = (double)plan->raw, others = member->ranks - 1;
    const double measured = cost_coded(member, plan), per_byte = measured > 0 ? measured : PER_BYTE;
    const double encoding = ENCODE_SECONDS + (plan->everybody ? 1 : others) * raw / ENCODE_PER_SECOND;
    const double decoding = DECODE_SECONDS + others * raw / DECODE_PER_SECOND;
    if (LEAST * (encoding + decoding) > raw * per_byte)
        return;
    const uint32_t head = pages_of(encoding, per_byte), tail = pages_of(decoding, per_byte);
    if (head + tail >= plan->layout.pages) /* each is a page at least */
        return;
    op->head = head;
    op->tail = tail;
}

/* ---- Moving ------------------------------------------------------------------------------------------------------ */

static const uint8_t *source_of(const struct plan *plan, const struct plan_raw_part *bare, int rank)
{
    const uint64_t size = plan->stride / plan->whole.count;
    const uint64_t message = plan->everybody ? 0 : (uint64_t)rank * plan->stride;
    return (const uint8_t *)plan->whole.send + message + bare->from * size;
}

static uint8_t *target_of(const struct plan *plan, const struct plan_raw_part *bare, int rank)
{
    const uint64_t size = plan->stride / plan->whole.count;
    return (uint8_t *)plan->whole.receive + (uint64_t)rank * plan->stride + bare->from * size;
}

static uint8_t *bare_arrival_of(const struct plan *plan, const struct plan_raw_part *bare, uint8_t *memory, int rank)
{
    return plan->reduces ? memory + bare->at + (uint64_t)rank * bare->stride : target_of(plan, bare, rank);
}

/* Where it is sent from. */
static const uint8_t *departure_of(const struct plan *plan, const struct plan_raw_part *bare, uint8_t *memory, int rank)
{
    return plan->copies ? memory + bare->out_at + (plan->everybody ? 0 : (uint64_t)rank * bare->stride)
                        : source_of(plan, bare, rank);
}

static bool prepare(const struct coll_op *op, const struct plan *plan, const struct plan_raw_part *bare)
{
    return !plan->copies ||
           op->member->gpu->copy_rows(launch_memory(op) + bare->out_at, bare->stride, source_of(plan, bare, 0),
                                      plan->stride, bare->bytes, plan->out, op->call.stream);
}

static coll_result exchange(const struct coll_op *op, const struct plan *plan, const struct plan_raw_part *bare)
{
    const struct coll_table *nccl = op->member->host.nccl;
    const coll_stream stream = op->call.stream;
    uint8_t *memory = launch_memory(op);
    coll_result result = COLL_SUCCESS;
    for (int peer = 0; peer < op->member->ranks && result == COLL_SUCCESS; peer++) {
        if (peer == op->member->rank)
            continue;
        result =
            nccl->Send(departure_of(plan, bare, memory, peer), bare->bytes, COLL_UINT8, peer, op->call.comm, stream);
        if (result == COLL_SUCCESS)
            result = nccl->Recv(bare_arrival_of(plan, bare, memory, peer), bare->bytes, COLL_UINT8, peer, op->call.comm,
                                stream);
    }
    return result;
}

static coll_result gather(const struct coll_op *op, const struct plan *plan, const struct plan_raw_part *bare)
{
    return op->member->host.nccl->AllGather(source_of(plan, bare, 0), launch_memory(op) + bare->at, bare->bytes,
                                            COLL_UINT8, op->call.comm, op->call.stream);
}

/* In a group even if it is one call: when the group has ended the work is on the stream (coll_nccl_blocking), so more
 * can follow. */
static coll_result move_all(const struct coll_op *op, const struct plan *plan, const struct plan_raw_part *bare)
{
    const struct coll_table *nccl = op->member->host.nccl;
    if (!prepare(op, plan, bare))
        return launch_failed(op, "a head or tail could not be copied");
    coll_result result = nccl->GroupStart();
    if (result != COLL_SUCCESS)
        return result;
    result = plan->whole.operation == COLL_ALL_GATHER ? gather(op, plan, bare) : exchange(op, plan, bare);
    const coll_result ended = nccl->GroupEnd();
    return result == COLL_SUCCESS ? ended : result;
}

coll_result overlap_send_raw(const struct coll_op *op, enum plan_end end)
{
    const struct plan *plan = launch_plan(op);
    return plan->bare[end].count > 0 ? move_all(op, plan, &plan->bare[end]) : COLL_SUCCESS;
}

/* ---- Finishing --------------------------------------------------------------------------------------------------- */

/* Copies the values of ranks `from` to `until`. */
static bool put(const struct coll_op *op, const struct plan *plan, const struct plan_raw_part *bare, int from,
                int until)
{
    return from == until ||
           op->member->gpu->copy_rows(target_of(plan, bare, from), plan->stride,
                                      launch_memory(op) + bare->at + (uint64_t)from * bare->stride, bare->stride,
                                      bare->bytes, (size_t)(until - from), op->call.stream);
}

static bool add_up(const struct coll_op *op, const struct plan *plan, const struct plan_raw_part *bare)
{
    const struct coll_call call = phase_cut(&plan->whole, bare->from, bare->count);
    struct coll_reduce sum = launch_sum_of(op, &call);
    for (int rank = 0; rank < op->member->ranks; rank++)
        sum.source[rank] = rank == op->member->rank ? source_of(plan, bare, rank)
                                                    : bare_arrival_of(plan, bare, launch_memory(op), rank);
    return op->member->gpu->reduce(&sum, op->call.stream);
}

bool overlap_finish_raw(const struct coll_op *op, enum plan_end end)
{
    const struct plan *plan = launch_plan(op);
    const struct plan_raw_part *bare = &plan->bare[end];
    const int rank = op->member->rank;
    if (bare->count == 0)
        return true;
    if (plan->reduces)
        return add_up(op, plan, bare);
    return plan->whole.operation != COLL_ALL_GATHER ||
           (put(op, plan, bare, 0, rank) && put(op, plan, bare, rank + 1, op->member->ranks));
}

/* How the work overlaps:
 *
 *   the op's stream   move head      | move what is coded | move tail      | finish tail
 *   beside it           bare_run_encode, copy own                    | check, bare_run_decode, finish head
 *
 * It is queued in an order that a single stream could run, so nothing waits for work behind it where streams share a
 * queue. NCCL's parts follow each other directly on one stream. */

/* Stream `behind` goes on when `before` has come to this point. */
static bool follow(const struct coll_op *op, coll_stream behind, coll_stream before, gpu_event event)
{
    const struct gpu_ops *gpu = op->member->gpu;
    return gpu->event_record(event, before) && gpu->event_follow(behind, event);
}

static coll_result move_coded(const struct coll_op *op)
{
    const struct coll_table *nccl = op->member->host.nccl;
    coll_result result = nccl->GroupStart();
    if (result != COLL_SUCCESS)
        return result;
    result = launch_move(op, op->call.stream);
    const coll_result ended = nccl->GroupEnd();
    return result == COLL_SUCCESS ? ended : result;
}

/* `beside`: the same op, on the other stream. */
static bool bare_run_encode(const struct coll_op *op, const struct coll_op *beside)
{
    return launch_encode(beside) && follow(op, op->call.stream, beside->call.stream, op->staging->join) &&
           launch_own(beside);
}

static bool bare_run_decode(const struct coll_op *beside)
{
    return beside->member->gpu->event_follow(beside->call.stream, beside->staging->turn) && launch_check(beside) &&
           overflow_finish(beside, false) && launch_decode(beside) && overlap_finish_raw(beside, PLAN_HEAD) &&
           launch_sums(beside);
}

static bool finish(const struct coll_op *op, const struct coll_op *beside)
{
    return follow(op, op->call.stream, beside->call.stream, op->staging->join) && overlap_finish_raw(op, PLAN_TAIL) &&
           order_end(op->member, op->staging, op->call.stream);
}

/* From the fork up to what is decoded. */
static coll_result pass(const struct coll_op *op, const struct coll_op *beside)
{
    const struct gpu_ops *gpu = op->member->gpu;
    const struct coll_staging *staging = op->staging;
    coll_result result = overlap_send_raw(op, PLAN_HEAD);
    if (result != COLL_SUCCESS)
        return result;
    if (!gpu->event_follow(staging->side, staging->fork) || !bare_run_encode(op, beside))
        return launch_failed(op, "encoding could not be launched");
    result = move_coded(op);
    if (result == COLL_SUCCESS && !gpu->event_record(staging->turn, op->call.stream))
        return launch_failed(op, "what has come could not be followed");
    return result == COLL_SUCCESS ? overlap_send_raw(op, PLAN_TAIL) : result;
}

static coll_result run(const struct coll_op *op)
{
    const struct gpu_ops *gpu = op->member->gpu;
    struct coll_staging *staging = op->staging;
    if (!op_grow_staging(op))
        return launch_failed(op, "no memory for messages");
    if (!order_follow(op->member, staging, op->call.stream) || !gpu->event_record(staging->fork, op->call.stream))
        return launch_failed(op, "encoding could not be launched");
    struct coll_op beside = *op;
    beside.call.stream = staging->side;
    const coll_result result = pass(op, &beside);
    if (result != COLL_SUCCESS)
        return result;
    return bare_run_decode(&beside) && finish(op, &beside) ? COLL_SUCCESS
                                                           : launch_failed(op, "decoding could not be launched");
}

coll_result overlap_run(struct coll_op *op)
{
    const struct gpu_ops *gpu = op->member->gpu;
    int before;
    coll_result result = ops_reserve(op, 1);
    if (result != COLL_SUCCESS)
        return result;
    if (!gpu->enter(op->member->device, &before))
        return launch_failed(op, "no GPU");
    result = run(op);
    gpu->leave(before);
    return result;
}
