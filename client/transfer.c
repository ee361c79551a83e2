/* Transfers: table, verdicts and events, page lists, and the calls of strait.h that make, start and end them. */
#include <stdlib.h>
#include <string.h>

#include "client/client.h"

/* ---- Transfers by id --------------------------------------------------------------------------------------------- */

#define BUCKETS_FIRST 64u

/* Ids count up, so their low bits spread well. */
static struct strait_transfer **bucket_of(const struct strait_client *client, uint64_t id)
{
    return &client->buckets[id & (client->bucket_count - 1)];
}

static void add_to_bucket(struct strait_client *client, struct strait_transfer *transfer)
{
    struct strait_transfer **bucket = bucket_of(client, transfer->id);
    transfer->bucket_next = *bucket;
    *bucket = transfer;
}

/* Without memory the old buckets still work, only slower; the first allocation must succeed. */
static enum strait_status grow(struct strait_client *client)
{
    if (client->transfer_count < client->bucket_count)
        return STRAIT_OK;
    uint32_t count = client->bucket_count > 0 ? client->bucket_count * 2 : BUCKETS_FIRST;
    struct strait_transfer **buckets = calloc(count, sizeof(struct strait_transfer *));
    if (buckets == NULL)
        return client->buckets != NULL ? STRAIT_OK : STRAIT_ERR_NO_MEMORY;
    free(client->buckets);
    client->buckets = buckets;
    client->bucket_count = count;
    for (struct strait_transfer *transfer = client->transfers; transfer != NULL; transfer = transfer->next)
        add_to_bucket(client, transfer);
    return STRAIT_OK;
}

static enum strait_status table_insert(struct strait_client *client, struct strait_transfer *transfer)
{
    if (grow(client) != STRAIT_OK)
        return STRAIT_ERR_NO_MEMORY;
    transfer->id = ++client->last_id;
    add_to_bucket(client, transfer);
    transfer->next = client->transfers;
    transfer->link = &client->transfers;
    if (transfer->next != NULL)
        transfer->next->link = &transfer->next;
    client->transfers = transfer;
    client->transfer_count++;
    answer_due(client, &client->live);
    return STRAIT_OK;
}

struct strait_transfer *table_find(const struct strait_client *client, uint64_t id)
{
    struct strait_transfer *transfer = client->buckets != NULL ? *bucket_of(client, id) : NULL;
    while (transfer != NULL && transfer->id != id)
        transfer = transfer->bucket_next;
    return transfer;
}

/* Nothing more is due from the daemon about the transfer. */
static void settle(struct strait_transfer *transfer)
{
    transfer->client->live -= !transfer->settled;
    transfer->settled = true;
}

static void table_remove(struct strait_transfer *transfer)
{
    if (transfer->link == NULL)
        return;
    settle(transfer);
    struct strait_transfer **at = bucket_of(transfer->client, transfer->id);
    while (*at != transfer)
        at = &(*at)->bucket_next;
    *at = transfer->bucket_next;
    *transfer->link = transfer->next;
    if (transfer->next != NULL)
        transfer->next->link = transfer->link;
    transfer->link = NULL;
    transfer->client->transfer_count--;
}

void transfer_destroy(struct strait_transfer *transfer)
{
    table_remove(transfer);
    stream_release(transfer);
    for (int i = 0; i < NODES; i++)
        for (int k = 0; k < 3; k++)
            free(transfer->nodes[i].payload[k]);
    free(transfer->peer);
    free(transfer->failed);
    free(transfer->lists);
    free(transfer);
}

/* ---- Events of a transfer ---------------------------------------------------------------------------------------- */

void transfer_event_seen(const struct strait_event *event)
{
    struct strait_transfer *transfer = event->transfer;
    if (transfer->released && transfer->handed + transfer->waiting == 0)
        transfer_destroy(transfer);
}

