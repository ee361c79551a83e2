#include <strait/codec.h>

#include "proto/channel.h"
#include "proto/fields.h"
#include "proto/limits.h"

/* A client and its daemon: versions and addresses, notes, statistics and policy. */

static enum strait_status hello_check(const void *plain)
{
    const struct message_hello *hello = plain;
    return corrupt_unless(hello->version_min <= hello->version);
}

#define HELLO struct message_hello, Strait__Wire__Hello
static const struct field hello_fields[] = {
    U32(HELLO, version, 1, UINT32_MAX),
    U32(HELLO, version_min, 1, UINT32_MAX),
    U32(HELLO, pid, 0, UINT32_MAX),
    TEXT(HELLO, library),
};
const struct layout hello_layout = LAYOUT(HELLO, hello, hello_fields, hello_check);

#define WELCOME struct message_welcome, Strait__Wire__Welcome
static const struct field welcome_fields[] = {
    U32(WELCOME, version, 1, UINT32_MAX),
    NOT_ZERO(WELCOME, incarnation),
    ADDRESS(WELCOME, address),
    BYTES_OR_NONE(WELCOME, codebook_id, CODEBOOK_ID_BYTES),
    TEXT(WELCOME, daemon),
    U64(WELCOME, node),
};
const struct layout welcome_layout = LAYOUT(WELCOME, welcome, welcome_fields, NULL);

#define NOTIFY struct message_notify, Strait__Wire__Notify
static const struct field notify_fields[] = {
    POOL(NOTIFY, peer_pool),
    ADDRESS(NOTIFY, peer_address),
    BYTES(NOTIFY, key, 0, STRAIT_KEY_BYTES_MAX),
    BYTES(NOTIFY, data, 0, STRAIT_NOTE_BYTES_MAX),
};
const struct layout notify_layout = LAYOUT(NOTIFY, notify, notify_fields, NULL);

#define NOTE struct message_note, Strait__Wire__Note
static const struct field note_fields[] = {
    POOL(NOTE, pool),
    BYTES(NOTE, key, 0, STRAIT_KEY_BYTES_MAX),
    BYTES(NOTE, data, 0, STRAIT_NOTE_BYTES_MAX),
};
const struct layout note_layout = LAYOUT(NOTE, note, note_fields, NULL);

const struct layout stats_layout = {.wire = &strait__wire__stats__descriptor};

/* For machines, so it is never cut. */
#define STATS_TEXT struct message_text, Strait__Wire__Text
static const struct field stats_text_fields[] = {
    NAME(STATS_TEXT, text, MESSAGE_BYTES_MAX),
};
const struct layout stats_text_layout = LAYOUT(STATS_TEXT, text, stats_text_fields, NULL);

#define WORDS struct message_words, Strait__Wire__Words
static const struct field words_fields[] = {
    U32(WORDS, count, 1, MESSAGE_WORDS_MAX),
};
const struct layout words_layout = LAYOUT(WORDS, words, words_fields, NULL);

#define WAIT struct message_wait, Strait__Wire__Wait
static const struct field wait_fields[] = {
    U64(WAIT, transfer),
    I32(WAIT, layer, -1, INT32_MAX),
    U32(WAIT, word, 0, MESSAGE_WORDS_MAX - 1),
    U32(WAIT, value, 0, UINT32_MAX),
};
const struct layout wait_layout = LAYOUT(WAIT, wait, wait_fields, NULL);

#define POLICY struct message_policy, Strait__Wire__Policy
static const struct field policy_fields[] = {
    POOL(POLICY, pool),
    KNOWN(POLICY, coding, STRAIT_CODING_AUTO, STRAIT_CODING_TIERED),
};
const struct layout policy_layout = LAYOUT(POLICY, policy, policy_fields, NULL);

/* How two daemons introduce themselves to each other. */

static enum strait_status peer_hello_check(const void *plain)
{
    const struct message_peer_hello *hello = plain;
    return corrupt_unless(hello->version_min <= hello->version);
}

