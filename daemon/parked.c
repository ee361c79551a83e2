/* What came before its other side: requests without their offer, announcements without their expectation. */
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/node.h"

void parked_add(struct node *node, struct parked *parked)
{
    DL_APPEND(node->exchange.parked, parked);
    node->exchange.parked_count++;
}

void parked_remove(struct node *node, struct parked *parked)
{
    DL_DELETE(node->exchange.parked, parked);
    node->exchange.parked_count--;
    if (parked->peer != NULL)
        ((struct peer_use *)parked->peer->owner)->parked--;
    free(parked->spans);
    free(parked);
}

#define FORGET(condition)                                \
    struct parked *parked, *next;                        \
    DL_FOREACH_SAFE(node->exchange.parked, parked, next) \
    if (condition)                                       \
        parked_remove(node, parked);

void parked_forget_peer(struct node *node, struct peer *peer)
{
    FORGET(parked->peer == peer)
}

void parked_forget_sink(struct node *node, struct sink *sink)
{
    FORGET(parked->sink == sink)
}

void parked_forget_offer(struct node *node, struct offer *offer)
{
    FORGET(parked->offer == offer)
}

static bool is_for(const struct parked *parked, bool request, const struct request *side)
{
    return parked->is_request == request && memcmp(&parked->wants, &side->name, sizeof(side->name)) == 0;
}

/* Only the first of the list is looked at each time: what is done with it may add to or take from the list. */
static struct parked *find(struct node *node, bool request, const struct request *side)
{
    struct parked *parked;
    DL_FOREACH(node->exchange.parked, parked)
    if (is_for(parked, request, side) && !parked->more)
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
            request_bind(parked, offer);
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
            expectation_announced(e, &from, peer);
    }
}
