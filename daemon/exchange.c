#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "daemon/exchange.h"
#include "daemon/match.h"
#include "daemon/node.h"
#include "daemon/gpu_path.h"
#include "daemon/serve.h"
#include "daemon/session.h"
#include "daemon/sink.h"
#include "daemon/source.h"
#include "daemon/span.h"
#include "daemon/withdraw.h"

/* ---- Events of legs ---------------------------------------------------------------------------------------------- */

static void send_verdict(struct exchange *x)
{
    struct request *request = x->verdicts;
    if (request->state == STRAIT_FAILED && x->pending != NULL && !request->nameless)
        match_refuse(request->node, &request->name, request->is_offer, request->reason);
    DL_DELETE2(x->verdicts, request, verdict_prev, verdict_next);
    span_end(request);
    if (request->is_offer)
        offer_send_verdict((struct offer *)request);
    else
        expectation_send_verdict((struct expectation *)request);
}

/* Delivers what the other side can be told now, and has the others' daemons dialled. What is sent is kept until it was
 * handled: a connection that is up may be about to end. */
static void deliver_withdrawals(struct node *node)
{
    struct withdrawal_entry *entry, *next;
    node->exchange.withdrew = false;
    DL_FOREACH_SAFE (node->exchange.withdrawals, entry, next) {
        const struct withdrawal what = entry->what;
        if (entry->address[0] == '\0') {
            withdraw_remove(node, entry);
            match_withdraw(node, NULL, &what);
            continue;
        }
        struct peer *peer = peers_get(node->peers, entry->address, entry->uid);
        const struct message message = withdraw_message(&what);
        if (peer == NULL || peer->state != PEER_UP)
            continue;
        if (peer == entry->sent_to && peer_has_handled(peer, entry->mark)) {
            withdraw_remove(node, entry);
        } else if (peer != entry->sent_to && peer_send(peer, &message) == STRAIT_OK) {
            entry->sent_to = peer;
            entry->mark = peer_mark(peer);
        }
    }
}

static void take(const struct leg_post *post)
{
    if (post->sink != NULL)
        sink_take(post->sink, &post->event);
    else
        source_take(post->source, &post->event);
}

/* Carries out queued events and those that follow from them; then the legs know the verdicts, and say whether they are
 * drained. */
static void run_events(struct node *node)
{
    struct exchange *x = &node->exchange;
    struct leg_post post;
    if (x->events.running)
        return; /* called from inside an action: the outer call goes on */
    x->events.running = true;
    while (x->events.count != 0 || x->verdicts != NULL || x->withdrew)
        if (leg_queue_take(&x->events, &post))
            take(&post);
        else if (x->verdicts != NULL)
            send_verdict(x);
        else
            deliver_withdrawals(node);
    x->events.running = false;
}

/* ---- Messages of peers ------------------------------------------------------------------------------------------- */

static struct sink *find_sink(struct node *node, struct peer *peer, uint64_t leg, const struct epoch *epoch)
{
    struct sink *sink;
    HASH_FIND(hh, node->exchange.sinks, &leg, sizeof(leg), sink);
    if (sink == NULL || sink->peer != peer || sink->expectation->epoch.incarnation != epoch->incarnation ||
        sink->expectation->epoch.counter != epoch->counter)
        return NULL;
    return sink;
}

static bool on_end(struct node *node, struct peer *peer, const struct message *message)
{
    const struct message_end *end = &message->end;
    if (end->state == STRAIT_FAILED && end->reason == STRAIT_REASON_NONE)
        return false;
    if (end->from_sink) {
        struct source *source = match_source(node, peer, end->leg, &end->epoch);
        if (source != NULL)
            source_message(source, message);
        match_end(node, peer, end);
        return true;
    }
    struct sink *sink = find_sink(node, peer, end->leg, &end->epoch);
    if (sink != NULL)
        sink_message(sink, message);
    return end->state == STRAIT_FAILED; /* only the sink can say DONE */
}

static void on_segments(struct node *node, struct peer *peer, const struct message *message)
{
    const struct message_segments *m = &message->segments;
    struct sink *sink = find_sink(node, peer, m->leg, &m->epoch);
    if (sink != NULL)
        sink_message(sink, message);
    else /* the leg is over and forgotten: the source must not wait for its lease */
        match_send_end(peer, m->leg, &m->epoch, true, STRAIT_REASON_PEER_ABORT);
}

