#include "daemon/source.h"

#include <stdlib.h>
#include <strait/codec.h>
#include <string.h>
#include <utlist.h>
#include <xxhash.h>

#include "daemon/base/fault.h"
#include "daemon/chunk_header.h"
#include "daemon/descriptions.h"
#include "daemon/gpu_path.h"
#include "daemon/node.h"
#include "daemon/policy.h"
#include "daemon/sink.h"
#include "daemon/withdraw.h"

/* ---- Events ------------------------------------------------------------------------------------------------------ */

void source_post(struct source *source, const struct leg_event *event)
{
    leg_queue_append(&source->node->exchange.events, &(struct leg_post){.source = source, .event = *event});
}

void source_event(struct source *source, enum leg_event_type type, enum strait_reason reason)
{
    source_post(source, &(struct leg_event){.type = type, .reason = reason});
}

static bool is_encoding(const struct source *source)
{
    for (uint32_t i = 0; i < SOURCE_GRANTS; i++)
        if (source->leg.grants[i].state == GRANT_ENCODING)
            return true;
    return false;
}

void source_message(struct source *source, const struct message *message)
{
    const struct message_grant *grant = &message->grant;
    if (message->type == MESSAGE_GRANT)
        source_post(source, &(struct leg_event){.type = SOURCE_GRANT,
                                                .grant = grant->grant,
                                                .first = grant->first,
                                                .count = grant->count,
                                                .slot = grant->slot});
    else if (message->type == MESSAGE_REVOKE)
        source_post(source, &(struct leg_event){.type = SOURCE_REVOKE, .grant = message->grant_id.grant});
    else if (message->type == MESSAGE_END) {
        if (message->end.state == STRAIT_DONE && source->peer != NULL && source->timeline.ends[PHASE_END] == 0) {
            timeline_mark(&source->timeline, PHASE_END);
            source->offer->request.span.leg = source->timeline;
            metrics_record(&source->node->metrics, &source->timeline, PHASE_OFFER);
        }
        if (message->end.state != STRAIT_DONE) {
            source->why = withdraw_text((enum strait_reason)message->end.reason);
        } else if (is_encoding(source)) { /* flags have told the sink of chunks whose figures are still to come */
            source->done_early = true;
            return;
        }
        source_event(source, SOURCE_END,
                     message->end.state == STRAIT_DONE ? STRAIT_REASON_NONE
                                                       : leg_peer_reason((enum strait_reason)message->end.reason));
    }
}

/* ---- Pages or tiles ---------------------------------------------------------------------------------------------- */

const struct pool *source_pool(const struct source *source)
{
    return source->tiles != NULL ? &source->tiles->view->pool : source->offer->request.pool->pool;
}

const struct page_set *source_pages(const struct source *source)
{
    return source->tiles != NULL ? &source->tiles->pages : &source->offer->request.pages;
}

static void tiles_free(struct source_tiles *tiles)
{
    if (tiles == NULL)
        return;
    page_set_fini(&tiles->pages);
    view_destroy(tiles->view);
    reshape_fini(&tiles->reshape);
    free(tiles);
}

static enum strait_reason reason_of(enum strait_status status)
{
    return status == STRAIT_OK              ? STRAIT_REASON_NONE
           : status == STRAIT_ERR_NO_MEMORY ? STRAIT_REASON_NO_MEMORY
                                            : STRAIT_REASON_GEOMETRY;
}

/* Reads name their pages as the source numbers them, other requests as the sink does. */
static enum strait_reason want_tiles(struct source *source)
{
    const enum reshape_side side = source->offer->read != NULL ? RESHAPE_SOURCE : RESHAPE_SINK;
    uint32_t count;
    struct wire_span *wanted =
        reshape_wanted(&source->tiles->reshape, side, source->wanted, source->wanted_count, &count);
    if (wanted == NULL)
        return STRAIT_REASON_NO_MEMORY;
    free(source->wanted);
    source->wanted = wanted;
    source->wanted_count = count;
    return STRAIT_REASON_NONE;
}

