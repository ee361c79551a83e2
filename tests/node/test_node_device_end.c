/* Early ends while a GPU works: a device that fails, for good or for a while, a client or a daemon that goes. */
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/node/far_harness.h"

struct moving {
    struct pair pair;
    struct test_pool *source, *sink;
    struct flow *offer, *expectation;
};

enum { MOVING_PAGES = 256 };

/* A transfer that goes on for a while. */
static void moving_begin(struct moving *moving, enum wire wire, uint32_t source_gpu, uint32_t sink_gpu)
{
    pair_open(&moving->pair, wire);
    far_control()->delay_us = 50000; /* there is time for what the test does next */
    struct geometry shape = {.pages = MOVING_PAGES, .layers = 8, .gpu = source_gpu};
    moving->source = pool_open(moving->pair.source, shape);
    shape.gpu = sink_gpu;
    moving->sink = pool_open(moving->pair.sink, shape);
    pool_fill(moving->source, 1);
    moving->offer = flow_offer(moving->source,
                               (struct strait_offer_params){KEY("k"), LISTS({.count = MOVING_PAGES}), .last = true});
    moving->expectation =
        flow_expect(moving->sink, (struct strait_expect_params){KEY("k"), LISTS({.count = MOVING_PAGES})});
    flow_start(moving->expectation, moving->source);
}

static void scene_moves(struct moving *moving)
{
    WAIT(far_control()->batches >= 2);
    ck_assert(!moving->expectation->decided);
}

TEST_CASE(node_device_end);

/* ---- Devices ----------------------------------------------------------------------------------------------------- */

static void device_is_told_as_failed(struct party *party, uint32_t gpu)
{
    struct test_pool *pool = pool_try(party, (struct geometry){.gpu = gpu});
    WAIT(pool->told);
    ck_assert_int_eq(STRAIT_ERR_DEVICE, pool->status);
    ck_assert_msg(strstr(pool->text, "it was told to") != NULL, "%s", pool->text);
    ck_assert_ptr_nonnull(strstr(stats_text(party), "it was told to"));
}

TEST_LOOP(a_device_that_fails_fails_its_source, WIRES - SHM)
{
    struct moving moving;
    moving_begin(&moving, (enum wire)(SHM + _i), 1, 2);
    scene_moves(&moving);
    far_control()->fail = 1;
    ends_failed(moving.offer, STRAIT_REASON_LOCAL);
    ends_failed(moving.expectation, STRAIT_REASON_PEER_DOWN);
    ck_assert_msg(strstr(moving.offer->text, "it was told to") != NULL, "%s", moving.offer->text);
    device_is_told_as_failed(moving.pair.source, 1);
    undefined(moving.expectation);
    ck_assert(pool_as_imagined(moving.sink));
    wait_quiet(moving.pair.source);
    wait_quiet(moving.pair.sink);
}

TEST_LOOP(a_device_that_fails_fails_its_sink, WIRES - SHM)
{
    struct moving moving;
    moving_begin(&moving, (enum wire)(SHM + _i), 1, 2);
    scene_moves(&moving);
    far_control()->fail = 2;
    ends_failed(moving.expectation, STRAIT_REASON_LOCAL);
    ends_failed(moving.offer, STRAIT_REASON_PEER_DOWN);
    ck_assert_msg(strstr(moving.expectation->text, "it was told to") != NULL, "%s", moving.expectation->text);
    device_is_told_as_failed(moving.pair.sink, 2);
    undefined(moving.expectation);
    ck_assert(pool_as_imagined(moving.sink));
    (void)pool_open(moving.pair.source, (struct geometry){.gpu = 2}); /* the other daemon's go on */
    wait_quiet(moving.pair.source);
    wait_quiet(moving.pair.sink);
}

TEST(an_arena_that_cannot_be_pinned_fails_what_goes_there)
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

static struct flow *offer_all_as(struct test_pool *pool, const char *key)
{
    return flow_offer(pool,
                      (struct strait_offer_params){KEY(key), LISTS({.count = pool->geometry.pages}), .last = true});
}

static struct flow *expect_all_as(struct test_pool *pool, const char *key, uint32_t deadline_ms)
{
    return flow_expect(pool, (struct strait_expect_params){KEY(key), LISTS({.count = pool->geometry.pages}),
                                                           .deadline_ms = deadline_ms});
}

