/* How kernels move what did not fit, through the rings of rings.h: the same text for GPUs (collective/cuda/exchange.cu)
 * and for tests (tests/coll_fake/exchange.c). It takes one step of one thread block at a time and never waits inside of
 * one.
 *
 * A step offers, if it can, one slot to a peer, and takes one from it. Two kernels are made of that, each of which
 * leaves out what the other one has done. When everything fitted they read a few words and are over.
 * - Behind NCCL, always: it knows from the heads of messages what did not fit, and moves what is left of it.
 * - Beside NCCL, for what a program has grouped: it learns the same from records, and moves all of it.
 *
 * Why nobody waits for ever, as long as the same program would not with NCCL alone:
 * - Operations of a communicator come one after another on each rank (order.h), in NCCL's order.
 * - A slot is taken once it is filled, and filled once what was in it is taken. Numbers of a ring only go up, and both
 *   sides go by them: the lowest one that has not been taken always can be offered or taken, if on both sides there is
 *   a kernel that has its message.
 * - There is. NCCL's part of an operation that is in no group ends when it would without us, as it waits for nothing
 *   of ours; then comes the kernel behind it. NCCL may be through with a group only when other ranks have gone on, who
 *   first need what did not fit of some of it: that is what the kernel beside it moves meanwhile.
 * - That one waits for records of the peers' messages no longer than NCCL waits for the messages: a record is written
 *   before NCCL moves. Only of a group with more than RING_RECORDS messages from one peer some may be missed; these
 *   come behind NCCL.
 * - Nothing has to be launched but by who launches NCCL's part. A call that waits for the GPU with the driver's lock
 *   held (cudaFree, a module that is loaded) keeps others of its process from launching; but what it waits for ends by
 *   what other ranks have on their GPUs, or will have, as is so with NCCL's kernels alone. One case is left: such a
 *   call from another thread, between the launches of NCCL's part of a group and of the kernel beside it, waits for
 *   NCCL, who may wait for that kernel. Patience ends it.
 * - Blocks wait for no other block of their kernel.
 */
#ifndef STRAIT_COLLECTIVE_ENGINE_EXCHANGE_H
#define STRAIT_COLLECTIVE_ENGINE_EXCHANGE_H

#include "collective/engine/gpu.h"

/* The includer says what functions are declared with, and has these. All threads of a block call together:
 *
 *   uint64_t exchange_told(x)             the leader's x; what any of them did before is seen by all
 *   uint64_t exchange_least(x)            of all of them
 *   bool exchange_leads()                 this is the leader
 *   uint32_t exchange_lane(), _lanes()    which of them, of how many
 *   exchange_put(slot, values, bytes)     slots are aligned, values to their size; bytes are even
 *   exchange_take(values, slot, bytes)
 *
 * Any of them alone, and in general the leader:
 *
 *   uint64_t exchange_load(word)          what another GPU did before it stored this is seen from now on
 *   exchange_store(word, x)               what the block did before exchange_told is seen by who sees this
 *   bool exchange_lock(busy)              by one of the kernels on the same GPU; false: it is held
 *   exchange_unlock(busy)
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

EXCHANGE_FN uint8_t *exchange_slot(const struct ring_set *rings, uint32_t ring, uint64_t number)
{
    return rings->slots + ((uint64_t)ring * RING_SLOTS + number % RING_SLOTS) * rings->slot_bytes;
}

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

/* Instead of a first slot. */
#define EXCHANGE_UNKNOWN (UINT64_MAX - 1)

EXCHANGE_FN bool exchange_has_bit(const uint64_t *row, uint32_t bit)
{
    return (row[bit / 64] >> bit % 64 & 1) != 0;
}

