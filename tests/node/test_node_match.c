/* What both sides name is moved, as it becomes ready; what does not fit together fails, and says what. */
#include "tests/node/harness.h"

TEST_CASE(node_match);

/* A prefix hit: the sink has the first pages already. */
TEST_LOOP(a_suffix_of_what_is_offered_may_be_expected, WIRES)
{
    struct pair pair = pair_open(_i, (struct geometry){.pages = 32, .layers = 3});
    for (uint32_t hit = 0; hit <= 20; hit += 5) {
        struct flow *o = OFFER(pair.source, name_of(hit), LISTS({.count = 20, .first_id = 4}), .last = true);
        struct flow *e = PULL(pair.sink, o, LISTS({.first = hit, .count = 20 - hit, .first_id = 1}));
        arrives(e, o);
    }
}

TEST_LOOP(expected_pages_that_are_not_offered_are_named, WIRES)
{
    struct pair pair = pair_open(_i, (struct geometry){.pages = 32, .groups = 2, .layers = 2});
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 10}, {.group = 1, .count = 4}), .last = true);
    struct flow *e =
        PULL(pair.sink, o, LISTS({.first = 6, .count = 8, .first_id = 20}, {.group = 1, .first = 3, .count = 2}));
    ends_failed(e, STRAIT_REASON_GEOMETRY);
    ends_failed(o, STRAIT_REASON_GEOMETRY);
    ck_assert_uint_eq(5, e->failed_count);
    for (uint32_t id = 24; id < 28; id++)
        ck_assert(failed_page(e, 0, id));
    ck_assert(failed_page(e, 1, 1));
    landed(e, o); /* the others are in place */
    ck_assert(pool_as_imagined(pair.sink));
    wait_quiet(pair.to);
}

/* Every second page is missing: the list has as many holes as there are pages in it. */
TEST_LOOP(all_missing_pages_are_named_however_scattered, WIRES)
{
    enum { MISSING = 5000 };
    struct strait_page_list *lists = malloc(MISSING * sizeof(*lists));
    struct pair pair = pair_open(_i, (struct geometry){.pages = 2 * MISSING, .row_bytes = 64});
    for (uint32_t i = 0; i < MISSING; i++)
        lists[i] = (struct strait_page_list){.first = 2 * i, .count = 1, .first_id = i};
    struct flow *o = OFFER(pair.source, "k", .lists = lists, .list_count = MISSING, .last = true);
    struct flow *e = EXPECT(pair.sink, "k", LISTS({.count = 2 * MISSING}));
    free(lists);
    flow_start(e, pair.source);
    ends_failed(e, STRAIT_REASON_GEOMETRY);
    ck_assert_uint_eq(MISSING, e->failed_count);
    for (uint32_t i = 0; i < MISSING; i++)
        ck_assert_uint_eq(1, e->failed[i].id % 2);
    landed(e, o);
    ck_assert(pool_as_imagined(pair.sink));
}

/* Up to a limit, which the client can tell from their number. */
TEST(the_first_of_very_many_missing_pages_are_named)
{
    enum { MANY = STRAIT_FAILED_PAGES_MAX + 1 };
    uint32_t *ids = malloc(MANY * sizeof(*ids));
    struct pair pair = pair_open(0, (struct geometry){.layers = 1, .pages = MANY, .row_bytes = 64});
    for (uint32_t i = 0; i < MANY; i++)
        ids[i] = MANY - 1 - i;
    for (uint32_t count = MANY; count >= MANY - 1; count--) {
        struct strait_page_list list = {.count = count, .ids = count == MANY ? ids : NULL};
        struct flow *e;
        do { /* until it is the daemon's verdict: the library gives its own when that is late */
            e = EXPECT(pair.sink, "k", .lists = &list, .list_count = 1, .deadline_ms = 50);
            ends_failed(e, STRAIT_REASON_TIMEOUT);
        } while (strstr(e->text, "no word from the daemon") != NULL);
        ck_assert_uint_eq(STRAIT_FAILED_PAGES_MAX, e->failed_count);
        ck_assert_int_eq(count == MANY, strstr(e->text, "more pages are missing") != NULL);
        for (uint32_t i = 0; i < e->failed_count; i++)
            ck_assert_uint_eq(count == MANY ? ids[i] : i, e->failed[i].id);
    }
    free(ids);
}

TEST_LOOP(nothing_offered_fails_all_that_is_expected, WIRES)
{
    struct pair pair = pair_open(_i, (struct geometry){.pages = 16});
    struct flow *o = OFFER(pair.source, "k", .last = true);
    struct flow *e = PULL(pair.sink, o, LISTS({.count = 16}));
    ends_failed(e, STRAIT_REASON_GEOMETRY);
    ends_failed(o, STRAIT_REASON_GEOMETRY);
    ck_assert_uint_eq(16, e->failed_count);
    ck_assert(pool_as_imagined(pair.sink));
}

