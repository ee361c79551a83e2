#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "daemon/gpu_links.h"
#include "daemon/node.h"
#include "transport/nccl.h"

#if STRAIT_HAVE_UCX
#include "transport/ucx.h"
#endif

/* ---- Allowed wires ----------------------------------------------------------------------------------------------- */

/* Wires that the option lists after the host's memory are never used. */
void gpu_wires_init(struct node *node)
{
    struct gpu_wires *wires = &node->wires;
    const char *at = node->options.gpu_wires;
    wires->count = 0;
    wires->measured = strcmp(at, "auto") == 0;
    if (wires->measured)
        at = "peer,nccl,ucx";
    while (node->options.gpu_arena_bytes != 0 && *at != 0) {
        size_t size = strcspn(at, ",");
        const enum gpu_path wire = strncmp(at, "nccl", size) == 0   ? WIRE_NCCL
                                   : strncmp(at, "ucx", size) == 0  ? WIRE_UCX
                                   : strncmp(at, "peer", size) == 0 ? WIRE_PEER
                                                                    : WIRE_PINNED;
        if (wire == WIRE_PINNED)
            break;
        const char *p2p = getenv("NCCL_P2P_DISABLE");
        if ((wire != WIRE_PEER || p2p == NULL || strcmp(p2p, "1") != 0) && !gpu_wires_has(node, wire))
            wires->list[wires->count++] = wire;
        at += size + (at[size] == ',');
    }
    if (node->options.encrypt_pages && gpu_wires_has_links(node))
        log_write(node->log, LOG_WARN,
                  "msg=\"pages between GPUs of two hosts go through host memory: they are encrypted\" gpu_wires=%s",
                  node->options.gpu_wires);
}

bool gpu_wires_has(const struct node *node, enum gpu_path wire)
{
    for (uint32_t i = 0; i < node->wires.count; i++)
        if (node->wires.list[i] == wire)
            return true;
    return false;
}

bool gpu_wires_has_links(const struct node *node)
{
    return gpu_wires_has(node, WIRE_NCCL) || gpu_wires_has(node, WIRE_UCX);
}

/* ---- GPUs in use ------------------------------------------------------------------------------------------------- */

uint64_t gpu_links_bytes(const struct node *node, uint64_t receive)
{
    return gpu_wires_has_links(node) ? receive : 0;
}

const struct gpu_links *gpu_links_of(const struct node *node, int32_t device)
{
    const struct gpu_links *gpu;
    LL_SEARCH_SCALAR(node->gpu_links, gpu, device, device);
    return gpu;
}

struct arena *gpu_links_send(const struct node *node, int32_t device)
{
    struct gpu_links *gpu;
    LL_SEARCH_SCALAR(node->gpu_links, gpu, device, device);
    for (int by = 0; gpu != NULL && by < LINK_BY_COUNT; by++)
        if (gpu->by[by].ready)
            return &gpu->send;
    return NULL;
}

const char *gpu_links_state(const struct gpu_links *gpu, enum message_link_by by)
{
    if (gpu->by[by].ready)
        return "ready";
    if (gpu->by[by].why[0] != '\0')
        return gpu->by[by].why;
    return by == LINK_BY_UCX && gpu->waits_for_peer ? "made for the first peer" : "being loaded";
}

/* ---- Kinds of links ---------------------------------------------------------------------------------------------- */

static struct transport_arena receive_arena(const struct gpu_links *gpu)
{
    return (struct transport_arena){
        .base = gpu->receive, .size = gpu->receive_size, .fd = -1, .memory = TRANSPORT_CUDA};
}

/* Runs on a worker, because it would hold up the loop: loads libraries and calls the driver. */
static void load_work(void *arg)
{
    const struct gpu_links *gpu = arg;
    if (gpu->by[LINK_BY_NCCL].asked)
        nccl_prepare(gpu->node->options.nccl, gpu->receive);
#if STRAIT_HAVE_UCX
    const struct transport_arena arena = receive_arena(gpu);
    if (gpu->by[LINK_BY_UCX].asked)
        ucx_prepare(&arena);
#endif
}

static void open_one(struct gpu_links *gpu, enum message_link_by by, const struct transport_ops *ops,
                     const char *options)
{
    static const char *const names[] = {[LINK_BY_NCCL] = "NCCL", [LINK_BY_UCX] = "UCX between GPUs"};
    struct node *node = gpu->node;
    const struct transport_arena arena = receive_arena(gpu);
    char *why = gpu->by[by].why;
    if (ops == NULL)
        snprintf(why, sizeof(gpu->by[by].why), "not in this build");
    gpu->by[by].ready = ops != NULL && peers_open_gpu(node->peers, by, (uint32_t)gpu->device, ops, &arena, options, why,
                                                      sizeof(gpu->by[by].why)) == STRAIT_OK;
    if (gpu->by[by].ready)
        log_write(node->log, LOG_INFO, "msg=\"%s ready\" device=%d", names[by], gpu->device);
    else
        log_write(node->log, LOG_WARN, "msg=\"no %s: chunks between GPUs go another way\" device=%d why=\"%s\"",
                  names[by], gpu->device, why);
}

/* The configured port is used by the transport for the host's memory: a GPU's listens on any. */
static void open_ucx(struct gpu_links *gpu)
{
    char options[OPTION_TEXT_MAX + 16];
    snprintf(options, sizeof(options), "%s port=0", gpu->node->options.ucx);
    gpu->waits_for_peer = false;
    open_one(gpu, LINK_BY_UCX, transport_find("ucx"), options);
}

static void note_up(void *arg, struct peer *peer)
{
    *(bool *)arg |= peer->state == PEER_UP;
}

