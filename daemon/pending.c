#include "daemon/pending.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "daemon/node.h"
#include "daemon/sink.h"

void pending_add(struct node *node, struct pending *pending)
{
    struct exchange *x = &node->exchange;
    DL_APPEND(x->pending, pending);
    HASH_ADD(by_name, x->pending_by_name, key, sizeof(pending->key), pending);
    if (pending->at.peer != NULL)
        HASH_ADD(by_leg, x->pending_by_leg, at, sizeof(pending->at), pending);
    if (pending->peer != NULL)
        ((struct peer_use *)pending->peer->owner)->pending++;
    x->pending_count++;
    x->withdrawn_count += pending->withdrawn != STRAIT_REASON_NONE;
}

void pending_remove(struct node *node, struct pending *pending)
{
    struct exchange *x = &node->exchange;
    DL_DELETE(x->pending, pending);
    HASH_DELETE(by_name, x->pending_by_name, pending);
    if (pending->at.peer != NULL)
        HASH_DELETE(by_leg, x->pending_by_leg, pending);
    x->pending_count--;
    x->withdrawn_count -= pending->withdrawn != STRAIT_REASON_NONE;
    if (pending->peer != NULL) {
        struct peer_use *use = pending->peer->owner;
        use->pending--;
        use->pending_spans -= pending->charged;
    }
    free(pending->spans);
    page_set_fini(&pending->pages);
    free(pending);
}

struct pending *pending_find_leg(struct node *node, struct peer *peer, uint64_t leg)
{
    struct source_key key;
    memset(&key, 0, sizeof(key));
    key.peer = peer;
    key.id = leg;
    struct pending *pending;
    HASH_FIND(by_leg, node->exchange.pending_by_leg, &key, sizeof(key), pending);
    return pending;
}

void pending_forget_peer(struct node *node, struct peer *peer)
{
    struct pending *pending, *next;
    DL_FOREACH_SAFE (node->exchange.pending, pending, next) {
        if (pending->peer != peer)
            continue;
        if (pending->withdrawn == STRAIT_REASON_NONE) {
            pending_remove(node, pending);
            continue;
        }
        ((struct peer_use *)peer->owner)->pending--; /* what has ended has ended, whoever was told by whom */
        pending->peer = NULL;
    }
}

/* Removes the entry of a local sink or offer: it waits for a single name, and few wait for the same. */
static void forget_local(struct node *node, const struct pending_key *key, const void *whose)
{
    struct exchange *x = &node->exchange;
    struct pending *pending, *kept = NULL;
    HASH_FIND(by_name, x->pending_by_name, key, sizeof(*key), pending);
    while (pending != NULL && pending->sink != whose && pending->offer != whose) { /* set others of that name aside */
        HASH_DELETE(by_name, x->pending_by_name, pending);
        pending->aside = kept;
        kept = pending;
        HASH_FIND(by_name, x->pending_by_name, key, sizeof(*key), pending);
    }
    if (pending != NULL)
        pending_remove(node, pending);
    for (; kept != NULL; kept = kept->aside)
        HASH_ADD(by_name, x->pending_by_name, key, sizeof(kept->key), kept);
}

void pending_forget_sink(struct node *node, struct sink *sink)
{
    struct pending_key key = {.wants = sink->source, .is_request = true, .is_read = sink->expectation->is_read};
    if (sink->port == &sink_over_memory)
        forget_local(node, &key, sink);
}

void pending_forget_offer(struct node *node, struct offer *offer)
{
    struct announce *announce;
    LL_FOREACH (offer->announces, announce) {
        struct pending_key key = {.wants = announce->sink};
        if (announce->address[0] == '\0')
            forget_local(node, &key, offer);
    }
}

/* Its spans, or the description of its pool, are still coming. */
static bool is_incomplete(const struct pending *pending)
{
    return pending->more || pending->undescribed;
}

struct pending *pending_find(struct node *node, bool request, const struct request *side)
{
    struct pending_key key = {.wants = side->name, .is_request = request};
    struct pending *pending;
    HASH_FIND(by_name, node->exchange.pending_by_name, &key, sizeof(key), pending);
    if (pending == NULL || !is_incomplete(pending))
        return pending;
    DL_FOREACH (node->exchange.pending, pending) /* is there another? */
        if (memcmp(&pending->key, &key, sizeof(key)) == 0 && !is_incomplete(pending))
            return pending;
    return NULL;
}

void pending_forget_withdrawn(struct node *node, const struct pending_key *key, const struct name *from)
{
    struct pending *pending, *next;
    if (node->exchange.withdrawn_count == 0)
        return;
    DL_FOREACH_SAFE (node->exchange.pending, pending, next)
        if (pending->withdrawn != STRAIT_REASON_NONE && memcmp(&pending->key, key, sizeof(*key)) == 0 &&
            memcmp(&pending->from, from, sizeof(*from)) == 0)
            pending_remove(node, pending);
}

bool pending_make_room(struct node *node, const struct peer *peer)
{
    struct pending *pending;
    DL_FOREACH (node->exchange.pending, pending)
        if (pending->withdrawn != STRAIT_REASON_NONE && (peer == NULL || pending->peer == peer)) {
            pending_remove(node, pending);
            return true;
        }
    return false;
}

struct pending *pending_new(struct node *node, struct peer *peer)
{
    const struct peer_use *use = peer->owner;
    if (use->pending >= node->options.parked && !pending_make_room(node, peer))
        return NULL;
    struct pending *pending = calloc(1, sizeof(*pending));
    if (pending == NULL)
        return NULL;
    pending->peer = peer;
    pending->came = uv_hrtime();
    return pending;
}

bool pending_keep_expired(struct node *node, struct pending *pending, uint64_t now)
{
    struct exchange *x = &node->exchange;
    if (pending->at.peer == NULL || pending->more || node->draining || x->withdrawn_count >= WITHDRAWN_MAX)
        return false;
    HASH_DELETE(by_leg, x->pending_by_leg, pending);
    pending->at.peer = NULL;
    ((struct peer_use *)pending->peer->owner)->pending_spans -= pending->charged;
    free(pending->spans);
    pending->spans = NULL;
    pending->span_count = pending->charged = 0;
    pending->withdrawn = STRAIT_REASON_TIMEOUT;
    pending->undescribed = false; /* an answer settles nothing any more */
    pending->expires = now + WITHDRAWN_MS;
    x->withdrawn_count++;
    return true;
}

void pending_fini(struct node *node)
{
    struct pending *pending, *next;
    DL_FOREACH_SAFE (node->exchange.pending, pending, next)
        pending_remove(node, pending);
}