/* ---- Several consumers, several sources -------------------------------------------------------------------------- */

TEST_LOOP(three_consumers_take_one_offer, WIRES)
{
    struct geometry shape = {.pages = 32, .layers = 2};
    struct pair pair = pair_open(_i, shape);
    struct test_pool *other = pool_open(pair.to, shape);
    struct flow *o =
        OFFER(pair.source, "k", LISTS({.count = 12}), .last = true, .consumers = 3, .aux = "token", .aux_size = 5);
    struct flow *e[3];
    e[0] = EXPECT(pair.sink, "one", LISTS({.count = 12}));
    e[1] = EXPECT(pair.sink, "two", LISTS({.first = 3, .count = 9, .first_id = 20}));
    e[2] = EXPECT(other, "k", LISTS({.count = 5, .first_id = 7}));
    for (int i = 0; i < 3; i++) {
        ck_assert(!o->decided);
        flow_start_as(e[i], pair.source, "k");
        ends_done(e[i]);
        landed(e[i], o);
        ck_assert_uint_eq(5, e[i]->aux_size);
    }
    ends_done(o);
    ck_assert(pool_as_imagined(pair.sink) && pool_as_imagined(other) && pool_as_imagined(pair.source));
}

/* ---- Consumers that the first of them counts --------------------------------------------------------------------- */

/* They ask one after another, or all before there is an offer. */
TEST_LOOP(the_first_consumer_says_how_many_there_are, WIRES * 2)
{
    enum { CONSUMERS = 3 };
    const bool early = _i % 2 == 1;
    struct pair pair = pair_open(_i / 2, (struct geometry){.pages = 32});
    struct flow *e[CONSUMERS], *o = NULL;
    move_all(pair.source, pair.sink);
    for (uint32_t i = 0; i < CONSUMERS; i++)
        e[i] = EXPECT(pair.sink, name_of(i), LISTS({.count = 8, .first_id = 8 * i}));
    for (uint32_t i = 0; i < CONSUMERS && early; i++)
        flow_start_one_of(e[i], pair.source, "k", CONSUMERS);
    if (early) {
        stays_undecided(e[0], 30);
        (void)stats_text(pair.to);
    }
    o = OFFER(pair.source, "k", LISTS({.count = 8}), .last = true, .consumers = STRAIT_CONSUMERS_ASKED);
    for (uint32_t i = 0; i < CONSUMERS; i++) {
        if (!early) {
            ck_assert(!o->decided);
            flow_start_one_of(e[i], pair.source, "k", i == 0 ? CONSUMERS : 7 * i); /* what the others say is late */
        }
        ends_done(e[i]);
        landed(e[i], o);
        if (!early && i < CONSUMERS - 1)
            stays_undecided(o, 20);
    }
    ends_done(o);
    ck_assert(pool_as_imagined(pair.sink) && pool_as_imagined(pair.source));
    struct flow *fourth = EXPECT(pair.sink, "late", LISTS({.count = 1, .first_id = 31}), .deadline_ms = 200);
    flow_start_as(fourth, pair.source, "k");
    ends_failed(fourth, STRAIT_REASON_TIMEOUT); /* that name may mean another offer now */
}

TEST_LOOP(a_consumer_that_says_nothing_is_the_only_one, WIRES)
{
    struct pair pair = pair_open(_i, (struct geometry){.pages = 16});
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 8}), .last = true, .consumers = STRAIT_CONSUMERS_ASKED);
    struct strait_peer *peer = peer_of(pair.from, pair.sink);
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_start(o->transfer, peer, NULL));
    strait_peer_remove(peer);
    arrives(PULL(pair.sink, o, LISTS({.count = 8})), o);
}

/* Nobody knows whom else to wait for. */
TEST_LOOP(an_offer_that_is_declined_before_it_is_counted_ends, WIRES)
{
    struct pair pair = pair_open(_i, (struct geometry){.pages = 16});
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 8}), .last = true, .consumers = STRAIT_CONSUMERS_ASKED);
    struct strait_peer *peer = peer_of(pair.to, pair.source);
    (void)stats_text(pair.from); /* the offer is known */
    ck_assert_int_eq(STRAIT_OK, strait_decline(pair.sink->pool, peer, "k", 1));
    strait_peer_remove(peer);
    ends_failed(o, STRAIT_REASON_PEER_ABORT);
}

