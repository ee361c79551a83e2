/* Transports as event sources of the libuv loop. */
#ifndef STRAIT_DAEMON_PEERS_POLL_H
#define STRAIT_DAEMON_PEERS_POLL_H

#include <stdint.h>

#include <strait/status.h>

#include "transport/transport.h"

struct uv_loop_s;

/* Ties a transport to the loop: it is progressed when it has something to do, and armed before the loop blocks. */

#define PORT_TURN_NS 500000u /* of one turn of the loop that one transport may take */

struct port;

struct port_events {
    void (*failed)(void *owner); /* transport_arm reports that the transport is broken: at most once. Links still have
                                    to be closed */
    void (*spinning)(void *owner, bool spins); /* see port_is_spinning; NULL: nobody wants to know */
    void (*closed)(void *owner);               /* port_close is complete: the transport may be destroyed */
};

/* The transport is borrowed; its callbacks come from the loop from now on. On OK the caller owns *port. ERR_IO,
 * ERR_NO_MEMORY. */
enum strait_status port_create(struct uv_loop_s *loop, struct transport *transport, const struct port_events *events,
                               void *owner, struct port **port);
/* The transport has called its owner back: its time was not spent in vain. */
void port_worked(struct port *port);
/* Whether the transport has kept the loop awake for 2 s, though in all that time it called nobody back: a fault of the
 * library behind it, or bytes of a stranger that it neither takes nor drops. A slow link does not count: between its
 * packets the loop sleeps. */
bool port_is_spinning(const struct port *port);
/* Whom its events are for from now on. */
void port_set_owner(struct port *port, void *owner);
/* Stops progressing the transport; `closed` follows from the loop, then *port is freed. May be called by a callback of
 * the transport. */
void port_close(struct port *port);

#endif
