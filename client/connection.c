#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/client.h"
#include "internal/default_socket.h"

#ifndef STRAIT_VERSION
#define STRAIT_VERSION "unknown"
#endif

/* ---- Watching ---------------------------------------------------------------------------------------------------- */

static enum strait_status watch_socket(struct strait_client *client)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = channel_fd(client->channel)};
    client->want_out = false;
    return epoll_ctl(client->epoll_fd, EPOLL_CTL_ADD, event.data.fd, &event) == 0 ? STRAIT_OK : STRAIT_ERR_IO;
}

static void watch_output(struct strait_client *client)
{
    bool want = !client->write_failed && channel_wants_write(client->channel);
    if (want == client->want_out)
        return;
    struct epoll_event event = {.events = want ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.fd = channel_fd(client->channel)};
    if (epoll_ctl(client->epoll_fd, EPOLL_CTL_MOD, event.data.fd, &event) == 0)
        client->want_out = want;
}

/* ---- The end of a connection ------------------------------------------------------------------------------------- */

/* Schedules the next attempt, with a longer delay each time. */
static void back_off(struct strait_client *client)
{
    client->state = AWAY;
    client->reconnect_at = clock_ms() + client->backoff_ms;
    client->backoff_ms = client->backoff_ms * 2 < BACKOFF_LAST_MS ? client->backoff_ms * 2 : BACKOFF_LAST_MS;
}

void connection_close(struct strait_client *client)
{
    if (client->channel != NULL)
        epoll_ctl(client->epoll_fd, EPOLL_CTL_DEL, channel_fd(client->channel), NULL);
    channel_destroy(client->channel);
    client->channel = NULL;
    client->input_left = client->write_failed = false;
}

/* A failure is reported once, not with every attempt. Without memory the event may be lost, as transfers report their
 * failure in events of their own. */
static void tell_disconnected(struct strait_client *client, enum strait_status why, const char *text)
{
    struct event_node *node = event_create(STRAIT_EVENT_CONNECTION);
    client->told = why;
    if (node == NULL)
        return;
    node->event.status = why;
    node->event.text = node->payload[0] = strdup(text);
    event_push(client, node);
}

/* The connection ends: everything that its daemon knew is lost, and so is what waited to be sent. */
static void lose_transfers(struct strait_client *client, bool drained, const char *text)
{
    outbox_clear(client);
    transfers_fail(client, STRAIT_REASON_LOCAL, drained, text);
}

static void lose_pools(struct strait_client *client)
{
    for (struct strait_pool *pool = client->pools, *next; pool != NULL; pool = next) {
        next = pool->next;
        pool->refused = false;
        if (pool->removing)
            pool_removed(pool);
    }
}

/* The socket ended: the daemon is dead, or it no longer touches any page, as it closes the socket only then. */
static void connection_ended(struct strait_client *client)
{
    enum connection_state was = client->state;
    connection_close(client);
    back_off(client);
    if (was == READY) {
        tell_disconnected(client, STRAIT_OK, "");
        lose_transfers(client, true, "the connection to the daemon ended");
    }
    transfers_drained(client);
    lose_pools(client);
}

/* Before WELCOME the daemon knows none of our transfers: there is nothing to wait for. */
static void break_greeting(struct strait_client *client, enum strait_status why, const char *text)
{
    bool news = client->told != why && why != STRAIT_ERR_IO; /* a daemon that accepts and closes counts as away */
    connection_close(client);
    back_off(client);
    if (why == STRAIT_ERR_UNSUPPORTED) /* this daemon will never serve the transfers that wait for it */
        lose_transfers(client, true, text);
    if (news)
        tell_disconnected(client, why, text);
}

void connection_break(struct strait_client *client, enum strait_status why, const char *text)
{
    if (client->state == GREETING)
        break_greeting(client, why, text);
    if (client->state != READY)
        return;
    client->state = CLOSING;
    client->input_left = false;
    client->write_failed = true;
    watch_output(client);
    shutdown(channel_fd(client->channel), SHUT_WR);
    tell_disconnected(client, why, text);
    lose_transfers(client, false, text);
    event_signal(client);
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
    close(fd);
    return -1;
}

