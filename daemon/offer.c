#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "daemon/node.h"
#include "daemon/source.h"
#include "daemon/withdraw.h"

/* ---- Looking for the expectation --------------------------------------------------------------------------------- */

static struct message announce_message(const struct offer *o, const struct announce *a)
{
    struct message message = {.type = MESSAGE_ANNOUNCE};
    message.announce = (struct message_announce){.source_pool = o->request.name.pool,
                                                 .sink_pool = a->sink.pool,
                                                 .source_key = view_of(o->request.name.key, o->request.name.size),
                                                 .sink_key = view_of(a->sink.key, a->sink.size),
                                                 .tenant = tenant_view(o->request.tenant)};
    return message;
}

struct announce *offer_sink(struct offer *o, const struct name *sink)
{
    struct announce *known;
    LL_FOREACH (o->announces, known)
        if (memcmp(&known->sink, sink, sizeof(*sink)) == 0)
            return known;
    known = calloc(1, sizeof(*known));
    if (known == NULL)
        return NULL;
    known->sink = *sink;
    known->asked_since = UINT32_MAX;
    LL_PREPEND(o->announces, known);
    return known;
}

void offer_announce(struct offer *o, struct announce *a)
{
    if (a->bound || o->request.decided || a->address[0] == '\0')
        return;
    struct peer *peer = peers_get(o->request.node->peers, a->address, o->request.pool->uid);
    if (peer != NULL && peer->state != PEER_UP && peer_is_hopeless(peer, &a->asked_since)) {
        a->bound = true;
        offer_consumer_ended(o, STRAIT_REASON_PEER_DOWN,
                             o->why != NULL ? o->why : request_waits(&o->request, a->address, false));
    }
    if (peer == NULL || peer->state != PEER_UP || a->announced_to == peer)
        return;
    uint64_t now = uv_now(o->request.node->loop);
    uint32_t left = o->expires > now ? (uint32_t)(o->expires - now) : 1;
    struct message message = announce_message(o, a);
    message.announce.lease_ms = left;
    if (peer_send(peer, &message) == STRAIT_OK)
        a->announced_to = peer;
}

/* ---- What is ready ----------------------------------------------------------------------------------------------- */

/* The ready pages of an offer: segments in the order in which they became ready. */

static bool add(struct offer *o, const struct segment *segment)
{
    if (o->ready_count == o->ready_capacity) {
        uint32_t capacity = o->ready_capacity != 0 ? 2 * o->ready_capacity : 16;
        struct segment *ready = realloc(o->ready, capacity * sizeof(*ready));
        if (ready == NULL)
            return false;
        o->ready = ready;
        o->ready_capacity = capacity;
    }
    o->ready[o->ready_count++] = *segment;
    return true;
}

/* The regions of a group whose layer is in a range: consecutive, as they are sorted by layer. Count 0: all. */
static void layer_regions(const struct pool_group *group, int32_t first, uint32_t count, uint32_t *begin, uint32_t *end)
{
    *begin = 0;
    *end = group->region_count;
    if (count == 0)
        return;
    while (*begin < group->region_count && group->layers[*begin] < first)
        ++*begin;
    *end = *begin;
    while (*end < group->region_count && (int64_t)group->layers[*end] < (int64_t)first + count)
        ++*end;
}

static bool pages_ready(struct offer *o, uint32_t group, uint32_t first, uint32_t count, int32_t layer_first,
                        uint32_t layer_count)
{
    uint32_t begin, end;
    layer_regions(&o->request.pool->pool->groups[group], layer_first, layer_count, &begin, &end);
    struct segment segment = {
        .group = group, .region_first = begin, .region_count = end - begin, .first = first, .count = count};
    return begin == end || count == 0 || add(o, &segment);
}

/* ---- Pages that were offered as `later` -------------------------------------------------------------------------- */

