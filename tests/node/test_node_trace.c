/* Requests that belong to a trace: the line that each leaves in the log of its own daemon when it ends. */
#include <inttypes.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "tests/node/harness.h"

static const struct geometry shape = {.layers = 2, .roles = 2, .pages = 32};

#define TRACE                  "0af7651916cd43dd8448eb211c80319c"
#define SOURCE                 "b7ad6b7169203331"
#define SINK                   "00f067aa0ba902b7"
#define SAMPLED                "01"
#define CONTEXT(parent, flags) "00-" TRACE "-" parent "-" flags

/* ---- Logs -------------------------------------------------------------------------------------------------------- */

struct written {
    int fd;
    struct log *log;
};

static struct written of_a, of_b;

static void open_log(struct written *written, struct test_node *node, enum log_level level)
{
    written->fd = memfd_create("log", MFD_CLOEXEC);
    ck_assert_int_ge(written->fd, 0);
    ck_assert_int_eq(STRAIT_OK, log_create(written->fd, level, &written->log));
    node->log = written->log;
}

static struct pair logged(int wire, enum log_level level)
{
    struct pair pair = pair_init(wire);
    open_log(&of_a, pair.a, level);
    if (pair.b != pair.a)
        open_log(&of_b, pair.b, level);
    pair_start(&pair, shape);
    return pair;
}

/* What the node has logged; it has ended. */
static char *read_log(struct written *written)
{
    char *text = keep(1 << 20);
    log_destroy(written->log);
    const ssize_t size = pread(written->fd, text, (1 << 20) - 1, 0);
    ck_assert_int_ge((int)size, 0);
    text[size] = '\0';
    close(written->fd);
    written->log = NULL;
    return text;
}

static void stop(struct pair *pair)
{
    party_close(pair->from);
    party_close(pair->to);
    test_node_stop(pair->a);
    if (pair->b != pair->a)
        test_node_stop(pair->b);
}

static uint32_t count_of(const char *text, const char *word)
{
    uint32_t count = 0;
    for (const char *at = text; (at = strstr(at, word)) != NULL; at++)
        count++;
    return count;
}

/* The line of the log that has this text, which is to be the only one; kept. */
static const char *line_with(const char *log, const char *text)
{
    ck_assert_msg(count_of(log, text) == 1, "%u times %s in:\n%s", count_of(log, text), text, log);
    const char *at = strstr(log, text), *begin = at;
    while (begin > log && begin[-1] != '\n')
        begin--;
    const size_t size = strcspn(begin, "\n");
    char *line = keep(size + 1);
    memcpy(line, begin, size);
    return line;
}

static void has(const char *line, const char *field)
{
    char word[256];
    snprintf(word, sizeof(word), " %s ", field);
    const size_t size = strlen(line);
    const bool last = size >= strlen(field) && strcmp(line + size - strlen(field), field) == 0;
    ck_assert_msg(last || strstr(line, word) != NULL, "no %s in: %s", field, line);
}

static void has_not(const char *line, const char *text)
{
    ck_assert_msg(strstr(line, text) == NULL, "%s in: %s", text, line);
}

static uint64_t number(const char *line, const char *name)
{
    char word[64];
    snprintf(word, sizeof(word), " %s=", name);
    const char *at = strstr(line, word);
    ck_assert_msg(at != NULL, "no %s in: %s", name, line);
    return strtoull(at + strlen(word), NULL, 10);
}

static void span_id_of(const char *line, char id[17])
{
    const char *at = strstr(line, " span_id=");
    ck_assert_ptr_nonnull(at);
    ck_assert_int_eq(1, sscanf(at, " span_id=%16[0-9a-f]", id));
    ck_assert_uint_eq(16, strlen(id));
    ck_assert_str_ne("0000000000000000", id);
}

static uint64_t real_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The phases have these names, separated by spaces, and together the span's duration. */
static void lasts(const char *line, const char *phases)
{
    uint64_t sum = 0, us;
    char names[128] = "", name[32];
    int used = 0;
    for (const char *at = line; (at = strstr(at, " phase_")) != NULL; at++) {
        ck_assert_int_eq(2, sscanf(at, " phase_%31[a-z]_us=%" SCNu64, name, &us));
        used += snprintf(names + used, sizeof(names) - (size_t)used, "%s%s", used > 0 ? " " : "", name);
        sum += us;
    }
    ck_assert_msg(strcmp(phases, names) == 0, "not %s: %s", phases, line);
    ck_assert_uint_eq((number(line, "end_ns") - number(line, "start_ns")) / 1000, sum);
}

