/* Operations on the wire `peer`, queued whole. Of a round n:
 *
 *   encoding   claim slots of the receivers, encode
 *   crossing     after that, copy engine: what usually suffices
 *   posting        after that, kernel: what is missing, and that it is there
 *   decoding   decode what has come from others, add up; free its slots and wait for round n + 1 */
#include <stdlib.h>
#include <string.h>

#include "collective/engine/peer_flows.h"

/* A rank may come to an operation as late as it likes, but once it is there, it goes on. */
#define PATIENCE_NS UINT64_C(60000000000)

/* What one member does for the steps of a group. */
struct run {
    struct coll_member *member;
    const struct coll_step *steps;
    unsigned count;
    struct peer_lane *lane;
    struct peer_segments segments;
    unsigned current;     /* segment */
    bool begun;           /* it is */
    uint32_t sent;        /* rounds */
    struct peer_round in; /* that is waited for */
    bool sends, receives;
};

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

static uint32_t receivers_of(const struct run *run, const struct peer_round *round, uint32_t i, uint8_t receivers[])
{
    const struct coll_member *member = run->member;
    uint32_t count = 0;
    if (round->flow[i]->rank != PEER_TO_ALL) {
        receivers[0] = (uint8_t)round->flow[i]->rank;
        return 1;
    }
    for (int behind = 1; behind < member->ranks; behind++) /* not all to one at once */
        receivers[count++] = (uint8_t)((member->rank + behind) % member->ranks);
    return count;
}

static bool claim(const struct run *run, const struct peer_round *round)
{
    const struct gpu_ops *gpu = run->member->gpu;
    const coll_stream stream = run->lane->stream[PEER_ENCODING];
    struct peer_claim claim = {.world = run->member->peer->world, .patience_ns = PATIENCE_NS};
    for (uint32_t i = 0; i < round->count; i++) {
        const uint32_t number = round->number[i];
        uint8_t *receivers = &claim.receiver[claim.count];
        const uint32_t more = receivers_of(run, round, i, receivers);
        memset(&claim.lag[claim.count], number < PEER_DEPTH ? (int)number : PEER_DEPTH - 1, more);
        claim.count += more;
        if (number == 0)
            claim.patience_ns = 0;
    }
    return (run->sent < PEER_DEPTH || gpu->event_follow(stream, run->lane->posted[run->sent % PEER_DEPTH])) &&
           gpu->peer->claim(&claim, stream);
}

static struct strait_region region_of(uint8_t *values, uint32_t page, uint32_t count)
{
    return (struct strait_region){
        .base = values, .page_stride = page, .row_stride = page, .page_count = count, .rows = 1, .row_bytes = page};
}

/* Main part and tail of a piece whose values are there. */
static uint32_t regions_of(const struct peer_piece *piece, uint8_t *values, struct strait_region region[2])
{
    region[0] = region_of(values, PEER_PAGE, piece->pages);
    if (piece->tail_bytes == 0)
        return 1;
    region[1] = region_of(values + (uint64_t)piece->pages * PEER_PAGE, piece->tail_bytes, 1);
    return 2;
}

static struct strait_pages pages_of(const struct strait_region *region)
{
    return (struct strait_pages){.regions = region, .region_count = 1, .id_count = region->page_count};
}

static struct strait_run codec_run(const struct run *run, bool encoding)
{
    const struct peer_wire *wire = run->member->peer;
    return (struct strait_run){.size = sizeof(struct strait_run),
                               .scratch = wire->scratch[!encoding],
                               .scratch_size = wire->scratch_size[!encoding],
                               .stream = run->lane->stream[encoding ? PEER_ENCODING : PEER_DECODING],
                               .sm_budget = wire->tuning.sms};
}

static uint8_t *outgoing(const struct run *run, uint32_t place)
{
    return peer_outgoing(run->member->peer, run->member->ranks, place, run->sent);
}

/* Pieces of one type are encoded at once. */
static bool encode_type(const struct run *run, const struct peer_round *round, enum strait_element element)
{
    const struct strait_encode_params params = {sizeof(params), element, STRAIT_MODE_BASE, NULL};
    const struct strait_run how = codec_run(run, true);
    struct strait_region region[2 * PEER_RANKS_MAX];
    struct strait_encode_item item[2 * PEER_RANKS_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < round->count; i++) {
        const struct peer_piece *piece = &round->piece[i];
        struct peer_head *head = (void *)outgoing(run, i);
        if (piece->bare || round->flow[i]->cut.element != element)
            continue;
        const uint32_t parts = regions_of(piece, round->flow[i]->values + piece->at, &region[count]);
        for (uint32_t part = 0; part < parts; part++, count++)
            item[count] = (struct strait_encode_item){
                .src = pages_of(&region[count]),
                .dst = (uint8_t *)head + (part == 0 ? piece->main_at : piece->tail_at),
                .dst_capacity = part == 0 ? piece->main_bound : piece->tail_bound,
                .result = part == 0 ? &head->main : &head->tail,
            };
    }
    return count == 0 || strait_encode_batch(run->member->codec, &params, item, count, &how) == STRAIT_OK;
}

