/* Handles the requests of clients. */
#include <stdlib.h>
#include <string.h>

#include "daemon/session.h"

/* Sends the verdict on a request that was never created: its pages are free. */
static void refuse(struct session *session, uint64_t transfer, enum strait_reason reason, const char *why)
{
    struct message message = {.type = MESSAGE_STATE};
    message.state = (struct message_state){.transfer = transfer,
                                           .state = STRAIT_FAILED,
                                           .reason = (uint32_t)reason,
                                           .drained = true,
                                           .text = view_of(why, strlen(why))};
    session_send(session, &message);
}

static void fail(struct request *request, enum strait_reason reason, const char *why)
{
    if (request->is_offer)
        offer_fail((struct offer *)request, reason, why);
    else
        expectation_fail((struct expectation *)request, reason, why);
}

/* Why a new request is refused; NULL: it is not. */
static const char *why_not(struct session *session, struct pool_ref *pool, struct request *same_name,
                           enum strait_reason *reason)
{
    struct node *node = session->node;
    *reason = STRAIT_REASON_LOCAL;
    if (pool == NULL)
        return "the daemon does not have the pool";
    if (node->draining)
        return "the daemon is stopping";
    *reason = STRAIT_REASON_BUSY;
    if (same_name != NULL)
        return "a live request has this name";
    *reason = STRAIT_REASON_NO_MEMORY;
    if (HASH_CNT(by_transfer, session->requests) >= node->options.transfers)
        return "too many transfers (option transfers)";
    return NULL;
}

/* The pool of a new request; NULL: the request is refused, and the client has been told. */
static struct pool_ref *admit(struct session *session, uint64_t transfer, const struct pool_id *id, struct view key,
                              bool is_offer)
{
    struct exchange *x = &session->node->exchange;
    struct request *names = is_offer ? x->offers_by_name : x->expectations_by_name, *same;
    struct pool_ref *pool = session_pool(session, id);
    enum strait_reason reason;
    struct name name;
    name_set(&name, id, key);
    HASH_FIND(by_name, names, &name, sizeof(name), same);
    const char *why = why_not(session, pool, same, &reason);
    if (why == NULL)
        return pool;
    refuse(session, transfer, reason, why);
    return NULL;
}

/* Why a request's pages could not be added. */
static const char *why_no_pages(enum strait_reason reason)
{
    switch (reason) {
    case STRAIT_REASON_GEOMETRY:
        return "no such page, or a logical index twice";
    case STRAIT_REASON_BUSY:
        return "a page is in use by another request, or named twice";
    case STRAIT_REASON_NO_MEMORY:
        return "page lists of this client take too much memory";
    default:
        return "";
    }
}

/* False: the request has failed. */
static bool add_lists(struct request *request, const struct wire_page_list *lists, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        enum strait_reason reason = request_add_pages(request, &lists[i]);
        if (reason == STRAIT_REASON_NONE)
            continue;
        fail(request, reason, why_no_pages(reason));
        return false;
    }
    return true;
}

/* The parts of one request come one after another: does this one continue the previous one? */
static bool is_part(struct session *session, uint64_t transfer, bool more)
{
    bool continues = session->partial != 0 && session->partial == transfer;
    session->partial = more ? transfer : 0;
    return continues;
}

static void keep(struct session *session, struct request *request)
{
    HASH_ADD(by_transfer, session->requests, transfer, sizeof(request->transfer), request);
}

static bool on_expect(struct session *session, const struct message_expect *message)
{
    struct request *request = session_find(session, message->transfer);
    bool continues = is_part(session, message->transfer, message->more);
    if (request == NULL) {
        if (continues)
            return true; /* it has failed, and may be forgotten */
        struct pool_ref *pool = admit(session, message->transfer, &message->pool, message->key, false);
        struct expectation *made = pool == NULL ? NULL : expectation_create(session->node, session, pool, message);
        if (pool != NULL && made == NULL)
            refuse(session, message->transfer, STRAIT_REASON_NO_MEMORY, "");
        if (made == NULL)
            return true;
        request = &made->request;
        keep(session, request);
    } else if (request->is_offer || request->begun) {
        return request->decided; /* further parts of a failed request may still come */
    }
    if (request->decided || !add_lists(request, message->lists, message->list_count))
        return true;
    if (!message->more)
        expectation_begin((struct expectation *)request);
    return true;
}

