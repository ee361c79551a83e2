#include <stdlib.h>
#include <utlist.h>
#include <xxhash.h>

#include "daemon/chunk_header.h"
#include "daemon/base/fault.h"
#include "daemon/node.h"
#include "daemon/policy.h"
#include "daemon/gpu_path.h"
#include "daemon/sink.h"
#include "daemon/source.h"

/* Shared by the files of the source's half of a leg: source.c carries out the actions of its state machine by these. */

/* ---- source_messages.c ------------------------------------------------------------------------------------------- */

void source_send_segments(struct source *source, const struct leg_action *action);
void source_send_released(struct source *source, uint64_t grant);
void source_send_end(struct source *source, enum strait_reason reason);

/* ---- source_chunks.c --------------------------------------------------------------------------------------------- */

/* How many units from `first` on make one chunk for this slot, as the sink would cut it. 0: no page fits. */
uint32_t source_cut(const struct source *source, uint32_t slot, uint32_t first);
void source_encode_chunk(struct source *source, const struct leg_grant *grant);   /* ENCODED follows, */
void source_transmit_chunk(struct source *source, const struct leg_grant *grant); /* and SENT */
void source_free_inflight(struct source *source, uint64_t grant);                 /* frees the chunk's memory */

/* The source's half of a leg: its messages to the sink: which wanted pages are ready, and how the leg ends. */

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

/* The source's half of a leg: chunks that are encoded and sent, each for a grant of the sink. */

/* ---- Where to ---------------------------------------------------------------------------------------------------- */

/* The largest chunk for a slot in the peer's host memory: both sides cut to what fits the slots of either. */
static uint64_t near_limit(const struct source *source)
{
    uint64_t own = source->node->send.slot_bytes, theirs = source->peer->slot_bytes;
    return own < theirs ? own : theirs;
}

/* The size to which chunks for the peer's host memory are cut. The host's processors prefer chunks that fit into their
 * caches. A GPU prefers as few as keep its stages busy, because each copy over the bus costs the same few
 * microseconds. */
static uint64_t near_target(const struct source *source, uint32_t first)
{
    const struct pool *pool = source->offer->request.pool->pool;
    struct piece piece;
    if (!segments_piece(&source->segments, first, 1, &piece) || pool->groups[piece.group].device < 0)
        return source->node->options.chunk_target;
    return far_target((uint32_t)near_limit(source), source->bytes);
}

uint32_t source_cut(const struct source *source, uint32_t slot, uint32_t first)
{
    const struct request *request = &source->offer->request;
    const struct segments *segments = &source->segments;
    const uint32_t far = gpu_path_slot_bytes(source->peer, slot);
    uint32_t units = segments->units - first;
    uint64_t target = far != 0 ? far_target(far, source->bytes) : near_target(source, first),
             limit = far != 0 ? far : near_limit(source);
    if (units == 0)
        return 0;
    if (far != 0 && units > FAR_PAGES_MAX)
        units = FAR_PAGES_MAX;
    if (far != 0 && source->offer->last)
        target = far_tail(target, source->bytes / segments->units * units);
    return segments_cut_chunk(segments, first, units, &request->pool->pool->sizes, &request->pages, target, limit);
}

/* The wire for a grant's chunk from this GPU (-1: from the host); WIRES_COUNTED: there is none any more. */
static enum gpu_path wire_for(const struct source *source, const struct leg_grant *grant, int32_t device)
{
    const struct peer *peer = source->peer;
    if (grant->slot >= peer->slot_count)
        return gpu_path_wire(source->node, peer, device, grant->slot);
    if (!peer->direct)
        return WIRE_UCX;
    return source->offer->request.pool->pool->devices != NULL ? WIRE_PINNED : WIRE_SHM;
}

/* The arena of ours in which chunks for this wire are encoded; NULL: they are encoded into the peer's arena. */
static struct arena *memory_for(struct node *node, enum gpu_path wire, int32_t device)
{
    return wire_is_link(wire) ? gpu_links_send(node, device) : wire == WIRE_UCX ? &node->send : NULL;
}

