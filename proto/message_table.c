/* Rows of every message, the checks across its fields, and the table of all messages. */
#include <strait/codec.h>

#include "proto/channel.h"
#include "proto/message_table.h"

/* Reasons are numbered without gaps from 0 upward, statuses from 0 downward. */
#define COUNT_ENTRY(name, value, text) +1
enum { REASON_LAST = (STRAIT_REASON_MAP(COUNT_ENTRY)) - 1 };
enum { STATUS_LAST = 1 - (STRAIT_STATUS_MAP(COUNT_ENTRY)) };

/* Whether first .. first + count are numbers of 32 bits. */
static bool range_fits(uint32_t first, uint32_t count)
{
    return count <= UINT32_MAX - first;
}

/* ---- Client and daemon: versions, addresses, notes, statistics, policy ------------------------------------------- */

static enum strait_status hello_check(const void *plain)
{
    const struct message_hello *hello = plain;
    return corrupt_unless(hello->version_min <= hello->version);
}

MESSAGE(hello, struct message_hello, Hello) = {
    U32(hello, version, 1, UINT32_MAX),
    U32(hello, version_min, 1, UINT32_MAX),
    U32(hello, pid, 0, UINT32_MAX),
    TEXT(hello, library),
};

MESSAGE(welcome, struct message_welcome, Welcome) = {
    U32(welcome, version, 1, UINT32_MAX),
    NOT_ZERO(welcome, incarnation),
    ADDRESS(welcome, address),
    BYTES_OR_NONE(welcome, codebook_id, CODEBOOK_ID_BYTES),
    TEXT(welcome, daemon),
    U64(welcome, node),
    BOOL(welcome, samples),
    BOOL(welcome, rings),
};

static enum strait_status rings_check(const void *plain)
{
    const struct message_rings *rings = plain;
    return corrupt_unless((rings->bytes & (rings->bytes - 1)) == 0);
}

MESSAGE(rings, struct message_rings, Rings) = {
    U32(rings, bytes, MESSAGE_RING_BYTES_MIN, MESSAGE_RING_BYTES_MAX),
};

MESSAGE(refused, struct message_refused, Refused) = {
    KNOWN_SIGNED(refused, status, STATUS_LAST, STRAIT_ERR_INVALID),
    TEXT(refused, text),
};

MESSAGE(notify, struct message_notify, Notify) = {
    POOL(notify, peer_pool),
    ADDRESS(notify, peer_address),
    BYTES(notify, key, 0, STRAIT_KEY_BYTES_MAX),
    BYTES(notify, data, 0, STRAIT_NOTE_BYTES_MAX),
    U32(notify, note, 0, MESSAGE_NOTES_MAX - 1),
};

MESSAGE(note, struct message_note, Note) = {
    POOL(note, pool),
    BYTES(note, key, 0, STRAIT_KEY_BYTES_MAX),
    BYTES(note, data, 0, STRAIT_NOTE_BYTES_MAX),
    U32(note, note, 0, UINT32_MAX),
    NAME(note, tenant, MESSAGE_TENANT_MAX),
};

MESSAGE(noted, struct message_noted, Noted) = {
    NUMBERS(noted, notes, note_count, uint32_t, MESSAGE_NOTES_MAX),
    BOOL(noted, failed),
    TEXT(noted, text),
};

/* For machines, so it is never cut. */
MESSAGE(stats_text, struct message_text, Text) = {
    NAME(stats_text, text, MESSAGE_BYTES_MAX),
};

MESSAGE(words, struct message_words, Words) = {
    U32(words, count, 1, MESSAGE_WORDS_MAX),
};

MESSAGE(wait, struct message_wait, Wait) = {
    U64(wait, transfer),
    I32(wait, layer, -1, INT32_MAX),
    U32(wait, word, 0, MESSAGE_WORDS_MAX - 1),
    U32(wait, value, 0, UINT32_MAX),
};

MESSAGE(policy, struct message_policy, Policy) = {
    POOL(policy, pool),
    KNOWN(policy, coding, STRAIT_CODING_AUTO, STRAIT_CODING_PARTS),
};

/* ---- Daemons: introduction, links, arenas ------------------------------------------------------------------------ */

static enum strait_status peer_hello_check(const void *plain)
{
    const struct message_peer_hello *hello = plain;
    return corrupt_unless(hello->version_min <= hello->version);
}