TEST(an_offer_that_nobody_counts_ends_with_its_lease)
{
    struct pair pair = pair_open(0, (struct geometry){.pages = 16});
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 8}), .last = true, .consumers = STRAIT_CONSUMERS_ASKED,
                           .lease_ms = 200);
    ends_failed(o, STRAIT_REASON_LEASE_EXPIRED);
    ck_assert_str_eq("no consumer has come, to say how many there are", o->text);
}

/* One that has counted the others, and fails, fails the offer only when they have ended. */
TEST_LOOP(a_consumer_that_has_counted_fails_alone, WIRES)
{
    struct pair pair = pair_open(_i, (struct geometry){.pages = 32});
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 8}), .consumers = STRAIT_CONSUMERS_ASKED);
    struct flow *first = EXPECT(pair.sink, "first", LISTS({.count = 8}));
    struct flow *second = EXPECT(pair.sink, "second", LISTS({.count = 8, .first_id = 8}));
    flow_start_one_of(first, pair.source, "k", 2);
    WAIT(first->state >= STRAIT_READY);
    strait_abort(first->transfer);
    ends_failed(first, STRAIT_REASON_ABORTED);
    stays_undecided(o, 30);
    flow_start_as(second, pair.source, "k");
    APPEND(o, .last = true);
    ends_done(second);
    landed(second, o);
    ends_failed(o, STRAIT_REASON_PEER_ABORT);
    undefined(first);
    ck_assert(pool_as_imagined(pair.sink));
}

/* ---- Several consumers that fail --------------------------------------------------------------------------------- */

TEST_LOOP(one_of_three_consumers_fails_and_the_others_do_not, WIRES)
{
    struct pair pair = pair_open(_i, (struct geometry){.pages = 32});
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 8}), .consumers = 3);
    struct flow *e[3];
    for (uint32_t i = 0; i < 3; i++) {
        e[i] = EXPECT(pair.sink, name_of(i), LISTS({.count = 8, .first_id = 8 * i}));
        flow_start_as(e[i], pair.source, "k");
        WAIT(e[i]->state >= STRAIT_READY || e[i]->decided);
    }
    strait_abort(e[1]->transfer);
    ends_failed(e[1], STRAIT_REASON_ABORTED);
    APPEND(o, .last = true);
    for (uint32_t i = 0; i < 3; i += 2) {
        ends_done(e[i]);
        landed(e[i], o);
    }
    ends_failed(o, STRAIT_REASON_PEER_ABORT);
    undefined(e[1]);
    ck_assert(pool_as_imagined(pair.sink));
    wait_quiet(pair.from);
}

/* Another source, under another daemon, or under the sink's, too. */
static struct pair two_sources(int wire, struct test_pool *source[2])
{
    struct geometry shape = {.pages = 32, .layers = 4};
    struct pair pair = pair_open(wire, shape);
    struct party *second = pair.from;
    if (wire != SAME) {
        test_node_init(&nodes[2], "c", nodes[0].options.transports);
        test_node_start(&nodes[2]);
        second = party_open(&nodes[2]);
    }
    source[0] = pair.source;
    source[1] = pool_open(second, shape);
    pool_fill(source[1], 2);
    return pair;
}

TEST_LOOP(two_sources_bring_disjoint_parts, WIRES)
{
    struct test_pool *source[2];
    struct pair pair = two_sources(_i, source);
    struct flow *o[2];
    o[0] = OFFER(source[0], "k", LISTS({.count = 10}), .last = true);
    o[1] = OFFER(source[1], "k", LISTS({.first = 10, .count = 10, .first_id = 3}), .last = true);
    struct flow *e = PULL(pair.sink, o[0], LISTS({.count = 20, .first_id = 5}), .sources = 2);
    stays_undecided(e, 50);
    flow_start(e, source[1]);
    ends_done(e);
    ends_done(o[0]);
    ends_done(o[1]);
    landed(e, o[0]);
    landed(e, o[1]);
    ck_assert(pool_as_imagined(pair.sink));
    ck_assert_uint_eq(4, e->layer_count);
}

TEST_LOOP(sources_that_overlap_fail, WIRES)
{
    struct test_pool *source[2];
    struct pair pair = two_sources(_i, source);
    struct flow *o[2];
    o[0] = OFFER(source[0], "k", LISTS({.count = 11}), .last = true);
    o[1] = OFFER(source[1], "k", LISTS({.first = 10, .count = 10}), .last = true);
    struct flow *e = PULL(pair.sink, o[0], LISTS({.count = 20}), .sources = 2);
    flow_start(e, source[1]);
    ends_failed(e, STRAIT_REASON_GEOMETRY);
    WAIT(o[0]->decided && o[1]->decided);
    ck_assert(o[0]->state == STRAIT_FAILED || o[1]->state == STRAIT_FAILED);
    undefined(e);
    ck_assert(pool_as_imagined(pair.sink));
    wait_quiet(pair.to);
}

