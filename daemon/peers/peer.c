#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/fault.h"
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

static void heartbeat_receive(struct connection *c, const struct message_heartbeat *beat)
{
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

/* Handshake: hellos, versions, proofs. The dialling side proves itself first, so that a stranger who dials sees
 * nothing that was made with the secret. */

static struct message_peer_hello own_hello(const struct connection *c)
{
    const struct peers *peers = peers_of(c);
    return (struct message_peer_hello){
        .version = PROTOCOL_VERSION,
        .version_min = PROTOCOL_VERSION_MIN,
        .node = peers->config.node,
        .incarnation = peers->config.incarnation,
        .secret = peers->secret != NULL,
        .nonce = view_of(c->nonce, sizeof(c->nonce)),
        .address = view_of(peers->address, strlen(peers->address)),
        .dialled = c->peer.dialled ? view_of(c->peer.address, strlen(c->peer.address)) : view_of("", 0),
    };
}

static void prove(const struct connection *c, bool dialler, uint8_t mac[MAC_BYTES])
{
    struct message_peer_hello own = own_hello(c);
    const struct message_peer_hello *theirs = &c->hello.peer_hello;
    auth_proof(peers_of(c)->secret, dialler, c->peer.dialled ? &own : theirs, c->peer.dialled ? theirs : &own, mac);
}

static void proof_send(struct connection *c)
{
    uint8_t mac[MAC_BYTES];
    prove(c, c->peer.dialled, mac);
    struct message message = {.type = MESSAGE_PEER_PROOF, .peer_proof.mac = view_of(mac, sizeof(mac))};
    connection_send(c, &message);
}

static void proved(struct connection *c)
{
    const struct message_peer_hello *hello = &c->hello.peer_hello;
    c->peer.node = hello->node;
    c->peer.incarnation = hello->incarnation;
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
    struct peers *peers = peers_of(c);
    const struct message_peer_hello *hello = &c->hello.peer_hello;
    bool demanded = peers->secret != NULL;
    if (hello->version_min > PROTOCOL_VERSION || hello->version < PROTOCOL_VERSION_MIN)
        connection_fail(c, "protocol versions differ: %" PRIu32 " to %" PRIu32 " there, %u to %u here",
                        hello->version_min, hello->version, PROTOCOL_VERSION_MIN, PROTOCOL_VERSION);
    else if (memcmp(hello->nonce.data, c->nonce, NONCE_BYTES) == 0)
        connection_fail(c, "the connection leads back to itself");
    else if (hello->secret != demanded)
        connection_fail(c, "%s",
                        demanded ? "a secret is demanded here, but the peer has none (secret-file)"
                                 : "the peer demands a secret, but there is none here (secret-file)");
    peers->config.metrics->auth_failures += c->failing && hello->secret != demanded;
    return !c->failing;
}

static void hello_receive(struct connection *c, struct message *message)
{
    c->hello = *message;
    c->has_hello = true;
    memset(message, 0, sizeof(*message));
    if (!is_acceptable(c))
        return;
    if (peers_of(c)->secret == NULL)
        proved(c);
    else if (c->peer.dialled)
        proof_send(c);
}

static void proof_receive(struct connection *c, const struct message_peer_proof *proof)
{
    uint8_t expected[MAC_BYTES];
    prove(c, !c->peer.dialled, expected);
    if (!auth_equal(expected, proof->mac.data)) {
        peers_of(c)->config.metrics->auth_failures++;
        connection_fail(c, "the proof is wrong: the secrets differ, or somebody is between");
        return;
    }
    if (!c->peer.dialled)
        proof_send(c);
    proved(c);
}

/* Control channel of a connection: messages are read and handed to the part that they are for, and sent. */

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
    case MESSAGE_ARENA:
    case MESSAGE_REACH:
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

/* Handles a message. What is taken leaves an empty message behind. */
static void receive(struct connection *c, struct message *message)
{
    if (c->peer.state == PEER_UP)
        dispatch(c, message);
    else if (c->peer.state == PEER_PROVING && !c->has_hello && message->type == MESSAGE_PEER_HELLO)
        hello_receive(c, message);
    else if (c->peer.state == PEER_PROVING && c->has_hello && message->type == MESSAGE_PEER_PROOF)
        proof_receive(c, &message->peer_proof);
    else if (c->peer.state == PEER_LINKING && message->type == MESSAGE_PEER_LINKS)
        links_receive(c, &message->peer_links);
    else if (c->peer.state == PEER_LINKING && c->has_links)
        hold(c, message);
    else
        connection_protocol_error(c, message_name(message->type));
}

static void receive_all(struct connection *c)
{
    int fds[CHANNEL_FDS_MAX]; /* no descriptors come over TCP */
    uint32_t fd_count;
    while (!c->failing && !c->holding) {
        struct message message = {0};
        enum strait_status status = channel_next(c->channel, &message, fds, &fd_count);
        if (status == STRAIT_ERR_AGAIN)
            return;
        if (status != STRAIT_OK) {
            connection_protocol_error(c, strait_status_string(status));
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
    if (c->peer.state != PEER_CLOSING || !LIST_EMPTY(&c->links) || c->looking_up)
        return;
    c->peer.link = NULL;
    if (c->was_up)
        peers->config.events->quiet(peers->config.owner, &c->peer);
    TAILQ_REMOVE(&peers->connections, c, entry);
    gpu_links_free(c);
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
        log_write(peers->config.log, peers->closing ? LOG_INFO : LOG_WARN,
                  "msg=\"peer down\" peer=%s node=%016" PRIx64 " dialled=%d error=%s", name, c->peer.node,
                  c->peer.dialled, why);
    else if (!peers->closing && !c->repeated)
        peers_log_limited(peers, "msg=\"no connection\" peer=%s dialled=%d error=%s", name, c->peer.dialled, why);
}

static void control_close(struct connection *c)
{
    watch_close(c->watch);
    c->watch = NULL;
    channel_destroy(c->channel);
    c->channel = NULL;
    if (c->socket >= 0)
        close(c->socket);
    c->socket = -1;
    if (c->looking_up)
        uv_cancel((uv_req_t *)&c->lookup); /* its callback is called in any case */
    if (c->found != NULL)
        freeaddrinfo(c->found);
    c->found = c->next_address = NULL;
    message_fini(&c->hello);
    message_fini(&c->held);
    memset(&c->hello, 0, sizeof(c->hello));
    memset(&c->held, 0, sizeof(c->held));
}

static uint32_t doubled(uint32_t backoff, uint32_t most)
{
    return 2 * backoff < most ? 2 * backoff : most;
}

/* Creates the connection for the next attempt at the same address, which remembers how this one went. Unreachable nodes
 * and short-lived connections have back-offs of their own: a short life after a long absence is no reason for a long
 * wait. */
static void create_successor(const struct connection *c)
{
    struct peers *peers = peers_of(c);
    uint64_t now = peers_now(peers);
    struct connection *next = connection_create(peers, c->peer.address, true);
    if (next == NULL)
        return; /* peers_get makes a new one */
    memcpy(next->peer.why, c->peer.why, sizeof(next->peer.why));
    if (c->was_up && now - c->up_at >= PEER_SHORT_LIFE_MS)
        return;
    next->next_try = now + (c->was_up ? c->flap_backoff : c->backoff);
    next->backoff = c->was_up ? PEER_BACKOFF_MS : doubled(c->backoff, PEER_BACKOFF_MAX_MS);
    next->flap_backoff = c->was_up ? doubled(c->flap_backoff, PEER_FLAP_MAX_MS) : c->flap_backoff;
    next->unreached = !c->was_up;
}

static void connection_end(struct connection *c)
{
    struct peers *peers = peers_of(c);
    struct peer_link *link, *next;
    c->was_up = c->peer.state == PEER_UP;
    c->peer.state = PEER_CLOSING;
    peers_turn_again(peers);
    control_close(c);
    log_end(c);
    for (link = LIST_FIRST(&c->links); link != NULL; link = next) {
        next = LIST_NEXT(link, entry);
        if (!c->was_up || link != c->current)
            link_end(link);
    }
    if (c->peer.dialled && !peers->closing)
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
    watch_for(c->watch, (c->holding ? 0 : WATCH_READ) | (channel_wants_write(c->channel) ? WATCH_WRITE : 0));
}

/* The same text for every way in which the other side can end. */
static const char *end_of(const struct connection *c)
{
    if (c->peer.state != PEER_PROVING)
        return "closed by the peer";
    if (c->has_hello && c->peer.dialled && peers_of(c)->secret != NULL)
        return "refused by the peer: the secrets differ, by the look of it";
    return "closed by the peer while greeting";
}

static void connection_read(struct connection *c)
{
    enum strait_status status = channel_read(c->channel);
    if (status == STRAIT_OK)
        c->received_at = peers_now(peers_of(c)); /* parts of a long message count too */
    receive_all(c);
    if (status != STRAIT_OK)
        connection_fail(c, "%s", status == STRAIT_ERR_IO ? end_of(c) : strait_status_string(status));
}

static void on_control(void *owner, uint32_t events)
{
    struct connection *c = owner;
    if ((events & WATCH_READ) && !c->holding && !c->failing)
        connection_read(c);
    connection_dirty(c); /* flushes, and watches again */
}

void connection_start(struct connection *c, int fd)
{
    struct peers *peers = peers_of(c);
    enum strait_status status = channel_create(fd, PEER_HELLO_BODY_MAX, PEER_QUEUE_BYTES, &c->channel);
    if (status == STRAIT_OK)
        status = watch_open(peers->config.loop, fd, on_control, c, &peers->watches, &c->watch);
    else
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
        connection_read(c); /* its last messages may tell more */
        connection_fail(c, "%s", end_of(c));
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
        if (c->peer.state == PEER_IDLE && c->unreached && strcmp(c->peer.address, address) == 0)
            c->next_try = 0;
    }
}

void connection_up(struct connection *c)
{
    struct peers *peers = peers_of(c);
    c->peer.state = PEER_UP;
    c->peer.link = c->current->link;
    c->peer.direct = c->current->transport->ops->direct;
    c->up_at = c->received_at = c->next_heartbeat = peers_now(peers);
    peers->config.metrics->peers_connected++;
    char name[2 * MESSAGE_ADDRESS_MAX], why[2 * sizeof(c->peer.why)];
    log_quote(name, sizeof(name), c->peer.address, strlen(c->peer.address));
    log_quote(why, sizeof(why), c->peer.why, strlen(c->peer.why));
    log_write(peers_of(c)->config.log, LOG_INFO,
              "msg=\"peer up\" peer=%s node=%016" PRIx64 " dialled=%d transport=%s codebook=%s note=%s", name,
              c->peer.node, c->peer.dialled, c->current->transport->ops->name,
              c->peer.codebook_matches ? "same" : "none", why);
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
