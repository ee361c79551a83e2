#include <errno.h>
#include <unistd.h>

#include "daemon/peers/peer_internal.h"

/* Accepted connections: those of peers, and those that carry the chunks of a peer's tcp link, which the transport takes
 * over. Who connects speaks first. Strangers cost little: only a few are allowed at once, with small messages, and not
 * for long. When there are too many, of one host or of all, the oldest of these is closed, because an honest peer
 * completes the handshake quickly. Key exchanges cost most: when they have used up their share of the time, those who
 * come wait. */

#define BACKLOG 1024

/* ---- Accepting --------------------------------------------------------------------------------------------------- */

struct half_open {
    uint32_t count;
    struct connection *oldest;
};

struct census {
    uint32_t accepted;
    struct half_open all, of_host;
};

static void count_one(struct half_open *half_open, struct connection *c)
{
    if (half_open->count++ == 0)
        half_open->oldest = c;
}

static struct census count_accepted(struct peers *peers, const struct sockaddr_storage *from)
{
    struct census census = {0};
    struct connection *c;
    TAILQ_FOREACH(c, &peers->connections, entry)
    {
        census.accepted += !c->peer.dialled;
        if (!connection_is_stranger(c))
            continue;
        count_one(&census.all, c);
        if (address_same_host(&c->from, from))
            count_one(&census.of_host, c);
    }
    return census;
}

/* Whether there is time for one more handshake of a stranger. */
static bool may_greet(struct peers *peers)
{
    const uint64_t now = uv_hrtime();
    const int64_t more = (int64_t)((now - peers->greeting_at) / PEER_GREETING_SHARE);
    peers->greeting_at = now;
    peers->greeting_ns = peers->greeting_ns + more < PEER_GREETING_NS ? peers->greeting_ns + more : PEER_GREETING_NS;
    peers->config.metrics->greetings_put_off += peers->greeting_ns < 0;
    return peers->greeting_ns >= 0;
}

/* The transport closes what proves to be of no link of its own. */
static void hand_over(struct connection *c, int fd)
{
    const struct peer_transport *transport = peer_transport_find(peers_of(c), transport_tcp.name, 3);
    if (transport != NULL)
        tcp_adopt(transport->handle, fd);
    else
        close(fd);
    c->peer.state = PEER_CLOSING;
    connection_release(c);
}

/* Tells by its first bytes what a connection is, and leaves them to whom it belongs to. */
static void on_first_bytes(void *owner, uint32_t events)
{
    struct connection *c = owner;
    uint8_t first[TCP_FIRST_BYTES];
    const ssize_t got = recv(c->socket, first, sizeof(first), MSG_PEEK | MSG_DONTWAIT);
    (void)events;
    if (c->failing)
        return;
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
        connection_fail(c, "closed by the peer while greeting");
        return;
    }
    const bool is_data = got == (ssize_t)sizeof(first) && tcp_is_preamble(first);
    if (got < (ssize_t)sizeof(first) || (!is_data && !may_greet(peers_of(c)))) {
        watch_for(c->watch, 0); /* it would report these bytes again and again: a tick looks again */
        return;
    }
    const int fd = c->socket;
    watch_close(c->watch);
    c->watch = NULL;
    c->socket = -1;
    if (is_data)
        hand_over(c, fd);
    else
        connection_start(c, fd);
}

void connection_first_tick(struct connection *c)
{
    if (c->channel == NULL && c->watch != NULL && !c->peer.dialled)
        watch_for(c->watch, WATCH_READ);
}

