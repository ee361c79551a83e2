/* Messages of a client: sent at once, or copied and sent when the daemon takes them. */
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "client/client.h"
#include "client/gpu.h"

/* ---- Copies of messages ------------------------------------------------------------------------------------------ */

struct block {
    uint8_t *at;
};

static size_t rounded(size_t size)
{
    return (size + 15) & ~(size_t)15;
}

static void *put(struct block *block, const void *data, size_t size)
{
    void *copy = block->at;
    if (size > 0)
        memcpy(copy, data, size);
    block->at += rounded(size);
    return copy;
}

static size_t lists_size(const struct wire_page_list *lists, uint32_t count)
{
    size_t size = rounded(count * sizeof(*lists));
    for (uint32_t i = 0; i < count; i++)
        size += lists[i].ids != NULL ? rounded(lists[i].count * sizeof(uint32_t)) : 0;
    return size;
}

struct wire_page_list *lists_copy(const struct strait_page_list *lists, uint32_t count)
{
    size_t size = rounded(count * sizeof(struct wire_page_list));
    for (uint32_t i = 0; i < count; i++)
        size += lists[i].ids != NULL ? rounded(lists[i].count * sizeof(uint32_t)) : 0;
    struct wire_page_list *copy = malloc(size > 0 ? size : 1);
    if (copy == NULL)
        return NULL;
    struct block block = {(uint8_t *)copy + rounded(count * sizeof(*copy))};
    for (uint32_t i = 0; i < count; i++) {
        const struct strait_page_list *from = &lists[i];
        copy[i] = (struct wire_page_list){from->group, from->first, from->count, from->first_id, NULL};
        if (from->ids != NULL)
            copy[i].ids = put(&block, from->ids, from->count * sizeof(uint32_t));
    }
    return copy;
}

enum { MESSAGE_VIEWS = 4 };

/* The pointers in a message that the client sends. */
struct parts {
    struct view *views[MESSAGE_VIEWS];
    const struct wire_page_list **lists;
    uint32_t list_count;
};

static struct parts parts_of(struct message *m)
{
    switch (m->type) {
    case MESSAGE_EXPECT:
        return (struct parts){{&m->expect.key, &m->expect.trace}, &m->expect.lists, m->expect.list_count};
    case MESSAGE_OFFER:
        return (struct parts){
            {&m->offer.key, &m->offer.aux, &m->offer.ready, &m->offer.trace}, &m->offer.lists, m->offer.list_count};
    case MESSAGE_APPEND:
        return (struct parts){{&m->append.aux, &m->append.ready}, &m->append.lists, m->append.list_count};
    case MESSAGE_READ:
        return (struct parts){{&m->read.peer_address}, &m->read.lists, m->read.list_count};
    case MESSAGE_SERVE:
        return (struct parts){{NULL}, &m->serve.lists, m->serve.list_count};
    case MESSAGE_START:
        return (struct parts){{&m->start.peer_address, &m->start.peer_key}, NULL, 0};
    case MESSAGE_NOTIFY:
        return (struct parts){{&m->notify.peer_address, &m->notify.key, &m->notify.data}, NULL, 0};
    default: /* the others hold no pointers; registrations are not copied */
        return (struct parts){{NULL}, NULL, 0};
    }
}

static enum strait_status message_copy(struct message *message, void **block)
{
    struct parts parts = parts_of(message);
    size_t size = parts.lists != NULL ? lists_size(*parts.lists, parts.list_count) : 0;
    for (int i = 0; i < MESSAGE_VIEWS; i++)
        size += parts.views[i] != NULL ? rounded(parts.views[i]->size) : 0;
    *block = malloc(size > 0 ? size : 1);
    if (*block == NULL)
        return STRAIT_ERR_NO_MEMORY;
    struct block rest = {*block};
    if (parts.lists != NULL) {
        struct wire_page_list *copy = put(&rest, *parts.lists, parts.list_count * sizeof(*copy));
        for (uint32_t i = 0; i < parts.list_count; i++)
            if (copy[i].ids != NULL)
                copy[i].ids = put(&rest, copy[i].ids, copy[i].count * sizeof(uint32_t));
        *parts.lists = copy;
    }
    for (int i = 0; i < MESSAGE_VIEWS; i++)
        if (parts.views[i] != NULL && parts.views[i]->size > 0)
            parts.views[i]->data = put(&rest, parts.views[i]->data, parts.views[i]->size);
    return STRAIT_OK;
}

