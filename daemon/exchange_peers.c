/* Callbacks from the peers: connections come up, go down, and bring chunks. */
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/exchange_messages.h"
#include "daemon/node.h"
#include "daemon/reach.h"
#include "daemon/sink.h"
#include "daemon/source.h"

static void on_up(void *owner, struct peer *peer)
{
    struct node *node = owner;
    struct peer_use *use = calloc(1, sizeof(*use));
    if (use == NULL) {
        peer_drop(peer, "out of memory");
        return;
    }
    use->node = node;
    peer->owner = use;
    reach_up(node, peer);
    exchange_redial(node);
}

/* The link may be closed once nothing of ours writes to the peer's arena any more. */
static void quit_when_quiet(struct peer *peer)
{
    struct peer_use *use = peer->owner;
    if (use == NULL ||
        (use->down && use->writers == 0 && reach_release(use->node, peer) && pin_release(use->node, peer)))
        peer_quit_link(peer);
}

void exchange_writer_begun(struct peer *peer)
{
    ((struct peer_use *)peer->owner)->writers++;
}

void exchange_writer_done(struct peer *peer)
{
    ((struct peer_use *)peer->owner)->writers--;
    quit_when_quiet(peer);
}

static void on_down(void *owner, struct peer *peer)
{
    struct node *node = owner;
    struct peer_use *use = peer->owner;
    if (use != NULL)
        use->down = true;
    parked_forget_peer(node, peer);
    struct sink *sink, *next_sink;
    HASH_ITER (hh, node->exchange.sinks, sink, next_sink) {
        if (sink->peer != peer)
            continue;
        if (sink->leg.state != STRAIT_BOOTSTRAP)
            sink_event(sink, SINK_FAIL, STRAIT_REASON_PEER_DOWN);
        else if (!sink_holds_grants(sink)) /* not bound: it may ask again; with an open grant, when the link is quiet */
            sink_part(sink);
    }
    struct source *source, *next_source;
    HASH_ITER (hh, node->exchange.sources, source, next_source)
        if (source->peer == peer)
            source_event(source, SOURCE_FAIL, STRAIT_REASON_PEER_DOWN);
    struct offer *offer;
    struct announce *announce;
    DL_FOREACH (node->exchange.offers, offer)
        LL_FOREACH (offer->announces, announce)
            if (announce->told == peer)
                announce->told = NULL;
    quit_when_quiet(peer);
}

static void on_quiet(void *owner, struct peer *peer)
{
    struct node *node = owner;
    struct sink *sink, *next_sink;
    HASH_ITER (hh, node->exchange.sinks, sink, next_sink) {
        if (sink->peer != peer)
            continue;
        sink_event(sink, SINK_QUIET, STRAIT_REASON_NONE);
        sink_part(sink);
    }
    struct source *source, *next_source;
    HASH_ITER (hh, node->exchange.sources, source, next_source) {
        if (source->peer != peer)
            continue;
        HASH_DELETE(hh, node->exchange.sources, source);
        source->peer = NULL; /* the verdict is set; an encode may still read the offer's pages */
        source->at.peer = NULL;
        HASH_ADD(hh, node->exchange.sources, at, sizeof(source->at), source);
    }
    if (peer->owner != NULL)
        reach_forget(peer->owner);
    free(peer->owner);
    peer->owner = NULL;
}

static struct landing on_arriving(void *owner, struct peer *peer, int32_t device, const void *header,
                                  size_t header_size, size_t size)
{
    return sink_arriving(owner, peer, device, header, header_size, size);
}

static void on_arrived(void *owner, struct peer *peer, uint64_t cookie, enum strait_status status)
{
    (void)peer;
    sink_arrived(owner, cookie, status);
}

static void on_sent(void *owner, struct peer *peer, uint64_t cookie, enum strait_status status)
{
    (void)peer;
    source_sent(owner, cookie, status);
}

static void on_gpu_link(void *owner, struct peer *peer, struct gpu_ends ends)
{
    reach_gpu_link(owner, peer, ends);
}

static void on_closed(void *owner)
{
    node_peers_closed(owner);
}

const struct peers_events exchange_peers_events = {
    .up = on_up,
    .message = exchange_message,
    .down = on_down,
    .quiet = on_quiet,
    .arriving = on_arriving,
    .arrived = on_arrived,
    .sent = on_sent,
    .gpu_link = on_gpu_link,
    .closed = on_closed,
};
