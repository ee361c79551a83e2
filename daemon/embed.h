/* The node inside another process: what libstrait loads for embedded mode. */
#ifndef STRAIT_DAEMON_EMBED_H
#define STRAIT_DAEMON_EMBED_H

#include <stddef.h>

#include <strait/export.h>

/* Starts a node on a thread of its own, with options as lines of "name = value" (no sockets are opened unless they say
 * so). On OK *fd is the client's end of its only connection, the caller's to close: that ends the node and its thread.
 * Otherwise an enum strait_status, and `error` says more. */
STRAIT_API int strait_node_embed(const char *options, int *fd, char *error, size_t error_size);

#endif
