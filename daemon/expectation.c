#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "daemon/node.h"
#include "daemon/part.h"
#include "daemon/sink.h"
#include "daemon/withdraw.h"

/* ---- Streams that wait for a layer or for the verdict ------------------------------------------------------------ */

#define ALL_LAYERS (-1)

/* A word to be raised. */
struct wait {
    int32_t layer;
    uint32_t word, value;
    struct wait *next; /* in expectation->waits */
};

static void raise_matching(struct expectation *e, bool (*matches)(const struct wait *wait, const void *what),
                           const void *what)
{
    struct wait *wait, *next;
    LL_FOREACH_SAFE (e->waits, wait, next) {
        if (!matches(wait, what))
            continue;
        session_raise(e->request.session, wait->word, wait->value);
        LL_DELETE(e->waits, wait);
        free(wait);
    }
}

static bool is_of_layer(const struct wait *wait, const void *layer)
{
    return wait->layer == *(const int32_t *)layer;
}

static bool is_any(const struct wait *wait, const void *nothing)
{
    (void)wait;
    (void)nothing;
    return true;
}

static void raise_layers(struct expectation *e, const int32_t *layers, uint32_t count)
{
    for (uint32_t i = 0; i < count && e->waits != NULL; i++)
        raise_matching(e, is_of_layer, &layers[i]);
}

/* ---- Pages that have landed, and those that are missing ---------------------------------------------------------- */

/* Reports what did not land, in one pass that stops when enough is reported: the loop does nothing else meanwhile. */

enum { REPORT_LISTS = 1024 }; /* lists in one message */

_Static_assert(REPORT_LISTS <= MESSAGE_LIST_MAX && STRAIT_FAILED_PAGES_MAX <= MESSAGE_IDS_MAX, "a message takes them");
_Static_assert(2 * COVERAGE_RANGE_MAX <= STRAIT_FAILED_PAGES_MAX, "and at least one range");

/* Collects pages for the client, until a message is full. */
struct page_report {
    struct request *request;
    uint32_t named; /* failed: pages so far; landed: of this message */
    bool more;      /* failed: there are more pages */
    uint32_t count;
    struct wire_page_list lists[REPORT_LISTS];
};

static void add_list(struct page_report *report, struct wire_page_list list)
{
    report->named += list.count;
    page_list_shorten(&list);
    report->lists[report->count++] = list;
}

static void send_failed(struct page_report *failed)
{
    struct message message = {.type = MESSAGE_STATE};
    message.state = (struct message_state){.transfer = failed->request->transfer,
                                           .state = STRAIT_FAILED,
                                           .reason = (uint32_t)failed->request->reason,
                                           .more = true,
                                           .failed_count = failed->count,
                                           .failed = failed->lists};
    if (failed->count != 0)
        session_send(failed->request->session, &message);
    failed->count = 0;
}

static bool add_failed(void *owner, const struct wire_page_list *range)
{
    struct page_report *failed = owner;
    struct wire_page_list list = *range;
    uint32_t room = STRAIT_FAILED_PAGES_MAX - failed->named;
    failed->more = list.count > room;
    if (failed->more)
        list.count = room;
    if (list.count != 0) {
        if (failed->count == REPORT_LISTS)
            send_failed(failed);
        add_list(failed, list);
    }
    return !failed->more;
}

/* Sends the client, before the verdict, the ids of the first STRAIT_FAILED_PAGES_MAX pages that are not in place.
 * False: there are more. */
static bool report_missing(struct expectation *e)
{
    struct page_report failed = {.request = &e->request};
    if (e->coverage == NULL) /* not begun: all its pages are free, none was touched */
        return true;
    coverage_missing(e->coverage, add_failed, &failed);
    send_failed(&failed);
    return !failed.more;
}

static void send_landed(struct page_report *landed)
{
    struct message message = {.type = MESSAGE_PAGES};
    message.pages = (struct message_pages){
        .transfer = landed->request->transfer, .list_count = landed->count, .lists = landed->lists};
    if (landed->count != 0) {
        request_untell(landed->request); /* that pages move */
        session_send(landed->request->session, &message);
    }
    landed->count = landed->named = 0;
}

