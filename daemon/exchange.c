/* The exchange as a whole: what peers say, what time does, and the end of a turn of the loop. */
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/node.h"
#include "daemon/session.h"

#define TOMBSTONES   4096u  /* remembered at most */
#define TOMBSTONE_MS 60000u /* and for this long: then a name may mean something new */

void name_set(struct name *name, const struct pool_id *pool, struct view key)
{
    memset(name, 0, sizeof(*name)); /* names are hashed and compared as bytes */
    name->pool = *pool;
    name->size = (uint8_t)key.size;
    memcpy(name->key, key.data, key.size);
}

/* ---- Tombstones
 * ---------------------------------------------------------------------------------------------------------- */

struct tombstone *tombstone_find(struct node *node, const struct name *name, bool is_offer)
{
    struct exchange *x = &node->exchange;
    struct tombstone *stone;
    struct tombstone_key key = {.name = *name, .is_offer = is_offer};
    HASH_FIND(hh, x->tombstones, &key, sizeof(key), stone);
    if (stone != NULL && uv_now(node->loop) - stone->ended > TOMBSTONE_MS)
        return NULL;
    return stone;
}

static void tombstone_free(struct node *node, struct tombstone *stone)
{
    HASH_DELETE(hh, node->exchange.tombstones, stone);
    free(stone);
}

void tombstone_remove(struct node *node, const struct name *name, bool is_offer)
{
    struct tombstone *stone;
    struct tombstone_key key = {.name = *name, .is_offer = is_offer};
    HASH_FIND(hh, node->exchange.tombstones, &key, sizeof(key), stone);
    if (stone != NULL)
        tombstone_free(node, stone);
}

void tombstone_add(struct node *node, const struct request *request)
{
    struct exchange *x = &node->exchange;
    tombstone_remove(node, &request->name, request->is_offer);
    struct tombstone *stone = calloc(1, sizeof(*stone));
    if (stone == NULL)
        return; /* late messages will be parked until their deadline instead */
    stone->key.name = request->name;
    stone->key.is_offer = request->is_offer;
    stone->reason = request->reason;
    stone->ended = uv_now(node->loop);
    HASH_ADD(hh, x->tombstones, key, sizeof(stone->key), stone);
    if (HASH_COUNT(x->tombstones) > TOMBSTONES)
        tombstone_free(node, x->tombstones); /* the head is the oldest */
}

/* ---- Peers come and go
 * ------------------------------------------------------------------------------------------------------ */

static void on_up(void *owner, struct peer *peer)
{
    struct node *node = owner;
    struct peer_use *use = calloc(1, sizeof(*use));
    if (use == NULL) {
        peer_drop(peer, "out of memory");
        return;
    }
    peer->owner = use;
    exchange_redial(node);
}

/* The link may be closed when nothing of ours writes to the peer's arena any more. */
static void quit_when_quiet(struct peer *peer)
{
    struct peer_use *use = peer->owner;
    if (use == NULL || (use->down && use->writers == 0))
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
    HASH_ITER(hh, node->exchange.sinks, sink, next_sink)
    {
        if (sink->peer != peer)
            continue;
        if (sink->leg.state == STRAIT_BOOTSTRAP) { /* not bound: it may ask again */
            sink->peer = NULL;
            sink->asked = false;
        } else {
            sink_event(sink, SINK_FAIL, STRAIT_REASON_PEER_DOWN);
        }
    }
    struct source *source, *next_source;
    HASH_ITER(hh, node->exchange.sources, source, next_source)
    if (source->peer == peer)
        source_event(source, SOURCE_FAIL, STRAIT_REASON_PEER_DOWN);
    struct offer *offer;
    struct announce *announce;
    DL_FOREACH(node->exchange.offers, offer)
    LL_FOREACH(offer->announces, announce)
    if (announce->told == peer)
        announce->told = NULL;
    quit_when_quiet(peer);
}

