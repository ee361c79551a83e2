/* Pools in GPU memory (of the fake plugin): pages arrive whatever memory the two sides have, when events make them
 * ready, and the reasons of refused registrations are told. */
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fakes/cuda.h"
#include "tests/node/harness.h"

/* Pages in no order: 7 and every number of pages here have no common divisor. */
static void shuffle_all(struct test_pool *source, struct test_pool *sink)
{
    static uint32_t turn;
    uint32_t pages = source->geometry.pages, groups = source->geometry.groups, ids[2][512];
    struct strait_page_list from[4], to[4];
    ck_assert(pages <= 512 && groups <= 4);
    for (uint32_t i = 0; i < pages; i++) {
        ids[0][i] = i * 7 % pages;
        ids[1][i] = (i * 11 + 3) % pages;
    }
    for (uint32_t g = 0; g < groups; g++) {
        from[g] = (struct strait_page_list){.group = g, .count = pages, .ids = ids[0]};
        to[g] = (struct strait_page_list){.group = g, .count = pages, .ids = ids[1]};
    }
    pool_fill(source, ++turn);
    struct flow *o = OFFER(source, name_of(turn), .lists = from, .list_count = groups, .last = true);
    pull(EXPECT(sink, name_of(turn), .lists = to, .list_count = groups), o);
}

TEST_CASE(node_device);

/* ---- Moving ------------------------------------------------------------------------------------------------------ */

TEST_LOOP(pages_move_between_gpus, 3 * WIRES)
{
    struct pair pair = pair_coded(_i / 3, codings[1 + _i % 3]);
    struct geometry shape = {.pages = 128, .layers = 3, .roles = 2, .gpu = 1};
    pair_connect(&pair);
    struct test_pool *source = pool_open(pair.from, shape);
    shape.gpu = 2;
    shape.handle = STRAIT_HANDLE_CUDA_VMM;
    struct test_pool *sink = pool_open(pair.to, shape);
    const struct fake_control *fake = fake_control();
    uint32_t woken = fake->woken;
    for (int i = 0; i < 3; i++)
        shuffle_all(source, sink);
    ck_assert_uint_ge(fake->woken, woken + 6); /* by both sides of each */
    if (pair.wire == SAME)
        ck_assert_uint_ge(fake->copies, 3);
    else
        ck_assert_uint_ge(fake->tasks, 6);
    pair_quiet(&pair);
}

TEST_LOOP(either_side_can_be_the_host, WIRES)
{
    struct pair pair = pair_coded(_i, "tiered");
    pair_start(&pair, (struct geometry){.pages = 64, .layers = 2, .sink_gpu = 1});
    shuffle_all(pair.source, pair.sink);
    shuffle_all(pair.sink, pair.source);
}

TEST_LOOP(rows_and_odd_sizes_arrive, WIRES)
{
    struct pair pair = pair_coded(_i, "top16");
    pair_start(&pair, (struct geometry){.pages = 64, .layers = 2, .rows = 5, .row_bytes = 98, .gpu = 1});
    shuffle_all(pair.source, pair.sink);
    pair_pools(&pair, (struct geometry){.pages = 64, .row_bytes = 1001, .element = STRAIT_ELEMENT_FP8_E4M3, .gpu = 2});
    shuffle_all(pair.source, pair.sink);
}

TEST_LOOP(groups_of_a_pool_may_be_on_several_gpus, WIRES)
{
    struct pair pair = pair_coded(_i, "tiered");
    pair_start(&pair, (struct geometry){.groups = 2, .pages = 64, .layers = 2, .gpu = 1, .gpu_step = 1});
    shuffle_all(pair.source, pair.sink);
}

/* Both sides cut to the smaller slots, also for a first chunk that nobody has asked for. */
TEST(slots_may_differ_in_size)
{
    struct pair pair = pair_init(SHM);
    strcpy(pair.a->options.gpu_wires, "pinned");
    strcpy(pair.b->options.gpu_wires, "pinned");
    pair.a->options.chunk_bytes = 128u << 10;
    pair.b->options.chunk_bytes = 512u << 10;
    pair.a->options.chunk_target = pair.b->options.chunk_target = 512u << 10;
    pair_start(&pair, (struct geometry){.pages = 64, .layers = 2, .row_bytes = 100000, .gpu = 1});
    shuffle_all(pair.source, pair.sink);
    shuffle_all(pair.sink, pair.source);
}

