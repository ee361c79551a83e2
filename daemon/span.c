#include "daemon/span.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "daemon/base/auth.h"
#include "daemon/expectation.h"
#include "daemon/node.h"

void span_begin(struct span *span, struct view context)
{
    span->sampled = context.size == TRACE_BYTES && trace_is_sampled(context.data);
    if (span->sampled)
        memcpy(span->context, context.data, TRACE_BYTES);
}

/* ---- The line's text --------------------------------------------------------------------------------------------- */

struct line {
    size_t size;
    char text[3072]; /* more than its longest values together */
};

__attribute__((format(printf, 2, 3))) static void add(struct line *line, const char *format, ...)
{
    va_list arguments;
    const size_t room = sizeof(line->text) - line->size;
    va_start(arguments, format);
    const int size = vsnprintf(line->text + line->size, room, format, arguments);
    va_end(arguments);
    line->size += size > 0 && (size_t)size < room ? (size_t)size : 0;
    line->text[line->size] = '\0';
}

static void add_id(struct line *line, const char *name, const uint8_t *id, size_t size)
{
    add(line, " %s=", name);
    for (size_t i = 0; i < size; i++)
        add(line, "%02x", id[i]);
}

/* Times are the system's clock, which may be set meanwhile: the end is read, and the duration is that of the other
 * clock. */
static void add_head(struct line *line, const uint8_t context[TRACE_BYTES], const char *name, uint64_t duration)
{
    struct timespec now;
    uint8_t id[TRACE_SPAN_BYTES];
    clock_gettime(CLOCK_REALTIME, &now);
    auth_random(id, sizeof(id));
    id[0] |= id[0] == 0; /* zero is no id */
    const uint64_t end = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    add(line, "msg=span name=%s", name);
    add_id(line, "trace_id", context, TRACE_ID_BYTES);
    add_id(line, "span_id", id, sizeof(id));
    add_id(line, "parent_id", context + TRACE_ID_BYTES, TRACE_SPAN_BYTES);
    add(line, " start_ns=%" PRIu64 " end_ns=%" PRIu64, end - duration, end);
}

static void add_key(struct line *line, const uint8_t *key, size_t size)
{
    char quoted[4 * STRAIT_KEY_BYTES_MAX + 3];
    add(line, " key=%s", log_quote(quoted, sizeof(quoted), key, size));
}

static void add_status(struct line *line, enum strait_reason reason, const char *text)
{
    char quoted[640];
    if (reason == STRAIT_REASON_NONE) {
        add(line, " status=ok");
        return;
    }
    add(line, " status=error reason=%s", metric_reason_name(reason));
    if (text[0] != '\0')
        add(line, " text=%s", log_quote(quoted, sizeof(quoted), text, strlen(text)));
}

/* The names whose bits are set, separated by commas. */
static void add_names(struct line *line, const char *what, const char *const names[], unsigned count, unsigned bits)
{
    const char *before = "=";
    if (bits == 0)
        return;
    add(line, " %s", what);
    for (unsigned i = 0; i < count; i++) {
        if ((bits >> i & 1) == 0)
            continue;
        add(line, "%s%s", before, names[i]);
        before = ",";
    }
}

/* ---- Phases ------------------------------------------------------------------------------------------------------ */

/* A phase, and when it ended; 0: it was not seen to. */
struct step {
    const char *name;
    uint64_t end;
};

enum { STEPS_MAX = 6 };

static void append(struct step *steps, unsigned *count, const char *name, uint64_t end)
{
    steps[(*count)++] = (struct step){name, end};
}

static void append_phases(struct step *steps, unsigned *count, const struct timeline *timeline, unsigned first,
                          unsigned last)
{
    for (unsigned p = first; p <= last; p++)
        append(steps, count, metric_phase_names[p], timeline->ends[p]);
}

/* The request's phases, the last of which is the one in which it ended. What the later phases of one that failed were
 * is not known: all that follows the answer, or the offer, is `chunks`. */