EXCHANGE_FN uint64_t exchange_recorded(const struct gpu_exchange *call, const struct exchange_job *job, uint32_t peer)
{
    const uint32_t ring = ring_number(&call->rings, peer, call->rings.rank);
    const struct ring_record *record = &call->rings.flags[ring].records[job->peer >= 0][job->number % RING_RECORDS];
    const uint64_t number = exchange_load(&record->number);
    if (number < job->number + 1)
        return EXCHANGE_UNKNOWN;
    const uint64_t first = exchange_load(&record->first);
    return number == job->number + 1 && exchange_load(&record->number) == number ? first : RING_NONE;
}

/* First slot of the job's message to or from the peer; RING_NONE: it has none, or it fits. */
EXCHANGE_FN uint64_t exchange_first(const struct gpu_exchange *call, const struct exchange_job *job, uint32_t peer,
                                    bool sends)
{
    const uint64_t stride = sends ? job->sent_stride : job->received_stride;
    const uint32_t i = stride != 0 ? peer : 0;
    const uint8_t *heads = sends ? job->sent : job->received;
    if ((job->peer >= 0 && (uint32_t)job->peer != peer) || heads == NULL)
        return RING_NONE;
    if (!sends && call->kind == EXCHANGE_BESIDE)
        return exchange_recorded(call, job, peer);
    const struct message_head *head = (const struct message_head *)(const void *)(heads + i * stride);
    return (sends ? exchange_has_bit(head->row, i) : job->found[i] == MESSAGE_OVERFLOWS) ? head->first : RING_NONE;
}

EXCHANGE_FN uint64_t exchange_slots(const struct gpu_exchange *call, const struct exchange_job *job)
{
    return (job->bytes + call->rings.slot_bytes - 1) / call->rings.slot_bytes;
}

/* Lowest message from side->end on: its first slot and its job, or what exchange_first has instead. */
EXCHANGE_FN uint64_t exchange_lowest(const struct gpu_exchange *call, const struct exchange_block *block,
                                     const struct exchange_side *side, bool sends)
{
    uint64_t least = RING_NONE;
    for (uint32_t i = exchange_lane(); i < call->count; i += exchange_lanes()) {
        const uint64_t first = exchange_first(call, &call->jobs[i], block->peer, sends);
        const uint64_t key = first < EXCHANGE_UNKNOWN ? first << EXCHANGE_JOB_BITS | i : first;
        if (first >= side->end && key < least)
            least = key;
    }
    return exchange_least(least);
}

/* The next one by its slots' numbers. One that is known has been given them before any that was looked for later and
 * not found: so it is looked twice. */
EXCHANGE_FN bool exchange_next(const struct gpu_exchange *call, const struct exchange_block *block,
                               struct exchange_side *side, bool sends)
{
    uint64_t least = exchange_lowest(call, block, side, sends);
    if (call->kind == EXCHANGE_BESIDE && !sends && call->count > 1 && least < EXCHANGE_UNKNOWN)
        least = exchange_lowest(call, block, side, sends);
    side->over = least == RING_NONE;
    if (least >= EXCHANGE_UNKNOWN)
        return false;
    side->job = &call->jobs[least & ((1u << EXCHANGE_JOB_BITS) - 1)];
    side->first = least >> EXCHANGE_JOB_BITS;
    side->end = side->first + exchange_slots(call, side->job);
    const uint32_t teams = call->rings.teams;
    side->next = side->first + (block->team + teams - side->first % teams) % teams;
    return true;
}