TEST(what_is_started_together_runs_together)
{
    struct pair pair = pair_coded(SHM, "raw");
    fake_control()->delay_us = 5000;
    pair_start(&pair, (struct geometry){.pages = 256, .layers = 8, .gpu = 1});
    shuffle_all(pair.source, pair.sink);
    ck_assert_uint_ge(fake_control()->largest_batch, 2);
    ck_assert_uint_lt(fake_control()->batches, fake_control()->tasks);
}

#define SIZES "arena-bytes = 2M\nchunk-bytes = 256K\ntransports = shm\n"

TEST(embedded_pointers_are_a_gpus_too)
{
    struct geometry shape = {.pages = 32, .layers = 3, .pointers = true, .gpu = 2, .sink_gpu = 1};
    struct pair pair = pair_embedded(SIZES, shape);
    shuffle_all(pair.source, pair.sink);
    pair_quiet(&pair);
}

/* Closing a client does not wait for its node, and the driver does not wait for anybody. */
TEST(a_process_may_exit_while_its_embedded_node_still_leaves)
{
    int status;
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        fake_control()->close_us = 200000;
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
    struct pair pair = pair_init(SAME);
    pair_connect(&pair);
    struct test_pool *pool = pool_open(pair.from, (struct geometry){.layers = 16, .roles = 2, .gpu = 1});
    ck_assert_uint_eq(1, fake_control()->mapped);
    strait_pool_remove(pool->pool);
    WAIT(pool->removed);
    ck_assert_uint_eq(0, fake_control()->mapped);
}

TEST(arenas_are_pinned_when_a_gpu_needs_them)
{
    struct pair pair = pair_init(SHM);
    pair_connect(&pair);
    struct geometry shape = {.pages = 64, .gpu = 1};
    ck_assert_uint_eq(0, fake_control()->pinned);
    struct test_pool *source = pool_open(pair.from, shape);
    ck_assert_uint_eq(2, fake_control()->pinned); /* receive and send */
    struct test_pool *sink = pool_open(pair.to, shape);
    ck_assert_uint_eq(4, fake_control()->pinned);
    shuffle_all(source, sink);
    ck_assert_uint_eq(5, fake_control()->pinned); /* the sink's, as the source's daemon sees it */
    test_node_stop(pair.b);
    WAIT(fake_control()->pinned == 2);
}

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

TEST(pools_on_devices_are_refused_with_the_reason)
{
    struct pair pair = pair_init(SAME);
    struct fake_control *fake = fake_control();
    pair_connect(&pair);
    fake->no_device = 1;
    pool_refused(pair.from, (struct geometry){.gpu = 1}, STRAIT_ERR_UNSUPPORTED, "no GPU is plugged in");
    (void)pool_open(pair.from, (struct geometry){0});
    fake->no_device = 0; /* they are looked for again */
    pool_refused(pair.from, (struct geometry){.gpu = 3}, STRAIT_ERR_UNSUPPORTED, "no device 2: the daemon sees 2");
    fake->refuse_pin = 1;
    pool_refused(pair.from, (struct geometry){.gpu = 1}, STRAIT_ERR_NO_MEMORY, "no memory may be pinned");
    fake->refuse_pin = 0;
    for (uint32_t gpu = 1; gpu <= 2; gpu++)
        (void)pool_open(pair.from, (struct geometry){.gpu = gpu});
}

/* A registration that is like that of a good pool but for one thing. */
static void spoilt(struct party *party, struct strait_pool_region regions[2], const char *text)
{
    struct strait_pool *pool = NULL;
    const struct strait_pool_params params = {.size = sizeof(params), .regions = regions, .region_count = 2};
    ck_assert_int_eq(STRAIT_OK, strait_pool_register(party->client, &params, &pool));
    struct strait_event event = {0};
    while (event.type != STRAIT_EVENT_POOL)
        ck_assert_uint_eq(1, strait_wait(party->client, &event, 1, 5000));
    ck_assert_int_eq(text[0] == '\0' ? STRAIT_OK : STRAIT_ERR_INVALID, event.status);
    ck_assert_msg(strstr(event.text, text) != NULL, "%s", event.text);
}

