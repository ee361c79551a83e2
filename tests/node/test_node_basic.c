/* Requests between two parties over every transport, their codings, and the limits of a node. */
#include <cjson/cJSON.h>

#include "tests/node/harness.h"

TEST_CASE(node_basic);

enum order { OFFER_FIRST, EXPECT_FIRST, ORDERS };
enum starter { PULL, PUSH, BOTH, STARTERS };

/* A side starts at once, before the other side exists, when `early`. */
static void one_way(struct pair *pair, enum order order, enum starter starter, bool early)
{
    char key[32];
    struct flow *o = NULL, *e = NULL;
    snprintf(key, sizeof(key), "%d.%d.%d", (int)order, (int)starter, early);
    for (int step = 0; step < 4; step++) {
        bool source = (step % 2 == 0) == (order == OFFER_FIRST);
        if (step < 2 && source)
            o = OFFER(pair->source, key, LISTS({.count = 8, .first_id = 3}), .last = true);
        else if (step < 2)
            e = EXPECT(pair->sink, key, LISTS({.count = 8, .first_id = 5}));
        if (early != (step < 2) || starter == (source ? PULL : PUSH))
            continue;
        flow_start(source ? o : e, source ? pair->sink : pair->source);
        if (early)
            pump_for(10); /* the daemons may park it */
    }
    arrives(e, o);
    flow_release(o);
    flow_release(e);
}

TEST_LOOP(either_side_or_both_may_begin_and_start, WIRES)
{
    struct pair pair = pair_open(_i, (struct geometry){.layers = 2});
    int done = 0;
    for (int order = 0; order < ORDERS; order++)
        for (int starter = 0; starter < STARTERS; starter++)
            for (int early = 0; early < 2; early++, done++) {
                pool_fill(pair.source, (uint64_t)done + 1);
                one_way(&pair, (enum order)order, (enum starter)starter, early != 0);
            }
    /* Both started: it was one transfer. */
    ck_assert_double_eq(done, stat_of(pair.from, "counters.source_done"));
    ck_assert_double_eq(done, stat_of(pair.to, "counters.sink_done"));
    ck_assert_double_eq(pair.wire == SAME ? done * 2 * 8 * 4096 : 0, stat_of(pair.to, "counters.local_bytes"));
    ck_assert_double_eq(pair.wire == SAME ? 0 : done * 2 * 8 * 4096, stat_of(pair.to, "counters.raw_bytes_landed"));
    pair_quiet(&pair);
}

TEST_LOOP(an_expectation_of_nothing_releases_the_source, WIRES)
{
    struct pair pair = pair_open(_i, (struct geometry){0});
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 16}), .last = true, .aux = "first", .aux_size = 5);
    struct flow *e = PULL(pair.sink, o, .list_count = 0);
    arrives(e, o);
    ck_assert_uint_eq(5, e->aux_size);
}

TEST_LOOP(the_payload_comes_with_done_and_only_with_it, WIRES)
{
    static const size_t sizes[] = {0, 1, 100, 65536, STRAIT_AUX_BYTES_MAX};
    struct pair pair = pair_open(_i, (struct geometry){0});
    uint8_t *aux = malloc(STRAIT_AUX_BYTES_MAX);
    struct rng rng = rng_init(7);
    rng_fill(&rng, aux, STRAIT_AUX_BYTES_MAX);
    for (int i = 0; i < COUNT(sizes); i++) {
        const char *name = name_of((uint32_t)i); /* a name that has ended is remembered */
        struct flow *o = OFFER(pair.source, name, LISTS({.count = 16}), .last = true, .aux = aux, .aux_size = sizes[i]);
        struct flow *e = EXPECT(pair.sink, name, LISTS({.count = 16}));
        pull(e, o); /* events with data of any other kind fail in the harness */
        ck_assert_uint_eq(sizes[i], e->aux_size);
        ck_assert_mem_eq(aux, e->aux, e->aux_size);
        ck_assert_uint_eq(0, o->aux_size);
    }
    free(aux);
}