/* Each node is used only once, because states only rise. */
static struct event_node *prepare(struct strait_transfer *transfer, int which, enum strait_event_type type)
{
    struct event_node *node = &transfer->nodes[which];
    node->seen = transfer_event_seen;
    node->event.type = type;
    node->event.transfer = transfer;
    node->event.context = transfer->context;
    node->event.state = transfer->state;
    node->event.reason = transfer->reason;
    node->event.drained = transfer->drained;
    node->event.raw_bytes = transfer->raw_bytes;
    node->event.wire_bytes = transfer->wire_bytes;
    node->event.peer = transfer->peer != NULL ? transfer->peer : "";
    return node;
}

void transfer_advance(struct strait_transfer *transfer, enum strait_state state)
{
    if (transfer->ended || state <= transfer->state || state >= STRAIT_DONE)
        return;
    transfer->state = state;
    event_push(transfer->client,
               prepare(transfer, state == STRAIT_READY ? NODE_READY : NODE_TRANSFERRING, STRAIT_EVENT_STATE));
}

static void end(struct strait_transfer *transfer, enum strait_state state, enum strait_reason reason, bool drained)
{
    transfer->ended = true;
    transfer->state = state;
    transfer->reason = reason;
    transfer->drained = drained;
    if (drained)
        settle(transfer);
    stream_release(transfer);
    free(transfer->lists);
    transfer->lists = NULL;
}

void transfer_moved(struct strait_transfer *transfer, const struct message_state *state)
{
    transfer->raw_bytes = state->raw_bytes;
    transfer->wire_bytes = state->wire_bytes;
    free(transfer->peer);
    transfer->peer = state->peer.size > 0 ? strndup((const char *)state->peer.data, state->peer.size) : NULL;
}

void transfer_done(struct strait_transfer *transfer, void *aux, size_t aux_size)
{
    if (transfer->ended) {
        free(aux);
        return;
    }
    end(transfer, STRAIT_DONE, STRAIT_REASON_NONE, true);
    struct event_node *node = prepare(transfer, NODE_VERDICT, STRAIT_EVENT_STATE);
    node->event.data = node->payload[1] = aux;
    node->event.data_size = aux_size;
    event_push(transfer->client, node);
}

void transfer_fail(struct strait_transfer *transfer, enum strait_reason reason, bool drained, const char *text)
{
    if (transfer->ended)
        return;
    end(transfer, STRAIT_FAILED, reason, drained);
    struct event_node *node = prepare(transfer, NODE_VERDICT, STRAIT_EVENT_STATE);
    node->event.text = node->payload[2] = strdup(text); /* without memory there is only the reason */
    /* The failed pages received so far, if any, move into the verdict. */
    node->event.failed = node->payload[0] = transfer->failed;
    node->event.failed_count = transfer->failed_count;
    transfer->failed = NULL;
    transfer->failed_count = transfer->failed_capacity = 0;
    event_push(transfer->client, node);
}

void transfer_drained(struct strait_transfer *transfer)
{
    if (!transfer->ended || transfer->drained)
        return;
    transfer->drained = true;
    settle(transfer);
    event_push(transfer->client, prepare(transfer, NODE_DRAINED, STRAIT_EVENT_DRAINED));
}

/* ---- Verdicts of the library ------------------------------------------------------------------------------------- */

static uint32_t fill_failed(struct strait_failed_page *failed, const struct wire_page_list *list)
{
    for (uint32_t i = 0; i < list->count; i++) {
        uint32_t id = list->ids != NULL ? list->ids[i] : list->first_id + i;
        failed[i] = (struct strait_failed_page){list->group, id};
    }
    return list->count;
}

void transfer_give_up(struct strait_transfer *transfer, enum strait_reason reason, bool drained, const char *text)
{
    if (transfer->ended)
        return;
    outbox_drop_transfer(transfer->client, transfer);
    /* No page is known to be in place, so all are reported. Without memory the verdict comes without the list. */
    free(transfer->failed);
    transfer->failed_count = transfer->failed_capacity = 0;
    transfer->failed =
        transfer->sink && transfer->pages > 0 ? malloc(transfer->pages * sizeof(*transfer->failed)) : NULL;
    for (uint32_t i = 0; transfer->failed != NULL && i < transfer->list_count; i++)
        transfer->failed_count += fill_failed(transfer->failed + transfer->failed_count, &transfer->lists[i]);
    transfer_fail(transfer, reason, drained || !transfer->known, text);
}

