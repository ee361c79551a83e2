#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "daemon/node.h"
#include "daemon/request.h"

void name_set(struct name *name, struct view tenant, const struct pool_id *pool, struct view key)
{
    memset(name, 0, sizeof(*name)); /* because names are hashed and compared as bytes */
    if (!is_default_tenant(tenant))
        memcpy(name->tenant, tenant.data, tenant.size);
    name->pool = *pool;
    name->size = (uint8_t)key.size;
    if (key.size > 0) /* names of pools have none */
        memcpy(name->key, key.data, key.size);
}

struct pool_ref *name_pool(struct node *node, const struct name *wanted)
{
    const struct view name = view_of(wanted->tenant, strnlen(wanted->tenant, sizeof(wanted->tenant)));
    const struct tenant *tenant = tenant_named(node, name);
    struct pool_ref *pool = tenant != NULL ? pool_find(node, tenant, &wanted->pool) : NULL;
    const bool lives = pool != NULL && !pool->removing && pool->session != NULL && !pool->session->ending;
    return lives && !tenant_is_removed(tenant) ? pool : NULL;
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

/* Whether the request has the page already, or twice in this list. */
static bool is_named_twice(const struct request *request, const struct wire_page_list *list, uint32_t page)
{
    const struct page_group *group = &request->pages.groups[list->group];
    uint32_t named = 0;
    for (uint32_t i = 0; i < group->id_count; i++)
        if (group->ids[i] == page)
            return true;
    for (uint32_t i = 0; list->ids != NULL && i < list->count && named < 2; i++)
        named += list->ids[i] == page;
    return named == 2;
}

enum strait_reason request_add_pages(struct request *request, const struct wire_page_list *list, const char **why)
{
    *why = "";
    if (list->count == 0)
        return STRAIT_REASON_NONE;
    if (!pool_has(request->pool->pool, list)) {
        *why = "no such page";
        return STRAIT_REASON_GEOMETRY;
    }
    *why = "page lists of this client take too much memory";
    if (!request_charge(request, (uint64_t)list->count * sizeof(uint32_t) * 2 + sizeof(struct page_span)))
        return STRAIT_REASON_NO_MEMORY;
    struct pool *pool = request->pool->pool;
    uint32_t used;
    if (!pool_mark(pool, list, !request->is_offer, &used)) {
        const bool twice = !request->is_offer && is_named_twice(request, list, used);
        *why = request_text(request, "page %u of group %u is %s", used, list->group,
                            twice ? "named twice" : "in use by another request");
        return twice ? STRAIT_REASON_GEOMETRY : STRAIT_REASON_BUSY;
    }
    if (!request->is_offer)
        sampling_stop(request->node, &request->pool->sampled); /* pages that are served may be among them */
    enum strait_status status = page_set_add(&request->pages, list);
    if (status == STRAIT_OK) {
        *why = "";
        return request_on_failed_gpu(request) ? STRAIT_REASON_LOCAL : STRAIT_REASON_NONE;
    }
    unmark(request, list);
    if (status == STRAIT_ERR_NO_MEMORY)
        return STRAIT_REASON_NO_MEMORY;
    *why = "a logical index is named twice, or there are too many pages";
    return STRAIT_REASON_GEOMETRY;
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

void tombstone_set(struct node *node, const struct name *name, bool is_offer, enum strait_reason reason)
{
    struct exchange *x = &node->exchange;
    tombstone_remove(node, name, is_offer);
    if (reason == STRAIT_REASON_NONE)
        return;
    struct tombstone *stone = calloc(1, sizeof(*stone));
    if (stone == NULL)
        return; /* late messages will be pending until their deadline instead */
    stone->key.name = *name;
    stone->key.is_offer = is_offer;
    stone->reason = reason;
    stone->ended = uv_now(node->loop);
    HASH_ADD(hh, x->tombstones, key, sizeof(stone->key), stone);
    if (HASH_COUNT(x->tombstones) > TOMBSTONES)
        tombstone_free(node, x->tombstones); /* the head is the oldest */
}

/* ---- The verdict ------------------------------------------------------------------------------------------------- */

#define REQUEST_TEXT_MAX 512u

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

struct own_text {
    struct own_text *next;
    char text[];
};

/* One for each leg, and some of the request itself. */
#define OWN_TEXTS_MAX (STRAIT_PARTS_MAX + 16u)

const char *request_text(struct request *request, const char *format, ...)
{
    char text[REQUEST_TEXT_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    const size_t size = strlen(text) + 1;
    struct own_text *own = request->own_text_count < OWN_TEXTS_MAX ? malloc(sizeof(*own) + size) : NULL;
    if (own == NULL)
        return "";
    memcpy(own->text, text, size);
    LL_PREPEND(request->own_texts, own);
    request->own_text_count++;
    return own->text;
}

void request_free_texts(struct request *request)
{
    struct own_text *own, *next;
    LL_FOREACH_SAFE (request->own_texts, own, next)
        free(own);
    request->own_texts = NULL;
}

const char *request_waits(struct request *request, const char *address, bool asked)
{
    const struct peer *peer = peers_find(request->node->peers, address);
    if (asked || address[0] == '\0')
        return request_text(request, "%s has no %s of that name", address[0] == '\0' ? "this daemon" : address,
                            request->is_offer ? "expectation" : "offer");
    if (peer == NULL || peer->why[0] == '\0')
        return request_text(request, "%s: %s", address,
                            peer == NULL ? "not dialled: too many addresses of this user's are"
                                         : peer_state_name(peer->state));
    return request_text(request, "%s: %s (%u attempts)", address, peer->why, peer->attempts);
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
    *(state == STRAIT_DONE ? &request->tenant->done : &request->tenant->failed) += 1;
    request->decided = true;
    request->state = state;
    request->reason = reason;
    request->text = text;
    request_reap(request);
    DL_APPEND2(request->node->exchange.verdicts, request, verdict_prev, verdict_next);
    if (!request->nameless)
        tombstone_set(request->node, &request->name, request->is_offer, reason);
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
    if (state == STRAIT_BOOTSTRAP || request->session == NULL || request->untold)
        return; /* the client's transfer begins there */
    request->untold = true;
    DL_APPEND2(request->session->untold, request, untold_prev, untold_next);
}

void request_tell_states(struct session *session)
{
    for (struct request *request = session->untold; request != NULL; request = session->untold) {
        struct message message = {.type = MESSAGE_STATE,
                                  .state = {.transfer = request->transfer, .state = (uint32_t)request->state}};
        request_untell(request);
        session_send(session, &message);
    }
}

void request_untell(struct request *request)
{
    if (request->untold)
        DL_DELETE2(request->session->untold, request, untold_prev, untold_next);
    request->untold = false;
}

void request_met(struct request *request, const char *address)
{
    if (request->peer[0] == '\0')
        snprintf(request->peer, sizeof(request->peer), "%s", address);
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

void requests_told(struct node *node)
{
    struct exchange *x = &node->exchange;
    for (uint32_t i = 0; i < x->told_count; i++) {
        timeline_mark(&x->told[i], PHASE_VERDICT);
        metrics_record(&node->metrics, &x->told[i], PHASE_START);
    }
    x->told_count = 0;
}

void request_send_verdict(struct request *request, const char *text, struct view aux)
{
    struct message message = {.type = MESSAGE_STATE};
    request_untell(request);
    message.state = (struct message_state){.transfer = request->transfer,
                                           .state = (uint32_t)request->state,
                                           .reason = (uint32_t)request->reason,
                                           .drained = request->drained,
                                           .text = view_of(text, strlen(text)),
                                           .aux = aux,
                                           .raw_bytes = request->raw_bytes,
                                           .wire_bytes = request->wire_bytes,
                                           .peer = view_of(request->peer, strlen(request->peer))};
    session_send(request->session, &message);
    if (request->session != NULL && !request->is_offer)
        request->session->urgent = true;
    request->notified = true;
    if (request->drained)
        session_drained(request->session);
}
