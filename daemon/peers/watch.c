#include "daemon/peers/watch.h"

#include <stdbool.h>
#include <stdlib.h>
#include <uv.h>

struct watch {
    uv_poll_t poll;
    watch_ready *ready;
    void *owner;
    struct watch_count *count;
    uint32_t events;
};

static void on_poll(uv_poll_t *poll, int status, int events)
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
                  on_poll);
}

static void on_closed(uv_handle_t *handle)
{
    struct watch *watch = handle->data;
    struct watch_count *count = watch->count;
    free(watch);
    if (--count->count == 0 && count->idle != NULL)
        count->idle(count->owner);
}

void watch_close(struct watch *watch)
{
    if (watch != NULL)
        uv_close((uv_handle_t *)&watch->poll, on_closed);
}
