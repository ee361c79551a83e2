/* What every transfer promises, whoever speaks first and however the pages lie. */
#include "tests/node/harness.h"

enum order { OFFER_FIRST, EXPECT_FIRST, ORDERS };
enum starter { PULL, PUSH, BOTH, STARTERS };

/* Begins one side; it starts at once, before the other side exists, when `early`. */
static void begin_and_start(struct flow *flow, struct test_pool *peer, bool starts, bool early)
{
    if (!starts)
        return;
    flow_start(flow, peer);
    if (early)
        pump_for(10); /* the daemons may park it */
}

static void one_way(struct test_pool *source, struct test_pool *sink, enum order order, enum starter starter,
                    bool early)
{
    char key[32];
    struct flow *o = NULL, *e = NULL;
    snprintf(key, sizeof(key), "%d.%d.%d", (int)order, (int)starter, early);
    for (int step = 0; step < 2; step++) {
        bool offer = (step == 0) == (order == OFFER_FIRST);
        if (offer)
            o = flow_offer(source,
                           (struct strait_offer_params){KEY(key), LISTS({.count = 8, .first_id = 3}), .last = true});
        else
            e = flow_expect(sink, (struct strait_expect_params){KEY(key), LISTS({.count = 8, .first_id = 5})});
        if (early && offer)
            begin_and_start(o, sink, starter != PULL, true);
        else if (early)
            begin_and_start(e, source, starter != PUSH, true);
    }
    if (!early) {
        begin_and_start(o, sink, starter != PULL, false);
        begin_and_start(e, source, starter != PUSH, false);
    }
    arrives(e, o);
    flow_release(o);
    flow_release(e);
}

START_TEST(either_side_or_both_may_begin_and_start)
{
    struct pair pair;
    pair_open(&pair, (enum wire)_i);
    struct test_pool *source = pool_open(pair.source, (struct geometry){.layers = 2});
    struct test_pool *sink = pool_open(pair.sink, (struct geometry){.layers = 2});
    int done = 0;
    for (int order = 0; order < ORDERS; order++)
        for (int starter = 0; starter < STARTERS; starter++)
            for (int early = 0; early < 2; early++, done++) {
                pool_fill(source, (uint64_t)done + 1);
                one_way(source, sink, (enum order)order, (enum starter)starter, early != 0);
            }
    /* Both started: it was one transfer. */
    ck_assert_double_eq(done, stat_of(pair.source, "counters.source_done"));
    ck_assert_double_eq(done, stat_of(pair.sink, "counters.sink_done"));
    ck_assert_double_eq(pair.wire == SAME ? done * 2 * 8 * 4096 : 0, stat_of(pair.sink, "counters.local_bytes"));
    ck_assert_double_eq(pair.wire == SAME ? 0 : done * 2 * 8 * 4096, stat_of(pair.sink, "counters.raw_bytes_landed"));
    wait_quiet(pair.source);
    wait_quiet(pair.sink);
}
END_TEST

START_TEST(an_expectation_of_nothing_releases_the_source)
{
    struct pair pair;
    pair_open(&pair, (enum wire)_i);
    struct test_pool *source = pool_open(pair.source, (struct geometry){0});
    struct test_pool *sink = pool_open(pair.sink, (struct geometry){0});
    pool_fill(source, 1);
    struct flow *o = flow_offer(source, (struct strait_offer_params){KEY("k"), LISTS({.count = 16}), .last = true,
                                                                     .aux = "first", .aux_size = 5});
    struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY("k")});
    flow_start(e, source);
    arrives(e, o);
    ck_assert_uint_eq(5, e->aux_size);
}
END_TEST

START_TEST(the_payload_comes_with_done_and_only_with_it)
{
    static const size_t sizes[] = {0, 1, 100, 65536, STRAIT_AUX_BYTES_MAX};
    struct pair pair;
    pair_open(&pair, (enum wire)_i);
    struct test_pool *source = pool_open(pair.source, (struct geometry){0});
    struct test_pool *sink = pool_open(pair.sink, (struct geometry){0});
    pool_fill(source, 1);
    uint8_t *aux = malloc(STRAIT_AUX_BYTES_MAX);
    struct rng rng = rng_init(7);
    rng_fill(&rng, aux, STRAIT_AUX_BYTES_MAX);
    for (int i = 0; i < COUNT(sizes); i++) {
        char key[2] = {(char)('a' + i), '\0'}; /* a name that has ended is remembered */
        struct flow *o = flow_offer(source, (struct strait_offer_params){KEY(key), LISTS({.count = 16}), .last = true,
                                                                         .aux = aux, .aux_size = sizes[i]});
        struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY(key), LISTS({.count = 16})});
        flow_start(e, source);
        arrives(e, o); /* events with data of any other kind fail in the harness */
        ck_assert_uint_eq(sizes[i], e->aux_size);
        ck_assert_mem_eq(aux, e->aux, e->aux_size);
        ck_assert_uint_eq(0, o->aux_size);
    }
    free(aux);
}
END_TEST

