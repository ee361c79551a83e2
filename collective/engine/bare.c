#include "collective/engine/bare.h"

#include "collective/engine/cost.h"
#include "collective/engine/launch.h"
#include "collective/engine/phase.h"

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
    return 1 + (uint32_t)(seconds / per_byte / SHAPE_PAGE);
}

static void cut_by_size(const struct coll_member *member, const struct plan *plan, struct coll_step *step)
{
    const double raw = (double)plan->raw, others = member->ranks - 1;
    const double measured = cost_coded(member, plan), per_byte = measured > 0 ? measured : PER_BYTE;
    const double encoding = ENCODE_SECONDS + (plan->everybody ? 1 : others) * raw / ENCODE_PER_SECOND;
    const double decoding = DECODE_SECONDS + others * raw / DECODE_PER_SECOND;
    if (LEAST * (encoding + decoding) > raw * per_byte)
        return;
    const uint32_t head = pages_of(encoding, per_byte), tail = pages_of(decoding, per_byte);
    if (head + tail >= plan->shape.pages) /* each is a page at least */
        return;
    step->head = head;
    step->tail = tail;
}

static void cut_as_given(const struct coll_pieces *given, const struct plan *plan, struct coll_step *step)
{
    enum { PAGE_KIB = SHAPE_PAGE / 1024 };
    const uint32_t head = given->head / PAGE_KIB, tail = given->tail / PAGE_KIB;
    if (head + tail >= plan->shape.pages)
        return;
    step->head = head;
    step->tail = tail;
}

void bare_cut(const struct coll_member *member, const struct plan *plan, struct coll_step *step)
{
    const struct coll_pieces *pieces = &member->host.settings.pieces;
    step->head = step->tail = 0;
    if (pieces->given)
        cut_as_given(pieces, plan, step);
    else
        cut_by_size(member, plan, step);
}

/* ---- Moving ------------------------------------------------------------------------------------------------------ */

static const uint8_t *source_of(const struct plan *plan, const struct plan_bare *bare, int rank)
{
    const uint64_t size = plan->stride / plan->whole.count;
    const uint64_t message = plan->everybody ? 0 : (uint64_t)rank * plan->stride;
    return (const uint8_t *)plan->whole.send + message + bare->from * size;
}

static uint8_t *target_of(const struct plan *plan, const struct plan_bare *bare, int rank)
{
    const uint64_t size = plan->stride / plan->whole.count;
    return (uint8_t *)plan->whole.receive + (uint64_t)rank * plan->stride + bare->from * size;
}

static uint8_t *arrival_of(const struct plan *plan, const struct plan_bare *bare, uint8_t *memory, int rank)
{
    return plan->reduces ? memory + bare->at + (uint64_t)rank * bare->stride : target_of(plan, bare, rank);
}

/* Where it is sent from. */
static const uint8_t *departure_of(const struct plan *plan, const struct plan_bare *bare, uint8_t *memory, int rank)
{
    return plan->copies ? memory + bare->out_at + (plan->everybody ? 0 : (uint64_t)rank * bare->stride)
                        : source_of(plan, bare, rank);
}

static bool prepare(const struct coll_step *step, const struct plan *plan, const struct plan_bare *bare)
{
    return !plan->copies ||
           step->member->gpu->copy_rows(launch_memory(step) + bare->out_at, bare->stride, source_of(plan, bare, 0),
                                        plan->stride, bare->bytes, plan->out, step->call.stream);
}

static coll_result exchange(const struct coll_step *step, const struct plan *plan, const struct plan_bare *bare)
{
    const struct coll_table *nccl = step->member->host.nccl;
    const coll_stream stream = step->call.stream;
    uint8_t *memory = launch_memory(step);
    coll_result result = COLL_SUCCESS;
    for (int peer = 0; peer < step->member->ranks && result == COLL_SUCCESS; peer++) {
        if (peer == step->member->rank)
            continue;
        result =
            nccl->Send(departure_of(plan, bare, memory, peer), bare->bytes, COLL_UINT8, peer, step->call.comm, stream);
        if (result == COLL_SUCCESS)
            result = nccl->Recv(arrival_of(plan, bare, memory, peer), bare->bytes, COLL_UINT8, peer, step->call.comm,
                                stream);
    }
    return result;
}

static coll_result gather(const struct coll_step *step, const struct plan *plan, const struct plan_bare *bare)
{
    return step->member->host.nccl->AllGather(source_of(plan, bare, 0), launch_memory(step) + bare->at, bare->bytes,
                                              COLL_UINT8, step->call.comm, step->call.stream);
}

/* In a group even if it is one call: when the group has ended the work is on the stream (patient.h), so more can
 * follow. */
static coll_result move_all(const struct coll_step *step, const struct plan *plan, const struct plan_bare *bare)
{
    const struct coll_table *nccl = step->member->host.nccl;
    if (!prepare(step, plan, bare))
        return launch_failed(step, "a head or tail could not be copied");
    coll_result result = nccl->GroupStart();
    if (result != COLL_SUCCESS)
        return result;
    result = plan->whole.operation == COLL_ALL_GATHER ? gather(step, plan, bare) : exchange(step, plan, bare);
    const coll_result ended = nccl->GroupEnd();
    return result == COLL_SUCCESS ? ended : result;
}

coll_result bare_move(const struct coll_step *step, enum plan_end end)
{
    struct plan plan;
    if (!launch_plan(&plan, step))
        return launch_failed(step, "no plan");
    return plan.bare[end].count > 0 ? move_all(step, &plan, &plan.bare[end]) : COLL_SUCCESS;
}

/* ---- Finishing --------------------------------------------------------------------------------------------------- */

/* Copies the values of ranks `from` to `until`. */
static bool put(const struct coll_step *step, const struct plan *plan, const struct plan_bare *bare, int from,
                int until)
{
    return from == until ||
           step->member->gpu->copy_rows(target_of(plan, bare, from), plan->stride,
                                        launch_memory(step) + bare->at + (uint64_t)from * bare->stride, bare->stride,
                                        bare->bytes, (size_t)(until - from), step->call.stream);
}

static bool add_up(const struct coll_step *step, const struct plan *plan, const struct plan_bare *bare)
{
    const struct coll_call call = phase_cut(&plan->whole, bare->from, bare->count);
    struct coll_reduce sum = launch_sum_of(step, &call);
    for (int rank = 0; rank < step->member->ranks; rank++)
        sum.source[rank] = rank == step->member->rank ? source_of(plan, bare, rank)
                                                      : arrival_of(plan, bare, launch_memory(step), rank);
    return step->member->gpu->reduce(&sum, step->call.stream);
}

bool bare_finish(const struct coll_step *step, enum plan_end end)
{
    struct plan plan;
    const int rank = step->member->rank;
    if (!launch_plan(&plan, step))
        return false;
    const struct plan_bare *bare = &plan.bare[end];
    if (bare->count == 0)
        return true;
    if (plan.reduces)
        return add_up(step, &plan, bare);
    return plan.whole.operation != COLL_ALL_GATHER ||
           (put(step, &plan, bare, 0, rank) && put(step, &plan, bare, rank + 1, step->member->ranks));
}
