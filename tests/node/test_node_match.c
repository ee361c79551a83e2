/* What both sides name is moved; what does not fit together fails, and says what. */
#include "tests/node/harness.h"

static void open_pools(struct pair *pair, int wire, struct geometry shape, struct test_pool **source,
                       struct test_pool **sink)
{
    pair_open(pair, (enum wire)wire);
    *source = pool_open(pair->source, shape);
    *sink = pool_open(pair->sink, shape);
    pool_fill(*source, 1);
}

/* A prefix hit: the sink has the first pages already. */
TEST_LOOP(a_suffix_of_what_is_offered_may_be_expected, WIRES)
{
    struct pair pair;
    struct test_pool *source, *sink;
    open_pools(&pair, _i, (struct geometry){.pages = 32, .layers = 3}, &source, &sink);
    for (uint32_t hit = 0; hit <= 20; hit += 5) {
        char key[8];
        snprintf(key, sizeof(key), "%u", hit);
        struct flow *o = flow_offer(
            source, (struct strait_offer_params){KEY(key), LISTS({.count = 20, .first_id = 4}), .last = true});
        struct flow *e = flow_expect(
            sink, (struct strait_expect_params){KEY(key), LISTS({.first = hit, .count = 20 - hit, .first_id = 1})});
        flow_start(e, source);
        arrives(e, o);
    }
}

TEST_LOOP(expected_pages_that_are_not_offered_are_named, WIRES)
{
    struct pair pair;
    struct test_pool *source, *sink;
    open_pools(&pair, _i, (struct geometry){.pages = 32, .groups = 2, .layers = 2}, &source, &sink);
    struct flow *o = flow_offer(
        source, (struct strait_offer_params){KEY("k"), LISTS({.count = 10}, {.group = 1, .count = 4}), .last = true});
    struct flow *e =
        flow_expect(sink, (struct strait_expect_params){KEY("k"), LISTS({.first = 6, .count = 8, .first_id = 20},
                                                                        {.group = 1, .first = 3, .count = 2})});
    flow_start(e, source);
    ends_failed(e, STRAIT_REASON_GEOMETRY);
    ends_failed(o, STRAIT_REASON_GEOMETRY);
    ck_assert_uint_eq(5, e->failed_count);
    for (uint32_t id = 24; id < 28; id++)
        ck_assert(failed_page(e, 0, id));
    ck_assert(failed_page(e, 1, 1));
    landed(e, o); /* the others are in place */
    ck_assert(pool_as_imagined(sink));
    wait_quiet(pair.sink);
}

/* Every second page is missing: the list has as many holes as there are pages in it. */
TEST_LOOP(all_missing_pages_are_named_however_scattered, WIRES)
{
    enum { MISSING = 5000 };
    struct pair pair;
    struct test_pool *source, *sink;
    struct strait_page_list *lists = malloc(MISSING * sizeof(*lists));
    open_pools(&pair, _i, (struct geometry){.pages = 2 * MISSING, .row_bytes = 64}, &source, &sink);
    for (uint32_t i = 0; i < MISSING; i++)
        lists[i] = (struct strait_page_list){.first = 2 * i, .count = 1, .first_id = i};
    struct flow *o =
        flow_offer(source, (struct strait_offer_params){KEY("k"), .lists = lists, .list_count = MISSING, .last = true});
    struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY("k"), LISTS({.count = 2 * MISSING})});
    free(lists);
    flow_start(e, source);
    ends_failed(e, STRAIT_REASON_GEOMETRY);
    ck_assert_uint_eq(MISSING, e->failed_count);
    for (uint32_t i = 0; i < MISSING; i++)
        ck_assert_uint_eq(1, e->failed[i].id % 2);
    landed(e, o);
    ck_assert(pool_as_imagined(sink));
}

