/* Pins the receive arena of a peer, as mapped here by its transport, so that our GPUs' encoders can store straight into
 * it. It is pinned when the first chunk from a GPU is to go there, and unpinned before the link closes. */
#include <stdio.h>
#include <stdlib.h>

#include "daemon/node.h"

/* While one is under way, the peer's link is kept. */
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
        use->pin = PIN_FAILED;
        log_write(p->node->log, LOG_WARN, "msg=\"peer's arena not reachable for GPUs\" peer=%s error=\"%s\" why=\"%s\"",
                  p->peer->address, strait_status_string(p->status), p->why);
    }
    exchange_writer_done(p->peer);
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
    exchange_writer_begun(peer);
}

enum pin_state pin_peer(struct node *node, struct peer *peer)
{
    struct peer_use *use = peer->owner;
    if (use->pin == PIN_NONE && !use->down)
        begin(node, peer);
    return use->pin;
}

/* ---- Letting go -------------------------------------------------------------------------------------------------- */

static void unpin_work(void *arg)
{
    struct pinning *p = arg;
    devices_unpin(p->node->devices, p->base);
}

static void unpin_done(void *arg)
{
    struct pinning *p = arg;
    exchange_writer_done(p->peer);
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
        exchange_writer_begun(peer);
        if (job_call(node->jobs, unpin_work, unpin_done, p) == STRAIT_OK)
            return false;
        ((struct peer_use *)peer->owner)->writers--;
        free(p);
    }
    unpin_work(&here); /* slow, but nothing stays pinned */
    return true;
}
