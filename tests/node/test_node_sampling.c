/* Samples of what a node moves: the counts are those of pages that are offered or served, and of no others, within the
 * budget, and for those who may know. Pages that their owner has back hold MARK, whose exponent no other value has. */
#include "tests/node/harness.h"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/session.h"
#include "kernels/codebook_file.h"
#include "proto/channel.h"

enum { ALICE = 61001, BOB = 61002, MARK = 0x40, MARK_EXPONENT = 0x80, BF16 = 1 << STRAIT_ELEMENT_BF16 };

static const struct geometry shape = {.groups = 2, .layers = 3, .roles = 2, .pages = 64};

/* ---- Who asks ---------------------------------------------------------------------------------------------------- */

struct asker {
    struct channel *channel;
};

static void become(uint32_t id)
{
    ck_assert_int_eq(0, (int)syscall(SYS_setresuid, -1, id, -1)); /* of this thread alone */
}

static void say(struct asker *asker, const struct message *message)
{
    ck_assert_int_eq(STRAIT_OK, channel_send(asker->channel, message, NULL, 0));
    ck_assert_int_eq(STRAIT_OK, channel_flush(asker->channel));
}

static struct asker asker_as(const struct test_node *node, uint32_t id)
{
    struct asker asker;
    const struct message hello = {.type = MESSAGE_HELLO,
                                  .hello = {.version = PROTOCOL_VERSION, .version_min = PROTOCOL_VERSION_MIN}};
    become(id);
    int fd = unix_dial(node->options.socket);
    become(0);
    ck_assert_int_eq(STRAIT_OK, channel_create(fd, MESSAGE_BYTES_MAX, 1 << 20, &asker.channel));
    say(&asker, &hello);
    struct message welcome = channel_await(asker.channel, MESSAGE_WELCOME);
    ck_assert(welcome.welcome.samples);
    message_fini(&welcome);
    return asker;
}

static void ask_for(struct asker *asker, uint64_t bytes, uint32_t milliseconds, uint32_t elements)
{
    const struct message sample = {.type = MESSAGE_SAMPLE,
                                   .sample = {.bytes = bytes, .milliseconds = milliseconds, .elements = elements}};
    say(asker, &sample);
}

static void asker_leave(struct asker *asker)
{
    channel_destroy(asker->channel);
}

/* ---- Answers ----------------------------------------------------------------------------------------------------- */

struct answer {
    enum strait_status status;
    char text[128];
    struct message_sampled figures;
    struct codebook_histogram *list; /* kept until the end of the test */
    uint32_t count;
};

static struct answer answer_of(struct asker *asker)
{
    struct answer answer = {0};
    struct message message = channel_await(asker->channel, MESSAGE_SAMPLED);
    const struct message_sampled *sampled = &message.sampled;
    answer.status = (enum strait_status)sampled->status;
    answer.figures = *sampled;
    snprintf(answer.text, sizeof(answer.text), "%.*s", (int)sampled->text.size, (const char *)sampled->text.data);
    if (sampled->counts.size > 0) {
        struct codebook_histogram *list;
        ck_assert_int_eq(STRAIT_OK,
                         codebook_partial_parse(sampled->counts.data, sampled->counts.size, &list, &answer.count));
        answer.list = keep(answer.count * sizeof(*list));
        memcpy(answer.list, list, answer.count * sizeof(*list));
        free(list);
    }
    message_fini(&message);
    return answer;
}

/* A sample of one client, which leaves. */
static struct answer sample_as(const struct test_node *node, uint32_t id, uint64_t bytes, uint32_t milliseconds,
                               uint32_t elements)
{
    struct asker asker = asker_as(node, id);
    ask_for(&asker, bytes, milliseconds, elements);
    struct answer answer = answer_of(&asker);
    asker_leave(&asker);
    return answer;
}

static const uint64_t *counts_of(const struct answer *answer, enum strait_role role, int32_t layer)
{
    static const uint64_t none[256];
    for (uint32_t i = 0; i < answer->count; i++)
        if (answer->list[i].class.role == role && answer->list[i].class.layer == layer)
            return answer->list[i].counts;
    return none;
}

