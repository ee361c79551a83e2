#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "daemon/match.h"
#include "daemon/descriptions.h"
#include "daemon/node.h"
#include "daemon/gpu_path.h"
#include "daemon/serve.h"
#include "daemon/sink.h"
#include "daemon/source.h"
#include "daemon/withdraw.h"

/* ---- Pairs ------------------------------------------------------------------------------------------------------- */

struct source *match_source(struct node *node, struct peer *peer, uint64_t leg, const struct epoch *epoch)
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

void match_send_released(struct peer *peer, const struct message_grant_id *id)
{
    struct message message = {.type = MESSAGE_RELEASED, .grant_id = *id};
    (void)peer_send(peer, &message);
}

void match_send_end(struct peer *peer, uint64_t leg, const struct epoch *epoch, bool from_sink,
                    enum strait_reason reason)
{
    struct message message = {.type = MESSAGE_END};
    message.end = (struct message_end){
        .leg = leg, .epoch = *epoch, .from_sink = from_sink, .state = STRAIT_FAILED, .reason = (uint32_t)reason};
    (void)peer_send(peer, &message);
}

/* The sink may have asked before, over a connection that is lost: the new leg replaces that one. */
static void supersede(struct offer *offer, const struct pending *request)
{
    struct source *source;
    LL_FOREACH (offer->sources, source) {
        if (source->id != request->at.id || memcmp(&source->epoch, &request->epoch, sizeof(source->epoch)) != 0 ||
            source->superseded || source->leg.state == STRAIT_FAILED || source->leg.state == STRAIT_DONE)
            continue;
        source->superseded = true;
        offer->leg_count--;
        source_event(source, SOURCE_FAIL, STRAIT_REASON_PEER_DOWN);
        return;
    }
}

/* The request gets no leg: its open grants are released unused. */
static void release_open(struct peer *peer, const struct pending *request, const struct open_grants *open)
{
    struct message_grant_id id = {.leg = request->at.id, .epoch = request->epoch, .grant = open->first};
    for (uint32_t i = 0; i < open->count; i++, id.grant++)
        match_send_released(peer, &id);
}

static void refuse_request(const struct pending *request, const struct open_grants *open, enum strait_reason reason)
{
    release_open(request->peer, request, open);
    match_send_end(request->peer, request->at.id, &request->epoch, false, reason);
}

static void refuse_announce(struct peer *peer, const struct name *source, const struct name *sink,
                            enum strait_reason reason)
{
    const struct withdrawal what = {.source = *source, .sink = *sink, .from_sink = true, .reason = reason};
    const struct message message = withdraw_message(&what);
    (void)peer_send(peer, &message);
}

/* The sink has asked by another connection than that of the ANNOUNCE, which it may read only when it has all pages, and
 * would then keep for an expectation that does not come. */
static void take_back_announce(const struct offer *offer, const struct announce *met, const struct peer *asked_by)
{
    const struct withdrawal what = {.source = offer->request.name, .sink = met->sink};
    if (met->announced_to == NULL || met->announced_to == asked_by)
        return;
    const struct message message = withdraw_message(&what);
    (void)peer_send(met->announced_to, &message); /* if it is down, the ANNOUNCE is forgotten with it */
}

/* Whether it is known how the sink's pool is laid out. If not, the peer is asked, and the request waits for the answer;
 * or is bound, and refused there. */
static bool is_described(struct pending *request, const struct pool_ref *pool)
{
    if (request->geometry == pool->pool->geometry ||
        description_find(request->peer, &request->from, request->geometry) != NULL)
        return true;
    if (request->undescribed)
        return false;
    request->undescribed = !request->asked && description_ask(request->peer, &request->from);
    request->asked = true;
    return !request->undescribed;
}