/* Where the chunk of a grant is written: into the peer's own arena when it can be reached, else into a slot of ours. */
static struct job_chunk destination(struct source *source, const struct leg_grant *grant, int32_t device,
                                    struct inflight_chunk *inflight_chunk)
{
    struct peer *peer = source->peer;
    const bool far = grant->slot >= peer->slot_count;
    struct job_chunk chunk = {.far = far,
                              .away = inflight_chunk->wire == WIRE_PEER,
                              .size = far ? gpu_path_slot_bytes(peer, grant->slot) : near_limit(source)};
    inflight_chunk->from = memory_for(source->node, inflight_chunk->wire, device);
    if (inflight_chunk->wire == WIRE_PEER)
        chunk.bytes = gpu_path_slot(peer, device, grant->slot);
    else if (inflight_chunk->wire == WIRE_SHM || inflight_chunk->wire == WIRE_PINNED)
        chunk.bytes = link_map(peer->link, (size_t)grant->slot * peer->slot_bytes, peer->slot_bytes);
    else if (inflight_chunk->from != NULL &&
             (inflight_chunk->send_slot = arena_take(inflight_chunk->from)) != ARENA_NONE)
        chunk.bytes = arena_slot(inflight_chunk->from, inflight_chunk->send_slot);
    else
        inflight_chunk->from = NULL;
    if (wire_is_link(inflight_chunk->wire))
        inflight_chunk->ends = (struct gpu_ends){.by = wire_link(inflight_chunk->wire),
                                                 .device = (uint32_t)device,
                                                 .peer_device = gpu_path_slot_device(peer, grant->slot)};
    return chunk;
}

/* Does a GPU write to a slot of the peer's arena in host memory? */
static bool needs_pin(const struct source *source, const struct leg_grant *grant)
{
    return !source->is_local && source->peer->direct && source->offer->request.pool->pool->devices != NULL &&
           grant->slot < source->peer->slot_count;
}

/* ---- Flights ----------------------------------------------------------------------------------------------------- */

static struct inflight_chunk *find_inflight(struct source *source, uint64_t grant)
{
    struct inflight_chunk *inflight_chunk;
    LL_SEARCH_SCALAR(source->flights, inflight_chunk, grant, grant);
    return inflight_chunk;
}

void source_free_inflight(struct source *source, uint64_t grant)
{
    struct inflight_chunk *inflight_chunk = find_inflight(source, grant);
    if (inflight_chunk == NULL)
        return;
    if (inflight_chunk->from != NULL)
        arena_give(inflight_chunk->from, inflight_chunk->send_slot);
    LL_DELETE(source->flights, inflight_chunk);
    free(inflight_chunk);
}

static void report(struct source *source, enum leg_event_type type, uint64_t grant, enum strait_reason reason)
{
    struct leg_event event = {.type = type, .grant = grant, .reason = reason};
    (void)source_apply(source, &event);
}

static void on_encoded(void *owner, uint64_t cookie, const struct job_result *result)
{
    struct inflight_chunk *inflight_chunk = (struct inflight_chunk *)(uintptr_t)cookie;
    struct source *source = inflight_chunk->source;
    struct node *node = owner;
    node->exchange.encoding_jobs--;
    inflight_chunk->size = result->bytes;
    inflight_chunk->raw_bytes = result->raw_bytes;
    histogram_record(&node->metrics.stages[STAGE_ENCODE], result->nanoseconds / 1000);
    node->metrics.coded_values += result->coded_values;
    node->metrics.escapes += result->escapes;
    if (source->peer != NULL) { /* otherwise its link is closed already and nothing will be sent */
        policy_encoded(source->peer, source->offer->request.pool, inflight_chunk->mode, inflight_chunk->wire, result);
        if (source->peer->direct)
            peer_writer_end(source->peer);
    }
    report(source, SOURCE_ENCODED, inflight_chunk->grant, result->reason);
}

