#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/base/http.h"
#include "tests/support.h"
#include "tests/run_suite.h"

/* ---- The parser -------------------------------------------------------------------------------------------------- */

#define HOST "Host: a\r\n"

static const struct head_case {
    const char *text;
    int verdict;
} heads[] = {
    {"GET /metrics HTTP/1.1\r\n" HOST "\r\n", 200},
    {"GET /metrics HTTP/1.0\r\n\r\n", 200},
    {"HEAD /health?x=1 HTTP/1.1\r\nhost:a\r\nX-Y: \t z \r\n\r\n", 200},
    {"\r\n\r\nGET / HTTP/1.1\r\n" HOST "\r\n", 200},
    {"POST / HTTP/1.1\r\n" HOST "Content-Length: 0\r\n\r\n", 200},
    {"GET http://a/metrics HTTP/1.1\r\n" HOST "\r\n", 200},
    {"OPTIONS * HTTP/1.1\r\n" HOST "\r\n", 200},
    {"GET / HTTP/1.1\r\nHost:\r\n\r\n", 200},
    {"", 0},
    {"G", 0},
    {"GET / HTTP/1.1\r\n", 0},
    {"GET / HTTP/1.1\r\n" HOST "\r", 0},
    {"GET / HTTP/1.1\r\n\r\n", 400}, /* no Host */
    {"GET / HTTP/1.1\r\n" HOST HOST "\r\n", 400},
    {"GET / HTTP/1.1\n" HOST "\n", 400},
    {"\n", 400},
    {"GET /\r\n\r\n", 400},
    {"GET  / HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET / HTTP/1.1 \r\n" HOST "\r\n", 400},
    {"GET / http/1.1\r\n" HOST "\r\n", 400},
    {"GET / HTTP/1.10\r\n" HOST "\r\n", 400},
    {"G(T / HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET /\x01 HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET /\t HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET / HTTP/1.1\r\n" HOST "a b: c\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\n" HOST " folded\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\n" HOST ": c\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\n" HOST "none\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\n" HOST "a : c\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\n" HOST "a: b\rc\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\n" HOST "Content-Length: -1\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\n" HOST "Content-Length:\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\n" HOST "Content-Length: 1\r\n\r\nx", 413},
    {"GET / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n", 413},
    {"GET / HTTP/2.0\r\n" HOST "\r\n", 505},
    {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
    {"GET / HTTP/0.9\r\n\r\n", 505},
};

TEST_FIXTURE(parser, NULL, NULL);

TEST_LOOP(a_head_is_understood_or_refused, COUNT(heads))
{
    struct http_request request, longer;
    const char *text = heads[_i].text;
    size_t size = strlen(text);
    int verdict = http_request_parse(text, size, &request);
    ck_assert_msg(verdict == heads[_i].verdict, "%s: %d", text, verdict);
    if (verdict != HTTP_GOOD)
        return;
    ck_assert_uint_eq(size, request.size);
    for (size_t part = 0; part < size; part++)
        ck_assert_int_eq(HTTP_INCOMPLETE, http_request_parse(text, part, &longer));
}

TEST(a_request_has_method_path_and_what_comes_after)
{
    static const char close[] = "HEAD /a?b HTTP/1.1\r\n" HOST "Connection: keep-alive, Close\r\n\r\nrest";
    static const char absolute[] = "GET HTTP://h:1/a/b?c=/d HTTP/1.1\r\n" HOST "\r\n";
    struct http_request request;
    ck_assert_int_eq(HTTP_GOOD, http_request_parse(close, strlen(close), &request));
    ck_assert(request.method == HTTP_HEAD && request.close && request.size == strlen(close) - 4);
    ck_assert_str_eq("/a", request.path);
    ck_assert_int_eq(HTTP_GOOD, http_request_parse(absolute, strlen(absolute), &request));
    ck_assert(request.method == HTTP_GET && !request.close);
    ck_assert_str_eq("/a/b", request.path);
    ck_assert_int_eq(HTTP_GOOD, http_request_parse("get / HTTP/1.0\r\n\r\n", 18, &request));
    ck_assert(request.method == HTTP_OTHER && request.close);
}

TEST(a_head_has_a_limit)
{
    static char text[HTTP_HEAD_MAX + 8];
    static const char end[] = "\r\n\r\n";
    struct http_request request;
    int size = snprintf(text, sizeof(text), "GET / HTTP/1.1\r\n" HOST "X: ");
    memset(text + size, 'a', sizeof(text) - (size_t)size);
    ck_assert_int_eq(HTTP_INCOMPLETE, http_request_parse(text, HTTP_HEAD_MAX - 1, &request));
    ck_assert_int_eq(431, http_request_parse(text, HTTP_HEAD_MAX, &request));
    memcpy(text + HTTP_HEAD_MAX - 4, end, 4);
    ck_assert_int_eq(HTTP_GOOD, http_request_parse(text, HTTP_HEAD_MAX, &request));
    memset(text + HTTP_HEAD_MAX - 4, 'a', 4);
    memcpy(text + HTTP_HEAD_MAX - 3, end, 4);
    ck_assert_int_eq(431, http_request_parse(text, HTTP_HEAD_MAX + 1, &request));
}

/* ---- A server in a thread ---------------------------------------------------------------------------------------- */

static struct {
    pthread_t thread;
    uv_loop_t loop;
    uv_async_t stop;
    struct http *http;
    unsigned port;
    int health;
    bool broken;
    char why[256];
    size_t metrics_size;
    int calls;
    uint64_t rests;
} server;

static char *give_metrics(void *owner, size_t *size)
{
    ck_assert_ptr_eq(&server, owner);
    server.calls++;
    char *text = server.broken ? NULL : malloc(server.metrics_size + 1);
    if (text == NULL)
        return NULL;
    memset(text, 'm', server.metrics_size);
    *size = server.metrics_size;
    return text;
}

static char *give_health(void *owner, size_t *size, int *status)
{
    ck_assert_ptr_eq(&server, owner);
    *status = server.health;
    *size = 13;
    return strdup("{\"good\":true}");
}

static void on_stop(uv_async_t *async)
{
    http_close(server.http);
    uv_close((uv_handle_t *)async, NULL);
}

static void *serve(void *arg)
{
    (void)arg;
    uv_run(&server.loop, UV_RUN_DEFAULT);
    return NULL;
}

static void open_server(unsigned request_ms)
{
    const struct http_handlers handlers = {give_metrics, give_health, request_ms};
    signal(SIGPIPE, SIG_IGN); /* as the daemon does */
    memset(&server, 0, sizeof(server));
    server.health = 200;
    server.metrics_size = 100;
    ck_assert_int_eq(0, uv_loop_init(&server.loop));
    ck_assert_int_eq(0, uv_async_init(&server.loop, &server.stop, on_stop));
    ck_assert_int_eq(STRAIT_OK, http_open(&server.loop, "127.0.0.1:0", &handlers, &server, NULL, &server.rests,
                                          &server.http, &server.port, server.why, sizeof(server.why)));
    ck_assert_uint_ne(0, server.port);
}

/* A server that a test may give other answers before it starts; each test starts its own. */
static void setup(void)
{
    open_server(0);
}

static void setup_impatient(void)
{
    open_server(1000);
}

static void start(void)
{
    ck_assert_int_eq(0, pthread_create(&server.thread, NULL, serve, NULL));
}

/* Ends with no handle left: the loop would not close. */
static void stop(void)
{
    uv_async_send(&server.stop);
    pthread_join(server.thread, NULL);
    ck_assert_int_eq(0, uv_loop_close(&server.loop));
}

/* ---- Clients ----------------------------------------------------------------------------------------------------- */

static int socket_open(void)
{
    const struct timeval patience = {.tv_sec = SANITIZED ? 60 : 15};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(0, setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)));
    return fd;
}

