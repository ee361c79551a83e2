/* Every transfer gets its verdict in time, whoever gives up or dies, and pages are free when it says so. */
#include "tests/node/harness.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct geometry shape = {.pages = 64, .layers = 2};

/* Requires that the verdict came after 300 ms. */
static void decided_in_time(const struct flow *flow, uint64_t began, uint64_t late)
{
    uint64_t ms = (flow->decided_at - began) / 1000000;
    ck_assert_uint_ge(ms, 295);
    ck_assert_uint_le(ms, 300 + 200 * SLOW + machine_late_ms() - late);
}

/* ---- Time -------------------------------------------------------------------------------------------------------- */

TEST_LOOP(a_sink_without_source_times_out_in_time, WIRES)
{
    struct pair pair = pair_open(_i, shape);
    move_all(pair.source, pair.sink); /* no deadline has to suffice for connecting, too */
    struct flow *e[3];
    uint64_t began = uv_hrtime(), late = machine_late_ms();
    e[0] = EXPECT(pair.sink, "a", LISTS({.count = 8}), .deadline_ms = 300);
    e[1] = EXPECT(pair.sink, "b", LISTS({.count = 8, .first_id = 8}), .deadline_ms = 300);
    flow_start(e[1], pair.source); /* of no offer */
    e[2] = EXPECT(pair.sink, "c", LISTS({.count = 8, .first_id = 16}), .deadline_ms = 300);
    struct flow *o = OFFER(pair.source, "c", LISTS({.count = 0})); /* never ready */
    flow_start(e[2], pair.source);
    for (int i = 0; i < 3; i++) {
        ends_failed(e[i], STRAIT_REASON_TIMEOUT);
        decided_in_time(e[i], began, late);
        ck_assert_uint_eq(8, e[i]->failed_count);
    }
    ends_failed(o, STRAIT_REASON_TIMEOUT); /* the sink's verdict decides */
    ck_assert(pool_as_imagined(pair.sink));
    pair_quiet(&pair);
}

TEST_LOOP(an_offer_without_consumer_expires_in_time, WIRES)
{
    struct pair pair = pair_open(_i, shape);
    uint64_t began = uv_hrtime(), late = machine_late_ms();
    struct flow *o[2];
    o[0] = OFFER(pair.source, "a", LISTS({.count = 8}), .last = true, .lease_ms = 300);
    o[1] = OFFER(pair.source, "b", LISTS({.count = 8}), .last = true, .lease_ms = 300);
    flow_start(o[1], pair.sink); /* of no expectation */
    for (int i = 0; i < 2; i++) {
        ends_failed(o[i], STRAIT_REASON_LEASE_EXPIRED);
        decided_in_time(o[i], began, late);
    }
    pair_quiet(&pair);
}

/* The producer takes longer than the lease; the consumer is alive all the time. */
TEST_LOOP(a_living_consumer_renews_the_lease, WIRES)
{
    enum { LEASE = 900 }; /* a busy machine does not keep the consumer from renewing it for so long */
    struct pair pair = pair_open(_i, shape);
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 8}), .lease_ms = LEASE);
    struct flow *e = PULL(pair.sink, o, LISTS({.count = 16}));
    WAIT(e->state >= STRAIT_READY);
    pump_for(LEASE + LEASE / 3);
    ck_assert(!o->decided && !e->decided);
    APPEND(o, LISTS({.first = 8, .count = 8, .first_id = 8}), .last = true);
    arrives(e, o);
}

