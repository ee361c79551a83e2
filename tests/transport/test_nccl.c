/* The NCCL transport with calls that need no GPU (fake_nccl.h): what is particular to it, beside the contract of all
 * transports (test_transport.c). */
#include "transport/nccl.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/fakes/nccl_calls.h"
#include "tests/run_suite.h"
#include "tests/support.h"
#include "tests/transport/sides.h"
#include "transport/loopback.h"

#define SOON    " timeout_ms=1500" /* for what hangs; a busy machine takes no other operation for so long */
#define SOON_MS 1500

static struct side sides[2];

static void make_sides(const char *options)
{
    for (int i = 0; i < 2; i++)
        side_init(&sides[i], &transport_nccl, options);
}

static void set_up(const char *options)
{
    make_sides(options);
    sides_connect(sides);
}

static void tear_down(void)
{
    sides_close(sides);
    ck_assert_uint_eq(0, fake_nccl.live);
    ck_assert_uint_eq(fake_nccl.joined, fake_nccl.aborted);
}

/* Until both links are broken and closed, as the owners close them at once. */
static void await_the_end(void)
{
    WAIT_UNTIL(sides, 2, sides[0].closed && sides[1].closed);
    ck_assert_uint_eq(1, sides[0].broken);
    ck_assert_uint_eq(1, sides[1].broken);
    for (int i = 0; i < 2; i++)
        ck_assert_uint_eq(0, sides[i].damaged);
}

static void assert_one_says(const char *why)
{
    ck_assert_msg(strcmp(sides[0].why, why) == 0 || strcmp(sides[1].why, why) == 0, "they say: %s; %s", sides[0].why,
                  sides[1].why);
}

/* ---- Chunks ------------------------------------------------------------------------------------------------------ */

/* Also the peer's slot has to be free. */
static bool may_send(unsigned from, unsigned slot)
{
    return sides[from].link != NULL && !sides[from].broken && side_may_send(&sides[from], slot) &&
           sides[!from].landing[slot] == 0;
}

/* Every slot is sent from as soon as it can be, in both directions. */
static void send_many(unsigned chunks)
{
    struct rng rng = rng_init(chunks);
    for (unsigned begun[2] = {0, 0}; begun[0] + begun[1] < 2 * chunks;) {
        for (unsigned i = 0; i < 2; i++)
            for (unsigned slot = 0; slot < SLOTS && begun[i] < chunks; slot++)
                if (may_send(i, slot)) {
                    size_t size = rng_below(&rng, 5) == 0 ? 0 : rng_below(&rng, 50000);
                    ck_assert_int_eq(STRAIT_OK, side_send(&sides[i], slot, size));
                    begun[i]++;
                }
        sides_step(sides, 2, 100);
    }
    for (int i = 0; i < 2; i++) {
        WAIT_UNTIL(sides, 2, sides[i].sent == chunks && sides[i].arrived == chunks);
        ck_assert_uint_eq(0, sides[i].damaged + sides[i].arrived_badly + sides[i].sent_badly + sides[i].broken);
    }
}

TEST(messages_that_overtake_one_another_do_no_harm)
{
    set_up("carrier=loopback jitter_us=3000");
    send_many(500);
    tear_down();
}

TEST(posting_and_running_may_take_time)
{
    static const uint32_t times[][2] = {{0, 300}, {300, 0}, {2000, 100}};
    for (int i = 0; i < COUNT(times); i++) {
        fake_nccl.posting_us = times[i][0];
        fake_nccl.delay_us = times[i][1];
        set_up("carrier=loopback");
        send_many(100);
        tear_down();
    }
}

TEST(what_is_refused_does_not_travel)
{
    set_up("carrier=loopback");
    sides[1].refuse = true;
    for (unsigned slot = 0; slot < SLOTS; slot++)
        ck_assert_int_eq(STRAIT_OK, side_send(&sides[0], slot, slot % 2 ? SLOT_BYTES : 0));
    WAIT_UNTIL(sides, 2, sides[0].sent == SLOTS);
    ck_assert_uint_eq(SLOTS, sides[1].arriving);
    ck_assert_uint_eq(0, fake_nccl.operations);
    tear_down();
}

TEST(nothing_is_begun_before_both_agree)
{
    set_up("carrier=loopback");
    ck_assert_int_eq(STRAIT_OK, side_send(&sides[0], 0, 1000));
    for (int i = 0; i < 20; i++)
        transport_progress(sides[0].transport); /* the peer does not hear of it */
    ck_assert_uint_eq(0, fake_nccl.operations);
    WAIT_UNTIL(sides, 2, sides[1].arrived == 1);
    ck_assert_uint_eq(2, fake_nccl.operations);
    tear_down();
}

