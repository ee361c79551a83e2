/* Pools in GPU memory (of the fake plugin): pages arrive whatever memory the two sides have, when events make them
 * ready, and the reasons of refused registrations are told. */
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fakes/device.h"
#include "tests/node/far_harness.h"
#include "tests/node/harness.h"

static void pair_coding(struct pair *pair, enum wire wire, const char *coding)
{
    pair_init(pair, wire);
    use_codebook(pair->a, "a", 0x7c);
    strcpy(pair->a->options.coding, coding);
    if (pair->b != pair->a)
        use_codebook(pair->b, "b", 0x7c);
    pair_start(pair);
}

/* Pages in no order: 7 and every number of pages here have no common divisor. */
static void shuffle_all(struct test_pool *source, struct test_pool *sink, uint32_t groups)
{
    static uint32_t turn;
    char key[16];
    uint32_t pages = source->geometry.pages, ids[2][512];
    struct strait_page_list from[4], to[4];
    ck_assert_uint_le(pages, 512);
    for (uint32_t i = 0; i < pages; i++) {
        ids[0][i] = i * 7 % pages;
        ids[1][i] = (i * 11 + 3) % pages;
    }
    for (uint32_t g = 0; g < groups; g++) {
        from[g] = (struct strait_page_list){.group = g, .count = pages, .ids = ids[0]};
        to[g] = (struct strait_page_list){.group = g, .count = pages, .ids = ids[1]};
    }
    snprintf(key, sizeof(key), "%u", ++turn);
    pool_fill(source, turn);
    struct flow *o =
        flow_offer(source, (struct strait_offer_params){KEY(key), .lists = from, .list_count = groups, .last = true});
    struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY(key), .lists = to, .list_count = groups});
    flow_start(e, source);
    arrives(e, o);
}

TEST_CASE(node_device);

/* ---- Moving ------------------------------------------------------------------------------------------------------ */

static const char *const codings[] = {"raw", "top16", "tiered"};

TEST_LOOP(pages_move_between_gpus, 3 * WIRES)
{
    enum wire wire = (enum wire)(_i / 3);
    struct pair pair;
    pair_coding(&pair, wire, codings[_i % 3]);
    struct geometry shape = {.pages = 128, .layers = 3, .roles = 2, .gpu = 1};
    struct test_pool *source = pool_open(pair.source, shape);
    shape.gpu = 2;
    shape.handle = STRAIT_HANDLE_CUDA_VMM;
    struct test_pool *sink = pool_open(pair.sink, shape);
    const struct fake_control *fake = far_control();
    uint32_t woken = fake->woken;
    for (int i = 0; i < 3; i++)
        shuffle_all(source, sink, 1);
    ck_assert_uint_ge(fake->woken, woken + 6); /* by both sides of each */
    if (wire == SAME)
        ck_assert_uint_ge(fake->copies, 3);
    else
        ck_assert_uint_ge(fake->tasks, 6);
    wait_quiet(pair.source);
    wait_quiet(pair.sink);
}

TEST_LOOP(either_side_can_be_the_host, WIRES)
{
    struct pair pair;
    pair_coding(&pair, (enum wire)_i, "tiered");
    struct geometry shape = {.pages = 64, .layers = 2}, on_gpu = shape;
    on_gpu.gpu = 1;
    struct test_pool *host = pool_open(pair.source, shape), *gpu = pool_open(pair.sink, on_gpu);
    shuffle_all(host, gpu, 1);
    shuffle_all(gpu, host, 1);
}

TEST_LOOP(rows_and_odd_sizes_arrive, WIRES)
{
    struct pair pair;
    pair_coding(&pair, (enum wire)_i, "top16");
    struct geometry shape = {.pages = 64, .layers = 2, .rows = 5, .row_bytes = 98, .gpu = 1};
    struct test_pool *source = pool_open(pair.source, shape), *sink = pool_open(pair.sink, shape);
    shuffle_all(source, sink, 1);
    shape = (struct geometry){.pages = 64, .row_bytes = 1001, .element = STRAIT_ELEMENT_FP8_E4M3, .gpu = 2};
    source = pool_open(pair.source, shape);
    sink = pool_open(pair.sink, shape);
    shuffle_all(source, sink, 1);
}