static bool on_grant(struct node *node, struct peer *peer, const struct message *message)
{
    const struct message_grant *grant = &message->grant;
    struct source *source = match_source(node, peer, grant->leg, &grant->epoch);
    if (!gpu_path_has_slot(peer, grant->slot))
        return false;
    if (source != NULL) {
        source_message(source, message);
    } else {
        struct message_grant_id id = {.leg = grant->leg, .epoch = grant->epoch, .grant = grant->grant};
        match_send_released(peer, &id);
    }
    return true;
}

static void on_revoke(struct node *node, struct peer *peer, const struct message *message)
{
    const struct message_grant_id *id = &message->grant_id;
    struct source *source = match_source(node, peer, id->leg, &id->epoch);
    if (source != NULL)
        source_message(source, message);
    else
        match_send_released(peer, id);
}

static void on_released(struct node *node, struct peer *peer, const struct message *message)
{
    struct sink *sink = find_sink(node, peer, message->grant_id.leg, &message->grant_id.epoch);
    if (sink != NULL)
        sink_message(sink, message);
}

static bool on_description(struct node *node, struct peer *peer, const struct message_pool_description *message)
{
    struct name pool;
    if (!description_take(peer, message, &pool))
        return false;
    match_described(node, peer, &pool);
    return true;
}

/* False: the peer broke the protocol. */
static bool handle(struct node *node, struct peer *peer, const struct message *message)
{
    switch (message->type) {
    case MESSAGE_REQUEST:
        return match_request(node, peer, &message->request);
    case MESSAGE_ANNOUNCE:
        return match_announce(node, peer, &message->announce);
    case MESSAGE_SEGMENTS:
        on_segments(node, peer, message);
        return true;
    case MESSAGE_GRANT:
        return on_grant(node, peer, message);
    case MESSAGE_REVOKE:
        on_revoke(node, peer, message);
        return true;
    case MESSAGE_RELEASED:
        on_released(node, peer, message);
        return true;
    case MESSAGE_END:
        return on_end(node, peer, message);
    case MESSAGE_WITHDRAW:
        match_withdraw_message(node, peer, &message->withdraw);
        return true;
    case MESSAGE_ARENA:
        return gpu_path_on_arena(node, peer, &message->arena);
    case MESSAGE_REACH:
        return gpu_path_on_reach(peer, &message->reach);
    case MESSAGE_PEER_NOTE:
        notes_receive(node, peer, &message->note);
        return true;
    case MESSAGE_PEER_NOTED:
        notes_answered(node, peer, &message->noted);
        return true;
    case MESSAGE_CODEBOOK_ASK:
        return peer_codebooks_ask(node, peer, &message->codebook_ask);
    case MESSAGE_CODEBOOK_PART:
        return peer_codebooks_part(node, peer, &message->codebook_part);
    case MESSAGE_CODEBOOK_KNOWN:
        peer_codebooks_known(node, peer, &message->codebook_known);
        return true;
    case MESSAGE_POOL_ASK:
        description_asked(node, peer, &message->pool_ask);
        return true;
    case MESSAGE_POOL_DESCRIPTION:
        return on_description(node, peer, &message->pool_description);
    default:
        return false;
    }
}

static bool on_message(void *owner, struct peer *peer, const struct message *message)
{
    const bool fine = handle(owner, peer, message);
    run_events(owner);
    return fine;
}

/* ---- Legs that wait for a peer ----------------------------------------------------------------------------------- */

#define REDIAL_MS 20u /* how often a leg that waits for a peer asks; it also asks whenever one comes up */

/* Legs that wait for a peer ask whether it is up, and so does what is to be told to it: first, as the same names may be
 * asked for again. */
static void redial(struct node *node)
{
    deliver_withdrawals(node);
    struct sink *sink, *next;
    HASH_ITER (hh, node->exchange.sinks, sink, next)
        if (!sink->asked && !sink->expectation->request.decided)
            sink_ask(sink);
    struct offer *offer, *next_offer;
    struct announce *announce;
    DL_FOREACH_SAFE (node->exchange.offers, offer, next_offer)
        LL_FOREACH (offer->announces, announce)
            if (!announce->bound && announce->announced_to == NULL)
                offer_announce(offer, announce);
}

/* ---- Callbacks from the peers: connections come up, go down, and bring chunks ------------------------------------ */

