/* Where a transfer can be held, and in which state it then is. */
#include "tests/chaos/scene.h"

const char *const point_names[CHAOS_POINTS] = {
#define X(name) "before sending " #name, "after sending " #name, "before taking " #name, "after taking " #name,
    CHAOS_MESSAGES(X)
#undef X
        "before sending a chunk",
    "after sending a chunk",
    "a chunk knocks",
    "a chunk has come",
    "before encoding",
    "after encoding",
    "before decoding",
    "after decoding",
    "before copying",
    "after copying",
    "before telling the verdict",
    "after telling the verdict"};

/* ---- Where a transfer is held --------------------------------------------------------------------------------- */

static const struct place places[] = {
    {BOOTSTRAP, SINK, AT_SEND_REQUEST, PLAIN},
    {BOOTSTRAP, SINK, AT_SENT_REQUEST, PLAIN},
    {BOOTSTRAP, SOURCE, AT_TAKE_REQUEST, PLAIN},
    {BOOTSTRAP, SOURCE, AT_SEND_ANNOUNCE, PUSHED},
    {BOOTSTRAP, SOURCE, AT_SENT_ANNOUNCE, PUSHED},
    {BOOTSTRAP, SINK, AT_TAKE_ANNOUNCE, PUSHED},
    {BOOTSTRAP, SINK, AT_TAKEN_ANNOUNCE, PUSHED},
    {READY, SOURCE, AT_TAKEN_REQUEST, PLAIN},
    {READY, SOURCE, AT_SEND_SEGMENTS, PLAIN},
    {READY, SOURCE, AT_SENT_SEGMENTS, PLAIN},
    {READY, SINK, AT_TAKE_SEGMENTS, PLAIN},
    {READY, SINK, AT_TAKEN_SEGMENTS, PLAIN},
    {READY, SINK, AT_SEND_GRANT, PLAIN},
    {ENCODING, SINK, AT_SENT_GRANT, PLAIN},
    {ENCODING, SOURCE, AT_TAKE_GRANT, PLAIN},
    {ENCODING, SOURCE, AT_TAKEN_GRANT, PLAIN},
    {ENCODING, SOURCE, AT_ENCODE, PLAIN},
    {ENCODING, SOURCE, AT_ENCODED, PLAIN},
    {ENCODING, SINK, AT_SEND_REVOKE, STARVED},
    {ENCODING, SINK, AT_SENT_REVOKE, STARVED},
    {ENCODING, SOURCE, AT_TAKE_REVOKE, STARVED},
    {ENCODING, SOURCE, AT_TAKEN_REVOKE, STARVED},
    {SENDING, SOURCE, AT_CHUNK, PLAIN},
    {SENDING, SOURCE, AT_CHUNK_SENT, PLAIN},
    {ARRIVING, SINK, AT_ARRIVING, PLAIN},
    {ARRIVING, SINK, AT_ARRIVED, PLAIN},
    {DECODING, SINK, AT_DECODE, PLAIN},
    {DECODING, SINK, AT_DECODED, PLAIN},
    {DONE, SINK, AT_SEND_END, PLAIN},
    {DONE, SINK, AT_SENT_END, PLAIN},
    {DONE, SOURCE, AT_TAKE_END, PLAIN},
    {DONE, SOURCE, AT_TAKEN_END, PLAIN},
    {DONE, SINK, AT_TELL, PLAIN},
    {DONE, SINK, AT_TOLD, PLAIN},
    {DONE, SOURCE, AT_TELL, PLAIN},
    {DONE, SOURCE, AT_TOLD, PLAIN},
    {DRAINING, SINK, AT_DECODE, ABORTED},
    {DRAINING, SOURCE, AT_ENCODE, ABORTED},
    {DRAINING, SOURCE, AT_SEND_RELEASED, ABORTED_FIRST},
    {DRAINING, SOURCE, AT_SENT_RELEASED, ABORTED_FIRST},
    {DRAINING, SINK, AT_TAKE_RELEASED, ABORTED_FIRST},
    {DRAINING, SINK, AT_TAKEN_RELEASED, ABORTED_FIRST},
};
#define PLACES (sizeof(places) / sizeof(places[0]))

static const struct place local_places[] = {
    {DECODING, SINK, AT_COPY, PLAIN},   {DECODING, SINK, AT_COPIED, PLAIN},   {DONE, SINK, AT_TELL, PLAIN},
    {DONE, SINK, AT_TOLD, PLAIN},       {DONE, SOURCE, AT_TELL, PLAIN},       {DONE, SOURCE, AT_TOLD, PLAIN},
    {DRAINING, SINK, AT_COPY, ABORTED}, {DRAINING, SOURCE, AT_COPY, ABORTED},
};
#define LOCAL_PLACES (sizeof(local_places) / sizeof(local_places[0]))

bool scenario_is_local(enum fault fault, enum phase phase)
{
    static const bool faults[FAULTS] = {
        [F_KILL_SOURCE_DAEMON] = true,
        [F_KILL_SOURCE_CLIENT] = true,
        [F_KILL_SINK_CLIENT] = true,
        [F_STOP_SOURCE_DAEMON] = true,
        [F_STOP_SOURCE_CLIENT] = true,
        [F_STOP_SINK_CLIENT] = true,
        [F_RESTART_SOURCE_DAEMON] = true,
        [F_RESTART_SOURCE_CLIENT] = true,
        [F_RESTART_SINK_CLIENT] = true,
        [F_ABORT_SOURCE] = true,
        [F_ABORT_SINK] = true,
        [F_LEASE] = true,
        [F_DEADLINE] = true,
        [F_FULL] = true,
        [F_SOURCE_DEVICE] = true,
        [F_SINK_DEVICE] = true,
    };
    return faults[fault] && (phase == DECODING || phase == DONE || phase == DRAINING);
}

static const struct place *least_met(struct world *w, enum phase phase)
{
    const struct place *best = NULL;
    uint32_t least = UINT32_MAX, start = draw(w, PLACES);
    for (uint32_t i = 0; i < PLACES; i++) {
        const struct place *place = &places[(start + i) % PLACES];
        uint32_t met = atomic_load(&w->totals->points[place->side][place->at]);
        if (place->phase != phase || met >= least)
            continue;
        least = met;
        best = place;
    }
    return best;
}

/* Not always the least met place, as some are hard to reach. */
const struct place *place_choose(struct world *w, enum phase phase)
{
    const struct place *list = w->is_local ? local_places : places, *place;
    if (!w->is_local && draw(w, 3) != 0)
        return least_met(w, phase);
    do
        place = &list[draw(w, w->is_local ? LOCAL_PLACES : PLACES)];
    while (place->phase != phase);
    return place;
}
