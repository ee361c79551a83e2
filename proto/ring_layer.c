#include "proto/ring_layer.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SCRAP_BYTES 4096u
#define SCRAP_READS 4u /* of a side that wakes us more often than we sleep */

union control {
    struct cmsghdr aligned;
    char bytes[CMSG_SPACE(CHANNEL_FDS_MAX * sizeof(int))];
};

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

static size_t put_all(struct ring *out, const struct iovec *pieces, size_t count)
{
    size_t total = 0;
    for (size_t i = 0; i < count; i++) {
        const size_t put = ring_put(out, pieces[i].iov_base, pieces[i].iov_len);
        total += put;
        if (put < pieces[i].iov_len)
            break;
    }
    return total;
}

static ssize_t layer_send(struct channel_layer *base, int fd, const struct iovec *pieces, size_t count)
{
    struct ring_layer *layer = (struct ring_layer *)base;
    (void)fd;
    if (count == 0)
        return 0;
    size_t put = put_all(&layer->out, pieces, count);
    if (put == 0 && !layer->out_waits && !layer->out.broken) {
        layer->out_waits = true;
        ring_wait(&layer->out, true);
        put = put_all(&layer->out, pieces, count); /* room that was made before the other side could see that */
    }
    if (layer->out.broken) {
        errno = EPROTO;
        return -1;
    }
    if (put > 0 && layer->out_waits)
        ring_wait(&layer->out, false);
    layer->out_waits &= put == 0;
    if (put > 0)
        layer->wake(layer->owner);
    errno = EAGAIN;
    return put > 0 ? (ssize_t)put : -1;
}

static int layer_send_fds(struct channel_layer *base, int fd, const int *fds, uint32_t count)
{
    struct ring_layer *layer = (struct ring_layer *)base;
    union control control = {0};
    struct iovec byte = {.iov_base = "", .iov_len = 1};
    struct msghdr message = {.msg_iov = &byte,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = CMSG_SPACE(count * sizeof(int))};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(rights), fds, count * sizeof(int));
    const ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    layer->fds_wait = sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    return sent == 1 ? 0 : -1;
}

/* A full ring is nothing that a poll of the socket could report: the other side wakes this one. */
static bool layer_wants_write(const struct channel_layer *base)
{
    return ((const struct ring_layer *)base)->fds_wait;
}

bool ring_layer_can_write(struct ring_layer *layer)
{
    return layer->out_waits && (ring_room(&layer->out) > 0 || layer->out.broken);
}

/* ---- Receiving --------------------------------------------------------------------------------------------------- */

/* What came before the end of the socket is still read; what is put in afterwards is not. */
static size_t take(struct ring_layer *layer, void *dst, size_t size)
{
    const uint32_t left = layer->end - layer->in.own;
    return ring_take(&layer->in, dst, layer->ended && left < size ? left : size);
}

/* A peer that sends descriptors which none of its frames has breaks the protocol. */
static void keep_fd(struct ring_layer *layer, int fd)
{
    const bool fits = layer->fd_count < RING_LAYER_FDS_MAX;
    if (fits)
        layer->fds[layer->fd_count++] = fd;
    else
        close(fd);
    layer->in.broken |= !fits;
}

static void keep_fds(struct ring_layer *layer, struct msghdr *message)
{
    for (struct cmsghdr *at = CMSG_FIRSTHDR(message); at != NULL; at = CMSG_NXTHDR(message, at)) {
        if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; i < (at->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(at) + i * sizeof(int), sizeof(int));
            keep_fd(layer, fd);
        }
    }
    layer->in.broken |= (message->msg_flags & MSG_CTRUNC) != 0;
}

static ssize_t receive_scrap(struct ring_layer *layer, int fd, char *scrap, size_t size)
{
    union control control;
    struct iovec room = {.iov_base = scrap, .iov_len = size};
    struct msghdr message = {
        .msg_iov = &room, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
    if (layer->layer.take_fds == NULL)
        return recv(fd, scrap, size, MSG_DONTWAIT);
    const ssize_t got = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got > 0)
        keep_fds(layer, &message);
    return got;
}

/* Drops the bytes that the socket has, keeps descriptors, and finds its end. Stops when so many descriptors are there
 * and no more bytes seem to be: a call that has not filled its room may have ended where other descriptors begin. */
static void look_at_socket(struct ring_layer *layer, int fd, uint32_t fds)
{
    char scrap[SCRAP_BYTES];
    layer->socket_ready = false; /* if more is there, a poll reports it again */
    for (uint32_t i = 0; i < SCRAP_READS && !layer->ended; i++) {
        const ssize_t got = receive_scrap(layer, fd, scrap, sizeof(scrap));
        if (got == (ssize_t)sizeof(scrap) || (got > 0 && layer->fd_count < fds))
            continue;
        if (got > 0)
            return;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
            return;
        layer->ended = true;
        layer->end = layer->in.own + ring_used(&layer->in);
    }
}

static bool layer_take_fds(struct channel_layer *base, int fd, int *fds, uint32_t count)
{
    struct ring_layer *layer = (struct ring_layer *)base;
    if (layer->fd_count < count)
        look_at_socket(layer, fd, count);
    if (layer->fd_count < count)
        return false;
    memcpy(fds, layer->fds, count * sizeof(int));
    layer->fd_count -= count;
    memmove(layer->fds, layer->fds + count, layer->fd_count * sizeof(int));
    return true;
}

static ssize_t layer_receive(struct channel_layer *base, int fd, void *dst, size_t size)
{
    struct ring_layer *layer = (struct ring_layer *)base;
    size_t taken = take(layer, dst, size);
    if (taken == 0 && layer->socket_ready && !layer->ended) {
        look_at_socket(layer, fd, 0);
        taken = take(layer, dst, size);
    }
    if (layer->in.broken) {
        errno = EPROTO;
        return -1;
    }
    if (taken > 0 && ring_is_waited_for(&layer->in))
        layer->wake(layer->owner);
    if (taken > 0)
        return (ssize_t)taken;
    errno = EAGAIN;
    return layer->ended ? 0 : -1;
}

bool ring_layer_can_read(struct ring_layer *layer)
{
    return !layer->ended && (ring_used(&layer->in) > 0 || layer->in.broken);
}

static bool layer_pending(const struct channel_layer *base)
{
    struct ring_layer *layer = (struct ring_layer *)(uintptr_t)base;
    return ring_layer_can_read(layer);
}

void ring_layer_init(struct ring_layer *layer, struct ring in, struct ring out, bool fds, void (*wake)(void *owner),
                     void *owner)
{
    *layer = (struct ring_layer){.layer = {layer_send, layer_receive, layer_wants_write, layer_pending},
                                 .in = in,
                                 .out = out,
                                 .wake = wake,
                                 .owner = owner};
    layer->layer.send_fds = fds ? layer_send_fds : NULL;
    layer->layer.take_fds = fds ? layer_take_fds : NULL;
}

void ring_layer_fini(struct ring_layer *layer)
{
    for (uint32_t i = 0; i < layer->fd_count; i++)
        close(layer->fds[i]);
    layer->fd_count = 0;
}

bool ring_layer_is_broken(const struct ring_layer *layer)
{
    return layer->in.broken || layer->out.broken;
}

void ring_layer_socket_ready(struct ring_layer *layer)
{
    layer->socket_ready = true;
}
