#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/base/http.h"
#include "daemon/base/listen.h"
#include "daemon/base/watch.h"

#define BAD      400
#define BODY     413
#define TOO_LONG 431
#define VERSION  505

struct span {
    const char *data;
    size_t size;
};

/* Header fields that count. */
struct fields {
    unsigned hosts;
    bool close, body;
};

static bool is_token(struct span text)
{
    static const char others[] = "!#$%&'*+-.^_`|~";
    for (size_t i = 0; i < text.size; i++) {
        char c = text.data[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!letter && (c == 0 || strchr(others, c) == NULL))
            return false;
    }
    return text.size > 0;
}

static bool is_text(struct span text, uint8_t least)
{
    for (size_t i = 0; i < text.size; i++)
        if (((uint8_t)text.data[i] < least && text.data[i] != '\t') || text.data[i] == 0x7f)
            return false;
    return true;
}

static bool equals(struct span text, const char *word)
{
    return text.size == strlen(word) && strncasecmp(text.data, word, text.size) == 0;
}

/* Splits off the text up to `stop`; all of it when there is none. */
static struct span cut(struct span *rest, char stop)
{
    const char *found = rest->size > 0 ? memchr(rest->data, stop, rest->size) : NULL;
    size_t size = found != NULL ? (size_t)(found - rest->data) : rest->size;
    struct span head = {rest->data, size};
    size += found != NULL;
    rest->data += size;
    rest->size -= size;
    return head;
}

static struct span trim(struct span text)
{
    while (text.size > 0 && (text.data[0] == ' ' || text.data[0] == '\t')) {
        text.data++;
        text.size--;
    }
    while (text.size > 0 && (text.data[text.size - 1] == ' ' || text.data[text.size - 1] == '\t'))
        text.size--;
    return text;
}

/* ---- The request line -------------------------------------------------------------------------------------------- */

/* "/path?query", or with "http://host" in front, as to a proxy. */
static bool parse_target(struct span target, char path[HTTP_PATH_MAX])
{
    if (!is_text(target, 0x21) || memchr(target.data, '\t', target.size) != NULL)
        return false;
    if (target.size >= 7 && strncasecmp(target.data, "http://", 7) == 0) {
        const char *slash = memchr(target.data + 7, '/', target.size - 7);
        size_t before = slash != NULL ? (size_t)(slash - target.data) : target.size;
        target = (struct span){target.data + before, target.size - before};
    }
    struct span name = cut(&target, '?');
    size_t size = name.size < HTTP_PATH_MAX ? name.size : HTTP_PATH_MAX - 1;
    memcpy(path, name.data, size);
    path[size] = 0;
    return true;
}

static int parse_first_line(struct span line, struct http_request *request, bool *old)
{
    struct span method = cut(&line, ' '), target = cut(&line, ' ');
    if (!is_token(method) || target.size == 0 || !parse_target(target, request->path))
        return BAD;
    request->method = method.size == 3 && memcmp(method.data, "GET", 3) == 0    ? HTTP_GET
                      : method.size == 4 && memcmp(method.data, "HEAD", 4) == 0 ? HTTP_HEAD
                                                                                : HTTP_OTHER;
    /* HTTP/1.0 and any HTTP/1.x. */
    bool shaped = line.size == 8 && memcmp(line.data, "HTTP/", 5) == 0 && line.data[6] == '.' && line.data[5] >= '0' &&
                  line.data[5] <= '9' && line.data[7] >= '0' && line.data[7] <= '9';
    if (!shaped)
        return BAD;
    *old = line.data[7] == '0';
    return line.data[5] == '1' ? HTTP_GOOD : VERSION;
}

/* ---- Fields ------------------------------------------------------------------------------------------------------ */

static bool is_zero(struct span number)
{
    for (size_t i = 0; i < number.size; i++)
        if (number.data[i] != '0')
            return false;
    return number.size > 0;
}

static bool is_number(struct span number)
{
    for (size_t i = 0; i < number.size; i++)
        if (number.data[i] < '0' || number.data[i] > '9')
            return false;
    return number.size > 0;
}