TEST_LOOP(more_sources_than_expected_fail, WIRES)
{
    struct test_pool *source[2];
    struct pair pair = two_sources(_i, source);
    struct flow *e = EXPECT(pair.sink, "k", LISTS({.count = 20}));
    flow_start(e, source[0]);
    flow_start(e, source[1]);
    ends_failed(e, STRAIT_REASON_GEOMETRY);
    ck_assert_uint_eq(20, e->failed_count);
}

TEST_LOOP(more_consumers_than_an_offer_may_have_fail_it, WIRES)
{
    struct pair pair = pair_open(_i, (struct geometry){.pages = 8});
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 8}), .last = true);
    for (uint32_t i = 0; i < STRAIT_PARTS_MAX; i++) {
        flow_start_as(o, pair.sink, name_of(i));
        flow_start_as(o, pair.sink, name_of(i)); /* says nothing new */
    }
    (void)stats_text(pair.source->party); /* all of that has been read */
    ck_assert(!o->decided);
    flow_start_as(o, pair.sink, "one more");
    ends_failed(o, STRAIT_REASON_GEOMETRY);
    wait_quiet(pair.from);
}

/* ---- In use ------------------------------------------------------------------------------------------------------ */

TEST_LOOP(a_page_is_in_one_live_expectation_or_in_offers, WIRES)
{
    struct pair pair = pair_open(_i, (struct geometry){.pages = 32});
    struct flow *o = OFFER(pair.source, "o", LISTS({.count = 8}), .last = true);
    struct flow *o2 = OFFER(pair.source, "o2", LISTS({.count = 8, .first_id = 4}), .last = true);
    struct flow *e = EXPECT(pair.sink, "o", LISTS({.count = 8}));
    ends_failed(EXPECT(pair.source, "x", LISTS({.count = 1, .first_id = 11})), STRAIT_REASON_BUSY);
    struct flow *used = EXPECT(pair.sink, "x", LISTS({.count = 2, .first_id = 7}));
    ends_failed(used, STRAIT_REASON_BUSY);
    ck_assert_str_eq("page 7 of group 0 is in use by another request", used->text);
    ends_failed(OFFER(pair.sink, "x", LISTS({.count = 2, .first_id = 7}), .last = true), STRAIT_REASON_BUSY);
    static const uint32_t twice[] = {20, 21, 20};
    struct flow *same = EXPECT(pair.sink, "x", LISTS({.count = 3, .ids = twice}));
    ends_failed(same, STRAIT_REASON_GEOMETRY);
    ck_assert_str_eq("page 20 of group 0 is named twice", same->text);
    same = EXPECT(pair.sink, "x", LISTS({.count = 2, .first_id = 20}, {.first = 2, .count = 2, .first_id = 21}));
    ends_failed(same, STRAIT_REASON_GEOMETRY);
    ck_assert_str_eq("page 21 of group 0 is named twice", same->text);
    /* What was refused holds nothing. */
    struct flow *free_again = EXPECT(pair.sink, "x", LISTS({.count = 24, .first_id = 8}), .deadline_ms = 100);
    ends_failed(free_again, STRAIT_REASON_TIMEOUT);
    pull(e, o);
    /* Drained: free for anything, at once. */
    struct flow *again = EXPECT(pair.sink, "o2", LISTS({.count = 8}));
    flow_start(again, pair.source);
    ends_done(again);
    ends_done(o2);
    landed(again, o2);
    ck_assert(pool_as_imagined(pair.sink));
    struct flow *turned = OFFER(pair.sink, "t", LISTS({.count = 8}), .last = true);
    pull(EXPECT(pair.source, "t", LISTS({.count = 8})), turned);
}

TEST_LOOP(a_name_is_one_live_request_and_free_after_it, WIRES)
{
    struct pair pair = pair_open(_i, (struct geometry){.pages = 32});
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 4}), .last = true);
    struct flow *e = EXPECT(pair.sink, "k", LISTS({.count = 4}));
    ends_failed(OFFER(pair.source, "k", LISTS({.count = 4}), .last = true), STRAIT_REASON_BUSY);
    ends_failed(EXPECT(pair.sink, "k", LISTS({.count = 4, .first_id = 8})), STRAIT_REASON_BUSY);
    pull(e, o);
    for (int i = 0; i < 5; i++) { /* at once; the other side is asked when both are there */
        pool_fill(pair.source, 10 + (uint64_t)i);
        o = OFFER(pair.source, "k", LISTS({.count = 4}), .last = true);
        (void)stats_text(pair.from); /* answered in order: the offer is known */
        pull(EXPECT(pair.sink, "k", LISTS({.count = 4})), o);
    }
}