/* A daemon that makes another connection has given up the one before. */
static void supersede(void *arg, struct peer *peer)
{
    const struct peer *newer = arg;
    struct peer_use *use = peer->owner;
    if (use != NULL && peer != newer && !peer->dialled && peer->node == newer->node &&
        peer->incarnation == newer->incarnation)
        use->superseded = true;
}

static void on_up(void *owner, struct peer *peer)
{
    struct node *node = owner;
    struct peer_use *use = calloc(1, sizeof(*use));
    if (use == NULL) {
        peer_drop(peer, "out of memory");
        return;
    }
    use->node = node;
    use->figures = peer_figures_take(&node->peer_figures, peer->address);
    peer->owner = use;
    if (!peer->dialled)
        peers_each(node->peers, supersede, peer);
    peer_codebooks_told(node, peer); /* before what it asks for, so that it is coded */
    gpu_path_up(node, peer);
    redial(node);
    notes_send(node);
    run_events(node);
}

/* The link of a peer that is down is closed once nothing of ours writes to the peer's arena any more. */
static void close_link_when_idle(void *arg, struct peer *peer)
{
    struct exchange *x = arg;
    struct peer_use *use = peer->owner;
    if (use == NULL || !use->down || use->quit || peer->writers != 0 || !gpu_path_release(use->node, peer) ||
        !pin_release(use->node, peer))
        return;
    use->quit = true;
    x->down_peers--;
    peer_quit_link(peer);
}

static void on_down(void *owner, struct peer *peer)
{
    struct node *node = owner;
    struct peer_use *use = peer->owner;
    if (use != NULL) {
        use->down = true;
        peer_figures_failed(use->figures, PEER_FAILED_CONNECTION);
        node->exchange.down_peers++;
    }
    peer_codebooks_down(node, peer);
    pending_forget_peer(node, peer);
    withdraw_forget_peer(node, peer);
    notes_on_down(node, peer);
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
            if (announce->announced_to == peer)
                announce->announced_to = NULL;
    run_events(node);
    if (use != NULL)
        close_link_when_idle(&node->exchange, peer);
    else
        peer_quit_link(peer);
}

static void on_quiet(void *owner, struct peer *peer)
{
    struct node *node = owner;
    struct sink *sink, *next_sink;
    HASH_ITER (hh, node->exchange.sinks, sink, next_sink)
        if (sink->peer == peer)
            sink_event(sink, SINK_QUIET, STRAIT_REASON_NONE);
    run_events(node);
    HASH_ITER (hh, node->exchange.sinks, sink, next_sink)
        if (sink->peer == peer)
            sink_detach_peer(sink);
    struct source *source, *next_source;
    HASH_ITER (hh, node->exchange.sources, source, next_source) {
        if (source->peer != peer)
            continue;
        HASH_DELETE(hh, node->exchange.sources, source);
        source->peer = NULL; /* the verdict is set; an encode may still read the offer's pages */
        source->at.peer = NULL;
        HASH_ADD(hh, node->exchange.sources, at, sizeof(source->at), source);
    }
    struct peer_use *use = peer->owner;
    if (use != NULL) {
        node->exchange.down_peers -= !use->quit; /* it was not waited for any longer */
        gpu_path_forget(use);
        peer_codebooks_quiet(node, peer);
        peer_figures_leave(use->figures);
    }
    if (use != NULL)
        descriptions_free(&use->descriptions);
    free(use);
    peer->owner = NULL;
}

static struct landing on_arriving(void *owner, struct peer *peer, int32_t device, const void *header,
                                  size_t header_size, size_t size)
{
    const struct landing landing = sink_arriving(owner, peer, device, header, header_size, size);
    run_events(owner);
    return landing;
}

static void on_arrived(void *owner, struct peer *peer, uint64_t cookie, enum strait_status status)
{
    (void)peer;
    sink_arrived(owner, cookie, status);
    run_events(owner);
}

static void on_sent(void *owner, struct peer *peer, uint64_t cookie, enum strait_status status)
{
    (void)peer;
    source_sent(owner, cookie, status);
    run_events(owner);
}

static void on_gpu_link(void *owner, struct peer *peer, struct gpu_ends ends)
{
    gpu_path_gpu_link(owner, peer, ends);
    if (!peer_has_gpu_link(peer, ends))
        source_gpu_link_ended(owner, peer, ends);
    run_events(owner);
}

