#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/fault.h"
#include "daemon/base/hello.h"
#include "daemon/peers/peer_internal.h"

/* Heartbeats: each side sends a numbered one per interval, which is answered at once by an unnumbered one (0). */

static void heartbeat_send(struct connection *c, uint64_t sequence)
{
    struct message message = {.type = MESSAGE_HEARTBEAT, .heartbeat = {.sequence = sequence, .echo = c->seen}};
    connection_send(c, &message);
}

/* As in TCP, each new sample counts for an eighth. */
static void smooth(uint64_t *average, uint64_t sample)
{
    *average = *average == 0 ? sample : *average - *average / 8 + sample / 8;
}

uint64_t peer_mark(const struct peer *peer)
{
    return ((const struct connection *)peer)->sequence + 1; /* of the next heartbeat */
}

bool peer_has_handled(const struct peer *peer, uint64_t mark)
{
    return ((const struct connection *)peer)->answered >= mark;
}

static void heartbeat_receive(struct connection *c, const struct message_heartbeat *beat)
{
    if (beat->echo > c->answered && beat->echo <= c->sequence)
        c->answered = beat->echo;
    if (c->sent_at_ns != 0 && beat->echo == c->sequence) {
        smooth(&c->peer.round_trip_us, (uv_hrtime() - c->sent_at_ns) / 1000 + 1);
        c->sent_at_ns = 0;
    }
    if (beat->sequence == 0)
        return;
    c->seen = beat->sequence;
    heartbeat_send(c, 0);
}

void heartbeat_tick(struct connection *c)
{
    const struct node_options *options = &peers_of(c)->options;
    uint64_t now = peers_now(peers_of(c));
    if (now >= c->received_at + options->peer_timeout_ms) {
        connection_fail(c, "no heartbeat for %u ms", (unsigned)(now - c->received_at));
        return;
    }
    if (now < c->next_heartbeat)
        return;
    c->next_heartbeat = now + options->heartbeat_ms;
    c->sent_at_ns = uv_hrtime();
    heartbeat_send(c, ++c->sequence);
}

/* Handshake: TLS (below the channel), hellos, versions. */

static enum seal_suite own_suite(const struct peers *peers)
{
    return peers->options.encrypt_pages ? seal_best() : SEAL_NONE;
}

static struct message_peer_hello own_hello(const struct connection *c)
{
    const struct peers *peers = peers_of(c);
    struct message_peer_hello hello = {
        .version = PROTOCOL_VERSION,
        .version_min = PROTOCOL_VERSION_MIN,
        .node = peers->config.node,
        .incarnation = peers->config.incarnation,
        .nonce = view_of(c->nonce, sizeof(c->nonce)),
        .address = view_of(peers->address, strlen(peers->address)),
        .dialled = c->peer.dialled ? view_of(c->peer.address, strlen(c->peer.address)) : view_of("", 0),
        .pages = own_suite(peers),
    };
    hello_tell(&hello, peers->config.version);
    return hello;
}

/* A daemon may be known by several addresses, as names, numbers and old lists are; it is connected to once. */
static bool is_second(struct connection *c)
{
    const struct message_peer_hello *hello = &c->hello.peer_hello;
    const struct connection *same =
        c->peer.dialled ? connection_to(peers_of(c), hello->node, hello->incarnation) : NULL;
    if (same == NULL)
        return false;
    c->is_alias = true;
    c->alias_node = hello->node;
    c->alias_incarnation = hello->incarnation;
    connection_fail(c, "the same daemon as %s", same->peer.address);
    return true;
}

