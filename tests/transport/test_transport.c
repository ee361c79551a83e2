/* What holds for every kind of transport: the contract of transport.h, over pairs of one process; and the faults that
 * loopback makes. */
#include <poll.h>
#include <sys/socket.h>

#include "tests/transport/sides.h"
#include "transport/loopback.h"
#include "transport/nccl.h"

TEST_CASE(transport);

/* ---- The kinds ------------------------------------------------------------------------------------------------- */

TEST(kinds_are_found_by_name)
{
    uint32_t count = 0;
    while (transport_at(count) != NULL) {
        ck_assert_ptr_eq(transport_at(count), transport_find(transport_at(count)->name));
        count++;
    }
    ck_assert_ptr_null(transport_at(count + 1));
    ck_assert_ptr_null(transport_find("carrier pigeon"));
    ck_assert_ptr_nonnull(transport_find("shm"));
    ck_assert_ptr_nonnull(transport_find("nccl"));
    ck_assert_ptr_nonnull(transport_find("loopback"));
}

static void write_state(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(0, fclose(file));
}

TEST(rdma_is_there_where_a_port_is_active)
{
    char folder[] = "/tmp/strait-rdma-XXXXXX", path[3][128];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert(!transport_rdma_is_active(folder));
    snprintf(path[0], sizeof(path[0]), "mkdir -p %s/mlx5_0/ports/1 %s/mlx5_1/ports/2", folder, folder);
    ck_assert_int_eq(0, system(path[0]));
    ck_assert(!transport_rdma_is_active(folder));
    snprintf(path[1], sizeof(path[1]), "%s/mlx5_0/ports/1/state", folder);
    snprintf(path[2], sizeof(path[2]), "%s/mlx5_1/ports/2/state", folder);
    write_state(path[1], "1: DOWN\n");
    write_state(path[2], "2: INIT\n");
    ck_assert(!transport_rdma_is_active(folder));
    write_state(path[2], "4: ACTIVE\n");
    ck_assert(transport_rdma_is_active(folder));
    snprintf(path[0], sizeof(path[0]), "rm -r %s", folder);
    ck_assert_int_eq(0, system(path[0]));
    ck_assert(!transport_rdma_is_active("/nowhere"));
}

TEST_LOOP(unknown_options_are_refused, kind_count())
{
    static const char *const bad[] = {
        "colour=red", "tls",     "=tcp",      "listen=",           "listen=0.0.0.0", "listen=::", "port=x",
        "port=65536", "eager=0", "eager=64K", "eager=99999999999", "delay_us=",      "seed=1x",   "lose=99999999999"};
    const struct transport_ops *kind = kind_at(_i);
    for (int i = 0; i < COUNT(bad); i++) {
        char options[64]; /* nccl's own carrier may not be in this build */
        bool other = kind == &transport_nccl && transport_find("ucx") == NULL;
        snprintf(options, sizeof(options), "%s%s", other ? "carrier=loopback " : "", bad[i]);
        ck_assert_int_eq(STRAIT_ERR_INVALID, transport_try(kind, side_memory(kind), options));
    }
    char large[400];
    memset(large, 'x', sizeof(large) - 1);
    large[sizeof(large) - 1] = '\0';
    large[4] = '=';
    ck_assert_int_eq(STRAIT_ERR_INVALID, transport_try(kind, side_memory(kind), large));
}

/* ---- Chunks ---------------------------------------------------------------------------------------------------- */

static const size_t sizes[] = {0, 1, 15, 4096, 32768, 262143, 262144, 1 << 20, SLOT_BYTES};

/* One round: every slot of both sides, all sizes in turn; the next round once all of these have landed. */
static void exchange(unsigned rounds)
{
    unsigned total = 0;
    for (unsigned round = 0; round < rounds; round++) {
        for (unsigned slot = 0; slot < SLOTS; slot++, total++)
            for (int i = 0; i < 2; i++)
                ck_assert_int_eq(STRAIT_OK, side_send(&sides[i], slot, sizes[total % (unsigned)COUNT(sizes)]));
        WAIT_UNTIL(sides, 2, sides[0].arrived == total && sides[1].arrived == total);
        WAIT_UNTIL(sides, 2, sides[0].sent == total && sides[1].sent == total);
    }
}