/* When the library gives its own verdict. The daemons renew the lease of an offer that they know, or end it. Only a
 * daemon that hangs does neither: it has renewed the lease when it was last heard of, at the latest. */
static uint64_t transfer_due(const struct strait_transfer *transfer)
{
    const struct strait_client *client = transfer->client;
    if (transfer->ended || (transfer->known && !transfer->sink && !client->silent))
        return NEVER;
    if (!transfer->known)
        return transfer->deadline;
    uint64_t renewed = transfer->sink ? 0 : client->heard_at + transfer->lease_ms;
    return (renewed > transfer->deadline ? renewed : transfer->deadline) + GRACE_MS;
}

static void send_end(struct strait_transfer *transfer, enum message_type type)
{
    struct message message = {.type = type, .transfer.transfer = transfer->id};
    outbox_send_always(transfer->client, &message);
}

static void transfer_expire(struct strait_transfer *transfer)
{
    if (transfer->sink)
        transfer_give_up(transfer, STRAIT_REASON_TIMEOUT, false, "no word from the daemon until the deadline");
    else
        transfer_give_up(transfer, STRAIT_REASON_LEASE_EXPIRED, false,
                         transfer->known ? "no word from the daemon until the end of the lease"
                                         : "no daemon took the offer");
    if (transfer->known && transfer->client->state == READY)
        send_end(transfer, MESSAGE_ABORT);
}

void transfers_expire(struct strait_client *client, uint64_t now)
{
    if (now < client->next_due)
        return;
    client->next_due = NEVER;
    for (struct strait_transfer *transfer = client->transfers; transfer != NULL; transfer = transfer->next) {
        if (transfer_due(transfer) <= now)
            transfer_expire(transfer);
        uint64_t due = transfer_due(transfer);
        client->next_due = due < client->next_due ? due : client->next_due;
    }
}

void transfers_fail(struct strait_client *client, enum strait_reason reason, bool drained, const char *text,
                    bool known_only)
{
    for (struct strait_transfer *transfer = client->transfers; transfer != NULL; transfer = transfer->next)
        if (transfer->known || !known_only)
            transfer_give_up(transfer, reason, drained, text);
}

void transfers_drained(struct strait_client *client)
{
    for (struct strait_transfer *transfer = client->transfers; transfer != NULL; transfer = transfer->next) {
        transfer_drained(transfer);
        transfer->known = transfer->known && !transfer->ended;
    }
}

/* ---- Page lists: check ------------------------------------------------------------------------------------------- */

static bool list_valid(const struct strait_pool *pool, const struct strait_page_list *list)
{
    if (list->group >= pool->group_count || list->count > STRAIT_TRANSFER_PAGES_MAX ||
        list->count > UINT32_MAX - list->first)
        return false;
    uint32_t limit = pool->group_pages[list->group];
    if (list->ids != NULL) {
        uint32_t highest = 0;
        for (uint32_t i = 0; i < list->count; i++)
            highest = list->ids[i] > highest ? list->ids[i] : highest;
        return list->count == 0 || highest < limit;
    }
    return list->count <= limit && list->first_id <= limit - list->count;
}

enum strait_status lists_check(const struct strait_pool *pool, const struct strait_page_list *lists, uint32_t count,
                               uint64_t *pages)
{
    if (count > 0 && lists == NULL)
        return STRAIT_ERR_INVALID;
    for (uint32_t i = 0; i < count; i++) {
        if (!list_valid(pool, &lists[i]))
            return STRAIT_ERR_INVALID;
        *pages += lists[i].count;
        if (*pages > STRAIT_TRANSFER_PAGES_MAX)
            return STRAIT_ERR_INVALID;
    }
    return STRAIT_OK;
}