TEST_LOOP(an_ended_name_fails_who_comes_late_at_once, WIRES)
{
    struct pair pair = pair_open(_i, shape);
    struct flow *o = OFFER(pair.source, "o", LISTS({.count = 8}), .last = true);
    strait_abort(o->transfer);
    ends_failed(o, STRAIT_REASON_ABORTED);
    struct flow *e = EXPECT(pair.sink, "o", LISTS({.count = 8}));
    flow_start(e, pair.source);
    WAIT_MS(e->decided, 3000 * SLOW);
    ends_failed(e, STRAIT_REASON_PEER_ABORT);
    e = EXPECT(pair.sink, "e", LISTS({.count = 8}));
    strait_abort(e->transfer);
    ends_failed(e, STRAIT_REASON_ABORTED);
    o = OFFER(pair.source, "e", LISTS({.count = 8}), .last = true);
    flow_start(o, pair.sink);
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
static void give_up(struct pair *pair, enum moment moment, bool by_sink, bool release)
{
    char key[16];
    snprintf(key, sizeof(key), "%d%d%d", (int)moment, by_sink, release);
    struct flow *o = OFFER(pair->source, key, LISTS({.count = moment == MOVING ? 32 : 0}));
    struct flow *e = EXPECT(pair->sink, key, LISTS({.count = 64}));
    struct flow *quitter = by_sink ? e : o, *other = by_sink ? o : e;
    (void)stats_text(pair->from); /* the offer is known */
    if (moment != BEFORE_START)
        flow_start(e, pair->source);
    WAIT(reached(quitter, moment));
    if (release) {
        flow_release(quitter);
    } else {
        strait_abort(quitter->transfer);
        strait_abort(quitter->transfer); /* is idempotent */
        ends_failed(quitter, STRAIT_REASON_ABORTED);
    }
    if (moment == BEFORE_START)
        flow_start(other, by_sink ? pair->sink : pair->source);
    ends_failed(other, STRAIT_REASON_PEER_ABORT);
    pair_quiet(pair);
    undefined(e);
    ck_assert(pool_as_imagined(pair->sink) && pool_as_imagined(pair->source));
}

TEST_LOOP(who_gives_up_is_heard_by_the_other_side, WIRES)
{
    struct pair pair = pair_open(_i, shape);
    for (int moment = 0; moment < MOMENTS; moment++)
        for (int by_sink = 0; by_sink < 2; by_sink++)
            for (int release = 0; release < 2; release++)
                give_up(&pair, (enum moment)moment, by_sink != 0, release != 0);
}

/* Given up at any time while pages move: the pages can be used again when drained, and nothing comes later. */
TEST_LOOP(nothing_lands_after_drained, ALL_WIRES)
{
    struct pair pair = pair_init(_i);
    nodes[0].options.chunk_bytes = nodes[1].options.chunk_bytes = 64u << 10;
    pair_start(&pair, (struct geometry){.pages = 1024, .row_bytes = 16384});
    for (uint32_t i = 0; i < 12; i++) {
        struct flow *o = OFFER(pair.source, name_of(i), LISTS({.count = 1024}), .last = true);
        struct flow *e = PULL(pair.sink, o, LISTS({.count = 1024}));
        WAIT(e->moved || e->decided);
        struct flow *quitter = i % 2 != 0 ? e : o;
        if (i > 3)
            usleep(300 * i);
        strait_abort(quitter->transfer);
        ends(e, o);
        memset(pair.sink->bytes, (int)i, pair.sink->size);
        memset(pair.sink->image, (int)i, pair.sink->size);
        memset(pair.source->bytes, 0xEE, pair.source->size); /* free as well */
        pump_for(20);
        ck_assert(pool_as_imagined(pair.sink));
        pool_fill(pair.source, i);
    }
}

/* ---- Pools and clients go ---------------------------------------------------------------------------------------- */

TEST_LOOP(a_pool_that_is_removed_ends_its_transfers, WIRES)
{
    struct pair pair = pair_open(_i, shape);
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 8}));
    struct flow *e = PULL(pair.sink, o, LISTS({.count = 8}));
    WAIT(o->state >= STRAIT_READY);
    double bytes = stat_of(pair.from, "gauges.pool_bytes");
    strait_pool_remove(pair.source->pool);
    ends_failed(o, STRAIT_REASON_ABORTED);
    ends_failed(e, STRAIT_REASON_PEER_ABORT);
    WAIT(pair.source->removed);
    ck_assert_double_lt(stat_of(pair.from, "gauges.pool_bytes"), bytes);
}

TEST_LOOP(a_client_that_leaves_frees_all_and_is_told_of, 2 * WIRES)
{
    bool sink_leaves = _i % 2 != 0;
    struct pair pair = pair_open(_i / 2, shape);
    struct party *watcher = party_open(sink_leaves ? pair.b : pair.a);
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 8}));
    struct flow *e = PULL(pair.sink, o, LISTS({.count = 16}));
    WAIT(e->moved);
    double before = stat_of(watcher, "gauges.pools");
    flow_release(sink_leaves ? e : o);
    party_close(sink_leaves ? pair.to : pair.from);
    struct flow *other = sink_leaves ? o : e;
    WAIT(other->decided && other->drained);
    ck_assert(other->reason == STRAIT_REASON_PEER_DOWN || other->reason == STRAIT_REASON_PEER_ABORT);
    WAIT(stat_of(watcher, "gauges.pools") == before - 1);
    wait_quiet(watcher);
}

/* A child connects to the first node, offers, reports its pool, and is killed without a word. */
static void offer_until_killed(int report)
{
    char blob[4096];
    size_t size;
    while (access(nodes[0].options.socket, F_OK) != 0)
        usleep(10000);
    struct test_pool *pool = pool_open(party_open(&nodes[0]), (struct geometry){.pages = 64});
    (void)OFFER(pool, "k", LISTS({.count = 8}));
    ck_assert_int_eq(STRAIT_OK, strait_pool_export(pool->pool, blob, sizeof(blob), &size));
    ck_assert_int_eq((ssize_t)size, write(report, blob, size));
    for (;;)
        pump(1000);
}

