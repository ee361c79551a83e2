/* Remembers for a while how requests failed, so that a late other side gets the old verdict instead of waiting in vain.
 * A request that was DONE leaves no tombstone: its name may be used again, and then waits for its new other side. */
#include <stdlib.h>

#include "daemon/node.h"

#define TOMBSTONES   4096u  /* at most this many are remembered, */
#define TOMBSTONE_MS 60000u /* for this long: then a name may mean something new */

enum strait_reason tombstone_reason(struct node *node, const struct name *name, bool is_offer)
{
    struct exchange *x = &node->exchange;
    struct tombstone *stone;
    struct tombstone_key key = {.name = *name, .is_offer = is_offer};
    HASH_FIND(hh, x->tombstones, &key, sizeof(key), stone);
    bool known = stone != NULL && uv_now(node->loop) - stone->ended <= TOMBSTONE_MS;
    return known ? stone->reason : STRAIT_REASON_NONE;
}

void tombstone_free(struct node *node, struct tombstone *stone)
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
    if (request->reason == STRAIT_REASON_NONE)
        return;
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