TEST(handles_are_checked_against_their_memory)
{
    struct pair pair = pair_init(SAME);
    pair_connect(&pair);
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
    spoilt(pair.from, regions, "");
    regions[1].offset += 2;
    spoilt(pair.from, regions, "smaller than its regions need");
    regions[1] = good[1];
    regions[0].device = regions[1].device = 0;
    spoilt(pair.from, regions, "on another device");
    regions[1].device = 1;
    spoilt(pair.from, regions, "a group is on one device");
    regions[0] = good[0];
    regions[1].offset = 0;
    spoilt(pair.from, regions, "the same memory");
    regions[1] = good[1];
    handle.fd = 999;
    memcpy(regions[1].ipc, &handle, sizeof(handle));
    spoilt(pair.from, regions, "region 1: its handle names no memory");
    regions[1] = good[1];
    regions[1].handle = STRAIT_HANDLE_CUDA_VMM;
    regions[1].fd = STDIN_FILENO;
    spoilt(pair.from, regions, "its handle names no memory");
    WAIT(fake_control()->mapped == 1); /* that of the good one */
    strait_free(&memory);
}

TEST_CASE(node_device_ready);

/* Pages that are ready after an event of a GPU. */

enum { SCENE_LAYERS = 4, SCENE_PAGES = 20 };

struct scene {
    struct pair pair;
    struct flow *o, *e;
};

static struct scene scene_begin(int wire, uint32_t deadline_ms, struct strait_offer_params offer)
{
    struct scene scene = {.pair = pair_init(wire)};
    scene.pair.b->options.drain_ms = 300;
    pair_start(&scene.pair, (struct geometry){.pages = SCENE_PAGES, .layers = SCENE_LAYERS, .gpu = 1});
    move_all(scene.pair.source, scene.pair.sink); /* no deadline has to suffice for connecting, too */
    scene.o = flow_offer(scene.pair.source, offer);
    scene.e = expect_all(scene.pair.sink, "k", deadline_ms);
    flow_start(scene.e, scene.pair.source);
    return scene;
}

#define SCENE(wire, ...) scene_begin(wire, 0, (struct strait_offer_params){KEY("k"), __VA_ARGS__})
#define LATER            LISTS({.count = SCENE_PAGES}), .later = true

TEST_LOOP(layers_wait_for_their_events, WIRES)
{
    struct fake_handle events[4];
    struct scene s = SCENE(_i, LATER);
    for (int layer = 0; layer < 4; layer++) {
        events[layer] = event_make();
        APPEND(s.o, .layer_first = layer, .layer_count = 1, .ready = &events[layer], .last = layer == 3);
    }
    pump_for(50);
    ck_assert_uint_eq(0, s.e->layer_count);
    static const int order[] = {2, 0, 3, 1};
    for (int i = 0; i < 4; i++) {
        ck_assert(!s.e->decided);
        event_complete(&events[order[i]]);
        WAIT(s.e->layers[order[i]] == 1);
        ck_assert_uint_eq((uint32_t)i + 1, s.e->layer_count);
        close(events[order[i]].fd);
    }
    arrives(s.e, s.o);
}

TEST_LOOP(listed_pages_wait_for_their_event, WIRES)
{
    struct fake_handle event = event_make();
    struct scene s = SCENE(_i, LISTS({.count = 8}));
    APPEND(s.o, LISTS({.first = 8, .first_id = 8, .count = 12}), .ready = &event, .last = true, .aux = "aux",
           .aux_size = 3);
    WAIT(s.e->moved);
    stays_undecided(s.e, 50);
    event_complete(&event);
    arrives(s.e, s.o);
    ck_assert_uint_eq(3, s.e->aux_size);
}