START_TEST(names_are_any_bytes_and_may_differ)
{
    struct pair pair;
    pair_open(&pair, (enum wire)_i);
    struct test_pool *source = pool_open(pair.source, (struct geometry){0});
    struct test_pool *sink = pool_open(pair.sink, (struct geometry){0});
    pool_fill(source, 1);
    static const size_t sizes[] = {1, 2, 127, 128};
    uint8_t key[STRAIT_KEY_BYTES_MAX];
    for (int i = 0; i < COUNT(sizes); i++) {
        memset(key, i == 0 ? 0 : 0xff, sizeof(key));
        key[sizes[i] - 1] = (uint8_t)i;
        struct flow *o = flow_offer(
            source, (struct strait_offer_params){.key = key, .key_size = sizes[i], LISTS({.count = 2}), .last = true});
        struct flow *e =
            flow_expect(sink, (struct strait_expect_params){.key = key, .key_size = sizes[i], LISTS({.count = 2})});
        flow_start(i % 2 != 0 ? e : o, i % 2 != 0 ? source : sink);
        arrives(e, o);
        flow_release(e);
        flow_release(o);
    }
    for (int push = 0; push < 2; push++) {
        struct flow *o =
            flow_offer(source, (struct strait_offer_params){KEY("there"), LISTS({.count = 2}), .last = true});
        struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY("here"), LISTS({.count = 2})});
        flow_start_as(push ? o : e, push ? sink : source, push ? "here" : "there");
        arrives(e, o);
    }
}
END_TEST

/* A key that is a prefix of another one, with zero bytes behind, names something else. */
START_TEST(a_name_with_a_zero_behind_is_another_name)
{
    struct pair pair;
    pair_open(&pair, (enum wire)_i);
    struct test_pool *source = pool_open(pair.source, (struct geometry){0});
    struct test_pool *sink = pool_open(pair.sink, (struct geometry){0});
    pool_fill(source, 1);
    struct flow *o[2], *e[2];
    for (size_t i = 0; i < 2; i++) {
        o[i] = flow_offer(source, (struct strait_offer_params){.key = "k\0",
                                                               .key_size = 1 + i,
                                                               LISTS({.count = 4, .first_id = 8 * (uint32_t)i}),
                                                               .last = true});
        e[i] =
            flow_expect(sink, (struct strait_expect_params){
                                  .key = "k\0", .key_size = 1 + i, LISTS({.count = 4, .first_id = 4 * (uint32_t)i})});
        flow_start(e[i], source);
    }
    for (int i = 0; i < 2; i++) {
        ends_done(e[i]);
        landed(e[i], o[i]);
    }
    arrives(e[0], o[0]);
    arrives(e[1], o[1]);
}
END_TEST

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
    struct flow *o =
        flow_offer(source, (struct strait_offer_params){KEY(key), .lists = from, .list_count = groups, .last = true});
    struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY(key), .lists = to, .list_count = groups});
    free(ids);
    flow_start(e, source);
    arrives(e, o);
    ck_assert(e->moved && o->moved);
    ck_assert_uint_eq(source->geometry.layers, e->layer_count); /* none twice: the harness sees to it */
    ck_assert_uint_eq(e->layer_count, strait_transfer_progress(e->transfer).layers_landed);
}

START_TEST(pages_of_any_shape_land_where_they_should)
{
    struct pair pair;
    pair_init(&pair, (enum wire)(_i / COUNT(shapes)));
    struct geometry shape = shapes[_i % COUNT(shapes)];
    nodes[0].options.chunk_bytes = nodes[1].options.chunk_bytes = 2u << 20; /* a page must fit */
    nodes[0].options.arena_bytes = nodes[1].options.arena_bytes = 8u << 20;
    pair_start(&pair);
    struct test_pool *source = pool_open(pair.source, shape);
    struct test_pool *sink = pool_open(pair.sink, shape);
    pool_fill(source, 3);
    whole_pool(source, sink, false);
    pool_fill(source, 4);
    whole_pool(source, sink, true);
    wait_quiet(pair.sink);
}
END_TEST

