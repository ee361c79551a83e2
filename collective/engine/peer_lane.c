/* Streams of operations: one set for all calls outside of graphs, made when the communicator joins, as its staging
 * memory is (collective/engine/staging.h), and one for each graph being captured. When a capture has ended, its set
 * serves the next one. */
#include <stdlib.h>

#include "collective/engine/peer.h"

enum { PLAIN_EVENTS = 8, EVENTS = PLAIN_EVENTS + PEER_OUTGOING + PEER_DECODERS_MAX };

static gpu_event *event_at(struct peer_lane *lane, unsigned i)
{
    gpu_event *const plain[PLAIN_EVENTS] = {&lane->begun, &lane->claimed, &lane->encoded, &lane->crossed,
                                            &lane->come,  &lane->decoded, &lane->summed,  &lane->ended};
    if (i < PLAIN_EVENTS)
        return plain[i];
    i -= PLAIN_EVENTS;
    return i < PEER_OUTGOING ? &lane->posted[i] : &lane->freed[i - PEER_OUTGOING];
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

static bool is_encoding(int stream)
{
    return stream >= PEER_ENCODING && stream < PEER_ENCODING + PEER_ENCODERS_MAX;
}

static bool is_decoding(int stream)
{
    return stream >= PEER_DECODING && stream < PEER_DECODING + PEER_DECODERS_MAX;
}

/* Coding occupies a whole GPU, so its streams have lower priority: other ranks wait for the kernels that say that a
 * piece is there, which need next to nothing. */
static coll_stream make_stream(const struct gpu_ops *gpu, int which)
{
    return (is_encoding(which) || is_decoding(which) ? gpu->peer->stream_make_below : gpu->stream_make)();
}

static struct peer_lane *make(const struct gpu_ops *gpu)
{
    struct peer_lane *lane = calloc(1, sizeof(*lane));
    bool good = lane != NULL;
    for (unsigned i = 0; i < EVENTS && good; i++)
        good = (*event_at(lane, i) = gpu->event_make(false)) != NULL;
    if (good)
        return lane;
    if (lane != NULL)
        destroy(lane, gpu);
    return NULL;
}

static bool is_captured(const struct peer_lane *lane, const struct gpu_ops *gpu)
{
    bool captured = false;
    for (int i = 0; i < PEER_STREAMS && !captured; i++)
        captured = lane->stream[i] != NULL && gpu->stream_capture(lane->stream[i]) != 0;
    return captured;
}

static bool is_needed(const struct peer_tuning *tuning, int stream)
{
    if (is_encoding(stream))
        return stream < PEER_ENCODING + (tuning->direct != 0 ? (int)tuning->encoders : 1);
    if (is_decoding(stream))
        return stream < PEER_DECODING + (tuning->direct != 0 ? (int)tuning->decoders : 1);
    if (stream == PEER_CLAIMING || stream == PEER_WAITING || stream == PEER_FREEING)
        return tuning->direct != 0;
    return stream != PEER_CROSSING_TOO || tuning->cross == 2;
}

/* Streams share hardware queues, so streams that would stay unused are not made. */
static bool make_streams(struct peer_lane *lane, const struct coll_member *member)
{
    bool good = true;
    for (int i = 0; i < PEER_STREAMS && good; i++)
        if (lane->stream[i] == NULL && is_needed(&member->peer->tuning, i))
            good = (lane->stream[i] = make_stream(member->gpu, i)) != NULL;
    return good;
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
        while (lane != NULL && (lane->capture == 0 || is_captured(lane, gpu)))
            lane = lane->next;
    }
    if (lane == NULL && (lane = make(gpu)) != NULL) {
        lane->next = member->peer->lanes;
        member->peer->lanes = lane;
    }
    if (lane != NULL)
        lane->capture = capture;
    return lane != NULL && make_streams(lane, member) ? lane : NULL;
}

void peer_lanes_end(struct peer_wire *wire, const struct gpu_ops *gpu)
{
    while (wire->lanes != NULL) {
        struct peer_lane *next = wire->lanes->next;
        destroy(wire->lanes, gpu);
        wire->lanes = next;
    }
}
