/* Requests that came before their offer, and announcements that came before their expectation. */
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/node.h"
#include "daemon/sink.h"

void parked_add(struct node *node, struct parked *parked)
{
    struct exchange *x = &node->exchange;
    DL_APPEND(x->parked, parked);
    HASH_ADD(by_name, x->parked_by_name, key, sizeof(parked->key), parked);
    if (parked->at.peer != NULL)
        HASH_ADD(by_leg, x->parked_by_leg, at, sizeof(parked->at), parked);
    if (parked->peer != NULL)
        ((struct peer_use *)parked->peer->owner)->parked++;
    x->parked_count++;
}

void parked_remove(struct node *node, struct parked *parked)
{
    struct exchange *x = &node->exchange;
    DL_DELETE(x->parked, parked);
    HASH_DELETE(by_name, x->parked_by_name, parked);
    if (parked->at.peer != NULL)
        HASH_DELETE(by_leg, x->parked_by_leg, parked);
    x->parked_count--;
    if (parked->peer != NULL) {
        struct peer_use *use = parked->peer->owner;
        use->parked--;
        use->parked_spans -= parked->span_count;
    }
    free(parked->spans);
    free(parked);
}

struct parked *parked_find_leg(struct node *node, struct peer *peer, uint64_t leg)
{
    struct source_key key;
    memset(&key, 0, sizeof(key));
    key.peer = peer;
    key.id = leg;
    struct parked *parked;
    HASH_FIND(by_leg, node->exchange.parked_by_leg, &key, sizeof(key), parked);
    return parked;
}

void parked_forget_peer(struct node *node, struct peer *peer)
{
    struct parked *parked, *next;
    DL_FOREACH_SAFE (node->exchange.parked, parked, next)
        if (parked->peer == peer)
            parked_remove(node, parked);
}

/* A local one waits for a single name, and few wait for the same. */
static void forget_local(struct node *node, const struct parked_key *key, const void *whose)
{
    struct exchange *x = &node->exchange;
    struct parked *parked, *kept = NULL;
    HASH_FIND(by_name, x->parked_by_name, key, sizeof(*key), parked);
    while (parked != NULL && parked->sink != whose && parked->offer != whose) { /* set others of that name aside */
        HASH_DELETE(by_name, x->parked_by_name, parked);
        parked->aside = kept;
        kept = parked;
        HASH_FIND(by_name, x->parked_by_name, key, sizeof(*key), parked);
    }
    if (parked != NULL)
        parked_remove(node, parked);
    for (; kept != NULL; kept = kept->aside)
        HASH_ADD(by_name, x->parked_by_name, key, sizeof(kept->key), kept);
}

void parked_forget_sink(struct node *node, struct sink *sink)
{
    struct parked_key key = {.wants = sink->source, .is_request = true};
    if (sink->is_local)
        forget_local(node, &key, sink);
}

void parked_forget_offer(struct node *node, struct offer *offer)
{
    struct announce *announce;
    LL_FOREACH (offer->announces, announce) {
        struct parked_key key = {.wants = announce->sink};
        if (announce->address[0] == '\0')
            forget_local(node, &key, offer);
    }
}

/* Finds one at a time, because handling it may add to the list or remove from it. */
static struct parked *find(struct node *node, bool request, const struct request *side)
{
    struct parked_key key = {.wants = side->name, .is_request = request};
    struct parked *parked;
    HASH_FIND(by_name, node->exchange.parked_by_name, &key, sizeof(key), parked);
    if (parked == NULL || !parked->more)
        return parked;
    DL_FOREACH (node->exchange.parked, parked) /* its spans are still coming: is there another? */
        if (memcmp(&parked->key, &key, sizeof(key)) == 0 && !parked->more)
            return parked;
    return NULL;
}

void parked_meet_offer(struct offer *offer)
{
    struct node *node = offer->request.node;
    struct parked *parked;
    while (!offer->request.decided && (parked = find(node, true, &offer->request)) != NULL) {
        struct sink *sink = parked->sink;
        if (sink == NULL) {
            request_bind(parked, offer, &(struct open_grants){0});
            parked_remove(node, parked);
        } else {
            parked_remove(node, parked);
            local_bind(sink, offer);
        }
    }
}

void parked_meet_expectation(struct expectation *e)
{
    struct node *node = e->request.node;
    struct parked *parked;
    while (!e->request.decided && (parked = find(node, false, &e->request)) != NULL) {
        struct name from = parked->from;
        struct peer *peer = parked->peer;
        bool local = parked->offer != NULL;
        parked_remove(node, parked);
        if (local)
            expectation_start(e, &from, "", true);
        else
            (void)expectation_announced(e, &from, peer); /* beyond the expectation's limit: it waits for its lease */
    }
}
