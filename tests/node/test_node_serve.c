/* Pages that a pool serves are read while its owner does nothing; a fence says when they are free again. */
#include "tests/node/harness.h"
#include "tests/node/rogue.h"

static const struct geometry shape = {.groups = 2, .layers = 3, .roles = 2, .pages = 64, .rows = 2, .row_bytes = 1024};

#define RANGE(from, pages) ((struct strait_page_list){.count = (pages), .first_id = (from)})

static struct pair serving(int wire, uint32_t served)
{
    struct pair pair = pair_open(wire, shape);
    const struct strait_page_list list = RANGE(0, served);
    ck_assert_int_eq(STRAIT_OK, strait_pool_serve(pair.source->pool, &list, 1));
    return pair;
}

static void read_all(struct pair *pair, uint32_t from, uint32_t to, uint32_t pages)
{
    reads(flow_read(pair->sink, pair->source, RANGE(to, pages), RANGE(from, pages), 0), pair->source,
          RANGE(from, pages));
}

static void refused(struct pair *pair, struct strait_page_list from, enum strait_reason reason)
{
    struct flow *r = flow_read(pair->sink, pair->source, RANGE(0, from.count), from, 0);
    ends_failed(r, reason);
    ck_assert_uint_eq(from.count, r->failed_count);
    ck_assert(pool_as_imagined(pair->sink));
    flow_release(r);
}

/* ---- Reads ------------------------------------------------------------------------------------------------------- */

TEST_LOOP(served_pages_are_read_in_any_order, ALL_WIRES)
{
    struct pair pair = serving(_i, 64);
    static const uint32_t from[] = {9, 3, 63, 10, 11, 0}, to[] = {1, 40, 39, 2, 3, 63};
    const struct strait_page_list list = {.first = 5, .count = 6, .ids = from};
    struct flow *r =
        flow_read(pair.sink, pair.source, (struct strait_page_list){.first = 5, .count = 6, .ids = to}, list, 0);
    reads(r, pair.source, list);
    ck_assert_uint_eq(3, r->layer_count);
    read_all(&pair, 0, 0, 64);
    WAIT(stat_of(pair.from, "counters.source_done") == 2); /* the reader knows it first */
    ck_assert(stat_of(pair.from, "counters.reads_served") == 2);
    pair_quiet(&pair);
}

TEST_LOOP(several_groups_and_nothing_at_all_are_read, WIRES)
{
    struct pair pair = pair_open(_i, shape);
    ck_assert_int_eq(STRAIT_OK, strait_pool_serve(pair.source->pool, NULL, 0)); /* all */
    struct strait_page_list lists[3] = {RANGE(0, 3), RANGE(8, 2), RANGE(1, 7)};
    lists[1].first = 10;
    lists[2].group = 1;
    struct flow *again = keep(sizeof(*again));
    *again = (struct flow){.pool = pair.sink, .lists = lists, .list_count = 3, .sink = true, .state = STRAIT_BOOTSTRAP};
    struct strait_peer *peer = peer_of(pair.to, pair.source);
    struct strait_read_params params = {.size = sizeof(params),
                                        .lists = lists,
                                        .list_count = 3,
                                        .peer_lists = lists,
                                        .peer_list_count = 3,
                                        .deadline_ms = 20000,
                                        .context = again};
    ck_assert_int_eq(STRAIT_OK, strait_read(pair.sink->pool, peer, &params, &again->transfer));
    ends_done(again);
    landed(again, &(struct flow){.pool = pair.source, .lists = lists, .list_count = 3});
    ck_assert(pool_as_imagined(pair.sink));
    struct flow *none = keep(sizeof(*none));
    *none = (struct flow){.pool = pair.sink, .sink = true, .state = STRAIT_BOOTSTRAP};
    params.list_count = params.peer_list_count = 0;
    params.context = none;
    ck_assert_int_eq(STRAIT_OK, strait_read(pair.sink->pool, peer, &params, &none->transfer));
    ends_done(none);
}

TEST_LOOP(the_owner_need_not_run, WIRES)
{
    struct pair pair = serving(_i, 64);
    (void)stats_text(pair.from); /* its daemon has what is served */
    pair.from->deaf = true;
    for (int i = 0; i < 20; i++)
        read_all(&pair, 3, 7, 5);
    pair.from->deaf = false;
}