/* Binds a request to its offer. Nothing points into the pending request afterwards. */
static void bind_request(struct pending *request, struct offer *offer, const struct open_grants *open)
{
    const struct pool_blob *sink = NULL;
    if (request->geometry != offer->request.pool->pool->geometry) {
        sink = description_find(request->peer, &request->from, request->geometry);
        if (sink == NULL) {
            refuse_request(request, open, STRAIT_REASON_GEOMETRY);
            return;
        }
    }
    supersede(offer, request);
    offer_count(offer, request->consumers);
    if (offer->leg_count >= offer->consumers) { /* all its consumers are known already */
        refuse_request(request, open, STRAIT_REASON_PEER_ABORT);
        return;
    }
    struct announce *known = offer_sink(offer, &request->from);
    if (known == NULL) {
        refuse_request(request, open, STRAIT_REASON_NO_MEMORY);
        return;
    }
    struct source *source = source_create(offer, &source_over_peer, request->peer, NULL, request->at.id,
                                          &request->epoch, request->spans, request->span_count);
    request->spans = NULL;
    if (source == NULL) {
        refuse_request(request, open, STRAIT_REASON_NO_MEMORY);
        return;
    }
    known->bound = true;
    source->sink_on_gpu = request->on_gpu;
    if (request->key.is_read) {
        ((struct peer_use *)request->peer->owner)->reads++;
        ((struct peer_use *)request->peer->owner)->read_pages += (uint32_t)offer->request.pages.total;
    }
    take_back_announce(offer, known, request->peer);
    source->timeline.began = request->came;
    timeline_mark(&source->timeline, PHASE_OFFER);
    offer->request.span.leg = source->timeline;
    source_bind(source, sink, open);
}

/* Pairs a sink with an offer under the same daemon. */
static void bind_local(struct sink *sink, struct offer *offer)
{
    struct expectation *e = sink->expectation;
    if (sink->local != NULL || e->request.decided) /* decided in this turn, not freed yet */
        return;
    offer_count(offer, sink->consumers);
    if (offer->leg_count >= offer->consumers) { /* all its consumers are known already */
        sink_event(sink, SINK_END, STRAIT_REASON_PEER_ABORT);
        return;
    }
    struct announce *known = offer_sink(offer, &e->request.name);
    struct wire_span *wanted = known != NULL ? malloc((e->wanted_count + 1) * sizeof(*wanted)) : NULL;
    if (wanted != NULL && e->wanted_count != 0)
        memcpy(wanted, e->wanted, e->wanted_count * sizeof(*wanted));
    struct source *source = wanted == NULL ? NULL
                                           : source_create(offer, &source_over_memory, NULL, sink, sink->id, &e->epoch,
                                                           wanted, e->wanted_count);
    if (source == NULL) {
        sink_event(sink, SINK_END, STRAIT_REASON_NO_MEMORY);
        return;
    }
    known->bound = true;
    offer->request.span.leg.began = uv_hrtime();
    timeline_mark(&offer->request.span.leg, PHASE_OFFER);
    sink->local = source;
    const struct pool *own = e->request.pool->pool;
    const struct pool_blob blob = view_described(own);
    source_bind(source, own->geometry != offer->request.pool->pool->geometry ? &blob : NULL, &(struct open_grants){0});
}

/* Connections of one daemon; NULL is this one. */
static bool is_of_daemon(const struct peer *a, const struct peer *b)
{
    return a == b || (a != NULL && b != NULL && a->node == b->node && a->incarnation == b->incarnation);
}

/* A consumer that has not asked, and will not. Of one that the offer was announced to, no other daemon can say so. */
static void consumer_withdrew(struct offer *o, const struct peer *peer, const struct name *sink,
                              enum strait_reason reason)
{
    if (o->request.decided || (o->consumers != 0 && o->leg_count >= o->consumers))
        return;
    struct announce *known = offer_sink(o, sink);
    if (known == NULL) {
        offer_fail(o, STRAIT_REASON_NO_MEMORY, "");
        return;
    }
    if (known->bound || (known->announced_to != NULL && !is_of_daemon(known->announced_to, peer)))
        return; /* told once, even if the same sink is refused again */
    known->bound = true;
    offer_count(o, 0);
    offer_consumer_ended(o, withdraw_reason(reason), withdraw_text(reason));
}

/* A source that was looked for or waited for, and will not come. Of one that was asked, no other daemon can say so. */
static void source_withdrew(struct expectation *e, const struct peer *peer, const struct name *source,
                            enum strait_reason reason)
{
    const struct sink *sink = expectation_find_leg(e, source);
    if (sink != NULL && sink->peer != NULL && !is_of_daemon(sink->peer, peer))
        return;
    if (sink != NULL ? sink->leg.state == STRAIT_BOOTSTRAP : e->sink_count < e->sources)
        expectation_fail(e, withdraw_reason(reason), withdraw_text(reason));
}

