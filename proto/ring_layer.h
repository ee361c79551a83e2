/* A layer of a channel that carries its bytes in two rings of shared memory (internal/ring.h), one each way. What is
 * left to the socket is its end, and bytes that wake a side that sleeps, whose values mean nothing. */
#ifndef STRAIT_PROTO_RING_LAYER_H
#define STRAIT_PROTO_RING_LAYER_H

#include "internal/ring.h"
#include "proto/channel.h"

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
};

void ring_layer_init(struct ring_layer *layer, struct ring in, struct ring out, void (*wake)(void *owner), void *owner);

/* To be called when a poll reports the socket as readable, before channel_read: otherwise that looks at the ring only,
 * without a system call. */
void ring_layer_socket_ready(struct ring_layer *layer);

/* Whether channel_read would find something in the ring. */
bool ring_layer_can_read(struct ring_layer *layer);
/* Whether channel_flush has found no room, and would find some now. */
bool ring_layer_can_write(struct ring_layer *layer);

#endif
