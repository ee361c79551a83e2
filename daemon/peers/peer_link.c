#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/fault.h"
#include "daemon/peers/peer_internal.h"
#include "transport/shm.h"

/* Transport and link of a connection. The dialling side decides: it tries, one after the other,
 * the transports on its own list that the other side offers. With shm it connects to a unix socket of the peer; for the
 * other transports the two sides exchange the addresses of their links. */

/* ---- Links ------------------------------------------------------------------------------------------------------- */

/* Begins the connection's own link, or an attempt at it. Takes the socket in any case. */
static enum strait_status link_begin(struct connection *c, struct peer_transport *transport, int fd)
{
    enum strait_status status = peer_transport_begin(transport);
    if (status == STRAIT_OK) {
        status = link_make(c, transport, fd, &c->current);
        peer_transport_leave(transport); /* if there is no link now */
    } else if (fd >= 0) {
        close(fd);
    }
    return status;
}

static void current_end(struct connection *c)
{
    if (c->current != NULL)
        link_end(c->current);
    c->current = NULL;
    c->wants_answer = c->shm_is_full = false;
}

/* The link of a connection by shared memory, which is offered on one host only: the dialler connects to the other
 * daemon's unix socket and sends the token of that daemon's PEER_LINKS there. */

/* ---- shm: dialling ------------------------------------------------------------------------------------------- */

/* Sends the hello on a connected socket. NULL, or why it failed. */
static const char *shm_send_hello(struct connection *c, struct peer_transport *transport, int fd)
{
    const struct peers *peers = peers_of(c);
    struct channel *channel;
    struct message message = {
        .type = MESSAGE_SHM_HELLO,
        .shm_hello = {.token = c->peer.peer_token,
                      .node = peers->config.node,
                      .slot_bytes = peers->config.slot_bytes,
                      .slot_count = peers->config.slot_count,
                      .rings = true},
    };
    if (channel_create(fd, PEER_HELLO_BODY_MAX, PEER_HELLO_BODY_MAX, &channel) != STRAIT_OK) {
        close(fd);
        return "out of memory";
    }
    if (channel_send(channel, &message, NULL, 0) != STRAIT_OK || channel_flush(channel) != STRAIT_OK) {
        channel_destroy(channel);
        return "its socket takes no hello";
    }
    fd = channel_release(channel);
    if (fd < 0 || link_begin(c, transport, fd) != STRAIT_OK)
        return "no link can be opened";
    return link_connect(c->current->link, NULL, 0) == STRAIT_OK ? NULL : "the link cannot be begun";
}

/* Connects to the peer's unix socket. Returns it, or -1 and errno. */
static int shm_dial(const struct connection *c)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, c->shm_path, sizeof(address.sun_path));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* Begins a link as the dialler. NULL, or why it failed. connect fails at once if the unix socket's backlog is full, and
 * nothing signals when it has room: then shm_is_full is set, and ticks try again. */
static const char *shm_try(struct connection *c, struct peer_transport *transport)
{
    if (!c->same_host || c->shm_path[0] == 0)
        return "on another host";
    int fd = shm_dial(c);
    c->shm_is_full = fd < 0 && errno == EAGAIN;
    if (c->shm_is_full)
        return NULL;
    return fd >= 0 ? shm_send_hello(c, transport, fd) : strerror(errno);
}

/* ---- shm: accepting ------------------------------------------------------------------------------------------ */

static struct connection *find_token(struct peers *peers, uint64_t token)
{
    struct connection *c;
    TAILQ_FOREACH(c, &peers->connections, entry)
    {
        if (c->peer.token == token && !c->peer.dialled && c->peer.state == PEER_LINKING && !c->failing)
            return c;
    }
    return NULL;
}

static const char *accept_shm(struct peers *peers, struct channel *channel, const struct message_shm_hello *hello)
{
    struct connection *c = find_token(peers, hello->token);
    struct peer_transport *transport = peer_transport_find(peers, "shm", 3);
    int fd = channel_release(channel);
    if (fd < 0)
        return "bytes followed the hello";
    if (c == NULL || transport == NULL || c->current != NULL || hello->node != c->peer.node) {
        close(fd);
        return "unknown token";
    }
    if (link_begin(c, transport, fd) != STRAIT_OK)
        return "no link can be opened";
    static const char rings = SHM_TAKES_RINGS;
    if (link_connect(c->current->link, &rings, hello->rings ? 1 : 0) == STRAIT_OK)
        return NULL;
    current_end(c);
    return "the link cannot be begun";
}

void peers_accept_shm(struct peers *peers, struct channel *channel, const struct message_shm_hello *hello)
{
    const char *why = accept_shm(peers, channel, hello);
    if (why != NULL)
        log_limited(peers->config.log, LOG_OF_STRANGERS, LOG_WARN, "msg=\"shm link refused\" error=\"%s\"", why);
}

