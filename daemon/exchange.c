#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "daemon/exchange.h"
#include "daemon/node.h"
#include "daemon/gpu_path.h"
#include "daemon/session.h"
#include "daemon/sink.h"
#include "daemon/source.h"

/* Messages of peers about legs. */

static struct sink *find_sink(struct node *node, struct peer *peer, uint64_t leg, const struct epoch *epoch)
{
    struct sink *sink;
    HASH_FIND(hh, node->exchange.sinks, &leg, sizeof(leg), sink);
    if (sink == NULL || sink->peer != peer || sink->expectation->epoch.incarnation != epoch->incarnation ||
        sink->expectation->epoch.counter != epoch->counter)
        return NULL;
    return sink;
}

struct source *exchange_find_source(struct node *node, struct peer *peer, uint64_t leg, const struct epoch *epoch)
{
    struct source_key key;
    memset(&key, 0, sizeof(key));
    key.peer = peer;
    key.id = leg;
    struct source *source;
    HASH_FIND(hh, node->exchange.sources, &key, sizeof(key), source);
    if (source == NULL || source->epoch.incarnation != epoch->incarnation || source->epoch.counter != epoch->counter)
        return NULL;
    return source;
}

static bool on_end(struct node *node, struct peer *peer, const struct message_end *end)
{
    enum strait_reason reason = (enum strait_reason)end->reason;
    if (end->state == STRAIT_FAILED && reason == STRAIT_REASON_NONE)
        return false;
    if (end->from_sink) {
        struct source *source = exchange_find_source(node, peer, end->leg, &end->epoch);
        if (source != NULL)
            source_event(source, SOURCE_END, end->state == STRAIT_DONE ? STRAIT_REASON_NONE : leg_peer_reason(reason));
        struct parked *parked = parked_find_leg(node, peer, end->leg);
        if (parked != NULL)
            parked_remove(node, parked);
        return true;
    }
    struct sink *sink = find_sink(node, peer, end->leg, &end->epoch);
    if (sink != NULL)
        sink_event(sink, SINK_END, leg_peer_reason(reason));
    return end->state == STRAIT_FAILED; /* only the sink can say DONE */
}

static bool on_segments(struct node *node, struct peer *peer, const struct message_segments *message)
{
    struct sink *sink = find_sink(node, peer, message->leg, &message->epoch);
    if (sink == NULL) { /* the leg is over and forgotten: the source must not wait for its lease */
        exchange_send_end(peer, message->leg, &message->epoch, true, STRAIT_REASON_PEER_ABORT);
        return true;
    }
    enum strait_reason reason = sink_segments(sink, message);
    if (reason != STRAIT_REASON_NONE)
        sink_event(sink, SINK_FAIL, reason);
    return true;
}

void exchange_send_released(struct peer *peer, const struct message_grant_id *id)
{
    struct message message = {.type = MESSAGE_RELEASED, .grant_id = *id};
    (void)peer_send(peer, &message);
}

static bool on_grant(struct node *node, struct peer *peer, const struct message_grant *grant)
{
    struct source *source = exchange_find_source(node, peer, grant->leg, &grant->epoch);
    if (!gpu_path_has_slot(peer, grant->slot))
        return false;
    if (source == NULL) {
        struct message_grant_id id = {.leg = grant->leg, .epoch = grant->epoch, .grant = grant->grant};
        exchange_send_released(peer, &id);
        return true;
    }
    struct leg_event event = {
        .type = SOURCE_GRANT, .grant = grant->grant, .first = grant->first, .count = grant->count, .slot = grant->slot};
    (void)source_apply(source, &event);
    return true;
}

static bool on_grant_id(struct node *node, struct peer *peer, const struct message_grant_id *id, bool revoke)
{
    if (revoke) {
        struct source *source = exchange_find_source(node, peer, id->leg, &id->epoch);
        struct leg_event event = {.type = SOURCE_REVOKE, .grant = id->grant};
        if (source != NULL)
            (void)source_apply(source, &event);
        else
            exchange_send_released(peer, id);
        return true;
    }
    struct sink *sink = find_sink(node, peer, id->leg, &id->epoch);
    struct leg_event event = {.type = SINK_RELEASED, .grant = id->grant};
    if (sink != NULL)
        (void)sink_apply(sink, &event);
    return true;
}