static void connect_to(int fd, uint32_t host)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)server.port)};
    address.sin_addr.s_addr = htonl(host);
    ck_assert_int_eq(0, connect(fd, (struct sockaddr *)&address, sizeof(address)));
}

static int dial_host(uint32_t host)
{
    int fd = socket_open();
    connect_to(fd, host);
    return fd;
}

static int dial(void)
{
    return dial_host(INADDR_LOOPBACK);
}

static void say(int fd, const char *text)
{
    ck_assert_int_eq((int)strlen(text), send(fd, text, strlen(text), MSG_NOSIGNAL));
}

/* Everything until the server closes; the caller frees it. -1 in *size: a reset. */
static char *hear_all(int fd)
{
    size_t capacity = 4 << 20, size = 0;
    char *text = malloc(capacity);
    ssize_t got;
    while ((got = recv(fd, text + size, capacity - 1 - size, 0)) > 0 || (got < 0 && errno == EINTR))
        size += got > 0 ? (size_t)got : 0;
    ck_assert_msg(got == 0, "%s", strerror(errno));
    text[size] = 0;
    close(fd);
    return text;
}

/* One answer, to the end of its body, from a connection that stays. */
static void hear_one(int fd, char *text, size_t capacity)
{
    size_t size = 0, length = 0;
    char *body = NULL;
    while (body == NULL || (size_t)(text + size - body) < length) {
        ssize_t got = recv(fd, text + size, 1, 0);
        ck_assert_int_eq(1, got);
        size++;
        ck_assert_uint_lt(size, capacity);
        text[size] = 0;
        if (body == NULL && (body = strstr(text, "\r\n\r\n")) != NULL) {
            body += 4;
            length = strtoul(strstr(text, "Content-Length: ") + 16, NULL, 10);
        }
    }
}

