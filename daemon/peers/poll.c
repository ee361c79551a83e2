#include "daemon/peers/poll.h"

#include <stdlib.h>
#include <uv.h>

/* Turns of the loop in a part of a second. */
struct window {
    uint64_t began, idle; /* uv_hrtime; the time that the loop had slept by then */
    uint32_t turns, ours; /* turns; those of them for which the transport kept the loop awake or woke it */
    bool worked;          /* the transport has called back */
};

#define WINDOW_NS    250000000u
#define SPIN_WINDOWS 8u /* in a row, until a transport counts as spinning */

struct port {
    uv_poll_t wake;
    uv_prepare_t prepare; /* runs last before the loop blocks, when everything of this turn is posted */
    uv_idle_t spin;       /* active: the loop does not block */
    int handles;
    bool failed, closing;
    bool woken; /* since the last turn */
    struct window window;
    uint32_t spun; /* windows in a row in which the transport was awake for nothing */
    struct transport *transport;
    struct port_events events;
    void *owner;
};

/* Progress here rather than only before the loop blocks: what has arrived is taken with what came over sockets. */
static void port_on_wake(uv_poll_t *poll, int status, int events)
{
    struct port *port = poll->data;
    (void)status, (void)events;
    port->woken = true;
    if (!port->closing)
        (void)transport_progress(port->transport);
}

static void port_on_spin(uv_idle_t *idle)
{
    (void)idle;
}

/* OK: armed, the loop may block. AGAIN: the port's time in this turn is used up. */
static enum strait_status port_progress(struct port *port)
{
    enum strait_status status = STRAIT_ERR_AGAIN;
    if (port->transport->ops->by_readiness && (status = transport_arm(port->transport)) != STRAIT_ERR_AGAIN)
        return status;
    uint64_t end = uv_hrtime() + PORT_TURN_NS;
    do {
        if (!transport_progress(port->transport) && !port->closing)
            status = transport_arm(port->transport);
    } while (status == STRAIT_ERR_AGAIN && !port->closing && uv_hrtime() < end);
    return status;
}

/* ---- Transports that spin ---------------------------------------------------------------------------------------- */

/* The loop slept for less than a fifth of the window, nearly every turn was because of this transport, and nothing came
 * of it. A window that lasts much longer than it should is a loop that slept. */
static bool was_spinning(const struct window *window, uint64_t length, uint64_t slept)
{
    return !window->worked && window->ours >= window->turns - window->turns / 10 && slept < length / 5 &&
           length < 4 * (uint64_t)WINDOW_NS;
}

static void count_turn(struct port *port)
{
    struct window *window = &port->window;
    const uint64_t now = uv_hrtime();
    const bool spun = port->spun >= SPIN_WINDOWS;
    window->turns++;
    window->ours += port->woken || uv_is_active((const uv_handle_t *)&port->spin);
    port->woken = false;
    if (now - window->began < WINDOW_NS)
        return;
    const uint64_t idle = uv_metrics_idle_time(port->prepare.loop);
    port->spun = was_spinning(window, now - window->began, idle - window->idle) ? port->spun + 1 : 0;
    *window = (struct window){.began = now, .idle = idle};
    if (spun != (port->spun >= SPIN_WINDOWS) && port->events.spinning != NULL)
        port->events.spinning(port->owner, !spun);
}

void port_worked(struct port *port)
{
    port->window.worked = true;
}

/* A loop that sleeps counts no turns. */
bool port_is_spinning(const struct port *port)
{
    return port->spun >= SPIN_WINDOWS && uv_hrtime() - port->window.began < 4 * (uint64_t)WINDOW_NS;
}

/* ---- Turns of the loop ------------------------------------------------------------------------------------------- */

static void port_on_prepare(uv_prepare_t *prepare)
{
    struct port *port = prepare->data;
    count_turn(port);
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
    (void)uv_loop_configure(loop, UV_METRICS_IDLE_TIME);
    made->window = (struct window){.began = uv_hrtime(), .idle = uv_metrics_idle_time(loop)};
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

void port_set_owner(struct port *port, void *owner)
{
    port->owner = owner;
}

void port_close(struct port *port)
{
    port->closing = true;
    uv_close((uv_handle_t *)&port->wake, port_on_closed);
    uv_close((uv_handle_t *)&port->prepare, port_on_closed);
    uv_close((uv_handle_t *)&port->spin, port_on_closed);
}