/* ---- Page lists: one message or several -------------------------------------------------------------------------- */

/* Where the next message begins in the lists. */
struct cursor {
    const struct strait_page_list *lists;
    uint32_t count;  /* lists left */
    uint32_t offset; /* pages of the first list that were sent already */
};

static struct wire_page_list part_of(const struct strait_page_list *list, uint32_t offset, uint32_t count)
{
    return (struct wire_page_list){
        .group = list->group,
        .first = list->first + offset,
        .count = count,
        .first_id = list->ids != NULL ? 0 : list->first_id + offset,
        .ids = list->ids != NULL ? list->ids + offset : NULL,
    };
}

static void next_list(struct cursor *cursor)
{
    cursor->lists++;
    cursor->count--;
    cursor->offset = 0;
}

/* Fills one message's lists and returns their number. Empty lists are skipped, so after the last page none is left. */
static uint32_t next_lists(struct cursor *cursor, struct wire_page_list *wire)
{
    uint32_t filled = 0, room = MESSAGE_IDS_MAX;
    while (cursor->count > 0 && filled < MESSAGE_LIST_MAX && room > 0) {
        uint32_t left = cursor->lists->count - cursor->offset;
        uint32_t take = left < room ? left : room;
        if (take > 0)
            wire[filled++] = part_of(cursor->lists, cursor->offset, take);
        room -= take;
        cursor->offset += take;
        if (take == left)
            next_list(cursor);
    }
    while (cursor->count > 0 && cursor->lists->count == 0)
        next_list(cursor);
    return filled;
}

/* Only the last message may say that nothing follows. */
static struct message part_message(const struct message *whole, const struct wire_page_list *lists, uint32_t count,
                                   bool more)
{
    struct message part = *whole;
    if (part.type == MESSAGE_EXPECT) {
        part.expect.lists = lists;
        part.expect.list_count = count;
        part.expect.more = more;
    } else if (part.type == MESSAGE_OFFER) {
        part.offer.lists = lists;
        part.offer.list_count = count;
        part.offer.more = more;
        part.offer.last = whole->offer.last && !more;
        part.offer.aux = more ? view_of(NULL, 0) : whole->offer.aux;
    } else if (part.type == MESSAGE_READ) {
        part.read.lists = lists;
        part.read.list_count = count;
        part.read.more = more;
    } else if (part.type == MESSAGE_SERVE) {
        part.serve.lists = lists;
        part.serve.list_count = count;
        part.serve.more = more || whole->serve.more;
    } else {
        part.append.lists = lists;
        part.append.list_count = count;
        part.append.more = more;
        part.append.last = whole->append.last && !more;
        part.append.aux = more ? view_of(NULL, 0) : whole->append.aux;
    }
    return part;
}

enum strait_status lists_send(struct strait_client *client, struct strait_transfer *transfer,
                              const struct message *message, const struct strait_page_list *lists, uint32_t count)
{
    struct cursor cursor = {lists, count, 0};
    uint32_t most = count < MESSAGE_LIST_MAX ? count + 1 : MESSAGE_LIST_MAX;
    struct wire_page_list *wire = malloc(most * sizeof(*wire));
    enum strait_status status = wire != NULL ? STRAIT_OK : STRAIT_ERR_NO_MEMORY;
    bool more = true;
    while (status == STRAIT_OK && more) {
        uint32_t filled = next_lists(&cursor, wire);
        more = cursor.count > 0;
        struct message part = part_message(message, wire, filled, more);
        status = outbox_send(client, &part, transfer, NULL);
    }
    free(wire);
    return status;
}

/* ---- Creating a transfer ----------------------------------------------------------------------------------------- */

/* Arguments that expectations and offers share. */
struct request_args {
    bool sink;
    const void *key;
    size_t key_size;
    const struct strait_page_list *lists;
    uint32_t list_count;
    uint32_t parts;
    uint32_t time_ms;
    void *context;
};

