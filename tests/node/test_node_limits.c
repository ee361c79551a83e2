/* What operators limit: how much clients may have, what it costs those who want more, and that others do not notice. */
#include "tests/node/harness.h"

START_TEST(too_many_transfers_fail_and_the_others_live)
{
    struct pair pair;
    pair_init(&pair, (enum wire)_i);
    nodes[0].options.transfers = nodes[1].options.transfers = 4;
    pair_start(&pair);
    struct test_pool *source = pool_open(pair.source, (struct geometry){0}),
                     *sink = pool_open(pair.sink, (struct geometry){0});
    struct flow *e[5], *o;
    pool_fill(source, 1);
    for (uint32_t i = 0; i < 5; i++) {
        char key[4] = {(char)('a' + i), '\0'};
        e[i] = flow_expect(sink, (struct strait_expect_params){KEY(key), LISTS({.count = 2, .first_id = 2 * i})});
    }
    ends_failed(e[4], STRAIT_REASON_NO_MEMORY);
    ck_assert_uint_ne(0, strlen(e[4]->text));
    o = flow_offer(source, (struct strait_offer_params){KEY("a"), LISTS({.count = 2}), .last = true});
    flow_start(e[0], source);
    arrives(e[0], o);
    e[4] = flow_expect(sink, (struct strait_expect_params){KEY("e"), LISTS({.count = 2, .first_id = 8})});
    o = flow_offer(source, (struct strait_offer_params){KEY("e"), LISTS({.count = 2}), .last = true});
    flow_start(e[4], source);
    arrives(e[4], o);
    for (int i = 1; i < 4; i++)
        ck_assert(!e[i]->decided);
}
END_TEST

START_TEST(a_client_too_many_waits_until_another_leaves)
{
    struct party *parties[3];
    test_node_init(&nodes[0], "a", "shm");
    nodes[0].options.clients = 2;
    test_node_start(&nodes[0]);
    for (int i = 0; i < 2; i++) {
        parties[i] = party_open(&nodes[0]);
        WAIT(parties[i]->connects == 1);
    }
    parties[2] = party_open(&nodes[0]);
    pump_for(200);
    ck_assert(!strait_client_connected(parties[2]->client));
    WAIT(stat_of(parties[0], "counters.clients_refused") >= 1);
    ck_assert(!strait_client_connected(parties[2]->client));
    party_close(parties[1]);
    WAIT(parties[2]->connects == 1);
    ck_assert_uint_eq(0, parties[0]->disconnects);
}
END_TEST

START_TEST(a_pool_over_the_quota_is_refused_and_fits_later)
{
    struct geometry large = {.pages = 256}, small = {.pages = 8};
    test_node_init(&nodes[0], "a", "shm");
    nodes[0].options.pool_bytes = 2u << 20;
    test_node_start(&nodes[0]);
    struct party *party = party_open(&nodes[0]);
    struct test_pool *first = pool_open(party, large), *second = pool_try(party, large);
    struct flow *e = flow_expect(second, (struct strait_expect_params){KEY("k"), LISTS({.count = 2})});
    ends_failed(e, STRAIT_REASON_LOCAL);
    ck_assert(second->told && second->status != STRAIT_OK);
    ck_assert_uint_ne(0, strlen(second->text));
    (void)pool_open(party, small);
    strait_pool_remove(first->pool);
    WAIT(first->removed);
    (void)pool_open(party, large);
}
END_TEST

START_TEST(requests_too_many_to_wait_fail_and_the_others_wait)
{
    enum { ROOM = 4 };
    struct pair pair;
    pair_init(&pair, (enum wire)(1 + _i));
    nodes[0].options.parked = ROOM;
    pair_start(&pair);
    struct test_pool *source = pool_open(pair.source, (struct geometry){0}),
                     *sink = pool_open(pair.sink, (struct geometry){0});
    struct flow *e[ROOM + 1];
    pool_fill(source, 1);
    for (uint32_t i = 0; i <= ROOM; i++) {
        char key[4] = {(char)('a' + i), '\0'};
        e[i] = flow_expect(sink, (struct strait_expect_params){KEY(key), LISTS({.count = 2, .first_id = 2 * i})});
        flow_start(e[i], source);
        if (i < ROOM)
            WAIT(stat_of(pair.source, "gauges.parked") == i + 1);
    }
    WAIT(e[ROOM]->decided);
    ck_assert_int_eq(STRAIT_FAILED, e[ROOM]->state);
    for (int i = 0; i < ROOM; i++)
        ck_assert(!e[i]->decided);
    struct flow *o = flow_offer(source, (struct strait_offer_params){KEY("a"), LISTS({.count = 2}), .last = true});
    arrives(e[0], o);
}
END_TEST