TEST_LOOP(groups_of_a_pool_may_be_on_several_gpus, WIRES)
{
    struct pair pair;
    pair_coding(&pair, (enum wire)_i, "tiered");
    struct geometry shape = {.groups = 2, .pages = 64, .layers = 2, .gpu = 1, .gpu_step = 1};
    struct test_pool *source = pool_open(pair.source, shape), *sink = pool_open(pair.sink, shape);
    shuffle_all(source, sink, 2);
}

/* Both sides cut to the smaller slots, also for a first chunk that nobody has asked for. */
TEST(slots_may_differ_in_size)
{
    struct pair pair;
    pair_init(&pair, SHM);
    strcpy(pair.a->options.gpu_wires, "pinned");
    strcpy(pair.b->options.gpu_wires, "pinned");
    pair.a->options.chunk_bytes = 128u << 10;
    pair.b->options.chunk_bytes = 512u << 10;
    pair.a->options.chunk_target = pair.b->options.chunk_target = 512u << 10;
    pair_start(&pair);
    struct geometry shape = {.pages = 64, .layers = 2, .row_bytes = 100000, .gpu = 1};
    struct test_pool *small = pool_open(pair.source, shape), *large = pool_open(pair.sink, shape);
    shuffle_all(small, large, 1);
    shuffle_all(large, small, 1);
}

TEST(what_is_started_together_runs_together)
{
    struct pair pair;
    pair_coding(&pair, SHM, "raw");
    far_control()->delay_us = 5000;
    struct geometry shape = {.pages = 256, .layers = 8, .gpu = 1};
    struct test_pool *source = pool_open(pair.source, shape), *sink = pool_open(pair.sink, shape);
    shuffle_all(source, sink, 1);
    ck_assert_uint_ge(far_control()->largest_batch, 2);
    ck_assert_uint_lt(far_control()->batches, far_control()->tasks);
}

#define SIZES "arena-bytes = 2M\nchunk-bytes = 256K\ntransports = shm\n"

TEST(embedded_pointers_are_a_gpus_too)
{
    struct party *party = party_embedded(SIZES);
    struct geometry shape = {.pages = 32, .layers = 3, .pointers = true, .gpu = 2};
    struct test_pool *source = pool_open(party, shape);
    shape.gpu = 1;
    struct test_pool *sink = pool_open(party, shape);
    shuffle_all(source, sink, 1);
    wait_quiet(party);
}

/* Closing a client does not wait for its node, and the driver does not wait for anybody. */
TEST(a_process_may_exit_while_its_embedded_node_still_leaves)
{
    int status;
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        far_control()->close_us = 200000;
        struct party *party = party_embedded(SIZES);
        (void)pool_open(party, (struct geometry){.pages = 32, .layers = 3, .pointers = true, .gpu = 1});
        party_close(party);
        exit(0);
    }
    ck_assert_int_eq(pid, waitpid(pid, &status, 0));
    ck_assert_int_eq(0, status);
}

TEST(one_handle_is_mapped_once)
{
    struct pair pair;
    pair_open(&pair, SAME);
    struct test_pool *pool = pool_open(pair.source, (struct geometry){.layers = 16, .roles = 2, .gpu = 1});
    ck_assert_uint_eq(1, far_control()->mapped);
    strait_pool_remove(pool->pool);
    WAIT(pool->removed);
    ck_assert_uint_eq(0, far_control()->mapped);
}

TEST(arenas_are_pinned_when_a_gpu_needs_them)
{
    struct pair pair;
    pair_open(&pair, SHM);
    struct geometry shape = {.pages = 64, .gpu = 1};
    ck_assert_uint_eq(0, far_control()->pinned);
    struct test_pool *source = pool_open(pair.source, shape);
    ck_assert_uint_eq(2, far_control()->pinned); /* receive and send */
    struct test_pool *sink = pool_open(pair.sink, shape);
    ck_assert_uint_eq(4, far_control()->pinned);
    shuffle_all(source, sink, 1);
    ck_assert_uint_eq(5, far_control()->pinned); /* the sink's, as the source's daemon sees it */
    test_node_stop(pair.b);
    WAIT(far_control()->pinned == 2);
}

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static void refused(struct party *party, struct geometry shape, enum strait_status status, const char *text)
{
    struct test_pool *pool = pool_try(party, shape);
    WAIT(pool->told);
    ck_assert_int_eq(status, pool->status);
    ck_assert_msg(strstr(pool->text, text) != NULL, "%s", pool->text);
}