MESSAGE(peer_hello, struct message_peer_hello, PeerHello) = {
    U32(peer_hello, version, 1, UINT32_MAX),
    U32(peer_hello, version_min, 1, UINT32_MAX),
    U64(peer_hello, node),
    NOT_ZERO(peer_hello, incarnation),
    BYTES(peer_hello, nonce, NONCE_BYTES, NONCE_BYTES),
    ADDRESS(peer_hello, address),
    ADDRESS(peer_hello, dialled),
    KNOWN(peer_hello, pages, 0, MESSAGE_PAGES_MAX),
    NAME(peer_hello, software, MESSAGE_SOFTWARE_MAX),
    U64(peer_hello, clock_ns),
};

MESSAGE(peer_links, struct message_peer_links, PeerLinks) = {
    U64(peer_links, token),
    BYTES(peer_links, host, 0, MESSAGE_ADDRESS_MAX),
    NAME(peer_links, shm_path, MESSAGE_ADDRESS_MAX),
    NAME(peer_links, transport, MESSAGE_ADDRESS_MAX),
    BYTES(peer_links, address, 0, MESSAGE_LINK_ADDRESS_MAX),
    BYTES_OR_NONE(peer_links, codebook_id, CODEBOOK_ID_BYTES),
    U32(peer_links, slot_bytes, 0, UINT32_MAX),
    U32(peer_links, slot_count, 0, UINT32_MAX),
    BOOL(peer_links, codebooks),
    BOOL(peer_links, reshapes),
    U32(peer_links, block_modes, 0, UINT32_MAX),
};

MESSAGE(handover, struct message_handover, Handover) = {
    BOOL(handover, ready),
    U32(handover, fd_count, 0, UINT32_MAX),
    BOOL(handover, draining),
};

MESSAGE(codebook, struct message_codebook, Codebook) = {
    BYTES_OR_NONE(codebook, id, CODEBOOK_ID_BYTES),
};

MESSAGE(codebook_ask, struct message_codebook_ask, CodebookAsk) = {
    BYTES(codebook_ask, id, CODEBOOK_ID_BYTES, CODEBOOK_ID_BYTES),
    U32(codebook_ask, offset, 0, MESSAGE_SET_BYTES_MAX - 1),
};

static enum strait_status codebook_part_check(const void *plain)
{
    const struct message_codebook_part *part = plain;
    return corrupt_unless(part->offset <= part->size && part->bytes.size <= part->size - part->offset);
}

MESSAGE(codebook_part, struct message_codebook_part, CodebookPart) = {
    BYTES(codebook_part, id, CODEBOOK_ID_BYTES, CODEBOOK_ID_BYTES),
    U32(codebook_part, size, 0, UINT32_MAX),
    U32(codebook_part, offset, 0, MESSAGE_SET_BYTES_MAX - 1),
    BYTES(codebook_part, bytes, 0, MESSAGE_SET_PART_MAX),
};

MESSAGE(codebook_known, struct message_codebook_known, CodebookKnown) = {
    BYTES(codebook_known, id, CODEBOOK_ID_BYTES, CODEBOOK_ID_BYTES),
};

MESSAGE(pool_ask, struct message_pool_ask, PoolAsk) = {
    POOL(pool_ask, pool),
    NAME(pool_ask, tenant, MESSAGE_TENANT_MAX),
};

MESSAGE(pool_description, struct message_pool_description, PoolDescription) = {
    NAME(pool_description, tenant, MESSAGE_TENANT_MAX),
    BYTES(pool_description, blob, 1, MESSAGE_BLOB_MAX),
};

MESSAGE(heartbeat, struct message_heartbeat, Heartbeat) = {
    U64(heartbeat, sequence),
    U64(heartbeat, echo),
};

static enum strait_status arena_check(const void *plain)
{
    const struct message_arena *arena = plain;
    const uint64_t slots = (uint64_t)arena->slot_bytes * arena->slot_count;
    const bool flags = arena->flags_at == 0 || (arena->ipc.size != 0 && arena->flags_at % 8 == 0 &&
                                                arena->flags_at >= slots && arena->flags_at < INT64_MAX / 2);
    return corrupt_unless((uint64_t)arena->first_slot + arena->slot_count <= UINT32_MAX && flags);
}

