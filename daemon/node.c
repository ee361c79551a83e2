#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utlist.h>

#include "daemon/base/auth.h"
#include "daemon/base/inherited.h"
#include "daemon/base/lock.h"
#include "daemon/clients.h"
#include "daemon/handover.h"
#include "daemon/memory/limits.h"
#include "daemon/node.h"
#include "daemon/gpu_path.h"
#include "daemon/request.h"
#include "kernels/chunk.h"
#include "kernels/device_modes.h"

#define SMALL_BYTES (256u * 1024) /* pieces up to this size are coded on the loop: about 30 us */

/* ---- Clients ----------------------------------------------------------------------------------------------------- */

static void on_client(void *owner, int fd, const struct sockaddr_storage *address)
{
    (void)address;
    client_accept(owner, fd);
}

static enum strait_status listen_for_clients(struct node *node, char *why, size_t why_size)
{
    if (node->options.socket[0] == '\0')
        return STRAIT_OK;
    pid_t holder;
    enum strait_status status = STRAIT_OK;
    node->lock_fd = inherited_take_lock();
    if (node->lock_fd >= 0 && !lock_adopt(node->options.socket, node->lock_fd)) {
        close(node->lock_fd);
        node->lock_fd = -1;
    }
    if (node->lock_fd < 0)
        status = lock_acquire(node->options.socket, &node->lock_fd, &holder, why, why_size);
    int fd = status == STRAIT_OK ? inherited_take_unix(node->options.socket) : -1;
    node->keep_socket = fd >= 0 && inherited_has_manager();
    if (status == STRAIT_OK && fd < 0)
        status = listen_unix(node->options.socket, 0660, &fd, why, why_size);
    const struct acceptor_config config = {.loop = node->loop,
                                           .log = node->log,
                                           .name = "clients",
                                           .rests = &node->metrics.accept_rests[LISTENER_CLIENTS],
                                           .count = &node->watches,
                                           .accepted = on_client,
                                           .owner = node};
    if (status != STRAIT_OK)
        return status;
    status = acceptor_open(fd, &config, &node->acceptor);
    if (status != STRAIT_OK)
        close(fd);
    return status;
}

/* ---- Parts of a node --------------------------------------------------------------------------------------------- */

static char *http_metrics(void *owner, size_t *size)
{
    return node_metrics(owner, size);
}

static char *http_health(void *owner, size_t *size, int *http_status)
{
    struct node *node = owner;
    *http_status = node->draining ? 503 : 200;
    char *text = NULL;
    int length = asprintf(&text, "{\"status\":\"%s\"}\n", node->draining ? "draining" : "ok");
    if (length < 0)
        return NULL;
    *size = (size_t)length;
    return text;
}

static const struct http_handlers http_handlers = {.metrics = http_metrics, .health = http_health};

bool node_arenas_fit(const struct node_options *options, char *why, size_t why_size)
{
    struct memory_limit limit;
    char what[400];
    memory_limit_read("", &limit);
    if (memory_fits(options->arena_bytes + options->send_bytes, &limit, what, sizeof(what)))
        return true;
    snprintf(why, why_size, "arenas (arena-bytes and half as much): %s", what);
    return false;
}

static enum strait_status make_memory(struct node *node, char *why, size_t why_size)
{
    const struct node_options *o = &node->options;
    if (!node_arenas_fit(o, why, why_size))
        return STRAIT_ERR_NO_MEMORY;
    uint32_t slot = (uint32_t)((o->chunk_bytes + 4095) / 4096 * 4096);
    uint64_t receive = o->arena_bytes / slot, send = o->send_bytes / slot;
    enum strait_status status =
        receive_init(&node->receive, slot, receive != 0 ? (uint32_t)receive : 1, o->chunk_target);
    if (status == STRAIT_OK)
        status = arena_init(&node->send, false, slot, send != 0 ? (uint32_t)send : 1);
    if (status != STRAIT_OK)
        snprintf(why, why_size, "arenas (arena-bytes and half as much): %s", strait_status_string(status));
    return status;
}

static void node_gpu_failed(void *owner);

static uint64_t node_busy_poll_ns(const struct node *node);