/* ---- Requests that are DONE -------------------------------------------------------------------------------------- */

static void check_done(const char *line, const struct flow *flow, const struct pair *pair)
{
    static const char *const transports[] = {[SAME] = "local", [SHM] = "shm", [TCP] = "tcp"};
    char field[320];
    has(line, "level=info");
    has(line, "msg=span");
    has(line, "trace_id=" TRACE);
    has(line, "status=ok");
    has(line, "key=\"a key\"");
    has(line, "pages=8");
    has_not(line, "reason=");
    has_not(line, "tenant=");
    ck_assert_uint_eq(flow->raw_bytes, number(line, "raw_bytes"));
    ck_assert_uint_eq(flow->wire_bytes, number(line, "wire_bytes"));
    ck_assert_uint_eq(8 * 4 * 4096, flow->raw_bytes);
    snprintf(field, sizeof(field), "transport=%s", transports[pair->wire]);
    has(line, field);
    snprintf(field, sizeof(field), "peer=%s", flow->peer);
    if (pair->wire == SAME)
        has_not(line, "peer=");
    else
        has(line, field);
}

TEST_LOOP(a_request_of_a_trace_leaves_a_span_at_each_side, WIRES)
{
    struct pair pair = logged(_i, LOG_INFO);
    char ids[2][17];
    const uint64_t before = real_ns();
    struct flow *o =
        OFFER(pair.source, "a key", LISTS({.count = 8}), .last = true, .traceparent = CONTEXT(SOURCE, SAMPLED));
    struct flow *e =
        EXPECT(pair.sink, "a key", LISTS({.count = 8, .first_id = 8}), .traceparent = CONTEXT(SINK, SAMPLED));
    pull(e, o);
    const uint64_t after = real_ns();
    stop(&pair);
    const char *log = read_log(&of_a), *other = pair.b != pair.a ? read_log(&of_b) : log;
    const char *source = line_with(log, " name=strait.offer "), *sink = line_with(other, " name=strait.expect ");
    ck_assert_uint_eq(_i == SAME ? 2 : 1, count_of(log, "msg=span"));
    check_done(source, o, &pair);
    check_done(sink, e, &pair);
    has(source, "parent_id=" SOURCE);
    has(sink, "parent_id=" SINK);
    span_id_of(source, ids[0]);
    span_id_of(sink, ids[1]);
    ck_assert_str_ne(ids[0], ids[1]);
    lasts(sink, "start connect answer chunks decode verdict");
    lasts(source, _i == SAME ? "wait offer chunks" : "wait offer encode send end");
    if (_i != SAME)
        has(source, _i == SHM ? "coding=raw" : "coding=base"); /* without a codebook set */
    for (int side = 0; side < 2; side++) {
        const char *line = side == 0 ? source : sink;
        /* The clock may be set while a test runs, but not here, and not by a second. */
        ck_assert_uint_ge(number(line, "start_ns") + 1000000000u, before);
        ck_assert_uint_le(number(line, "end_ns"), after + 1000000000u);
    }
}

TEST(requests_without_a_trace_or_that_are_not_sampled_leave_none)
{
    struct pair pair = logged(SHM, LOG_DEBUG);
    struct flow *o = OFFER(pair.source, "none", LISTS({.count = 8}), .last = true);
    pull(EXPECT(pair.sink, "none", LISTS({.count = 8}), .traceparent = ""), o);
    o = OFFER(pair.source, "unsampled", LISTS({.count = 8}), .last = true, .traceparent = CONTEXT(SOURCE, "00"));
    pull(EXPECT(pair.sink, "unsampled", LISTS({.count = 8}), .traceparent = CONTEXT(SINK, "fe")), o);
    stop(&pair);
    const char *a = read_log(&of_a), *b = read_log(&of_b);
    ck_assert_uint_eq(2, count_of(a, "msg=transfer ")); /* there are logs, */
    ck_assert_uint_eq(2, count_of(b, "msg=transfer "));
    ck_assert_uint_eq(0, count_of(a, "msg=span") + count_of(b, "msg=span")); /* without spans */
}

TEST(a_log_of_warnings_has_no_spans)
{
    struct pair pair = logged(SAME, LOG_WARN);
    struct flow *o =
        OFFER(pair.source, "k", LISTS({.count = 8}), .last = true, .traceparent = CONTEXT(SOURCE, SAMPLED));
    pull(EXPECT(pair.sink, "k", LISTS({.count = 8})), o);
    stop(&pair);
    ck_assert_uint_eq(0, count_of(read_log(&of_a), "msg=span"));
}

