/* Pages that become ready while others travel, and arenas of a few slots. */
#include "tests/node/harness.h"

static void open_pools(struct pair *pair, int wire, struct geometry shape, struct test_pool **source,
                       struct test_pool **sink)
{
    pair_open(pair, (enum wire)wire);
    *source = pool_open(pair->source, shape);
    *sink = pool_open(pair->sink, shape);
    pool_fill(*source, 1);
}

TEST_LOOP(pages_are_appended_by_chunks, WIRES)
{
    struct pair pair;
    struct test_pool *source, *sink;
    open_pools(&pair, _i, (struct geometry){.pages = 100, .layers = 2}, &source, &sink);
    struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY("k"), LISTS({.count = 100})});
    struct flow *o = flow_offer(source, (struct strait_offer_params){KEY("k")});
    flow_start(o, sink);
    for (uint32_t i = 0; i < 10; i++) {
        flow_append(o, (struct strait_append_params){LISTS({.first = 10 * i, .count = 10, .first_id = 90 - 10 * i})});
        if (i % 3 != 0)
            pump_for(5);
        ck_assert(!e->decided && !o->decided);
        ck_assert_uint_eq(0, e->layer_count);
    }
    pump_for(30);
    ck_assert(!e->decided);
    flow_append(o, (struct strait_append_params){.last = true, .aux = "late", .aux_size = 4}); /* without pages */
    arrives(e, o);
    ck_assert_uint_eq(4, e->aux_size);
    ck_assert_mem_eq("late", e->aux, 4);
    ck_assert_uint_eq(2, e->layer_count);
    struct strait_append_params more = {.size = sizeof(more), .last = true};
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_append(o->transfer, &more));
}

TEST_LOOP(layers_are_ready_one_after_another, WIRES)
{
    struct pair pair;
    struct test_pool *source, *sink;
    enum { LAYERS = 8 };
    open_pools(&pair, _i, (struct geometry){.pages = 20, .layers = LAYERS, .roles = 2}, &source, &sink);
    struct flow *o = flow_offer(source, (struct strait_offer_params){KEY("k"), LISTS({.count = 20}), .later = true});
    struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY("k"), LISTS({.count = 20})});
    flow_start(e, source);
    for (int layer = 0; layer < LAYERS; layer++) {
        ck_assert_uint_eq((uint32_t)layer, e->layer_count);
        flow_append(o,
                    (struct strait_append_params){.layer_first = layer, .layer_count = 1, .last = layer == LAYERS - 1});
        WAIT(e->layers[layer] == 1); /* each one lands before the next is computed */
    }
    arrives(e, o);
}

TEST_LOOP(layers_may_come_in_ranges_and_in_any_order, WIRES)
{
    struct pair pair;
    struct test_pool *source, *sink;
    open_pools(&pair, _i, (struct geometry){.pages = 20, .layers = 8, .groups = 2}, &source, &sink);
    struct flow *o = flow_offer(
        source, (struct strait_offer_params){KEY("k"), LISTS({.count = 20}, {.group = 1, .count = 3}), .later = true});
    struct flow *e =
        flow_expect(sink, (struct strait_expect_params){KEY("k"), LISTS({.count = 20}, {.group = 1, .count = 3})});
    flow_start(e, source);
    flow_append(o, (struct strait_append_params){.layer_first = 5, .layer_count = 3});
    WAIT(e->layer_count == 3);
    ck_assert(e->layers[5] && e->layers[6] && e->layers[7]);
    flow_append(o, (struct strait_append_params){.layer_first = 0, .layer_count = 4});
    WAIT(e->layer_count == 7);
    flow_append(o, (struct strait_append_params){.layer_first = 4, .layer_count = 1});
    WAIT(e->layer_count == 8);
    ck_assert(!e->decided);
    flow_append(o, (struct strait_append_params){.last = true, .layer_first = 8, .layer_count = 1000}); /* of none */
    arrives(e, o);
}