static bool on_note(struct node *node, const struct message_note *note)
{
    struct pool_ref *pool;
    HASH_FIND(hh, node->exchange.pools, &note->pool, sizeof(note->pool), pool);
    if (pool != NULL) {
        struct message message = {.type = MESSAGE_NOTE, .note = *note};
        session_send_note(pool->session, &message);
    }
    return true;
}

bool exchange_message(void *owner, struct peer *peer, const struct message *message)
{
    struct node *node = owner;
    switch (message->type) {
    case MESSAGE_REQUEST:
        return exchange_request(node, peer, &message->request);
    case MESSAGE_ANNOUNCE:
        return exchange_announce(node, peer, &message->announce);
    case MESSAGE_SEGMENTS:
        return on_segments(node, peer, &message->segments);
    case MESSAGE_GRANT:
        return on_grant(node, peer, &message->grant);
    case MESSAGE_REVOKE:
    case MESSAGE_RELEASED:
        return on_grant_id(node, peer, &message->grant_id, message->type == MESSAGE_REVOKE);
    case MESSAGE_END:
        return on_end(node, peer, &message->end);
    case MESSAGE_ARENA:
        return gpu_path_arena(node, peer, &message->arena);
    case MESSAGE_REACH:
        return gpu_path_open_mapping(peer, &message->reach);
    case MESSAGE_PEER_NOTE:
        return on_note(node, &message->note);
    default:
        return false;
    }
}

/* Callbacks from the peers: connections come up, go down, and bring chunks. */

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
    gpu_path_up(node, peer);
    exchange_redial(node);
}

/* The link may be closed once nothing of ours writes to the peer's arena any more. */
static void close_link_when_idle(struct peer *peer)
{
    struct peer_use *use = peer->owner;
    if (use == NULL ||
        (use->down && use->writers == 0 && gpu_path_release(use->node, peer) && pin_release(use->node, peer)))
        peer_quit_link(peer);
}

void peer_writer_begin(struct peer *peer)
{
    ((struct peer_use *)peer->owner)->writers++;
}

void peer_writer_end(struct peer *peer)
{
    ((struct peer_use *)peer->owner)->writers--;
    close_link_when_idle(peer);
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
            sink_detach_peer(sink);
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
    close_link_when_idle(peer);
}