/* 256 spans for each that may wait: these need 1100. */
START_TEST(a_request_too_fragmented_to_wait_fails)
{
    enum { FITS = 1000, PIECES = 1100 };
    struct geometry many = {.pages = PIECES, .row_bytes = 64};
    struct pair pair;
    pair_init(&pair, (enum wire)(1 + _i));
    nodes[0].options.parked = 4;
    pair_start(&pair);
    struct test_pool *source = pool_open(pair.source, many), *sink = pool_open(pair.sink, many);
    static struct strait_page_list lists[PIECES];
    for (uint32_t i = 0; i < PIECES; i++)
        lists[i] = (struct strait_page_list){.first = 2 * i, .count = 1, .first_id = i};
    for (uint32_t count = FITS; count <= PIECES; count += PIECES - FITS) {
        struct strait_expect_params params = {KEY("k"), .lists = lists, .list_count = count};
        struct flow *e = flow_expect(sink, params);
        flow_start(e, source);
        WAIT(e->decided || stat_of(pair.source, "gauges.parked") == 1);
        ck_assert(e->decided == (count == PIECES));
        strait_abort(e->transfer);
        ends_failed(e, count == PIECES ? STRAIT_REASON_NO_MEMORY : STRAIT_REASON_ABORTED);
        WAIT(stat_of(pair.source, "gauges.parked") == 0);
    }
}
END_TEST

START_TEST(notes_do_not_end_who_does_not_read_them)
{
    enum { NOTES = 1200 }; /* of 64 KiB: more than the daemon keeps for one client */
    static char data[STRAIT_NOTE_BYTES_MAX];
    test_node_init(&nodes[0], "a", "shm");
    test_node_start(&nodes[0]);
    struct party *writer = party_open(&nodes[0]), *deaf = party_open(&nodes[0]);
    struct test_pool *pool = pool_open(deaf, (struct geometry){0});
    struct flow *e = flow_expect(pool, (struct strait_expect_params){KEY("k"), LISTS({.count = 4})});
    struct strait_peer *peer = peer_of(writer, pool);
    (void)stats_text(deaf);
    deaf->deaf = true;
    for (int i = 0; i < NOTES; i++) {
        while (strait_notify(peer, "k", 1, data, sizeof(data)) == STRAIT_ERR_AGAIN)
            pump(1);
        if (i % 16 == 0)
            pump(0);
    }
    ck_assert_double_eq(2, stat_of(writer, "gauges.clients"));
    deaf->deaf = false;
    (void)stats_text(deaf);
    ck_assert(!e->decided);
    ck_assert_uint_eq(1, deaf->connects);
}
END_TEST

START_TEST(a_client_that_reads_nothing_is_let_go)
{
    double clients = 2;
    test_node_init(&nodes[0], "a", "shm");
    test_node_start(&nodes[0]);
    struct party *other = party_open(&nodes[0]), *deaf = party_open(&nodes[0]);
    struct test_pool *pool = pool_open(deaf, (struct geometry){0});
    struct flow *e = flow_expect(pool, (struct strait_expect_params){KEY("k"), LISTS({.count = 4})});
    (void)stats_text(deaf);
    deaf->deaf = true;
    while (clients == 2) { /* until the answers are more than the daemon keeps for one client */
        for (int i = 0; i < 500; i++)
            (void)strait_stats(deaf->client);
        clients = stat_of(other, "gauges.clients");
    }
    ck_assert_double_eq(1, clients);
    ck_assert_double_eq(0, stat_of(other, "gauges.pools"));
    deaf->deaf = false;
    ends_failed(e, STRAIT_REASON_LOCAL);
    WAIT(deaf->connects == 2);
    ck_assert_uint_eq(0, other->disconnects);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("node_limits");
    TCase *tcase = node_case(suite, "limits");
    tcase_add_loop_test(tcase, too_many_transfers_fail_and_the_others_live, 0, WIRES);
    tcase_add_test(tcase, a_client_too_many_waits_until_another_leaves);
    tcase_add_test(tcase, a_pool_over_the_quota_is_refused_and_fits_later);
    tcase_add_loop_test(tcase, requests_too_many_to_wait_fail_and_the_others_wait, 0, WIRES - 1);
    tcase_add_loop_test(tcase, a_request_too_fragmented_to_wait_fails, 0, WIRES - 1);
    tcase_add_test(tcase, notes_do_not_end_who_does_not_read_them);
    tcase_add_test(tcase, a_client_that_reads_nothing_is_let_go);
    return node_main(suite);
}
