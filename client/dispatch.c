#include <stdlib.h>
#include <string.h>

#include "client/client.h"

static void *duplicate(const void *data, size_t size)
{
    void *copy = malloc(size > 0 ? size : 1);
    if (copy != NULL && size > 0)
        memcpy(copy, data, size);
    return copy;
}

/* A text for people, so it ends with a NUL. */
static char *duplicate_text(struct view text)
{
    return strndup(text.size > 0 ? (const char *)text.data : "", text.size);
}

/* ---- Connection -------------------------------------------------------------------------------------------------- */

static enum strait_status on_welcome(struct strait_client *client, const struct message_welcome *welcome)
{
    if (welcome->version < PROTOCOL_VERSION_MIN || welcome->version > PROTOCOL_VERSION)
        return STRAIT_ERR_UNSUPPORTED;
    if (welcome->address.size > MESSAGE_ADDRESS_MAX || welcome->codebook_id.size % CODEBOOK_ID_BYTES != 0 ||
        welcome->codebook_id.size > CODEBOOK_ID_BYTES)
        return STRAIT_ERR_CORRUPT;
    struct event_node *node = event_create(STRAIT_EVENT_CONNECTION);
    if (node == NULL)
        return STRAIT_ERR_NO_MEMORY;
    client->welcomed = true;
    client->version = welcome->version;
    memset(client->address, 0, sizeof(client->address));
    memset(client->codebook_id, 0, sizeof(client->codebook_id));
    if (welcome->address.size > 0)
        memcpy(client->address, welcome->address.data, welcome->address.size);
    if (welcome->codebook_id.size > 0)
        memcpy(client->codebook_id, welcome->codebook_id.data, welcome->codebook_id.size);
    client->told = STRAIT_OK;
    node->event.connected = true;
    event_push(client, node);
    connection_ready(client);
    return STRAIT_OK;
}

/* ---- Pools ------------------------------------------------------------------------------------------------------- */

static void fail_transfers_of(struct strait_pool *pool, const char *text)
{
    for (struct strait_transfer *transfer = pool->client->transfers; transfer != NULL; transfer = transfer->next)
        if (transfer->pool == pool)
            transfer_give_up(transfer, STRAIT_REASON_LOCAL, true, text);
}

static enum strait_status on_pool_status(struct strait_client *client, const struct message_pool_status *status)
{
    struct strait_pool *pool = pool_find(client, &status->pool);
    if (pool == NULL)
        return STRAIT_OK;
    if (status->removed) {
        if (pool->removing)
            pool_removed(pool);
        return STRAIT_OK;
    }
    struct event_node *node = event_create(STRAIT_EVENT_POOL);
    char *text = duplicate_text(status->text);
    if (node == NULL || text == NULL) {
        free(node);
        free(text);
        return STRAIT_ERR_NO_MEMORY;
    }
    node->event.pool = pool;
    node->event.status = status->status;
    node->event.text = node->payload[0] = text;
    event_push(client, node);
    pool->refused = status->status != STRAIT_OK;
    if (pool->refused)
        fail_transfers_of(pool, "the daemon refused the pool");
    return STRAIT_OK;
}

/* ---- Transfers --------------------------------------------------------------------------------------------------- */

static bool reserve_failed(struct strait_transfer *transfer, uint64_t count)
{
    if (count <= transfer->failed_capacity)
        return true;
    uint64_t capacity =
        count > 2 * (uint64_t)transfer->failed_capacity ? count : 2 * (uint64_t)transfer->failed_capacity;
    struct strait_failed_page *failed = realloc(transfer->failed, capacity * sizeof(*failed));
    if (failed == NULL)
        return false;
    transfer->failed = failed;
    transfer->failed_capacity = (uint32_t)capacity;
    return true;
}

static void add_failed(struct strait_transfer *transfer, const struct wire_page_list *list)
{
    for (uint32_t i = 0; i < list->count; i++) {
        uint32_t id = list->ids != NULL ? list->ids[i] : list->first_id + i;
        transfer->failed[transfer->failed_count++] = (struct strait_failed_page){list->group, id};
    }
}

/* A daemon that reports more pages than a transfer can have is broken. */
static enum strait_status collect_failed(struct strait_transfer *transfer, const struct message_state *state)
{
    uint64_t count = transfer->failed_count;
    for (uint32_t i = 0; i < state->failed_count; i++)
        count += state->failed[i].count;
    if (count > STRAIT_TRANSFER_PAGES_MAX)
        return STRAIT_ERR_CORRUPT;
    if (!reserve_failed(transfer, count))
        return STRAIT_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < state->failed_count; i++)
        add_failed(transfer, &state->failed[i]);
    return STRAIT_OK;
}