static void on_quiet(void *owner, struct peer *peer)
{
    struct node *node = owner;
    struct sink *sink, *next_sink;
    HASH_ITER (hh, node->exchange.sinks, sink, next_sink) {
        if (sink->peer != peer)
            continue;
        sink_event(sink, SINK_QUIET, STRAIT_REASON_NONE);
        sink_detach_peer(sink);
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
        gpu_path_forget(peer->owner);
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
    gpu_path_gpu_link(owner, peer, ends);
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

/* The exchange as a whole: its timers, and the end of a turn of the loop. */

void name_set(struct name *name, const struct pool_id *pool, struct view key)
{
    memset(name, 0, sizeof(*name)); /* because names are hashed and compared as bytes */
    name->pool = *pool;
    name->size = (uint8_t)key.size;
    memcpy(name->key, key.data, key.size);
}

/* ---- Time -------------------------------------------------------------------------------------------------------- */

#define REDIAL_MS 50u /* how often a leg that waits for a peer asks; it also asks whenever one comes up */

/* Legs that wait for a peer ask whether it is up. */
void exchange_redial(struct node *node)
{
    struct sink *sink, *next;
    HASH_ITER (hh, node->exchange.sinks, sink, next)
        if (!sink->asked && !sink->expectation->request.decided)
            sink_ask(sink);
    struct offer *offer, *next_offer;
    struct announce *announce;
    DL_FOREACH_SAFE (node->exchange.offers, offer, next_offer)
        LL_FOREACH (offer->announces, announce)
            if (!announce->bound && announce->told == NULL)
                offer_announce(offer, announce);
    exchange_send_notes(node);
}

static bool has_live_leg(const struct offer *offer)
{
    const struct source *source;
    LL_FOREACH (offer->sources, source)
        if (source->leg.state != STRAIT_FAILED && source->leg.state != STRAIT_DONE)
            return true;
    return false;
}

static void check_deadlines(struct node *node, uint64_t now)
{
    struct expectation *e, *next_e;
    DL_FOREACH_SAFE (node->exchange.expectations, e, next_e)
        if (!e->request.decided && now >= e->deadline)
            expectation_fail(e, STRAIT_REASON_TIMEOUT, "");
    struct offer *o, *next_o;
    DL_FOREACH_SAFE (node->exchange.offers, o, next_o) {
        if (o->request.decided)
            continue;
        if (has_live_leg(o)) /* the heartbeats of the sink's daemon renew the lease */
            o->expires = now + o->lease_ms;
        else if (now >= o->expires)
            offer_fail(o, STRAIT_REASON_LEASE_EXPIRED, "");
    }
    struct parked *parked, *next_p;
    DL_FOREACH_SAFE (node->exchange.parked, parked, next_p)
        if (now >= parked->expires)
            parked_remove(node, parked);
}

void exchange_tick(struct node *node)
{
    struct exchange *x = &node->exchange;
    uint64_t now = uv_now(node->loop);
    check_deadlines(node, now);
    sink_reclaim(node);
    if (now - x->redialled_at < REDIAL_MS)
        return;
    x->redialled_at = now;
    exchange_redial(node);
}

bool exchange_idle(const struct node *node)
{
    const struct exchange *x = &node->exchange;
    return x->offers == NULL && x->expectations == NULL && x->parked == NULL && x->notes == NULL;
}

static void drop_notes(struct node *node)
{
    struct exchange *x = &node->exchange;
    struct note *note, *next;
    LL_FOREACH_SAFE (x->notes, note, next)
        free(note);
    x->notes = NULL;
    x->note_count = 0;
}

void exchange_fini(struct node *node)
{
    struct exchange *x = &node->exchange;
    struct tombstone *stone, *next_stone;
    HASH_ITER (hh, x->tombstones, stone, next_stone)
        tombstone_free(node, stone);
    struct parked *parked, *next_parked;
    DL_FOREACH_SAFE (x->parked, parked, next_parked)
        parked_remove(node, parked);
    drop_notes(node);
}

void exchange_fail_all(struct node *node, enum strait_reason reason)
{
    struct expectation *e, *next_e;
    drop_notes(node); /* notes that wait for a peer would keep the node from ending */
    DL_FOREACH_SAFE (node->exchange.expectations, e, next_e)
        expectation_fail(e, reason, "the daemon is stopping");
    struct offer *o, *next_o;
    DL_FOREACH_SAFE (node->exchange.offers, o, next_o)
        offer_fail(o, reason, "the daemon is stopping");
}

/* ---- The end of a turn ------------------------------------------------------------------------------------------- */

static void free_request(struct request *request)
{
    if (request->session != NULL)
        session_forget(request->session, request);
    page_set_fini(&request->pages);
}

static void free_expectation(struct expectation *e)
{
    DL_DELETE(e->request.node->exchange.expectations, e);
    free_request(&e->request);
    free(e->wanted);
    free(e->aux);
    free(e);
}

static void free_offer(struct offer *o)
{
    DL_DELETE(o->request.node->exchange.offers, o);
    free_request(&o->request);
    struct announce *a, *next;
    LL_FOREACH_SAFE (o->announces, a, next)
        free(a);
    free(o->ready);
    free(o->later_spans);
    free(o->later_ready);
    free(o->aux);
    free(o);
}

/* Frees a request if nothing refers to it any more. Otherwise it is listed again when another part of it ends. */
static void free_if_over(struct request *request)
{
    request->over = false;
    if (!request->decided || !request->drained)
        return;
    if (!request->is_offer && ((struct expectation *)request)->sinks == NULL)
        free_expectation((struct expectation *)request);
    else if (request->is_offer && ((struct offer *)request)->sources == NULL)
        free_offer((struct offer *)request);
}

static void reap(struct exchange *x)
{
    while (x->closed_sources != NULL || x->closed_sinks != NULL || x->over != NULL) {
        struct source *source = x->closed_sources;
        struct sink *sink = x->closed_sinks;
        struct request *request = x->over;
        if (source != NULL) {
            LL_DELETE2(x->closed_sources, source, closed_next);
            source_free(source);
        } else if (sink != NULL) {
            LL_DELETE2(x->closed_sinks, sink, closed_next);
            sink_free(sink);
        } else {
            LL_DELETE2(x->over, request, over_next);
            free_if_over(request);
        }
    }
}

void exchange_turn(struct node *node)
{
    struct exchange *x = &node->exchange;
    bool moved;
    do { /* the two halves of a local leg may wait for each other's messages */
        moved = local_turn(node);
        sink_grants(node);
        moved |= local_turn(node);
        source_encodes(node);
    } while (moved || x->local_first != NULL);
    reap(x);
}
