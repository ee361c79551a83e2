/* What ranks on different hosts go by, each part alone: who shares memory, who is let in, and frames that are not in
 * order. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "collective/engine/overflow_tcp.h"
#include "collective/engine/hosts.h"
#include "tests/support.h"

/* ---- Who shares memory ------------------------------------------------------------------------------------------- */

/* By rank: whom it sees, and the leader that it has then. */
static const struct {
    int ranks;
    uint64_t sees[4];
    uint8_t leaders[4];
} divisions[] = {
    {4, {15, 15, 15, 15}, {0, 0, 0, 0}}, {4, {1, 2, 4, 8}, {0, 1, 2, 3}},
    {4, {3, 3, 12, 12}, {0, 0, 2, 2}},   {3, {1, 3, 6, 0}, {0, 0, 2, 0}}, /* a chain: the second leads nobody */
    {3, {7, 2, 4, 0}, {0, 1, 2, 0}},                                      /* seen alone */
    {4, {5, 10, 5, 10}, {0, 1, 0, 1}},
};

START_TEST(ranks_that_see_each_other_share)
{
    struct host_groups groups;
    host_groups_of(&groups, divisions[_i].sees, divisions[_i].ranks);
    for (int rank = 0; rank < divisions[_i].ranks; rank++)
        ck_assert_uint_eq(groups.leader[rank], divisions[_i].leaders[rank]);
}
END_TEST

static const struct {
    const char *list, *name;
    bool listed;
} interfaces[] = {{"eth", "eth0", true},        {"=eth", "eth0", false},    {"=eth0", "eth0", true},
                  {"ib,eth1", "eth1", true},    {"ib,eth1", "eth0", false}, {"^docker,lo", "lo", false},
                  {"^docker,lo", "eth0", true}, {"^=lo", "lo0", true},      {"=eth1,eth0", "eth0", true},
                  {"=eth0", "eth", false},      {",", "eth0", false}};

START_TEST(interfaces_are_named_as_nccl_does)
{
    ck_assert_int_eq(address_listed(interfaces[_i].list, interfaces[_i].name), interfaces[_i].listed);
}
END_TEST

/* ---- Who is let in ----------------------------------------------------------------------------------------------- */

enum { GREETING = 32 };

static int call(const struct peer_endpoint *card, const void *said, size_t size)
{
    const int made = address_connect(&card->address, 10000);
    ck_assert_int_ge(made, 0);
    ck_assert_int_eq((int)send(made, said, size, MSG_NOSIGNAL), (int)size);
    return made;
}

/* Has been sent away: nothing was said, and it has ended. */
static bool is_closed(int socket)
{
    char byte;
    return recv(socket, &byte, 1, 0) <= 0;
}

START_TEST(strangers_are_sent_away)
{
    struct peer_endpoint cards[3] = {0};
    uint8_t wrong[GREETING] = {0}, right[GREETING];
    int strangers[6], sockets[3] = {-1, -1, -1};
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    const int listener = auth_listen(&cards[2]), other = auth_listen(&cards[0]);
    ck_assert(listener >= 0 && other >= 0);
    store_le64(right, UINT64_C(0x314c4c4143525453));
    store_le32(right + 8, 0);
    store_le32(right + 12, 2);
    memcpy(right + 16, cards[2].secret, AUTH_SECRET_BYTES);
    strangers[0] = call(&cards[2], wrong, GREETING);
    memcpy(wrong, right, GREETING);
    wrong[31] ^= 1; /* the secret */
    strangers[1] = call(&cards[2], wrong, GREETING);
    memcpy(wrong, right, GREETING);
    wrong[8] = 200; /* no rank */
    strangers[2] = call(&cards[2], wrong, GREETING);
    wrong[8] = 1; /* not awaited */
    strangers[3] = call(&cards[2], wrong, GREETING);
    memcpy(wrong, right, GREETING);
    wrong[12] = 1; /* another one is meant */
    strangers[4] = call(&cards[2], wrong, GREETING);
    strangers[5] = call(&cards[2], right, GREETING / 2); /* says no more */
    const int good = auth_connect(&cards[2], 0, 2);
    ck_assert_int_ge(good, 0);
    ck_assert(auth_accept(listener, cards, 2, 1, sockets));
    ck_assert(sockets[0] >= 0 && sockets[1] < 0);
    for (size_t i = 0; i < sizeof(strangers) / sizeof(strangers[0]); i++) {
        ck_assert(is_closed(strangers[i]));
        close(strangers[i]);
    }
    ck_assert(!auth_await(good, &cards[2], 0, 2)); /* another's secret */
    close(good);
    close(sockets[0]);
    close(listener);
    close(other);
}
END_TEST

START_TEST(who_is_let_in_is_told_so)
{
    struct peer_endpoint cards[2];
    int sockets[2] = {-1, -1};
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    const int listener = auth_listen(&cards[1]), other = auth_listen(&cards[0]);
    const int made = auth_connect(&cards[1], 0, 1);
    ck_assert(made >= 0 && auth_accept(listener, cards, 1, 1, sockets) && auth_await(made, &cards[0], 0, 1));
    close(made);
    close(sockets[0]);
    close(listener);
    close(other);
}
END_TEST

/* ---- What is not in order ---------------------------------------------------------------------------------------- */

enum { SLOT_BYTES = 8192 };

struct world {
    struct ring_flags to, from;
    uint8_t to_slots[RING_SLOTS * SLOT_BYTES], from_slots[RING_SLOTS * SLOT_BYTES];
    uint8_t guard[SLOT_BYTES];
};

