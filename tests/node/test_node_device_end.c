/* Early ends while a GPU works: a device that fails, for good or for a while, a client or a daemon that goes. */
#include <sys/wait.h>
#include <unistd.h>

#include "tests/node/harness.h"

/* A move that goes on for a while. */
struct moving {
    struct pair pair;
    struct flow *offer, *expectation;
};

static struct moving moving_begin(int wire)
{
    struct moving moving = {.pair = pair_open(wire, gpu_large)};
    fake_control()->delay_us = 50000; /* there is time for what the test does next */
    struct move move = move_begin(moving.pair.source, moving.pair.sink);
    moving.offer = move.offer;
    moving.expectation = move.expectation;
    return moving;
}

static struct moving moving_begun(int wire)
{
    struct moving moving = moving_begin(wire);
    WAIT(fake_control()->batches >= 2);
    ck_assert(!moving.expectation->decided);
    return moving;
}

TEST_CASE(node_device_end);

/* ---- Devices ----------------------------------------------------------------------------------------------------- */

static void fails_with_the_reason(struct flow *flow)
{
    ends_failed(flow, STRAIT_REASON_LOCAL);
    ck_assert_msg(strstr(flow->text, "it was told to") != NULL, "%s", flow->text);
}

/* The source's or the sink's: the other daemon's go on. */
TEST_LOOP(a_device_that_fails_fails_what_it_does, 2 * (WIRES - SHM))
{
    int device = _i % 2;
    struct moving moving = moving_begun(SHM + _i / 2);
    struct party *party[] = {moving.pair.from, moving.pair.to};
    fail_device(&moving.pair, device, (struct move){moving.offer, moving.expectation});
    fails_with_the_reason(device == 0 ? moving.offer : moving.expectation);
    pool_refused(party[device], (struct geometry){.gpu = 1 + (uint32_t)device}, STRAIT_ERR_DEVICE, "it was told to");
    ck_assert_ptr_nonnull(strstr(stats_text(party[device]), "it was told to"));
    ck_assert(pool_as_imagined(moving.pair.sink));
    fake_control()->fail = 0;
    (void)pool_open(party[!device], (struct geometry){.gpu = 1 + (uint32_t)device});
}

TEST(an_arena_that_cannot_be_pinned_fails_what_goes_there)
{
    struct pair pair = pair_init(SHM);
    strcpy(pair.b->options.gpu_wires, "pinned");
    pair_start(&pair, (struct geometry){.gpu = 1});
    fake_control()->refuse_pin = 1;
    struct move move = move_begin(pair.source, pair.sink);
    ends_failed(move.offer, STRAIT_REASON_LOCAL);
    ends_failed(move.expectation, STRAIT_REASON_PEER_DOWN);
    ck_assert(pool_as_imagined(pair.sink));
    pair_quiet(&pair);
}

/* Both devices of the move, which may be under one daemon. */
static void break_devices(struct moving *moving)
{
    fake_control()->fail = 3;
    ends(moving->expectation, moving->offer);
    ck_assert_int_eq(STRAIT_FAILED, moving->expectation->state);
    undefined(moving->expectation);
    ck_assert(pool_as_imagined(moving->pair.sink));
}

TEST_LOOP(hosts_go_on_without_their_devices, WIRES)
{
    struct moving moving = moving_begin(_i);
    break_devices(&moving);
    pair_pools(&moving.pair, (struct geometry){.pages = 64, .layers = 4});
    move_all(moving.pair.source, moving.pair.sink);
    pair_quiet(&moving.pair);
}

