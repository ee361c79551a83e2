/* Rings of a client and its daemon, in place of the unix socket between them, by which each wakes the other. The client
 * makes their memory. */
#ifndef STRAIT_PROTO_SOCKET_RING_H
#define STRAIT_PROTO_SOCKET_RING_H

#include "proto/ring_layer.h"

#define SOCKET_RING_BYTES (64u * 1024) /* of each ring that a client makes */

struct socket_ring {
    struct ring_layer layer;
    struct ring_file file; /* base NULL: there are none */
    uint32_t bytes;
    struct channel *channel;
};

/* Makes the rings of the client's side, and RINGS for them. Returns their memfd, which the caller owns, or -1: then
 * there are none. The channel is borrowed until socket_ring_close. */
int socket_ring_make(struct socket_ring *ring, struct channel *channel, struct message *rings);
/* Maps the rings of RINGS for the daemon's side. False: they cannot be used, and there are none. */
bool socket_ring_map(struct socket_ring *ring, struct channel *channel, const struct message_rings *rings, int memfd);
/* After the channel was destroyed, or if it never used them. May be called again, and for zeroed memory. */
void socket_ring_close(struct socket_ring *ring);

/* Says whether this side sleeps. True: it does, and there is something to do already. */
bool socket_ring_sleep(struct socket_ring *ring, bool sleeps);
/* This side does not sleep any more. True: the other side has sent a byte to wake it, or is about to. */
bool socket_ring_was_woken(struct socket_ring *ring);
/* Whether the rings have something to do for this side. */
bool socket_ring_is_due(struct socket_ring *ring);

#endif