TEST_LOOP(an_index_that_is_listed_twice_fails_and_holds_nothing, WIRES)
{
    struct pair pair = pair_open(_i, (struct geometry){.pages = 32});
    ends_failed(EXPECT(pair.sink, "k", LISTS({.count = 4}, {.first = 3, .count = 1, .first_id = 9})),
                STRAIT_REASON_GEOMETRY);
    struct flow *e = EXPECT(pair.sink, "k", LISTS({.count = 32}), .deadline_ms = 50);
    ends_failed(e, STRAIT_REASON_TIMEOUT);
}

/* ---- Pages that become ready while others travel ----------------------------------------------------------------- */

TEST_CASE(node_stream);

TEST_LOOP(pages_are_appended_by_chunks, WIRES)
{
    struct pair pair = pair_open(_i, (struct geometry){.pages = 100, .layers = 2});
    struct flow *e = EXPECT(pair.sink, "k", LISTS({.count = 100}));
    struct flow *o = OFFER(pair.source, "k", .list_count = 0);
    flow_start(o, pair.sink);
    for (uint32_t i = 0; i < 10; i++) {
        APPEND(o, LISTS({.first = 10 * i, .count = 10, .first_id = 90 - 10 * i}));
        if (i % 3 != 0)
            stays_undecided(e, 5);
        ck_assert(!o->decided);
        ck_assert_uint_eq(0, e->layer_count);
    }
    stays_undecided(e, 30);
    APPEND(o, .last = true, .aux = "late", .aux_size = 4); /* without pages */
    arrives(e, o);
    ck_assert_uint_eq(4, e->aux_size);
    ck_assert_mem_eq("late", e->aux, 4);
    ck_assert_uint_eq(2, e->layer_count);
    struct strait_append_params more = {.size = sizeof(more), .last = true};
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_append(o->transfer, &more));
}

TEST_LOOP(layers_are_ready_one_after_another, WIRES)
{
    enum { LAYERS = 8 };
    struct pair pair = pair_open(_i, (struct geometry){.pages = 20, .layers = LAYERS, .roles = 2});
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 20}), .later = true);
    struct flow *e = PULL(pair.sink, o, LISTS({.count = 20}));
    for (int layer = 0; layer < LAYERS; layer++) {
        ck_assert_uint_eq((uint32_t)layer, e->layer_count);
        APPEND(o, .layer_first = layer, .layer_count = 1, .last = layer == LAYERS - 1);
        WAIT(e->layers[layer] == 1); /* each one lands before the next is computed */
    }
    arrives(e, o);
}

/* ---- Pages that are in place ------------------------------------------------------------------------------------- */

/* That each is told of once, and which have failed, the harness requires of all transfers. */

TEST_LOOP(pages_are_told_of_as_they_become_ready, WIRES)
{
    struct pair pair = pair_open(_i, (struct geometry){.pages = 40, .layers = 3, .roles = 2, .groups = 2});
    struct flow *o = OFFER(pair.source, "k");
    struct flow *e = PULL(pair.sink, o, LISTS({.count = 32, .first_id = 8}, {.group = 1, .count = 1}));
    for (uint32_t first = 0; first < 32; first += 8) {
        ck_assert_uint_eq(first, e->told_count);
        APPEND(o, LISTS({.first = first, .count = 8, .first_id = 32 - first}));
        WAIT(e->told_count == first + 8);
        ck_assert_uint_eq(0, e->layer_count);
    }
    ck_assert_uint_eq(32, strait_transfer_progress(e->transfer).pages_landed);
    APPEND(o, LISTS({.group = 1, .count = 1}), .last = true);
    arrives(e, o);
}

TEST_LOOP(a_page_is_told_of_with_its_last_layer, WIRES)
{
    enum { LAYERS = 4 };
    struct pair pair = pair_open(_i, (struct geometry){.pages = 20, .layers = LAYERS, .roles = 2});
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 20}), .later = true);
    struct flow *e = PULL(pair.sink, o, LISTS({.count = 20}));
    for (int layer = 0; layer < LAYERS; layer++) {
        ck_assert_uint_eq(0, e->told_count);
        APPEND(o, LISTS({.count = 12}), .layer_first = layer, .layer_count = 1);
        APPEND(o, LISTS({.first = 12, .count = 8, .first_id = 12}), .layer_first = layer, .layer_count = 1);
        WAIT(e->layers[layer] == 1);
    }
    WAIT(e->told_count == 20);
    APPEND(o, .last = true);
    arrives(e, o);
}