static uint64_t sum(const uint64_t counts[256])
{
    uint64_t all = 0;
    for (int e = 0; e < 256; e++)
        all += counts[e];
    return all;
}

static uint64_t values_of(const struct answer *answer)
{
    uint64_t all = 0;
    for (uint32_t i = 0; i < answer->count; i++)
        all += sum(answer->list[i].counts);
    return all;
}

static uint64_t marks_of(const struct answer *answer)
{
    uint64_t all = 0;
    for (uint32_t i = 0; i < answer->count; i++)
        all += answer->list[i].counts[MARK_EXPONENT];
    return all;
}

static uint32_t regions_of(const struct test_pool *pool)
{
    return pool->geometry.groups * pool->geometry.layers * pool->geometry.roles;
}

/* Counts pages [first, first + count) of a group, in its regions of one role and layer. */
static void count_pages(const struct test_pool *pool, uint32_t group, uint32_t first, uint32_t count,
                        enum strait_role role, int32_t layer, uint64_t counts[256])
{
    const struct geometry *g = &pool->geometry;
    const uint32_t region = group * g->layers * g->roles + (uint32_t)layer * g->roles + (role == STRAIT_ROLE_V ? 1 : 0);
    for (uint32_t id = first; id < first + count; id++)
        strait_histogram_add(counts, pool_page(pool, region, id), g->row_bytes / 2);
}

static void mark(struct test_pool *pool, uint32_t first, uint32_t count)
{
    for (uint32_t r = 0; r < regions_of(pool); r++)
        for (uint32_t id = first; id < first + count; id++)
            memset((uint8_t *)(uintptr_t)pool_page(pool, r, id), MARK, pool->geometry.row_bytes);
}

static uint64_t bytes_of(const struct test_pool *pool, uint32_t pages)
{
    return (uint64_t)pages * pool->geometry.layers * pool->geometry.roles * pool->geometry.row_bytes;
}

/* ---- What is counted --------------------------------------------------------------------------------------------- */

TEST(what_is_offered_is_counted_once_and_nothing_else)
{
    struct pair pair = pair_open(SAME, shape);
    pool_fill(pair.sink, 2);
    mark(pair.source, 40, 24);
    mark(pair.sink, 0, 50);
    OFFER(pair.source, "a", LISTS({.count = 30}, {.group = 1, .count = 10}), .last = true);
    OFFER(pair.source, "b", LISTS({.first = 7, .first_id = 30, .count = 10}), .last = true);
    OFFER(pair.sink, "c", LISTS({.first_id = 50, .count = 14}));  /* more may follow */
    EXPECT(pair.sink, "d", LISTS({.first_id = 10, .count = 14})); /* and these are to be written */
    (void)stats_text(pair.to);
    const uint64_t all = bytes_of(pair.source, 50) + bytes_of(pair.sink, 14);
    struct answer answer = sample_as(pair.a, 0, all, 600000, BF16);
    ck_assert_int_eq(STRAIT_OK, answer.status);
    ck_assert_uint_eq(2, answer.figures.pools);
    ck_assert_uint_eq(all, answer.figures.bytes);
    ck_assert_uint_eq(answer.figures.bytes, answer.figures.ready_bytes);
    ck_assert_uint_eq(0, answer.figures.device_bytes + answer.figures.other_bytes);
    ck_assert_uint_eq(6, answer.count);
    for (uint32_t c = 0; c < 6; c++) {
        const enum strait_role role = c % 2 == 0 ? STRAIT_ROLE_K : STRAIT_ROLE_V;
        uint64_t counts[256] = {0};
        count_pages(pair.source, 0, 0, 40, role, (int32_t)c / 2, counts);
        count_pages(pair.source, 1, 0, 10, role, (int32_t)c / 2, counts);
        count_pages(pair.sink, 0, 50, 14, role, (int32_t)c / 2, counts);
        ck_assert_mem_eq(counts, counts_of(&answer, role, (int32_t)c / 2), sizeof(counts));
    }
    ck_assert_uint_eq(0, marks_of(&answer));
}