TEST(devices_that_are_not_there_are_refused)
{
    struct pair pair;
    pair_open(&pair, SAME);
    refused(pair.source, (struct geometry){.gpu = 3}, STRAIT_ERR_UNSUPPORTED, "no device 2: the daemon sees 2");
    (void)pool_open(pair.source, (struct geometry){.gpu = 2});
}

TEST(without_a_gpu_the_reason_is_told)
{
    struct pair pair;
    pair_open(&pair, SAME);
    far_control()->no_device = 1;
    refused(pair.source, (struct geometry){.gpu = 1}, STRAIT_ERR_UNSUPPORTED, "no GPU is plugged in");
    (void)pool_open(pair.source, (struct geometry){0});
    far_control()->no_device = 0;
    (void)pool_open(pair.source, (struct geometry){.gpu = 1}); /* it is looked for again */
}

TEST(memory_that_cannot_be_pinned_is_told)
{
    struct pair pair;
    pair_open(&pair, SAME);
    far_control()->refuse_pin = 1;
    refused(pair.source, (struct geometry){.gpu = 1}, STRAIT_ERR_NO_MEMORY, "no memory may be pinned");
}

/* A registration that is like that of a good pool but for one thing. */
static void spoilt(struct party *party, struct strait_pool_region regions[2], uint32_t count, enum strait_status status,
                   const char *text)
{
    struct strait_pool *pool = NULL;
    struct strait_pool_params params = {sizeof(params), regions, count};
    ck_assert_int_eq(STRAIT_OK, strait_pool_register(party->client, &params, &pool));
    struct strait_event event = {0};
    while (event.type != STRAIT_EVENT_POOL)
        ck_assert_uint_eq(1, strait_wait(party->client, &event, 1, 5000));
    ck_assert_int_eq(status, event.status);
    ck_assert_msg(strstr(event.text, text) != NULL, "%s", event.text);
}

TEST(handles_are_checked_against_their_memory)
{
    struct pair pair;
    pair_open(&pair, SAME);
    struct strait_memory memory;
    ck_assert_int_eq(STRAIT_OK, strait_alloc(65536, &memory));
    struct fake_handle handle = {.pid = getpid(), .fd = memory.fd, .device = 1};
    struct strait_pool_region regions[2];
    for (int r = 0; r < 2; r++) {
        regions[r] = (struct strait_pool_region){.handle = STRAIT_HANDLE_CUDA_IPC,
                                                 .device = 1,
                                                 .fd = -1,
                                                 .offset = (uint64_t)r * 32768,
                                                 .page_stride = 4096,
                                                 .page_count = 8,
                                                 .rows = 1,
                                                 .row_bytes = 4096,
                                                 .layer = r};
        memcpy(regions[r].ipc, &handle, sizeof(handle));
    }
    struct strait_pool_region good[2] = {regions[0], regions[1]};
    spoilt(pair.source, regions, 2, STRAIT_OK, "");
    regions[1].offset += 2;
    spoilt(pair.source, regions, 2, STRAIT_ERR_INVALID, "smaller than its regions need");
    regions[1] = good[1];
    regions[0].device = regions[1].device = 0;
    spoilt(pair.source, regions, 2, STRAIT_ERR_INVALID, "on another device");
    regions[1].device = 1;
    spoilt(pair.source, regions, 2, STRAIT_ERR_INVALID, "a group is on one device");
    regions[0] = good[0];
    regions[1].offset = 0;
    spoilt(pair.source, regions, 2, STRAIT_ERR_INVALID, "the same memory");
    regions[1] = good[1];
    handle.fd = 999;
    memcpy(regions[1].ipc, &handle, sizeof(handle));
    spoilt(pair.source, regions, 2, STRAIT_ERR_INVALID, "region 1: its handle names no memory");
    regions[1] = good[1];
    regions[1].handle = STRAIT_HANDLE_CUDA_VMM;
    regions[1].fd = STDIN_FILENO;
    spoilt(pair.source, regions, 2, STRAIT_ERR_INVALID, "its handle names no memory");
    WAIT(far_control()->mapped == 1); /* that of the good one */
    strait_free(&memory);
}

TEST_CASE(node_device_ready);

/* Pages that are ready after an event of a GPU. */

/* An event of the fake plugin: an eventfd. */
struct event {
    struct fake_handle handle;
};

