#include "transport/tcp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "internal/bytes.h"
#include "internal/socket_address.h"
#include "transport/tcp_internal.h"

#define READY_MAX 64
#define ID_BYTES  8u
#define ID_AT     32u /* in an address */

static const uint8_t address_magic[4] = {'T', 'C', 'P', '2'};

/* ---- Links ------------------------------------------------------------------------------------------------------- */

static bool draw_secrets(struct tcp_link *link)
{
    uint8_t drawn[ID_BYTES + CONNECTIONS_MAX * SECRET_BYTES];
    if (getrandom(drawn, sizeof(drawn), 0) != (ssize_t)sizeof(drawn))
        return false;
    link->id = load_le64(drawn);
    for (unsigned i = 0; i < link->count; i++)
        memcpy(link->connections[i].secret, drawn + ID_BYTES + i * SECRET_BYTES, SECRET_BYTES);
    return true;
}

static enum strait_status tcp_link_open(struct transport *transport, int fd, enum link_side side, void *link_owner,
                                        struct link **out)
{
    struct tcp *tcp = (struct tcp *)transport;
    const unsigned count = tcp->options.connections;
    (void)fd;
    struct tcp_link *link = calloc(1, sizeof(*link) + count * sizeof(link->connections[0]));
    if (link == NULL)
        return STRAIT_ERR_NO_MEMORY;
    link->side = side;
    link->count = count;
    TAILQ_INIT(&link->out);
    TAILQ_INIT(&link->in);
    for (unsigned i = 0; i < count; i++) {
        link->connections[i].link = link;
        link->connections[i].fd = -1;
    }
    if ((side == LINK_ACCEPTED && !tcp_listen(tcp)) || !draw_secrets(link)) {
        free(link);
        return STRAIT_ERR_IO;
    }
    core_link_add(&tcp->core, &link->core, link_owner);
    *out = &link->core.base;
    return STRAIT_OK;
}

/* 0 4 "TCP2" | 4 2 IP version, 4 or 6; 0: where the owner's connection got to | 6 2 port | 8 16 IP address, zero-padded
 * | 24 4 IPv6 scope | 28 4 zero | 32 8 id of the link | 40 16 secret, for each connection. All little-endian, except
 * for the IP address. */
static size_t tcp_link_address(struct link *base, void *dst, size_t capacity)
{
    const struct tcp_link *link = (struct tcp_link *)base;
    const struct tcp *tcp = tcp_of(link);
    const size_t size = TCP_ADDRESS_BYTES(link->count);
    uint8_t *bytes = dst;
    if (capacity < size)
        return size;
    memset(bytes, 0, size);
    memcpy(bytes, address_magic, sizeof(address_magic));
    store_le16(bytes + 4, tcp->address.family);
    store_le16(bytes + 6, tcp->address.port);
    memcpy(bytes + 8, tcp->address.bytes, sizeof(tcp->address.bytes));
    store_le32(bytes + 24, tcp->address.scope);
    store_le64(bytes + ID_AT, link->id);
    for (unsigned i = 0; i < link->count; i++)
        memcpy(bytes + TCP_ADDRESS_BYTES(i), link->connections[i].secret, SECRET_BYTES);
    return size;
}

/* How many connections an address of this size is for; 0: it is none. */
static unsigned address_connections(size_t size)
{
    for (unsigned count = 1; count <= CONNECTIONS_MAX; count++)
        if (size == TCP_ADDRESS_BYTES(count))
            return count;
    return 0;
}

/* Reads where the peer listens; an address that names no place is for links whose owner does. */
static enum strait_status read_place(const struct tcp_link *link, const uint8_t *bytes, struct sockaddr_storage *at,
                                     socklen_t *size)
{
    struct address packed = {
        .family = load_le16(bytes + 4), .port = load_le16(bytes + 6), .scope = load_le32(bytes + 24)};
    memcpy(packed.bytes, bytes + 8, sizeof(packed.bytes));
    if (memcmp(bytes, address_magic, sizeof(address_magic)) != 0 || load_le32(bytes + 28) != 0)
        return STRAIT_ERR_CORRUPT;
    if (packed.family == 0) {
        *at = link->reach;
        *size = link->reach_size;
        return *size > 0 || link->side == LINK_ACCEPTED ? STRAIT_OK : STRAIT_ERR_INVALID;
    }
    *size = address_unpack(at, &packed);
    return *size > 0 && link->reach_size == 0 ? STRAIT_OK : STRAIT_ERR_CORRUPT;
}