/* ---- Entries ----------------------------------------------------------------------------------------------------- */

/* A message that waits for the daemon, or for room in the channel. */
struct outbox_entry {
    struct outbox_entry *next;
    struct strait_transfer *transfer;
    struct strait_pool *pool;               /* not NULL: its registration, a message made when it is sent */
    uint64_t until;                         /* clock_ms() until which a withdrawal is of use; 0: it is none */
    uint8_t codebook_id[CODEBOOK_ID_BYTES]; /* START: that of the peer, compared when the message is sent */
    struct message message;
    void *block; /* what the message points into */
};

void outbox_init(struct outbox *outbox)
{
    *outbox = (struct outbox){.end = &outbox->first};
}

/* ---- Sending now ------------------------------------------------------------------------------------------------- */

static uint32_t time_left(const struct strait_transfer *transfer)
{
    uint64_t now = clock_ms();
    return now >= transfer->deadline ? 1 : (uint32_t)(transfer->deadline - now);
}

static enum strait_status send_now(struct strait_client *client, struct message *message,
                                   struct strait_transfer *transfer, const uint8_t codebook_id[CODEBOOK_ID_BYTES])
{
    if (message->type == MESSAGE_WORDS)
        return channel_send(client->channel, message, &client->words->fd, 1);
    /* Known only when the message is sent: how much time is left, whether the codebooks are equal. */
    if (message->type == MESSAGE_EXPECT && transfer != NULL)
        message->expect.deadline_ms = time_left(transfer);
    else if (message->type == MESSAGE_OFFER)
        message->offer.lease_ms = time_left(transfer);
    else if (message->type == MESSAGE_START && memcmp(codebook_id, client->codebook_id, CODEBOOK_ID_BYTES) != 0)
        message->start.mismatch |= STRAIT_MISMATCH_CODEBOOK;
    enum strait_status status = channel_send(client->channel, message, NULL, 0);
    if (status == STRAIT_OK && transfer != NULL)
        transfer->known = true;
    if (status == STRAIT_OK && (message->type == MESSAGE_STATS || message->type == MESSAGE_POOL_REMOVE))
        answer_due(client, &client->answers);
    return status;
}

static struct message registration_of(const struct strait_pool *pool)
{
    struct message message = {.type = MESSAGE_POOL_REGISTER};
    message.pool_register.pool = pool->id;
    message.pool_register.fd_count = pool->fd_count;
    message.pool_register.coding = pool->coding;
    message.pool_register.region_count = pool->region_count;
    message.pool_register.regions = pool->wire;
    message.pool_register.compat = view_of(pool->compat, strlen(pool->compat));
    return message;
}

static enum strait_status send_pool_now(struct strait_client *client, const struct strait_pool *pool)
{
    struct message message = registration_of(pool);
    enum strait_status status = channel_send(client->channel, &message, pool->fds, pool->fd_count);
    if (status == STRAIT_OK)
        answer_due(client, &client->answers);
    return status;
}

/* False: the message waits. Those of one transfer keep their order. A daemon that has said GOAWAY is told only what
 * concerns the transfers that it has. */
static bool can_send(const struct strait_client *client, const struct message *message,
                     const struct strait_transfer *transfer)
{
    if (client->state != READY || client->write_failed)
        return false;
    if (!client->going)
        return client->outbox.first == NULL;
    return transfer != NULL ? transfer->known && transfer->deferred == 0 : message->type != MESSAGE_NOTIFY;
}

/* Is it of use on the next connection only? */
static bool is_for_next(const struct outbox_entry *entry)
{
    return entry->until != 0 || (entry->transfer != NULL && !entry->transfer->known);
}

/* ---- Sending later ----------------------------------------------------------------------------------------------- */

