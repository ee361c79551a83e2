/* The node inside the client's process, on pages that are plain memory. */
#include "tests/node_harness.h"

#include <unistd.h>

#define SIZES "arena-bytes = 2M\nsend-bytes = 1M\nchunk-bytes = 256K\n"
#define SMALL SIZES "transports = shm\n" /* nothing but what the test needs */

START_TEST(plain_memory_moves_inside_one_process)
{
    struct party *party = party_embedded(SMALL);
    struct geometry shape = {.pages = 32, .layers = 3, .pointers = true};
    struct test_pool *source = pool_open(party, shape), *sink = pool_open(party, shape);
    pool_fill(source, 1);
    struct flow *o = flow_offer(source, (struct strait_offer_params){KEY("k"), LISTS({.count = 32}), .last = true});
    struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY("k"), LISTS({.count = 32})});
    flow_start(e, source);
    arrives(e, o);
    wait_quiet(party);
}
END_TEST

#ifdef STRAIT_HAVE_UCX
START_TEST(two_embedded_nodes_reach_each_other)
{
    static const char options[] = SIZES "listen = 127.0.0.1:0\ntransports = ucx\nucx-options = tls=tcp\n";
    struct party *a = party_embedded(options), *b = party_embedded(options);
    struct geometry shape = {.pages = 32, .layers = 3, .pointers = true};
    struct test_pool *source = pool_open(a, shape), *sink = pool_open(b, shape);
    nodes[3].options = (struct node_options){.transports = "ucx"}; /* it keeps descriptors */
    pool_fill(source, 1);
    struct flow *o = flow_offer(source, (struct strait_offer_params){KEY("k"), LISTS({.count = 32}), .last = true});
    struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY("k"), LISTS({.count = 32})});
    flow_start(o, sink);
    arrives(e, o);
}
END_TEST
#endif

/* Not under the thread sanitizer: the node's thread is detached, and a descriptor that gets the number of one which it
 * has closed counts as a race there. */
#ifndef __SANITIZE_THREAD__
START_TEST(closing_the_client_ends_its_node)
{
    struct geometry shape = {.pages = 8, .pointers = true};
    struct party *first = party_embedded(SMALL); /* what libuv keeps is there after it */
    (void)pool_open(first, shape);
    party_close(first);
    pump_for(50);
    uint32_t before = open_descriptors();
    for (int i = 0; i < 3; i++) {
        struct party *party = party_embedded(SMALL);
        struct test_pool *pool = pool_open(party, shape);
        struct flow *e = flow_expect(pool, (struct strait_expect_params){KEY("k"), LISTS({.count = 8})});
        WAIT(stat_of(party, "gauges.live_expectations") == 1);
        flow_release(e); /* a live one */
        party_close(party);
    }
    WAIT(open_descriptors() <= before + 6); /* memories of the pools */
}
END_TEST
#endif

START_TEST(bad_options_are_told_at_once)
{
    static const char *const bad[] = {"arena-bytes = many\n", "no-such-option = 1\n", "listen = 8.8.8.8:1\n",
                                      "codebook = /nonexistent\n"};
    for (int i = 0; i < COUNT(bad); i++) {
        struct strait_client_config config = {.size = sizeof(config), .embedded = bad[i]};
        struct strait_client *client = NULL;
        ck_assert_int_eq(STRAIT_ERR_IO, strait_client_open(&config, &client));
        ck_assert_ptr_null(client);
    }
}
END_TEST

START_TEST(a_pointer_is_refused_by_a_daemon)
{
    test_node_init(&nodes[0], "a", "shm");
    test_node_start(&nodes[0]);
    struct party *party = party_open(&nodes[0]);
    struct strait_pool_region region = {.handle = STRAIT_HANDLE_POINTER,
                                        .device = -1,
                                        .fd = -1,
                                        .pointer = &region,
                                        .page_stride = 16,
                                        .page_count = 1,
                                        .rows = 1,
                                        .row_bytes = 16,
                                        .role = STRAIT_ROLE_K};
    struct strait_pool_params params = {sizeof(params), &region, 1};
    struct strait_pool *pool = NULL;
    enum strait_status status = strait_pool_register(party->client, &params, &pool);
    ck_assert(status == STRAIT_ERR_INVALID || status == STRAIT_OK);
    if (status != STRAIT_OK)
        return; /* the library knows */
    struct strait_event event = {0};
    while (event.type != STRAIT_EVENT_POOL)
        ck_assert_uint_eq(1, strait_wait(party->client, &event, 1, 5000));
    ck_assert_int_ne(STRAIT_OK, event.status);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("node_embedded");
    TCase *tcase = node_case(suite, "embedded");
    tcase_add_test(tcase, plain_memory_moves_inside_one_process);
#ifdef STRAIT_HAVE_UCX
    tcase_add_test(tcase, two_embedded_nodes_reach_each_other);
#endif
#ifndef __SANITIZE_THREAD__
    tcase_add_test(tcase, closing_the_client_ends_its_node);
#endif
    tcase_add_test(tcase, bad_options_are_told_at_once);
    tcase_add_test(tcase, a_pointer_is_refused_by_a_daemon);
    return node_main(suite);
}