TEST_LOOP(names_are_any_bytes_and_may_differ, WIRES)
{
    struct pair pair = pair_open(_i, (struct geometry){0});
    static const size_t sizes[] = {1, 2, 127, 128};
    uint8_t key[STRAIT_KEY_BYTES_MAX];
    for (int i = 0; i < COUNT(sizes); i++) {
        memset(key, i == 0 ? 0 : 0xff, sizeof(key));
        key[sizes[i] - 1] = (uint8_t)i;
        struct strait_expect_params expect = {.key = key, .key_size = sizes[i], LISTS({.count = 2})};
        struct strait_offer_params offer = {.key = key, .key_size = sizes[i], LISTS({.count = 2}), .last = true};
        struct flow *o = flow_offer(pair.source, offer), *e = flow_expect(pair.sink, expect);
        flow_start(i % 2 != 0 ? e : o, i % 2 != 0 ? pair.source : pair.sink);
        arrives(e, o);
        flow_release(e);
        flow_release(o);
    }
    for (int push = 0; push < 2; push++) {
        struct flow *o = OFFER(pair.source, "there", LISTS({.count = 2}), .last = true);
        struct flow *e = EXPECT(pair.sink, "here", LISTS({.count = 2}));
        flow_start_as(push ? o : e, push ? pair.sink : pair.source, push ? "here" : "there");
        arrives(e, o);
    }
}

/* A key that is a prefix of another one, with zero bytes behind, names something else. */
TEST_LOOP(a_name_with_a_zero_behind_is_another_name, WIRES)
{
    struct pair pair = pair_open(_i, (struct geometry){0});
    struct flow *o[2], *e[2];
    for (uint32_t i = 0; i < 2; i++) {
        struct strait_offer_params offer = {
            .key = "k\0", .key_size = 1 + i, LISTS({.count = 4, .first_id = 8 * i}), .last = true};
        struct strait_expect_params expect = {.key = "k\0", .key_size = 1 + i, LISTS({.count = 4, .first_id = 4 * i})};
        o[i] = flow_offer(pair.source, offer);
        e[i] = flow_expect(pair.sink, expect);
        flow_start(e[i], pair.source);
    }
    for (int i = 0; i < 2; i++) {
        ends_done(e[i]);
        landed(e[i], o[i]);
    }
    arrives(e[0], o[0]);
    arrives(e[1], o[1]);
}

static const struct geometry shapes[] = {
    {.pages = 1},
    {.pages = 4, .row_bytes = 1 << 20, .layers = 2},
    {.pages = 3, .row_bytes = 65536, .layers = 3, .roles = 2},
    {.pages = 33, .rows = 16, .row_bytes = 256, .layers = 4, .roles = 2},
    {.pages = 8192, .row_bytes = 512},
    {.pages = 40, .layers = 64, .roles = 2, .row_bytes = 1024},
    {.pages = 5, .rows = 3, .row_bytes = 4098},
    {.pages = 9, .row_bytes = 30, .layers = 5},
    {.pages = 24, .groups = 3, .layers = 2, .row_bytes = 2048},
    {.pages = 7, .row_bytes = 4100, .element = STRAIT_ELEMENT_FP32},
    {.pages = 7, .row_bytes = 4099, .element = STRAIT_ELEMENT_FP8_E4M3},
    {.pages = 6, .layers = 20, .roles = 2, .apart = true},
};

static void shuffle(uint32_t *ids, uint32_t count, uint64_t seed)
{
    struct rng rng = rng_init(seed);
    for (uint32_t i = 0; i < count; i++)
        ids[i] = i;
    for (uint32_t i = count; i > 1; i--) {
        uint32_t k = rng_below(&rng, i), swapped = ids[i - 1];
        ids[i - 1] = ids[k];
        ids[k] = swapped;
    }
}

/* Every page of every group, scattered on one side or both. */
static void whole_pool(struct test_pool *source, struct test_pool *sink, bool scattered)
{
    uint32_t pages = source->geometry.pages, groups = source->geometry.groups;
    uint32_t *ids = malloc(2 * pages * sizeof(*ids));
    struct strait_page_list to[8], from[8];
    shuffle(ids, pages, 1);
    shuffle(ids + pages, pages, 2);
    for (uint32_t g = 0; g < groups; g++) {
        from[g] = (struct strait_page_list){.group = g, .first = 1000 * g, .count = pages, .ids = ids};
        to[groups - 1 - g] = (struct strait_page_list){
            .group = g, .first = 1000 * g, .count = pages, .ids = scattered ? ids + pages : NULL};
    }
    const char *key = scattered ? "scattered" : "in order";
    struct flow *o = OFFER(source, key, .lists = from, .list_count = groups, .last = true);
    struct flow *e = EXPECT(sink, key, .lists = to, .list_count = groups);
    free(ids);
    pull(e, o);
    ck_assert(e->moved && o->moved);
    ck_assert_uint_eq(source->geometry.layers, e->layer_count); /* none twice: the harness sees to it */
    ck_assert_uint_eq(e->layer_count, strait_transfer_progress(e->transfer).layers_landed);
}