MESSAGE(arena, struct message_arena, Arena) = {
    U32(arena, device, 0, MESSAGE_DEVICES_MAX - 1),
    U32(arena, first_slot, 1, UINT32_MAX),
    U32(arena, slot_bytes, 4096, UINT32_MAX),
    U32(arena, slot_count, 1, UINT32_MAX),
    BYTES_OR_NONE(arena, ipc, MESSAGE_MEMORY_IPC),
    BOOL(arena, nccl),
    BOOL(arena, ucx),
    U64(arena, flags_at),
    BYTES_OR_NONE(arena, gpu, MESSAGE_GPU_ID),
};

MESSAGE(reach, struct message_reach, Reach) = {
    POOL(reach, pool),
    U64(reach, devices),
    NAME(reach, tenant, MESSAGE_TENANT_MAX),
    U64(reach, flagged),
};

static enum strait_status gpu_link_check(const void *plain)
{
    const struct message_gpu_link *link = plain;
    return corrupt_unless(link->address.size == 0 || link->why.size == 0);
}

MESSAGE(gpu_link, struct message_gpu_link, GpuLink) = {
    U32(gpu_link, device, 0, MESSAGE_DEVICES_MAX - 1),
    U32(gpu_link, peer_device, 0, MESSAGE_DEVICES_MAX - 1),
    BYTES(gpu_link, address, 0, MESSAGE_LINK_ADDRESS_MAX),
    TEXT(gpu_link, why),
    U32(gpu_link, by, 0, UINT32_MAX),
};

MESSAGE(shm_hello, struct message_shm_hello, ShmHello) = {
    U64(shm_hello, token),
    U64(shm_hello, node),
    U32(shm_hello, slot_bytes, 0, UINT32_MAX),
    U32(shm_hello, slot_count, 0, UINT32_MAX),
    BOOL(shm_hello, rings),
};

/* ---- Transfers: page lists --------------------------------------------------------------------------------------- */

static enum strait_status page_list_check(const void *plain)
{
    const struct wire_page_list *list = plain;
    bool ids_fit = list->ids != NULL || list->count == 0 || range_fits(list->first_id, list->count - 1);
    return corrupt_unless(range_fits(list->first, list->count) && ids_fit);
}

MESSAGE(page_list, struct wire_page_list, PageList) = {
    U32(page_list, group, 0, STRAIT_GROUPS_MAX - 1),
    U32(page_list, first, 0, UINT32_MAX),
    U32(page_list, count, 0, STRAIT_TRANSFER_PAGES_MAX),
    U32(page_list, first_id, 0, UINT32_MAX),
    FIELD(page_list, ids, IDS, const uint32_t *, ids, ProtobufCBinaryData,
          .plain_count = OFFSET_OF(page_list_plain, count, uint32_t)),
};
static const struct message_layout page_list_layout = LAYOUT(page_list, page_list, page_list_check);

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

/* ---- Legs: before one is bound ----------------------------------------------------------------------------------- */

MESSAGE(announce, struct message_announce, Announce) = {
    POOL(announce, source_pool),
    POOL(announce, sink_pool),
    BYTES(announce, source_key, 1, STRAIT_KEY_BYTES_MAX),
    BYTES(announce, sink_key, 1, STRAIT_KEY_BYTES_MAX),
    U32(announce, lease_ms, 0, UINT32_MAX),
    NAME(announce, tenant, MESSAGE_TENANT_MAX),
};

MESSAGE(withdraw, struct message_withdraw, Withdraw) = {
    POOL(withdraw, source_pool),
    POOL(withdraw, sink_pool),
    BYTES(withdraw, source_key, 1, STRAIT_KEY_BYTES_MAX),
    BYTES(withdraw, sink_key, 1, STRAIT_KEY_BYTES_MAX),
    NAME(withdraw, tenant, MESSAGE_TENANT_MAX),
    BOOL(withdraw, from_sink),
    KNOWN(withdraw, reason, STRAIT_REASON_NONE, REASON_LAST),
};

static enum strait_status span_check(const void *plain)
{
    const struct wire_span *span = plain;
    return corrupt_unless(range_fits(span->first, span->count));
}

