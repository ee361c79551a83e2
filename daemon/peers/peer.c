#include "daemon/peers/peer_internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/equipment/fault.h"

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
