/* Clients: accepting their connections, handling their messages, ending them. */
#ifndef STRAIT_DAEMON_CLIENTS_H
#define STRAIT_DAEMON_CLIENTS_H

#include "daemon/session.h"

/* Takes the socket. A client beyond the limit is closed and counted. */
void client_accept(struct node *node, int fd);
/* Ends the session: the client's live transfers fail, and the socket is closed when they have drained. */
void client_end(struct session *session, const char *why);
void clients_backlogs(struct node *node); /* handles messages that waited */
void clients_flush(struct node *node);    /* sends what the turn has queued */
void clients_reap(struct node *node); /* at the end of a turn: closes what has drained, frees those that have ended */

#endif
