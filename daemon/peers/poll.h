/* Event sources of the libuv loop: descriptors (struct watch) and transports (struct port). */
#ifndef STRAIT_DAEMON_PEERS_POLL_H
#define STRAIT_DAEMON_PEERS_POLL_H

#include <stdint.h>

#include <strait/status.h>

#include "transport/transport.h"

struct uv_loop_s;

/* Watches a descriptor on the loop. The watch never closes the descriptor; its owner may do so as soon as watch_close
 * was called, even though the handle behind the watch ends later. */

enum watch_events {
    WATCH_READ = 1,
    WATCH_WRITE = 2,
};

struct watch;

/* Receives what the descriptor is ready for; an error or a hang-up counts as both. */
typedef void watch_ready(void *owner, uint32_t events);

/* Counts the watches of a kind that have not ended yet; `idle` (may be NULL) is called when the last one has. */
struct watch_count {
    uint32_t count;
    void (*idle)(void *owner);
    void *owner;
};

/* Watches nothing yet. On OK the caller owns *watch. ERR_IO (not a descriptor that can be watched), ERR_NO_MEMORY. */
enum strait_status watch_open(struct uv_loop_s *loop, int fd, watch_ready *ready, void *owner,
                              struct watch_count *count, struct watch **watch);
/* From now on `ready` is called for these events. After an error call this again to get further events. */
void watch_for(struct watch *watch, uint32_t events);
/* `ready` is not called any more. Frees itself later. NULL is allowed. */
void watch_close(struct watch *watch);

/* Ties a transport to the loop: it is progressed when it has something to do, and armed before the loop blocks. */

#define PORT_TURN_NS 500000u /* of one turn of the loop that one transport may take */

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
