/* The receiving half of a round. */
#include <string.h>

#include "collective/engine/peer_rounds.h"

static uint8_t *slot_of(const struct peer_operation *operation, const struct peer_round *round, uint32_t i)
{
    const struct coll_member *member = operation->member;
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
    const struct coll_member *member = operation->member;
    return peer_results(member->peer, member->ranks, decoder_of(operation, operation->taken), i);
}

/* For the pieces that arrive `ahead` rounds from now. */
static uint8_t *aside_of(const struct peer_operation *operation, uint32_t ahead, uint32_t i, bool tail)
{
    const struct coll_member *member = operation->member;
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
    const struct coll_member *member = operation->member;
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
                      struct peer_turn *turn)
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
    const struct coll_member *member = operation->member;
    struct peer_turn turn = {.world = member->peer->world, .takes = done->count, .waits = next->count};
    for (uint32_t i = 0; i < done->count; i++)
        turn.taken[i] = (struct peer_taken){
            .head = (void *)slot_of(operation, done, i),
            .results = done->piece[i].bare ? NULL : results_of(operation, i),
            .source = (uint32_t)done->flow[i]->rank,
            .has_tail = done->piece[i].tail_bytes > 0,
        };
    turn.patience_ns = PEER_PATIENCE_NS;
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