static int parse_field(struct span line, struct fields *fields)
{
    if (memchr(line.data, ':', line.size) == NULL)
        return BAD;
    struct span name = cut(&line, ':'), value = trim(line);
    if (!is_token(name) || !is_text(value, 0x20))
        return BAD;
    if (equals(name, "host"))
        fields->hosts++;
    else if (equals(name, "connection")) {
        while (value.size > 0)
            if (equals(trim(cut(&value, ',')), "close"))
                fields->close = true;
    } else if (equals(name, "transfer-encoding"))
        fields->body = true;
    else if (equals(name, "content-length") && !is_number(value))
        return BAD;
    else if (equals(name, "content-length") && !is_zero(value))
        fields->body = true;
    return HTTP_GOOD;
}

static int parse_fields(struct span rest, struct fields *fields)
{
    while (rest.size > 0) {
        struct span line = cut(&rest, '\n');
        line.size--; /* its CR, see find_head */
        int verdict = parse_field(line, fields);
        if (verdict != HTTP_GOOD)
            return verdict;
    }
    return HTTP_GOOD;
}

/* ---- The whole head ---------------------------------------------------------------------------------------------- */

/* Finds the empty line that ends the head and makes sure that every line ends with CR LF. *end: the position behind
 * it. */
static int find_head(const char *data, size_t size, size_t begin, size_t *end)
{
    size_t line = begin;
    for (size_t i = begin; i < size && i < HTTP_HEAD_MAX; i++) {
        if (data[i] != '\n')
            continue;
        if (i == line || data[i - 1] != '\r')
            return BAD;
        *end = i + 1;
        if (i == line + 1)
            return HTTP_GOOD;
        line = i + 1;
    }
    return size >= HTTP_HEAD_MAX ? TOO_LONG : HTTP_INCOMPLETE;
}

static int parse_head(struct span head, struct http_request *request)
{
    struct fields fields = {0};
    bool old = false;
    struct span line = cut(&head, '\n');
    line.size--;
    int verdict = parse_first_line(line, request, &old);
    if (verdict == HTTP_GOOD)
        verdict = parse_fields(head, &fields);
    if (verdict != HTTP_GOOD)
        return verdict;
    if (fields.hosts > 1 || (fields.hosts == 0 && !old))
        return BAD;
    request->close = old || fields.close;
    return fields.body ? BODY : HTTP_GOOD;
}

int http_request_parse(const char *data, size_t size, struct http_request *request)
{
    struct http_request parsed = {0};
    /* Empty lines before a request are allowed. */
    size_t begin = 0, end = 0;
    while (size - begin >= 2 && data[begin] == '\r' && data[begin + 1] == '\n')
        begin += 2;
    int verdict = find_head(data, size, begin, &end);
    if (verdict != HTTP_GOOD)
        return verdict;
    verdict = parse_head((struct span){data + begin, end - begin - 2}, &parsed);
    parsed.size = end;
    if (verdict == HTTP_GOOD)
        *request = parsed;
    return verdict;
}

#define CONNECTIONS_MAX 64u
#define BACKLOG         128
#define TICK_MS         250u
#define REQUEST_MS      5000u  /* the usual request_ms */
#define IDLE_MS         60000u /* between requests */
#define ANSWER_MS       10000u
#define LINGER_MS       1000u /* lets the peer read an answer before a reset overtakes it */
#define SCARCE_MS       1000u /* for a request that came when no descriptor was left */

enum connection_state {
    READING,   /* waits for the rest of a head */
    ANSWERING, /* waits for its answer to be written; reads nothing */
    LINGERING, /* shut down; discards what still comes, until the peer has closed too */
    CLOSING,
};

struct connection {
    uv_tcp_t tcp;
    uv_write_t write;
    uv_shutdown_t shutdown;
    struct http *http;
    struct connection *next; /* in the order of accepts */
    enum connection_state state;
    bool close; /* after the answer */
    unsigned request_ms;
    uint64_t deadline;
    size_t used;
    char *body;
    char head[256];
    char input[HTTP_HEAD_MAX];
};

struct http {
    uv_loop_t *loop;
    struct acceptor *acceptors[ADDRESS_FOUND_MAX];
    unsigned acceptor_count;
    struct watch_count watches; /* those of the acceptors */
    uv_timer_t tick;
    struct http_handlers handlers;
    void *owner;
    struct connection *first;
    unsigned connections;
    unsigned handles; /* handles that are not closed yet; the acceptors together are one */
    bool closing;
};