static uint64_t cpu_milliseconds(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (uint64_t)used.tv_sec * 1000 + (uint64_t)used.tv_nsec / 1000000;
}

TEST(threads_without_work_sleep)
{
    set_up("carrier=loopback");
    send_many(20);
    uint64_t before = cpu_milliseconds();
    nanosleep(&(struct timespec){.tv_nsec = 400000000}, NULL);
    ck_assert_uint_lt(cpu_milliseconds() - before, 20);
    tear_down();
}

/* ---- Operations that fail ---------------------------------------------------------------------------------------- */

static void send_from_both(void)
{
    for (unsigned slot = 0; slot < SLOTS; slot++)
        for (unsigned i = 0; i < 2; i++)
            if (may_send(i, slot))
                ck_assert_int_eq(STRAIT_OK, side_send(&sides[i], slot, SLOT_BYTES / 4));
}

TEST(an_operation_that_fails_breaks_the_link)
{
    for (uint32_t number = 1; number < 12; number += 3) {
        fake_nccl_use();
        fake_nccl.fail_operation = number;
        fake_nccl.posting_us = number % 2 * 100;
        set_up("carrier=loopback");
        send_from_both();
        await_the_end();
        assert_one_says(FAKE_NCCL_REFUSED);
        tear_down();
    }
}

TEST(a_communicator_that_fails_later_breaks_the_link)
{
    fake_nccl.late_operation = 7;
    set_up("carrier=loopback");
    while (!sides[0].broken && !sides[1].broken) {
        send_from_both();
        sides_step(sides, 2, 10);
    }
    await_the_end();
    assert_one_says(FAKE_NCCL_LATE);
    tear_down();
}

/* The bytes of chunks that hang change nothing after `closed`. */
TEST(an_operation_that_hangs_is_aborted_in_time)
{
    set_up("carrier=loopback" SOON);
    fake_nccl.hang_operation = 1;
    uint64_t before = milliseconds();
    send_from_both();
    await_the_end();
    ck_assert_uint_ge(milliseconds() - before, SOON_MS);
    assert_one_says("the peer's GPU did not take its part in time");
    for (int i = 0; i < 2; i++) {
        ck_assert_uint_eq(SLOTS, sides[i].sent_badly);
        ck_assert_uint_eq(sides[i].arriving, sides[i].arrived_badly);
    }
    ck_assert_uint_eq(4, fake_nccl.aborted);
    tear_down();
}

TEST(a_link_with_hanging_operations_can_be_closed)
{
    set_up("carrier=loopback timeout_ms=60000");
    fake_nccl.hang_operation = 3;
    send_from_both();
    WAIT_UNTIL(sides, 2, sides[0].arriving == SLOTS && sides[1].arriving == SLOTS);
    for (int i = 0; i < 10; i++)
        sides_step(sides, 2, 5);
    link_close(sides[0].link);
    WAIT_UNTIL(sides, 2, sides[0].closed && sides[1].closed);
    ck_assert_uint_eq(0, sides[0].broken);
    ck_assert_uint_eq(1, sides[1].broken);
    for (int i = 0; i < 2; i++)
        ck_assert_uint_eq(SLOTS, sides[i].sent + sides[i].sent_badly);
    tear_down();
}

/* Many small ones that together take longer than the limit. */
TEST(the_limit_is_for_each_operation)
{
    set_up("carrier=loopback" SOON);
    fake_nccl.delay_us = 1200000 / SLOTS * 2;
    for (unsigned slot = 0; slot < SLOTS; slot++)
        ck_assert_int_eq(STRAIT_OK, side_send(&sides[0], slot, 100));
    uint64_t before = milliseconds();
    WAIT_UNTIL(sides, 2, sides[1].arrived == SLOTS && sides[0].sent == SLOTS);
    ck_assert_uint_gt(milliseconds() - before, SOON_MS);
    ck_assert_uint_eq(0, sides[0].broken + sides[1].broken);
    tear_down();
}

/* ---- Streams that do not drain ----------------------------------------------------------------------------------- */

