#include "transport/loopback.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/run_suite.h"
#include "tests/transport/sides.h"

#define CHUNKS 400u
#define BYTES  1000u

static struct side sides[2];

static void set_up(const char *options)
{
    side_init(&sides[0], transport_find("loopback"), options);
    side_init(&sides[1], transport_find("loopback"), NULL);
    sides_connect(sides);
}

/* Chunks one after the other, each settled before the next. */
static void send_in_turn(unsigned chunks)
{
    for (unsigned i = 0; i < chunks; i++) {
        ck_assert_int_eq(STRAIT_OK, side_send(&sides[0], 0, BYTES));
        WAIT_UNTIL(sides, 2, !sides[0].sending[0]);
    }
    WAIT_UNTIL(sides, 2, sides[1].arrived + sides[1].arrived_badly == sides[1].arriving);
}

/* About a quarter of the chunks. */
static void assert_some(unsigned count)
{
    ck_assert_uint_gt(count, CHUNKS / 8);
    ck_assert_uint_lt(count, CHUNKS / 2);
}

TEST(without_faults_everything_arrives)
{
    set_up(NULL);
    send_in_turn(CHUNKS);
    ck_assert_uint_eq(CHUNKS, sides[0].sent);
    ck_assert_uint_eq(CHUNKS, sides[1].arrived);
    ck_assert_uint_eq(0, sides[1].damaged);
    sides_close(sides);
}

TEST(lost_chunks_look_sent)
{
    set_up("lose=250");
    send_in_turn(CHUNKS);
    ck_assert_uint_eq(CHUNKS, sides[0].sent);
    assert_some(CHUNKS - sides[1].arrived);
    ck_assert_uint_eq(sides[1].arrived, sides[1].arriving);
    sides_close(sides);
}

TEST(failed_chunks_do_not_arrive)
{
    set_up("fail=250");
    send_in_turn(CHUNKS);
    assert_some(sides[0].sent_badly);
    ck_assert_uint_eq(CHUNKS, sides[0].sent_badly + sides[1].arrived);
    sides_close(sides);
}

TEST(truncated_chunks_are_announced_as_such)
{
    set_up("truncate=1000");
    send_in_turn(10);
    ck_assert_uint_eq(BYTES / 2, sides[1].last_size);
    ck_assert_uint_eq(10, sides[1].arrived);
    ck_assert_uint_eq(0, sides[1].damaged);
    sides_close(sides);
}

TEST(garbled_chunks_arrive_badly)
{
    set_up("garble=250");
    send_in_turn(CHUNKS);
    assert_some(sides[1].arrived_badly);
    ck_assert_uint_eq(CHUNKS, sides[0].sent);
    ck_assert_uint_eq(CHUNKS, sides[1].arrived + sides[1].arrived_badly);
    ck_assert_uint_eq(0, sides[1].damaged);
    sides_close(sides);
}

TEST(corrupt_chunks_arrive_with_other_bytes)
{
    set_up("corrupt=250");
    send_in_turn(CHUNKS);
    ck_assert_uint_eq(CHUNKS, sides[1].arrived);
    assert_some(sides[1].damaged);
    sides_close(sides);
}

TEST(duplicated_chunks_arrive_twice)
{
    set_up("duplicate=250");
    send_in_turn(CHUNKS);
    ck_assert_uint_eq(CHUNKS, sides[0].sent);
    assert_some(sides[1].arrived - CHUNKS);
    ck_assert_uint_eq(0, sides[1].damaged);
    sides_close(sides);
}

TEST(the_seed_decides)
{
    unsigned lost[3];
    static const char *const options[] = {"seed=5 lose=300 corrupt=100", "seed=5 lose=300 corrupt=100",
                                          "seed=6 lose=300 corrupt=100"};
    for (int i = 0; i < 3; i++) {
        set_up(options[i]);
        send_in_turn(CHUNKS);
        lost[i] = sides[1].arrived * CHUNKS + sides[1].damaged;
        sides_close(sides);
    }
    ck_assert_uint_eq(lost[0], lost[1]);
    ck_assert_uint_ne(lost[0], lost[2]);
}

TEST(delayed_chunks_come_later)
{
    set_up("delay_us=30000");
    uint64_t start = milliseconds();
    ck_assert_int_eq(STRAIT_OK, side_send(&sides[0], 0, BYTES));
    WAIT_UNTIL(sides, 2, sides[1].arrived == 1);
    ck_assert_uint_ge(milliseconds() - start, 29);
    sides_close(sides);
}

TEST(jitter_lets_chunks_overtake_one_another)
{
    set_up("seed=3 jitter_us=5000");
    for (unsigned round = 1; round <= 10; round++) {
        for (unsigned slot = 0; slot < SLOTS; slot++)
            ck_assert_int_eq(STRAIT_OK, side_send(&sides[0], slot, BYTES));
        WAIT_UNTIL(sides, 2, sides[1].arrived == round * SLOTS && sides[0].sent == round * SLOTS);
    }
    ck_assert_uint_gt(sides[1].overtaken, 0);
    ck_assert_uint_eq(0, sides[1].damaged);
    sides_close(sides);
}

TEST(a_cut_breaks_both_sides)
{
    set_up("delay_us=1000000 cut_after=3");
    for (unsigned slot = 0; slot < 3; slot++)
        ck_assert_int_eq(STRAIT_OK, side_send(&sides[0], slot, BYTES));
    ck_assert_int_eq(STRAIT_ERR_IO, side_send(&sides[0], 3, BYTES));
    WAIT_UNTIL(sides, 2, sides[0].closed && sides[1].closed);
    ck_assert_uint_eq(1, sides[0].broken);
    ck_assert_uint_eq(1, sides[1].broken);
    ck_assert_uint_eq(3, sides[0].sent_badly);
    ck_assert_uint_eq(0, sides[1].arriving);
    sides_close(sides);
}

TEST(a_stalled_link_takes_nothing_until_it_goes_on)
{
    set_up(NULL);
    loopback_stall(sides[1].link, true);
    ck_assert_int_eq(STRAIT_OK, side_send(&sides[0], 0, BYTES));
    ck_assert_int_eq(STRAIT_OK, side_send(&sides[1], 0, BYTES));
    for (int i = 0; i < 10; i++)
        sides_step(sides, 2, 5);
    ck_assert_uint_eq(0, sides[0].sent + sides[1].arriving);
    ck_assert_uint_eq(1, sides[0].arrived);
    loopback_stall(sides[1].link, false);
    WAIT_UNTIL(sides, 2, sides[0].sent == 1 && sides[1].arrived == 1);
    sides_close(sides);
}

TEST(a_link_to_nobody_breaks)
{
    uint8_t address[64];
    set_up(NULL);
    size_t size = link_address(sides[1].link, address, sizeof(address));
    link_close(sides[1].link);
    WAIT_UNTIL(sides, 2, sides[0].closed && sides[1].closed);
    ck_assert_int_eq(STRAIT_OK, link_open(sides[0].transport, -1, LINK_DIALLED, &sides[0], &sides[0].link));
    sides[0].closed = sides[0].broken = 0;
    ck_assert_int_eq(STRAIT_OK, link_connect(sides[0].link, address, size));
    WAIT_UNTIL(sides, 2, sides[0].broken == 1 && sides[0].closed == 1);
    sides_close(sides);
}

int main(void)
{
    return run_tests("loopback", NULL, NULL);
}