/* Pools that were there before fail what uses them, at once and with the reason; nothing is left over. */
TEST_LOOP(a_failed_device_fails_what_comes_later, WIRES)
{
    struct moving moving = moving_begin(_i);
    struct pair *pair = &moving.pair;
    break_devices(&moving);
    double before = stat_of(pair->from, "source_failed.local");
    for (uint32_t i = 0; i < 3; i++) {
        struct flow *o = offer_all(pair->source, name_of(i)), *e = expect_all(pair->sink, name_of(i), 5000);
        flow_start(e, pair->source);
        fails_with_the_reason(o);
        WAIT(e->decided && e->drained);
        ck_assert_int_eq(STRAIT_FAILED, e->state);
    }
    ck_assert_double_eq(before + 3, stat_of(pair->from, "source_failed.local"));
    pair_quiet(pair);
}

TEST_LOOP(a_failed_device_fails_what_waits_for_its_events, WIRES)
{
    struct moving moving = moving_begin(_i);
    struct fake_handle event = event_make();
    struct test_pool *pool = pool_open(moving.pair.from, (struct geometry){.gpu = 1});
    struct flow *o = OFFER(pool, "later", LISTS({.count = 16}), .later = true);
    APPEND(o, .ready = &event, .last = true);
    break_devices(&moving);
    fails_with_the_reason(o);
    wait_quiet(moving.pair.from);
    close(event.fd);
}

TEST_LOOP(a_node_whose_device_fails_while_it_stops_ends, 2)
{
    struct moving moving = moving_begun(SHM);
    struct test_node *node = _i == 0 ? moving.pair.a : moving.pair.b;
    uint64_t began = wait_clock();
    test_node_ask_stop(node, true);
    fake_control()->fail = _i == 0 ? 1 : 2;
    test_node_join(node);
    ck_assert_uint_lt(ms_since(began), node->options.drain_ms / 2);
    WAIT(moving.offer->decided && moving.expectation->decided);
    ck_assert_int_eq(STRAIT_FAILED, moving.expectation->state);
}

enum { STALL_MS = SLOW == 1 ? 1500 : 6000, DEADLINE_MS = SLOW == 1 ? 800 : 1600, LATE_MS = 200 * SLOW };

/* A device that does not come back for a while: the verdict comes in time, pages are free when it has come back. */
TEST_LOOP(what_a_stalled_device_holds_up_fails_alone, 2)
{
    struct pair pair = pair_open(SHM, gpu_small), hosts = pair;
    pair_pools(&hosts, (struct geometry){.pages = 64, .layers = 2});
    fake_control()->stall_us[_i] = STALL_MS * 1000;
    struct flow *o = offer_all(pair.source, "k"), *e = expect_all(pair.sink, "k", DEADLINE_MS);
    uint64_t began = uv_hrtime(), late = machine_late_ms();
    flow_start(e, pair.source);
    WAIT(e->moved && fake_control()->stall_us[_i] == 0);
    struct flow *others = expect_all(hosts.sink, "host", 0);
    pull(others, offer_all(hosts.source, "host"));
    ck_assert_uint_lt((others->decided_at - began) / 1000000, DEADLINE_MS + machine_late_ms() - late);
    ends_failed(e, STRAIT_REASON_TIMEOUT);
    WAIT(o->decided && o->drained);
    ck_assert_uint_lt((e->decided_at - began) / 1000000, DEADLINE_MS + LATE_MS + machine_late_ms() - late);
    ck_assert_uint_ge(((_i == 0 ? o : e)->drained_at - began) / 1000000, STALL_MS);
    undefined(e);
    ck_assert(pool_as_imagined(pair.sink));
    move_all(pair.source, pair.sink);
}

/* ---- Clients and daemons ----------------------------------------------------------------------------------------- */

/* The fake plugin ends the program when it is to touch memory that is not mapped any more. */
TEST_LOOP(a_client_that_dies_is_unmapped_when_its_device_is_done, 2 * (WIRES - SHM))
{
    struct moving moving = moving_begun(SHM + _i / 2);
    bool sink_dies = _i % 2 != 0;
    struct flow *left = sink_dies ? moving.offer : moving.expectation;
    party_close(sink_dies ? moving.pair.to : moving.pair.from);
    WAIT(left->decided && left->drained);
    ck_assert_int_eq(STRAIT_FAILED, left->state);
    WAIT(fake_control()->mapped == 1);
    wait_quiet(sink_dies ? moving.pair.from : moving.pair.to);
    undefined(moving.expectation);
    ck_assert(sink_dies || pool_as_imagined(moving.pair.sink));
}