static void fails_with_the_reason(struct flow *flow)
{
    ends_failed(flow, STRAIT_REASON_LOCAL);
    ck_assert_msg(strstr(flow->text, "it was told to") != NULL, "%s", flow->text);
}

/* Both devices of the moving, which may be under one daemon. */
static void break_devices(struct moving *moving)
{
    far_control()->fail = 3;
    WAIT(moving->offer->decided && moving->offer->drained && moving->expectation->decided &&
         moving->expectation->drained);
    ck_assert_int_eq(STRAIT_FAILED, moving->expectation->state);
    undefined(moving->expectation);
    ck_assert(pool_as_imagined(moving->sink));
}

TEST_LOOP(hosts_go_on_without_their_devices, WIRES)
{
    struct moving moving;
    moving_begin(&moving, (enum wire)_i, 1, 2);
    break_devices(&moving);
    struct geometry shape = {.pages = 64, .layers = 4};
    struct test_pool *source = pool_open(moving.pair.source, shape), *sink = pool_open(moving.pair.sink, shape);
    pool_fill(source, 2);
    struct flow *o = offer_all_as(source, "host"), *e = expect_all_as(sink, "host", 0);
    flow_start(e, source);
    arrives(e, o);
    wait_quiet(moving.pair.source);
    wait_quiet(moving.pair.sink);
}

/* Pools that were there before fail what uses them, at once and with the reason; nothing is left over. */
TEST_LOOP(a_failed_device_fails_what_comes_later, WIRES)
{
    struct moving moving;
    moving_begin(&moving, (enum wire)_i, 1, 2);
    break_devices(&moving);
    double before = stat_of(moving.pair.source, "source_failed.local");
    for (int i = 0; i < 3; i++) {
        char key[8];
        snprintf(key, sizeof(key), "%d", i);
        struct flow *o = offer_all_as(moving.source, key), *e = expect_all_as(moving.sink, key, 5000);
        flow_start(e, moving.source);
        fails_with_the_reason(o);
        WAIT(e->decided && e->drained);
        ck_assert_int_eq(STRAIT_FAILED, e->state);
    }
    ck_assert_double_eq(before + 3, stat_of(moving.pair.source, "source_failed.local"));
    wait_quiet(moving.pair.source);
    wait_quiet(moving.pair.sink);
}

TEST_LOOP(a_failed_device_fails_what_waits_for_its_events, WIRES)
{
    struct moving moving;
    moving_begin(&moving, (enum wire)_i, 1, 2);
    struct fake_handle event = {.pid = getpid(), .fd = eventfd(0, EFD_CLOEXEC)};
    struct geometry shape = {.pages = 16, .gpu = 1};
    struct test_pool *pool = pool_open(moving.pair.source, shape);
    struct flow *o = flow_offer(pool, (struct strait_offer_params){KEY("later"), LISTS({.count = 16}), .later = true});
    flow_append(o, (struct strait_append_params){.ready = &event, .last = true});
    break_devices(&moving);
    fails_with_the_reason(o);
    wait_quiet(moving.pair.source);
    close(event.fd);
}

TEST_LOOP(a_node_whose_device_fails_while_it_stops_ends, 2)
{
    struct moving moving;
    moving_begin(&moving, SHM, 1, 2);
    scene_moves(&moving);
    struct test_node *node = _i == 0 ? moving.pair.a : moving.pair.b;
    uint64_t began = now_ms(), late = machine_late_ms();
    test_node_ask_stop(node, true);
    far_control()->fail = _i == 0 ? 1 : 2;
    test_node_join(node);
    ck_assert_uint_lt(now_ms() - began, node->options.drain_ms / 2 + machine_late_ms() - late);
    WAIT(moving.offer->decided && moving.expectation->decided);
    ck_assert_int_eq(STRAIT_FAILED, moving.expectation->state);
}

enum { STALL_MS = SLOW == 1 ? 1500 : 6000, DEADLINE_MS = SLOW == 1 ? 800 : 1600, LATE_MS = 200 * SLOW };