/* Offers that come while the sample is taken, in small and in large pages. */
TEST_LOOP(what_becomes_ready_during_the_sample_is_counted, 2)
{
    struct geometry geometry = {.layers = 2, .roles = 2, .pages = 16, .row_bytes = _i == 0 ? 64 : 1 << 20};
    struct pair pair = pair_open(SAME, geometry);
    struct asker asker = asker_as(pair.a, 0);
    const uint64_t all = bytes_of(pair.source, 4) + bytes_of(pair.source, 8) / 2;
    ask_for(&asker, all, 600000, BF16);
    struct flow *o = OFFER(pair.source, "a", LISTS({.count = 8}), .later = true);
    APPEND(o, .layer_first = 1, .layer_count = 1);
    OFFER(pair.source, "b", LISTS({.first_id = 8, .count = 4}), .last = true);
    struct answer answer = answer_of(&asker);
    uint64_t counts[2][256] = {{0}};
    ck_assert_uint_eq(all, answer.figures.bytes);
    ck_assert_uint_eq(all, answer.figures.ready_bytes);
    count_pages(pair.source, 0, 8, 4, STRAIT_ROLE_V, 0, counts[0]);
    count_pages(pair.source, 0, 0, 12, STRAIT_ROLE_V, 1, counts[1]);
    for (int32_t layer = 0; layer < 2; layer++)
        ck_assert_mem_eq(counts[layer], counts_of(&answer, STRAIT_ROLE_V, layer), sizeof(counts[layer]));
    asker_leave(&asker);
}

TEST(served_pages_are_counted)
{
    struct pair pair = pair_open(SAME, shape);
    static const uint32_t ids[] = {50, 3, 17};
    const struct strait_page_list before = {.first_id = 8, .count = 20}, during = {.count = 3, .ids = ids};
    uint32_t fenced = 0;
    uint64_t counts[256] = {0};
    mark(pair.source, 20, 8);
    ck_assert_int_eq(STRAIT_OK, strait_pool_serve(pair.source->pool, &before, 1));
    ck_assert_int_eq(STRAIT_OK,
                     pool_fence(pair.source, (struct strait_page_list){.first_id = 20, .count = 8}, 1000, &fenced));
    WAIT(fenced == 1);
    struct asker asker = asker_as(pair.a, 0);
    ask_for(&asker, bytes_of(pair.source, 12 + 3), 600000, BF16);
    ck_assert_int_eq(STRAIT_OK, strait_pool_serve(pair.source->pool, &during, 1));
    struct answer answer = answer_of(&asker);
    ck_assert_uint_eq(bytes_of(pair.source, 12 + 3), answer.figures.bytes);
    count_pages(pair.source, 0, 8, 12, STRAIT_ROLE_K, 2, counts);
    for (uint32_t i = 0; i < 3; i++)
        count_pages(pair.source, 0, ids[i], 1, STRAIT_ROLE_K, 2, counts);
    ck_assert_mem_eq(counts, counts_of(&answer, STRAIT_ROLE_K, 2), sizeof(counts));
    ck_assert_uint_eq(0, marks_of(&answer));
    asker_leave(&asker);
}

TEST(values_of_other_types_are_passed_over_unless_asked_for)
{
    struct geometry geometry = {.pages = 8, .element = STRAIT_ELEMENT_FP32};
    struct pair pair = pair_open(SAME, geometry);
    offer_all(pair.source, "a");
    (void)stats_text(pair.from);
    struct answer answer = sample_as(pair.a, 0, 1 << 20, 100, BF16 | 1 << STRAIT_ELEMENT_FP8_E4M3);
    ck_assert_int_eq(STRAIT_OK, answer.status);
    ck_assert_uint_eq(0, answer.count + answer.figures.bytes + answer.figures.ready_bytes + answer.figures.pools);
    ck_assert_uint_eq(bytes_of(pair.source, 8), answer.figures.other_bytes);
    answer = sample_as(pair.a, 0, bytes_of(pair.source, 8), 600000, 1 << STRAIT_ELEMENT_FP32);
    ck_assert_uint_eq(bytes_of(pair.source, 8), answer.figures.bytes);
    ck_assert_uint_eq(bytes_of(pair.source, 8) / 4, values_of(&answer));
}