static void entry_destroy(struct outbox_entry *entry)
{
    if (entry->transfer != NULL)
        entry->transfer->deferred--;
    free(entry->block);
    free(entry);
}

static void append(struct outbox *outbox, struct outbox_entry *entry)
{
    *outbox->end = entry;
    outbox->end = &entry->next;
}

/* Counts the messages that wait for a transfer: most have none, and outbox_drop_transfer need not search. */
static enum strait_status defer(struct strait_client *client, const struct outbox_entry *model)
{
    struct outbox_entry *entry = malloc(sizeof(*entry));
    if (entry == NULL)
        return STRAIT_ERR_NO_MEMORY;
    *entry = *model;
    enum strait_status status = message_copy(&entry->message, &entry->block);
    if (status != STRAIT_OK) {
        free(entry);
        return status;
    }
    append(&client->outbox, entry);
    if (entry->transfer != NULL)
        entry->transfer->deferred++;
    return STRAIT_OK;
}

enum strait_status outbox_send(struct strait_client *client, const struct message *message,
                               struct strait_transfer *transfer, const struct strait_peer *peer)
{
    struct outbox_entry model = {.transfer = transfer, .message = *message};
    if (peer != NULL)
        memcpy(model.codebook_id, peer->blob.codebook_id, CODEBOOK_ID_BYTES);
    if (!can_send(client, message, transfer))
        return defer(client, &model);
    enum strait_status status = send_now(client, &model.message, transfer, model.codebook_id);
    return status == STRAIT_ERR_NO_SPACE ? defer(client, &model) : status;
}

enum strait_status outbox_send_pool(struct strait_client *client, struct strait_pool *pool)
{
    struct outbox_entry model = {.pool = pool};
    bool now = client->state == READY && !client->write_failed && client->outbox.first == NULL;
    enum strait_status status = now ? send_pool_now(client, pool) : STRAIT_ERR_NO_SPACE;
    return status == STRAIT_ERR_NO_SPACE ? defer(client, &model) : status;
}

static uint32_t withdrawals_waiting(const struct strait_client *client)
{
    uint32_t count = 0;
    for (const struct outbox_entry *entry = client->outbox.first; entry != NULL; entry = entry->next)
        count += entry->until != 0 && entry->message.type == MESSAGE_START;
    return count;
}

/* To a daemon, a request that was given up before its lists were complete, and whose start tells the other side so. */
enum strait_status outbox_withdraw(struct strait_client *client, const struct strait_transfer *transfer,
                                   const struct message *start)
{
    struct message messages[3] = {{.type = MESSAGE_EXPECT}, {.type = MESSAGE_ABORT}, *start};
    messages[0].expect = (struct message_expect){.transfer = transfer->id,
                                                 .pool = transfer->pool->id,
                                                 .key = view_of(transfer->key, transfer->key_size),
                                                 .sources = 1,
                                                 .deadline_ms = DECLINE_MS,
                                                 .more = true};
    messages[1].transfer.transfer = transfer->id;
    if (withdrawals_waiting(client) >= WITHDRAWALS_MAX)
        return STRAIT_ERR_AGAIN;
    enum strait_status status = STRAIT_OK;
    for (int i = 0; i < 3 && status == STRAIT_OK; i++) {
        struct outbox_entry model = {.message = messages[i], .until = clock_ms() + DECLINE_MS};
        status = STRAIT_ERR_NO_SPACE;
        if (!client->going && can_send(client, &model.message, NULL))
            status = send_now(client, &model.message, NULL, model.codebook_id);
        if (status == STRAIT_ERR_NO_SPACE)
            status = defer(client, &model);
    }
    return status;
}

void outbox_send_always(struct strait_client *client, const struct message *message)
{
    if (outbox_send(client, message, NULL, NULL) == STRAIT_OK)
        return;
    client->write_failed = true;
    event_signal(client);
}

/* ---- Draining ---------------------------------------------------------------------------------------------------- */

static struct outbox_entry *take_first(struct outbox *outbox)
{
    struct outbox_entry *entry = outbox->first;
    outbox->first = entry->next;
    if (outbox->first == NULL)
        outbox->end = &outbox->first;
    return entry;
}