TEST_LOOP(last_alone_completes_the_layers_that_are_left, WIRES)
{
    struct pair pair;
    struct test_pool *source, *sink;
    open_pools(&pair, _i, (struct geometry){.pages = 20, .layers = 8}, &source, &sink);
    struct flow *o = flow_offer(source, (struct strait_offer_params){KEY("k"), LISTS({.count = 20}), .later = true});
    struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY("k"), LISTS({.count = 20})});
    flow_start(e, source);
    flow_append(o, (struct strait_append_params){.layer_first = 0, .layer_count = 6});
    flow_append(o, (struct strait_append_params){.layer_first = 2, .layer_count = 1}); /* again: left alone */
    WAIT(e->layer_count == 6);
    flow_append(o, (struct strait_append_params){.last = true});
    arrives(e, o);
}

TEST_LOOP(a_layer_made_ready_twice_moves_once, WIRES)
{
    struct pair pair;
    struct test_pool *source, *sink;
    open_pools(&pair, _i, (struct geometry){.pages = 20, .layers = 2}, &source, &sink);
    struct flow *o = flow_offer(source, (struct strait_offer_params){KEY("k"), LISTS({.count = 20}), .later = true});
    struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY("k"), LISTS({.count = 20})});
    flow_start(e, source);
    flow_append(o, (struct strait_append_params){.layer_first = 0, .layer_count = 1});
    WAIT(e->layer_count == 1);
    flow_append(o, (struct strait_append_params){.layer_first = 0, .layer_count = 2, .last = true});
    arrives(e, o);
}

/* ---- Small arenas ------------------------------------------------------------------------------------------------ */

enum { MANY = 64 };
static const uint64_t slot_sizes[] = {64u << 10, 1u << 20};

static void open_small(struct pair *pair, int wire, uint64_t slot)
{
    pair_init(pair, (enum wire)wire);
    for (int i = 0; i < 2; i++)
        nodes[i].options.chunk_bytes = nodes[i].options.arena_bytes = nodes[i].options.send_bytes = slot;
    nodes[0].options.grant_ms = nodes[1].options.grant_ms = 20;
    pair_start(pair);
}

TEST_LOOP(one_slot_serves_64_transfers_each_way, WIRES *COUNT(slot_sizes))
{
    struct pair pair;
    open_small(&pair, _i / COUNT(slot_sizes), slot_sizes[_i % COUNT(slot_sizes)]);
    struct geometry shape = {.pages = 4 * MANY, .layers = 2, .row_bytes = 16384};
    struct test_pool *from[2] = {pool_open(pair.source, shape), pool_open(pair.sink, shape)};
    struct test_pool *to[2] = {pool_open(pair.sink, shape), pool_open(pair.source, shape)};
    struct flow *o[2][MANY], *e[2][MANY];
    pool_fill(from[0], 1);
    pool_fill(from[1], 2);
    for (uint32_t i = 0; i < MANY; i++)
        for (int way = 0; way < 2; way++) {
            char key[16];
            snprintf(key, sizeof(key), "%u", i);
            o[way][i] = flow_offer(from[way], (struct strait_offer_params){
                                                  KEY(key), LISTS({.count = 4, .first_id = 4 * i}), .last = true});
            e[way][i] = flow_expect(
                to[way], (struct strait_expect_params){KEY(key), LISTS({.count = 4, .first_id = 4 * (MANY - 1 - i)})});
            flow_start(e[way][i], from[way]);
        }
    for (int way = 0; way < 2; way++) {
        for (int i = 0; i < MANY; i++) {
            ends_done(e[way][i]);
            ends_done(o[way][i]);
            landed(e[way][i], o[way][i]);
        }
        ck_assert(pool_as_imagined(to[way]) && pool_as_imagined(from[way]));
    }
    wait_quiet(pair.source);
    wait_quiet(pair.sink);
}