/* A sink's lists are kept, because its failure has to name the pages. */
static enum strait_status fill(struct strait_transfer *transfer, const struct request_args *args)
{
    enum strait_status status = lists_check(transfer->pool, args->lists, args->list_count, &transfer->pages);
    if (status != STRAIT_OK)
        return status;
    transfer->sink = args->sink;
    transfer->context = args->context;
    transfer->state = STRAIT_BOOTSTRAP;
    transfer->deadline = clock_ms() + args->time_ms;
    transfer->lease_ms = args->time_ms;
    transfer->key_size = args->key_size;
    memcpy(transfer->key, args->key, args->key_size);
    if (!args->sink)
        return STRAIT_OK;
    transfer->list_count = args->list_count;
    transfer->lists = lists_copy(args->lists, args->list_count);
    return transfer->lists != NULL ? STRAIT_OK : STRAIT_ERR_NO_MEMORY;
}

/* A daemon that ended while nothing was due from it has not been missed yet: what is new waits for the next one, as
 * after a GOAWAY, instead of failing with it. */
static void notice_end(struct strait_client *client)
{
    if (client->state == READY && client->live == 0 && !client->going && channel_has_ended(client->channel)) {
        client->going = true;
        event_signal(client);
    }
}

static enum strait_status create(struct strait_pool *pool, const struct request_args *args,
                                 struct strait_transfer **transfer)
{
    if (pool->removing || !bytes_valid(args->key, args->key_size, 1, STRAIT_KEY_BYTES_MAX) ||
        args->parts > STRAIT_PARTS_MAX || args->time_ms <= 0 || args->time_ms > DEADLINE_MAX_MS)
        return STRAIT_ERR_INVALID;
    struct strait_transfer *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return STRAIT_ERR_NO_MEMORY;
    made->client = pool->client;
    made->pool = pool;
    notice_end(made->client);
    enum strait_status status = fill(made, args);
    if (status == STRAIT_OK)
        status = table_insert(pool->client, made);
    if (status != STRAIT_OK) {
        transfer_destroy(made);
        return status;
    }
    *transfer = made;
    return STRAIT_OK;
}

/* Sends a new transfer. One that fails half-way is released: the caller gets no handle. */
static enum strait_status begin(struct strait_transfer *transfer, const struct message *message,
                                const struct strait_page_list *lists, uint32_t list_count)
{
    if (transfer->pool->refused) {
        transfer_give_up(transfer, STRAIT_REASON_LOCAL, true, "the daemon refused the pool");
        return STRAIT_OK;
    }
    enum strait_status status = lists_send(transfer->client, transfer, message, lists, list_count);
    if (status != STRAIT_OK) {
        strait_release(transfer);
        return status;
    }
    outbox_flush(transfer->client);
    struct strait_client *client = transfer->client;
    uint64_t due = transfer_due(transfer);
    client->next_due = due < client->next_due ? due : client->next_due;
    timer_update(client);
    return STRAIT_OK;
}

/* ---- Expect and offer -------------------------------------------------------------------------------------------- */

static struct view key_view(const struct strait_transfer *transfer)
{
    return view_of(transfer->key, transfer->key_size);
}

static struct message expect_message(const struct strait_transfer *transfer, const struct strait_expect_params *params)
{
    struct message message = {.type = MESSAGE_EXPECT};
    message.expect.transfer = transfer->id;
    message.expect.pool = transfer->pool->id;
    message.expect.key = key_view(transfer);
    message.expect.sources = params->sources > 0 ? params->sources : 1;
    message.expect.deadline_ms = params->deadline_ms;
    message.expect.tokens = params->tokens;
    message.expect.pages = params->tell_pages;
    message.expect.within = params->begins_within;
    return message;
}

