/* How kernels move messages that overflow, uncompressed, through the rings of rings.h. The same text is compiled for
 * GPUs (collective/cuda/exchange.cu) and for tests (tests/fakes/coll_plugin.c). A call does one step of one thread
 * block and never waits inside it.
 *
 * A block serves one end of a ring, together with the other blocks of that end, each with its team's slots: in each
 * step it offers a slot to a peer or takes one from it, so both directions proceed at once. With many ranks a thread
 * block is several such blocks, and does a step of each by turns. Two kernels are built from
 * this, and each leaves out what the other has done. If everything fitted, they read a few words and end.
 * - EXCHANGE_BEHIND is always launched behind NCCL: it knows from the heads of messages which of them overflow, and
 *   moves what is left of them.
 * - EXCHANGE_BESIDE runs beside NCCL for calls that the program has grouped: it learns the same from records, and moves
 *   all of it.
 *
 * Why nobody waits forever unless the same program would with NCCL alone:
 * - Operations of a communicator run one after another on each rank (op.h), in NCCL's order.
 * - A slot is taken once it is filled, and refilled once its previous content is taken. Numbers of a ring only
 *   increase, and both sides go by them: the lowest number not taken yet can always be offered or taken, provided that
 *   both sides have a kernel that holds its message.
 * - They have. For an operation outside of groups, NCCL's part ends when it would without us, as it waits for nothing
 *   of ours; the kernel behind it follows. NCCL may finish a group only after other ranks have gone on, and these may
 *   first need some of the group's overflow: the kernel beside NCCL moves it meanwhile.
 * - That kernel waits for the records of the peers' messages no longer than NCCL waits for the messages: a record is
 *   written before NCCL moves, and what is not known when NCCL has moved all (ring_ends.moving) is left to the kernel
 *   behind it. So records need not come from ranks on other hosts that nothing else has connected (proxy.h). Records
 * are missed only when a group has more than RING_RECORDS messages from one peer; these messages are moved behind NCCL.
 * - Nothing has to be launched except by the thread that launches NCCL's part. A call that waits for the GPU while it
 *   holds the driver's lock (cudaFree, loading a module) keeps other threads of its process from launching; but what it
 *   waits for ends through work that other ranks have on their GPUs, or will have, as with NCCL's kernels alone. One
 *   case is left: if another thread makes such a call between the launch of NCCL's part of a group and that of the
 *   kernel beside it, the call waits for NCCL, which may wait for that kernel. Patience ends it.
 * - Blocks wait for no other block of their kernel. */
#ifndef STRAIT_COLLECTIVE_ENGINE_EXCHANGE_H
#define STRAIT_COLLECTIVE_ENGINE_EXCHANGE_H

#include "collective/engine/gpu.h"

/* The includer defines how functions are declared, and provides these. All threads of a block call together:
 *
 *   uint64_t exchange_broadcast(x)        the leader's x; whatever any thread did before is visible to all
 *   uint64_t exchange_least(x)            the minimum over all threads
 *   bool exchange_leads()                 this thread is the leader
 *   uint32_t exchange_lane(), _lanes()    this thread's number, and how many there are
 *   exchange_put(slot, values, bytes)     slots are aligned, values to their size; bytes are even
 *   exchange_take(values, slot, bytes)
 *
 * Any single thread, usually the leader, calls:
 *
 *   uint64_t exchange_load(word)          what another GPU did before it stored this is visible from now on
 *   exchange_store(word, x)               what the block did before exchange_broadcast is visible to whoever sees this
 *   bool exchange_lock(busy)              by one of the kernels on the same GPU; false: it is held
 *   exchange_unlock(busy) */
#ifndef EXCHANGE_FN
#error "EXCHANGE_FN is not defined"
#endif

enum exchange_state { EXCHANGE_DONE, EXCHANGE_MOVED, EXCHANGE_WAITS };

/* The state of one direction of a ring. */
struct exchange_side {
    const struct exchange_job *job; /* NULL: none is left, or none was looked for yet */
    uint64_t first, end;            /* the message's slots */
    uint64_t next;                  /* next slot of this team */
    bool over;
};

struct exchange_block {
    uint32_t peer, team;
    uint32_t out_ring, in_ring; /* numbers */
    struct exchange_side out, in;
};

enum { EXCHANGE_JOB_BITS = 20 };

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

