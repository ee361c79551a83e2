/* The source's half of a leg: the actions of its state machine, carried out. */
#include <stdlib.h>
#include <string.h>

#include <utlist.h>
#include <xxhash.h>

#include "daemon/chunk_header.h"
#include "daemon/equipment/fault.h"
#include "daemon/node.h"
#include "daemon/policy.h"
#include "daemon/reach.h"
#include "daemon/session.h"

/* Takes over `wanted`, also when it fails. */
struct source *source_create(struct offer *o, struct peer *peer, struct sink *local, uint64_t id,
                             const struct epoch *epoch, struct wire_span *wanted, uint32_t wanted_count)
{
    struct source *source = calloc(1, sizeof(*source));
    if (source == NULL) {
        free(wanted);
        return NULL;
    }
    source->node = o->request.node;
    source->offer = o;
    source->id = id;
    source->epoch = *epoch;
    source->wanted = wanted;
    source->wanted_count = wanted_count;
    source->peer = peer;
    source->local = local;
    source->is_local = local != NULL;
    source->at.peer = peer;
    source->at.id = id;
    source_init(&source->leg);
    HASH_ADD(hh, source->node->exchange.sources, at, sizeof(source->at), source);
    LL_PREPEND(o->sources, source);
    o->leg_count++;
    return source;
}

static void stop_waiting(struct source *source)
{
    if (!source->waiting)
        return;
    DL_DELETE2(source->node->exchange.encoding, source, wprev, wnext);
    source->node->exchange.encoding_count--;
    source->waiting = false;
}

void source_free(struct source *source)
{
    stop_waiting(source);
    if (source->is_local)
        local_part(source->local, source);
    HASH_DELETE(hh, source->node->exchange.sources, source);
    LL_DELETE(source->offer->sources, source);
    request_over(&source->offer->request);
    segments_fini(&source->segments);
    free(source->wanted);
    free(source);
}

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

/* Segments as they are sent: one message at a time, cut at the limit of a list. */
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

static void send_to_local(struct source *source, const struct message_segments *message)
{
    if (source->local == NULL)
        return;
    enum strait_reason reason = sink_segments(source->local, message);
    if (reason != STRAIT_REASON_NONE)
        sink_event(source->local, SINK_FAIL, reason);
}

static void send_part(struct source *source, const struct segment *list, uint32_t count, uint32_t before, bool last,
                      const struct leg_grant *opened)
{
    struct offer *o = source->offer;
    struct message message = {.type = MESSAGE_SEGMENTS};
    message.segments = (struct message_segments){.leg = source->id,
                                                 .epoch = source->epoch,
                                                 .before = before,
                                                 .last = last,
                                                 .segment_count = count,
                                                 .segments = list,
                                                 .grant = before == 0 ? opened->id : 0,
                                                 .granted = before == 0 ? opened->count : 0};
    if (last && o->aux_size != 0) {
        message.segments.aux = view_of(o->aux, o->aux_size);
        message.segments.aux_sum = XXH3_64bits(o->aux, o->aux_size);
    }
    if (source->is_local)
        send_to_local(source, &message.segments);
    else
        (void)peer_send(source->peer, &message); /* a peer that is down says so itself */
}

static void send_segments(struct source *source, const struct leg_action *action)
{
    const struct segments *s = &source->segments;
    uint32_t from = 0;
    while (from < s->count && s->starts[from] < action->first)
        from++;
    uint32_t units = action->first;
    do {
        uint32_t part = s->count - from < MESSAGE_LIST_MAX ? s->count - from : MESSAGE_LIST_MAX;
        send_part(source, s->list + from, part, units, action->last && from + part == s->count, &action->grant);
        from += part;
        units = from < s->count ? s->starts[from] : action->first + action->count;
    } while (from < s->count);
}

static void send_released(struct source *source, uint64_t grant)
{
    if (source->is_local) {
        struct leg_event event = {.type = SINK_RELEASED, .grant = grant};
        local_post(source->node, source->local, NULL, &event);
        return;
    }
    if (source->peer == NULL)
        return; /* its link is closed: the slots are free */
    struct message message = {.type = MESSAGE_RELEASED};
    message.grant_id = (struct message_grant_id){.leg = source->id, .epoch = source->epoch, .grant = grant};
    (void)peer_send(source->peer, &message);
}