static bool hear_nothing(void *hearer, int peer, const struct frame *frame)
{
    (void)hearer;
    (void)peer;
    return frame->type == FRAME_ASK && frame->small < 3;
}

static struct tcp_conn *carry_make(struct world *world, int ends[2])
{
    struct tcp_conn *conn = calloc(1, sizeof(*conn));
    require(conn != NULL && socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    conn->socket = ends[0];
    conn->slot_bytes = SLOT_BYTES;
    conn->to = (struct tcp_ring){&world->to, world->to_slots};
    conn->from = (struct tcp_ring){&world->from, world->from_slots};
    conn->hear = hear_nothing;
    return conn;
}

static void tell(int socket, struct frame frame)
{
    uint8_t bytes[FRAME_BYTES];
    frame_put(bytes, &frame);
    require(send(socket, bytes, FRAME_BYTES, MSG_NOSIGNAL) == FRAME_BYTES);
}

static const struct frame disorder[] = {
    {0, 0, 0, 0, 0},
    {FRAME_TYPES, 0, 0, 0, 0},
    {UINT32_MAX, 0, 0, 0, 0},
    {FRAME_SLOT, 0, 0, 0, 0},
    {FRAME_SLOT, SLOT_BYTES + 1, 0, 0, 0},
    {FRAME_SLOT, UINT32_MAX, 0, 0, 0},
    {FRAME_SLOT, 16, UINT64_MAX, 0, 0},
    {FRAME_TAKEN, 0, 0, 0, 0},
    {FRAME_TAKEN, 0, 1, 0, 0}, /* nothing was sent */
    {FRAME_TAKEN, 0, UINT64_MAX, 0, 0},
    {FRAME_RECORD, 2, 0, 0, 0},
    {FRAME_RECORD, 0, UINT64_MAX, 0, 0},
    {FRAME_ASK, 3, 0, 0, 0},
    {FRAME_PROMISE, 0, 0, 0, 0},
    {FRAME_STEP, 0, 0, 0, 0},
};

START_TEST(what_is_not_in_order_ends_the_connection)
{
    struct world *world = calloc(1, sizeof(*world));
    int ends[2];
    struct tcp_conn *conn = carry_make(world, ends);
    tell(ends[1], disorder[_i]);
    (void)tcp_progress(conn);
    ck_assert(conn->socket < 0 && conn->trouble != NULL);
    close(ends[1]);
    free(conn);
    free(world);
}
END_TEST

/* A slot that has not been taken is not written over. */
START_TEST(slots_come_when_there_is_room)
{
    struct world *world = calloc(1, sizeof(*world));
    int ends[2];
    uint8_t values[16];
    struct tcp_conn *conn = carry_make(world, ends);
    memset(values, 7, sizeof(values));
    tell(ends[1], (struct frame){.type = FRAME_SLOT, .small = sizeof(values), .a = 5});
    require(send(ends[1], values, sizeof(values), 0) == sizeof(values));
    ck_assert(tcp_progress(conn) && conn->socket >= 0);
    ck_assert_uint_eq(world->from.full[5].number, 6);
    ck_assert_uint_eq(world->from.full[5].bytes, sizeof(values));
    ck_assert_mem_eq(world->from_slots + 5 * SLOT_BYTES, values, sizeof(values));
    tell(ends[1], (struct frame){.type = FRAME_SLOT, .small = sizeof(values), .a = 5 + RING_SLOTS});
    (void)tcp_progress(conn);
    ck_assert(conn->socket < 0 && conn->trouble != NULL);
    close(ends[1]);
    free(conn);
    free(world);
}
END_TEST

START_TEST(no_bytes_do_harm)
{
    struct rng rng = rng_init((uint64_t)_i);
    struct world *world = calloc(1, sizeof(*world));
    for (unsigned turn = 0; turn < 300; turn++) {
        int ends[2];
        struct tcp_conn *conn = carry_make(world, ends);
        for (unsigned i = 0; i < 40 && conn->socket >= 0; i++) {
            const struct frame frame = {.type = (uint32_t)(rng_next(&rng) % (FRAME_TYPES + 1)),
                                        .small = (uint32_t)(rng_next(&rng) >> (32 + rng_next(&rng) % 32)),
                                        .a = rng_next(&rng) >> rng_next(&rng) % 64,
                                        .b = rng_next(&rng)};
            uint8_t noise[64];
            memset(noise, (int)rng_next(&rng), sizeof(noise));
            tell(ends[1], frame);
            require(send(ends[1], noise, rng_next(&rng) % sizeof(noise), MSG_NOSIGNAL) >= 0);
            (void)tcp_progress(conn);
        }
        tcp_close(conn);
        close(ends[1]);
        free(conn);
    }
    for (unsigned i = 0; i < SLOT_BYTES; i++)
        ck_assert_uint_eq(world->guard[i], 0);
    free(world);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coll_carry");
    TCase *tests = tcase_create("conn");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, ranks_that_see_each_other_share, 0, COUNT(divisions));
    tcase_add_loop_test(tests, interfaces_are_named_as_nccl_does, 0, COUNT(interfaces));
    tcase_add_test(tests, strangers_are_sent_away);
    tcase_add_test(tests, who_is_let_in_is_told_so);
    tcase_add_loop_test(tests, what_is_not_in_order_ends_the_connection, 0, COUNT(disorder));
    tcase_add_test(tests, slots_come_when_there_is_room);
    tcase_add_loop_test(tests, no_bytes_do_harm, 1, 5);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