/* A device that does not come back for a while: the verdict comes in time, pages are free when it has come back. */
TEST_LOOP(what_a_stalled_device_holds_up_fails_alone, 2)
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
    struct flow *o = offer_all_as(source, "k"), *e = expect_all_as(sink, "k", DEADLINE_MS);
    uint64_t began = uv_hrtime(), late = machine_late_ms();
    flow_start(e, source);
    WAIT(e->moved && far_control()->stall_us[_i] == 0);
    struct flow *other = offer_all_as(host_source, "host"), *others = expect_all_as(host_sink, "host", 0);
    flow_start(others, host_source);
    arrives(others, other);
    ck_assert_uint_lt((others->decided_at - began) / 1000000, DEADLINE_MS + machine_late_ms() - late);
    ends_failed(e, STRAIT_REASON_TIMEOUT);
    WAIT(o->decided && o->drained);
    ck_assert_uint_lt((e->decided_at - began) / 1000000, DEADLINE_MS + LATE_MS + machine_late_ms() - late);
    ck_assert_uint_ge(((_i == 0 ? o : e)->drained_at - began) / 1000000, STALL_MS);
    undefined(e);
    ck_assert(pool_as_imagined(sink));
    o = offer_all_as(source, "again");
    e = expect_all_as(sink, "again", 0);
    flow_start(e, source);
    arrives(e, o);
}

/* ---- Clients ----------------------------------------------------------------------------------------------------- */

/* The fake plugin ends the program when it is to touch memory that is not mapped any more. */
TEST_LOOP(a_source_that_dies_is_unmapped_when_its_device_is_done, WIRES - SHM)
{
    struct moving moving;
    moving_begin(&moving, (enum wire)(SHM + _i), 1, 2);
    scene_moves(&moving);
    party_close(moving.pair.source);
    WAIT(moving.expectation->decided && moving.expectation->drained);
    ck_assert_int_eq(STRAIT_FAILED, moving.expectation->state);
    WAIT(far_control()->mapped == 1);
    undefined(moving.expectation);
    ck_assert(pool_as_imagined(moving.sink));
    wait_quiet(moving.pair.sink);
}

TEST_LOOP(a_sink_that_dies_is_unmapped_when_its_device_is_done, WIRES - SHM)
{
    struct moving moving;
    moving_begin(&moving, (enum wire)(SHM + _i), 1, 2);
    scene_moves(&moving);
    party_close(moving.pair.sink);
    WAIT(moving.offer->decided);
    ck_assert_int_eq(STRAIT_FAILED, moving.offer->state);
    WAIT(far_control()->mapped == 1);
    wait_quiet(moving.pair.source);
}

TEST_LOOP(an_aborted_request_is_drained_when_its_device_is_done, WIRES - SHM)
{
    struct moving moving;
    moving_begin(&moving, (enum wire)(SHM + _i), 1, 2);
    scene_moves(&moving);
    strait_abort(moving.expectation->transfer);
    ends_failed(moving.expectation, STRAIT_REASON_ABORTED);
    ends_failed(moving.offer, STRAIT_REASON_PEER_ABORT);
    undefined(moving.expectation);
    ck_assert(pool_as_imagined(moving.sink));
}

/* ---- Daemons ----------------------------------------------------------------------------------------------------- */

TEST_LOOP(a_peer_that_stops_is_let_go_of_when_the_device_is_done, 2)
{
    struct moving moving;
    moving_begin(&moving, SHM, 1, 2);
    scene_moves(&moving);
    test_node_stop(_i == 0 ? moving.pair.b : moving.pair.a);
    WAIT(moving.offer->decided && moving.expectation->decided);
    WAIT(far_control()->pinned == 2 && far_control()->mapped == 1);
    wait_quiet(_i == 0 ? moving.pair.source : moving.pair.sink);
}

TEST_CASE(node_device_fails);

/* A device that fails takes all others of its node with it, as CUDA does: what is on them is told at once, everything
 * else goes on, and a daemon that is to end of it ends. */

extern char **environ;

enum { PAGES = 32, AT_ONCE_MS = 1000 * SLOW };

/* One node with a client that has a pool on each of its devices, and two in the host's memory. */
struct scene {
    struct pair pair;
    struct test_pool *first, *second, *host, *other;
};

static struct test_pool *pool_on(struct party *party, uint32_t gpu, uint64_t seed)
{
    struct test_pool *pool = pool_open(party, (struct geometry){.pages = PAGES, .layers = 2, .gpu = gpu});
    pool_fill(pool, seed);
    return pool;
}

static void scene_pools(struct scene *scene)
{
    scene->first = pool_on(scene->pair.source, 1, 1);
    scene->second = pool_on(scene->pair.source, 2, 2);
    scene->host = pool_on(scene->pair.source, 0, 3);
    scene->other = pool_on(scene->pair.source, 0, 4);
}