/* ---- Reads of served pages --------------------------------------------------------------------------------------- */

static uint32_t time_left(const struct node *node, uint64_t until)
{
    const uint64_t now = uv_now(node->loop);
    return until > now ? (uint32_t)(until - now) : 1;
}

/* How long a pool is awaited that is not there, or serves nothing: its client may be on its way back to a daemon that
 * was started again. */
static uint64_t pool_awaited(const struct node *node, uint64_t deadline)
{
    const uint64_t until = uv_now(node->loop) + node->options.unreachable_ms;
    return node->options.unreachable_ms != 0 && until < deadline ? until : deadline;
}

/* The reader's leg has got none, or that is bound. */
static void conclude_read(struct offer *offer)
{
    if (offer->leg_count == 0)
        offer_fail(offer, STRAIT_REASON_PEER_ABORT, "");
}

#define READ_PAGES_MAX (4u * STRAIT_TRANSFER_PAGES_MAX) /* of all reads of a peer that are under way */
#define READ_SLACK_MS  1000u                            /* the reader's daemon ends it first, with its own deadline */

/* A peer has named all pages of a read: it begins, is refused, or waits for the pool. */
static void settle_read(struct node *node, struct pending *pending, const struct open_grants *open)
{
    struct pool_ref *pool = serve_find(node, &pending->key.wants);
    struct peer_use *use = pending->peer->owner;
    enum strait_reason reason = node->draining ? STRAIT_REASON_LOCAL : STRAIT_REASON_NO_MEMORY;
    if (pool == NULL && !node->draining) {
        release_open(pending->peer, pending, open); /* nothing is ready yet */
        return;
    }
    if (pool != NULL && !is_described(pending, pool)) {
        release_open(pending->peer, pending, open);
        return;
    }
    const uint64_t pages = pending->pages.total;
    struct offer *offer = NULL;
    if (!node->draining && use->reads < node->options.parked && use->read_pages + pages <= READ_PAGES_MAX)
        offer = serve_begin(pool, &pending->from, &pending->pages, time_left(node, pending->deadline) + READ_SLACK_MS,
                            &reason);
    if (offer != NULL && (pending->spans = page_set_spans(&offer->request.pages, &pending->span_count)) != NULL)
        bind_request(pending, offer, open);
    else
        refuse_request(pending, open, reason);
    if (offer != NULL)
        conclude_read(offer);
    pending_remove(node, pending);
}

/* The same under one daemon. */
static void settle_local_read(struct sink *sink)
{
    const struct expectation *e = sink->expectation;
    struct node *node = sink->node;
    struct pool_ref *pool = serve_find(node, &sink->source);
    enum strait_reason reason;
    if (pool == NULL) {
        struct pending *pending = calloc(1, sizeof(*pending));
        if (pending == NULL)
            return; /* the deadline ends it */
        pending->key = (struct pending_key){.wants = sink->source, .is_request = true, .is_read = true};
        pending->sink = sink;
        pending->expires = pool_awaited(node, e->deadline);
        pending_add(node, pending);
        return;
    }
    struct offer *offer =
        serve_begin(pool, &e->request.name, &e->served, time_left(node, e->deadline) + READ_SLACK_MS, &reason);
    if (offer == NULL) {
        sink->why = withdraw_text(reason);
        sink_event(sink, SINK_END, leg_peer_reason(reason));
        return;
    }
    bind_local(sink, offer);
    conclude_read(offer);
}

void match_served(struct node *node, const struct pool_id *id)
{
    struct pending *pending, *next;
    DL_FOREACH_SAFE (node->exchange.pending, pending, next) {
        struct sink *sink = pending->sink;
        if (!pending->key.is_read || pending->more || memcmp(&pending->key.wants.pool, id, sizeof(*id)) != 0)
            continue;
        if (sink == NULL) {
            settle_read(node, pending, &(struct open_grants){0});
        } else {
            pending_remove(node, pending);
            settle_local_read(sink);
        }
    }
}

/* ---- Starts ------------------------------------------------------------------------------------------------------ */