/* Up to a limit, which the client can tell from their number. */
TEST(the_first_of_very_many_missing_pages_are_named)
{
    enum { MANY = STRAIT_FAILED_PAGES_MAX + 1 };
    struct pair pair;
    struct test_pool *source, *sink;
    uint32_t *ids = malloc(MANY * sizeof(*ids));
    open_pools(&pair, 0, (struct geometry){.layers = 1, .pages = MANY, .row_bytes = 64}, &source, &sink);
    for (uint32_t i = 0; i < MANY; i++)
        ids[i] = MANY - 1 - i;
    for (uint32_t count = MANY; count >= MANY - 1; count--) {
        struct strait_page_list list = {.count = count, .ids = count == MANY ? ids : NULL};
        struct flow *e;
        do { /* until it is the daemon's verdict: the library gives its own when that is late */
            e = flow_expect(
                sink, (struct strait_expect_params){KEY("k"), .lists = &list, .list_count = 1, .deadline_ms = 50});
            ends_failed(e, STRAIT_REASON_TIMEOUT);
        } while (strstr(e->text, "no word from the daemon") != NULL);
        ck_assert_uint_eq(STRAIT_FAILED_PAGES_MAX, e->failed_count);
        ck_assert_int_eq(count == MANY, strlen(e->text) != 0);
        for (uint32_t i = 0; i < e->failed_count; i++)
            ck_assert_uint_eq(count == MANY ? ids[i] : i, e->failed[i].id);
    }
    free(ids);
}

TEST_LOOP(nothing_offered_fails_all_that_is_expected, WIRES)
{
    struct pair pair;
    struct test_pool *source, *sink;
    open_pools(&pair, _i, (struct geometry){.pages = 16}, &source, &sink);
    struct flow *o = flow_offer(source, (struct strait_offer_params){KEY("k"), .last = true});
    struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY("k"), LISTS({.count = 16})});
    flow_start(e, source);
    ends_failed(e, STRAIT_REASON_GEOMETRY);
    ends_failed(o, STRAIT_REASON_GEOMETRY);
    ck_assert_uint_eq(16, e->failed_count);
    ck_assert(pool_as_imagined(sink));
}

static const struct {
    struct geometry shape;
    uint32_t bits;
} misfits[] = {
    {{.layers = 2, .row_bytes = 2048}, STRAIT_MISMATCH_PAGE_SIZE},
    {{.layers = 2, .element = STRAIT_ELEMENT_FP16}, STRAIT_MISMATCH_DTYPE},
    {{.layers = 2, .rows = 2, .row_bytes = 2048}, STRAIT_MISMATCH_LAYOUT},
    {{.layers = 2, .groups = 2}, STRAIT_MISMATCH_LAYOUT},
    {{.layers = 3}, STRAIT_MISMATCH_LAYERS},
};

TEST_LOOP(pools_that_do_not_match_are_told_and_refused, WIRES *COUNT(misfits))
{
    struct pair pair;
    struct test_pool *source, *sink, *other;
    open_pools(&pair, _i / COUNT(misfits), (struct geometry){.layers = 2}, &source, &sink);
    other = pool_open(pair.sink, misfits[_i % COUNT(misfits)].shape);
    struct strait_peer *peer = peer_of(pair.sink, source);
    ck_assert_uint_eq(0, strait_peer_check(sink->pool, peer));
    ck_assert_uint_ne(0, strait_peer_check(other->pool, peer) & misfits[_i % COUNT(misfits)].bits);
    struct flow *e =
        flow_expect(other, (struct strait_expect_params){KEY("k"), LISTS({.count = 1}), .deadline_ms = 50});
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_start(e->transfer, peer, NULL));
    ends_failed(e, STRAIT_REASON_TIMEOUT);
    struct strait_start_params push = {.size = sizeof(push), .direction = STRAIT_PUSH};
    e = flow_expect(sink, (struct strait_expect_params){KEY("k"), LISTS({.count = 1}), .deadline_ms = 50});
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_start(e->transfer, peer, &push));
    ends_failed(e, STRAIT_REASON_TIMEOUT);
    ck_assert(pool_as_imagined(sink) && pool_as_imagined(other));
}

/* ---- Several consumers, several sources -------------------------------------------------------------------------- */