TEST(memory_of_gpus_is_passed_over)
{
    struct pair pair = pair_open(SAME, gpu_small);
    offer_all(pair.source, "a");
    (void)stats_text(pair.from);
    struct answer answer = sample_as(pair.a, 0, 1 << 20, 100, BF16);
    ck_assert_int_eq(STRAIT_OK, answer.status);
    ck_assert_uint_eq(0, answer.count + answer.figures.bytes + answer.figures.ready_bytes);
    ck_assert_uint_eq(bytes_of(pair.source, gpu_small.pages), answer.figures.device_bytes);
}

TEST(nothing_is_counted_where_nothing_is_ready)
{
    struct pair pair = pair_open(SAME, shape);
    struct answer answer = sample_as(pair.a, 0, 1 << 20, 50, BF16);
    ck_assert_int_eq(STRAIT_OK, answer.status);
    ck_assert_uint_eq(0, answer.count + answer.figures.bytes + answer.figures.ready_bytes + answer.figures.pools);
}

/* ---- The budget -------------------------------------------------------------------------------------------------- */

/* The sample ends when the budget is spent, long before its time, and is spread evenly over classes. */
TEST_LOOP(the_budget_is_kept, 4)
{
    enum { PAGE = 4096 };
    static const uint64_t budgets[] = {1, PAGE, 600 * PAGE + 1, 6 * 400 * PAGE - 1};
    struct geometry geometry = {.layers = 3, .roles = 2, .pages = 512, .row_bytes = PAGE};
    struct pair pair = pair_open(SAME, geometry);
    offer_all(pair.source, "a");
    (void)stats_text(pair.from);
    struct answer answer = sample_as(pair.a, 0, budgets[_i], 600000, BF16);
    ck_assert_uint_eq(budgets[_i] / PAGE * PAGE, answer.figures.bytes);
    ck_assert_uint_eq(answer.figures.bytes / 2, values_of(&answer));
    ck_assert_uint_eq(bytes_of(pair.source, 512), answer.figures.ready_bytes);
    const uint64_t share = budgets[_i] / PAGE / 6 * PAGE / 2;
    for (int32_t layer = 0; layer < 3; layer++) {
        const uint64_t values = sum(counts_of(&answer, STRAIT_ROLE_K, layer));
        ck_assert(values >= share && values <= share + PAGE / 2);
    }
}

/* Pages of all parts of a long offer, and of all offers. */
TEST(a_small_budget_is_spread)
{
    struct geometry geometry = {.pages = 1024, .row_bytes = 4096};
    struct pair pair = pair_open(SAME, geometry);
    mark(pair.source, 512, 512);
    offer_all(pair.source, "a");
    offer_all(pair.sink, "b"); /* of CANARY */
    (void)stats_text(pair.from);
    (void)stats_text(pair.to);
    struct answer answer = sample_as(pair.a, 0, 256 * 4096, 600000, BF16);
    const uint64_t values = values_of(&answer), marks = marks_of(&answer);
    uint8_t canary[2] = {CANARY, CANARY};
    uint64_t canaries[256] = {0};
    strait_histogram_add(canaries, canary, 1);
    uint64_t others = 0;
    for (int e = 0; e < 256; e++)
        others += canaries[e] != 0 ? answer.list[0].counts[e] : 0;
    ck_assert_uint_eq(256 * 2048, values);
    ck_assert_msg(marks > values / 5 && marks < values / 3, "%lu of %lu", (unsigned long)marks, (unsigned long)values);
    ck_assert_msg(others > values * 2 / 5 && others < values * 3 / 5, "%lu of %lu", (unsigned long)others,
                  (unsigned long)values);
}

/* ---- Pages that their owners have back --------------------------------------------------------------------------- */

enum { ROUNDS = 150 / SLOW };

static const struct geometry large = {.layers = 2, .roles = 2, .pages = 8, .row_bytes = 128 << 10};

