/* How kernels move what did not fit, through the rings of rings.h: the same text for GPUs (collective/cuda/exchange.cu)
 * and for tests (tests/coll_fake/exchange.c). It takes one step of one thread block at a time and never waits inside of
 * one.
 *
 * A step offers, if it can, one slot to a peer, and takes one from it. Three kernels are made of that:
 *   put       before NCCL moves the group, when it has sends: offers what there is room for.
 *   early     beside NCCL, when it has sends: offers until all is offered.
 *   exchange  behind NCCL, always: offers and takes until all of both is done.
 * What one of them has offered the others leave out. When everything fitted they read a few heads and are over.
 *
 * Why nobody waits for ever, as long as the same program would not with NCCL alone:
 * - Operations of a communicator come one after another on each rank (order.h), in the order in which NCCL has them.
 * - NCCL's part of an operation waits for nothing of ours but what comes before it in that order.
 * - A message is taken once its slots are filled, and a slot is filled once what was in it is taken: numbers of a ring
 *   only go up, on both sides, so the lowest one that has not been taken always can be offered, and when it has been,
 *   be taken. It is, if a kernel that offers runs on the one side and one that takes on the other.
 * - It runs on the receiver: it has the message's head, so NCCL has moved its group. And on the sender: `early` has
 * been there since before NCCL moved, in groups with sends; other groups are alike on all ranks, so NCCL's part of all
 * of them comes to its end, and `exchange` follows. Neither needs anything to be launched by another rank that is not
 *   launched with NCCL's part.
 * - A call that waits for the GPU with the driver's lock held (cudaFree, a module that is loaded) so waits for what is
 *   on its way to an end on all ranks, whatever the other ranks' threads wait for: for NCCL's kernels and for these
 *   alike. Only if such calls come on two ranks between the launches of `early` and `exchange` of one group, and its
 *   messages have no room in the rings, they wait for each other, until patience ends it.
 * - All blocks of a kernel have to run at once only insofar as each ring has its own: no block waits for another one.
 */
#ifndef STRAIT_COLLECTIVE_ENGINE_EXCHANGE_H
#define STRAIT_COLLECTIVE_ENGINE_EXCHANGE_H

#include "collective/engine/gpu.h"

/* The includer has these, for all threads of a block that call together, and says what functions are declared with.
 *
 *   bool exchange_leads(void)                        one thread of the block
 *   uint32_t exchange_lane(void), exchange_lanes(void)
 *   uint64_t exchange_told(uint64_t x)               the leader's x, for all; what any of them did before is seen by
 * all uint64_t exchange_least(uint64_t x) uint64_t exchange_load(const uint64_t *word)     by the leader; what another
 * GPU stored before is seen void exchange_store(uint64_t *word, uint64_t x)  by the leader; what all did before
 * exchange_told is seen before bool exchange_lock(uint32_t *busy), void exchange_unlock(uint32_t *busy)       by the
 * leader; of the same GPU void exchange_put(uint8_t *slot, const uint8_t *values, uint64_t bytes)        slots are
 * aligned, values to their void exchange_take(uint8_t *values, const uint8_t *slot, uint64_t bytes)       size
 */
#ifndef EXCHANGE_FN
#error "EXCHANGE_FN is not defined"
#endif

enum exchange_state { EXCHANGE_DONE, EXCHANGE_MOVED, EXCHANGE_WAITS };

/* Where one direction of a ring stands. */
struct exchange_side {
    const struct exchange_job *job; /* NULL: none is left, or none was looked for */
    uint64_t first, end;            /* the message's slots */
    uint64_t next;                  /* of this team */
    bool over;
};

struct exchange_block {
    uint32_t peer, team;
    struct exchange_side out, in;
};

enum { EXCHANGE_JOB_BITS = 20 };

EXCHANGE_FN uint32_t exchange_ring(const struct ring_set *rings, uint32_t from, uint32_t to)
{
    return from * (rings->ranks - 1) + to - (to > from);
}