TEST_LOOP(offered_pages_wait_for_their_event, WIRES)
{
    struct fake_handle event = event_make();
    struct scene s = SCENE(_i, LISTS({.count = 20}), .ready = &event, .last = true, .aux = "aux", .aux_size = 3);
    pump_for(50);
    ck_assert(!s.e->decided && !s.e->moved);
    ck_assert_double_eq(0, stat_of(s.pair.to, "gauges.slots_used"));
    event_complete(&event);
    arrives(s.e, s.o);
    ck_assert_uint_eq(3, s.e->aux_size);
}

/* Of two events it is the later one that ends the offer, whichever that is. */
TEST_LOOP(an_offer_with_an_event_may_be_appended_to, WIRES)
{
    struct fake_handle events[2] = {event_make(), event_make()};
    struct scene s = SCENE(_i, LISTS({.count = 8}), .ready = &events[0]);
    APPEND(s.o, LISTS({.first = 8, .first_id = 8, .count = 12}), .ready = &events[1], .last = true);
    event_complete(&events[1]);
    WAIT(s.e->moved);
    stays_undecided(s.e, 50);
    event_complete(&events[0]);
    arrives(s.e, s.o);
}

/* Chunks of a prefill, of which halves of the layers wait for events of their own; these complete in any order. */
TEST_LOOP(layers_of_chunks_wait_for_their_events, WIRES)
{
    enum { HALF = SCENE_LAYERS / 2 };
    struct fake_handle events[4] = {event_make(), event_make(), event_make(), event_make()};
    struct scene s = SCENE(_i, LISTS({.count = 8}), .later = true);
    for (int half = 0; half < 2; half++)
        APPEND(s.o, .layer_first = half * HALF, .layer_count = HALF, .ready = &events[half]);
    for (int half = 0; half < 2; half++) /* not among those for later, which an event above is about */
        APPEND(s.o, LISTS({.first = 8, .first_id = 8, .count = 12}), .layer_first = half * HALF, .layer_count = HALF,
               .ready = &events[2 + half], .last = half == 1);
    event_complete(&events[3]);
    event_complete(&events[1]);
    WAIT(s.e->layers[HALF] == 1 && s.e->layers[SCENE_LAYERS - 1] == 1);
    stays_undecided(s.e, 20);
    ck_assert_uint_eq(HALF, s.e->layer_count);
    event_complete(&events[0]);
    event_complete(&events[2]);
    arrives(s.e, s.o);
}

TEST_LOOP(others_are_not_held_up, WIRES)
{
    struct fake_handle event = event_make();
    struct scene s = SCENE(_i, LATER);
    APPEND(s.o, .ready = &event, .last = true);
    struct pair other = s.pair;
    pair_pools(&other, (struct geometry){.pages = 20, .layers = 2, .gpu = 1});
    for (uint32_t i = 0; i < 5; i++)
        move_all(other.source, other.sink);
    ck_assert_double_eq(0, stat_of(s.pair.to, "gauges.slots_used"));
    event_complete(&event);
    arrives(s.e, s.o);
}

/* Whether the offer was made with it, or pages were appended. */
TEST_LOOP(an_event_that_fails_fails_its_offer, 2 * WIRES)
{
    struct fake_handle event = event_make();
    bool at_once = _i % 2 == 0;
    struct scene s =
        at_once ? SCENE(_i / 2, LISTS({.count = SCENE_PAGES}), .ready = &event, .last = true) : SCENE(_i / 2, LATER);
    if (!at_once)
        APPEND(s.o, .ready = &event, .last = true);
    event_fail(&event);
    ends_failed(s.o, STRAIT_REASON_LOCAL);
    ck_assert_str_eq("the event of its pages failed", s.o->text);
    WAIT(s.e->decided);
    ck_assert(pool_as_imagined(s.pair.sink));
}

TEST_LOOP(nothing_waits_for_an_event_that_is_forgotten, WIRES)
{
    struct fake_handle event = event_make();
    struct scene s = SCENE(_i, LATER);
    APPEND(s.o, .ready = &event, .last = true);
    strait_abort(s.o->transfer);
    ends_failed(s.o, STRAIT_REASON_ABORTED);
    wait_quiet(s.pair.from);
    struct flow *o = OFFER(s.pair.source, "m", LISTS({.count = 20}), .later = true);
    APPEND(o, .ready = &event, .last = true); /* when the daemon stops */
    pump_for(20);
}