enum strait_status strait_expect(struct strait_pool *pool, const struct strait_expect_params *params,
                                 struct strait_transfer **transfer)
{
    struct strait_expect_params p;
    uint8_t context[TRACE_BYTES];
    struct view trace;
    if (pool == NULL || transfer == NULL ||
        !params_read(&p, sizeof(p), offsetof(struct strait_expect_params, traceparent), params) ||
        !trace_read(p.traceparent, context, &trace))
        return STRAIT_ERR_INVALID;
    struct request_args args = {true, p.key, p.key_size, p.lists, p.list_count, p.sources, p.deadline_ms, p.context};
    struct strait_transfer *made = NULL;
    enum strait_status status = create(pool, &args, &made);
    if (status != STRAIT_OK)
        return status;
    struct message message = expect_message(made, &p);
    message.expect.trace = trace;
    status = begin(made, &message, p.lists, p.list_count);
    if (status == STRAIT_OK)
        *transfer = made;
    return status;
}

/* An event in the form that the daemon takes: its IPC handle, or in embedded mode the cudaEvent_t itself. */
static struct view event_view(const struct strait_client *client, void *const *event)
{
    if (*event == NULL)
        return view_of(NULL, 0);
    return client->embedded != NULL ? view_of(event, MESSAGE_EVENT_POINTER) : view_of(*event, MESSAGE_EVENT_IPC);
}

static struct message offer_message(const struct strait_transfer *transfer, const struct strait_offer_params *params)
{
    struct message message = {.type = MESSAGE_OFFER};
    message.offer.transfer = transfer->id;
    message.offer.pool = transfer->pool->id;
    message.offer.key = key_view(transfer);
    message.offer.asked = params->consumers == STRAIT_CONSUMERS_ASKED;
    message.offer.consumers = message.offer.asked || params->consumers == 0 ? 1 : params->consumers;
    message.offer.lease_ms = params->lease_ms;
    message.offer.later = params->later;
    message.offer.last = params->last;
    message.offer.aux = view_of(params->aux, params->aux_size);
    message.offer.ready = event_view(transfer->client, &params->ready);
    return message;
}

/* A payload needs `last`; `later` excludes both `last` and an event. */
static bool offer_valid(const struct strait_offer_params *params)
{
    return bytes_valid(params->aux, params->aux_size, 0, params->last ? STRAIT_AUX_BYTES_MAX : 0) &&
           !(params->later && (params->last || params->ready != NULL));
}

enum strait_status strait_offer(struct strait_pool *pool, const struct strait_offer_params *params,
                                struct strait_transfer **transfer)
{
    struct strait_offer_params p;
    uint8_t context[TRACE_BYTES];
    struct view trace;
    if (pool == NULL || transfer == NULL ||
        !params_read(&p, sizeof(p), offsetof(struct strait_offer_params, traceparent), params) || !offer_valid(&p) ||
        !trace_read(p.traceparent, context, &trace))
        return STRAIT_ERR_INVALID;
    if (p.ready != NULL && !pool_on_gpu(pool))
        return STRAIT_ERR_UNSUPPORTED;
    const bool asked = p.consumers == STRAIT_CONSUMERS_ASKED;
    struct request_args args = {false,      p.key,    p.key_size, p.lists, p.list_count, asked ? 1 : p.consumers,
                                p.lease_ms, p.context};
    struct strait_transfer *made = NULL;
    enum strait_status status = create(pool, &args, &made);
    if (status != STRAIT_OK)
        return status;
    made->last = p.last;
    made->asked = asked;
    struct message message = offer_message(made, &p);
    message.offer.trace = trace;
    status = begin(made, &message, p.lists, p.list_count);
    if (status == STRAIT_OK)
        *transfer = made;
    return status;
}

/* ---- Append ------------------------------------------------------------------------------------------------------ */

