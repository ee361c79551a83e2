/* Pages that peers may read without an offer: what a pool serves, fences, and reads. */
#include <stdlib.h>
#include <string.h>

#include "client/client.h"

/* ---- What is served ---------------------------------------------------------------------------------------------- */

static bool is_served(const struct strait_pool *pool, uint32_t group, uint32_t id)
{
    return (pool->served[group][id / 64] >> id % 64 & 1) != 0;
}

static void mark(uint64_t *bits, uint32_t id, bool served)
{
    const uint64_t bit = 1ull << id % 64;
    bits[id / 64] = served ? bits[id / 64] | bit : bits[id / 64] & ~bit;
}

/* All pages of the pool's groups, one list each. */
static void list_all(const struct strait_pool *pool, struct strait_page_list lists[STRAIT_GROUPS_MAX])
{
    for (uint32_t g = 0; g < pool->group_count; g++)
        lists[g] = (struct strait_page_list){.group = g, .count = pool->group_pages[g]};
}

/* Keeps what is served for the next connection. False: no memory. */
static bool remember(struct strait_pool *pool, const struct strait_page_list *lists, uint32_t count, bool served)
{
    for (uint32_t i = 0; i < count; i++) {
        uint64_t **bits = &pool->served[lists[i].group];
        if (*bits == NULL && served)
            *bits = calloc((size_t)pool->group_pages[lists[i].group] / 64 + 1, sizeof(**bits));
        if (*bits == NULL && served)
            return false;
        for (uint32_t k = 0; *bits != NULL && k < lists[i].count; k++)
            mark(*bits, lists[i].ids != NULL ? lists[i].ids[k] : lists[i].first_id + k, served);
    }
    return true;
}

/* The daemon must not be left with half of it: without memory the connection is given up, and what is served is told to
 * the next one. */
static void tell(struct strait_pool *pool, const struct message *message, const struct strait_page_list *lists,
                 uint32_t count)
{
    struct strait_client *client = pool->client;
    if (lists_send(client, NULL, message, lists, count) != STRAIT_OK) {
        client->write_failed = true;
        event_signal(client);
    }
}

/* The next pages of a group that are served and have ids without a gap. False: there are no more. */
static bool next_run(const struct strait_pool *pool, struct strait_page_list *run)
{
    uint32_t id = run->first_id + run->count;
    for (; run->group < pool->group_count; run->group++, id = 0) {
        const uint32_t end = pool->served[run->group] != NULL ? pool->group_pages[run->group] : 0;
        while (id < end && !is_served(pool, run->group, id))
            id++;
        run->first_id = id;
        while (id < end && id - run->first_id < STRAIT_TRANSFER_PAGES_MAX && is_served(pool, run->group, id))
            id++;
        run->count = id - run->first_id;
        if (run->count > 0)
            return true;
    }
    return false;
}

void serve_again(struct strait_pool *pool)
{
    struct message message = {.type = MESSAGE_SERVE, .serve.pool = pool->id};
    struct strait_page_list run = {0}, part[64];
    uint32_t count = 0;
    while (next_run(pool, &run)) {
        if (count == sizeof(part) / sizeof(part[0])) {
            message.serve.more = true;
            tell(pool, &message, part, count);
            message.serve.more = false;
            count = 0;
        }
        part[count++] = run;
    }
    if (count > 0)
        tell(pool, &message, part, count);
}

void serve_forget(struct strait_pool *pool)
{
    for (uint32_t g = 0; g < STRAIT_GROUPS_MAX; g++)
        free(pool->served[g]);
}

/* The lists of a call, or all pages. */
static enum strait_status read_lists(const struct strait_pool *pool, const struct strait_page_list **lists,
                                     uint32_t *count, struct strait_page_list all[STRAIT_GROUPS_MAX])
{
    uint64_t pages = 0;
    if (*count == 0) {
        list_all(pool, all);
        *lists = all;
        *count = pool->group_count;
        return STRAIT_OK;
    }
    const enum strait_status status = lists_check(pool, *lists, *count, &pages);
    return status == STRAIT_OK && pages == 0 ? STRAIT_ERR_INVALID : status;
}

enum strait_status strait_pool_serve(struct strait_pool *pool, const struct strait_page_list *lists,
                                     uint32_t list_count)
{
    struct strait_page_list all[STRAIT_GROUPS_MAX];
    if (pool == NULL || pool->removing)
        return STRAIT_ERR_INVALID;
    const enum strait_status status = read_lists(pool, &lists, &list_count, all);
    if (status != STRAIT_OK)
        return status;
    if (!remember(pool, lists, list_count, true))
        return STRAIT_ERR_NO_MEMORY;
    struct strait_client *client = pool->client;
    const struct message message = {.type = MESSAGE_SERVE, .serve.pool = pool->id};
    if (client->state == READY) /* otherwise it is told with the pool */
        tell(pool, &message, lists, list_count);
    outbox_flush(client);
    return STRAIT_OK;
}

/* ---- Fences ------------------------------------------------------------------------------------------------------ */

/* A fence that is not over: its event, ready to be queued. */
struct fence {
    struct event_node done; /* first */
    uint64_t number;
    struct fence *next;
};

