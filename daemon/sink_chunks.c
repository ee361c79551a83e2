/* The sink's half of a leg: chunks that arrive in its slots and are decoded into pages. */
#include "daemon/chunk_header.h"
#include "daemon/equipment/fault.h"
#include "daemon/node.h"
#include "daemon/session.h"
#include "daemon/sink_private.h"

/* ---- Arrival ----------------------------------------------------------------------------------------------------- */

static bool is_current(const struct sink *sink, const struct chunk_header *header)
{
    const struct epoch *epoch = &sink->expectation->epoch;
    return sink->id == header->leg && epoch->incarnation == header->epoch.incarnation &&
           epoch->counter == header->epoch.counter;
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
    if (header->slot >= node->receive.slot_count || peer->token != header->token)
        return NULL;
    struct slot *slot = &node->receive.slots[header->slot];
    if (slot->sink == NULL || slot->grant != header->grant || slot->sink->peer != peer ||
        !comes_by(node->receive.arenas[slot->arena], peer, device))
        return NULL;
    return is_current(slot->sink, header) || fault_at(FAULT_BUG_EPOCH, NULL, NULL) ? slot : NULL;
}

struct landing sink_arriving(struct node *node, struct peer *peer, int32_t device, const void *bytes,
                             size_t header_size, size_t size)
{
    struct chunk_header header;
    struct slot *slot = NULL;
    (void)fault_at(FAULT_ARRIVING, peer, NULL);
    if (chunk_header_read(&header, bytes, header_size))
        slot = granted_slot(node, peer, device, &header);
    if (slot != NULL && (size == 0 || size > node->receive.arenas[slot->arena]->slots.slot_bytes))
        slot = NULL;
    struct leg_event event = {.type = SINK_ARRIVING, .grant = slot != NULL ? slot->grant : 0};
    if (slot == NULL || !sink_apply(slot->sink, &event)) {
        node->metrics.chunks_refused++;
        return (struct landing){.address = NULL};
    }
    slot->size = size;
    return (struct landing){.address = receive_address(&node->receive, header.slot), .cookie = header.slot};
}

void sink_arrived(struct node *node, uint64_t cookie, enum strait_status status)
{
    struct slot *slot = &node->receive.slots[cookie];
    struct leg_event event = {.type = SINK_ARRIVED, .grant = slot->grant};
    (void)fault_at(FAULT_ARRIVED, slot->sink->peer, NULL);
    if (status != STRAIT_OK)
        event.reason = STRAIT_REASON_PEER_DOWN;
    slot->sink->expectation->wire_bytes += slot->size;
    node->metrics.wire_bytes_landed += slot->size;
    (void)sink_apply(slot->sink, &event);
}

/* ---- Decoding ---------------------------------------------------------------------------------------------------- */

static void on_decoded(void *owner, uint64_t cookie, const struct job_result *result)
{
    struct node *node = owner;
    const struct slot *slot = &node->receive.slots[cookie];
    histogram_record(&node->metrics.stages[STAGE_DECODE], result->nanoseconds / 1000);
    sink_copied(slot->sink, slot->grant, result);
}

static struct leg_grant *find_grant(struct sink *sink, uint64_t id)
{
    for (uint32_t i = 0; i < LEG_GRANTS; i++)
        if (sink->leg.grants[i].state != GRANT_NONE && sink->leg.grants[i].id == id)
            return &sink->leg.grants[i];
    return NULL;
}

struct layers {
    uint32_t count;
    int32_t list[STRAIT_REGIONS_MAX];
};

static void add_layer(void *owner, int32_t layer)
{
    struct layers *layers = owner;
    if (layers->count < STRAIT_REGIONS_MAX)
        layers->list[layers->count++] = layer;
}

/* Counts landed pages and reports layers that are complete. False: these pages cannot have landed. */
static bool land(struct sink *sink, const struct leg_grant *grant)
{
    struct expectation *e = sink->expectation;
    struct piece piece;
    struct layers layers = {.count = 0};
    if (!segments_piece(&sink->segments, grant->first, grant->count, &piece) ||
        !coverage_land(e->coverage, &piece, add_layer, &layers))
        return false;
    if (layers.count != 0) {
        struct message message = {.type = MESSAGE_LAYERS};
        message.layers = (struct message_layers){
            .transfer = e->request.transfer, .layer_count = layers.count, .layers = layers.list};
        session_send(e->request.session, &message);
        waits_layers(e, layers.list, layers.count);
    }
    return true;
}

/* A job has put the pages of a grant in place, or failed to. */
void sink_copied(struct sink *sink, uint64_t grant_id, const struct job_result *result)
{
    struct expectation *e = sink->expectation;
    const struct leg_grant *grant = find_grant(sink, grant_id);
    struct leg_event event = {.type = SINK_DECODED, .grant = grant_id, .reason = result->reason};
    if (event.reason == STRAIT_REASON_NONE && !e->request.decided) {
        if (grant == NULL || !land(sink, grant))
            event.reason = STRAIT_REASON_GEOMETRY;
        e->raw_bytes += result->raw_bytes;
        sink->node->metrics.raw_bytes_landed += sink->is_local ? 0 : result->raw_bytes;
        sink->node->metrics.chunks_landed += sink->is_local ? 0 : 1;
    }
    (void)sink_apply(sink, &event);
}

void sink_decode_chunk(struct sink *sink, const struct leg_grant *grant)
{
    struct node *node = sink->node;
    if (sink->is_local)
        return; /* local_copy does this */
    if (fault_at(FAULT_BUG_ACKNOWLEDGE, sink, grant))
        return;
    struct piece piece;
    struct request *request = &sink->expectation->request;
    const uint32_t *ids = NULL;
    const struct job_chunk chunk = {.bytes = receive_address(&node->receive, grant->slot),
                                    .size = node->receive.slots[grant->slot].size,
                                    .far = receive_arena_of(&node->receive, grant->slot)->device >= 0};
    if (segments_piece(&sink->segments, grant->first, grant->count, &piece))
        ids = page_set_ids(&request->pages, piece.group, piece.first, piece.count);
    enum strait_status status = STRAIT_ERR_INVALID;
    if (ids != NULL)
        status = job_decode(node->jobs, request->pool->pool, &piece, ids, &chunk, on_decoded, node, grant->slot);
    if (status != STRAIT_OK) {
        struct leg_event event = {.type = SINK_DECODED, .grant = grant->id};
        event.reason = status == STRAIT_ERR_NO_MEMORY ? STRAIT_REASON_NO_MEMORY : STRAIT_REASON_GEOMETRY;
        (void)sink_apply(sink, &event);
    }
}