static void on_quiet(void *owner, struct peer *peer)
{
    struct node *node = owner;
    struct sink *sink, *next_sink;
    HASH_ITER(hh, node->exchange.sinks, sink, next_sink)
    {
        if (sink->peer != peer)
            continue;
        sink_event(sink, SINK_QUIET, STRAIT_REASON_NONE);
        sink->peer = NULL;
    }
    struct source *source, *next_source;
    HASH_ITER(hh, node->exchange.sources, source, next_source)
    {
        if (source->peer != peer)
            continue;
        HASH_DELETE(hh, node->exchange.sources, source);
        source->peer = NULL; /* it has its verdict; an encode may still read its pages */
        source->at.peer = NULL;
        HASH_ADD(hh, node->exchange.sources, at, sizeof(source->at), source);
    }
    free(peer->owner);
    peer->owner = NULL;
}

/* ---- Messages
 * ------------------------------------------------------------------------------------------------------------------ */

static struct sink *find_sink(struct node *node, struct peer *peer, uint64_t leg, const struct epoch *epoch)
{
    struct sink *sink;
    HASH_FIND(hh, node->exchange.sinks, &leg, sizeof(leg), sink);
    if (sink == NULL || sink->peer != peer || sink->expectation->epoch.incarnation != epoch->incarnation ||
        sink->expectation->epoch.counter != epoch->counter)
        return NULL;
    return sink;
}

static struct source *find_source(struct node *node, struct peer *peer, uint64_t leg, const struct epoch *epoch)
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

static void send_end(struct peer *peer, uint64_t leg, const struct epoch *epoch, bool from_sink,
                     enum strait_reason reason)
{
    struct message message = {.type = MESSAGE_END};
    message.end = (struct message_end){
        .leg = leg, .epoch = *epoch, .from_sink = from_sink, .state = STRAIT_FAILED, .reason = (uint32_t)reason};
    (void)peer_send(peer, &message);
}

static void refuse_leg(struct peer *peer, const struct parked *request, enum strait_reason reason)
{
    send_end(peer, request->leg, &request->epoch, false, reason);
}

/* How a late request is told what became of the offer. */
static enum strait_reason late_reason(const struct tombstone *stone)
{
    return stone->reason == STRAIT_REASON_NONE ? STRAIT_REASON_PEER_ABORT : stone->reason;
}

static void bind_announce(struct offer *offer, const struct pool_id *sink_pool)
{
    struct announce *announce;
    LL_FOREACH(offer->announces, announce)
    if (memcmp(&announce->sink.pool, sink_pool, sizeof(*sink_pool)) == 0)
        announce->bound = true;
}

/* A request meets its offer. The parked request keeps nothing that is used afterwards. */
void request_bind(struct parked *request, struct offer *offer)
{
    if (request->geometry != offer->request.pool->pool->geometry) {
        refuse_leg(request->peer, request, STRAIT_REASON_GEOMETRY);
        return;
    }
    struct source *source =
        source_create(offer, request->peer, NULL, request->leg, &request->epoch, request->spans, request->span_count);
    request->spans = NULL;
    if (source == NULL) {
        refuse_leg(request->peer, request, STRAIT_REASON_NO_MEMORY);
        return;
    }
    bind_announce(offer, &request->from.pool);
    enum strait_reason reason = source_ready(source, 0, offer->ready_count, true);
    if (reason != STRAIT_REASON_NONE)
        source_event(source, SOURCE_FAIL, reason);
}

static bool same_request(const struct parked *parked, const struct peer *peer, const struct message_request *r)
{
    return parked->is_request && parked->peer == peer && parked->leg == r->leg;
}

static struct parked *find_parked_request(struct node *node, const struct peer *peer, const struct message_request *r)
{
    struct parked *parked;
    DL_FOREACH(node->exchange.parked, parked)
    if (same_request(parked, peer, r))
        return parked;
    return NULL;
}