EXCHANGE_FN uint8_t *exchange_slot(const struct ring_set *rings, uint32_t ring, uint64_t number)
{
    return rings->slots + ((uint64_t)ring * RING_SLOTS + number % RING_SLOTS) * rings->slot_bytes;
}

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

EXCHANGE_FN bool exchange_has_bit(const uint64_t *row, uint32_t bit)
{
    return (row[bit / 64] >> bit % 64 & 1) != 0;
}

/* Its first slot, if the job has a message to or from the peer that did not fit, else UINT64_MAX. */
EXCHANGE_FN uint64_t exchange_first(const struct exchange_job *job, uint32_t peer, bool sends)
{
    const uint64_t stride = sends ? job->sent_stride : job->received_stride;
    const uint32_t i = stride != 0 ? peer : 0;
    const uint8_t *heads = sends ? job->sent : job->received;
    if ((job->peer >= 0 && (uint32_t)job->peer != peer) || heads == NULL)
        return UINT64_MAX;
    const struct message_head *head = (const struct message_head *)(const void *)(heads + i * stride);
    if (sends ? !exchange_has_bit(head->row, i) : job->found[i] == 0)
        return UINT64_MAX;
    return head->first;
}

EXCHANGE_FN uint64_t exchange_slots(const struct gpu_exchange *call, const struct exchange_job *job)
{
    return (job->bytes + call->rings.slot_bytes - 1) / call->rings.slot_bytes;
}

/* The next one of the ring by its slots' numbers: on both sides the order in which they were given out. */
EXCHANGE_FN void exchange_next(const struct gpu_exchange *call, const struct exchange_block *block,
                               struct exchange_side *side, bool sends)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = exchange_lane(); i < call->count; i += exchange_lanes()) {
        const uint64_t first = exchange_first(&call->jobs[i], block->peer, sends);
        if (first != UINT64_MAX && first >= side->end && (first << EXCHANGE_JOB_BITS | i) < least)
            least = first << EXCHANGE_JOB_BITS | i;
    }
    least = exchange_least(least);
    side->over = least == UINT64_MAX;
    if (side->over)
        return;
    side->job = &call->jobs[least & ((1u << EXCHANGE_JOB_BITS) - 1)];
    side->first = least >> EXCHANGE_JOB_BITS;
    side->end = side->first + exchange_slots(call, side->job);
    const uint32_t teams = call->rings.teams;
    side->next = side->first + (block->team + teams - side->first % teams) % teams;
}

EXCHANGE_FN bool exchange_find(const struct gpu_exchange *call, const struct exchange_block *block,
                               struct exchange_side *side, bool sends)
{
    while (!side->over && (side->job == NULL || side->next >= side->end))
        exchange_next(call, block, side, sends);
    return !side->over;
}

EXCHANGE_FN uint64_t exchange_at(const struct gpu_exchange *call, const struct exchange_side *side)
{
    return (side->next - side->first) * call->rings.slot_bytes;
}

