/* Requests between two parties over every transport, and their codings. */
#include "tests/node/harness.h"

#include <cjson/cJSON.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/channel.h"

TEST_CASE(node_basic);

/* ---- System calls of the nodes' loops ---------------------------------------------------------------------------- */

/* Messages sent, counted on all threads but the test's own, which are the nodes'. Calls, not time: they are the same on
 * a busy machine. */
static uint32_t sends;

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    if (gettid() != getpid())
        __atomic_fetch_add(&sends, 1, __ATOMIC_RELAXED);
    return syscall(SYS_sendmsg, fd, message, flags);
}

/* Of the sink's node: REQUEST, DONE, END; of the source's: SEGMENTS, the offer's states, its DONE. Heartbeats come on
 * top, and states that were not to wait for more, where threads stop in the middle of a pull. */
TEST(a_small_pull_takes_six_messages)
{
    enum { PULLS = 50 };
    struct pair pair = pair_open(SHM, (struct geometry){0});
    for (uint32_t i = 0; i <= PULLS; i++) {
        if (i == 1) /* the first one connects the two */
            __atomic_store_n(&sends, 0, __ATOMIC_RELAXED);
        struct flow *o = OFFER(pair.source, name_of(i), LISTS({.count = 1}), .last = true);
        pump_for(2);
        struct flow *e = PULL(pair.sink, o, LISTS({.count = 1, .first_id = 1}));
        arrives(e, o);
        flow_release(e);
        flow_release(o);
    }
    ck_assert_uint_lt(__atomic_load_n(&sends, __ATOMIC_RELAXED), 7 * PULLS);
}

/* The loops poll for the next step of a transfer, but not for a next transfer. */
TEST(nodes_that_have_nothing_to_do_take_no_time)
{
    struct pair pair = pair_open(SHM, (struct geometry){0});
    for (uint32_t i = 0; i < 20; i++) {
        struct flow *o = OFFER(pair.source, name_of(i), LISTS({.count = 1}), .last = true);
        arrives(PULL(pair.sink, o, LISTS({.count = 1, .first_id = 1})), o);
    }
    pair_quiet(&pair);
    double cpu = process_cpu_s();
    (void)poll(NULL, 0, 300);
    cpu = process_cpu_s() - cpu;
    ck_assert_double_lt(cpu, 0.01);
}

/* ---- Ways to begin ----------------------------------------------------------------------------------------------- */

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

TEST_LOOP(either_side_or_both_may_begin_and_start, ALL_WIRES)
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

static double phases_of(struct party *party, const char *role, const char *const *names, uint32_t count, double passed)
{
    char path[64];
    double sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        snprintf(path, sizeof(path), "phases.%s.%s.count", role, names[i]);
        ck_assert_double_eq(passed, stat_of(party, path));
        snprintf(path, sizeof(path), "phases.%s.%s.sum_us", role, names[i]);
        sum += stat_of(party, path);
    }
    return sum;
}

/* One page: fixed costs are all there is. */
TEST_LOOP(the_phases_of_a_small_pull_are_all_of_its_time, WIRES)
{
    static const char *const sink[] = {"start", "connect", "answer", "chunks", "decode", "verdict"};
    static const char *const source[] = {"offer", "encode", "send", "end"};
    enum { PULLS = 20 };
    struct pair pair = pair_open(_i, (struct geometry){0});
    const uint64_t began = uv_hrtime();
    for (uint32_t i = 0; i < PULLS; i++) {
        struct flow *o = OFFER(pair.source, name_of(i), LISTS({.count = 1}), .last = true);
        struct flow *e = PULL(pair.sink, o, LISTS({.count = 1, .first_id = 1}));
        arrives(e, o);
        flow_release(e);
        flow_release(o);
    }
    const double phases = phases_of(pair.to, "sink", sink, COUNT(sink), PULLS);
    const double verdicts = stat_of(pair.to, "stages.transfer.sum_us");
    ck_assert_double_ge(phases + PULLS, verdicts);                     /* a verdict is decided before it is written */
    ck_assert_double_le(phases, (double)(uv_hrtime() - began) / 1000); /* one after the other */
    ck_assert_double_gt(stat_of(pair.to, "phases.sink.decode.sum_us"), 0);
    if (pair.wire == SAME) {
        (void)phases_of(pair.from, "source", source, COUNT(source), 0);
        return;
    }
    (void)phases_of(pair.from, "source", source, COUNT(source), PULLS);
    ck_assert_double_gt(stat_of(pair.to, "phases.sink.answer.sum_us"), 0);
    ck_assert_double_le(stat_of(pair.from, "phases.source.encode.sum_us"),
                        stat_of(pair.to, "phases.sink.answer.sum_us") + stat_of(pair.to, "phases.sink.chunks.sum_us"));
}