/* There is a slot to be moved. */
EXCHANGE_FN bool exchange_find(const struct gpu_exchange *call, const struct exchange_block *block,
                               struct exchange_side *side, bool sends)
{
    while (!side->over && (side->job == NULL || side->next >= side->end))
        if (!exchange_next(call, block, side, sends))
            return false;
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
EXCHANGE_FN uint64_t exchange_may(const struct gpu_exchange *call, struct ring_flags *flags, struct ring_end *end,
                                  uint64_t number, bool sends)
{
    const uint32_t slot = number % RING_SLOTS, team = number % call->rings.teams;
    const uint64_t moved = exchange_load(&end->moved[slot]);
    if (moved > number)
        return EXCHANGE_LEAVE_OUT;
    const bool ready = sends ? exchange_load(&flags->taken[slot].number) == moved
                             : exchange_load(&flags->full[slot].number) == number + 1;
    if (!ready || !exchange_lock(&end->busy[team]))
        return EXCHANGE_LATER;
    if (exchange_load(&end->moved[slot]) == moved)
        return EXCHANGE_MAY;
    exchange_unlock(&end->busy[team]);
    return EXCHANGE_LATER;
}

EXCHANGE_FN void exchange_move(const struct gpu_exchange *call, const struct exchange_block *block,
                               const struct exchange_side *side, uint32_t ring, bool sends)
{
    const struct exchange_job *job = side->job;
    const uint64_t at = exchange_at(call, side), bytes = exchange_bytes(call, side);
    uint8_t *slot = exchange_slot(&call->rings, ring, side->next);
    if (sends)
        exchange_put(slot, job->send + block->peer * job->send_stride + at, bytes);
    else
        exchange_take(job->receive + block->peer * job->receive_stride + at, slot, bytes);
}

EXCHANGE_FN enum exchange_state exchange_try(const struct gpu_exchange *call, struct exchange_block *block,
                                             struct exchange_side *side, bool sends)
{
    if (!exchange_find(call, block, side, sends))
        return side->over ? EXCHANGE_DONE : EXCHANGE_WAITS;
    const uint32_t me = call->rings.rank, slot = side->next % RING_SLOTS;
    const uint32_t ring = ring_number(&call->rings, sends ? me : block->peer, sends ? block->peer : me);
    struct ring_flags *flags = &call->rings.flags[ring];
    struct ring_end *end = sends ? &call->ends->peers[block->peer].out : &call->ends->peers[block->peer].in;
    const uint64_t may = exchange_told(exchange_leads() ? exchange_may(call, flags, end, side->next, sends) : 0);
    if (may == EXCHANGE_LATER)
        return EXCHANGE_WAITS;
    if (may == EXCHANGE_MAY) {
        exchange_move(call, block, side, ring, sends);
        (void)exchange_told(0);
        if (exchange_leads()) {
            if (sends)
                exchange_store(&flags->full[slot].bytes, exchange_bytes(call, side));
            exchange_store(sends ? &flags->full[slot].number : &flags->taken[slot].number, side->next + 1);
            exchange_store(&end->moved[slot], side->next + 1);
            exchange_unlock(&end->busy[block->team]);
        }
    }
    side->next += call->rings.teams;
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
    block.out.over = block.in.over = false;
    return block;
}

EXCHANGE_FN enum exchange_state exchange_step(const struct gpu_exchange *call, struct exchange_block *block)
{
    const enum exchange_state out = exchange_try(call, block, &block->out, true);
    const enum exchange_state in = exchange_try(call, block, &block->in, false);
    if (out == EXCHANGE_DONE && in == EXCHANGE_DONE)
        return EXCHANGE_DONE;
    return out == EXCHANGE_MOVED || in == EXCHANGE_MOVED ? EXCHANGE_MOVED : EXCHANGE_WAITS;
}

/* How long it may wait for what it waits for now. A peer need not come to its end of a pair, or to a group, as it may
 * have other things to do first, and NCCL waits for it too. */
EXCHANGE_FN uint64_t exchange_patience(const struct gpu_exchange *call, const struct exchange_block *block)
{
    const struct exchange_side *side = !block->in.over ? &block->in : &block->out;
    const bool pair = !side->over && side->job != NULL && side->job->peer >= 0;
    return pair || call->kind == EXCHANGE_BESIDE ? call->pair_patience_ns : call->patience_ns;
}

/* And then it leaves the rest to the kernel behind NCCL, or the member fails. */
EXCHANGE_FN bool exchange_fails(const struct gpu_exchange *call)
{
    return call->kind == EXCHANGE_BEHIND;
}

#endif