/* They are good, whatever becomes of the request. */
TEST_LOOP(pages_that_were_told_of_outlive_their_request, WIRES * 2)
{
    const bool by_sink = _i % 2 == 0;
    struct pair pair = pair_open(_i / 2, (struct geometry){.pages = 20, .layers = 2});
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 12}));
    struct flow *e = PULL(pair.sink, o, LISTS({.count = 20}));
    WAIT(e->told_count == 12);
    strait_abort(by_sink ? e->transfer : o->transfer);
    ends_failed(e, by_sink ? STRAIT_REASON_ABORTED : STRAIT_REASON_PEER_ABORT);
    ends_failed(o, by_sink ? STRAIT_REASON_PEER_ABORT : STRAIT_REASON_ABORTED);
    ck_assert_uint_eq(8, e->failed_count);
    landed(e, o);
    ck_assert(pool_as_imagined(pair.sink));
}

TEST_LOOP(layers_may_come_in_ranges_and_in_any_order, WIRES)
{
    struct pair pair = pair_open(_i, (struct geometry){.pages = 20, .layers = 8, .groups = 2});
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 20}, {.group = 1, .count = 3}), .later = true);
    struct flow *e = PULL(pair.sink, o, LISTS({.count = 20}, {.group = 1, .count = 3}));
    APPEND(o, .layer_first = 5, .layer_count = 3);
    WAIT(e->layer_count == 3);
    ck_assert(e->layers[5] && e->layers[6] && e->layers[7]);
    APPEND(o, .layer_first = 0, .layer_count = 4);
    WAIT(e->layer_count == 7);
    APPEND(o, .layer_first = 4, .layer_count = 1);
    WAIT(e->layer_count == 8);
    ck_assert(!e->decided);
    APPEND(o, .last = true, .layer_first = 8, .layer_count = 1000); /* of none */
    arrives(e, o);
}

TEST_LOOP(last_alone_completes_the_layers_that_are_left, WIRES)
{
    struct pair pair = pair_open(_i, (struct geometry){.pages = 20, .layers = 8});
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 20}), .later = true);
    struct flow *e = PULL(pair.sink, o, LISTS({.count = 20}));
    APPEND(o, .layer_first = 0, .layer_count = 6);
    APPEND(o, .layer_first = 2, .layer_count = 1); /* again: left alone */
    WAIT(e->layer_count == 6);
    APPEND(o, .last = true);
    arrives(e, o);
}

TEST_LOOP(a_layer_made_ready_twice_moves_once, WIRES)
{
    struct pair pair = pair_open(_i, (struct geometry){.pages = 20, .layers = 2});
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 20}), .later = true);
    struct flow *e = PULL(pair.sink, o, LISTS({.count = 20}));
    APPEND(o, .layer_first = 0, .layer_count = 1);
    WAIT(e->layer_count == 1);
    APPEND(o, .layer_first = 0, .layer_count = 2, .last = true);
    arrives(e, o);
}

/* ---- Chunks and layers ------------------------------------------------------------------------------------------- */

/* A prefill in chunks, each of which is ready layer by layer, in an order of chance: the first that is heard of a chunk
 * may be any of its layers, or that it comes later. */
TEST_LOOP(chunks_become_ready_by_layers_in_any_order, WIRES)
{
    enum { CHUNKS = 8, LAYERS = 32, PAGES = 4 };
    uint32_t order[CHUNKS * LAYERS], count = 0;
    struct rng rng = rng_init((uint64_t)_i);
    struct pair pair = pair_open(_i, (struct geometry){.pages = CHUNKS * PAGES, .layers = LAYERS, .row_bytes = 64});
    struct flow *o = OFFER(pair.source, "k", .list_count = 0);
    struct flow *e = PULL(pair.sink, o, LISTS({.count = CHUNKS * PAGES}));
    for (uint32_t i = 0; i < CHUNKS * LAYERS; i++) { /* shuffled as it grows */
        const uint32_t at = rng_below(&rng, i + 1);
        order[i] = order[at];
        order[at] = i;
    }
    for (uint32_t chunk = 0; chunk < CHUNKS; chunk += 2)
        APPEND(o, LISTS({.first = chunk * PAGES, .count = PAGES, .first_id = chunk * PAGES}), .later = true);
    for (; count < CHUNKS * LAYERS; count++) {
        const uint32_t chunk = order[count] / LAYERS, first = chunk * PAGES;
        APPEND(o, LISTS({.first = first, .count = PAGES, .first_id = first}),
               .layer_first = (int32_t)(order[count] % LAYERS), .layer_count = 1, .last = count == CHUNKS * LAYERS - 1);
    }
    arrives(e, o);
    ck_assert_uint_eq(LAYERS, e->layer_count);
}

