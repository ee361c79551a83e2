/* A node's life: creation on a loop, turns, stop. */
#include "daemon/node.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <utlist.h>

#include "daemon/equipment/auth.h"
#include "daemon/node_parts.h"
#include "daemon/session.h"

#define TICK_MS              10u /* resolution of deadlines */
#define ATTENTIVE_PROCESSORS 4u

/* ---- Turns of the loop ------------------------------------------------------------------------------------------- */

static void on_again(uv_idle_t *idle)
{
    uv_idle_stop(idle);
}

uint64_t node_attention(const struct node *node)
{
    return node->processors >= ATTENTIVE_PROCESSORS ? (uint64_t)node->options.gpu_attention_ms * 1000000 : 0;
}

void node_attend(struct node *node)
{
    uint64_t attention = node_attention(node);
    if (attention != 0)
        node->attentive_until = uv_hrtime() + attention;
}

static bool is_attentive(const struct node *node)
{
    return node->attentive_until != 0 && uv_hrtime() < node->attentive_until;
}

/* A turn is the time from one end of a turn to the next, less the time that the loop slept. */
static void record_turn(struct node *node)
{
    uint64_t now = uv_hrtime(), idle = uv_metrics_idle_time(node->loop);
    uint64_t slept = idle - node->idle_before;
    if (node->turn_began != 0 && now - node->turn_began > slept)
        histogram_record(&node->metrics.stalls, (now - node->turn_began - slept) / 1000);
    node->turn_began = now;
    node->idle_before = idle;
}

static void on_prepare(uv_prepare_t *prepare)
{
    struct node *node = prepare->data;
    if (node->backlog)
        session_backlogs(node);
    exchange_turn(node);
    session_flush(node);
    session_reap(node);
    if (node->client_gone && !node->draining)
        node_stop(node, false);
    if (node->backlog || node->sessions_ended || is_attentive(node))
        uv_idle_start(&node->again, on_again);
    if (!exchange_idle(node) || node->draining)
        node_wake(node);
    record_turn(node);
}

static void close_all(struct node *node);
static void close_handles(struct node *node);

static void check_drain(struct node *node)
{
    if (!node->draining || node->stopping)
        return;
    if (exchange_idle(node) || uv_now(node->loop) >= node->drain_until)
        close_all(node);
}

static void on_tick(uv_timer_t *timer)
{
    struct node *node = timer->data;
    if (!node->stopping)
        exchange_tick(node);
    check_drain(node);
    close_handles(node);
    if (exchange_idle(node) && !node->draining)
        uv_timer_stop(timer);
}

void node_wake(struct node *node)
{
    if (!uv_is_active((uv_handle_t *)&node->tick) && !uv_is_closing((uv_handle_t *)&node->tick))
        uv_timer_start(&node->tick, on_tick, TICK_MS, TICK_MS);
}

/* ---- Beginning --------------------------------------------------------------------------------------------------- */

/* Runs first among the loop's prepare handles, because it was started last: the others flush what it posts. */
static void start_turning(struct node *node)
{
    (void)uv_loop_configure(node->loop,
                            UV_METRICS_IDLE_TIME); /* without it, sleep would count as stalls: see record_turn */
    uv_timer_init(node->loop, &node->tick);
    uv_prepare_init(node->loop, &node->prepare);
    uv_idle_init(node->loop, &node->again);
    node->tick.data = node->prepare.data = node->again.data = node;
    uv_prepare_start(&node->prepare, on_prepare);
    uv_unref((uv_handle_t *)&node->prepare);
}

/* Size of libuv's thread pool: set by main from the option, before the first job. */
static unsigned worker_count(void)
{
    const char *count = getenv("UV_THREADPOOL_SIZE");
    unsigned long workers = count != NULL ? strtoul(count, NULL, 10) : 4;
    unsigned long cores = (unsigned long)sysconf(_SC_NPROCESSORS_ONLN);
    return (unsigned)(workers < cores ? workers : cores);
}