/* From here on the leg's units are tiles. The peer hears how the offer's pool is laid out, unless it knows. */
static enum strait_reason reshape(struct source *source, const struct pool_blob *sink)
{
    struct pool_ref *ref = source->offer->request.pool;
    const struct pool_blob own = view_described(ref->pool);
    struct source_tiles *tiles = calloc(1, sizeof(*tiles));
    char text[400];
    if (tiles == NULL)
        return STRAIT_REASON_NO_MEMORY;
    enum strait_status status = reshape_make(&own, sink, &tiles->reshape, text, sizeof(text));
    if (status == STRAIT_OK)
        status = view_create(ref->pool, &tiles->reshape, RESHAPE_SOURCE, &tiles->view, text, sizeof(text));
    if (status == STRAIT_ERR_INVALID)
        source->why = request_text(&source->offer->request, "%s", text);
    if (status == STRAIT_OK && source->peer != NULL && !description_tell(source->peer, ref))
        status = STRAIT_ERR_NO_MEMORY;
    if (status != STRAIT_OK) {
        tiles_free(tiles);
        return reason_of(status);
    }
    source->tiles = tiles;
    return want_tiles(source);
}

/* The offer's pages as tiles, also those that have been appended. */
static enum strait_status follow_pages(struct source *source)
{
    struct source_tiles *tiles = source->tiles;
    const struct page_set *pages = &source->offer->request.pages;
    if (tiles == NULL || tiles->page_count == pages->total)
        return STRAIT_OK;
    page_set_fini(&tiles->pages);
    tiles->page_count = pages->total;
    return view_pages(tiles->view, pages, &tiles->pages);
}

/* ---- Messages to the sink ---------------------------------------------------------------------------------------- */

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
    if (source->tiles != NULL)
        message.segments.reshaped = o->request.pool->pool->geometry;
    name_opened(&source->leg, &message.segments);
    if (last && o->aux_size != 0) {
        message.segments.aux = view_of(o->aux, o->aux_size);
        message.segments.aux_sum = XXH3_64bits(o->aux, o->aux_size);
    }
    source->port->send(source, &message);
}

/* Index of the segment that begins with this unit, or of the one behind the last. */
static uint32_t segment_at(const struct segments *s, uint32_t unit)
{
    uint32_t at = 0;
    while (at < s->count && s->starts[at] < unit)
        at++;
    return at;
}

/* Sends the action's units: as many messages as needed, each cut at the limit of a list. */
static void send_segments(struct source *source, const struct leg_action *action)
{
    const struct segments *s = &source->segments;
    const uint32_t end = segment_at(s, action->first + action->count);
    uint32_t from = segment_at(s, action->first), before = action->first;
    do {
        const uint32_t part = end - from < source->port->list_max ? end - from : source->port->list_max;
        send_part(source, s->list + from, part, before, action->last && from + part == end);
        from += part;
        before = from < end ? s->starts[from] : before;
    } while (from < end);
}

static void send_released(struct source *source, uint64_t grant)
{
    struct message message = {.type = MESSAGE_RELEASED};
    message.grant_id = (struct message_grant_id){.leg = source->id, .epoch = source->epoch, .grant = grant};
    source->port->send(source, &message);
}

static void send_end(struct source *source, enum strait_reason reason)
{
    struct message message = {.type = MESSAGE_END};
    message.end = (struct message_end){
        .leg = source->id, .epoch = source->epoch, .state = STRAIT_FAILED, .reason = (uint32_t)reason};
    source->port->send(source, &message);
}

/* ---- Where to ---------------------------------------------------------------------------------------------------- */

/* The largest chunk for a slot in the peer's host memory: both sides cut to what fits the slots of either. */
static uint64_t host_limit(const struct source *source)
{
    uint64_t own = source->node->send.slot_bytes, theirs = source->peer->slot_bytes;
    return (own < theirs ? own : theirs) - peer_seal_bytes(source->peer);
}