MESSAGE(span, struct wire_span, Span) = {
    U32(span, group, 0, STRAIT_GROUPS_MAX - 1),
    U32(span, first, 0, UINT32_MAX),
    U32(span, count, 1, STRAIT_TRANSFER_PAGES_MAX),
};
static const struct message_layout span_layout = LAYOUT(span, span, span_check);

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
    if (page_lists_check(request->lists, request->list_count) != STRAIT_OK ||
        (request->read ? request->span_count : request->list_count) != 0)
        return STRAIT_ERR_CORRUPT;
    return corrupt_unless(pages <= STRAIT_TRANSFER_PAGES_MAX && open_check(request->grant, request->slot_count) &&
                          (request->grant == 0 || !request->more));
}

MESSAGE(request, struct message_request, Request) = {
    U64(request, leg),
    EPOCH(request),
    POOL(request, source_pool),
    POOL(request, sink_pool),
    KEY(request, source_key),
    KEY(request, sink_key),
    U64(request, geometry),
    NAME(request, tenant, MESSAGE_TENANT_MAX),
    U32(request, deadline_ms, 0, UINT32_MAX),
    BOOL(request, more),
    BOOL(request, rest),
    LIST(request, spans, span_count, span, 0, MESSAGE_LIST_MAX),
    BOOL(request, read),
    LIST(request, lists, list_count, page_list, 0, MESSAGE_LIST_MAX),
    U64(request, grant),
    NUMBERS(request, slots, slot_count, uint32_t, MESSAGE_OPEN_MAX),
    BOOL(request, on_gpu),
    U32(request, consumers, 0, STRAIT_PARTS_MAX),
};

/* ---- Legs: units ------------------------------------------------------------------------------------------------- */

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

MESSAGE(segment, struct segment, Segment) = {
    U32(segment, group, 0, STRAIT_GROUPS_MAX - 1),     U32(segment, region_first, 0, STRAIT_REGIONS_MAX - 1),
    U32(segment, region_count, 1, STRAIT_REGIONS_MAX), U32(segment, first, 0, UINT32_MAX),
    U32(segment, count, 1, STRAIT_TRANSFER_PAGES_MAX),
};
static const struct message_layout segment_layout = LAYOUT(segment, segment, segment_check);

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

MESSAGE(segments, struct message_segments, Segments) = {
    U64(segments, leg),
    EPOCH(segments),
    U32(segments, before, 0, UINT32_MAX),
    BOOL(segments, last),
    LIST(segments, segments, segment_count, segment, 0, MESSAGE_LIST_MAX),
    AUX(segments),
    U64(segments, aux_sum),
    U64(segments, grant),
    NUMBERS(segments, granted, granted_count, uint32_t, MESSAGE_OPEN_MAX),
    U64(segments, reshaped),
};

/* ---- Legs: grants ------------------------------------------------------------------------------------------------ */

static enum strait_status grant_check(const void *plain)
{
    const struct message_grant *grant = plain;
    return corrupt_unless(range_fits(grant->first, grant->count));
}

MESSAGE(grant, struct message_grant, Grant) = {
    U64(grant, leg),
    EPOCH(grant),
    U64(grant, grant),
    U32(grant, first, 0, UINT32_MAX),
    U32(grant, count, 1, UINT32_MAX),
    U32(grant, slot, 0, UINT32_MAX),
};

MESSAGE(grant_id, struct message_grant_id, GrantId) = {
    U64(grant_id, leg),
    EPOCH(grant_id),
    U64(grant_id, grant),
};

/* ---- Legs: verdict ----------------------------------------------------------------------------------------------- */

static enum strait_status end_check(const void *plain)
{
    const struct message_end *end = plain;
    return corrupt_unless(end->state == STRAIT_FAILED || (end->state == STRAIT_DONE && end->from_sink));
}

MESSAGE(end, struct message_end, End) = {
    U64(end, leg),
    EPOCH(end),
    BOOL(end, from_sink),
    KNOWN(end, state, STRAIT_FAILED, STRAIT_DONE),
    KNOWN(end, reason, STRAIT_REASON_NONE, REASON_LAST),
};

/* ---- Pools, between a client and its daemon ---------------------------------------------------------------------- */

/* Sizes and strides of regions are left to the daemon to check: it knows the
 * memory, and can refuse a pool without giving up the connection. */

static enum strait_status region_check(const void *plain)
{
    const struct wire_region *region = plain;
    return corrupt_unless(region->handle != STRAIT_HANDLE_CUDA_IPC || region->ipc.size > 0);
}

