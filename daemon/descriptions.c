#include "daemon/descriptions.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>
#include <xxhash.h>

#include "daemon/memory/view.h"
#include "daemon/node.h"
#include "daemon/request.h"

struct description {
    struct name name; /* without a key */
    struct pool_blob blob;
    uint64_t geometry;
    struct description *prev, *next;
};

static struct descriptions *of(struct peer *peer)
{
    struct peer_use *use = peer->owner;
    return use != NULL ? &use->descriptions : NULL;
}

static void description_free(struct description *description)
{
    blob_fini(&description->blob);
    free(description);
}

void descriptions_free(struct descriptions *descriptions)
{
    struct description *description, *next;
    DL_FOREACH_SAFE (descriptions->list, description, next)
        description_free(description);
    *descriptions = (struct descriptions){0};
}

/* ---- Pools of peers ---------------------------------------------------------------------------------------------- */

static struct description *find(const struct descriptions *descriptions, const struct name *pool)
{
    struct description *description;
    DL_FOREACH (descriptions->list, description)
        if (memcmp(&description->name.pool, &pool->pool, sizeof(pool->pool)) == 0 &&
            memcmp(description->name.tenant, pool->tenant, sizeof(pool->tenant)) == 0)
            return description;
    return NULL;
}

const struct pool_blob *description_find(struct peer *peer, const struct name *pool, uint64_t geometry)
{
    const struct descriptions *descriptions = of(peer);
    const struct description *found = descriptions != NULL ? find(descriptions, pool) : NULL;
    return found != NULL && found->geometry == geometry ? &found->blob : NULL;
}

bool description_ask(struct peer *peer, const struct name *pool)
{
    if (!peer->takes_reshapes)
        return false;
    struct message message = {.type = MESSAGE_POOL_ASK};
    message.pool_ask = (struct message_pool_ask){
        .pool = pool->pool, .tenant = view_of(pool->tenant, strnlen(pool->tenant, sizeof(pool->tenant)))};
    (void)peer_send(peer, &message); /* if the peer is down, what waits for the answer goes with it */
    return true;
}

/* What was told before all others makes room, here and at the peer's: its own list is in the same order. */
static void make_room(struct descriptions *descriptions)
{
    struct description *oldest = descriptions->list;
    if (descriptions->count < DESCRIPTIONS_MAX)
        return;
    DL_DELETE(descriptions->list, oldest);
    description_free(oldest);
    descriptions->count--;
}

bool description_take(struct peer *peer, const struct message_pool_description *message, struct name *pool)
{
    struct descriptions *descriptions = of(peer);
    struct description *description = descriptions != NULL ? calloc(1, sizeof(*description)) : NULL;
    if (description == NULL)
        return descriptions == NULL; /* without memory the connection ends, as with any other message */
    if (blob_unpack(message->blob.data, message->blob.size, &description->blob) != STRAIT_OK) {
        free(description);
        return false;
    }
    const struct pool_blob *blob = &description->blob;
    name_set(&description->name, message->tenant, &blob->pool, (struct view){0});
    *pool = description->name;
    description->geometry =
        blob_geometry(blob->regions, blob->region_count, view_of(blob->compat, strlen(blob->compat)));
    struct description *before = find(descriptions, pool);
    if (before != NULL) {
        DL_DELETE(descriptions->list, before);
        description_free(before);
        descriptions->count--;
    }
    make_room(descriptions);
    DL_APPEND(descriptions->list, description);
    descriptions->count++;
    return true;
}

/* ---- Pools of this node ------------------------------------------------------------------------------------------ */

/* Of two tenants' pools with one id, each is told. */
static uint64_t mark_of(const struct pool_ref *pool)
{
    const struct view tenant = tenant_view(pool->tenant);
    const uint64_t seed = XXH3_64bits_withSeed(tenant.data, tenant.size, pool->pool->geometry);
    return XXH3_64bits_withSeed(pool->key.id.bytes, sizeof(pool->key.id.bytes), seed);
}

/* The place of a mark; told_count: it is not there. */
static uint32_t find_told(const struct descriptions *descriptions, uint64_t mark)
{
    uint32_t i = 0;
    while (i < descriptions->told_count && descriptions->told[i] != mark)
        i++;
    return i;
}

/* Moves the mark to the end, as the peer moves the description. */
static void mark_told(struct descriptions *descriptions, uint64_t mark)
{
    uint32_t at = find_told(descriptions, mark);
    if (at == DESCRIPTIONS_MAX)
        at = 0; /* the one that the peer forgets */
    else if (at == descriptions->told_count)
        descriptions->told_count++;
    for (; at + 1 < descriptions->told_count; at++)
        descriptions->told[at] = descriptions->told[at + 1];
    descriptions->told[at] = mark;
}

static bool send_description(struct peer *peer, const struct pool_ref *pool)
{
    const struct pool_blob blob = view_described(pool->pool);
    size_t size;
    if (blob_pack(&blob, NULL, 0, &size) != STRAIT_ERR_NO_SPACE)
        return false;
    void *bytes = malloc(size);
    struct message message = {.type = MESSAGE_POOL_DESCRIPTION};
    const bool packed = bytes != NULL && blob_pack(&blob, bytes, size, &size) == STRAIT_OK;
    if (packed) {
        mark_told(of(peer), mark_of(pool));
        message.pool_description =
            (struct message_pool_description){.tenant = tenant_view(pool->tenant), .blob = view_of(bytes, size)};
        (void)peer_send(peer, &message);
    }
    free(bytes);
    return packed;
}

bool description_tell(struct peer *peer, const struct pool_ref *pool)
{
    const struct descriptions *descriptions = of(peer);
    if (descriptions == NULL)
        return false;
    return find_told(descriptions, mark_of(pool)) < descriptions->told_count || send_description(peer, pool);
}

void description_asked(struct node *node, struct peer *peer, const struct message_pool_ask *message)
{
    struct name name;
    name_set(&name, message->tenant, &message->pool, (struct view){0});
    const struct pool_ref *pool = name_pool(node, &name);
    if (pool != NULL && of(peer) != NULL)
        (void)send_description(peer, pool);
}