TEST_LOOP(many_reads_at_once_all_end, WIRES)
{
    enum { MANY = 200 };
    struct pair pair = pair_open(_i, (struct geometry){.pages = MANY});
    struct flow *r[MANY];
    ck_assert_int_eq(STRAIT_OK, strait_pool_serve(pair.source->pool, NULL, 0));
    for (uint32_t i = 0; i < MANY; i++)
        r[i] = flow_read(pair.sink, pair.source, RANGE(i, 1), RANGE(i * 7 % MANY, 1), 0);
    for (uint32_t i = 0; i < MANY; i++)
        ends_done(r[i]);
    for (uint32_t i = 0; i < MANY; i++) {
        struct strait_page_list from = RANGE(i * 7 % MANY, 1);
        landed(r[i], &(struct flow){.pool = pair.source, .lists = &from, .list_count = 1});
    }
    ck_assert(pool_as_imagined(pair.sink));
    pair_quiet(&pair);
}

/* ---- What is not served ------------------------------------------------------------------------------------------ */

TEST_LOOP(pages_that_are_not_served_are_not_read, WIRES)
{
    struct pair pair = serving(_i, 8);
    refused(&pair, RANGE(8, 1), STRAIT_REASON_NOT_SERVED);
    refused(&pair, RANGE(0, 9), STRAIT_REASON_NOT_SERVED);
    refused(&pair, RANGE(64, 1), STRAIT_REASON_NOT_SERVED); /* there is no such page */
    refused(&pair, RANGE(UINT32_MAX - 8, 8), STRAIT_REASON_NOT_SERVED);
    struct strait_page_list other = RANGE(0, 1);
    other.group = 1;
    struct flow *r = flow_read(pair.sink, pair.source, other, other, 0);
    ends_failed(r, STRAIT_REASON_NOT_SERVED);
    read_all(&pair, 0, 0, 8);
    pair_quiet(&pair);
}

/* Both name as many pages, but not the same ones. */
TEST_LOOP(indexes_that_differ_are_refused, WIRES)
{
    struct pair pair = serving(_i, 64);
    struct strait_page_list from = RANGE(0, 4);
    from.first = 1;
    struct flow *r = flow_read(pair.sink, pair.source, RANGE(0, 4), from, 0);
    ends_failed(r, STRAIT_REASON_GEOMETRY);
    struct strait_page_list twice[2] = {RANGE(0, 2), RANGE(2, 2)};
    struct flow *again = keep(sizeof(*again));
    const struct strait_page_list to = RANGE(0, 4);
    *again = (struct flow){.pool = pair.sink, .lists = (struct strait_page_list *)&to, .list_count = 1, .sink = true};
    const struct strait_read_params params = {.size = sizeof(params),
                                              .lists = &to,
                                              .list_count = 1,
                                              .peer_lists = twice,
                                              .peer_list_count = 2,
                                              .deadline_ms = 20000,
                                              .context = again};
    ck_assert_int_eq(STRAIT_OK, strait_read(pair.sink->pool, peer_of(pair.to, pair.source), &params, &again->transfer));
    ends_failed(again, STRAIT_REASON_GEOMETRY);
    undefined(r);
    ck_assert(pool_as_imagined(pair.sink));
    pair_quiet(&pair);
}

/* A pool that serves nothing is waited for, as its client may only just have come back; but not for long. */
TEST_LOOP(a_pool_that_never_serves_is_not_waited_for_until_the_deadline, WIRES)
{
    struct pair pair = pair_init(_i);
    pair.a->options.unreachable_ms = 300;
    pair_start(&pair, shape);
    const uint64_t began = wait_clock();
    refused(&pair, RANGE(0, 1), STRAIT_REASON_NOT_SERVED);
    ck_assert_uint_lt(ms_since(began), 10000);
    struct flow *waits = flow_read(pair.sink, pair.source, RANGE(0, 2), RANGE(4, 2), 0);
    pump_for(50);
    ck_assert_int_eq(STRAIT_OK, strait_pool_serve(pair.source->pool, NULL, 0));
    reads(waits, pair.source, RANGE(4, 2));
}

TEST_LOOP(a_page_that_is_being_written_is_busy, WIRES)
{
    struct pair pair = serving(_i, 64);
    struct flow *e = EXPECT(pair.source, "written", LISTS({.first_id = 5, .count = 1}));
    (void)stats_text(pair.from);
    refused(&pair, RANGE(0, 8), STRAIT_REASON_BUSY);
    read_all(&pair, 0, 0, 5);
    strait_abort(e->transfer);
    ends_failed(e, STRAIT_REASON_ABORTED);
    read_all(&pair, 0, 0, 8);
}

