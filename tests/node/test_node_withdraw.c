/* Whoever ends before the two sides of a transfer have met is heard by the other side: at once, or as soon as there is
 * a connection. */
#include "daemon/base/fault.h"
#include "tests/node/harness.h"

static const struct geometry shape = {.pages = 64};

#define HEARD_MS (1000u * SLOW) /* 50 ms on a machine with time; deadlines are 20 s and more */

/* ---- Ways to end ------------------------------------------------------------------------------------------------- */

enum way { PAGES_IN_USE, NAME_TAKEN, TOO_MANY, INDEX_TWICE, ABORTED_EARLY, ABORTED_LATE, WAYS };

static const enum strait_reason own_reason[WAYS] = {
    STRAIT_REASON_BUSY,     STRAIT_REASON_BUSY,    STRAIT_REASON_NO_MEMORY,
    STRAIT_REASON_GEOMETRY, STRAIT_REASON_ABORTED, STRAIT_REASON_ABORTED,
};

/* A request of one side; an offer's pages are never all ready. */
static struct flow *begin(struct test_pool *pool, bool is_offer, const char *name, uint32_t first_id, uint32_t twice)
{
    if (is_offer)
        return OFFER(
            pool, name,
            LISTS({.count = 8, .first_id = first_id}, {.first = 8 - 8 * twice, .count = 8, .first_id = first_id + 8}));
    return EXPECT(
        pool, name,
        LISTS({.count = 8, .first_id = first_id}, {.first = 8 - 8 * twice, .count = 8, .first_id = first_id + 8}));
}

/* Begins a request that ends in that way. Its start, which names the other side, may come after its verdict. */
static struct flow *end(struct test_pool *pool, struct test_pool *peer, bool is_offer, enum way way)
{
    struct flow *others[3] = {0}, *flow;
    if (way == PAGES_IN_USE)
        others[0] = begin(pool, is_offer, "other", 0, 0);
    if (way == NAME_TAKEN)
        others[0] = begin(pool, is_offer, "k", 16, 0);
    for (uint32_t i = 0; way == TOO_MANY && i < 3; i++)
        others[i] = begin(pool, is_offer, name_of(i), 16 + 16 * i, 0);
    flow = begin(pool, is_offer, "k", 0, way == INDEX_TWICE);
    if (way == ABORTED_EARLY)
        strait_abort(flow->transfer);
    flow_start(flow, peer);
    if (way == ABORTED_LATE)
        strait_abort(flow->transfer);
    ends_failed(flow, own_reason[way]);
    for (int i = 0; i < 3; i++)
        if (others[i] != NULL)
            flow_release(others[i]);
    return flow;
}

static void hears(struct flow *flow, uint64_t since, enum way way)
{
    const uint64_t most = wait_clock() + HEARD_MS * 1000000ull;
    while (!flow->decided && wait_clock() < most)
        pump(20);
    ck_assert_msg(flow->decided, "way %d: nothing after %u ms", (int)way, (unsigned)ms_since(since));
    ck_assert_int_eq(STRAIT_FAILED, flow->state);
    ck_assert_msg(flow->reason == STRAIT_REASON_PEER_ABORT || flow->reason == STRAIT_REASON_GEOMETRY, "%s",
                  strait_reason_string(flow->reason));
    ck_assert(way == ABORTED_LATE || flow->text[0] != '\0');
}

static struct pair open_limited(int wire)
{
    struct pair pair = pair_init(wire);
    nodes[0].options.transfers = nodes[1].options.transfers = 3;
    nodes[0].options.peer_timeout_ms = nodes[1].options.peer_timeout_ms = 600 * SLOW;
    pair_start(&pair, shape);
    return pair;
}

static struct test_pool *pool_of(const struct pair *pair, bool is_offer)
{
    return is_offer ? pair->source : pair->sink;
}

/* ---- Told over a connection, or as soon as there is one ---------------------------------------------------------- */

/* The other side waits already. */
TEST_LOOP(who_waits_hears_of_the_end, 2 * ALL_WIRES)
{
    const bool is_offer = _i % 2;
    for (int way = is_offer ? NAME_TAKEN : 0; way < WAYS; way++) /* offers may share pages */
        for (int connected = 0; connected < 2; connected++) {
            struct pair pair = open_limited(_i / 2);
            struct test_pool *mine = pool_of(&pair, is_offer), *theirs = pool_of(&pair, !is_offer);
            if (connected)
                move_all(pair.source, pair.sink);
            struct flow *other = begin(theirs, !is_offer, "k", 0, 0);
            (void)stats_text(theirs->party); /* its daemon has it */
            uint64_t since = wait_clock();
            (void)end(mine, theirs, is_offer, (enum way)way);
            hears(other, since, (enum way)way);
            pair_quiet(&pair);
            node_teardown();
            node_setup();
        }
}