/* A payload needs `last`; what is listed as `later` has neither layers nor an event, and is not the last. */
static bool append_valid(const struct strait_append_params *params)
{
    const bool layers =
        params->layer_count == 0 || (params->layer_first >= -1 && params->layer_count <= (uint32_t)INT32_MAX &&
                                     params->layer_first <= INT32_MAX - (int32_t)params->layer_count);
    return layers && bytes_valid(params->aux, params->aux_size, 0, params->last ? STRAIT_AUX_BYTES_MAX : 0) &&
           !(params->later &&
             (params->last || params->ready != NULL || params->layer_count != 0 || params->list_count == 0));
}

static struct message append_message(const struct strait_transfer *transfer, const struct strait_append_params *params)
{
    struct message message = {.type = MESSAGE_APPEND};
    message.append.transfer = transfer->id;
    message.append.layer_first = params->layer_first;
    message.append.layer_count = params->layer_count;
    message.append.last = params->last;
    message.append.later = params->later;
    message.append.aux = view_of(params->aux, params->aux_size);
    message.append.ready = event_view(transfer->client, &params->ready);
    return message;
}

/* If only a part of an append can be sent the offer is aborted, as the daemon would wait for the rest. */
static enum strait_status send_append(struct strait_transfer *transfer, const struct strait_append_params *params)
{
    struct message message = append_message(transfer, params);
    enum strait_status status = lists_send(transfer->client, transfer, &message, params->lists, params->list_count);
    if (status != STRAIT_OK)
        strait_abort(transfer);
    outbox_flush(transfer->client);
    return status;
}

enum strait_status strait_append(struct strait_transfer *transfer, const struct strait_append_params *params)
{
    if (transfer == NULL || params == NULL || !params_known(params, params->size, sizeof(*params)))
        return STRAIT_ERR_INVALID;
    if (transfer->sink || transfer->last || transfer->pool == NULL || transfer->pool->removing || !append_valid(params))
        return STRAIT_ERR_INVALID;
    if (params->ready != NULL && !pool_on_gpu(transfer->pool))
        return STRAIT_ERR_UNSUPPORTED;
    uint64_t pages = 0; /* the daemon counts those that are new */
    enum strait_status status = lists_check(transfer->pool, params->lists, params->list_count, &pages);
    if (status != STRAIT_OK)
        return status;
    if (params->list_count > 0 && pages == 0)
        return STRAIT_ERR_INVALID; /* lists without pages: on the wire they would mean those listed as `later` */
    status = transfer->ended ? STRAIT_OK : send_append(transfer, params);
    if (status == STRAIT_OK)
        transfer->last = params->last;
    return status;
}

/* ---- Start ------------------------------------------------------------------------------------------------------- */

static bool direction_valid(const struct strait_transfer *transfer, enum strait_direction direction)
{
    return direction == STRAIT_AUTO || direction == (transfer->sink ? STRAIT_PULL : STRAIT_PUSH);
}

static struct message start_message(const struct strait_transfer *transfer, const struct strait_peer *peer,
                                    const struct strait_start_params *params)
{
    struct message message = {.type = MESSAGE_START};
    message.start.transfer = transfer->id;
    message.start.peer_pool = peer->blob.pool;
    message.start.peer_address = view_of(peer->blob.address, strlen(peer->blob.address));
    message.start.peer_key = view_of(params->peer_key, params->peer_key_size);
    message.start.direction = params->direction;
    message.start.consumers = transfer->sink ? params->consumers : 0;
    message.start.mismatch =
        strait_peer_check(transfer->pool, peer) &
        ~(uint32_t)(STRAIT_MISMATCH_CODEBOOK | STRAIT_MISMATCH_RESHAPED); /* that is told by SEGMENTS */
    return message;
}

