/* A device that fails takes all others of its node with it, as CUDA does: what is on them is told at once, everything
 * else goes on, and a daemon that is to end of it ends. */
#include "tests/node/far_harness.h"

#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

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
START_TEST(who_waits_on_any_device_is_told_at_once)
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
END_TEST

START_TEST(what_comes_later_is_refused_on_any_device)
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
END_TEST

/* One that was not in use, when another failed. */
START_TEST(a_device_is_not_taken_into_use_any_more)
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
END_TEST

/* The other daemon has a process of its own. */
START_TEST(a_peer_keeps_its_devices)
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
END_TEST

START_TEST(a_device_that_fails_alone_leaves_the_others)
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
END_TEST

/* Out of memory, a handle of nothing, an event that failed: each fails what asked for it. */
START_TEST(an_error_of_one_call_fails_no_device)
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
END_TEST

/* ---- The daemon's end -------------------------------------------------------------------------------------------- */

START_TEST(a_node_that_is_to_stay_stays)
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
END_TEST

START_TEST(a_node_that_is_to_end_tells_all_and_ends)
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
END_TEST

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

START_TEST(straitd_ends_with_a_status_of_its_own)
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
END_TEST

#ifdef STRAIT
/* Of a daemon that stays. */
START_TEST(the_command_tells_what_failed)
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
END_TEST
#endif

int main(void)
{
    Suite *suite = suite_create("node_device_fails");
    TCase *tcase = node_case(suite, "fails");
    tcase_add_test(tcase, who_waits_on_any_device_is_told_at_once);
    tcase_add_test(tcase, what_comes_later_is_refused_on_any_device);
    tcase_add_test(tcase, a_device_is_not_taken_into_use_any_more);
    tcase_add_test(tcase, a_peer_keeps_its_devices);
    tcase_add_test(tcase, a_device_that_fails_alone_leaves_the_others);
    tcase_add_test(tcase, an_error_of_one_call_fails_no_device);
    tcase_add_test(tcase, a_node_that_is_to_stay_stays);
    tcase_add_test(tcase, a_node_that_is_to_end_tells_all_and_ends);
    tcase_add_test(tcase, straitd_ends_with_a_status_of_its_own);
#ifdef STRAIT
    tcase_add_test(tcase, the_command_tells_what_failed);
#endif
    return node_main(suite);
}
