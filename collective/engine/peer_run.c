/* Operations on the wire `peer`, each queued as a whole. */
#include <stdlib.h>
#include <string.h>

#include "collective/engine/peer_rounds.h"

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
static unsigned split(struct coll_step *steps, unsigned count, struct peer_operation *runs)
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

static coll_result failed(struct peer_operation *runs, unsigned members, struct coll_member *member)
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

coll_result peer_run(struct coll_step *steps, unsigned count)
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
