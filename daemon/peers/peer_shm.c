/* The link of a connection by shared memory, which is offered on one host only: the dialler connects to the other
 * daemon's unix socket and sends the token of that daemon's PEER_LINKS there. */
#include "daemon/peers/peer_internal.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- The dialling side ------------------------------------------------------------------------------------------- */

/* Sends the hello on a connected socket. NULL, or why it failed. */
static const char *shm_greet(struct connection *c, struct kind *kind, int fd)
{
    const struct peers *peers = peers_of(c);
    struct channel *channel;
    struct message message = {
        .type = MESSAGE_SHM_HELLO,
        .shm_hello = {.token = c->peer.peer_token,
                      .node = peers->config.node,
                      .slot_bytes = peers->config.slot_bytes,
                      .slot_count = peers->config.slot_count},
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
    if (fd < 0 || link_begin(c, kind, fd) != STRAIT_OK)
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

const char *shm_try(struct connection *c, struct kind *kind)
{
    if (!c->same_host || c->shm_path[0] == 0)
        return "on another host";
    int fd = shm_dial(c);
    c->shm_is_full = fd < 0 && errno == EAGAIN;
    if (c->shm_is_full)
        return NULL;
    return fd >= 0 ? shm_greet(c, kind, fd) : strerror(errno);
}

/* ---- The accepting side ------------------------------------------------------------------------------------------ */

static struct connection *find_token(struct peers *peers, uint64_t token)
{
    struct connection *c;
    TAILQ_FOREACH(c, &peers->connections, entry)
    {
        if (c->peer.token == token && !c->peer.dialled && c->peer.state == PEER_LINKING && !c->doomed)
            return c;
    }
    return NULL;
}

static const char *accept_shm(struct peers *peers, struct channel *channel, const struct message_shm_hello *hello)
{
    struct connection *c = find_token(peers, hello->token);
    struct kind *kind = kind_find(peers, "shm", 3);
    int fd = channel_release(channel);
    if (fd < 0)
        return "bytes followed the hello";
    if (c == NULL || kind == NULL || c->current != NULL || hello->node != c->peer.node) {
        close(fd);
        return "unknown token";
    }
    if (link_begin(c, kind, fd) != STRAIT_OK)
        return "no link can be opened";
    if (link_connect(c->current->link, NULL, 0) == STRAIT_OK)
        return NULL;
    current_end(c);
    return "the link cannot be begun";
}

void peers_accept_shm(struct peers *peers, struct channel *channel, const struct message_shm_hello *hello)
{
    const char *why = accept_shm(peers, channel, hello);
    if (why != NULL)
        peers_log_limited(peers, "msg=\"shm link refused\" error=\"%s\"", why);
}