/* Pairs the sink with its offer, or keeps its request until the offer comes. */
static void ask_local(struct sink *sink)
{
    struct node *node = sink->node;
    sink->asked = true;
    sink_event(sink, SINK_START, STRAIT_REASON_NONE);
    if (sink->expectation->is_read) {
        settle_local_read(sink);
        return;
    }
    struct request *offer;
    HASH_FIND(by_name, node->exchange.offers_by_name, &sink->source, sizeof(sink->source), offer);
    if (offer != NULL && offer->begun) {
        bind_local(sink, (struct offer *)offer);
        return;
    }
    enum strait_reason failed = tombstone_reason(node, &sink->source, true);
    if (offer == NULL && failed != STRAIT_REASON_NONE) {
        sink_event(sink, SINK_END, leg_peer_reason(failed));
        return;
    }
    struct pending *pending = calloc(1, sizeof(*pending));
    if (pending == NULL)
        return; /* the deadline ends it */
    pending->key.is_request = true;
    pending->key.wants = sink->source;
    pending_forget_withdrawn(node, &pending->key, &sink->expectation->request.name);
    pending->sink = sink;
    pending->expires = UINT64_MAX; /* lives as long as the sink */
    pending_add(node, pending);
}

void match_start_expectation(struct expectation *e, const struct name *source, const char *address, bool local,
                             uint32_t consumers)
{
    if (e->request.decided || expectation_find_leg(e, source) != NULL)
        return; /* both sides started this pair */
    if (e->sink_count == e->sources) {
        expectation_fail(e, STRAIT_REASON_GEOMETRY, "more sources than expected");
        return;
    }
    withdraw_cancel(e->request.node, source, &e->request.name, true);
    struct sink *sink = expectation_add_leg(e, source, address, local ? &sink_over_memory : &sink_over_peer);
    if (sink != NULL)
        sink->consumers = consumers;
    if (sink != NULL && local)
        ask_local(sink);
    else if (sink != NULL)
        sink_ask(sink);
}

/* The same for a source that has announced itself over a connection. False: no source can be added. */
static bool start_announced(struct expectation *e, const struct name *source, struct peer *peer)
{
    struct sink *sink = expectation_find_leg(e, source);
    if (sink == NULL && e->sink_count == e->sources)
        return false;
    if (sink == NULL)
        sink = expectation_add_leg(e, source, peer->address, &sink_over_peer);
    if (sink != NULL && !sink->asked) /* else both sides started this pair, and this side's connection was first */
        sink_ask_peer(sink, peer);
    return true;
}

void match_start_offer(struct offer *o, const struct name *sink, const char *address, bool local)
{
    struct announce *a;
    uint32_t count = 0;
    LL_FOREACH (o->announces, a) {
        if (memcmp(&a->sink, sink, sizeof(*sink)) == 0)
            return;
        count++;
    }
    if (count == STRAIT_PARTS_MAX) { /* each takes memory for as long as the offer lives */
        offer_fail(o, STRAIT_REASON_GEOMETRY, "started with more consumers than an offer may have");
        return;
    }
    a = offer_sink(o, sink);
    if (a == NULL) {
        offer_fail(o, STRAIT_REASON_NO_MEMORY, "");
        return;
    }
    withdraw_cancel(o->request.node, &o->request.name, sink, false);
    if (!local) {
        strcpy(a->address, address);
        offer_announce(o, a);
        return;
    }
    struct request *expected;
    HASH_FIND(by_name, o->request.node->exchange.expectations_by_name, sink, sizeof(*sink), expected);
    if (expected != NULL && expected->begun) {
        match_start_expectation((struct expectation *)expected, &o->request.name, "", true, 0);
        return;
    }
    const enum strait_reason failed = tombstone_reason(o->request.node, sink, false);
    if (expected == NULL && failed != STRAIT_REASON_NONE) {
        a->bound = true;
        offer_consumer_ended(o, withdraw_reason(failed), withdraw_text(failed));
        return;
    }
    struct pending *pending = calloc(1, sizeof(*pending));
    if (pending == NULL) {
        offer_fail(o, STRAIT_REASON_NO_MEMORY, "");
        return;
    }
    pending->offer = o;
    pending->key.wants = *sink;
    pending_forget_withdrawn(o->request.node, &pending->key, &o->request.name);
    pending->from = o->request.name;
    pending->expires = UINT64_MAX; /* lives as long as the offer */
    pending_add(o->request.node, pending);
}