static struct parked *new_parked(struct node *node, struct peer *peer)
{
    if (node->exchange.parked_count >= node->options.parked)
        return NULL;
    struct parked *parked = calloc(1, sizeof(*parked));
    if (parked == NULL)
        return NULL;
    parked->peer = peer;
    parked_add(node, parked);
    return parked;
}

static bool add_spans(struct parked *parked, const struct message_request *r)
{
    struct wire_span *spans = realloc(parked->spans, (parked->span_count + r->span_count + 1) * sizeof(*spans));
    if (spans == NULL)
        return false;
    parked->spans = spans;
    if (r->span_count != 0)
        memcpy(spans + parked->span_count, r->spans, r->span_count * sizeof(*spans));
    parked->span_count += r->span_count;
    parked->more = r->more;
    return parked->span_count <= STRAIT_TRANSFER_PAGES_MAX;
}

/* All of a request has come: it meets its offer, or waits for it, or comes too late. */
static void settle_request(struct node *node, struct parked *parked)
{
    struct request *offer;
    HASH_FIND(by_name, node->exchange.offers_by_name, &parked->wants, sizeof(parked->wants), offer);
    const struct tombstone *stone = tombstone_find(node, &parked->wants, true);
    if (offer == NULL && stone == NULL)
        return;
    if (offer != NULL && ((struct offer *)offer)->begun)
        request_bind(parked, (struct offer *)offer);
    else if (offer == NULL)
        refuse_leg(parked->peer, parked, late_reason(stone));
    else
        return;
    parked_remove(node, parked);
}

static bool on_request(struct node *node, struct peer *peer, const struct message_request *r)
{
    if (find_source(node, peer, r->leg, &r->epoch) != NULL)
        return true; /* doubled */
    struct parked *parked = find_parked_request(node, peer, r);
    if (parked == NULL) {
        parked = new_parked(node, peer);
        if (parked == NULL) {
            struct parked refused = {.leg = r->leg, .epoch = r->epoch};
            refuse_leg(peer, &refused, STRAIT_REASON_NO_MEMORY);
            return true;
        }
        parked->is_request = true;
        parked->leg = r->leg;
        parked->epoch = r->epoch;
        parked->geometry = r->geometry;
        parked->from.pool = r->sink_pool;
        parked->expires = uv_now(node->loop) + r->deadline_ms;
        name_set(&parked->wants, &r->source_pool, r->source_key);
    } else if (!parked->more) {
        return true; /* doubled */
    }
    if (!add_spans(parked, r)) {
        refuse_leg(peer, parked, STRAIT_REASON_NO_MEMORY);
        parked_remove(node, parked);
    } else if (!parked->more) {
        settle_request(node, parked);
    }
    return true;
}

static void refuse_announce(struct peer *peer, const struct message_announce *a)
{
    struct message message = {.type = MESSAGE_ANNOUNCE, .announce = *a};
    message.announce.stop = true;
    (void)peer_send(peer, &message);
}

/* The sink's daemon says that what our offer looks for has ended. */
static void announce_refused(struct node *node, const struct message_announce *a)
{
    struct offer *offer;
    DL_SEARCH_SCALAR(node->exchange.offers, offer, id, a->offer);
    struct name sink;
    name_set(&sink, &a->sink_pool, a->sink_key);
    struct announce *announce;
    if (offer == NULL || offer->request.decided)
        return;
    LL_FOREACH(offer->announces, announce)
    {
        if (announce->bound || memcmp(&announce->sink, &sink, sizeof(sink)) != 0)
            continue;
        announce->bound = true;
        offer_leg_verdict(offer, STRAIT_REASON_PEER_ABORT);
        return;
    }
}

static void announce_stopped(struct node *node, struct peer *peer, const struct message_announce *a)
{
    struct parked *parked, *next;
    DL_FOREACH_SAFE(node->exchange.parked, parked, next)
    if (!parked->is_request && parked->peer == peer && parked->offer_id == a->offer)
        parked_remove(node, parked);
}

