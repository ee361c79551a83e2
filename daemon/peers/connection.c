/* Connections: creation, queued messages, the first reason to end, links. The other files of this folder build on it.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/fault.h"
#include "daemon/peers/peer_internal.h"

/* ---- The loop ---------------------------------------------------------------------------------------------------- */

void peers_tick_start(struct peers *peers)
{
    if (peers->handles_closing || uv_is_active((uv_handle_t *)&peers->tick))
        return;
    peers->last_tick = peers_now(peers);
    uv_timer_again(&peers->tick); /* peers_open has set its callback and its interval */
}

static void on_turn(uv_idle_t *idle)
{
    (void)idle;
}

/* something is dirty: flush before blocking */
static void peers_turn_start(struct peers *peers)
{
    if (!peers->handles_closing)
        uv_idle_start(&peers->turn, on_turn);
}

void peers_turn_again(struct peers *peers)
{
    peers->turn_again = true;
    peers_turn_start(peers);
}

/* ---- Creation ---------------------------------------------------------------------------------------------------- */

static struct connection *create(struct peers *peers, const char *address, bool dialled)
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
    c->flap_backoff = PEER_BACKOFF_MS;
    c->asked = peers_now(peers);
    LIST_INIT(&c->links);
    LIST_INIT(&c->gpu_links);
    TAILQ_INSERT_TAIL(&peers->connections, c, entry);
    if (!uv_is_active((uv_handle_t *)&peers->tick))
        peers_tick_start(peers);
    return c;
}

struct connection *connection_accepted(struct peers *peers, const char *address)
{
    return create(peers, address, false);
}

static void asker_put(struct peers *peers, struct peer_asker *asker)
{
    if (asker == NULL || --asker->records > 0)
        return;
    HASH_DEL(peers->askers, asker);
    free(asker);
}

static struct peer_asker *asker_get(struct peers *peers, uint32_t uid)
{
    struct peer_asker *asker;
    HASH_FIND_INT(peers->askers, &uid, asker);
    if (asker == NULL && (asker = calloc(1, sizeof(*asker))) != NULL) {
        asker->uid = uid;
        HASH_ADD_INT(peers->askers, uid, asker);
    }
    if (asker != NULL)
        asker->records++;
    return asker;
}

struct connection *connection_dialled(struct peers *peers, const char *address, uint32_t uid)
{
    struct peer_asker *asker = asker_get(peers, uid);
    struct connection *c = asker != NULL ? create(peers, address, true) : NULL;
    if (c == NULL) {
        asker_put(peers, asker);
        return NULL;
    }
    c->uid = uid;
    c->asker = asker;
    HASH_ADD_KEYPTR(by_address, peers->by_address, c->peer.address, strlen(c->peer.address), c);
    return c;
}

void connection_unlist(struct connection *c)
{
    if (c->asker == NULL)
        return;
    HASH_DELETE(by_address, peers_of(c)->by_address, c);
    asker_put(peers_of(c), c->asker);
    c->asker = NULL;
}

bool connection_is_stranger(const struct connection *c)
{
    if (c->peer.dialled || c->failing)
        return false;
    return c->peer.state == PEER_PROVING || (c->peer.state == PEER_LINKING && peers_of(c)->credentials == NULL);
}