static void assert_status(const char *answer, int status)
{
    char line[32];
    snprintf(line, sizeof(line), "HTTP/1.1 %d ", status);
    ck_assert_msg(strncmp(answer, line, strlen(line)) == 0, "%d: %.200s", status, answer);
}

/* The answer to this text, which has that status. The caller frees it. */
static char *ask(const char *text, int status)
{
    int fd = dial();
    say(fd, text);
    char *answer = hear_all(fd);
    assert_status(answer, status);
    return answer;
}

#define CLOSE "Host: a\r\nConnection: close\r\n\r\n"
#define KEEP  "Host: a\r\n\r\n"

/* ---- Answers ----------------------------------------------------------------------------------------------------- */

TEST_FIXTURE(answers, setup, stop);

TEST(metrics_and_health_are_answered)
{
    start();
    char *text = ask("GET /metrics HTTP/1.1\r\n" CLOSE, 200);
    ck_assert_ptr_nonnull(strstr(text, "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
    ck_assert_ptr_nonnull(strstr(text, "Content-Length: 100\r\n"));
    ck_assert_uint_eq(100, strspn(strstr(text, "\r\n\r\n") + 4, "m"));
    free(text);
    text = ask("GET /health HTTP/1.0\r\n\r\n", 200);
    ck_assert_ptr_nonnull(strstr(text, "Content-Type: application/json\r\n"));
    ck_assert_str_eq("{\"good\":true}", strstr(text, "\r\n\r\n") + 4);
    free(text);
}

TEST(health_decides_its_own_status)
{
    server.health = 503;
    start();
    free(ask("GET /live HTTP/1.1\r\n" CLOSE, 200));
    char *text = ask("GET /health HTTP/1.1\r\n" CLOSE, 503);
    ck_assert_str_eq("{\"good\":true}", strstr(text, "\r\n\r\n") + 4);
    free(text);
}

TEST(without_a_text_the_answer_is_500)
{
    server.broken = true;
    start();
    free(ask("GET /metrics HTTP/1.1\r\n" CLOSE, 500));
}

TEST(head_gets_the_head_alone)
{
    start();
    char *text = ask("HEAD /metrics HTTP/1.1\r\n" CLOSE, 200);
    ck_assert_ptr_nonnull(strstr(text, "Content-Length: 100\r\n"));
    ck_assert_str_eq("", strstr(text, "\r\n\r\n") + 4);
    free(text);
}

static const struct refusal_case {
    const char *text;
    int status;
} refusals[] = {
    {"GET / HTTP/1.1\r\n" CLOSE, 404},
    {"GET /metrics/ HTTP/1.1\r\n" CLOSE, 404},
    {"GET /%6detrics HTTP/1.1\r\n" CLOSE, 404},
    {"POST /nothing HTTP/1.1\r\n" CLOSE, 404},
    {"DELETE /metrics HTTP/1.1\r\n" CLOSE, 405},
    {"POST /health HTTP/1.1\r\nContent-Length: 0\r\n" CLOSE, 405},
    {"POST /live HTTP/1.1\r\nContent-Length: 0\r\n" CLOSE, 405},
    {"GET /live/ HTTP/1.1\r\n" CLOSE, 404},
    {"GET /metrics\r\n\r\n", 400},
    {"\x16\x03\x01\x02\n", 400}, /* as TLS begins, nearly */
    {"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabcde", 413},
    {"GET /metrics HTTP/2.0\r\n" KEEP, 505},
};

TEST_LOOP(everything_else_is_refused_and_the_connection_closed, COUNT(refusals))
{
    start();
    char *text = ask(refusals[_i].text, refusals[_i].status);
    ck_assert_ptr_nonnull(strstr(text, "Connection: close\r\n"));
    ck_assert_int_eq(refusals[_i].status == 405, strstr(text, "Allow: GET, HEAD\r\n") != NULL);
    ck_assert_int_eq(0, server.calls);
    free(text);
}

TEST(a_long_answer_arrives_whole)
{
    server.metrics_size = 3 << 20;
    start();
    char *text = ask("GET /metrics HTTP/1.1\r\n" CLOSE, 200);
    ck_assert_uint_eq(3 << 20, strspn(strstr(text, "\r\n\r\n") + 4, "m"));
    free(text);
}

/* ---- Connections that stay --------------------------------------------------------------------------------------- */

TEST(a_connection_serves_many_requests)
{
    char text[1024];
    start();
    int fd = dial();
    for (int i = 0; i < 50; i++) {
        say(fd, i % 2 == 0 ? "GET /metrics HTTP/1.1\r\n" KEEP : "GET /nothing HTTP/1.1\r\n" KEEP);
        hear_one(fd, text, sizeof(text));
        assert_status(text, i % 2 == 0 ? 200 : 404);
        ck_assert_ptr_nonnull(strstr(text, "Connection: keep-alive\r\n"));
    }
    close(fd);
}

TEST(pipelined_requests_are_answered_in_order)
{
    char text[1024];
    start();
    int fd = dial();
    for (int i = 0; i < 40; i++)
        say(fd, "GET /metrics HTTP/1.1\r\n" KEEP "GET /health HTTP/1.1\r\n" KEEP "GET /x HTTP/1.1\r\n" KEEP);
    say(fd, "GET /metrics HTTP/1.1\r\n" CLOSE "GET /metrics HTTP/1.1\r\n" KEEP);
    for (int i = 0; i < 121; i++) {
        hear_one(fd, text, sizeof(text));
        assert_status(text, i % 3 == 2 ? 404 : 200);
        ck_assert_int_eq(i % 3 == 1, strstr(text, "good") != NULL);
    }
    char *rest = hear_all(fd); /* nothing behind the one that closes */
    ck_assert_str_eq("", rest);
    free(rest);
}

TEST(a_request_may_come_byte_by_byte)
{
    start();
    int fd = dial();
    for (const char *at = "GET /health HTTP/1.1\r\n" CLOSE; *at != 0; at++) {
        ck_assert_int_eq(1, send(fd, at, 1, 0));
        usleep(1000);
    }
    char *text = hear_all(fd);
    assert_status(text, 200);
    free(text);
}

/* ---- Bad company ------------------------------------------------------------------------------------------------- */

TEST(a_head_without_end_is_refused)
{
    static char huge[1 << 20];
    start();
    int fd = dial();
    memset(huge, 'a', sizeof(huge));
    memcpy(huge, "GET /", 5);
    send(fd, huge, sizeof(huge), MSG_NOSIGNAL | MSG_DONTWAIT);
    shutdown(fd, SHUT_WR);
    char *text = hear_all(fd);
    assert_status(text, 431);
    free(text);
}

TEST(three_hundred_half_open_connections_keep_nobody_out)
{
    static int fds[300];
    start();
    for (int i = 0; i < COUNT(fds); i++) {
        fds[i] = dial();
        if (i % 2 == 0)
            send(fds[i], "GET /metrics HT", 15, MSG_NOSIGNAL);
    }
    double begin = clock_s(), late = machine_late_s();
    for (int i = 0; i < 10; i++) {
        free(ask("GET /metrics HTTP/1.1\r\n" CLOSE, 200));
    }
    ck_assert_double_lt(clock_s() - begin, 4 + machine_late_s() - late); /* they have not just timed out */
    for (int i = 0; i < COUNT(fds); i++)
        close(fds[i]);
}

TEST(who_asks_and_never_listens_keeps_nobody_out)
{
    static int fds[60];
    server.metrics_size = 8 << 20; /* more than a socket takes */
    start();
    for (int i = 0; i < COUNT(fds); i++) {
        fds[i] = dial();
        say(fds[i], "GET /metrics HTTP/1.1\r\n" KEEP);
    }
    free(ask("GET /health HTTP/1.1\r\n" CLOSE, 200));
    for (int i = 0; i < COUNT(fds); i++)
        close(fds[i]);
}

TEST(without_descriptors_the_server_rests_and_then_answers_who_has_waited)
{
    char text[1024];
    start();
    int fd = dial();
    say(fd, "GET /metrics HTTP/1.1\r\n" KEEP); /* the one that it has accepted is served all along */
    hear_one(fd, text, sizeof(text));
    int silent = socket_open(), waiting = socket_open();
    descriptors_forbid();
    connect_to(silent, INADDR_LOOPBACK); /* it has the descriptor that the server keeps for such a time */
    connect_to(waiting, INADDR_LOOPBACK);
    say(waiting, "GET /health HTTP/1.1\r\n" CLOSE);
    double cpu = process_cpu_s();
    usleep(350000);
    cpu = process_cpu_s() - cpu;
    say(fd, "GET /metrics HTTP/1.1\r\n" KEEP);
    hear_one(fd, text, sizeof(text));
    assert_status(text, 200);
    descriptors_allow();
    ck_assert_double_lt(cpu, 0.1);
    ck_assert_uint_ge(__atomic_load_n(&server.rests, __ATOMIC_RELAXED), 1);
    ck_assert_uint_le(__atomic_load_n(&server.rests, __ATOMIC_RELAXED), 20);
    char *answer = hear_all(waiting);
    assert_status(answer, 200);
    free(answer);
    close(silent);
    close(fd);
}

TEST_FIXTURE(closing, setup, NULL);

TEST(closing_ends_every_connection)
{
    int fds[20];
    char byte;
    start();
    for (int i = 0; i < COUNT(fds); i++) {
        fds[i] = dial();
        say(fds[i], i % 2 == 0 ? "GET" : "GET /health HTTP/1.1\r\n" KEEP);
    }
    usleep(100000);
    stop();
    for (int i = 0; i < COUNT(fds); i++) {
        while (recv(fds[i], &byte, 1, 0) > 0)
            ;
        close(fds[i]);
    }
}

TEST_FIXTURE(company, setup, stop);

TEST(an_address_that_cannot_be_had_is_an_error)
{
    static const struct http_handlers handlers = {give_metrics, give_health, 0};
    char taken[64];
    struct http *http = NULL;
    unsigned port = 7;
    snprintf(taken, sizeof(taken), "127.0.0.1:%u", server.port);
    const struct {
        const char *addresses, *why;
        enum strait_status status;
    } bad[] = {
        {taken, "Address already in use", STRAIT_ERR_IO},
        {"", "\"\" is not host:port", STRAIT_ERR_INVALID},
        {"localhost", "\"localhost\" is not host:port", STRAIT_ERR_INVALID},
        {"192.0.2.1:1", "192.0.2.1:1: Cannot assign requested address", STRAIT_ERR_IO},
        {"127.0.0.1:0,192.0.2.1:1", "192.0.2.1:1: Cannot assign requested address", STRAIT_ERR_IO},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ck_assert_int_eq(bad[i].status, http_open(&server.loop, bad[i].addresses, &handlers, NULL, NULL, &server.rests,
                                                  &http, &port, server.why, sizeof(server.why)));
        ck_assert_ptr_nonnull(strstr(server.why, bad[i].why));
    }
    ck_assert(http == NULL && port == 7);
    http_close(NULL);
    start();
}

TEST(every_address_of_a_list_is_served)
{
    const struct http_handlers handlers = {give_metrics, give_health, 0};
    struct http *http = NULL;
    ck_assert_int_eq(STRAIT_OK, http_open(&server.loop, "127.0.0.2:0,127.0.0.3:0", &handlers, &server, NULL,
                                          &server.rests, &http, &server.port, server.why, sizeof(server.why)));
    http_close(server.http);
    server.http = http;
    start();
    for (uint32_t host = INADDR_LOOPBACK + 1; host <= INADDR_LOOPBACK + 2; host++) {
        int fd = dial_host(host);
        say(fd, "GET /health HTTP/1.0\r\n\r\n");
        char *answer = hear_all(fd);
        assert_status(answer, 200);
        free(answer);
    }
}

/* ---- Without descriptors ----------------------------------------------------------------------------------------- */

enum { SCARCE = 4 };

static int scarce[SCARCE]; /* made before there were none */

static void forbid_descriptors(void)
{
    for (int i = 0; i < SCARCE; i++)
        scarce[i] = socket_open();
    start();
    descriptors_forbid();
}

/* No descriptor may become free before. */
static void allow_descriptors(void)
{
    descriptors_allow();
    for (int i = 0; i < SCARCE; i++)
        close(scarce[i]);
}

/* One answer, and then the end: the descriptor is for the next one. */
static void scarce_is_answered(int fd)
{
    char text[1024];
    ssize_t got;
    size_t size = 0;
    while ((got = recv(fd, text + size, sizeof(text) - 1 - size, 0)) > 0)
        size += (size_t)got;
    ck_assert_int_eq(0, got);
    text[size] = 0;
    assert_status(text, 200);
    ck_assert_ptr_nonnull(strstr(text, "Connection: close\r\n"));
}

TEST_LOOP(requests_are_answered_one_after_the_other_when_no_descriptor_is_left, 2)
{
    forbid_descriptors();
    for (int i = 0; i < SCARCE && _i == 0; i++) { /* all at once */
        connect_to(scarce[i], INADDR_LOOPBACK);
        say(scarce[i], "GET /metrics HTTP/1.1\r\n" KEEP);
    }
    for (int i = 0; i < SCARCE; i++) {
        if (_i == 1) {
            connect_to(scarce[i], INADDR_LOOPBACK);
            say(scarce[i], "GET /health HTTP/1.1\r\n" KEEP);
        }
        scarce_is_answered(scarce[i]);
        shutdown(scarce[i], SHUT_RDWR);
    }
    allow_descriptors();
    free(ask("GET /metrics HTTP/1.1\r\n" CLOSE, 200));
    int fd = dial();
    char text[1024];
    say(fd, "GET /metrics HTTP/1.1\r\n" KEEP);
    hear_one(fd, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "Connection: keep-alive\r\n")); /* there are descriptors again */
    close(fd);
}

TEST(who_asks_nothing_keeps_the_last_descriptor_for_a_second)
{
    forbid_descriptors();
    connect_to(scarce[0], INADDR_LOOPBACK);
    connect_to(scarce[1], INADDR_LOOPBACK);
    say(scarce[1], "GET /metrics HTTP/1.1\r\n" KEEP);
    const double begin = clock_s(), late = machine_late_s();
    scarce_is_answered(scarce[1]);
    ck_assert_double_lt(clock_s() - begin, 2.5 + machine_late_s() - late);
    allow_descriptors();
}

TEST_FIXTURE(impatient, setup_impatient, stop);

TEST(a_slow_request_is_cut_off_after_a_while_but_not_at_once)
{
    start();
    int fd = dial();
    double begin = clock_s(), late = machine_late_s();
    char byte;
    say(fd, "GET /metrics HTTP/1.1\r\n");
    while (clock_s() - begin < 20) { /* no byte extends it */
        struct pollfd polled = {.fd = fd, .events = POLLIN};
        if (poll(&polled, 1, 50) == 1)
            break;
        send(fd, "X", 1, MSG_NOSIGNAL);
    }
    ck_assert_int_le(recv(fd, &byte, 1, MSG_DONTWAIT), 0);
    ck_assert_double_gt(clock_s() - begin, 0.9);
    ck_assert_double_lt(clock_s() - begin, 2.5 + machine_late_s() - late);
    close(fd);
}

int main(void)
{
    (void)machine_watch();
    return run_tests("http", setup, stop);
}