static struct event event_make(void)
{
    struct event event = {.handle = {.pid = getpid(), .fd = eventfd(0, EFD_CLOEXEC)}};
    ck_assert_int_ge(event.handle.fd, 0);
    return event;
}

static void event_complete(const struct event *event)
{
    ck_assert_int_eq(0, eventfd_write(event->handle.fd, 1));
}

static void event_fail(const struct event *event)
{
    ck_assert_int_eq(0, eventfd_write(event->handle.fd, FAKE_EVENT_FAILED));
}

struct scene {
    struct pair pair;
    struct test_pool *source, *sink;
    struct flow *o, *e;
};

static void scene_begin(struct scene *scene, enum wire wire, struct strait_offer_params offer)
{
    struct geometry shape = {.pages = 20, .layers = 4, .gpu = 1};
    pair_open(&scene->pair, wire);
    scene->source = pool_open(scene->pair.source, shape);
    scene->sink = pool_open(scene->pair.sink, shape);
    pool_fill(scene->source, 1);
    scene->o = flow_offer(scene->source, offer);
    scene->e = flow_expect(scene->sink, (struct strait_expect_params){KEY("k"), LISTS({.count = 20})});
    flow_start(scene->e, scene->source);
}

#define LATER                                         \
    (struct strait_offer_params)                      \
    {                                                 \
        KEY("k"), LISTS({.count = 20}), .later = true \
    }

TEST_LOOP(layers_wait_for_their_events, WIRES)
{
    struct scene s;
    struct event events[4];
    scene_begin(&s, (enum wire)_i, LATER);
    for (int layer = 0; layer < 4; layer++) {
        events[layer] = event_make();
        flow_append(s.o, (struct strait_append_params){
                             .layer_first = layer, .layer_count = 1, .ready = &events[layer], .last = layer == 3});
    }
    pump_for(50);
    ck_assert_uint_eq(0, s.e->layer_count);
    static const int order[] = {2, 0, 3, 1};
    for (int i = 0; i < 4; i++) {
        ck_assert(!s.e->decided);
        event_complete(&events[order[i]]);
        WAIT(s.e->layers[order[i]] == 1);
        ck_assert_uint_eq((uint32_t)i + 1, s.e->layer_count);
        close(events[order[i]].handle.fd);
    }
    arrives(s.e, s.o);
}

TEST_LOOP(listed_pages_wait_for_their_event, WIRES)
{
    struct scene s;
    struct event event = event_make();
    scene_begin(&s, (enum wire)_i, (struct strait_offer_params){KEY("k"), LISTS({.count = 8})});
    flow_append(s.o, (struct strait_append_params){LISTS({.first = 8, .first_id = 8, .count = 12}), .ready = &event,
                                                   .last = true, .aux = "aux", .aux_size = 3});
    WAIT(s.e->moved);
    pump_for(50);
    ck_assert(!s.e->decided);
    event_complete(&event);
    arrives(s.e, s.o);
    ck_assert_uint_eq(3, s.e->aux_size);
}

TEST_LOOP(offered_pages_wait_for_their_event, WIRES)
{
    struct scene s;
    struct event event = event_make();
    scene_begin(&s, (enum wire)_i,
                (struct strait_offer_params){KEY("k"), LISTS({.count = 20}), .ready = &event, .last = true,
                                             .aux = "aux", .aux_size = 3});
    pump_for(50);
    ck_assert(!s.e->decided && !s.e->moved);
    ck_assert_double_eq(0, stat_of(s.pair.sink, "gauges.slots_used"));
    event_complete(&event);
    arrives(s.e, s.o);
    ck_assert_uint_eq(3, s.e->aux_size);
}

/* Of two events it is the later one that ends the offer, whichever that is. */
TEST_LOOP(an_offer_with_an_event_may_be_appended_to, WIRES)
{
    struct scene s;
    struct event events[2] = {event_make(), event_make()};
    scene_begin(&s, (enum wire)_i, (struct strait_offer_params){KEY("k"), LISTS({.count = 8}), .ready = &events[0]});
    flow_append(s.o, (struct strait_append_params){LISTS({.first = 8, .first_id = 8, .count = 12}), .ready = &events[1],
                                                   .last = true});
    event_complete(&events[1]);
    WAIT(s.e->moved);
    pump_for(50);
    ck_assert(!s.e->decided);
    event_complete(&events[0]);
    arrives(s.e, s.o);
}

