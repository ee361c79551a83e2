#include <string.h>

#include "daemon/base/fault.h"
#include "daemon/chunk_header.h"
#include "daemon/gpu_path.h"
#include "daemon/node.h"
#include "daemon/sink.h"

/* The port of a sink over a connection: slots of the receive arenas, messages, chunks that arrive, and their decoders.
 */

/* ---- Slots ------------------------------------------------------------------------------------------------------- */

struct share {
    uint64_t node;
    uint32_t arena, slots;
};

static void add_slots(void *arg, struct peer *peer)
{
    struct share *share = arg;
    const struct peer_use *use = peer->owner;
    if (use != NULL && peer->node == share->node)
        share->slots += use->slots[share->arena];
}

/* No daemon may hold more than half of an arena, over all its connections: otherwise one that is stopped could block
 * all others. */
static bool has_share(const struct node *node, const struct sink *sink, const struct receive_arena *arena)
{
    struct share share = {.node = sink->peer->node, .arena = arena->index};
    peers_each(node->peers, add_slots, &share);
    return share.slots == 0 || share.slots < (arena->slots.slot_count + 1) / 2;
}

/* The arena for chunks of this GPU (-1: of the host): in its own memory if the source's GPUs reach it. */
static struct receive_arena *arena_for(const struct sink *sink, int32_t device)
{
    const struct receive *receive = &sink->node->receive;
    if (device < 0 || (gpu_path_devices(sink->peer, &sink->source) >> device & 1) == 0)
        return receive->arenas[0];
    struct receive_arena *arena = receive_of_device(receive, device);
    return arena != NULL ? arena : receive->arenas[0];
}

/* One must be free. */
static uint32_t take_slot(struct sink *sink, struct receive_arena *arena, uint64_t grant)
{
    struct node *node = sink->node;
    uint32_t number = receive_take(&node->receive, arena);
    struct slot *slot = &node->receive.slots[number];
    slot->sink = sink;
    slot->grant = grant;
    ((struct peer_use *)sink->peer->owner)->slots[arena->index]++;
    sink->granted_at = uv_now(node->loop);
    return number;
}

static void free_slot(struct sink *sink, const struct leg_grant *grant)
{
    struct receive *receive = &sink->node->receive;
    if (grant->slot == ARENA_NONE)
        return;
    if (sink->peer != NULL)
        ((struct peer_use *)sink->peer->owner)->slots[receive->slots[grant->slot].arena]--;
    receive_give(receive, grant->slot);
}

/* The device of all groups of the pool; -1: there are several, or it is the host. */
static int32_t only_device(const struct pool *pool)
{
    for (uint32_t g = 1; g < pool->group_count; g++)
        if (pool->groups[g].device != pool->groups[0].device)
            return -1;
    return pool->groups[0].device;
}

/* Bytes of all pages, counted up to `enough`. */
static uint64_t wanted_bytes(const struct expectation *e, uint64_t enough)
{
    const struct region_sizes *sizes = &e->request.pool->pool->sizes;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < e->wanted_count && bytes < enough; i++) {
        const struct wire_span *span = &e->wanted[i];
        const struct segment pages = {span->group, 0, sizes->region_counts[span->group], span->first, span->count};
        bytes += segment_bytes(&pages, sizes);
    }
    return bytes;
}

/* How many grants the first chunks of the request can use. Between GPUs several chunks have to be under way before the
 * link is busy; the host's memory is shared by more, and a message takes less time than a chunk there. */
static uint32_t most_open(const struct sink *sink, const struct receive_arena *arena)
{
    const struct expectation *e = sink->expectation;
    if (e->wanted_count == 0 || arena->device < 0)
        return e->wanted_count != 0;
    const uint32_t slot_bytes = arena->slots.slot_bytes, most = sink->leg.window;
    const uint64_t chunks = gpu_chunk_count(slot_bytes, wanted_bytes(e, (uint64_t)slot_bytes * most));
    return chunks < most ? (uint32_t)chunks : most;
}

/* ---- Granting ---------------------------------------------------------------------------------------------------- */

static uint32_t cut_for(const struct sink *sink, const struct receive_arena *arena, uint32_t first, uint32_t count)
{
    uint64_t most = arena->slots.slot_bytes;
    if (arena->device < 0 && sink->peer->slot_bytes < most)
        most = sink->peer->slot_bytes; /* the source encodes into a slot of its own first */
    if (arena->device < 0)
        most -= peer_seal_bytes(sink->peer);
    return sink_cut(sink, arena, most, first, count);
}

