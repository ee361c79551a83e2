#include <stdlib.h>
#include <string.h>

#include "client/client.h"
#include "client/gpu.h"

/* ---- Checking ---------------------------------------------------------------------------------------------------- */

static bool ids_below(const uint32_t *ids, uint32_t count, uint32_t limit)
{
    uint32_t highest = 0;
    for (uint32_t i = 0; i < count; i++)
        highest = ids[i] > highest ? ids[i] : highest;
    return count == 0 || highest < limit;
}

static bool list_valid(const struct strait_pool *pool, const struct strait_page_list *list)
{
    if (list->group >= pool->group_count || list->count > STRAIT_TRANSFER_PAGES_MAX ||
        list->count > UINT32_MAX - list->first)
        return false;
    uint32_t limit = pool->group_pages[list->group];
    if (list->ids != NULL)
        return ids_below(list->ids, list->count, limit);
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

/* ---- Splitting --------------------------------------------------------------------------------------------------- */

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
    } else {
        part.append.lists = lists;
        part.append.list_count = count;
        part.append.more = more;
        part.append.last = whole->append.last && !more;
        part.append.aux = more ? view_of(NULL, 0) : whole->append.aux;
    }
    return part;
}

enum strait_status lists_send(struct strait_transfer *transfer, const struct message *message,
                              const struct strait_page_list *lists, uint32_t count)
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
        status = outbox_send(transfer->client, &part, transfer, NULL);
    }
    free(wire);
    return status;
}

/* GPU streams that wait for a transfer. A stream waits for a word. The daemon raises the word when the pages are in
 * place or the transfer has failed; the library raises it when it gives the verdict itself. */

struct stream_wait {
    uint32_t word, value;
};

/* ---- What may be waited for -------------------------------------------------------------------------------------- */

static bool has_layer(const struct strait_pool *pool, int32_t layer)
{
    for (uint32_t r = 0; r < pool->region_count; r++)
        if (pool->wire[r].layer == layer)
            return true;
    return false;
}

/* A removed pool has ended its transfers: they have their verdicts, and nothing has to wait. */
static enum strait_status check(const struct strait_transfer *transfer, int32_t layer)
{
    if (transfer == NULL || !transfer->sink || layer < -1)
        return STRAIT_ERR_INVALID;
    if (transfer->client->embedded != NULL)
        return STRAIT_ERR_UNSUPPORTED;
    if (transfer->pool == NULL)
        return STRAIT_OK;
    if (!pool_on_gpu(transfer->pool))
        return STRAIT_ERR_UNSUPPORTED;
    return layer < 0 || has_layer(transfer->pool, layer) ? STRAIT_OK : STRAIT_ERR_INVALID;
}

/* ---- Words ------------------------------------------------------------------------------------------------------- */

/* Pins the words through the current context, for all contexts. */
static enum strait_status pin(struct words *words, const struct gpu *gpu)
{
    if (!words->pinned && gpu->host_register(words->at, WORDS_BYTES, GPU_REGISTER_FLAGS) != 0)
        return STRAIT_ERR_DEVICE;
    words->pinned = true;
    return STRAIT_OK;
}

struct message words_message(void)
{
    return (struct message){.type = MESSAGE_WORDS, .words = {.count = WORDS_COUNT}};
}