TEST_LOOP(an_event_that_fails_fails_an_offer_made_with_it, WIRES)
{
    struct scene s;
    struct event event = event_make();
    scene_begin(&s, (enum wire)_i,
                (struct strait_offer_params){KEY("k"), LISTS({.count = 20}), .ready = &event, .last = true});
    event_fail(&event);
    ends_failed(s.o, STRAIT_REASON_LOCAL);
    ck_assert_str_eq("the event of its pages failed", s.o->text);
    WAIT(s.e->decided);
    ck_assert(pool_as_imagined(s.sink));
}

TEST_LOOP(others_are_not_held_up, WIRES)
{
    struct scene s;
    struct event event = event_make();
    scene_begin(&s, (enum wire)_i, LATER);
    flow_append(s.o, (struct strait_append_params){.ready = &event, .last = true});
    struct geometry shape = {.pages = 20, .layers = 2, .gpu = 1};
    struct test_pool *source = pool_open(s.pair.source, shape), *sink = pool_open(s.pair.sink, shape);
    for (uint32_t i = 0; i < 5; i++) {
        char key[8];
        snprintf(key, sizeof(key), "%u", i);
        pool_fill(source, i);
        struct flow *o = flow_offer(source, (struct strait_offer_params){KEY(key), LISTS({.count = 20}), .last = true});
        struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY(key), LISTS({.count = 20})});
        flow_start(e, source);
        arrives(e, o);
    }
    ck_assert_double_eq(0, stat_of(s.pair.sink, "gauges.slots_used"));
    event_complete(&event);
    arrives(s.e, s.o);
}

TEST_LOOP(an_event_that_fails_fails_its_offer, WIRES)
{
    struct scene s;
    struct event event = event_make();
    scene_begin(&s, (enum wire)_i, LATER);
    flow_append(s.o, (struct strait_append_params){.ready = &event, .last = true});
    event_fail(&event);
    ends_failed(s.o, STRAIT_REASON_LOCAL);
    ck_assert_str_eq("the event of its pages failed", s.o->text);
    WAIT(s.e->decided);
    ck_assert(pool_as_imagined(s.sink));
}

TEST_LOOP(nothing_waits_for_an_event_that_is_forgotten, WIRES)
{
    struct scene s;
    struct event event = event_make();
    scene_begin(&s, (enum wire)_i, LATER);
    flow_append(s.o, (struct strait_append_params){.ready = &event, .last = true});
    strait_abort(s.o->transfer);
    ends_failed(s.o, STRAIT_REASON_ABORTED);
    wait_quiet(s.pair.source);
    struct flow *o = flow_offer(s.source, (struct strait_offer_params){KEY("m"), LISTS({.count = 20}), .later = true});
    flow_append(o, (struct strait_append_params){.ready = &event, .last = true}); /* when the daemon stops */
    pump_for(20);
}

TEST(pools_of_the_host_have_no_events)
{
    struct pair pair;
    struct event event = event_make();
    pair_open(&pair, SAME);
    struct test_pool *pool = pool_open(pair.source, (struct geometry){0});
    struct flow *o = flow_offer(pool, (struct strait_offer_params){KEY("k"), LISTS({.count = 1}), .later = true});
    struct strait_append_params append = {.size = sizeof(append), .ready = &event};
    ck_assert_int_eq(STRAIT_ERR_UNSUPPORTED, strait_append(o->transfer, &append));
}

TEST_LOOP(events_of_the_same_process_are_named_by_themselves, 2)
{
    struct party *party = party_embedded("arena-bytes = 2M\nchunk-bytes = 256K\ntransports = shm\n");
    struct geometry shape = {.pages = 20, .layers = 2, .pointers = true, .gpu = 1};
    struct test_pool *source = pool_open(party, shape), *sink = pool_open(party, shape);
    struct event event = event_make();
    pool_fill(source, 1);
    struct flow *o =
        flow_offer(source, (struct strait_offer_params){KEY("k"), LISTS({.count = 20}), .later = _i == 0,
                                                        .ready = _i == 0 ? NULL : &event, .last = _i != 0});
    struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY("k"), LISTS({.count = 20})});
    flow_start(e, source);
    if (_i == 0)
        flow_append(o, (struct strait_append_params){.ready = &event, .last = true});
    pump_for(50);
    ck_assert(!e->decided);
    event_complete(&event);
    arrives(e, o);
}

int main(void)
{
    return node_main("node_device");
}