/* Requests that wait for their producer hold no slot: one that is ready is not kept waiting by them. */
TEST_LOOP(ready_requests_overtake_those_that_are_appended_to, WIRES)
{
    struct pair pair;
    open_small(&pair, _i, 64u << 10);
    struct geometry shape = {.pages = 4 * MANY, .row_bytes = 16384};
    struct test_pool *source = pool_open(pair.source, shape), *sink = pool_open(pair.sink, shape);
    struct flow *o[MANY], *e[MANY];
    pool_fill(source, 1);
    for (uint32_t i = 0; i < MANY - 1; i++) {
        char key[16];
        snprintf(key, sizeof(key), "%u", i);
        o[i] = flow_offer(source, (struct strait_offer_params){KEY(key), LISTS({.count = 1, .first_id = 4 * i})});
        e[i] = flow_expect(sink, (struct strait_expect_params){KEY(key), LISTS({.count = 4, .first_id = 4 * i})});
        flow_start(e[i], source);
    }
    struct flow *last_o =
        flow_offer(source, (struct strait_offer_params){KEY("ready"), LISTS({.count = 4, .first_id = 4 * (MANY - 1)}),
                                                        .last = true});
    struct flow *last_e =
        flow_expect(sink, (struct strait_expect_params){KEY("ready"), LISTS({.count = 4, .first_id = 4 * (MANY - 1)})});
    flow_start(last_e, source);
    WAIT_MS(last_e->decided, 3000 * SLOW);
    ends_done(last_e);
    ends_done(last_o);
    for (uint32_t i = 0; i < MANY - 1; i++) {
        ck_assert(!e[i]->decided);
        flow_append(
            o[i], (struct strait_append_params){LISTS({.first = 1, .count = 3, .first_id = 4 * i + 1}), .last = true});
    }
    landed(last_e, last_o);
    for (uint32_t i = 0; i < MANY - 1; i++) {
        ends_done(e[i]);
        landed(e[i], o[i]);
    }
    ck_assert(pool_as_imagined(sink));
}

/* A large request and small ones that come after it: slots go round. */
TEST_LOOP(a_large_request_does_not_keep_the_arena, WIRES)
{
    struct pair pair;
    open_small(&pair, _i, 64u << 10);
    struct geometry shape = {.pages = 4000, .row_bytes = 16384};
    struct test_pool *source = pool_open(pair.source, shape), *sink = pool_open(pair.sink, shape);
    pool_fill(source, 1);
    struct flow *big_o =
        flow_offer(source, (struct strait_offer_params){KEY("big"), LISTS({.count = 3900}), .last = true});
    struct flow *big_e = flow_expect(sink, (struct strait_expect_params){KEY("big"), LISTS({.count = 3900})});
    flow_start(big_e, source);
    WAIT(big_e->moved);
    struct flow *o = flow_offer(
        source, (struct strait_offer_params){KEY("small"), LISTS({.count = 4, .first_id = 3950}), .last = true});
    struct flow *e =
        flow_expect(sink, (struct strait_expect_params){KEY("small"), LISTS({.count = 4, .first_id = 3950})});
    flow_start(e, source);
    ends_done(e);
    ends_done(big_e);
    ends_done(o);
    ends_done(big_o);
    if (pair.wire != SAME) /* there it may be over before the small one is asked for */
        ck_assert_uint_lt(e->decided_at, big_e->decided_at);
    landed(e, o);
    landed(big_e, big_o);
    ck_assert(pool_as_imagined(sink));
}

TEST_LOOP(a_page_that_fits_no_slot_fails_with_its_reason, WIRES - 1)
{
    struct pair pair;
    open_small(&pair, 1 + _i, 64u << 10);
    struct geometry shape = {.pages = 4, .row_bytes = 128 << 10};
    struct test_pool *source = pool_open(pair.source, shape), *sink = pool_open(pair.sink, shape);
    pool_fill(source, 1);
    struct flow *o = flow_offer(source, (struct strait_offer_params){KEY("k"), LISTS({.count = 4}), .last = true});
    struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY("k"), LISTS({.count = 4})});
    flow_start(e, source);
    ends_failed(e, STRAIT_REASON_GEOMETRY);
    ends_failed(o, STRAIT_REASON_GEOMETRY);
    ck_assert(pool_as_imagined(sink));
    ck_assert_uint_eq(4, e->failed_count);
}

int main(void)
{
    return node_main("node_stream");
}
