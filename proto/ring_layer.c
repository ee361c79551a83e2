#include "proto/ring_layer.h"

#include <errno.h>
#include <sys/socket.h>

#define SCRAP_BYTES 4096u
#define SCRAP_READS 4u /* of a side that wakes us more often than we sleep */

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

/* A full ring is nothing that a poll of the socket could report: the other side wakes this one. */
static bool layer_wants_write(const struct channel_layer *base)
{
    (void)base;
    return false;
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

/* Drops what the socket has, and finds its end. */
static void look_at_socket(struct ring_layer *layer, int fd)
{
    char scrap[SCRAP_BYTES];
    layer->socket_ready = false; /* if more is there, a poll reports it again */
    for (uint32_t i = 0; i < SCRAP_READS; i++) {
        const ssize_t got = recv(fd, scrap, sizeof(scrap), MSG_DONTWAIT);
        if (got > 0 && (size_t)got == sizeof(scrap))
            continue;
        if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)))
            return;
        layer->ended = true;
        layer->end = layer->in.own + ring_used(&layer->in);
        return;
    }
}

static ssize_t layer_receive(struct channel_layer *base, int fd, void *dst, size_t size)
{
    struct ring_layer *layer = (struct ring_layer *)base;
    size_t taken = take(layer, dst, size);
    if (taken == 0 && layer->socket_ready && !layer->ended) {
        look_at_socket(layer, fd);
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

void ring_layer_init(struct ring_layer *layer, struct ring in, struct ring out, void (*wake)(void *owner), void *owner)
{
    *layer = (struct ring_layer){.layer = {layer_send, layer_receive, layer_wants_write, layer_pending},
                                 .in = in,
                                 .out = out,
                                 .wake = wake,
                                 .owner = owner};
}

void ring_layer_socket_ready(struct ring_layer *layer)
{
    layer->socket_ready = true;
}