static bool cut_and_take_slot(struct sink *sink, struct leg_event *grant)
{
    const struct node *node = sink->node;
    struct receive_arena *arena = arena_for(sink, sink_next_device(sink, grant->first));
    uint32_t count = cut_for(sink, arena, grant->first, grant->count);
    if (count == 0 && arena->device >= 0) { /* its slots are too small */
        arena = node->receive.arenas[0];
        count = cut_for(sink, arena, grant->first, grant->count);
    }
    grant->count = count;
    if (arena->slots.used >= arena->slots.slot_count || !has_share(node, sink, arena))
        return false;
    if (count != 0)
        grant->slot = take_slot(sink, arena, sink->leg.next_grant);
    return true;
}

/* ---- Messages to the source over a connection -------------------------------------------------------------------- */

#define READ_LISTS 64u /* in one message: most reads number their pages without gaps, and have one for a group */

/* What a REQUEST names: the spans that are wanted, or the pages that are read; cut at the limits of a message. */
struct request_cursor {
    uint32_t sent; /* spans, or pages */
    struct page_lists_cursor pages;
    struct wire_page_list lists[READ_LISTS];
};

static void next_spans(const struct expectation *e, struct request_cursor *at, struct message_request *request)
{
    const uint32_t left = e->wanted_count - at->sent;
    request->spans = e->wanted + at->sent;
    request->span_count = left < MESSAGE_LIST_MAX ? left : MESSAGE_LIST_MAX;
    at->sent += request->span_count;
    request->more = at->sent < e->wanted_count;
}

static void next_lists(const struct expectation *e, struct request_cursor *at, struct message_request *request)
{
    uint32_t room = MESSAGE_IDS_MAX, count = 0;
    while (count < READ_LISTS && room > 0 && page_set_next_list(&e->served, &at->pages, room, &at->lists[count])) {
        room -= at->lists[count].count;
        at->sent += at->lists[count++].count;
    }
    request->read = true;
    request->lists = at->lists;
    request->list_count = count;
    request->more = at->sent < e->served.total;
}

static void send_request(struct sink *sink, const struct leg_action *action)
{
    struct expectation *e = sink->expectation;
    struct node *node = sink->node;
    uint64_t now = uv_now(node->loop);
    uint32_t slots[LEG_GRANTS];
    struct request_cursor at = {0};
    for (uint32_t i = 0, count = 0; i < LEG_GRANTS && count < action->count; i++)
        if (sink->leg.grants[i].id >= action->grant.id)
            slots[count++] = sink->leg.grants[i].slot;
    node->metrics.grants += action->count;
    timeline_mark_first(&e->request.timeline, PHASE_CONNECT);
    struct message message = {.type = MESSAGE_REQUEST};
    do {
        const bool rest = at.sent != 0;
        message.request = (struct message_request){.leg = sink->id,
                                                   .epoch = e->epoch,
                                                   .source_pool = sink->source.pool,
                                                   .sink_pool = e->request.name.pool,
                                                   .source_key = view_of(sink->source.key, sink->source.size),
                                                   .sink_key = view_of(e->request.name.key, e->request.name.size),
                                                   .tenant = tenant_view(e->request.tenant),
                                                   .geometry = e->request.pool->pool->geometry,
                                                   .deadline_ms = e->deadline > now ? (uint32_t)(e->deadline - now) : 1,
                                                   .rest = rest,
                                                   .slots = slots,
                                                   .consumers = sink->consumers,
                                                   .on_gpu = e->request.pool->pool->devices != NULL};
        (e->is_read ? next_lists : next_spans)(e, &at, &message.request);
        if (!message.request.more) {
            message.request.grant = action->grant.id;
            message.request.slot_count = action->count;
        }
        (void)peer_send(sink->peer, &message); /* if the peer is down, `down` follows */
    } while (message.request.more);
}

static void send_to_peer(struct sink *sink, const struct message *message)
{
    struct metrics *metrics = &sink->node->metrics;
    if (sink->peer == NULL)
        return; /* no source has been asked */
    metrics->grants += message->type == MESSAGE_GRANT;
    metrics->grants_reclaimed += message->type == MESSAGE_REVOKE;
    (void)peer_send(sink->peer, message);
}

/* ---- Decoding ---------------------------------------------------------------------------------------------------- */