/* The peer's address is the socket's until its hello says where it listens. */
static void on_connection(void *owner, int fd, const struct sockaddr_storage *address)
{
    struct peers *peers = owner;
    char text[ADDRESS_TEXT_MAX];
    struct census census = count_accepted(peers, address);
    const struct half_open *full = census.of_host.count >= PEER_HALF_OPEN_HOST ? &census.of_host : &census.all;
    if (full == &census.of_host || census.all.count >= PEER_HALF_OPEN_MAX)
        connection_fail(full->oldest, "too many connections at once that do not say who they are");
    struct connection *c =
        census.accepted < PEER_ACCEPTED_MAX ? connection_accepted(peers, address_text(address, text)) : NULL;
    if (c == NULL) {
        log_limited(peers->config.log, LOG_OF_STRANGERS, LOG_WARN,
                    "msg=\"connection refused\" error=\"too many peers\"");
        close(fd);
        return;
    }
    c->deadline = peers_now(peers) + peers->options.connect_ms;
    c->socket = fd;
    c->from = *address;
    if (watch_open(peers->config.loop, fd, on_first_bytes, c, &peers->watches, &c->watch) == STRAIT_OK)
        watch_for(c->watch, WATCH_READ);
    else
        connection_fail(c, "%s", strait_status_string(STRAIT_ERR_NO_MEMORY));
}

/* ---- The sockets ------------------------------------------------------------------------------------------------- */

/* Names were looked up again since the options were checked, and interfaces may have changed. */
static bool is_guarded(const struct peers *peers, const struct address_list *bound, char *why, size_t why_size)
{
    char text[ADDRESS_TEXT_MAX];
    for (uint32_t i = 0; i < bound->count; i++)
        if (!address_is_loopback(&bound->found[i].address) && peers->credentials == NULL &&
            !peers->options.insecure_no_auth) {
            snprintf(why, why_size,
                     "listen: %s is not a loopback address: it needs secret-file or tls-certificate (or "
                     "insecure-no-auth)",
                     address_text(&bound->found[i].address, text));
            return false;
        }
    return true;
}

static enum strait_status open_sockets(struct peers *peers, char *why, size_t why_size)
{
    char what[256];
    enum strait_status status = listen_tcp(peers->options.listen, BACKLOG, &peers->sockets, what, sizeof(what));
    if (status != STRAIT_OK) {
        snprintf(why, why_size, "listen: %s", what);
        return status;
    }
    if (what[0] != 0)
        log_write(peers->config.log, LOG_WARN, "msg=\"address left out of listen\" error=\"%s\"", what);
    return is_guarded(peers, &peers->sockets.bound, why, why_size) ? STRAIT_OK : STRAIT_ERR_INVALID;
}

enum strait_status listener_open(struct peers *peers, char *why, size_t why_size)
{
    char what[256];
    enum strait_status status = STRAIT_OK;
    if (peers->options.listen[0] != 0)
        status = open_sockets(peers, why, why_size);
    if (status == STRAIT_OK) {
        status = address_advertise(peers->options.advertise, &peers->sockets.bound, peers->address,
                                   sizeof(peers->address), what, sizeof(what));
        if (status != STRAIT_OK)
            snprintf(why, why_size, "%s: %s", peers->options.advertise[0] != 0 ? "advertise" : "listen", what);
    }
    if (status != STRAIT_OK)
        listen_close(&peers->sockets);
    return status;
}

enum strait_status listener_start(struct peers *peers)
{
    const struct acceptor_config config = {.loop = peers->config.loop,
                                           .log = peers->config.log,
                                           .name = "peers",
                                           .rests = &peers->config.metrics->accept_rests[LISTENER_PEERS],
                                           .count = &peers->watches,
                                           .accepted = on_connection,
                                           .owner = peers};
    enum strait_status status = STRAIT_OK;
    for (uint32_t i = 0; i < peers->sockets.bound.count && status == STRAIT_OK; i++) {
        status = acceptor_open(peers->sockets.fds[i], &config, &peers->acceptors[i]);
        peers->acceptor_count += status == STRAIT_OK;
    }
    return status;
}

void listener_close(struct peers *peers)
{
    for (uint32_t i = 0; i < peers->sockets.bound.count; i++)
        if (i < peers->acceptor_count)
            acceptor_close(peers->acceptors[i]);
        else
            close(peers->sockets.fds[i]);
    peers->acceptor_count = peers->sockets.bound.count = 0;
}