static bool add_landed(void *owner, const struct wire_page_list *range)
{
    struct page_report *landed = owner;
    if (landed->count == REPORT_LISTS || range->count > STRAIT_FAILED_PAGES_MAX - landed->named)
        send_landed(landed);
    add_list(landed, *range);
    return true;
}

/* ---- The verdict ------------------------------------------------------------------------------------------------- */

static void trace(const struct expectation *e)
{
    struct node *node = e->request.node;
    uint64_t microseconds = (uv_hrtime() - e->request.timeline.began) / 1000;
    histogram_record(&node->metrics.stages[STAGE_TRANSFER], microseconds);
    if (!log_enabled(node->log, LOG_DEBUG))
        return;
    char key[3 * STRAIT_KEY_BYTES_MAX];
    log_write(node->log, LOG_DEBUG,
              "msg=transfer side=sink key=%s epoch=%" PRIx64 ".%" PRIu64 " state=%s reason=\"%s\" pages=%" PRIu64
              " raw_bytes=%" PRIu64 " wire_bytes=%" PRIu64 " us=%" PRIu64,
              log_quote(key, sizeof(key), e->request.name.key, e->request.name.size), e->epoch.incarnation,
              e->epoch.counter, e->request.state == STRAIT_DONE ? "done" : "failed",
              strait_reason_string(e->request.reason), e->request.pages.total, e->request.raw_bytes,
              e->request.wire_bytes, microseconds);
}

static bool jobs_are_over(const struct expectation *e)
{
    const struct sink *sink;
    LL_FOREACH (e->sinks, sink)
        if (!sink->leg.drained)
            return false;
    return true;
}

static void drain(struct expectation *e)
{
    request_drain(&e->request);
    parts_free(e);
    coverage_destroy(e->coverage);
    e->coverage = NULL;
}

/* Sources that have not answered. An END would not reach them where they were not asked yet, or by a connection that is
 * about to end. */
static void withdraw(const struct expectation *e, enum strait_reason reason)
{
    const struct sink *sink;
    if (e->is_read)
        return; /* nobody waits for it: what was asked ends with its connection */
    LL_FOREACH (e->sinks, sink) {
        const struct withdrawal what = {
            .source = sink->source, .sink = e->request.name, .from_sink = true, .reason = reason};
        if (sink->leg.state == STRAIT_BOOTSTRAP && sink->local == NULL)
            withdraw_post(e->request.node, &what, sink->port == &sink_over_memory ? "" : sink->address,
                          e->request.pool->uid);
    }
}

/* Ends the name: a new expectation may use it, and late messages get this verdict. */
static void decide(struct expectation *e, enum strait_reason reason, const char *text)
{
    struct node *node = e->request.node;
    const bool done = reason == STRAIT_REASON_NONE;
    HASH_DELETE(by_name, node->exchange.expectations_by_name, &e->request);
    request_decide(&e->request, done ? STRAIT_DONE : STRAIT_FAILED, reason, text);
    if (done)
        node->metrics.sink_done++;
    else
        node->metrics.sink_failed[reason]++;
    raise_matching(e, is_any, NULL);
    trace(e);
    if (!done)
        withdraw(e, reason);
    struct sink *sink;
    LL_FOREACH (e->sinks, sink)
        sink_event(sink, done ? SINK_FINISH : SINK_FAIL, reason);
}

void expectation_fail(struct expectation *e, enum strait_reason reason, const char *text)
{
    if (!e->request.decided)
        decide(e, reason, text);
}

/* What was missing when the deadline passed. */
static const char *why_late(struct expectation *e)
{
    const struct sink *sink;
    LL_FOREACH (e->sinks, sink)
        if (sink->leg.state == STRAIT_BOOTSTRAP)
            return request_waits(&e->request, sink->port->takes_slots ? sink->address : "", sink->asked);
    if (e->sink_count == 0)
        return "no source was named, and none has announced itself";
    if (e->sink_count < e->sources)
        return request_text(&e->request, "%u of %u sources have come", e->sink_count, e->sources);
    return request_text(&e->request, "%" PRIu64 " bytes have landed, and pages are missing", e->request.raw_bytes);
}