MESSAGE(region, struct wire_region, Region) = {
    KNOWN(region, handle, STRAIT_HANDLE_MEMFD, STRAIT_HANDLE_CUDA_VMM),
    I32(region, device, -1, INT32_MAX),
    U32(region, fd, 0, UINT32_MAX),
    U64(region, pointer),
    BYTES_OR_NONE(region, ipc, 64),
    U64(region, offset),
    U64(region, page_stride),
    U64(region, row_stride),
    U32(region, page_count, 0, UINT32_MAX),
    U32(region, rows, 0, UINT32_MAX),
    U32(region, row_bytes, 0, UINT32_MAX),
    KNOWN(region, element, STRAIT_ELEMENT_BYTES, STRAIT_ELEMENT_FP8_E5M2),
    KNOWN(region, role, STRAIT_ROLE_OTHER, STRAIT_ROLE_KV),
    I32(region, layer, -1, INT32_MAX),
    U32(region, heads, 0, UINT32_MAX),
    U32(region, group, 0, STRAIT_GROUPS_MAX - 1),
    KNOWN(region, layout, STRAIT_LAYOUT_NONE, STRAIT_LAYOUT_HND),
    U32(region, tokens, 0, UINT32_MAX),
    U32(region, head_first, 0, UINT32_MAX),
    U32(region, heads_total, 0, UINT32_MAX),
};
static const struct message_layout region_layout = LAYOUT(region, region, region_check);

bool compat_is_valid(const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (text[i] < ' ' || text[i] > '~')
            return false;
    return size <= STRAIT_COMPAT_BYTES_MAX;
}

static enum strait_status pool_register_check(const void *plain)
{
    const struct message_pool_register *pool = plain;
    for (uint32_t i = 0; i < pool->region_count; i++)
        if ((pool->regions[i].handle == STRAIT_HANDLE_MEMFD || pool->regions[i].handle == STRAIT_HANDLE_CUDA_VMM) &&
            pool->regions[i].fd >= pool->fd_count)
            return STRAIT_ERR_CORRUPT;
    return corrupt_unless(compat_is_valid((const char *)pool->compat.data, pool->compat.size));
}

MESSAGE(pool_register, struct message_pool_register, PoolRegister) = {
    POOL(pool_register, pool),
    U32(pool_register, fd_count, 0, CHANNEL_FDS_MAX),
    KNOWN(pool_register, coding, STRAIT_CODING_AUTO, STRAIT_CODING_PARTS),
    LIST(pool_register, regions, region_count, region, 1, STRAIT_REGIONS_MAX),
    BYTES(pool_register, compat, 0, STRAIT_COMPAT_BYTES_MAX),
};

MESSAGE(pool_remove, struct message_pool_remove, PoolRemove) = {
    POOL(pool_remove, pool),
};

MESSAGE(pool_status, struct message_pool_status, PoolStatus) = {
    POOL(pool_status, pool),
    KNOWN_SIGNED(pool_status, status, STATUS_LAST, STRAIT_OK),
    BOOL(pool_status, removed),
    TEXT(pool_status, text),
};

static enum strait_status lists_and_aux_check(const struct wire_page_list *lists, uint32_t count, bool last,
                                              struct view aux)
{
    if (aux.size > 0 && !last)
        return STRAIT_ERR_CORRUPT;
    return page_lists_check(lists, count);
}

/* ---- Requests of the client ------------------------------------------------------------------------------------- */

/* The status of the message's other fields, unless its trace context is wrong. */
static enum strait_status trace_check(struct view trace, enum strait_status status)
{
    return trace.size == 0 || trace_is_valid(trace.data) ? status : STRAIT_ERR_CORRUPT;
}

static enum strait_status expect_check(const void *plain)
{
    const struct message_expect *expect = plain;
    return trace_check(expect->trace, page_lists_check(expect->lists, expect->list_count));
}

MESSAGE(expect, struct message_expect, Expect) = {
    U64(expect, transfer),
    POOL(expect, pool),
    KEY(expect, key),
    U32(expect, sources, 0, STRAIT_PARTS_MAX),
    U32(expect, deadline_ms, 0, UINT32_MAX),
    BOOL(expect, more),
    LIST(expect, lists, list_count, page_list, 0, MESSAGE_LIST_MAX),
    BYTES_OR_NONE(expect, trace, TRACE_BYTES),
    U32(expect, tokens, 0, UINT32_MAX),
    BOOL(expect, pages),
    BOOL(expect, within),
};