static bool encode(const struct run *run, const struct peer_round *round)
{
    return encode_type(run, round, STRAIT_ELEMENT_BF16) && encode_type(run, round, STRAIT_ELEMENT_FP16) &&
           encode_type(run, round, STRAIT_ELEMENT_FP32);
}

/* A piece for each receiver. */
static struct peer_post pushes_of(const struct run *run, const struct peer_round *round)
{
    const struct peer_wire *wire = run->member->peer;
    struct peer_post post = {.world = wire->world, .blocks = wire->tuning.blocks};
    for (uint32_t i = 0; i < round->count; i++) {
        const struct peer_piece *piece = &round->piece[i];
        uint8_t receivers[PEER_RANKS_MAX];
        const uint32_t more = receivers_of(run, round, i, receivers);
        for (uint32_t j = 0; j < more; j++)
            post.push[post.count++] = (struct peer_push){
                .slot = piece->bare ? NULL : outgoing(run, i),
                .there = peer_slot(wire, receivers[j], run->member->rank, round->number[i]),
                .from = wire->tuning.crossing == PEER_BY_ENGINE ? piece->room : 0,
                .main_at = piece->main_at,
                .main_bound = piece->main_bound,
                .tail_bound = piece->tail_bound,
                .receiver = receivers[j],
            };
    }
    return post;
}

/* What a copy engine does of it. */
static bool push(const struct run *run, const struct peer_push *to, const struct peer_flow *flow,
                 const struct peer_piece *piece)
{
    const struct gpu_peer_ops *peer = run->member->gpu->peer;
    const coll_stream stream = run->lane->stream[PEER_CROSSING];
    if (piece->bare)
        return peer->move(to->there + PEER_HEAD_BYTES, flow->values + piece->at, piece->bytes, stream);
    return to->from == 0 || peer->move(to->there, to->slot, to->from, stream);
}

static bool cross(const struct run *run, const struct peer_round *round)
{
    const struct gpu_ops *gpu = run->member->gpu;
    struct peer_lane *lane = run->lane;
    const struct peer_post post = pushes_of(run, round);
    bool good = gpu->event_record(lane->encoded, lane->stream[PEER_ENCODING]) &&
                gpu->event_follow(lane->stream[PEER_CROSSING], lane->encoded);
    for (uint32_t i = 0, at = 0; i < round->count; i++) {
        uint8_t receivers[PEER_RANKS_MAX];
        for (uint32_t end = at + receivers_of(run, round, i, receivers); at < end && good; at++)
            good = push(run, &post.push[at], round->flow[i], &round->piece[i]);
    }
    return good && gpu->event_record(lane->crossed, lane->stream[PEER_CROSSING]) &&
           gpu->event_follow(lane->stream[PEER_POSTING], lane->crossed) &&
           gpu->peer->post(&post, lane->stream[PEER_POSTING]) &&
           gpu->event_record(lane->posted[run->sent % PEER_DEPTH], lane->stream[PEER_POSTING]);
}

static bool send_round(struct run *run)
{
    struct peer_segment *segment = &run->segments.segment[run->current];
    const struct peer_round round = peer_round_next(segment->out, segment->outs);
    if (round.count == 0)
        return true;
    const bool good = claim(run, &round) && encode(run, &round) && cross(run, &round);
    run->sent++;
    return good;
}

/* ---- Receiving --------------------------------------------------------------------------------------------------- */

static uint8_t *slot_of(const struct run *run, const struct peer_round *round, uint32_t i)
{
    const struct coll_member *member = run->member;
    return peer_slot(member->peer, member->rank, round->flow[i]->rank, round->number[i]);
}

/* Where the values of a piece are in the end. What is to be added up may stay where it has come. */
static uint8_t *values_of(const struct run *run, const struct peer_round *round, uint32_t i)
{
    const struct peer_wire *wire = run->member->peer;
    const struct peer_flow *flow = round->flow[i];
    if (flow->values != NULL)
        return flow->values + round->piece[i].at;
    if (round->piece[i].bare)
        return slot_of(run, round, i) + PEER_HEAD_BYTES;
    return wire->sums + (uint64_t)flow->rank * peer_sums_stride(wire);
}

