/* How pages are coded on the way, what a node tells about itself, and notifications. */
#include "tests/node/harness.h"

#include <cjson/cJSON.h>

static uint32_t turn;

static void move_all(struct test_pool *source, struct test_pool *sink)
{
    char key[16];
    snprintf(key, sizeof(key), "%u", ++turn);
    pool_fill(source, turn);
    struct flow *o = flow_offer(
        source, (struct strait_offer_params){KEY(key), LISTS({.count = source->geometry.pages}), .last = true});
    struct flow *e =
        flow_expect(sink, (struct strait_expect_params){KEY(key), LISTS({.count = source->geometry.pages})});
    flow_start(e, source);
    arrives(e, o);
}

static char *peer_text(struct party *party, const char *field)
{
    static char text[256];
    cJSON *root = cJSON_Parse(stats_text(party)), *peer;
    text[0] = '\0';
    cJSON_ArrayForEach(peer, cJSON_GetObjectItem(root, "peers"))
    {
        cJSON *item = cJSON_GetObjectItem(peer, field);
        if (cJSON_IsString(item))
            snprintf(text, sizeof(text), "%s", item->valuestring);
    }
    cJSON_Delete(root);
    return text;
}

#ifdef STRAIT_HAVE_UCX
START_TEST(equal_codebooks_shrink_what_travels)
{
    struct pair pair;
    pair_init(&pair, UCX);
    use_codebook(pair.a, "a", 0x7c);
    use_codebook(pair.b, "b", 0x7c);
    pair_start(&pair);
    struct geometry shape = {.pages = 32};
    struct test_pool *source = pool_open(pair.source, shape), *sink = pool_open(pair.sink, shape);
    ck_assert_uint_eq(0, strait_peer_check(sink->pool, peer_of(pair.sink, source)));
    move_all(source, sink); /* one chunk: nothing is measured before it, and a slow link is assumed */
    ck_assert_double_eq(1, stat_of(pair.source, "counters.chunks_sent_tiered"));
    WAIT(stat_of(pair.source, "counters.raw_bytes_sent") == 32 * 4096); /* it may count after its transfer is DONE */
    ck_assert_double_lt(stat_of(pair.source, "counters.wire_bytes_sent"), 32 * 4096 * 0.8);
    ck_assert_str_eq("ucx", peer_text(pair.source, "transport"));
    ck_assert_int_eq(0, strncmp("tiered: ", peer_text(pair.source, "coding"), 8));
}
END_TEST
#endif

START_TEST(different_codebooks_travel_raw_and_say_why)
{
    struct pair pair;
    pair_init(&pair, (enum wire)(SHM + _i));
    use_codebook(pair.a, "a", 0x7c);
    use_codebook(pair.b, "b", 0x70);
    pair_start(&pair);
    struct test_pool *source = pool_open(pair.source, (struct geometry){0}),
                     *sink = pool_open(pair.sink, (struct geometry){0});
    ck_assert_uint_eq(STRAIT_MISMATCH_CODEBOOK, strait_peer_check(sink->pool, peer_of(pair.sink, source)));
    move_all(source, sink);
    ck_assert_double_eq(0, stat_of(pair.source, "counters.chunks_sent_tiered"));
    ck_assert_double_gt(stat_of(pair.source, "counters.chunks_sent_raw"), 0);
    ck_assert_str_eq("raw: the peer has another codebook set", peer_text(pair.source, "coding"));
}
END_TEST

START_TEST(a_pinned_coding_is_used)
{
    static const struct {
        enum strait_coding coding;
        const char *counter;
    } codings[] = {{STRAIT_CODING_RAW, "counters.chunks_sent_raw"},
                   {STRAIT_CODING_TOP16, "counters.chunks_sent_top16"},
                   {STRAIT_CODING_TIERED, "counters.chunks_sent_tiered"}};
    struct pair pair;
    pair_init(&pair, (enum wire)(SHM + _i));
    use_codebook(pair.a, "a", 0x7c);
    use_codebook(pair.b, "b", 0x7c);
    pair_start(&pair);
    struct geometry shape = {.pages = 40, .layers = 3, .roles = 2};
    struct test_pool *source = pool_open(pair.source, shape), *sink = pool_open(pair.sink, shape);
    for (int i = 0; i < COUNT(codings); i++) {
        double all = stat_of(pair.source, "counters.chunks_landed");
        double before = stat_of(pair.source, codings[i].counter), others = 0;
        ck_assert_int_eq(STRAIT_OK, strait_set_policy(source->pool, codings[i].coding));
        move_all(source, sink);
        ck_assert_double_gt(stat_of(pair.source, codings[i].counter), before);
        for (int k = i + 1; k < COUNT(codings); k++)
            others += stat_of(pair.source, codings[k].counter);
        ck_assert_double_eq(0, others + all);
    }
    ck_assert_str_eq("tiered: pinned by the pool", peer_text(pair.source, "coding"));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_set_policy(source->pool, (enum strait_coding)9));
}
END_TEST

START_TEST(the_option_pins_the_coding_too)
{
    struct pair pair;
    pair_init(&pair, (enum wire)(SHM + _i));
    use_codebook(pair.a, "a", 0x7c);
    use_codebook(pair.b, "b", 0x7c);
    strcpy(pair.a->options.coding, "top16");
    pair_start(&pair);
    struct test_pool *source = pool_open(pair.source, (struct geometry){0}),
                     *sink = pool_open(pair.sink, (struct geometry){0});
    move_all(source, sink);
    ck_assert_double_gt(stat_of(pair.source, "counters.chunks_sent_top16"), 0);
    ck_assert_double_eq(0, stat_of(pair.source, "counters.chunks_sent_raw"));
}
END_TEST

