#include <stdlib.h>
#include <string.h>

#include "collective/engine/peer.h"
#include "collective/engine/peer_rounds.h"

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
static int other(const struct coll_ccomm *member, int number)
{
    return (member->rank + 1 + number) % member->ranks;
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static void gather(struct peer_segment *segment, const uint8_t *send, uint8_t *receive, uint64_t count)
{
    const struct coll_ccomm *member = segment->step->member;
    const uint64_t stride = count * element_bytes(segment->step->call.type);
    add(segment, true, PEER_TO_ALL, count, send);
    for (int i = 0; i + 1 < member->ranks; i++) {
        const int from = other(member, i);
        add(segment, false, from, count, receive + (uint64_t)from * stride);
    }
}

static void exchange(struct peer_segment *segment, bool sums)
{
    const struct coll_ccomm *member = segment->step->member;
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
    const struct coll_ccomm *member = segment->step->member;
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
    const struct coll_ccomm *member = segment->step->member;
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

static bool is_pair(const struct coll_op *step)
{
    return step->call.operation == COLL_SEND || step->call.operation == COLL_RECV;
}

/* Appends a segment, whose flows begin where the previous one's end. */
static struct peer_segment *begin(struct peer_segments *all, const struct coll_op *step, unsigned outs)
{
    struct peer_segment *segment = &all->segment[all->count], *before = all->count > 0 ? segment - 1 : NULL;
    *segment = (struct peer_segment){.step = step};
    segment->out = before == NULL ? all->flow : before->in + before->ins;
    segment->in = segment->out + outs;
    all->count++;
    return segment;
}

static void add_collective(struct peer_segments *all, const struct coll_op *step)
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

static void add_pairs(struct peer_segments *all, const struct coll_op *steps, unsigned count)
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

bool peer_segments_of(struct peer_segments *segments, const struct coll_ccomm *member, const struct coll_op *steps,
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

/* The sending half of a round. */

/* ---- For the codec ----------------------------------------------------------------------------------------------- */

static struct strait_region region_of(uint8_t *values, uint32_t page, uint32_t count)
{
    return (struct strait_region){
        .base = values, .page_stride = page, .row_stride = page, .page_count = count, .rows = 1, .row_bytes = page};
}

/* Main part and tail of a piece whose values are at `values`. */
uint32_t peer_regions(const struct peer_piece *piece, uint8_t *values, struct strait_region region[2])
{
    region[0] = region_of(values, PEER_PAGE, piece->pages);
    if (piece->tail_bytes == 0)
        return 1;
    region[1] = region_of(values + (uint64_t)piece->pages * PEER_PAGE, piece->tail_bytes, 1);
    return 2;
}

struct strait_pages peer_pages(const struct strait_region *region)
{
    return (struct strait_pages){.regions = region, .region_count = 1, .id_count = region->page_count};
}

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

static bool is_direct(const struct peer_operation *operation)
{
    return operation->member->peer->tuning.direct != 0;
}

static uint32_t encoder_of(const struct peer_operation *operation)
{
    return is_direct(operation) ? operation->sent % operation->member->peer->tuning.encoders : 0;
}

static coll_stream encoding(const struct peer_operation *operation)
{
    return operation->lane->stream[PEER_ENCODING + encoder_of(operation)];
}

coll_stream peer_sending(const struct peer_operation *operation)
{
    return operation->lane->stream[is_direct(operation) ? PEER_CLAIMING : PEER_ENCODING];
}

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

static uint32_t receivers_of(const struct peer_operation *operation, const struct peer_round *round, uint32_t i,
                             uint8_t receivers[])
{
    const struct coll_ccomm *member = operation->member;
    uint32_t count = 0;
    if (round->flow[i]->rank != PEER_TO_ALL) {
        receivers[0] = (uint8_t)round->flow[i]->rank;
        return 1;
    }
    for (int behind = 1; behind < member->ranks; behind++) /* not all to one at once */
        receivers[count++] = (uint8_t)((member->rank + behind) % member->ranks);
    return count;
}

static bool claim(const struct peer_operation *operation, const struct peer_round *round)
{
    const struct gpu_ops *gpu = operation->member->gpu;
    struct peer_claim claim = {
        .world = operation->member->peer->world, .patience_ns = PEER_TIMEOUT_NS, .ahead = is_direct(operation)};
    for (uint32_t i = 0; i < round->count; i++) {
        const uint32_t number = round->number[i];
        uint8_t *receivers = &claim.receiver[claim.count];
        const uint32_t more = receivers_of(operation, round, i, receivers);
        memset(&claim.lag[claim.count], number < PEER_DEPTH ? (int)number : PEER_DEPTH - 1, more);
        claim.count += more;
        if (number == 0)
            claim.patience_ns = 0;
    }
    return gpu->peer->claim(&claim, peer_sending(operation));
}

static uint8_t *outgoing(const struct peer_operation *operation, uint32_t place)
{
    return peer_outgoing(operation->member->peer, operation->member->ranks, place, operation->sent);
}

/* Whether the encoder stores a piece directly in the receiver's slot. */
static bool crosses_at_once(const struct peer_operation *operation, const struct peer_round *round, uint32_t i)
{
    return is_direct(operation) && !round->piece[i].bare &&
           (round->flow[i]->rank != PEER_TO_ALL || operation->member->ranks == 2);
}

/* Where a piece is encoded. */
static uint8_t *place_of(const struct peer_operation *operation, const struct peer_round *round, uint32_t i)
{
    const struct coll_ccomm *member = operation->member;
    uint8_t receivers[PEER_RANKS_MAX];
    if (!crosses_at_once(operation, round, i))
        return outgoing(operation, i);
    (void)receivers_of(operation, round, i, receivers);
    return peer_slot(member->peer, receivers[0], member->rank, round->number[i]);
}

/* A rank that receives nothing has multiprocessors to spare. */
static uint32_t encoder_sms(const struct peer_operation *operation)
{
    const struct peer_tuning *tuning = &operation->member->peer->tuning;
    if (!is_direct(operation))
        return tuning->sms;
    return (operation->receives ? 1 : 2) * tuning->encoder_sms / tuning->encoders;
}

/* Either all pieces of a round are encoded over links or none: they are one piece for all ranks, or one piece for
 * each. */
static struct strait_run encoder_run(const struct peer_operation *operation, const struct peer_round *round)
{
    const struct peer_wire *wire = operation->member->peer;
    const struct peer_scratch *scratch = &wire->encoding[encoder_of(operation)];
    bool far = false;
    for (uint32_t i = 0; i < round->count; i++)
        far |= crosses_at_once(operation, round, i);
    return (struct strait_run){.size = sizeof(struct strait_run),
                               .scratch = scratch->memory,
                               .scratch_size = scratch->size,
                               .stream = encoding(operation),
                               .caching = far ? STRAIT_CACHING_LINK : STRAIT_CACHING_AUTO,
                               .sm_budget = encoder_sms(operation)};
}

/* Encodes all pieces of one type at once. */
static bool encode_type(const struct peer_operation *operation, const struct peer_round *round,
                        enum strait_element element)
{
    const struct strait_encode_params params = {sizeof(params), element, STRAIT_MODE_BASE, NULL};
    const struct strait_run how = encoder_run(operation, round);
    struct strait_region region[2 * PEER_RANKS_MAX];
    struct strait_encode_item item[2 * PEER_RANKS_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < round->count; i++) {
        const struct peer_piece *piece = &round->piece[i];
        struct peer_head *head = (void *)place_of(operation, round, i);
        if (piece->bare || round->flow[i]->cut.element != element)
            continue;
        const uint32_t parts = peer_regions(piece, round->flow[i]->values + piece->at, &region[count]);
        for (uint32_t part = 0; part < parts; part++, count++)
            item[count] = (struct strait_encode_item){
                .src = peer_pages(&region[count]),
                .dst = (uint8_t *)head + (part == 0 ? piece->main_at : piece->tail_at),
                .dst_capacity = part == 0 ? piece->main_bound : piece->tail_bound,
                .result = part == 0 ? &head->main : &head->tail,
            };
    }
    return count == 0 || strait_encode_batch(operation->member->codec, &params, item, count, &how) == STRAIT_OK;
}

/* Waits until what was encoded in the same place before has crossed. */
static bool encode(const struct peer_operation *operation, const struct peer_round *round)
{
    const struct gpu_ops *gpu = operation->member->gpu;
    const struct peer_lane *lane = operation->lane;
    if (operation->sent >= PEER_OUTGOING &&
        !gpu->event_follow(encoding(operation), lane->posted[operation->sent % PEER_OUTGOING]))
        return false;
    return encode_type(operation, round, STRAIT_ELEMENT_BF16) && encode_type(operation, round, STRAIT_ELEMENT_FP16) &&
           encode_type(operation, round, STRAIT_ELEMENT_FP32);
}

/* A piece that is encoded directly into the receiver's slot needs that slot first. */
static bool claim_and_encode(const struct peer_operation *operation, const struct peer_round *round)
{
    const struct gpu_ops *gpu = operation->member->gpu;
    const gpu_event claimed = operation->lane->claimed;
    if (!is_direct(operation))
        return encode(operation, round) && claim(operation, round);
    return claim(operation, round) && gpu->event_record(claimed, peer_sending(operation)) &&
           gpu->event_follow(encoding(operation), claimed) && encode(operation, round);
}

/* A piece for each receiver. */
static struct peer_post pushes_of(const struct peer_operation *operation, const struct peer_round *round)
{
    const struct peer_wire *wire = operation->member->peer;
    struct peer_post post = {.world = wire->world, .blocks = 1};
    for (uint32_t i = 0; i < round->count; i++) {
        const struct peer_piece *piece = &round->piece[i];
        const bool there = piece->bare || crosses_at_once(operation, round, i);
        uint8_t receivers[PEER_RANKS_MAX];
        const uint32_t more = receivers_of(operation, round, i, receivers);
        post.blocks = there ? post.blocks : wire->tuning.blocks;
        for (uint32_t j = 0; j < more; j++)
            post.push[post.count++] = (struct peer_push){
                .slot = there ? NULL : outgoing(operation, i),
                .there = peer_slot(wire, receivers[j], operation->member->rank, round->number[i]),
                .from = wire->tuning.crossing == PEER_BY_ENGINE ? piece->room : 0,
                .main_at = piece->main_at,
                .main_bound = piece->main_bound,
                .tail_bound = piece->tail_bound,
                .receiver = receivers[j],
            };
    }
    return post;
}

/* On two streams, a piece begins to cross before the previous one has ended. */
static coll_stream crossing(const struct peer_operation *operation, const struct peer_round *round)
{
    bool later = false;
    for (uint32_t i = 0; i < round->count; i++)
        later |= !crosses_at_once(operation, round, i);
    if (!later)
        return encoding(operation);
    const bool other = operation->sent % operation->member->peer->tuning.cross == 1;
    return operation->lane->stream[other ? PEER_COPY_STREAM_1 : PEER_COPY_STREAM_0];
}

/* The part of a push that a copy engine does. */
static bool push(const struct gpu_peer_ops *peer, const struct peer_push *to, const struct peer_flow *flow,
                 const struct peer_piece *piece, coll_stream stream)
{
    if (piece->bare)
        return peer->move(to->there + PEER_HEAD_BYTES, flow->values + piece->at, piece->bytes, stream);
    return to->slot == NULL || to->from == 0 || peer->move(to->there, to->slot, to->from, stream);
}

static bool cross(const struct peer_operation *operation, const struct peer_round *round)
{
    const struct gpu_ops *gpu = operation->member->gpu;
    struct peer_lane *lane = operation->lane;
    const coll_stream stream = crossing(operation, round);
    const struct peer_post post = pushes_of(operation, round);
    bool good = gpu->event_record(lane->encoded, encoding(operation)) && gpu->event_follow(stream, lane->encoded);
    for (uint32_t i = 0, at = 0; i < round->count; i++) {
        uint8_t receivers[PEER_RANKS_MAX];
        for (uint32_t end = at + receivers_of(operation, round, i, receivers); at < end && good; at++)
            good = push(gpu->peer, &post.push[at], round->flow[i], &round->piece[i], stream);
    }
    return good && gpu->event_record(lane->crossed, stream) &&
           gpu->event_follow(lane->stream[PEER_POSTING], lane->crossed) &&
           gpu->peer->post(&post, lane->stream[PEER_POSTING]) &&
           gpu->event_record(lane->posted[operation->sent % PEER_OUTGOING], lane->stream[PEER_POSTING]);
}

bool peer_send(struct peer_operation *operation, const struct peer_round *round)
{
    const bool good = claim_and_encode(operation, round) && cross(operation, round);
    operation->sent++;
    return good;
}

/* The receiving half of a round. */

static uint8_t *slot_of(const struct peer_operation *operation, const struct peer_round *round, uint32_t i)
{
    const struct coll_ccomm *member = operation->member;
    return peer_slot(member->peer, member->rank, round->flow[i]->rank, round->number[i]);
}

/* Where the values of a piece end up. Values to be added up may stay where they arrived. */
static uint8_t *values_of(const struct peer_operation *operation, const struct peer_round *round, uint32_t i)
{
    const struct peer_wire *wire = operation->member->peer;
    const struct peer_flow *flow = round->flow[i];
    if (flow->values != NULL)
        return flow->values + round->piece[i].at;
    if (round->piece[i].bare)
        return slot_of(operation, round, i) + PEER_HEAD_BYTES;
    return wire->sums + (uint64_t)flow->rank * peer_sums_stride(wire);
}

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

static uint32_t decoder_of(const struct peer_operation *operation, uint32_t round)
{
    return round % operation->decoders;
}

static coll_stream decoding(const struct peer_operation *operation)
{
    return operation->lane->stream[PEER_DECODING + decoder_of(operation, operation->taken)];
}

coll_stream peer_receiving(const struct peer_operation *operation)
{
    return operation->lane->stream[operation->decoders > 1 ? PEER_WAITING : PEER_DECODING];
}

coll_stream peer_received(const struct peer_operation *operation)
{
    return operation->lane->stream[operation->decoders > 1 ? PEER_FREEING : PEER_DECODING];
}

/* ---- Decoding ---------------------------------------------------------------------------------------------------- */

static struct strait_result *results_of(const struct peer_operation *operation, uint32_t i)
{
    const struct coll_ccomm *member = operation->member;
    return peer_results(member->peer, member->ranks, decoder_of(operation, operation->taken), i);
}

/* For the pieces that arrive `ahead` rounds from now. */
static uint8_t *aside_of(const struct peer_operation *operation, uint32_t ahead, uint32_t i, bool tail)
{
    const struct coll_ccomm *member = operation->member;
    return peer_aside(member->peer, member->ranks, decoder_of(operation, operation->taken + ahead), i, tail);
}

/* The last piece has no work beside it, and neither has any piece at a rank that sends nothing: the decoder gets
 * all. */
static uint32_t decoder_sms(const struct peer_operation *operation, const struct peer_round *round)
{
    const struct peer_tuning *tuning = &operation->member->peer->tuning;
    if (tuning->direct == 0)
        return tuning->sms;
    const bool last = round->number[0] + 1 == round->flow[0]->cut.pieces;
    return last || !operation->sends ? 0 : tuning->decoder_sms / operation->decoders;
}

static struct strait_run decoder_run(const struct peer_operation *operation, const struct peer_round *round)
{
    const struct peer_wire *wire = operation->member->peer;
    const struct peer_scratch *scratch = &wire->decoding[decoder_of(operation, operation->taken)];
    return (struct strait_run){.size = sizeof(struct strait_run),
                               .scratch = scratch->memory,
                               .scratch_size = scratch->size,
                               .stream = decoding(operation),
                               .sm_budget = decoder_sms(operation, round)};
}

static bool decode_coded(const struct peer_operation *operation, const struct peer_round *round)
{
    const struct strait_run how = decoder_run(operation, round);
    struct strait_region region[2 * PEER_RANKS_MAX];
    struct strait_decode_item item[2 * PEER_RANKS_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < round->count; i++) {
        const struct peer_piece *piece = &round->piece[i];
        if (piece->bare)
            continue;
        const uint32_t parts = peer_regions(piece, values_of(operation, round, i), &region[count]);
        for (uint32_t part = 0; part < parts; part++, count++)
            item[count] = (struct strait_decode_item){
                .dst = peer_pages(&region[count]),
                .src = slot_of(operation, round, i) + (part == 0 ? piece->main_at : piece->tail_at),
                .src_size = part == 0 ? piece->main_bound : piece->tail_bound,
                .metadata = aside_of(operation, 0, i, part == 1),
                .result = results_of(operation, i) + part,
                .flags = STRAIT_DECODE_AT_MOST,
            };
    }
    return count == 0 || strait_decode_batch(operation->member->codec, NULL, item, count, &how) == STRAIT_OK;
}

static bool decode(const struct peer_operation *operation, const struct peer_round *round)
{
    bool good = decode_coded(operation, round);
    for (uint32_t i = 0; i < round->count && good; i++)
        if (round->piece[i].bare && round->flow[i]->values != NULL)
            good = operation->member->gpu->peer->move(values_of(operation, round, i),
                                                      slot_of(operation, round, i) + PEER_HEAD_BYTES,
                                                      round->piece[i].bytes, decoding(operation));
    return good;
}

static bool add_up(const struct peer_operation *operation, const struct peer_round *round)
{
    const struct peer_segment *segment = &operation->segments.segment[operation->current];
    const struct coll_ccomm *member = operation->member;
    const struct coll_call *call = &segment->step->call;
    const struct peer_piece *piece = &round->piece[0]; /* the same for all */
    if (!segment->sums)
        return true;
    struct coll_reduce sum = {.type = call->type == COLL_BF16   ? COLL_REDUCE_BF16
                                      : call->type == COLL_FP16 ? COLL_REDUCE_FP16
                                                                : COLL_REDUCE_FP32,
                              .operation = call->reduction == COLL_SUM ? COLL_REDUCE_SUM : COLL_REDUCE_AVG,
                              .order = member->host.settings.ring ? COLL_REDUCE_NCCL_RING : COLL_REDUCE_IN_FP32,
                              .sources = (uint32_t)member->ranks,
                              .rank = (uint32_t)member->rank,
                              .dst = segment->sum + piece->at,
                              .count = piece->bytes / (call->type == COLL_FP32 ? 4 : 2)};
    for (uint32_t i = 0; i < round->count; i++)
        sum.source[round->flow[i]->rank] = values_of(operation, round, i);
    sum.source[member->rank] = segment->own + piece->at;
    return member->gpu->reduce(&sum, decoding(operation));
}

/* ---- Turns ------------------------------------------------------------------------------------------------------- */

/* Prepares copying the metadata of pieces that will have arrived. */
static void set_aside(const struct peer_operation *operation, const struct peer_round *round, uint32_t ahead,
                      struct peer_receive_step *turn)
{
    for (uint32_t i = 0; i < round->count; i++) {
        const struct peer_piece *piece = &round->piece[i];
        const uint8_t *slot = slot_of(operation, round, i);
        for (int tail = 0; tail <= (piece->tail_bytes > 0) && !piece->bare; tail++) {
            const struct peer_chunk chunk = peer_chunk_of(round->flow[i]->cut.element, tail ? 1 : piece->pages,
                                                          tail ? piece->tail_bytes : PEER_PAGE);
            struct peer_aside *aside = &turn->aside[turn->asides++];
            *aside = (struct peer_aside){.from = slot + (tail ? piece->tail_at : piece->main_at),
                                         .to = aside_of(operation, ahead, i, tail),
                                         .vectors = chunk.metadata_bytes / 16};
            memcpy(aside->begins, chunk.begins, sizeof(aside->begins));
        }
    }
}

/* Frees the slots of `done`, and waits for `next`, which arrives `ahead` rounds from now. */
static bool turn(const struct peer_operation *operation, const struct peer_round *done, const struct peer_round *next,
                 uint32_t ahead, coll_stream stream)
{
    const struct coll_ccomm *member = operation->member;
    struct peer_receive_step turn = {.world = member->peer->world, .takes = done->count, .waits = next->count};
    for (uint32_t i = 0; i < done->count; i++)
        turn.taken[i] = (struct peer_taken){
            .head = (void *)slot_of(operation, done, i),
            .results = done->piece[i].bare ? NULL : results_of(operation, i),
            .source = (uint32_t)done->flow[i]->rank,
            .has_tail = done->piece[i].tail_bytes > 0,
        };
    turn.patience_ns = PEER_TIMEOUT_NS;
    for (uint32_t i = 0; i < next->count; i++) {
        turn.source[i] = (uint8_t)next->flow[i]->rank;
        if (next->number[i] == 0)
            turn.patience_ns = 0;
    }
    set_aside(operation, next, ahead, &turn);
    return (turn.takes == 0 && turn.waits == 0) || member->gpu->peer->turn(&turn, stream);
}

static const struct peer_round none;

/* The metadata goes where the decoder had that of its previous piece, so this waits until that one is freed. */
static bool await(const struct peer_operation *operation, const struct peer_round *round, uint32_t ahead)
{
    const struct gpu_ops *gpu = operation->member->gpu;
    const uint32_t number = operation->taken + ahead;
    const gpu_event freed = operation->lane->freed[decoder_of(operation, number)];
    return round->count == 0 ||
           ((number < operation->decoders || gpu->event_follow(peer_receiving(operation), freed)) &&
            turn(operation, &none, round, ahead, peer_receiving(operation)));
}

static bool receive_in_turn(const struct peer_operation *operation, const struct peer_round *round,
                            const struct peer_round *next)
{
    const struct gpu_ops *gpu = operation->member->gpu;
    const struct peer_lane *lane = operation->lane;
    const coll_stream freeing = peer_received(operation);
    return gpu->event_record(lane->come, peer_receiving(operation)) &&
           gpu->event_follow(decoding(operation), lane->come) && decode(operation, round) &&
           gpu->event_record(lane->decoded, decoding(operation)) && gpu->event_follow(freeing, lane->decoded) &&
           turn(operation, round, &none, 0, freeing) &&
           gpu->event_record(lane->freed[decoder_of(operation, operation->taken)], freeing) &&
           await(operation, next, 1);
}

bool peer_await(const struct peer_operation *operation, const struct peer_round *first)
{
    return operation->decoders > 1 ? await(operation, first, 0)
                                   : turn(operation, &none, first, 0, peer_receiving(operation));
}

bool peer_receive(struct peer_operation *operation, const struct peer_round *round, const struct peer_round *next)
{
    const bool good = operation->decoders > 1 ? receive_in_turn(operation, round, next)
                                              : decode(operation, round) && add_up(operation, round) &&
                                                    turn(operation, round, next, 1, peer_received(operation));
    operation->taken++;
    return good;
}

/* Operations on the wire `peer`, each queued as a whole. */

/* ---- Rounds ------------------------------------------------------------------------------------------------------ */

static bool send_round(struct peer_operation *run)
{
    struct peer_segment *segment = &run->segments.segment[run->current];
    const struct peer_round round = peer_round_next(segment->out, segment->outs);
    return round.count == 0 || peer_send(run, &round);
}

static bool begin_segment(struct peer_operation *run)
{
    const struct gpu_ops *gpu = run->member->gpu;
    struct peer_segment *segment = &run->segments.segment[run->current];
    struct peer_lane *lane = run->lane;
    if (segment->follows &&
        (!gpu->event_record(lane->summed, peer_received(run)) || !gpu->event_follow(peer_sending(run), lane->summed)))
        return false;
    run->begun = true;
    run->in = peer_round_next(segment->in, segment->ins);
    return send_round(run) && send_round(run) && peer_await(run, &run->in);
}

/* Decodes what has come. Waiting for the next round is queued only after what other ranks will wait for then. */
static bool receive_round(struct peer_operation *run)
{
    struct peer_segment *segment = &run->segments.segment[run->current];
    const struct peer_round next = peer_round_next(segment->in, segment->ins);
    const bool good = run->in.count == 0 || peer_receive(run, &run->in, &next);
    run->in = next;
    return good;
}

static bool one_round(struct peer_operation *run)
{
    struct peer_segment *segment = &run->segments.segment[run->current];
    if ((!run->begun && !begin_segment(run)) || !receive_round(run) || !send_round(run))
        return false;
    if (run->in.count == 0 && !peer_round_left(segment->out, segment->outs)) {
        run->current++;
        run->begun = false;
    }
    return true;
}

/* ---- Beginning and ending ---------------------------------------------------------------------------------------- */

/* Copies what the rank has for itself. */
static bool copy_own(const struct coll_op *step)
{
    const struct coll_call *call = &step->call;
    const bool gathers = call->operation == COLL_ALL_GATHER;
    const size_t bytes = call->count * (call->type == COLL_FP32 ? 4 : 2), at = (size_t)step->member->rank * bytes;
    if (!gathers && call->operation != COLL_ALL_TO_ALL)
        return true;
    const uint8_t *from = (const uint8_t *)call->send + (gathers ? 0 : at);
    uint8_t *to = (uint8_t *)call->receive + at;
    return from == to || step->member->gpu->copy(to, from, bytes, call->stream);
}

/* Operations run one after another, those in graphs whenever these are launched. */
static bool follow_last(const struct peer_operation *run)
{
    const struct gpu_ops *gpu = run->member->gpu;
    const coll_stream stream = run->steps[0].call.stream;
    const gpu_event last = run->member->peer->last;
    return run->lane->capture != 0 ? gpu->event_follow_outside(stream, last) : gpu->event_follow(stream, last);
}

static bool mark_last(const struct peer_operation *run)
{
    const struct gpu_ops *gpu = run->member->gpu;
    const coll_stream stream = run->steps[0].call.stream;
    const gpu_event last = run->member->peer->last;
    return run->lane->capture != 0 ? gpu->event_record_outside(last, stream) : gpu->event_record(last, stream);
}

/* Runs after earlier work on the steps' streams, and after the previous operation. */
static bool fork_streams(struct peer_operation *run)
{
    const struct gpu_ops *gpu = run->member->gpu;
    struct peer_lane *lane = run->lane;
    bool good = follow_last(run);
    for (unsigned i = 0; i < run->count && good; i++)
        good = gpu->event_record(lane->begun, run->steps[i].call.stream) &&
               (!run->sends || gpu->event_follow(peer_sending(run), lane->begun)) &&
               (!run->receives || gpu->event_follow(peer_receiving(run), lane->begun)) && copy_own(&run->steps[i]);
    return good;
}

static bool join_stream(const struct peer_operation *run, coll_stream stream)
{
    const struct gpu_ops *gpu = run->member->gpu;
    bool good = gpu->event_record(run->lane->ended, stream);
    for (unsigned i = 0; i < run->count && good; i++)
        good = gpu->event_follow(run->steps[i].call.stream, run->lane->ended);
    return good;
}

static bool join_streams(struct peer_operation *run)
{
    return (!run->sends || join_stream(run, run->lane->stream[PEER_POSTING])) &&
           (!run->receives || join_stream(run, peer_received(run))) && mark_last(run);
}

static bool begin_run(struct peer_operation *run)
{
    bool sums = false;
    run->lane = peer_lane_of(run->member, run->steps[0].call.stream);
    if (run->lane == NULL || !peer_segments_of(&run->segments, run->member, run->steps, run->count))
        return false;
    for (unsigned i = 0; i < run->segments.count; i++) {
        run->sends |= run->segments.segment[i].outs > 0;
        run->receives |= run->segments.segment[i].ins > 0;
        sums |= run->segments.segment[i].sums;
    }
    run->decoders = run->member->peer->tuning.direct != 0 && !sums ? run->member->peer->tuning.decoders : 1;
    return (!sums || peer_sums_prepare(run->member)) && fork_streams(run);
}

/* Calls `what` on the GPU of the run's member. */
static bool on_gpu(struct peer_operation *run, bool (*what)(struct peer_operation *))
{
    const struct gpu_ops *gpu = run->member->gpu;
    int before;
    if (!gpu->enter(run->member->device, &before))
        return false;
    const bool good = what(run);
    gpu->leave(before);
    return good;
}

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

/* Steps of one member are adjacent. */
static unsigned split(struct coll_op *steps, unsigned count, struct peer_operation *runs)
{
    unsigned members = 0;
    for (unsigned at = 0; at < count; members++) {
        unsigned end = at + 1;
        for (unsigned i = end; i < count; i++)
            if (steps[i].member == steps[at].member) {
                const struct coll_op step = steps[i];
                memmove(&steps[end + 1], &steps[end], (i - end) * sizeof(step));
                steps[end++] = step;
            }
        runs[members] = (struct peer_operation){.member = steps[at].member, .steps = &steps[at], .count = end - at};
        at = end;
    }
    return members;
}

/* What is queued goes on: the program's streams wait for it, if they still can. */
static bool give_up(struct peer_operation *run)
{
    const struct gpu_ops *gpu = run->member->gpu;
    const coll_stream theirs = run->steps[0].call.stream;
    for (int i = 0; run->lane != NULL && i < PEER_STREAMS; i++)
        if (run->lane->stream[i] != NULL && gpu->stream_capture(run->lane->stream[i]) == gpu->stream_capture(theirs))
            (void)join_stream(run, run->lane->stream[i]);
    return run->lane == NULL || mark_last(run);
}

static coll_result failed(struct peer_operation *runs, unsigned members, struct coll_ccomm *member)
{
    for (unsigned i = 0; i < members; i++) {
        peer_abort(runs[i].member); /* the other ranks learn of it from what is queued already */
        (void)on_gpu(&runs[i], give_up);
    }
    member_fail(member, COLL_UNHANDLED_CUDA_ERROR, "an operation of the wire peer could not be launched");
    return COLL_UNHANDLED_CUDA_ERROR;
}

/* Advances all members round by round: a thread that has several ranks must not wait in one of them for work that it
 * has not queued in another. */
static coll_result run_all(struct peer_operation *runs, unsigned members)
{
    bool more = true;
    for (unsigned i = 0; i < members; i++)
        if (!on_gpu(&runs[i], begin_run))
            return failed(runs, members, runs[i].member);
    while (more) {
        more = false;
        for (unsigned i = 0; i < members; i++) {
            if (runs[i].current == runs[i].segments.count)
                continue;
            if (!on_gpu(&runs[i], one_round))
                return failed(runs, members, runs[i].member);
            more = true;
        }
    }
    for (unsigned i = 0; i < members; i++)
        if (!on_gpu(&runs[i], join_streams))
            return failed(runs, members, runs[i].member);
    return COLL_SUCCESS;
}

coll_result peer_run(struct coll_op *steps, unsigned count)
{
    struct peer_operation *runs = calloc(count, sizeof(*runs));
    if (runs == NULL)
        return COLL_SYSTEM_ERROR;
    const unsigned members = split(steps, count, runs);
    const coll_result result = run_all(runs, members);
    for (unsigned i = 0; i < members; i++)
        peer_segments_free(&runs[i].segments);
    free(runs);
    return result;
}
