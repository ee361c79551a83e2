/* A layer of a channel that carries its bytes in two rings of shared memory (internal/ring.h), one each way. What is
 * left to the socket is its end, and bytes whose values mean nothing: they wake a side that sleeps, or descriptors come
 * with them, those of a frame before the frame itself. */
#ifndef STRAIT_PROTO_RING_LAYER_H
#define STRAIT_PROTO_RING_LAYER_H

#include "internal/ring.h"
#include "proto/channel.h"

#define RING_LAYER_FDS_MAX (2 * CHANNEL_FDS_MAX)

/* Its owner embeds it, and may read nothing of it. */
struct ring_layer {
    struct channel_layer layer;
    struct ring in, out;
    void (*wake)(void *owner); /* wakes the other side if it sleeps */
    void *owner;
    bool out_waits;    /* for room */
    bool socket_ready; /* there may be bytes in the socket, or its end */
    bool ended;        /* the socket has; */
    uint32_t end;      /* where the ring ended then */
    bool fds_wait;     /* descriptors wait until the socket takes them */
    uint32_t fd_count; /* of those received that no frame has asked for */
    int fds[RING_LAYER_FDS_MAX];
};

/* `fds`: descriptors can be sent, by the channel's unix socket. */
void ring_layer_init(struct ring_layer *layer, struct ring in, struct ring out, bool fds, void (*wake)(void *owner),
                     void *owner);
/* Closes the descriptors that nobody has asked for. */
void ring_layer_fini(struct ring_layer *layer);

/* To be called when a poll reports the socket as readable, before channel_read: otherwise that looks at the ring only,
 * without a system call. */
void ring_layer_socket_ready(struct ring_layer *layer);

/* Whether the other side has written an index that cannot be; then nothing is received or sent any more. */
bool ring_layer_is_broken(const struct ring_layer *layer);
/* Whether channel_read would find something in the ring. */
bool ring_layer_can_read(struct ring_layer *layer);
/* Whether channel_flush has found no room, and would find some now. */
bool ring_layer_can_write(struct ring_layer *layer);

#endif