/* The size to which chunks for the peer's host memory are cut. The host's processors prefer chunks that fit into their
 * caches. A GPU prefers as few as keep its stages busy, because each copy over the bus costs the same few
 * microseconds. */
static uint64_t host_target(const struct source *source, uint32_t first)
{
    const struct pool *pool = source_pool(source);
    struct piece piece;
    if (!segments_piece(&source->segments, first, 1, &piece) || pool->groups[piece.group].device < 0)
        return source->node->options.chunk_target;
    return gpu_chunk_target((uint32_t)host_limit(source), source->bytes);
}

/* How many units from `first` on make one chunk for this slot, as the sink would cut it. 0: no page fits. */
static uint32_t cut(const struct source *source, uint32_t slot, uint32_t first)
{
    const struct segments *segments = &source->segments;
    const uint32_t gpu_slot = gpu_path_slot_bytes(source->peer, slot);
    uint32_t units = segments->units - first;
    uint64_t target = gpu_slot != 0 ? gpu_chunk_target(gpu_slot, source->bytes) : host_target(source, first),
             limit = gpu_slot != 0 ? gpu_slot : host_limit(source);
    if (units == 0)
        return 0;
    if (gpu_slot != 0 && units > GPU_CHUNK_PAGES_MAX)
        units = GPU_CHUNK_PAGES_MAX;
    if (gpu_slot != 0 && source->offer->last)
        target = gpu_tail_target(target, source->bytes, source->bytes / segments->units * units);
    return segments_cut_chunk(segments, first, units, &source_pool(source)->sizes, source_pages(source), target, limit);
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
    source->bytes += segment_bytes(segment, &source_pool(source)->sizes);
    return STRAIT_OK;
}

/* Adds the wanted part of a segment of pages, or of tiles. */
static enum strait_status add_wanted_part(void *owner, const struct segment *segment)
{
    const struct source *source = ((struct announcement *)owner)->source;
    return segment_intersect(segment, source->wanted, source->wanted_count, add_segment, owner);
}

/* Adds the wanted parts of the offer's segments; *units receives the number of units. */
static enum strait_reason add_wanted(struct source *source, uint32_t from, uint32_t count, uint32_t *units)
{
    struct announcement a = {.source = source};
    enum strait_status status = follow_pages(source);
    for (uint32_t i = 0; i < count && status == STRAIT_OK; i++) {
        const struct segment *ready = &source->offer->ready[from + i];
        status = source->tiles != NULL ? reshape_segment(&source->tiles->reshape, ready, add_wanted_part, &a)
                                       : add_wanted_part(&a, ready);
    }
    *units = a.units;
    return reason_of(status);
}

void source_bind(struct source *source, const struct pool_blob *sink, const struct open_grants *open)
{
    uint32_t units;
    enum strait_reason reason = sink != NULL ? reshape(source, sink) : STRAIT_REASON_NONE;
    if (reason == STRAIT_REASON_NONE)
        reason = add_wanted(source, 0, source->offer->ready_count, &units);
    if (reason != STRAIT_REASON_NONE) {
        for (uint32_t i = 0; i < open->count; i++)
            send_released(source, open->first + i);
        source_event(source, SOURCE_FAIL, reason);
        return;
    }
    struct leg_event event = {.type = SOURCE_BIND, .count = units, .last = source->offer->last};
    /* What is ready is cut into chunks for the open grants, as many as there are. */
    uint32_t first = 0;
    event.grant = open->first;
    event.opens = open->count;
    for (uint32_t i = 0; i < open->count; i++) {
        event.slots[i] = open->slots[i];
        event.units[i] = cut(source, open->slots[i], first);
        first += event.units[i];
    }
    source_post(source, &event);
}

void source_more(struct source *source, uint32_t from, uint32_t count)
{
    uint32_t units;
    enum strait_reason reason = add_wanted(source, from, count, &units);
    struct leg_event event = {.type = SOURCE_MORE, .count = units, .last = source->offer->last};
    if (reason != STRAIT_REASON_NONE)
        source_event(source, SOURCE_FAIL, reason);
    else if (units != 0 || source->offer->last)
        source_post(source, &event);
}