/* The other side comes later. */
TEST_LOOP(who_comes_later_hears_of_the_end, 2 * ALL_WIRES)
{
    const bool is_offer = _i % 2;
    for (int way = is_offer ? NAME_TAKEN : 0; way < WAYS; way++) {
        struct pair pair = open_limited(_i / 2);
        struct test_pool *mine = pool_of(&pair, is_offer), *theirs = pool_of(&pair, !is_offer);
        move_all(pair.source, pair.sink);
        (void)end(mine, theirs, is_offer, (enum way)way);
        pump_for(50 * SLOW);
        uint64_t since = wait_clock();
        struct flow *other = begin(theirs, !is_offer, "k", 0, 0);
        hears(other, since, (enum way)way);
        node_teardown();
        node_setup();
    }
}

/* A sink that wants nothing of an offer, which is there (0) or comes later (1), has no transfer that could be aborted.
 */
TEST_LOOP(an_offer_that_is_declined_ends, ALL_WIRES)
{
    struct pair pair = open_limited(_i);
    move_all(pair.source, pair.sink);
    for (int later = 0; later < 2; later++) {
        struct flow *o = later ? NULL : begin(pair.source, true, name_of((uint32_t)later), 0, 0);
        (void)stats_text(pair.from);
        uint64_t since = wait_clock();
        struct strait_peer *peer = peer_of(pair.to, pair.source);
        ck_assert_int_eq(STRAIT_OK, strait_decline(pair.sink->pool, peer, name_of((uint32_t)later), 1));
        pump_for(later ? 50 * SLOW : 1);
        if (later) {
            since = wait_clock();
            o = begin(pair.source, true, name_of((uint32_t)later), 0, 0);
        }
        hears(o, since, ABORTED_LATE);
        ck_assert_int_eq(STRAIT_REASON_PEER_ABORT, o->reason);
    }
    pair_quiet(&pair);
}

/* A sink's deadline passes while its request waits for the offer, which the source's daemon notices in the same moment:
 * whichever comes first there, an offer that comes after it is told. */
TEST_LOOP(who_comes_after_the_deadline_hears_of_it, WIRES - 1)
{
    struct pair pair = open_limited(1 + _i);
    move_all(pair.source, pair.sink);
    for (uint32_t i = 0; i < 12; i++) {
        struct flow *e = EXPECT(pair.sink, name_of(i), LISTS({.count = 8}), .deadline_ms = 60 + i);
        flow_start(e, pair.source);
        ends_failed(e, STRAIT_REASON_TIMEOUT);
        pump_for(20 * SLOW);
        uint64_t since = wait_clock();
        struct flow *o = begin(pair.source, true, name_of(i), 0, 0);
        hears(o, since, PAGES_IN_USE);
        flow_release(o);
        flow_release(e);
    }
}

/* The other daemon stands still, and the connection ends, when this side ends. */
TEST_LOOP(who_cannot_be_told_hears_it_when_the_daemon_is_back, 2 * (ALL_WIRES - 1))
{
    const bool is_offer = _i % 2;
    struct pair pair = open_limited(1 + _i / 2);
    struct test_pool *mine = pool_of(&pair, is_offer), *theirs = pool_of(&pair, !is_offer);
    struct test_node *away = is_offer ? pair.b : pair.a;
    move_all(pair.source, pair.sink);
    struct flow *other = begin(theirs, !is_offer, "k", 0, 0);
    (void)stats_text(theirs->party);
    test_node_freeze(away, true);
    WAIT(stat_of(mine->party, "gauges.peers") == 0);
    (void)end(mine, theirs, is_offer, ABORTED_LATE);
    pump_for(500);
    ck_assert(!other->decided);
    uint64_t since = wait_clock();
    test_node_freeze(away, false);
    hears(other, since, ABORTED_LATE);
    pair_quiet(&pair);
}