TEST_LOOP(a_layer_lands_when_all_chunks_have_it, WIRES)
{
    struct pair pair = pair_open(_i, (struct geometry){.pages = 8, .layers = 2});
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 4}), .later = true);
    struct flow *e = PULL(pair.sink, o, LISTS({.count = 8}));
    APPEND(o, LISTS({.first = 4, .first_id = 4, .count = 4}), .layer_first = 1, .layer_count = 1);
    APPEND(o, .layer_first = 1, .layer_count = 1); /* of those that were listed as `later` alone */
    WAIT(e->layers[1] == 1);
    ck_assert_uint_eq(0, e->layers[0]);
    APPEND(o, .layer_first = 0, .layer_count = 1);
    stays_undecided(e, 20);
    APPEND(o, LISTS({.first = 4, .first_id = 4, .count = 4}), .layer_first = 0, .layer_count = 1, .last = true);
    arrives(e, o);
}

TEST(an_append_says_later_of_new_pages_alone)
{
    struct pair pair = pair_open(0, (struct geometry){.pages = 8, .layers = 2});
    struct flow *o = OFFER(pair.source, "k", .list_count = 0);
    struct strait_page_list list = {.count = 4};
    struct strait_append_params params[] = {
        {.later = true},
        {.later = true, .lists = &list, .list_count = 1, .last = true},
        {.later = true, .lists = &list, .list_count = 1, .layer_count = 1},
    };
    for (size_t i = 0; i < COUNT(params); i++) {
        params[i].size = sizeof(params[i]);
        ck_assert_int_eq(STRAIT_ERR_INVALID, strait_append(o->transfer, &params[i]));
    }
}

/* An offer of four pages, of which two are for later, to which something is appended that contradicts what was said. */
static const struct {
    struct strait_append_params first, second;
    struct strait_page_list lists[2];
    const char *why;
} contradictions[] = {
    {{.layer_count = 1},
     {.layer_count = 2},
     {{.count = 2}, {.count = 2}},
     "a page from logical index 0 on, of group 0, is ready already"},
    {{.layer_count = 1},
     {.layer_count = 1, .layer_first = 1},
     {{.count = 2}, {.first = 1, .count = 2, .first_id = 1}},
     "logical index 2 of group 0 is new in a list of pages that are known"},
    {{.layer_count = 1},
     {.layer_count = 1, .layer_first = 1},
     {{.count = 2}, {.count = 2, .first_id = 1}},
     "logical index 0 of group 0 was page 0 before"},
    {{.later = true}, {.later = true}, {{.count = 2}, {.count = 2}}, "logical index 0 of group 0 is listed already"},
    {{.layer_count = 0},
     {.layer_count = 1},
     {{.count = 2}, {.count = 2}},
     "logical index 0 of group 0 is ready already"},
    {{.later = true},
     {.layer_count = 1, .last = true},
     {{.count = 2}, {.count = 2}},
     "the last append leaves layer 1 of logical index 0, group 0, not ready"},
};

TEST_LOOP(an_append_that_contradicts_what_was_said_fails_with_a_text, COUNT(contradictions))
{
    struct pair pair = pair_open(0, (struct geometry){.pages = 8, .layers = 2});
    struct flow *o = OFFER(pair.source, "k", .list_count = 0);
    struct flow *e = PULL(pair.sink, o, LISTS({.count = 4}));
    struct strait_append_params first = contradictions[_i].first, second = contradictions[_i].second;
    first.lists = &contradictions[_i].lists[0];
    second.lists = &contradictions[_i].lists[1];
    first.list_count = second.list_count = 1;
    flow_append(o, first);
    flow_append(o, second);
    ends_failed(o, STRAIT_REASON_GEOMETRY);
    ck_assert_str_eq(contradictions[_i].why, o->text);
    ends_failed(e, STRAIT_REASON_GEOMETRY);
}

/* ---- Small arenas ------------------------------------------------------------------------------------------------ */

enum { MANY = 64 };
static const uint64_t slot_sizes[] = {64u << 10, 1u << 20};

static struct pair open_small(int wire, uint64_t slot, struct geometry geometry)
{
    struct pair pair = pair_init(wire);
    for (int i = 0; i < 2; i++) {
        struct node_options *o = &nodes[i].options;
        o->chunk_bytes = o->arena_bytes = o->send_bytes = slot;
        o->grant_ms = 20;
    }
    pair_start(&pair, geometry);
    return pair;
}