static bool pages_known(struct offer *o)
{
    if (o->later) {
        /* Which pages were announced is remembered: later appends may add others, to which ready layers do not apply.
         */
        o->later_spans = page_set_spans(&o->request.pages, &o->later_count);
        uint32_t count = 0;
        for (uint32_t g = 0; g < o->request.pool->pool->group_count; g++)
            count += o->request.pool->pool->groups[g].region_count;
        o->later_ready = calloc(count, sizeof(*o->later_ready));
        return o->later_spans != NULL && o->later_ready != NULL;
    }
    for (uint32_t g = 0; g < o->request.pages.group_count; g++) {
        const struct page_group *group = &o->request.pages.groups[g];
        struct page_cursor cursor = {0};
        const struct page_span *span;
        while ((span = page_group_next(group, &cursor)) != NULL)
            if (!pages_ready(o, g, span->first, span->count, 0, 0))
                return false;
    }
    return true;
}

/* Marks these regions of a group's announced pages as ready. */
static bool regions_ready(struct offer *o, uint32_t group, uint32_t begin, uint32_t end)
{
    for (uint32_t i = 0; i < o->later_count; i++) {
        struct segment segment = {.group = group,
                                  .region_first = begin,
                                  .region_count = end - begin,
                                  .first = o->later_spans[i].first,
                                  .count = o->later_spans[i].count};
        if (o->later_spans[i].group == group && !add(o, &segment))
            return false;
    }
    return true;
}

static bool layers_ready(struct offer *o, int32_t layer_first, uint32_t layer_count)
{
    const struct pool *pool = o->request.pool->pool;
    bool *ready = o->later_ready;
    for (uint32_t g = 0; o->later && g < pool->group_count; ready += pool->groups[g].region_count, g++) {
        uint32_t at, end;
        layer_regions(&pool->groups[g], layer_first, layer_count, &at, &end);
        while (at < end) {
            uint32_t begin = at;
            while (at < end && !ready[at])
                ready[at++] = true;
            if (at > begin && !regions_ready(o, g, begin, at))
                return false;
            while (at < end && ready[at])
                at++;
        }
    }
    return true;
}

static void announce_to_legs(struct offer *o, uint32_t from)
{
    struct source *source;
    o->last = o->complete && o->awaited == NULL;
    LL_FOREACH (o->sources, source)
        source_more(source, from, o->ready_count - from);
}

/* ---- Pages that wait for an event -------------------------------------------------------------------------------- */

/* Pages of an offer that become ready when a GPU event has completed. The device's own thread waits for the event. Only
 * ready pages are announced to sinks, so that no slot is held for a slow producer. */

/* Pages whose event has not completed. May outlive the offer. */
struct awaited {
    struct device_task task;
    struct offer *offer; /* NULL: the offer has its verdict */
    int32_t layer_first;
    uint32_t layer_count;
    uint32_t list_count;           /* 0: all announced pages */
    struct awaited *next;          /* in offer->awaited */
    struct wire_page_list lists[]; /* without ids: only logical indexes count here */
};

/* ---- The verdict ------------------------------------------------------------------------------------------------- */

static bool jobs_are_over(const struct offer *o)
{
    const struct source *source;
    LL_FOREACH (o->sources, source)
        if (!source->leg.drained)
            return false;
    return true;
}

/* Sinks that the offer was looking for, at whatever stage that is. */
static void withdraw(struct offer *o, enum strait_reason reason)
{
    struct announce *a;
    LL_FOREACH (o->announces, a) {
        const struct withdrawal what = {.source = o->request.name, .sink = a->sink, .reason = reason};
        if (!a->bound)
            withdraw_post(o->request.node, &what, a->address, o->request.pool->uid);
        a->announced_to = NULL;
    }
}

static void trace(const struct offer *o)
{
    struct node *node = o->request.node;
    char key[3 * STRAIT_KEY_BYTES_MAX];
    if (!log_enabled(node->log, LOG_DEBUG))
        return;
    log_write(node->log, LOG_DEBUG, "msg=transfer side=source key=%s state=%s reason=\"%s\" us=%" PRIu64,
              log_quote(key, sizeof(key), o->request.name.key, o->request.name.size),
              o->request.state == STRAIT_DONE ? "done" : "failed", strait_reason_string(o->request.reason),
              (uv_hrtime() - o->request.timeline.began) / 1000);
}

