#include "daemon/client_requests.h"

#include <string.h>
#include <utlist.h>

#include "daemon/exchange.h"
#include "daemon/match.h"
#include "daemon/node.h"
#include "daemon/serve.h"
#include "daemon/withdraw.h"

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

static struct request *session_find(struct session *session, uint64_t transfer)
{
    struct request *request;
    HASH_FIND(by_transfer, session->requests, &transfer, sizeof(transfer), request);
    return request;
}

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
        return node->handed_over ? "another daemon takes over" : "the daemon is stopping";
    if (session->tenant->removed)
        return session_no_tenant;
    *reason = STRAIT_REASON_BUSY;
    if (same_name != NULL)
        return "a live request has this name";
    *reason = STRAIT_REASON_NO_MEMORY;
    if (HASH_CNT(by_transfer, session->requests) >= node->options.transfers)
        return "too many transfers of this client that have not drained";
    if (session->tenant->transfers != 0 && session->tenant->live >= session->tenant->transfers)
        return "too many transfers of the tenant (transfers in tenants-file)";
    return NULL;
}

/* The pool of a new request; NULL: the request is refused, and the client notified. */
static struct pool_ref *admit(struct session *session, uint64_t transfer, const struct pool_id *id, struct view key,
                              struct view trace, bool is_offer)
{
    struct exchange *x = &session->node->exchange;
    struct request *names = is_offer ? x->offers_by_name : x->expectations_by_name, *same;
    struct pool_ref *pool = session_pool(session, id);
    enum strait_reason reason;
    struct name name;
    name_set(&name, tenant_view(session->tenant), id, key);
    HASH_FIND(by_name, names, &name, sizeof(name), same);
    const char *why = why_not(session, pool, same, &reason);
    if (why == NULL)
        return pool;
    refuse(session, transfer, reason, why);
    span_refused(session->node, trace, is_offer, key, reason, why);
    session_keep_failed(session, &(struct failed_request){transfer, name, is_offer, reason});
    if (same == NULL) { /* else the name's live request may meet those that wait for it */
        tombstone_set(session->node, &name, is_offer, reason);
        match_refuse(session->node, &name, is_offer, reason);
    }
    return NULL;
}

/* False: the request has failed. */
static bool add_lists(struct request *request, const struct wire_page_list *lists, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const char *why;
        enum strait_reason reason = request_add_pages(request, &lists[i], &why);
        if (reason == STRAIT_REASON_NONE)
            continue;
        fail(request, reason, why);
        return false;
    }
    return true;
}

/* Parts of one request are consecutive messages: does this one continue the previous one? */
static bool is_part(struct session *session, uint64_t transfer, bool more)
{
    bool continues = session->partial != 0 && session->partial == transfer;
    session->partial = more ? transfer : 0;
    return continues;
}

/* EXPECT and OFFER: a request, or a further part of one. */
static bool on_request(struct session *session, const struct message *message)
{
    const bool is_offer = message->type == MESSAGE_OFFER;
    const struct message_expect *expect = &message->expect;
    const struct message_offer *offer = &message->offer;
    const uint64_t transfer = is_offer ? offer->transfer : expect->transfer;
    const bool more = is_offer ? offer->more : expect->more;
    struct request *request = session_find(session, transfer);
    bool continues = is_part(session, transfer, more);
    if (request == NULL) {
        if (continues)
            return true; /* it has failed, and may be forgotten */
        struct pool_ref *pool =
            admit(session, transfer, is_offer ? &offer->pool : &expect->pool, is_offer ? offer->key : expect->key,
                  is_offer ? offer->trace : expect->trace, is_offer);
        if (pool == NULL)
            return true;
        request = is_offer ? (struct request *)offer_create(session->node, session, pool, offer)
                           : (struct request *)expectation_create(session->node, session, pool, expect);
        if (request == NULL) {
            refuse(session, transfer, STRAIT_REASON_NO_MEMORY, "");
            return true;
        }
        HASH_ADD(by_transfer, session->requests, transfer, sizeof(request->transfer), request);
    } else if (request->is_offer != is_offer || request->begun) {
        return request->decided; /* further parts of a failed request may still come */
    }
    if (request->decided ||
        !add_lists(request, is_offer ? offer->lists : expect->lists,
                   is_offer ? offer->list_count : expect->list_count) ||
        more)
        return true;
    if (is_offer) {
        offer_begin((struct offer *)request, offer);
        match_offer((struct offer *)request);
    } else {
        session->node->exchange.stepped = true; /* its start may follow */
        expectation_begin((struct expectation *)request);
        match_expectation((struct expectation *)request);
    }
    return true;
}

