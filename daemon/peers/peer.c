#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/fault.h"
#include "daemon/peers/peer_internal.h"

/* Heartbeats: each side sends a numbered one per interval, which is answered at once by an unnumbered one (0). */

static void beat_send(struct connection *c, uint64_t sequence)
{
    struct message message = {.type = MESSAGE_HEARTBEAT, .heartbeat = {.sequence = sequence, .echo = c->seen}};
    connection_send(c, &message);
}

/* As in TCP, each new sample counts for an eighth. */
static void smooth(uint64_t *average, uint64_t sample)
{
    *average = *average == 0 ? sample : *average - *average / 8 + sample / 8;
}

void beat_take(struct connection *c, const struct message_heartbeat *beat)
{
    if (c->sent_at_ns != 0 && beat->echo == c->sequence) {
        smooth(&c->peer.round_trip_us, (uv_hrtime() - c->sent_at_ns) / 1000 + 1);
        c->sent_at_ns = 0;
    }
    if (beat->sequence == 0)
        return;
    c->seen = beat->sequence;
    beat_send(c, 0);
}

void beat_tick(struct connection *c)
{
    const struct node_options *options = &peers_of(c)->options;
    uint64_t now = peers_now(peers_of(c));
    if (now >= c->heard + options->peer_timeout_ms) {
        connection_doom(c, "no heartbeat for %u ms", (unsigned)(now - c->heard));
        return;
    }
    if (now < c->next_beat)
        return;
    c->next_beat = now + options->heartbeat_ms;
    c->sent_at_ns = uv_hrtime();
    beat_send(c, ++c->sequence);
}

/* The handshake: hellos, versions, proofs. The dialling side proves itself first, so that a stranger who dials sees
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

void hello_send(struct connection *c)
{
    struct message message = {.type = MESSAGE_PEER_HELLO, .peer_hello = own_hello(c)};
    connection_send(c, &message);
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
        connection_doom(c, "protocol versions differ: %" PRIu32 " to %" PRIu32 " there, %u to %u here",
                        hello->version_min, hello->version, PROTOCOL_VERSION_MIN, PROTOCOL_VERSION);
    else if (memcmp(hello->nonce.data, c->nonce, NONCE_BYTES) == 0)
        connection_doom(c, "the connection leads back to itself");
    else if (hello->secret != demanded)
        connection_doom(c, "%s",
                        demanded ? "a secret is demanded here, but the peer has none (secret-file)"
                                 : "the peer demands a secret, but there is none here (secret-file)");
    peers->config.metrics->auth_failures += c->doomed && hello->secret != demanded;
    return !c->doomed;
}

void hello_take(struct connection *c, struct message *message)
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

void proof_take(struct connection *c, const struct message_peer_proof *proof)
{
    uint8_t expected[MAC_BYTES];
    prove(c, !c->peer.dialled, expected);
    if (!auth_equal(expected, proof->mac.data)) {
        peers_of(c)->config.metrics->auth_failures++;
        connection_doom(c, "the proof is wrong: the secrets differ, or somebody is between");
        return;
    }
    if (!c->peer.dialled)
        proof_send(c);
    proved(c);
}

/* The transports of a node: those that its options name are checked, made and offered to peers. */

/* ---- Failed and closed ports ------------------------------------------------------------------------------------- */

static void on_port_failed(void *owner)
{
    struct kind *kind = owner;
    struct connection *c;
    log_write(kind->peers->config.log, LOG_ERROR, "msg=\"transport broken\" transport=%s", kind->ops->name);
    TAILQ_FOREACH(c, &kind->peers->connections, entry)
    {
        if (c->current != NULL && c->current->kind == kind)
            connection_doom(c, "transport %s is broken", kind->ops->name);
        struct gpu_link *g;
        LIST_FOREACH(g, &c->gpu_links, entry)
        {
            if (g->link != NULL && g->link->kind == kind)
                gpu_link_broken(c, g, "its transport is broken");
        }
    }
}

static void on_port_closed(void *owner)
{
    struct kind *kind = owner;
    transport_destroy(kind->transport);
    kind->transport = NULL;
    kind->peers->ports--;
    peers_settle(kind->peers);
}

static const struct port_events port_events = {.failed = on_port_failed, .closed = on_port_closed};