/* Returned in place of a first slot: the peer's record is not written yet. */
#define EXCHANGE_UNKNOWN (UINT64_MAX - 1)

EXCHANGE_FN uint64_t exchange_recorded(const struct gpu_exchange *call, const struct exchange_job *job, uint32_t ring)
{
    const struct ring_parts parts = ring_parts_of(&call->rings, ring);
    const struct ring_record *record = &parts.records[job->peer >= 0][job->number % call->rings.records];
    const uint64_t number = exchange_load(&record->number);
    if (number < job->number + 1)
        return EXCHANGE_UNKNOWN;
    const uint64_t first = exchange_load(&record->first);
    return number == job->number + 1 && exchange_load(&record->number) == number ? first : RING_NONE;
}

/* First slot of the job's message to or from the block's peer; RING_NONE: there is no message, or it fits. */
EXCHANGE_FN uint64_t exchange_first(const struct gpu_exchange *call, const struct exchange_job *job,
                                    const struct exchange_block *block, bool sends)
{
    const uint32_t peer = block->peer, message = exchange_message(job, peer);
    const uint64_t stride = sends ? job->sent_stride : job->received_stride;
    const uint32_t i = stride != 0 ? message : 0;
    const uint8_t *heads = sends ? job->sent : job->received;
    if ((job->peer >= 0 && (uint32_t)job->peer != peer) || message == EXCHANGE_NO_MESSAGE || heads == NULL)
        return RING_NONE;
    if (!sends && job->root != 0 && job->root - 1 != peer)
        return RING_NONE;
    if (!sends && call->kind == EXCHANGE_BESIDE)
        return exchange_recorded(call, job, block->in_ring);
    const struct message_head *head = (const struct message_head *)(const void *)(heads + i * stride);
    return (sends ? rank_set_has(&head->row, i) : job->found[i] == MESSAGE_OVERFLOWS) ? head->first : RING_NONE;
}

/* The lowest message from side->end on: its first slot and its job, or a special value as exchange_first returns it. */
EXCHANGE_FN uint64_t exchange_lowest(const struct gpu_exchange *call, const struct exchange_block *block,
                                     const struct exchange_side *side, bool sends)
{
    uint64_t least = RING_NONE;
    for (uint32_t i = exchange_lane(); i < call->count; i += exchange_lanes()) {
        const uint64_t first = exchange_first(call, &call->jobs[i], block, sends);
        const uint64_t key = first < EXCHANGE_UNKNOWN ? first << EXCHANGE_JOB_BITS | i : first;
        if (first >= side->end && key < least)
            least = key;
    }
    return exchange_least(least);
}

/* Whether NCCL still moves what the jobs belong to. */
EXCHANGE_FN bool exchange_is_moving(const struct gpu_exchange *call)
{
    return exchange_broadcast(exchange_leads() ? exchange_load(&call->ends->moving) : 0) != 0;
}

/* Selects the next message in the order of slot numbers. A known message got its slots before any message that was
 * looked up later and not found, so a second look finds any lower one. */
EXCHANGE_FN bool exchange_next(const struct gpu_exchange *call, const struct exchange_block *block,
                               struct exchange_side *side, bool sends)
{
    uint64_t least = exchange_lowest(call, block, side, sends);
    if (call->kind == EXCHANGE_BESIDE && !sends && call->count > 1 && least < EXCHANGE_UNKNOWN)
        least = exchange_lowest(call, block, side, sends);
    side->over = least == RING_NONE || (least == EXCHANGE_UNKNOWN && !exchange_is_moving(call));
    if (least >= EXCHANGE_UNKNOWN)
        return false;
    side->job = &call->jobs[least & ((1u << EXCHANGE_JOB_BITS) - 1)];
    side->first = least >> EXCHANGE_JOB_BITS;
    side->end = side->first + ring_slots(&call->rings, side->job->bytes);
    const uint32_t teams = call->rings.teams;
    side->next = side->first + (block->team + teams - side->first % teams) % teams;
    return true;
}

/* Whether there is a slot to move. */
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
    return (side->next - side->first) * ring_cut(&call->rings, side->job->bytes);
}

