/* What ends early while a GPU works: a device, a client, a daemon. */
#include "tests/node/far_harness.h"

#include <sys/eventfd.h>
#include <unistd.h>

struct scene {
    struct pair pair;
    struct test_pool *source, *sink;
    struct flow *offer, *expectation;
};

enum { PAGES = 256 };

/* A transfer that goes on for a while. */
static void scene_begin(struct scene *scene, enum wire wire, uint32_t source_gpu, uint32_t sink_gpu)
{
    pair_open(&scene->pair, wire);
    far_control()->delay_us = 50000; /* there is time for what the test does next */
    struct geometry shape = {.pages = PAGES, .layers = 8, .gpu = source_gpu};
    scene->source = pool_open(scene->pair.source, shape);
    shape.gpu = sink_gpu;
    scene->sink = pool_open(scene->pair.sink, shape);
    pool_fill(scene->source, 1);
    scene->offer =
        flow_offer(scene->source, (struct strait_offer_params){KEY("k"), LISTS({.count = PAGES}), .last = true});
    scene->expectation = flow_expect(scene->sink, (struct strait_expect_params){KEY("k"), LISTS({.count = PAGES})});
    flow_start(scene->expectation, scene->source);
}

static void scene_moves(struct scene *scene)
{
    WAIT(far_control()->batches >= 2);
    ck_assert(!scene->expectation->decided);
}

/* ---- Devices ----------------------------------------------------------------------------------------------------- */

static void device_is_told_as_failed(struct party *party, uint32_t gpu)
{
    struct test_pool *pool = pool_try(party, (struct geometry){.gpu = gpu});
    WAIT(pool->told);
    ck_assert_int_eq(STRAIT_ERR_DEVICE, pool->status);
    ck_assert_msg(strstr(pool->text, "it was told to") != NULL, "%s", pool->text);
    ck_assert_ptr_nonnull(strstr(stats_text(party), "it was told to"));
}

START_TEST(a_device_that_fails_fails_its_source)
{
    struct scene scene;
    scene_begin(&scene, (enum wire)(SHM + _i), 1, 2);
    scene_moves(&scene);
    far_control()->fail = 1;
    ends_failed(scene.offer, STRAIT_REASON_LOCAL);
    ends_failed(scene.expectation, STRAIT_REASON_PEER_DOWN);
    ck_assert_msg(strstr(scene.offer->text, "it was told to") != NULL, "%s", scene.offer->text);
    device_is_told_as_failed(scene.pair.source, 1);
    undefined(scene.expectation);
    ck_assert(pool_as_imagined(scene.sink));
    wait_quiet(scene.pair.source);
    wait_quiet(scene.pair.sink);
}
END_TEST

START_TEST(a_device_that_fails_fails_its_sink)
{
    struct scene scene;
    scene_begin(&scene, (enum wire)(SHM + _i), 1, 2);
    scene_moves(&scene);
    far_control()->fail = 2;
    ends_failed(scene.expectation, STRAIT_REASON_LOCAL);
    ends_failed(scene.offer, STRAIT_REASON_PEER_DOWN);
    ck_assert_msg(strstr(scene.expectation->text, "it was told to") != NULL, "%s", scene.expectation->text);
    device_is_told_as_failed(scene.pair.sink, 2);
    undefined(scene.expectation);
    ck_assert(pool_as_imagined(scene.sink));
    (void)pool_open(scene.pair.source, (struct geometry){.gpu = 2}); /* the other daemon's go on */
    wait_quiet(scene.pair.source);
    wait_quiet(scene.pair.sink);
}
END_TEST

START_TEST(an_arena_that_cannot_be_pinned_fails_what_goes_there)
{
    struct pair pair;
    pair_init(&pair, SHM);
    strcpy(pair.b->options.gpu_wires, "pinned");
    pair_start(&pair);
    struct geometry shape = {.pages = 16, .gpu = 1};
    struct test_pool *source = pool_open(pair.source, shape), *sink = pool_open(pair.sink, shape);
    far_control()->refuse_pin = 1;
    struct flow *o = flow_offer(source, (struct strait_offer_params){KEY("k"), LISTS({.count = 16}), .last = true});
    struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY("k"), LISTS({.count = 16})});
    flow_start(e, source);
    ends_failed(o, STRAIT_REASON_LOCAL);
    ends_failed(e, STRAIT_REASON_PEER_DOWN);
    ck_assert(pool_as_imagined(sink));
    wait_quiet(pair.source);
    wait_quiet(pair.sink);
}
END_TEST

static struct flow *offer_as(struct test_pool *pool, const char *key)
{
    return flow_offer(pool,
                      (struct strait_offer_params){KEY(key), LISTS({.count = pool->geometry.pages}), .last = true});
}

static struct flow *expect_as(struct test_pool *pool, const char *key, uint32_t deadline_ms)
{
    return flow_expect(pool, (struct strait_expect_params){KEY(key), LISTS({.count = pool->geometry.pages}),
                                                           .deadline_ms = deadline_ms});
}