#define PEER_HELLO struct message_peer_hello, Strait__Wire__PeerHello
static const struct field peer_hello_fields[] = {
    U32(PEER_HELLO, version, 1, UINT32_MAX),
    U32(PEER_HELLO, version_min, 1, UINT32_MAX),
    U64(PEER_HELLO, node),
    NOT_ZERO(PEER_HELLO, incarnation),
    BOOL(PEER_HELLO, secret),
    BYTES(PEER_HELLO, nonce, NONCE_BYTES, NONCE_BYTES),
    ADDRESS(PEER_HELLO, address),
    ADDRESS(PEER_HELLO, dialled),
};
const struct layout peer_hello_layout = LAYOUT(PEER_HELLO, peer_hello, peer_hello_fields, peer_hello_check);

#define PEER_PROOF struct message_peer_proof, Strait__Wire__PeerProof
static const struct field peer_proof_fields[] = {
    BYTES(PEER_PROOF, mac, MAC_BYTES, MAC_BYTES),
};
const struct layout peer_proof_layout = LAYOUT(PEER_PROOF, peer_proof, peer_proof_fields, NULL);

#define PEER_LINKS struct message_peer_links, Strait__Wire__PeerLinks
static const struct field peer_links_fields[] = {
    U64(PEER_LINKS, token),
    BYTES(PEER_LINKS, host, 0, MESSAGE_ADDRESS_MAX),
    NAME(PEER_LINKS, shm_path, MESSAGE_ADDRESS_MAX),
    NAME(PEER_LINKS, transport, MESSAGE_ADDRESS_MAX),
    BYTES(PEER_LINKS, ucx_address, 0, MESSAGE_UCX_ADDRESS_MAX),
    BYTES_OR_NONE(PEER_LINKS, codebook_id, CODEBOOK_ID_BYTES),
    U32(PEER_LINKS, slot_bytes, 0, UINT32_MAX),
    U32(PEER_LINKS, slot_count, 0, UINT32_MAX),
};
const struct layout peer_links_layout = LAYOUT(PEER_LINKS, peer_links, peer_links_fields, NULL);

#define HEARTBEAT struct message_heartbeat, Strait__Wire__Heartbeat
static const struct field heartbeat_fields[] = {
    U64(HEARTBEAT, sequence),
    U64(HEARTBEAT, echo),
};
const struct layout heartbeat_layout = LAYOUT(HEARTBEAT, heartbeat, heartbeat_fields, NULL);

static enum strait_status arena_check(const void *plain)
{
    const struct message_arena *arena = plain;
    return corrupt_unless((uint64_t)arena->first_slot + arena->slot_count <= UINT32_MAX);
}

#define ARENA struct message_arena, Strait__Wire__Arena
static const struct field arena_fields[] = {
    U32(ARENA, device, 0, MESSAGE_DEVICES_MAX - 1),
    U32(ARENA, first_slot, 1, UINT32_MAX),
    U32(ARENA, slot_bytes, 4096, UINT32_MAX),
    U32(ARENA, slot_count, 1, UINT32_MAX),
    BYTES_OR_NONE(ARENA, ipc, MESSAGE_MEMORY_IPC),
    BOOL(ARENA, nccl),
    BOOL(ARENA, ucx),
};
const struct layout arena_layout = LAYOUT(ARENA, arena, arena_fields, arena_check);

#define REACH struct message_reach, Strait__Wire__Reach
static const struct field reach_fields[] = {
    POOL(REACH, pool),
    U64(REACH, devices),
};
const struct layout reach_layout = LAYOUT(REACH, reach, reach_fields, NULL);

static enum strait_status gpu_link_check(const void *plain)
{
    const struct message_gpu_link *link = plain;
    return corrupt_unless(link->address.size == 0 || link->why.size == 0);
}