void source_encode_chunk(struct source *source, const struct leg_grant *grant)
{
    struct node *node = source->node;
    struct request *request = &source->offer->request;
    if (source->is_local) {
        local_copy(source, grant);
        return;
    }
    struct inflight_chunk *inflight_chunk = calloc(1, sizeof(*inflight_chunk));
    if (inflight_chunk == NULL) {
        report(source, SOURCE_ENCODED, grant->id, STRAIT_REASON_NO_MEMORY);
        return;
    }
    *inflight_chunk = (struct inflight_chunk){.source = source, .grant = grant->id, .since = uv_hrtime()};
    LL_PREPEND(source->flights, inflight_chunk);

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
        inflight_chunk->wire = wire_for(source, grant, device);
        if (inflight_chunk->wire == WIRE_NONE && gpu_path_by_link(source->peer, grant->slot)) { /* the link has ended */
            report(source, SOURCE_ENCODED, grant->id, STRAIT_REASON_PEER_DOWN);
            return;
        }
        if (inflight_chunk->wire != WIRE_NONE)
            chunk = destination(source, grant, device, inflight_chunk);
    }
    if (chunk.bytes == NULL) { /* no honest sink gives this grant: it would cut as this side does */
        report(source, SOURCE_ENCODED, grant->id, STRAIT_REASON_GEOMETRY);
        return;
    }
    inflight_chunk->mode = policy_mode(node, source->peer, request->pool, inflight_chunk->wire);
    enum strait_status status = job_encode(node->jobs, request->pool->pool, &piece, ids, inflight_chunk->mode, &chunk,
                                           on_encoded, node, (uint64_t)(uintptr_t)inflight_chunk);
    if (status != STRAIT_OK) {
        report(source, SOURCE_ENCODED, grant->id, STRAIT_REASON_NO_MEMORY);
        return;
    }
    node->exchange.encoding_jobs++;
    if (source->peer->direct)
        peer_writer_begin(source->peer);
}

static enum strait_status send_chunk(struct peer *peer, const uint8_t header[CHUNK_HEADER_BYTES],
                                     const struct inflight_chunk *inflight_chunk)
{
    const void *data =
        inflight_chunk->from != NULL ? arena_slot(inflight_chunk->from, inflight_chunk->send_slot) : NULL;
    const uint64_t cookie = (uint64_t)(uintptr_t)inflight_chunk;
    if (wire_is_link(inflight_chunk->wire))
        return peer_send_gpu_chunk(peer, inflight_chunk->ends, header, CHUNK_HEADER_BYTES, data, inflight_chunk->size,
                                   cookie);
    return peer_send_chunk(peer, header, CHUNK_HEADER_BYTES, data, inflight_chunk->size, cookie);
}

void source_transmit_chunk(struct source *source, const struct leg_grant *grant)
{
    struct node *node = source->node;
    if (source->is_local) {
        report(source, SOURCE_SENT, grant->id, STRAIT_REASON_NONE); /* the copy was all there was to do */
        return;
    }
    struct inflight_chunk *inflight_chunk = find_inflight(source, grant->id);
    struct chunk_header header = {.slot = grant->slot,
                                  .token = source->peer->peer_token,
                                  .leg = source->id,
                                  .grant = grant->id,
                                  .epoch = source->epoch};
    uint8_t bytes[CHUNK_HEADER_BYTES];
    chunk_header_write(bytes, &header);
    inflight_chunk->since = uv_hrtime();
    if (send_chunk(source->peer, bytes, inflight_chunk) != STRAIT_OK) {
        report(source, SOURCE_SENT, grant->id, STRAIT_REASON_PEER_DOWN);
        return;
    }
    policy_sending(source->peer, inflight_chunk->wire);
    node->metrics.chunks_sent[inflight_chunk->mode == STRAIT_MODE_RAW     ? CODED_RAW
                              : inflight_chunk->mode == STRAIT_MODE_TOP16 ? CODED_TOP16
                                                                          : CODED_TIERED]++;
}