/* The path of a grant's chunk from this GPU (-1: from the host); WIRE_NONE: there is none any more. */
static struct chunk_path path_for(const struct source *source, const struct leg_grant *grant, int32_t device)
{
    const struct peer *peer = source->peer;
    if (grant->slot >= peer->slot_count)
        return (struct chunk_path){gpu_path_wire(source->node, peer, device, grant->slot), .gpus = true};
    if (!peer->direct)
        return (struct chunk_path){strcmp(peer_transport_name(peer), "tcp") == 0 ? WIRE_TCP : WIRE_UCX, .gpus = false};
    return (struct chunk_path){source->offer->request.pool->pool->devices != NULL ? WIRE_PINNED : WIRE_SHM, false};
}

/* The arena of ours in which chunks for this path are encoded; NULL: they are encoded into the peer's arena. */
static struct arena *memory_for(struct node *node, struct chunk_path path, int32_t device)
{
    if (path_is_link(path))
        return gpu_links_send(node, device);
    return path.wire == WIRE_TCP || path.wire == WIRE_UCX ? &node->send : NULL;
}

/* Where the chunk of a grant is written: into the peer's own arena when it can be reached, else into a slot of ours. */
static struct job_chunk destination(struct source *source, const struct leg_grant *grant, int32_t device,
                                    struct inflight_chunk *tx)
{
    struct peer *peer = source->peer;
    const bool on_gpu = grant->slot >= peer->slot_count;
    struct job_chunk chunk = {.on_gpu = on_gpu,
                              .on_peer_gpu = tx->path.wire == WIRE_PEER,
                              .size = on_gpu ? gpu_path_slot_bytes(peer, grant->slot) : host_limit(source)};
    tx->from = memory_for(source->node, tx->path, device);
    if (tx->path.wire == WIRE_PEER) {
        chunk.bytes = gpu_path_slot(peer, device, grant->slot);
        chunk.flag = gpu_path_flag(peer, device, grant->slot);
        chunk.flag_value = chunk_flag(source->id, grant->id);
    }
    if (tx->path.wire == WIRE_SHM || tx->path.wire == WIRE_PINNED)
        chunk.bytes = link_map(peer->link, (size_t)grant->slot * peer->slot_bytes, peer->slot_bytes);
    else if (tx->from != NULL && (tx->send_slot = arena_take(tx->from)) != ARENA_NONE)
        chunk.bytes = arena_slot(tx->from, tx->send_slot);
    else
        tx->from = NULL;
    if (path_is_link(tx->path))
        tx->ends = (struct gpu_ends){.by = wire_link(tx->path.wire),
                                     .device = (uint32_t)device,
                                     .peer_device = gpu_path_slot_device(peer, grant->slot)};
    return chunk;
}

/* Does a GPU write to a slot of the peer's arena in host memory? */
static bool needs_pin(const struct source *source, const struct leg_grant *grant)
{
    return source->peer->direct && source->offer->request.pool->pool->devices != NULL &&
           grant->slot < source->peer->slot_count;
}

/* ---- Chunks in flight -------------------------------------------------------------------------------------------- */

static struct inflight_chunk *find_inflight(struct source *source, uint64_t grant)
{
    struct inflight_chunk *tx;
    LL_SEARCH_SCALAR(source->inflight, tx, grant, grant);
    return tx;
}

static void free_inflight(struct source *source, uint64_t grant)
{
    struct inflight_chunk *tx = find_inflight(source, grant);
    if (tx == NULL)
        return;
    if (tx->from != NULL)
        arena_give(tx->from, tx->send_slot);
    LL_DELETE(source->inflight, tx);
    free(tx);
}