#define GPU_LINK struct message_gpu_link, Strait__Wire__GpuLink
static const struct field gpu_link_fields[] = {
    U32(GPU_LINK, device, 0, MESSAGE_DEVICES_MAX - 1),
    U32(GPU_LINK, peer_device, 0, MESSAGE_DEVICES_MAX - 1),
    BYTES(GPU_LINK, address, 0, MESSAGE_UCX_ADDRESS_MAX),
    TEXT(GPU_LINK, why),
    U32(GPU_LINK, by, 0, UINT32_MAX),
};
const struct layout gpu_link_layout = LAYOUT(GPU_LINK, gpu_link, gpu_link_fields, gpu_link_check);

#define SHM_HELLO struct message_shm_hello, Strait__Wire__ShmHello
static const struct field shm_hello_fields[] = {
    U64(SHM_HELLO, token),
    U64(SHM_HELLO, node),
    U32(SHM_HELLO, slot_bytes, 0, UINT32_MAX),
    U32(SHM_HELLO, slot_count, 0, UINT32_MAX),
};
const struct layout shm_hello_layout = LAYOUT(SHM_HELLO, shm_hello, shm_hello_fields, NULL);

/* Legs, between two daemons. */

/* ---- Before a leg is bound -------------------------------------------------------------------------------------- */

/* Withdrawing an offer needs nothing but its number. */
static enum strait_status announce_check(const void *plain)
{
    const struct message_announce *announce = plain;
    return corrupt_unless(announce->stop || (announce->source_key.size > 0 && announce->sink_key.size > 0));
}

#define ANNOUNCE struct message_announce, Strait__Wire__Announce
static const struct field announce_fields[] = {
    U64(ANNOUNCE, offer),
    POOL(ANNOUNCE, source_pool),
    POOL(ANNOUNCE, sink_pool),
    BYTES(ANNOUNCE, source_key, 0, STRAIT_KEY_BYTES_MAX),
    BYTES(ANNOUNCE, sink_key, 0, STRAIT_KEY_BYTES_MAX),
    U32(ANNOUNCE, lease_ms, 0, UINT32_MAX),
    BOOL(ANNOUNCE, stop),
};
const struct layout announce_layout = LAYOUT(ANNOUNCE, announce, announce_fields, announce_check);

static enum strait_status span_check(const void *plain)
{
    const struct wire_span *span = plain;
    return corrupt_unless(range_fits(span->first, span->count));
}

#define SPAN struct wire_span, Strait__Wire__Span
static const struct field span_fields[] = {
    U32(SPAN, group, 0, STRAIT_GROUPS_MAX - 1),
    U32(SPAN, first, 0, UINT32_MAX),
    U32(SPAN, count, 1, STRAIT_TRANSFER_PAGES_MAX),
};
static const struct layout span_layout = LAYOUT(SPAN, span, span_fields, span_check);

/* Open grants are numbered without gaps from the first. */
static bool open_check(uint64_t grant, uint32_t count)
{
    return grant == 0 ? count == 0 : count > 0 && count <= UINT64_MAX - grant;
}

static enum strait_status request_check(const void *plain)
{
    const struct message_request *request = plain;
    uint64_t pages = 0;
    for (uint32_t i = 0; i < request->span_count; i++)
        pages += request->spans[i].count;
    return corrupt_unless(pages <= STRAIT_TRANSFER_PAGES_MAX && open_check(request->grant, request->slot_count) &&
                          (request->grant == 0 || !request->more));
}

#define REQUEST struct message_request, Strait__Wire__Request
static const struct field request_fields[] = {
    U64(REQUEST, leg),
    EPOCH(REQUEST),
    POOL(REQUEST, source_pool),
    POOL(REQUEST, sink_pool),
    KEY(REQUEST, source_key),
    KEY(REQUEST, sink_key),
    U64(REQUEST, geometry),
    U32(REQUEST, deadline_ms, 0, UINT32_MAX),
    BOOL(REQUEST, more),
    BOOL(REQUEST, rest),
    LIST(REQUEST, span_count, spans, SPAN, 0, MESSAGE_LIST_MAX, &span_layout),
    U64(REQUEST, grant),
    COUNTS(REQUEST, slot_count, slots, MESSAGE_OPEN_MAX),
};
const struct layout request_layout = LAYOUT(REQUEST, request, request_fields, request_check);