struct answer {
    int status;
    const char *type;
    const char *extra; /* a whole field, or "" */
    char *body;        /* malloc'ed; NULL: the status in words */
    size_t size;
};

/* ---- Closing ----------------------------------------------------------------------------------------------------- */

static void release(struct http *http)
{
    if (--http->handles == 0)
        free(http);
}

static void on_tick_closed(uv_handle_t *handle)
{
    release(handle->data);
}

static void on_acceptors_closed(void *owner)
{
    release(owner);
}

static void on_connection_closed(uv_handle_t *handle)
{
    struct connection *connection = handle->data;
    struct http *http = connection->http;
    struct connection **at = &http->first;
    while (*at != connection)
        at = &(*at)->next;
    *at = connection->next;
    free(connection->body);
    free(connection);
    if (http->first == NULL && !http->closing)
        uv_timer_stop(&http->tick);
    release(http);
}

/* Whether each acceptor has its descriptor for a time when none is left. If not, a connection of this server has the
 * last one, and must end soon. */
static bool has_reserves(struct http *http)
{
    bool all = true;
    for (unsigned i = 0; i < http->acceptor_count && !http->closing; i++)
        all &= acceptor_reserve(http->acceptors[i]);
    return all;
}

static void connection_close(struct connection *connection)
{
    if (connection->state == CLOSING)
        return;
    connection->state = CLOSING;
    connection->http->connections--;
    uv_close((uv_handle_t *)&connection->tcp, on_connection_closed);
    (void)has_reserves(connection->http); /* the descriptor is closed, and nobody else has had a turn */
}

static void set_state(struct connection *connection, enum connection_state state, unsigned milliseconds)
{
    connection->state = state;
    connection->deadline = uv_now(connection->http->loop) + milliseconds;
}

static void on_tick(uv_timer_t *tick)
{
    struct http *http = tick->data;
    for (struct connection *at = http->first; at != NULL; at = at->next)
        if (uv_now(http->loop) >= at->deadline)
            connection_close(at);
}

/* ---- Answers ----------------------------------------------------------------------------------------------------- */

static void serve(struct connection *connection);

static const char *status_text(int status)
{
    switch (status) {
    case 200:
        return "OK";
    case 400:
        return "Bad Request";
    case 404:
        return "Not Found";
    case 405:
        return "Method Not Allowed";
    case 413:
        return "Content Too Large";
    case 431:
        return "Request Header Fields Too Large";
    case 500:
        return "Internal Server Error";
    case 503:
        return "Service Unavailable";
    case 505:
        return "HTTP Version Not Supported";
    default:
        return "Unknown";
    }
}

static void on_shut_down(uv_shutdown_t *request, int error)
{
    struct connection *connection = request->data;
    if (error != 0 && error != UV_ECANCELED)
        connection_close(connection);
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer)
{
    struct connection *connection = handle->data;
    (void)suggested;
    *buffer = uv_buf_init(connection->input + connection->used, (unsigned)(HTTP_HEAD_MAX - connection->used));
}

static void on_read(uv_stream_t *stream, ssize_t size, const uv_buf_t *buffer);

static void resume_reading(struct connection *connection)
{
    int error = uv_read_start((uv_stream_t *)&connection->tcp, on_alloc, on_read);
    if (error != 0 && error != UV_EALREADY)
        connection_close(connection);
}

static void on_written(uv_write_t *request, int error)
{
    struct connection *connection = request->data;
    free(connection->body);
    connection->body = NULL;
    if (connection->state == CLOSING)
        return;
    if (error != 0) {
        connection_close(connection);
    } else if (connection->close) {
        set_state(connection, LINGERING, LINGER_MS);
        connection->used = 0;
        connection->shutdown.data = connection;
        if (uv_shutdown(&connection->shutdown, (uv_stream_t *)&connection->tcp, on_shut_down) != 0)
            connection_close(connection);
        else
            resume_reading(connection);
    } else {
        set_state(connection, READING, connection->used > 0 ? connection->request_ms : IDLE_MS);
        serve(connection);
    }
}