TEST_LOOP(a_client_that_is_killed_is_noticed, WIRES)
{
    struct pair pair = pair_init(_i);
    int fds[2];
    ck_assert_int_eq(0, pipe(fds));
    pid_t pid = fork(); /* before there are threads */
    if (pid == 0)
        offer_until_killed(fds[1]);
    pair_connect(&pair);
    struct test_pool *sink = pool_open(pair.to, (struct geometry){.pages = 64});
    char blob[4096];
    ssize_t size = read(fds[0], blob, sizeof(blob));
    ck_assert_int_gt(size, 0);
    struct strait_peer *peer;
    ck_assert_int_eq(STRAIT_OK, strait_peer_import(pair.to->client, blob, (size_t)size, &peer));
    struct flow *e = EXPECT(sink, "k", LISTS({.count = 64}));
    ck_assert_int_eq(STRAIT_OK, strait_start(e->transfer, peer, NULL));
    WAIT(e->moved);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    WAIT_MS(e->decided && e->drained, 5000 * SLOW);
    ck_assert_int_eq(STRAIT_FAILED, e->state);
    ck_assert(e->reason == STRAIT_REASON_PEER_DOWN || e->reason == STRAIT_REASON_PEER_ABORT);
    WAIT(stat_of(pair.from, "gauges.pools") == (pair.wire == SAME ? 1 : 0));
    close(fds[0]);
    close(fds[1]);
}

/* ---- Daemons stop and come back ---------------------------------------------------------------------------------- */

TEST_LOOP(a_draining_node_finishes_what_runs_and_takes_nothing_new, WIRES)
{
    struct pair pair = pair_open(_i, shape);
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 8}));
    struct flow *e = PULL(pair.sink, o, LISTS({.count = 16}));
    WAIT(e->moved);
    test_node_ask_stop(pair.b, true);
    stays_undecided(e, 50);
    struct flow *late = EXPECT(pair.sink, "late", LISTS({.count = 8, .first_id = 32}));
    ends_failed(late, STRAIT_REASON_LOCAL);
    APPEND(o, LISTS({.first = 8, .count = 8, .first_id = 8}), .last = true);
    arrives(e, o);
    WAIT(pair.to->disconnects == 1);
    test_node_join(pair.b);
}

TEST_LOOP(a_node_that_stops_fails_what_runs_and_comes_back, 2 * ALL_WIRES)
{
    bool sink_stops = _i % 2 != 0;
    struct pair pair = pair_init(_i / 2);
    for (int i = 0; i < 2; i++)
        snprintf(nodes[i].options.listen, sizeof(nodes[i].options.listen), "127.0.0.1:%u", reserve_port());
    pair_start(&pair, shape);
    struct strait_peer *peer = peer_of(pair.to, pair.source);
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 8}));
    struct flow *e = EXPECT(pair.sink, "k", LISTS({.count = 16}));
    ck_assert_int_eq(STRAIT_OK, strait_start(e->transfer, peer, NULL));
    WAIT(e->moved);
    struct test_node *stopped = sink_stops ? pair.b : pair.a;
    struct party *lost = sink_stops ? pair.to : pair.from;
    test_node_stop(stopped);
    ends(e, o);
    ck_assert_int_eq(STRAIT_REASON_LOCAL, (sink_stops ? e : o)->reason);
    if (pair.wire != SAME)
        ck_assert((sink_stops ? o : e)->reason == STRAIT_REASON_PEER_DOWN ||
                  (sink_stops ? o : e)->reason == STRAIT_REASON_PEER_ABORT);
    undefined(e);
    uint64_t began = wait_clock();
    uint32_t connects = lost->connects;
    test_node_start(stopped);
    WAIT(lost->connects > connects);
    /* The pools are registered again by themselves, and what was imported is still good. */
    o = OFFER(pair.source, "again", LISTS({.count = 16}), .last = true);
    e = EXPECT(pair.sink, "again", LISTS({.count = 16, .first_id = 20}));
    ck_assert_int_eq(STRAIT_OK, strait_start(e->transfer, peer, NULL));
    arrives(e, o);
    ck_assert_uint_le(ms_since(began), 5000 * SLOW);
}

/* The other daemon is stopped at once: nobody says good bye but its sockets. */
TEST_LOOP(requests_wait_for_a_daemon_that_is_away, WIRES - 1)
{
    struct pair pair = pair_init(1 + _i);
    snprintf(nodes[0].options.listen, sizeof(nodes[0].options.listen), "127.0.0.1:%u", reserve_port());
    pair_start(&pair, (struct geometry){0});
    struct strait_peer *peer = peer_of(pair.to, pair.source);
    test_node_stop(pair.a);
    struct flow *e = EXPECT(pair.sink, "k", LISTS({.count = 16}));
    ck_assert_int_eq(STRAIT_OK, strait_start(e->transfer, peer, NULL));
    stays_undecided(e, 300);
    test_node_start(pair.a);
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 16}), .last = true);
    arrives(e, o);
}

int main(void)
{
    return node_main("node_end");
}