static void report(struct source *source, enum leg_event_type type, uint64_t grant, enum strait_reason reason)
{
    struct leg_event event = {.type = type, .grant = grant, .reason = reason};
    source_post(source, &event);
}

/* Each gigabit that the tables expect is compared with what was spent. */
#define DRIFT_BITS  (1ull << 30)
#define DRIFT_PAUSE 3600 /* seconds */

/* Warns, once an hour at most, that the codebook set does not fit. */
static void watch_drift(struct node *node, const struct job_result *result)
{
    struct metrics *metrics = &node->metrics;
    metrics->exponent_bits += result->exponent_bits;
    metrics->expected_bits += result->expected_bits;
    const uint64_t spent = metrics->exponent_bits - node->drift.exponent_bits;
    const uint64_t expected = metrics->expected_bits - node->drift.expected_bits;
    if (expected < DRIFT_BITS)
        return;
    node->drift.exponent_bits = metrics->exponent_bits;
    node->drift.expected_bits = metrics->expected_bits;
    const uint64_t now = uv_hrtime();
    if ((double)spent <= (double)expected * STRAIT_CODEBOOK_FITS ||
        (node->drift.told != 0 && now - node->drift.told < DRIFT_PAUSE * 1000000000ull))
        return;
    node->drift.told = now;
    log_write(node->log, LOG_WARN, "msg=\"codebook set does not fit\" bits_over_expected=%.3f",
              (double)spent / (double)expected);
}

static void on_encoded(void *owner, uint64_t cookie, const struct job_result *result)
{
    struct inflight_chunk *tx = (struct inflight_chunk *)(uintptr_t)cookie;
    struct source *source = tx->source;
    struct node *node = owner;
    node->exchange.encoding_jobs--;
    timeline_mark(&source->timeline, PHASE_ENCODE);
    tx->size = result->bytes;
    tx->raw_bytes = result->raw_bytes;
    histogram_record(&node->metrics.stages[STAGE_ENCODE], result->nanoseconds / 1000);
    node->metrics.coded_values += result->coded_values;
    node->metrics.escapes += result->escapes;
    watch_drift(node, result);
    if (source->peer != NULL) { /* otherwise its link is closed already and nothing will be sent */
        policy_encoded(source->peer, source->offer->request.pool, tx->element, tx->mode, tx->path, source->bytes,
                       result);
        if (source->peer->direct)
            peer_writer_end(source->peer);
    }
    report(source, SOURCE_ENCODED, tx->grant, result->reason);
    node->exchange.events.run(node);
}

/* The header that travels with the chunk, and how the chunk is encrypted. False: the library for that has failed. */
static bool describe_chunk(struct source *source, const struct leg_grant *grant, struct inflight_chunk *tx,
                           struct job_chunk *chunk, struct seal *seal)
{
    struct peer *peer = source->peer;
    struct chunk_header header = {.slot = grant->slot,
                                  .token = peer->peer_token,
                                  .leg = source->id,
                                  .grant = grant->id,
                                  .epoch = source->epoch,
                                  .number = peer->sealed ? peer->seal_out.next++ : 0};
    chunk_header_write(tx->header, &header);
    chunk->seal = peer->sealed ? seal : NULL;
    return !peer->sealed || seal_make(&peer->seal_out, header.number, tx->header, sizeof(tx->header), seal);
}

/* The policy times legs from their first chunk to the verdict. */
static void time_leg(struct source *source, bool under_way)
{
    if (source->peer == NULL || source->timed == under_way)
        return;
    source->timed = under_way;
    policy_leg(source->peer, under_way);
}