static void fails_with_the_reason(struct flow *flow)
{
    ends_failed(flow, STRAIT_REASON_LOCAL);
    ck_assert_msg(strstr(flow->text, "it was told to") != NULL, "%s", flow->text);
}

/* Both devices of the scene, which may be under one daemon. */
static void break_devices(struct scene *scene)
{
    far_control()->fail = 3;
    WAIT(scene->offer->decided && scene->offer->drained && scene->expectation->decided && scene->expectation->drained);
    ck_assert_int_eq(STRAIT_FAILED, scene->expectation->state);
    undefined(scene->expectation);
    ck_assert(pool_as_imagined(scene->sink));
}

START_TEST(hosts_go_on_without_their_devices)
{
    struct scene scene;
    scene_begin(&scene, (enum wire)_i, 1, 2);
    break_devices(&scene);
    struct geometry shape = {.pages = 64, .layers = 4};
    struct test_pool *source = pool_open(scene.pair.source, shape), *sink = pool_open(scene.pair.sink, shape);
    pool_fill(source, 2);
    struct flow *o = offer_as(source, "host"), *e = expect_as(sink, "host", 0);
    flow_start(e, source);
    arrives(e, o);
    wait_quiet(scene.pair.source);
    wait_quiet(scene.pair.sink);
}
END_TEST

/* Pools that were there before fail what uses them, at once and with the reason; nothing is left over. */
START_TEST(a_failed_device_fails_what_comes_later)
{
    struct scene scene;
    scene_begin(&scene, (enum wire)_i, 1, 2);
    break_devices(&scene);
    double before = stat_of(scene.pair.source, "source_failed.local");
    for (int i = 0; i < 3; i++) {
        char key[8];
        snprintf(key, sizeof(key), "%d", i);
        struct flow *o = offer_as(scene.source, key), *e = expect_as(scene.sink, key, 5000);
        flow_start(e, scene.source);
        fails_with_the_reason(o);
        WAIT(e->decided && e->drained);
        ck_assert_int_eq(STRAIT_FAILED, e->state);
    }
    ck_assert_double_eq(before + 3, stat_of(scene.pair.source, "source_failed.local"));
    wait_quiet(scene.pair.source);
    wait_quiet(scene.pair.sink);
}
END_TEST

START_TEST(a_failed_device_fails_what_waits_for_its_events)
{
    struct scene scene;
    scene_begin(&scene, (enum wire)_i, 1, 2);
    struct fake_handle event = {.pid = getpid(), .fd = eventfd(0, EFD_CLOEXEC)};
    struct geometry shape = {.pages = 16, .gpu = 1};
    struct test_pool *pool = pool_open(scene.pair.source, shape);
    struct flow *o = flow_offer(pool, (struct strait_offer_params){KEY("later"), LISTS({.count = 16}), .later = true});
    flow_append(o, (struct strait_append_params){.ready = &event, .last = true});
    break_devices(&scene);
    fails_with_the_reason(o);
    wait_quiet(scene.pair.source);
    close(event.fd);
}
END_TEST

START_TEST(a_node_whose_device_fails_while_it_stops_ends)
{
    struct scene scene;
    scene_begin(&scene, SHM, 1, 2);
    scene_moves(&scene);
    struct test_node *node = _i == 0 ? scene.pair.a : scene.pair.b;
    uint64_t began = now_ms(), late = machine_late_ms();
    test_node_ask_stop(node, true);
    far_control()->fail = _i == 0 ? 1 : 2;
    test_node_join(node);
    ck_assert_uint_lt(now_ms() - began, node->options.drain_ms / 2 + machine_late_ms() - late);
    WAIT(scene.offer->decided && scene.expectation->decided);
    ck_assert_int_eq(STRAIT_FAILED, scene.expectation->state);
}
END_TEST

enum { STALL_MS = SLOW == 1 ? 1500 : 6000, DEADLINE_MS = SLOW == 1 ? 800 : 1600, LATE_MS = 200 * SLOW };

