#ifndef STRAIT_DAEMON_BASE_HTTP_H
#define STRAIT_DAEMON_BASE_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <strait/status.h>

/* The head of an HTTP/1.x request. Pure: bytes in, a verdict out. */

#define HTTP_HEAD_MAX 8192u /* bytes of a head */
#define HTTP_PATH_MAX 128u  /* with its NUL; longer paths are cut, and no path that we serve is longer */

enum http_method { HTTP_GET, HTTP_HEAD, HTTP_OTHER };

struct http_request {
    enum http_method method;
    char path[HTTP_PATH_MAX]; /* without the query, as received: nothing is decoded */
    bool close;               /* the connection ends after the answer */
    size_t size;              /* bytes of the head: the next request begins behind them */
};

#define HTTP_INCOMPLETE 0
#define HTTP_GOOD       200

/* HTTP_GOOD: *request is set. HTTP_INCOMPLETE: more bytes are needed. Otherwise the status to answer with before the
 * connection is closed: 400 malformed, 413 it has a body, 431 longer than HTTP_HEAD_MAX, 505 not HTTP/1.x. Once a
 * verdict is given, more bytes do not change it. */
int http_request_parse(const char *data, size_t size, struct http_request *request);

/* A small HTTP/1.1 server on the node's loop: GET /metrics and /health, nothing else. Bounded in every way:
 * connections, header bytes, time. It is answered also when the process has no descriptor left: each socket it listens
 * at keeps one for that, and gives it to one connection at a time. */

struct uv_loop_s;
struct http;
struct log;

struct http_handlers {
    char *(*metrics)(void *owner, size_t *size);                  /* malloc'ed text; NULL: 500 */
    char *(*health)(void *owner, size_t *size, int *http_status); /* malloc'ed JSON; 200 or 503 */
    unsigned request_ms; /* for the head of a request, from its first byte or the accept; 0: 5000 */
};

/* Listens at a list of host:port (daemon/base/address.h); `log` and `rests` are as in acceptor_config. On OK the caller
 * owns *http; *port receives the port of the first address, and `why` names those that were left out
 * (daemon/base/listen.h). ERR_INVALID, ERR_IO (the loop must then run once more before it is closed), ERR_NO_MEMORY;
 * `why`. The process, or the loop's thread, must ignore SIGPIPE. */
enum strait_status http_open(struct uv_loop_s *loop, const char *addresses, const struct http_handlers *handlers,
                             void *owner, struct log *log, uint64_t *rests, struct http **http, unsigned *port,
                             char *why, size_t why_size);
/* Writes the descriptors on which it listens, at most `most`, and returns how many. */
uint32_t http_listening(const struct http *http, int *fds, uint32_t most);
/* Ends asynchronously: its handles close on the loop, then it frees itself. NULL is allowed. */
void http_close(struct http *http);

#endif