static void decide(struct offer *o, enum strait_reason reason, const char *text)
{
    struct node *node = o->request.node;
    const bool done = reason == STRAIT_REASON_NONE;
    HASH_DELETE(by_name, node->exchange.offers_by_name, &o->request);
    request_decide(&o->request, done ? STRAIT_DONE : STRAIT_FAILED, reason, text);
    withdraw(o, done ? STRAIT_REASON_ABORTED : reason); /* done: with other consumers */
    struct awaited *awaited, *next;
    LL_FOREACH_SAFE (o->awaited, awaited, next) {
        awaited->offer = NULL;
        __atomic_store_n(&awaited->task.forgotten, true, __ATOMIC_RELAXED);
    }
    o->awaited = NULL;
    if (done)
        node->metrics.source_done++;
    else
        node->metrics.source_failed[reason]++;
    trace(o);
    struct source *source;
    LL_FOREACH (o->sources, source)
        source_event(source, SOURCE_FAIL, done ? STRAIT_REASON_ABORTED : reason);
}

void offer_fail(struct offer *o, enum strait_reason reason, const char *text)
{
    if (!o->request.decided)
        decide(o, reason, text);
}

void offer_expire(struct offer *o)
{
    const struct announce *a;
    if (o->request.decided)
        return;
    LL_FOREACH (o->announces, a)
        if (!a->bound) {
            offer_fail(o, STRAIT_REASON_LEASE_EXPIRED, request_waits(&o->request, a->address, a->announced_to != NULL));
            return;
        }
    offer_fail(o, STRAIT_REASON_LEASE_EXPIRED,
               request_text(&o->request, "%u of %u consumers have come", o->leg_count, o->consumers));
}

void offer_send_verdict(struct offer *o)
{
    struct device_state state;
    const char *text = request_why(&o->request, &state);
    if (jobs_are_over(o))
        request_drain(&o->request);
    request_send_verdict(&o->request, text, (struct view){0});
}

/* A failed consumer fails the offer, once all consumers have ended. DONE also says that the pages are free: it waits
 * for jobs whose chunks nobody needs any more, those of a connection that was lost, or of a sink that speaks too soon.
 */
static void conclude(struct offer *o)
{
    if (o->request.decided || o->done_count + o->failed_count < o->consumers)
        return;
    if (o->failed_count != 0 || jobs_are_over(o))
        decide(o, o->failed_count == 0 ? STRAIT_REASON_NONE : o->request.reason, o->why != NULL ? o->why : "");
}

void offer_consumer_ended(struct offer *o, enum strait_reason reason, const char *why)
{
    if (o->request.decided)
        return;
    if (reason == STRAIT_REASON_NONE) {
        o->done_count++;
    } else {
        o->failed_count++;
        if (o->request.reason == STRAIT_REASON_NONE)
            o->request.reason = reason;
        o->why = o->why != NULL ? o->why : why;
    }
    conclude(o);
}

/* ---- Reports of its legs ----------------------------------------------------------------------------------------- */

static struct offer *of(struct request *request)
{
    return (struct offer *)request;
}

static void on_verdict(struct request *request, enum strait_reason reason, const char *text)
{
    offer_consumer_ended(of(request), reason, text);
}

static void on_drained(struct request *request)
{
    conclude(of(request));
    if (!request->notified || request->drained || !jobs_are_over(of(request)))
        return;
    request_drain(request);
    struct message message = {.type = MESSAGE_DRAINED, .transfer = {.transfer = request->transfer}};
    session_send(request->session, &message);
    session_drained(request->session);
}

static const struct leg_callbacks leg_callbacks = {.verdict = on_verdict, .drained = on_drained};

/* ---- Events of the pages ----------------------------------------------------------------------------------------- */

/* The device whose memory an event concerns: that of the first list, else of the pool's first group on a device. */
static int32_t device_of(const struct pool *pool, const struct wire_page_list *lists, uint32_t list_count)
{
    if (list_count > 0)
        return pool->groups[lists[0].group].device;
    for (uint32_t g = 0; g < pool->group_count; g++)
        if (pool->groups[g].device >= 0)
            return pool->groups[g].device;
    return -1;
}