static bool on_append(struct session *session, const struct message_append *message)
{
    struct request *request = session_find(session, message->transfer);
    if (request == NULL || request->decided)
        return true; /* the verdict is already known */
    if (!request->is_offer || !request->begun)
        return false;
    const char *why;
    enum strait_reason reason = offer_append((struct offer *)request, message, &why);
    if (reason != STRAIT_REASON_NONE)
        fail(request, reason,
             request_on_failed_gpu(request) ? "" /* a device gives its own reason */
             : why[0] != '\0'               ? why
                                            : "append failed");
    return true;
}

/* The other side that a START names. */
struct other_side {
    struct name name;
    char address[MESSAGE_ADDRESS_MAX + 1];
    bool local;
};

static void read_other_side(const struct session *session, const struct message_start *message, const struct name *own,
                            struct other_side *other)
{
    struct node *node = session->node;
    memset(other, 0, sizeof(*other));
    name_set(&other->name, tenant_view(session->tenant), &message->peer_pool,
             message->peer_key.size != 0 ? message->peer_key : view_of(own->key, own->size));
    if (message->peer_address.size != 0)
        memcpy(other->address, message->peer_address.data, message->peer_address.size);
    other->local =
        pool_find(node, session->tenant, &message->peer_pool) != NULL || peers_is_own(node->peers, other->address);
}

/* Whether a live request has the own side's name and looks for the same other side. */
static bool is_sought(const struct node *node, const struct name *own, bool is_offer, const struct name *other)
{
    const struct exchange *x = &node->exchange;
    const struct announce *announce;
    struct request *live;
    HASH_FIND(by_name, is_offer ? x->offers_by_name : x->expectations_by_name, own, sizeof(*own), live);
    if (live == NULL || !is_offer)
        return live != NULL && expectation_find_leg((struct expectation *)live, other) != NULL;
    LL_FOREACH (((struct offer *)live)->announces, announce)
        if (memcmp(&announce->sink, other, sizeof(*other)) == 0)
            return true;
    return false;
}

/* The request was not admitted, or has failed before it was started: whom it names need not wait for it. */
static void start_too_late(struct session *session, const struct message_start *message, const struct request *request)
{
    const struct failed_request *failed = request == NULL ? session_find_failed(session, message->transfer) : NULL;
    if ((request == NULL && failed == NULL) || (request != NULL && request->state != STRAIT_FAILED))
        return;
    const struct name *own = request != NULL ? &request->name : &failed->name;
    const bool is_offer = request != NULL ? request->is_offer : failed->is_offer;
    struct other_side other;
    read_other_side(session, message, own, &other);
    if (is_sought(session->node, own, is_offer, &other.name) ||
        tenant_denied(session->node, &message->peer_pool, tenant_view(session->tenant), "start"))
        return;
    const struct withdrawal what = {.source = is_offer ? *own : other.name,
                                    .sink = is_offer ? other.name : *own,
                                    .from_sink = !is_offer,
                                    .reason = request != NULL ? request->reason : failed->reason};
    if (other.local || other.address[0] != '\0')
        withdraw_post(session->node, &what, other.local ? "" : other.address, session->uid);
}

static bool on_start(struct session *session, const struct message_start *message)
{
    struct node *node = session->node;
    struct request *request = session_find(session, message->transfer);
    struct other_side other;
    if (request == NULL || request->decided) {
        start_too_late(session, message, request);
        return true;
    }
    if (!request->begun)
        return false;
    node->exchange.stepped = true;
    if (tenant_denied(node, &message->peer_pool, tenant_view(session->tenant), "start")) {
        fail(request, STRAIT_REASON_DENIED, "the peer's pool belongs to another tenant");
        return true;
    }
    read_other_side(session, message, &request->name, &other);
    if (request->is_offer)
        match_start_offer((struct offer *)request, &other.name, other.address, other.local);
    else
        match_start_expectation((struct expectation *)request, &other.name, other.address, other.local,
                                message->consumers);
    return true;
}