/* Offers are aborted at any time, and their pages overwritten as soon as they are drained. */
TEST(pages_are_not_looked_at_after_their_offer)
{
    struct pair pair = pair_open(SAME, large);
    struct asker asker = asker_as(pair.a, 0);
    ask_for(&asker, 1ull << 30, 600000, BF16);
    for (int i = 0; i < ROUNDS; i++) {
        pool_fill(pair.source, (uint64_t)i);
        struct flow *o = offer_all(pair.source, name_of((uint32_t)i));
        pump_for(i % 4);
        strait_abort(o->transfer);
        WAIT(o->drained);
        mark(pair.source, 0, large.pages);
        flow_release(o);
    }
    test_node_ask_stop(pair.a, true);
    struct answer answer = answer_of(&asker);
    ck_assert_int_eq(STRAIT_ERR_AGAIN, answer.status);
    ck_assert_str_eq("the daemon is stopping", answer.text);
    asker_leave(&asker);
}

/* The same, with the answer; the offers are fetched, too. */
TEST_LOOP(pages_are_not_looked_at_after_they_have_moved, WIRES)
{
    struct pair pair = pair_open(_i, large);
    struct asker asker = asker_as(pair.a, 0);
    ask_for(&asker, 1ull << 30, 700 * SLOW, BF16);
    for (int i = 0; i < ROUNDS / 5; i++) {
        struct move move = move_begin(pair.source, pair.sink);
        if (i % 3 == 0)
            strait_abort(move.offer->transfer);
        WAIT(move.offer->drained);
        mark(pair.source, 0, large.pages);
        WAIT(move.expectation->drained);
        undefined(move.expectation);
        flow_release(move.expectation);
        flow_release(move.offer);
    }
    struct answer answer = answer_of(&asker);
    ck_assert_int_eq(STRAIT_OK, answer.status);
    ck_assert_uint_gt(answer.figures.bytes, 0);
    ck_assert_uint_eq(0, marks_of(&answer));
    asker_leave(&asker);
}

TEST(pages_are_not_looked_at_behind_a_fence)
{
    struct pair pair = pair_open(SAME, large);
    struct asker asker = asker_as(pair.a, 0);
    const struct strait_page_list all = {.count = large.pages};
    ask_for(&asker, 1ull << 30, 700 * SLOW, BF16);
    for (int i = 0; i < ROUNDS / 3; i++) {
        uint32_t fenced = 0;
        pool_fill(pair.source, (uint64_t)i);
        ck_assert_int_eq(STRAIT_OK, strait_pool_serve(pair.source->pool, &all, 1));
        pump_for(i % 4);
        ck_assert_int_eq(STRAIT_OK, pool_fence(pair.source, all, 1000, &fenced));
        WAIT(fenced == 1);
        mark(pair.source, 0, large.pages);
    }
    struct answer answer = answer_of(&asker);
    ck_assert_uint_gt(answer.figures.bytes, 0);
    ck_assert_uint_eq(0, marks_of(&answer));
    asker_leave(&asker);
}

/* Pools go while their pages are looked at. */
TEST(pools_and_clients_that_go_end_what_is_looked_at)
{
    struct pair pair = pair_open(SAME, large);
    struct asker asker = asker_as(pair.a, 0);
    ask_for(&asker, 1ull << 30, 1000 * SLOW, BF16);
    for (int i = 0; i < 30 / SLOW; i++) {
        struct party *party = party_open(pair.a);
        struct test_pool *pool = pool_open(party, large);
        pool_fill(pool, (uint64_t)i);
        if (i % 2 == 0)
            ck_assert_int_eq(STRAIT_OK, strait_pool_serve(pool->pool, NULL, 0));
        offer_all(pool, "a");
        (void)stats_text(party);
        pump_for(i % 5);
        if (i % 3 == 0) {
            strait_pool_remove(pool->pool);
            WAIT(pool->removed);
        }
        party_close(party);
    }
    struct answer answer = answer_of(&asker);
    ck_assert_int_eq(STRAIT_OK, answer.status);
    ck_assert_uint_gt(answer.figures.bytes, 0);
    asker_leave(&asker);
}

/* ---- Who may know ------------------------------------------------------------------------------------------------ */