TEST_LOOP(three_consumers_take_one_offer, WIRES)
{
    struct pair pair;
    struct test_pool *source, *sink;
    struct geometry shape = {.pages = 32, .layers = 2};
    open_pools(&pair, _i, shape, &source, &sink);
    struct test_pool *other = pool_open(pair.sink, shape);
    struct flow *o = flow_offer(source, (struct strait_offer_params){KEY("k"), LISTS({.count = 12}), .last = true,
                                                                     .consumers = 3, .aux = "token", .aux_size = 5});
    struct flow *e[3];
    e[0] = flow_expect(sink, (struct strait_expect_params){KEY("one"), LISTS({.count = 12})});
    e[1] =
        flow_expect(sink, (struct strait_expect_params){KEY("two"), LISTS({.first = 3, .count = 9, .first_id = 20})});
    e[2] = flow_expect(other, (struct strait_expect_params){KEY("k"), LISTS({.count = 5, .first_id = 7})});
    for (int i = 0; i < 3; i++) {
        ck_assert(!o->decided);
        flow_start_as(e[i], source, "k");
        ends_done(e[i]);
        landed(e[i], o);
        ck_assert_uint_eq(5, e[i]->aux_size);
    }
    ends_done(o);
    ck_assert(pool_as_imagined(sink) && pool_as_imagined(other) && pool_as_imagined(source));
}

TEST_LOOP(one_of_three_consumers_fails_and_the_others_do_not, WIRES)
{
    struct pair pair;
    struct test_pool *source, *sink;
    open_pools(&pair, _i, (struct geometry){.pages = 32}, &source, &sink);
    struct flow *o = flow_offer(source, (struct strait_offer_params){KEY("k"), LISTS({.count = 8}), .consumers = 3});
    struct flow *e[3];
    for (uint32_t i = 0; i < 3; i++) {
        char key[4] = {(char)('a' + i), '\0'};
        e[i] = flow_expect(sink, (struct strait_expect_params){KEY(key), LISTS({.count = 8, .first_id = 8 * i})});
        flow_start_as(e[i], source, "k");
        WAIT(e[i]->state >= STRAIT_READY || e[i]->decided);
    }
    strait_abort(e[1]->transfer);
    ends_failed(e[1], STRAIT_REASON_ABORTED);
    flow_append(o, (struct strait_append_params){.last = true});
    for (uint32_t i = 0; i < 3; i += 2) {
        ends_done(e[i]);
        landed(e[i], o);
    }
    ends_failed(o, STRAIT_REASON_PEER_ABORT);
    undefined(e[1]);
    ck_assert(pool_as_imagined(sink));
    wait_quiet(pair.source);
}

/* Two sources under different daemons, or both under the sink's. */
static void two_sources(struct pair *pair, int wire, struct test_pool *source[2], struct test_pool **sink)
{
    struct geometry shape = {.pages = 32, .layers = 4};
    open_pools(pair, wire, shape, &source[0], sink);
    struct party *second = pair->source;
    if (pair->wire != SAME) {
        test_node_init(&nodes[2], "c", nodes[0].options.transports);
        test_node_start(&nodes[2]);
        second = party_open(&nodes[2]);
    }
    source[1] = pool_open(second, shape);
    pool_fill(source[1], 2);
}

TEST_LOOP(two_sources_bring_disjoint_parts, WIRES)
{
    struct pair pair;
    struct test_pool *source[2], *sink;
    two_sources(&pair, _i, source, &sink);
    struct flow *o[2];
    o[0] = flow_offer(source[0], (struct strait_offer_params){KEY("k"), LISTS({.count = 10}), .last = true});
    o[1] = flow_offer(source[1], (struct strait_offer_params){
                                     KEY("k"), LISTS({.first = 10, .count = 10, .first_id = 3}), .last = true});
    struct flow *e =
        flow_expect(sink, (struct strait_expect_params){KEY("k"), LISTS({.count = 20, .first_id = 5}), .sources = 2});
    flow_start(e, source[0]);
    pump_for(50);
    ck_assert(!e->decided);
    flow_start(e, source[1]);
    ends_done(e);
    ends_done(o[0]);
    ends_done(o[1]);
    landed(e, o[0]);
    landed(e, o[1]);
    ck_assert(pool_as_imagined(sink));
    ck_assert_uint_eq(4, e->layer_count);
}