/* No socket was configured. Once a daemon has answered, the client stays with it: exported pools name its address. */
static int connect_somewhere(struct strait_client *client)
{
    bool own = client->own_socket != NULL && socket_is_ours(client->own_socket);
    if (!client->welcomed)
        client->uses_own = own;
    if (!client->uses_own)
        return connect_socket(client->socket);
    return own ? connect_socket(client->own_socket) : -1;
}

static enum strait_status open_socket(struct strait_client *client, int *fd)
{
    if (client->embedded != NULL)
        return embedded_start(client->embedded, fd);
    *fd = connect_somewhere(client);
    return *fd >= 0 ? STRAIT_OK : STRAIT_ERR_IO;
}

static enum strait_status send_hello(struct strait_client *client)
{
    static const char version[] = STRAIT_VERSION;
    struct message message = {.type = MESSAGE_HELLO};
    message.hello.version = PROTOCOL_VERSION;
    message.hello.version_min = PROTOCOL_VERSION_MIN;
    message.hello.pid = (uint32_t)getpid();
    message.hello.library = view_of(version, sizeof(version) - 1);
    return channel_send(client->channel, &message, NULL, 0);
}

static enum strait_status adopt_socket(struct strait_client *client, int fd)
{
    enum strait_status status = channel_create(fd, MESSAGE_BYTES_MAX, QUEUE_BYTES_MAX, &client->channel);
    if (status != STRAIT_OK) {
        close(fd);
        return status;
    }
    status = watch_socket(client);
    if (status == STRAIT_OK)
        status = send_hello(client);
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
    client->state = GREETING;
    connection_flush(client);
    return STRAIT_OK;
}

/* Words and pools go first, because messages in the outbox refer to them. */
void connection_ready(struct strait_client *client)
{
    struct outbox late = client->outbox;
    struct message words = words_message();
    client->state = READY;
    client->backoff_ms = BACKOFF_FIRST_MS;
    outbox_init(&client->outbox);
    if (client->words != NULL)
        outbox_send_always(client, &words);
    for (struct strait_pool *pool = client->pools; pool != NULL; pool = pool->next)
        if (outbox_send_pool(client, pool) != STRAIT_OK)
            client->write_failed = true;
    if (late.first != NULL) {
        *client->outbox.end = late.first;
        client->outbox.end = late.end;
        client->outbox.notes += late.notes;
    }
    connection_flush(client);
}

/* ---- Work -------------------------------------------------------------------------------------------------------- */

static void close_all(const int *fds, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        close(fds[i]);
}

/* Dispatches the frames that have arrived; `all`: even though events pile up, as there will be no later call. ERR_AGAIN
 * when none is left, OK when the rest must wait, else why to break the connection. */
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
        close_all(fds, fd_count); /* a daemon has no reason to send descriptors */
        status = dispatch(client, &message);
        message_fini(&message);
    }
    return status;
}

static const char *break_text(enum strait_status why)
{
    return why == STRAIT_ERR_NO_MEMORY     ? "no memory to read what the daemon says"
           : why == STRAIT_ERR_UNSUPPORTED ? "the daemon speaks another version of the protocol"
                                           : "the daemon broke the protocol";
}

static void read_socket(struct strait_client *client)
{
    enum strait_status end = STRAIT_OK;
    if (client->waiting.count < EVENTS_AHEAD)
        end = channel_read(client->channel);
    enum strait_status status = take_frames(client, end != STRAIT_OK);
    if (client->state != GREETING && client->state != READY)
        return; /* a message made the library give up the connection */
    client->input_left = status == STRAIT_OK;
    if (status != STRAIT_OK && status != STRAIT_ERR_AGAIN)
        connection_break(client, status, break_text(status));
    else if (client->write_failed && end == STRAIT_OK)
        connection_break(client, STRAIT_ERR_IO, "nothing can be sent to the daemon");
    if (end != STRAIT_OK && client->state != AWAY) /* after the reason, if there was one */
        connection_ended(client);
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
    if (client->state == AWAY && clock_ms() >= client->reconnect_at)
        connection_start(client);
    if (client->state == GREETING || client->state == READY)
        read_socket(client);
    else if (client->state == CLOSING)
        await_end(client);
}

/* An error only marks the connection: what the daemon sent before the end is read first. */
void connection_flush(struct strait_client *client)
{
    if (client->state != GREETING && client->state != READY)
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
    watch_output(client);
}
