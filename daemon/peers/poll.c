#include "daemon/peers/poll.h"

#include <stdlib.h>
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

static void watch_on_closed(uv_handle_t *handle)
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
        uv_close((uv_handle_t *)&watch->poll, watch_on_closed);
}

/* ---- Transports -------------------------------------------------------------------------------------------------- */

struct port {
    uv_poll_t wake;       /* only wakes the loop */
    uv_prepare_t prepare; /* runs last before the loop blocks, when everything of this turn is posted */
    uv_idle_t spin;       /* active: the loop does not block */
    int handles;
    bool failed, closing;
    struct transport *transport;
    struct port_events events;
    void *owner;
};

static void port_on_wake(uv_poll_t *poll, int status, int events)
{
    (void)poll, (void)status, (void)events;
}

static void port_on_spin(uv_idle_t *idle)
{
    (void)idle;
}

/* OK: armed, the loop may block. AGAIN: the port's time in this turn is used up. */
static enum strait_status port_progress(struct port *port)
{
    uint64_t end = uv_hrtime() + PORT_TURN_NS;
    enum strait_status status = STRAIT_ERR_AGAIN;
    do {
        if (!transport_progress(port->transport) && !port->closing)
            status = transport_arm(port->transport);
    } while (status == STRAIT_ERR_AGAIN && !port->closing && uv_hrtime() < end);
    return status;
}

static void port_on_prepare(uv_prepare_t *prepare)
{
    struct port *port = prepare->data;
    enum strait_status status = port_progress(port);
    if (port->closing)
        return;
    if (status == STRAIT_ERR_AGAIN) {
        uv_idle_start(&port->spin, port_on_spin);
        return;
    }
    uv_idle_stop(&port->spin);
    if (status == STRAIT_OK || port->failed)
        return;
    port->failed = true;
    uv_poll_stop(&port->wake); /* it may stay readable for ever: progress now depends on other wake-ups of the loop */
    port->events.failed(port->owner);
}

static void port_on_closed(uv_handle_t *handle)
{
    struct port *port = handle->data;
    if (--port->handles > 0)
        return;
    void (*closed)(void *owner) = port->events.closed;
    void *owner = port->owner;
    free(port);
    closed(owner);
}

enum strait_status port_create(struct uv_loop_s *loop, struct transport *transport, const struct port_events *events,
                               void *owner, struct port **port)
{
    struct port *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return STRAIT_ERR_NO_MEMORY;
    if (uv_poll_init(loop, &made->wake, transport_fd(transport)) != 0) {
        free(made);
        return STRAIT_ERR_IO;
    }
    uv_prepare_init(loop, &made->prepare); /* this and the next cannot fail */
    uv_idle_init(loop, &made->spin);
    made->handles = 3;
    made->wake.data = made->prepare.data = made->spin.data = made;
    made->transport = transport;
    made->events = *events;
    made->owner = owner;
    uv_poll_start(&made->wake, UV_READABLE, port_on_wake);
    uv_prepare_start(&made->prepare, port_on_prepare);
    *port = made;
    return STRAIT_OK;
}

void port_close(struct port *port)
{
    port->closing = true;
    uv_close((uv_handle_t *)&port->wake, port_on_closed);
    uv_close((uv_handle_t *)&port->prepare, port_on_closed);
    uv_close((uv_handle_t *)&port->spin, port_on_closed);
}