TEST(arguments_are_checked)
{
    struct pair pair = serving(SAME, 64);
    struct strait_peer *peer = peer_of(pair.to, pair.source), *foreign = peer_of(pair.from, pair.sink);
    const struct strait_page_list two = RANGE(0, 2), three = RANGE(0, 3), beyond = RANGE(63, 2), none = RANGE(0, 0),
                                  no_group = {.group = 2, .count = 2};
    struct strait_transfer *transfer = NULL;
    struct {
        const struct strait_peer *peer;
        const struct strait_page_list *own, *theirs;
        uint32_t deadline_ms;
    } bad[] = {{foreign, &two, &two, 1000}, {peer, &two, &three, 1000},    {peer, &beyond, &two, 1000},
               {peer, &two, NULL, 1000},    {peer, &two, &no_group, 1000}, {peer, &two, &two, 0},
               {NULL, &two, &two, 1000},    {peer, NULL, &two, 1000}};
    for (int i = 0; i < COUNT(bad); i++) {
        const struct strait_read_params params = {.size = sizeof(params),
                                                  .lists = bad[i].own,
                                                  .list_count = 1,
                                                  .peer_lists = bad[i].theirs,
                                                  .peer_list_count = 1,
                                                  .deadline_ms = bad[i].deadline_ms};
        ck_assert_int_eq(STRAIT_ERR_INVALID, strait_read(pair.sink->pool, bad[i].peer, &params, &transfer));
    }
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_read(pair.sink->pool, peer, NULL, &transfer));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_pool_serve(pair.source->pool, &beyond, 1));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_pool_serve(pair.source->pool, &none, 1));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_pool_serve(NULL, &two, 1));
    ck_assert_int_eq(STRAIT_ERR_INVALID, pool_fence(pair.source, beyond, 0, NULL));
    ck_assert_int_eq(STRAIT_ERR_INVALID, pool_fence(pair.source, two, 86400001, NULL));
    struct test_pool *other = pool_open(pair.to, (struct geometry){.row_bytes = 2048});
    const struct strait_read_params params = {.size = sizeof(params),
                                              .lists = &two,
                                              .list_count = 1,
                                              .peer_lists = &two,
                                              .peer_list_count = 1,
                                              .deadline_ms = 1000};
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_read(other->pool, peer, &params, &transfer));
}

/* ---- Fences ------------------------------------------------------------------------------------------------------ */

TEST_LOOP(a_fence_takes_pages_back_until_they_are_served_again, WIRES)
{
    struct pair pair = serving(_i, 64);
    uint32_t fenced = 0;
    read_all(&pair, 0, 0, 16);
    ck_assert_int_eq(STRAIT_OK, pool_fence(pair.source, RANGE(4, 8), 0, &fenced));
    WAIT(fenced == 1);
    refused(&pair, RANGE(3, 2), STRAIT_REASON_NOT_SERVED);
    refused(&pair, RANGE(11, 1), STRAIT_REASON_NOT_SERVED);
    read_all(&pair, 12, 30, 20);
    pool_fill(pair.source, 2);
    const struct strait_page_list again = RANGE(4, 8);
    ck_assert_int_eq(STRAIT_OK, strait_pool_serve(pair.source->pool, &again, 1));
    (void)stats_text(pair.from);
    read_all(&pair, 0, 0, 16);
}

/* The value that a whole page has in each generation. */
static void write_generation(struct test_pool *pool, uint32_t page, uint8_t generation)
{
    const uint32_t regions = pool->geometry.groups * pool->geometry.layers * pool->geometry.roles;
    for (uint32_t r = 0; r < regions; r++)
        memset((uint8_t *)pool_page(pool, r, page), generation, pool->geometry.row_bytes);
}

