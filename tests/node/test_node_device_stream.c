/* Streams that wait for transfers, through nodes: what runs on one after its wait finds the pages in place, and no sink
 * is polled for it. */
#include "tests/node/harness.h"

#include <unistd.h>

#include "tests/fakes/cuda.h"

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

struct scene {
    struct pair pair;
    struct test_pool *source, *sink;
    struct flow *o, *e;
    void *stream;
};

enum { SCENE_LAYERS = 4, SCENE_PAGES = 20 };

/* No deadline has to suffice for that, too. */
static void connect_both(struct scene *scene)
{
    struct flow *o =
        flow_offer(scene->source, (struct strait_offer_params){KEY("first"), LISTS({.count = 1}), .last = true});
    struct flow *e = flow_expect(scene->sink, (struct strait_expect_params){KEY("first"), LISTS({.count = 1})});
    flow_start(e, scene->source);
    arrives(e, o);
}

static void scene_begin(struct scene *scene, enum wire wire, uint32_t deadline_ms)
{
    struct geometry shape = {.pages = SCENE_PAGES, .layers = SCENE_LAYERS, .gpu = 1};
    pair_init(&scene->pair, wire);
    scene->pair.b->options.drain_ms = 300;
    pair_start(&scene->pair);
    scene->stream = stream_make(0);
    scene->source = pool_open(scene->pair.source, shape);
    scene->sink = pool_open(scene->pair.sink, shape);
    pool_fill(scene->source, 1);
    connect_both(scene);
    scene->o =
        flow_offer(scene->source, (struct strait_offer_params){KEY("k"), LISTS({.count = SCENE_PAGES}), .later = true});
    scene->e = flow_expect(scene->sink, (struct strait_expect_params){KEY("k"), LISTS({.count = SCENE_PAGES}),
                                                                      .deadline_ms = deadline_ms});
    flow_start(scene->e, scene->source);
}

static void wait_on(struct scene *scene, int32_t layer, void *stream)
{
    ck_assert_int_eq(STRAIT_OK, strait_wait_stream(scene->e->transfer, layer, stream));
}

static void append(struct scene *scene, int32_t layer, bool last)
{
    flow_append(scene->o, (struct strait_append_params){.layer_first = layer, .layer_count = 1, .last = last});
}

TEST_LOOP(a_stream_finds_all_pages_in_place, WIRES)
{
    struct scene s;
    struct sight sight;
    scene_begin(&s, (enum wire)_i, 0);
    wait_on(&s, -1, s.stream);
    sight_begin(&sight, s.sink, s.stream);
    WAIT(s.e->state >= STRAIT_READY);
    pump_for(50);
    ck_assert_int_eq(0, sight.seen);
    s.pair.sink->deaf = true; /* from here on nobody asks the library */
    for (int layer = 0; layer < SCENE_LAYERS; layer++)
        append(&s, layer, layer == SCENE_LAYERS - 1);
    WAIT(sight.seen == 1);
    ck_assert(!s.e->decided);
    s.pair.sink->deaf = false;
    arrives(s.e, s.o);
    ck_assert(sight_is(&sight, s.sink->image));
    free(sight.bytes);
}