/* Adds what is wanted of segments of the offer; *units: how many they are. */
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

/* The largest chunk for a slot of the peer's host: both sides cut to what fits either. */
static uint64_t near_limit(const struct source *source)
{
    uint64_t own = source->node->send.slot_bytes, theirs = source->peer->slot_bytes;
    return own < theirs ? own : theirs;
}

/* How many of the first units one chunk for this slot takes. */
static uint32_t first_chunk(const struct source *source, uint32_t slot, uint32_t units)
{
    const struct node *node = source->node;
    const struct request *request = &source->offer->request;
    const struct peer *peer = source->peer;
    const uint32_t far = reach_slot_bytes(peer, slot);
    uint64_t target = far != 0 ? far_target(far, source->bytes) : node->options.chunk_target,
             limit = far != 0 ? far : near_limit(source);
    if (far != 0 && units > FAR_PAGES_MAX)
        units = FAR_PAGES_MAX;
    return segments_cut_chunk(&source->segments, 0, units, &request->pool->pool->sizes, &request->pages, target, limit);
}

enum strait_reason source_bind(struct source *source, const struct open_grant *open)
{
    uint32_t units;
    enum strait_reason reason = add_wanted(source, 0, source->offer->ready_count, &units);
    if (reason != STRAIT_REASON_NONE) {
        if (open->id != 0)
            send_released(source, open->id);
        return reason;
    }
    struct leg_event event = {.type = SOURCE_BIND,
                              .grant = open->id,
                              .slot = open->slot,
                              .first = open->id != 0 && units != 0 ? first_chunk(source, open->slot, units) : 0,
                              .count = units,
                              .last = source->offer->last};
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

static void send_end(struct source *source, enum strait_reason reason)
{
    if (source->is_local) {
        struct leg_event event = {.type = SINK_END, .reason = leg_peer_reason(reason)};
        local_post(source->node, source->local, NULL, &event);
        return;
    }
    struct message message = {.type = MESSAGE_END};
    message.end = (struct message_end){
        .leg = source->id, .epoch = source->epoch, .state = STRAIT_FAILED, .reason = (uint32_t)reason};
    (void)peer_send(source->peer, &message);
}

/* ---- Chunks ------------------------------------------------------------------------------------------------------ */

static struct flight *find_flight(struct source *source, uint64_t grant)
{
    struct flight *flight;
    LL_SEARCH_SCALAR(source->flights, flight, grant, grant);
    return flight;
}

static void end_flight(struct source *source, uint64_t grant)
{
    struct flight *flight = find_flight(source, grant);
    if (flight == NULL)
        return;
    if (flight->from != NULL)
        arena_give(flight->from, flight->send_slot);
    LL_DELETE(source->flights, flight);
    free(flight);
}

static void report(struct source *source, enum leg_event_type type, uint64_t grant, enum strait_reason reason)
{
    struct leg_event event = {.type = type, .grant = grant, .reason = reason};
    (void)source_apply(source, &event);
}

static void on_encoded(void *owner, uint64_t cookie, const struct job_result *result)
{
    struct flight *flight = (struct flight *)(uintptr_t)cookie;
    struct source *source = flight->source;
    struct node *node = owner;
    node->exchange.encoding_jobs--;
    flight->size = result->bytes;
    flight->raw_bytes = result->raw_bytes;
    histogram_record(&node->metrics.stages[STAGE_ENCODE], result->nanoseconds / 1000);
    node->metrics.coded_values += result->coded_values;
    node->metrics.escapes += result->escapes;
    if (source->peer != NULL) { /* else its link is closed already: nothing will be sent */
        policy_encoded(source->peer, source->offer->request.pool, flight->mode, flight->wire, result);
        if (source->peer->direct)
            exchange_writer_done(source->peer);
    }
    report(source, SOURCE_ENCODED, flight->grant, result->reason);
}

/* Which way the chunk of a grant goes from this GPU (-1: from the host); WIRES_COUNTED: there is none any more. */
static enum wire_counter wire_for(const struct source *source, const struct leg_grant *grant, int32_t device)
{
    const struct peer *peer = source->peer;
    if (grant->slot >= peer->slot_count)
        return reach_wire(source->node, peer, device, grant->slot);
    if (!peer->direct)
        return WIRE_UCX;
    return source->offer->request.pool->pool->devices != NULL ? WIRE_PINNED : WIRE_SHM;
}

/* The memory of ours that chunks for this wire are encoded in; NULL: the peer's is written to. */
static struct arena *memory_for(struct node *node, enum wire_counter wire, int32_t device)
{
    return wire_is_link(wire) ? gpu_links_send(node, device) : wire == WIRE_UCX ? &node->send : NULL;
}

/* Where the chunk of a grant is written: the peer's own arena when it can be reached, else a slot of ours. */
static struct job_chunk destination(struct source *source, const struct leg_grant *grant, int32_t device,
                                    struct flight *flight)
{
    struct peer *peer = source->peer;
    const bool far = grant->slot >= peer->slot_count;
    struct job_chunk chunk = {.far = far, .size = far ? reach_slot_bytes(peer, grant->slot) : near_limit(source)};
    flight->from = memory_for(source->node, flight->wire, device);
    if (flight->wire == WIRE_PEER)
        chunk.bytes = reach_slot(peer, device, grant->slot);
    else if (flight->wire == WIRE_SHM || flight->wire == WIRE_PINNED)
        chunk.bytes = link_map(peer->link, (size_t)grant->slot * peer->slot_bytes, peer->slot_bytes);
    else if (flight->from != NULL && (flight->send_slot = arena_take(flight->from)) != ARENA_NONE)
        chunk.bytes = arena_slot(flight->from, flight->send_slot);
    else
        flight->from = NULL;
    if (wire_is_link(flight->wire))
        flight->ends = (struct gpu_ends){.by = wire_link(flight->wire),
                                         .device = (uint32_t)device,
                                         .peer_device = reach_slot_device(peer, grant->slot)};
    return chunk;
}

/* Does a GPU write to the part of the peer's arena that is the host's memory? */
static bool needs_pin(const struct source *source, const struct leg_grant *grant)
{
    return !source->is_local && source->peer->direct && source->offer->request.pool->pool->devices != NULL &&
           grant->slot < source->peer->slot_count;
}

static void encode(struct source *source, const struct leg_grant *grant)
{
    struct node *node = source->node;
    struct request *request = &source->offer->request;
    if (source->is_local) {
        local_copy(source, grant);
        return;
    }
    struct flight *flight = calloc(1, sizeof(*flight));
    if (flight == NULL) {
        report(source, SOURCE_ENCODED, grant->id, STRAIT_REASON_NO_MEMORY);
        return;
    }
    *flight = (struct flight){.source = source, .grant = grant->id, .since = uv_hrtime()};
    LL_PREPEND(source->flights, flight);

    struct piece piece;
    if (needs_pin(source, grant) && pin_peer(node, source->peer) != PIN_DONE) {
        report(source, SOURCE_ENCODED, grant->id, STRAIT_REASON_LOCAL);
        return;
    }
    const uint32_t *ids = NULL;
    struct job_chunk chunk = {.bytes = NULL};
    if (segments_piece(&source->segments, grant->first, grant->count, &piece))
        ids = page_set_ids(&request->pages, piece.group, piece.first, piece.count);
    if (ids != NULL) {
        const int32_t device = request->pool->pool->groups[piece.group].device;
        flight->wire = wire_for(source, grant, device);
        if (flight->wire == WIRES_COUNTED && reach_by_link(source->peer, grant->slot)) { /* it has ended meanwhile */
            report(source, SOURCE_ENCODED, grant->id, STRAIT_REASON_PEER_DOWN);
            return;
        }
        if (flight->wire != WIRES_COUNTED)
            chunk = destination(source, grant, device, flight);
    }
    if (chunk.bytes == NULL) { /* a grant that no honest sink gives: the sink cuts as this side would */
        report(source, SOURCE_ENCODED, grant->id, STRAIT_REASON_GEOMETRY);
        return;
    }
    flight->mode = policy_mode(node, source->peer, request->pool, flight->wire);
    enum strait_status status = job_encode(node->jobs, request->pool->pool, &piece, ids, flight->mode, &chunk,
                                           on_encoded, node, (uint64_t)(uintptr_t)flight);
    if (status != STRAIT_OK) {
        report(source, SOURCE_ENCODED, grant->id, STRAIT_REASON_NO_MEMORY);
        return;
    }
    node->exchange.encoding_jobs++;
    if (source->peer->direct)
        exchange_writer_begun(source->peer);
}

static enum strait_status send_chunk(struct peer *peer, const uint8_t header[CHUNK_HEADER_BYTES],
                                     const struct flight *flight)
{
    const void *data = flight->from != NULL ? arena_slot(flight->from, flight->send_slot) : NULL;
    const uint64_t cookie = (uint64_t)(uintptr_t)flight;
    if (wire_is_link(flight->wire))
        return peer_send_gpu_chunk(peer, flight->ends, header, CHUNK_HEADER_BYTES, data, flight->size, cookie);
    return peer_send_chunk(peer, header, CHUNK_HEADER_BYTES, data, flight->size, cookie);
}

static void transmit(struct source *source, const struct leg_grant *grant)
{
    struct node *node = source->node;
    if (source->is_local) {
        report(source, SOURCE_SENT, grant->id, STRAIT_REASON_NONE); /* the copy was all */
        return;
    }
    struct flight *flight = find_flight(source, grant->id);
    struct chunk_header header = {.slot = grant->slot,
                                  .token = source->peer->peer_token,
                                  .leg = source->id,
                                  .grant = grant->id,
                                  .epoch = source->epoch};
    uint8_t bytes[CHUNK_HEADER_BYTES];
    chunk_header_write(bytes, &header);
    flight->since = uv_hrtime();
    if (send_chunk(source->peer, bytes, flight) != STRAIT_OK) {
        report(source, SOURCE_SENT, grant->id, STRAIT_REASON_PEER_DOWN);
        return;
    }
    policy_sending(source->peer, flight->wire);
    node->metrics.chunks_sent[flight->mode == STRAIT_MODE_RAW     ? CODED_RAW
                              : flight->mode == STRAIT_MODE_TOP16 ? CODED_TOP16
                                                                  : CODED_TIERED]++;
}

void source_sent(struct node *node, uint64_t cookie, enum strait_status status)
{
    if (fault_at(FAULT_CHUNK_DONE, NULL, &cookie))
        return;
    struct flight *flight = (struct flight *)(uintptr_t)cookie;
    struct source *source = flight->source;
    policy_sent(source->peer, flight->wire, status == STRAIT_OK ? flight->size : 0, flight->raw_bytes);
    if (policy_judge(node, source->peer))
        reach_changed(node, source->peer);
    if (status == STRAIT_OK) {
        histogram_record(&node->metrics.stages[STAGE_WIRE], (uv_hrtime() - flight->since) / 1000);
        node->metrics.raw_bytes_sent += flight->raw_bytes;
        node->metrics.wire_bytes_sent += flight->size;
        node->metrics.wires[flight->wire] += flight->size;
    }
    report(source, SOURCE_SENT, flight->grant, status == STRAIT_OK ? STRAIT_REASON_NONE : STRAIT_REASON_PEER_DOWN);
}

/* Their `sent` comes when the link has let go of them, which can take long: the verdict does not wait for that. */
void source_gpu_link_ended(struct node *node, struct peer *peer, struct gpu_ends ends)
{
    struct source *source, *next;
    const struct flight *flight;
    HASH_ITER (hh, node->exchange.sources, source, next) {
        bool concerned = false;
        LL_FOREACH (source->flights, flight)
            concerned |= wire_is_link(flight->wire) && gpu_ends_equal(flight->ends, ends);
        if (concerned && source->peer == peer)
            source_event(source, SOURCE_FAIL, STRAIT_REASON_PEER_DOWN);
    }
}

/* ---- The machine ------------------------------------------------------------------------------------------------- */

static void act(struct source *source, const struct leg_action *action)
{
    switch (action->type) {
    case LEG_SEND_SEGMENTS:
        send_segments(source, action);
        break;
    case LEG_SEND_RELEASED:
        send_released(source, action->grant.id);
        break;
    case LEG_SEND_END:
        send_end(source, action->reason);
        break;
    case LEG_ENCODE:
        encode(source, &action->grant);
        break;
    case LEG_TRANSMIT:
        transmit(source, &action->grant);
        break;
    case LEG_FREE_SLOT:
        end_flight(source, action->grant.id);
        break;
    case LEG_STATE:
        request_state(&source->offer->request, action->state);
        break;
    case LEG_VERDICT:
        if (!source->superseded)
            offer_leg_verdict(source->offer, action->reason);
        break;
    case LEG_DRAINED:
        offer_leg_drained(source->offer);
        break;
    case LEG_CLOSED:
        LL_PREPEND2(source->node->exchange.closed_sources, source, closed_next);
        break;
    default:
        break;
    }
}

static void update_waiting(struct source *source)
{
    bool wants = source_wants(&source->leg);
    if (wants && !source->waiting) {
        source->queued_at = uv_hrtime();
        DL_APPEND2(source->node->exchange.encoding, source, wprev, wnext);
        source->node->exchange.encoding_count++;
        source->waiting = true;
    } else if (!wants) {
        stop_waiting(source);
    }
}

bool source_apply(struct source *source, const struct leg_event *event)
{
    struct leg_actions actions = {0};
    bool honest = source_step(&source->leg, event, &actions);
    for (uint32_t i = 0; i < actions.count; i++)
        act(source, &actions.list[i]);
    update_waiting(source);
    if (source->offer->request.pool != NULL && source->offer->request.pool->pool->devices != NULL)
        node_attend(source->node);
    if (!honest)
        source_event(source, SOURCE_FAIL, STRAIT_REASON_GEOMETRY);
    return honest;
}

void source_event(struct source *source, enum leg_event_type type, enum strait_reason reason)
{
    struct leg_event event = {.type = type, .reason = reason};
    (void)source_apply(source, &event);
}

/* The GPU of the grant's pages; -1: the host. */
static int32_t device_of(const struct source *source, const struct leg_grant *grant)
{
    struct piece piece;
    if (!segments_piece(&source->segments, grant->first, grant->count, &piece))
        return -1;
    return source->offer->request.pool->pool->groups[piece.group].device;
}

/* Has to wait for memory to write to. */
static bool is_stuck(struct node *node, const struct source *source)
{
    const struct leg_grant *grant = source_next(&source->leg);
    if (source->is_local)
        return false;
    const int32_t device = device_of(source, grant);
    const struct arena *memory = memory_for(node, wire_for(source, grant, device), device);
    return (memory != NULL && memory->used == memory->slot_count) ||
           (needs_pin(source, grant) && pin_peer(node, source->peer) == PIN_BUSY);
}

/* Chunks are begun in turn among the legs: as many as there are send slots, and where none is needed, a few more than
 * there are workers. */
void source_encodes(struct node *node)
{
    struct exchange *x = &node->exchange;
    for (uint32_t passed = 0; passed < x->encoding_count && x->encoding_jobs < ENCODING_JOBS_MAX;) {
        struct source *source = x->encoding;
        if (is_stuck(node, source)) {
            passed++;
        } else {
            histogram_record(&node->metrics.stages[STAGE_QUEUE], (uv_hrtime() - source->queued_at) / 1000);
            source_event(source, SOURCE_ENCODE, STRAIT_REASON_NONE);
            passed = 0;
        }
        if (x->encoding == source) { /* to the end of the round */
            DL_DELETE2(x->encoding, source, wprev, wnext);
            DL_APPEND2(x->encoding, source, wprev, wnext);
        }
    }
}