/* ---- Options ----------------------------------------------------------------------------------------------------- */

static bool are_understood(const char *name, const char *options, char *why, size_t why_size)
{
    const struct transport_ops *ops = transport_find(name);
    if (ops == NULL || transport_check(ops, options) == STRAIT_OK)
        return true;
    snprintf(why, why_size, "%s-options: '%s' is not understood", name, options);
    return false;
}

/* A typing error must not silently turn the network off. */
enum strait_status kinds_check(const struct peers *peers, char *why, size_t why_size)
{
    const struct node_options *options = &peers->options;
    return are_understood("ucx", options->ucx, why, why_size) && are_understood("nccl", options->nccl, why, why_size)
               ? STRAIT_OK
               : STRAIT_ERR_INVALID;
}

/* UCX, and NCCL's carrier, which is UCX too, listen on the daemon's own address unless their options say otherwise:
 * peers are told a numeric address, so the wildcard address will not do. */
static void complete_options(const struct peers *peers, const char *name, const char *given, char *text, size_t size)
{
    char host[ADDRESS_HOST_MAX];
    struct sockaddr_storage address;
    unsigned port;
    bool known = address_numeric(peers->address, &address) && !address_is_wildcard(&address) &&
                 address_split(peers->address, host, &port);
    bool told = strstr(given, "listen=") != NULL || strstr(given, "carrier=") != NULL;
    if (known && !told)
        snprintf(text, size, "listen=%s %s", host, given);
    else
        snprintf(text, size, "%s", given);
    if (!known && peers->address[0] != 0 && !told)
        log_write(peers->config.log, LOG_WARN, "msg=\"%s is for peers of this host only: set listen= in %s-options\"",
                  name, name);
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

void kind_release_memory(struct kind *kind)
{
    if (kind->sends_known)
        transport_memory_release(kind->transport, kind->send_handle);
    kind->sends_known = false;
}

enum strait_status kind_open(struct peers *peers, struct kind *kind, const struct transport_arena *arena,
                             const char *given)
{
    char options[OPTION_TEXT_MAX + ADDRESS_HOST_MAX + 16] = "";
    const bool sends = kind->device < 0 && peers->config.send_size > 0;
    if (given != NULL)
        complete_options(peers, kind->ops->name, given, options, sizeof(options));
    enum strait_status status =
        transport_create(kind->ops, arena, &peer_transport_events, kind, options, &kind->transport);
    if (status != STRAIT_OK)
        return status;
    if (sends)
        status =
            transport_memory(kind->transport, peers->config.send_base, peers->config.send_size, &kind->send_handle);
    kind->sends_known = status == STRAIT_OK && sends;
    if (status == STRAIT_OK)
        status = port_create(peers->config.loop, kind->transport, &port_events, kind, &kind->port);
    if (status == STRAIT_OK)
        return STRAIT_OK;
    kind_release_memory(kind);
    transport_destroy(kind->transport);
    kind->transport = NULL;
    return status;
}

static void offer(struct peers *peers, const char *name)
{
    size_t used = strlen(peers->offered);
    snprintf(peers->offered + used, sizeof(peers->offered) - used, "%s%s", used > 0 ? "," : "", name);
}

static void leave_out(struct peers *peers, const char *name, const char *error)
{
    size_t used = strlen(peers->left_out);
    log_write(peers->config.log, LOG_WARN, "msg=\"transport left out\" transport=%s error=\"%s\"", name, error);
    snprintf(peers->left_out + used, sizeof(peers->left_out) - used, "%s%s: %s", used > 0 ? "; " : "", name, error);
}

static void open_named(struct peers *peers, const char *name)
{
    struct kind *kind = &peers->kinds[peers->kind_count];
    enum strait_status status = STRAIT_ERR_UNSUPPORTED;
    if (peers->kind_count == PEER_KINDS_MAX || kind_find(peers, name, strlen(name)) != NULL)
        return;
    if (strcmp(name, "shm") == 0 && peers->shm_path[0] == 0) {
        peers->alone = true; /* without a unix socket no peer can reach it */
        return;
    }
    *kind = (struct kind){.peers = peers, .ops = transport_find(name), .device = -1};
    if (kind->ops != NULL)
        status = kind_open(peers, kind, peers->config.arena, strcmp(name, "ucx") == 0 ? peers->options.ucx : NULL);
    if (status != STRAIT_OK) {
        leave_out(peers, name, kind->ops == NULL ? "not in this build" : strait_status_string(status));
        return;
    }
    peers->kind_count++;
    peers->ports++;
    offer(peers, name);
}

void kinds_open(struct peers *peers)
{
    char list[sizeof(peers->options.transports)], *rest = list, *name;
    memcpy(list, peers->options.transports, sizeof(list));
    while ((name = strsep(&rest, ", ")) != NULL)
        if (name[0] != 0)
            open_named(peers, name);
}

bool peers_can_travel(const struct peers *peers, char *why, size_t why_size)
{
    if (peers->kind_count > 0 || peers->alone)
        return true;
    snprintf(why, why_size, "transports = %s: none can be used (%s)", peers->options.transports, peers->left_out);
    return false;
}

/* The control channel of a connection: messages are read and handed to the part that they are for, and sent. */

/* ---- Messages that come ------------------------------------------------------------------------------------------ */

static void deliver(struct connection *c, const struct message *message)
{
    struct peers *peers = peers_of(c);
    if (fault_at(FAULT_TAKE, &c->peer, message))
        return;
    switch (message->type) {
    case MESSAGE_HEARTBEAT:
        beat_take(c, &message->heartbeat);
        break;
    case MESSAGE_GPU_LINK:
        gpu_link_take(c, &message->gpu_link);
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
            connection_blame(c, message_name(message->type));
        break;
    default:
        connection_blame(c, message_name(message->type));
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
static void take(struct connection *c, struct message *message)
{
    if (c->peer.state == PEER_UP)
        deliver(c, message);
    else if (c->peer.state == PEER_PROVING && !c->has_hello && message->type == MESSAGE_PEER_HELLO)
        hello_take(c, message);
    else if (c->peer.state == PEER_PROVING && c->has_hello && message->type == MESSAGE_PEER_PROOF)
        proof_take(c, &message->peer_proof);
    else if (c->peer.state == PEER_LINKING && message->type == MESSAGE_PEER_LINKS)
        links_take(c, &message->peer_links);
    else if (c->peer.state == PEER_LINKING && c->has_links)
        hold(c, message);
    else
        connection_blame(c, message_name(message->type));
}

static void take_all(struct connection *c)
{
    int fds[CHANNEL_FDS_MAX]; /* no descriptors come over TCP */
    uint32_t fd_count;
    while (!c->doomed && !c->holding) {
        struct message message = {0};
        enum strait_status status = channel_next(c->channel, &message, fds, &fd_count);
        if (status == STRAIT_ERR_AGAIN)
            return;
        if (status != STRAIT_OK) {
            connection_blame(c, strait_status_string(status));
            return;
        }
        take(c, &message);
        message_fini(&message);
    }
}

void control_go_on(struct connection *c)
{
    if (!c->holding || c->doomed)
        return;
    struct message held = c->held;
    memset(&c->held, 0, sizeof(c->held));
    c->holding = false;
    deliver(c, &held);
    message_fini(&held);
    take_all(c);
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
        c->heard = peers_now(peers_of(c)); /* parts of a long message count too */
    take_all(c);
    if (status != STRAIT_OK)
        connection_doom(c, "%s", status == STRAIT_ERR_IO ? end_of(c) : strait_status_string(status));
}

static void on_control(void *owner, uint32_t events)
{
    struct connection *c = owner;
    if ((events & WATCH_READ) && !c->holding && !c->doomed)
        connection_read(c);
    connection_dirty(c); /* flushes, and watches again */
}

void connection_begin(struct connection *c, int fd)
{
    struct peers *peers = peers_of(c);
    enum strait_status status = channel_create(fd, PEER_HELLO_BODY_MAX, PEER_QUEUE_BYTES, &c->channel);
    if (status == STRAIT_OK)
        status = watch_open(peers->config.loop, fd, on_control, c, &peers->watches, &c->watch);
    else
        close(fd);
    if (status != STRAIT_OK) {
        connection_doom(c, "%s", strait_status_string(status));
        return;
    }
    c->peer.state = PEER_PROVING;
    socket_prepare(fd);
    watch_again(c);
    hello_send(c);
}

void connection_send(struct connection *c, const struct message *message)
{
    if (fault_at(FAULT_SEND, &c->peer, message))
        return;
    enum strait_status status = channel_send(c->channel, message, NULL, 0);
    if (status != STRAIT_OK)
        connection_doom(c, "cannot send %s: %s", message_name(message->type), strait_status_string(status));
    connection_dirty(c);
}

void connection_flush(struct connection *c)
{
    if (!c->doomed && c->channel != NULL && channel_flush(c->channel) != STRAIT_OK) {
        connection_read(c); /* its last messages may tell more */
        connection_doom(c, "%s", end_of(c));
    }
    if (c->dirty) { /* dirty again, by what was just done */
        TAILQ_REMOVE(&peers_of(c)->dirty, c, dirty_entry);
        c->dirty = false;
    }
    if (c->doomed)
        connection_end(c);
    else if (c->watch != NULL && c->channel != NULL)
        watch_again(c);
}

/* ---- Making and freeing ------------------------------------------------------------------------------------------ */

struct connection *connection_create(struct peers *peers, const char *address, bool dialled)
{
    struct connection *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return NULL;
    c->peer.peers = peers;
    c->peer.state = dialled ? PEER_IDLE : PEER_PROVING;
    c->peer.dialled = dialled;
    snprintf(c->peer.address, sizeof(c->peer.address), "%s", address);
    auth_random(&c->peer.token, sizeof(c->peer.token));
    auth_random(c->nonce, sizeof(c->nonce));
    c->socket = -1;
    c->backoff = c->flap_backoff = PEER_BACKOFF_MS;
    c->asked = peers_now(peers);
    LIST_INIT(&c->links);
    LIST_INIT(&c->gpu_links);
    TAILQ_INSERT_TAIL(&peers->connections, c, entry);
    if (!uv_is_active((uv_handle_t *)&peers->tick))
        peers_tick_start(peers);
    return c;
}

static void connection_free(struct connection *c)
{
    struct peers *peers = peers_of(c);
    TAILQ_REMOVE(&peers->connections, c, entry);
    gpu_links_free(c);
    free(c);
    peers_settle(peers);
}

void connection_settle(struct connection *c)
{
    struct peers *peers = peers_of(c);
    if (c->peer.state != PEER_CLOSING || !LIST_EMPTY(&c->links) || c->looking_up)
        return;
    c->peer.link = NULL;
    if (c->was_up)
        peers->config.events->quiet(peers->config.owner, &c->peer);
    connection_free(c);
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

void connection_dirty(struct connection *c)
{
    struct peers *peers = peers_of(c);
    if (c->dirty)
        return;
    c->dirty = true;
    TAILQ_INSERT_TAIL(&peers->dirty, c, dirty_entry);
    peers_turn_start(peers);
}

void connection_doom(struct connection *c, const char *format, ...)
{
    char why[sizeof(c->peer.why)] = "";
    va_list arguments;
    if (c->doomed || c->peer.state == PEER_IDLE || c->peer.state == PEER_CLOSING)
        return;
    c->doomed = true;
    va_start(arguments, format);
    vsnprintf(why, sizeof(why), format, arguments);
    va_end(arguments);
    c->repeated = c->peer.dialled && strcmp(why, c->peer.why) == 0;
    memcpy(c->peer.why, why, sizeof(why));
    connection_dirty(c);
}

void connection_blame(struct connection *c, const char *what)
{
    peers_of(c)->config.metrics->peer_errors++;
    connection_doom(c, "protocol error: %s", what);
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
    connection_dial_end(c);
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
static void leave_successor(const struct connection *c)
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

void connection_end(struct connection *c)
{
    struct peers *peers = peers_of(c);
    struct peer_link *link, *next;
    c->was_up = c->peer.state == PEER_UP;
    c->peer.state = PEER_CLOSING;
    peers_told(peers);
    control_close(c);
    log_end(c);
    for (link = LIST_FIRST(&c->links); link != NULL; link = next) {
        next = LIST_NEXT(link, entry);
        if (!c->was_up || link != c->current)
            link_end(link);
    }
    if (c->peer.dialled && !peers->closing)
        leave_successor(c);
    if (c->was_up) {
        peers->config.metrics->peers_lost++;
        peers->config.events->down(peers->config.owner, &c->peer);
    }
    connection_settle(c);
}

/* ---- Coming up --------------------------------------------------------------------------------------------------- */

static void log_up(const struct connection *c)
{
    char name[2 * MESSAGE_ADDRESS_MAX], why[2 * sizeof(c->peer.why)];
    log_quote(name, sizeof(name), c->peer.address, strlen(c->peer.address));
    log_quote(why, sizeof(why), c->peer.why, strlen(c->peer.why));
    log_write(peers_of(c)->config.log, LOG_INFO,
              "msg=\"peer up\" peer=%s node=%016" PRIx64 " dialled=%d transport=%s codebook=%s note=%s", name,
              c->peer.node, c->peer.dialled, c->current->kind->ops->name, c->peer.codebook_matches ? "same" : "none",
              why);
}

/* A node that connects to us is alive, so dialling it need not wait for the back-off of earlier failed attempts. Not
 * after short lives, or two nodes would make each other dial without end. */
static void try_again_soon(struct peers *peers, const char *address)
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
    c->peer.direct = c->current->kind->ops->direct;
    c->up_at = c->heard = c->next_beat = peers_now(peers);
    peers->config.metrics->peers_connected++;
    log_up(c);
    if (!c->peer.dialled)
        try_again_soon(peers, c->peer.address);
    peers->config.events->up(peers->config.owner, &c->peer);
    connection_dirty(c); /* at least to read again */
    control_go_on(c);
}

/* ---- What the user calls ----------------------------------------------------------------------------------------- */

bool peers_address_ok(const char *address)
{
    char host[ADDRESS_HOST_MAX];
    unsigned port;
    return strlen(address) <= MESSAGE_ADDRESS_MAX && address_split(address, host, &port) && port != 0;
}

static struct connection *find(struct peers *peers, const char *address, uint32_t *count)
{
    struct connection *c;
    *count = 0;
    TAILQ_FOREACH(c, &peers->connections, entry)
    {
        *count += c->peer.dialled;
        if (c->peer.dialled && c->peer.state != PEER_CLOSING && strcmp(c->peer.address, address) == 0)
            return c;
    }
    return NULL;
}

struct peer *peers_get(struct peers *peers, const char *address)
{
    uint32_t count;
    if (peers->closing || !peers_address_ok(address))
        return NULL;
    struct connection *c = find(peers, address, &count);
    if (c == NULL && count < PEER_RECORDS_MAX)
        c = connection_create(peers, address, true);
    if (c == NULL)
        return NULL;
    c->asked = peers_now(peers);
    if (c->peer.state == PEER_IDLE && c->asked >= c->next_try)
        connection_dial(c);
    return &c->peer;
}

void peers_each(struct peers *peers, void (*f)(void *arg, struct peer *peer), void *arg)
{
    struct connection *c;
    TAILQ_FOREACH(c, &peers->connections, entry)
    {
        f(arg, &c->peer);
    }
}

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

enum strait_status peer_send(struct peer *peer, const struct message *message)
{
    struct connection *c = connection_of(peer);
    if (peer->state != PEER_UP || c->doomed)
        return STRAIT_ERR_AGAIN;
    if (fault_at(FAULT_SEND, peer, message))
        return STRAIT_OK;
    enum strait_status status = channel_send(c->channel, message, NULL, 0);
    if (status == STRAIT_ERR_INVALID)
        return status;
    if (status != STRAIT_OK)
        connection_doom(c, "messages are not taken: %s", strait_status_string(status));
    connection_dirty(c);
    (void)fault_at(FAULT_SENT, peer, message);
    return status;
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
    if (peer->state != PEER_UP || c->doomed)
        return STRAIT_ERR_AGAIN;
    const struct fault_chunk chunk = {peer->link, header, header_size, data, size, c->current->kind->send_handle};
    (void)fault_at(FAULT_CHUNK, peer, &chunk);
    enum strait_status status = link_send(peer->link, header, header_size, data, size, chunk.handle, cookie);
    (void)fault_at(FAULT_CHUNK_SENT, peer, &chunk);
    return status;
}

void peer_drop(struct peer *peer, const char *why)
{
    connection_doom(connection_of(peer), "%s", why);
}