static void encode_chunk(struct source *source, const struct leg_grant *grant)
{
    struct node *node = source->node;
    struct request *request = &source->offer->request;
    struct inflight_chunk *tx = calloc(1, sizeof(*tx));
    if (tx == NULL) {
        report(source, SOURCE_ENCODED, grant->id, STRAIT_REASON_NO_MEMORY);
        return;
    }
    *tx = (struct inflight_chunk){.source = source, .grant = grant->id, .since = uv_hrtime()};
    LL_PREPEND(source->inflight, tx);

    struct piece piece;
    if (needs_pin(source, grant) && pin_peer(node, source->peer) != PIN_DONE) {
        report(source, SOURCE_ENCODED, grant->id, STRAIT_REASON_LOCAL);
        return;
    }
    const uint32_t *ids = NULL;
    struct job_chunk chunk = {.bytes = NULL};
    if (segments_piece(&source->segments, grant->first, grant->count, &piece))
        ids = page_set_ids(source_pages(source), piece.group, piece.first, piece.count);
    if (ids != NULL) {
        const int32_t device = source_pool(source)->groups[piece.group].device;
        tx->element = source_pool(source)->groups[piece.group].element;
        tx->path = path_for(source, grant, device);
        if (tx->path.wire == WIRE_NONE && gpu_path_by_link(source->peer, grant->slot)) { /* the link has ended */
            report(source, SOURCE_ENCODED, grant->id, STRAIT_REASON_PEER_DOWN);
            return;
        }
        if (tx->path.wire != WIRE_NONE)
            chunk = destination(source, grant, device, tx);
    }
    chunk.alone = source->offer->last && grant->count == source->segments.units;
    if (chunk.bytes == NULL) { /* no honest sink gives this grant: it would cut as this side does */
        report(source, SOURCE_ENCODED, grant->id, STRAIT_REASON_GEOMETRY);
        return;
    }
    struct seal seal;
    if (!describe_chunk(source, grant, tx, &chunk, &seal)) {
        report(source, SOURCE_ENCODED, grant->id, STRAIT_REASON_LOCAL);
        return;
    }
    if (policy_times(source->peer, tx->path, source->bytes))
        time_leg(source, true);
    tx->mode =
        policy_mode(node, source->peer, source->sink_on_gpu, request->pool, tx->element, tx->path, source->bytes);
    enum strait_status status = job_encode(node->jobs, source_pool(source), &piece, ids, tx->mode, &chunk, on_encoded,
                                           node, (uint64_t)(uintptr_t)tx);
    if (chunk.seal != NULL)
        seal_wipe(&seal, sizeof(seal));
    if (status != STRAIT_OK) {
        report(source, SOURCE_ENCODED, grant->id, STRAIT_REASON_NO_MEMORY);
        return;
    }
    node->exchange.encoding_jobs++;
    if (source->peer->direct)
        peer_writer_begin(source->peer);
}

static enum strait_status send_chunk(struct peer *peer, const struct inflight_chunk *tx)
{
    const void *data = tx->from != NULL ? arena_slot(tx->from, tx->send_slot) : NULL;
    const uint64_t cookie = (uint64_t)(uintptr_t)tx;
    if (path_is_link(tx->path))
        return peer_send_gpu_chunk(peer, tx->ends, tx->header, CHUNK_HEADER_BYTES, data, tx->size, cookie);
    return peer_send_chunk(peer, tx->header, CHUNK_HEADER_BYTES, data, tx->size, cookie);
}

static const enum coding_counter codings[POLICY_MODES] = {
    [STRAIT_MODE_RAW] = CODED_RAW,   [STRAIT_MODE_TOP16] = CODED_TOP16, [STRAIT_MODE_TIERED] = CODED_TIERED,
    [STRAIT_MODE_BASE] = CODED_BASE, [STRAIT_MODE_SPLIT] = CODED_SPLIT, [STRAIT_MODE_PARTS] = CODED_PARTS,
};

static void transmit_chunk(struct source *source, const struct leg_grant *grant)
{
    struct node *node = source->node;
    struct inflight_chunk *tx = find_inflight(source, grant->id);
    tx->since = uv_hrtime();
    if (send_chunk(source->peer, tx) != STRAIT_OK) {
        report(source, SOURCE_SENT, grant->id, STRAIT_REASON_PEER_DOWN);
        return;
    }
    struct request *request = &source->offer->request;
    const enum coding_counter coding = codings[tx->mode];
    request->raw_bytes += tx->raw_bytes; /* here: END may come before `sent` */
    request->wire_bytes += tx->size;
    request->span.wires |= (uint8_t)(1u << tx->path.wire);
    request->span.codings |= (uint8_t)(1u << coding);
    policy_sending(source->peer, tx->path);
    node->metrics.chunks_sent[coding]++;
}