static void on_codebook(void *owner, struct peer *peer)
{
    peer_codebooks_told(owner, peer);
}

static bool knows_codebook(void *owner, const uint8_t id[CODEBOOK_ID_BYTES])
{
    const struct node *node = owner;
    return codebooks_have(node->codebooks, id);
}

const struct peers_events exchange_peers_events = {
    .up = on_up,
    .message = on_message,
    .codebook = on_codebook,
    .knows_codebook = knows_codebook,
    .down = on_down,
    .quiet = on_quiet,
    .arriving = on_arriving,
    .arrived = on_arrived,
    .sent = on_sent,
    .gpu_link = on_gpu_link,
};

/* ---- Time -------------------------------------------------------------------------------------------------------- */

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
            expectation_expire(e);
    struct offer *o, *next_o;
    DL_FOREACH_SAFE (node->exchange.offers, o, next_o) {
        if (o->request.decided)
            continue;
        if (o->read == NULL && has_live_leg(o)) /* the heartbeats of the sink's daemon renew the lease */
            o->expires = now + o->lease_ms;
        else if (now >= o->expires)
            offer_expire(o);
    }
    match_expire(node, now);
    serve_expire(node, now);
    withdraw_expire(node, now);
}

void exchange_tick(struct node *node)
{
    struct exchange *x = &node->exchange;
    uint64_t now = uv_now(node->loop);
    check_deadlines(node, now);
    sink_reclaim(node);
    notes_tick(node);
    if (now - x->redialled_at >= REDIAL_MS) {
        x->redialled_at = now;
        redial(node);
    }
    run_events(node);
}

bool exchange_idle(const struct node *node)
{
    const struct exchange *x = &node->exchange;
    return x->offers == NULL && x->expectations == NULL && x->pending_count == x->withdrawn_count;
}

void exchange_fini(struct node *node)
{
    struct exchange *x = &node->exchange;
    struct tombstone *stone, *next_stone;
    HASH_ITER (hh, x->tombstones, stone, next_stone)
        tombstone_free(node, stone);
    pending_fini(node);
    withdraw_fini(node);
    leg_queue_fini(&x->events);
}

void exchange_drain(struct node *node)
{
    match_drain(node);
    run_events(node);
}

void exchange_fail_all(struct node *node, enum strait_reason reason)
{
    struct expectation *e, *next_e;
    notes_fail_all(node);
    DL_FOREACH_SAFE (node->exchange.expectations, e, next_e)
        expectation_fail(e, reason, "the daemon is stopping");
    struct offer *o, *next_o;
    DL_FOREACH_SAFE (node->exchange.offers, o, next_o)
        offer_fail(o, reason, "the daemon is stopping");
    run_events(node);
}

void exchange_fail_waiting(struct node *node, const char *why)
{
    struct expectation *e, *next_e;
    notes_fail_all(node);
    DL_FOREACH_SAFE (node->exchange.expectations, e, next_e)
        if (e->request.state < STRAIT_TRANSFERRING)
            expectation_fail(e, STRAIT_REASON_LOCAL, why);
    struct offer *o, *next_o;
    DL_FOREACH_SAFE (node->exchange.offers, o, next_o)
        if (o->request.state < STRAIT_TRANSFERRING)
            offer_fail(o, STRAIT_REASON_LOCAL, why);
    run_events(node);
}

void exchange_fail_on_failed_gpus(struct node *node)
{
    struct expectation *e, *next_e;
    DL_FOREACH_SAFE (node->exchange.expectations, e, next_e)
        if (request_on_failed_gpu(&e->request))
            expectation_fail(e, STRAIT_REASON_LOCAL, "");
    struct offer *o, *next_o;
    DL_FOREACH_SAFE (node->exchange.offers, o, next_o)
        if (request_on_failed_gpu(&o->request))
            offer_fail(o, STRAIT_REASON_LOCAL, "");
    run_events(node);
}

/* ---- The end of a turn ------------------------------------------------------------------------------------------- */

static void free_request(struct request *request)
{
    request_untell(request);
    if (request->session != NULL)
        session_forget(request->session, request);
    request->tenant->live--;
    page_set_fini(&request->pages);
    request_free_texts(request);
}

static void free_expectation(struct expectation *e)
{
    DL_DELETE(e->request.node->exchange.expectations, e);
    free_request(&e->request);
    page_set_fini(&e->served);
    free(e->wanted);
    free(e->aux);
    free(e);
}

