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

/* The ready pages of an offer: segments in the order in which they became ready, charged to its client. */

static bool add(struct offer *o, const struct segment *segment)
{
    if (o->ready_count == o->ready_capacity) {
        uint32_t capacity = o->ready_capacity != 0 ? 2 * o->ready_capacity : 16;
        struct segment *ready = request_charge(&o->request, (capacity - o->ready_capacity) * sizeof(*ready))
                                    ? realloc(o->ready, capacity * sizeof(*ready))
                                    : NULL;
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

/* The segment of these pages and layers; false: it is empty. */
static bool segment_of(const struct offer *o, uint32_t group, uint32_t first, uint32_t count, int32_t layer_first,
                       uint32_t layer_count, struct segment *segment)
{
    uint32_t begin, end;
    layer_regions(&o->request.pool->pool->groups[group], layer_first, layer_count, &begin, &end);
    *segment = (struct segment){
        .group = group, .region_first = begin, .region_count = end - begin, .first = first, .count = count};
    return begin < end && count > 0;
}

static bool emit(void *owner, const struct segment *segment)
{
    return add(owner, segment);
}

/* The client is charged for what is kept of its pages. */
static bool charge_readiness(struct offer *o, uint64_t before)
{
    return request_charge(&o->request, readiness_bytes(&o->readiness) - before);
}

/* Begins to keep which units are ready, if that is not kept yet. */
static bool keep_readiness(struct offer *o, bool later)
{
    uint32_t region_counts[STRAIT_GROUPS_MAX];
    const struct pool *pool = o->request.pool->pool;
    if (o->readiness.groups != NULL)
        return true;
    for (uint32_t g = 0; g < pool->group_count; g++)
        region_counts[g] = pool->groups[g].region_count;
    return readiness_init(&o->readiness, &o->request.pages, region_counts, later) == STRAIT_OK &&
           charge_readiness(o, 0);
}

/* The pages that the offer lists: ready, unless they are for later. */
static bool pages_known(struct offer *o)
{
    if (o->later)
        return keep_readiness(o, true);
    for (uint32_t g = 0; g < o->request.pages.group_count; g++) {
        struct page_cursor cursor = {0};
        const struct page_span *span;
        struct segment segment;
        while ((span = page_group_next(&o->request.pages.groups[g], &cursor)) != NULL)
            if (segment_of(o, g, span->first, span->count, 0, 0, &segment) && !add(o, &segment))
                return false;
    }
    return true;
}

/* Layers of all pages that are for later and have ordinals below `limit` (of each group) are ready. */
static bool layers_ready(struct offer *o, int32_t layer_first, uint32_t layer_count,
                         const struct wire_page_list *limits)
{
    const struct pool *pool = o->request.pool->pool;
    for (uint32_t g = 0; o->readiness.groups != NULL && g < pool->group_count; g++) {
        uint32_t begin, end;
        layer_regions(&pool->groups[g], layer_first, layer_count, &begin, &end);
        if (!readiness_mark_later(&o->readiness, &o->request.pages, g, begin, end,
                                  limits != NULL ? limits[g].count : UINT32_MAX, emit, o))
            return false;
    }
    return true;
}

/* Layers of listed pages are ready. */
static enum strait_reason list_ready(struct offer *o, const struct wire_page_list *list, int32_t layer_first,
                                     uint32_t layer_count, const char **why)
{
    struct segment segment;
    if (!segment_of(o, list->group, list->first, list->count, layer_first, layer_count, &segment))
        return STRAIT_REASON_NONE;
    if (o->readiness.groups != NULL && readiness_mark(&o->readiness, &o->request.pages, &segment) != STRAIT_OK) {
        *why = request_text(&o->request, "a page from logical index %u on, of group %u, is ready already", list->first,
                            list->group);
        return STRAIT_REASON_GEOMETRY;
    }
    return add(o, &segment) ? STRAIT_REASON_NONE : STRAIT_REASON_NO_MEMORY;
}

/* An offer that is complete while no event is awaited must have all its pages ready, or its sinks would miss some. */
static enum strait_reason check_complete(struct offer *o, const char **why)
{
    struct segment missing;
    if (!o->complete || o->awaited != NULL || o->readiness.groups == NULL ||
        readiness_is_complete(&o->readiness, &o->request.pages, &missing))
        return STRAIT_REASON_NONE;
    *why = request_text(&o->request, "the last append leaves layer %d of logical index %u, group %u, not ready",
                        o->request.pool->pool->groups[missing.group].layers[missing.region_first], missing.first,
                        missing.group);
    return STRAIT_REASON_GEOMETRY;
}

static void announce_to_legs(struct offer *o, uint32_t from)
{
    struct source *source;
    o->last = o->complete && o->awaited == NULL;
    LL_FOREACH (o->sources, source)
        source_more(source, from, o->ready_count - from);
    sampling_ready(o, from);
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
    bool later; /* all pages listed as `later`: lists[g].count is the limit of their ordinals */
    uint32_t list_count;
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
    sampling_over(node, &o->sampled);
    if (!o->request.nameless)
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

void offer_count(struct offer *o, uint32_t consumers)
{
    if (o->consumers == 0)
        o->consumers = consumers != 0 ? consumers : 1;
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
               o->consumers == 0
                   ? "no consumer has come, to say how many there are"
                   : request_text(&o->request, "%u of %u consumers have come", o->leg_count, o->consumers));
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

static enum strait_reason make_ready(struct offer *o, const struct awaited *awaited, const char **why)
{
    enum strait_reason reason = STRAIT_REASON_NONE;
    if (awaited->later && !layers_ready(o, awaited->layer_first, awaited->layer_count, awaited->lists))
        return STRAIT_REASON_NO_MEMORY;
    for (uint32_t i = 0; !awaited->later && i < awaited->list_count && reason == STRAIT_REASON_NONE; i++)
        reason = list_ready(o, &awaited->lists[i], awaited->layer_first, awaited->layer_count, why);
    return reason;
}

static void complete(struct offer *o, const struct awaited *awaited)
{
    const uint32_t from = o->ready_count;
    const enum strait_status status = awaited->task.status;
    const char *why = status == STRAIT_OK || status == STRAIT_ERR_DEVICE ? "" /* a device gives its own reason */
                                                                         : "the event of its pages failed";
    enum strait_reason reason = status == STRAIT_OK ? make_ready(o, awaited, &why) : STRAIT_REASON_LOCAL;
    if (reason == STRAIT_REASON_NONE)
        reason = check_complete(o, &why);
    if (reason != STRAIT_REASON_NONE)
        offer_fail(o, reason, why);
    else
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

/* Of lists, or (none) of all pages that are for later, as they are now. */
static struct awaited *create(struct offer *o, const struct wire_page_list *lists, uint32_t list_count)
{
    const uint32_t count = list_count > 0 ? list_count : o->request.pages.group_count;
    const size_t size = sizeof(struct awaited) + count * sizeof(lists[0]);
    struct awaited *awaited = request_charge(&o->request, size) ? calloc(1, size) : NULL;
    if (awaited == NULL)
        return NULL;
    awaited->offer = o;
    awaited->later = list_count == 0;
    awaited->list_count = count;
    for (uint32_t i = 0; i < count; i++) {
        awaited->lists[i] =
            awaited->later ? (struct wire_page_list){.count = o->request.pages.groups[i].id_count} : lists[i];
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

static struct offer *offer_new(struct pool_ref *pool, struct view key, uint32_t consumers, uint32_t lease_ms)
{
    struct node *node = pool->node;
    struct offer *o = calloc(1, sizeof(*o));
    if (o == NULL || page_set_init(&o->request.pages, pool->pool->group_count) != STRAIT_OK) {
        free(o);
        return NULL;
    }
    o->request.node = node;
    o->request.pool = pool;
    o->request.callbacks = &leg_callbacks;
    o->request.is_offer = true;
    o->request.timeline.began = uv_hrtime();
    o->request.tenant = pool->tenant;
    pool->tenant->live++;
    name_set(&o->request.name, tenant_view(pool->tenant), &pool->key.id, key);
    o->consumers = consumers;
    o->lease_ms = lease_ms;
    o->expires = uv_now(node->loop) + lease_ms;
    pool->uses++;
    node->metrics.offers++;
    DL_APPEND(node->exchange.offers, o);
    return o;
}

struct offer *offer_create(struct node *node, struct session *session, struct pool_ref *pool,
                           const struct message_offer *message)
{
    const uint32_t consumers = message->asked ? 0 : message->consumers != 0 ? message->consumers : 1;
    struct offer *o = offer_new(pool, message->key, consumers, message->lease_ms);
    if (o == NULL)
        return NULL;
    o->request.session = session;
    o->request.transfer = message->transfer;
    span_begin(&o->request.span, message->trace);
    o->later = message->later || message->ready.size != 0;
    session->undrained++;
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
    sampling_ready(o, 0);
}

/* Marks the pages as offered, which fails where one is being written, and says that they are ready. */
static enum strait_reason take_read(struct offer *o, const struct page_set *pages)
{
    struct page_lists_cursor cursor = {0};
    struct wire_page_list list;
    const char *why;
    while (page_set_next_list(pages, &cursor, UINT32_MAX, &list)) {
        enum strait_reason reason = request_add_pages(&o->request, &list, &why);
        if (reason != STRAIT_REASON_NONE)
            return reason;
    }
    return pages_known(o) ? STRAIT_REASON_NONE : STRAIT_REASON_NO_MEMORY;
}

struct offer *offer_for_read(struct pool_ref *pool, const struct name *reader, const struct page_set *pages,
                             uint32_t deadline_ms, struct served_read *read, enum strait_reason *reason)
{
    struct offer *o = offer_new(pool, view_of(reader->key, reader->size), 1, deadline_ms);
    *reason = STRAIT_REASON_NO_MEMORY;
    if (o == NULL)
        return NULL;
    o->request.nameless = o->request.begun = true;
    o->complete = o->last = true;
    *reason = take_read(o, pages);
    if (*reason != STRAIT_REASON_NONE) {
        offer_fail(o, *reason, "");
        return NULL;
    }
    o->read = read;
    request_wake_gpus(&o->request);
    request_state(&o->request, STRAIT_BOOTSTRAP);
    sampling_ready(o, 0);
    return o;
}

/* Whether the offer has the listed pages already: all, with the same ids, or (count 0) none. Otherwise GEOMETRY. */
static enum strait_reason find_known(struct offer *o, const struct wire_page_list *list, uint32_t *count,
                                     const char **why)
{
    const struct page_set *pages = &o->request.pages;
    *count = 0;
    for (uint32_t done = 0, run; done < list->count; done += run) {
        run = page_set_run(pages, list->group, list->first + done);
        run = run < list->count - done ? run : list->count - done;
        if (run == 0)
            break;
        const uint32_t *ids = page_set_ids(pages, list->group, list->first + done, run);
        for (uint32_t i = 0; i < run; i++)
            if (ids[i] != (list->ids != NULL ? list->ids[done + i] : list->first_id + done + i)) {
                *why = request_text(&o->request, "logical index %u of group %u was page %u before",
                                    list->first + done + i, list->group, ids[i]);
                return STRAIT_REASON_GEOMETRY;
            }
        *count += run;
    }
    if (*count == 0 || *count == list->count)
        return STRAIT_REASON_NONE;
    *why = request_text(&o->request, "logical index %u of group %u is new in a list of pages that are known",
                        list->first + *count, list->group);
    return STRAIT_REASON_GEOMETRY;
}

/* Pages that the offer has already become ready; others are added, ready or for later. */
static enum strait_reason append_list(struct offer *o, const struct wire_page_list *list,
                                      const struct message_append *message, const char **why)
{
    uint32_t known = 0;
    const bool partly = message->later || message->layer_count != 0 || message->ready.size != 0;
    enum strait_reason reason = STRAIT_REASON_NONE;
    if (list->group < o->request.pages.group_count)
        reason = find_known(o, list, &known, why);
    if (reason == STRAIT_REASON_NONE && known > 0 && (message->later || o->readiness.groups == NULL)) {
        *why = request_text(&o->request, "logical index %u of group %u is %s", list->first, list->group,
                            message->later ? "listed already" : "ready already");
        reason = STRAIT_REASON_GEOMETRY;
    }
    if (reason == STRAIT_REASON_NONE && known == 0) {
        if (partly && !keep_readiness(o, false))
            return STRAIT_REASON_NO_MEMORY;
        reason = request_add_pages(&o->request, list, why);
        const uint64_t before = readiness_bytes(&o->readiness);
        if (reason == STRAIT_REASON_NONE && o->readiness.groups != NULL &&
            (readiness_add(&o->readiness, &o->request.pages, list, message->later) != STRAIT_OK ||
             !charge_readiness(o, before)))
            return STRAIT_REASON_NO_MEMORY;
    }
    if (reason != STRAIT_REASON_NONE || message->later || message->ready.size != 0)
        return reason;
    return list_ready(o, list, message->layer_first, message->layer_count, why);
}

enum strait_reason offer_append(struct offer *o, const struct message_append *message, const char **why)
{
    const uint32_t from = o->ready_count;
    enum strait_reason reason = STRAIT_REASON_NONE;
    *why = "nothing can be added after the last pages";
    if (o->complete)
        return STRAIT_REASON_GEOMETRY;
    *why = "";
    for (uint32_t i = 0; i < message->list_count && reason == STRAIT_REASON_NONE; i++)
        reason = append_list(o, &message->lists[i], message, why);
    if (reason == STRAIT_REASON_NONE && message->ready.size == 0 && message->list_count == 0 &&
        !layers_ready(o, message->layer_first, message->layer_count, NULL))
        reason = STRAIT_REASON_NO_MEMORY;
    if (reason == STRAIT_REASON_NONE && message->ready.size != 0)
        reason = await_append(o, message);
    if (reason == STRAIT_REASON_NONE && message->last) {
        reason = keep_aux(o, message->aux);
        o->complete = !message->more;
    }
    if (reason == STRAIT_REASON_NONE)
        reason = check_complete(o, why);
    if (reason == STRAIT_REASON_NONE)
        announce_to_legs(o, from);
    return reason;
}