/* The owner rewrites pages behind fences, while they are read all the time: no read sees half of a write. */
TEST_LOOP(no_read_sees_a_page_that_is_half_written, WIRES)
{
    enum { TURNS = 150, READS = 3 };
    struct pair pair = pair_open(_i, (struct geometry){.pages = 4, .layers = 4, .row_bytes = 32768});
    struct flow *r[READS] = {NULL};
    uint32_t fenced = 0, done = 0, not_served = 0;
    write_generation(pair.source, 1, 0);
    ck_assert_int_eq(STRAIT_OK, strait_pool_serve(pair.source->pool, NULL, 0));
    for (uint32_t turn = 1; turn <= TURNS; turn++) {
        for (uint32_t i = 0; i < READS; i++)
            if (r[i] == NULL)
                r[i] = flow_read(pair.sink, pair.source, RANGE(i, 1), RANGE(1, 1), 0);
        pump((int)(turn % 3));
        ck_assert_int_eq(STRAIT_OK, pool_fence(pair.source, RANGE(1, 1), turn % 2 * 10000, &fenced));
        WAIT(fenced == turn);
        write_generation(pair.source, 1, (uint8_t)turn);
        for (uint32_t i = 0; i < READS; i++) {
            if (!r[i]->decided)
                continue; /* it has not reached the owner's daemon yet, or its verdict is on the way */
            done += r[i]->state == STRAIT_DONE;
            not_served += r[i]->reason == STRAIT_REASON_NOT_SERVED;
            for (uint32_t layer = 1; layer < 4 && r[i]->state == STRAIT_DONE; layer++)
                ck_assert_int_eq(0, memcmp(pool_page(pair.sink, 0, i), pool_page(pair.sink, layer, i), 32768));
            flow_release(r[i]);
            r[i] = NULL;
        }
        const struct strait_page_list page = RANGE(1, 1);
        ck_assert_int_eq(STRAIT_OK, strait_pool_serve(pair.source->pool, &page, 1));
    }
    for (uint32_t i = 0; i < READS; i++)
        if (r[i] != NULL)
            WAIT(r[i]->decided && r[i]->drained);
    ck_assert_uint_gt(done + not_served, 0);
    pair_quiet(&pair);
}

/* ---- A reader that never ends: played by the test ---------------------------------------------------------------- */

static struct scene {
    struct pair pair;
    struct rogue rogue;
    struct pool_blob blob;
    uint64_t leg;
} s;

static void scene_open_with(uint32_t served, bool reshapes)
{
    memset(&s, 0, sizeof(s));
    s.pair = serving(SHM, served);
    s.blob = blob_of(s.pair.source);
    (void)stats_text(s.pair.from);
    rogue_init(&s.rogue, 64 << 10);
    s.rogue.reshapes = reshapes;
    rogue_meet(&s.rogue, s.pair.a);
}

static void scene_open(uint32_t served)
{
    scene_open_with(served, false);
}

static void scene_close(void)
{
    rogue_leave(&s.rogue);
    rogue_fini(&s.rogue);
    blob_fini(&s.blob);
}

static void say_read(const struct wire_page_list *lists, uint32_t count, bool rest, bool more)
{
    struct message request = rogue_request(&s.blob, "rogue", s.leg, NULL);
    request.request.span_count = 0;
    request.request.read = true;
    request.request.rest = rest;
    request.request.more = more;
    request.request.lists = lists;
    request.request.list_count = count;
    rogue_say(&s.rogue, &request);
}

/* A read of these pages that gets no grant, and so does not end. */
static void hold(uint32_t first_id, uint32_t count)
{
    const struct wire_page_list list = {.count = count, .first_id = first_id};
    const uint32_t before = s.rogue.heard.segments_count;
    s.leg++;
    say_read(&list, 1, false, false);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.segments_count > before);
}

static void refuses(enum strait_reason reason)
{
    const uint32_t before = s.rogue.heard.end_count;
    ROGUE_WAIT(&s.rogue, s.rogue.heard.end_count > before);
    ck_assert_uint_eq(s.leg, s.rogue.heard.end.leg);
    ck_assert_int_eq(STRAIT_FAILED, s.rogue.heard.end.state);
    ck_assert_int_eq(reason, s.rogue.heard.end.reason);
}

TEST(a_fence_waits_for_reads_of_its_pages_and_ends_them_after_the_grace)
{
    uint32_t others = 0, fenced = 0, soon = 0;
    scene_open(64);
    hold(10, 4);
    ck_assert_int_eq(STRAIT_OK, pool_fence(s.pair.source, RANGE(14, 8), 10000, &others));
    ROGUE_WAIT(&s.rogue, others == 1); /* not its pages */
    const uint64_t began = wait_clock();
    ck_assert_int_eq(STRAIT_OK, pool_fence(s.pair.source, RANGE(0, 11), 400, &fenced));
    ck_assert_int_eq(STRAIT_OK, pool_fence(s.pair.source, RANGE(12, 2), 86400000, &soon));
    ROGUE_WAIT(&s.rogue, fenced == 1 && soon == 1);
    ck_assert_uint_ge(ms_since(began) + 1 + machine_late_ms(), 400);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.end.reason == STRAIT_REASON_NOT_SERVED);
    hold(40, 1);
    fenced = 0;
    ck_assert_int_eq(STRAIT_OK, pool_fence(s.pair.source, RANGE(40, 1), 0, &fenced));
    ROGUE_WAIT(&s.rogue, fenced == 1);
    scene_close();
    wait_quiet(s.pair.from);
}