static void on_decoded(void *owner, uint64_t cookie, const struct job_result *result)
{
    struct node *node = owner;
    const struct slot *slot = &node->receive.slots[cookie];
    histogram_record(&node->metrics.stages[STAGE_DECODE], result->nanoseconds / 1000);
    if (result->reason == STRAIT_REASON_NONE && !slot->sink->expectation->request.decided) {
        node->metrics.raw_bytes_landed += result->raw_bytes;
        node->metrics.chunks_landed++;
        peer_figures_landed(peer_figures_of(slot->sink->peer), result->raw_bytes);
    }
    if (result->reason != STRAIT_REASON_NONE)
        peer_figures_failed(peer_figures_of(slot->sink->peer), PEER_FAILED_CHUNK);
    node->metrics.chunks_forged += result->forged;
    sink_landed(slot->sink, slot->grant, result);
    node->exchange.events.run(node);
}

/* How to decrypt the chunk of a grant. What is authenticated with it is what this side knows of the grant. False: the
 * connection is gone, or the library for it has failed. */
static bool seal_of(const struct sink *sink, const struct leg_grant *grant, struct seal *seal)
{
    uint8_t bytes[CHUNK_HEADER_BYTES];
    const struct chunk_header header = {.slot = grant->slot,
                                        .token = sink->peer->token,
                                        .leg = sink->id,
                                        .grant = grant->id,
                                        .epoch = sink->expectation->epoch,
                                        .number = sink->node->receive.slots[grant->slot].number};
    chunk_header_write(bytes, &header);
    return seal_make(&sink->peer->seal_in, header.number, bytes, sizeof(bytes), seal);
}

/* The chunk of a grant, in its slot. */
static struct job_chunk chunk_of(const struct sink *sink, const struct leg_grant *grant)
{
    const struct receive *receive = &sink->node->receive;
    return (struct job_chunk){.bytes = receive_address(receive, grant->slot),
                              .size = receive->slots[grant->slot].size,
                              .on_gpu = receive_arena_of(receive, grant->slot)->device >= 0,
                              .alone = sink->leg.last && grant->count == sink->segments.units};
}

static enum strait_status start_decode(struct sink *sink, const struct leg_grant *grant, const struct job_chunk *chunk,
                                       job_done *done)
{
    struct piece piece;
    const uint32_t *ids = NULL;
    if (segments_piece(&sink->segments, grant->first, grant->count, &piece))
        ids = page_set_ids(sink_pages(sink), piece.group, piece.first, piece.count);
    if (ids == NULL)
        return STRAIT_ERR_INVALID;
    return job_decode(sink->node->jobs, sink_pool(sink), &piece, ids, chunk, done, sink->node, grant->slot);
}

static void decode_chunk(struct sink *sink, const struct leg_grant *grant)
{
    struct job_chunk chunk = chunk_of(sink, grant);
    const bool sealed = sink->peer != NULL && sink->peer->sealed;
    struct seal seal;
    enum strait_status status = STRAIT_ERR_INVALID;
    if (sealed)
        chunk.seal = &seal;
    if (!sealed || seal_of(sink, grant, &seal))
        status = start_decode(sink, grant, &chunk, on_decoded);
    if (sealed)
        seal_wipe(&seal, sizeof(seal));
    if (status != STRAIT_OK) {
        struct leg_event event = {.type = SINK_DECODED, .grant = grant->id};
        event.reason = status == STRAIT_ERR_NO_MEMORY ? STRAIT_REASON_NO_MEMORY : STRAIT_REASON_GEOMETRY;
        sink_post(sink, &event);
    }
}

/* ---- Arrival ----------------------------------------------------------------------------------------------------- */

static void count_arrival(struct sink *sink, const struct slot *slot)
{
    struct request *request = &sink->expectation->request;
    timeline_mark_first(&request->timeline, PHASE_ANSWER);
    timeline_mark(&request->timeline, PHASE_CHUNKS);
    request->wire_bytes += slot->size;
    sink->node->metrics.wire_bytes_landed += slot->size;
    peer_figures_arrived(peer_figures_of(sink->peer), slot->size);
}

/* Can chunks for that arena come by this GPU's link, or by the connection's own (-1)? */
static bool comes_by(const struct receive_arena *arena, const struct peer *peer, int32_t device)
{
    return device >= 0 ? arena->device == device : arena->device < 0 || peer->direct;
}