static struct strait_result *results_of(const struct run *run, uint32_t i)
{
    return run->member->peer->results + 2 * i;
}

static bool decode_coded(const struct run *run, const struct peer_round *round)
{
    const struct strait_run how = codec_run(run, false);
    struct strait_region region[2 * PEER_RANKS_MAX];
    struct strait_decode_item item[2 * PEER_RANKS_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < round->count; i++) {
        const struct peer_piece *piece = &round->piece[i];
        if (piece->bare)
            continue;
        const uint32_t parts = regions_of(piece, values_of(run, round, i), &region[count]);
        for (uint32_t part = 0; part < parts; part++, count++)
            item[count] = (struct strait_decode_item){
                .dst = pages_of(&region[count]),
                .src = slot_of(run, round, i) + (part == 0 ? piece->main_at : piece->tail_at),
                .src_size = part == 0 ? piece->main_bound : piece->tail_bound,
                .result = results_of(run, i) + part,
                .flags = STRAIT_DECODE_AT_MOST,
            };
    }
    return count == 0 || strait_decode_batch(run->member->codec, NULL, item, count, &how) == STRAIT_OK;
}

static bool decode(const struct run *run, const struct peer_round *round)
{
    bool good = decode_coded(run, round);
    for (uint32_t i = 0; i < round->count && good; i++)
        if (round->piece[i].bare && round->flow[i]->values != NULL)
            good = run->member->gpu->peer->move(values_of(run, round, i), slot_of(run, round, i) + PEER_HEAD_BYTES,
                                                round->piece[i].bytes, run->lane->stream[PEER_DECODING]);
    return good;
}

static bool add_up(const struct run *run, const struct peer_round *round)
{
    const struct peer_segment *segment = &run->segments.segment[run->current];
    const struct coll_member *member = run->member;
    const struct coll_call *call = &segment->step->call;
    const struct peer_piece *piece = &round->piece[0]; /* of all the same */
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
        sum.source[round->flow[i]->rank] = values_of(run, round, i);
    sum.source[member->rank] = segment->own + piece->at;
    return member->gpu->reduce(&sum, run->lane->stream[PEER_DECODING]);
}

/* Frees what is in `done`, waits for what is in `next`. */
static bool turn(const struct run *run, const struct peer_round *done, const struct peer_round *next)
{
    const struct coll_member *member = run->member;
    struct peer_turn turn = {.world = member->peer->world, .takes = done->count, .waits = next->count};
    for (uint32_t i = 0; i < done->count; i++)
        turn.taken[i] = (struct peer_taken){
            .head = (void *)slot_of(run, done, i),
            .results = done->piece[i].bare ? NULL : results_of(run, i),
            .source = (uint32_t)done->flow[i]->rank,
            .has_tail = done->piece[i].tail_bytes > 0,
        };
    turn.patience_ns = PATIENCE_NS;
    for (uint32_t i = 0; i < next->count; i++) {
        turn.source[i] = (uint8_t)next->flow[i]->rank;
        if (next->number[i] == 0)
            turn.patience_ns = 0;
    }
    return (turn.takes == 0 && turn.waits == 0) || member->gpu->peer->turn(&turn, run->lane->stream[PEER_DECODING]);
}

/* ---- Rounds ------------------------------------------------------------------------------------------------------ */

static bool begin_segment(struct run *run)
{
    static const struct peer_round none;
    const struct gpu_ops *gpu = run->member->gpu;
    struct peer_segment *segment = &run->segments.segment[run->current];
    struct peer_lane *lane = run->lane;
    if (segment->follows && (!gpu->event_record(lane->summed, lane->stream[PEER_DECODING]) ||
                             !gpu->event_follow(lane->stream[PEER_ENCODING], lane->summed)))
        return false;
    run->begun = true;
    run->in = peer_round_next(segment->in, segment->ins);
    return send_round(run) && send_round(run) && turn(run, &none, &run->in);
}

/* What has come is decoded; the next one is waited for when this rank has queued what others will wait for then. */
static bool receive_round(struct run *run)
{
    struct peer_segment *segment = &run->segments.segment[run->current];
    const struct peer_round next = peer_round_next(segment->in, segment->ins);
    const bool good =
        run->in.count == 0 || (decode(run, &run->in) && add_up(run, &run->in) && turn(run, &run->in, &next));
    run->in = next;
    return good;
}

static bool one_round(struct run *run)
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