TEST_LOOP(chunks_of_every_size_arrive_both_ways, kind_count())
{
    sides_up(kind_at(_i), NULL);
    exchange(9);
    for (int i = 0; i < 2; i++) {
        ck_assert_uint_eq(0, sides[i].damaged + sides[i].arrived_badly + sides[i].sent_badly + sides[i].broken);
        ck_assert_uint_eq(sides[i].arrived, sides[i].arriving);
    }
}

TEST_LOOP(a_refused_chunk_only_costs_itself, kind_count())
{
    sides_up(kind_at(_i), NULL);
    sides[1].refuse = true;
    ck_assert_int_eq(STRAIT_OK, side_send(&sides[0], 0, 100));
    ck_assert_int_eq(STRAIT_OK, side_send(&sides[0], 1, SLOT_BYTES));
    WAIT_UNTIL(sides, 2, sides[1].arriving == 2 && sides[0].sent == 2);
    ck_assert_uint_eq(0, sides[1].arrived + sides[1].arrived_badly);
    sides[1].refuse = false;
    ck_assert_int_eq(STRAIT_OK, side_send(&sides[0], 0, SLOT_BYTES));
    WAIT_UNTIL(sides, 2, sides[1].arrived == 1 && sides[0].sent == 3);
    ck_assert_uint_eq(0, sides[1].damaged + sides[0].broken + sides[1].broken);
}

TEST_LOOP(sends_that_cannot_be_are_refused, kind_count())
{
    static const uint8_t header[TRANSPORT_HEADER_MAX + 1];
    sides_init(kind_at(_i), NULL);
    sides_open(sides);
    ck_assert_int_eq(STRAIT_ERR_IO, link_send(sides[0].link, header, 8, NULL, 0, NULL, 0));
    ck_assert_ptr_null(link_map(sides[0].link, 0, 1));
    sides_close(sides);

    sides_up(kind_at(_i), NULL);
    ck_assert_int_eq(STRAIT_ERR_INVALID, link_send(sides[0].link, header, sizeof(header), NULL, 0, NULL, 0));
    if (kind_at(_i)->direct) {
        ck_assert_int_eq(STRAIT_ERR_INVALID, link_send(sides[0].link, header, 8, header, 1, NULL, 0));
        ck_assert_int_eq(STRAIT_ERR_INVALID, link_send(sides[0].link, header, 8, NULL, SIZE_MAX, NULL, 0));
    } else {
        ck_assert_int_eq(STRAIT_ERR_INVALID, link_send(sides[0].link, header, 8, NULL, 1, NULL, 0));
    }
    link_close(sides[0].link);
    ck_assert_int_eq(STRAIT_ERR_IO, link_send(sides[0].link, header, 8, NULL, 0, NULL, 0));
    sides_close(sides);
    ck_assert_uint_eq(0, sides[0].sent + sides[0].sent_badly + sides[1].arriving);
}

TEST_LOOP(a_map_ends_with_the_arena, kind_count())
{
    size_t size = SLOTS * SLOT_BYTES;
    sides_up(kind_at(_i), NULL);
    uint8_t *first = link_map(sides[0].link, 0, size);
    ck_assert((first != NULL) == kind_at(_i)->direct);
    ck_assert_ptr_eq(first == NULL ? NULL : first + size - 1, link_map(sides[0].link, size - 1, 1));
    ck_assert_ptr_null(link_map(sides[0].link, size, 1));
    ck_assert_ptr_null(link_map(sides[0].link, 1, size));
    ck_assert_ptr_null(link_map(sides[0].link, SIZE_MAX, 2));
    link_close(sides[0].link);
    ck_assert_ptr_null(link_map(sides[0].link, 0, 1));
}

/* ---- Sleeping -------------------------------------------------------------------------------------------------- */

/* Progress only where arm or poll said so: a wake-up that got lost is a test that waits in vain. */
static void step_by_poll(void)
{
    struct pollfd fds[2];
    for (int i = 0; i < 2; i++) {
        enum strait_status status = transport_arm(sides[i].transport);
        if (status == STRAIT_ERR_AGAIN) {
            transport_progress(sides[i].transport);
            return;
        }
        ck_assert_int_eq(STRAIT_OK, status);
        fds[i] = (struct pollfd){.fd = transport_fd(sides[i].transport), .events = POLLIN};
    }
    ck_assert_int_gt(poll(fds, 2, WAIT_MS / 2), 0);
    for (int i = 0; i < 2; i++)
        if (fds[i].revents != 0)
            transport_progress(sides[i].transport);
}