static void end(struct strait_client *client, struct fence **at)
{
    struct fence *fence = *at;
    *at = fence->next;
    client->fence_count--;
    event_push(client, &fence->done);
}

void fence_answered(struct strait_client *client, uint64_t number)
{
    for (struct fence **at = &client->fences; *at != NULL; at = &(*at)->next)
        if ((*at)->number == number) {
            end(client, at);
            return;
        }
}

void fences_over(struct strait_client *client)
{
    while (client->fences != NULL)
        end(client, &client->fences);
}

void fences_destroy(struct strait_client *client)
{
    while (client->fences != NULL) {
        struct fence *next = client->fences->next;
        free(client->fences);
        client->fences = next;
    }
}

enum strait_status strait_pool_fence(struct strait_pool *pool, const struct strait_fence_params *params)
{
    struct strait_page_list all[STRAIT_GROUPS_MAX];
    if (pool == NULL || params == NULL || !params_known(params, params->size, sizeof(*params)) || pool->removing ||
        params->grace_ms > DEADLINE_MAX_MS)
        return STRAIT_ERR_INVALID;
    const struct strait_page_list *lists = params->lists;
    uint32_t count = params->list_count;
    enum strait_status status = read_lists(pool, &lists, &count, all);
    if (status != STRAIT_OK)
        return status;
    struct strait_client *client = pool->client;
    struct fence *fence = calloc(1, sizeof(*fence));
    if (fence == NULL)
        return STRAIT_ERR_NO_MEMORY;
    (void)remember(pool, lists, count, false);
    fence->number = ++client->last_id;
    fence->done.heap = true;
    fence->done.event =
        (struct strait_event){.type = STRAIT_EVENT_FENCED, .pool = pool, .context = params->context, .text = ""};
    answer_due(client, &client->fence_count);
    fence->next = client->fences;
    client->fences = fence;
    const struct message message = {.type = MESSAGE_SERVE,
                                    .serve = {.pool = pool->id, .fence = fence->number, .grace_ms = params->grace_ms}};
    if (client->state == READY)
        tell(pool, &message, lists, count);
    else if (client->state != CLOSING) /* no daemon has the pool */
        end(client, &client->fences);
    outbox_flush(client);
    timer_update(client);
    return STRAIT_OK;
}

/* ---- Reads ------------------------------------------------------------------------------------------------------- */

static uint64_t pages_of(const struct strait_page_list *lists, uint32_t count)
{
    uint64_t pages = 0;
    for (uint32_t i = 0; i < count; i++)
        pages += lists[i].count;
    return pages;
}

/* Ids beyond the peer's pool are for its daemon to refuse. */
static bool peer_lists_valid(const struct strait_pool *pool, const struct strait_page_list *lists, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (lists[i].group >= pool->group_count || lists[i].count > UINT32_MAX - lists[i].first ||
            (lists[i].ids == NULL && lists[i].count > UINT32_MAX - lists[i].first_id))
            return false;
    return true;
}

enum strait_status strait_read(struct strait_pool *pool, const struct strait_peer *peer,
                               const struct strait_read_params *params, struct strait_transfer **transfer)
{
    static const char prefix[] = "read "; /* with its NUL, and a number: no other expectation of the pool has it */
    uint8_t key[sizeof(prefix) + sizeof(uint64_t)];
    struct strait_read_params p;
    if (pool == NULL || peer == NULL || transfer == NULL || peer->client != pool->client ||
        !params_read(&p, sizeof(p), offsetof(struct strait_read_params, traceparent), params) ||
        (p.peer_list_count > 0 && p.peer_lists == NULL) || (p.list_count > 0 && p.lists == NULL) ||
        pages_of(p.lists, p.list_count) != pages_of(p.peer_lists, p.peer_list_count) ||
        !peer_lists_valid(pool, p.peer_lists, p.peer_list_count) || !peer_readable(pool, peer))
        return STRAIT_ERR_INVALID;
    struct strait_client *client = pool->client;
    const uint64_t number = client->last_id + 1;
    memcpy(key, prefix, sizeof(prefix));
    memcpy(key + sizeof(prefix), &number, sizeof(number));
    const struct strait_expect_params expect = {.size = sizeof(expect),
                                                .key = key,
                                                .key_size = sizeof(key),
                                                .lists = p.lists,
                                                .list_count = p.list_count,
                                                .deadline_ms = p.deadline_ms,
                                                .context = p.context,
                                                .traceparent = p.traceparent,
                                                .tell_pages = p.tell_pages};
    struct strait_transfer *made;
    enum strait_status status = strait_expect(pool, &expect, &made);
    if (status != STRAIT_OK)
        return status;
    struct message message = {.type = MESSAGE_READ};
    message.read.transfer = made->id;
    message.read.peer_pool = peer->blob.pool;
    message.read.peer_address = view_of(peer->blob.address, strlen(peer->blob.address));
    client->stepped = true;
    status = made->ended ? STRAIT_OK : lists_send(client, made, &message, p.peer_lists, p.peer_list_count);
    outbox_flush(client);
    if (status == STRAIT_OK)
        *transfer = made;
    else
        strait_release(made);
    return status;
}
