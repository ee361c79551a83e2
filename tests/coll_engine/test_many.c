/* More ranks than one word has bits: they join, and what they send each other and add up is right, also where it does
 * not fit. On one host, and on several, where ranks are connected when something did not fit. */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/coll_engine/harness.h"

enum { PAGE = 32768, COUNT_OF = PAGE / 2 + 40 };

/* Each rank has some descriptors, and all ranks are one process. */
static void set_up(void)
{
    struct rlimit files;
    require(getrlimit(RLIMIT_NOFILE, &files) == 0);
    files.rlim_cur = files.rlim_max < 8192 ? files.rlim_max : 8192;
    require(setrlimit(RLIMIT_NOFILE, &files) == 0);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    unsetenv("STRAIT_TEST_HOSTS");
}

/* Bytes of memory that the process uses of its own. */
static size_t own_memory(void)
{
    size_t all, used, shared;
    FILE *file = fopen("/proc/self/statm", "r");
    require(file != NULL && fscanf(file, "%zu %zu %zu", &all, &used, &shared) == 3);
    fclose(file);
    return (used - shared) * (size_t)sysconf(_SC_PAGESIZE);
}

/* Bytes of the memory that ranks of a host share, of all hosts, used or not. */
static size_t shared_memory(void)
{
    enum { HOSTS_MAX = FAKE_GPUS };
    unsigned long long seen[HOSTS_MAX], begin, end, inode;
    char line[512];
    size_t bytes = 0;
    unsigned count = 0, known;
    FILE *file = fopen("/proc/self/maps", "r");
    require(file != NULL);
    while (fgets(line, sizeof(line), file) != NULL) {
        if (strstr(line, "/memfd:strait-coll-rings") == NULL ||
            sscanf(line, "%llx-%llx %*s %*s %*s %llu", &begin, &end, &inode) != 3)
            continue;
        for (known = 0; known < count && seen[known] != inode; known++)
            ;
        if (known < count)
            continue;
        require(count < HOSTS_MAX);
        seen[count++] = inode;
        bytes += end - begin;
    }
    fclose(file);
    require(count > 0);
    return bytes;
}