enum strait_status strait_start(struct strait_transfer *transfer, const struct strait_peer *peer,
                                const struct strait_start_params *params)
{
    struct strait_start_params p = {.size = sizeof(p)};
    if (transfer == NULL || peer == NULL || peer->client != transfer->client || transfer->pool == NULL ||
        transfer->asked ||
        (params != NULL && !params_read(&p, sizeof(p), offsetof(struct strait_start_params, consumers), params)) ||
        !direction_valid(transfer, p.direction) || p.consumers > STRAIT_PARTS_MAX ||
        !bytes_valid(p.peer_key, p.peer_key_size, p.peer_key != NULL, STRAIT_KEY_BYTES_MAX))
        return STRAIT_ERR_INVALID;
    const bool over = transfer->ended || transfer->aborting;
    if (!over && (strait_peer_check(transfer->pool, peer) & STRAIT_MISMATCH_FATAL) != 0)
        return STRAIT_ERR_INVALID;
    /* With a verdict it starts nothing, but the other side is told not to wait. */
    if (over && (transfer->state == STRAIT_DONE || (!transfer->known && !transfer->sink)))
        return STRAIT_OK;
    struct message message = start_message(transfer, peer, &p);
    transfer->client->stepped = true;
    enum strait_status status = over && !transfer->known ? outbox_withdraw(transfer->client, transfer, &message)
                                                         : outbox_send(transfer->client, &message, transfer, peer);
    outbox_flush(transfer->client);
    return status;
}

/* ---- Abort and release ------------------------------------------------------------------------------------------- */

void strait_abort(struct strait_transfer *transfer)
{
    if (transfer == NULL || transfer->ended || transfer->aborting)
        return;
    outbox_drop_transfer(transfer->client, transfer);
    stream_release(transfer);
    if (!transfer->known) {
        transfer_give_up(transfer, STRAIT_REASON_ABORTED, true, "");
        return;
    }
    transfer->aborting = true;
    send_end(transfer, MESSAGE_ABORT);
    outbox_flush(transfer->client);
}

/* Messages that the daemon still sends about the transfer no longer find it and are ignored. */
void strait_release(struct strait_transfer *transfer)
{
    if (transfer == NULL)
        return;
    struct strait_client *client = transfer->client;
    outbox_drop_transfer(client, transfer);
    if (transfer->known && client->state == READY) {
        send_end(transfer, MESSAGE_RELEASE);
        outbox_flush(client);
    }
    if (transfer->waiting > 0)
        events_drop(client, transfer);
    stream_release(transfer);
    table_remove(transfer);
    transfer->released = true;
    if (transfer->handed == 0)
        transfer_destroy(transfer);
}

enum strait_status strait_decline(struct strait_pool *pool, const struct strait_peer *peer, const void *peer_key,
                                  size_t peer_key_size)
{
    static const char prefix[] = "declined ";
    uint8_t key[sizeof(prefix) + sizeof(uint64_t)] = {0};
    struct strait_transfer *transfer;
    if (pool == NULL || peer == NULL || !bytes_valid(peer_key, peer_key_size, 1, STRAIT_KEY_BYTES_MAX))
        return STRAIT_ERR_INVALID;
    notice_end(pool->client);
    if (pool->client->state != READY || pool->client->going)
        return STRAIT_ERR_AGAIN;
    memcpy(key, prefix, sizeof(prefix)); /* no other live expectation has it */
    memcpy(key + sizeof(prefix), &pool->client->last_id, sizeof(uint64_t));
    const struct strait_expect_params nothing = {
        .size = sizeof(nothing), .key = key, .key_size = sizeof(key), .deadline_ms = DECLINE_MS};
    const struct strait_start_params start = {
        .size = sizeof(start), .peer_key = peer_key, .peer_key_size = peer_key_size};
    enum strait_status status = strait_expect(pool, &nothing, &transfer);
    if (status != STRAIT_OK)
        return status;
    strait_abort(transfer); /* the start of a request that was given up tells the source so */
    status = strait_start(transfer, peer, &start);
    strait_release(transfer);
    return status;
}

/* ---- Progress ---------------------------------------------------------------------------------------------------- */

struct strait_progress strait_transfer_progress(const struct strait_transfer *transfer)
{
    return (struct strait_progress){
        .state = transfer->state,
        .reason = transfer->reason,
        .drained = transfer->drained,
        .layers_landed = transfer->layers_landed,
        .pages_landed = transfer->pages_landed,
    };
}