static void load_done(void *arg)
{
    struct gpu_links *gpu = arg;
    struct node *node = gpu->node;
    bool any_up = false;
    if (node->stopping || node->peers == NULL)
        return;
    if (gpu->by[LINK_BY_NCCL].asked)
        open_one(gpu, LINK_BY_NCCL, &transport_nccl, node->options.nccl);
    peers_each(node->peers, note_up, &any_up);
    gpu->waits_for_peer = gpu->by[LINK_BY_UCX].asked;
    if (gpu->waits_for_peer && any_up)
        open_ucx(gpu);
    if (gpu_links_send(node, gpu->device) != NULL)
        gpu->on_ready(node, gpu->device);
}

void gpu_links_peer_up(struct node *node)
{
    struct gpu_links *gpu;
    LL_FOREACH (node->gpu_links, gpu) {
        if (!gpu->waits_for_peer)
            continue;
        open_ucx(gpu);
        if (gpu->by[LINK_BY_UCX].ready)
            gpu->on_ready(node, gpu->device);
    }
}

/* ---- GPUs -------------------------------------------------------------------------------------------------------- */

void gpu_links_open(struct node *node, int32_t device, void *base, uint64_t receive,
                    void (*on_ready)(struct node *node, int32_t device))
{
    struct gpu_links *gpu = gpu_links_of(node, device) == NULL ? calloc(1, sizeof(*gpu)) : NULL;
    const uint32_t slot_bytes = gpu_slot_bytes(node->options.gpu_chunk_bytes);
    if (gpu == NULL)
        return;
    *gpu = (struct gpu_links){
        .node = node, .device = device, .on_ready = on_ready, .receive = base, .receive_size = receive};
    for (int by = 0; by < LINK_BY_COUNT; by++)
        gpu->by[by].asked = gpu_wires_has(node, link_wire((enum message_link_by)by));
    if (arena_init_over(&gpu->send, (uint8_t *)base + receive, slot_bytes, (uint32_t)(receive / slot_bytes)) !=
            STRAIT_OK ||
        job_call(node->jobs, load_work, load_done, gpu) != STRAIT_OK) {
        arena_fini(&gpu->send);
        free(gpu);
        return;
    }
    LL_PREPEND(node->gpu_links, gpu);
}

void gpu_links_fini(struct node *node)
{
    struct gpu_links *gpu, *next;
    LL_FOREACH_SAFE (node->gpu_links, gpu, next) {
        arena_fini(&gpu->send);
        free(gpu);
    }
    node->gpu_links = NULL;
}

/* ---- Pinned memory of peers -------------------------------------------------------------------------------------- */

/* Pins the receive arena of a peer, as mapped here by its transport, so that our GPUs' encoders can store straight into
 * it. It is pinned when the first chunk from a GPU is to go there, and unpinned before the link closes. */

/* A job that pins or unpins: it counts as a writer, so the peer's link is kept. */
struct pinning {
    struct node *node;
    struct peer *peer;
    void *base;
    size_t size;
    enum strait_status status;
    char why[256];
};

static void pin_work(void *arg)
{
    struct pinning *p = arg;
    p->status = devices_pin(p->node->devices, p->base, p->size, &(struct device_why){p->why, sizeof(p->why)});
}

static void pin_done(void *arg)
{
    struct pinning *p = arg;
    struct peer_use *use = p->peer->owner;
    if (p->status == STRAIT_OK) {
        use->pin = PIN_DONE;
        use->pinned = p->base;
    } else {
        char name[2 * MESSAGE_ADDRESS_MAX];
        use->pin = PIN_FAILED;
        log_quote(name, sizeof(name), p->peer->address, strlen(p->peer->address));
        log_limited(p->node->log, LOG_OF_PEERS, LOG_WARN,
                    "msg=\"peer's arena not reachable for GPUs\" peer=%s error=\"%s\" why=\"%s\"", name,
                    strait_status_string(p->status), p->why);
    }
    peer_writer_end(p->peer);
    free(p);
}

static void begin(struct node *node, struct peer *peer)
{
    struct peer_use *use = peer->owner;
    size_t size = (size_t)peer->slot_bytes * peer->slot_count;
    struct pinning *p = calloc(1, sizeof(*p));
    use->pin = PIN_FAILED;
    if (p == NULL)
        return;
    *p = (struct pinning){.node = node, .peer = peer, .base = link_map(peer->link, 0, size), .size = size};
    if (p->base == NULL || job_call(node->jobs, pin_work, pin_done, p) != STRAIT_OK) {
        free(p);
        return;
    }
    use->pin = PIN_BUSY;
    peer_writer_begin(peer);
}

enum pin_state pin_peer(struct node *node, struct peer *peer)
{
    struct peer_use *use = peer->owner;
    if (use->pin == PIN_NONE && !use->down)
        begin(node, peer);
    return use->pin;
}

static void unpin_work(void *arg)
{
    struct pinning *p = arg;
    devices_unpin(p->node->devices, p->base);
}

static void unpin_done(void *arg)
{
    struct pinning *p = arg;
    peer_writer_end(p->peer);
    free(p);
}

bool pin_release(struct node *node, struct peer *peer)
{
    struct peer_use *use = peer->owner;
    if (use->pinned == NULL)
        return true;
    struct pinning here = {.node = node, .peer = peer, .base = use->pinned}, *p = malloc(sizeof(*p));
    use->pinned = NULL;
    use->pin = PIN_FAILED;
    if (p != NULL) {
        *p = here;
        peer_writer_begin(peer);
        if (job_call(node->jobs, unpin_work, unpin_done, p) == STRAIT_OK)
            return false;
        peer->writers--;
        free(p);
    }
    unpin_work(&here); /* slow, but nothing stays pinned */
    return true;
}