static bool on_announce(struct node *node, struct peer *peer, const struct message_announce *a)
{
    struct name sink, source;
    name_set(&sink, &a->sink_pool, a->sink_key);
    name_set(&source, &a->source_pool, a->source_key);
    if (a->stop) {
        announce_stopped(node, peer, a);
        struct pool_ref *own;
        HASH_FIND(hh, node->exchange.pools, &a->source_pool, sizeof(a->source_pool), own);
        if (own != NULL)
            announce_refused(node, a);
        return true;
    }
    struct request *expected;
    HASH_FIND(by_name, node->exchange.expectations_by_name, &sink, sizeof(sink), expected);
    if (expected != NULL && ((struct expectation *)expected)->wanted != NULL) {
        expectation_announced((struct expectation *)expected, &source, peer);
        return true;
    }
    if (expected == NULL && tombstone_find(node, &sink, false) != NULL) {
        refuse_announce(peer, a);
        return true;
    }
    struct parked *parked = new_parked(node, peer);
    if (parked == NULL) {
        refuse_announce(peer, a);
        return true;
    }
    parked->wants = sink;
    parked->from = source;
    parked->offer_id = a->offer;
    parked->expires = uv_now(node->loop) + a->lease_ms;
    return true;
}

static bool on_end(struct node *node, struct peer *peer, const struct message_end *end)
{
    enum strait_reason reason = (enum strait_reason)end->reason;
    if (end->state == STRAIT_FAILED && reason == STRAIT_REASON_NONE)
        return false;
    if (end->from_sink) {
        struct source *source = find_source(node, peer, end->leg, &end->epoch);
        if (source != NULL)
            source_event(source, SOURCE_END, end->state == STRAIT_DONE ? STRAIT_REASON_NONE : leg_peer_reason(reason));
        struct parked *parked, *next;
        DL_FOREACH_SAFE(node->exchange.parked, parked, next)
        if (parked->is_request && parked->peer == peer && parked->leg == end->leg)
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
    if (sink == NULL) { /* over and forgotten: the source shall not wait for its lease */
        send_end(peer, message->leg, &message->epoch, true, STRAIT_REASON_PEER_ABORT);
        return true;
    }
    enum strait_reason reason = sink_segments(sink, message);
    if (reason != STRAIT_REASON_NONE)
        sink_event(sink, SINK_FAIL, reason);
    return true;
}

static void answer_released(struct peer *peer, const struct message_grant_id *id)
{
    struct message message = {.type = MESSAGE_RELEASED, .grant_id = *id};
    (void)peer_send(peer, &message);
}

static bool on_grant(struct node *node, struct peer *peer, const struct message_grant *grant)
{
    struct source *source = find_source(node, peer, grant->leg, &grant->epoch);
    if (grant->slot >= peer->slot_count)
        return false;
    if (source == NULL) {
        struct message_grant_id id = {.leg = grant->leg, .epoch = grant->epoch, .grant = grant->grant};
        answer_released(peer, &id);
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
        struct source *source = find_source(node, peer, id->leg, &id->epoch);
        struct leg_event event = {.type = SOURCE_REVOKE, .grant = id->grant};
        if (source != NULL)
            (void)source_apply(source, &event);
        else
            answer_released(peer, id);
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
        session_send(pool->session, &message);
    }
    return true;
}

static bool on_message(void *owner, struct peer *peer, const struct message *message)
{
    struct node *node = owner;
    switch (message->type) {
    case MESSAGE_REQUEST:
        return on_request(node, peer, &message->request);
    case MESSAGE_ANNOUNCE:
        return on_announce(node, peer, &message->announce);
    case MESSAGE_SEGMENTS:
        return on_segments(node, peer, &message->segments);
    case MESSAGE_GRANT:
        return on_grant(node, peer, &message->grant);
    case MESSAGE_REVOKE:
    case MESSAGE_RELEASED:
        return on_grant_id(node, peer, &message->grant_id, message->type == MESSAGE_REVOKE);
    case MESSAGE_END:
        return on_end(node, peer, &message->end);
    case MESSAGE_PEER_NOTE:
        return on_note(node, &message->note);
    default:
        return false;
    }
}

static struct landing on_arriving(void *owner, struct peer *peer, const void *header, size_t header_size, size_t size)
{
    return sink_arriving(owner, peer, header, header_size, size);
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

static void on_closed(void *owner)
{
    node_peers_closed(owner);
}

const struct peers_events exchange_peers_events = {
    .up = on_up,
    .message = on_message,
    .down = on_down,
    .quiet = on_quiet,
    .arriving = on_arriving,
    .arrived = on_arrived,
    .sent = on_sent,
    .closed = on_closed,
};

/* ---- Time
 * ----------------------------------------------------------------------------------------------------------------------
 */

#define NOTES_MAX 256u   /* that wait */
#define NOTE_MS   10000u /* for as long */

static bool send_note(struct node *node, const char *address, const struct message *message)
{
    struct peer *peer = peers_get(node->peers, address);
    return peer != NULL && peer->state == PEER_UP && peer_send(peer, message) == STRAIT_OK;
}

void exchange_note(struct node *node, const char *address, const struct message *message)
{
    struct exchange *x = &node->exchange;
    const struct message_note *m = &message->note;
    if (send_note(node, address, message) || x->note_count >= NOTES_MAX)
        return;
    struct note *note = calloc(1, sizeof(*note) + m->key.size + m->data.size);
    if (note == NULL)
        return;
    strcpy(note->address, address);
    note->pool = m->pool;
    note->key_size = m->key.size;
    note->size = m->data.size;
    note->expires = uv_now(node->loop) + NOTE_MS;
    memcpy(note->bytes, m->key.data, m->key.size);
    if (m->data.size != 0)
        memcpy(note->bytes + m->key.size, m->data.data, m->data.size);
    LL_APPEND(x->notes, note);
    x->note_count++;
}

static void send_notes(struct node *node)
{
    struct exchange *x = &node->exchange;
    struct note *note, *next;
    LL_FOREACH_SAFE(x->notes, note, next)
    {
        struct message message = {.type = MESSAGE_PEER_NOTE};
        message.note = (struct message_note){.pool = note->pool,
                                             .key = view_of(note->bytes, note->key_size),
                                             .data = view_of(note->bytes + note->key_size, note->size)};
        if (!send_note(node, note->address, &message) && uv_now(node->loop) < note->expires)
            continue;
        LL_DELETE(x->notes, note);
        x->note_count--;
        free(note);
    }
}

/* Whoever waits for a peer asks whether it is up. */
void exchange_redial(struct node *node)
{
    struct sink *sink, *next;
    HASH_ITER(hh, node->exchange.sinks, sink, next)
    if (!sink->asked && !sink->expectation->request.decided)
        sink_ask(sink);
    struct offer *offer, *next_offer;
    struct announce *announce;
    DL_FOREACH_SAFE(node->exchange.offers, offer, next_offer)
    LL_FOREACH(offer->announces, announce)
    if (!announce->bound && announce->told == NULL)
        offer_announce(offer, announce);
    send_notes(node);
}

static bool has_live_leg(const struct offer *offer)
{
    const struct source *source;
    LL_FOREACH(offer->sources, source)
    if (source->leg.state != STRAIT_FAILED && source->leg.state != STRAIT_DONE)
        return true;
    return false;
}

static void check_deadlines(struct node *node, uint64_t now)
{
    struct expectation *e, *next_e;
    DL_FOREACH_SAFE(node->exchange.expectations, e, next_e)
    if (!e->request.decided && now >= e->deadline)
        expectation_fail(e, STRAIT_REASON_TIMEOUT, "");
    struct offer *o, *next_o;
    DL_FOREACH_SAFE(node->exchange.offers, o, next_o)
    {
        if (o->request.decided)
            continue;
        if (has_live_leg(o)) /* its daemon's heartbeats renew the lease */
            o->expires = now + o->lease_ms;
        else if (now >= o->expires)
            offer_fail(o, STRAIT_REASON_LEASE_EXPIRED, "");
    }
    struct parked *parked, *next_p;
    DL_FOREACH_SAFE(node->exchange.parked, parked, next_p)
    if (now >= parked->expires)
        parked_remove(node, parked);
}

void exchange_tick(struct node *node)
{
    check_deadlines(node, uv_now(node->loop));
    sink_reclaim(node);
    exchange_redial(node);
}

bool exchange_idle(const struct node *node)
{
    const struct exchange *x = &node->exchange;
    return x->offers == NULL && x->expectations == NULL && x->parked == NULL && x->notes == NULL;
}

void exchange_fini(struct node *node)
{
    struct exchange *x = &node->exchange;
    struct tombstone *stone, *next_stone;
    HASH_ITER(hh, x->tombstones, stone, next_stone)
    tombstone_free(node, stone);
    struct parked *parked, *next_parked;
    DL_FOREACH_SAFE(x->parked, parked, next_parked)
    parked_remove(node, parked);
    struct note *note, *next_note;
    LL_FOREACH_SAFE(x->notes, note, next_note)
    free(note);
}

void exchange_fail_all(struct node *node, enum strait_reason reason)
{
    struct expectation *e, *next_e;
    DL_FOREACH_SAFE(node->exchange.expectations, e, next_e)
    expectation_fail(e, reason, "the daemon is stopping");
    struct offer *o, *next_o;
    DL_FOREACH_SAFE(node->exchange.offers, o, next_o)
    offer_fail(o, reason, "the daemon is stopping");
}

/* ---- The end of a turn
 * -------------------------------------------------------------------------------------------------------------- */

static void free_request(struct request *request)
{
    if (request->session != NULL)
        session_forget(request->session, request);
    page_set_fini(&request->pages);
}

static void reap(struct node *node)
{
    struct source *source, *next_source;
    HASH_ITER(hh, node->exchange.sources, source, next_source)
    if (source->leg.closed)
        source_free(source);
    struct sink *sink, *next_sink;
    HASH_ITER(hh, node->exchange.sinks, sink, next_sink)
    if (sink->leg.closed)
        sink_free(sink);
    struct expectation *e, *next_e;
    DL_FOREACH_SAFE(node->exchange.expectations, e, next_e)
    {
        if (!e->request.decided || !e->request.drained || e->sinks != NULL)
            continue;
        DL_DELETE(node->exchange.expectations, e);
        free_request(&e->request);
        free(e->wanted);
        free(e->aux);
        free(e);
    }
    struct offer *o, *next_o;
    DL_FOREACH_SAFE(node->exchange.offers, o, next_o)
    {
        if (!o->request.decided || !o->request.drained || o->sources != NULL)
            continue;
        DL_DELETE(node->exchange.offers, o);
        free_request(&o->request);
        struct announce *a, *next_a;
        LL_FOREACH_SAFE(o->announces, a, next_a)
        free(a);
        free(o->ready);
        free(o->aux);
        free(o);
    }
}

void exchange_turn(struct node *node)
{
    struct exchange *x = &node->exchange;
    bool moved;
    do { /* what one half says under this daemon can be what the other waits for */
        moved = local_turn(node);
        sink_grants(node);
        moved |= local_turn(node);
        source_encodes(node);
    } while (moved || x->local_first != NULL);
    if (x->reap) {
        x->reap = false;
        reap(node);
    }
}
