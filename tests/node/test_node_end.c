/* Every transfer gets its verdict in time, whoever gives up or dies, and pages are free when it says so. */
#include "tests/node/harness.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void open_pools(struct pair *pair, int wire, struct test_pool **source, struct test_pool **sink)
{
    pair_open(pair, (enum wire)wire);
    *source = pool_open(pair->source, (struct geometry){.pages = 64, .layers = 2});
    *sink = pool_open(pair->sink, (struct geometry){.pages = 64, .layers = 2});
    pool_fill(*source, 1);
}

/* So that no deadline has to suffice for that, too. */
static void connect_both(struct test_pool *source, struct test_pool *sink)
{
    struct flow *o = flow_offer(
        source, (struct strait_offer_params){KEY("first"), LISTS({.count = 1, .first_id = 63}), .last = true});
    struct flow *e =
        flow_expect(sink, (struct strait_expect_params){KEY("first"), LISTS({.count = 1, .first_id = 63})});
    flow_start(e, source);
    arrives(e, o);
}

/* ---- Time -------------------------------------------------------------------------------------------------------- */

TEST_LOOP(a_sink_without_source_times_out_in_time, WIRES)
{
    struct pair pair;
    struct test_pool *source, *sink;
    open_pools(&pair, _i, &source, &sink);
    connect_both(source, sink);
    struct flow *e[3];
    uint64_t began = uv_hrtime(), late = machine_late_ms();
    e[0] = flow_expect(sink, (struct strait_expect_params){KEY("a"), LISTS({.count = 8}), .deadline_ms = 300});
    e[1] = flow_expect(sink,
                       (struct strait_expect_params){KEY("b"), LISTS({.count = 8, .first_id = 8}), .deadline_ms = 300});
    flow_start(e[1], source); /* of no offer */
    e[2] = flow_expect(
        sink, (struct strait_expect_params){KEY("c"), LISTS({.count = 8, .first_id = 16}), .deadline_ms = 300});
    struct flow *o = flow_offer(source, (struct strait_offer_params){KEY("c"), LISTS({.count = 0})}); /* never ready */
    flow_start(e[2], source);
    for (int i = 0; i < 3; i++) {
        ends_failed(e[i], STRAIT_REASON_TIMEOUT);
        uint64_t ms = (e[i]->decided_at - began) / 1000000;
        ck_assert_uint_ge(ms, 295);
        ck_assert_uint_le(ms, 300 + 200 * SLOW + machine_late_ms() - late);
        ck_assert_uint_eq(8, e[i]->failed_count);
    }
    ends_failed(o, STRAIT_REASON_TIMEOUT); /* the sink's verdict decides */
    ck_assert(pool_as_imagined(sink));
    wait_quiet(pair.source);
    wait_quiet(pair.sink);
}

TEST_LOOP(an_offer_without_consumer_expires_in_time, WIRES)
{
    struct pair pair;
    struct test_pool *source, *sink;
    open_pools(&pair, _i, &source, &sink);
    uint64_t began = uv_hrtime(), late = machine_late_ms();
    struct flow *o[2];
    o[0] =
        flow_offer(source, (struct strait_offer_params){KEY("a"), LISTS({.count = 8}), .last = true, .lease_ms = 300});
    o[1] =
        flow_offer(source, (struct strait_offer_params){KEY("b"), LISTS({.count = 8}), .last = true, .lease_ms = 300});
    flow_start(o[1], sink); /* of no expectation */
    for (int i = 0; i < 2; i++) {
        ends_failed(o[i], STRAIT_REASON_LEASE_EXPIRED);
        uint64_t ms = (o[i]->decided_at - began) / 1000000;
        ck_assert_uint_ge(ms, 295);
        ck_assert_uint_le(ms, 300 + 200 * SLOW + machine_late_ms() - late);
    }
    wait_quiet(pair.source);
    wait_quiet(pair.sink);
}

