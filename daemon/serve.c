#include "daemon/serve.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "daemon/node.h"

/* Reads that touched a fence's pages when it came, and the fence's answer to its client once they have drained. */
struct fence {
    struct session *session;
    uint64_t number;
    uint32_t waits; /* reads that it waits for, */
    uint64_t until; /* and when they are ended; loop's clock */
    bool more;      /* its pages are not complete yet */
    struct fence *prev, *next;
};

struct fence_wait {
    struct fence *fence;
    struct fence_wait *next;
};

/* The served pages of a pool. Lives until the pool and its reads are gone. */
struct serving {
    uint64_t *served[STRAIT_GROUPS_MAX]; /* a bit per page id; NULL: none of the group */
    struct served_read *reads;
    struct fence *fences;
    uint32_t holds; /* the pool and its reads */
};

static void release(struct serving *serving)
{
    if (--serving->holds > 0)
        return;
    for (uint32_t g = 0; g < STRAIT_GROUPS_MAX; g++)
        free(serving->served[g]);
    struct fence *fence, *next; /* their client has gone before it had named all of their pages */
    DL_FOREACH_SAFE (serving->fences, fence, next)
        free(fence);
    free(serving);
}

/* ---- Bits of pages ----------------------------------------------------------------------------------------------- */

static size_t words_of(const struct pool_group *group)
{
    return ((size_t)group->page_count + 63) / 64;
}

static void set_bit(uint64_t *bits, uint32_t at, bool value)
{
    const uint64_t bit = 1ull << at % 64;
    bits[at / 64] = value ? bits[at / 64] | bit : bits[at / 64] & ~bit;
}

static bool get_bit(const uint64_t *bits, uint32_t at)
{
    return (bits[at / 64] >> at % 64 & 1) != 0;
}

static uint32_t id_at(const struct wire_page_list *list, uint32_t i)
{
    return list->ids != NULL ? list->ids[i] : list->first_id + i;
}

static void set_list(uint64_t *bits, const struct wire_page_list *list, bool value)
{
    for (uint32_t i = 0; i < list->count; i++)
        set_bit(bits, id_at(list, i), value);
}

static bool all_served(const struct pool_ref *pool, const struct page_set *pages)
{
    struct page_lists_cursor cursor = {0};
    struct wire_page_list list;
    while (page_set_next_list(pages, &cursor, UINT32_MAX, &list)) {
        const uint64_t *bits = pool->serving->served[list.group];
        if (bits == NULL || !pool_has(pool->pool, &list))
            return false;
        for (uint32_t i = 0; i < list.count; i++)
            if (!get_bit(bits, id_at(&list, i)))
                return false;
    }
    return true;
}

/* ---- Fences ------------------------------------------------------------------------------------------------------ */

static void answer(struct session *session, uint64_t number)
{
    struct message message = {.type = MESSAGE_FENCED, .fenced.fence = number};
    session_send(session, &message);
}

static void answer_if_over(struct serving *serving, struct fence *fence)
{
    if (fence->waits > 0 || fence->more)
        return;
    answer(fence->session, fence->number);
    DL_DELETE(serving->fences, fence);
    fence->session->charged -= sizeof(*fence);
    free(fence);
}

static bool waits_for(const struct fence *fence, const struct served_read *read)
{
    const struct fence_wait *wait;
    LL_FOREACH (read->waits, wait)
        if (wait->fence == fence)
            return true;
    return false;
}

static bool touches(const struct served_read *read, uint32_t group, const uint64_t *bits)
{
    const struct page_group *pages = &read->offer->request.pages.groups[group];
    for (uint32_t i = 0; i < pages->id_count; i++)
        if (get_bit(bits, pages->ids[i]))
            return true;
    return false;
}

/* The fence waits for the reads that touch these pages. False: no memory. */
static bool wait_for_reads(struct serving *serving, struct fence *fence, uint32_t group, const uint64_t *bits)
{
    struct served_read *read;
    DL_FOREACH (serving->reads, read) {
        if (waits_for(fence, read) || !touches(read, group, bits))
            continue;
        struct fence_wait *wait = malloc(sizeof(*wait));
        if (wait == NULL)
            return false;
        wait->fence = fence;
        LL_PREPEND(read->waits, wait);
        fence->waits++;
    }
    return true;
}

static struct fence *find_fence(const struct serving *serving, uint64_t number)
{
    struct fence *fence;
    DL_FOREACH (serving->fences, fence)
        if (fence->number == number)
            return fence;
    return NULL;
}

static struct fence *new_fence(struct session *session, struct serving *serving, const struct message_serve *message)
{
    struct fence *fence = session_charge(session, sizeof(*fence)) ? calloc(1, sizeof(*fence)) : NULL;
    if (fence == NULL)
        return NULL;
    fence->session = session;
    fence->number = message->fence;
    fence->until = uv_now(session->node->loop) + message->grace_ms;
    DL_APPEND(serving->fences, fence);
    return fence;
}

static void end_reads(struct serving *serving, const struct fence *fence, enum strait_reason reason)
{
    struct served_read *read;
    DL_FOREACH (serving->reads, read)
        if (fence == NULL || waits_for(fence, read))
            offer_fail(read->offer, reason, "");
}

void serve_expire(struct node *node, uint64_t now)
{
    struct pool_ref *pool, *next;
    struct fence *fence;
    HASH_ITER (hh, node->exchange.pools, pool, next)
        if (pool->serving != NULL)
            DL_FOREACH (pool->serving->fences, fence)
                if (now >= fence->until)
                    end_reads(pool->serving, fence, STRAIT_REASON_NOT_SERVED);
}