static enum strait_reason make_ready(struct offer *o, const struct awaited *awaited)
{
    for (uint32_t i = 0; i < awaited->list_count; i++) {
        const struct wire_page_list *list = &awaited->lists[i];
        if (!pages_ready(o, list->group, list->first, list->count, awaited->layer_first, awaited->layer_count))
            return STRAIT_REASON_NO_MEMORY;
    }
    if (awaited->list_count == 0 && !layers_ready(o, awaited->layer_first, awaited->layer_count))
        return STRAIT_REASON_NO_MEMORY;
    return STRAIT_REASON_NONE;
}

static void complete(struct offer *o, const struct awaited *awaited)
{
    uint32_t from = o->ready_count;
    enum strait_reason reason = STRAIT_REASON_LOCAL;
    if (awaited->task.status == STRAIT_OK)
        reason = make_ready(o, awaited);
    if (reason != STRAIT_REASON_NONE) {
        bool of_event = awaited->task.status != STRAIT_OK && awaited->task.status != STRAIT_ERR_DEVICE;
        offer_fail(o, reason, of_event ? "the event of its pages failed" : ""); /* a device gives its own reason */
        return;
    }
    announce_to_legs(o, from);
}

static void on_finished(struct device_task *task)
{
    struct awaited *awaited = (struct awaited *)task; /* its first member */
    struct offer *o = awaited->offer;
    if (o != NULL) {
        LL_DELETE(o->awaited, awaited);
        complete(o, awaited);
        o->request.node->exchange.events.run(o->request.node);
    }
    free(awaited);
}

static struct awaited *create(struct offer *o, const struct wire_page_list *lists, uint32_t list_count)
{
    size_t size = sizeof(struct awaited) + list_count * sizeof(lists[0]);
    struct awaited *awaited = request_charge(&o->request, size) ? calloc(1, size) : NULL;
    if (awaited == NULL)
        return NULL;
    awaited->offer = o;
    awaited->list_count = list_count;
    for (uint32_t i = 0; i < list_count; i++) {
        awaited->lists[i] = lists[i];
        awaited->lists[i].ids = NULL;
    }
    return awaited;
}

static void submit(struct awaited *awaited, int32_t device, struct view event)
{
    struct offer *o = awaited->offer;
    awaited->task = (struct device_task){
        .work = DEVICE_READY, .finished = on_finished, .created = uv_hrtime(), .event_size = (uint32_t)event.size};
    memcpy(awaited->task.event, event.data, event.size);
    LL_PREPEND(o->awaited, awaited);
    devices_submit(o->request.node->devices, device, &awaited->task);
}

static bool can_wait(const struct offer *o, int32_t device, struct view event)
{
    bool embedded = o->request.session != NULL && o->request.session->embedded;
    return device >= 0 && event.size == (embedded ? MESSAGE_EVENT_POINTER : MESSAGE_EVENT_IPC);
}

static enum strait_reason await_append(struct offer *o, const struct message_append *message)
{
    int32_t device = device_of(o->request.pool->pool, message->lists, message->list_count);
    if (!can_wait(o, device, message->ready))
        return STRAIT_REASON_LOCAL;
    struct awaited *awaited = create(o, message->lists, message->list_count);
    if (awaited == NULL)
        return STRAIT_REASON_NO_MEMORY;
    awaited->layer_first = message->layer_first;
    awaited->layer_count = message->layer_count;
    submit(awaited, device, message->ready);
    return STRAIT_REASON_NONE;
}

static enum strait_reason await_offer(struct offer *o, struct view event)
{
    int32_t device = device_of(o->request.pool->pool, NULL, 0);
    if (!can_wait(o, device, event))
        return STRAIT_REASON_LOCAL;
    struct awaited *awaited = create(o, NULL, 0);
    if (awaited == NULL)
        return STRAIT_REASON_NO_MEMORY;
    submit(awaited, device, event);
    return STRAIT_REASON_NONE;
}

/* ---- From the client --------------------------------------------------------------------------------------------- */