/* ---- Begin and end ----------------------------------------------------------------------------------------------- */

/* What a rank has for itself. */
static bool copy_own(const struct coll_step *step)
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

/* Operations come one after another, those in graphs when these are launched. */
static bool follow_last(const struct run *run)
{
    const struct gpu_ops *gpu = run->member->gpu;
    const coll_stream stream = run->steps[0].call.stream;
    const gpu_event last = run->member->peer->last;
    return run->lane->capture != 0 ? gpu->event_follow_outside(stream, last) : gpu->event_follow(stream, last);
}

static bool mark_last(const struct run *run)
{
    const struct gpu_ops *gpu = run->member->gpu;
    const coll_stream stream = run->steps[0].call.stream;
    const gpu_event last = run->member->peer->last;
    return run->lane->capture != 0 ? gpu->event_record_outside(last, stream) : gpu->event_record(last, stream);
}

/* After what is before on the streams of the steps, and after the operation before. */
static bool fork_streams(struct run *run)
{
    const struct gpu_ops *gpu = run->member->gpu;
    struct peer_lane *lane = run->lane;
    bool good = follow_last(run);
    for (unsigned i = 0; i < run->count && good; i++)
        good = gpu->event_record(lane->begun, run->steps[i].call.stream) &&
               (!run->sends || gpu->event_follow(lane->stream[PEER_ENCODING], lane->begun)) &&
               (!run->receives || gpu->event_follow(lane->stream[PEER_DECODING], lane->begun)) &&
               copy_own(&run->steps[i]);
    return good;
}

static bool join_stream(const struct run *run, coll_stream stream)
{
    const struct gpu_ops *gpu = run->member->gpu;
    bool good = gpu->event_record(run->lane->ended, stream);
    for (unsigned i = 0; i < run->count && good; i++)
        good = gpu->event_follow(run->steps[i].call.stream, run->lane->ended);
    return good;
}

static bool join_streams(struct run *run)
{
    return (!run->sends || join_stream(run, run->lane->stream[PEER_POSTING])) &&
           (!run->receives || join_stream(run, run->lane->stream[PEER_DECODING])) && mark_last(run);
}

static bool begin_run(struct run *run)
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
    return (!sums || peer_sums_prepare(run->member)) && fork_streams(run);
}

/* On the GPU of the run's member. */
static bool on_gpu(struct run *run, bool (*what)(struct run *))
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

/* Steps of one member lie together. */
static unsigned split(struct coll_step *steps, unsigned count, struct run *runs)
{
    unsigned members = 0;
    for (unsigned at = 0; at < count; members++) {
        unsigned end = at + 1;
        for (unsigned i = end; i < count; i++)
            if (steps[i].member == steps[at].member) {
                const struct coll_step step = steps[i];
                memmove(&steps[end + 1], &steps[end], (i - end) * sizeof(step));
                steps[end++] = step;
            }
        runs[members] = (struct run){.member = steps[at].member, .steps = &steps[at], .count = end - at};
        at = end;
    }
    return members;
}

/* What is queued goes on: the streams of the program wait for it, if they still can. */
static bool give_up(struct run *run)
{
    const struct gpu_ops *gpu = run->member->gpu;
    const coll_stream theirs = run->steps[0].call.stream;
    for (int i = 0; run->lane != NULL && i < PEER_STREAMS; i++)
        if (gpu->stream_capture(run->lane->stream[i]) == gpu->stream_capture(theirs))
            (void)join_stream(run, run->lane->stream[i]);
    return run->lane == NULL || mark_last(run);
}

static coll_result failed(struct run *runs, unsigned members, struct coll_member *member)
{
    for (unsigned i = 0; i < members; i++) {
        peer_abort(runs[i].member); /* the others learn of it from what is queued already */
        (void)on_gpu(&runs[i], give_up);
    }
    member_fail(member, COLL_UNHANDLED_CUDA_ERROR, "an operation of the wire peer could not be launched");
    return COLL_UNHANDLED_CUDA_ERROR;
}

/* Round by round for all of them: a thread that has several ranks must not wait with one for what it has not queued for
 * another. */
static coll_result run_all(struct run *runs, unsigned members)
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

coll_result peer_run(struct coll_step *steps, unsigned count)
{
    struct run *runs = calloc(count, sizeof(*runs));
    if (runs == NULL)
        return COLL_SYSTEM_ERROR;
    const unsigned members = split(steps, count, runs);
    const coll_result result = run_all(runs, members);
    for (unsigned i = 0; i < members; i++)
        peer_segments_free(&runs[i].segments);
    free(runs);
    return result;
}