static void proved(struct connection *c)
{
    const struct message_peer_hello *hello = &c->hello.peer_hello;
    if (is_second(c))
        return;
    c->peer.node = hello->node;
    c->peer.incarnation = hello->incarnation;
    hello_software(hello, c->peer.software);
    c->suite = hello->pages < own_suite(peers_of(c)) ? hello->pages : own_suite(peers_of(c)); /* both do it well */
    if (!c->peer.dialled && hello->address.size > 0)
        snprintf(c->peer.address, sizeof(c->peer.address), "%.*s", (int)hello->address.size,
                 (const char *)hello->address.data);
    message_fini(&c->hello);
    memset(&c->hello, 0, sizeof(c->hello));
    c->peer.state = PEER_LINKING;
    channel_set_body_max(c->channel, MESSAGE_BYTES_MAX);
    links_send(c);
}

/* Both sides see both hellos, so both can decide. */
static bool is_acceptable(struct connection *c)
{
    const struct peers *peers = peers_of(c);
    const struct message_peer_hello *hello = &c->hello.peer_hello;
    if (hello->version_min > PROTOCOL_VERSION || hello->version < PROTOCOL_VERSION_MIN)
        connection_refuse(c, "protocol versions differ: %" PRIu32 " to %" PRIu32 " there, %u to %u here",
                          hello->version_min, hello->version, PROTOCOL_VERSION_MIN, PROTOCOL_VERSION);
    else if (memcmp(hello->nonce.data, c->nonce, NONCE_BYTES) == 0)
        connection_refuse(c, "the connection leads back to itself");
    else if (hello->node == peers->config.node && hello->incarnation == peers->config.incarnation)
        connection_refuse(c, "the address leads back to this daemon");
    else if ((hello->pages != SEAL_NONE) != (own_suite(peers_of(c)) != SEAL_NONE))
        connection_refuse(c, "%s",
                          hello->pages == SEAL_NONE
                              ? "encrypted pages are demanded here, but not by the peer (encrypt-pages)"
                              : "the peer demands encrypted pages, but they are not here (encrypt-pages)");
    return !c->failing;
}

/* Where the peer says it listens, as a text; "": nowhere (embedded). */
static bool tells_address(const struct message_peer_hello *hello)
{
    char text[MESSAGE_ADDRESS_MAX + 1];
    snprintf(text, sizeof(text), "%.*s", (int)hello->address.size, (const char *)hello->address.data);
    return text[0] == 0 || address_list_ok(text);
}

static void hello_receive(struct connection *c, struct message *message)
{
    if (!tells_address(&message->peer_hello)) {
        connection_protocol_error(c, "its address");
        return;
    }
    c->peer.clock_skew_us = hello_clock_skew_us(&message->peer_hello);
    c->hello = *message;
    c->has_hello = true;
    memset(message, 0, sizeof(*message));
    if (is_acceptable(c))
        proved(c);
    else
        (void)channel_flush(c->channel); /* so that the peer sees it, too */
}

/* Control channel of a connection: messages are read and handed to the part that they are for, and sent. */

/* ---- Rings ------------------------------------------------------------------------------------------------------- */

static void wake_peer(void *owner)
{
    link_wake(owner);
}

/* What follows goes by the rings of the link, if it has any, in place of the socket and TLS: whoever has them has
 * proved itself. */
static void ring_begin(struct connection *c)
{
    const struct message message = {.type = MESSAGE_RING};
    struct ring in, out;
    if (!link_rings(c->current->link, &in, &out))
        return;
    connection_send(c, &message);
    ring_layer_init(&c->ring, in, out, false, wake_peer, c->current->link);
    channel_send_by(c->channel, &c->ring.layer);
    c->has_ring = c->peer.rings = true;
    LIST_INSERT_HEAD(&peers_of(c)->ringed, c, ring_entry);
}

static void ring_receive(struct connection *c)
{
    const bool may = c->has_ring && !c->ring_received;
    c->ring_received = true;
    if (!may || !channel_receive_by(c->channel, &c->ring.layer))
        connection_protocol_error(c, message_name(MESSAGE_RING));
}

bool connection_ring_is_due(struct connection *c)
{
    if (c->failing)
        return false;
    return (c->ring_received && !c->holding && !c->backlog && channel_pending(c->channel)) ||
           ring_layer_can_write(&c->ring);
}