TEST_LOOP(sources_that_overlap_fail, WIRES)
{
    struct pair pair;
    struct test_pool *source[2], *sink;
    two_sources(&pair, _i, source, &sink);
    struct flow *o[2];
    o[0] = flow_offer(source[0], (struct strait_offer_params){KEY("k"), LISTS({.count = 11}), .last = true});
    o[1] =
        flow_offer(source[1], (struct strait_offer_params){KEY("k"), LISTS({.first = 10, .count = 10}), .last = true});
    struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY("k"), LISTS({.count = 20}), .sources = 2});
    flow_start(e, source[0]);
    flow_start(e, source[1]);
    ends_failed(e, STRAIT_REASON_GEOMETRY);
    WAIT(o[0]->decided && o[1]->decided);
    ck_assert(o[0]->state == STRAIT_FAILED || o[1]->state == STRAIT_FAILED);
    undefined(e);
    ck_assert(pool_as_imagined(sink));
    wait_quiet(pair.sink);
}

TEST_LOOP(more_sources_than_expected_fail, WIRES)
{
    struct pair pair;
    struct test_pool *source[2], *sink;
    two_sources(&pair, _i, source, &sink);
    struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY("k"), LISTS({.count = 20})});
    flow_start(e, source[0]);
    flow_start(e, source[1]);
    ends_failed(e, STRAIT_REASON_GEOMETRY);
    ck_assert_uint_eq(20, e->failed_count);
}

TEST_LOOP(more_consumers_than_an_offer_may_have_fail_it, WIRES)
{
    struct pair pair;
    struct test_pool *source, *sink;
    char key[8];
    open_pools(&pair, _i, (struct geometry){.pages = 8}, &source, &sink);
    struct flow *o = flow_offer(source, (struct strait_offer_params){KEY("k"), LISTS({.count = 8}), .last = true});
    for (uint32_t i = 0; i < STRAIT_PARTS_MAX; i++) {
        snprintf(key, sizeof(key), "%u", i);
        flow_start_as(o, sink, key);
        flow_start_as(o, sink, key); /* says nothing new */
    }
    (void)stats_text(source->party); /* all of that has been read */
    ck_assert(!o->decided);
    flow_start_as(o, sink, "one more");
    ends_failed(o, STRAIT_REASON_GEOMETRY);
    wait_quiet(pair.source);
}

/* ---- In use ------------------------------------------------------------------------------------------------------ */

TEST_LOOP(a_page_is_in_one_live_expectation_or_in_offers, WIRES)
{
    struct pair pair;
    struct test_pool *source, *sink;
    open_pools(&pair, _i, (struct geometry){.pages = 32}, &source, &sink);
    struct flow *o = flow_offer(source, (struct strait_offer_params){KEY("o"), LISTS({.count = 8}), .last = true});
    struct flow *o2 =
        flow_offer(source, (struct strait_offer_params){KEY("o2"), LISTS({.count = 8, .first_id = 4}), .last = true});
    struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY("o"), LISTS({.count = 8})});
    ends_failed(flow_expect(source, (struct strait_expect_params){KEY("x"), LISTS({.count = 1, .first_id = 11})}),
                STRAIT_REASON_BUSY);
    ends_failed(flow_expect(sink, (struct strait_expect_params){KEY("x"), LISTS({.count = 2, .first_id = 7})}),
                STRAIT_REASON_BUSY);
    ends_failed(
        flow_offer(sink, (struct strait_offer_params){KEY("x"), LISTS({.count = 2, .first_id = 7}), .last = true}),
        STRAIT_REASON_BUSY);
    static const uint32_t twice[] = {20, 21, 20};
    struct flow *same = flow_expect(sink, (struct strait_expect_params){KEY("x"), LISTS({.count = 3, .ids = twice})});
    ends_failed(same, STRAIT_REASON_BUSY);
    ck_assert_ptr_nonnull(strstr(same->text, "named twice"));
    /* What was refused holds nothing. */
    struct flow *free_again = flow_expect(
        sink, (struct strait_expect_params){KEY("x"), LISTS({.count = 24, .first_id = 8}), .deadline_ms = 100});
    ends_failed(free_again, STRAIT_REASON_TIMEOUT);
    flow_start(e, source);
    arrives(e, o);
    /* Drained: free for anything, at once. */
    struct flow *again = flow_expect(sink, (struct strait_expect_params){KEY("o2"), LISTS({.count = 8})});
    flow_start(again, source);
    ends_done(again);
    ends_done(o2);
    landed(again, o2);
    ck_assert(pool_as_imagined(sink));
    struct flow *turned = flow_offer(sink, (struct strait_offer_params){KEY("t"), LISTS({.count = 8}), .last = true});
    struct flow *back = flow_expect(source, (struct strait_expect_params){KEY("t"), LISTS({.count = 8})});
    flow_start(back, sink);
    arrives(back, turned);
}

