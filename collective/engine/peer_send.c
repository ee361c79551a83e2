/* The sending half of a round. */
#include <string.h>

#include "collective/engine/peer_rounds.h"

/* ---- For the codec ----------------------------------------------------------------------------------------------- */

static struct strait_region region_of(uint8_t *values, uint32_t page, uint32_t count)
{
    return (struct strait_region){
        .base = values, .page_stride = page, .row_stride = page, .page_count = count, .rows = 1, .row_bytes = page};
}

/* Main part and tail of a piece whose values are there. */
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

struct strait_run peer_codec_run(const struct peer_operation *operation, bool encoding)
{
    const struct peer_wire *wire = operation->member->peer;
    return (struct strait_run){.size = sizeof(struct strait_run),
                               .scratch = wire->scratch[!encoding],
                               .scratch_size = wire->scratch_size[!encoding],
                               .stream = operation->lane->stream[encoding ? PEER_ENCODING : PEER_DECODING],
                               .sm_budget = wire->tuning.sms};
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
    const coll_stream stream = operation->lane->stream[PEER_ENCODING];
    struct peer_claim claim = {.world = operation->member->peer->world, .patience_ns = PEER_PATIENCE_NS};
    for (uint32_t i = 0; i < round->count; i++) {
        const uint32_t number = round->number[i];
        uint8_t *receivers = &claim.receiver[claim.count];
        const uint32_t more = receivers_of(operation, round, i, receivers);
        memset(&claim.lag[claim.count], number < PEER_DEPTH ? (int)number : PEER_DEPTH - 1, more);
        claim.count += more;
        if (number == 0)
            claim.patience_ns = 0;
    }
    return gpu->peer->claim(&claim, stream);
}

static uint8_t *outgoing(const struct peer_operation *operation, uint32_t place)
{
    return peer_outgoing(operation->member->peer, operation->member->ranks, place, operation->sent);
}

/* Pieces of one type are encoded at once. */
static bool encode_type(const struct peer_operation *operation, const struct peer_round *round,
                        enum strait_element element)
{
    const struct strait_encode_params params = {sizeof(params), element, STRAIT_MODE_BASE, NULL};
    const struct strait_run how = peer_codec_run(operation, true);
    struct strait_region region[2 * PEER_RANKS_MAX];
    struct strait_encode_item item[2 * PEER_RANKS_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < round->count; i++) {
        const struct peer_piece *piece = &round->piece[i];
        struct peer_head *head = (void *)outgoing(operation, i);
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

/* When what was encoded there before has crossed. */
static bool encode(const struct peer_operation *operation, const struct peer_round *round)
{
    const struct gpu_ops *gpu = operation->member->gpu;
    const struct peer_lane *lane = operation->lane;
    if (operation->sent >= PEER_DEPTH &&
        !gpu->event_follow(lane->stream[PEER_ENCODING], lane->posted[operation->sent % PEER_DEPTH]))
        return false;
    return encode_type(operation, round, STRAIT_ELEMENT_BF16) && encode_type(operation, round, STRAIT_ELEMENT_FP16) &&
           encode_type(operation, round, STRAIT_ELEMENT_FP32);
}

/* A piece for each receiver. */
static struct peer_post pushes_of(const struct peer_operation *operation, const struct peer_round *round)
{
    const struct peer_wire *wire = operation->member->peer;
    struct peer_post post = {.world = wire->world, .blocks = wire->tuning.blocks};
    for (uint32_t i = 0; i < round->count; i++) {
        const struct peer_piece *piece = &round->piece[i];
        uint8_t receivers[PEER_RANKS_MAX];
        const uint32_t more = receivers_of(operation, round, i, receivers);
        for (uint32_t j = 0; j < more; j++)
            post.push[post.count++] = (struct peer_push){
                .slot = piece->bare ? NULL : outgoing(operation, i),
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

/* On two streams a piece begins to cross before the one before it has ended. */
static coll_stream crossing(const struct peer_operation *operation)
{
    const bool other = operation->sent % operation->member->peer->tuning.cross == 1;
    return operation->lane->stream[other ? PEER_CROSSING_TOO : PEER_CROSSING];
}

/* What a copy engine does of it. */
static bool push(const struct peer_operation *operation, const struct peer_push *to, const struct peer_flow *flow,
                 const struct peer_piece *piece)
{
    const struct gpu_peer_ops *peer = operation->member->gpu->peer;
    const coll_stream stream = crossing(operation);
    if (piece->bare)
        return peer->move(to->there + PEER_HEAD_BYTES, flow->values + piece->at, piece->bytes, stream);
    return to->from == 0 || peer->move(to->there, to->slot, to->from, stream);
}

static bool cross(const struct peer_operation *operation, const struct peer_round *round)
{
    const struct gpu_ops *gpu = operation->member->gpu;
    struct peer_lane *lane = operation->lane;
    const struct peer_post post = pushes_of(operation, round);
    bool good = gpu->event_record(lane->encoded, lane->stream[PEER_ENCODING]) &&
                gpu->event_follow(crossing(operation), lane->encoded);
    for (uint32_t i = 0, at = 0; i < round->count; i++) {
        uint8_t receivers[PEER_RANKS_MAX];
        for (uint32_t end = at + receivers_of(operation, round, i, receivers); at < end && good; at++)
            good = push(operation, &post.push[at], round->flow[i], &round->piece[i]);
    }
    return good && gpu->event_record(lane->crossed, crossing(operation)) &&
           gpu->event_follow(lane->stream[PEER_POSTING], lane->crossed) &&
           gpu->peer->post(&post, lane->stream[PEER_POSTING]) &&
           gpu->event_record(lane->posted[operation->sent % PEER_DEPTH], lane->stream[PEER_POSTING]);
}

bool peer_send(struct peer_operation *operation, const struct peer_round *round)
{
    const bool good = encode(operation, round) && claim(operation, round) && cross(operation, round);
    operation->sent++;
    return good;
}
