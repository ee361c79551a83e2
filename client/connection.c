/* Connection to the daemon: connecting, reading and the end, and the handlers of the daemon's messages. */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/client.h"
#include "internal/default_socket.h"

/* The daemon as a library, loaded only when a client asks for it. Its thread ends when its end of the socket does. */
#ifndef STRAIT_NODE_LIBRARY
#define STRAIT_NODE_LIBRARY "libstrait-node.so.0"
#endif

typedef int (*node_embed)(const char *options, int *fd, char *error, size_t error_size);

/* ---- Loading the node library without its signal handlers -------------------------------------------------------- */

/* UCX, which comes with that library, installs handlers for SIGHUP, SIGSEGV and others when it is loaded. Only
 * environment variables could prevent that, and setting them is unsafe in a process with several threads. So the old
 * handlers are put back. */

struct actions {
    struct sigaction of[NSIG];
    bool known[NSIG];
};

static bool is_changed(const struct sigaction *old, const struct sigaction *now)
{
    bool informed = (now->sa_flags & SA_SIGINFO) != 0;
    if (informed != ((old->sa_flags & SA_SIGINFO) != 0))
        return true;
    return informed ? old->sa_sigaction != now->sa_sigaction : old->sa_handler != now->sa_handler;
}

/* The library is never unloaded: its threads may outlive the client for a moment. */
static void *load(void)
{
    struct actions actions;
    for (int number = 1; number < NSIG; number++) /* fails for the signals that the threads library reserves */
        actions.known[number] = sigaction(number, NULL, &actions.of[number]) == 0;
    void *library = dlopen(STRAIT_NODE_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    struct sigaction now;
    for (int number = 1; number < NSIG; number++)
        if (actions.known[number] && sigaction(number, NULL, &now) == 0 && is_changed(&actions.of[number], &now))
            (void)sigaction(number, &actions.of[number], NULL);
    return library;
}

/* ---- Starting an embedded daemon --------------------------------------------------------------------------------- */

/* Goes to stderr, as a status cannot say which option is wrong and there is no client yet to report an event. */
static void report(const char *why)
{
    fprintf(stderr, "strait: no embedded daemon: %s\n", why);
}

static node_embed find_node_embed(void)
{
    void *library = load();
    if (library == NULL) {
        report(dlerror());
        return NULL;
    }
    union { /* ISO C has no conversion from object to function pointers */
        void *object;
        node_embed function;
    } symbol = {.object = dlsym(library, "strait_node_embed")};
    return symbol.function;
}

static enum strait_status embedded_start(const char *options, int *fd)
{
    char error[MESSAGE_TEXT_MAX] = "out of memory"; /* the only failure for which the node sets no text */
    node_embed embed = find_node_embed();
    if (embed == NULL)
        return STRAIT_ERR_UNSUPPORTED;
    enum strait_status status = (enum strait_status)embed(options, fd, error, sizeof(error));
    if (status == STRAIT_OK)
        return STRAIT_OK;
    report(error);
    return status == STRAIT_ERR_INVALID || status == STRAIT_ERR_NO_MEMORY ? status : STRAIT_ERR_IO;
}

#ifndef STRAIT_VERSION
#define STRAIT_VERSION "unknown"
#endif

/* ---- The end of a connection ------------------------------------------------------------------------------------- */

/* Schedules the next attempt, with a longer delay each time. */
static void back_off(struct strait_client *client)
{
    client->state = DISCONNECTED;
    client->reconnect_at = clock_ms() + client->backoff_ms;
    client->backoff_ms = client->backoff_ms * 2 < BACKOFF_LAST_MS ? client->backoff_ms * 2 : BACKOFF_LAST_MS;
}

void connection_close(struct strait_client *client)
{
    if (client->channel != NULL)
        epoll_ctl(client->epoll_fd, EPOLL_CTL_DEL, channel_fd(client->channel), NULL);
    channel_destroy(client->channel);
    client->channel = NULL;
    socket_ring_close(&client->ring);
    client->ring_received = client->asleep = false;
    client->awake_since = 0;
    client->input_left = client->write_failed = client->silent = false;
    client->answers = 0;
    client->pinged_at = 0;
}

/* A failure is reported once, not with every attempt. Without memory the event may be lost, as transfers report their
 * failure in events of their own. */
static void report_disconnected(struct strait_client *client, enum strait_status why, const char *text)
{
    struct event_node *node = event_create(STRAIT_EVENT_CONNECTION);
    client->reported = why;
    if (node == NULL)
        return;
    node->event.status = why;
    node->event.text = node->payload[0] = strdup(text);
    event_push(client, node);
}

/* The connection ends: everything that its daemon knew is lost, and so is what waited to be sent, unless the daemon has
 * said GOAWAY: then that waited for the next connection. */
static void lose_transfers(struct strait_client *client, bool drained, const char *text)
{
    if (client->going)
        outbox_keep_new(client);
    else
        outbox_clear(client);
    transfers_fail(client, STRAIT_REASON_LOCAL, drained, text, client->going);
    notes_fail(client, text);
}

/* The socket ended: the daemon is dead, or it no longer touches any page, as it closes the socket only then. */
static void connection_ended(struct strait_client *client)
{
    enum connection_state was = client->state;
    connection_close(client);
    back_off(client);
    if (client->going)
        client->reconnect_at = clock_ms(); /* another daemon listens already */
    if (was == READY) {
        report_disconnected(client, STRAIT_OK, "");
        lose_transfers(client, true, "the connection to the daemon ended");
    }
    client->going = false;
    transfers_drained(client);
    fences_over(client);
    for (struct strait_pool *pool = client->pools, *next; pool != NULL; pool = next) {
        next = pool->next;
        pool->refused = pool->told = false;
        if (pool->removing)
            pool_removed(pool);
    }
}

static void connection_break(struct strait_client *client, enum strait_status why, const char *text)
{
    if (client->state == HANDSHAKE) {
        /* Before WELCOME the daemon knows none of our transfers: there is nothing to wait for. */
        bool news =
            client->reported != why && why != STRAIT_ERR_IO; /* a daemon that accepts and closes counts as away */
        connection_close(client);
        back_off(client);
        if (why == STRAIT_ERR_UNSUPPORTED) /* this daemon will never serve the transfers that wait for it */
            lose_transfers(client, true, text);
        if (news)
            report_disconnected(client, why, text);
    }
    if (client->state != READY)
        return;
    client->state = CLOSING;
    client->input_left = false;
    client->write_failed = true;
    outbox_watch(client);
    shutdown(channel_fd(client->channel), SHUT_WR);
    report_disconnected(client, why, text);
    lose_transfers(client, false, text);
    event_signal(client);
}

/* ---- A daemon that hangs ----------------------------------------------------------------------------------------- */

static void wait_anew(struct strait_client *client)
{
    client->heard_at = clock_ms();
    client->pinged_at = 0;
}

/* Without memory the event follows the next bytes. */
static void heard(struct strait_client *client)
{
    wait_anew(client);
    struct event_node *node = client->silent && client->state == READY ? event_create(STRAIT_EVENT_CONNECTION) : NULL;
    if (client->silent && client->state == READY && node == NULL)
        return;
    client->silent = false;
    if (node == NULL)
        return;
    client->reported = STRAIT_OK;
    node->event.connected = true;
    event_push(client, node);
}

/* Called when all that has arrived was read. */
static void heartbeat(struct strait_client *client)
{
    struct message ping = {.type = MESSAGE_PING};
    if (clock_ms() < heartbeat_due(client))
        return;
    if (client->pinged_at == 0) {
        outbox_send_always(client, &ping);
        client->pinged_at = clock_ms();
        return;
    }
    if (client->reported != STRAIT_ERR_AGAIN) /* else the daemon hung before, too */
        report_disconnected(client, STRAIT_ERR_AGAIN, "the daemon does not answer");
    client->silent = true;
    client->next_due = 0; /* offers may be due now */
}

/* ---- Connecting -------------------------------------------------------------------------------------------------- */

/* A unix socket connects at once or not at all. */
static int connect_socket(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
        return fd;
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* No socket was configured. Once a daemon has answered, the client stays with it: exported pools name its address. */
static int connect_somewhere(struct strait_client *client)
{
    bool own = client->own_socket != NULL && socket_is_ours(client->own_socket);
    if (!client->welcomed)
        client->uses_own = own;
    errno = ENOENT;
    if (!client->uses_own)
        return connect_socket(client->socket);
    return own ? connect_socket(client->own_socket) : -1;
}

/* No daemon can be reached: told once, until one has answered or something else is the matter. */
static void report_away(struct strait_client *client, int error)
{
    snprintf(client->away, sizeof(client->away), "no daemon at %s: %s",
             client->uses_own ? client->own_socket : client->socket, strerror(error));
    if (client->reported != STRAIT_ERR_IO)
        report_disconnected(client, STRAIT_ERR_IO, client->away);
}

static enum strait_status open_socket(struct strait_client *client, int *fd)
{
    if (client->embedded != NULL)
        return embedded_start(client->embedded, fd);
    *fd = connect_somewhere(client);
    if (*fd < 0)
        report_away(client, errno);
    return *fd >= 0 ? STRAIT_OK : STRAIT_ERR_IO;
}

static enum strait_status adopt_socket(struct strait_client *client, int fd)
{
    enum strait_status status = channel_create(fd, MESSAGE_BYTES_MAX, QUEUE_BYTES_MAX, &client->channel);
    if (status != STRAIT_OK) {
        close(fd);
        return status;
    }
    struct epoll_event event = {.events = EPOLLIN, .data.fd = channel_fd(client->channel)};
    client->want_out = false;
    status = epoll_ctl(client->epoll_fd, EPOLL_CTL_ADD, event.data.fd, &event) == 0 ? STRAIT_OK : STRAIT_ERR_IO;
    if (status == STRAIT_OK) {
        static const char version[] = STRAIT_VERSION;
        struct message message = {.type = MESSAGE_HELLO};
        message.hello.version = PROTOCOL_VERSION;
        message.hello.version_min = PROTOCOL_VERSION_MIN;
        message.hello.pid = (uint32_t)getpid();
        message.hello.library = view_of(version, sizeof(version) - 1);
        status = channel_send(client->channel, &message, NULL, 0);
    }
    if (status != STRAIT_OK)
        connection_close(client);
    return status;
}

enum strait_status connection_start(struct strait_client *client)
{
    int fd = -1;
    enum strait_status status = open_socket(client, &fd);
    if (status == STRAIT_OK)
        status = adopt_socket(client, fd);
    if (status != STRAIT_OK) {
        back_off(client);
        return status;
    }
    client->state = HANDSHAKE;
    client->pinged_at = clock_ms();
    outbox_flush(client);
    return STRAIT_OK;
}

/* What follows goes by rings if the daemon takes them and they can be made. */
static void rings_begin(struct strait_client *client)
{
    struct message rings;
    const int memfd = client->takes_rings ? socket_ring_make(&client->ring, client->channel, &rings) : -1;
    if (memfd < 0)
        return;
    if (channel_send(client->channel, &rings, &memfd, 1) == STRAIT_OK)
        channel_send_by(client->channel, &client->ring.layer.layer);
    else
        socket_ring_close(&client->ring);
    close(memfd);
}

/* Words and pools go first, because messages in the outbox refer to them. */
static void connection_ready(struct strait_client *client)
{
    struct outbox deferred = client->outbox;
    struct message words = words_message();
    client->state = READY;
    client->backoff_ms = BACKOFF_FIRST_MS;
    outbox_init(&client->outbox);
    rings_begin(client);
    if (client->words != NULL)
        outbox_send_always(client, &words);
    for (struct strait_pool *pool = client->pools; pool != NULL; pool = pool->next)
        if (outbox_send_pool(client, pool) != STRAIT_OK)
            client->write_failed = true;
        else
            serve_again(pool);
    if (deferred.first != NULL) {
        *client->outbox.end = deferred.first;
        client->outbox.end = deferred.end;
    }
    outbox_flush(client);
}

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

/* ---- Messages: connection ---------------------------------------------------------------------------------------- */

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
    client->takes_rings = welcome->rings;
    memset(client->address, 0, sizeof(client->address));
    memset(client->codebook_id, 0, sizeof(client->codebook_id));
    if (welcome->address.size > 0)
        memcpy(client->address, welcome->address.data, welcome->address.size);
    if (welcome->codebook_id.size > 0)
        memcpy(client->codebook_id, welcome->codebook_id.data, welcome->codebook_id.size);
    client->reported = STRAIT_OK;
    client->away[0] = '\0';
    node->event.connected = true;
    event_push(client, node);
    connection_ready(client);
    return STRAIT_OK;
}

/* The daemon closes the connection next, and why is for the application. */
static enum strait_status on_refused(struct strait_client *client, const struct message_refused *refused)
{
    char *text = duplicate_text(refused->text);
    connection_break(client, (enum strait_status)refused->status, text != NULL ? text : "");
    free(text);
    return STRAIT_ERR_AGAIN; /* nothing more is read */
}

/* The daemon has reloaded its codebook set. Pools that are exported from now on name the new one. */
static enum strait_status on_codebook(struct strait_client *client, const struct message_codebook *codebook)
{
    memset(client->codebook_id, 0, sizeof(client->codebook_id));
    if (codebook->id.size == CODEBOOK_ID_BYTES)
        memcpy(client->codebook_id, codebook->id.data, CODEBOOK_ID_BYTES);
    return STRAIT_OK;
}

/* ---- Messages: pools --------------------------------------------------------------------------------------------- */

static enum strait_status on_pool_status(struct strait_client *client, const struct message_pool_status *status)
{
    struct strait_pool *pool = pool_find(client, &status->pool);
    client->answers -= client->answers > 0;
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
    pool->told = true;
    pool->status = (enum strait_status)status->status;
    snprintf(pool->why, sizeof(pool->why), "%s", text);
    if (pool->refused)
        for (struct strait_transfer *transfer = pool->client->transfers; transfer != NULL; transfer = transfer->next)
            if (transfer->pool == pool)
                transfer_give_up(transfer, STRAIT_REASON_LOCAL, true, "the daemon refused the pool");
    return STRAIT_OK;
}

/* ---- Messages: transfers ----------------------------------------------------------------------------------------- */

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

static enum strait_status on_state(struct strait_client *client, const struct message_state *state)
{
    struct strait_transfer *transfer = table_find(client, state->transfer);
    if (transfer == NULL || !transfer->known)
        return STRAIT_OK; /* released */
    if (transfer->ended) {
        /* After the library's own verdict, the daemon's only matters if it says that the pages are drained. */
        if (!state->more && (state->state == STRAIT_DONE || (state->state == STRAIT_FAILED && state->drained)))
            transfer_drained(transfer);
        return STRAIT_OK;
    }
    if ((state->state == STRAIT_FAILED && !state->more) || state->state == STRAIT_DONE)
        transfer_moved(transfer, state);
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
    transfer->state = STRAIT_TRANSFERRING; /* the daemon leaves out what a layer says, too */
    for (uint32_t i = 0; i < layers->layer_count; i++) {
        struct event_node *node = event_create(STRAIT_EVENT_LAYER);
        if (node == NULL)
            return STRAIT_ERR_NO_MEMORY;
        node->seen = transfer_event_seen;
        node->event.transfer = transfer;
        node->event.context = transfer->context;
        node->event.state = transfer->state;
        node->event.layer = layers->layers[i];
        transfer->layers_landed++;
        event_push(client, node);
    }
    return STRAIT_OK;
}

/* Copies lists and, behind them in the same block, their ids. NULL: no memory. */
static struct strait_page_list *lists_of(const struct message_pages *pages)
{
    size_t ids = 0;
    for (uint32_t i = 0; i < pages->list_count; i++)
        ids += pages->lists[i].ids != NULL ? pages->lists[i].count : 0;
    struct strait_page_list *lists = malloc(pages->list_count * sizeof(*lists) + (ids + 1) * sizeof(uint32_t));
    uint32_t *next = (uint32_t *)(lists + pages->list_count);
    for (uint32_t i = 0; lists != NULL && i < pages->list_count; i++) {
        const struct wire_page_list *list = &pages->lists[i];
        lists[i] = (struct strait_page_list){list->group, list->first, list->count, list->first_id, NULL};
        if (list->ids == NULL)
            continue;
        lists[i].ids = memcpy(next, list->ids, list->count * sizeof(uint32_t));
        next += list->count;
    }
    return lists;
}

static enum strait_status on_pages(struct strait_client *client, const struct message_pages *pages)
{
    struct strait_transfer *transfer = table_find(client, pages->transfer);
    if (transfer == NULL || !transfer->known || transfer->ended)
        return STRAIT_OK;
    struct event_node *node = event_create(STRAIT_EVENT_PAGES);
    struct strait_page_list *lists = lists_of(pages);
    if (node == NULL || lists == NULL) {
        free(node);
        free(lists);
        return STRAIT_ERR_NO_MEMORY;
    }
    transfer->state = STRAIT_TRANSFERRING; /* as of layers */
    for (uint32_t i = 0; i < pages->list_count; i++)
        transfer->pages_landed += pages->lists[i].count;
    node->seen = transfer_event_seen;
    node->event.transfer = transfer;
    node->event.context = transfer->context;
    node->event.state = transfer->state;
    node->event.landed = node->payload[0] = lists;
    node->event.landed_count = pages->list_count;
    event_push(client, node);
    return STRAIT_OK;
}

/* ---- Messages: notifications and statistics ---------------------------------------------------------------------- */

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

static enum strait_status on_ring(struct strait_client *client)
{
    if (client->ring.file.base == NULL || client->ring_received)
        return STRAIT_ERR_CORRUPT;
    client->ring_received = true;
    return channel_receive_by(client->channel, &client->ring.layer.layer) ? STRAIT_OK : STRAIT_ERR_CORRUPT;
}

static enum strait_status dispatch(struct strait_client *client, const struct message *message)
{
    const bool is_answer = message->type == MESSAGE_WELCOME || message->type == MESSAGE_REFUSED; /* to HELLO */
    if (is_answer != (client->state == HANDSHAKE))
        return STRAIT_ERR_CORRUPT;
    switch (message->type) {
    case MESSAGE_REFUSED:
        return on_refused(client, &message->refused);
    case MESSAGE_WELCOME:
        return on_welcome(client, &message->welcome);
    case MESSAGE_RING:
        return on_ring(client);
    case MESSAGE_CODEBOOK:
        return on_codebook(client, &message->codebook);
    case MESSAGE_POOL_STATUS:
        return on_pool_status(client, &message->pool_status);
    case MESSAGE_STATE:
        return on_state(client, &message->state);
    case MESSAGE_DRAINED:
        on_drained(client, message->transfer.transfer);
        return STRAIT_OK;
    case MESSAGE_LAYERS:
        return on_layers(client, &message->layers);
    case MESSAGE_PAGES:
        return on_pages(client, &message->pages);
    case MESSAGE_NOTE:
        return on_note(client, &message->note);
    case MESSAGE_NOTED:
        notes_answered(client, &message->noted);
        return STRAIT_OK;
    case MESSAGE_FENCED:
        fence_answered(client, message->fenced.fence);
        return STRAIT_OK;
    case MESSAGE_GOAWAY:
        client->going = true;
        return STRAIT_OK;
    case MESSAGE_PONG: /* that something came is the answer */
        return STRAIT_OK;
    case MESSAGE_STATS_TEXT:
        client->answers -= client->answers > 0;
        return push_data(client, STRAIT_EVENT_STATS, NULL, view_of(NULL, 0), message->text.text);
    default: /* not for clients */
        return STRAIT_ERR_CORRUPT;
    }
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

/* Dispatches the frames that have arrived; `all`: even though events pile up, as there will be no later call.
 * ERR_AGAIN when none is left, OK when the rest must wait, else why to break the connection. */
static enum strait_status take_frames(struct strait_client *client, bool all)
{
    enum strait_status status = STRAIT_OK;
    while (status == STRAIT_OK && (all || client->waiting.count < EVENTS_AHEAD)) {
        int fds[CHANNEL_FDS_MAX];
        uint32_t fd_count = 0;
        struct message message = {0};
        status = channel_next(client->channel, &message, fds, &fd_count);
        if (status != STRAIT_OK)
            break;
        for (uint32_t i = 0; i < fd_count; i++)
            close(fds[i]); /* a daemon has no reason to send descriptors */
        status = dispatch(client, &message);
        message_fini(&message);
    }
    return status;
}

static void read_socket(struct strait_client *client)
{
    enum strait_status end = STRAIT_OK;
    uint64_t before = channel_received(client->channel);
    bool reads = client->waiting.count < EVENTS_AHEAD;
    if (reads)
        end = channel_read(client->channel);
    if (channel_received(client->channel) != before)
        heard(client);
    else if (!reads) /* what is not read may be the answer */
        wait_anew(client);
    enum strait_status status = take_frames(client, end != STRAIT_OK);
    if (status == STRAIT_ERR_AGAIN && client->ring_received && ring_layer_is_broken(&client->ring.layer)) {
        status = STRAIT_ERR_CORRUPT; /* which is not the end of the socket, and says nothing about pages */
        end = STRAIT_OK;
    }
    if (client->state != HANDSHAKE && client->state != READY)
        return; /* a message made the library give up the connection */
    client->input_left = status == STRAIT_OK;
    if (status != STRAIT_OK && status != STRAIT_ERR_AGAIN)
        connection_break(client, status,
                         status == STRAIT_ERR_NO_MEMORY     ? "no memory to read the messages of the daemon"
                         : status == STRAIT_ERR_UNSUPPORTED ? "the daemon speaks another version of the protocol"
                                                            : "the daemon broke the protocol");
    else if (client->write_failed && end == STRAIT_OK)
        connection_break(client, STRAIT_ERR_IO, "nothing can be sent to the daemon");
    if (end != STRAIT_OK && client->state != DISCONNECTED) /* after the reason, if there was one */
        connection_ended(client);
    else
        heartbeat(client);
}

/* Discards what still arrives and waits for the end of the socket. */
static void await_end(struct strait_client *client)
{
    char scrap[16384];
    ssize_t got;
    for (int i = 0; i < 64; i++) {
        got = recv(channel_fd(client->channel), scrap, sizeof(scrap), MSG_DONTWAIT);
        if (got > 0 || (got < 0 && errno == EINTR))
            continue;
        if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK))
            connection_ended(client);
        return;
    }
}

void connection_work(struct strait_client *client)
{
    if (client->state == DISCONNECTED && clock_ms() >= client->reconnect_at)
        connection_start(client);
    if (client->state == HANDSHAKE || client->state == READY)
        read_socket(client);
    else if (client->state == CLOSING)
        await_end(client);
}
