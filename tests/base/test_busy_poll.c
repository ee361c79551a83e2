#include <check.h>
#include <stdlib.h>

#include "internal/busy_poll.h"
#include "tests/run_suite.h"
#include "tests/support.h"

TEST_CASE(busy_poll);

enum { TURN_NS = 2000 }; /* of a loop that polls */

/* Runs a loop for a while: a transfer makes a step every `period`; nothing else wakes it. Returns what it polled. */
static uint64_t run(struct busy_poll *poll, uint64_t *now, uint64_t length, uint64_t period, bool live)
{
    const uint64_t end = *now + length;
    uint64_t next = *now + period, polled = 0;
    bool polls = false;
    while (*now < end) {
        const uint64_t sleeps = next - *now, turn = polls && sleeps > TURN_NS ? TURN_NS : sleeps;
        *now += turn;
        polled += polls ? turn : 0;
        const bool stepped = *now >= next;
        next += stepped ? period : 0;
        polls = busy_poll_turn(poll, *now, stepped, live);
    }
    return polled;
}

TEST(without_a_step_it_never_polls)
{
    struct busy_poll poll = {0};
    for (uint64_t now = 1; now < 1000; now++)
        ck_assert(!busy_poll_turn(&poll, now * 1000000, false, true));
    ck_assert_uint_eq(0, poll.paid + poll.lost);
}

TEST(after_the_last_step_it_sleeps)
{
    struct busy_poll poll = {0};
    uint64_t now = 5;
    ck_assert(busy_poll_turn(&poll, now, true, true));
    ck_assert(busy_poll_turn(&poll, now + BUSY_POLL_NS - 1, false, true));
    ck_assert(!busy_poll_turn(&poll, now + BUSY_POLL_NS, false, true));
    ck_assert(!busy_poll_turn(&poll, now + BUSY_POLL_NS + 1, false, true));
    ck_assert(busy_poll_turn(&poll, 1000000000, true, true));
    ck_assert(!busy_poll_turn(&poll, 1000001000, true, false)); /* the verdict: nothing is live */
    ck_assert_uint_eq(1, poll.paid);
    ck_assert_uint_eq(1, poll.lost);
}

/* Whatever the steps, no more than a tenth of a processor, what was saved up, and what wake-ups would have cost. */
TEST(the_budget_is_kept)
{
    static const uint64_t periods[] = {3000, 15000, 40000, 99000, 101000, 150000, 1000000, 50000000};
    for (int i = 0; i < COUNT(periods); i++) {
        struct busy_poll poll = {0};
        uint64_t now = 1000, length = 3000000000;
        const uint64_t polled = run(&poll, &now, length, periods[i], true);
        const uint64_t most = length / BUSY_POLL_SHARE + BUSY_POLL_SAVED_NS + BUSY_POLL_NS + TURN_NS +
                              (poll.paid + 1) * (BUSY_POLL_WAKE_NS + TURN_NS);
        ck_assert_msg(polled <= most, "steps every %d ns: polled %d us of %d", (int)periods[i], (int)(polled / 1000),
                      (int)(most / 1000));
    }
}

TEST(steps_that_come_soon_are_polled_for)
{
    struct busy_poll poll = {0};
    uint64_t now = 1000;
    (void)run(&poll, &now, 1000000000, 15000, true);
    ck_assert_uint_gt(poll.paid, 60000); /* of 66666 */
    ck_assert_uint_eq(0, poll.lost);
}

/* Steps that come too late are tried again now and then only, and polled for as soon as they come in time. */
TEST(where_it_does_not_pay_it_is_rare)
{
    struct busy_poll poll = {0};
    uint64_t now = 1000;
    (void)run(&poll, &now, 2000000000, 1000000, true); /* 2000 steps */
    ck_assert_uint_eq(0, poll.paid);
    ck_assert_uint_le(poll.lost, 2000 / BUSY_POLL_TRIAL + BUSY_POLL_SCORE);
    ck_assert_uint_ge(poll.lost, 2000 / BUSY_POLL_TRIAL);
    (void)run(&poll, &now, 10000000, 15000, true);
    ck_assert_uint_gt(poll.paid, 600);
}

/* Sleeping is quicker there. A yield that nobody used changes nothing. */
TEST(where_others_want_the_processor_it_sleeps)
{
    struct busy_poll poll = {0};
    uint64_t now = 1000;
    (void)run(&poll, &now, 10000000, 15000, true);
    ck_assert(busy_poll_turn(&poll, now, true, true));
    busy_poll_yielded(&poll, BUSY_POLL_CROWD_NS - 1);
    ck_assert(busy_poll_turn(&poll, now += TURN_NS, false, true));
    busy_poll_yielded(&poll, BUSY_POLL_CROWD_NS);
    ck_assert_uint_eq(1, poll.lost);
    ck_assert(!busy_poll_turn(&poll, now += TURN_NS, false, true));
    for (uint32_t i = 1; i < BUSY_POLL_TRIAL; i++)
        ck_assert(!busy_poll_turn(&poll, now += 1000000, true, true));
    ck_assert(busy_poll_turn(&poll, now += 1000000, true, true));
    busy_poll_yielded(&poll, 0);
    ck_assert(busy_poll_turn(&poll, now += TURN_NS, true, true)); /* it has paid: it is used again */
}

int main(void)
{
    return run_tests("busy_poll", NULL, NULL);
}