TEST(pools_of_the_host_have_no_events)
{
    struct fake_handle event = event_make();
    struct pair pair = pair_open(SAME, (struct geometry){0});
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 1}), .later = true);
    struct strait_append_params append = {.size = sizeof(append), .ready = &event};
    ck_assert_int_eq(STRAIT_ERR_UNSUPPORTED, strait_append(o->transfer, &append));
}

TEST_LOOP(events_of_the_same_process_are_named_by_themselves, 2)
{
    struct pair pair = pair_embedded(SIZES, (struct geometry){.pages = 20, .layers = 2, .pointers = true, .gpu = 1});
    struct fake_handle event = event_make();
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 20}), .later = _i == 0, .ready = _i == 0 ? NULL : &event,
                           .last = _i != 0);
    struct flow *e = PULL(pair.sink, o, LISTS({.count = 20}));
    if (_i == 0)
        APPEND(o, .ready = &event, .last = true);
    stays_undecided(e, 50);
    event_complete(&event);
    arrives(e, o);
}

TEST_CASE(node_device_stream);

/* Streams that wait for transfers: what runs on one after its wait finds the pages in place, and no sink is polled for
 * it. */

/* What a stream sees when it comes past its wait. */
struct sight {
    const struct test_pool *pool;
    uint8_t *bytes;
    atomic_int seen;
};

static void look(void *argument)
{
    struct sight *sight = argument;
    memcpy(sight->bytes, sight->pool->bytes, sight->pool->size);
    stream_count_(&sight->seen);
}

static void sight_begin(struct sight *sight, const struct test_pool *pool, void *stream)
{
    *sight = (struct sight){.pool = pool, .bytes = malloc(pool->size)};
    ck_assert_ptr_nonnull(sight->bytes);
    ck_assert_int_eq(0, cuda_queue(stream, look, sight));
}

static bool sight_is(const struct sight *sight, const uint8_t *image)
{
    return memcmp(sight->bytes, image, sight->pool->size) == 0;
}

static void wait_on(struct scene *scene, int32_t layer, void *stream)
{
    ck_assert_int_eq(STRAIT_OK, strait_wait_stream(scene->e->transfer, layer, stream));
}

static void append(struct scene *scene, int32_t layer, bool last)
{
    APPEND(scene->o, .layer_first = layer, .layer_count = 1, .last = last);
}

TEST_LOOP(a_stream_finds_all_pages_in_place, WIRES)
{
    struct sight sight;
    void *stream = stream_make(0);
    struct scene s = SCENE(_i, LATER);
    wait_on(&s, -1, stream);
    sight_begin(&sight, s.pair.sink, stream);
    WAIT(s.e->state >= STRAIT_READY);
    pump_for(50);
    ck_assert_int_eq(0, sight.seen);
    s.pair.to->deaf = true; /* from here on nobody asks the library */
    for (int layer = 0; layer < SCENE_LAYERS; layer++)
        append(&s, layer, layer == SCENE_LAYERS - 1);
    WAIT(sight.seen == 1);
    ck_assert(!s.e->decided);
    s.pair.to->deaf = false;
    arrives(s.e, s.o);
    ck_assert(sight_is(&sight, s.pair.sink->image));
    free(sight.bytes);
}

/* In the order in which layers come, each stream for its own; a wait for what has come is none. */
TEST_LOOP(each_layer_lets_its_streams_go_on, WIRES)
{
    static const int order[SCENE_LAYERS] = {2, 0, 3, 1};
    void *streams[SCENE_LAYERS];
    atomic_int ran[SCENE_LAYERS] = {0}, late = 0;
    void *stream = stream_make(0);
    struct scene s = SCENE(_i, LATER);
    for (int layer = 0; layer < SCENE_LAYERS; layer++) {
        streams[layer] = stream_make(layer % 2);
        wait_on(&s, layer, streams[layer]);
        stream_mark(streams[layer], &ran[layer]);
    }
    WAIT(s.e->state >= STRAIT_READY);
    s.pair.to->deaf = true;
    for (int i = 0; i < SCENE_LAYERS; i++) {
        pump_for(10);
        for (int k = i; k < SCENE_LAYERS; k++)
            ck_assert_int_eq(0, ran[order[k]]);
        append(&s, order[i], i == SCENE_LAYERS - 1);
        WAIT(ran[order[i]] == 1);
        if (i == 1) {
            wait_on(&s, order[0], stream);
            stream_mark(stream, &late);
            WAIT(late == 1);
        }
    }
    s.pair.to->deaf = false;
    arrives(s.e, s.o);
    wait_on(&s, -1, stream);
    stream_mark(stream, &late);
    WAIT(late == 2);
}