/* Its pages stay free of transfers meanwhile, and are written again afterwards. */
TEST(a_reader_that_goes_ends_its_read)
{
    uint32_t fenced = 0;
    scene_open(64);
    hold(0, 64);
    struct flow *e = EXPECT(s.pair.source, "write", LISTS({.count = 1}));
    ends_failed(e, STRAIT_REASON_BUSY);
    ck_assert_int_eq(STRAIT_OK, pool_fence(s.pair.source, RANGE(0, 64), 60000, &fenced));
    (void)stats_text(s.pair.from);
    ck_assert_uint_eq(0, fenced);
    scene_close();
    WAIT(fenced == 1);
    e = EXPECT(s.pair.source, "write again", LISTS({.count = 1}));
    stays_undecided(e, 20);
}

TEST(a_read_ends_with_its_deadline_even_if_the_reader_does_not)
{
    scene_open(64);
    const struct wire_page_list list = {.count = 4};
    struct message request = rogue_request(&s.blob, "rogue", ++s.leg, NULL);
    request.request.span_count = 0;
    request.request.read = true;
    request.request.lists = &list;
    request.request.list_count = 1;
    request.request.deadline_ms = 50;
    rogue_say(&s.rogue, &request);
    refuses(STRAIT_REASON_LEASE_EXPIRED);
    scene_close();
    wait_quiet(s.pair.from);
}

TEST(an_owner_that_goes_ends_reads_of_its_pages)
{
    s.pair = pair_init(SHM);
    scene_open(64);
    hold(0, 4);
    party_close(s.pair.from);
    refuses(STRAIT_REASON_LOCAL);
    scene_close();
}

TEST(a_pool_that_is_removed_ends_reads_of_its_pages)
{
    scene_open(64);
    hold(0, 4);
    uint32_t fenced = 0;
    ck_assert_int_eq(STRAIT_OK, pool_fence(s.pair.source, RANGE(0, 4), 60000, &fenced));
    strait_pool_remove(s.pair.source->pool);
    refuses(STRAIT_REASON_NOT_SERVED);
    ROGUE_WAIT(&s.rogue, s.pair.source->removed);
    ck_assert_uint_eq(1, fenced);
    scene_close();
}

static void say_read_of_other_geometry(const struct wire_page_list *list)
{
    s.leg++;
    struct message request = rogue_request(&s.blob, "rogue", s.leg, NULL);
    request.request.span_count = 0;
    request.request.read = true;
    request.request.lists = list;
    request.request.list_count = 1;
    request.request.geometry++;
    rogue_say(&s.rogue, &request);
}

TEST(a_read_whose_pool_is_never_described_times_out)
{
    static const struct wire_page_list list = {.count = 4};
    scene_open_with(64, true);
    s.pair.a->options.unreachable_ms = 300;
    const uint64_t began = wait_clock();
    say_read_of_other_geometry(&list);
    refuses(STRAIT_REASON_TIMEOUT);
    ck_assert_uint_ge(ms_since(began) + 1 + machine_late_ms(), 300);
    say_read_of_other_geometry(&list); /* it is asked again */
    refuses(STRAIT_REASON_TIMEOUT);
    hold(0, 4);
    scene_close();
    wait_quiet(s.pair.from);
}

TEST(hostile_reads_are_refused)
{
    static struct wire_page_list twice[] = {{.count = 4}, {.first = 3, .count = 1}};
    static const struct wire_page_list group = {.group = 63, .count = 1}, beyond = {.count = 4, .first_id = 62},
                                       fine = {.count = 4};
    scene_open(64);
    s.leg++;
    say_read(twice, 2, false, false);
    refuses(STRAIT_REASON_GEOMETRY);
    s.leg++;
    say_read(&group, 1, false, false);
    refuses(STRAIT_REASON_NOT_SERVED);
    s.leg++;
    say_read(&beyond, 1, false, false);
    refuses(STRAIT_REASON_NOT_SERVED);
    s.leg++; /* in parts, of which the second is no read's */
    say_read(&fine, 1, false, true);
    const struct wire_span span = {.first = 4, .count = 1};
    struct message request = rogue_request(&s.blob, "rogue", s.leg, &span);
    request.request.rest = true;
    rogue_say(&s.rogue, &request);
    refuses(STRAIT_REASON_GEOMETRY);
    say_read_of_other_geometry(&fine);
    refuses(STRAIT_REASON_GEOMETRY);
    s.leg++; /* in parts: fine */
    say_read(&fine, 1, false, true);
    const struct wire_page_list rest = {.first = 4, .count = 4, .first_id = 8};
    say_read(&rest, 1, true, false);
    ROGUE_WAIT(&s.rogue, s.rogue.heard.units == 8 * 6);
    s.leg++; /* never complete: forgotten with the connection */
    say_read(&fine, 1, false, true);
    scene_close();
    wait_quiet(s.pair.from);
}