/* A device that does not come back for a while: the verdict comes in time, pages are free when it has come back. */
START_TEST(what_a_stalled_device_holds_up_fails_alone)
{
    struct pair pair;
    pair_open(&pair, SHM);
    struct geometry shape = {.pages = 64, .layers = 2, .gpu = 1};
    struct test_pool *source = pool_open(pair.source, shape), *host_source, *host_sink;
    shape.gpu = 2;
    struct test_pool *sink = pool_open(pair.sink, shape);
    shape.gpu = 0;
    host_source = pool_open(pair.source, shape);
    host_sink = pool_open(pair.sink, shape);
    pool_fill(source, 1);
    pool_fill(host_source, 2);
    far_control()->stall_us[_i] = STALL_MS * 1000;
    struct flow *o = offer_as(source, "k"), *e = expect_as(sink, "k", DEADLINE_MS);
    uint64_t began = uv_hrtime(), late = machine_late_ms();
    flow_start(e, source);
    WAIT(e->moved && far_control()->stall_us[_i] == 0);
    struct flow *other = offer_as(host_source, "host"), *others = expect_as(host_sink, "host", 0);
    flow_start(others, host_source);
    arrives(others, other);
    ck_assert_uint_lt((others->decided_at - began) / 1000000, DEADLINE_MS + machine_late_ms() - late);
    ends_failed(e, STRAIT_REASON_TIMEOUT);
    WAIT(o->decided && o->drained);
    ck_assert_uint_lt((e->decided_at - began) / 1000000, DEADLINE_MS + LATE_MS + machine_late_ms() - late);
    ck_assert_uint_ge(((_i == 0 ? o : e)->drained_at - began) / 1000000, STALL_MS);
    undefined(e);
    ck_assert(pool_as_imagined(sink));
    o = offer_as(source, "again");
    e = expect_as(sink, "again", 0);
    flow_start(e, source);
    arrives(e, o);
}
END_TEST

/* ---- Clients ----------------------------------------------------------------------------------------------------- */

/* The fake plugin ends the program when it is to touch memory that is not mapped any more. */
START_TEST(a_source_that_dies_is_unmapped_when_its_device_is_done)
{
    struct scene scene;
    scene_begin(&scene, (enum wire)(SHM + _i), 1, 2);
    scene_moves(&scene);
    party_close(scene.pair.source);
    WAIT(scene.expectation->decided && scene.expectation->drained);
    ck_assert_int_eq(STRAIT_FAILED, scene.expectation->state);
    WAIT(far_control()->mapped == 1);
    undefined(scene.expectation);
    ck_assert(pool_as_imagined(scene.sink));
    wait_quiet(scene.pair.sink);
}
END_TEST

START_TEST(a_sink_that_dies_is_unmapped_when_its_device_is_done)
{
    struct scene scene;
    scene_begin(&scene, (enum wire)(SHM + _i), 1, 2);
    scene_moves(&scene);
    party_close(scene.pair.sink);
    WAIT(scene.offer->decided);
    ck_assert_int_eq(STRAIT_FAILED, scene.offer->state);
    WAIT(far_control()->mapped == 1);
    wait_quiet(scene.pair.source);
}
END_TEST

START_TEST(an_aborted_request_is_drained_when_its_device_is_done)
{
    struct scene scene;
    scene_begin(&scene, (enum wire)(SHM + _i), 1, 2);
    scene_moves(&scene);
    strait_abort(scene.expectation->transfer);
    ends_failed(scene.expectation, STRAIT_REASON_ABORTED);
    ends_failed(scene.offer, STRAIT_REASON_PEER_ABORT);
    undefined(scene.expectation);
    ck_assert(pool_as_imagined(scene.sink));
}
END_TEST

/* ---- Daemons ----------------------------------------------------------------------------------------------------- */

START_TEST(a_peer_that_stops_is_let_go_of_when_the_device_is_done)
{
    struct scene scene;
    scene_begin(&scene, SHM, 1, 2);
    scene_moves(&scene);
    test_node_stop(_i == 0 ? scene.pair.b : scene.pair.a);
    WAIT(scene.offer->decided && scene.expectation->decided);
    WAIT(far_control()->pinned == 2 && far_control()->mapped == 1);
    wait_quiet(_i == 0 ? scene.pair.source : scene.pair.sink);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("node_device_end");
    TCase *tcase = node_case(suite, "ends");
    tcase_add_loop_test(tcase, a_device_that_fails_fails_its_source, 0, WIRES - SHM);
    tcase_add_loop_test(tcase, a_device_that_fails_fails_its_sink, 0, WIRES - SHM);
    tcase_add_loop_test(tcase, hosts_go_on_without_their_devices, 0, WIRES);
    tcase_add_loop_test(tcase, a_failed_device_fails_what_comes_later, 0, WIRES);
    tcase_add_loop_test(tcase, a_failed_device_fails_what_waits_for_its_events, 0, WIRES);
    tcase_add_loop_test(tcase, a_node_whose_device_fails_while_it_stops_ends, 0, 2);
    tcase_add_loop_test(tcase, what_a_stalled_device_holds_up_fails_alone, 0, 2);
    tcase_add_test(tcase, an_arena_that_cannot_be_pinned_fails_what_goes_there);
    tcase_add_loop_test(tcase, a_source_that_dies_is_unmapped_when_its_device_is_done, 0, WIRES - SHM);
    tcase_add_loop_test(tcase, a_sink_that_dies_is_unmapped_when_its_device_is_done, 0, WIRES - SHM);
    tcase_add_loop_test(tcase, an_aborted_request_is_drained_when_its_device_is_done, 0, WIRES - SHM);
    tcase_add_loop_test(tcase, a_peer_that_stops_is_let_go_of_when_the_device_is_done, 0, 2);
    return node_main(suite);
}