/* ERR_NO_SPACE from an empty channel would never go away, so it is a failure. */
static void outbox_drain(struct strait_client *client)
{
    while (client->outbox.first != NULL && !client->going) {
        struct outbox_entry *entry = client->outbox.first;
        if (entry->until != 0 && entry->until < clock_ms() && entry->message.type != MESSAGE_ABORT) {
            entry_destroy(take_first(&client->outbox));
            continue;
        }
        enum strait_status status = entry->pool != NULL
                                        ? send_pool_now(client, entry->pool)
                                        : send_now(client, &entry->message, entry->transfer, entry->codebook_id);
        if (status == STRAIT_ERR_NO_SPACE && channel_queued(client->channel) > 0)
            return;
        if (status != STRAIT_OK) {
            client->write_failed = true;
            event_signal(client);
            return;
        }
        entry_destroy(take_first(&client->outbox));
    }
}

/* ---- Dropping ---------------------------------------------------------------------------------------------------- */

static void drop(struct strait_client *client, const struct strait_transfer *transfer, const struct strait_pool *pool)
{
    struct outbox_entry *entry = client->outbox.first;
    outbox_init(&client->outbox);
    while (entry != NULL) {
        struct outbox_entry *next = entry->next;
        entry->next = NULL;
        if ((transfer != NULL && entry->transfer == transfer) || (pool != NULL && entry->pool == pool))
            entry_destroy(entry);
        else
            append(&client->outbox, entry);
        entry = next;
    }
}

/* The sources that a request was to be started with are told by the next daemon that it has ended. */
static void withdraw_starts(struct strait_client *client, const struct strait_transfer *transfer)
{
    for (struct outbox_entry *entry = client->outbox.first; entry != NULL; entry = entry->next)
        if (entry->transfer == transfer && entry->message.type == MESSAGE_START)
            (void)outbox_withdraw(client, transfer, &entry->message);
}

void outbox_drop_transfer(struct strait_client *client, const struct strait_transfer *transfer)
{
    if (transfer->deferred == 0)
        return;
    if (transfer->sink && !transfer->known && transfer->pool != NULL)
        withdraw_starts(client, transfer);
    drop(client, transfer, NULL);
}

void outbox_drop_pool(struct strait_client *client, const struct strait_pool *pool)
{
    if (client->outbox.first != NULL)
        drop(client, NULL, pool);
}

void outbox_keep_new(struct strait_client *client)
{
    struct outbox_entry *entry = client->outbox.first;
    outbox_init(&client->outbox);
    while (entry != NULL) {
        struct outbox_entry *next = entry->next;
        entry->next = NULL;
        if (is_for_next(entry))
            append(&client->outbox, entry);
        else
            entry_destroy(entry);
        entry = next;
    }
}

void outbox_clear(struct strait_client *client)
{
    while (client->outbox.first != NULL)
        entry_destroy(take_first(&client->outbox));
}

/* ---- Writing to the socket --------------------------------------------------------------------------------------- */

void outbox_watch(struct strait_client *client)
{
    bool want = !client->write_failed && channel_wants_write(client->channel);
    if (want == client->want_out)
        return;
    struct epoll_event event = {.events = want ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.fd = channel_fd(client->channel)};
    if (epoll_ctl(client->epoll_fd, EPOLL_CTL_MOD, event.data.fd, &event) == 0)
        client->want_out = want;
}

/* An error only marks the connection: what the daemon sent before the end is read first. */
void outbox_flush(struct strait_client *client)
{
    if ((client->state != HANDSHAKE && client->state != READY) || (client->corks > 0 && !client->polling))
        return;
    enum strait_status status = client->write_failed ? STRAIT_ERR_IO : channel_flush(client->channel);
    if (client->state == READY && status == STRAIT_OK && client->outbox.first != NULL) {
        outbox_drain(client);
        status = channel_flush(client->channel);
    }
    if (status != STRAIT_OK) {
        client->write_failed = true;
        event_signal(client);
    }
    outbox_watch(client);
    timer_update(client);
}
