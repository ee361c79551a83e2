#include "transport/loopback.h"

#include "tests/transport/sides.h"

#define CHUNKS 400u
#define BYTES  1000u

/* The first side has the faults. */
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

/* How many chunks: SOME are about a quarter. */
enum amount { NONE, SOME, ALL_BUT_SOME, ALL, ALL_AND_SOME };

static void require_amount(unsigned count, enum amount amount, unsigned chunks)
{
    static const unsigned from[] = {0, 1, 4, 8, 9}, to[] = {0, 4, 7, 8, 12}; /* eighths */
    ck_assert_uint_ge(count, from[amount] * chunks / 8);
    ck_assert_uint_le(count, to[amount] * chunks / 8);
}

static const struct {
    const char *options;
    enum amount sent, sent_badly, arrived, arrived_badly, damaged;
} faults[] = {
    {NULL, ALL, NONE, ALL, NONE, NONE},
    {"lose=250", ALL, NONE, ALL_BUT_SOME, NONE, NONE}, /* they look sent */
    {"fail=250", ALL_BUT_SOME, SOME, ALL_BUT_SOME, NONE, NONE},
    {"truncate=1000", ALL, NONE, ALL, NONE, NONE}, /* they are announced as such */
    {"garble=250", ALL, NONE, ALL_BUT_SOME, SOME, NONE},
    {"corrupt=250", ALL, NONE, ALL, NONE, SOME},
    {"duplicate=250", ALL, NONE, ALL_AND_SOME, NONE, NONE},
};

TEST_LOOP(faults_are_as_frequent_as_asked_for, COUNT(faults))
{
    set_up(faults[_i].options);
    send_in_turn(CHUNKS);
    const struct side *from = &sides[0], *to = &sides[1];
    require_amount(from->sent, faults[_i].sent, CHUNKS);
    require_amount(from->sent_badly, faults[_i].sent_badly, CHUNKS);
    require_amount(to->arrived, faults[_i].arrived, CHUNKS);
    require_amount(to->arrived_badly, faults[_i].arrived_badly, CHUNKS);
    require_amount(to->damaged, faults[_i].damaged, CHUNKS);
    ck_assert_uint_eq(CHUNKS, from->sent + from->sent_badly);
    if (faults[_i].sent_badly != NONE) /* those that failed, and no others, do not arrive */
        ck_assert_uint_eq(from->sent, to->arrived);
    if (faults[_i].arrived_badly != NONE)
        ck_assert_uint_eq(CHUNKS, to->arrived + to->arrived_badly);
    ck_assert_uint_eq(faults[_i].options != NULL && strncmp(faults[_i].options, "truncate", 8) == 0 ? BYTES / 2 : BYTES,
                      to->last_size);
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
}

int main(void)
{
    return run_tests("loopback", NULL, sides_teardown);
}