static enum strait_status make_jobs(struct node *node)
{
    const struct arena *receive = receive_host(&node->receive);
    gpu_wires_init(node);
    const struct devices_config config = {.codebook = node_codebook(node),
                                          .slot_bytes = receive->slot_bytes,
                                          .gpu_chunk_bytes = gpu_slot_bytes(node->options.gpu_chunk_bytes),
                                          .arena_bytes = node->wires.count != 0 ? gpu_path_arena_bytes(node) : 0,
                                          .multiprocessors = node->options.gpu_multiprocessors,
                                          .busy_poll_ns = node_busy_poll_ns(node),
                                          .failed = node_gpu_failed,
                                          .owner = node};
    enum strait_status status = devices_create(node->loop, &config, &node->devices);
    if (status == STRAIT_OK)
        status = jobs_create(node->loop, node->codebooks, SMALL_BYTES, &node->jobs);
    if (status != STRAIT_OK)
        return status;
    devices_add_arena(node->devices, receive->base, receive->size);
    devices_add_arena(node->devices, node->send.base, node->send.size);
    jobs_use_devices(node->jobs, node->devices);
    return STRAIT_OK;
}

static enum strait_status make_peers(struct node *node, char *why, size_t why_size)
{
    const struct arena *receive = receive_host(&node->receive);
    const struct strait_codebook *codebook = node_codebook(node);
    struct transport_arena arena = {
        .base = receive->base, .size = receive->size, .fd = receive->fd, .memory = TRANSPORT_HOST};
    struct peers_config config = {.loop = node->loop,
                                  .options = &node->options,
                                  .log = node->log,
                                  .metrics = &node->metrics,
                                  .arena = &arena,
                                  .slot_bytes = receive->slot_bytes,
                                  .slot_count = receive->slot_count,
                                  .send_base = node->send.base,
                                  .send_size = node->send.size,
                                  .incarnation = node->incarnation,
                                  .node = node->id,
                                  .version = strait_version(),
                                  .codebook_id = codebook != NULL ? strait_codebook_id(codebook) : NULL,
                                  .codebooks = true,
                                  .reshapes = true,
                                  .block_modes = CHUNK_BLOCK_MODES | (DEVICE_BLOCK_MODES & BLOCKS_TOLD_BY_GPUS)
                                                                         << BLOCKS_BY_GPUS,
                                  .events = &node->peers_events,
                                  .owner = node};
    enum strait_status status = peers_open(&config, &node->peers, why, why_size);
    if (status == STRAIT_OK && !peers_can_travel(node->peers, why, why_size)) /* ready, but useless */
        status = STRAIT_ERR_UNSUPPORTED;
    return status;
}

static enum strait_status make_http(struct node *node, char *why, size_t why_size)
{
    if (node->options.metrics[0] == '\0')
        return STRAIT_OK;
    unsigned port;
    char what[256];
    enum strait_status status =
        http_open(node->loop, node->options.metrics, &http_handlers, node, node->log,
                  &node->metrics.accept_rests[LISTENER_METRICS], &node->http, &port, what, sizeof(what));
    if (status != STRAIT_OK)
        snprintf(why, why_size, "metrics: %s", what);
    else
        log_write(node->log, LOG_INFO, "msg=\"metrics served\" port=%u", port);
    if (status == STRAIT_OK && what[0] != 0)
        log_write(node->log, LOG_WARN, "msg=\"address left out of metrics\" error=\"%s\"", what);
    return status;
}

static enum strait_status make_codebook(struct node *node, char *why, size_t why_size)
{
    struct strait_codebook *codebook;
    char what[512];
    enum strait_status status = codebook_load(node->options.codebook, &codebook, what, sizeof(what));
    if (status != STRAIT_OK) {
        snprintf(why, why_size, "codebook: %s", what);
        return status;
    }
    status = codebooks_create(codebook, NULL, &node->codebooks);
    if (status != STRAIT_OK)
        strait_codebook_destroy(codebook);
    return status;
}

static enum strait_status make_tenants(struct node *node, char *why, size_t why_size)
{
    struct option_error error = {"out of memory"};
    if (node->options.tenants_file[0] == '\0')
        return STRAIT_OK;
    enum strait_status status = tenants_file(&node->tenants, node->options.tenants_file, &error);
    if (status != STRAIT_OK)
        snprintf(why, why_size, "tenants-file: %s", error.text);
    return status;
}

/* Makes tenants, codebook, arenas, jobs and devices, peers, metrics by HTTP, and the socket for clients, one after the
 * other; if one fails, `why` says so, and those before it are there. */
static enum strait_status make_parts(struct node *node, char *why, size_t why_size)
{
    enum strait_status status = make_tenants(node, why, why_size);
    if (status == STRAIT_OK)
        status = make_codebook(node, why, why_size);
    if (status == STRAIT_OK)
        status = make_memory(node, why, why_size);
    if (status == STRAIT_OK)
        status = make_jobs(node);
    if (status == STRAIT_OK)
        status = make_peers(node, why, why_size);
    if (status == STRAIT_OK)
        status = make_http(node, why, why_size);
    if (status == STRAIT_OK)
        status = listen_for_clients(node, why, why_size);
    return status;
}

