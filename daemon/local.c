/* Legs with both halves under this daemon: the same state machines and messages, without a connection between them, and
 * one copy from page to page instead of encode, link and decode. */
#include <stdlib.h>

#include "daemon/node.h"
#include "daemon/sink.h"
#include "daemon/source.h"

/* ---- Messages: handed to the other half, unless it has ended ----------------------------------------------------- */

static void send_to_source(struct sink *sink, const struct message *message)
{
    if (sink->local != NULL)
        source_message(sink->local, message);
}

static void send_to_sink(struct source *source, const struct message *message)
{
    if (source->local != NULL)
        sink_message(source->local, message);
}

/* The halves have been paired when the sink asks (match.c). */
static void request(struct sink *sink, const struct leg_action *action)
{
    (void)sink;
    (void)action;
}

/* ---- Pages: the source's ENCODE becomes the sink's chunk, and is done with the sink's DECODE --------------------- */

/* Pieces are as large as those that fit a slot, though no slot is needed: a larger page is a piece of its own. */
static bool cut(struct sink *sink, struct leg_event *grant)
{
    const struct receive_arena *arena = sink->node->receive.arenas[0];
    const uint32_t count = sink_cut(sink, arena, arena->slots.slot_bytes, grant->first, grant->count);
    grant->count = count != 0 ? count : 1;
    return true;
}

static bool is_stuck(struct source *source)
{
    (void)source;
    return false;
}

static void encoded(struct source *source, uint64_t grant, enum strait_reason reason)
{
    source_post(source, &(struct leg_event){.type = SOURCE_ENCODED, .grant = grant, .reason = reason});
}

static void encode(struct source *source, const struct leg_grant *grant)
{
    if (source->local != NULL)
        sink_post(source->local, &(struct leg_event){.type = SINK_ARRIVING, .grant = grant->id});
    else
        encoded(source, grant->id, STRAIT_REASON_NONE);
}

static void refuse(struct sink *sink, uint64_t grant)
{
    encoded(sink->local, grant, STRAIT_REASON_NONE);
}

static void transmit(struct source *source, const struct leg_grant *grant)
{
    source_post(source, &(struct leg_event){.type = SOURCE_SENT, .grant = grant->id});
}

/* While it runs, the source's grant is ENCODING and the sink's DECODING: neither half ends. */
struct copy {
    struct sink *sink;
    uint64_t grant;
};

static void finish(struct sink *sink, uint64_t grant, const struct job_result *result)
{
    struct metrics *metrics = &sink->node->metrics;
    histogram_record(&metrics->stages[STAGE_COPY], result->nanoseconds / 1000);
    metrics->local_bytes += result->raw_bytes;
    metrics->chunks_sent[CODED_LOCAL]++;
    if (sink->local != NULL && result->reason == STRAIT_REASON_NONE)
        sink->local->offer->request.raw_bytes += result->raw_bytes;
    sink_landed(sink, grant, result);
    encoded(sink->local, grant, result->reason);
}

static void on_copied(void *owner, uint64_t cookie, const struct job_result *result)
{
    struct node *node = owner;
    struct copy *copy = (struct copy *)(uintptr_t)cookie;
    node->exchange.encoding_jobs--;
    finish(copy->sink, copy->grant, result);
    free(copy);
    node->exchange.events.run(node);
}

static void copy_pages(struct sink *sink, const struct leg_grant *grant)
{
    struct node *node = sink->node;
    struct piece piece;
    const uint32_t *from_ids = NULL, *to_ids = NULL;
    if (segments_piece(&sink->segments, grant->first, grant->count, &piece)) {
        from_ids = page_set_ids(source_pages(sink->local), piece.group, piece.first, piece.count);
        to_ids = page_set_ids(sink_pages(sink), piece.group, piece.first, piece.count);
    }
    struct job_result failed = {.reason = STRAIT_REASON_NO_MEMORY};
    struct copy *copy = malloc(sizeof(*copy));
    if (from_ids == NULL || to_ids == NULL) {
        failed.reason = STRAIT_REASON_GEOMETRY;
    } else if (copy != NULL) {
        *copy = (struct copy){.sink = sink, .grant = grant->id};
        if (job_copy(node->jobs, source_pool(sink->local), from_ids, sink_pool(sink), to_ids, &piece, on_copied, node,
                     (uint64_t)(uintptr_t)copy) == STRAIT_OK) {
            node->exchange.encoding_jobs++;
            return;
        }
    }
    free(copy);
    finish(sink, grant->id, &failed);
}

const struct sink_port sink_over_memory = {
    .request = request, .send = send_to_source, .cut = cut, .decode = copy_pages, .refuse = refuse};
const struct source_port source_over_memory = {
    .list_max = UINT32_MAX, .send = send_to_sink, .is_stuck = is_stuck, .encode = encode, .transmit = transmit};