static void on_watches_idle(void *owner);

enum strait_status node_create(uv_loop_t *loop, const struct node_options *options, struct log *log, int client_fd,
                               void (*stopped)(void *owner), void *owner, struct node **node, char *why,
                               size_t why_size)
{
    *node = NULL;
    struct node *made = calloc(1, sizeof(*made));
    if (made == NULL) {
        if (client_fd >= 0)
            close(client_fd);
        return STRAIT_ERR_NO_MEMORY;
    }
    made->loop = loop;
    made->began = uv_hrtime();
    made->options = *options;
    made->log = log;
    made->stopped = stopped;
    made->owner = owner;
    made->workers = worker_count();
    made->processors = uv_available_parallelism();
    made->listen_fd = made->lock_fd = -1;
    made->watches = (struct watch_count){.idle = on_watches_idle, .owner = made};
    do
        auth_random(&made->incarnation, sizeof(made->incarnation));
    while (made->incarnation == 0);
    auth_random(&made->id, sizeof(made->id));
    snprintf(why, why_size, "%s", "out of memory");
    enum strait_status status = parts_make(made, why, why_size);
    made->started = status == STRAIT_OK;
    start_turning(made);
    *node = made;
    if (status == STRAIT_OK && client_fd >= 0) {
        session_accept(made, client_fd);
        if (made->sessions != NULL)
            made->sessions->inside = true;
    } else if (client_fd >= 0) {
        close(client_fd);
    }
    return status;
}

/* ---- Stopping ---------------------------------------------------------------------------------------------------- */

static void on_handle_closed(uv_handle_t *handle)
{
    struct node *node = handle->data;
    if (--node->handles == 0)
        node->stopped(node->owner);
}

/* Called last: sessions are gone, peers are closed, no job runs. */
static void close_handles(struct node *node)
{
    if (!node->stopping || node->handles_closing || node->session_count != 0 || !node->peers_closed ||
        node->watches.count != 0 || node->exchange.pools != NULL || !exchange_idle(node) ||
        (node->jobs != NULL && jobs_running(node->jobs) != 0)) /* the last pools are being unmapped */
        return;
    node->handles_closing = true;
    if (node->jobs != NULL)
        jobs_destroy(node->jobs);
    node->jobs = NULL;
    devices_destroy(node->devices);
    node->devices = NULL;
    uv_handle_t *handles[] = {(uv_handle_t *)&node->tick, (uv_handle_t *)&node->prepare, (uv_handle_t *)&node->again};
    node->handles = sizeof(handles) / sizeof(handles[0]);
    for (uint32_t i = 0; i < node->handles; i++)
        uv_close(handles[i], on_handle_closed);
}

static void on_watches_idle(void *owner)
{
    close_handles(owner);
}

void node_peers_closed(struct node *node)
{
    node->peers_closed = true;
    node->peers = NULL;
    close_handles(node);
}

static void close_all(struct node *node)
{
    if (node->stopping)
        return;
    node->stopping = true;
    exchange_fail_all(node, STRAIT_REASON_LOCAL);
    session_flush(node); /* sends the verdicts */
    struct session *session, *next;
    DL_FOREACH_SAFE (node->sessions, session, next)
        session_end(session, "daemon stops");
    parts_stop_listening(node);
    http_close(node->http);
    node->http = NULL;
    if (node->peers != NULL)
        peers_close(node->peers);
    else
        node_peers_closed(node);
}

void node_stop(struct node *node, bool drain)
{
    node->draining = true;
    node->drain_until = uv_now(node->loop) + (drain ? node->options.drain_ms : 0);
    if (node->started)
        log_write(node->log, LOG_INFO, "msg=stopping drain=%d", drain);
    node_wake(node);
}

void node_destroy(struct node *node)
{
    if (node == NULL)
        return;
    exchange_fini(node);
    parts_free(node);
    free(node);
}