/* One side's trace is nothing to the other side. */
TEST(the_peer_is_not_told_of_the_trace)
{
    struct pair pair = logged(TCP, LOG_INFO);
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 8}), .last = true);
    pull(EXPECT(pair.sink, "k", LISTS({.count = 8}), .traceparent = CONTEXT(SINK, SAMPLED)), o);
    stop(&pair);
    ck_assert_uint_eq(0, count_of(read_log(&of_a), "msg=span"));
    ck_assert_uint_eq(1, count_of(read_log(&of_b), "msg=span"));
}

TEST(the_source_tells_how_it_coded)
{
    struct pair pair = pair_coded(TCP, "tiered");
    open_log(&of_a, pair.a, LOG_INFO);
    open_log(&of_b, pair.b, LOG_INFO);
    pair_start(&pair, (struct geometry){.pages = 32, .element = STRAIT_ELEMENT_BF16});
    struct flow *o =
        OFFER(pair.source, "k", LISTS({.count = 8}), .last = true, .traceparent = CONTEXT(SOURCE, SAMPLED));
    struct flow *e = EXPECT(pair.sink, "k", LISTS({.count = 8}), .traceparent = CONTEXT(SINK, SAMPLED));
    pull(e, o);
    stop(&pair);
    const char *source = line_with(read_log(&of_a), "msg=span"), *sink = line_with(read_log(&of_b), "msg=span");
    has(source, "coding=tiered");
    has_not(sink, "coding=");
    ck_assert_uint_gt(number(sink, "raw_bytes"), number(sink, "wire_bytes"));
}

TEST_LOOP(a_read_is_named_so_and_its_owner_has_no_span, WIRES)
{
    struct pair pair = logged(_i, LOG_INFO);
    ck_assert_int_eq(STRAIT_OK, strait_pool_serve(pair.source->pool, NULL, 0));
    const struct strait_page_list from = {.count = 8, .first_id = 4}, to = {.count = 8};
    struct flow *r = flow_read_traced(pair.sink, pair.source, to, from, CONTEXT(SINK, SAMPLED));
    reads(r, pair.source, from);
    stop(&pair);
    const char *log = read_log(&of_a), *other = pair.b != pair.a ? read_log(&of_b) : log;
    const char *line = line_with(other, "msg=span");
    ck_assert_uint_eq(_i == SAME ? 1 : 0, count_of(log, "msg=span"));
    has(line, "name=strait.read");
    has(line, "parent_id=" SINK);
    has(line, "status=ok");
    ck_assert_uint_eq(8 * 4 * 4096, number(line, "raw_bytes"));
    lasts(line, "start connect answer chunks decode verdict");
}

/* Two consumers: one span, and the bytes of both. */
TEST(an_offer_of_two_consumers_leaves_one_span)
{
    struct pair pair = logged(TCP, LOG_INFO);
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 8}), .last = true, .consumers = 2,
                           .traceparent = CONTEXT(SOURCE, SAMPLED));
    for (uint32_t i = 0; i < 2; i++) {
        struct flow *e = EXPECT(pair.sink, name_of(i), LISTS({.count = 8, .first_id = 8 * i}));
        flow_start_as(e, pair.source, "k");
        ends_done(e);
    }
    ends_done(o);
    stop(&pair);
    const char *line = line_with(read_log(&of_a), "msg=span");
    ck_assert_uint_eq(2 * 8 * 4 * 4096, number(line, "raw_bytes"));
    lasts(line, "wait offer encode send end");
}

/* ---- Requests that fail ------------------------------------------------------------------------------------------ */