static bool event_valid(struct view event)
{
    return event.size == 0 || event.size == MESSAGE_EVENT_IPC || event.size == MESSAGE_EVENT_POINTER;
}

static enum strait_status offer_check(const void *plain)
{
    const struct message_offer *offer = plain;
    if (!event_valid(offer->ready) || (offer->later && offer->ready.size != 0))
        return STRAIT_ERR_CORRUPT;
    return trace_check(offer->trace, lists_and_aux_check(offer->lists, offer->list_count, offer->last, offer->aux));
}

MESSAGE(offer, struct message_offer, Offer) = {
    U64(offer, transfer),
    POOL(offer, pool),
    KEY(offer, key),
    U32(offer, consumers, 0, STRAIT_PARTS_MAX),
    U32(offer, lease_ms, 0, UINT32_MAX),
    BOOL(offer, later),
    BOOL(offer, last),
    BOOL(offer, more),
    LIST(offer, lists, list_count, page_list, 0, MESSAGE_LIST_MAX),
    AUX(offer),
    BYTES(offer, ready, 0, MESSAGE_EVENT_IPC),
    BYTES_OR_NONE(offer, trace, TRACE_BYTES),
    BOOL(offer, asked),
};

static enum strait_status append_check(const void *plain)
{
    const struct message_append *append = plain;
    if ((int64_t)append->layer_first + append->layer_count > INT32_MAX || !event_valid(append->ready) ||
        (append->later &&
         (append->last || append->ready.size != 0 || append->layer_count != 0 || append->list_count == 0)))
        return STRAIT_ERR_CORRUPT;
    return lists_and_aux_check(append->lists, append->list_count, append->last, append->aux);
}

MESSAGE(append, struct message_append, Append) = {
    U64(append, transfer),
    I32(append, layer_first, -1, INT32_MAX),
    U32(append, layer_count, 0, INT32_MAX),
    BOOL(append, last),
    BOOL(append, more),
    LIST(append, lists, list_count, page_list, 0, MESSAGE_LIST_MAX),
    AUX(append),
    BYTES(append, ready, 0, MESSAGE_EVENT_IPC),
    BOOL(append, later),
};

MESSAGE(start, struct message_start, Start) = {
    U64(start, transfer),
    POOL(start, peer_pool),
    ADDRESS(start, peer_address),
    BYTES(start, peer_key, 0, STRAIT_KEY_BYTES_MAX),
    KNOWN(start, direction, STRAIT_AUTO, STRAIT_PULL),
    KNOWN(start, mismatch, 0, STRAIT_MISMATCH_FATAL | STRAIT_MISMATCH_CODEBOOK), /* all bits below the highest */
    U32(start, consumers, 0, STRAIT_PARTS_MAX),
};

static enum strait_status read_check(const void *plain)
{
    const struct message_read *read = plain;
    return page_lists_check(read->lists, read->list_count);
}

MESSAGE(read, struct message_read, Read) = {
    U64(read, transfer),
    POOL(read, peer_pool),
    ADDRESS(read, peer_address),
    BOOL(read, more),
    LIST(read, lists, list_count, page_list, 0, MESSAGE_LIST_MAX),
};

static enum strait_status serve_check(const void *plain)
{
    const struct message_serve *serve = plain;
    return page_lists_check(serve->lists, serve->list_count);
}

MESSAGE(serve, struct message_serve, Serve) = {
    POOL(serve, pool),
    U64(serve, fence),
    U32(serve, grace_ms, 0, UINT32_MAX),
    BOOL(serve, more),
    LIST(serve, lists, list_count, page_list, 0, MESSAGE_LIST_MAX),
};

MESSAGE(fenced, struct message_fenced, Fenced) = {
    NOT_ZERO(fenced, fence),
};

static enum strait_status sample_check(const void *plain)
{
    const struct message_sample *sample = plain;
    return corrupt_unless(sample->bytes <= MESSAGE_SAMPLE_BYTES_MAX);
}

MESSAGE(sample, struct message_sample, Sample) = {
    NOT_ZERO(sample, bytes),
    U32(sample, milliseconds, 1, MESSAGE_SAMPLE_MS_MAX),
    U32(sample, elements, 1, UINT32_MAX),
};