/* ---- What a node tells ------------------------------------------------------------------------------------------- */

START_TEST(the_figures_are_what_clients_counted)
{
    struct pair pair;
    pair_open(&pair, (enum wire)_i);
    struct geometry shape = {.pages = 16, .layers = 2};
    struct test_pool *source = pool_open(pair.source, shape), *sink = pool_open(pair.sink, shape);
    for (int i = 0; i < 5; i++)
        move_all(source, sink);
    ends_failed(flow_expect(sink, (struct strait_expect_params){KEY("t"), LISTS({.count = 2}), .deadline_ms = 50}),
                STRAIT_REASON_TIMEOUT);
    ends_failed(flow_offer(source, (struct strait_offer_params){KEY("l"), LISTS({.count = 2}), .lease_ms = 50}),
                STRAIT_REASON_LEASE_EXPIRED);
    const struct {
        struct party *party;
        const char *path;
        double value;
    } figures[] = {
        {pair.source, "counters.offers", 6},
        {pair.source, "counters.source_done", 5},
        {pair.sink, "counters.expectations", 6},
        {pair.sink, "counters.sink_done", 5},
        {pair.sink, "sink_failed.timeout", 1},
        {pair.source, "source_failed.lease_expired", 1},
        {pair.sink, pair.wire == SAME ? "counters.local_bytes" : "counters.raw_bytes_landed", 5 * 2 * 16 * 4096},
        {pair.sink, "gauges.clients", pair.wire == SAME ? 2 : 1},
        {pair.source, "gauges.pools", pair.wire == SAME ? 2 : 1},
        {pair.source, "gauges.peers", pair.wire == SAME ? 0 : 1},
        {pair.sink, "counters.chunks_refused", 0},
        {pair.sink, "counters.client_errors", 0}};
    for (int i = 0; i < COUNT(figures); i++) {
        double value = stat_of(figures[i].party, figures[i].path);
        ck_assert_msg(value == figures[i].value, "%s is %g, not %g", figures[i].path, value, figures[i].value);
    }
    wait_quiet(pair.sink);
}
END_TEST

START_TEST(notifications_reach_the_owner_of_the_pool)
{
    struct pair pair;
    pair_open(&pair, (enum wire)_i);
    struct test_pool *a = pool_open(pair.source, (struct geometry){0}), *b = pool_open(pair.sink, (struct geometry){0});
    struct strait_peer *to_b = peer_of(pair.source, b), *to_a = peer_of(pair.sink, a);
    ck_assert_int_eq(STRAIT_OK, strait_notify(to_b, "first", 5, "contact", 7));
    WAIT(pair.sink->notes == 1);
    ck_assert_str_eq("first", pair.sink->note_key);
    ck_assert_str_eq("contact", pair.sink->note);
    char *large = calloc(1, STRAIT_NOTE_BYTES_MAX + 1);
    ck_assert_int_eq(STRAIT_OK, strait_notify(to_a, "k", 1, large, STRAIT_NOTE_BYTES_MAX));
    WAIT(pair.source->notes == 1);
    ck_assert_uint_eq(STRAIT_NOTE_BYTES_MAX, pair.source->note_size);
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_notify(to_a, "k", 1, large, STRAIT_NOTE_BYTES_MAX + 1));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_notify(to_a, "", 0, NULL, 0));
    for (int i = 0; i < 200; i++)
        ck_assert_int_eq(STRAIT_OK, strait_notify(to_b, "k", 1, NULL, 0));
    WAIT(pair.sink->notes == 201);
    free(large);
}
END_TEST

/* One that waits for a daemon that is away ends with the node. */
START_TEST(a_notification_for_nobody_does_not_keep_the_node)
{
    struct pair pair;
    pair_open(&pair, (enum wire)(SHM + _i));
    struct test_pool *b = pool_open(pair.sink, (struct geometry){0});
    struct strait_peer *to_b = peer_of(pair.source, b);
    test_node_stop(pair.b);
    ck_assert_int_eq(STRAIT_OK, strait_notify(to_b, "k", 1, "data", 4));
    (void)stats_text(pair.source); /* the node has it */
    uint64_t began = now_ms(), late = machine_late_ms();
    test_node_stop(pair.a);
    ck_assert_uint_le(now_ms() - began, 2000 * SLOW + machine_late_ms() - late);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("node_coding");
    TCase *tcase = node_case(suite, "coding");
#ifdef STRAIT_HAVE_UCX
    tcase_add_test(tcase, equal_codebooks_shrink_what_travels);
#endif
    tcase_add_loop_test(tcase, different_codebooks_travel_raw_and_say_why, 0, WIRES - 1);
    tcase_add_loop_test(tcase, a_pinned_coding_is_used, 0, WIRES - 1);
    tcase_add_loop_test(tcase, the_option_pins_the_coding_too, 0, WIRES - 1);
    tcase = node_case(suite, "told");
    tcase_add_loop_test(tcase, the_figures_are_what_clients_counted, 0, WIRES);
    tcase_add_loop_test(tcase, notifications_reach_the_owner_of_the_pool, 0, WIRES);
    tcase_add_loop_test(tcase, a_notification_for_nobody_does_not_keep_the_node, 0, WIRES - 1);
    return node_main(suite);
}
