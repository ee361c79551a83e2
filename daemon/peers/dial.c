#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <unistd.h>

#include "daemon/peers/peer_internal.h"

/* Dialling: from an address to a connected socket. */

#define LOOKUPS_MAX 16u /* lookups at a time: a name server that does not answer blocks each for long */

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
        connection_fail(c, "%s", strerror(error));
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
    else if (!c->failing) {
        int fd = c->socket;
        watch_close(c->watch);
        c->watch = NULL;
        c->socket = -1;
        connection_start(c, fd);
    }
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
        connection_fail(c, "name look-up: %s", error == 0 ? "no address" : text);
}

static void on_lookup(uv_getaddrinfo_t *request, int error, struct addrinfo *list)
{
    struct connection *c = request->data;
    c->looking_up = false;
    if (c->peer.state != PEER_DIALLING || c->failing) {
        uv_freeaddrinfo(list);
        connection_release(c);
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
        connection_fail(c, "too many name look-ups at once");
        return;
    }
    c->lookup.data = c;
    int error = uv_getaddrinfo(peers_of(c)->config.loop, &c->lookup, on_lookup, host, port, hints);
    c->looking_up = error == 0;
    if (error != 0)
        connection_fail(c, "name look-up: %s", uv_strerror(error));
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
        connection_fail(c, "malformed address");
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
        connection_fail(c, "name look-up: no answer in time");
    else
        address_failed(c, ETIMEDOUT);
}

/* Accepted connections. Strangers cost little: only a few are allowed at once, with small messages, and not for long.
 * When there are too many, the oldest is closed, because an honest peer completes the handshake quickly. */

#define BACKLOG        1024
#define LISTEN_REST_MS 100u /* out of descriptors, accepting would fail again at once */

/* ---- Accepting --------------------------------------------------------------------------------------------------- */

static bool is_half_open(const struct connection *c)
{
    if (c->peer.dialled || c->failing)
        return false;
    return c->peer.state == PEER_PROVING || (c->peer.state == PEER_LINKING && peers_of(c)->secret == NULL);
}

struct census {
    uint32_t accepted, half_open;
    struct connection *oldest; /* half-open one */
};

static struct census count_accepted(struct peers *peers)
{
    struct census census = {0};
    struct connection *c;
    TAILQ_FOREACH(c, &peers->connections, entry)
    {
        census.accepted += !c->peer.dialled;
        census.half_open += is_half_open(c);
        if (census.oldest == NULL && is_half_open(c))
            census.oldest = c;
    }
    return census;
}

static const char *address_text(const struct sockaddr_storage *address, char text[MESSAGE_ADDRESS_MAX])
{
    char host[NI_MAXHOST], port[NI_MAXSERV];
    if (getnameinfo((const struct sockaddr *)address, sizeof(*address), host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return "?";
    snprintf(text, MESSAGE_ADDRESS_MAX, address->ss_family == AF_INET6 ? "[%.200s]:%s" : "%.200s:%s", host, port);
    return text;
}

/* The peer's address is the socket's until its hello says where it listens. */
static void accept_one(struct peers *peers, int fd, const struct sockaddr_storage *address)
{
    char text[MESSAGE_ADDRESS_MAX];
    struct census census = count_accepted(peers);
    if (census.half_open >= PEER_HALF_OPEN_MAX)
        connection_fail(census.oldest, "too many connections at once that do not say who they are");
    struct connection *c =
        census.accepted < PEER_ACCEPTED_MAX ? connection_create(peers, address_text(address, text), false) : NULL;
    if (c == NULL) {
        peers_log_limited(peers, "msg=\"connection refused\" error=\"too many peers\"");
        close(fd);
        return;
    }
    c->deadline = peers_now(peers) + peers->options.connect_ms;
    connection_start(c, fd);
}

static void on_listener(void *owner, uint32_t events)
{
    struct peers *peers = owner;
    (void)events;
    for (uint32_t i = 0; i < PEER_ACCEPTS_PER_TURN; i++) {
        struct sockaddr_storage address = {0};
        socklen_t size = sizeof(address);
        int fd = accept4(peers->listen_fd, (struct sockaddr *)&address, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
                peers_log_limited(peers, "msg=\"cannot accept\" error=\"%s\"", strerror(errno));
                watch_for(peers->listener, 0);
                peers->accept_paused_until = peers_now(peers) + LISTEN_REST_MS;
                peers_tick_start(peers);
            }
            break; /* other errors concern a connection that is gone already */
        }
        accept_one(peers, fd, &address);
    }
    if (peers->accept_paused_until == 0)
        watch_for(peers->listener, WATCH_READ);
}

void listener_tick(struct peers *peers)
{
    if (peers->accept_paused_until == 0 || peers_now(peers) < peers->accept_paused_until)
        return;
    peers->accept_paused_until = 0;
    watch_for(peers->listener, WATCH_READ);
}

/* ---- The socket -------------------------------------------------------------------------------------------------- */

static int bind_first(const struct addrinfo *address)
{
    int on = 1;
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

static enum strait_status bind_to(struct peers *peers, const char *listen_at, char *why, size_t why_size)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    char host[ADDRESS_HOST_MAX], port[8];
    unsigned number;
    struct addrinfo *found = NULL;
    if (!address_split(listen_at, host, &number)) {
        snprintf(why, why_size, "listen: \"%s\" is not host:port", listen_at);
        return STRAIT_ERR_INVALID;
    }
    snprintf(port, sizeof(port), "%u", number);
    int error = getaddrinfo(host, port, &hints, &found);
    peers->listen_fd = error == 0 ? bind_first(found) : -1;
    if (peers->listen_fd < 0)
        snprintf(why, why_size, "listen at %s: %s", listen_at, error != 0 ? gai_strerror(error) : strerror(errno));
    if (found != NULL)
        freeaddrinfo(found);
    return peers->listen_fd >= 0 ? STRAIT_OK : STRAIT_ERR_IO;
}

/* Sets the address that others dial: the operator's, else the one that we listen on; by host name when that is the
 * wildcard. */
static void set_address(struct peers *peers)
{
    struct sockaddr_storage bound = {0};
    socklen_t size = sizeof(bound);
    char name[128] = "";
    (void)getsockname(peers->listen_fd, (struct sockaddr *)&bound, &size);
    address_text(&bound, peers->address);
    if (!address_is_wildcard(&bound) || gethostname(name, sizeof(name) - 1) != 0)
        return;
    snprintf(peers->address, sizeof(peers->address), "%s:%u", name, address_port(&bound));
}

enum strait_status listener_open(struct peers *peers, char *why, size_t why_size)
{
    enum strait_status status = STRAIT_OK;
    peers->listen_fd = -1;
    if (peers->options.listen[0] != 0) {
        status = bind_to(peers, peers->options.listen, why, why_size);
        if (status != STRAIT_OK)
            return status;
        set_address(peers);
        status =
            watch_open(peers->config.loop, peers->listen_fd, on_listener, peers, &peers->watches, &peers->listener);
        if (status != STRAIT_OK) {
            snprintf(why, why_size, "listen: %s", strait_status_string(status));
            close(peers->listen_fd);
            peers->listen_fd = -1;
            return status;
        }
        watch_for(peers->listener, WATCH_READ);
    }
    if (peers->options.advertise[0] != 0)
        snprintf(peers->address, sizeof(peers->address), "%s", peers->options.advertise);
    return status;
}

void listener_close(struct peers *peers)
{
    watch_close(peers->listener);
    peers->listener = NULL;
    if (peers->listen_fd >= 0)
        close(peers->listen_fd);
    peers->listen_fd = -1;
}