static uint64_t *wire_counter(struct metrics *metrics, struct chunk_path path)
{
    return path.gpus && path.wire == WIRE_UCX ? &metrics->ucx_gpus : &metrics->wires[path.wire];
}

void source_sent(struct node *node, uint64_t cookie, enum strait_status status)
{
    if (fault_at(FAULT_CHUNK_DONE, NULL, &cookie))
        return;
    struct inflight_chunk *tx = (struct inflight_chunk *)(uintptr_t)cookie;
    struct source *source = tx->source;
    policy_sent(source->peer, tx->path, status == STRAIT_OK ? tx->size : 0, tx->raw_bytes);
    if (source->timed && status == STRAIT_OK)
        policy_carried(source->peer, tx->element, tx->mode, tx->raw_bytes);
    if (source->inflight == tx && tx->next == NULL && !source->offer->last) /* then it waits for the offer's client */
        time_leg(source, false);
    if (policy_compare_links(node, source->peer))
        gpu_path_changed(node, source->peer);
    if (status == STRAIT_OK) {
        timeline_mark(&source->timeline, PHASE_SEND);
        histogram_record(&node->metrics.stages[STAGE_WIRE], (uv_hrtime() - tx->since) / 1000);
        node->metrics.raw_bytes_sent += tx->raw_bytes;
        node->metrics.wire_bytes_sent += tx->size;
        *wire_counter(&node->metrics, tx->path) += tx->size;
        peer_figures_sent(peer_figures_of(source->peer), tx->path, tx->size, tx->raw_bytes);
    } else {
        peer_figures_failed(peer_figures_of(source->peer), PEER_FAILED_CHUNK);
    }
    report(source, SOURCE_SENT, tx->grant, status == STRAIT_OK ? STRAIT_REASON_NONE : STRAIT_REASON_PEER_DOWN);
}

/* `sent` of its chunks comes when the link has released them, which can take long: the verdict does not wait for it. */
void source_gpu_link_ended(struct node *node, struct peer *peer, struct gpu_ends ends)
{
    struct source *source, *next;
    const struct inflight_chunk *tx;
    HASH_ITER (hh, node->exchange.sources, source, next) {
        bool concerned = false;
        LL_FOREACH (source->inflight, tx)
            concerned |= path_is_link(tx->path) && gpu_ends_equal(tx->ends, ends);
        if (concerned && source->peer == peer)
            source_event(source, SOURCE_FAIL, STRAIT_REASON_PEER_DOWN);
    }
}

/* The GPU of the grant's pages; -1: the host. */
static int32_t device_of(const struct source *source, const struct leg_grant *grant)
{
    struct piece piece;
    if (!segments_piece(&source->segments, grant->first, grant->count, &piece))
        return -1;
    return source_pool(source)->groups[piece.group].device;
}

/* Does the leg have to wait for memory to write to? */
static bool is_stuck(struct source *source)
{
    struct node *node = source->node;
    const struct leg_grant *grant = source_next(&source->leg);
    const int32_t device = device_of(source, grant);
    const struct arena *memory = memory_for(node, path_for(source, grant, device), device);
    return (memory != NULL && memory->used == memory->slot_count) ||
           (needs_pin(source, grant) && pin_peer(node, source->peer) == PIN_BUSY);
}

static void send_to_peer(struct source *source, const struct message *message)
{
    if (source->peer != NULL) /* else its link is closed, and all slots are free */
        (void)peer_send(source->peer, message);
}

const struct source_port source_over_peer = {.list_max = MESSAGE_LIST_MAX,
                                             .send = send_to_peer,
                                             .is_stuck = is_stuck,
                                             .encode = encode_chunk,
                                             .transmit = transmit_chunk};