EXCHANGE_FN uint64_t exchange_bytes(const struct gpu_exchange *call, const struct exchange_side *side)
{
    const uint64_t left = side->job->bytes - exchange_at(call, side), cut = ring_cut(&call->rings, side->job->bytes);
    return left < cut ? left : cut;
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

enum { EXCHANGE_LATER, EXCHANGE_MAY, EXCHANGE_LEAVE_OUT };

/* Called by the leader. On EXCHANGE_MAY it holds the lock. */
EXCHANGE_FN uint64_t exchange_may(const struct gpu_exchange *call, const struct ring_parts *parts, struct ring_end *end,
                                  uint64_t number, bool sends)
{
    const uint32_t slot = number % call->rings.depth, team = number % call->rings.teams;
    const uint64_t moved = exchange_load(&end->moved[slot]);
    if (moved > number)
        return EXCHANGE_LEAVE_OUT;
    const bool ready = sends ? exchange_load(&parts->taken[slot].number) == moved
                             : exchange_load(&parts->full[slot].number) == number + 1;
    if (!ready || !exchange_lock(&end->busy[team]))
        return EXCHANGE_LATER;
    if (exchange_load(&end->moved[slot]) == moved)
        return EXCHANGE_MAY;
    exchange_unlock(&end->busy[team]);
    return EXCHANGE_LATER;
}

EXCHANGE_FN void exchange_move(const struct gpu_exchange *call, const struct exchange_block *block,
                               const struct exchange_side *side, uint8_t *slot, bool sends)
{
    const struct exchange_job *job = side->job;
    const uint64_t at = exchange_at(call, side), bytes = exchange_bytes(call, side);
    const uint64_t message = exchange_message(job, block->peer);
    if (sends)
        exchange_put(slot, job->send + message * job->send_stride + at, bytes);
    else
        exchange_take(job->receive + message * job->receive_stride + at, slot, bytes);
}

EXCHANGE_FN enum exchange_state exchange_try(const struct gpu_exchange *call, struct exchange_block *block,
                                             struct exchange_side *side, bool sends)
{
    if (!exchange_find(call, block, side, sends))
        return side->over ? EXCHANGE_DONE : EXCHANGE_WAITS;
    const uint32_t slot = side->next % call->rings.depth;
    const struct ring_parts parts = ring_parts_of(&call->rings, sends ? block->out_ring : block->in_ring);
    struct ring_end *end = sends ? &call->ends->peers[block->peer].out : &call->ends->peers[block->peer].in;
    const uint64_t may = exchange_broadcast(exchange_leads() ? exchange_may(call, &parts, end, side->next, sends) : 0);
    if (may == EXCHANGE_LATER)
        return EXCHANGE_WAITS;
    if (may == EXCHANGE_MAY) {
        exchange_move(call, block, side, parts.slots + (uint64_t)slot * call->rings.slot_bytes, sends);
        (void)exchange_broadcast(0);
        if (exchange_leads()) {
            if (sends)
                exchange_store(&parts.full[slot].bytes, exchange_bytes(call, side));
            exchange_store(sends ? &parts.full[slot].number : &parts.taken[slot].number, side->next + 1);
            if (call->rings.bell != NULL)
                exchange_store(call->rings.bell, 1);
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
    const uint32_t ends = ring_ends_all(&call->rings) / 2, end = number % ends;
    block.peer = end / call->rings.teams;
    block.peer += block.peer >= call->rings.rank;
    block.team = end % call->rings.teams;
    block.out_ring = ring_to(&call->rings, block.peer);
    block.in_ring = ring_from(&call->rings, block.peer);
    block.out.job = block.in.job = NULL;
    block.out.end = block.in.end = block.out.next = block.in.next = block.out.first = block.in.first = 0;
    block.out.over = number >= ends;
    block.in.over = number < ends;
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

/* How long the block may wait for what it waits for now. Pairs, groups and what one rank sends to all get more time:
 * the peer may have other things to do before it gets to its side, and NCCL waits for it too, or has let this rank go
 * on before. */
EXCHANGE_FN uint64_t exchange_patience(const struct gpu_exchange *call, const struct exchange_block *block)
{
    const struct exchange_side *side = !block->in.over ? &block->in : &block->out;
    const bool one_way = !side->over && side->job != NULL && (side->job->peer >= 0 || side->job->root != 0);
    return one_way || call->kind == EXCHANGE_BESIDE ? call->pair_patience_ns : call->patience_ns;
}

/* Whether the communicator fails once patience has ended; otherwise the rest is left to the kernel behind NCCL. */
EXCHANGE_FN bool exchange_fails(const struct gpu_exchange *call)
{
    return call->kind == EXCHANGE_BEHIND;
}

#endif