TEST(who_waits_in_vain_tells_in_which_phase)
{
    struct pair pair = logged(TCP, LOG_INFO);
    struct flow *e =
        EXPECT(pair.sink, "alone", LISTS({.count = 8}), .deadline_ms = 200, .traceparent = CONTEXT(SINK, SAMPLED));
    struct flow *asks = EXPECT(pair.sink, "asks", LISTS({.count = 8, .first_id = 8}), .deadline_ms = 1000 * SLOW,
                               .traceparent = CONTEXT(SINK, SAMPLED));
    struct flow *o = OFFER(pair.source, "alone", LISTS({.count = 8}), .last = true, .lease_ms = 200,
                           .traceparent = CONTEXT(SOURCE, SAMPLED));
    flow_start(asks, pair.source);
    ends_failed(e, STRAIT_REASON_TIMEOUT);
    ends_failed(asks, STRAIT_REASON_TIMEOUT);
    ends_failed(o, STRAIT_REASON_LEASE_EXPIRED);
    stop(&pair);
    const char *b = read_log(&of_b);
    const char *alone = line_with(b, " key=alone "), *asked = line_with(b, " key=asks ");
    const char *source = line_with(read_log(&of_a), "msg=span");
    has(alone, "status=error");
    has(alone, "reason=timeout");
    has(alone, "text=\"no source was named, and none has announced itself\"");
    has_not(alone, "transport=");
    has_not(alone, "coding=");
    lasts(alone, "start");
    ck_assert_uint_ge(number(alone, "end_ns") - number(alone, "start_ns"), 150000000u);
    has(asked, "reason=timeout");
    lasts(asked, "start connect answer");
    has(source, "reason=lease_expired");
    lasts(source, "wait");
}

/* The pages are not ready: the two sides have met, and nothing moves. */
TEST(what_is_given_up_on_one_side_has_a_span_on_both)
{
    struct pair pair = logged(TCP, LOG_INFO);
    struct flow *o =
        OFFER(pair.source, "k", LISTS({.count = 8}), .later = true, .traceparent = CONTEXT(SOURCE, SAMPLED));
    struct flow *e = EXPECT(pair.sink, "k", LISTS({.count = 8}), .traceparent = CONTEXT(SINK, SAMPLED));
    flow_start(e, pair.source);
    WAIT(e->state == STRAIT_READY && o->state == STRAIT_READY);
    strait_abort(e->transfer);
    ends_failed(e, STRAIT_REASON_ABORTED);
    ends_failed(o, STRAIT_REASON_PEER_ABORT);
    stop(&pair);
    const char *source = line_with(read_log(&of_a), "msg=span"), *sink = line_with(read_log(&of_b), "msg=span");
    has(sink, "status=error");
    has(sink, "reason=aborted");
    has(source, "status=error");
    has(source, "reason=peer_abort");
    lasts(source, "wait offer chunks");
}

TEST(a_request_that_is_not_admitted_has_a_span_without_a_duration)
{
    struct pair pair = logged(SAME, LOG_INFO);
    struct flow *e = EXPECT(pair.sink, "k", LISTS({.count = 1}));
    struct flow *again =
        EXPECT(pair.sink, "k", LISTS({.count = 1, .first_id = 1}), .traceparent = CONTEXT(SINK, SAMPLED));
    ends_failed(again, STRAIT_REASON_BUSY);
    strait_abort(e->transfer);
    ends_failed(e, STRAIT_REASON_ABORTED);
    stop(&pair);
    const char *line = line_with(read_log(&of_a), "msg=span");
    has(line, "name=strait.expect");
    has(line, "reason=busy");
    has(line, "text=\"a live request has this name\"");
    has(line, "parent_id=" SINK);
    ck_assert_uint_eq(number(line, "start_ns"), number(line, "end_ns"));
}

/* A client that goes leaves its spans behind. */
TEST(a_client_that_goes_has_failed)
{
    struct pair pair = logged(SAME, LOG_INFO);
    (void)EXPECT(pair.sink, "k", LISTS({.count = 1}), .traceparent = CONTEXT(SINK, SAMPLED));
    WAIT(stat_of(pair.from, "gauges.live_expectations") == 1);
    stop(&pair);
    const char *line = line_with(read_log(&of_a), "msg=span");
    has(line, "reason=local");
    lasts(line, "start");
}

TEST(a_flood_of_requests_is_counted_instead_of_logged)
{
    enum { REQUESTS = 1000 };
    struct pair pair = logged(SAME, LOG_INFO);
    const uint64_t began = uv_hrtime();
    for (uint32_t i = 0; i < REQUESTS; i++) {
        struct flow *e = EXPECT(pair.sink, name_of(i), LISTS({.count = 1}), .traceparent = CONTEXT(SINK, SAMPLED));
        strait_abort(e->transfer);
        ends_failed(e, STRAIT_REASON_ABORTED);
        flow_release(e);
    }
    stop(&pair);
    const uint32_t spans = count_of(read_log(&of_a), "msg=span");
    const uint64_t seconds = (uv_hrtime() - began) / 1000000000u + 1;
    ck_assert_uint_ge(spans, 200);
    ck_assert_uint_le(spans, 200 + 100 * seconds);
}

int main(void)
{
    return node_main("node_trace");
}
