/* The control channel of a connection: messages are read and handed to the part that they are for, and sent. */
#include "daemon/peers/peer_internal.h"

#include <string.h>
#include <unistd.h>

#include "daemon/equipment/fault.h"

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