TEST_LOOP(pages_of_any_shape_land_where_they_should, COUNT(shapes) * WIRES)
{
    struct pair pair = pair_init(_i / COUNT(shapes));
    struct geometry shape = shapes[_i % COUNT(shapes)];
    nodes[0].options.chunk_bytes = nodes[1].options.chunk_bytes = 2u << 20; /* a page must fit */
    nodes[0].options.arena_bytes = nodes[1].options.arena_bytes = 8u << 20;
    pair_start(&pair, shape);
    pool_fill(pair.source, 3);
    whole_pool(pair.source, pair.sink, false);
    pool_fill(pair.source, 4);
    whole_pool(pair.source, pair.sink, true);
    wait_quiet(pair.to);
}

/* Lists of a request are disjoint but come in any order, with holes between them and between their ids. */
TEST_LOOP(lists_may_have_holes_and_any_order, WIRES)
{
    struct pair pair = pair_open(_i, (struct geometry){.pages = 64, .groups = 2, .layers = 3, .row_bytes = 1024});
    static const uint32_t ids[] = {63, 0, 17, 2, 40};
    struct flow *o = OFFER(
        pair.source, "k",
        LISTS({.group = 1, .first = 100, .count = 20, .first_id = 5}, {.first = 7, .count = 5, .ids = ids},
              {.group = 1, .first = 4000000000, .count = 3, .first_id = 1}, {.first = 12, .count = 9, .first_id = 20}),
        .last = true);
    struct flow *e = EXPECT(
        pair.sink, "k",
        LISTS({.first = 9, .count = 4, .first_id = 50}, {.group = 1, .first = 4000000002, .count = 1, .first_id = 9},
              {.group = 1, .first = 119, .count = 1, .first_id = 63}, {.first = 13, .count = 5, .ids = ids},
              {.group = 1, .first = 101, .count = 10, .first_id = 10}));
    pull(e, o);
}

/* Many requests at once between the same pools, both ways. */
TEST_LOOP(many_requests_run_at_once_both_ways, WIRES)
{
    enum { MANY = 48 };
    struct geometry shape = {.pages = MANY * 8, .layers = 2};
    struct pair pair = pair_open(_i, shape);
    struct test_pool *a = pair.source, *b = pair.sink;
    struct test_pool *a2 = pool_open(pair.from, shape), *b2 = pool_open(pair.to, shape);
    pool_fill(b2, 2);
    struct flow *o[2 * MANY], *e[2 * MANY];
    for (uint32_t i = 0; i < 2 * MANY; i++) {
        uint32_t first = i / 2 * 8;
        struct test_pool *from = i % 2 != 0 ? b2 : a, *to = i % 2 != 0 ? a2 : b;
        o[i] = OFFER(from, name_of(i), LISTS({.count = 8, .first_id = first}), .last = true);
        e[i] = EXPECT(to, name_of(i), LISTS({.count = 8, .first_id = MANY * 8 - 8 - first}));
        flow_start(i % 3 == 0 ? o[i] : e[i], i % 3 == 0 ? to : from);
    }
    for (int i = 0; i < 2 * MANY; i++) {
        ends_done(e[i]);
        ends_done(o[i]);
        landed(e[i], o[i]);
    }
    ck_assert(pool_as_imagined(b) && pool_as_imagined(a2) && pool_as_imagined(a) && pool_as_imagined(b2));
    pair_quiet(&pair);
}

TEST_CASE(node_coding);

