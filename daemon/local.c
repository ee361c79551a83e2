/* Legs with both halves under this daemon: the same state machines, messages handed over in memory, and one copy from
 * page to page instead of encode, wire and decode. */
#include <stdlib.h>
#include <string.h>

#include "daemon/node.h"
#include "daemon/sink.h"
#include "daemon/source.h"

/* A message was lost for lack of memory, so the halves' states would diverge: both end. */
static void give_up(struct sink *sink, struct source *source)
{
    if (source != NULL)
        source_event(source, SOURCE_FAIL, STRAIT_REASON_NO_MEMORY);
    if (sink != NULL) {
        sink_event(sink, SINK_FAIL, STRAIT_REASON_NO_MEMORY);
        sink_event(sink, SINK_QUIET, STRAIT_REASON_NONE);
    }
}

void local_post(struct node *node, struct sink *sink, struct source *source, const struct leg_event *event)
{
    struct exchange *x = &node->exchange;
    if (sink == NULL && source == NULL)
        return; /* the other half is gone */
    struct local_event *post = calloc(1, sizeof(*post));
    if (post == NULL) {
        give_up(sink != NULL ? sink : source->local, source != NULL ? source : sink->local);
        return;
    }
    post->sink = sink;
    post->source = source;
    post->event = *event;
    if (x->local_last != NULL)
        x->local_last->next = post;
    else
        x->local_first = post;
    x->local_last = post;
}

bool local_turn(struct node *node)
{
    struct exchange *x = &node->exchange;
    struct local_event *post;
    bool any = x->local_first != NULL;
    while ((post = x->local_first) != NULL) {
        x->local_first = post->next;
        if (x->local_first == NULL)
            x->local_last = NULL;
        if (post->sink != NULL)
            (void)sink_apply(post->sink, &post->event);
        else
            (void)source_apply(post->source, &post->event);
        free(post);
    }
    return any;
}

void local_bind(struct sink *sink, struct offer *offer)
{
    struct expectation *e = sink->expectation;
    if (sink->local != NULL || e->request.decided) /* decided in this turn, not reaped yet */
        return;
    if (offer->request.pool->pool->geometry != e->request.pool->pool->geometry) {
        sink_event(sink, SINK_END, STRAIT_REASON_GEOMETRY);
        return;
    }
    if (offer->leg_count >= offer->consumers) { /* all its consumers are known already */
        sink_event(sink, SINK_END, STRAIT_REASON_PEER_ABORT);
        return;
    }
    struct wire_span *wanted = malloc((e->wanted_count + 1) * sizeof(*wanted));
    if (wanted != NULL && e->wanted_count != 0)
        memcpy(wanted, e->wanted, e->wanted_count * sizeof(*wanted));
    struct source *source =
        wanted == NULL ? NULL : source_create(offer, NULL, sink, sink->id, &e->epoch, wanted, e->wanted_count);
    if (source == NULL) {
        sink_event(sink, SINK_END, STRAIT_REASON_NO_MEMORY);
        return;
    }
    sink->local = source;
    enum strait_reason reason = source_bind(source, &(struct open_grants){0});
    if (reason != STRAIT_REASON_NONE)
        source_event(source, SOURCE_FAIL, reason);
}

struct copy {
    struct sink *sink;
    struct source *source;
    uint64_t grant;
};

static void finish(struct node *node, const struct copy *copy, const struct job_result *result)
{
    histogram_record(&node->metrics.stages[STAGE_COPY], result->nanoseconds / 1000);
    node->metrics.local_bytes += result->raw_bytes;
    node->metrics.chunks_sent[CODED_LOCAL]++;
    sink_copied(copy->sink, copy->grant, result);
    struct leg_event encoded = {.type = SOURCE_ENCODED, .grant = copy->grant, .reason = result->reason};
    (void)source_apply(copy->source, &encoded);
}

static void on_copied(void *owner, uint64_t cookie, const struct job_result *result)
{
    struct node *node = owner;
    struct copy *copy = (struct copy *)(uintptr_t)cookie;
    node->exchange.encoding_jobs--;
    finish(node, copy, result);
    free(copy);
}

void local_detach(struct sink *sink, struct source *source)
{
    if (source != NULL)
        source->local = NULL;
    if (sink == NULL)
        return;
    sink->local = NULL;
    sink_event(sink, SINK_QUIET, STRAIT_REASON_NONE);
}

/* While the copy runs, the source's grant is ENCODING and the sink's DECODING: neither side's pages are drained. */
void local_copy(struct source *source, const struct leg_grant *grant)
{
    struct node *node = source->node;
    struct sink *sink = source->local;
    struct leg_event arriving = {.type = SINK_ARRIVING, .grant = grant->id};
    if (!sink_apply(sink, &arriving)) {
        struct leg_event encoded = {.type = SOURCE_ENCODED, .grant = grant->id};
        (void)source_apply(source, &encoded);
        return;
    }
    struct leg_event arrived = {.type = SINK_ARRIVED, .grant = grant->id};
    (void)sink_apply(sink, &arrived);

    struct request *from = &source->offer->request;
    struct request *to = &sink->expectation->request;
    struct piece piece;
    const uint32_t *from_ids = NULL, *to_ids = NULL;
    if (segments_piece(&source->segments, grant->first, grant->count, &piece)) {
        from_ids = page_set_ids(&from->pages, piece.group, piece.first, piece.count);
        to_ids = page_set_ids(&to->pages, piece.group, piece.first, piece.count);
    }
    struct copy *copy = malloc(sizeof(*copy));
    struct copy done = {.sink = sink, .source = source, .grant = grant->id};
    enum strait_status status = STRAIT_ERR_NO_MEMORY;
    if (copy != NULL && from_ids != NULL && to_ids != NULL) {
        *copy = done;
        status = job_copy(node->jobs, from->pool->pool, from_ids, to->pool->pool, to_ids, &piece, on_copied, node,
                          (uint64_t)(uintptr_t)copy);
    }
    if (status == STRAIT_OK) {
        node->exchange.encoding_jobs++;
        return;
    }
    free(copy);
    struct job_result failed = {.reason = from_ids == NULL || to_ids == NULL ? STRAIT_REASON_GEOMETRY
                                                                             : STRAIT_REASON_NO_MEMORY};
    finish(node, &done, &failed);
}