/* Gets the client its words. A daemon that is not connected is told of them when it connects. */
static enum strait_status open_words(struct strait_client *client, const struct gpu *gpu)
{
    if (client->words != NULL)
        return STRAIT_OK;
    struct words *words = words_get();
    if (words == NULL)
        return STRAIT_ERR_NO_MEMORY;
    enum strait_status status = pin(words, gpu);
    client->words = words;
    if (status == STRAIT_OK && client->state == READY) {
        struct message message = words_message();
        status = outbox_send(client, &message, NULL, NULL);
    }
    if (status == STRAIT_OK)
        return STRAIT_OK;
    client->words = NULL;
    words_put(words);
    return status;
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

static struct stream_wait *add_wait(struct strait_transfer *transfer)
{
    size_t size = (transfer->wait_count + 1) * sizeof(*transfer->waits);
    struct stream_wait *waits = realloc(transfer->waits, size);
    if (waits == NULL)
        return NULL;
    transfer->waits = waits;
    return &waits[transfer->wait_count];
}

static enum strait_status send_wait(struct strait_transfer *transfer, int32_t layer, const struct stream_wait *wait)
{
    struct message message = {.type = MESSAGE_WAIT};
    message.wait =
        (struct message_wait){.transfer = transfer->id, .layer = layer, .word = wait->word, .value = wait->value};
    return outbox_send(transfer->client, &message, transfer, NULL);
}

/* Sends the message before the stream waits: if the daemon were not asked, the stream would wait until the verdict. */
static enum strait_status begin_wait(struct strait_transfer *transfer, int32_t layer, const struct gpu *gpu,
                                     void *stream)
{
    struct words *words = transfer->client->words;
    struct stream_wait *wait = add_wait(transfer);
    uint64_t address;
    if (wait == NULL || !words_take(words, &wait->word, &wait->value))
        return STRAIT_ERR_NO_MEMORY;
    enum strait_status status = send_wait(transfer, layer, wait);
    if (status == STRAIT_OK && (gpu->host_device_pointer(&address, &words->at[wait->word], 0) != 0 ||
                                gpu->stream_wait_value(stream, address, wait->value, GPU_WAIT_GEQ) != 0))
        status = STRAIT_ERR_DEVICE;
    if (status == STRAIT_OK)
        transfer->wait_count++;
    else
        words_raise(words, wait->word, wait->value);
    return status;
}

/* Runs with the stream's context current. */
static enum strait_status wait_in_context(struct strait_transfer *transfer, int32_t layer, const struct gpu *gpu,
                                          void *stream)
{
    int capturing = 0;
    if (gpu->stream_is_capturing(stream, &capturing) != 0)
        return STRAIT_ERR_DEVICE;
    if (capturing != 0)
        return STRAIT_ERR_INVALID;
    enum strait_status status = open_words(transfer->client, gpu);
    return status == STRAIT_OK ? begin_wait(transfer, layer, gpu, stream) : status;
}

enum strait_status strait_wait_stream(struct strait_transfer *transfer, int32_t layer, void *stream)
{
    enum strait_status status = check(transfer, layer);
    if (status != STRAIT_OK || transfer->ended)
        return status;
    const struct gpu *gpu = gpu_driver();
    void *context = NULL;
    if (gpu == NULL)
        return STRAIT_ERR_UNSUPPORTED;
    if (gpu->stream_context(stream, &context) != 0 || gpu->context_push(context) != 0)
        return STRAIT_ERR_DEVICE;
    status = wait_in_context(transfer, layer, gpu, stream);
    (void)gpu->context_pop(&context);
    connection_flush(transfer->client);
    return status;
}

void stream_release(struct strait_transfer *transfer)
{
    for (uint32_t i = 0; i < transfer->wait_count; i++)
        words_raise(transfer->client->words, transfer->waits[i].word, transfer->waits[i].value);
    free(transfer->waits);
    transfer->waits = NULL;
    transfer->wait_count = 0;
}

static struct message note_message(const struct strait_peer *peer, struct view key, struct view data)
{
    struct message message = {.type = MESSAGE_NOTIFY};
    message.notify.peer_pool = peer->blob.pool;
    message.notify.peer_address = view_of(peer->blob.address, strlen(peer->blob.address));
    message.notify.key = key;
    message.notify.data = data;
    return message;
}

/* Notes have no deadline, so the number that wait for a daemon that is away is limited. */
enum strait_status strait_notify(const struct strait_peer *peer, const void *key, size_t key_size, const void *data,
                                 size_t data_size)
{
    if (peer == NULL || !bytes_valid(key, key_size, 1, STRAIT_KEY_BYTES_MAX) ||
        !bytes_valid(data, data_size, 0, STRAIT_NOTE_BYTES_MAX))
        return STRAIT_ERR_INVALID;
    if (peer->client->outbox.notes >= NOTES_AHEAD)
        return STRAIT_ERR_AGAIN;
    struct message message = note_message(peer, view_of(key, key_size), view_of(data, data_size));
    enum strait_status status = outbox_send(peer->client, &message, NULL, NULL);
    connection_flush(peer->client);
    return status;
}

enum strait_status strait_stats(struct strait_client *client)
{
    if (client == NULL)
        return STRAIT_ERR_INVALID;
    if (client->state != READY)
        return STRAIT_ERR_AGAIN;
    struct message message = {.type = MESSAGE_STATS};
    enum strait_status status = outbox_send(client, &message, NULL, NULL);
    connection_flush(client);
    return status;
}

/* ---- Making one -------------------------------------------------------------------------------------------------- */

/* What expectations and offers have in common. */
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

static bool demand_valid(const struct strait_pool *pool, const struct request_args *request_args)
{
    return !pool->removing && bytes_valid(request_args->key, request_args->key_size, 1, STRAIT_KEY_BYTES_MAX) &&
           request_args->parts <= STRAIT_PARTS_MAX && request_args->time_ms > 0 &&
           request_args->time_ms <= DEADLINE_MAX_MS;
}

/* A sink's lists are kept, because its failure has to name the pages. */
static enum strait_status fill(struct strait_transfer *transfer, const struct request_args *request_args)
{
    enum strait_status status =
        lists_check(transfer->pool, request_args->lists, request_args->list_count, &transfer->pages);
    if (status != STRAIT_OK)
        return status;
    transfer->sink = request_args->sink;
    transfer->context = request_args->context;
    transfer->state = STRAIT_BOOTSTRAP;
    transfer->deadline = clock_ms() + request_args->time_ms;
    transfer->key_size = request_args->key_size;
    memcpy(transfer->key, request_args->key, request_args->key_size);
    if (!request_args->sink)
        return STRAIT_OK;
    transfer->list_count = request_args->list_count;
    transfer->lists = lists_copy(request_args->lists, request_args->list_count);
    return transfer->lists != NULL ? STRAIT_OK : STRAIT_ERR_NO_MEMORY;
}

static enum strait_status create(struct strait_pool *pool, const struct request_args *request_args,
                                 struct strait_transfer **transfer)
{
    if (!demand_valid(pool, request_args))
        return STRAIT_ERR_INVALID;
    struct strait_transfer *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return STRAIT_ERR_NO_MEMORY;
    made->client = pool->client;
    made->pool = pool;
    enum strait_status status = fill(made, request_args);
    if (status == STRAIT_OK)
        status = table_insert(pool->client, made);
    if (status != STRAIT_OK) {
        transfer_destroy(made);
        return status;
    }
    *transfer = made;
    return STRAIT_OK;
}

static void watch_deadline(struct strait_transfer *transfer)
{
    struct strait_client *client = transfer->client;
    uint64_t due = transfer_due(transfer);
    client->next_due = due < client->next_due ? due : client->next_due;
    timer_update(client);
}

/* Sends a new transfer. One that fails half-way is released: the caller gets no handle. */
static enum strait_status begin(struct strait_transfer *transfer, const struct message *message,
                                const struct strait_page_list *lists, uint32_t list_count)
{
    if (transfer->pool->refused) {
        transfer_give_up(transfer, STRAIT_REASON_LOCAL, true, "the daemon refused the pool");
        return STRAIT_OK;
    }
    enum strait_status status = lists_send(transfer, message, lists, list_count);
    if (status != STRAIT_OK) {
        strait_release(transfer);
        return status;
    }
    connection_flush(transfer->client);
    watch_deadline(transfer);
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
    return message;
}

enum strait_status strait_expect(struct strait_pool *pool, const struct strait_expect_params *params,
                                 struct strait_transfer **transfer)
{
    if (pool == NULL || transfer == NULL || params == NULL || !params_known(params, params->size, sizeof(*params)))
        return STRAIT_ERR_INVALID;
    struct request_args request_args = {true,
                                        params->key,
                                        params->key_size,
                                        params->lists,
                                        params->list_count,
                                        params->sources,
                                        params->deadline_ms,
                                        params->context};
    struct strait_transfer *made = NULL;
    enum strait_status status = create(pool, &request_args, &made);
    if (status != STRAIT_OK)
        return status;
    struct message message = expect_message(made, params);
    status = begin(made, &message, params->lists, params->list_count);
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
    message.offer.consumers = params->consumers > 0 ? params->consumers : 1;
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
    if (pool == NULL || transfer == NULL || params == NULL || !params_known(params, params->size, sizeof(*params)) ||
        !offer_valid(params))
        return STRAIT_ERR_INVALID;
    if (params->ready != NULL && !pool_on_gpu(pool))
        return STRAIT_ERR_UNSUPPORTED;
    struct request_args request_args = {false,
                                        params->key,
                                        params->key_size,
                                        params->lists,
                                        params->list_count,
                                        params->consumers,
                                        params->lease_ms,
                                        params->context};
    struct strait_transfer *made = NULL;
    enum strait_status status = create(pool, &request_args, &made);
    if (status != STRAIT_OK)
        return status;
    made->last = params->last;
    struct message message = offer_message(made, params);
    status = begin(made, &message, params->lists, params->list_count);
    if (status == STRAIT_OK)
        *transfer = made;
    return status;
}

/* ---- Append ------------------------------------------------------------------------------------------------------ */

static bool layers_valid(const struct strait_append_params *params)
{
    return params->layer_count == 0 || (params->layer_first >= -1 && params->layer_count <= (uint32_t)INT32_MAX &&
                                        params->layer_first <= INT32_MAX - (int32_t)params->layer_count);
}

static bool append_valid(const struct strait_transfer *transfer, const struct strait_append_params *params)
{
    return !transfer->sink && !transfer->last && transfer->pool != NULL && !transfer->pool->removing &&
           layers_valid(params) &&
           bytes_valid(params->aux, params->aux_size, 0, params->last ? STRAIT_AUX_BYTES_MAX : 0);
}

static struct message append_message(const struct strait_transfer *transfer, const struct strait_append_params *params)
{
    struct message message = {.type = MESSAGE_APPEND};
    message.append.transfer = transfer->id;
    message.append.layer_first = params->layer_first;
    message.append.layer_count = params->layer_count;
    message.append.last = params->last;
    message.append.aux = view_of(params->aux, params->aux_size);
    message.append.ready = event_view(transfer->client, &params->ready);
    return message;
}

/* If only a part of an append can be sent the offer is aborted, as the daemon would wait for the rest. */
static enum strait_status send_append(struct strait_transfer *transfer, const struct strait_append_params *params)
{
    struct message message = append_message(transfer, params);
    enum strait_status status = lists_send(transfer, &message, params->lists, params->list_count);
    if (status != STRAIT_OK)
        strait_abort(transfer);
    connection_flush(transfer->client);
    return status;
}

enum strait_status strait_append(struct strait_transfer *transfer, const struct strait_append_params *params)
{
    if (transfer == NULL || params == NULL || !params_known(params, params->size, sizeof(*params)))
        return STRAIT_ERR_INVALID;
    if (!append_valid(transfer, params))
        return STRAIT_ERR_INVALID;
    if (params->ready != NULL && !pool_on_gpu(transfer->pool))
        return STRAIT_ERR_UNSUPPORTED;
    uint64_t pages = transfer->pages;
    enum strait_status status = lists_check(transfer->pool, params->lists, params->list_count, &pages);
    if (status != STRAIT_OK)
        return status;
    if (params->list_count > 0 && pages == transfer->pages)
        return STRAIT_ERR_INVALID; /* lists without pages: on the wire they would mean the pages announced `later` */
    transfer->pages = pages;
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
    message.start.mismatch = strait_peer_check(transfer->pool, peer) & ~(uint32_t)STRAIT_MISMATCH_CODEBOOK;
    return message;
}

enum strait_status strait_start(struct strait_transfer *transfer, const struct strait_peer *peer,
                                const struct strait_start_params *params)
{
    static const struct strait_start_params defaults = {.size = sizeof(defaults)};
    if (params == NULL)
        params = &defaults;
    if (transfer == NULL || peer == NULL || peer->client != transfer->client || transfer->pool == NULL ||
        !params_known(params, params->size, sizeof(*params)) || !direction_valid(transfer, params->direction) ||
        !bytes_valid(params->peer_key, params->peer_key_size, params->peer_key != NULL, STRAIT_KEY_BYTES_MAX))
        return STRAIT_ERR_INVALID;
    if ((strait_peer_check(transfer->pool, peer) & STRAIT_MISMATCH_FATAL) != 0)
        return STRAIT_ERR_INVALID;
    if (transfer->ended || transfer->aborting)
        return STRAIT_OK; /* it has its verdict, or that is on the way */
    struct message message = start_message(transfer, peer, params);
    enum strait_status status = outbox_send(transfer->client, &message, transfer, peer);
    connection_flush(transfer->client);
    return status;
}

/* ---- Abort and release ------------------------------------------------------------------------------------------- */

static void send_end(struct strait_transfer *transfer, enum message_type type)
{
    struct message message = {.type = type, .transfer.transfer = transfer->id};
    outbox_send_always(transfer->client, &message);
    connection_flush(transfer->client);
}

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
}

/* Messages that the daemon still sends about the transfer no longer find it and are ignored. */
void strait_release(struct strait_transfer *transfer)
{
    if (transfer == NULL)
        return;
    struct strait_client *client = transfer->client;
    outbox_drop_transfer(client, transfer);
    if (transfer->known && client->state == READY)
        send_end(transfer, MESSAGE_RELEASE);
    if (transfer->waiting > 0)
        events_drop(client, transfer);
    stream_release(transfer);
    table_remove(transfer);
    transfer->released = true;
    if (transfer->handed == 0)
        transfer_destroy(transfer);
}

/* ---- What is known ----------------------------------------------------------------------------------------------- */

struct strait_progress strait_transfer_progress(const struct strait_transfer *transfer)
{
    return (struct strait_progress){
        .state = transfer->state,
        .reason = transfer->reason,
        .drained = transfer->drained,
        .layers_landed = transfer->layers_landed,
    };
}