void match_offer(struct offer *offer)
{
    struct node *node = offer->request.node;
    struct pending *pending;
    while (!offer->request.decided && (pending = pending_find(node, true, &offer->request)) != NULL) {
        struct sink *sink = pending->sink;
        if (pending->withdrawn != STRAIT_REASON_NONE) {
            consumer_withdrew(offer, pending->peer, &pending->from, pending->withdrawn);
            pending_remove(node, pending);
        } else if (sink == NULL && !is_described(pending, offer->request.pool)) {
            continue; /* it is not found again before the answer has come */
        } else if (sink == NULL) {
            bind_request(pending, offer, &(struct open_grants){0});
            pending_remove(node, pending);
        } else {
            pending_remove(node, pending);
            bind_local(sink, offer);
        }
    }
}

void match_expectation(struct expectation *e)
{
    struct node *node = e->request.node;
    struct pending *pending;
    while (!e->request.decided && (pending = pending_find(node, false, &e->request)) != NULL) {
        struct name from = pending->from;
        struct peer *peer = pending->peer;
        const struct offer *offer = pending->offer;
        const enum strait_reason withdrawn = pending->withdrawn;
        pending_remove(node, pending);
        if (offer != NULL && offer->request.decided)
            continue; /* decided in this turn */
        if (withdrawn != STRAIT_REASON_NONE)
            source_withdrew(e, peer, &from, withdrawn);
        else if (offer != NULL)
            match_start_expectation(e, &from, "", true, 0);
        else
            (void)start_announced(e, &from, peer); /* beyond the expectation's limit: it waits for its lease */
    }
}

/* ---- Messages of peers ------------------------------------------------------------------------------------------- */

#define PENDING_SPANS 256u                   /* average per pending request: 12 MiB for all of them by default */
#define WAIT_MS_MAX   (24u * 60 * 60 * 1000) /* the most that a client may ask for */

/* A peer's share of the memory for what is pending, in spans, is used up by so many more. */
static bool takes_too_much(const struct node *node, struct pending *pending, uint64_t spans)
{
    struct peer_use *use = pending->peer->owner;
    if (use->pending_spans + spans > (uint64_t)node->options.parked * PENDING_SPANS)
        return true;
    use->pending_spans += (uint32_t)spans;
    pending->charged += (uint32_t)spans;
    return false;
}

/* Pages of a read. */
static enum strait_reason add_pages(const struct node *node, struct pending *pending, const struct message_request *r)
{
    uint64_t pages = 0;
    for (uint32_t i = 0; i < r->list_count; i++)
        pages += r->lists[i].count;
    if (takes_too_much(node, pending, r->list_count + pages * sizeof(uint32_t) / sizeof(struct wire_span)))
        return STRAIT_REASON_NO_MEMORY;
    for (uint32_t i = 0; i < r->list_count; i++) {
        const enum strait_status status = page_set_add(&pending->pages, &r->lists[i]);
        if (status != STRAIT_OK)
            return status == STRAIT_ERR_NO_MEMORY ? STRAIT_REASON_NO_MEMORY : STRAIT_REASON_GEOMETRY;
    }
    pending->more = r->more;
    return STRAIT_REASON_NONE;
}

/* Spans that no page set consists of would be too expensive to search: GEOMETRY. */
static enum strait_reason add_spans(const struct node *node, struct pending *pending, const struct message_request *r)
{
    uint32_t known = pending->span_count;
    if (takes_too_much(node, pending, r->span_count))
        return STRAIT_REASON_NO_MEMORY;
    struct wire_span *spans = realloc(pending->spans, ((size_t)known + r->span_count + 1) * sizeof(*spans));
    if (spans == NULL)
        return STRAIT_REASON_NO_MEMORY;
    pending->spans = spans;
    if (r->span_count != 0)
        memcpy(spans + known, r->spans, r->span_count * sizeof(*spans));
    pending->span_count += r->span_count;
    pending->more = r->more;
    return page_spans_valid(spans, known, pending->span_count) ? STRAIT_REASON_NONE : STRAIT_REASON_GEOMETRY;
}