/* Of which each consumer takes its part, and the offer counts all of them. */
TEST_LOOP(a_verdict_tells_how_much_has_moved_and_with_whom, WIRES)
{
    struct pair pair = pair_coded(_i, "raw");
    pair_start(&pair, (struct geometry){.pages = 16, .layers = 3});
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 8}), .last = true, .consumers = 2);
    struct flow *e = PULL(pair.sink, o, LISTS({.count = 5}));
    ends_done(e);
    struct flow *second = EXPECT(pair.sink, "second", LISTS({.count = 3, .first_id = 10}));
    flow_start_as(second, pair.source, "k");
    ends_done(second);
    ends_done(o);
    ck_assert_uint_eq(5 * 3 * 4096, e->raw_bytes);
    ck_assert_uint_eq(3 * 3 * 4096, second->raw_bytes);
    ck_assert_uint_eq(8 * 3 * 4096, o->raw_bytes);
    if (_i == SAME) {
        ck_assert_uint_eq(0, e->wire_bytes + o->wire_bytes);
        ck_assert_str_eq("", e->peer);
        ck_assert_str_eq("", o->peer);
        return;
    }
    ck_assert_uint_ge(e->wire_bytes, e->raw_bytes); /* raw, and its header */
    ck_assert_uint_eq(e->wire_bytes + second->wire_bytes, o->wire_bytes);
    ck_assert_str_eq(peers_address(pair.a->node->peers), e->peer);
    ck_assert_str_eq(peers_address(pair.b->node->peers), o->peer);
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
TEST_LOOP(many_requests_run_at_once_both_ways, ALL_WIRES)
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

TEST(equal_codebooks_shrink_what_travels)
{
    struct pair pair = pair_coded(TCP, "auto");
    pair_start(&pair, (struct geometry){.pages = 32});
    ck_assert_uint_eq(0, strait_peer_check(pair.sink->pool, peer_of(pair.to, pair.source)));
    move_all(pair.source, pair.sink); /* one chunk: nothing is measured before it, and a slow link is assumed */
    ck_assert_double_eq(1, stat_of(pair.from, "counters.chunks_sent_tiered"));
    WAIT(stat_of(pair.from, "counters.raw_bytes_sent") == 32 * 4096); /* it may count after its transfer is DONE */
    ck_assert_double_lt(stat_of(pair.from, "counters.wire_bytes_sent"), 32 * 4096 * 0.8);
    ck_assert_str_eq("tcp", peer_text(pair.from, "transport"));
    ck_assert_int_eq(0, strncmp("tiered: ", peer_text(pair.from, "coding"), 8));
}

static double peer_figure(struct party *party, const char *field)
{
    cJSON *root = cJSON_Parse(stats_text(party));
    const cJSON *figures = cJSON_GetArrayItem(cJSON_GetObjectItem(root, "peer_figures"), 0);
    const cJSON *item = cJSON_GetObjectItem(figures, field), *ways = cJSON_GetObjectItem(figures, "ways");
    double value = cJSON_IsNumber(item) ? item->valuedouble : -1;
    if (strcmp(field, "ways") == 0)
        value = cJSON_GetArraySize(ways) == 1
                    ? cJSON_GetNumberValue(cJSON_GetObjectItem(cJSON_GetArrayItem(ways, 0), "bytes"))
                    : -1;
    cJSON_Delete(root);
    return value;
}