/* The sink's own daemon is away when it ends, and comes back. */
TEST_LOOP(what_ends_while_the_own_daemon_is_away_is_told_when_it_is_back, WIRES - 1)
{
    struct pair pair = open_limited(1 + _i);
    move_all(pair.source, pair.sink);
    struct flow *o = begin(pair.source, true, "k", 0, 0);
    const uint32_t connects = pair.to->connects;
    (void)stats_text(pair.from);
    test_node_stop(pair.b);
    WAIT(pair.to->disconnects == 1);
    struct flow *e = begin(pair.sink, false, "k", 0, 0);
    flow_start(e, pair.source);
    strait_abort(e->transfer);
    ends_failed(e, STRAIT_REASON_ABORTED);
    pump_for(500);
    ck_assert(!o->decided);
    test_node_start(pair.b);
    WAIT(pair.to->connects == connects + 1);
    hears(o, wait_clock(), ABORTED_EARLY);
    pair_quiet(&pair);
}

static bool drop_all(enum fault_point point, void *where, const void *what)
{
    (void)where, (void)what;
    return point == FAULT_SEND;
}

/* Nothing passes between the two any more, but neither has noticed when the sink ends: its END is lost, and so is the
 * request that waited for the offer. */
TEST_LOOP(an_end_that_is_lost_is_told_by_the_next_connection, WIRES - 1)
{
    struct pair pair = open_limited(1 + _i);
    move_all(pair.source, pair.sink);
    struct flow *e = begin(pair.sink, false, "k", 0, 0);
    flow_start(e, pair.source);
    WAIT(stat_of(pair.from, "gauges.parked") == 1);
    fault_hook = drop_all;
    strait_abort(e->transfer);
    ends_failed(e, STRAIT_REASON_ABORTED);
    WAIT(stat_of(pair.from, "gauges.peers") == 0 && stat_of(pair.to, "gauges.peers") == 0);
    fault_hook = NULL;
    WAIT(stat_of(pair.from, "gauges.peers") >= 1);
    pump_for(50 * SLOW);
    uint64_t since = wait_clock();
    hears(begin(pair.source, true, "k", 0, 0), since, ABORTED_EARLY);
    pair_quiet(&pair);
}

/* ---- Both look for each other ------------------------------------------------------------------------------------ */

static _Atomic uint32_t withdrawn;

static bool hold_announce(enum fault_point point, void *where, const void *what)
{
    const struct message *message = what;
    (void)where;
    if (point != FAULT_SEND)
        return false;
    withdrawn += message->type == MESSAGE_WITHDRAW && message->withdraw.reason == STRAIT_REASON_NONE;
    return message->type == MESSAGE_ANNOUNCE;
}

/* By connections of their own: the sink has its pages before it reads the ANNOUNCE. */
TEST_LOOP(an_announce_that_comes_too_late_is_taken_back, WIRES - 1)
{
    struct pair pair = open_limited(1 + _i);
    move_all(pair.source, pair.sink);
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 8}), .last = true);
    withdrawn = 0;
    fault_hook = hold_announce;
    flow_start(o, pair.sink);
    WAIT(stat_of(pair.from, "gauges.peers") == 2);
    struct flow *e = EXPECT(pair.sink, "k", LISTS({.count = 8}));
    flow_start(e, pair.source);
    ends_done(e);
    ends_done(o);
    fault_hook = NULL;
    ck_assert_uint_eq(1, withdrawn);
    pair_quiet(&pair);
}

/* ---- Limits ------------------------------------------------------------------------------------------------------ */

/* Ends that cannot be told: 512 wait for one address, and the oldest give way. */
TEST(so_many_ends_wait_for_one_daemon)
{
    enum { MOST = 512, BEYOND = 10 };
    struct pair pair = pair_init(SHM);
    pair_start(&pair, shape);
    struct strait_peer *peer = peer_of(pair.to, pair.source);
    test_node_stop(pair.a);
    for (uint32_t i = 0; i < MOST + BEYOND; i++) {
        if (i == MOST)
            ck_assert_double_eq(0, stat_of(pair.to, "counters.withdrawals_lost"));
        struct flow *e = EXPECT(pair.sink, name_of(i), LISTS({.count = 1}));
        ck_assert_int_eq(STRAIT_OK, strait_start(e->transfer, peer, NULL));
        strait_abort(e->transfer);
        ends_failed(e, STRAIT_REASON_ABORTED);
        flow_release(e);
    }
    ck_assert_double_eq(BEYOND, stat_of(pair.to, "counters.withdrawals_lost"));
}