/* ---- Receiving messages ------------------------------------------------------------------------------------------ */

static void dispatch(struct connection *c, const struct message *message)
{
    struct peers *peers = peers_of(c);
    if (fault_at(FAULT_TAKE, &c->peer, message))
        return;
    switch (message->type) {
    case MESSAGE_HEARTBEAT:
        heartbeat_receive(c, &message->heartbeat);
        break;
    case MESSAGE_RING:
        ring_receive(c);
        break;
    case MESSAGE_GPU_LINK:
        gpu_link_receive(c, &message->gpu_link);
        break;
    case MESSAGE_ANNOUNCE:
    case MESSAGE_REQUEST:
    case MESSAGE_SEGMENTS:
    case MESSAGE_GRANT:
    case MESSAGE_REVOKE:
    case MESSAGE_RELEASED:
    case MESSAGE_END:
    case MESSAGE_PEER_NOTE:
    case MESSAGE_PEER_NOTED:
    case MESSAGE_WITHDRAW:
    case MESSAGE_ARENA:
    case MESSAGE_REACH:
    case MESSAGE_CODEBOOK_ASK:
    case MESSAGE_CODEBOOK_PART:
    case MESSAGE_CODEBOOK_KNOWN:
    case MESSAGE_POOL_ASK:
    case MESSAGE_POOL_DESCRIPTION:
        if (!peers->config.events->message(peers->config.owner, &c->peer, message))
            connection_protocol_error(c, message_name(message->type));
        break;
    default:
        connection_protocol_error(c, message_name(message->type));
    }
    (void)fault_at(FAULT_TAKEN, &c->peer, message);
}

/* Holds a message back: the other side is UP before this one and already sends. */
static void hold(struct connection *c, struct message *message)
{
    c->held = *message;
    c->holding = true;
    memset(message, 0, sizeof(*message));
}

/* The peer wants no new requests by this connection. */
static void go_away(struct connection *c)
{
    c->going = true;
    connection_unlist(c);
}

/* Handles a message. What is taken leaves an empty message behind. */
static void receive(struct connection *c, struct message *message)
{
    if (message->type == MESSAGE_CODEBOOK && c->has_links) /* not held: it may come while a link is being made */
        codebook_receive(c, message->codebook.id);
    else if (message->type == MESSAGE_GOAWAY && c->has_links)
        go_away(c);
    else if (c->peer.state == PEER_UP)
        dispatch(c, message);
    else if (c->peer.state == PEER_PROVING && !c->has_hello && message->type == MESSAGE_PEER_HELLO)
        hello_receive(c, message);
    else if (c->peer.state == PEER_LINKING && message->type == MESSAGE_PEER_LINKS)
        links_receive(c, &message->peer_links);
    else if (c->peer.state == PEER_LINKING && c->has_links)
        hold(c, message);
    else
        connection_protocol_error(c, message_name(message->type));
}

#define MESSAGES_PER_TURN 512u /* of one connection: others have their turn */

static void receive_all(struct connection *c)
{
    int fds[CHANNEL_FDS_MAX]; /* no descriptors come over TCP */
    uint32_t fd_count;
    c->backlog = false;
    for (uint32_t i = 0; !c->failing && !c->holding; i++) {
        if (i == MESSAGES_PER_TURN) {
            c->backlog = true;
            return;
        }
        struct message message = {0};
        enum strait_status status = channel_next(c->channel, &message, fds, &fd_count);
        if (status == STRAIT_ERR_AGAIN)
            return;
        if (status != STRAIT_OK) {
            connection_protocol_error(c, channel_why(c->channel));
            return;
        }
        receive(c, &message);
        message_fini(&message);
    }
}