struct connection *connection_to(struct peers *peers, uint64_t node, uint64_t incarnation)
{
    struct connection *c;
    TAILQ_FOREACH(c, &peers->connections, entry)
    {
        if (c->peer.dialled && !c->failing && (c->peer.state == PEER_LINKING || c->peer.state == PEER_UP) &&
            c->peer.node == node && c->peer.incarnation == incarnation)
            return c;
    }
    return NULL;
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

void connection_unread(struct connection *c, bool unread)
{
    struct peers *peers = peers_of(c);
    if (c->unread == unread)
        return;
    c->unread = unread;
    peers->unread_count += unread ? 1 : -1u;
    if (unread)
        TAILQ_INSERT_TAIL(&peers->unread, c, unread_entry);
    else
        TAILQ_REMOVE(&peers->unread, c, unread_entry);
    if (unread)
        peers_turn_start(peers);
}

__attribute__((format(printf, 3, 0))) static void fail(struct connection *c, bool refused, const char *format,
                                                       va_list arguments)
{
    char why[sizeof(c->peer.why)] = "";
    if (c->failing || c->peer.state == PEER_IDLE || c->peer.state == PEER_CLOSING)
        return;
    c->failing = true;
    c->refused = refused;
    vsnprintf(why, sizeof(why), format, arguments);
    c->repeated = c->peer.dialled && strcmp(why, c->peer.why) == 0;
    memcpy(c->peer.why, why, sizeof(why));
    connection_dirty(c);
}

void connection_fail(struct connection *c, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fail(c, false, format, arguments);
    va_end(arguments);
}

void connection_refuse(struct connection *c, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fail(c, true, format, arguments);
    va_end(arguments);
}

void connection_protocol_error(struct connection *c, const char *what)
{
    peers_of(c)->config.metrics->peer_errors++;
    connection_fail(c, "protocol error: %s", what);
}

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

void connection_send(struct connection *c, const struct message *message)
{
    if (fault_at(FAULT_SEND, &c->peer, message))
        return;
    enum strait_status status = channel_send(c->channel, message, NULL, 0);
    if (status != STRAIT_OK)
        connection_fail(c, "cannot send %s: %s", message_name(message->type), strait_status_string(status));
    connection_dirty(c);
}

enum strait_status peer_send(struct peer *peer, const struct message *message)
{
    struct connection *c = connection_of(peer);
    if (peer->state != PEER_UP || c->failing)
        return STRAIT_ERR_AGAIN;
    if (fault_at(FAULT_SEND, peer, message))
        return STRAIT_OK;
    enum strait_status status = channel_send(c->channel, message, NULL, 0);
    if (status == STRAIT_ERR_INVALID)
        return status;
    if (status != STRAIT_OK)
        connection_fail(c, "messages are not taken: %s", strait_status_string(status));
    connection_dirty(c);
    (void)fault_at(FAULT_SENT, peer, message);
    return status;
}

/* ---- Links ------------------------------------------------------------------------------------------------------- */

enum strait_status link_make(struct connection *c, struct peer_transport *transport, int fd, struct peer_link **made)
{
    struct peer_link *link = calloc(1, sizeof(*link));
    enum strait_status status = STRAIT_ERR_NO_MEMORY;
    if (link == NULL) {
        if (fd >= 0)
            close(fd);
        return status;
    }
    link->connection = c;
    link->transport = transport;
    status = link_open(transport->handle, fd, c->peer.dialled ? LINK_DIALLED : LINK_ACCEPTED, link, &link->link);
    if (status != STRAIT_OK) {
        free(link);
        return status;
    }
    LIST_INSERT_HEAD(&c->links, link, entry);
    transport->links++;
    *made = link;
    return STRAIT_OK;
}

void link_end(struct peer_link *link)
{
    if (link->closing)
        return;
    link->closing = true;
    link_close(link->link);
}

struct peer_transport *peer_transport_find(struct peers *peers, const char *name, size_t size)
{
    for (uint32_t i = 0; i < peers->transport_count; i++) {
        const char *own = peers->transports[i].ops->name;
        if (strlen(own) == size && memcmp(own, name, size) == 0)
            return &peers->transports[i];
    }
    return NULL;
}

struct peer_transport *gpu_transport_find(const struct peers *peers, enum message_link_by by, uint32_t device)
{
    struct peer_transport *transport;
    LIST_FOREACH(transport, &peers->gpu_transports, entry)
    {
        if (transport->by == by && transport->device == (int32_t)device)
            return transport;
    }
    return NULL;
}