TEST_LOOP(an_aborted_request_is_drained_when_its_device_is_done, WIRES - SHM)
{
    struct moving moving = moving_begun(SHM + _i);
    strait_abort(moving.expectation->transfer);
    ends_failed(moving.expectation, STRAIT_REASON_ABORTED);
    ends_failed(moving.offer, STRAIT_REASON_PEER_ABORT);
    undefined(moving.expectation);
    ck_assert(pool_as_imagined(moving.pair.sink));
}

TEST_LOOP(a_peer_that_stops_is_let_go_of_when_the_device_is_done, 2)
{
    struct moving moving = moving_begun(SHM);
    test_node_stop(_i == 0 ? moving.pair.b : moving.pair.a);
    WAIT(moving.offer->decided && moving.expectation->decided);
    WAIT(fake_control()->pinned == 2 && fake_control()->mapped == 1);
    wait_quiet(_i == 0 ? moving.pair.from : moving.pair.to);
}

TEST_CASE(node_device_fails);

/* A device that fails takes all others of its node with it, as CUDA does: what is on them is told at once, everything
 * else goes on, and a daemon that is to end of it ends. */

enum { PAGES = 32, AT_ONCE_MS = 1000 * SLOW };

/* A client that has a pool on each device of its node, and two in the host's memory. */
struct scene {
    struct pair pair;
    struct party *party;
    struct test_pool *first, *second, *host, *other;
};

static struct test_pool *pool_on(struct party *party, uint32_t gpu)
{
    return pool_open(party, (struct geometry){.pages = PAGES, .layers = 2, .gpu = gpu});
}

static void scene_pools(struct scene *scene, struct party *party)
{
    scene->party = party;
    scene->first = pool_on(party, 1);
    scene->second = pool_on(party, 2);
    scene->host = pool_on(party, 0);
    scene->other = pool_on(party, 0);
}

static struct scene scene_open(int wire)
{
    struct scene scene = {.pair = pair_init(wire)};
    pair_connect(&scene.pair);
    scene_pools(&scene, scene.pair.from);
    return scene;
}

/* Gives the first device something to fail with: a copy to the host. */
static void fail_first(struct scene *scene)
{
    struct move doomed = move_begin(scene->first, scene->other);
    ends(doomed.expectation, doomed.offer);
    ck_assert_int_eq(STRAIT_FAILED, doomed.expectation->state);
    undefined(doomed.expectation);
}

static void failed_with(struct flow *flow, const char *text)
{
    ends_failed(flow, STRAIT_REASON_LOCAL);
    ck_assert_msg(strcmp(flow->text, text) == 0, "%s", flow->text);
}

static const char first_text[] = "device 0 failed: it was told to",
                  second_text[] = "device 1 cannot be used since device 0 failed: it was told to";

/* Nothing of theirs is under way: they would have waited for their other side, one of them for an event. */
TEST(who_waits_on_any_device_is_told_at_once)
{
    struct scene scene = scene_open(SAME);
    struct fake_handle event = event_make();
    struct test_pool *more = pool_on(scene.party, 2), *late = pool_on(scene.party, 2);
    struct flow *offer = offer_all(scene.second, "o"), *expectation = expect_all(more, "e", 0),
                *host = offer_all(scene.host, "h");
    struct flow *later = OFFER(late, "later", LISTS({.count = PAGES}), .later = true);
    APPEND(later, .ready = &event, .last = true);
    pump_for(50);
    ck_assert(!offer->decided && !expectation->decided && !later->decided);
    fake_control()->fail = 1;
    uint64_t began = wait_clock();
    fail_first(&scene);
    failed_with(offer, second_text);
    failed_with(expectation, second_text);
    failed_with(later, second_text);
    ck_assert_uint_lt(ms_since(began), AT_ONCE_MS);
    ck_assert_double_eq(2, stat_of(scene.party, "gauges.gpus"));
    ck_assert_double_eq(2, stat_of(scene.party, "gauges.gpus_failed"));
    ck_assert_ptr_nonnull(strstr(stats_text(scene.party), first_text));
    ck_assert_ptr_nonnull(strstr(stats_text(scene.party), second_text));
    ck_assert(!host->decided);
    pull(expect_all(scene.other, "h", 0), host);
    wait_quiet(scene.party);
    close(event.fd);
}