/* All parts of a request have come: it is bound to its offer, kept until the offer comes, or refused as too late. */
static void settle_request(struct node *node, struct pending *pending, const struct open_grants *open)
{
    struct request *offer;
    HASH_FIND(by_name, node->exchange.offers_by_name, &pending->key.wants, sizeof(pending->key.wants), offer);
    enum strait_reason failed = tombstone_reason(node, &pending->key.wants, true);
    if (offer != NULL && offer->begun && !is_described(pending, offer->pool)) {
        release_open(pending->peer, pending, open);
        return;
    }
    if (offer != NULL && offer->begun)
        bind_request(pending, (struct offer *)offer, open);
    else if (offer == NULL && (failed != STRAIT_REASON_NONE || node->draining))
        refuse_request(pending, open, failed != STRAIT_REASON_NONE ? failed : STRAIT_REASON_LOCAL);
    else {
        release_open(pending->peer, pending, open); /* nothing is ready while there is no offer */
        return;
    }
    pending_remove(node, pending);
}

void match_described(struct node *node, struct peer *peer, const struct name *pool)
{
    struct pending *pending;
    do { /* one at a time: what is settled leaves the list, and others may with it */
        DL_FOREACH (node->exchange.pending, pending)
            if (pending->undescribed && pending->peer == peer &&
                memcmp(&pending->from.pool, &pool->pool, sizeof(pool->pool)) == 0 &&
                memcmp(pending->from.tenant, pool->tenant, sizeof(pool->tenant)) == 0)
                break;
        if (pending == NULL)
            return;
        pending->undescribed = false;
        (pending->key.is_read ? settle_read : settle_request)(node, pending, &(struct open_grants){0});
    } while (true);
}

bool match_request(struct node *node, struct peer *peer, const struct message_request *r)
{
    const struct open_grants open = {.first = r->grant, .count = r->slot_count, .slots = r->slots};
    for (uint32_t i = 0; i < open.count; i++)
        if (!gpu_path_has_slot(peer, open.slots[i]))
            return false;
    if (match_source(node, peer, r->leg, &r->epoch) != NULL)
        return true; /* duplicate */
    struct pending *pending = pending_find_leg(node, peer, r->leg);
    if (pending == NULL && r->rest) { /* a part of a refused request: the last one brings the open grants */
        release_open(peer, &(struct pending){.at.id = r->leg, .epoch = r->epoch}, &open);
        return true;
    }
    if (pending == NULL && tenant_denied(node, &r->source_pool, r->tenant, "request")) {
        refuse_request(&(struct pending){.peer = peer, .at.id = r->leg, .epoch = r->epoch}, &open,
                       STRAIT_REASON_DENIED);
        return true;
    }
    if (pending == NULL) {
        pending = pending_new(node, peer);
        if (pending == NULL) {
            struct pending refused = {.peer = peer, .at.id = r->leg, .epoch = r->epoch};
            refuse_request(&refused, &open, STRAIT_REASON_NO_MEMORY);
            return true;
        }
        pending->key.is_request = true;
        pending->key.is_read = r->read;
        if (r->read && page_set_init(&pending->pages, STRAIT_GROUPS_MAX) != STRAIT_OK) {
            free(pending);
            refuse_request(&(struct pending){.peer = peer, .at.id = r->leg, .epoch = r->epoch}, &open,
                           STRAIT_REASON_NO_MEMORY);
            return true;
        }
        pending->at = (struct source_key){.peer = peer, .id = r->leg};
        pending->epoch = r->epoch;
        pending->geometry = r->geometry;
        pending->on_gpu = r->on_gpu;
        pending->consumers = r->consumers;
        name_set(&pending->from, r->tenant, &r->sink_pool, r->sink_key);
        pending->deadline = uv_now(node->loop) + (r->deadline_ms < WAIT_MS_MAX ? r->deadline_ms : WAIT_MS_MAX);
        pending->expires = r->read ? pool_awaited(node, pending->deadline) : pending->deadline;
        name_set(&pending->key.wants, r->tenant, &r->source_pool, r->source_key);
        pending_forget_withdrawn(node, &pending->key, &pending->from);
        pending_add(node, pending);
    } else if (!pending->more) {
        return true; /* duplicate */
    }
    enum strait_reason reason =
        r->read == pending->key.is_read ? (r->read ? add_pages : add_spans)(node, pending, r) : STRAIT_REASON_GEOMETRY;
    if (reason != STRAIT_REASON_NONE) {
        refuse_request(pending, &open, reason);
        pending_remove(node, pending);
    } else if (!pending->more) {
        (r->read ? settle_read : settle_request)(node, pending, &open);
    }
    return true;
}