/* The pages of one peer's reads are limited, whatever it asks for. */
TEST(a_peer_that_reads_without_end_is_refused)
{
    scene_open(64);
    s.pair.a->options.parked = 4096;
    s.pair.a->options.unreachable_ms = 0; /* until the deadline: so many parts take a busy machine seconds */
    static uint32_t ids[1 << 20];
    const struct wire_page_list list = {.count = 1 << 20, .ids = ids};
    for (uint32_t i = 0; i < 5; i++) { /* parts of one read: 5 Mi pages */
        struct wire_page_list part = list;
        part.first = i << 20;
        if (i == 0)
            s.leg++;
        say_read(&part, 1, i > 0, true);
    }
    refuses(STRAIT_REASON_NO_MEMORY);
    scene_close();
    wait_quiet(s.pair.from);
}

/* ---- Daemons that come and go ------------------------------------------------------------------------------------ */

TEST_LOOP(a_daemon_that_was_started_again_serves_what_its_client_served, WIRES)
{
    struct pair pair = pair_init(_i);
    snprintf(pair.a->options.listen, sizeof(pair.a->options.listen), "127.0.0.1:%u", reserve_port());
    pair.a->options.unreachable_ms = pair.b->options.unreachable_ms = 0; /* until the deadline */
    pair_start(&pair, shape);
    uint32_t fenced = 0;
    ck_assert_int_eq(STRAIT_OK, strait_pool_serve(pair.source->pool, NULL, 0));
    ck_assert_int_eq(STRAIT_OK, pool_fence(pair.source, RANGE(8, 8), 0, &fenced));
    WAIT(fenced == 1);
    read_all(&pair, 16, 0, 8);
    test_node_stop(pair.a);
    WAIT(!strait_client_connected(pair.from->client));
    ck_assert_int_eq(STRAIT_OK, pool_fence(pair.source, RANGE(20, 1), 0, &fenced)); /* nobody reads */
    WAIT(fenced == 2);
    pair.from->deaf = true; /* its pool comes later than the reader */
    test_node_start(pair.a);
    if (pair.a == pair.b)
        WAIT(strait_client_connected(pair.to->client));
    const struct strait_page_list from = RANGE(24, 8);
    pair.from->deaf = false;
    WAIT(strait_client_connected(pair.from->client));
    reads(flow_read(pair.sink, pair.source, RANGE(0, 8), from, 0), pair.source, from);
    refused(&pair, RANGE(8, 1), STRAIT_REASON_NOT_SERVED);
    refused(&pair, RANGE(20, 1), STRAIT_REASON_NOT_SERVED);
}

TEST_LOOP(a_pool_whose_owner_is_gone_fails_reads_soon, WIRES)
{
    struct pair pair = pair_init(_i);
    pair.a->options.unreachable_ms = 300;
    pair_start(&pair, shape);
    ck_assert_int_eq(STRAIT_OK, strait_pool_serve(pair.source->pool, NULL, 0));
    read_all(&pair, 0, 0, 8);
    struct strait_peer *peer = peer_of(pair.to, pair.source);
    party_close(pair.from);
    const struct strait_page_list list = RANGE(0, 8);
    struct flow *r = keep(sizeof(*r));
    *r = (struct flow){.pool = pair.sink, .sink = true, .state = STRAIT_BOOTSTRAP};
    const struct strait_read_params params = {.size = sizeof(params),
                                              .lists = &list,
                                              .list_count = 1,
                                              .peer_lists = &list,
                                              .peer_list_count = 1,
                                              .deadline_ms = 60000,
                                              .context = r};
    ck_assert_int_eq(STRAIT_OK, strait_read(pair.sink->pool, peer, &params, &r->transfer));
    ends_failed(r, STRAIT_REASON_PEER_DOWN);
    wait_quiet(pair.to);
}

int main(void)
{
    return node_main("node_serve");
}