TEST(what_comes_later_is_refused_on_any_device)
{
    struct scene scene = scene_open(SAME);
    fake_control()->fail = 1;
    fail_first(&scene);
    fake_control()->fail = 0; /* what has failed stays so */
    pool_refused(scene.party, (struct geometry){.gpu = 1}, STRAIT_ERR_DEVICE, first_text);
    pool_refused(scene.party, (struct geometry){.gpu = 2}, STRAIT_ERR_DEVICE, second_text);
    failed_with(offer_all(scene.first, "1"), first_text);
    failed_with(offer_all(scene.second, "2"), second_text);
    failed_with(expect_all(scene.second, "3", 0), second_text);
    struct flow *o = OFFER(scene.second, "4", .list_count = 0); /* of nothing, until now */
    stays_undecided(o, 20);
    APPEND(o, LISTS({.count = PAGES}), .last = true);
    failed_with(o, second_text);
    move_all(scene.host, scene.other);
    wait_quiet(scene.party);
}

/* One that was not in use, when another failed. */
TEST(a_device_is_not_taken_into_use_any_more)
{
    struct pair pair = pair_init(SAME);
    pair_connect(&pair);
    struct scene scene = {
        .first = pool_on(pair.from, 1), .host = pool_on(pair.from, 0), .other = pool_on(pair.from, 0)};
    fake_control()->fail = 1;
    fail_first(&scene);
    pool_refused(pair.from, (struct geometry){.gpu = 2}, STRAIT_ERR_DEVICE, second_text);
    ck_assert_double_eq(1, stat_of(pair.from, "gauges.gpus_failed"));
    move_all(scene.host, scene.other);
}

/* The other daemon has a process of its own. */
TEST(a_peer_keeps_its_devices)
{
    struct scene scene = scene_open(SHM);
    struct test_pool *sink = pool_on(scene.pair.to, 2), *sinks = pool_on(scene.pair.to, 1);
    fake_control()->fail = 1;
    fail_first(&scene);
    fake_control()->fail = 0;
    move_all(scene.host, sink);
    move_all(sinks, sink);
    ck_assert_double_eq(0, stat_of(scene.pair.to, "gauges.gpus_failed"));
    pair_quiet(&scene.pair);
}

TEST(a_device_that_fails_alone_leaves_the_others)
{
    struct scene scene = scene_open(SAME);
    struct flow *waits = offer_all(scene.second, "waits");
    fake_control()->fail_alone = 1;
    fail_first(&scene);
    pool_refused(scene.party, (struct geometry){.gpu = 1}, STRAIT_ERR_DEVICE, first_text);
    ck_assert_double_eq(1, stat_of(scene.party, "gauges.gpus_failed"));
    ck_assert(!waits->decided);
    pull(expect_all(scene.other, "waits", 0), waits);
    move_all(scene.host, scene.second);
}