static bool dial(struct connection *conn, const struct sockaddr_storage *at, socklen_t size)
{
    struct tcp *tcp = tcp_of(conn->link);
    conn->fd = socket(at->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    conn->state = CONNECTION_DIALLING;
    if (conn->fd >= 0 && (connect(conn->fd, (const struct sockaddr *)at, size) == 0 || errno == EINPROGRESS) &&
        tcp_watch(tcp, conn->fd, conn, EPOLLOUT))
        return true;
    tcp_drop(tcp, &conn->fd);
    return false;
}

/* As many connections as both sides allow. */
static void take_secrets(struct tcp_link *link, const uint8_t *bytes, unsigned count)
{
    for (unsigned i = count; i < link->count; i++)
        tcp_drop(tcp_of(link), &link->connections[i].fd);
    link->count = count < link->count ? count : link->count;
    link->peer_id = load_le64(bytes + ID_AT);
    for (unsigned i = 0; i < link->count; i++)
        memcpy(link->connections[i].peer_secret, bytes + TCP_ADDRESS_BYTES(i), SECRET_BYTES);
}

static enum strait_status tcp_link_connect(struct link *base, const void *address, size_t size)
{
    struct tcp_link *link = (struct tcp_link *)base;
    const uint8_t *bytes = address;
    struct sockaddr_storage at;
    socklen_t at_size;
    const unsigned count = address_connections(size);
    if (link->core.state != LINK_OPEN || bytes == NULL || count == 0)
        return STRAIT_ERR_INVALID;
    const enum strait_status status = read_place(link, bytes, &at, &at_size);
    if (status != STRAIT_OK)
        return status;
    take_secrets(link, bytes, count);
    link->core.state = LINK_CONNECTING;
    for (unsigned i = 0; i < link->count && link->core.state == LINK_CONNECTING; i++) {
        struct connection *conn = &link->connections[i];
        if (link->side == LINK_DIALLED && !dial(conn, &at, at_size))
            return STRAIT_ERR_IO;
        if (conn->state == CONNECTION_PROVED)
            tcp_answer(conn);
    }
    return STRAIT_OK;
}

void tcp_name(struct link *base, uint64_t id, const uint8_t secret[SECRET_BYTES])
{
    struct tcp_link *link = (struct tcp_link *)base;
    link->id = id;
    memcpy(link->connections[0].secret, secret, SECRET_BYTES);
}

void tcp_address_write(uint8_t address[TCP_ADDRESS_BYTES(1)], uint64_t id, const uint8_t secret[SECRET_BYTES])
{
    memset(address, 0, TCP_ADDRESS_BYTES(1));
    memcpy(address, address_magic, sizeof(address_magic));
    store_le64(address + ID_AT, id);
    memcpy(address + TCP_ADDRESS_BYTES(0), secret, SECRET_BYTES);
}

void tcp_reach(struct link *base, const struct sockaddr *peer, socklen_t size)
{
    struct tcp_link *link = (struct tcp_link *)base;
    link->reach_size = size <= sizeof(link->reach) ? size : 0;
    memcpy(&link->reach, peer, link->reach_size);
}

bool tcp_is_reached(const struct link *base)
{
    const struct tcp_link *link = (const struct tcp_link *)base;
    bool reached = true;
    for (unsigned i = 0; i < link->count; i++)
        reached &= link->connections[i].state > CONNECTION_DIALLING;
    return reached;
}

static void tcp_link_close(struct link *base)
{
    struct tcp_link *link = (struct tcp_link *)base;
    if (core_link_close(&link->core))
        tcp_shut(link);
}

static enum strait_status tcp_link_send(struct link *base, const void *header, size_t header_size, const void *data,
                                        size_t size, void *handle, uint64_t cookie)
{
    struct tcp_link *link = (struct tcp_link *)base;
    (void)handle;
    if (header_size > TRANSPORT_HEADER_MAX || (data == NULL && size > 0) || size > UINT32_MAX)
        return STRAIT_ERR_INVALID;
    if (link->core.state != LINK_CONNECTED)
        return STRAIT_ERR_IO;
    struct message *message = malloc(sizeof(*message));
    if (message == NULL)
        return STRAIT_ERR_NO_MEMORY;
    *message =
        (struct message){.data = data, .size = size, .number = link->numbered++, .header_size = (uint32_t)header_size};
    event_begin(&message->event, &link->core, EVENT_SENT, cookie);
    if (header_size > 0)
        memcpy(message->header, header, header_size);
    TAILQ_INSERT_TAIL(&link->out, message, entry);
    if (link->next_out == NULL)
        link->next_out = message;
    return STRAIT_OK;
}

/* ---- Options ----------------------------------------------------------------------------------------------------- */

static bool read_count(const char *text, uint32_t *count)
{
    char *end;
    const unsigned long value = strtoul(text, &end, 10);
    *count = (uint32_t)value;
    return *text >= '0' && *text <= '9' && *end == '\0' && value >= 1 && value <= CONNECTIONS_MAX;
}

static bool set_option(void *dst, const struct option *option)
{
    struct tcp_options *options = dst;
    bool good;
    if (strcmp(option->name, "connections") == 0)
        return read_count(option->value, &options->connections);
    if (strcmp(option->name, "listen") == 0 && strcmp(option->value, "none") == 0)
        return options->adopts = true;
    return option_listen(option, &options->listen, &good) && good;
}

static enum strait_status read_options(const char *text, struct tcp_options *options)
{
    *options = (struct tcp_options){.listen = LISTEN_DEFAULT, .connections = CONNECTIONS_DEFAULT};
    return options_read(text, set_option, options);
}

static enum strait_status tcp_check(const char *text)
{
    struct tcp_options options;
    return read_options(text, &options);
}

/* ---- The transport ----------------------------------------------------------------------------------------------- */

static void tcp_destroy(struct transport *transport)
{
    struct tcp *tcp = (struct tcp *)transport;
    tcp_unlisten_if_idle(tcp);
    tcp_drop(tcp, &tcp->timer);
    if (tcp->epoll >= 0)
        close(tcp->epoll);
    free(tcp);
}

/* The set goes first: taking a descriptor out of it would take it from the parent. */
static void tcp_after_fork(struct transport *transport)
{
    struct tcp *tcp = (struct tcp *)transport;
    close(tcp->epoll);
    tcp->epoll = -1;
    tcp_drop(tcp, &tcp->timer);
    tcp_drop(tcp, &tcp->listener);
    for (unsigned i = 0; i < PENDING_MAX; i++)
        tcp_drop(tcp, &tcp->pending[i].fd);
    for (struct core_link *at = tcp->core.links; at != NULL; at = at->next) {
        struct tcp_link *link = (struct tcp_link *)at;
        for (unsigned i = 0; i < link->count; i++)
            tcp_drop(tcp, &link->connections[i].fd);
    }
}

static enum strait_status tcp_create(const struct transport_arena *arena, const struct transport_events *events,
                                     void *owner, const char *text, struct transport **transport)
{
    struct tcp_options options;
    if (arena->memory != TRANSPORT_HOST || read_options(text, &options) != STRAIT_OK)
        return STRAIT_ERR_INVALID;
    struct tcp *tcp = calloc(1, sizeof(*tcp));
    if (tcp == NULL)
        return STRAIT_ERR_NO_MEMORY;
    core_init(&tcp->core, &transport_tcp, events, owner);
    tcp->options = options;
    for (unsigned i = 0; i < PENDING_MAX; i++)
        tcp->pending[i].fd = -1;
    tcp->listener = -1;
    tcp->epoll = epoll_create1(EPOLL_CLOEXEC);
    tcp->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (tcp->epoll >= 0 && tcp->timer >= 0 && tcp_watch(tcp, tcp->timer, &tcp->timer, EPOLLIN) && tcp_listen(tcp)) {
        tcp_unlisten_if_idle(tcp); /* that it can was to be seen */
        *transport = &tcp->core.base;
        return STRAIT_OK;
    }
    tcp_destroy(&tcp->core.base);
    return STRAIT_ERR_IO;
}

static int tcp_fd(const struct transport *transport)
{
    return ((const struct tcp *)transport)->epoll;
}

static void serve(struct tcp *tcp, void *what, uint32_t events)
{
    if (what == &tcp->listener)
        tcp_accept(tcp);
    else if (what == &tcp->timer)
        tcp_tick(tcp);
    else if (what >= (void *)tcp->pending && what < (void *)(tcp->pending + PENDING_MAX))
        tcp_read_pending(tcp, what);
    else
        tcp_serve(what, events);
}

/* Only core_reap frees links, so the pointers from epoll stay valid throughout the loop. */
static bool tcp_progress(struct transport *transport)
{
    struct tcp *tcp = (struct tcp *)transport;
    struct epoll_event ready[READY_MAX];
    bool any = core_deliver(&tcp->core);
    const int count = epoll_wait(tcp->epoll, ready, READY_MAX, 0);
    for (int i = 0; i < count; i++)
        serve(tcp, ready[i].data.ptr, ready[i].events);
    for (struct core_link *at = tcp->core.links; at != NULL; at = at->next)
        if (tcp_may_write((struct tcp_link *)at)) {
            tcp_flush((struct tcp_link *)at);
            any = true;
        }
    any |= core_deliver(&tcp->core);
    any |= core_reap(&tcp->core);
    if (tcp->links_changed)
        tcp_unlisten_if_idle(tcp);
    tcp->links_changed = false;
    return any || count > 0;
}

static enum strait_status tcp_arm(struct transport *transport)
{
    const struct tcp *tcp = (struct tcp *)transport;
    for (struct core_link *at = tcp->core.links; at != NULL; at = at->next)
        if (tcp_may_write((struct tcp_link *)at))
            return STRAIT_ERR_AGAIN;
    return core_is_due(&tcp->core) || tcp->links_changed ? STRAIT_ERR_AGAIN : STRAIT_OK;
}

const struct transport_ops transport_tcp = {
    .name = "tcp",
    .send_memory = TRANSPORT_HOST,
    .receive_memory = TRANSPORT_HOST,
    .direct = false,
    .by_readiness = true,
    .check = tcp_check,
    .create = tcp_create,
    .destroy = tcp_destroy,
    .after_fork = tcp_after_fork,
    .fd = tcp_fd,
    .progress = tcp_progress,
    .arm = tcp_arm,
    .open = tcp_link_open,
    .address = tcp_link_address,
    .connect = tcp_link_connect,
    .close = tcp_link_close,
    .send = tcp_link_send,
};