static enum strait_status on_failed(struct strait_transfer *transfer, const struct message_state *state)
{
    enum strait_status status = collect_failed(transfer, state);
    if (status != STRAIT_OK || state->more)
        return status;
    char *text = duplicate_text(state->text);
    transfer_fail(transfer, (enum strait_reason)state->reason, state->drained, text != NULL ? text : "");
    free(text);
    return STRAIT_OK;
}

static enum strait_status on_done(struct strait_transfer *transfer, const struct message_state *state)
{
    void *aux = duplicate(state->aux.data, state->aux.size);
    if (aux == NULL)
        return STRAIT_ERR_NO_MEMORY;
    transfer_done(transfer, aux, state->aux.size);
    return STRAIT_OK;
}

/* A verdict that comes after the library's own only matters if it tells that the pages are drained. */
static enum strait_status on_late_verdict(struct strait_transfer *transfer, const struct message_state *state)
{
    if (!state->more && (state->state == STRAIT_DONE || (state->state == STRAIT_FAILED && state->drained)))
        transfer_drained(transfer);
    return STRAIT_OK;
}

static enum strait_status on_state(struct strait_client *client, const struct message_state *state)
{
    struct strait_transfer *transfer = table_find(client, state->transfer);
    if (transfer == NULL || !transfer->known)
        return STRAIT_OK; /* released */
    if (transfer->ended)
        return on_late_verdict(transfer, state);
    if (state->state == STRAIT_FAILED)
        return on_failed(transfer, state);
    if (state->state == STRAIT_DONE)
        return on_done(transfer, state);
    transfer_advance(transfer, (enum strait_state)state->state);
    return STRAIT_OK;
}

static void on_drained(struct strait_client *client, uint64_t id)
{
    struct strait_transfer *transfer = table_find(client, id);
    if (transfer != NULL && transfer->known)
        transfer_drained(transfer);
}

static enum strait_status on_layers(struct strait_client *client, const struct message_layers *layers)
{
    struct strait_transfer *transfer = table_find(client, layers->transfer);
    if (transfer == NULL || !transfer->known || transfer->ended)
        return STRAIT_OK;
    for (uint32_t i = 0; i < layers->layer_count; i++) {
        struct event_node *node = event_create(STRAIT_EVENT_LAYER);
        if (node == NULL)
            return STRAIT_ERR_NO_MEMORY;
        node->event.transfer = transfer;
        node->event.context = transfer->context;
        node->event.state = transfer->state;
        node->event.layer = layers->layers[i];
        transfer->layers_landed++;
        event_push(client, node);
    }
    return STRAIT_OK;
}

/* ---- The rest ---------------------------------------------------------------------------------------------------- */

/* The data of NOTE and STATS end with a NUL, not counted in the size, so that they can be printed. */
static enum strait_status push_data(struct strait_client *client, enum strait_event_type type, struct strait_pool *pool,
                                    struct view key, struct view data)
{
    struct event_node *node = event_create(type);
    void *key_copy = duplicate(key.data, key.size);
    char *data_copy = malloc(data.size + 1);
    if (node == NULL || key_copy == NULL || data_copy == NULL) {
        free(node);
        free(key_copy);
        free(data_copy);
        return STRAIT_ERR_NO_MEMORY;
    }
    if (data.size > 0)
        memcpy(data_copy, data.data, data.size);
    data_copy[data.size] = '\0';
    node->event.pool = pool;
    node->event.key = node->payload[0] = key_copy;
    node->event.key_size = key.size;
    node->event.data = node->payload[1] = data_copy;
    node->event.data_size = data.size;
    event_push(client, node);
    return STRAIT_OK;
}

static enum strait_status on_note(struct strait_client *client, const struct message_note *note)
{
    struct strait_pool *pool = pool_find(client, &note->pool);
    return pool == NULL ? STRAIT_OK : push_data(client, STRAIT_EVENT_NOTE, pool, note->key, note->data);
}

enum strait_status dispatch(struct strait_client *client, const struct message *message)
{
    if ((message->type == MESSAGE_WELCOME) != (client->state == GREETING))
        return STRAIT_ERR_CORRUPT;
    switch (message->type) {
    case MESSAGE_WELCOME:
        return on_welcome(client, &message->welcome);
    case MESSAGE_POOL_STATUS:
        return on_pool_status(client, &message->pool_status);
    case MESSAGE_STATE:
        return on_state(client, &message->state);
    case MESSAGE_DRAINED:
        on_drained(client, message->transfer.transfer);
        return STRAIT_OK;
    case MESSAGE_LAYERS:
        return on_layers(client, &message->layers);
    case MESSAGE_NOTE:
        return on_note(client, &message->note);
    case MESSAGE_STATS_TEXT:
        return push_data(client, STRAIT_EVENT_STATS, NULL, view_of(NULL, 0), message->text.text);
    default: /* not for clients */
        return STRAIT_ERR_CORRUPT;
    }
}