static bool on_offer(struct session *session, const struct message_offer *message)
{
    struct request *request = session_find(session, message->transfer);
    bool continues = is_part(session, message->transfer, message->more);
    if (request == NULL) {
        if (continues)
            return true; /* it has failed, and may be forgotten */
        struct pool_ref *pool = admit(session, message->transfer, &message->pool, message->key, true);
        struct offer *made = pool == NULL ? NULL : offer_create(session->node, session, pool, message);
        if (pool != NULL && made == NULL)
            refuse(session, message->transfer, STRAIT_REASON_NO_MEMORY, "");
        if (made == NULL)
            return true;
        request = &made->request;
        keep(session, request);
    } else if (!request->is_offer || request->begun) {
        return request->decided;
    }
    if (request->decided || !add_lists(request, message->lists, message->list_count))
        return true;
    if (!message->more)
        offer_begin((struct offer *)request, message);
    return true;
}

static bool on_append(struct session *session, const struct message_append *message)
{
    struct request *request = session_find(session, message->transfer);
    if (request == NULL || request->decided)
        return true; /* the verdict is already known */
    if (!request->is_offer || !request->begun)
        return false;
    enum strait_reason reason = offer_append((struct offer *)request, message);
    if (reason != STRAIT_REASON_NONE)
        fail(request, reason, request_is_stranded(request) ? "" : "append failed"); /* a device gives its own reason */
    return true;
}

static bool on_start(struct session *session, const struct message_start *message)
{
    struct node *node = session->node;
    struct request *request = session_find(session, message->transfer);
    if (request == NULL || request->decided)
        return true;
    if (!request->begun)
        return false;
    struct name name;
    struct view own_key = view_of(request->name.key, request->name.size);
    name_set(&name, &message->peer_pool, message->peer_key.size != 0 ? message->peer_key : own_key);
    char address[MESSAGE_ADDRESS_MAX + 1] = "";
    if (message->peer_address.size != 0)
        memcpy(address, message->peer_address.data, message->peer_address.size);
    struct pool_ref *pool;
    HASH_FIND(hh, node->exchange.pools, &message->peer_pool, sizeof(message->peer_pool), pool);
    bool local = pool != NULL || strcmp(address, peers_address(node->peers)) == 0;
    if (request->is_offer)
        offer_start((struct offer *)request, &name, address, local);
    else
        expectation_start((struct expectation *)request, &name, address, local);
    return true;
}

static bool on_abort(struct session *session, const struct message_transfer *message)
{
    struct request *request = session_find(session, message->transfer);
    if (request != NULL)
        fail(request, STRAIT_REASON_ABORTED, "");
    return true;
}

static bool on_notify(struct session *session, const struct message_notify *message)
{
    struct node *node = session->node;
    struct message note = {.type = MESSAGE_NOTE};
    note.note = (struct message_note){.pool = message->peer_pool, .key = message->key, .data = message->data};
    struct pool_ref *pool;
    HASH_FIND(hh, node->exchange.pools, &message->peer_pool, sizeof(message->peer_pool), pool);
    if (pool != NULL) {
        session_send_note(pool->session, &note);
        return true;
    }
    char address[MESSAGE_ADDRESS_MAX + 1] = "";
    if (message->peer_address.size != 0)
        memcpy(address, message->peer_address.data, message->peer_address.size);
    note.type = MESSAGE_PEER_NOTE;
    exchange_note(node, address, &note);
    return true;
}

static bool on_policy(struct session *session, const struct message_policy *message)
{
    struct pool_ref *pool = session_pool(session, &message->pool);
    if (pool != NULL)
        pool->pool->coding = message->coding;
    return true;
}

static bool on_stats(struct session *session)
{
    size_t size;
    char *text = node_report(session->node, &size);
    struct message message = {.type = MESSAGE_STATS_TEXT, .text = {.text = view_of(text, text != NULL ? size : 0)}};
    session_send(session, &message);
    free(text);
    return true;
}

bool session_verb(struct session *session, const struct message *message)
{
    switch (message->type) {
    case MESSAGE_POOL_REMOVE:
        return session_pool_remove(session, &message->pool_remove);
    case MESSAGE_EXPECT:
        return on_expect(session, &message->expect);
    case MESSAGE_OFFER:
        return on_offer(session, &message->offer);
    case MESSAGE_APPEND:
        return on_append(session, &message->append);
    case MESSAGE_START:
        return on_start(session, &message->start);
    case MESSAGE_ABORT:
    case MESSAGE_RELEASE: /* a live request ends with its handle */
        return on_abort(session, &message->transfer);
    case MESSAGE_NOTIFY:
        return on_notify(session, &message->notify);
    case MESSAGE_POLICY:
        return on_policy(session, &message->policy);
    case MESSAGE_WAIT:
        return session_wait(session, &message->wait);
    case MESSAGE_STATS:
        return on_stats(session);
    default:
        return false;
    }
}