/* How pages are coded on the way, what a node tells about itself, and notifications. */

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
TEST(equal_codebooks_shrink_what_travels)
{
    struct pair pair = pair_coded(UCX, "auto");
    pair_start(&pair, (struct geometry){.pages = 32});
    ck_assert_uint_eq(0, strait_peer_check(pair.sink->pool, peer_of(pair.to, pair.source)));
    move_all(pair.source, pair.sink); /* one chunk: nothing is measured before it, and a slow link is assumed */
    ck_assert_double_eq(1, stat_of(pair.from, "counters.chunks_sent_tiered"));
    WAIT(stat_of(pair.from, "counters.raw_bytes_sent") == 32 * 4096); /* it may count after its transfer is DONE */
    ck_assert_double_lt(stat_of(pair.from, "counters.wire_bytes_sent"), 32 * 4096 * 0.8);
    ck_assert_str_eq("ucx", peer_text(pair.from, "transport"));
    ck_assert_int_eq(0, strncmp("tiered: ", peer_text(pair.from, "coding"), 8));
}
#endif

TEST_LOOP(different_codebooks_travel_raw_and_say_why, WIRES - 1)
{
    struct pair pair = pair_init(SHM + _i);
    use_codebook(pair.a, "a", 0x7c);
    use_codebook(pair.b, "b", 0x70);
    pair_start(&pair, (struct geometry){0});
    ck_assert_uint_eq(STRAIT_MISMATCH_CODEBOOK, strait_peer_check(pair.sink->pool, peer_of(pair.to, pair.source)));
    move_all(pair.source, pair.sink);
    ck_assert_double_eq(0, stat_of(pair.from, "counters.chunks_sent_tiered"));
    ck_assert_double_gt(stat_of(pair.from, "counters.chunks_sent_raw"), 0);
    ck_assert_str_eq("raw: the peer has another codebook set", peer_text(pair.from, "coding"));
}

TEST_LOOP(a_pinned_coding_is_used, WIRES - 1)
{
    static const struct {
        enum strait_coding coding;
        const char *counter;
    } pinned[] = {{STRAIT_CODING_RAW, "counters.chunks_sent_raw"},
                  {STRAIT_CODING_TOP16, "counters.chunks_sent_top16"},
                  {STRAIT_CODING_TIERED, "counters.chunks_sent_tiered"}};
    struct pair pair = pair_coded(SHM + _i, "auto");
    pair_start(&pair, (struct geometry){.pages = 40, .layers = 3, .roles = 2});
    for (int i = 0; i < COUNT(pinned); i++) {
        double all = stat_of(pair.from, "counters.chunks_landed");
        double before = stat_of(pair.from, pinned[i].counter), others = 0;
        ck_assert_int_eq(STRAIT_OK, strait_set_policy(pair.source->pool, pinned[i].coding));
        move_all(pair.source, pair.sink);
        ck_assert_double_gt(stat_of(pair.from, pinned[i].counter), before);
        for (int k = i + 1; k < COUNT(pinned); k++)
            others += stat_of(pair.from, pinned[k].counter);
        ck_assert_double_eq(0, others + all);
    }
    ck_assert_str_eq("tiered: pinned by the pool", peer_text(pair.from, "coding"));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_set_policy(pair.source->pool, (enum strait_coding)9));
}

TEST_LOOP(the_option_pins_the_coding_too, WIRES - 1)
{
    struct pair pair = pair_coded(SHM + _i, "top16");
    pair_start(&pair, (struct geometry){0});
    move_all(pair.source, pair.sink);
    ck_assert_double_gt(stat_of(pair.from, "counters.chunks_sent_top16"), 0);
    ck_assert_double_eq(0, stat_of(pair.from, "counters.chunks_sent_raw"));
}

/* ---- What a node tells ------------------------------------------------------------------------------------------- */

TEST_LOOP(the_figures_are_what_clients_counted, WIRES)
{
    struct pair pair = pair_open(_i, (struct geometry){.pages = 16, .layers = 2});
    for (int i = 0; i < 5; i++)
        move_all(pair.source, pair.sink);
    ends_failed(EXPECT(pair.sink, "t", LISTS({.count = 2}), .deadline_ms = 50), STRAIT_REASON_TIMEOUT);
    ends_failed(OFFER(pair.source, "l", LISTS({.count = 2}), .lease_ms = 50), STRAIT_REASON_LEASE_EXPIRED);
    const struct {
        struct party *party;
        const char *path;
        double value;
    } figures[] = {
        {pair.from, "counters.offers", 6},
        {pair.from, "counters.source_done", 5},
        {pair.to, "counters.expectations", 6},
        {pair.to, "counters.sink_done", 5},
        {pair.to, "sink_failed.timeout", 1},
        {pair.from, "source_failed.lease_expired", 1},
        {pair.to, pair.wire == SAME ? "counters.local_bytes" : "counters.raw_bytes_landed", 5 * 2 * 16 * 4096},
        {pair.to, "gauges.clients", pair.wire == SAME ? 2 : 1},
        {pair.from, "gauges.pools", pair.wire == SAME ? 2 : 1},
        {pair.from, "gauges.peers", pair.wire == SAME ? 0 : 1},
        {pair.to, "counters.chunks_refused", 0},
        {pair.to, "counters.client_errors", 0}};
    for (int i = 0; i < COUNT(figures); i++) {
        double value = stat_of(figures[i].party, figures[i].path);
        ck_assert_msg(value == figures[i].value, "%s is %g, not %g", figures[i].path, value, figures[i].value);
    }
    wait_quiet(pair.to);
}