/* Out of memory, a handle of nothing, an event that failed: each fails what asked for it. */
TEST(an_error_of_one_call_fails_no_device)
{
    struct scene scene = scene_open(SAME);
    fake_control()->refuse_map = 1;
    pool_refused(scene.party, (struct geometry){.gpu = 2}, STRAIT_ERR_NO_MEMORY, "");
    fake_control()->refuse_map = 0;
    struct fake_handle event = event_make();
    event_fail(&event);
    struct flow *o = OFFER(scene.first, "k", LISTS({.count = PAGES}), .later = true);
    APPEND(o, .ready = &event, .last = true);
    failed_with(o, "the event of its pages failed");
    ck_assert_double_eq(0, stat_of(scene.party, "gauges.gpus_failed"));
    move_all(scene.first, scene.second);
    move_all(scene.second, scene.host);
    close(event.fd);
}

/* ---- The daemon's end -------------------------------------------------------------------------------------------- */

TEST(a_node_that_is_to_stay_stays)
{
    struct scene scene = scene_open(SAME);
    fake_control()->fail = 1;
    fail_first(&scene);
    pump_for(1500);
    ck_assert_uint_eq(0, scene.party->disconnects);
    ck_assert_uint_eq(0, __atomic_load_n(&scene.pair.a->gpu_failed, __ATOMIC_RELAXED));
    move_all(scene.host, scene.other);
}

TEST(a_node_that_is_to_end_tells_all_and_ends)
{
    struct scene scene = {.pair = pair_init(SAME)};
    snprintf(nodes[0].options.gpu_failure, sizeof(nodes[0].options.gpu_failure), "exit");
    pair_connect(&scene.pair);
    scene_pools(&scene, scene.pair.from);
    struct flow *offer = offer_all(scene.second, "o"), *host = offer_all(scene.host, "h");
    fake_control()->fail = 1;
    uint64_t began = wait_clock();
    fail_first(&scene);
    failed_with(offer, second_text);
    ends_failed(host, STRAIT_REASON_LOCAL); /* nobody expects it: it is not waited for to the end of drain-timeout */
    test_node_join(scene.pair.a);
    ck_assert_uint_lt(ms_since(began), nodes[0].options.drain_ms);
    ck_assert_uint_eq(1, scene.pair.a->gpu_failed);
    WAIT(scene.party->disconnects == 1);
    /* A new one takes the same pools, and the client need not do anything. */
    fake_control()->fail = 0;
    uint32_t connects = scene.party->connects;
    test_node_start(scene.pair.a);
    WAIT(scene.party->connects > connects);
    move_all(scene.first, scene.second);
    move_all(scene.second, scene.host);
    move_all(scene.host, scene.other);
    ck_assert_double_eq(0, stat_of(scene.party, "gauges.gpus_failed"));
}

/* ---- The program ------------------------------------------------------------------------------------------------- */

static pid_t straitd_start(const char *socket, const char *failure)
{
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid != 0)
        return pid;
    execl(STRAITD, STRAITD, "--socket", socket, "--gpu-failure", failure, "--listen=", "--metrics=", "--transports=shm",
          "--arena-bytes=4M", "--chunk-bytes=256K", "--log-level=error", (char *)NULL);
    _exit(127);
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
    struct scene scene;
    test_node_init(&node, "straitd", "shm");
    setenv("FAKE_DEVICE_FAIL", "1", 1);
    pid_t pid = straitd_start(node.options.socket, "exit");
    scene_pools(&scene, party_open(&node));
    fail_first(&scene);
    ck_assert_int_eq(3, straitd_status(pid));
    unsetenv("FAKE_DEVICE_FAIL");
    uint32_t connects = scene.party->connects;
    pid = straitd_start(node.options.socket, "exit");
    WAIT(scene.party->connects > connects);
    move_all(scene.first, scene.second);
    kill(pid, SIGTERM);
    ck_assert_int_eq(0, straitd_status(pid));
}

#ifdef STRAIT
/* Of a daemon that stays. */
TEST(the_command_tells_what_failed)
{
    struct test_node node;
    struct scene scene;
    char command[512], text[4096];
    test_node_init(&node, "straitd", "shm");
    setenv("FAKE_DEVICE_FAIL", "1", 1);
    pid_t pid = straitd_start(node.options.socket, "stay");
    scene_pools(&scene, party_open(&node));
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