static void scene_begin(struct scene *scene)
{
    pair_open(&scene->pair, SAME);
    scene_pools(scene);
}

static struct flow *offer_as(struct test_pool *pool, const char *key)
{
    return flow_offer(pool, (struct strait_offer_params){KEY(key), LISTS({.count = PAGES}), .last = true});
}

static struct flow *expect_as(struct test_pool *pool, const char *key)
{
    return flow_expect(pool, (struct strait_expect_params){KEY(key), LISTS({.count = PAGES})});
}

static void move(struct test_pool *source, struct test_pool *sink, const char *key)
{
    struct flow *o = offer_as(source, key), *e = expect_as(sink, key);
    flow_start(e, source);
    arrives(e, o);
}

/* Gives the first device something to fail with: a copy to the host. */
static void fail_first(struct scene *scene)
{
    struct flow *o = offer_as(scene->first, "doomed"), *e = expect_as(scene->other, "doomed");
    flow_start(e, scene->first);
    WAIT(o->decided && o->drained && e->decided && e->drained);
    ck_assert_int_eq(STRAIT_FAILED, e->state);
    undefined(e);
}

static void failed_with(struct flow *flow, const char *text)
{
    ends_failed(flow, STRAIT_REASON_LOCAL);
    ck_assert_msg(strcmp(flow->text, text) == 0, "%s", flow->text);
}

static void pool_refused(struct party *party, uint32_t gpu, const char *text)
{
    struct test_pool *pool = pool_try(party, (struct geometry){.gpu = gpu});
    WAIT(pool->told);
    ck_assert_int_eq(STRAIT_ERR_DEVICE, pool->status);
    ck_assert_msg(strstr(pool->text, text) != NULL, "%s", pool->text);
}

static const char first_text[] = "device 0 failed: it was told to",
                  second_text[] = "device 1 cannot be used since device 0 failed: it was told to";

/* Nothing of theirs is under way: they would have waited for their other side, one of them for an event. */
TEST(who_waits_on_any_device_is_told_at_once)
{
    struct scene scene;
    scene_begin(&scene);
    struct fake_handle event = {.pid = getpid(), .fd = eventfd(0, EFD_CLOEXEC)};
    struct test_pool *more = pool_on(scene.pair.source, 2, 5), *late = pool_on(scene.pair.source, 2, 6);
    struct flow *offer = offer_as(scene.second, "o"), *expectation = expect_as(more, "e"),
                *host = offer_as(scene.host, "h");
    struct flow *later =
        flow_offer(late, (struct strait_offer_params){KEY("later"), LISTS({.count = PAGES}), .later = true});
    flow_append(later, (struct strait_append_params){.ready = &event, .last = true});
    pump_for(50);
    ck_assert(!offer->decided && !expectation->decided && !later->decided);
    far_control()->fail = 1;
    uint64_t began = now_ms(), kept = machine_late_ms();
    fail_first(&scene);
    failed_with(offer, second_text);
    failed_with(expectation, second_text);
    failed_with(later, second_text);
    ck_assert_uint_lt(now_ms() - began, AT_ONCE_MS + machine_late_ms() - kept);
    ck_assert_double_eq(2, stat_of(scene.pair.source, "gauges.gpus"));
    ck_assert_double_eq(2, stat_of(scene.pair.source, "gauges.gpus_failed"));
    ck_assert_ptr_nonnull(strstr(stats_text(scene.pair.source), first_text));
    ck_assert_ptr_nonnull(strstr(stats_text(scene.pair.source), second_text));
    ck_assert(!host->decided);
    struct flow *e = expect_as(scene.other, "h");
    flow_start(e, scene.host);
    arrives(e, host);
    wait_quiet(scene.pair.source);
    close(event.fd);
}

TEST(what_comes_later_is_refused_on_any_device)
{
    struct scene scene;
    scene_begin(&scene);
    far_control()->fail = 1;
    fail_first(&scene);
    far_control()->fail = 0; /* what has failed stays so */
    pool_refused(scene.pair.source, 1, first_text);
    pool_refused(scene.pair.source, 2, second_text);
    failed_with(offer_as(scene.first, "1"), first_text);
    failed_with(offer_as(scene.second, "2"), second_text);
    failed_with(expect_as(scene.second, "3"), second_text);
    struct flow *o = flow_offer(scene.second, (struct strait_offer_params){KEY("4")}); /* of nothing, until now */
    pump_for(20);
    ck_assert(!o->decided);
    flow_append(o, (struct strait_append_params){LISTS({.count = PAGES}), .last = true});
    failed_with(o, second_text);
    move(scene.host, scene.other, "host");
    wait_quiet(scene.pair.source);
}