/* The slot that was granted for exactly this chunk; NULL: there is none, or it was released. */
static struct slot *granted_slot(struct node *node, const struct peer *peer, int32_t device,
                                 const struct chunk_header *header)
{
    if (header->slot >= node->receive.slot_count || peer->token != header->token || (peer->sealed && device >= 0))
        return NULL;
    struct slot *slot = &node->receive.slots[header->slot];
    if (slot->sink == NULL || slot->grant != header->grant || slot->sink->peer != peer ||
        !comes_by(node->receive.arenas[slot->arena], peer, device))
        return NULL;
    const struct epoch *epoch = &slot->sink->expectation->epoch;
    return slot->sink->id == header->leg && epoch->incarnation == header->epoch.incarnation &&
                   epoch->counter == header->epoch.counter
               ? slot
               : NULL;
}

/* How the chunk comes, as far as this side can see: whether shared memory was written by a GPU it cannot. */
static enum gpu_path way_of(const struct node *node, const struct peer *peer, int32_t device, const struct slot *slot)
{
    if (node->receive.arenas[slot->arena]->device >= 0)
        return device < 0                                                   ? WIRE_PEER
               : peers_has_gpu(node->peers, LINK_BY_NCCL, (uint32_t)device) ? WIRE_NCCL
                                                                            : WIRE_UCX;
    const char *transport = peer_transport_name(peer);
    return strcmp(transport, "shm") == 0 ? WIRE_SHM : strcmp(transport, "tcp") == 0 ? WIRE_TCP : WIRE_UCX;
}

/* Is it the message of a chunk that a flag has told of? */
static bool was_flagged(const struct node *node, const struct peer *peer, const struct chunk_header *header)
{
    struct peer_use *use = peer->owner;
    if (use == NULL || use->flagged == 0 || header->slot >= node->receive.slot_count ||
        receive_flag(&node->receive, header->slot) == NULL)
        return false;
    use->flagged--;
    return true;
}

struct landing sink_arriving(struct node *node, struct peer *peer, int32_t device, const void *bytes,
                             size_t header_size, size_t size)
{
    struct chunk_header header = {.slot = UINT32_MAX};
    struct slot *slot = NULL;
    (void)fault_at(FAULT_ARRIVING, peer, NULL);
    if (chunk_header_read(&header, bytes, header_size))
        slot = granted_slot(node, peer, device, &header);
    if (slot != NULL && (size == 0 || size > node->receive.arenas[slot->arena]->slots.slot_bytes))
        slot = NULL;
    struct leg_event event = {.type = SINK_ARRIVING, .grant = slot != NULL ? slot->grant : 0};
    if (slot == NULL || !sink_take_now(slot->sink, &event)) {
        if (slot != NULL || !was_flagged(node, peer, &header))
            node->metrics.chunks_refused++;
        return (struct landing){.address = NULL};
    }
    slot->size = size;
    slot->number = header.number;
    struct span *span = &slot->sink->expectation->request.span;
    if (span->sampled)
        span->wires |= (uint8_t)(1u << way_of(node, peer, device, slot));
    return (struct landing){.address = receive_address(&node->receive, header.slot), .cookie = header.slot};
}

void sink_arrived(struct node *node, uint64_t cookie, enum strait_status status)
{
    struct slot *slot = &node->receive.slots[cookie];
    struct leg_event event = {.type = SINK_ARRIVED, .grant = slot->grant};
    (void)fault_at(FAULT_ARRIVED, slot->sink->peer, NULL);
    if (status != STRAIT_OK)
        event.reason = STRAIT_REASON_PEER_DOWN;
    count_arrival(slot->sink, slot);
    if (status != STRAIT_OK)
        peer_figures_failed(peer_figures_of(slot->sink->peer), PEER_FAILED_CHUNK);
    sink_post(slot->sink, &event);
}

/* ---- Decoders that wait ------------------------------------------------------------------------------------------ */

/* A chunk that came with its flag instead of by a message: counted as arrived. The message that follows is refused. */
static void arrived_by_flag(struct sink *sink, struct slot *slot, const struct job_result *result)
{
    slot->size = result->chunk_bytes;
    count_arrival(sink, slot);
    sink->expectation->request.span.wires |= (uint8_t)(1u << WIRE_PEER);
    if (sink->peer != NULL)
        ((struct peer_use *)sink->peer->owner)->flagged++;
}