/* Ends of TCP connections of this process. */
static int connected(void)
{
    int count = 0;
    for (int file = 0; file < 8192; file++) {
        struct sockaddr_storage at;
        socklen_t size = sizeof(at);
        count += getpeername(file, (struct sockaddr *)&at, &size) == 0 && at.ss_family == AF_INET;
    }
    return count;
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static struct operation operation_of(const struct rank *rank, enum coll_operation what, unsigned others, unsigned turn)
{
    return (struct operation){.what = what,
                              .type = COLL_BF16,
                              .reduction = COLL_SUM,
                              .count = COUNT_OF,
                              .root = rank->ranks - 1,
                              .other = VALUES_NOISE,
                              .others = others,
                              .seed = seed_of(turn, 0, 0)};
}

/* One operation, in which the ranks of a mask have noise, which does not fit. */
static void operate(const struct rank *rank, enum coll_operation what, unsigned others, unsigned turn)
{
    struct operation operation = operation_of(rank, what, others, turn);
    operation_new(rank, &operation, 0, false);
    operation_fill(rank, &operation);
    require_ok(operation_post(rank, &operation));
    operation_check(rank, &operation);
    values_free_all(rank);
    ranks_meet();
}

/* Has a part for each rank. One rank computes what the sum is, the others have the same. */
static void sum_all(const struct rank *rank, unsigned others, unsigned turn)
{
    static uint8_t *first;
    struct operation operation = operation_of(rank, COLL_ALL_REDUCE, others, turn);
    operation.count *= (size_t)rank->ranks;
    operation_new(rank, &operation, 0, false);
    operation_fill(rank, &operation);
    require_ok(operation_post(rank, &operation));
    fake_stream_wait(rank->stream);
    if (rank->rank == 0) {
        first = operation.in;
        operation_check(rank, &operation);
    }
    ranks_meet();
    require(memcmp(operation.in, first, operation.count * 2) == 0);
    ranks_meet();
    values_free_all(rank);
}

static void require_all(const struct rank *rank, const char *operation, unsigned long long calls)
{
    require_told(rank->comm, operation, "bf16", calls, calls);
}

static void do_most(struct rank *rank)
{
    operate(rank, COLL_ALL_GATHER, 1 << 3, 1);
    operate(rank, COLL_ALL_TO_ALL, 1 << 5, 2);
    operate(rank, COLL_REDUCE_SCATTER, 1 << 7, 3);
    operate(rank, COLL_BROADCAST, 0, 5);
    operate(rank, COLL_SEND, 1 << 9, 6);
    require_all(rank, "all_gather", 1);
    require_all(rank, "all_to_all", 1);
    require_all(rank, "reduce_scatter", 1);
    require_all(rank, "broadcast", 1);
    require_all(rank, "send", 1);
    require(fake_gpu.taken > 0);
}

/* That takes long: values by the square of the ranks. */
static void reduce_all(struct rank *rank)
{
    sum_all(rank, 1 << 11, 4);
    require_all(rank, "all_reduce", 1);
    require(fake_gpu.taken > 0);
}

static const int counts[] = {65, 96, 130};

START_TEST(most_operations_give_the_values_of_nccl)
{
    ranks_run(counts[_i], do_most, NULL);
}
END_TEST

START_TEST(all_reduce_gives_every_rank_the_sum)
{
    ranks_run(counts[_i], reduce_all, NULL);
}
END_TEST

/* ---- On several hosts -------------------------------------------------------------------------------------------- */

enum { NEIGHBOURS = 8 };

/* Links are made for what does not fit: by the sender, and by nobody before, but for one from each host to the next. */
static void connect_some(struct rank *rank)
{
    const int start = 2 * ((rank->ranks + NEIGHBOURS - 1) / NEIGHBOURS);
    ranks_meet();
    for (long began = now_ms(); rank->rank == 0 && connected() > start; usleep(1000)) /* those that ranks met by */
        require(now_ms() - began < 20000);
    ranks_meet();
    operate(rank, COLL_SEND, 0, 1);
    require(connected() == start);
    ranks_meet();
    operate(rank, COLL_SEND, 1 << (NEIGHBOURS - 1), 2); /* to the first rank of the next host */
    require(connected() == start + 2);
    ranks_meet();
    operate(rank, COLL_SEND, 1, 3); /* on one host */
    require(connected() == start + 2);
    ranks_meet();
    operate(rank, COLL_ALL_GATHER, 1 << 3, 4);
    require(connected() >= start + 2 * (rank->ranks - NEIGHBOURS) && connected() < start + 4 * rank->ranks);
}

START_TEST(ranks_on_other_hosts_are_connected_when_something_does_not_fit)
{
    setenv("STRAIT_TEST_HOSTS", "8", 1);
    ranks_run(70, connect_some, NULL);
}
END_TEST

/* GPUs from this number on have no codec that is measured, which would take long for so many. */
enum { UNMEASURED = 64 };

/* Measuring connects nobody, whether links are fast or slow. */
static void measure_links(struct rank *rank)
{
    const int start = 2 * ((rank->ranks + NEIGHBOURS - 1) / NEIGHBOURS);
    fake_device_set(UNMEASURED + rank->rank);
    rank->stream = fake_stream_make();
    require_ok(ncclCommInitRank(&rank->comm, rank->ranks, rank->id, rank->rank));
    ranks_meet();
    for (long began = now_ms(); rank->rank == 0 && connected() > start; usleep(1000)) /* those that ranks met by */
        require(now_ms() - began < 20000);
    require(rank->rank != 0 || connected() == start);
    rank_end(rank);
}

START_TEST(links_of_many_ranks_are_measured_by_the_connections_there_are)
{
    enum { RANKS = 66 };
    setenv("STRAIT_COLL", "auto", 1);
    links_begin(0, _i == 0 ? 0 : 10000000);
    for (int i = 0; i < RANKS; i++)
        fake_gpu.hosts[UNMEASURED + i] = 1 + (uint32_t)(i / NEIGHBOURS);
    ranks_start(RANKS, measure_links, NULL);
    require(fake_gpu.taken > 0);
}
END_TEST

/* Grouped, so that records are awaited, and again and again, so that levels change on all hosts alike: NCCL would not
 * get the same sizes from all ranks otherwise. */
static void gather_in_groups(struct rank *rank)
{
    enum { TIMES = 5 };
    struct operation operation = operation_of(rank, COLL_ALL_GATHER, 1 << 2 | 1 << 30, 0);
    operation_new(rank, &operation, 0, false);
    for (unsigned turn = 0; turn < TIMES; turn++) {
        operation.seed = seed_of(turn, 0, 0);
        operation_fill(rank, &operation);
        require_ok(ncclGroupStart());
        require_ok(operation_post(rank, &operation));
        require_ok(ncclGroupEnd());
        operation_check(rank, &operation);
    }
}

START_TEST(levels_are_raised_by_all_hosts_alike)
{
    setenv("STRAIT_TEST_HOSTS", "13", 1);
    ranks_run(66, gather_in_groups, NULL);
}
END_TEST

/* A rank's noise is in all sums of its host, which do not fit: those of each rail are connected. */
static void sum_by_rails(struct rank *rank)
{
    operate(rank, COLL_REDUCE_SCATTER, 1 << 7, 1);
    require(connected() >= 2 * (rank->ranks - NEIGHBOURS) && connected() < 4 * rank->ranks);
    require_all(rank, "reduce_scatter", 1);
    require(fake_gpu.taken > 0);
}

START_TEST(sums_of_many_hosts_go_by_rail)
{
    setenv("STRAIT_TEST_HOSTS", "8", 1);
    ranks_run(72, sum_by_rails, NULL);
}
END_TEST

/* ---- Joining ----------------------------------------------------------------------------------------------------- */

enum { MANY = 256, JOIN_MS = 1000 };
static const size_t EACH_MAX = (size_t)64 << 20;

/* Ten times as long as it takes, as other tests run besides; under a sanitizer as much longer as tests may take. */
static long join_ms(void)
{
    const char *patience = getenv("CK_TIMEOUT_MULTIPLIER");
    return JOIN_MS * (patience != NULL ? atol(patience) : 10);
}

static void just_join(struct rank *rank)
{
    static long began;
    static size_t before;
    if (rank->rank == 0) {
        before = own_memory();
        began = now_ms();
    }
    ranks_meet();
    rank_begin(rank);
    ranks_meet();
    if (rank->rank == 0) {
        const long took = now_ms() - began;
        const size_t each = (own_memory() - before + shared_memory()) / (size_t)rank->ranks;
        printf("%d ranks: joined in %ld ms, %.1f MiB of each\n", rank->ranks, took, (double)each / (1 << 20));
        require(took < join_ms() && each <= EACH_MAX);
    }
    operate(rank, COLL_BROADCAST, 0, 1);
    require_all(rank, "broadcast", 1);
    rank_end(rank);
}

START_TEST(many_ranks_join_soon_and_take_little_memory)
{
    if (_i == 1)
        setenv("STRAIT_TEST_HOSTS", "8", 1);
    ranks_start(MANY, just_join, NULL);
}
END_TEST

/* A hundred starts, which the suite makes ten times, of eight ranks that come and go at different moments: on one host
 * without and with channels in host memory, on hosts of their own and on four of two. */
enum { STARTS = 100, STARTERS = 8 };

static void start_and_use(struct rank *rank)
{
    unsigned speed = (unsigned)rank->rank + 1 + *(const unsigned *)rank->argument;
    usleep((useconds_t)rand_r(&speed) % 2000);
    rank_begin(rank);
    operate(rank, COLL_REDUCE_SCATTER, 1 << 3, 1);
    operate(rank, COLL_ALL_TO_ALL, 0, 2);
    usleep((useconds_t)rand_r(&speed) % 2000);
    rank_end(rank);
}

START_TEST(eight_ranks_start_again_and_again)
{
    static const char *const hosts[] = {NULL, NULL, "1", "2"};
    const char *neighbours = hosts[_i % COUNT(hosts)];
    if (neighbours != NULL)
        setenv("STRAIT_TEST_HOSTS", neighbours, 1);
    if (_i % 4 == 1)
        setenv("STRAIT_COLL_SHM", "always", 1);
    fake_gpu.shm_fs = 1;
    fake_gpu.jitter_us = 100;
    for (unsigned turn = 0; turn < STARTS; turn++)
        ranks_start(STARTERS, start_and_use, &turn);
}
END_TEST

/* As above with `auto`: each start measures the links, and channels where ranks share a host. */
enum { MEASURED_STARTS = 10 };

static void start_and_measure(struct rank *rank)
{
    unsigned speed = (unsigned)rank->rank + 1 + *(const unsigned *)rank->argument;
    usleep((useconds_t)rand_r(&speed) % 2000);
    fake_device_set(UNMEASURED + rank->rank);
    rank->stream = fake_stream_make();
    require_ok(ncclCommInitRank(&rank->comm, rank->ranks, rank->id, rank->rank));
    operate(rank, COLL_ALL_GATHER, 1 << 3, 1);
    operate(rank, COLL_ALL_TO_ALL, 0, 2);
    usleep((useconds_t)rand_r(&speed) % 2000);
    rank_end(rank);
}

START_TEST(eight_ranks_start_again_and_measure_their_links)
{
    static const char *const hosts[] = {NULL, "1", "2"};
    setenv("STRAIT_COLL", "auto", 1);
    if (hosts[_i] != NULL)
        setenv("STRAIT_TEST_HOSTS", hosts[_i], 1);
    fake_gpu.jitter_us = 100;
    for (unsigned turn = 0; turn < MEASURED_STARTS; turn++)
        ranks_start(STARTERS, start_and_measure, &turn);
}
END_TEST

/* `test_coll_many long`: only what takes long; `hosts`: only what several hosts do; `measured`: only what measures
 * links. */
int main(int argc, char **argv)
{
    const bool is_long = argc > 1 && strcmp(argv[1], "long") == 0;
    const bool is_measured = argc > 1 && strcmp(argv[1], "measured") == 0;
    const bool is_hosts = argc > 1 && strcmp(argv[1], "hosts") == 0;
    TCase *tests = tcase_create("many");
    tcase_add_checked_fixture(tests, set_up, NULL);
    if (is_long) {
        tcase_add_loop_test(tests, all_reduce_gives_every_rank_the_sum, 1, COUNT(counts));
        tcase_add_loop_test(tests, most_operations_give_the_values_of_nccl, 1, COUNT(counts));
        tcase_add_loop_test(tests, many_ranks_join_soon_and_take_little_memory, 1, 2);
        tcase_add_loop_test(tests, eight_ranks_start_again_and_again, 0, 10);
        tcase_add_loop_test(tests, eight_ranks_start_again_and_measure_their_links, 0, 3);
        return suite_run("many_long", tests);
    }
    if (is_measured) {
        tcase_add_loop_test(tests, links_of_many_ranks_are_measured_by_the_connections_there_are, 0, 2);
        return suite_run("many_measured", tests);
    }
    tcase_add_test(tests, ranks_on_other_hosts_are_connected_when_something_does_not_fit);
    tcase_add_test(tests, levels_are_raised_by_all_hosts_alike);
    tcase_add_test(tests, sums_of_many_hosts_go_by_rail);
    if (is_hosts)
        return suite_run("many_hosts", tests);
    tcase_add_loop_test(tests, many_ranks_join_soon_and_take_little_memory, 0, 1);
    tcase_add_loop_test(tests, most_operations_give_the_values_of_nccl, 0, 1);
    tcase_add_loop_test(tests, all_reduce_gives_every_rank_the_sum, 0, 1);
    return suite_run("many", tests);
}
