/* A new daemon takes the place of the one that runs: it gets the listening sockets, and the other one ends when its
 * last transfer has. No connection is refused meanwhile. */
#ifndef STRAIT_DAEMON_HANDOVER_H
#define STRAIT_DAEMON_HANDOVER_H

#include <uv.h>

#include "daemon/base/watch.h"
#include "daemon/session.h"

struct log;

/* ---- The daemon that runs ---------------------------------------------------------------------------------------- */

/* HANDOVER from another process of this user, or of root, one at a time. It is answered with the sockets and the lock;
 * once the other process says that it is ready, the node hands over. False: it broke the protocol, or may not ask. */
bool handover_message(struct session *session, const struct message_handover *message);
/* This node accepts nothing any more: tells the process that is ready. */
void handover_confirm(struct node *node);
/* Warns if the process that has the sockets has not been ready for too long; this node accepts until it is. */
void handover_tick(struct session *session);
/* The connection of the process that has the sockets ends. */
void handover_session_end(struct session *session);
/* Whether another process has the sockets, and may be about to accept on them. */
bool handover_pending(const struct node *node);

/* ---- The new daemon ---------------------------------------------------------------------------------------------- */

/* Asks the daemon at the socket for its listening sockets and its lock, for inherited.h, and waits up to 5 s. The other
 * one accepts until handover_ready, and goes on if that does not come. On OK the caller owns *channel; NULL: nobody
 * listens there. ERR_IO: the other one refused or did not answer; ERR_NO_MEMORY; `why`. */
enum strait_status handover_ask(const char *socket, struct channel **channel, char *why, size_t why_size);

/* What the other one is known to do: it confirms that it drains, and then ends. The log tells that, or that it has not
 * confirmed within 5 s, or ended without. Zeroed: there is none. */
struct handover {
    struct log *log;
    struct channel *channel;
    struct watch *watch;
    uv_timer_t deadline;
    uint32_t pid; /* 0: of another pid namespace */
    bool confirmed;
};

/* This process accepts now: tells the other one, and follows it until handover_close, which ends the loop's handles.
 * Takes the channel. What goes wrong only the log tells: the sockets are here in any case. */
void handover_ready(struct handover *handover, struct channel *channel, uv_loop_t *loop, struct watch_count *watches,
                    struct log *log);
void handover_close(struct handover *handover);

#endif