static void close_while_stuck(void)
{
    set_up("carrier=loopback");
    fake_nccl.hang_operation = 1;
    for (unsigned slot = 0; slot < SLOTS; slot++)
        ck_assert_int_eq(STRAIT_OK, side_send(&sides[0], slot, 1000));
    WAIT_UNTIL(sides, 2, sides[1].arriving == SLOTS);
    fake_nccl.stuck = 1;
    for (int i = 0; i < 2; i++)
        link_close(sides[i].link);
    for (int i = 0; i < 20; i++)
        sides_step(sides, 2, 10);
    ck_assert_uint_eq(0, sides[0].closed + sides[1].closed + sides[0].sent_badly);
}

TEST(a_stream_that_does_not_drain_keeps_its_link)
{
    close_while_stuck();
    fake_nccl.stuck = 0;
    WAIT_UNTIL(sides, 2, sides[0].closed && sides[1].closed);
    ck_assert_uint_eq(SLOTS, sides[0].sent_badly);
    ck_assert_uint_eq(SLOTS, sides[1].arrived_badly);
    tear_down();
}

TEST(a_link_that_does_not_drain_can_be_abandoned)
{
    close_while_stuck();
    for (int i = 0; i < 2; i++) {
        link_abandon(sides[i].link);
        ck_assert_int_eq(STRAIT_ERR_AGAIN, transport_arm(sides[i].transport)); /* no descriptor would tell */
    }
    WAIT_UNTIL(sides, 2, sides[0].closed && sides[1].closed);
    ck_assert_uint_eq(SLOTS, sides[0].sent_badly);
    ck_assert_uint_eq(SLOTS, sides[1].arrived_badly);
    sides_close(sides); /* the transports are gone; what is left of the engines is not */
    fake_nccl.stuck = 0;
    for (int i = 0; fake_nccl.live > 0 && i < 1000; i++)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    ck_assert_uint_eq(0, fake_nccl.live);
}

TEST(only_a_closing_link_can_be_abandoned)
{
    set_up("carrier=loopback");
    link_abandon(sides[0].link);
    send_many(10);
    tear_down();
}

/* ---- Connecting -------------------------------------------------------------------------------------------------- */

static void fail_to_connect(const char *why)
{
    make_sides("carrier=loopback" SOON);
    sides_begin(sides);
    await_the_end();
    ck_assert_uint_eq(0, sides[0].connected + sides[1].connected);
    assert_one_says(why);
    sides_close(sides);
    ck_assert_uint_eq(0, fake_nccl.live);
}

TEST(communicators_that_cannot_be_made_break_the_link)
{
    fake_nccl.fail_id = 1;
    fail_to_connect(FAKE_NCCL_REFUSED);
    for (uint32_t number = 1; number <= 4; number++) {
        fake_nccl_use();
        fake_nccl.fail_join = number;
        fail_to_connect(FAKE_NCCL_REFUSED);
    }
}

TEST(communicators_that_never_come_up_break_the_link)
{
    fake_nccl.hang_join = 1;
    fail_to_connect("NCCL did not connect in time");
    ck_assert_uint_eq(fake_nccl.joined, fake_nccl.aborted);
}

/* Neither an event nor silence says how far the other side is: the owner closes when it likes. */
TEST(a_link_can_be_closed_while_it_connects)
{
    for (int steps = 0; steps < 40; steps++) {
        fake_nccl_use();
        fake_nccl.hang_join = steps % 3 == 0;
        make_sides("carrier=loopback timeout_ms=60000");
        sides_begin(sides);
        for (int i = 0; i < steps; i++)
            sides_step(sides, 2, 1);
        link_close(sides[steps % 2].link);
        tear_down();
        ck_assert_uint_eq(0, sides[steps % 2].broken);
    }
}

TEST(ends_that_NCCL_would_not_connect_are_told_apart)
{
    static struct nccl_calls other;
    fake_nccl.same_gpu = 1;
    fail_to_connect("both ends are on the same GPU");
    ck_assert_uint_eq(0, fake_nccl.joined);

    fake_nccl_use();
    other = fake_nccl_calls;
    other.within_process = false;
    nccl_use_calls(&other);
    fail_to_connect("both ends are in the same process");

    side_init(&sides[0], &transport_nccl, "carrier=loopback");
    other.library = 21800; /* by the time it is asked for the address */
    nccl_use_calls(&fake_nccl_calls);
    side_init(&sides[1], &transport_nccl, "carrier=loopback");
    sides_begin(sides);
    await_the_end();
    assert_one_says("the peer has another version of NCCL");
    tear_down();
}

TEST(links_share_the_GPU)
{
    struct link *third = NULL;
    fake_nccl.multiprocessors = 2 * 16;
    set_up("carrier=loopback blocks=16");
    ck_assert_int_eq(STRAIT_ERR_AGAIN, link_open(sides[0].transport, -1, LINK_DIALLED, &sides[0], &third));
    ck_assert_ptr_null(third);
    send_many(10);
    tear_down();
}