/* What a daemon keeps of a peer's ends takes no place from the peer's requests. */
TEST(ends_that_are_kept_give_way_to_requests)
{
    enum { KEPT = 4 };
    struct pair pair = pair_init(SHM);
    nodes[0].options.parked = KEPT;
    pair_start(&pair, shape);
    move_all(pair.source, pair.sink);
    for (uint32_t i = 0; i <= KEPT; i++) {
        struct flow *e = begin(pair.sink, false, name_of(i), 0, 0);
        flow_start(e, pair.source);
        strait_abort(e->transfer);
        ends_failed(e, STRAIT_REASON_ABORTED);
    }
    struct flow *e = begin(pair.sink, false, "k", 0, 0);
    flow_start(e, pair.source);
    /* A note comes behind all of these. Without it the one parked request may still be the last that was aborted. */
    ck_assert_int_eq(STRAIT_OK, strait_notify(peer_of(pair.to, pair.source), "n", 1, NULL, 0));
    WAIT(pair.from->notes == 1);
    WAIT(stat_of(pair.from, "gauges.parked") == 1);
    stays_undecided(begin(pair.source, true, name_of(1), 0, 0), 100); /* forgotten for the last one, and for "k" */
    uint64_t since = wait_clock();
    hears(begin(pair.source, true, name_of(KEPT), 0, 0), since, ABORTED_LATE);
    stays_undecided(e, 10);
}

/* ---- What an end does not concern -------------------------------------------------------------------------------- */

/* The same names are tried again while nothing could be told: the first attempt does not end the second. */
TEST_LOOP(an_end_does_not_reach_the_next_attempt, WIRES - 1)
{
    struct pair pair = open_limited(1 + _i);
    move_all(pair.source, pair.sink);
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 16}), .last = true);
    (void)stats_text(pair.from);
    test_node_freeze(pair.a, true);
    WAIT(stat_of(pair.to, "gauges.peers") == 0);
    (void)end(pair.sink, pair.source, false, ABORTED_LATE);
    struct flow *e = begin(pair.sink, false, "k", 0, 0);
    flow_start(e, pair.source);
    test_node_freeze(pair.a, false);
    arrives(e, o);
}

/* An offer for two consumers of which one ends, again and again, still serves the other. */
TEST_LOOP(one_consumer_ends_once, WIRES)
{
    struct pair pair = open_limited(_i);
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 8}), .consumers = 2);
    (void)stats_text(pair.from);
    struct flow *gone = EXPECT(pair.sink, "gone", LISTS({.count = 8, .first_id = 16}));
    flow_start_as(gone, pair.source, "k"); /* it may have a leg already when it ends, or not */
    strait_abort(gone->transfer);
    ends_failed(gone, STRAIT_REASON_ABORTED);
    for (int i = 0; i < 3; i++) {
        struct flow *busy = EXPECT(pair.sink, "busy", LISTS({.count = 8}));
        struct flow *e = EXPECT(pair.sink, "gone", LISTS({.count = 8}));
        flow_start_as(e, pair.source, "k");
        ends_failed(e, STRAIT_REASON_BUSY);
        flow_release(busy);
        pump_for(20);
    }
    ck_assert(!o->decided);
    APPEND(o, .last = true);
    struct flow *e = EXPECT(pair.sink, "e", LISTS({.count = 8}));
    flow_start_as(e, pair.source, "k");
    ends_done(e);
    ends_failed(o, STRAIT_REASON_PEER_ABORT);
    landed(e, o);
}

/* ---- A daemon that stops ----------------------------------------------------------------------------------------- */

/* What waits there for a request that cannot come any more, and what comes while it drains, is refused: neither waits
 * for its deadline, and the daemon does not wait for them. */
TEST_LOOP(a_drain_refuses_who_waits, 2 * (WIRES - 1))
{
    const bool is_offer = _i % 2;
    struct pair pair = open_limited(1 + _i / 2);
    struct test_pool *mine = pool_of(&pair, is_offer), *theirs = pool_of(&pair, !is_offer);
    struct test_node *stops = is_offer ? pair.b : pair.a;
    move_all(pair.source, pair.sink);
    struct flow *flow = begin(mine, is_offer, "k", 0, 0);
    flow_start(flow, theirs);
    WAIT(stat_of(theirs->party, "gauges.parked") == 1);
    uint64_t since = wait_clock();
    test_node_ask_stop(stops, true);
    WAIT(flow->decided);
    ends_failed(flow, STRAIT_REASON_PEER_DOWN);
    test_node_join(stops);
    ck_assert_uint_le(ms_since(since), 1000 * SLOW);
}

int main(void)
{
    return node_main("node_withdraw");
}