/* In the order in which layers come, each stream for its own; a wait for what has come is none. */
TEST_LOOP(each_layer_lets_its_streams_go_on, WIRES)
{
    static const int order[SCENE_LAYERS] = {2, 0, 3, 1};
    struct scene s;
    void *streams[SCENE_LAYERS];
    atomic_int ran[SCENE_LAYERS] = {0}, late = 0;
    scene_begin(&s, (enum wire)_i, 0);
    for (int layer = 0; layer < SCENE_LAYERS; layer++) {
        streams[layer] = stream_make(layer % 2);
        wait_on(&s, layer, streams[layer]);
        stream_mark(streams[layer], &ran[layer]);
    }
    WAIT(s.e->state >= STRAIT_READY);
    s.pair.sink->deaf = true;
    for (int i = 0; i < SCENE_LAYERS; i++) {
        pump_for(10);
        for (int k = i; k < SCENE_LAYERS; k++)
            ck_assert_int_eq(0, ran[order[k]]);
        append(&s, order[i], i == SCENE_LAYERS - 1);
        WAIT(ran[order[i]] == 1);
        if (i == 1) {
            wait_on(&s, order[0], s.stream);
            stream_mark(s.stream, &late);
            WAIT(late == 1);
        }
    }
    s.pair.sink->deaf = false;
    arrives(s.e, s.o);
    wait_on(&s, -1, s.stream);
    stream_mark(s.stream, &late);
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
TEST_LOOP(a_transfer_that_fails_lets_its_streams_go_on, WIRES *ENDINGS)
{
    struct scene s;
    atomic_int ran = 0;
    int how = _i % ENDINGS;
    scene_begin(&s, (enum wire)(_i / ENDINGS), how == DEADLINE ? 1000 : 0);
    wait_on(&s, -1, s.stream);
    wait_on(&s, 1, s.stream);
    stream_mark(s.stream, &ran);
    WAIT(s.e->state >= STRAIT_READY);
    append(&s, 0, false);
    pump_for(50);
    ck_assert_int_eq(0, ran);
    s.pair.sink->deaf = true;
    come_to_an_end(&s, how);
    WAIT(ran == 1);
    s.pair.sink->deaf = false;
}

TEST_LOOP(waits_of_many_transfers_do_not_meet, WIRES)
{
    enum { TRANSFERS = 30 };
    struct pair pair;
    struct geometry shape = {.pages = TRANSFERS, .layers = 2, .gpu = 1};
    pair_open(&pair, (enum wire)_i);
    struct test_pool *source = pool_open(pair.source, shape), *sink = pool_open(pair.sink, shape);
    struct flow *o[TRANSFERS], *e[TRANSFERS];
    atomic_int ran[TRANSFERS] = {0};
    pool_fill(source, 2);
    for (uint32_t i = 0; i < TRANSFERS; i++) {
        char key[8];
        void *stream = stream_make(0);
        snprintf(key, sizeof(key), "%u", i);
        o[i] = flow_offer(source,
                          (struct strait_offer_params){KEY(key), LISTS({.first_id = i, .count = 1}), .later = true});
        e[i] = flow_expect(sink, (struct strait_expect_params){KEY(key), LISTS({.first_id = i, .count = 1})});
        ck_assert_int_eq(STRAIT_OK, strait_wait_stream(e[i]->transfer, (int32_t)(i % 3) - 1, stream));
        stream_mark(stream, &ran[i]);
        flow_start(e[i], source);
    }
    for (uint32_t i = TRANSFERS; i-- > 0;) {
        pump_for(2);
        ck_assert_int_eq(0, ran[i]);
        flow_append(o[i], (struct strait_append_params){.last = true});
        WAIT(ran[i] == 1);
        arrives(e[i], o[i]);
    }
}

TEST(an_embedded_daemon_makes_no_stream_wait)
{
    struct party *party = party_embedded("arena-bytes = 2M\nchunk-bytes = 256K\ntransports = shm\n");
    struct test_pool *pool = pool_open(party, (struct geometry){.pointers = true, .gpu = 1});
    struct flow *e = flow_expect(pool, (struct strait_expect_params){KEY("k"), LISTS({.count = 1})});
    ck_assert_int_eq(STRAIT_ERR_UNSUPPORTED, strait_wait_stream(e->transfer, -1, stream_make(0)));
    struct flow *o = flow_offer(pool, (struct strait_offer_params){KEY("m"), LISTS({.first_id = 2, .count = 1})});
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_wait_stream(o->transfer, -1, NULL));
}

int main(void)
{
    return node_main("node_device_stream");
}
