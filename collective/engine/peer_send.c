/* The sending half of a round. */
#include <string.h>

#include "collective/engine/peer_rounds.h"

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
    const struct coll_member *member = operation->member;
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
        .world = operation->member->peer->world, .patience_ns = PEER_PATIENCE_NS, .ahead = is_direct(operation)};
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
    const struct coll_member *member = operation->member;
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
    return operation->lane->stream[other ? PEER_CROSSING_TOO : PEER_CROSSING];
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
