/* Traces of requests: how the text that a program gives reaches the daemon, and programs from before there were any. */
#include "tests/client/harness.h"

static void traced(struct view trace)
{
    static const uint8_t context[TRACE_BYTES] = {0x0a, 0xf7, 0x65, 0x19, 0x16, 0xcd, 0x43, 0xdd, 0x84,
                                                 0x48, 0xeb, 0x21, 0x1c, 0x80, 0x31, 0x9c, 0xb7, 0xad,
                                                 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31, 0x01};
    ck_assert_uint_eq(TRACE_BYTES, trace.size);
    ck_assert_mem_eq(context, trace.data, TRACE_BYTES);
}

static void make_traced(struct strait_pool *pool, char *traceparent)
{
    struct strait_transfer *transfer = NULL;
    struct strait_expect_params expect = expect_params(NULL, 0);
    struct strait_offer_params offer = offer_params(NULL, 0);
    expect.traceparent = offer.traceparent = traceparent;
    ck_assert_int_eq(STRAIT_OK, strait_expect(pool, &expect, &transfer));
    ck_assert_int_eq(STRAIT_OK, strait_offer(pool, &offer, &transfer));
    memset(traceparent, 'x', strlen(traceparent)); /* borrowed for the call only */
}

TEST(the_trace_of_a_request_arrives)
{
    char text[] = TRACEPARENT;
    struct strait_pool *pool = connected_pool();
    make_traced(pool, text);
    ck_assert_int_eq(STRAIT_OK, read_page(pool, (struct strait_read_params){.size = sizeof(struct strait_read_params),
                                                                            .traceparent = TRACEPARENT}));
    until(find_got(MESSAGE_READ, 0) != NULL);
    traced(find_got(MESSAGE_EXPECT, 0)->expect.trace);
    traced(find_got(MESSAGE_OFFER, 0)->offer.trace);
    traced(find_got(MESSAGE_EXPECT, 1)->expect.trace);
}

TEST(the_trace_of_what_waits_for_a_daemon_arrives)
{
    char text[] = TRACEPARENT;
    open_client();
    make_traced(register_pool(), text);
    fake_listen();
    until(find_got(MESSAGE_HELLO, 0) != NULL);
    fake_welcome(PROTOCOL_VERSION);
    until(find_got(MESSAGE_OFFER, 0) != NULL);
    traced(find_got(MESSAGE_EXPECT, 0)->expect.trace);
    traced(find_got(MESSAGE_OFFER, 0)->offer.trace);
}

/* A program that was built before there was the field: what lies behind its struct is not read. */
TEST(programs_that_know_no_traces_are_served)
{
    struct strait_pool *pool = connected_pool();
    struct strait_transfer *transfer = NULL;
    struct strait_expect_params expect = expect_params(NULL, 0);
    struct strait_offer_params offer = offer_params(NULL, 0);
    const struct strait_read_params reads = {.size = offsetof(struct strait_read_params, traceparent),
                                             .traceparent = "something else"};
    expect.size = offsetof(struct strait_expect_params, traceparent);
    offer.size = offsetof(struct strait_offer_params, traceparent);
    expect.traceparent = offer.traceparent = "something else";
    ck_assert_int_eq(STRAIT_OK, strait_expect(pool, &expect, &transfer));
    ck_assert_int_eq(STRAIT_OK, strait_offer(pool, &offer, &transfer));
    ck_assert_int_eq(STRAIT_OK, read_page(pool, reads));
    until(find_got(MESSAGE_READ, 0) != NULL);
    ck_assert_uint_eq(0, find_got(MESSAGE_EXPECT, 0)->expect.trace.size + find_got(MESSAGE_OFFER, 0)->offer.trace.size +
                             find_got(MESSAGE_EXPECT, 1)->expect.trace.size);
}

/* The same of one that cannot say how many consumers an offer has, and of one that does not know. */
TEST(programs_that_count_no_consumers_are_served)
{
    struct strait_pool *pool = connected_pool();
    struct strait_peer *peer = import_peer(pool);
    struct strait_transfer *offered = NULL, *sink = expect_pages(pool, 0, 1, 60000);
    struct strait_start_params start = {.size = sizeof(start), .consumers = 3};
    struct strait_offer_params offer = offer_params(NULL, 0);
    ck_assert_int_eq(STRAIT_OK, strait_start(sink, peer, &start));
    start.size = offsetof(struct strait_start_params, consumers);
    ck_assert_int_eq(STRAIT_OK, strait_start(sink, peer, &start));
    offer.consumers = STRAIT_CONSUMERS_ASKED;
    ck_assert_int_eq(STRAIT_OK, strait_offer(pool, &offer, &offered));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_start(offered, peer, NULL));
    until(find_got(MESSAGE_START, 1) != NULL && find_got(MESSAGE_OFFER, 0) != NULL);
    ck_assert_uint_eq(3, find_got(MESSAGE_START, 0)->start.consumers);
    ck_assert_uint_eq(0, find_got(MESSAGE_START, 1)->start.consumers);
    ck_assert(find_got(MESSAGE_OFFER, 0)->offer.asked && find_got(MESSAGE_OFFER, 0)->offer.consumers == 1);
}

/* The same of one that knows traces, and not yet the number of tokens, nor events of pages. */
TEST(programs_that_know_no_tokens_are_served)
{
    struct strait_pool *pool = connected_pool();
    struct strait_transfer *transfer = NULL;
    struct strait_expect_params expect = expect_params(NULL, 0);
    expect.traceparent = TRACEPARENT;
    expect.tokens = 72;
    expect.tell_pages = true;
    expect.begins_within = true;
    ck_assert_int_eq(STRAIT_OK, strait_expect(pool, &expect, &transfer));
    expect.key = "earlier";
    expect.key_size = strlen("earlier");
    expect.size = offsetof(struct strait_expect_params, tokens);
    ck_assert_int_eq(STRAIT_OK, strait_expect(pool, &expect, &transfer));
    until(find_got(MESSAGE_EXPECT, 1) != NULL);
    ck_assert_uint_eq(72, find_got(MESSAGE_EXPECT, 0)->expect.tokens);
    ck_assert_uint_eq(0, find_got(MESSAGE_EXPECT, 1)->expect.tokens);
    ck_assert(find_got(MESSAGE_EXPECT, 0)->expect.pages && !find_got(MESSAGE_EXPECT, 1)->expect.pages);
    ck_assert(find_got(MESSAGE_EXPECT, 0)->expect.within && !find_got(MESSAGE_EXPECT, 1)->expect.within);
    ck_assert_uint_eq(TRACE_BYTES, find_got(MESSAGE_EXPECT, 1)->expect.trace.size);
    for (size_t size = offsetof(struct strait_read_params, tell_pages); size <= sizeof(struct strait_read_params);
         size += sizeof(uint64_t))
        ck_assert_int_eq(STRAIT_OK, read_page(pool, (struct strait_read_params){.size = size, .tell_pages = true}));
    until(find_got(MESSAGE_READ, 1) != NULL);
    ck_assert(!find_got(MESSAGE_EXPECT, 2)->expect.pages && find_got(MESSAGE_EXPECT, 3)->expect.pages);
}

int main(void)
{
    return client_main("client_trace");
}
