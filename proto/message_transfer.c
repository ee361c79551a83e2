/* Transfers, between a client and its daemon. */
#include "proto/fields.h"
#include "proto/limits.h"

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