/* ---- Creation ---------------------------------------------------------------------------------------------------- */

static enum strait_status create(void *base, size_t size, uint32_t memory, const char *options)
{
    struct transport_arena arena = {.base = base, .size = size, .fd = -1, .memory = memory};
    struct transport_events events = {0};
    struct transport *transport = NULL;
    enum strait_status status = transport_create(&transport_nccl, &arena, &events, NULL, options, &transport);
    ck_assert((transport != NULL) == (status == STRAIT_OK));
    transport_destroy(transport);
    return status;
}

TEST(options_are_checked)
{
    static const char *const bad[] = {
        "timeout_ms=0",      "timeout_ms=1s", "timeout_ms=3600001",          "blocks=0",
        "blocks=3",          "blocks=64",     "library=libnccl.so",          "library=",
        "carrier=shm",       "carrier=nccl",  "carrier=loopback colour=red", "blocks=8 carrier",
        "seed=1 carrier=ucx"};
    char page[4096];
    for (int i = 0; i < COUNT(bad); i++)
        ck_assert_msg(create(page, sizeof(page), TRANSPORT_CUDA, bad[i]) != STRAIT_OK, "taken: %s", bad[i]);
    const char *good = "  blocks=32 seed=7 timeout_ms=1  carrier=loopback delay_us=10 library=/libnccl.so.2 ";
    ck_assert_int_eq(STRAIT_OK, create(page, sizeof(page), TRANSPORT_CUDA, good));
    ck_assert_int_eq(STRAIT_ERR_INVALID, create(page, sizeof(page), TRANSPORT_HOST, good));
    ck_assert_int_eq(STRAIT_ERR_INVALID, create(NULL, sizeof(page), TRANSPORT_CUDA, good));
    ck_assert_int_eq(STRAIT_ERR_INVALID, create(page, 0, TRANSPORT_CUDA, good));
}

TEST(texts_of_options_are_checked_without_NCCL)
{
    static const char *const bad[] = {"timeout_ms=0", "blocks=x",   "blocks=3",         "library=libnccl.so",
                                      "carrier=shm",  "blocks=8 x", "carrier=ucx foo=1"};
    char text[256];
    nccl_use_calls(NULL); /* looking for them would be told, or find the plugin */
    for (int i = 0; i < COUNT(bad); i++)
        if (strstr(bad[i], "carrier=ucx") == NULL || transport_find("ucx") != NULL)
            ck_assert_msg(transport_check(&transport_nccl, bad[i]) == STRAIT_ERR_INVALID, "taken: %s", bad[i]);
    ck_assert_int_eq(STRAIT_OK, transport_check(&transport_nccl, ""));
    ck_assert_int_eq(STRAIT_OK, transport_check(&transport_nccl, "blocks=16 carrier=loopback library=/nowhere/nccl"));
    transport_missing(&transport_nccl, text, sizeof(text));
    ck_assert_ptr_null(strstr(text, "plugin"));
    nccl_use_calls(&fake_nccl_calls);
}

TEST(what_is_missing_is_told)
{
    char page[4096], text[256] = "?";
    transport_missing(&transport_nccl, text, sizeof(text));
    ck_assert_str_eq("", text);
    ck_assert_int_eq(STRAIT_ERR_UNSUPPORTED, create(page, sizeof(page), TRANSPORT_CUDA, "carrier=pigeon"));
    transport_missing(&transport_nccl, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "pigeon"));

    nccl_use_calls(NULL); /* the plugin may be there, this library is not */
    ck_assert_int_eq(STRAIT_ERR_UNSUPPORTED,
                     create(page, sizeof(page), TRANSPORT_CUDA, "carrier=loopback library=/nowhere/libnccl.so.2"));
    transport_missing(&transport_nccl, text, sizeof(text));
    ck_assert(strstr(text, "no plugin") != NULL || strstr(text, "/nowhere/libnccl.so.2") != NULL);
    nccl_use_calls(&fake_nccl_calls);
    ck_assert_int_eq(STRAIT_OK, create(page, sizeof(page), TRANSPORT_CUDA, "carrier=loopback"));
    transport_missing(&transport_nccl, text, sizeof(text));
    ck_assert_str_eq("", text);
    transport_missing(&transport_loopback, text, sizeof(text));
    ck_assert_str_eq("", text);
}

int main(void)
{
    return run_tests("nccl", fake_nccl_use, NULL);
}
