/* What clients ask for once they are welcome: requests, pools to be removed, notes, statistics. */
#ifndef STRAIT_DAEMON_CLIENT_REQUESTS_H
#define STRAIT_DAEMON_CLIENT_REQUESTS_H

#include "daemon/session.h"

/* False: the client broke the protocol. */
bool client_request(struct session *session, const struct message *message);
/* The client has gone: fails its requests, and the reads of what it serves. */
void client_requests_end(struct session *session);
/* Answers its question whether the daemon hangs. */
void client_pong(struct session *session);

#endif
