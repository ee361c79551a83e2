#include "collective/engine/peer_flows.h"

#include <stdlib.h>

enum { BLOCK_ALIGNMENT = 64 };

static uint64_t element_bytes(coll_type type)
{
    return type == COLL_FP32 ? 4 : 2;
}

struct peer_block peer_block_of(uint64_t count, int ranks, int rank)
{
    const uint64_t each = (count / (uint64_t)ranks + BLOCK_ALIGNMENT - 1) / BLOCK_ALIGNMENT * BLOCK_ALIGNMENT;
    const uint64_t at = each * (uint64_t)rank;
    return (struct peer_block){at, rank + 1 == ranks ? count - at : each};
}

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

static void add(struct peer_segment *segment, bool out, int rank, uint64_t count, const void *values)
{
    struct peer_flow *flow = out ? &segment->out[segment->outs++] : &segment->in[segment->ins++];
    *flow = (struct peer_flow){.values = (uint8_t *)(uintptr_t)values, .rank = rank};
    (void)peer_cut_of(&flow->cut, segment->step->call.type, count, &segment->step->member->peer->tuning);
}

/* The others in order, beginning behind this rank, so that not all send to the same one at once. */
static int other(const struct coll_member *member, int number)
{
    return (member->rank + 1 + number) % member->ranks;
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static void gather(struct peer_segment *segment, const uint8_t *send, uint8_t *receive, uint64_t count)
{
    const struct coll_member *member = segment->step->member;
    const uint64_t stride = count * element_bytes(segment->step->call.type);
    add(segment, true, PEER_TO_ALL, count, send);
    for (int i = 0; i + 1 < member->ranks; i++) {
        const int from = other(member, i);
        add(segment, false, from, count, receive + (uint64_t)from * stride);
    }
}

static void exchange(struct peer_segment *segment, bool sums)
{
    const struct coll_member *member = segment->step->member;
    const struct coll_call *call = &segment->step->call;
    const uint64_t stride = call->count * element_bytes(call->type);
    uint8_t *send = (uint8_t *)(uintptr_t)call->send;
    for (int i = 0; i + 1 < member->ranks; i++) {
        const int with = other(member, i);
        add(segment, true, with, call->count, send + (uint64_t)with * stride);
        add(segment, false, with, call->count, sums ? NULL : (uint8_t *)call->receive + (uint64_t)with * stride);
    }
    segment->sums = sums;
    segment->own = send + (uint64_t)member->rank * stride;
    segment->sum = call->receive;
}

static void scatter_blocks(struct peer_segment *segment)
{
    const struct coll_member *member = segment->step->member;
    const struct coll_call *call = &segment->step->call;
    const uint64_t size = element_bytes(call->type);
    uint8_t *send = (uint8_t *)(uintptr_t)call->send;
    const struct peer_block own = peer_block_of(call->count, member->ranks, member->rank);
    for (int i = 0; i + 1 < member->ranks; i++) {
        const struct peer_block block = peer_block_of(call->count, member->ranks, other(member, i));
        add(segment, true, other(member, i), block.count, send + block.at * size);
        add(segment, false, other(member, i), own.count, NULL);
    }
    segment->sums = true;
    segment->own = send + own.at * size;
    segment->sum = (uint8_t *)call->receive + own.at * size;
}

static void gather_blocks(struct peer_segment *segment)
{
    const struct coll_member *member = segment->step->member;
    const struct coll_call *call = &segment->step->call;
    const uint64_t size = element_bytes(call->type);
    uint8_t *receive = call->receive;
    const struct peer_block own = peer_block_of(call->count, member->ranks, member->rank);
    add(segment, true, PEER_TO_ALL, own.count, receive + own.at * size);
    for (int i = 0; i + 1 < member->ranks; i++) {
        const struct peer_block block = peer_block_of(call->count, member->ranks, other(member, i));
        add(segment, false, other(member, i), block.count, receive + block.at * size);
    }
    segment->follows = true;
}

/* ---- Segments ---------------------------------------------------------------------------------------------------- */

static bool is_pair(const struct coll_step *step)
{
    return step->call.operation == COLL_SEND || step->call.operation == COLL_RECV;
}

/* Appends a segment, whose flows begin where the previous one's end. */
static struct peer_segment *begin(struct peer_segments *all, const struct coll_step *step, unsigned outs)
{
    struct peer_segment *segment = &all->segment[all->count], *before = all->count > 0 ? segment - 1 : NULL;
    *segment = (struct peer_segment){.step = step};
    segment->out = before == NULL ? all->flow : before->in + before->ins;
    segment->in = segment->out + outs;
    all->count++;
    return segment;
}

static void add_collective(struct peer_segments *all, const struct coll_step *step)
{
    const struct coll_call *call = &step->call;
    const unsigned others = (unsigned)step->member->ranks - 1;
    const bool gathers = call->operation == COLL_ALL_GATHER;
    struct peer_segment *segment = begin(all, step, gathers ? 1 : others);
    if (gathers)
        gather(segment, call->send, call->receive, call->count);
    else if (call->operation == COLL_ALL_REDUCE)
        scatter_blocks(segment);
    else
        exchange(segment, call->operation == COLL_REDUCE_SCATTER);
    if (call->operation == COLL_ALL_REDUCE)
        gather_blocks(begin(all, step, 1));
}

static void add_pairs(struct peer_segments *all, const struct coll_step *steps, unsigned count)
{
    unsigned sends = 0, first = count;
    for (unsigned i = count; i-- > 0;) {
        sends += steps[i].call.operation == COLL_SEND;
        first = is_pair(&steps[i]) ? i : first;
    }
    if (first == count)
        return;
    struct peer_segment *segment = begin(all, &steps[first], sends);
    for (unsigned i = first; i < count; i++) {
        const struct coll_call *call = &steps[i].call;
        segment->step = &steps[i];
        if (call->operation == COLL_SEND)
            add(segment, true, call->peer, call->count, call->send);
        else if (call->operation == COLL_RECV)
            add(segment, false, call->peer, call->count, call->receive);
    }
}

bool peer_segments_of(struct peer_segments *segments, const struct coll_member *member, const struct coll_step *steps,
                      unsigned count)
{
    const size_t flows = (size_t)count * 4 * (size_t)member->ranks;
    *segments = (struct peer_segments){.segment = calloc(2 * (size_t)count + 1, sizeof(*segments->segment)),
                                       .flow = calloc(flows, sizeof(*segments->flow))};
    if (segments->segment == NULL || segments->flow == NULL) {
        peer_segments_free(segments);
        return false;
    }
    for (unsigned i = 0; i < count; i++)
        if (!is_pair(&steps[i]))
            add_collective(segments, &steps[i]);
    add_pairs(segments, steps, count);
    return true;
}

void peer_segments_free(struct peer_segments *segments)
{
    free(segments->segment);
    free(segments->flow);
    *segments = (struct peer_segments){0};
}

/* ---- Rounds ------------------------------------------------------------------------------------------------------ */

struct peer_round peer_round_next(struct peer_flow *flows, unsigned count)
{
    struct peer_round round = {0};
    uint32_t ranks = 0; /* bits: ranks that have a flow */
    for (unsigned i = 0; i < count; i++) {
        struct peer_flow *flow = &flows[i];
        const uint32_t rank = flow->rank == PEER_TO_ALL ? 1 : 1u << flow->rank;
        if (flow->next == flow->cut.pieces || (ranks & rank) != 0)
            continue;
        ranks |= rank;
        round.flow[round.count] = flow;
        round.number[round.count] = flow->next;
        round.piece[round.count++] = peer_piece_of(&flow->cut, flow->next++);
    }
    return round;
}

bool peer_round_left(const struct peer_flow *flows, unsigned count)
{
    bool left = false;
    for (unsigned i = 0; i < count; i++)
        left |= flows[i].next < flows[i].cut.pieces;
    return left;
}