/* One that was not in use, when another failed. */
TEST(a_device_is_not_taken_into_use_any_more)
{
    struct pair pair;
    struct scene scene;
    pair_open(&pair, SAME);
    scene = (struct scene){.pair = pair,
                           .first = pool_on(pair.source, 1, 1),
                           .host = pool_on(pair.source, 0, 2),
                           .other = pool_on(pair.source, 0, 3)};
    far_control()->fail = 1;
    fail_first(&scene);
    pool_refused(pair.source, 2, second_text);
    ck_assert_double_eq(1, stat_of(pair.source, "gauges.gpus_failed"));
    move(scene.host, scene.other, "host");
}

/* The other daemon has a process of its own. */
TEST(a_peer_keeps_its_devices)
{
    struct scene scene;
    struct pair pair;
    pair_open(&pair, SHM);
    scene.pair = pair;
    scene_pools(&scene);
    struct test_pool *sink = pool_on(pair.sink, 2, 5), *sinks = pool_on(pair.sink, 1, 6);
    far_control()->fail = 1;
    fail_first(&scene);
    far_control()->fail = 0;
    move(scene.host, sink, "to");
    move(sinks, sink, "within");
    ck_assert_double_eq(0, stat_of(pair.sink, "gauges.gpus_failed"));
    wait_quiet(pair.source);
    wait_quiet(pair.sink);
}

TEST(a_device_that_fails_alone_leaves_the_others)
{
    struct scene scene;
    scene_begin(&scene);
    struct flow *waits = offer_as(scene.second, "waits");
    far_control()->fail_alone = 1;
    fail_first(&scene);
    pool_refused(scene.pair.source, 1, first_text);
    ck_assert_double_eq(1, stat_of(scene.pair.source, "gauges.gpus_failed"));
    ck_assert(!waits->decided);
    struct flow *e = expect_as(scene.other, "waits");
    flow_start(e, scene.second);
    arrives(e, waits);
    move(scene.host, scene.second, "back");
}

/* Out of memory, a handle of nothing, an event that failed: each fails what asked for it. */
TEST(an_error_of_one_call_fails_no_device)
{
    struct scene scene;
    scene_begin(&scene);
    far_control()->refuse_map = 1;
    struct test_pool *pool = pool_try(scene.pair.source, (struct geometry){.gpu = 2});
    WAIT(pool->told);
    ck_assert_int_eq(STRAIT_ERR_NO_MEMORY, pool->status);
    far_control()->refuse_map = 0;
    struct fake_handle event = {.pid = getpid(), .fd = eventfd(FAKE_EVENT_FAILED, EFD_CLOEXEC)};
    struct flow *o =
        flow_offer(scene.first, (struct strait_offer_params){KEY("k"), LISTS({.count = PAGES}), .later = true});
    flow_append(o, (struct strait_append_params){.ready = &event, .last = true});
    failed_with(o, "the event of its pages failed");
    ck_assert_double_eq(0, stat_of(scene.pair.source, "gauges.gpus_failed"));
    move(scene.first, scene.second, "across");
    move(scene.second, scene.host, "down");
    close(event.fd);
}

/* ---- The daemon's end -------------------------------------------------------------------------------------------- */

TEST(a_node_that_is_to_stay_stays)
{
    struct scene scene;
    scene_begin(&scene);
    far_control()->fail = 1;
    fail_first(&scene);
    pump_for(1500);
    ck_assert_uint_eq(0, scene.pair.source->disconnects);
    ck_assert_uint_eq(0, __atomic_load_n(&scene.pair.a->gpu_failed, __ATOMIC_RELAXED));
    move(scene.host, scene.other, "host");
}