/* The producer takes longer than the lease; the consumer is alive all the time. */
TEST_LOOP(a_living_consumer_renews_the_lease, WIRES)
{
    enum { LEASE = 900 }; /* a busy machine does not keep the consumer from renewing it for so long */
    struct pair pair;
    struct test_pool *source, *sink;
    open_pools(&pair, _i, &source, &sink);
    struct flow *o = flow_offer(source, (struct strait_offer_params){KEY("k"), LISTS({.count = 8}), .lease_ms = LEASE});
    struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY("k"), LISTS({.count = 16})});
    flow_start(e, source);
    WAIT(e->state >= STRAIT_READY);
    pump_for(LEASE + LEASE / 3);
    ck_assert(!o->decided && !e->decided);
    flow_append(o, (struct strait_append_params){LISTS({.first = 8, .count = 8, .first_id = 8}), .last = true});
    arrives(e, o);
}

TEST_LOOP(an_ended_name_fails_who_comes_late_at_once, WIRES)
{
    struct pair pair;
    struct test_pool *source, *sink;
    open_pools(&pair, _i, &source, &sink);
    struct flow *o = flow_offer(source, (struct strait_offer_params){KEY("o"), LISTS({.count = 8}), .last = true});
    strait_abort(o->transfer);
    ends_failed(o, STRAIT_REASON_ABORTED);
    struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY("o"), LISTS({.count = 8})});
    flow_start(e, source);
    WAIT_MS(e->decided, 3000 * SLOW);
    ends_failed(e, STRAIT_REASON_PEER_ABORT);
    e = flow_expect(sink, (struct strait_expect_params){KEY("e"), LISTS({.count = 8})});
    strait_abort(e->transfer);
    ends_failed(e, STRAIT_REASON_ABORTED);
    o = flow_offer(source, (struct strait_offer_params){KEY("e"), LISTS({.count = 8}), .last = true});
    flow_start(o, sink);
    WAIT_MS(o->decided, 3000 * SLOW);
    ends_failed(o, STRAIT_REASON_PEER_ABORT);
}

/* ---- Giving up --------------------------------------------------------------------------------------------------- */

enum moment { BEFORE_START, STARTED, BOUND, MOVING, MOMENTS };

static bool reached(const struct flow *flow, enum moment moment)
{
    return moment <= STARTED || flow->decided || (moment == BOUND ? flow->state >= STRAIT_READY : flow->moved);
}

/* One side gives up; the other one learns it. `release`: by letting go of the handle. */
static void give_up(struct test_pool *source, struct test_pool *sink, enum moment moment, bool by_sink, bool release)
{
    char key[16];
    snprintf(key, sizeof(key), "%d%d%d", (int)moment, by_sink, release);
    struct flow *o =
        flow_offer(source, (struct strait_offer_params){KEY(key), LISTS({.count = moment == MOVING ? 32 : 0})});
    struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY(key), LISTS({.count = 64})});
    struct flow *quitter = by_sink ? e : o, *other = by_sink ? o : e;
    (void)stats_text(source->party); /* the offer is known */
    if (moment != BEFORE_START)
        flow_start(e, source);
    WAIT(reached(quitter, moment));
    if (release) {
        flow_release(quitter);
    } else {
        strait_abort(quitter->transfer);
        strait_abort(quitter->transfer); /* is idempotent */
        ends_failed(quitter, STRAIT_REASON_ABORTED);
    }
    if (moment == BEFORE_START && by_sink)
        flow_start(other, sink);
    else if (moment == BEFORE_START)
        flow_start(other, source);
    ends_failed(other, STRAIT_REASON_PEER_ABORT);
    wait_quiet(sink->party);
    wait_quiet(source->party);
    undefined(e);
    ck_assert(pool_as_imagined(sink) && pool_as_imagined(source));
}

