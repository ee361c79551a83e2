#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "daemon/node.h"
#include "daemon/request.h"

void name_set(struct name *name, const struct pool_id *pool, struct view key)
{
    memset(name, 0, sizeof(*name)); /* because names are hashed and compared as bytes */
    name->pool = *pool;
    name->size = (uint8_t)key.size;
    memcpy(name->key, key.data, key.size);
}

/* ---- Pages ------------------------------------------------------------------------------------------------------- */

static void unmark(struct request *request, const struct wire_page_list *list)
{
    struct page_set one;
    if (page_set_init(&one, request->pool->pool->group_count) != STRAIT_OK)
        return; /* the pages stay marked: busy, but safe */
    if (page_set_add(&one, list) == STRAIT_OK)
        pool_release(request->pool->pool, &one, !request->is_offer);
    page_set_fini(&one);
}

enum strait_reason request_add_pages(struct request *request, const struct wire_page_list *list)
{
    if (list->count == 0)
        return STRAIT_REASON_NONE;
    if (!pool_has(request->pool->pool, list))
        return STRAIT_REASON_GEOMETRY;
    if (!request_charge(request, (uint64_t)list->count * sizeof(uint32_t) * 2 + sizeof(struct page_span)))
        return STRAIT_REASON_NO_MEMORY;
    struct pool *pool = request->pool->pool;
    if (!(request->is_offer ? pool_offer(pool, list) : pool_expect(pool, list)))
        return STRAIT_REASON_BUSY;
    enum strait_status status = page_set_add(&request->pages, list);
    if (status == STRAIT_OK)
        return request_on_failed_gpu(request) ? STRAIT_REASON_LOCAL : STRAIT_REASON_NONE;
    unmark(request, list);
    return status == STRAIT_ERR_NO_MEMORY ? STRAIT_REASON_NO_MEMORY : STRAIT_REASON_GEOMETRY;
}

bool request_on_failed_gpu(const struct request *request)
{
    const uint64_t failed = request->node->gpus_failed;
    if (failed == 0 || request->pool == NULL)
        return false;
    const struct pool *pool = request->pool->pool;
    for (uint32_t g = 0; g < pool->group_count; g++) {
        const int32_t device = pool->groups[g].device;
        if (device >= 0 && (failed >> device & 1) != 0 && request->pages.groups[g].id_count != 0)
            return true;
    }
    return false;
}

bool request_charge(struct request *request, uint64_t bytes)
{
    if (!session_charge(request->session, bytes))
        return false;
    request->charged += bytes;
    return true;
}

/* ---- Names of failed requests ------------------------------------------------------------------------------------ */

/* Remembers for a while how requests failed, so that a late other side gets the old verdict instead of waiting in vain.
 * A request that was DONE leaves no tombstone: its name may be used again, and then waits for its new other side. */

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

static void tombstone_add(struct node *node, const struct request *request)
{
    struct exchange *x = &node->exchange;
    tombstone_remove(node, &request->name, request->is_offer);
    if (request->reason == STRAIT_REASON_NONE)
        return;
    struct tombstone *stone = calloc(1, sizeof(*stone));
    if (stone == NULL)
        return; /* late messages will be pending until their deadline instead */
    stone->key.name = request->name;
    stone->key.is_offer = request->is_offer;
    stone->reason = request->reason;
    stone->ended = uv_now(node->loop);
    HASH_ADD(hh, x->tombstones, key, sizeof(stone->key), stone);
    if (HASH_COUNT(x->tombstones) > TOMBSTONES)
        tombstone_free(node, x->tombstones); /* the head is the oldest */
}

/* ---- The verdict ------------------------------------------------------------------------------------------------- */

const char *request_why(const struct request *request, struct device_state *state)
{
    const struct pool *pool = request->pool == NULL ? NULL : request->pool->pool;
    if (request->reason != STRAIT_REASON_LOCAL || request->text[0] != '\0' || pool == NULL)
        return request->text;
    for (uint32_t g = 0; g < pool->group_count; g++)
        if (devices_state(request->node->devices, pool->groups[g].device, state) && state->failed)
            return state->why;
    return request->text;
}

void request_reap(struct request *request)
{
    if (request->to_reap)
        return;
    request->to_reap = true;
    LL_PREPEND2(request->node->exchange.to_reap, request, reap_next);
}

void request_decide(struct request *request, enum strait_state state, enum strait_reason reason, const char *text)
{
    request->decided = true;
    request->state = state;
    request->reason = reason;
    request->text = text;
    request_reap(request);
    DL_APPEND2(request->node->exchange.verdicts, request, verdict_prev, verdict_next);
    tombstone_add(request->node, request);
}

void request_wake_gpus(const struct request *request)
{
    const struct pool *pool = request->pool->pool;
    int32_t before = -1;
    for (uint32_t g = 0; g < pool->group_count; g++) {
        int32_t device = pool->groups[g].device;
        if (device >= 0 && device != before)
            devices_wake(request->node->devices, device);
        before = device;
    }
}

void request_state(struct request *request, enum strait_state state)
{
    if (request->decided || state <= request->state)
        return;
    request->state = state;
    struct message message = {.type = MESSAGE_STATE,
                              .state = {.transfer = request->transfer, .state = (uint32_t)state}};
    session_send(request->session, &message);
}

void request_drain(struct request *request)
{
    struct pool_ref *pool = request->pool;
    request->drained = true;
    request_reap(request);
    if (pool == NULL)
        return;
    pool_release(pool->pool, &request->pages, !request->is_offer);
    request->pool = NULL;
    pool->uses--;
    if (pool->uses == 0 && pool->removing)
        session_pool_gone(pool);
}

void request_send_verdict(struct request *request, const char *text, struct view aux)
{
    struct message message = {.type = MESSAGE_STATE};
    message.state = (struct message_state){.transfer = request->transfer,
                                           .state = (uint32_t)request->state,
                                           .reason = (uint32_t)request->reason,
                                           .drained = request->drained,
                                           .text = view_of(text, strlen(text)),
                                           .aux = aux};
    session_send(request->session, &message);
    request->notified = true;
    if (request->drained)
        session_drained(request->session);
}