EXCHANGE_FN uint64_t exchange_bytes(const struct gpu_exchange *call, const struct exchange_side *side)
{
    const uint64_t left = side->job->bytes - exchange_at(call, side);
    return left < call->rings.slot_bytes ? left : call->rings.slot_bytes;
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

enum { EXCHANGE_LATER, EXCHANGE_MAY, EXCHANGE_LEAVE_OUT };

/* By the leader. With EXCHANGE_MAY it has the lock. */
EXCHANGE_FN uint64_t exchange_may_offer(struct ring_end *end, struct ring_flags *flags, uint64_t number, uint32_t team)
{
    const uint32_t slot = number % RING_SLOTS;
    uint64_t used = exchange_load(&end->used[slot]);
    if (used > number)
        return EXCHANGE_LEAVE_OUT;
    if (exchange_load(&flags->taken[slot].number) != used || !exchange_lock(&end->busy[team]))
        return EXCHANGE_LATER;
    if (exchange_load(&end->used[slot]) == used)
        return EXCHANGE_MAY;
    exchange_unlock(&end->busy[team]);
    return EXCHANGE_LATER;
}

EXCHANGE_FN enum exchange_state exchange_offer(const struct gpu_exchange *call, struct exchange_block *block)
{
    struct exchange_side *out = &block->out;
    if (!exchange_find(call, block, out, true))
        return EXCHANGE_DONE;
    const uint32_t ring = exchange_ring(&call->rings, call->rings.rank, block->peer), slot = out->next % RING_SLOTS;
    struct ring_flags *flags = &call->rings.flags[ring];
    struct ring_end *end = &call->ends->to[block->peer];
    uint64_t may = EXCHANGE_LATER;
    if (exchange_leads())
        may = exchange_may_offer(end, flags, out->next, block->team);
    may = exchange_told(may);
    if (may == EXCHANGE_LATER)
        return EXCHANGE_WAITS;
    if (may == EXCHANGE_MAY) {
        exchange_put(exchange_slot(&call->rings, ring, out->next),
                     out->job->send + block->peer * out->job->send_stride + exchange_at(call, out),
                     exchange_bytes(call, out));
        (void)exchange_told(0);
        if (exchange_leads()) {
            exchange_store(&flags->full[slot].number, out->next + 1);
            exchange_store(&end->used[slot], out->next + 1);
            exchange_unlock(&end->busy[block->team]);
        }
    }
    out->next += call->rings.teams;
    return EXCHANGE_MOVED;
}

EXCHANGE_FN enum exchange_state exchange_accept(const struct gpu_exchange *call, struct exchange_block *block)
{
    struct exchange_side *in = &block->in;
    if (!exchange_find(call, block, in, false))
        return EXCHANGE_DONE;
    const uint32_t ring = exchange_ring(&call->rings, block->peer, call->rings.rank), slot = in->next % RING_SLOTS;
    struct ring_flags *flags = &call->rings.flags[ring];
    uint64_t full = 0;
    if (exchange_leads())
        full = exchange_load(&flags->full[slot].number);
    if (exchange_told(full) != in->next + 1)
        return EXCHANGE_WAITS;
    exchange_take(in->job->receive + block->peer * in->job->receive_stride + exchange_at(call, in),
                  exchange_slot(&call->rings, ring, in->next), exchange_bytes(call, in));
    (void)exchange_told(0);
    if (exchange_leads())
        exchange_store(&flags->taken[slot].number, in->next + 1);
    in->next += call->rings.teams;
    return EXCHANGE_MOVED;
}

EXCHANGE_FN struct exchange_block exchange_begin(const struct gpu_exchange *call, uint32_t number)
{
    struct exchange_block block;
    block.peer = number / call->rings.teams;
    block.peer += block.peer >= call->rings.rank;
    block.team = number % call->rings.teams;
    block.out.job = block.in.job = NULL;
    block.out.end = block.in.end = block.out.next = block.in.next = block.out.first = block.in.first = 0;
    block.out.over = false;
    block.in.over = call->kind != EXCHANGE_ALL;
    return block;
}

EXCHANGE_FN enum exchange_state exchange_step(const struct gpu_exchange *call, struct exchange_block *block)
{
    const enum exchange_state out = exchange_offer(call, block), in = exchange_accept(call, block);
    if (out == EXCHANGE_DONE && in == EXCHANGE_DONE)
        return EXCHANGE_DONE;
    return out == EXCHANGE_MOVED || in == EXCHANGE_MOVED ? EXCHANGE_MOVED : EXCHANGE_WAITS;
}

/* How long it may wait for what it waits for now. A peer need not come to its end of a pair, as it may have other
 * things to do first, and NCCL waits for it too. */
EXCHANGE_FN uint64_t exchange_patience(const struct gpu_exchange *call, const struct exchange_block *block)
{
    const struct exchange_side *side = !block->in.over ? &block->in : &block->out;
    return !side->over && side->job != NULL && side->job->peer >= 0 ? call->pair_patience_ns : call->patience_ns;
}

#endif