static void receive_held(struct connection *c)
{
    if (!c->holding || c->failing)
        return;
    struct message held = c->held;
    memset(&c->held, 0, sizeof(c->held));
    c->holding = false;
    dispatch(c, &held);
    message_fini(&held);
    receive_all(c);
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

void connection_release(struct connection *c)
{
    struct peers *peers = peers_of(c);
    if (c->peer.state != PEER_CLOSING || !LIST_EMPTY(&c->links) || c->dial != NULL)
        return;
    c->peer.link = NULL;
    if (c->was_up)
        peers->config.events->quiet(peers->config.owner, &c->peer);
    TAILQ_REMOVE(&peers->connections, c, entry);
    gpu_links_free(c);
    seal_wipe(&c->peer.seal_out, sizeof(c->peer.seal_out));
    seal_wipe(&c->peer.seal_in, sizeof(c->peer.seal_in));
    free(c);
    peers->on_part_closed(peers);
}

static void log_end(const struct connection *c)
{
    char name[2 * MESSAGE_ADDRESS_MAX], why[2 * sizeof(c->peer.why)];
    struct peers *peers = peers_of(c);
    log_quote(name, sizeof(name), c->peer.address, strlen(c->peer.address));
    log_quote(why, sizeof(why), c->peer.why, strlen(c->peer.why));
    if (c->was_up)
        log_limited(peers->config.log, LOG_OF_PEERS, peers->closing ? LOG_INFO : LOG_WARN,
                    "msg=\"peer down\" peer=%s node=%016" PRIx64 " dialled=%d error=%s", name, c->peer.node,
                    c->peer.dialled, why);
    else if (!peers->closing && !c->repeated)
        log_limited(peers->config.log, LOG_OF_STRANGERS, LOG_WARN, "msg=\"no connection\" peer=%s dialled=%d error=%s",
                    name, c->peer.dialled, why);
}

static void control_close(struct connection *c)
{
    connection_unread(c, false);
    if (c->has_ring)
        LIST_REMOVE(c, ring_entry);
    c->has_ring = false;
    watch_close(c->watch);
    c->watch = NULL;
    channel_destroy(c->channel);
    c->channel = NULL;
    c->disproved = c->tls != NULL && tls_why(c->tls)[0] != 0;
    tls_destroy(c->tls);
    c->tls = NULL;
    if (c->socket >= 0)
        close(c->socket);
    c->socket = -1;
    connection_dial_end(c);
    message_fini(&c->hello);
    message_fini(&c->held);
    memset(&c->hello, 0, sizeof(c->hello));
    memset(&c->held, 0, sizeof(c->held));
}

/* Until a peer that has been away for so long is dialled again: it costs those who wait a sixteenth of that time. */
static uint64_t backoff_of(uint64_t away_ms)
{
    const uint64_t share = away_ms / 16;
    return share < PEER_BACKOFF_MS ? PEER_BACKOFF_MS : share < PEER_BACKOFF_MAX_MS ? share : PEER_BACKOFF_MAX_MS;
}

/* Creates the connection for the next attempt at the same address, which remembers how this one went. Unreachable nodes
 * and short-lived connections have back-offs of their own: a short life after a long absence is no reason for a long
 * wait. */
static void create_successor(const struct connection *c)
{
    struct peers *peers = peers_of(c);
    uint64_t now = peers_now(peers);
    struct connection *next = connection_dialled(peers, c->peer.address, c->uid);
    if (next == NULL)
        return; /* peers_get makes a new one */
    memcpy(next->peer.why, c->peer.why, sizeof(next->peer.why));
    next->is_alias = c->is_alias;
    next->alias_node = c->alias_node;
    next->alias_incarnation = c->alias_incarnation;
    next->peer.away_since = c->was_up || c->peer.away_since == 0 ? now : c->peer.away_since;
    if (!c->was_up) {
        next->peer.attempts = c->peer.attempts + 1;
        next->peer.refusals = c->refused ? c->peer.refusals + 1 : 0;
        next->peer.refused_since = next->peer.refusals > 1 ? c->peer.refused_since : now;
    }
    if (c->was_up && now - c->up_at >= PEER_SHORT_LIFE_MS)
        return;
    next->next_try = now + (c->was_up ? c->flap_backoff : backoff_of(now - next->peer.away_since));
    next->flap_backoff = !c->was_up                               ? c->flap_backoff
                         : 2 * c->flap_backoff < PEER_FLAP_MAX_MS ? 2 * c->flap_backoff
                                                                  : PEER_FLAP_MAX_MS;
    /* Not after an attempt that the reload has overtaken: the secret of that one was the previous one. */
    next->previous_secret = c->disproved && !c->previous_secret && c->reloads == peers->reloads &&
                            peers->credentials != NULL && credentials_have_previous(peers->credentials);
}

static void connection_end(struct connection *c)
{
    struct peers *peers = peers_of(c);
    struct peer_link *link, *next;
    c->was_up = c->peer.state == PEER_UP;
    c->peer.state = PEER_CLOSING;
    connection_unlist(c);
    peers_turn_again(peers);
    control_close(c);
    log_end(c);
    for (link = LIST_FIRST(&c->links); link != NULL; link = next) {
        next = LIST_NEXT(link, entry);
        if (!c->was_up || link != c->current)
            link_end(link);
    }
    if (c->peer.dialled && !peers->closing && !c->going)
        create_successor(c);
    if (c->was_up) {
        peers->config.metrics->peers_lost++;
        peers->config.events->down(peers->config.owner, &c->peer);
    }
    connection_release(c);
}

/* ---- The channel ------------------------------------------------------------------------------------------------- */

static void watch_again(struct connection *c)
{
    connection_unread(c, !c->holding && (c->backlog || channel_pending(c->channel)));
    watch_for(c->watch,
              (c->holding || c->backlog ? 0 : WATCH_READ) | (channel_wants_write(c->channel) ? WATCH_WRITE : 0));
}

/* The same text for every way in which the other side can end. */
static void end_by_peer(struct connection *c)
{
    if (c->tls != NULL && tls_why(c->tls)[0] != 0) {
        peers_of(c)->config.metrics->auth_failures += !c->failing && tls_refused(c->tls);
        connection_refuse(c, "%s", tls_why(c->tls));
    } else {
        connection_fail(c, "closed by the peer%s", c->peer.state == PEER_PROVING ? " while greeting" : "");
    }
}

/* Before the hello, in clear text. */
static bool is_answered_by_tls(struct connection *c)
{
    if (c->tls != NULL || c->peer.state != PEER_PROVING || !tls_is_spoken(channel_fd(c->channel)))
        return false;
    peers_of(c)->config.metrics->auth_failures++;
    (void)channel_flush(c->channel); /* our hello tells the peer what is spoken here */
    connection_refuse(c, "the peer demands a secret or a certificate, but there is none here (secret-file)");
    return true;
}

/* A backlog first: so no more waits than what one call has read. */
static void connection_read(struct connection *c)
{
    enum strait_status status = STRAIT_OK;
    if (is_answered_by_tls(c))
        return;
    if (!c->backlog) {
        status = channel_read(c->channel);
        if (status == STRAIT_OK)
            c->received_at = peers_now(peers_of(c)); /* parts of a long message count too */
    }
    receive_all(c);
    if (status == STRAIT_OK || c->backlog) /* then the next call of channel_read tells it again */
        return;
    if (status == STRAIT_ERR_IO)
        end_by_peer(c);
    else
        connection_fail(c, "%s", strait_status_string(status));
}

void connection_read_on(struct connection *c)
{
    if (c->failing || c->holding || c->channel == NULL)
        return;
    connection_read(c);
    connection_dirty(c); /* flushes, and watches again */
}

void connection_read_last(struct connection *c)
{
    if (!c->ring_received || c->holding)
        return;
    do
        connection_read(c);
    while (c->backlog && !c->failing);
}

/* Bounded, so that one stranger who costs much does not shut out those who come after it. */
static void charge_greeting(struct peers *peers, uint64_t ns)
{
    const int64_t left = peers->greeting_ns - (int64_t)ns;
    peers->greeting_ns = left > -PEER_GREETING_OWED ? left : -PEER_GREETING_OWED;
}

static void on_control(void *owner, uint32_t events)
{
    struct connection *c = owner;
    const uint64_t begun = connection_is_stranger(c) ? uv_hrtime() : 0;
    if ((events & WATCH_READ) && c->ring_received)
        ring_layer_socket_ready(&c->ring);
    if ((events & WATCH_READ) && !c->holding && !c->failing)
        connection_read(c);
    if (begun != 0)
        charge_greeting(peers_of(c), uv_hrtime() - begun);
    connection_dirty(c); /* flushes, and watches again */
    peers_turn_again(peers_of(c));
}

static enum strait_status tls_start(struct connection *c)
{
    const struct peers *peers = peers_of(c);
    if (peers->credentials == NULL)
        return STRAIT_OK;
    c->reloads = peers->reloads;
    c->tls = tls_create(peers->credentials, c->peer.dialled ? c->host : NULL, c->previous_secret);
    if (c->tls == NULL)
        return STRAIT_ERR_NO_MEMORY;
    channel_use(c->channel, tls_layer(c->tls));
    return STRAIT_OK;
}

void connection_start(struct connection *c, int fd)
{
    struct peers *peers = peers_of(c);
    enum strait_status status = channel_create(fd, PEER_HELLO_BODY_MAX, PEER_QUEUE_BYTES, &c->channel);
    if (status == STRAIT_OK)
        status = tls_start(c);
    if (status == STRAIT_OK)
        status = watch_open(peers->config.loop, fd, on_control, c, &peers->watches, &c->watch);
    else if (c->channel == NULL)
        close(fd);
    if (status != STRAIT_OK) {
        connection_fail(c, "%s", strait_status_string(status));
        return;
    }
    c->peer.state = PEER_PROVING;
    int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    watch_again(c);
    struct message message = {.type = MESSAGE_PEER_HELLO, .peer_hello = own_hello(c)};
    connection_send(c, &message);
}

void connection_flush(struct connection *c)
{
    if (!c->failing && c->channel != NULL && channel_flush(c->channel) != STRAIT_OK) {
        do
            connection_read(c); /* its last messages may tell more */
        while (c->backlog && !c->failing);
        end_by_peer(c);
    }
    if (c->dirty) { /* dirty again, by what was just done */
        TAILQ_REMOVE(&peers_of(c)->dirty, c, dirty_entry);
        c->dirty = false;
    }
    if (c->failing)
        connection_end(c);
    else if (c->watch != NULL && c->channel != NULL)
        watch_again(c);
}

/* ---- Coming up --------------------------------------------------------------------------------------------------- */

/* A node that connects to us is alive, so dialling it need not wait for the back-off of earlier failed attempts. Not
 * after short lives, or two nodes would make each other dial without end. */
static void reset_backoff(struct peers *peers, const char *address)
{
    struct connection *c;
    TAILQ_FOREACH(c, &peers->connections, entry)
    {
        if (c->peer.state == PEER_IDLE && c->peer.attempts != 0 && strcmp(c->peer.address, address) == 0)
            c->next_try = 0;
    }
}

/* Page data that leaves the host is encrypted, each direction with a secret of its own. */
static bool seal_begin(struct connection *c)
{
    static const char *const labels[] = {"EXPORTER-strait-pages-dialler", "EXPORTER-strait-pages-acceptor"};
    struct peer *peer = &c->peer;
    if (c->suite == SEAL_NONE || c->current->transport->ops->direct)
        return true;
    peer->seal_out.suite = peer->seal_in.suite = c->suite;
    peer->sealed = c->tls != NULL &&
                   tls_export(c->tls, labels[!peer->dialled], peer->seal_out.secret, sizeof(peer->seal_out.secret)) &&
                   tls_export(c->tls, labels[peer->dialled], peer->seal_in.secret, sizeof(peer->seal_in.secret));
    return peer->sealed;
}

static const char *codebook_text(const struct connection *c)
{
    const struct peers_config *config = &peers_of(c)->config;
    if (c->peer.codebook_matches)
        return "same";
    if (c->peer.has_codebook && config->events->knows_codebook(config->owner, c->peer.codebook_id))
        return "fetched";
    if (config->codebook_id == NULL)
        return c->peer.has_codebook ? "none-here" : "none";
    return c->peer.has_codebook ? "another" : "none-there";
}

void connection_up(struct connection *c)
{
    struct peers *peers = peers_of(c);
    if (!seal_begin(c)) {
        connection_fail(c, "no keys for page data");
        return;
    }
    c->peer.state = PEER_UP;
    c->peer.link = c->current->link;
    c->peer.direct = c->current->transport->ops->direct;
    ring_begin(c);
    c->up_at = c->received_at = c->next_heartbeat = peers_now(peers);
    peers->config.metrics->peers_connected++;
    char name[2 * MESSAGE_ADDRESS_MAX], why[2 * sizeof(c->peer.why)], at[ADDRESS_TEXT_MAX];
    log_quote(name, sizeof(name), c->peer.address, strlen(c->peer.address));
    log_quote(why, sizeof(why), c->peer.why, strlen(c->peer.why));
    log_limited(peers_of(c)->config.log, LOG_OF_PEERS, LOG_INFO,
                "msg=\"peer up\" peer=%s at=%s node=%016" PRIx64
                " dialled=%d transport=%s rings=%d codebook=%s encrypted=%d note=%s",
                name, address_reached(channel_fd(c->channel), at), c->peer.node, c->peer.dialled,
                c->current->transport->ops->name, c->peer.rings, codebook_text(c), c->peer.sealed, why);
    if (!c->peer.dialled)
        reset_backoff(peers, c->peer.address);
    peers->config.events->up(peers->config.owner, &c->peer);
    connection_dirty(c); /* at least to read again */
    receive_held(c);
}

/* ---- Calls of the user ------------------------------------------------------------------------------------------- */

const char *peer_state_name(enum peer_state state)
{
    static const char *const names[] = {
        [PEER_IDLE] = "idle", [PEER_DIALLING] = "dialling", [PEER_PROVING] = "proving", [PEER_LINKING] = "linking",
        [PEER_UP] = "up",     [PEER_CLOSING] = "closing",
    };
    return names[state];
}

const char *peer_transport_name(const struct peer *peer)
{
    return peer->link != NULL ? peer->link->transport->ops->name : "";
}

size_t peer_queued(const struct peer *peer)
{
    const struct channel *channel = ((const struct connection *)peer)->channel;
    return channel != NULL ? channel_queued(channel) : 0;
}

void peer_quit_link(struct peer *peer)
{
    struct connection *c = connection_of(peer);
    if (peer->state == PEER_CLOSING && c->current != NULL)
        link_end(c->current);
}

enum strait_status peer_send_chunk(struct peer *peer, const void *header, size_t header_size, const void *data,
                                   size_t size, uint64_t cookie)
{
    struct connection *c = connection_of(peer);
    if (peer->state != PEER_UP || c->failing)
        return STRAIT_ERR_AGAIN;
    const struct fault_chunk chunk = {peer->link, header, header_size, data, size, c->current->transport->send_handle};
    (void)fault_at(FAULT_CHUNK, peer, &chunk);
    enum strait_status status = link_send(peer->link, header, header_size, data, size, chunk.handle, cookie);
    (void)fault_at(FAULT_CHUNK_SENT, peer, &chunk);
    return status;
}

void peer_drop(struct peer *peer, const char *why)
{
    connection_fail(connection_of(peer), "%s", why);
}