struct offer *offer_create(struct node *node, struct session *session, struct pool_ref *pool,
                           const struct message_offer *message)
{
    struct offer *o = calloc(1, sizeof(*o));
    if (o == NULL || page_set_init(&o->request.pages, pool->pool->group_count) != STRAIT_OK) {
        free(o);
        return NULL;
    }
    o->request.node = node;
    o->request.session = session;
    o->request.pool = pool;
    o->request.callbacks = &leg_callbacks;
    o->request.is_offer = true;
    o->request.transfer = message->transfer;
    o->request.timeline.began = uv_hrtime();
    o->request.tenant = session->tenant;
    session->tenant->live++;
    name_set(&o->request.name, tenant_view(session->tenant), &pool->key.id, message->key);
    o->consumers = message->consumers != 0 ? message->consumers : 1;
    o->lease_ms = message->lease_ms;
    o->expires = uv_now(node->loop) + message->lease_ms;
    o->later = message->later || message->ready.size != 0;
    pool->uses++;
    session->undrained++;
    node->metrics.offers++;
    DL_APPEND(node->exchange.offers, o);
    HASH_ADD(by_name, node->exchange.offers_by_name, name, sizeof(struct name), &o->request);
    tombstone_remove(node, &o->request.name, true);
    request_wake_gpus(&o->request);
    return o;
}

static enum strait_reason keep_aux(struct offer *o, struct view aux)
{
    if (aux.size == 0)
        return STRAIT_REASON_NONE;
    if (!request_charge(&o->request, aux.size))
        return STRAIT_REASON_NO_MEMORY;
    free(o->aux); /* a client may say `last` in several messages of one append */
    o->aux_size = 0;
    o->aux = malloc(aux.size);
    if (o->aux == NULL)
        return STRAIT_REASON_NO_MEMORY;
    memcpy(o->aux, aux.data, aux.size);
    o->aux_size = aux.size;
    return STRAIT_REASON_NONE;
}

static enum strait_reason prepare(struct offer *o, const struct message_offer *message)
{
    if (!pages_known(o))
        return STRAIT_REASON_NO_MEMORY;
    enum strait_reason reason = message->last ? keep_aux(o, message->aux) : STRAIT_REASON_NONE;
    if (reason == STRAIT_REASON_NONE && message->ready.size != 0)
        reason = await_offer(o, message->ready);
    return reason;
}

void offer_begin(struct offer *o, const struct message_offer *message)
{
    enum strait_reason reason = prepare(o, message);
    if (reason != STRAIT_REASON_NONE) {
        offer_fail(o, reason, reason == STRAIT_REASON_LOCAL ? "no event for these pages" : "");
        return;
    }
    o->complete = message->last;
    o->last = o->complete && o->awaited == NULL;
    o->request.begun = true;
    request_state(&o->request, STRAIT_BOOTSTRAP);
}

enum strait_reason offer_append(struct offer *o, const struct message_append *message, const char **why)
{
    uint32_t from = o->ready_count;
    *why = "nothing can be added after the last pages";
    if (o->complete)
        return STRAIT_REASON_GEOMETRY;
    *why = "";
    for (uint32_t i = 0; i < message->list_count; i++) {
        const struct wire_page_list *list = &message->lists[i];
        enum strait_reason reason = request_add_pages(&o->request, list, why);
        if (reason != STRAIT_REASON_NONE)
            return reason;
        if (message->ready.size == 0 &&
            !pages_ready(o, list->group, list->first, list->count, message->layer_first, message->layer_count))
            return STRAIT_REASON_NO_MEMORY;
    }
    if (message->ready.size == 0 && message->list_count == 0 &&
        !layers_ready(o, message->layer_first, message->layer_count))
        return STRAIT_REASON_NO_MEMORY;
    if (message->ready.size != 0) {
        enum strait_reason reason = await_append(o, message);
        if (reason != STRAIT_REASON_NONE)
            return reason;
    }
    if (message->last) {
        enum strait_reason reason = keep_aux(o, message->aux);
        if (reason != STRAIT_REASON_NONE)
            return reason;
        o->complete = !message->more;
    }
    announce_to_legs(o, from);
    return STRAIT_REASON_NONE;
}