bool match_announce(struct node *node, struct peer *peer, const struct message_announce *a)
{
    struct name sink, source;
    name_set(&sink, a->tenant, &a->sink_pool, a->sink_key);
    name_set(&source, a->tenant, &a->source_pool, a->source_key);
    if (tenant_denied(node, &a->sink_pool, a->tenant, "announce")) {
        refuse_announce(peer, &source, &sink, STRAIT_REASON_DENIED);
        return true;
    }
    struct request *expected;
    HASH_FIND(by_name, node->exchange.expectations_by_name, &sink, sizeof(sink), expected);
    if (expected != NULL && expected->begun) {
        if (!start_announced((struct expectation *)expected, &source, peer))
            refuse_announce(peer, &source, &sink, STRAIT_REASON_ABORTED);
        return true;
    }
    enum strait_reason failed = tombstone_reason(node, &sink, false);
    if (failed == STRAIT_REASON_NONE && node->draining)
        failed = STRAIT_REASON_LOCAL;
    struct pending *pending = expected == NULL && failed != STRAIT_REASON_NONE ? NULL : pending_new(node, peer);
    if (pending == NULL) {
        refuse_announce(peer, &source, &sink, failed != STRAIT_REASON_NONE ? failed : STRAIT_REASON_NO_MEMORY);
        return true;
    }
    pending->key.wants = sink;
    pending->from = source;
    pending->expires = uv_now(node->loop) + a->lease_ms;
    pending_forget_withdrawn(node, &pending->key, &source);
    pending_add(node, pending);
    return true;
}

/* ---- Withdrawals ------------------------------------------------------------------------------------------------- */

static void keep_withdrawn(struct node *node, struct peer *peer, const struct pending_key *key, const struct name *from,
                           enum strait_reason reason)
{
    struct exchange *x = &node->exchange;
    if (node->draining || tombstone_reason(node, &key->wants, key->is_request) != STRAIT_REASON_NONE)
        return; /* the other side will not come, or has ended */
    if (x->withdrawn_count >= WITHDRAWN_MAX)
        (void)pending_make_room(node, NULL);
    struct pending *pending = peer != NULL ? pending_new(node, peer) : calloc(1, sizeof(*pending));
    if (pending == NULL)
        return;
    pending->key = *key;
    pending->from = *from;
    pending->withdrawn = reason;
    pending->expires = uv_now(node->loop) + WITHDRAWN_MS;
    pending_add(node, pending);
}

void match_withdraw(struct node *node, struct peer *peer, const struct withdrawal *what)
{
    struct exchange *x = &node->exchange;
    const struct name *from = what->from_sink ? &what->sink : &what->source;
    struct pending_key key;
    memset(&key, 0, sizeof(key));
    key.wants = what->from_sink ? what->source : what->sink;
    key.is_request = what->from_sink;
    struct pending *pending, *next;
    DL_FOREACH_SAFE (x->pending, pending, next) /* what it had asked for, and an earlier withdrawal */
        if (is_of_daemon(pending->peer, peer) && pending->sink == NULL && pending->offer == NULL &&
            memcmp(&pending->key, &key, sizeof(key)) == 0 && memcmp(&pending->from, from, sizeof(*from)) == 0)
            pending_remove(node, pending);
    if (what->reason == STRAIT_REASON_NONE)
        return; /* they have met */
    struct request *other;
    struct request *names = what->from_sink ? x->offers_by_name : x->expectations_by_name;
    HASH_FIND(by_name, names, &key.wants, sizeof(key.wants), other);

    if (other == NULL || !other->begun)
        keep_withdrawn(node, peer, &key, from, what->reason);
    else if (what->from_sink)
        consumer_withdrew((struct offer *)other, peer, from, what->reason);
    else
        source_withdrew((struct expectation *)other, peer, from, what->reason);
}