/* A read in place of a START: parts of it are consecutive. */
static bool on_read(struct session *session, const struct message_read *message)
{
    struct node *node = session->node;
    struct request *request = session_find(session, message->transfer);
    (void)is_part(session, message->transfer, message->more);
    if (request == NULL || request->decided)
        return true;
    struct expectation *e = (struct expectation *)request;
    if (request->is_offer || !request->begun || e->sink_count != 0)
        return false;
    if (!expectation_read(e, message->lists, message->list_count) || message->more)
        return true;
    node->exchange.stepped = true;
    if (tenant_denied(node, &message->peer_pool, tenant_view(session->tenant), "read")) {
        fail(request, STRAIT_REASON_DENIED, "the peer's pool belongs to another tenant");
        return true;
    }
    const struct message_start start = {.peer_pool = message->peer_pool, .peer_address = message->peer_address};
    struct other_side other;
    read_other_side(session, &start, &request->name, &other);
    match_start_expectation(e, &other.name, other.address, other.local, 0);
    return true;
}

static bool on_serve(struct session *session, const struct message_serve *message)
{
    const bool fine = serve_message(session, message);
    if (fine && message->fence == 0 && !message->more)
        match_served(session->node, &message->pool);
    return fine;
}

static bool on_abort(struct session *session, const struct message_transfer *message)
{
    struct request *request = session_find(session, message->transfer);
    if (request != NULL)
        fail(request, STRAIT_REASON_ABORTED, "");
    return true;
}

static bool on_wait(struct session *session, const struct message_wait *message)
{
    struct request *request = session_find(session, message->transfer);
    bool fits = request == NULL || request->decided || (!request->is_offer && request->begun);
    if (!fits || message->word >= session->word_count)
        return false;
    if (request == NULL || request->is_offer)
        session_raise(session, message->word, message->value);
    else
        expectation_wait((struct expectation *)request, message);
    return true;
}

static bool on_pool_remove(struct session *session, const struct message_pool_remove *message)
{
    struct pool_ref *pool = session_pool(session, &message->pool);
    if (pool == NULL) { /* the registration was refused */
        session_pool_removed(session, &message->pool);
        return true;
    }
    struct request *request, *next;
    HASH_ITER (by_transfer, session->requests, request, next)
        if (request->pool == pool)
            fail(request, STRAIT_REASON_ABORTED, "pool removed");
    serve_end(pool, STRAIT_REASON_NOT_SERVED);
    session_pool_remove(pool);
    return true;
}

static bool on_policy(struct session *session, const struct message_policy *message)
{
    struct pool_ref *pool = session_pool(session, &message->pool);
    if (pool != NULL)
        pool->pool->coding = message->coding;
    return true;
}

/* Answered at the end of the turn: a report takes long to write, and can be asked for with two bytes. */
static bool on_stats(struct session *session)
{
    session->stats_wanted++;
    session->node->stats_wanted = true;
    return true;
}

static bool on_sample(struct session *session, const struct message_sample *message)
{
    struct pool_ref *pool, *next;
    if (sampling_begin(session, message))
        HASH_ITER (hh, session->node->exchange.pools, pool, next)
            serve_sample(pool);
    return true;
}

void client_pong(struct session *session)
{
    struct message message = {.type = MESSAGE_PONG};
    session_send(session, &message);
}

bool client_request(struct session *session, const struct message *message)
{
    switch (message->type) {
    case MESSAGE_POOL_REMOVE:
        return on_pool_remove(session, &message->pool_remove);
    case MESSAGE_EXPECT:
    case MESSAGE_OFFER:
        return on_request(session, message);
    case MESSAGE_APPEND:
        return on_append(session, &message->append);
    case MESSAGE_START:
        return on_start(session, &message->start);
    case MESSAGE_READ:
        return on_read(session, &message->read);
    case MESSAGE_SERVE:
        return on_serve(session, &message->serve);
    case MESSAGE_ABORT:
    case MESSAGE_RELEASE: /* a live request ends with its handle */
        return on_abort(session, &message->transfer);
    case MESSAGE_NOTIFY:
        return notes_post(session, &message->notify);
    case MESSAGE_POLICY:
        return on_policy(session, &message->policy);
    case MESSAGE_WAIT:
        return on_wait(session, &message->wait);
    case MESSAGE_STATS:
        return on_stats(session);
    case MESSAGE_SAMPLE:
        return on_sample(session, &message->sample);
    case MESSAGE_PING:
        client_pong(session);
        return true;
    default:
        return false;
    }
}

void client_requests_end(struct session *session)
{
    struct node *node = session->node;
    struct request *request, *next;
    HASH_ITER (by_transfer, session->requests, request, next)
        fail(request, STRAIT_REASON_LOCAL, "");
    struct pool_ref *pool, *next_pool;
    HASH_ITER (hh, node->exchange.pools, pool, next_pool)
        if (pool->session == session)
            serve_end(pool, STRAIT_REASON_LOCAL);
}
