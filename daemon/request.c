#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "daemon/node.h"
#include "daemon/session.h"

/* The common part of offers and expectations: pages, state, end. */

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

void request_decide(struct request *request, enum strait_state state, enum strait_reason reason, const char *text)
{
    request->decided = true;
    request->state = state;
    request->reason = reason;
    request->text = text;
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

/* Notifications to clients of other daemons: sent at once, or queued for a while until the peer is up. */

#define NOTES_MAX 256u   /* queued at most */
#define NOTE_MS   10000u /* how long one is queued */

static bool send_note(struct node *node, const char *address, const struct message *message)
{
    struct peer *peer = peers_get(node->peers, address);
    return peer != NULL && peer->state == PEER_UP && peer_send(peer, message) == STRAIT_OK;
}

void exchange_note(struct node *node, const char *address, const struct message *message)
{
    struct exchange *x = &node->exchange;
    const struct message_note *m = &message->note;
    if (send_note(node, address, message) || x->note_count >= NOTES_MAX)
        return;
    struct note *note = calloc(1, sizeof(*note) + m->key.size + m->data.size);
    if (note == NULL)
        return;
    strcpy(note->address, address);
    note->pool = m->pool;
    note->key_size = m->key.size;
    note->size = m->data.size;
    note->expires = uv_now(node->loop) + NOTE_MS;
    memcpy(note->bytes, m->key.data, m->key.size);
    if (m->data.size != 0)
        memcpy(note->bytes + m->key.size, m->data.data, m->data.size);
    LL_APPEND(x->notes, note);
    x->note_count++;
}

void exchange_send_notes(struct node *node)
{
    struct exchange *x = &node->exchange;
    struct note *note, *next;
    LL_FOREACH_SAFE (x->notes, note, next) {
        struct message message = {.type = MESSAGE_PEER_NOTE};
        message.note = (struct message_note){.pool = note->pool,
                                             .key = view_of(note->bytes, note->key_size),
                                             .data = view_of(note->bytes + note->key_size, note->size)};
        if (!send_note(node, note->address, &message) && uv_now(node->loop) < note->expires)
            continue;
        LL_DELETE(x->notes, note);
        x->note_count--;
        free(note);
    }
}