/* ---- The state machine ------------------------------------------------------------------------------------------- */

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
        source->port->encode(source, &action->grant);
        break;
    case LEG_TRANSMIT:
        source->port->transmit(source, &action->grant);
        break;
    case LEG_FREE_SLOT:
        free_inflight(source, action->grant.id);
        break;
    case LEG_STATE:
        request_state(&source->offer->request, action->state);
        break;
    case LEG_VERDICT:
        time_leg(source, false);
        peer_figures_verdict(peer_figures_of(source->peer), action->reason);
        if (!source->superseded)
            source->offer->request.callbacks->verdict(&source->offer->request, action->reason, source->why);
        break;
    case LEG_DRAINED:
        source->offer->request.callbacks->drained(&source->offer->request);
        break;
    case LEG_CLOSED:
        LL_PREPEND2(source->node->exchange.closed_sources, source, closed_next);
        break;
    default:
        break;
    }
}

static void stop_waiting(struct source *source)
{
    if (!source->waiting)
        return;
    DL_DELETE2(source->node->exchange.encoding, source, wprev, wnext);
    source->node->exchange.encoding_count--;
    source->waiting = false;
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

void source_take(struct source *source, const struct leg_event *event)
{
    struct leg_actions actions = {0};
    bool honest = source_step(&source->leg, event, &actions);
    for (uint32_t i = 0; i < actions.count; i++)
        act(source, &actions.list[i]);
    update_waiting(source);
    if (source->done_early && !is_encoding(source)) {
        source->done_early = false;
        source_event(source, SOURCE_END, STRAIT_REASON_NONE);
    }
    source->node->exchange.stepped = true;
    if (source->offer->request.pool != NULL && source->offer->request.pool->pool->devices != NULL)
        source->node->exchange.gpu_stepped = true;
    if (!honest)
        source_event(source, SOURCE_FAIL, STRAIT_REASON_GEOMETRY);
}

/* ---- Life -------------------------------------------------------------------------------------------------------- */

struct source *source_create(struct offer *o, const struct source_port *port, struct peer *peer, struct sink *local,
                             uint64_t id, const struct epoch *epoch, struct wire_span *wanted, uint32_t wanted_count)
{
    struct node *node = o->request.node;
    struct source *source = calloc(1, sizeof(*source));
    if (source == NULL || !leg_queue_reserve(&node->exchange.events)) {
        free(source);
        free(wanted);
        return NULL;
    }
    source->node = node;
    source->offer = o;
    source->port = port;
    source->why = "";
    source->id = id;
    source->epoch = *epoch;
    source->wanted = wanted;
    source->wanted_count = wanted_count;
    source->peer = peer;
    source->local = local;
    source->at.peer = peer;
    source->at.id = id;
    source_init(&source->leg);
    if (peer != NULL)
        request_met(&o->request, peer->address);
    HASH_ADD(hh, node->exchange.sources, at, sizeof(source->at), source);
    LL_PREPEND(o->sources, source);
    o->leg_count++;
    return source;
}

void source_free(struct source *source)
{
    stop_waiting(source);
    time_leg(source, false);
    if (source->local != NULL) { /* as when a connection ends */
        source->local->local = NULL;
        sink_event(source->local, SINK_QUIET, STRAIT_REASON_NONE);
    }
    if (source->offer->read != NULL && source->peer != NULL && source->peer->owner != NULL) {
        struct peer_use *use = source->peer->owner;
        use->reads--;
        use->read_pages -= (uint32_t)source->offer->request.pages.total;
    }
    HASH_DELETE(hh, source->node->exchange.sources, source);
    LL_DELETE(source->offer->sources, source);
    leg_queue_release(&source->node->exchange.events);
    request_reap(&source->offer->request);
    segments_fini(&source->segments);
    tiles_free(source->tiles);
    free(source->wanted);
    free(source);
}
