#include "daemon/base/watch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

/* ---- Descriptors ------------------------------------------------------------------------------------------------- */

struct watch {
    uv_poll_t poll;
    watch_ready *ready;
    void *owner;
    struct watch_count *count;
    uint32_t events;
};

static void watch_on_poll(uv_poll_t *poll, int status, int events)
{
    struct watch *watch = poll->data;
    if (status < 0) {
        watch->events = 0; /* libuv has stopped polling */
        watch->ready(watch->owner, WATCH_READ | WATCH_WRITE);
        return;
    }
    watch->ready(watch->owner, (events & UV_READABLE ? WATCH_READ : 0) | (events & UV_WRITABLE ? WATCH_WRITE : 0));
}

enum strait_status watch_open(struct uv_loop_s *loop, int fd, watch_ready *ready, void *owner,
                              struct watch_count *count, struct watch **watch)
{
    struct watch *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return STRAIT_ERR_NO_MEMORY;
    if (uv_poll_init(loop, &made->poll, fd) != 0) {
        free(made);
        return STRAIT_ERR_IO;
    }
    made->poll.data = made;
    made->ready = ready;
    made->owner = owner;
    made->count = count;
    count->count++;
    *watch = made;
    return STRAIT_OK;
}

void watch_for(struct watch *watch, uint32_t events)
{
    if (watch->events == events)
        return;
    watch->events = events;
    uv_poll_start(&watch->poll, (events & WATCH_READ ? UV_READABLE : 0) | (events & WATCH_WRITE ? UV_WRITABLE : 0),
                  watch_on_poll);
}

static void watch_count_down(struct watch_count *count)
{
    if (--count->count == 0 && count->idle != NULL)
        count->idle(count->owner);
}

static void watch_on_closed(uv_handle_t *handle)
{
    struct watch *watch = handle->data;
    struct watch_count *count = watch->count;
    free(watch);
    watch_count_down(count);
}

void watch_close(struct watch *watch)
{
    if (watch != NULL)
        uv_close((uv_handle_t *)&watch->poll, watch_on_closed);
}

/* ---- Listening sockets ------------------------------------------------------------------------------------------- */

#define ACCEPTS_PER_TURN 64u
#define REST_MS          100u /* accepting at once would fail again, and the loop would spin */

struct acceptor {
    struct acceptor_config config;
    int fd;
    int reserve; /* -1: none, or given up */
    struct watch *watch;
    uv_timer_t rest;
};

static bool is_exhausted(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

static void on_rested(uv_timer_t *rest)
{
    struct acceptor *acceptor = rest->data;
    watch_for(acceptor->watch, WATCH_READ);
}

static void acceptor_rest(struct acceptor *acceptor, int error)
{
    const struct acceptor_config *config = &acceptor->config;
    ++*config->rests;
    log_limited(config->log, LOG_OF_ACCEPT, LOG_WARN, "msg=\"cannot accept\" listener=%s error=\"%s\" retry_ms=%u",
                config->name, strerror(error), REST_MS);
    watch_for(acceptor->watch, 0);
    uv_timer_start(&acceptor->rest, on_rested, REST_MS, 0);
}

bool acceptor_reserve(struct acceptor *acceptor)
{
    if (acceptor->config.reserves && acceptor->reserve < 0)
        acceptor->reserve = eventfd(0, EFD_CLOEXEC);
    return acceptor->reserve >= 0;
}

static void give_up_reserve(struct acceptor *acceptor)
{
    if (acceptor->reserve >= 0)
        close(acceptor->reserve);
    acceptor->reserve = -1;
}

/* Returns the connection, or -1 and errno. */
static int accept_one(struct acceptor *acceptor, struct sockaddr_storage *address)
{
    socklen_t size = sizeof(*address);
    const int fd = accept4(acceptor->fd, (struct sockaddr *)address, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0 || (errno != EMFILE && errno != ENFILE) || acceptor->reserve < 0)
        return fd;
    give_up_reserve(acceptor);
    size = sizeof(*address);
    const int last = accept4(acceptor->fd, (struct sockaddr *)address, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    const int error = errno;
    if (last < 0)
        (void)acceptor_reserve(acceptor); /* nobody waits: accept4 looks for a descriptor first */
    errno = error;
    return last;
}

/* Errors other than exhaustion concern the one connection that was to be accepted: its peer has gone again, or a filter
 * of the system forbids it. */
static void on_connections(void *owner, uint32_t events)
{
    struct acceptor *acceptor = owner;
    (void)events;
    watch_for(acceptor->watch, WATCH_READ); /* as libuv has stopped polling after an error */
    const bool reserves = acceptor_reserve(acceptor);
    for (uint32_t i = 0; i < ACCEPTS_PER_TURN && acceptor->fd >= 0; i++) {
        struct sockaddr_storage address = {0};
        const int fd = accept_one(acceptor, &address);
        const bool last = reserves && acceptor->reserve < 0;
        if (fd >= 0)
            acceptor->config.accepted(acceptor->config.owner, fd, &address);
        else if (is_exhausted(errno))
            acceptor_rest(acceptor, errno);
        if (last || (fd < 0 && (errno == EAGAIN || is_exhausted(errno))))
            return;
    }
}

static void on_rest_closed(uv_handle_t *handle)
{
    struct acceptor *acceptor = handle->data;
    struct watch_count *count = acceptor->config.count;
    free(acceptor);
    watch_count_down(count);
}

enum strait_status acceptor_open(int fd, const struct acceptor_config *config, struct acceptor **acceptor)
{
    struct acceptor *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return STRAIT_ERR_NO_MEMORY;
    made->config = *config;
    made->fd = fd;
    made->reserve = -1;
    enum strait_status status = watch_open(config->loop, fd, on_connections, made, config->count, &made->watch);
    if (status != STRAIT_OK) {
        free(made);
        return status;
    }
    uv_timer_init(config->loop, &made->rest);
    made->rest.data = made;
    config->count->count++;
    (void)acceptor_reserve(made);
    watch_for(made->watch, WATCH_READ);
    *acceptor = made;
    return STRAIT_OK;
}

int acceptor_fd(const struct acceptor *acceptor)
{
    return acceptor->fd;
}

void acceptor_close(struct acceptor *acceptor)
{
    if (acceptor == NULL)
        return;
    watch_close(acceptor->watch);
    close(acceptor->fd);
    acceptor->fd = -1;
    acceptor->config.reserves = false;
    give_up_reserve(acceptor);
    uv_close((uv_handle_t *)&acceptor->rest, on_rest_closed);
}