TEST(pools_of_others_are_for_root_and_the_daemons_own_user)
{
    struct pair pair = pair_init(SAME);
    ck_assert_int_eq(0, chmod(folder, 0711));
    test_node_start(pair.a);
    ck_assert_int_eq(0, chmod(pair.a->options.socket, 0666));
    become(ALICE);
    pair.from = party_open(pair.a);
    become(0);
    become(BOB);
    pair.to = party_open(pair.a);
    become(0);
    pair_pools(&pair, shape);
    pool_fill(pair.sink, 2);
    mark(pair.sink, 0, 64);
    offer_all(pair.source, "a");
    offer_all(pair.sink, "b");
    ck_assert_int_eq(STRAIT_OK, strait_pool_serve(pair.sink->pool, NULL, 0));
    (void)stats_text(pair.from);
    (void)stats_text(pair.to);
    const uint64_t one = 2 * bytes_of(pair.source, 64); /* both groups */
    struct answer alice = sample_as(pair.a, ALICE, one, 600000, BF16);
    ck_assert_uint_eq(1, alice.figures.pools);
    ck_assert_uint_eq(one, alice.figures.bytes);
    ck_assert_uint_eq(one, alice.figures.ready_bytes);
    ck_assert_uint_eq(0, marks_of(&alice));
    struct answer bob = sample_as(pair.a, BOB, 2 * one, 600000, BF16); /* offered and served */
    ck_assert_uint_eq(values_of(&bob), marks_of(&bob));
    ck_assert_uint_eq(2 * one, bob.figures.bytes);
    ck_assert_uint_eq(2 * one, bob.figures.ready_bytes);
    struct answer root = sample_as(pair.a, 0, 3 * one, 600000, BF16);
    ck_assert_uint_eq(2, root.figures.pools);
    ck_assert_uint_eq(3 * one, root.figures.bytes);
    ck_assert_uint_eq(3 * one, root.figures.ready_bytes);
    ck_assert_uint_eq(marks_of(&bob), marks_of(&root));
}

TEST(a_user_sees_own_pools_in_its_tenant)
{
    struct tenant tenants[2] = {0};
    const struct session session = {.uid = ALICE, .tenant = &tenants[0]}, admin = {.admin = true, .tenant = tenants};
    const struct pool_ref own = {.uid = ALICE, .tenant = &tenants[0]}, neighbour = {.uid = BOB, .tenant = &tenants[0]},
                          former = {.uid = ALICE, .tenant = &tenants[1]};
    ck_assert(sampling_may_see(&session, &own));
    ck_assert(!sampling_may_see(&session, &neighbour));
    ck_assert(!sampling_may_see(&session, &former));
    ck_assert(sampling_may_see(&admin, &own) && sampling_may_see(&admin, &former));
}

/* ---- One at a time ----------------------------------------------------------------------------------------------- */

static void is_refused(const struct answer *answer, const char *text)
{
    ck_assert_int_eq(STRAIT_ERR_AGAIN, answer->status);
    ck_assert_str_eq(text, answer->text);
    ck_assert_uint_eq(0, answer->count);
}

TEST(one_sample_is_taken_at_a_time_and_the_operators_goes_first)
{
    struct pair pair = pair_open(SAME, large);
    ck_assert_int_eq(0, chmod(folder, 0711));
    ck_assert_int_eq(0, chmod(pair.a->options.socket, 0666));
    offer_all(pair.source, "a");
    (void)stats_text(pair.from);
    struct asker alice = asker_as(pair.a, ALICE), root = asker_as(pair.a, 0);
    ask_for(&alice, 1 << 30, 600000, BF16);
    ask_for(&alice, 1 << 30, 600000, BF16);
    struct answer answer = answer_of(&alice); /* to the second, whose sample the first one is in the way of */
    is_refused(&answer, "another sample is being taken: try again later");
    ask_for(&root, bytes_of(pair.source, large.pages) + 1, 1500 * SLOW, BF16);
    answer = answer_of(&alice);
    is_refused(&answer, "ended, because the daemon's own user takes a sample");
    for (uint32_t user = 0; user <= ALICE; user += ALICE) {
        answer = sample_as(pair.a, user, 1 << 20, 100, BF16);
        is_refused(&answer, "another sample is being taken: try again later");
    }
    answer = answer_of(&root);
    ck_assert_int_eq(STRAIT_OK, answer.status);
    ck_assert_uint_eq(bytes_of(pair.source, large.pages), answer.figures.bytes);
    asker_leave(&alice);
    asker_leave(&root);
}