/* ---- What is served ---------------------------------------------------------------------------------------------- */

/* One group's part of a message: its pages are served, or no longer. ERR_INVALID: there is no such page. */
static enum strait_status take_list(struct pool_ref *pool, const struct wire_page_list *list, struct fence *fence)
{
    if (!pool_has(pool->pool, list))
        return STRAIT_ERR_INVALID;
    struct serving *serving = pool->serving;
    const size_t words = words_of(&pool->pool->groups[list->group]);
    uint64_t **served = &serving->served[list->group];
    if (*served == NULL && fence == NULL && (*served = calloc(words, sizeof(**served))) == NULL)
        return STRAIT_ERR_NO_MEMORY;
    if (*served != NULL)
        set_list(*served, list, fence == NULL);
    if (fence == NULL)
        sampling_served(pool, *served, list);
    else
        sampling_stop(pool->node, &pool->sampled);
    if (fence == NULL || serving->reads == NULL)
        return STRAIT_OK;
    uint64_t *bits = calloc(words, sizeof(*bits));
    if (bits == NULL)
        return STRAIT_ERR_NO_MEMORY;
    set_list(bits, list, true);
    const bool waits = wait_for_reads(serving, fence, list->group, bits);
    free(bits);
    return waits ? STRAIT_OK : STRAIT_ERR_NO_MEMORY;
}

static enum strait_status take_lists(struct pool_ref *pool, const struct message_serve *message, struct fence *fence)
{
    enum strait_status status = STRAIT_OK;
    for (uint32_t i = 0; i < message->list_count && status == STRAIT_OK; i++)
        if (message->lists[i].count > 0)
            status = take_list(pool, &message->lists[i], fence);
    return status;
}

bool serve_message(struct session *session, const struct message_serve *message)
{
    struct pool_ref *pool = session_pool(session, &message->pool);
    if (pool == NULL) { /* it was refused: nothing of it is read */
        if (message->fence != 0 && !message->more)
            answer(session, message->fence);
        return true;
    }
    if (pool->serving == NULL && (pool->serving = calloc(1, sizeof(*pool->serving))) == NULL) {
        session->doomed = "out of memory";
        session->dirty = true;
        return true;
    }
    pool->serving->holds += pool->serving->holds == 0;
    struct fence *fence = message->fence != 0 ? find_fence(pool->serving, message->fence) : NULL;
    if (fence != NULL && !fence->more)
        return false;
    if (fence == NULL && message->fence != 0)
        fence = new_fence(session, pool->serving, message);
    enum strait_status status =
        message->fence != 0 && fence == NULL ? STRAIT_ERR_NO_MEMORY : take_lists(pool, message, fence);
    if (status == STRAIT_ERR_NO_MEMORY) { /* the client may not be left in doubt of what is served */
        session->doomed = "out of memory";
        session->dirty = true;
    }
    if (fence != NULL) {
        fence->more = message->more;
        answer_if_over(pool->serving, fence);
    }
    return status != STRAIT_ERR_INVALID;
}

/* ---- Reads ------------------------------------------------------------------------------------------------------- */

struct pool_ref *serve_find(struct node *node, const struct name *wanted)
{
    struct pool_ref *pool = name_pool(node, wanted);
    return pool != NULL && pool->serving != NULL ? pool : NULL;
}

struct offer *serve_begin(struct pool_ref *pool, const struct name *reader, const struct page_set *pages,
                          uint32_t deadline_ms, enum strait_reason *reason)
{
    const struct tenant *tenant = pool->tenant;
    struct serving *serving = pool->serving;
    *reason = STRAIT_REASON_NOT_SERVED;
    if (!all_served(pool, pages))
        return NULL;
    *reason = STRAIT_REASON_NO_MEMORY;
    struct served_read *read =
        tenant->transfers == 0 || tenant->live < tenant->transfers ? calloc(1, sizeof(*read)) : NULL;
    struct offer *offer = read != NULL ? offer_for_read(pool, reader, pages, deadline_ms, read, reason) : NULL;
    if (offer == NULL) {
        free(read);
        return NULL;
    }
    read->serving = serving;
    read->session = pool->session;
    read->offer = offer;
    serving->holds++;
    pool->session->undrained++;
    pool->node->metrics.reads++;
    DL_APPEND(serving->reads, read);
    return offer;
}

void serve_drained(struct offer *offer)
{
    struct served_read *read = offer->read;
    struct fence_wait *wait, *next;
    if (read == NULL || read->session == NULL)
        return;
    DL_DELETE(read->serving->reads, read);
    LL_FOREACH_SAFE (read->waits, wait, next) {
        wait->fence->waits--;
        answer_if_over(read->serving, wait->fence);
        free(wait);
    }
    session_drained(read->session);
    read->session = NULL;
    release(read->serving);
}

void serve_end(struct pool_ref *pool, enum strait_reason reason)
{
    if (pool->serving == NULL)
        return;
    end_reads(pool->serving, NULL, reason);
    sampling_over(pool->node, &pool->sampled);
    release(pool->serving);
    pool->serving = NULL;
}

void serve_sample(struct pool_ref *pool)
{
    for (uint32_t g = 0; pool->serving != NULL && g < pool->pool->group_count; g++)
        if (pool->serving->served[g] != NULL)
            sampling_served_all(pool, pool->serving->served[g], g);
}
