/* A small HTTP/1.1 server on the node's loop: GET /metrics and /health, nothing else. Bounded in every way:
 * connections, header bytes, time. */
#ifndef STRAIT_DAEMON_EQUIPMENT_HTTP_H
#define STRAIT_DAEMON_EQUIPMENT_HTTP_H

#include <stddef.h>

#include <strait/status.h>

struct uv_loop_s;
struct http;

struct http_handlers {
    char *(*metrics)(void *owner, size_t *size);                  /* malloc'ed text; NULL: 500 */
    char *(*health)(void *owner, size_t *size, int *http_status); /* malloc'ed JSON; 200 or 503 */
};

/* Listens on host:port (numeric host). On OK the caller owns *http; *port receives the port. ERR_INVALID, ERR_IO (errno
 * says more; the loop must then run once more before it is closed), ERR_NO_MEMORY. The process, or the loop's thread,
 * must ignore SIGPIPE. */
enum strait_status http_open(struct uv_loop_s *loop, const char *address, const struct http_handlers *handlers,
                             void *owner, struct http **http, unsigned *port);
/* Ends asynchronously: its handles close on the loop, then it frees itself. NULL is allowed. */
void http_close(struct http *http);

#endif