MESSAGE(sampled, struct message_sampled, Sampled) = {
    KNOWN_SIGNED(sampled, status, STATUS_LAST, STRAIT_OK),
    TEXT(sampled, text),
    BYTES(sampled, counts, 0, MESSAGE_BYTES_MAX),
    U64(sampled, bytes),
    U64(sampled, ready_bytes),
    U32(sampled, pools, 0, UINT32_MAX),
    U64(sampled, device_bytes),
    U64(sampled, other_bytes),
    U32(sampled, milliseconds, 0, UINT32_MAX),
};

MESSAGE(transfer, struct message_transfer, Transfer) = {
    U64(transfer, transfer),
};

/* ---- Transfers: states ------------------------------------------------------------------------------------------- */

static enum strait_status state_check(const void *plain)
{
    const struct message_state *state = plain;
    return page_lists_check(state->failed, state->failed_count);
}

MESSAGE(state, struct message_state, State) = {
    U64(state, transfer),
    KNOWN(state, state, STRAIT_FAILED, STRAIT_DONE),
    KNOWN(state, reason, STRAIT_REASON_NONE, REASON_LAST),
    BOOL(state, drained),
    BOOL(state, more),
    TEXT(state, text),
    AUX(state),
    LIST(state, failed, failed_count, page_list, 0, MESSAGE_LIST_MAX),
    U64(state, raw_bytes),
    U64(state, wire_bytes),
    ADDRESS(state, peer),
};

static enum strait_status layers_check(const void *plain)
{
    const struct message_layers *layers = plain;
    for (uint32_t i = 0; i < layers->layer_count; i++)
        if (layers->layers[i] < -1)
            return STRAIT_ERR_CORRUPT;
    return STRAIT_OK;
}

MESSAGE(layers, struct message_layers, Layers) = {
    U64(layers, transfer),
    NUMBERS(layers, layers, layer_count, int32_t, MESSAGE_LIST_MAX),
};

static enum strait_status pages_check(const void *plain)
{
    const struct message_pages *pages = plain;
    return page_lists_check(pages->lists, pages->list_count);
}

MESSAGE(pages, struct message_pages, Pages) = {
    U64(pages, transfer),
    LIST(pages, lists, list_count, page_list, 0, MESSAGE_LIST_MAX),
};

/* ---- All messages ------------------------------------------------------------------------------------------------ */