/* ---- Units ------------------------------------------------------------------------------------------------------ */

static enum strait_status segment_check(const void *plain)
{
    const struct segment *segment = plain;
    uint32_t units;
    if (segment->region_first > STRAIT_REGIONS_MAX - segment->region_count)
        return STRAIT_ERR_CORRUPT;
    if (__builtin_mul_overflow(segment->region_count, segment->count, &units))
        return STRAIT_ERR_CORRUPT;
    return corrupt_unless(range_fits(segment->first, segment->count));
}

#define SEGMENT struct segment, Strait__Wire__Segment
static const struct field segment_fields[] = {
    U32(SEGMENT, group, 0, STRAIT_GROUPS_MAX - 1),     U32(SEGMENT, region_first, 0, STRAIT_REGIONS_MAX - 1),
    U32(SEGMENT, region_count, 1, STRAIT_REGIONS_MAX), U32(SEGMENT, first, 0, UINT32_MAX),
    U32(SEGMENT, count, 1, STRAIT_TRANSFER_PAGES_MAX),
};
static const struct layout segment_layout = LAYOUT(SEGMENT, segment, segment_fields, segment_check);

/* Open grants are for some of these units, which are the first. */
static bool granted_check(const struct message_segments *segments, uint64_t units)
{
    uint64_t granted = 0;
    for (uint32_t i = 0; i < segments->granted_count; i++) {
        if (segments->granted[i] == 0)
            return false;
        granted += segments->granted[i];
    }
    return open_check(segments->grant, segments->granted_count) && granted <= units &&
           (granted == 0 || segments->before == 0);
}

/* Checks that the numbers of a leg's units fit 32 bits. */
static enum strait_status segments_check(const void *plain)
{
    const struct message_segments *segments = plain;
    uint64_t units = 0;
    for (uint32_t i = 0; i < segments->segment_count; i++)
        units += (uint64_t)segments->segments[i].region_count * segments->segments[i].count;
    return corrupt_unless(segments->before + units <= UINT32_MAX && (segments->last || segments->aux.size == 0) &&
                          granted_check(segments, units));
}

#define SEGMENTS struct message_segments, Strait__Wire__Segments
static const struct field segments_fields[] = {
    U64(SEGMENTS, leg),
    EPOCH(SEGMENTS),
    U32(SEGMENTS, before, 0, UINT32_MAX),
    BOOL(SEGMENTS, last),
    LIST(SEGMENTS, segment_count, segments, SEGMENT, 0, MESSAGE_LIST_MAX, &segment_layout),
    AUX(SEGMENTS),
    U64(SEGMENTS, aux_sum),
    U64(SEGMENTS, grant),
    COUNTS(SEGMENTS, granted_count, granted, MESSAGE_OPEN_MAX),
};
const struct layout segments_layout = LAYOUT(SEGMENTS, segments, segments_fields, segments_check);

/* ---- Grants ----------------------------------------------------------------------------------------------------- */

static enum strait_status grant_check(const void *plain)
{
    const struct message_grant *grant = plain;
    return corrupt_unless(range_fits(grant->first, grant->count));
}

#define GRANT struct message_grant, Strait__Wire__Grant
static const struct field grant_fields[] = {
    U64(GRANT, leg),
    EPOCH(GRANT),
    U64(GRANT, grant),
    U32(GRANT, first, 0, UINT32_MAX),
    U32(GRANT, count, 1, UINT32_MAX),
    U32(GRANT, slot, 0, UINT32_MAX),
};
const struct layout grant_layout = LAYOUT(GRANT, grant, grant_fields, grant_check);