/* ---- Failed GPUs ------------------------------------------------------------------------------------------------- */

/* A GPU that fails takes all others of the process with it (device.h). Requests that wait for them fail at once, not
 * when the next chunk is tried. What the driver still holds of theirs is drained as usual, when the driver returns. */

#define LAST_MS 1000u /* time for live transfers before the node stops because of it: a quick restart is worth more */

static void stop_soon(struct node *node)
{
    const uint64_t last = uv_now(node->loop) + LAST_MS;
    if (node->draining)
        return; /* it ends already */
    node->gpu_failed(node->owner);
    node_stop(node, true);
    if (node->drain_until > last)
        node->drain_until = last;
}

/* A GPU has failed: all requests on failed GPUs get their verdict, and the node may stop (option gpu-failure). */
static void node_gpu_failed(void *owner)
{
    struct node *node = owner;
    const uint64_t before = node->gpus_failed;
    struct device_state state;
    char why[2 * sizeof(state.why)];
    for (int32_t number = 0; number < DEVICES_MAX; number++) {
        if ((node->gpus_failed >> number & 1) != 0 || !devices_state(node->devices, number, &state) || !state.failed)
            continue;
        node->gpus_failed |= UINT64_C(1) << number;
        log_quote(why, sizeof(why), state.why, strlen(state.why));
        log_write(node->log, LOG_ERROR, "msg=\"GPU failed\" device=%d why=%s", number, why);
    }
    if (node->gpus_failed == before)
        return;
    exchange_fail_on_failed_gpus(node);
    if (node->gpu_failed != NULL && strcmp(node->options.gpu_failure, "exit") == 0)
        stop_soon(node);
}

#define TICK_MS 10u /* resolution of deadlines */

/* ---- Turns of the loop ------------------------------------------------------------------------------------------- */

/* With few processors a loop that polls lets others run, as what it waits for may be their work. */
static void on_again(uv_idle_t *idle)
{
    struct node *node = idle->data;
    uv_idle_stop(idle);
    if (!node->yields)
        return;
    const uint64_t before = uv_hrtime();
    sched_yield();
    const uint64_t took = uv_hrtime() - before;
    node->yielded += took;
    busy_poll_yielded(&node->busy_poll, took);
}

/* How long the loop polls without sleeping after a step of a transfer between GPUs, in nanoseconds. 0 with few
 * processors: a polling loop would take time from the threads that work. */
static uint64_t node_busy_poll_ns(const struct node *node)
{
    return node->processors >= BUSY_POLL_PROCESSORS ? (uint64_t)node->options.busy_poll_us * 1000 : 0;
}

/* Keeps the loop from sleeping for a while after a step of a transfer between GPUs: the next will follow soon, and
 * waking up takes longer than a chunk between two GPUs. */
static bool is_busy_polling(struct node *node)
{
    const uint64_t busy_poll = node_busy_poll_ns(node);
    if (node->exchange.gpu_stepped && busy_poll != 0)
        node->busy_poll_until = uv_hrtime() + busy_poll;
    node->exchange.gpu_stepped = false;
    return node->busy_poll_until != 0 && uv_hrtime() < node->busy_poll_until;
}

/* The same for any transfer, for the time of a small one and within a budget (busy_poll.h). */
static bool is_polling_for_step(struct node *node)
{
    const struct exchange *x = &node->exchange;
    const bool stepped = x->stepped, live = x->sinks != NULL || x->sources != NULL || x->expectations != NULL;
    node->exchange.stepped = false;
    if (node->processors < 2 || node->options.busy_poll_us == 0)
        return false;
    const bool polls = busy_poll_turn(&node->busy_poll, uv_hrtime(), stepped, live);
    node->yields = polls && !stepped && node->processors < BUSY_POLL_PROCESSORS;
    node->metrics.busy_polls_paid = node->busy_poll.paid;
    node->metrics.busy_polls_lost = node->busy_poll.lost;
    return polls;
}

static void node_wake(struct node *node);
static void hand_over(struct node *node);

static bool is_ticking(const struct node *node)
{
    return !exchange_idle(node) || node->exchange.notes.waiting > 0 || node->exchange.withdrawals != NULL ||
           node->sampler.sampling != NULL || node->half_open > 0 || node->draining;
}

#define SMALL_JOBS_NS 100000u /* of one turn that is given to what small jobs bring about */

/* What small jobs bring about belongs to this turn, before anything is written: a small chunk is encoded and on its way
 * when its SEGMENTS are. */