TEST_LOOP(who_gives_up_is_heard_by_the_other_side, WIRES)
{
    struct pair pair;
    struct test_pool *source, *sink;
    open_pools(&pair, _i, &source, &sink);
    for (int moment = 0; moment < MOMENTS; moment++)
        for (int by_sink = 0; by_sink < 2; by_sink++)
            for (int release = 0; release < 2; release++)
                give_up(source, sink, (enum moment)moment, by_sink != 0, release != 0);
}

/* Given up at any time while pages move: the pages can be used again when drained, and nothing comes later. */
TEST_LOOP(nothing_lands_after_drained, WIRES)
{
    struct pair pair;
    pair_init(&pair, (enum wire)_i);
    nodes[0].options.chunk_bytes = nodes[1].options.chunk_bytes = 64u << 10;
    pair_start(&pair);
    struct geometry shape = {.pages = 1024, .row_bytes = 16384};
    struct test_pool *source = pool_open(pair.source, shape), *sink = pool_open(pair.sink, shape);
    pool_fill(source, 1);
    for (uint32_t i = 0; i < 12; i++) {
        char key[8];
        snprintf(key, sizeof(key), "%u", i);
        struct flow *o =
            flow_offer(source, (struct strait_offer_params){KEY(key), LISTS({.count = 1024}), .last = true});
        struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY(key), LISTS({.count = 1024})});
        flow_start(e, source);
        WAIT(e->moved || e->decided);
        struct flow *quitter = i % 2 != 0 ? e : o;
        if (i > 3)
            usleep(300 * i);
        strait_abort(quitter->transfer);
        WAIT(e->decided && e->drained && o->decided && o->drained);
        memset(sink->bytes, (int)i, sink->size);
        memset(sink->image, (int)i, sink->size);
        memset(source->bytes, 0xEE, source->size); /* free as well */
        pump_for(20);
        ck_assert(pool_as_imagined(sink));
        pool_fill(source, i);
    }
}

/* ---- Pools and clients go ---------------------------------------------------------------------------------------- */

TEST_LOOP(a_pool_that_is_removed_ends_its_transfers, WIRES)
{
    struct pair pair;
    struct test_pool *source, *sink;
    open_pools(&pair, _i, &source, &sink);
    struct flow *o = flow_offer(source, (struct strait_offer_params){KEY("k"), LISTS({.count = 8})});
    struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY("k"), LISTS({.count = 8})});
    flow_start(e, source);
    WAIT(o->state >= STRAIT_READY);
    double bytes = stat_of(pair.source, "gauges.pool_bytes");
    strait_pool_remove(source->pool);
    ends_failed(o, STRAIT_REASON_ABORTED);
    ends_failed(e, STRAIT_REASON_PEER_ABORT);
    WAIT(source->removed);
    ck_assert_double_lt(stat_of(pair.source, "gauges.pool_bytes"), bytes);
}

TEST_LOOP(a_client_that_leaves_frees_all_and_is_told_of, 2 * WIRES)
{
    struct pair pair;
    struct test_pool *source, *sink;
    bool sink_leaves = _i % 2 != 0;
    open_pools(&pair, _i / 2, &source, &sink);
    struct party *watcher = party_open(sink_leaves ? pair.b : pair.a);
    struct flow *o = flow_offer(source, (struct strait_offer_params){KEY("k"), LISTS({.count = 8})});
    struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY("k"), LISTS({.count = 16})});
    flow_start(e, source);
    WAIT(e->moved);
    double before = stat_of(watcher, "gauges.pools");
    flow_release(sink_leaves ? e : o);
    party_close(sink_leaves ? pair.sink : pair.source);
    struct flow *other = sink_leaves ? o : e;
    WAIT(other->decided && other->drained);
    ck_assert(other->reason == STRAIT_REASON_PEER_DOWN || other->reason == STRAIT_REASON_PEER_ABORT);
    WAIT(stat_of(watcher, "gauges.pools") == before - 1);
    wait_quiet(watcher);
}