static bool is_shm(const struct peer_transport *transport)
{
    return strcmp(transport->ops->name, "shm") == 0;
}

/* Is `name` among the transports, separated by commas, that the peer offers? */
static bool is_offered(const struct connection *c, const char *name)
{
    const char *at = c->offered;
    while (*at != 0) {
        size_t size = strcspn(at, ",");
        if (size == strlen(name) && memcmp(at, name, size) == 0)
            return true;
        at += size + (at[size] == ',');
    }
    return false;
}

/* ---- Sending PEER_LINKS ------------------------------------------------------------------------------------------ */

static void send_links(struct connection *c, const char *transport, const void *address, size_t address_size)
{
    const struct peers *peers = peers_of(c);
    const uint8_t *id = peers->config.codebook_id;
    struct message message = {
        .type = MESSAGE_PEER_LINKS,
        .peer_links =
            {
                .token = c->peer.token,
                .host = view_of(peers->host, strlen(peers->host)),
                .shm_path = view_of(peers->shm_path, strlen(peers->shm_path)),
                .transport = view_of(transport, strlen(transport)),
                .address = view_of(address, address_size),
                .codebook_id = view_of(id, id != NULL ? CODEBOOK_ID_BYTES : 0),
                .slot_bytes = peers->config.slot_bytes,
                .slot_count = peers->config.slot_count,
                .codebooks = peers->config.codebooks,
                .reshapes = peers->config.reshapes,
                .block_modes = peers->config.block_modes,
            },
    };
    connection_send(c, &message);
}

void links_send(struct connection *c)
{
    send_links(c, peers_of(c)->offered, NULL, 0);
}

/* False: the link has no address to send. */
static bool send_address(struct connection *c)
{
    uint8_t address[LINK_ADDRESS_MAX];
    size_t size = link_address(c->current->link, address, sizeof(address));
    if (size == 0 || size > sizeof(address))
        return false;
    send_links(c, c->current->transport->ops->name, address, size);
    return true;
}

/* ---- Choice: dialling -------------------------------------------------------------------------------------------- */

/* Records why a better transport is not used, or in the end why none is. */
static void note(struct connection *c, const char *name, const char *why)
{
    size_t used = strlen(c->peer.why);
    snprintf(c->peer.why + used, sizeof(c->peer.why) - used, "%s%s: %s", used > 0 ? "; " : "", name, why);
}

/* The connections of a tcp link go where the control connection got to. */
static void reach_peer(const struct connection *c)
{
    struct sockaddr_storage peer;
    socklen_t size = sizeof(peer);
    if (getpeername(channel_fd(c->channel), (struct sockaddr *)&peer, &size) == 0)
        tcp_reach(c->current->link, (const struct sockaddr *)&peer, size);
}

static const char *try_address(struct connection *c, struct peer_transport *transport)
{
    if (link_begin(c, transport, -1) != STRAIT_OK)
        return "no link can be opened";
    if (transport->ops == &transport_tcp)
        reach_peer(c);
    c->wants_answer = send_address(c);
    return c->wants_answer ? NULL : "no address";
}

static const char *try_transport(struct connection *c, struct peer_transport *transport)
{
    if (!is_offered(c, transport->ops->name))
        return "not offered by the peer";
    c->common_tried |= !is_shm(transport) || c->same_host;
    return is_shm(transport) ? shm_try(c, transport) : try_address(c, transport);
}

/* Tries the next transport for half of the time that is left, the last one for all of it. */
static void try_transports(struct connection *c)
{
    struct peers *peers = peers_of(c);
    uint64_t now = peers_now(peers);
    for (; c->attempt < peers->transport_count; c->attempt++) {
        struct peer_transport *transport = &peers->transports[c->attempt];
        const char *why = try_transport(c, transport);
        c->attempt_deadline = c->attempt + 1 < peers->transport_count ? (now + c->deadline) / 2 : c->deadline;
        if (why == NULL)
            return;
        note(c, transport->ops->name, why);
        current_end(c);
    }
    char tried[sizeof(c->peer.why)];
    memcpy(tried, c->peer.why, sizeof(tried));
    const char *between = tried[0] != 0 ? ": " : "";
    if (c->common_tried)
        connection_fail(c, "no transport%s%s", between, tried);
    else
        connection_refuse(c, "no transport%s%s", between, tried);
}

static void attempt_failed(struct connection *c, const char *why)
{
    note(c, peers_of(c)->transports[c->attempt].ops->name, why);
    current_end(c);
    c->attempt++;
    try_transports(c);
}