TEST_LOOP(a_name_is_one_live_request_and_free_after_it, WIRES)
{
    struct pair pair;
    struct test_pool *source, *sink;
    open_pools(&pair, _i, (struct geometry){.pages = 32}, &source, &sink);
    struct flow *o = flow_offer(source, (struct strait_offer_params){KEY("k"), LISTS({.count = 4}), .last = true});
    struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY("k"), LISTS({.count = 4})});
    ends_failed(flow_offer(source, (struct strait_offer_params){KEY("k"), LISTS({.count = 4}), .last = true}),
                STRAIT_REASON_BUSY);
    ends_failed(flow_expect(sink, (struct strait_expect_params){KEY("k"), LISTS({.count = 4, .first_id = 8})}),
                STRAIT_REASON_BUSY);
    flow_start(e, source);
    arrives(e, o);
    for (int i = 0; i < 5; i++) { /* at once; the other side is asked when both are there */
        pool_fill(source, 10 + (uint64_t)i);
        o = flow_offer(source, (struct strait_offer_params){KEY("k"), LISTS({.count = 4}), .last = true});
        (void)stats_text(pair.source); /* answered in order: the offer is known */
        e = flow_expect(sink, (struct strait_expect_params){KEY("k"), LISTS({.count = 4})});
        flow_start(e, source);
        arrives(e, o);
    }
}

TEST_LOOP(pages_that_do_not_exist_are_bad_arguments, WIRES)
{
    struct pair pair;
    struct test_pool *source, *sink;
    struct strait_transfer *transfer = NULL;
    open_pools(&pair, _i, (struct geometry){.pages = 32}, &source, &sink);
    static const uint32_t beyond[] = {1, 32};
    const struct strait_page_list bad[] = {{.count = 33},
                                           {.count = 1, .first_id = 32},
                                           {.group = 1, .count = 1},
                                           {.count = 2, .ids = beyond},
                                           {.first = UINT32_MAX, .count = 2},
                                           {.first_id = UINT32_MAX, .count = 2}};
    for (int i = 0; i < COUNT(bad); i++) {
        struct strait_expect_params params = {
            .size = sizeof(params), KEY("k"), .lists = &bad[i], .list_count = 1, .deadline_ms = 1000};
        ck_assert_int_eq(STRAIT_ERR_INVALID, strait_expect(sink->pool, &params, &transfer));
    }
    ends_failed(
        flow_expect(sink, (struct strait_expect_params){KEY("k"),
                                                        LISTS({.count = 4}, {.first = 3, .count = 1, .first_id = 9})}),
        STRAIT_REASON_GEOMETRY); /* an index twice */
    struct flow *e =
        flow_expect(sink, (struct strait_expect_params){KEY("k"), LISTS({.count = 32}), .deadline_ms = 50});
    ends_failed(e, STRAIT_REASON_TIMEOUT);
}

int main(void)
{
    return node_main("node_match");
}