TEST_LOOP(notifications_reach_the_owner_of_the_pool, WIRES)
{
    struct pair pair = pair_open(_i, (struct geometry){0});
    struct strait_peer *to_b = peer_of(pair.from, pair.sink), *to_a = peer_of(pair.to, pair.source);
    ck_assert_int_eq(STRAIT_OK, strait_notify(to_b, "first", 5, "contact", 7));
    WAIT(pair.to->notes == 1);
    ck_assert_str_eq("first", pair.to->note_key);
    ck_assert_str_eq("contact", pair.to->note);
    char *large = calloc(1, STRAIT_NOTE_BYTES_MAX + 1);
    ck_assert_int_eq(STRAIT_OK, strait_notify(to_a, "k", 1, large, STRAIT_NOTE_BYTES_MAX));
    WAIT(pair.from->notes == 1);
    ck_assert_uint_eq(STRAIT_NOTE_BYTES_MAX, pair.from->note_size);
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_notify(to_a, "k", 1, large, STRAIT_NOTE_BYTES_MAX + 1));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_notify(to_a, "", 0, NULL, 0));
    for (int i = 0; i < 200; i++)
        ck_assert_int_eq(STRAIT_OK, strait_notify(to_b, "k", 1, NULL, 0));
    WAIT(pair.to->notes == 201);
    free(large);
}

/* One that waits for a daemon that is away ends with the node. */
TEST_LOOP(a_notification_for_nobody_does_not_keep_the_node, WIRES - 1)
{
    struct pair pair = pair_open(SHM + _i, (struct geometry){0});
    struct strait_peer *to_b = peer_of(pair.from, pair.sink);
    test_node_stop(pair.b);
    ck_assert_int_eq(STRAIT_OK, strait_notify(to_b, "k", 1, "data", 4));
    (void)stats_text(pair.from); /* the node has it */
    uint64_t began = wait_clock();
    test_node_stop(pair.a);
    ck_assert_uint_le(ms_since(began), 2000 * SLOW);
}

TEST_CASE(node_limits);

/* What operators limit: how much clients may have, what it costs those who want more, and that others do not notice. */

TEST_LOOP(too_many_transfers_fail_and_the_others_live, WIRES)
{
    struct pair pair = pair_init(_i);
    nodes[0].options.transfers = nodes[1].options.transfers = 4;
    pair_start(&pair, (struct geometry){0});
    struct flow *e[5];
    for (uint32_t i = 0; i < 5; i++)
        e[i] = EXPECT(pair.sink, name_of(i), LISTS({.count = 2, .first_id = 2 * i}));
    ends_failed(e[4], STRAIT_REASON_NO_MEMORY);
    ck_assert_uint_ne(0, strlen(e[4]->text));
    pull(e[0], OFFER(pair.source, "0", LISTS({.count = 2}), .last = true));
    e[4] = EXPECT(pair.sink, "4", LISTS({.count = 2, .first_id = 8}));
    pull(e[4], OFFER(pair.source, "4", LISTS({.count = 2}), .last = true));
    for (int i = 1; i < 4; i++)
        ck_assert(!e[i]->decided);
}

TEST(a_client_too_many_waits_until_another_leaves)
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

