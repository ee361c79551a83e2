/* The source's half of a leg: its messages to the sink: which wanted pages are ready, and how the leg ends. */
#include <xxhash.h>

#include "daemon/node.h"
#include "daemon/sink.h"
#include "daemon/source_private.h"

/* ---- To the sink ------------------------------------------------------------------------------------------------- */

static void send_to_local(struct source *source, const struct message_segments *message)
{
    if (source->local == NULL)
        return;
    enum strait_reason reason = sink_segments(source->local, message);
    if (reason != STRAIT_REASON_NONE)
        sink_event(source->local, SINK_FAIL, reason);
}

/* The open grants that are used are named with the first units. */
static void name_opened(const struct source_leg *leg, struct message_segments *segments)
{
    if (leg->opened == 0 || segments->before != 0)
        return;
    segments->grant = leg->opened;
    segments->granted = leg->opened_units;
    while (segments->granted_count < LEG_GRANTS && leg->opened_units[segments->granted_count] != 0)
        segments->granted_count++;
}

static void send_part(struct source *source, const struct segment *list, uint32_t count, uint32_t before, bool last)
{
    struct offer *o = source->offer;
    struct message message = {.type = MESSAGE_SEGMENTS};
    message.segments = (struct message_segments){.leg = source->id,
                                                 .epoch = source->epoch,
                                                 .before = before,
                                                 .last = last,
                                                 .segment_count = count,
                                                 .segments = list};
    name_opened(&source->leg, &message.segments);
    if (last && o->aux_size != 0) {
        message.segments.aux = view_of(o->aux, o->aux_size);
        message.segments.aux_sum = XXH3_64bits(o->aux, o->aux_size);
    }
    if (source->is_local)
        send_to_local(source, &message.segments);
    else
        (void)peer_send(source->peer, &message); /* if the peer is down, `down` follows */
}

/* Sends segments: as many messages as needed, each cut at the limit of a list. */
void source_send_segments(struct source *source, const struct leg_action *action)
{
    const struct segments *s = &source->segments;
    uint32_t from = 0;
    while (from < s->count && s->starts[from] < action->first)
        from++;
    uint32_t units = action->first;
    do {
        uint32_t part = s->count - from < MESSAGE_LIST_MAX ? s->count - from : MESSAGE_LIST_MAX;
        send_part(source, s->list + from, part, units, action->last && from + part == s->count);
        from += part;
        units = from < s->count ? s->starts[from] : action->first + action->count;
    } while (from < s->count);
}

void source_send_released(struct source *source, uint64_t grant)
{
    if (source->is_local) {
        struct leg_event event = {.type = SINK_RELEASED, .grant = grant};
        local_post(source->node, source->local, NULL, &event);
        return;
    }
    if (source->peer == NULL)
        return; /* its link is closed, so the slots are free */
    struct message message = {.type = MESSAGE_RELEASED};
    message.grant_id = (struct message_grant_id){.leg = source->id, .epoch = source->epoch, .grant = grant};
    (void)peer_send(source->peer, &message);
}

void source_send_end(struct source *source, enum strait_reason reason)
{
    if (source->is_local) {
        struct leg_event event = {.type = SINK_END, .reason = leg_peer_reason(reason)};
        local_post(source->node, source->local, NULL, &event);
        return;
    }
    if (source->peer == NULL)
        return; /* the peer is gone: there is no receiver */
    struct message message = {.type = MESSAGE_END};
    message.end = (struct message_end){
        .leg = source->id, .epoch = source->epoch, .state = STRAIT_FAILED, .reason = (uint32_t)reason};
    (void)peer_send(source->peer, &message);
}

/* ---- Wanted pages that are ready --------------------------------------------------------------------------------- */

_Static_assert(MESSAGE_OPEN_MAX == LEG_GRANTS, "a message names as many open grants as a leg may have");

struct announcement {
    struct source *source;
    uint32_t units;
};

static enum strait_status add_segment(void *owner, const struct segment *segment)
{
    struct announcement *a = owner;
    struct source *source = a->source;
    enum strait_status status = segments_add(&source->segments, segment);
    if (status != STRAIT_OK)
        return status;
    a->units += segment->region_count * segment->count;
    source->bytes += segment_bytes(segment, &source->offer->request.pool->pool->sizes);
    return STRAIT_OK;
}

/* Adds the wanted parts of the offer's segments; *units receives the number of units. */
static enum strait_reason add_wanted(struct source *source, uint32_t from, uint32_t count, uint32_t *units)
{
    struct announcement a = {.source = source};
    for (uint32_t i = 0; i < count; i++) {
        enum strait_status status =
            segment_intersect(&source->offer->ready[from + i], source->wanted, source->wanted_count, add_segment, &a);
        if (status != STRAIT_OK)
            return status == STRAIT_ERR_NO_MEMORY ? STRAIT_REASON_NO_MEMORY : STRAIT_REASON_GEOMETRY;
    }
    *units = a.units;
    return STRAIT_REASON_NONE;
}

/* Cuts what is ready into chunks for the open grants, as many as there are. */
static void use_open(const struct source *source, const struct open_grants *open, struct leg_event *bind)
{
    uint32_t first = 0;
    bind->grant = open->first;
    bind->opens = open->count;
    for (uint32_t i = 0; i < open->count; i++) {
        bind->slots[i] = open->slots[i];
        bind->units[i] = source_cut(source, open->slots[i], first);
        first += bind->units[i];
    }
}

enum strait_reason source_bind(struct source *source, const struct open_grants *open)
{
    uint32_t units;
    enum strait_reason reason = add_wanted(source, 0, source->offer->ready_count, &units);
    if (reason != STRAIT_REASON_NONE) {
        for (uint32_t i = 0; i < open->count; i++)
            source_send_released(source, open->first + i);
        return reason;
    }
    struct leg_event event = {.type = SOURCE_BIND, .count = units, .last = source->offer->last};
    use_open(source, open, &event);
    (void)source_apply(source, &event);
    return STRAIT_REASON_NONE;
}

enum strait_reason source_more(struct source *source, uint32_t from, uint32_t count)
{
    uint32_t units;
    enum strait_reason reason = add_wanted(source, from, count, &units);
    struct leg_event event = {.type = SOURCE_MORE, .count = units, .last = source->offer->last};
    if (reason == STRAIT_REASON_NONE && (units != 0 || source->offer->last))
        (void)source_apply(source, &event);
    return reason;
}