#define GRANT_ID struct message_grant_id, Strait__Wire__GrantId
static const struct field grant_id_fields[] = {
    U64(GRANT_ID, leg),
    EPOCH(GRANT_ID),
    U64(GRANT_ID, grant),
};
const struct layout grant_id_layout = LAYOUT(GRANT_ID, grant_id, grant_id_fields, NULL);

/* ---- The verdict ------------------------------------------------------------------------------------------------ */

static enum strait_status end_check(const void *plain)
{
    const struct message_end *end = plain;
    return corrupt_unless(end->state == STRAIT_FAILED || (end->state == STRAIT_DONE && end->from_sink));
}

#define END struct message_end, Strait__Wire__End
static const struct field end_fields[] = {
    U64(END, leg),
    EPOCH(END),
    BOOL(END, from_sink),
    KNOWN(END, state, STRAIT_FAILED, STRAIT_DONE),
    KNOWN(END, reason, STRAIT_REASON_NONE, REASON_LAST),
};
const struct layout end_layout = LAYOUT(END, end, end_fields, end_check);

/* Pools, between a client and its daemon. Sizes and strides of regions are left to the daemon to check: it knows the
 * memory, and can refuse a pool without giving up the connection. */

static enum strait_status region_check(const void *plain)
{
    const struct wire_region *region = plain;
    return corrupt_unless(region->handle != STRAIT_HANDLE_CUDA_IPC || region->ipc.size > 0);
}

#define REGION struct wire_region, Strait__Wire__Region
static const struct field region_fields[] = {
    KNOWN(REGION, handle, STRAIT_HANDLE_MEMFD, STRAIT_HANDLE_CUDA_VMM),
    I32(REGION, device, -1, INT32_MAX),
    U32(REGION, fd, 0, UINT32_MAX),
    U64(REGION, pointer),
    BYTES_OR_NONE(REGION, ipc, 64),
    U64(REGION, offset),
    U64(REGION, page_stride),
    U64(REGION, row_stride),
    U32(REGION, page_count, 0, UINT32_MAX),
    U32(REGION, rows, 0, UINT32_MAX),
    U32(REGION, row_bytes, 0, UINT32_MAX),
    KNOWN(REGION, element, STRAIT_ELEMENT_BYTES, STRAIT_ELEMENT_FP8_E5M2),
    KNOWN(REGION, role, STRAIT_ROLE_OTHER, STRAIT_ROLE_V),
    I32(REGION, layer, -1, INT32_MAX),
    U32(REGION, heads, 0, UINT32_MAX),
    U32(REGION, group, 0, STRAIT_GROUPS_MAX - 1),
};
static const struct layout region_layout = LAYOUT(REGION, region, region_fields, region_check);

static bool region_has_fd(const struct wire_region *region)
{
    return region->handle == STRAIT_HANDLE_MEMFD || region->handle == STRAIT_HANDLE_CUDA_VMM;
}

static enum strait_status pool_register_check(const void *plain)
{
    const struct message_pool_register *pool = plain;
    for (uint32_t i = 0; i < pool->region_count; i++)
        if (region_has_fd(&pool->regions[i]) && pool->regions[i].fd >= pool->fd_count)
            return STRAIT_ERR_CORRUPT;
    return STRAIT_OK;
}

#define POOL_REGISTER struct message_pool_register, Strait__Wire__PoolRegister
static const struct field pool_register_fields[] = {
    POOL(POOL_REGISTER, pool),
    U32(POOL_REGISTER, fd_count, 0, CHANNEL_FDS_MAX),
    KNOWN(POOL_REGISTER, coding, STRAIT_CODING_AUTO, STRAIT_CODING_TIERED),
    LIST(POOL_REGISTER, region_count, regions, REGION, 1, STRAIT_REGIONS_MAX, &region_layout),
};
const struct layout pool_register_layout =
    LAYOUT(POOL_REGISTER, pool_register, pool_register_fields, pool_register_check);

#define POOL_REMOVE struct message_pool_remove, Strait__Wire__PoolRemove
static const struct field pool_remove_fields[] = {
    POOL(POOL_REMOVE, pool),
};
const struct layout pool_remove_layout = LAYOUT(POOL_REMOVE, pool_remove, pool_remove_fields, NULL);