const struct message_kind message_kinds[] = {
    {MESSAGE_HELLO, "hello", LAYOUT(hello, hello, hello_check)},
    {MESSAGE_POOL_REGISTER, "pool-register", LAYOUT(pool_register, pool_register, pool_register_check)},
    {MESSAGE_POOL_REMOVE, "pool-remove", LAYOUT(pool_remove, pool_remove, NULL)},
    {MESSAGE_EXPECT, "expect", LAYOUT(expect, expect, expect_check)},
    {MESSAGE_OFFER, "offer", LAYOUT(offer, offer, offer_check)},
    {MESSAGE_APPEND, "append", LAYOUT(append, append, append_check)},
    {MESSAGE_START, "start", LAYOUT(start, start, NULL)},
    {MESSAGE_READ, "read", LAYOUT(read, read, read_check)},
    {MESSAGE_SERVE, "serve", LAYOUT(serve, serve, serve_check)},
    {MESSAGE_SAMPLE, "sample", LAYOUT(sample, sample, sample_check)},
    {MESSAGE_ABORT, "abort", LAYOUT(transfer, transfer, NULL)},
    {MESSAGE_RELEASE, "release", LAYOUT(transfer, transfer, NULL)},
    {MESSAGE_NOTIFY, "notify", LAYOUT(notify, notify, NULL)},
    {MESSAGE_STATS, "stats", {.wire = &strait__wire__stats__descriptor}},
    {MESSAGE_POLICY, "policy", LAYOUT(policy, policy, NULL)},
    {MESSAGE_WORDS, "words", LAYOUT(words, words, NULL)},
    {MESSAGE_WAIT, "wait", LAYOUT(wait, wait, NULL)},
    {MESSAGE_PING, "ping", {.wire = &strait__wire__ping__descriptor}},
    {MESSAGE_RINGS, "rings", LAYOUT(rings, rings, rings_check)},
    {MESSAGE_WELCOME, "welcome", LAYOUT(welcome, welcome, NULL)},
    {MESSAGE_POOL_STATUS, "pool-status", LAYOUT(pool_status, pool_status, NULL)},
    {MESSAGE_STATE, "state", LAYOUT(state, state, state_check)},
    {MESSAGE_DRAINED, "drained", LAYOUT(transfer, transfer, NULL)},
    {MESSAGE_LAYERS, "layers", LAYOUT(layers, layers, layers_check)},
    {MESSAGE_NOTE, "note", LAYOUT(note, note, NULL)},
    {MESSAGE_STATS_TEXT, "stats-text", LAYOUT(stats_text, text, NULL)},
    {MESSAGE_PONG, "pong", {.wire = &strait__wire__ping__descriptor}},
    {MESSAGE_REFUSED, "refused", LAYOUT(refused, refused, NULL)},
    {MESSAGE_NOTED, "noted", LAYOUT(noted, noted, NULL)},
    {MESSAGE_FENCED, "fenced", LAYOUT(fenced, fenced, NULL)},
    {MESSAGE_SAMPLED, "sampled", LAYOUT(sampled, sampled, NULL)},
    {MESSAGE_PAGES, "pages", LAYOUT(pages, pages, pages_check)},
    {MESSAGE_PEER_HELLO, "peer-hello", LAYOUT(peer_hello, peer_hello, peer_hello_check)},
    {MESSAGE_PEER_LINKS, "peer-links", LAYOUT(peer_links, peer_links, NULL)},
    {MESSAGE_HEARTBEAT, "heartbeat", LAYOUT(heartbeat, heartbeat, NULL)},
    {MESSAGE_ARENA, "arena", LAYOUT(arena, arena, arena_check)},
    {MESSAGE_REACH, "reach", LAYOUT(reach, reach, NULL)},
    {MESSAGE_GPU_LINK, "gpu-link", LAYOUT(gpu_link, gpu_link, gpu_link_check)},
    {MESSAGE_ANNOUNCE, "announce", LAYOUT(announce, announce, NULL)},
    {MESSAGE_REQUEST, "request", LAYOUT(request, request, request_check)},
    {MESSAGE_SEGMENTS, "segments", LAYOUT(segments, segments, segments_check)},
    {MESSAGE_GRANT, "grant", LAYOUT(grant, grant, grant_check)},
    {MESSAGE_REVOKE, "revoke", LAYOUT(grant_id, grant_id, NULL)},
    {MESSAGE_RELEASED, "released", LAYOUT(grant_id, grant_id, NULL)},
    {MESSAGE_END, "end", LAYOUT(end, end, end_check)},
    {MESSAGE_PEER_NOTE, "peer-note", LAYOUT(note, note, NULL)},
    {MESSAGE_WITHDRAW, "withdraw", LAYOUT(withdraw, withdraw, NULL)},
    {MESSAGE_PEER_NOTED, "peer-noted", LAYOUT(noted, noted, NULL)},
    {MESSAGE_SHM_HELLO, "shm-hello", LAYOUT(shm_hello, shm_hello, NULL)},
    {MESSAGE_HANDOVER, "handover", LAYOUT(handover, handover, NULL)},
    {MESSAGE_CODEBOOK, "codebook", LAYOUT(codebook, codebook, NULL)},
    {MESSAGE_GOAWAY, "goaway", {.wire = &strait__wire__goaway__descriptor}},
    {MESSAGE_CODEBOOK_ASK, "codebook-ask", LAYOUT(codebook_ask, codebook_ask, NULL)},
    {MESSAGE_CODEBOOK_PART, "codebook-part", LAYOUT(codebook_part, codebook_part, codebook_part_check)},
    {MESSAGE_CODEBOOK_KNOWN, "codebook-known", LAYOUT(codebook_known, codebook_known, NULL)},
    {MESSAGE_POOL_ASK, "pool-ask", LAYOUT(pool_ask, pool_ask, NULL)},
    {MESSAGE_POOL_DESCRIPTION, "pool-description", LAYOUT(pool_description, pool_description, NULL)},
    {MESSAGE_RING, "ring", {.wire = &strait__wire__ring__descriptor}},
};
const size_t message_kind_count = sizeof(message_kinds) / sizeof(message_kinds[0]);