static void take_answer(struct connection *c, const struct message_peer_links *links)
{
    struct peer_transport *transport =
        peer_transport_find(peers_of(c), (const char *)links->transport.data, links->transport.size);
    if (!c->wants_answer || c->current == NULL || transport != c->current->transport)
        return; /* belongs to an attempt that was given up */
    c->wants_answer = false;
    if (links->address.size == 0)
        attempt_failed(c, "refused by the peer");
    else if (link_connect(c->current->link, links->address.data, links->address.size) != STRAIT_OK)
        attempt_failed(c, "the peer's address is of no use");
}

/* ---- Choice: accepting ------------------------------------------------------------------------------------------- */

/* A choice ends the previous attempt. The list of transports bounds how many choices an honest peer makes. */
static void take_choice(struct connection *c, const struct message_peer_links *links)
{
    struct peer_transport *transport =
        peer_transport_find(peers_of(c), (const char *)links->transport.data, links->transport.size);
    current_end(c);
    if (c->attempt++ >= PEER_TRANSPORTS_MAX) {
        connection_protocol_error(c, "it cannot decide on a transport");
        return;
    }
    if (transport != NULL && !is_shm(transport) && links->address.size > 0 &&
        link_begin(c, transport, -1) == STRAIT_OK &&
        link_connect(c->current->link, links->address.data, links->address.size) == STRAIT_OK && send_address(c))
        return;
    current_end(c);
    char name[MESSAGE_ADDRESS_MAX + 1];
    snprintf(name, sizeof(name), "%.*s", (int)links->transport.size, (const char *)links->transport.data);
    note(c, transport != NULL ? transport->ops->name : "transport", "refused here");
    send_links(c, name, NULL, 0);
}

/* ---- Both sides -------------------------------------------------------------------------------------------------- */

static void copy_text(char *dst, size_t capacity, struct view text)
{
    size_t size = text.size < capacity ? text.size : 0; /* a truncated text would be useless */
    if (size > 0)
        memcpy(dst, text.data, size);
    dst[size] = 0;
}

/* The unix socket may be faster than TCP: then the link is ready before the peer's PEER_LINKS has come. */
static void up_if_ready(struct connection *c)
{
    const struct peer_link *link = c->current;
    if (c->peer.state != PEER_LINKING || !c->has_links || c->failing || link == NULL || !link->connected ||
        link->closing)
        return;
    /* Can all slots that the peer claims be mapped here? Otherwise a grant of one could not be filled, and the arena
     * could not be pinned for GPUs. */
    if (!c->current->transport->ops->direct ||
        link_map(c->current->link, 0, (size_t)c->peer.slot_bytes * c->peer.slot_count) != NULL)
        peers_of(c)->on_link_up(c);
    else
        connection_protocol_error(c, "an arena smaller than its slots");
}

/* ---- Codebook sets ----------------------------------------------------------------------------------------------- */

static void codebook_compare(struct connection *c)
{
    const uint8_t *id = peers_of(c)->config.codebook_id;
    c->peer.codebook_matches =
        id != NULL && c->peer.has_codebook && memcmp(id, c->peer.codebook_id, CODEBOOK_ID_BYTES) == 0;
}

void codebook_receive(struct connection *c, struct view id)
{
    const struct peers *peers = peers_of(c);
    c->peer.has_codebook = id.size == CODEBOOK_ID_BYTES;
    if (c->peer.has_codebook)
        memcpy(c->peer.codebook_id, id.data, CODEBOOK_ID_BYTES);
    codebook_compare(c);
    if (c->peer.state == PEER_UP) /* else `up` follows */
        peers->config.events->codebook(peers->config.owner, &c->peer);
}

void codebook_send(struct connection *c)
{
    const uint8_t *id = peers_of(c)->config.codebook_id;
    struct message message = {.type = MESSAGE_CODEBOOK, .codebook.id = view_of(id, id != NULL ? CODEBOOK_ID_BYTES : 0)};
    codebook_compare(c);
    if (c->peer.state == PEER_UP || c->peer.state == PEER_LINKING)
        connection_send(c, &message);
}

#define EARLIER_BLOCK_MODES 0x1fu /* of a daemon that does not tell: 0 to 4 */

static void take_first(struct connection *c, const struct message_peer_links *links)
{
    const struct peers *peers = peers_of(c);
    c->has_links = true;
    c->peer.why[0] = 0;
    c->peer.peer_token = links->token;
    c->peer.slot_bytes = links->slot_bytes;
    c->peer.slot_count = links->slot_count;
    c->peer.takes_codebooks = links->codebooks;
    c->peer.takes_reshapes = links->reshapes;
    c->peer.block_modes = links->block_modes != 0 ? links->block_modes : EARLIER_BLOCK_MODES;
    codebook_receive(c, links->codebook_id);
    c->same_host = links->host.size > 0 && links->host.size == strlen(peers->host) &&
                   memcmp(links->host.data, peers->host, links->host.size) == 0;
    copy_text(c->shm_path, sizeof(c->shm_path), links->shm_path);
    copy_text(c->offered, sizeof(c->offered), links->transport);
    if (links->slot_bytes == 0 || links->slot_count == 0)
        connection_protocol_error(c, "an empty arena");
    else if (c->peer.dialled)
        try_transports(c);
    else
        up_if_ready(c);
}