/* Takes the body. HEAD gets the same head and nothing else. */
static void answer_write(struct connection *connection, const struct answer *answer, bool head_only)
{
    int size = snprintf(connection->head, sizeof(connection->head),
                        "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n%sCache-Control: no-store\r\n"
                        "Connection: %s\r\n\r\n",
                        answer->status, status_text(answer->status), answer->type, answer->size, answer->extra,
                        connection->close ? "close" : "keep-alive");
    uv_buf_t buffers[2] = {uv_buf_init(connection->head, (unsigned)size),
                           uv_buf_init(answer->body, (unsigned)answer->size)};
    connection->body = answer->body;
    connection->write.data = connection;
    set_state(connection, ANSWERING, ANSWER_MS);
    uv_read_stop((uv_stream_t *)&connection->tcp);
    if (uv_write(&connection->write, (uv_stream_t *)&connection->tcp, buffers, head_only ? 1 : 2, on_written) != 0)
        connection_close(connection);
}

static void answer_words(struct answer *answer, int status)
{
    int size = asprintf(&answer->body, "%s\n", status_text(status));
    answer->status = status;
    answer->type = "text/plain; charset=utf-8";
    answer->size = size > 0 ? (size_t)size : 0;
    if (size < 0)
        answer->body = NULL;
}

static void answer_request(struct connection *connection, const struct http_request *request)
{
    struct answer answer = {.extra = ""};
    const bool metrics = strcmp(request->path, "/metrics") == 0, health = strcmp(request->path, "/health") == 0,
               live = strcmp(request->path, "/live") == 0;
    if (!metrics && !health && !live) {
        answer_words(&answer, 404);
    } else if (request->method == HTTP_OTHER) {
        answer_words(&answer, 405);
        answer.extra = "Allow: GET, HEAD\r\n";
    } else if (live) { /* the loop turns: that is all there is to say */
        answer_words(&answer, 200);
    } else {
        answer.status = 200;
        answer.type = metrics ? "text/plain; version=0.0.4; charset=utf-8" : "application/json";
        answer.body = metrics
                          ? connection->http->handlers.metrics(connection->http->owner, &answer.size)
                          : connection->http->handlers.health(connection->http->owner, &answer.size, &answer.status);
        if (answer.body == NULL)
            answer_words(&answer, 500);
    }
    connection->close = request->close || !has_reserves(connection->http);
    answer_write(connection, &answer, request->method == HTTP_HEAD);
}

static void answer_refusal(struct connection *connection, int status)
{
    struct answer answer = {.extra = ""};
    answer_words(&answer, status);
    connection->close = true;
    answer_write(connection, &answer, false);
}

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

/* Begins the answer to the next request if its head is complete. Further requests wait in the buffer. */
static void serve(struct connection *connection)
{
    struct http_request request;
    int verdict = http_request_parse(connection->input, connection->used, &request);
    if (verdict == HTTP_INCOMPLETE) {
        resume_reading(connection);
    } else if (verdict != HTTP_GOOD) {
        answer_refusal(connection, verdict);
    } else {
        connection->used -= request.size;
        memmove(connection->input, connection->input + request.size, connection->used);
        answer_request(connection, &request);
    }
}

static void on_read(uv_stream_t *stream, ssize_t size, const uv_buf_t *buffer)
{
    struct connection *connection = stream->data;
    (void)buffer;
    if (size < 0) {
        connection_close(connection);
        return;
    }
    if (size == 0 || connection->state != READING) /* lingering: discarded */
        return;
    if (connection->used == 0)
        set_state(connection, READING, connection->request_ms); /* later bytes do not extend it */
    connection->used += (size_t)size;
    serve(connection);
}

/* ---- Connections ------------------------------------------------------------------------------------------------- */

/* At the limit, the connection that has waited longest without a whole request makes room, else the oldest one: neither
 * silent clients nor those that ask and do not read their answers can keep others out. */
static void make_room(struct http *http)
{
    struct connection *victim = NULL;
    for (struct connection *at = http->first; at != NULL; at = at->next) {
        if (at->state == READING || at->state == LINGERING) {
            victim = at;
            break;
        }
        if (victim == NULL && at->state != CLOSING)
            victim = at;
    }
    if (victim != NULL)
        connection_close(victim);
}

