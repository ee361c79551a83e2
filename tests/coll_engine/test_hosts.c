/* Ranks on several hosts: threads whose devices are told to be in different ones, so that what does not fit goes by
 * TCP, in one process. What arrives is right, levels are the same on all, and connections that end fail the
 * communicator. */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/coll_engine/harness.h"

enum { PAGE = 16384, PAGES = 4, COUNT_OF = PAGE * PAGES, LARGE = 9 << 20 };

/* So many neighbours are on one host. */
static void set_hosts(const char *neighbours)
{
    setenv("STRAIT_TEST_HOSTS", neighbours, 1);
}

static void set_up(void)
{
    fake_gpu.jitter_us = 200;
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    set_hosts("1");
}

/* ---- Connections of this process --------------------------------------------------------------------------------- */

/* Ends of TCP connections; the one with that number is cut. */
static int count_connected(int cut)
{
    int count = 0;
    for (int file = 0; file < 1024; file++) {
        struct sockaddr_storage at;
        socklen_t size = sizeof(at);
        if (getpeername(file, (struct sockaddr *)&at, &size) != 0 ||
            (at.ss_family != AF_INET && at.ss_family != AF_INET6))
            continue;
        if (count++ == cut)
            require(shutdown(file, SHUT_RDWR) == 0);
    }
    return count;
}

/* Those that ranks met by end when they have, and a moment later at the other end. */
static void await_connected(int count)
{
    for (long began = now_ms(); count_connected(-1) != count; usleep(1000))
        require(now_ms() - began < 20000);
}

static void see_connections(struct rank *rank)
{
    ranks_meet();
    await_connected(*(const int *)rank->argument);
    ranks_meet();
}

/* By ranks and neighbours: each connection has two ends here. */
static const struct {
    int ranks;
    const char *neighbours;
    int ends;
} worlds[] = {{2, "2", 0}, {2, "1", 2}, {3, "1", 6}, {4, "2", 8}, {3, "2", 4}, {8, "4", 32}};

START_TEST(ranks_on_different_hosts_are_connected)
{
    set_hosts(worlds[_i].neighbours);
    ranks_run(worlds[_i].ranks, see_connections, &worlds[_i].ends);
    await_connected(0);
}
END_TEST

/* ---- Levels ------------------------------------------------------------------------------------------------------ */

/* Noise of one rank, in all or in a part; nothing waits between the calls of a burst, so that steps come while
 * operations are asked for. That a fake NCCL gets the same sizes from all ranks is what it demands. */
static void gather_in_bursts(struct rank *rank)
{
    enum { BURSTS = 12, BURST = 40 };
    const struct gather gather = gather_new(rank, COLL_BF16, COUNT_OF, VALUES_NORMAL);
    if (rank->rank == 1)
        values_fill(gather.own, COLL_BF16, PAGE, VALUES_NOISE, 1);
    uint64_t taken = 0;
    for (unsigned burst = 0; burst < BURSTS; burst++) {
        ranks_meet();
        taken = fake_gpu.taken;
        ranks_meet();
        for (unsigned i = 0; i < BURST; i++)
            require_ok(gather_post(rank, &gather));
        fake_stream_wait(rank->stream);
        require(memcmp(gather.all + (size_t)rank->rank * COUNT_OF * 2, gather.own, COUNT_OF * 2) == 0);
    }
    ranks_meet();
    require(fake_gpu.taken == taken && taken > 0); /* by now there is room */
    require(told_of(rank->comm, "all_gather", "bf16").compressed == BURSTS * BURST);
}

START_TEST(levels_are_raised_by_all_hosts_alike)
{
    fake_gpu.jitter_us = 0;
    set_hosts(_i % 2 == 0 ? "1" : "2");
    ranks_run(2 + _i, gather_in_bursts, NULL);
}
END_TEST