static void free_offer(struct offer *o)
{
    DL_DELETE(o->request.node->exchange.offers, o);
    free_request(&o->request);
    free(o->read);
    struct announce *a, *next;
    LL_FOREACH_SAFE (o->announces, a, next)
        free(a);
    free(o->ready);
    readiness_fini(&o->readiness);
    free(o->aux);
    free(o);
}

/* Frees a request if nothing refers to it any more. Otherwise it is listed again when another part of it ends. */
static void reap_request(struct request *request)
{
    request->to_reap = false;
    if (request->decided && request->is_offer)
        pending_forget_offer(request->node, (struct offer *)request);
    if (!request->decided || !request->drained)
        return;
    if (request->is_offer)
        serve_drained((struct offer *)request);
    if (!request->is_offer && ((struct expectation *)request)->sinks == NULL)
        free_expectation((struct expectation *)request);
    else if (request->is_offer && ((struct offer *)request)->sources == NULL)
        free_offer((struct offer *)request);
}

static void reap(struct node *node)
{
    struct exchange *x = &node->exchange;
    while (x->closed_sources != NULL || x->closed_sinks != NULL || x->to_reap != NULL) {
        struct source *source = x->closed_sources;
        struct sink *sink = x->closed_sinks;
        struct request *request = x->to_reap;
        if (source != NULL) {
            LL_DELETE2(x->closed_sources, source, closed_next);
            source_free(source);
            run_events(node); /* a local sink learns of it */
        } else if (sink != NULL) {
            LL_DELETE2(x->closed_sinks, sink, closed_next);
            pending_forget_sink(node, sink);
            sink_free(sink);
        } else {
            LL_DELETE2(x->to_reap, request, reap_next);
            reap_request(request);
        }
    }
}

/* ---- The turn ---------------------------------------------------------------------------------------------------- */

static bool is_full(const struct receive *receive)
{
    for (uint32_t i = 0; i < receive->arena_count; i++)
        if (receive->arenas[i]->slots.used < receive->arenas[i]->slots.slot_count)
            return false;
    return true;
}

/* Hands out free slots in turn to the legs that want one. */
static void give_slots(struct node *node)
{
    struct exchange *x = &node->exchange;
    for (uint32_t passed = 0; passed < x->wanting_count;) {
        if (x->wanting_pages == 0 && is_full(&node->receive))
            break;
        struct sink *sink = x->wanting;
        const uint64_t next = sink->leg.next_grant;
        (void)sink_grant(sink);
        run_events(node);
        passed = sink->leg.next_grant != next ? 0 : passed + 1; /* the leg may hold too many pieces to take it */
        if (x->wanting == sink) {                               /* to the end of the round */
            DL_DELETE2(x->wanting, sink, wprev, wnext);
            DL_APPEND2(x->wanting, sink, wprev, wnext);
        }
    }
}

#define ENCODING_JOBS_MAX 8u /* jobs that encode or copy at once: enough to keep the workers busy */

/* Begins chunks leg by leg: as many as there is memory for, and where none is needed, a few more than there are
 * workers. False: none could begin. */
static bool encode_chunks(struct node *node)
{
    struct exchange *x = &node->exchange;
    bool any = false;
    for (uint32_t passed = 0; passed < x->encoding_count && x->encoding_jobs < ENCODING_JOBS_MAX;) {
        struct source *source = x->encoding;
        if (source->port->is_stuck(source)) {
            passed++;
        } else {
            histogram_record(&node->metrics.stages[STAGE_QUEUE], (uv_hrtime() - source->queued_at) / 1000);
            source_event(source, SOURCE_ENCODE, STRAIT_REASON_NONE);
            run_events(node);
            passed = 0;
            any = true;
        }
        if (x->encoding == source) { /* to the end of the round */
            DL_DELETE2(x->encoding, source, wprev, wnext);
            DL_APPEND2(x->encoding, source, wprev, wnext);
        }
    }
    return any;
}

void exchange_turn(struct node *node)
{
    struct exchange *x = &node->exchange;
    run_events(node);
    do
        give_slots(node);
    while (encode_chunks(node) && x->wanting_pages != 0); /* local legs may want more by now */
    if (x->down_peers != 0)
        peers_each(node->peers, close_link_when_idle, x);
    reap(node);
}

void exchange_init(struct node *node)
{
    node->exchange.events.run = run_events;
}