enum ending { DEADLINE, SOURCE_ABORTS, SOURCE_DAEMON_ENDS, OWN_DAEMON_ENDS, OWN_DAEMON_LEAVES, ENDINGS };

static void come_to_an_end(struct scene *s, int how)
{
    if (how == SOURCE_ABORTS)
        strait_abort(s->o->transfer);
    else if (how == SOURCE_DAEMON_ENDS)
        test_node_stop(s->pair.a);
    else if (how == OWN_DAEMON_ENDS)
        test_node_stop(s->pair.b);
    else if (how == OWN_DAEMON_LEAVES) {
        test_node_ask_stop(s->pair.b, true);
        test_node_join(s->pair.b);
    }
}

/* None of them does the sink's library hear of. */
TEST_LOOP(a_transfer_that_fails_lets_its_streams_go_on, (WIRES * ENDINGS))
{
    atomic_int ran = 0;
    int how = _i % ENDINGS;
    void *stream = stream_make(0);
    struct scene s =
        scene_begin(_i / ENDINGS, how == DEADLINE ? 1000 : 0, (struct strait_offer_params){KEY("k"), LATER});
    wait_on(&s, -1, stream);
    wait_on(&s, 1, stream);
    stream_mark(stream, &ran);
    WAIT(s.e->state >= STRAIT_READY);
    append(&s, 0, false);
    pump_for(50);
    ck_assert_int_eq(0, ran);
    s.pair.to->deaf = true;
    come_to_an_end(&s, how);
    WAIT(ran == 1);
    s.pair.to->deaf = false;
}

TEST_LOOP(waits_of_many_transfers_do_not_meet, WIRES)
{
    enum { TRANSFERS = 30 };
    struct geometry shape = {.pages = TRANSFERS, .layers = 2, .gpu = 1};
    struct pair pair = pair_init(_i);
    pair_start(&pair, shape);
    struct flow *o[TRANSFERS], *e[TRANSFERS];
    atomic_int ran[TRANSFERS] = {0};
    pool_fill(pair.source, 2);
    for (uint32_t i = 0; i < TRANSFERS; i++) {
        void *stream = stream_make(0);
        o[i] = OFFER(pair.source, name_of(i), LISTS({.first_id = i, .count = 1}), .later = true);
        e[i] = EXPECT(pair.sink, name_of(i), LISTS({.first_id = i, .count = 1}));
        ck_assert_int_eq(STRAIT_OK, strait_wait_stream(e[i]->transfer, (int32_t)(i % 3) - 1, stream));
        stream_mark(stream, &ran[i]);
        flow_start(e[i], pair.source);
    }
    for (uint32_t i = TRANSFERS; i-- > 0;) {
        pump_for(2);
        ck_assert_int_eq(0, ran[i]);
        APPEND(o[i], .last = true);
        WAIT(ran[i] == 1);
        arrives(e[i], o[i]);
    }
}

TEST(an_embedded_daemon_makes_no_stream_wait)
{
    struct party *party = party_embedded(SIZES);
    struct test_pool *pool = pool_open(party, (struct geometry){.pointers = true, .gpu = 1});
    struct flow *e = EXPECT(pool, "k", LISTS({.count = 1}));
    ck_assert_int_eq(STRAIT_ERR_UNSUPPORTED, strait_wait_stream(e->transfer, -1, stream_make(0)));
    struct flow *o = OFFER(pool, "m", LISTS({.first_id = 2, .count = 1}));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_wait_stream(o->transfer, -1, NULL));
}

int main(void)
{
    return node_main("node_device");
}