TEST_LOOP(no_wake_up_is_lost, kind_count())
{
    sides_up(kind_at(_i), NULL);
    for (unsigned i = 0; i < 2000; i++) {
        struct side *from = &sides[i % 2], *to = &sides[!(i % 2)];
        unsigned before = to->arrived;
        ck_assert_int_eq(STRAIT_OK, side_send(from, 0, i % 50 == 0 ? 65536 : 64));
        while (to->arrived == before || from->sending[0])
            step_by_poll();
    }
    ck_assert_uint_eq(0, sides[0].damaged + sides[1].damaged);
}

TEST_LOOP(an_idle_link_sleeps, kind_count())
{
    struct pollfd fds[2];
    sides_up(kind_at(_i), NULL);
    for (int i = 0; i < 20; i++)
        sides_step(sides, 2, 10);
    for (int i = 0; i < 2; i++) {
        while (transport_arm(sides[i].transport) == STRAIT_ERR_AGAIN)
            transport_progress(sides[i].transport);
        fds[i] = (struct pollfd){.fd = transport_fd(sides[i].transport), .events = POLLIN};
    }
    ck_assert_int_eq(0, poll(fds, 2, 100));
}

/* ---- The end of a link ----------------------------------------------------------------------------------------- */

TEST_LOOP(a_link_that_was_never_connected_can_be_closed, kind_count())
{
    sides_init(kind_at(_i), NULL);
    sides_open(sides);
    sides_close(sides);
    ck_assert_uint_eq(0, sides[0].connected + sides[0].broken + sides[1].connected + sides[1].broken);
}

TEST_LOOP(a_transport_outlives_its_links, kind_count())
{
    sides_up(kind_at(_i), NULL);
    for (int round = 0; round < 5; round++) {
        unsigned arrived = sides[1].arrived;
        ck_assert_int_eq(STRAIT_OK, side_send(&sides[0], 0, 100000));
        WAIT_UNTIL(sides, 2, sides[1].arrived == arrived + 1 && !sides[0].sending[0]);
        link_close(sides[round % 2].link);
        WAIT_UNTIL(sides, 2, sides[0].closed && sides[1].closed);
        for (int i = 0; i < 2; i++)
            sides[i].connected = sides[i].closed = 0;
        sides_connect(sides);
    }
    ck_assert_uint_eq(0, sides[1].damaged);
}

TEST_LOOP(addresses_that_are_none_are_refused, kind_count())
{
    uint8_t address[LINK_ADDRESS_MAX + 1] = {0};
    sides_init(kind_at(_i), NULL);
    sides_open(sides);
    size_t size = link_address(sides[0].link, address, LINK_ADDRESS_MAX);
    ck_assert_uint_le(size, LINK_ADDRESS_MAX);
    ck_assert_int_eq(STRAIT_ERR_INVALID, link_connect(sides[1].link, address, size + 1));
    if (size > 0) {
        ck_assert_int_eq(STRAIT_ERR_INVALID, link_connect(sides[1].link, address, size - 1));
        ck_assert_int_eq(STRAIT_ERR_INVALID, link_connect(sides[1].link, NULL, 0));
        address[0] ^= 1;
        ck_assert_int_eq(STRAIT_ERR_CORRUPT, link_connect(sides[1].link, address, size));
    }
    sides_close(sides);
    ck_assert_uint_eq(0, sides[0].broken + sides[1].broken);
}

TEST_LOOP(a_descriptor_that_is_not_wanted_is_closed, kind_count())
{
    int fds[2];
    struct link *link = NULL;
    side_init(&sides[0], kind_at(_i), NULL);
    ck_assert_int_eq(0, socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
    enum link_side side = kind_at(_i)->direct ? (enum link_side)7 : LINK_ACCEPTED;
    ck_assert_int_eq(STRAIT_ERR_INVALID, link_open(sides[0].transport, fds[0], side, NULL, &link));
    ck_assert_ptr_null(link);
    char byte;
    ck_assert_int_eq(0, read(fds[1], &byte, 1)); /* end of file */
    close(fds[1]);
    side_fini(&sides[0]);
}

TEST_CASE(loopback);

/* ---- The particulars of loopback: faults that tests ask for ------------------------------------------------------ */

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
    return run_tests("transport", NULL, sides_teardown);
}