static unsigned steps_of(const struct request *request, struct step steps[STEPS_MAX])
{
    const struct timeline *leg = &request->span.leg;
    const bool done = request->state == STRAIT_DONE;
    unsigned count = 0;
    if (!request->is_offer) {
        append_phases(steps, &count, &request->timeline, PHASE_START, PHASE_ANSWER);
        if (done)
            append_phases(steps, &count, &request->timeline, PHASE_CHUNKS, PHASE_VERDICT);
    } else {
        append(steps, &count, "wait", leg->began);
        append(steps, &count, metric_phase_names[PHASE_OFFER], leg->ends[PHASE_OFFER]);
        if (done && leg->ends[PHASE_END] != 0)
            append_phases(steps, &count, leg, PHASE_ENCODE, PHASE_END);
    }
    if (count < 4)
        append(steps, &count, metric_phase_names[PHASE_CHUNKS], 0);
    if (done)
        return count;
    while (count > 1 && steps[count - 2].end == 0)
        count--;
    return count;
}

/* Durations, which together are the whole one. */
static void add_phases(struct line *line, const struct request *request, uint64_t now)
{
    struct step steps[STEPS_MAX];
    const unsigned count = steps_of(request, steps);
    const uint64_t began = request->timeline.began;
    uint64_t at = began;
    for (unsigned i = 0; i < count; i++) {
        uint64_t until = i == count - 1 ? now : steps[i].end;
        until = until < at ? at : until;
        add(line, " phase_%s_us=%" PRIu64, steps[i].name, (until - began) / 1000 - (at - began) / 1000);
        at = until;
    }
}

/* ---- The line ---------------------------------------------------------------------------------------------------- */

static const char *name_of(const struct request *request)
{
    if (request->is_offer)
        return "strait.offer";
    return ((const struct expectation *)request)->is_read ? "strait.read" : "strait.expect";
}

static void add_moved(struct line *line, const struct request *request)
{
    static const char *const codings[CODINGS] = {
        [CODED_RAW] = "raw",     [CODED_TOP16] = "top16", [CODED_TIERED] = "tiered", [CODED_BASE] = "base",
        [CODED_SPLIT] = "split", [CODED_PARTS] = "parts", [CODED_LOCAL] = "local"};
    char quoted[2 * sizeof(request->peer)];
    add(line, " pages=%" PRIu64 " raw_bytes=%" PRIu64 " wire_bytes=%" PRIu64, request->pages.total, request->raw_bytes,
        request->wire_bytes);
    if (request->peer[0] != '\0')
        add(line, " peer=%s", log_quote(quoted, sizeof(quoted), request->peer, strlen(request->peer)));
    if (request->span.wires == 0 && request->raw_bytes != 0)
        add(line, " transport=local");
    add_names(line, "transport", metric_wire_names, WIRE_NONE, request->span.wires);
    add_names(line, "coding", codings, CODINGS, request->span.codings);
}

void span_end(const struct request *request)
{
    struct log *log = request->node->log;
    struct line line = {0};
    struct device_state state;
    if (!request->span.sampled || !log_enabled(log, LOG_INFO))
        return;
    const uint64_t now = uv_hrtime();
    add_head(&line, request->span.context, name_of(request), now - request->timeline.began);
    add_status(&line, request->reason, request_why(request, &state));
    add_key(&line, request->name.key, request->name.size);
    if (request->name.tenant[0] != '\0')
        add(&line, " tenant=%.*s", (int)sizeof(request->name.tenant), request->name.tenant);
    add_moved(&line, request);
    add_phases(&line, request, now);
    log_limited(log, LOG_OF_SPANS, LOG_INFO, "%s", line.text);
}

void span_refused(struct node *node, struct view context, bool is_offer, struct view key, enum strait_reason reason,
                  const char *why)
{
    struct span span;
    struct line line = {0};
    span_begin(&span, context);
    if (!span.sampled || !log_enabled(node->log, LOG_INFO))
        return;
    add_head(&line, span.context, is_offer ? "strait.offer" : "strait.expect", 0);
    add_status(&line, reason, why);
    add_key(&line, key.data, key.size);
    log_limited(node->log, LOG_OF_SPANS, LOG_INFO, "%s", line.text);
}