TEST_RANGE(what_a_node_carries_is_counted_for_the_peer_too, SHM, ALL_WIRES)
{
    static const char *const connections[] = {
        [SHM] = "connections_shm",
        [TCP] = "connections_tcp",
#ifdef STRAIT_HAVE_UCX
        [UCX] = "connections_ucx",
#endif
    };
    struct pair pair = pair_coded((enum wire)_i, "tiered");
    pair_start(&pair, (struct geometry){.pages = 32});
    move_all(pair.source, pair.sink);
    WAIT(stat_of(pair.from, "counters.raw_bytes_sent") == 32 * 4096);
    const double wire = stat_of(pair.from, "counters.wire_bytes_sent");
    ck_assert_double_eq(32 * 4096, peer_figure(pair.from, "raw_bytes_sent"));
    ck_assert_double_eq(wire, peer_figure(pair.from, "wire_bytes_sent"));
    ck_assert_double_eq(wire, peer_figure(pair.from, "ways"));
    ck_assert_double_eq(0, peer_figure(pair.from, "raw_bytes_landed"));
    ck_assert_double_eq(32 * 4096, peer_figure(pair.to, "raw_bytes_landed"));
    ck_assert_double_eq(wire, peer_figure(pair.to, "wire_bytes_landed"));
    ck_assert_double_ge(peer_figure(pair.from, connections[_i]), 1);
    ck_assert_double_eq(peer_figure(pair.from, "connections"), peer_figure(pair.from, connections[_i]));
    test_node_stop(pair.b);
    WAIT(peer_figure(pair.from, "connections") == 0);
    ck_assert_double_ge(peer_figure(pair.from, "failed_connections"), 1);
    ck_assert_double_eq(wire, peer_figure(pair.from, "wire_bytes_sent")); /* counts outlive connections */
}

/* No arena is used, so none has to have room for a page. */
TEST(a_local_page_may_be_larger_than_a_chunk)
{
    struct pair pair = pair_init(SAME);
    nodes[0].options.chunk_bytes = 64 << 10;
    pair_start(&pair, (struct geometry){.pages = 4, .layers = 2, .rows = 256, .row_bytes = 1024});
    move_all(pair.source, pair.sink);
    wait_quiet(pair.from);
}

static const char *coding_now(struct pair *pair)
{
    move_all(pair->source, pair->sink);
    return peer_text(pair->from, "coding");
}

TEST(a_reload_changes_limits_and_coding_and_keeps_the_rest)
{
    struct pair pair = pair_coded(SHM, "top16");
    char socket[sizeof(pair.a->options.socket)];
    pair_start(&pair, (struct geometry){.pages = 16});
    snprintf(socket, sizeof(socket), "%s", pair.a->options.socket);
    move_all(pair.source, pair.sink);
    struct node_options *o = &pair.a->options;
    snprintf(o->coding, sizeof(o->coding), "raw");
    snprintf(o->socket, sizeof(o->socket), "/nowhere/s");
    o->pool_bytes = 4096;
    test_node_reload(pair.a);
    ck_assert_str_eq("raw: pinned by the option coding", coding_now(&pair));
    ck_assert_str_eq(socket, pair.a->node->options.socket);
    ck_assert_uint_eq(100, pair.a->node->options.heartbeat_ms); /* peer-timeout is the same */
    pool_refused(pair.from, (struct geometry){.pages = 16}, STRAIT_ERR_NO_MEMORY,
                 "region 0: more than the 0 bytes that may be mapped");
    o->pool_bytes = 1u << 30;
    o->peer_timeout_ms = 6000;
    test_node_reload(pair.a);
    ck_assert_uint_eq(2000, pair.a->node->options.heartbeat_ms);
    struct test_pool *more = pool_open(pair.from, (struct geometry){.pages = 16});
    ck_assert_int_eq(STRAIT_OK, more->status);
    snprintf(o->socket, sizeof(o->socket), "%s", socket);
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

int main(void)
{
    return node_main("node_basic");
}