void expectation_expire(struct expectation *e)
{
    if (!e->request.decided)
        expectation_fail(e, STRAIT_REASON_TIMEOUT, why_late(e));
}

/* The verdict is about to be queued. Beyond TOLD_MAX in one turn its writing is not timed. */
static void keep_timeline(const struct expectation *e)
{
    struct exchange *x = &e->request.node->exchange;
    if (x->told_count == TOLD_MAX)
        requests_told(e->request.node);
    x->told[x->told_count++] = e->request.timeline;
}

void expectation_send_verdict(struct expectation *e)
{
    struct device_state state;
    const char *text = request_why(&e->request, &state);
    if (e->request.state == STRAIT_FAILED && !report_missing(e))
        text = e->request.text =
            request_text(&e->request, "%s%smore pages are missing than are named", text, text[0] != '\0' ? "; " : "");
    if (jobs_are_over(e))
        drain(e);
    if (e->request.state == STRAIT_DONE)
        keep_timeline(e);
    request_send_verdict(&e->request, text,
                         e->request.state == STRAIT_DONE ? view_of(e->aux, e->aux_size) : (struct view){0});
}

static bool keep(struct expectation *e, const struct message_wait *message)
{
    struct wait *wait = request_charge(&e->request, sizeof(*wait)) ? malloc(sizeof(*wait)) : NULL;
    if (wait == NULL)
        return false;
    *wait = (struct wait){.layer = message->layer, .word = message->word, .value = message->value};
    LL_PREPEND(e->waits, wait);
    return true;
}

/* True: there is nothing left to wait for. */
static bool is_over(struct expectation *e, const struct message_wait *message)
{
    if (e->request.decided || (message->layer != ALL_LAYERS && coverage_layer_landed(e->coverage, message->layer)))
        return true;
    if (keep(e, message))
        return false;
    expectation_fail(e, STRAIT_REASON_NO_MEMORY, "too many waits");
    return true;
}

void expectation_wait(struct expectation *e, const struct message_wait *message)
{
    if (is_over(e, message))
        session_raise(e->request.session, message->word, message->value);
}

/* ---- Reports of its legs ----------------------------------------------------------------------------------------- */

static struct expectation *of(struct request *request)
{
    return (struct expectation *)request;
}

static void on_landed(struct request *request, const struct piece *piece)
{
    struct page_report landed;
    if (!of(request)->tells_pages)
        return;
    landed.request = request;
    landed.named = landed.count = 0;
    coverage_whole(of(request)->coverage, piece, add_landed, &landed);
    send_landed(&landed);
}

static void on_layers(struct request *request, const int32_t *layers, uint32_t count)
{
    struct message message = {.type = MESSAGE_LAYERS};
    message.layers = (struct message_layers){.transfer = request->transfer, .layer_count = count, .layers = layers};
    request_untell(request); /* a layer says it, too */
    session_send(request->session, &message);
    raise_layers(of(request), layers, count);
}

static void on_complete(struct request *request)
{
    struct expectation *e = of(request);
    struct layers layers = {.count = 0};
    if (++e->complete_count < e->sources || request->decided)
        return;
    parts_end(e, layers_add, &layers);
    if (layers.count != 0)
        on_layers(request, layers.list, layers.count);
    if (coverage_complete(e->coverage))
        decide(e, STRAIT_REASON_NONE, "");
    else
        decide(e, STRAIT_REASON_GEOMETRY, "pages were expected that no source has offered");
}

static void on_verdict(struct request *request, enum strait_reason reason, const char *text)
{
    if (reason != STRAIT_REASON_NONE)
        expectation_fail(of(request), reason, text);
}

static void on_drained(struct request *request)
{
    if (!request->notified || request->drained || !jobs_are_over(of(request)))
        return;
    drain(of(request));
    struct message message = {.type = MESSAGE_DRAINED, .transfer = {.transfer = request->transfer}};
    session_send(request->session, &message);
    session_drained(request->session);
}

