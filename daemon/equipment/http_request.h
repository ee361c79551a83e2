/* The head of an HTTP/1.x request. Pure: bytes in, a verdict out. */
#ifndef STRAIT_DAEMON_EQUIPMENT_HTTP_REQUEST_H
#define STRAIT_DAEMON_EQUIPMENT_HTTP_REQUEST_H

#include <stdbool.h>
#include <stddef.h>

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

#endif