/* A child connects, offers and is killed without a word. */
static void child(const char *socket, int report)
{
    struct strait_client_config config = {.size = sizeof(config), .socket = socket};
    struct strait_client *client;
    struct strait_memory memory;
    struct strait_pool *pool;
    struct strait_transfer *transfer;
    struct strait_event event;
    if (strait_client_open(&config, &client) != STRAIT_OK || strait_alloc(1 << 20, &memory) != STRAIT_OK)
        _exit(1);
    struct strait_pool_region region = {.handle = STRAIT_HANDLE_MEMFD,
                                        .device = -1,
                                        .fd = memory.fd,
                                        .page_stride = 4096,
                                        .page_count = 64,
                                        .rows = 1,
                                        .row_bytes = 4096,
                                        .element = STRAIT_ELEMENT_BF16,
                                        .role = STRAIT_ROLE_K};
    struct strait_pool_params params = {sizeof(params), &region, 1};
    struct strait_offer_params offer = {.size = sizeof(offer), KEY("k"), LISTS({.count = 8}), .lease_ms = 30000};
    if (strait_pool_register(client, &params, &pool) != STRAIT_OK || strait_offer(pool, &offer, &transfer) != STRAIT_OK)
        _exit(1);
    char blob[4096];
    size_t size;
    while (strait_pool_export(pool, blob, sizeof(blob), &size) != STRAIT_OK)
        (void)strait_wait(client, &event, 1, 100);
    if (write(report, blob, size) != (ssize_t)size)
        _exit(1);
    for (;;)
        (void)strait_wait(client, &event, 1, 1000);
}

TEST_LOOP(a_client_that_is_killed_is_noticed, WIRES)
{
    struct pair pair;
    int fds[2];
    pair_init(&pair, (enum wire)_i);
    ck_assert_int_eq(0, pipe(fds));
    pid_t pid = fork(); /* before there are threads */
    if (pid == 0)
        for (;;) { /* the daemon's socket comes later */
            if (access(nodes[0].options.socket, F_OK) == 0)
                child(nodes[0].options.socket, fds[1]);
            usleep(10000);
        }
    pair_start(&pair);
    struct test_pool *sink = pool_open(pair.sink, (struct geometry){.pages = 64});
    char blob[4096];
    ssize_t size = read(fds[0], blob, sizeof(blob));
    ck_assert_int_gt(size, 0);
    struct strait_peer *peer;
    ck_assert_int_eq(STRAIT_OK, strait_peer_import(pair.sink->client, blob, (size_t)size, &peer));
    struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY("k"), LISTS({.count = 64})});
    ck_assert_int_eq(STRAIT_OK, strait_start(e->transfer, peer, NULL));
    WAIT(e->moved);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    WAIT_MS(e->decided && e->drained, 5000 * SLOW);
    ck_assert_int_eq(STRAIT_FAILED, e->state);
    ck_assert(e->reason == STRAIT_REASON_PEER_DOWN || e->reason == STRAIT_REASON_PEER_ABORT);
    WAIT(stat_of(pair.source, "gauges.pools") == (pair.wire == SAME ? 1 : 0));
    close(fds[0]);
    close(fds[1]);
}

/* ---- Daemons stop and come back ---------------------------------------------------------------------------------- */

TEST_LOOP(a_draining_node_finishes_what_runs_and_takes_nothing_new, WIRES)
{
    struct pair pair;
    struct test_pool *source, *sink;
    open_pools(&pair, _i, &source, &sink);
    struct flow *o = flow_offer(source, (struct strait_offer_params){KEY("k"), LISTS({.count = 8})});
    struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY("k"), LISTS({.count = 16})});
    flow_start(e, source);
    WAIT(e->moved);
    test_node_ask_stop(pair.b, true);
    pump_for(50);
    ck_assert(!e->decided);
    struct flow *late =
        flow_expect(sink, (struct strait_expect_params){KEY("late"), LISTS({.count = 8, .first_id = 32})});
    ends_failed(late, STRAIT_REASON_LOCAL);
    flow_append(o, (struct strait_append_params){LISTS({.first = 8, .count = 8, .first_id = 8}), .last = true});
    arrives(e, o);
    WAIT(pair.sink->disconnects == 1);
    test_node_join(pair.b);
}