TEST(a_sample_ends_with_its_client)
{
    struct pair pair = pair_open(SAME, large);
    offer_all(pair.source, "a");
    (void)stats_text(pair.from);
    for (int i = 0; i < 30; i++) {
        struct asker asker = asker_as(pair.a, 0);
        ask_for(&asker, 1 << 30, 600000, BF16);
        pump_for(i % 3);
        asker_leave(&asker);
        struct answer answer = {.status = STRAIT_ERR_AGAIN};
        for (uint64_t began = wait_clock(); answer.status == STRAIT_ERR_AGAIN && ms_since(began) < 5000 * SLOW;)
            answer = sample_as(pair.a, 0, bytes_of(pair.source, 2), 10000, BF16);
        ck_assert_int_eq(STRAIT_OK, answer.status);
        ck_assert_uint_eq(bytes_of(pair.source, 2), answer.figures.bytes);
    }
}

TEST_LOOP(the_end_of_the_node_ends_a_sample, 2)
{
    struct pair pair = pair_open(SAME, large);
    struct asker asker = asker_as(pair.a, 0);
    offer_all(pair.source, "a");
    ask_for(&asker, 1 << 30, 600000, BF16);
    (void)stats_text(pair.from);
    test_node_ask_stop(pair.a, _i == 1);
    struct answer answer = answer_of(&asker);
    is_refused(&answer, "the daemon is stopping");
    if (_i == 1) { /* it drains: the offer is live */
        answer = sample_as(pair.a, 0, 1 << 20, 100, BF16);
        is_refused(&answer, "the daemon is stopping");
    }
    test_node_stop(pair.a);
    asker_leave(&asker);
}

/* ---- Beside other work ------------------------------------------------------------------------------------------- */

TEST_LOOP(transfers_and_reloads_go_on, WIRES)
{
    struct pair pair = pair_coded(_i, "auto");
    pair_start(&pair, shape);
    struct asker asker = asker_as(pair.a, 0);
    ask_for(&asker, 1 << 30, 700 * SLOW, BF16);
    for (int i = 0; i < 40 / SLOW; i++) {
        move_all(pair.source, pair.sink);
        if (i % 10 == 0) {
            use_codebook(pair.a, name_of((uint32_t)i), (uint8_t)(0x70 + i));
            test_node_reload(pair.a);
        }
    }
    struct answer answer = answer_of(&asker);
    ck_assert_int_eq(STRAIT_OK, answer.status);
    for (uint32_t i = 0; i < answer.count; i++)
        for (int e = 0; e < 256; e++)
            ck_assert(answer.list[i].counts[e] == 0 || (e >= 0x7c && e <= 0x7f));
    asker_leave(&asker);
    pair_quiet(&pair);
}

/* More offers than are kept for the sample at once. */
TEST(thousands_of_offers_are_sampled)
{
    enum { MANY = 6000 };
    struct geometry geometry = {.pages = MANY, .row_bytes = 256};
    struct pair pair = pair_init(SAME);
    pair.a->options.transfers = 2 * MANY;
    pair_start(&pair, geometry);
    for (uint32_t i = 0; i < MANY; i++)
        OFFER(pair.source, name_of(i), LISTS({.first_id = i, .count = 1}), .last = true);
    (void)stats_text(pair.from);
    struct answer answer = sample_as(pair.a, 0, bytes_of(pair.source, 4096), 600000, BF16);
    ck_assert_uint_eq(bytes_of(pair.source, MANY), answer.figures.ready_bytes);
    ck_assert_uint_eq(bytes_of(pair.source, 4096), answer.figures.bytes);
}

int main(void)
{
    return node_main("node_sampling");
}