#define POOL_STATUS struct message_pool_status, Strait__Wire__PoolStatus
static const struct field pool_status_fields[] = {
    POOL(POOL_STATUS, pool),
    KNOWN_SIGNED(POOL_STATUS, status, STATUS_LAST, STRAIT_OK),
    BOOL(POOL_STATUS, removed),
    TEXT(POOL_STATUS, text),
};
const struct layout pool_status_layout = LAYOUT(POOL_STATUS, pool_status, pool_status_fields, NULL);

/* Transfers, between a client and its daemon. */

/* ---- Page lists ------------------------------------------------------------------------------------------------- */

static enum strait_status page_list_check(const void *plain)
{
    const struct wire_page_list *list = plain;
    bool ids_fit = list->ids != NULL || list->count == 0 || range_fits(list->first_id, list->count - 1);
    return corrupt_unless(range_fits(list->first, list->count) && ids_fit);
}

static const struct field page_list_fields[] = {
    U32(PAGE_LIST, group, 0, STRAIT_GROUPS_MAX - 1),
    U32(PAGE_LIST, first, 0, UINT32_MAX),
    U32(PAGE_LIST, count, 0, STRAIT_TRANSFER_PAGES_MAX),
    U32(PAGE_LIST, first_id, 0, UINT32_MAX),
    {.kind = FIELD_IDS,
     .plain = OFFSET_OF(struct wire_page_list, ids, const uint32_t *),
     .plain_count = OFFSET_OF(struct wire_page_list, count, uint32_t),
     .wire = OFFSET_OF(Strait__Wire__PageList, ids, ProtobufCBinaryData)},
};
const struct layout page_list_layout = LAYOUT(PAGE_LIST, page_list, page_list_fields, page_list_check);

/* At most 4096 lists of at most 4 Mi pages, so the sums fit 64 bits. */
static enum strait_status page_lists_check(const struct wire_page_list *lists, uint32_t count)
{
    uint64_t pages = 0, ids = 0;
    for (uint32_t i = 0; i < count; i++) {
        pages += lists[i].count;
        ids += lists[i].ids != NULL ? lists[i].count : 0;
    }
    return corrupt_unless(pages <= STRAIT_TRANSFER_PAGES_MAX && ids <= MESSAGE_IDS_MAX);
}

static enum strait_status lists_and_aux_check(const struct wire_page_list *lists, uint32_t count, bool last,
                                              struct view aux)
{
    if (aux.size > 0 && !last)
        return STRAIT_ERR_CORRUPT;
    return page_lists_check(lists, count);
}

/* ---- Requests of the client ------------------------------------------------------------------------------------- */

static enum strait_status expect_check(const void *plain)
{
    const struct message_expect *expect = plain;
    return page_lists_check(expect->lists, expect->list_count);
}

#define EXPECT struct message_expect, Strait__Wire__Expect
static const struct field expect_fields[] = {
    U64(EXPECT, transfer),
    POOL(EXPECT, pool),
    KEY(EXPECT, key),
    U32(EXPECT, sources, 0, STRAIT_PARTS_MAX),
    U32(EXPECT, deadline_ms, 0, UINT32_MAX),
    BOOL(EXPECT, more),
    PAGE_LISTS(EXPECT, list_count, lists),
};
const struct layout expect_layout = LAYOUT(EXPECT, expect, expect_fields, expect_check);

static bool event_valid(struct view event)
{
    return event.size == 0 || event.size == MESSAGE_EVENT_IPC || event.size == MESSAGE_EVENT_POINTER;
}

static enum strait_status offer_check(const void *plain)
{
    const struct message_offer *offer = plain;
    if (!event_valid(offer->ready) || (offer->later && offer->ready.size != 0))
        return STRAIT_ERR_CORRUPT;
    return lists_and_aux_check(offer->lists, offer->list_count, offer->last, offer->aux);
}