void source_sent(struct node *node, uint64_t cookie, enum strait_status status)
{
    if (fault_at(FAULT_CHUNK_DONE, NULL, &cookie))
        return;
    struct inflight_chunk *inflight_chunk = (struct inflight_chunk *)(uintptr_t)cookie;
    struct source *source = inflight_chunk->source;
    policy_sent(source->peer, inflight_chunk->wire, status == STRAIT_OK ? inflight_chunk->size : 0,
                inflight_chunk->raw_bytes);
    if (policy_judge(node, source->peer))
        gpu_path_changed(node, source->peer);
    if (status == STRAIT_OK) {
        histogram_record(&node->metrics.stages[STAGE_WIRE], (uv_hrtime() - inflight_chunk->since) / 1000);
        node->metrics.raw_bytes_sent += inflight_chunk->raw_bytes;
        node->metrics.wire_bytes_sent += inflight_chunk->size;
        node->metrics.wires[inflight_chunk->wire] += inflight_chunk->size;
    }
    report(source, SOURCE_SENT, inflight_chunk->grant,
           status == STRAIT_OK ? STRAIT_REASON_NONE : STRAIT_REASON_PEER_DOWN);
}

/* `sent` of its chunks comes when the link has released them, which can take long: the verdict does not wait for it. */
void source_gpu_link_ended(struct node *node, struct peer *peer, struct gpu_ends ends)
{
    struct source *source, *next;
    const struct inflight_chunk *inflight_chunk;
    HASH_ITER (hh, node->exchange.sources, source, next) {
        bool concerned = false;
        LL_FOREACH (source->flights, inflight_chunk)
            concerned |= wire_is_link(inflight_chunk->wire) && gpu_ends_equal(inflight_chunk->ends, ends);
        if (concerned && source->peer == peer)
            source_event(source, SOURCE_FAIL, STRAIT_REASON_PEER_DOWN);
    }
}

/* ---- Turns among the legs ---------------------------------------------------------------------------------------- */

/* The GPU of the grant's pages; -1: the host. */
static int32_t device_of(const struct source *source, const struct leg_grant *grant)
{
    struct piece piece;
    if (!segments_piece(&source->segments, grant->first, grant->count, &piece))
        return -1;
    return source->offer->request.pool->pool->groups[piece.group].device;
}

/* Does the leg have to wait for memory to write to? */
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

/* Begins chunks leg by leg: as many as there are send slots, and where none is needed, a few more than there are
 * workers. */
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

/* The source's half of a leg: carries out the actions of its state machine. */

/* Takes ownership of `wanted`, also on failure. */
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
        local_detach(source->local, source);
    HASH_DELETE(hh, source->node->exchange.sources, source);
    LL_DELETE(source->offer->sources, source);
    request_over(&source->offer->request);
    segments_fini(&source->segments);
    free(source->wanted);
    free(source);
}

/* ---- The state machine ------------------------------------------------------------------------------------------- */

static void act(struct source *source, const struct leg_action *action)
{
    switch (action->type) {
    case LEG_SEND_SEGMENTS:
        source_send_segments(source, action);
        break;
    case LEG_SEND_RELEASED:
        source_send_released(source, action->grant.id);
        break;
    case LEG_SEND_END:
        source_send_end(source, action->reason);
        break;
    case LEG_ENCODE:
        source_encode_chunk(source, &action->grant);
        break;
    case LEG_TRANSMIT:
        source_transmit_chunk(source, &action->grant);
        break;
    case LEG_FREE_SLOT:
        source_free_inflight(source, action->grant.id);
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
        node_busy_poll(source->node);
    if (!honest)
        source_event(source, SOURCE_FAIL, STRAIT_REASON_GEOMETRY);
    return honest;
}

void source_event(struct source *source, enum leg_event_type type, enum strait_reason reason)
{
    struct leg_event event = {.type = type, .reason = reason};
    (void)source_apply(source, &event);
}