/* Lists of a request are disjoint but come in any order, with holes between them and between their ids. */
START_TEST(lists_may_have_holes_and_any_order)
{
    struct pair pair;
    pair_open(&pair, (enum wire)_i);
    struct geometry shape = {.pages = 64, .groups = 2, .layers = 3, .row_bytes = 1024};
    struct test_pool *source = pool_open(pair.source, shape);
    struct test_pool *sink = pool_open(pair.sink, shape);
    pool_fill(source, 1);
    static const uint32_t ids[] = {63, 0, 17, 2, 40};
    struct flow *o = flow_offer(
        source, (struct strait_offer_params){KEY("k"),
                                             LISTS({.group = 1, .first = 100, .count = 20, .first_id = 5},
                                                   {.first = 7, .count = 5, .ids = ids},
                                                   {.group = 1, .first = 4000000000, .count = 3, .first_id = 1},
                                                   {.first = 12, .count = 9, .first_id = 20}),
                                             .last = true});
    struct flow *e = flow_expect(sink, (struct strait_expect_params){
                                           KEY("k"), LISTS({.first = 9, .count = 4, .first_id = 50},
                                                           {.group = 1, .first = 4000000002, .count = 1, .first_id = 9},
                                                           {.group = 1, .first = 119, .count = 1, .first_id = 63},
                                                           {.first = 13, .count = 5, .ids = ids},
                                                           {.group = 1, .first = 101, .count = 10, .first_id = 10})});
    flow_start(e, source);
    arrives(e, o);
}
END_TEST

/* Many requests at once between the same pools, both ways. */
START_TEST(many_requests_run_at_once_both_ways)
{
    enum { MANY = 48 };
    struct pair pair;
    pair_open(&pair, (enum wire)_i);
    struct geometry shape = {.pages = MANY * 8, .layers = 2};
    struct test_pool *a = pool_open(pair.source, shape), *b = pool_open(pair.sink, shape);
    struct test_pool *a2 = pool_open(pair.source, shape), *b2 = pool_open(pair.sink, shape);
    pool_fill(a, 1);
    pool_fill(b2, 2);
    struct flow *o[2 * MANY], *e[2 * MANY];
    for (uint32_t i = 0; i < 2 * MANY; i++) {
        char key[16];
        snprintf(key, sizeof(key), "%u", i);
        uint32_t first = i / 2 * 8;
        struct test_pool *from = i % 2 != 0 ? b2 : a, *to = i % 2 != 0 ? a2 : b;
        o[i] = flow_offer(from,
                          (struct strait_offer_params){KEY(key), LISTS({.count = 8, .first_id = first}), .last = true});
        e[i] = flow_expect(
            to, (struct strait_expect_params){KEY(key), LISTS({.count = 8, .first_id = MANY * 8 - 8 - first})});
        flow_start(i % 3 == 0 ? o[i] : e[i], i % 3 == 0 ? to : from);
    }
    for (int i = 0; i < 2 * MANY; i++) {
        ends_done(e[i]);
        ends_done(o[i]);
        landed(e[i], o[i]);
    }
    ck_assert(pool_as_imagined(b) && pool_as_imagined(a2) && pool_as_imagined(a) && pool_as_imagined(b2));
    wait_quiet(pair.source);
    wait_quiet(pair.sink);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("node_basic");
    TCase *tcase = node_case(suite, "basic");
    tcase_add_loop_test(tcase, either_side_or_both_may_begin_and_start, 0, WIRES);
    tcase_add_loop_test(tcase, an_expectation_of_nothing_releases_the_source, 0, WIRES);
    tcase_add_loop_test(tcase, the_payload_comes_with_done_and_only_with_it, 0, WIRES);
    tcase_add_loop_test(tcase, names_are_any_bytes_and_may_differ, 0, WIRES);
    tcase_add_loop_test(tcase, a_name_with_a_zero_behind_is_another_name, 0, WIRES);
    tcase_add_loop_test(tcase, pages_of_any_shape_land_where_they_should, 0, WIRES * COUNT(shapes));
    tcase_add_loop_test(tcase, lists_may_have_holes_and_any_order, 0, WIRES);
    tcase_add_loop_test(tcase, many_requests_run_at_once_both_ways, 0, WIRES);
    return node_main(suite);
}