void match_withdraw_message(struct node *node, struct peer *peer, const struct message_withdraw *m)
{
    struct withdrawal what = {.from_sink = m->from_sink, .reason = (enum strait_reason)m->reason};
    if (tenant_denied(node, m->from_sink ? &m->source_pool : &m->sink_pool, m->tenant, "withdraw"))
        return;
    name_set(&what.source, m->tenant, &m->source_pool, m->source_key);
    name_set(&what.sink, m->tenant, &m->sink_pool, m->sink_key);
    match_withdraw(node, peer, &what);
}

void match_end(struct node *node, struct peer *peer, const struct message_end *end)
{
    struct pending *pending = pending_find_leg(node, peer, end->leg);
    if (pending == NULL)
        return;
    const struct withdrawal what = {.source = pending->key.wants,
                                    .sink = pending->from,
                                    .from_sink = true,
                                    .reason = (enum strait_reason)end->reason};
    const bool is_read = pending->key.is_read;
    pending_remove(node, pending);
    if (end->state == STRAIT_FAILED && !is_read)
        match_withdraw(node, peer, &what);
}

/* Tells whoever waits that nobody will come. */
static void refuse_pending(const struct pending *pending, enum strait_reason reason)
{
    if (pending->withdrawn != STRAIT_REASON_NONE)
        return;
    if (pending->sink != NULL)
        expectation_fail(pending->sink->expectation, withdraw_reason(reason), withdraw_text(reason));
    else if (pending->offer != NULL)
        offer_consumer_ended(pending->offer, withdraw_reason(reason), withdraw_text(reason));
    else if (pending->key.is_request)
        refuse_request(pending, &(struct open_grants){0}, reason);
    else
        refuse_announce(pending->peer, &pending->from, &pending->key.wants, reason);
}

void match_refuse(struct node *node, const struct name *name, bool is_offer, enum strait_reason reason)
{
    struct pending *pending, *next;
    DL_FOREACH_SAFE (node->exchange.pending, pending, next) {
        if (pending->key.is_request != is_offer || pending->key.is_read || pending->more ||
            memcmp(&pending->key.wants, name, sizeof(*name)) != 0)
            continue;
        refuse_pending(pending, reason);
        pending_remove(node, pending);
    }
}

/* The answer about the sink's pool has not come: the offer, which is there, has one consumer less. False: it is another
 * request. */
static bool expire_undescribed(struct node *node, struct pending *pending)
{
    struct request *offer;
    HASH_FIND(by_name, node->exchange.offers_by_name, &pending->key.wants, sizeof(pending->key.wants), offer);
    if (!pending->undescribed || pending->key.is_read || offer == NULL || !offer->begun)
        return false;
    const struct peer *peer = pending->peer;
    const struct name from = pending->from;
    pending_remove(node, pending);
    consumer_withdrew((struct offer *)offer, peer, &from, STRAIT_REASON_TIMEOUT);
    return true;
}

/* Why a read is waited for no longer: its peer has not said how its pool is laid out, or the pool's client never
 * allowed anybody to read, or has gone. */
static enum strait_reason why_unread(struct node *node, const struct pending *pending)
{
    if (pending->undescribed)
        return STRAIT_REASON_TIMEOUT;
    return name_pool(node, &pending->key.wants) != NULL ? STRAIT_REASON_NOT_SERVED : STRAIT_REASON_LOCAL;
}

void match_expire(struct node *node, uint64_t now)
{
    struct pending *pending, *next;
    DL_FOREACH_SAFE (node->exchange.pending, pending, next) {
        if (now >= pending->expires && expire_undescribed(node, pending)) {
            next = node->exchange.pending; /* others may have left the list with it */
            continue;
        }
        if (now < pending->expires || (!pending->key.is_read && pending_keep_expired(node, pending, now)))
            continue;
        if (pending->key.is_read)
            refuse_pending(pending, why_unread(node, pending));
        pending_remove(node, pending);
    }
}

void match_drain(struct node *node)
{
    struct pending *pending, *next;
    DL_FOREACH_SAFE (node->exchange.pending, pending, next) {
        refuse_pending(pending, STRAIT_REASON_LOCAL);
        pending_remove(node, pending);
    }
}
