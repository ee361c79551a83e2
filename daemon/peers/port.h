/* Ties a transport to the loop: it is progressed when it has something to do, and armed before the loop blocks. */
#ifndef STRAIT_DAEMON_PEERS_PORT_H
#define STRAIT_DAEMON_PEERS_PORT_H

#include <stdbool.h>

#include "transport/transport.h"

#define PORT_TURN_NS 500000u /* of one turn of the loop that one transport may take */

struct uv_loop_s;
struct port;

struct port_events {
    void (*failed)(void *owner); /* transport_arm reports that the transport is broken: at most once. Links still have
                                    to be closed */
    void (*closed)(void *owner); /* port_close is complete: the transport may be destroyed */
};

/* The transport is borrowed; its callbacks come from the loop from now on. On OK the caller owns *port. ERR_IO,
 * ERR_NO_MEMORY. */
enum strait_status port_create(struct uv_loop_s *loop, struct transport *transport, const struct port_events *events,
                               void *owner, struct port **port);
/* Stops progressing the transport; `closed` follows from the loop, then *port is freed. May be called by a callback of
 * the transport. */
void port_close(struct port *port);

#endif