/* Every rank sends to the next one; what rank 0 sends needs more room, and gets it alone. */
static void send_around(struct rank *rank)
{
    enum { TURNS = 120 };
    struct operation operation = {
        .what = COLL_SEND, .type = COLL_BF16, .count = COUNT_OF, .other = VALUES_NOISE, .others = 1};
    operation_new(rank, &operation, 0, false);
    for (unsigned turn = 0; turn < TURNS; turn++) {
        operation.seed = seed_of(turn, 0, 0);
        operation_fill(rank, &operation);
        require_ok(operation_post(rank, &operation));
        operation_check(rank, &operation);
    }
    const struct told sent = told_of(rank->comm, "send", "bf16"), received = told_of(rank->comm, "recv", "bf16");
    require((rank->rank == 0) == (sent.compressed < TURNS) && sent.compressed >= 2);
    require((rank_before(rank) == 0) == (received.compressed < TURNS));
}

/* ---- Leaving, and connections that end --------------------------------------------------------------------------- */

/* A sender may be gone before its values have been taken. */
static void leave_early(struct rank *rank)
{
    enum { FEW = 3 << 20 }; /* finds room in a ring */
    uint8_t *values = values_new(rank, COLL_BF16, FEW);
    rank_begin(rank);
    if (rank->rank == 0)
        values_fill(values, COLL_BF16, FEW, VALUES_NOISE, 0);
    require_ok(pair_post(rank, values, COLL_BF16, FEW));
    fake_stream_wait(rank->stream);
    if (rank->rank == 0)
        require_ok(ncclCommDestroy(rank->comm));
    else
        require(values_are(values, COLL_BF16, FEW, VALUES_NOISE, 0));
    ranks_meet(); /* and the other end has seen it */
    if (rank->rank == 1) {
        await_connected(0);
        require(error_of(rank->comm) == COLL_SUCCESS);
        require_ok(ncclCommDestroy(rank->comm));
    }
    fake_stream_end(rank->stream);
}

START_TEST(a_rank_that_leaves_is_no_failure)
{
    ranks_start(2, leave_early, NULL);
    await_connected(0);
}
END_TEST

/* The two ranks that the connection was between are told, whichever they are. */
static void await_two(coll_comm comm)
{
    static _Atomic int told;
    for (long began = now_ms(); told < 2; usleep(1000)) {
        require(now_ms() - began < 20000);
        if (error_of(comm) == COLL_SUCCESS)
            continue;
        require(error_of(comm) == COLL_REMOTE_ERROR);
        told++;
        return;
    }
}

/* While kernels wait for what does not come, the connection is cut: all of them fail at once. */
static void be_cut_off(struct rank *rank)
{
    const struct gather gather = gather_new(rank, COLL_BF16, LARGE, VALUES_NOISE);
    rank_begin(rank);
    fake_gpu.lost = 1u << 1;
    require_ok(gather_post(rank, &gather));
    while (fake_gpu.offered == 0)
        usleep(1000);
    ranks_meet();
    if (rank->rank == 0) {
        await_connected(rank->ranks * (rank->ranks - 1));
        (void)count_connected(0);
    }
    await_two(rank->comm);
    ranks_meet();
    rank_abort(rank);
}

START_TEST(a_connection_that_ends_fails_the_communicator)
{
    ranks_start(_i, be_cut_off, NULL);
    await_connected(0);
}
END_TEST

/* ---- Joining ----------------------------------------------------------------------------------------------------- */

static void stay_raw(struct rank *rank)
{
    rank_gather(rank, rank->comm, false);
}

START_TEST(ranks_without_an_address_stay_raw)
{
    setenv("NCCL_SOCKET_IFNAME", "=no-such-interface", 1);
    ranks_run(3, stay_raw, NULL);
    await_connected(0);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("hosts");
    tcase_add_checked_fixture(tests, set_up, NULL);
    tcase_add_loop_test(tests, ranks_on_different_hosts_are_connected, 0, COUNT(worlds));
    tcase_add_loop_test(tests, levels_are_raised_by_all_hosts_alike, 0, 3);
    add_ranks(tests, "sender_and_receiver_change_levels_alike", ranks_run, send_around, 2, 1);
    add_ranks(tests, "sender_and_receiver_change_levels_alike", ranks_run, send_around, 3, 1);
    tcase_add_test(tests, a_rank_that_leaves_is_no_failure);
    tcase_add_loop_test(tests, a_connection_that_ends_fails_the_communicator, 2, 4);
    tcase_add_test(tests, ranks_without_an_address_stay_raw);
    return suite_run("hosts", tests);
}
