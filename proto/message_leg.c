/* Legs, between two daemons. */
#include "proto/fields.h"
#include "proto/limits.h"

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