/* The decoder has ended: with the chunk, or because that did not come in time. */
static void on_flagged(void *owner, uint64_t cookie, const struct job_result *result)
{
    struct node *node = owner;
    struct slot *slot = &node->receive.slots[cookie];
    struct sink *sink = slot->sink;
    const struct leg_grant *grant = sink_find_grant(sink, slot->grant);
    slot->ahead = false;
    if (result->absent) {
        sink_post(sink, &(struct leg_event){.type = SINK_ABSENT, .grant = slot->grant});
        if (grant->state == GRANT_DECODING)
            decode_chunk(sink, grant);
        node->exchange.events.run(node);
        return;
    }
    if (grant->state != GRANT_DECODING && grant->state != GRANT_ARRIVING)
        arrived_by_flag(sink, slot, result);
    on_decoded(node, cookie, result);
}

/* Are all chunks of the leg granted, and will flags tell when they are whole? A larger leg keeps the link busy anyway,
 * and waiting decoders keep other programs from the GPU. */
static bool may_look_ahead(const struct sink *sink)
{
    const struct sink_leg *leg = &sink->leg;
    return sink->peer != NULL && !sink->peer->sealed && leg->state == STRAIT_TRANSFERRING && leg->last &&
           leg->granted == leg->ready && leg->returned_count == 0;
}

/* Begins decoders for chunks that are still on their way. */
static void look_ahead(struct sink *sink)
{
    struct node *node = sink->node;
    if (!may_look_ahead(sink))
        return;
    const uint64_t flagged = gpu_path_flagged(sink->peer, &sink->source);
    for (uint32_t i = 0; i < LEG_GRANTS; i++) {
        const struct leg_grant *grant = &sink->leg.grants[i];
        struct slot *slot = &node->receive.slots[grant->slot];
        if (grant->state != GRANT_GIVEN)
            continue;
        const int32_t device = node->receive.arenas[slot->arena]->device;
        struct job_chunk chunk = chunk_of(sink, grant);
        chunk.size = node->receive.arenas[slot->arena]->slots.slot_bytes;
        chunk.flag = receive_flag(&node->receive, grant->slot);
        chunk.flag_value = chunk_flag(sink->id, grant->id);
        if (device < 0 || (flagged >> device & 1) == 0 || chunk.flag == NULL ||
            start_decode(sink, grant, &chunk, on_flagged) != STRAIT_OK)
            continue;
        slot->ahead = true;
        (void)sink_take_now(sink, &(struct leg_event){.type = SINK_AHEAD, .grant = grant->id});
    }
}

/* A decoder that waits for the chunk has it now. */
static void decode_arrived(struct sink *sink, const struct leg_grant *grant)
{
    if (!sink->node->receive.slots[grant->slot].ahead)
        decode_chunk(sink, grant);
}

const struct sink_port sink_over_peer = {.takes_slots = true,
                                         .request = send_request,
                                         .send = send_to_peer,
                                         .cut = cut_and_take_slot,
                                         .granted = look_ahead,
                                         .decode = decode_arrived,
                                         .free_slot = free_slot};

/* ---- Asking ------------------------------------------------------------------------------------------------------ */

void sink_ask_peer(struct sink *sink, struct peer *peer)
{
    struct leg_event start = {.type = SINK_START};
    sink->peer = peer;
    sink->asked = true;
    request_met(&sink->expectation->request, sink->address);
    /* Slots for open grants: as many as the sink's first chunks can use and nobody else needs. */
    const struct node *node = sink->node;
    struct receive_arena *arena = arena_for(sink, only_device(sink->expectation->request.pool->pool));
    /* What open grants will carry is not known yet, so it could not be counted against a rate. */
    const uint32_t most = sink->expectation->request.tenant->rate != 0 ? 0 : most_open(sink, arena);
    while (start.opens < most && arena->slots.used < arena->slots.slot_count / 2 && node->exchange.wanting_count == 0 &&
           has_share(node, sink, arena)) {
        start.slots[start.opens] = take_slot(sink, arena, sink->leg.next_grant + start.opens);
        start.opens++;
    }
    sink_post(sink, &start);
}

void sink_ask(struct sink *sink)
{
    if (sink->leg.state != STRAIT_BOOTSTRAP || sink->asked)
        return;
    struct request *request = &sink->expectation->request;
    struct peer *peer = peers_get(sink->node->peers, sink->address, request->pool->uid);
    if (peer != NULL && peer->state == PEER_UP)
        sink_ask_peer(sink, peer);
    else if (peer != NULL && peer_is_hopeless(peer, &sink->asked_since))
        request->callbacks->verdict(request, STRAIT_REASON_PEER_DOWN, request_waits(request, sink->address, false));
}