static const struct leg_callbacks leg_callbacks = {
    .landed = on_landed,
    .layers = on_layers,
    .complete = on_complete,
    .verdict = on_verdict,
    .drained = on_drained,
};

/* ---- Beginning --------------------------------------------------------------------------------------------------- */

struct expectation *expectation_create(struct node *node, struct session *session, struct pool_ref *pool,
                                       const struct message_expect *message)
{
    struct expectation *e = calloc(1, sizeof(*e));
    if (e == NULL || page_set_init(&e->request.pages, pool->pool->group_count) != STRAIT_OK) {
        free(e);
        return NULL;
    }
    e->request.node = node;
    e->request.callbacks = &leg_callbacks;
    e->request.session = session;
    e->request.pool = pool;
    e->request.transfer = message->transfer;
    e->request.timeline.began = uv_hrtime();
    span_begin(&e->request.span, message->trace);
    e->request.tenant = session->tenant;
    session->tenant->live++;
    name_set(&e->request.name, tenant_view(session->tenant), &pool->key.id, message->key);
    e->epoch = (struct epoch){.incarnation = node->incarnation, .counter = ++node->epoch_counter};
    e->sources = message->sources != 0 ? message->sources : 1;
    e->tokens = message->tokens;
    e->tells_pages = message->pages;
    e->begins_within = message->within;
    e->deadline = uv_now(node->loop) + message->deadline_ms;
    pool->uses++;
    session->undrained++;
    node->metrics.expectations++;
    DL_APPEND(node->exchange.expectations, e);
    HASH_ADD(by_name, node->exchange.expectations_by_name, name, sizeof(struct name), &e->request);
    tombstone_remove(node, &e->request.name, false);
    return e;
}

static bool prepare_coverage(struct expectation *e)
{
    const struct pool *pool = e->request.pool->pool;
    struct coverage_group groups[STRAIT_GROUPS_MAX];
    for (uint32_t g = 0; g < pool->group_count; g++)
        groups[g] =
            (struct coverage_group){.region_count = pool->groups[g].region_count, .layers = pool->groups[g].layers};
    return coverage_create(&e->request.pages, groups, pool->group_count, &e->coverage) == STRAIT_OK;
}

void expectation_begin(struct expectation *e)
{
    e->wanted = page_set_spans(&e->request.pages, &e->wanted_count);
    if (e->wanted == NULL || !prepare_coverage(e)) {
        expectation_fail(e, STRAIT_REASON_NO_MEMORY, "too many pages");
        return;
    }
    e->request.begun = true;
    request_state(&e->request, STRAIT_BOOTSTRAP);
}

bool expectation_read(struct expectation *e, const struct wire_page_list *lists, uint32_t count)
{
    enum strait_status status = STRAIT_OK;
    if (!e->is_read)
        status = page_set_init(&e->served, e->request.pages.group_count);
    e->is_read = true;
    for (uint32_t i = 0; i < count && status == STRAIT_OK; i++)
        status = request_charge(&e->request, (uint64_t)lists[i].count * sizeof(uint32_t) + sizeof(struct page_span))
                     ? page_set_add(&e->served, &lists[i])
                     : STRAIT_ERR_NO_MEMORY;
    if (status == STRAIT_ERR_NO_MEMORY)
        expectation_fail(e, STRAIT_REASON_NO_MEMORY, "page lists of this client take too much memory");
    else if (status != STRAIT_OK)
        expectation_fail(e, STRAIT_REASON_GEOMETRY,
                         "the peer's pages: a logical index is named twice, or no such group");
    return status == STRAIT_OK;
}

struct sink *expectation_find_leg(const struct expectation *e, const struct name *source)
{
    struct sink *sink;
    LL_FOREACH (e->sinks, sink)
        if (memcmp(&sink->source, source, sizeof(*source)) == 0)
            return sink;
    return NULL;
}

struct sink *expectation_add_leg(struct expectation *e, const struct name *source, const char *address,
                                 const struct sink_port *port)
{
    struct sink *sink = sink_create(e, source, address, port);
    if (sink == NULL)
        expectation_fail(e, STRAIT_REASON_NO_MEMORY, "");
    return sink;
}