static void turn_requests(struct node *node)
{
    const uint64_t began = uv_hrtime();
    exchange_turn(node);
    while (node->jobs != NULL && jobs_report(node->jobs)) {
        exchange_turn(node);
        if (uv_hrtime() - began >= SMALL_JOBS_NS)
            break;
    }
}

static void on_prepare(uv_prepare_t *prepare)
{
    struct node *node = prepare->data;
    if (node->backlog)
        clients_backlogs(node);
    turn_requests(node);
    node_answer_stats(node);
    clients_flush(node);
    notes_turn(node);
    requests_told(node);
    clients_reap(node);
    if (node->client_gone && !node->draining)
        node_stop(node, false);
    if (node->successor != 0 && !node->handed_over && !node->stopping)
        hand_over(node);
    const bool polls = is_polling_for_step(node);
    if (node->backlog || node->stats_wanted || node->sessions_ended || is_busy_polling(node) || polls)
        uv_idle_start(&node->again, on_again);
    if (node->peers != NULL && uv_is_active((const uv_handle_t *)&node->again))
        peers_stay_awake(node->peers);
    if (is_ticking(node))
        node_wake(node);
    /* A turn is the time from one end of a turn to the next, less the time that the loop slept. */
    uint64_t now = uv_hrtime(), idle = uv_metrics_idle_time(node->loop);
    uint64_t slept = idle - node->idle_before + node->yielded;
    if (node->turn_began != 0 && now - node->turn_began > slept)
        histogram_record(&node->metrics.stalls, (now - node->turn_began - slept) / 1000);
    node->turn_began = now;
    node->idle_before = idle;
    node->yielded = 0;
}

#define LAZY_NS 200000u /* how long a loop that does not sleep keeps states that are no verdicts */

/* The very end of a turn: peers and transports have written. */
static void on_late(uv_prepare_t *late)
{
    struct node *node = late->data;
    const uint64_t now = uv_hrtime();
    if (uv_is_active((uv_handle_t *)&node->again) && now - node->lazy_flushed < LAZY_NS)
        return;
    node->lazy_flushed = now;
    clients_flush_lazy(node);
    if (node->sessions_ended || node->exchange.notes.answering)
        uv_idle_start(&node->again, on_again);
    if (uv_is_active((uv_handle_t *)&node->again))
        return;
    const bool tasks = node->devices != NULL && devices_sleep(node->devices);
    if (clients_sleep(node) || tasks)
        uv_idle_start(&node->again, on_again);
}

/* After the loop has slept, or polled. */
static void on_check(uv_check_t *check)
{
    struct node *node = check->data;
    clients_look(node);
    if (node->devices != NULL)
        devices_look(node->devices);
}

static void close_all(struct node *node);
static void close_handles(struct node *node);

static void check_drain(struct node *node)
{
    if (!node->draining || node->stopping)
        return;
    if (node->handed_over)
        clients_end_idle(node);
    if (exchange_idle(node) || uv_now(node->loop) >= node->drain_until)
        close_all(node);
}

static void on_tick(uv_timer_t *timer)
{
    struct node *node = timer->data;
    if (!node->stopping)
        exchange_tick(node);
    sampling_tick(node);
    clients_tick(node);
    check_drain(node);
    close_handles(node);
    if (!is_ticking(node))
        uv_timer_stop(timer);
}

/* Starts the tick: a request is live that has deadlines, or a client has not sent its hello. */
static void node_wake(struct node *node)
{
    if (!uv_is_active((uv_handle_t *)&node->tick) && !uv_is_closing((uv_handle_t *)&node->tick))
        uv_timer_start(&node->tick, on_tick, TICK_MS, TICK_MS);
}

/* ---- Beginning --------------------------------------------------------------------------------------------------- */

/* Size of libuv's thread pool: set by main from the option, before the first job. */
static unsigned worker_count(void)
{
    const char *count = getenv("UV_THREADPOOL_SIZE");
    unsigned long workers = count != NULL ? strtoul(count, NULL, 10) : 4;
    unsigned long cores = (unsigned long)sysconf(_SC_NPROCESSORS_ONLN);
    return (unsigned)(workers < cores ? workers : cores);
}

