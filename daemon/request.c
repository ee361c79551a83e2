/* The common part of offers and expectations: pages, state, end. */
#include <utlist.h>

#include "daemon/node.h"
#include "daemon/session.h"

static bool mark(struct request *request, const struct wire_page_list *list)
{
    struct pool *pool = request->pool->pool;
    return request->is_offer ? pool_offer(pool, list) : pool_expect(pool, list);
}

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
    if (!mark(request, list))
        return STRAIT_REASON_BUSY;
    enum strait_status status = page_set_add(&request->pages, list);
    if (status == STRAIT_OK)
        return request_is_stranded(request) ? STRAIT_REASON_LOCAL : STRAIT_REASON_NONE;
    unmark(request, list);
    return status == STRAIT_ERR_NO_MEMORY ? STRAIT_REASON_NO_MEMORY : STRAIT_REASON_GEOMETRY;
}

bool request_is_stranded(const struct request *request)
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

#define CHARGED_MAX (512ull * 1024 * 1024) /* by all live requests of one client */

bool request_charge(struct request *request, uint64_t bytes)
{
    struct session *session = request->session;
    if (session == NULL)
        return true; /* the client is gone and cannot ask for more */
    if (bytes > CHARGED_MAX - session->charged)
        return false;
    session->charged += bytes;
    request->charged += bytes;
    return true;
}

const char *request_why(const struct request *request, enum strait_reason reason, const char *text,
                        struct device_state *state)
{
    const struct pool *pool = request->pool == NULL ? NULL : request->pool->pool;
    if (reason != STRAIT_REASON_LOCAL || text[0] != '\0' || pool == NULL)
        return text;
    for (uint32_t g = 0; g < pool->group_count; g++)
        if (devices_state(request->node->devices, pool->groups[g].device, state) && state->failed)
            return state->why;
    return text;
}

void request_rouse(const struct request *request)
{
    const struct pool *pool = request->pool->pool;
    int32_t before = -1;
    for (uint32_t g = 0; g < pool->group_count; g++) {
        int32_t device = pool->groups[g].device;
        if (device >= 0 && device != before)
            devices_rouse(request->node->devices, device);
        before = device;
    }
}

void request_over(struct request *request)
{
    if (request->over)
        return;
    request->over = true;
    LL_PREPEND2(request->node->exchange.over, request, over_next);
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

void request_release_pool(struct request *request)
{
    struct pool_ref *pool = request->pool;
    if (pool == NULL)
        return;
    pool_release(pool->pool, &request->pages, !request->is_offer);
    request->pool = NULL;
    pool->uses--;
    if (pool->uses == 0 && pool->removing)
        session_pool_gone(pool);
}
