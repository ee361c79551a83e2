/* The exchange as a whole: its timers, and the end of a turn of the loop. */
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/node.h"
#include "daemon/session.h"
#include "daemon/sink.h"
#include "daemon/source.h"

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