TEST(a_node_that_is_to_end_tells_all_and_ends)
{
    struct scene scene;
    pair_init(&scene.pair, SAME);
    snprintf(nodes[0].options.gpu_failure, sizeof(nodes[0].options.gpu_failure), "exit");
    pair_start(&scene.pair);
    scene_pools(&scene);
    struct flow *offer = offer_as(scene.second, "o"), *host = offer_as(scene.host, "h");
    far_control()->fail = 1;
    uint64_t began = now_ms(), late = machine_late_ms();
    fail_first(&scene);
    failed_with(offer, second_text);
    ends_failed(host, STRAIT_REASON_LOCAL); /* nobody expects it: it is not waited for to the end of drain-timeout */
    test_node_join(scene.pair.a);
    ck_assert_uint_lt(now_ms() - began, nodes[0].options.drain_ms + machine_late_ms() - late);
    ck_assert_uint_eq(1, scene.pair.a->gpu_failed);
    WAIT(scene.pair.source->disconnects == 1);
    /* A new one takes the same pools, and the client need not do anything. */
    far_control()->fail = 0;
    uint32_t connects = scene.pair.source->connects;
    test_node_start(scene.pair.a);
    WAIT(scene.pair.source->connects > connects);
    move(scene.first, scene.second, "1");
    move(scene.second, scene.host, "2");
    move(scene.host, scene.other, "3");
    ck_assert_double_eq(0, stat_of(scene.pair.source, "gauges.gpus_failed"));
}

/* ---- The program ------------------------------------------------------------------------------------------------- */

static pid_t straitd_start(const char *socket, const char *failure)
{
    char name[128], what[64];
    snprintf(name, sizeof(name), "--socket=%s", socket);
    snprintf(what, sizeof(what), "--gpu-failure=%s", failure);
    char *arguments[] = {STRAITD,
                         name,
                         what,
                         "--listen=",
                         "--metrics=",
                         "--transports=shm",
                         "--arena-bytes=4M",
                         "--chunk-bytes=256K",
                         "--log-level=error",
                         NULL};
    pid_t pid;
    ck_assert_int_eq(0, posix_spawn(&pid, STRAITD, NULL, NULL, arguments, environ));
    return pid;
}

static int straitd_status(pid_t pid)
{
    int status = -1;
    pid_t ended = 0;
    WAIT(ended == pid || (ended = waitpid(pid, &status, WNOHANG)) == pid);
    ck_assert_msg(WIFEXITED(status), "status %x", (unsigned)status);
    return WEXITSTATUS(status);
}

TEST(straitd_ends_with_a_status_of_its_own)
{
    struct test_node node;
    struct scene scene = {.pair = {.wire = SAME}};
    test_node_init(&node, "straitd", "shm");
    setenv("FAKE_DEVICE_FAIL", "1", 1);
    pid_t pid = straitd_start(node.options.socket, "exit");
    scene.pair.source = party_open(&node);
    scene_pools(&scene);
    fail_first(&scene);
    ck_assert_int_eq(3, straitd_status(pid));
    unsetenv("FAKE_DEVICE_FAIL");
    uint32_t connects = scene.pair.source->connects;
    pid = straitd_start(node.options.socket, "exit");
    WAIT(scene.pair.source->connects > connects);
    move(scene.first, scene.second, "again");
    kill(pid, SIGTERM);
    ck_assert_int_eq(0, straitd_status(pid));
}

#ifdef STRAIT
/* Of a daemon that stays. */
TEST(the_command_tells_what_failed)
{
    struct test_node node;
    struct scene scene = {.pair = {.wire = SAME}};
    char command[512], text[4096];
    test_node_init(&node, "straitd", "shm");
    setenv("FAKE_DEVICE_FAIL", "1", 1);
    pid_t pid = straitd_start(node.options.socket, "stay");
    scene.pair.source = party_open(&node);
    scene_pools(&scene);
    fail_first(&scene);
    snprintf(command, sizeof(command), "%s status --socket %s", STRAIT, node.options.socket);
    FILE *told = popen(command, "r");
    ck_assert_ptr_nonnull(told);
    text[fread(text, 1, sizeof(text) - 1, told)] = '\0';
    ck_assert_int_eq(0, pclose(told));
    ck_assert_msg(strstr(text, "GPU 0        failed: device 0 failed: it was told to\n") != NULL, "%s", text);
    ck_assert_msg(strstr(text, "GPU 1        failed: device 1 cannot be used since device 0 failed") != NULL, "%s",
                  text);
    kill(pid, SIGTERM);
    ck_assert_int_eq(0, straitd_status(pid));
}
#endif

int main(void)
{
    return node_main("node_device_end");
}