static void on_watches_idle(void *owner);
static void on_peers_closed(void *owner);

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
    options_complete(&made->options);
    tenants_default(&made->tenants);
    peer_figures_init(&made->peer_figures);
    made->log = log;
    made->stopped = stopped;
    made->owner = owner;
    made->workers = worker_count();
    made->processors = uv_available_parallelism();
    made->lock_fd = -1;
    made->watches = (struct watch_count){.idle = on_watches_idle, .owner = made};
    exchange_init(made);
    made->peers_events = exchange_peers_events;
    made->peers_events.closed = on_peers_closed;
    do
        auth_random(&made->incarnation, sizeof(made->incarnation));
    while (made->incarnation == 0);
    auth_random(&made->id, sizeof(made->id));
    snprintf(why, why_size, "%s", "out of memory");
    uv_prepare_init(made->loop, &made->late);
    made->late.data = made;
    uv_prepare_start(&made->late, on_late); /* last, because it was started first */
    uv_unref((uv_handle_t *)&made->late);
    enum strait_status status = make_parts(made, why, why_size);
    made->started = status == STRAIT_OK;
    /* Runs first among the loop's prepare handles, because it was started last: the others flush what it posts. */
    (void)uv_loop_configure(made->loop, UV_METRICS_IDLE_TIME); /* or sleep would count as stalls */
    uv_timer_init(made->loop, &made->tick);
    uv_prepare_init(made->loop, &made->prepare);
    uv_idle_init(made->loop, &made->again);
    uv_check_init(made->loop, &made->check);
    peer_codebooks_init(made);
    made->tick.data = made->prepare.data = made->again.data = made->check.data = made;
    uv_prepare_start(&made->prepare, on_prepare);
    uv_unref((uv_handle_t *)&made->prepare);
    uv_check_start(&made->check, on_check);
    uv_unref((uv_handle_t *)&made->check);
    *node = made;
    if (status == STRAIT_OK && client_fd >= 0) {
        client_accept(made, client_fd);
        if (made->sessions != NULL)
            made->sessions->embedded = true;
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
    uv_handle_t *handles[] = {(uv_handle_t *)&node->tick,  (uv_handle_t *)&node->prepare,
                              (uv_handle_t *)&node->late,  (uv_handle_t *)&node->again,
                              (uv_handle_t *)&node->check, (uv_handle_t *)&node->fetches.timer};
    node->handles = sizeof(handles) / sizeof(handles[0]);
    for (uint32_t i = 0; i < node->handles; i++)
        uv_close(handles[i], on_handle_closed);
}

static void on_watches_idle(void *owner)
{
    close_handles(owner);
}

static void on_peers_closed(void *owner)
{
    struct node *node = owner;
    node->peers_closed = true;
    node->peers = NULL;
    close_handles(node);
}

static void close_all(struct node *node)
{
    if (node->stopping)
        return;
    node->stopping = true;
    node->keep_socket |= handover_pending(node); /* the other process listens there */
    exchange_fail_all(node, STRAIT_REASON_LOCAL);
    clients_flush(node); /* sends the verdicts */
    struct session *session, *next;
    DL_FOREACH_SAFE (node->sessions, session, next)
        client_end(session, "daemon stops");
    /* No client is accepted any more, and the socket's name goes. */
    if (node->acceptor != NULL && !node->keep_socket)
        unlink(node->options.socket);
    acceptor_close(node->acceptor);
    node->acceptor = NULL;
    if (node->lock_fd >= 0)
        close(node->lock_fd);
    node->lock_fd = -1;
    http_close(node->http);
    node->http = NULL;
    if (node->peers != NULL)
        peers_close(node->peers);
    else
        on_peers_closed(node);
}

void node_stop(struct node *node, bool drain)
{
    node->draining = true;
    node->drain_until = uv_now(node->loop) + (drain ? node->options.drain_ms : 0);
    if (node->started)
        log_write(node->log, LOG_INFO, "msg=stopping drain=%d", drain);
    sampling_end(node, "the daemon is stopping");
    exchange_drain(node);
    node_wake(node);
}

/* Another process accepts already: this node stops with a drain, and clients and peers are told to connect again. */
static void hand_over(struct node *node)
{
    static const char why[] = "another daemon takes over";
    log_write(node->log, LOG_INFO, "msg=\"handed over\" pid=%u", node->successor);
    node->handed_over = true;
    acceptor_close(node->acceptor);
    node->acceptor = NULL;
    close(node->lock_fd); /* not the lock: the other process has the same open file */
    node->lock_fd = -1;
    http_close(node->http);
    node->http = NULL;
    handover_confirm(node);
    clients_go_away(node);
    peers_go_away(node->peers);
    if (!node->draining)
        node_stop(node, true);
    exchange_fail_waiting(node, why);
}

void node_destroy(struct node *node)
{
    if (node == NULL)
        return;
    exchange_fini(node);
    sampling_fini(node);
    gpu_links_fini(node);
    receive_fini(&node->receive);
    arena_fini(&node->send);
    peer_codebooks_fini(node);
    codebooks_release(node->codebooks);
    peer_figures_fini(&node->peer_figures);
    free(node);
}