TEST(a_pool_over_the_quota_is_refused_and_fits_later)
{
    struct geometry large = {.pages = 256}, small = {.pages = 8};
    test_node_init(&nodes[0], "a", "shm");
    nodes[0].options.pool_bytes = 2u << 20;
    test_node_start(&nodes[0]);
    struct party *party = party_open(&nodes[0]);
    struct test_pool *first = pool_open(party, large), *second = pool_try(party, large);
    struct flow *e = EXPECT(second, "k", LISTS({.count = 2}));
    ends_failed(e, STRAIT_REASON_LOCAL);
    ck_assert(second->told && second->status != STRAIT_OK);
    ck_assert_uint_ne(0, strlen(second->text));
    (void)pool_open(party, small);
    strait_pool_remove(first->pool);
    WAIT(first->removed);
    (void)pool_open(party, large);
}

TEST_LOOP(requests_too_many_to_wait_fail_and_the_others_wait, WIRES - 1)
{
    enum { ROOM = 4 };
    struct pair pair = pair_init(1 + _i);
    nodes[0].options.parked = ROOM;
    pair_start(&pair, (struct geometry){0});
    struct flow *e[ROOM + 1];
    for (uint32_t i = 0; i <= ROOM; i++) {
        e[i] = EXPECT(pair.sink, name_of(i), LISTS({.count = 2, .first_id = 2 * i}));
        flow_start(e[i], pair.source);
        if (i < ROOM)
            WAIT(stat_of(pair.from, "gauges.parked") == i + 1);
    }
    WAIT(e[ROOM]->decided);
    ck_assert_int_eq(STRAIT_FAILED, e[ROOM]->state);
    for (int i = 0; i < ROOM; i++)
        ck_assert(!e[i]->decided);
    arrives(e[0], OFFER(pair.source, "0", LISTS({.count = 2}), .last = true));
}

/* 256 spans for each that may wait: these need 1100. */
TEST_LOOP(a_request_too_fragmented_to_wait_fails, WIRES - 1)
{
    enum { FITS = 1000, PIECES = 1100 };
    struct pair pair = pair_init(1 + _i);
    nodes[0].options.parked = 4;
    pair_start(&pair, (struct geometry){.pages = PIECES, .row_bytes = 64});
    static struct strait_page_list lists[PIECES];
    for (uint32_t i = 0; i < PIECES; i++)
        lists[i] = (struct strait_page_list){.first = 2 * i, .count = 1, .first_id = i};
    for (uint32_t count = FITS; count <= PIECES; count += PIECES - FITS) {
        struct flow *e = EXPECT(pair.sink, "k", .lists = lists, .list_count = count);
        flow_start(e, pair.source);
        WAIT(e->decided || stat_of(pair.from, "gauges.parked") == 1);
        ck_assert(e->decided == (count == PIECES));
        strait_abort(e->transfer);
        ends_failed(e, count == PIECES ? STRAIT_REASON_NO_MEMORY : STRAIT_REASON_ABORTED);
        WAIT(stat_of(pair.from, "gauges.parked") == 0);
    }
}

TEST(notes_do_not_end_who_does_not_read_them)
{
    enum { NOTES = 1200 }; /* of 64 KiB: more than the daemon keeps for one client */
    static char data[STRAIT_NOTE_BYTES_MAX];
    struct pair pair = pair_open(SAME, (struct geometry){0});
    struct party *writer = pair.from, *deaf = pair.to;
    struct flow *e = EXPECT(pair.sink, "k", LISTS({.count = 4}));
    struct strait_peer *peer = peer_of(writer, pair.sink);
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

TEST(a_client_that_reads_nothing_is_let_go)
{
    double clients = 2;
    struct pair pair = pair_open(SAME, (struct geometry){0});
    struct party *other = pair.from, *deaf = pair.to;
    struct flow *e = EXPECT(pair.sink, "k", LISTS({.count = 4}));
    (void)stats_text(deaf);
    deaf->deaf = true;
    while (clients == 2) { /* until the answers are more than the daemon keeps for one client */
        for (int i = 0; i < 500; i++)
            (void)strait_stats(deaf->client);
        clients = stat_of(other, "gauges.clients");
    }
    ck_assert_double_eq(1, clients);
    ck_assert_double_eq(1, stat_of(other, "gauges.pools"));
    deaf->deaf = false;
    ends_failed(e, STRAIT_REASON_LOCAL);
    WAIT(deaf->connects == 2);
    ck_assert_uint_eq(0, other->disconnects);
}

int main(void)
{
    return node_main("node_basic");
}