TEST_LOOP(one_slot_serves_64_transfers_each_way, COUNT(slot_sizes) * WIRES)
{
    struct geometry shape = {.pages = 4 * MANY, .layers = 2, .row_bytes = 16384};
    struct pair pair = open_small(_i / COUNT(slot_sizes), slot_sizes[_i % COUNT(slot_sizes)], shape);
    struct test_pool *from[2] = {pair.source, pool_open(pair.to, shape)};
    struct test_pool *to[2] = {pair.sink, pool_open(pair.from, shape)};
    struct flow *o[2][MANY], *e[2][MANY];
    pool_fill(from[1], 2);
    for (uint32_t i = 0; i < MANY; i++)
        for (int way = 0; way < 2; way++) {
            o[way][i] = OFFER(from[way], name_of(i), LISTS({.count = 4, .first_id = 4 * i}), .last = true);
            e[way][i] = PULL(to[way], o[way][i], LISTS({.count = 4, .first_id = 4 * (MANY - 1 - i)}));
        }
    for (int way = 0; way < 2; way++) {
        for (int i = 0; i < MANY; i++) {
            ends_done(e[way][i]);
            ends_done(o[way][i]);
            landed(e[way][i], o[way][i]);
        }
        ck_assert(pool_as_imagined(to[way]) && pool_as_imagined(from[way]));
    }
    pair_quiet(&pair);
}

/* Requests that wait for their producer hold no slot: one that is ready is not kept waiting by them. */
TEST_LOOP(ready_requests_overtake_those_that_are_appended_to, WIRES)
{
    struct pair pair = open_small(_i, 64u << 10, (struct geometry){.pages = 4 * MANY, .row_bytes = 16384});
    struct flow *o[MANY], *e[MANY];
    for (uint32_t i = 0; i < MANY - 1; i++) {
        o[i] = OFFER(pair.source, name_of(i), LISTS({.count = 1, .first_id = 4 * i}));
        e[i] = PULL(pair.sink, o[i], LISTS({.count = 4, .first_id = 4 * i}));
    }
    struct flow *last_o = OFFER(pair.source, "ready", LISTS({.count = 4, .first_id = 4 * (MANY - 1)}), .last = true);
    struct flow *last_e = PULL(pair.sink, last_o, LISTS({.count = 4, .first_id = 4 * (MANY - 1)}));
    WAIT_MS(last_e->decided, 3000 * SLOW);
    ends_done(last_e);
    ends_done(last_o);
    for (uint32_t i = 0; i < MANY - 1; i++) {
        ck_assert(!e[i]->decided);
        APPEND(o[i], LISTS({.first = 1, .count = 3, .first_id = 4 * i + 1}), .last = true);
    }
    landed(last_e, last_o);
    for (uint32_t i = 0; i < MANY - 1; i++) {
        ends_done(e[i]);
        landed(e[i], o[i]);
    }
    ck_assert(pool_as_imagined(pair.sink));
}

/* A large request and small ones that come after it: slots go round. */
TEST_LOOP(a_large_request_does_not_keep_the_arena, WIRES)
{
    struct pair pair = open_small(_i, 64u << 10, (struct geometry){.pages = 4000, .row_bytes = 16384});
    struct flow *big_o = OFFER(pair.source, "big", LISTS({.count = 3900}), .last = true);
    struct flow *big_e = PULL(pair.sink, big_o, LISTS({.count = 3900}));
    WAIT(big_e->moved);
    struct flow *o = OFFER(pair.source, "small", LISTS({.count = 4, .first_id = 3950}), .last = true);
    struct flow *e = PULL(pair.sink, o, LISTS({.count = 4, .first_id = 3950}));
    ends_done(e);
    ends_done(big_e);
    ends_done(o);
    ends_done(big_o);
    if (pair.wire != SAME) /* there it may be over before the small one is asked for */
        ck_assert_uint_lt(e->decided_at, big_e->decided_at);
    landed(e, o);
    landed(big_e, big_o);
    ck_assert(pool_as_imagined(pair.sink));
}

TEST_LOOP(a_page_that_fits_no_slot_fails_with_its_reason, WIRES - 1)
{
    struct pair pair = open_small(1 + _i, 64u << 10, (struct geometry){.pages = 4, .row_bytes = 128 << 10});
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 4}), .last = true);
    struct flow *e = PULL(pair.sink, o, LISTS({.count = 4}));
    ends_failed(e, STRAIT_REASON_GEOMETRY);
    ends_failed(o, STRAIT_REASON_GEOMETRY);
    ck_assert(pool_as_imagined(pair.sink));
    ck_assert_uint_eq(4, e->failed_count);
}

int main(void)
{
    return node_main("node_match");
}
