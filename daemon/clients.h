/* Clients: accepting their connections, handling their messages, ending them. */
#ifndef STRAIT_DAEMON_CLIENTS_H
#define STRAIT_DAEMON_CLIENTS_H

#include "daemon/session.h"

/* Takes the socket. A client beyond a limit is told so, counted and logged. */
void client_accept(struct node *node, int fd);
void clients_tick(struct node *node); /* refuses who has not sent a hello in time */
/* Ends the session: the client's live transfers fail, and the socket is closed when they have drained. */
void client_end(struct session *session, const char *why);
void clients_tell_codebook(struct node *node); /* tells all clients of the set in force */
void clients_go_away(struct node *node);       /* tells all that new requests go by a new connection */
void clients_end_idle(struct node *node);      /* ends the sessions whose requests have all drained */
void clients_backlogs(struct node *node);      /* handles messages that waited */
void clients_look(struct node *node);          /* the loop does not sleep: reads what has come by rings */
bool clients_sleep(struct node *node); /* lets clients with rings wake the loop. True: something has come already */
void clients_flush(struct node *node); /* sends what the turn has queued, what sinks wait for first */
void clients_flush_lazy(struct node *node); /* and tells states that have lasted until now */
void clients_reap(struct node *node); /* at the end of a turn: closes what has drained, frees those that have ended */

#endif