/* Takes over the socket. NULL: there is no memory; it is closed. */
static struct connection *connection_create(struct http *http, int fd)
{
    struct connection *connection = calloc(1, sizeof(*connection));
    if (connection == NULL || uv_tcp_init(http->loop, &connection->tcp) != 0) {
        free(connection);
        close(fd);
        return NULL;
    }
    struct connection **end = &http->first;
    while (*end != NULL)
        end = &(*end)->next;
    *end = connection;
    connection->tcp.data = connection;
    connection->http = http;
    http->connections++;
    http->handles++;
    if (uv_tcp_open(&connection->tcp, fd) == 0)
        return connection;
    close(fd);
    connection_close(connection);
    return NULL;
}

static void on_connection(void *owner, int fd, const struct sockaddr_storage *address)
{
    struct http *http = owner;
    (void)address;
    if (http->connections >= CONNECTIONS_MAX)
        make_room(http);
    struct connection *connection = connection_create(http, fd);
    if (!uv_is_active((uv_handle_t *)&http->tick))
        uv_timer_start(&http->tick, on_tick, TICK_MS, TICK_MS);
    if (connection == NULL)
        return;
    const unsigned usual = http->handlers.request_ms;
    connection->request_ms = usual < SCARCE_MS || has_reserves(http) ? usual : SCARCE_MS;
    set_state(connection, READING, connection->request_ms);
    resume_reading(connection);
}

/* ---- The server -------------------------------------------------------------------------------------------------- */

static struct http *http_create(struct uv_loop_s *loop, const struct http_handlers *handlers, void *owner)
{
    struct http *http = malloc(sizeof(*http));
    if (http == NULL)
        return NULL;
    *http = (struct http){.loop = loop, .handlers = *handlers, .owner = owner, .handles = 2};
    if (http->handlers.request_ms == 0)
        http->handlers.request_ms = REQUEST_MS;
    http->watches = (struct watch_count){.idle = on_acceptors_closed, .owner = http};
    uv_timer_init(loop, &http->tick);
    http->tick.data = http;
    return http;
}

/* Gives the sockets to acceptors; those that have none are closed. */
static enum strait_status http_accept(struct http *http, struct listen_sockets *sockets, struct log *log,
                                      uint64_t *rests)
{
    const struct acceptor_config config = {.loop = http->loop,
                                           .log = log,
                                           .name = "metrics",
                                           .rests = rests,
                                           .count = &http->watches,
                                           .reserves = true,
                                           .accepted = on_connection,
                                           .owner = http};
    enum strait_status status = STRAIT_OK;
    for (uint32_t i = 0; i < sockets->bound.count; i++) {
        if (status == STRAIT_OK)
            status = acceptor_open(sockets->fds[i], &config, &http->acceptors[http->acceptor_count]);
        if (status == STRAIT_OK)
            http->acceptor_count++;
        else
            close(sockets->fds[i]);
    }
    return status;
}

enum strait_status http_open(struct uv_loop_s *loop, const char *addresses, const struct http_handlers *handlers,
                             void *owner, struct log *log, uint64_t *rests, struct http **http, unsigned *port,
                             char *why, size_t why_size)
{
    struct listen_sockets sockets;
    enum strait_status status = listen_tcp(addresses, BACKLOG, &sockets, why, why_size);
    if (status != STRAIT_OK)
        return status;
    const unsigned bound = address_port(&sockets.bound.found[0].address);
    struct http *fresh = http_create(loop, handlers, owner);
    if (fresh == NULL)
        listen_close(&sockets);
    status = fresh != NULL ? http_accept(fresh, &sockets, log, rests) : STRAIT_ERR_NO_MEMORY;
    if (status != STRAIT_OK) {
        snprintf(why, why_size, "%s: %s", addresses, strait_status_string(status));
        http_close(fresh);
        return status;
    }
    *http = fresh;
    *port = bound;
    return STRAIT_OK;
}

uint32_t http_listening(const struct http *http, int *fds, uint32_t most)
{
    uint32_t count = 0;
    for (; count < http->acceptor_count && count < most; count++)
        fds[count] = acceptor_fd(http->acceptors[count]);
    return count;
}

void http_close(struct http *http)
{
    if (http == NULL || http->closing)
        return;
    http->closing = true;
    for (struct connection *at = http->first; at != NULL; at = at->next)
        connection_close(at);
    uv_close((uv_handle_t *)&http->tick, on_tick_closed);
    for (unsigned i = 0; i < http->acceptor_count; i++)
        acceptor_close(http->acceptors[i]);
    if (http->acceptor_count == 0)
        release(http);
}
