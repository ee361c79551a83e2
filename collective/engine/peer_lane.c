/* Streams of operations: one set for all that is called straight, one for each graph that is being captured; when a
 * capture has ended, its set serves the next one. */
#include <stdlib.h>

#include "collective/engine/peer.h"

enum { PLAIN_EVENTS = 5, EVENTS = PLAIN_EVENTS + PEER_DEPTH };

static gpu_event *event_at(struct peer_lane *lane, unsigned i)
{
    gpu_event *const plain[PLAIN_EVENTS] = {&lane->begun, &lane->encoded, &lane->crossed, &lane->summed, &lane->ended};
    return i < PLAIN_EVENTS ? plain[i] : &lane->posted[i - PLAIN_EVENTS];
}

static void destroy(struct peer_lane *lane, const struct gpu_ops *gpu)
{
    for (int i = 0; i < PEER_STREAMS; i++)
        if (lane->stream[i] != NULL)
            gpu->stream_end(lane->stream[i]);
    for (unsigned i = 0; i < EVENTS; i++)
        if (*event_at(lane, i) != NULL)
            gpu->event_end(*event_at(lane, i));
    free(lane);
}

/* What codes takes all of a GPU. Others wait for what says that a piece is there, which takes nothing. */
static coll_stream make_stream(const struct gpu_ops *gpu, int which)
{
    const bool codes = which == PEER_ENCODING || which == PEER_DECODING;
    return (codes ? gpu->peer->stream_make_below : gpu->stream_make)();
}

static struct peer_lane *make(const struct gpu_ops *gpu)
{
    struct peer_lane *lane = calloc(1, sizeof(*lane));
    bool good = lane != NULL;
    for (int i = 0; i < PEER_STREAMS && good; i++)
        good = (lane->stream[i] = make_stream(gpu, i)) != NULL;
    for (unsigned i = 0; i < EVENTS && good; i++)
        good = (*event_at(lane, i) = gpu->event_make(false)) != NULL;
    if (good)
        return lane;
    if (lane != NULL)
        destroy(lane, gpu);
    return NULL;
}

struct peer_lane *peer_lane_of(struct coll_member *member, coll_stream stream)
{
    const struct gpu_ops *gpu = member->gpu;
    const uint64_t capture = gpu->stream_capture(stream);
    struct peer_lane *lane = member->peer->lanes;
    while (lane != NULL && lane->capture != capture)
        lane = lane->next;
    if (lane == NULL && capture != 0) {
        lane = member->peer->lanes;
        while (lane != NULL && (lane->capture == 0 || gpu->stream_capture(lane->stream[PEER_ENCODING]) != 0 ||
                                gpu->stream_capture(lane->stream[PEER_DECODING]) != 0))
            lane = lane->next;
    }
    if (lane == NULL && (lane = make(gpu)) != NULL) {
        lane->next = member->peer->lanes;
        member->peer->lanes = lane;
    }
    if (lane != NULL)
        lane->capture = capture;
    return lane;
}

void peer_lanes_end(struct peer_wire *wire, const struct gpu_ops *gpu)
{
    while (wire->lanes != NULL) {
        struct peer_lane *next = wire->lanes->next;
        destroy(wire->lanes, gpu);
        wire->lanes = next;
    }
}
