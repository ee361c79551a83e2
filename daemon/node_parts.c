#include "daemon/node_parts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/equipment/lock.h"
#include "daemon/memory/codebook_option.h"
#include "daemon/reach.h"
#include "daemon/session.h"

#define SMALL_BYTES (256u * 1024) /* pieces up to this size are coded on the loop: about 30 us */
#define ACCEPTS     64u           /* clients accepted at a time */

/* ---- Clients ----------------------------------------------------------------------------------------------------- */

static void on_client(void *owner, uint32_t events)
{
    struct node *node = owner;
    (void)events;
    for (uint32_t i = 0; i < ACCEPTS; i++) {
        int fd = accept4(node->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0)
            return;
        session_accept(node, fd);
    }
}

static enum strait_status listen_for_clients(struct node *node, char *why, size_t why_size)
{
    if (node->options.socket[0] == '\0')
        return STRAIT_OK;
    pid_t holder;
    enum strait_status status = lock_acquire(node->options.socket, &node->lock_fd, &holder, why, why_size);
    if (status == STRAIT_OK)
        status = listen_unix(node->options.socket, 0660, &node->listen_fd, why, why_size);
    if (status == STRAIT_OK)
        status = watch_open(node->loop, node->listen_fd, on_client, node, &node->watches, &node->listener);
    if (status == STRAIT_OK)
        watch_for(node->listener, WATCH_READ);
    return status;
}

void parts_stop_listening(struct node *node)
{
    watch_close(node->listener);
    node->listener = NULL;
    if (node->listen_fd >= 0) {
        close(node->listen_fd);
        unlink(node->options.socket);
    }
    if (node->lock_fd >= 0)
        close(node->lock_fd);
    node->listen_fd = node->lock_fd = -1;
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

/* Checks that the arenas fit into memory. They are faulted in when made, and the kernel would kill this process or
 * others rather than refuse. */
static bool arenas_fit(const struct node_options *options, char *why, size_t why_size)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    uint64_t wanted = options->arena_bytes + options->send_bytes, there = (uint64_t)pages * (uint64_t)page;
    if (pages <= 0 || page <= 0 || wanted <= there)
        return true;
    snprintf(why, why_size, "arenas (arena-bytes, send-bytes): %" PRIu64 " MiB, where this machine has %" PRIu64,
             wanted >> 20, there >> 20);
    return false;
}

/* Not an error at start: a user who makes slots small need not know about targets. */
static void tell_target(const struct node *node)
{
    const struct node_options *o = &node->options;
    if (o->chunk_target > o->chunk_bytes)
        log_write(node->log, LOG_INFO,
                  "msg=\"chunk-target is cut to chunk-bytes\" chunk_target=%" PRIu64 " chunk_bytes=%" PRIu64,
                  o->chunk_target, o->chunk_bytes);
}

static enum strait_status make_memory(struct node *node, char *why, size_t why_size)
{
    const struct node_options *o = &node->options;
    if (!arenas_fit(o, why, why_size))
        return STRAIT_ERR_NO_MEMORY;
    tell_target(node);
    uint32_t slot = (uint32_t)((o->chunk_bytes + 4095) / 4096 * 4096);
    uint64_t receive = o->arena_bytes / slot, send = o->send_bytes / slot;
    enum strait_status status =
        receive_init(&node->receive, slot, receive != 0 ? (uint32_t)receive : 1, o->chunk_target);
    if (status == STRAIT_OK)
        status = arena_init(&node->send, false, slot, send != 0 ? (uint32_t)send : 1);
    if (status != STRAIT_OK)
        snprintf(why, why_size, "arenas (arena-bytes, send-bytes): %s", strait_status_string(status));
    return status;
}

static enum strait_status make_jobs(struct node *node)
{
    const struct arena *receive = receive_host(&node->receive);
    const uint64_t arena_bytes =
        node->options.gpu_arena_bytes / node->options.gpu_chunk_bytes * far_slot_bytes(node->options.gpu_chunk_bytes);
    reach_init(node);
    const struct devices_config config = {.codebook = node->codebook,
                                          .slot_bytes = receive->slot_bytes,
                                          .far_bytes = far_slot_bytes(node->options.gpu_chunk_bytes),
                                          .arena_bytes =
                                              reach_is_on(node) ? arena_bytes + gpu_links_bytes(node, arena_bytes) : 0,
                                          .multiprocessors = node->options.gpu_multiprocessors,
                                          .attention_ns = node_attention(node),
                                          .failed = node_gpu_failed,
                                          .owner = node};
    enum strait_status status = devices_create(node->loop, &config, &node->devices);
    if (status == STRAIT_OK)
        status = jobs_create(node->loop, node->codebook, SMALL_BYTES, &node->jobs);
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
                                  .codebook_id = node->codebook != NULL ? strait_codebook_id(node->codebook) : NULL,
                                  .events = &exchange_peers_events,
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
    enum strait_status status = http_open(node->loop, node->options.metrics, &http_handlers, node, &node->http, &port);
    if (status != STRAIT_OK)
        snprintf(why, why_size, "metrics at %s: %s", node->options.metrics,
                 status == STRAIT_ERR_IO ? strerror(errno) : strait_status_string(status));
    else
        log_write(node->log, LOG_INFO, "msg=\"metrics served\" port=%u", port);
    return status;
}

static enum strait_status make_codebook(struct node *node, char *why, size_t why_size)
{
    char what[512];
    enum strait_status status = codebook_load(node->options.codebook, &node->codebook, what, sizeof(what));
    if (status != STRAIT_OK)
        snprintf(why, why_size, "codebook: %s", what);
    return status;
}

enum strait_status parts_make(struct node *node, char *why, size_t why_size)
{
    enum strait_status status = make_codebook(node, why, why_size);
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

void parts_free(struct node *node)
{
    gpu_links_fini(node);
    receive_fini(&node->receive);
    arena_fini(&node->send);
    strait_codebook_destroy(node->codebook);
}