TEST_LOOP(a_node_that_stops_fails_what_runs_and_comes_back, 2 * WIRES)
{
    struct pair pair;
    struct test_pool *source, *sink;
    bool sink_stops = _i % 2 != 0;
    pair_init(&pair, (enum wire)(_i / 2));
    for (int i = 0; i < 2; i++)
        snprintf(nodes[i].options.listen, sizeof(nodes[i].options.listen), "127.0.0.1:%u", reserve_port());
    pair_start(&pair);
    source = pool_open(pair.source, (struct geometry){.pages = 64});
    sink = pool_open(pair.sink, (struct geometry){.pages = 64});
    pool_fill(source, 1);
    struct strait_peer *peer = peer_of(pair.sink, source);
    struct flow *o = flow_offer(source, (struct strait_offer_params){KEY("k"), LISTS({.count = 8})});
    struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY("k"), LISTS({.count = 16})});
    ck_assert_int_eq(STRAIT_OK, strait_start(e->transfer, peer, NULL));
    WAIT(e->moved);
    struct test_node *stopped = sink_stops ? pair.b : pair.a;
    struct party *lost = sink_stops ? pair.sink : pair.source;
    test_node_stop(stopped);
    WAIT(e->decided && o->decided && e->drained && o->drained);
    ck_assert_int_eq(STRAIT_REASON_LOCAL, (sink_stops ? e : o)->reason);
    if (pair.wire != SAME)
        ck_assert((sink_stops ? o : e)->reason == STRAIT_REASON_PEER_DOWN ||
                  (sink_stops ? o : e)->reason == STRAIT_REASON_PEER_ABORT);
    undefined(e);
    uint64_t began = now_ms(), late = machine_late_ms();
    uint32_t connects = lost->connects;
    test_node_start(stopped);
    WAIT(lost->connects > connects);
    /* The pools are registered again by themselves, and what was imported is still good. */
    o = flow_offer(source, (struct strait_offer_params){KEY("again"), LISTS({.count = 16}), .last = true});
    e = flow_expect(sink, (struct strait_expect_params){KEY("again"), LISTS({.count = 16, .first_id = 20})});
    ck_assert_int_eq(STRAIT_OK, strait_start(e->transfer, peer, NULL));
    arrives(e, o);
    ck_assert_uint_le(now_ms() - began, 5000 * SLOW + machine_late_ms() - late);
}

/* The other daemon is stopped at once: nobody says good bye but its sockets. */
TEST_LOOP(requests_wait_for_a_daemon_that_is_away, WIRES - 1)
{
    struct pair pair;
    pair_init(&pair, (enum wire)(1 + _i));
    snprintf(nodes[0].options.listen, sizeof(nodes[0].options.listen), "127.0.0.1:%u", reserve_port());
    pair_start(&pair);
    struct test_pool *source = pool_open(pair.source, (struct geometry){0}),
                     *sink = pool_open(pair.sink, (struct geometry){0});
    pool_fill(source, 1);
    struct strait_peer *peer = peer_of(pair.sink, source);
    test_node_stop(pair.a);
    struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY("k"), LISTS({.count = 16})});
    ck_assert_int_eq(STRAIT_OK, strait_start(e->transfer, peer, NULL));
    pump_for(300);
    ck_assert(!e->decided);
    test_node_start(pair.a);
    struct flow *o = flow_offer(source, (struct strait_offer_params){KEY("k"), LISTS({.count = 16}), .last = true});
    arrives(e, o);
}

int main(void)
{
    return node_main("node_end");
}