void links_receive(struct connection *c, const struct message_peer_links *links)
{
    if (!c->has_links)
        take_first(c, links);
    else if (c->peer.dialled)
        take_answer(c, links);
    else
        take_choice(c, links);
}

void links_tick(struct connection *c)
{
    if (!c->peer.dialled || (c->current == NULL && !c->shm_is_full))
        return;
    if (peers_now(peers_of(c)) >= c->attempt_deadline)
        attempt_failed(c, c->shm_is_full ? "its socket has no room" : "no link in time");
    else if (c->shm_is_full) {
        const char *why = shm_try(c, &peers_of(c)->transports[c->attempt]);
        if (why != NULL)
            attempt_failed(c, why);
    }
}

/* ---- Transport events -------------------------------------------------------------------------------------------- */

static void worked(void *owner)
{
    struct peer_transport *transport = owner;
    port_worked(transport->port);
}

static void on_connected(void *owner, struct link *base)
{
    struct peer_link *link = base->owner;
    struct connection *c = link->connection;
    worked(owner);
    peers_turn_again(peers_of(c));
    link->connected = true;
    if (link->gpu != NULL)
        gpu_link_connected(c, link->gpu);
    else
        up_if_ready(c);
}

static void on_broken(void *owner, struct link *base, const char *why)
{
    struct peer_link *link = base->owner;
    struct connection *c = link->connection;
    worked(owner);
    if (link->gpu != NULL && !link->closing && !c->failing)
        gpu_link_broken(c, link->gpu, why);
    if (link != c->current || link->closing || c->failing)
        return;
    if (c->peer.state == PEER_UP)
        peers_of(c)->on_link_broken(c);
    if (c->peer.state == PEER_UP)
        connection_fail(c, "%s: %s", link->transport->ops->name, why);
    else if (c->peer.state == PEER_LINKING && c->peer.dialled)
        attempt_failed(c, why);
    else if (c->peer.state == PEER_LINKING)
        current_end(c); /* the dialling side decides what to try next */
}

static void on_closed(void *owner, struct link *base)
{
    struct peer_link *link = base->owner;
    struct connection *c = link->connection;
    struct peer_transport *transport = owner;
    worked(owner);
    peers_turn_again(peers_of(c));
    LIST_REMOVE(link, entry);
    transport->links--;
    peer_transport_leave(transport);
    if (c->current == link && c->has_ring)
        connection_fail(c, "its link is closed"); /* the rings were the link's */
    if (c->current == link)
        c->current = NULL;
    if (link->gpu != NULL)
        gpu_link_closed(link->gpu);
    free(link);
    peers_of(c)->on_part_ended(c);
}

/* Is the link in use by the peer? Events of other links are ignored: nobody granted them anything. */
static bool is_of_peer(const struct peer_link *link)
{
    const struct connection *c = link->connection;
    return (link == c->current || link->gpu != NULL) && (c->peer.state == PEER_UP || c->was_up);
}

static struct landing on_arriving(void *owner, struct link *base, const void *header, size_t header_size, size_t size)
{
    struct peer_transport *transport = owner;
    struct peer_link *link = base->owner;
    worked(owner);
    if (!is_of_peer(link))
        return (struct landing){.address = NULL};
    const struct peers_config *config = &transport->peers->config;
    peers_turn_again(transport->peers);
    return config->events->arriving(config->owner, &link->connection->peer, transport->device, header, header_size,
                                    size);
}

static void on_arrived(void *owner, struct link *base, uint64_t cookie, enum strait_status status)
{
    struct peers *peers = ((struct peer_transport *)owner)->peers;
    const struct peers_config *config = &peers->config;
    struct peer_link *link = base->owner;
    worked(owner);
    if (!is_of_peer(link))
        return;
    peers_turn_again(peers);
    config->events->arrived(config->owner, &link->connection->peer, cookie, status);
}

static void on_sent(void *owner, struct link *base, uint64_t cookie, enum strait_status status)
{
    struct peers *peers = ((struct peer_transport *)owner)->peers;
    const struct peers_config *config = &peers->config;
    struct peer_link *link = base->owner;
    worked(owner);
    if (!is_of_peer(link))
        return;
    peers_turn_again(peers);
    config->events->sent(config->owner, &link->connection->peer, cookie, status);
}

const struct transport_events peer_transport_events = {
    .arriving = on_arriving,
    .arrived = on_arrived,
    .sent = on_sent,
    .connected = on_connected,
    .broken = on_broken,
    .closed = on_closed,
};
