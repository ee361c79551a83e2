/* What a node is made of: codebook, arenas, jobs and devices, peers, metrics by HTTP, and its socket for clients. */
#ifndef STRAIT_DAEMON_NODE_PARTS_H
#define STRAIT_DAEMON_NODE_PARTS_H

#include "daemon/node.h"

/* Makes all parts, one after the other; if one fails, `why` says so, and those before it are there. */
enum strait_status parts_make(struct node *node, char *why, size_t why_size);
/* No client is accepted any more, and the socket's name goes. */
void parts_stop_listening(struct node *node);
/* Frees memory, when everything that used it has ended. */
void parts_free(struct node *node);

#endif
