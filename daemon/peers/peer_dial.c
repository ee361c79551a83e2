/* From an address to a connected socket. */
#include "daemon/peers/peer_internal.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

#define LOOKUPS_MAX 16u /* lookups at a time: a name server that does not answer blocks each for long */

void socket_prepare(int fd)
{
    int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

/* ---- One address after the other --------------------------------------------------------------------------------- */

static void try_next(struct connection *c);

static void address_failed(struct connection *c, int error)
{
    watch_close(c->watch);
    c->watch = NULL;
    if (c->socket >= 0)
        close(c->socket);
    c->socket = -1;
    if (c->next_address != NULL)
        try_next(c);
    else
        connection_doom(c, "%s", strerror(error));
}

static void connected(struct connection *c)
{
    int fd = c->socket;
    watch_close(c->watch);
    c->watch = NULL;
    c->socket = -1;
    connection_begin(c, fd);
}

static void on_connect(void *owner, uint32_t events)
{
    struct connection *c = owner;
    int error = 0;
    socklen_t size = sizeof(error);
    (void)events;
    if (getsockopt(c->socket, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
        error = errno;
    if (error != 0)
        address_failed(c, error);
    else if (!c->doomed)
        connected(c);
}

/* Each address gets an equal share of the time that is left. */
static uint64_t share_of_time(const struct connection *c, const struct addrinfo *address)
{
    uint64_t now = peers_now(peers_of(c)), left = c->deadline > now ? c->deadline - now : 0;
    uint32_t addresses = 0;
    for (; address != NULL; address = address->ai_next)
        addresses++;
    return now + left / (addresses > 0 ? addresses : 1);
}

static void try_next(struct connection *c)
{
    struct peers *peers = peers_of(c);
    const struct addrinfo *address = c->next_address;
    c->address_deadline = share_of_time(c, address);
    c->next_address = address->ai_next;
    c->socket = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    if (c->socket < 0 || (connect(c->socket, address->ai_addr, address->ai_addrlen) != 0 && errno != EINPROGRESS)) {
        address_failed(c, errno);
        return;
    }
    if (watch_open(peers->config.loop, c->socket, on_connect, c, &peers->watches, &c->watch) != STRAIT_OK) {
        address_failed(c, ENOMEM);
        return;
    }
    watch_for(c->watch, WATCH_WRITE);
}

/* ---- Names ------------------------------------------------------------------------------------------------------- */

static void found(struct connection *c, int error, const char *text)
{
    if (error == 0 && c->next_address != NULL)
        try_next(c);
    else
        connection_doom(c, "name look-up: %s", error == 0 ? "no address" : text);
}

static void on_lookup(uv_getaddrinfo_t *request, int error, struct addrinfo *list)
{
    struct connection *c = request->data;
    c->looking_up = false;
    if (c->peer.state != PEER_DIALLING || c->doomed) {
        uv_freeaddrinfo(list);
        connection_settle(c);
        return;
    }
    c->found = c->next_address = list;
    found(c, error, error != 0 ? uv_strerror(error) : "");
}

static uint32_t lookups(const struct peers *peers)
{
    const struct connection *c;
    uint32_t count = 0;
    TAILQ_FOREACH(c, &peers->connections, entry)
    {
        count += c->looking_up;
    }
    return count;
}

static void look_up(struct connection *c, const char *host, const char *port, const struct addrinfo *hints)
{
    if (lookups(peers_of(c)) >= LOOKUPS_MAX) {
        connection_doom(c, "too many name look-ups at once");
        return;
    }
    c->lookup.data = c;
    int error = uv_getaddrinfo(peers_of(c)->config.loop, &c->lookup, on_lookup, host, port, hints);
    c->looking_up = error == 0;
    if (error != 0)
        connection_doom(c, "name look-up: %s", uv_strerror(error));
}

/* Numeric addresses need no lookup on a worker thread. */
void connection_dial(struct connection *c)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    char host[ADDRESS_HOST_MAX], port[8];
    unsigned number = 0;
    c->peer.state = PEER_DIALLING;
    c->deadline = peers_now(peers_of(c)) + peers_of(c)->options.connect_ms;
    c->address_deadline = c->deadline;
    if (!address_split(c->peer.address, host, &number)) {
        connection_doom(c, "malformed address");
        return;
    }
    snprintf(port, sizeof(port), "%u", number);
    int error = getaddrinfo(host, port, &hints, &c->found);
    c->next_address = error == 0 ? c->found : NULL;
    hints.ai_flags = AI_NUMERICSERV | AI_ADDRCONFIG;
    if (error == EAI_NONAME)
        look_up(c, host, port, &hints);
    else
        found(c, error, gai_strerror(error));
}

/* ---- Time and end ------------------------------------------------------------------------------------------------ */

void connection_dial_tick(struct connection *c)
{
    if (peers_now(peers_of(c)) < c->address_deadline)
        return;
    if (c->looking_up)
        connection_doom(c, "name look-up: no answer in time");
    else
        address_failed(c, ETIMEDOUT);
}

void connection_dial_end(struct connection *c)
{
    if (c->looking_up)
        uv_cancel((uv_req_t *)&c->lookup); /* on_lookup is called in any case */
    if (c->found != NULL)
        freeaddrinfo(c->found);
    c->found = c->next_address = NULL;
}