#define OFFER struct message_offer, Strait__Wire__Offer
static const struct field offer_fields[] = {
    U64(OFFER, transfer),
    POOL(OFFER, pool),
    KEY(OFFER, key),
    U32(OFFER, consumers, 0, STRAIT_PARTS_MAX),
    U32(OFFER, lease_ms, 0, UINT32_MAX),
    BOOL(OFFER, later),
    BOOL(OFFER, last),
    BOOL(OFFER, more),
    PAGE_LISTS(OFFER, list_count, lists),
    AUX(OFFER),
    BYTES(OFFER, ready, 0, MESSAGE_EVENT_IPC),
};
const struct layout offer_layout = LAYOUT(OFFER, offer, offer_fields, offer_check);

static enum strait_status append_check(const void *plain)
{
    const struct message_append *append = plain;
    if ((int64_t)append->layer_first + append->layer_count > INT32_MAX || !event_valid(append->ready))
        return STRAIT_ERR_CORRUPT;
    return lists_and_aux_check(append->lists, append->list_count, append->last, append->aux);
}

#define APPEND struct message_append, Strait__Wire__Append
static const struct field append_fields[] = {
    U64(APPEND, transfer),
    I32(APPEND, layer_first, -1, INT32_MAX),
    U32(APPEND, layer_count, 0, INT32_MAX),
    BOOL(APPEND, last),
    BOOL(APPEND, more),
    PAGE_LISTS(APPEND, list_count, lists),
    AUX(APPEND),
    BYTES(APPEND, ready, 0, MESSAGE_EVENT_IPC),
};
const struct layout append_layout = LAYOUT(APPEND, append, append_fields, append_check);

#define START struct message_start, Strait__Wire__Start
static const struct field start_fields[] = {
    U64(START, transfer),
    POOL(START, peer_pool),
    ADDRESS(START, peer_address),
    BYTES(START, peer_key, 0, STRAIT_KEY_BYTES_MAX),
    KNOWN(START, direction, STRAIT_AUTO, STRAIT_PULL),
    BITS(START, mismatch, STRAIT_MISMATCH_FATAL | STRAIT_MISMATCH_CODEBOOK),
};
const struct layout start_layout = LAYOUT(START, start, start_fields, NULL);

#define TRANSFER struct message_transfer, Strait__Wire__Transfer
static const struct field transfer_fields[] = {
    U64(TRANSFER, transfer),
};
const struct layout transfer_layout = LAYOUT(TRANSFER, transfer, transfer_fields, NULL);

/* ---- What the daemon tells -------------------------------------------------------------------------------------- */

static enum strait_status state_check(const void *plain)
{
    const struct message_state *state = plain;
    return page_lists_check(state->failed, state->failed_count);
}

#define STATE struct message_state, Strait__Wire__State
static const struct field state_fields[] = {
    U64(STATE, transfer),
    KNOWN(STATE, state, STRAIT_FAILED, STRAIT_DONE),
    KNOWN(STATE, reason, STRAIT_REASON_NONE, REASON_LAST),
    BOOL(STATE, drained),
    BOOL(STATE, more),
    TEXT(STATE, text),
    AUX(STATE),
    PAGE_LISTS(STATE, failed_count, failed),
};
const struct layout state_layout = LAYOUT(STATE, state, state_fields, state_check);

static enum strait_status layers_check(const void *plain)
{
    const struct message_layers *layers = plain;
    for (uint32_t i = 0; i < layers->layer_count; i++)
        if (layers->layers[i] < -1)
            return STRAIT_ERR_CORRUPT;
    return STRAIT_OK;
}

#define LAYERS struct message_layers, Strait__Wire__Layers
static const struct field layers_fields[] = {
    U64(LAYERS, transfer),
    NUMBERS(LAYERS, layer_count, layers, MESSAGE_LIST_MAX),
};
const struct layout layers_layout = LAYOUT(LAYERS, layers, layers_fields, layers_check);
